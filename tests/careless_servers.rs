//! Careless servers, as found in practice: odd lists, members that are null, ids as strings. Behind the gateway they
//! work on pipes, over HTTP in both modes, and in an aggregate, and strict clients accept their lists.
//!
//! The server is `fixtures/servers/careless.py`.

use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually, programs};

const VERSION: &str = "2025-11-25";

fn script() -> String {
    let script = programs::root().join("tests/fixtures/servers/careless.py");
    script.to_str().expect("UTF-8").to_owned()
}

/// The server on a port. It ends when this value is dropped.
struct OverHttp {
    url: String,
    _child: Child,
    _folder: TempDir,
}

impl OverHttp {
    async fn start() -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let file = folder.path().join("port");
        let mut command = Command::new("python3");
        command.arg(script()).arg("--http").arg(&file);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let child = command.spawn().expect("python3");
        let port = eventually("the server to listen", async || {
            std::fs::read_to_string(&file).ok()
        });
        let port = port.await;
        Self {
            url: format!("http://127.0.0.1:{port}/mcp"),
            _child: child,
            _folder: folder,
        }
    }
}

/// A gateway with the server on pipes, over HTTP in client mode and in pass-through, and in an aggregate.
async fn gateway(remote: &OverHttp, more: Value) -> (Gateway, TempDir) {
    let folder = TempDir::new().expect("a temporary directory");
    let script = script();
    let file = format!(
        "active_toolsets = [\"*\"]\n[[servers]]\nnamespace = \"c\"\ncommand = \"exec python3 '{script}'\"\n"
    );
    std::fs::write(folder.path().join("tools.toml"), file).expect("the file");
    let stdio = json!({"command": "python3", "args": [script]});
    let mut raw = stdio.clone();
    raw["lists"] = "raw".into();
    let over_http = |mode| json!({"backends": [remote.url], "mode": mode});
    let config = json!({
        "namespaces": more,
        "upstreams": {
            "stdio": {"pipes": stdio, "raw": raw},
            "remote": {"http": over_http("client"), "passed": over_http("pass_through")},
        },
        "toolman": {"toolman": {"config": folder.path().join("tools.toml")}},
    });
    let gateway = Gateway::with_tools([]).config(config).start().await;
    (gateway, folder)
}

/// The JSON that a GET of the path answers.
async fn get(gateway: &Gateway, path: &str) -> Value {
    let sent = gateway.request("GET", path).send().await.expect("sent");
    sent.json().await.expect("JSON")
}

async fn logged(gateway: &Gateway, words: &str) {
    eventually(words, async || gateway.log().contains(words).then_some(())).await;
}

async fn session(gateway: &Gateway, namespace: &str) -> Session {
    Session::start_as(gateway, namespace, VERSION, TOKEN, json!({})).await
}

async fn result(session: &Session, method: &str, params: Value) -> Value {
    let answer = session.request(7, method, params).await;
    assert_eq!(answer["id"], 7, "{answer}");
    assert!(answer.get("error").is_none(), "{answer}");
    answer["result"].clone()
}

fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().expect("a list").iter();
    list.map(|it| it["name"].as_str().expect("a name"))
        .collect()
}

#[tokio::test]
async fn careless_lists_reach_clients_as_strict_ones_take_them() {
    let remote = OverHttp::start().await;
    let (gateway, _folder) = gateway(&remote, json!({})).await;
    for namespace in ["pipes", "http"] {
        let session = session(&gateway, namespace).await;
        let first = result(&session, "tools/list", json!({})).await;
        assert_eq!(names(&first["tools"]), ["good", "any.of", "any:of"]);
        assert_eq!(first["nextCursor"], "");
        let of_second = &first["tools"][1];
        assert!(of_second.get("title").is_none(), "{of_second}");
        assert_eq!(of_second["inputSchema"]["type"], "object");
        assert_eq!(
            of_second["inputSchema"]["oneOf"][0]["required"],
            json!(["a"])
        );
        let third = &first["tools"][2];
        assert_eq!(
            *third,
            json!({"name": "any:of", "annotations": {}, "inputSchema": {"type": "object"}})
        );
        let second = result(&session, "tools/list", json!({"cursor": ""})).await;
        assert_eq!(names(&second["tools"]), ["bare", "größe/abfragen", "add"]);
        assert!(second.get("nextCursor").is_none(), "{second}");
        for tool in second["tools"].as_array().expect("tools") {
            assert_eq!(tool["inputSchema"], json!({"type": "object"}), "{tool}");
        }
        assert_eq!(second["tools"][2]["outputSchema"]["type"], "object");
        let prompts = result(&session, "prompts/list", json!({})).await;
        assert_eq!(
            prompts,
            json!({"prompts": [{"name": "p", "arguments": [{"name": "a"}]}]})
        );
        let resources = result(&session, "resources/list", json!({})).await;
        assert_eq!(
            resources,
            json!({"resources": [{"uri": "note://1", "name": "note://1"}]})
        );
        let templates = result(&session, "resources/templates/list", json!({})).await;
        assert_eq!(templates, json!({"resourceTemplates": []}));
        // REST lists the tools of all pages.
        let rest: Value = get(&gateway, &format!("/namespaces/{namespace}/tools")).await;
        let text = rest.to_string();
        for tool in ["good", "any.of", "bare", "add"] {
            assert!(text.contains(&format!("\"{tool}\"")), "{namespace}: {text}");
        }
    }
    let raw = session(&gateway, "raw").await;
    let first = result(&raw, "tools/list", json!({})).await;
    assert_eq!(first["tools"][1]["title"], Value::Null);
    assert!(first["tools"][1].get("title").is_some(), "{first}");
    assert!(first["tools"][1]["inputSchema"].get("type").is_none());
    logged(
        &gateway,
        "\"text\" is left out: its inputSchema is not of type object",
    )
    .await;
    let ready = get(&gateway, "/ready").await;
    let all = ready["namespaces"].as_array().expect("namespaces");
    let of = |name: &str| {
        let found = all.iter().find(|it| it["name"] == name);
        found.unwrap_or_else(|| panic!("{ready}"))["server"]["lists"].clone()
    };
    assert_eq!(of("raw"), Value::Null);
    for namespace in ["pipes", "http"] {
        let text = of(namespace).to_string();
        for fault in [
            "inputSchema is missing",
            "inputSchema has no type",
            "is listed before",
        ] {
            assert!(text.contains(fault), "{namespace}: {text}");
        }
    }
}

