//! Servers with personal credentials: each principal's own, and never another principal's.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::support::backend::{self, Backend, header};
use crate::support::gateway::Builder;
use crate::support::session::Session;
use crate::support::{Gateway, eventually, programs, sha256};

mod authorized;
mod client_key;
mod connected;
mod issuers;

pub const KEY: &str = "test-secrets-key";
pub const ADA: &str = "adas-token-0123456789abcdef";
pub const BOB: &str = "bobs-token-0123456789abcdef";
const CAROL: &str = "carols-token-0123456789abcdef";
/// Values that must show nowhere but where they belong.
const OF_ADA: &str = "canary-value-of-ada";
const OF_BOB: &str = "canary-value-of-bob";
const OF_ALL: &str = "canary-value-of-all";

/// Gives a secret a value, as people do without a terminal.
pub fn set(data: &Path, scope: &str, value: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    let mut child = command
        .args(["secrets", "set", "--key", "TOKEN", "--scope", scope])
        .env("DATA_DIR", data)
        .env("SECRETS_KEY", KEY)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), value.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(scope) && !said.contains(value), "{said}");
}

/// A gateway with three principals, two of which have a value of their own beside the shared one.
async fn three(upstreams: Value) -> Gateway {
    let token = |name: &str, token: &str| json!({"name": name, "sha256": sha256(token), "namespaces": ["*"]});
    let tokens = [token("ada", ADA), token("bob", BOB), token("carol", CAROL)];
    let builder: Builder = Gateway::empty()
        .config(json!({"admission": {"tokens": tokens}, "upstreams": upstreams}))
        .env("SECRETS_KEY", KEY);
    let prepare = |data: &Path| {
        set(data, "global", OF_ALL);
        set(data, "own", OF_ALL);
        set(data, "principal:ada", OF_ADA);
        set(data, "principal:bob", OF_BOB);
    };
    builder.start_with(prepare).await
}

