//! The cost of request bodies that are built to be expensive: values that are small as text and large when parsed.

use std::fmt::Write;

use super::*;

/// Size of the bodies, in bytes: less than the maximum size of a request body, so that the test takes a few seconds.
const BODY: usize = 256 * 1024;
/// Maximum memory for answering a body in addition to the body itself, in bytes, for bodies of any size. A thousand responses
/// in one batch take most of it.
const BESIDE_MAX: u64 = 128 * 1024;

/// Returns JSON values of about `BODY` bytes: long arrays, and objects with many equal or different keys.
fn large_values() -> Vec<(&'static str, String)> {
    let array = |element: &str| {
        let elements = vec![element; BODY / (element.len() + 1) - 100];
        format!("[{}]", elements.join(","))
    };
    let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
    let mut different = String::from("{");
    for key in 0.. {
        if different.len() > BODY - 1000 {
            break;
        }
        let _ = write!(different, r#""{key:x}":0,"#);
    }
    different.push_str(r#""last":0}"#);
    let same = array(r#""":0"#);
    vec![
        ("zeros", array("0")),
        ("empty arrays", array("[]")),
        ("empty objects", array("{}")),
        ("empty strings", array(r#""""#)),
        ("deep arrays", array(&deep)),
        ("one key", format!("{{{}}}", &same[1..same.len() - 1])),
        ("different keys", different),
    ]
}

/// Request messages in which `LARGE` marks each position where a large value can be.
const PLACES: &[&str] = &[
    "LARGE",
    r#"{"jsonrpc":"2.0","id":1,"method":"ping","x":LARGE}"#,
    r#"{"jsonrpc":"2.0","id":LARGE,"method":"ping"}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":LARGE}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"_meta":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"result":LARGE}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":LARGE}"#,
    r#"{"jsonrpc":"2.0","method":"x","params":LARGE}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":LARGE}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":LARGE,"capabilities":{}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"cursor":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"talk","arguments":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":LARGE}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"x","arguments":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":LARGE,"argument":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{"ref":{"type":"ref/prompt","name":"x"},"argument":{"name":"a","value":"b"},"context":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":LARGE}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"logging/setLevel","params":{"level":LARGE}}"#,
];

/// Modern request messages in which `LARGE` marks positions of a large value, in addition to those in `PLACES`.
const MODERN_PLACES: &[&str] = &[
    modern_body!("tools/call", r#","name":"echo","arguments":LARGE"#),
    modern_body!("tools/call", r#","name":"echo","inputResponses":LARGE"#),
    modern_body!("tools/call", r#","name":"echo","requestState":LARGE"#),
    modern_body!("tools/call", r#","name":"echo","x":LARGE"#),
    modern_body!("tools/call", r#","name":LARGE"#),
    modern_body!("subscriptions/listen", r#","notifications":LARGE"#),
    modern_body!(
        "subscriptions/listen",
        r#","notifications":{"resourceSubscriptions":LARGE}"#
    ),
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"x":LARGE},"name":"talk","arguments":{}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":LARGE},"name":"talk","arguments":{}}}"#,
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":LARGE},"name":"talk","arguments":{}}}"#,
];

impl Scene {
    /// Returns the maximum memory that is used at any time while the body is answered, without the body, in bytes.
    fn peak_of(&self, head: &McpHead, body: &str) -> u64 {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let answer = || {
            let reply = self
                .house
                .service
                .post(caller(), head.clone(), body.clone());
            black_box(self.runtime.block_on(reply));
        };
        allocation_counter::measure(answer).bytes_max
    }
}

#[test]
fn no_body_takes_much_more_memory_than_it_has() {
    let scene = Scene::new();
    let session = scene.session();
    let batches = head(None, Some("2025-03-26"));
    let mut too_much = Vec::new();
    for (value, large) in large_values() {
        for place in PLACES {
            // If the large value occurs twice in a message, each occurrence has half the size of a body.
            let body = match place.matches("LARGE").count() {
                1 => place.replace("LARGE", &large),
                _ => place.replacen("LARGE", &large, 1).replace("LARGE", "0"),
            };
            for head in [&session, &batches] {
                let peak = scene.peak_of(head, &body);
                if peak > BESIDE_MAX {
                    too_much.push(format!("{value} in {place}: {peak}"));
                }
            }
        }
        for place in MODERN_PLACES {
            let (_, method) = place.split_once(r#""method":""#).expect("a method");
            let (method, _) = method.split_once('"').expect("its end");
            let body = place.replace("LARGE", &large);
            let tool = if place.contains("\"talk\"") {
                "talk"
            } else {
                "echo"
            };
            let name = (method == "tools/call").then_some(tool);
            let peak = scene.peak_of(&modern(method, name), &body);
            if peak > BESIDE_MAX {
                too_much.push(format!("{value} in {place}: {peak}"));
            }
        }
    }
    assert!(too_much.is_empty(), "{}", too_much.join("\n"));
}
