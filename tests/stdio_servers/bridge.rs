//! Clients and servers of unlike eras, over the wire.

mod asking;
mod listening;
mod running;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::client::Modern;
use super::{everything, serving, silent_session, stray};
use crate::support::{Gateway, eventually};

const VERSION: &str = "2025-11-25";

/// The messages that a server received so far, as JSON.
fn journal(file: &Path) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

fn of_method(file: &Path, method: &str) -> Vec<Value> {
    journal(file)
        .into_iter()
        .filter(|it| it["method"] == method)
        .collect()
}

/// A gateway with a `stray` of an era, and the file in which it records its messages.
async fn with_journal(era: &str, folder: &tempfile::TempDir) -> (Gateway, PathBuf) {
    let file = folder.path().join("journal");
    let flags = ["--era", era, "--journal", file.to_str().unwrap()];
    (serving(json!({"any": stray(&flags)})).await, file)
}

/// Until the server was sent something.
async fn was_sent(file: &Path, method: &str, times: usize) {
    eventually(method, || async {
        (of_method(file, method).len() >= times).then_some(())
    })
    .await;
}

#[tokio::test]
async fn hints_of_2026_07_28_are_added_for_its_clients_and_kept_from_others() {
    let gateway = serving(json!({"old": everything("legacy"), "new": everything("modern"), "both": everything("dual")})).await;
    for namespace in ["old", "new", "both"] {
        let client = Modern::new(&gateway, namespace);
        for (method, params) in [
            ("tools/list", json!({})),
            ("prompts/list", json!({})),
            ("resources/list", json!({})),
            ("resources/templates/list", json!({})),
            ("resources/read", json!({"uri": "test://static-text"})),
        ] {
            let result = client.request(method, params.clone()).await["result"].clone();
            assert_eq!(
                result["resultType"], "complete",
                "{namespace} {method}: {result}"
            );
            assert!(result["ttlMs"].is_u64(), "{namespace} {method}");
            assert!(
                matches!(result["cacheScope"].as_str(), Some("public" | "private")),
                "{method}"
            );
            let info = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
            assert!(info["name"].is_string(), "{namespace} {method}: {result}");
            let message = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
            let (_, answer) = gateway.mcp(namespace, message).await;
            for hint in ["resultType", "ttlMs", "cacheScope"] {
                let legacy = answer["result"].get(hint);
                assert!(legacy.is_none(), "{namespace} {method}: {legacy:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_resource_that_is_not_there_has_the_code_of_the_clients_era() {
    let gateway = serving(json!({"old": everything("legacy"), "new": everything("modern")})).await;
    for namespace in ["old", "new"] {
        let missing = json!({"uri": "test://nowhere"});
        let answer = Modern::new(&gateway, namespace)
            .request("resources/read", missing.clone())
            .await;
        assert_eq!(answer["error"]["code"], -32602, "{namespace}: {answer}");
        let message =
            json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": missing});
        let (_, answer) = gateway.mcp(namespace, message).await;
        assert_eq!(answer["error"]["code"], -32002, "{namespace}: {answer}");
    }
}

#[tokio::test]
async fn what_an_era_does_not_have_is_an_unknown_method_of_it() {
    let gateway = serving(json!({"any": stray(&["--era", "dual"])})).await;
    let client = Modern::new(&gateway, "any");
    for method in [
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "nothing/such",
    ] {
        let (status, answer) = client
            .ask(&client.message(json!(1), method, json!({})))
            .await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (404, &json!(-32601)),
            "{method}: {answer}"
        );
    }
    let session = silent_session(&gateway, "any").await;
    for method in ["server/discover", "subscriptions/listen", "nothing/such"] {
        let answer = session.request(2, method, json!({})).await;
        assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
    }
    assert_eq!(
        session.request(3, "ping", json!({})).await["result"],
        json!({})
    );
}