/// A REST call as that principal.
async fn call(gateway: &Gateway, token: &str, tool: &str) -> (u16, Value) {
    let request = gateway.client.post(gateway.url(&format!("/tools/{tool}")));
    let request = request.bearer_auth(token).header("X-Namespace", "own");
    let response = request.json(&json!({})).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// The value and the pid of a principal's process of the stdio server.
async fn look(gateway: &Gateway, token: &str) -> (String, u64) {
    let (status, answer) = call(gateway, token, "look").await;
    assert_eq!(status, 200, "{answer}");
    let found: Value = match &answer {
        Value::String(text) => serde_json::from_str(text).unwrap(),
        found => found.clone(),
    };
    let token = found["token"].as_str().unwrap().to_owned();
    (token, found["pid"].as_u64().unwrap())
}

fn stdio() -> Value {
    let script = programs::root().join("tests/fixtures/servers/environment.py");
    json!({"stdio": {"own": {
        "command": "python3", "args": [script], "env": {"TOKEN": "${TOKEN}"},
        "personal": ["TOKEN"], "isolation": "principal",
    }}})
}

#[tokio::test]
async fn each_principal_has_a_process_with_its_own_value_and_a_new_value_restarts_that_one() {
    let gateway = three(stdio()).await;
    let (ada, bob) = (look(&gateway, ADA).await, look(&gateway, BOB).await);
    assert_eq!((&*ada.0, &*bob.0), (OF_ADA, OF_BOB));
    assert_ne!(ada.1, bob.1);
    assert_eq!(look(&gateway, ADA).await, ada);

    set(gateway.data_dir(), "principal:ada", "canary-second-of-ada");
    gateway.reload().await;
    let renewed = eventually("ada's process is another one", || async {
        let now = look(&gateway, ADA).await;
        (now.1 != ada.1).then_some(now)
    });
    assert_eq!(renewed.await.0, "canary-second-of-ada");
    assert_eq!(look(&gateway, BOB).await, bob);
    // The server's output is searched for the values.
    let log = gateway.log();
    assert!(
        log.contains("looked at [redacted]") && !log.contains("canary"),
        "{log}"
    );
}

#[tokio::test]
async fn who_has_no_value_is_told_which_is_missing_and_no_process_is_started() {
    let gateway = three(stdio()).await;
    let (status, answer) = call(&gateway, CAROL, "look").await;
    assert_eq!(status, 403, "{answer}");
    let error = &answer["error"];
    assert_eq!(error["code"], "missing_credential", "{answer}");
    let command = "tooldock secrets set --key TOKEN --scope principal:carol";
    assert_eq!(error["details"]["command"], command, "{answer}");
    assert!(
        error["message"].as_str().unwrap().contains(command),
        "{answer}"
    );

    let list = gateway.client.get(gateway.url("/tools"));
    let list = |token: &str| {
        list.try_clone()
            .unwrap()
            .bearer_auth(token.to_owned())
            .header("X-Namespace", "own")
    };
    assert_eq!(list(CAROL).send().await.unwrap().status(), 403);
    let metrics = gateway.metrics_text().await;
    let counted = |text: &str| {
        text.lines().any(|it| {
            it.contains("namespace=\"own\"") && it.ends_with(" 1") && it.contains("processes")
        })
    };
    assert!(!counted(&metrics), "{metrics}");
    let listed = list(ADA).send().await.unwrap();
    assert_eq!(listed.status(), 200);
    let listed = listed.text().await.unwrap();
    assert!(listed.contains("look"), "{listed}");
    assert!(!gateway.log().contains("canary"));
}

fn remote(backend: &Backend, keys: Value) -> Value {
    let mut server = json!({
        "backends": [backend.url()], "credentials": "Bearer ${TOKEN}", "personal": ["TOKEN"],
        "headers": {"set": {"X-Own": "k-${TOKEN}"}},
        "health": {"active": {"every": "100ms"}},
    });
    for (key, value) in keys.as_object().unwrap() {
        server[key] = value.clone();
    }
    json!({"remote": {"own": server}})
}

#[tokio::test]
async fn a_remote_server_gets_the_credentials_of_whoever_calls_in_both_modes() {
    for mode in ["client", "pass_through"] {
        let backend = Backend::start("far").await;
        let gateway = three(remote(&backend, json!({"mode": mode}))).await;
        for (token, value) in [(ADA, OF_ADA), (BOB, OF_BOB), (ADA, OF_ADA)] {
            let session = Session::start_as(&gateway, "own", "2025-11-25", token, json!({})).await;
            let answer = session
                .request(2, "tools/call", json!({"name": "x", "arguments": {}}))
                .await;
            assert!(answer.get("error").is_none(), "{mode}: {answer}");
            let (head, _) = backend.requests("tools/call").pop().unwrap();
            let expected = format!("Bearer {value}");
            assert_eq!(header(&head, "authorization"), Some(expected), "{mode}");
            assert_eq!(header(&head, "x-own"), Some(format!("k-{value}")), "{mode}");
        }
        // Sessions of two principals are two.
        let sessions: Vec<_> = backend
            .requests("tools/call")
            .iter()
            .map(|(head, _)| {
                (
                    header(head, "authorization"),
                    header(head, "mcp-session-id"),
                )
            })
            .collect();
        assert_ne!(sessions[0].1, sessions[1].1, "{mode}");

        let before = backend.requests("initialize").len() + backend.requests("tools/call").len();
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x", "arguments": {}}});
        let request = gateway.client.post(gateway.url("/mcp")).bearer_auth(CAROL);
        let answer = request
            .header("X-Namespace", "own")
            .header("Accept", "application/json, text/event-stream")
            .json(&message)
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        assert!(
            answer.contains("missing_credential") || answer.contains("personal value of TOKEN"),
            "{mode}: {answer}"
        );
        assert!(answer.contains("principal:carol"), "{mode}: {answer}");
        let after = backend.requests("initialize").len() + backend.requests("tools/call").len();
        assert_eq!(before, after, "{mode}: nothing was sent for carol");

        eventually("it is checked", || async {
            (!backend.requests("ping").is_empty()).then_some(())
        })
        .await;
        for (head, _) in backend.requests("ping") {
            assert_eq!(
                header(&head, "authorization"),
                None,
                "{mode}: a check belongs to nobody"
            );
        }
        for (head, body) in backend.all() {
            assert!(
                !head.contains(OF_ALL),
                "{mode}: a shared value went up: {head} {body}"
            );
        }
        assert!(!gateway.log().contains("canary"), "{mode}");
    }
}

#[tokio::test]
async fn a_new_value_goes_up_after_a_reload() {
    let backend = Backend::start("far").await;
    let gateway = three(remote(&backend, json!({"mode": "client"}))).await;
    let shown = || async {
        let _ = call(&gateway, ADA, "x").await;
        let (head, _) = backend.requests("tools/call").pop()?;
        header(&head, "authorization")
    };
    assert_eq!(shown().await, Some(format!("Bearer {OF_ADA}")));
    set(gateway.data_dir(), "principal:ada", "canary-second-of-ada");
    gateway.reload().await;
    assert_eq!(
        shown().await.as_deref(),
        Some("Bearer canary-second-of-ada")
    );
}

/// An authorization server on a socket, and how many tokens it gave. Each is another one.
async fn token_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/token", listener.local_addr().unwrap());
    let given = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&given);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let count = Arc::clone(&count);
            tokio::spawn(async move {
                while let Some((_, body)) = backend::read(&mut stream).await {
                    assert!(body.contains("client_secret=canary-client"), "{body}");
                    let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                    let token = json!({"access_token": format!("canary-token-{number}"), "token_type": "bearer", "expires_in": 3600});
                    let answer = backend::answered(200, "", &token.to_string());
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (url, given)
}

#[tokio::test]
async fn a_remote_server_gets_one_token_for_all_who_call_and_nothing_of_it_is_logged() {
    let far = Backend::start("far").await;
    let (url, given) = token_server().await;
    let gateway = Gateway::empty()
        .config(json!({
            "upstreams": {"remote": {"own": {
                "backends": [far.url()], "mode": "client",
                "oauth": {"client_id": "gw", "client_secret": "${CLIENT}", "token_url": url},
            }}},
            "observability": {"log": {"level": "debug"}},
        }))
        .env("CLIENT", "canary-client")
        .start()
        .await;
    let calls = (0..20).map(|_| gateway.call("own", "x", json!({})));
    futures_util::future::join_all(calls).await;
    let requests = far.requests("tools/call");
    assert_eq!(requests.len(), 20);
    for (head, _) in requests {
        let expected = Some("Bearer canary-token-1".to_owned());
        assert_eq!(header(&head, "authorization"), expected, "{head}");
    }
    assert_eq!(given.load(Ordering::SeqCst), 1);
    assert!(!gateway.log().contains("canary"), "{}", gateway.log());
}
