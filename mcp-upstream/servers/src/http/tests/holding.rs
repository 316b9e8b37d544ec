//! Reasons for keeping and ending a session, and messages that are never sent in it.

use std::sync::atomic::AtomicBool;

use tokio::sync::watch;

use super::*;

async fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let done = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, done).await.expect(what);
}

fn late() -> Sent {
    Err(SendError {
        kind: SendErrorKind::ConnectTimeout,
        unsent: true,
        message: "no connection came about in time".into(),
    })
}

#[tokio::test]
async fn a_connection_that_takes_too_long_costs_no_session_while_its_backend_is_used() {
    let is_late = Arc::new(AtomicBool::new(false));
    let lateness = Arc::clone(&is_late);
    let scene = Scene::new(1, move |seen| {
        let is_late = lateness.load(Ordering::SeqCst);
        legacy(seen, move |seen| match is_late {
            true => late(),
            false => Ok(json(&done(seen))),
        })
    });
    let backend = &scene.backends[0];
    let leased = session(&scene, "a").await;
    let opened = backend.count("initialize");
    is_late.store(true, Ordering::SeqCst);
    let called = call(&leased).await;
    assert!(called.unsent && called.outcome.is_err());
    is_late.store(false, Ordering::SeqCst);
    assert_eq!(call(&leased).await.outcome.as_deref(), Ok(DONE));
    assert_eq!(backend.count("initialize"), opened);
    // A backend that is left out is not waited for, and is told that the session is over.
    is_late.store(true, Ordering::SeqCst);
    backend.ejected.store(true, Ordering::SeqCst);
    assert!(call(&leased).await.outcome.is_err());
    let id = backend.last("tools/call");
    let id = id.header("mcp-session-id");
    drop(leased);
    eventually("the end of the session", || {
        backend.count("DELETE") > 0 && backend.last("DELETE").header("mcp-session-id") == id
    })
    .await;
}

#[tokio::test]
async fn a_call_that_is_given_up_before_its_session_is_open_is_never_sent() {
    let opens = watch::Sender::new(true);
    let gate = opens.subscribe();
    let scene = Scene::new(1, move |seen| {
        let mut gate = gate.clone();
        async move {
            if seen.what() == "notifications/initialized" {
                let _ = gate.wait_for(|open| *open).await;
            }
            legacy(seen, |seen| Ok(json(&done(seen)))).await
        }
    });
    let backend = &scene.backends[0];
    // The eras of the server are known then.
    let other = session(&scene, "other").await;
    assert!(call(&other).await.outcome.is_ok());
    let before = backend.count("tools/call");
    opens.send_replace(false);
    let leased = session(&scene, "a").await;
    let request = |tool: &str| {
        let params = json!({ "name": tool, "arguments": {} }).to_string();
        let params = serde_json::from_str(&params).expect("JSON");
        leased.request("tools/call", Some(params), None)
    };
    let given_up = request("given up").expect("begun");
    let mut wanted = request("wanted").expect("begun");
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    assert_eq!(backend.count("tools/call"), before, "both wait");
    drop(given_up);
    opens.send_replace(true);
    within(wanted.answer()).await.expect("an answer");
    assert_eq!(backend.count("tools/call"), before + 1);
    assert_eq!(backend.last("tools/call").body["params"]["name"], "wanted");
    assert_eq!(backend.count("notifications/cancelled"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_busy_when_its_stream_is_opened_is_asked_for_it_again() {
    for (status, again) in [
        (429, true),
        (408, true),
        (503, true),
        (405, false),
        (401, false),
    ] {
        let scene = Scene::new(1, move |seen: Seen| async move {
            match seen.method.as_str() {
                "GET" => Ok(text(status, "")),
                _ => legacy(seen, |seen| Ok(json(&done(seen)))).await,
            }
        });
        let backend = &scene.backends[0];
        let _leased = session(&scene, "a").await;
        // Streams of both connections: the session's, and the shared one.
        tokio::time::sleep(Duration::from_secs(300)).await;
        let (asked, sessions) = (backend.count("GET"), backend.count("initialize"));
        assert!(asked > 0, "{status}");
        assert_eq!(asked > sessions, again, "{status}: {asked} of {sessions}");
    }
}

#[tokio::test]
async fn an_answer_to_a_call_is_no_end_of_its_session_whatever_its_status() {
    let scene = Scene::new(1, |seen| {
        legacy(seen, |seen| {
            let error = json!({ "code": -32602, "message": "no such tool" });
            let answer = json!({ "jsonrpc": "2.0", "id": seen.body["id"], "error": error });
            let kind = [("content-type", "application/json")];
            Ok(whole(404, &kind, &answer.to_string()))
        })
    });
    let leased = session(&scene, "a").await;
    for _ in 0..2 {
        let said = call(&leased).await.outcome.expect("an answer");
        assert!(said.contains("no such tool"), "{said}");
    }
}