#[tokio::test]
async fn an_aggregate_publishes_names_that_model_apis_take_and_calls_the_real_ones() {
    let remote = OverHttp::start().await;
    let (gateway, _folder) = gateway(&remote, json!({})).await;
    let session = session(&gateway, "toolman").await;
    let listed = result(&session, "tools/list", json!({})).await;
    let published = names(&listed["tools"]);
    let fits = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '-');
    assert!(
        published.iter().all(|it| it.chars().all(fits)),
        "{published:?}"
    );
    let expected = ["toolman_activate", "c_good", "c_any_of"];
    assert_eq!(published[..3], expected);
    assert!(published[3].starts_with("c_any_of_"), "{published:?}");
    assert_eq!(published[4..], ["c_bare", "c_gr__e_abfragen", "c_add"]);
    for (name, real) in [
        (published[2], "any.of"),
        (published[3], "any:of"),
        ("c_gr__e_abfragen", "größe/abfragen"),
    ] {
        let called = result(
            &session,
            "tools/call",
            json!({"name": name, "arguments": {}}),
        )
        .await;
        assert_eq!(called["content"][0]["text"], real, "{called}");
    }
    let catalogue = listed["tools"][0]["description"].as_str().expect("a text");
    assert!(catalogue.contains("c_any_of (any.of): "), "{catalogue}");
    let wrong = session
        .request(
            7,
            "tools/call",
            json!({"name": "c_foreign", "arguments": {}}),
        )
        .await;
    assert_eq!(wrong["result"]["isError"], true, "{wrong}");
}

#[tokio::test]
async fn answers_with_odd_envelopes_are_read_in_every_mode_and_broken_ones_are_named() {
    let remote = OverHttp::start().await;
    let (gateway, _folder) = gateway(&remote, json!({})).await;
    for namespace in ["pipes", "http", "passed"] {
        let session = session(&gateway, namespace).await;
        let called = result(
            &session,
            "tools/call",
            json!({"name": "good", "arguments": {}}),
        )
        .await;
        assert_eq!(called["content"][0]["text"], "good", "{namespace}");
        let message = |name: &str| json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": name, "arguments": {}}});
        let mut answer = session.post(&message("cut")).await;
        let cut: Value = answer.json().await;
        let text = cut.to_string();
        assert!(text.contains("cut after"), "{namespace}: {text}");
        if namespace == "pipes" {
            // On pipes, an answer under an unknown id is passed over, and the call goes on waiting.
            continue;
        }
        let mut answer = session.post(&message("foreign")).await;
        let foreign: Value = answer.json().await;
        let text = foreign.to_string();
        assert!(
            text.contains("another") && text.contains("not that of the request"),
            "{namespace}: {text}"
        );
    }
}

#[tokio::test]
async fn results_that_do_not_fit_their_output_schema_are_counted_or_refused() {
    let remote = OverHttp::start().await;
    let overrides = json!({"overrides": {
        "pipes": {"output_schema": "strict"},
        "http": {},
        "raw": {"output_schema": "off"},
    }});
    let (gateway, _folder) = gateway(&remote, overrides).await;
    for (namespace, is_error) in [("pipes", true), ("http", false), ("raw", false)] {
        let session = session(&gateway, namespace).await;
        // A result is checked only if the tools have been listed.
        let listed: Value = get(&gateway, &format!("/namespaces/{namespace}/tools")).await;
        assert!(listed.to_string().contains("add"), "{listed}");
        let call = |v: Value| {
            let params = json!({"name": "add", "arguments": {"v": v}});
            result(&session, "tools/call", params)
        };
        let fits = call(json!(1)).await;
        assert_eq!(fits["structuredContent"], json!({"v": 1}), "{fits}");
        let wrong = call(json!("secret")).await;
        let text = wrong.to_string();
        assert_eq!(wrong["isError"] == true, is_error, "{namespace}: {text}");
        if is_error {
            assert!(text.contains("output_type"), "{text}");
            assert!(text.contains("structuredContent.v"), "{text}");
            assert!(!text.contains("secret"), "{text}");
        } else {
            assert_eq!(wrong["structuredContent"], json!({"v": "secret"}), "{text}");
        }
    }
    let metrics = gateway.metrics_text().await;
    let counted = |namespace: &str| {
        let series = format!(
            r#"tooldock_server_oddities_total{{kind="output_schema",namespace="{namespace}"}} 1"#
        );
        metrics.contains(&series)
    };
    assert!(
        counted("pipes") && counted("http") && !counted("raw"),
        "{metrics}"
    );
    logged(&gateway, "does not fit its outputSchema").await;
}
