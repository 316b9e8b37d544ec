//! Calls of the stdio echo server: in a session, without one, and as a line on its pipes.
//!
//! Their text ends in the id of the call, so that answers given to the wrong caller are seen.

use serde_json::json;

use super::{Envelope, FIRST_ID, Request, TEXT};

const TOOL: &str = "echo";
const MODERN: &str = "2026-07-28";

impl Envelope<'_> {
    /// A call as clients of 2025-11-25 and before write it.
    pub(crate) fn numbered_call(&self) -> Request {
        let body = legacy();
        Request::new(format!("{}{body}", self.head(body.len())))
    }

    /// A call of 2026-07-28: everything the server must know is in it, and in its header.
    pub(crate) fn modern_call(&self) -> Request {
        let body = json!({
            "jsonrpc": "2.0", "id": FIRST_ID, "method": "tools/call",
            "params": {
                "_meta": {
                    "io.modelcontextprotocol/protocolVersion": MODERN,
                    "io.modelcontextprotocol/clientInfo": {"name": "tooldock-load", "version": "1"},
                    "io.modelcontextprotocol/clientCapabilities": {},
                },
                "name": TOOL, "arguments": {"text": text()},
            },
        })
        .to_string();
        let mirrored = format!(
            "MCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: {TOOL}\r\n"
        );
        Request::new(format!("{}{body}", self.head_with(&mirrored, body.len())))
    }
}

/// The same call without anything around it.
pub(crate) fn pipe_call() -> Request {
    Request::new(legacy() + "\n")
}

fn legacy() -> String {
    json!({
        "jsonrpc": "2.0", "id": FIRST_ID, "method": "tools/call",
        "params": {"name": TOOL, "arguments": {"text": text()}},
    })
    .to_string()
}

fn text() -> String {
    format!("{TEXT} {FIRST_ID}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{ENVELOPE, body};
    use super::*;

    #[test]
    fn id_and_text_are_numbered_alike_in_all_forms() {
        const ID: u64 = 1_234_567_890;
        let mut pipe = pipe_call();
        let line = serde_json::from_slice(pipe.with_id(ID)).unwrap();
        let (mut legacy, mut modern) = (ENVELOPE.numbered_call(), ENVELOPE.modern_call());
        for call in [line, body(legacy.with_id(ID)).1, body(modern.with_id(ID)).1] {
            assert_eq!(call["id"], ID);
            assert_eq!(call["params"]["arguments"]["text"], format!("{TEXT} {ID}"));
        }
    }

    #[test]
    fn the_header_of_a_modern_call_mirrors_its_body() {
        let bytes = ENVELOPE.modern_call().with_id(FIRST_ID).to_vec();
        let text = String::from_utf8(bytes).unwrap();
        assert!(
            text.contains("\r\nMcp-Method: tools/call\r\nMcp-Name: echo\r\n"),
            "{text}"
        );
        assert!(
            text.contains("\r\nMCP-Protocol-Version: 2026-07-28\r\n")
                && !text.contains("Mcp-Session-Id")
        );
    }
}
