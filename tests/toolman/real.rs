//! Servers of others behind one namespace: files, a memory, the time, a repository. What strict clients list is what all
//! of them offer.

use std::fmt::Write as _;

use rmcp::ServiceExt as _;
use rmcp::model::{CallToolRequestParams, ClientConfig};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use serde_json::{Value, json};

use super::House;
use crate::real_servers::{Scratch, servers};
use crate::support::TOKEN;

/// The servers' part of a `tools.toml`, each started by a line of the shell.
pub fn tools_toml(scratch: &Scratch) -> String {
    let mut file = "active_toolsets = [\"*\"]\n".to_owned();
    let known = servers(scratch);
    for name in ["filesystem", "memory", "time", "git"] {
        let server = &known[name];
        let arguments = server["args"].as_array().expect("a list").iter();
        let words = std::iter::once(&server["command"]).chain(arguments);
        let words = words.map(|word| format!("'{}'", word.as_str().expect("a text")));
        let line = words.collect::<Vec<_>>().join(" ");
        let env = server["env"].as_object().expect("an object");
        let env = env.iter().map(|(key, value)| format!("{key} = {value}"));
        let env = env.collect::<Vec<_>>().join(", ");
        writeln!(
            file,
            "[[servers]]\nnamespace = \"{name}\"\ncommand = \"exec {line}\"\nenv = {{ {env} }}"
        )
        .expect("a text");
    }
    file
}

/// A client of the Rust SDK parses the definition of every tool into the SDK's types, and calls one tool of each server.
#[tokio::test]
async fn servers_of_others_are_one_server_to_the_rust_sdk() {
    let scratch = Scratch::new();
    let house = House::with(&tools_toml(&scratch), json!({})).await;
    let url = house.gateway.url("/mcp/toolman");
    let mut config = StreamableHttpClientTransportConfig::with_uri(url);
    config.auth_header = Some(TOKEN.to_owned());
    let http = reqwest::Client::builder().no_proxy().build();
    let transport = StreamableHttpClientTransport::with_client(http.expect("a client"), config);
    let info: ClientConfig = serde_json::from_value(json!({
        "protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "tests", "version": "1"},
    }))
    .expect("what a client says of itself");
    let client = info.serve(transport).await.expect("the handshake");
    let tools = client.list_all_tools().await.expect("a list");
    let repository = scratch.text("repository");
    let hello = scratch.path("configured").join("hello.txt");
    let ada = json!([{"name": "Ada", "entityType": "person", "observations": ["counts"]}]);
    for (tool, arguments, words) in [
        (
            "filesystem_read_text_file",
            json!({"path": hello}),
            "configured says hello",
        ),
        ("memory_create_entities", json!({"entities": ada}), "Ada"),
        (
            "time_convert_time",
            json!({"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
            "21:00",
        ),
        (
            "git_git_log",
            json!({"repo_path": repository}),
            "The first note",
        ),
    ] {
        assert!(
            tools.iter().any(|it| it.name == tool),
            "{tool} is not listed"
        );
        let call: CallToolRequestParams =
            serde_json::from_value(json!({"name": tool, "arguments": arguments})).expect("a call");
        let answer = client.call_tool(call).await.expect("an answer");
        let answer: Value = serde_json::to_value(&answer).expect("JSON");
        let text = answer["content"].to_string();
        assert!(text.contains(words), "{tool}: {answer}");
    }
    client.cancel().await.expect("it ends");
}
