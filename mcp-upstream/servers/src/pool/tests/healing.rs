//! Processes that die, hang or are replaced, and the effects on their clients.

use super::*;

fn quick() -> HangThresholds {
    HangThresholds {
        suspect_after: Duration::from_millis(100),
        alive_within: Duration::from_millis(500),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_is_suspected_asked_and_replaced_and_no_other_is_touched() {
    let mut house = House::with_patience(quick());
    let server = house.server("legacy", quiet());
    house.publish(Some(&server));
    let key = || ConnectionKey::Session("other".into());
    let open = || client(json!({ "roots": {} }), None);
    let other = house.lease(&server, key(), open()).await;
    let stopped = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let pid = stopped.pid();
    {
        let waits = call(&stopped, "stop");
        assert!(
            tokio::time::timeout(quick().suspect_after * 2, waits)
                .await
                .is_err()
        );
    }
    drop(stopped);
    let successor = within(async {
        loop {
            let leased = house
                .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
                .await;
            if leased.pid() != pid {
                return leased;
            }
            // Requests that use it meanwhile wait in vain, too.
            let _ = tokio::time::timeout(quick().alive_within, call(&leased, "look")).await;
        }
    })
    .await;
    call(&successor, "look").await.expect("answered");
    let pool = house.pools.state(&server.name).expect("a pool");
    assert_eq!(
        pool.last_restart.map(|(reason, _)| reason),
        Some("unresponsive")
    );
    let own = other.pid();
    call(&other, "look").await.expect("it was never asked");
    drop(other);
    assert_eq!(house.lease(&server, key(), open()).await.pid(), own);
    drop(successor);
    // The stopped process neither reads the end of its input nor reacts to SIGTERM.
    house.until_live(2).await;
    within(house.pools.shutdown(Duration::from_secs(20))).await;
    house.until_live(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_process_died_gets_another_one_just_like_it() {
    let (house, server) = House::with("legacy", quiet());
    let key = || ConnectionKey::Session("tag".into());
    let open = || client(json!({ "elicitation": { "x": 1 } }), None);
    let leased = house.lease(&server, key(), open()).await;
    // Requests of the session itself: they go up unchanged.
    for (method, params) in [
        ("resources/subscribe", json!({ "uri": "test://a" })),
        ("resources/subscribe", json!({ "uri": "test://b" })),
        ("resources/unsubscribe", json!({ "uri": "test://b" })),
        ("logging/setLevel", json!({ "level": "notice" })),
    ] {
        let params = serde_json::value::to_raw_value(&params).expect("JSON");
        let call = leased.request(method, Some(&params), None).expect("sent");
        let reply = within(call).await.expect("answered");
        assert!(matches!(reply, ResponseOutcome::Result(_)), "{method}");
        leased.granted(method, Some(&params));
    }
    let before = call(&leased, "look").await.expect("answered");
    assert!(call(&leased, "crash").await.is_err());
    drop(leased);
    let leased = house.lease(&server, key(), open()).await;
    let after = call(&leased, "look").await.expect("answered");
    assert_ne!(after["pid"], before["pid"]);
    for what in ["client", "opened_by", "subscribed", "level"] {
        assert_eq!(after[what], before[what], "{what}");
    }
    assert_eq!(after["client"], json!({ "elicitation": { "x": 1 } }));
    assert_eq!(after["subscribed"], json!(["test://a"]));
    assert_eq!(after["level"], "notice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_principals_process_is_told_of_nobody_and_refused_what_it_asks() {
    let settings = StdioSettings {
        isolation: Isolation::Principal,
        ..quiet()
    };
    let (house, server) = House::with("legacy", settings);
    let ear = Arc::new(Client::default());
    let key = |name: &str| ConnectionKey::Principal(name.into());
    let open = || client(json!({ "elicitation": {} }), Some(Arc::clone(&ear) as _));
    let ada = house.lease(&server, key("ada"), open()).await;
    let again = house.lease(&server, key("ada"), open()).await;
    let bob = house.lease(&server, key("bob"), open()).await;
    assert_eq!(ada.pid(), again.pid());
    assert_ne!(ada.pid(), bob.pid());
    let seen = call(&ada, "look").await.expect("answered");
    assert_eq!(seen["client"], json!({}));
    let refused = call(&ada, "ask").await.expect("answered");
    assert_eq!(refused["error"]["code"], -32601);
    assert_eq!(ear.asked.load(Ordering::SeqCst), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_said_of_itself_is_known_while_it_is_down_and_not_when_it_is_dead() {
    let folder = tempfile::tempdir().expect("a folder");
    for (restart, known) in [(Restart::OnFailure, true), (Restart::Never, false)] {
        let _ = std::fs::remove_file(folder.path().join("down"));
        let mut house = House::new();
        let settings = StdioSettings { restart, ..quiet() };
        let server = house.server_with("legacy", folder.path(), settings);
        house.publish(Some(&server));
        let leased = house
            .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
            .await;
        std::fs::write(folder.path().join("down"), "").expect("written");
        assert!(call(&leased, "crash").await.is_err());
        drop(leased);
        within(async {
            let lease = || {
                house
                    .pools
                    .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
            };
            while lease().await.is_ok() {}
        })
        .await;
        // A client of the other era may get it, too: it is translated.
        for era in [Era::Legacy, Era::Modern] {
            let opened = house.pools.last_opened(&server, era);
            assert_eq!(opened.is_some(), known, "{restart:?}");
        }
        assert_eq!(
            house
                .pools
                .server_era(&server, Era::Legacy, Opener::Everybody)
                .await
                .expect("it is on record"),
            EraSupport::Legacy
        );
        let state = house.pools.state(&server.name).expect("a pool");
        assert_eq!((state.as_str(), state.dead), ("failed", !known));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_question_without_an_answer_does_not_keep_who_was_asked() {
    #[derive(Default)]
    struct Keeps {
        asked: Mutex<Vec<ServerRequest>>,
        heard: Notify,
    }

    impl Inbound for Keeps {
        fn notification(&self, _: Notification<'_>) {}

        fn request(&self, request: ServerRequest) {
            self.asked.lock().expect("not poisoned").push(request);
            self.heard.notify_one();
        }
    }

    let (house, server) = House::with("legacy", quiet());
    let keeps = Arc::new(Keeps::default());
    let inbound = Arc::clone(&keeps) as Arc<dyn Inbound>;
    let open = client(json!({ "elicitation": {} }), Some(inbound));
    let key = ConnectionKey::Session("tag".into());
    let leased = house.lease(&server, key, open).await;
    let asks = leased.request("tools/call", Some(&params("ask")), None);
    within(keeps.heard.notified()).await;
    let gone = Arc::downgrade(&keeps);
    drop((asks, leased, keeps));
    // Its keeper is dropped with the pools, in the middle of its work.
    drop(house);
    within(async {
        while gone.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_ends_calls_and_processes_and_starts_when_they_are_gone() {
    let (house, server) = House::with("legacy", quiet());
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let pid = leased.pid();
    let waits = call(&leased, "stop");
    let restart = async {
        // The process is stopped: it neither reads the end of its input nor reacts to SIGTERM.
        within(async {
            while !is_stopped(pid) {
                tokio::task::yield_now().await
            }
        })
        .await;
        house.pools.restart(&server).expect("served");
    };
    let (ended, ()) = tokio::join!(waits, restart);
    assert!(ended.is_err());
    drop(leased);
    let successor = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    assert_ne!(successor.pid(), pid);
    // The new process was not started beside the old one.
    house.until_live(1).await;
    let pool = house.pools.state(&server.name).expect("a pool");
    assert_eq!(
        pool.last_restart.map(|(reason, _)| reason),
        Some("requested")
    );
    call(&successor, "look").await.expect("answered");
    drop(successor);
    within(house.pools.shutdown(Duration::from_secs(20))).await;
    house.until_live(0).await;
}

/// Returns true if SIGSTOP has reached a process.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('T'))
}
