//! The stdio server with all features of a server, `tests/fixtures/servers/everything.mjs`, behind a gateway.

use std::fs;

use serde_json::{Value, json};

use super::gateway::{Builder, Gateway};
use super::programs::{node, root};

/// The server as a namespace of that name for each of the given eras: `dual`, `legacy`, `modern`.
pub fn behind_a_gateway(namespaces: &[(&str, &str)]) -> Builder {
    let servers: serde_json::Map<String, Value> = namespaces
        .iter()
        .map(|(namespace, era)| ((*namespace).to_owned(), server(namespace, era)))
        .collect();
    Gateway::empty().config(json!({"upstreams": {"stdio": servers}}))
}

fn server(namespace: &str, era: &str) -> Value {
    let (node, _) = node();
    let script = root().join("tests/fixtures/servers/everything.mjs");
    json!({
        "command": node.get_program().to_str(),
        "args": [script.to_str(), "--era", era],
        // Its processes share a journal, as those of a server with files or a database share state.
        "env": {"JOURNAL": format!("${{SCRATCH_DIR}}/{namespace}.journal")},
    })
}

/// Starts a gateway without the namespace that an empty data directory gets: its worker would take time to start.
pub async fn start(gateway: Builder) -> Gateway {
    let no_examples = |data: &std::path::Path| {
        fs::create_dir_all(data.join("tools/empty")).expect("a folder");
    };
    gateway.start_with(no_examples).await
}
