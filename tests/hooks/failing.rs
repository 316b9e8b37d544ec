//! Hooks that fail: they hang, answer something else than an answer, or cannot be reached.

use serde_json::{Value, json};

use super::{TOOLS, audited, call, hooked, session, text};
use crate::support::hook::{HookReply, HookStub};
use crate::support::ports::free_address;
use crate::support::session::Session;
use crate::support::{Gateway, eventually};

/// Answers that are none, with a name for each.
const ODD: [&str; 13] = [
    "no JSON",
    "nothing",
    "a list",
    "null",
    "an unknown member",
    "a member of another event",
    "two members",
    "arguments that are no object",
    "a refusal without a text",
    "too much",
    "too deep",
    "an error",
    "a redirect",
];

fn odd(what: &str) -> HookReply {
    let raw = |status, text: String| HookReply::Raw(status, text);
    HookReply::Json(match what {
        "no JSON" => return raw(200, "<html>".to_owned()),
        "nothing" => return raw(200, String::new()),
        "too deep" => return raw(200, "[".repeat(10_000)),
        "an error" => return raw(500, "{}".to_owned()),
        "a redirect" => return raw(307, "{}".to_owned()),
        "a list" => json!([]),
        "null" => Value::Null,
        "an unknown member" => json!({"argument": {}}),
        "a member of another event" => json!({"result": {"content": []}}),
        "two members" => json!({"arguments": {}, "refuse": "x"}),
        "arguments that are no object" => json!({"arguments": []}),
        "a refusal without a text" => json!({"refuse": true}),
        "too much" => json!({"arguments": {"text": "x".repeat(5_000_000)}}),
        _ => json!({}),
    })
}

#[tokio::test]
async fn an_answer_that_is_none_refuses_the_call_unless_the_hook_fails_open() {
    let start = || {
        HookStub::start(|request| {
            let text = request["arguments"]["text"].as_str();
            odd(text.unwrap_or_default())
        })
    };
    let (closed, open) = (start().await, start().await);
    let hook = |url: String, namespace: &str, fail: &str| json!({"on": "call", "url": url, "namespaces": [namespace], "fail": fail, "timeout": "20s"});
    let gateway = hooked(json!([
        hook(closed.url(), "own", "closed"),
        hook(open.url(), "other", "open")
    ]))
    .start()
    .await;
    for what in ODD {
        let (status, answer) = gateway.call("own", "echo", json!({"text": what})).await;
        assert_eq!(status, 502, "{what}: {answer}");
        assert_eq!(answer["error"]["code"], "hook_failed", "{what}");
        assert!(!answer.to_string().contains("127.0.0.1"), "{answer}");
        let (status, answer) = gateway.call("other", "echo", json!({"text": what})).await;
        assert_eq!((status, &answer["text"]), (200, &json!(what)), "{answer}");
        for namespace in ["own", "other"] {
            let fine = json!({"text": "fine"});
            let (status, answer) = gateway.call(namespace, "echo", fine).await;
            assert_eq!(status, 200, "after {what}: {answer}");
        }
    }
    let calls = 2 * ODD.len();
    for (namespace, word) in [("own", "failed"), ("other", "skipped")] {
        let lines = audited(&gateway, namespace, calls).await;
        let of = |word: &str| lines.iter().filter(|it| it["hook"] == word).count();
        assert_eq!(
            (of(word), of("passed")),
            (ODD.len(), ODD.len()),
            "{namespace}"
        );
    }
    let log = gateway.log();
    assert!(log.contains("its answer is neither {} nor an object with arguments or refuse alone"));
    assert!(log.contains("answers again"), "{log}");
}

#[tokio::test]
async fn a_hook_that_hangs_fails_after_its_time_limit_and_holds_no_other_namespace() {
    let hook = HookStub::start(|_| HookReply::Hang).await;
    let gateway = hooked(json!([
        {"on": "call", "url": hook.url(), "namespaces": ["own"], "timeout": "60s"},
    ]))
    .config(json!({"namespaces": {"overrides": {"own": {"max_concurrency": 1, "queue": 1}}}}))
    .start()
    .await;
    // More calls hang than the namespace has permits, and none of them holds one.
    let hanging = session(&gateway, "own").await;
    let calls: Vec<_> = (0..4)
        .map(|id| {
            let session = hanging.clone();
            let params = json!({"name": "letter", "arguments": {}});
            tokio::spawn(async move { session.request(10 + id, "tools/call", params).await })
        })
        .collect();
    let asked = || async { (hook.requests("call").len() == 4).then_some(()) };
    eventually("the hook is asked", asked).await;
    let (status, _) = gateway.call("other", "letter", json!({})).await;
    assert_eq!(status, 200);
    gateway.replace_configuration(|config| {
        config["hooks"] = json!([]);
    });
    gateway.signal(rustix::process::Signal::HUP);
    let reloaded = || async {
        let log = gateway.log();
        log.contains("configuration read again").then_some(())
    };
    eventually("the configuration is read again", reloaded).await;
    // Calls pass without the hook, although those before still wait for it.
    let (status, _) = gateway.call("own", "letter", json!({})).await;
    assert_eq!(status, 200);
    for call in calls {
        assert!(!call.is_finished());
        call.abort();
    }
}

