//! Keys with few scopes at the web API, and the variables of servers that it adds.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tooldock_base::scope::ScopeTable;
use tooldock_credentials::keys::{KeyKind, KeyStore, NewKey};

use super::{Web, answer, code, sent, with_web};
use crate::support::{Gateway, eventually};

/// A variable of the gateway that no server may have.
const HIDDEN: &str = "WEB_RIGHTS_HIDDEN";

#[tokio::test]
async fn a_key_adds_no_server_without_write_tool_and_an_added_server_gets_no_variable_of_the_gateway()
 {
    let scopes = json!({"installer": ["install_*", "*_registry"], "writer": ["write_tool"]});
    let (builder, address) = with_web(Gateway::empty());
    let builder = builder
        .config(json!({"relay": {"scopes": scopes}}))
        .env(HIDDEN, "c4n4ry-hidden");
    let gateway = builder.start().await;
    let web = Web::at(address);
    let table: BTreeMap<String, Vec<String>> = serde_json::from_value(scopes).expect("scopes");
    let table = ScopeTable::new(&table).expect("patterns");
    let keys = KeyStore::open(gateway.data_dir().join("keys.json"), table).expect("no keys yet");
    let key = |scope: &str| {
        let wanted = NewKey {
            name: scope.into(),
            made_by: None,
            scopes: vec![scope.into()],
            namespaces: vec!["_system".into()],
            networks: Vec::new(),
            limits: Vec::new(),
            lifetime: None,
            kind: KeyKind::Gateway,
        };
        keys.create(wanted).expect("a key").text.expose().to_owned()
    };
    let (installer, writer) = (key("installer"), key("writer"));
    let by = async |key: &str, method: &str, path: &str, body: Value| {
        answer(web.bare(method, path).bearer_auth(key).json(&body)).await
    };
    let entry = json!({"server_id": "mine", "config": {"command": "/bin/cat", "args": ["--token=c4n4ry-arg"],
        "env": {"A": format!("${{{HIDDEN}}}")}}});
    eventually("the keys are known", async || {
        let asked = web.bare("GET", "/api/me").bearer_auth(&writer);
        (sent(asked).await.status() == 200).then_some(())
    })
    .await;
    for (method, path, body) in [
        ("POST", "/api/servers", entry.clone()),
        ("PUT", "/api/servers/mine", json!({"enabled": true})),
        (
            "POST",
            "/api/folders/empty/requirements",
            json!({"package": "six"}),
        ),
        ("POST", "/api/folders/empty/requirements/install", json!({})),
    ] {
        let refused = by(&installer, method, path, body).await;
        assert_eq!(
            code(&refused),
            (403, "insufficient_scope"),
            "{method} {path}"
        );
    }
    let added = by(&writer, "POST", "/api/servers", entry).await;
    assert_eq!(added.0, 201, "{}", added.1);
    assert!(!added.1.to_string().contains("c4n4ry"), "{}", added.1);
    let failed = eventually("the server has failed", async || {
        let listed = web.get("/api/servers").await.1;
        let server = listed["servers"][0].clone();
        (server["status"] == "failed").then_some(server)
    })
    .await;
    let message = failed["error"]["message"].as_str().expect("a message");
    assert!(message.contains("namespaces.env_allowed"), "{failed}");
    assert!(!failed.to_string().contains("c4n4ry"), "{failed}");
}
