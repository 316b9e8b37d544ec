//! Hooks in the configuration: their checks, and reloads that add and remove them.

use serde_json::json;

use super::{hooked, session};
use crate::credentials::{KEY, set};
use crate::support::hook::{HookReply, HookStub};
use crate::support::{Gateway, eventually};

#[tokio::test]
async fn a_reload_adds_and_removes_hooks_and_refuses_faulty_ones() {
    let hook = HookStub::start(|_| HookReply::Json(json!({"refuse": "closed"}))).await;
    let gateway = hooked(json!([])).start().await;
    let statuses = |expected: u16| {
        let gateway = &gateway;
        async move {
            let answered = || async {
                let (status, _) = gateway.call("own", "letter", json!({})).await;
                (status == expected).then_some(())
            };
            eventually("the reload has its effect", answered).await;
        }
    };
    statuses(200).await;
    let put = |hooks: serde_json::Value| {
        gateway.replace_configuration(|config| config["hooks"] = hooks);
        gateway.signal(rustix::process::Signal::HUP);
    };
    put(json!([{"on": "call", "url": hook.url()}]));
    statuses(403).await;
    let metrics = gateway.metrics_text().await;
    assert!(metrics.contains("outcome=\"refused\"}"), "{metrics}");
    put(json!([{"on": "call", "url": hook.url(), "timeout": "1h"}]));
    let told = || async {
        let log = gateway.log();
        log.contains("hooks[0].timeout").then_some(())
    };
    eventually("the fault is in the log", told).await;
    statuses(403).await;
    put(json!([{"on": "list", "url": hook.url()}]));
    statuses(200).await;
}

#[tokio::test]
async fn a_hook_keeps_its_credential_while_the_secrets_cannot_be_read() {
    let hook = HookStub::passing().await;
    let credentials = "Bearer ${TOKEN}";
    let gateway = hooked(json!([{"on": "call", "url": hook.url(), "credentials": credentials}]))
        .env("SECRETS_KEY", KEY)
        .start_with(|data| set(data, "global", "hook-secret-2"))
        .await;
    assert_eq!(gateway.call("own", "letter", json!({})).await.0, 200);
    let file = gateway.data_dir().join("secrets.enc");
    std::fs::write(&file, "no secrets at all").unwrap();
    gateway.signal(rustix::process::Signal::HUP);
    let told = || async {
        let log = gateway.log();
        log.contains("values read before stay").then_some(())
    };
    eventually("the fault is in the log", told).await;
    assert_eq!(gateway.call("own", "letter", json!({})).await.0, 200);
    let heads = hook.heads();
    let head = heads.last().expect("a request");
    let sent = crate::support::backend::header(head, "authorization");
    assert_eq!(sent.as_deref(), Some("Bearer hook-secret-2"));
    assert_eq!(heads.len(), 2);
}

#[tokio::test]
async fn a_remote_server_with_a_hook_is_called_in_client_mode() {
    let hook = HookStub::passing().await;
    let remote = crate::support::backend::Backend::start("a").await;
    let gateway = Gateway::empty()
        .config(json!({
            "hooks": [{"on": "call", "url": hook.url()}],
            "upstreams": {"remote": {"far": {"backends": [remote.url()]}}},
        }))
        .start()
        .await;
    let session = session(&gateway, "far").await;
    let params = json!({"name": "tool", "arguments": {"a": 1.50}});
    let answer = session.request(2, "tools/call", params).await;
    assert_eq!(answer["result"]["who"], "a", "{answer}");
    assert_eq!(hook.requests("call").len(), 1);
    // Arguments that no hook changes keep their bytes.
    let (_, body) = remote.requests("tools/call").pop().unwrap();
    assert!(body.contains(r#"{"a":1.5}"#), "{body}");
    let metrics = gateway.metrics_text().await;
    assert!(
        metrics.contains("mode=\"client\",namespace=\"far\"}"),
        "{metrics}"
    );
}