#[tokio::test]
async fn the_time_limit_of_a_hook_ends_the_call_or_lets_it_go_on() {
    let hook = HookStub::start(|_| HookReply::Hang).await;
    for (fail, on) in [("closed", "call"), ("closed", "result"), ("open", "call")] {
        let gateway = hooked(json!([
            {"on": on, "url": hook.url(), "timeout": "100ms", "fail": fail},
        ]))
        .start()
        .await;
        let session = session(&gateway, "own").await;
        let result = call(&session, "letter", json!({})).await;
        let expected = match (fail, on) {
            ("open", _) => "to ada@example.org",
            (_, "call") => {
                "hook_failed: The call was not made: the hook that must admit it has failed"
            }
            _ => {
                "hook_failed: The tool has run, and its result is withheld: the hook that must see it has failed"
            }
        };
        assert_eq!(text(&result), expected);
        let metrics = gateway.metrics_text().await;
        assert!(
            metrics.contains(&format!("on=\"{on}\",outcome=\"timeout\"}} 1")),
            "{metrics}"
        );
        let detail = format!("{}: no answer within 0.1 s", hook.address);
        let line = &audited(&gateway, "own", 1).await[0];
        match fail {
            "open" => assert_eq!(line["hook"], "skipped"),
            _ => assert_eq!(line["cause"]["detail"], detail),
        }
    }
}

#[tokio::test]
async fn a_hook_that_is_not_there_refuses_lists_and_calls_and_the_rest_is_served() {
    let url = format!("http://{}/", free_address());
    let gateway = hooked(json!([
        {"on": ["call", "list"], "url": url, "namespaces": ["own"]},
        {"on": "call", "tool": "nowhere.check", "namespaces": ["other"]},
        {"on": "call", "url": "http://127.0.0.1:9/", "namespaces": ["third"], "credentials": "Bearer ${MISSING}"},
    ]))
    .start()
    .await;
    gateway.drop_tool("third", "third.py", TOOLS);
    gateway.reload().await;
    let session = session(&gateway, "own").await;
    let list = session.request(3, "tools/list", json!({})).await;
    assert_eq!(list["error"]["data"]["code"], "hook_failed", "{list}");
    for namespace in ["own", "other", "third"] {
        let (status, answer) = gateway.call(namespace, "letter", json!({})).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (502, &json!("hook_failed"))
        );
    }
    let log = gateway.log();
    assert!(log.contains("there is no such namespace"), "{log}");
    assert!(
        log.contains("credentials: ${MISSING} is set neither"),
        "{log}"
    );
    let url = format!("http://{}/ready", gateway.metrics);
    let ready: Value = gateway
        .client
        .get(url)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let problem = ready["problem"]["message"].as_str().unwrap();
    assert!(
        problem.starts_with("hooks[2].credentials: ${MISSING} is set neither"),
        "{problem}"
    );
}

#[tokio::test]
async fn a_call_that_its_client_cancels_is_given_up_at_the_hook() {
    let hook = HookStub::start(|_| HookReply::Hang).await;
    let gateway = hooked(json!([{"on": "call", "url": hook.url(), "timeout": "60s"}]))
        .start()
        .await;
    let session = session(&gateway, "own").await;
    let running = {
        let session: Session = session.clone();
        let params = json!({"name": "letter", "arguments": {}});
        tokio::spawn(async move { session.request(7, "tools/call", params).await })
    };
    let asked = || async { (hook.requests("call").len() == 1).then_some(()) };
    eventually("the hook is asked", asked).await;
    let cancelled =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    session.post(&cancelled).await;
    let given_up = || async { (hook.given_up() == 1).then_some(()) };
    eventually("the gateway gives the request up", given_up).await;
    let answer = running.await.unwrap();
    assert_eq!(answer["result"]["isError"], true, "{answer}");
}

#[tokio::test]
async fn a_tool_as_a_hook_is_not_hooked_itself_and_its_exception_fails_the_call() {
    const GUARD: &str = r#"
from fastmcp.tools import tool


@tool
def check(on: str, namespace: str, request_id: str, arguments: dict, principal: str | None = None,
          tool: str | None = None) -> dict:
    """Answers a hook's request."""
    if arguments.get("text") == "raise":
        raise ValueError("hunter2")
    return {"arguments": {**arguments, "text": f"{namespace}.{tool} for {principal}"}}
"#;
    let gateway = Gateway::with_tools([("own", "own.py", TOOLS), ("guard", "guard.py", GUARD)])
        .config(json!({"hooks": [{"on": "call", "tool": "guard.check", "timeout": "20s"}]}))
        .start()
        .await;
    let (status, answer) = gateway.call("own", "echo", json!({"text": "a"})).await;
    assert_eq!(
        (status, &answer["text"]),
        (200, &json!("own.echo for bearer")),
        "{answer}"
    );
    let lines = audited(&gateway, "guard", 1).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(
        (&lines[0]["principal"], lines[0].get("hook")),
        (&json!("gateway"), None)
    );
    let own = audited(&gateway, "own", 1).await;
    assert_eq!(lines[0]["request_id"], own[0]["request_id"]);
    let (status, answer) = gateway.call("own", "echo", json!({"text": "raise"})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (502, &json!("hook_failed"))
    );
    assert!(!answer.to_string().contains("hunter2"), "{answer}");
    assert!(gateway.log().contains("its tool failed: internal_error"));
}
