//! The cost of a call of a stdio server for the gateway, from the admitted request to its answer. The server's own work is not
//! counted, since it is another process.

use std::hint::black_box;

use serde_json::json;

use super::*;
use crate::cost::{allocations, runtime};

fn allocations_of_a_call(era: &str, arguments: &Value) -> u64 {
    let runtime = runtime();
    let (house, session) = runtime.block_on(async {
        let house = House::new(era, Isolation::Shared);
        let (session, _) = house.open(json!({})).await;
        (house, session)
    });
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call",
        "params": { "name": "look", "arguments": arguments } });
    let body = Bytes::from(body.to_string());
    let given = || (caller(), head(Some(&session), Some("2025-11-25")));
    let made = allocations(given, |(caller, head)| {
        let reply = runtime.block_on(house.service.post(caller, head, body.clone()));
        assert_eq!(reply.head().status, StatusCode::OK);
        black_box(reply);
    });
    runtime.block_on(house.end());
    made
}

#[test]
fn cost_of_a_call_of_a_stdio_server() {
    let made = allocations_of_a_call("legacy", &json!({}));
    assert!(made <= 27, "{made} allocations");
}

/// Plain prose, in the request and in its answer.
#[test]
fn cost_of_a_call_of_16_kb_of_a_stdio_server() {
    let text = "Fifty-five letters of plain text and the end of a line.\n".repeat(293);
    let made = allocations_of_a_call("legacy", &json!({ "text": text }));
    assert!(made <= 31, "{made} allocations");
}

#[test]
fn cost_of_a_call_of_a_modern_stdio_server_by_a_legacy_client() {
    let made = allocations_of_a_call("modern", &json!({}));
    assert!(made <= 32, "{made} allocations");
}
