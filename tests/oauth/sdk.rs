//! The SDKs' own OAuth clients against a real authorization server: they know the URL of a namespace, are challenged, find the
//! issuer by the metadata, log in, and connect.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::oidc::{Provider, script};
use crate::support::ports::free_address;
use crate::support::programs::{python, root, run};
use crate::support::{Gateway, tools};

async fn connects(client: impl FnOnce(&str) -> Command) {
    let provider = Provider::start(3600);
    let [address, metrics] = [(); 2].map(|()| free_address());
    let origin = format!("http://{address}");
    let url = format!("{origin}/mcp/calc");
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .listening(address, metrics)
        .config(json!({ "admission": {
            "public_url": origin,
            "oauth": [{ "issuer": provider.issuer, "audience": url,
                "scopes": { "mcp:all": "admin" } }] } }))
        .start()
        .await;
    let mut command = client(&url);
    let printed = tokio::task::spawn_blocking(move || run(&mut command))
        .await
        .expect("not cancelled");
    let seen: Value = serde_json::from_str(printed.trim()).expect(&printed);
    assert_eq!(seen["challenged"], true);
    assert_eq!(seen["tools"], json!(["add", "multiply"]));
    assert_eq!(
        seen["sum"]["result"].as_f64(),
        Some(5.0),
        "{printed}\n{}",
        gateway.log()
    );
}

#[tokio::test]
async fn the_typescript_sdk_logs_in_and_connects() {
    connects(|url| {
        let mut command = script("oauth_typescript1.mjs");
        command.arg(url);
        command
    })
    .await;
}

#[tokio::test]
async fn the_python_sdk_logs_in_and_connects() {
    connects(|url| {
        let mut command = python("clients-mcp1");
        command
            .arg(root().join("tests/clients/oauth_mcp1.py"))
            .arg(url);
        command
    })
    .await;
}
