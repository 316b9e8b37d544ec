//! Calls of tools that return their text: in a session, without one, as of 2026-07-28, and as a line.
//!
//! The text ends in the id of the call, so that answers to another caller and truncated answers are noticed.

use serde_json::json;

use super::{Envelope, FIRST_ID, Request, TEXT};

const TOOL: &str = "echo";
const MODERN: &str = "2026-07-28";
/// A line of long texts; it has a character to escape, as real texts have.
const LINE: &str = "Fifty-five letters of plain text and the end of a line.\n";

/// A call of a tool that returns its text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EchoCall<'a> {
    pub(crate) tool: &'a str,
    /// Minimum length of the text in bytes; 0 for a few words.
    pub(crate) length: usize,
}

impl EchoCall<'_> {
    /// A call of the stdio echo server with a few words.
    pub(crate) const SMALL: EchoCall<'static> = EchoCall {
        tool: TOOL,
        length: 0,
    };

    /// The message in the form of protocol version 2025-11-25 and before.
    fn legacy(self) -> String {
        json!({
            "jsonrpc": "2.0", "id": FIRST_ID, "method": "tools/call",
            "params": {"name": self.tool, "arguments": {"text": self.text()}},
        })
        .to_string()
    }

    fn modern(self) -> String {
        json!({
            "jsonrpc": "2.0", "id": FIRST_ID, "method": "tools/call",
            "params": {"_meta": meta(), "name": self.tool, "arguments": {"text": self.text()}},
        })
        .to_string()
    }

    fn text(self) -> String {
        let lines = LINE.repeat(self.length.div_ceil(LINE.len()));
        format!("{lines}{TEXT} {FIRST_ID}")
    }
}

/// The `_meta` of a request of 2026-07-28, which describes the client.
fn meta() -> serde_json::Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": {"name": "tooldock-load", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

impl Envelope<'_> {
    /// A call in the form of protocol version 2025-11-25 and before.
    pub(crate) fn echo(&self, call: EchoCall<'_>) -> Request {
        let body = call.legacy();
        Request::new(format!("{}{body}", self.head(body.len())))
    }

    /// A call in the form of 2026-07-28: body and headers contain all information for the server.
    pub(crate) fn modern_echo(&self, call: EchoCall<'_>) -> Request {
        let body = call.modern();
        let mirrored = format!(
            "MCP-Protocol-Version: {MODERN}\r\nMcp-Method: tools/call\r\nMcp-Name: {}\r\n",
            call.tool
        );
        Request::new(format!("{}{body}", self.head_with(&mirrored, body.len())))
    }

    /// `server/discover` of 2026-07-28, which has no `ping`: the gateway answers it without its server.
    pub(crate) fn discover(&self) -> Request {
        let body = json!({
            "jsonrpc": "2.0", "id": FIRST_ID, "method": "server/discover", "params": {"_meta": meta()},
        })
        .to_string();
        let mirrored = format!("MCP-Protocol-Version: {MODERN}\r\nMcp-Method: server/discover\r\n");
        Request::new(format!("{}{body}", self.head_with(&mirrored, body.len())))
    }

    /// A small call of the stdio echo server.
    pub(crate) fn numbered_call(&self) -> Request {
        self.echo(EchoCall::SMALL)
    }
}

/// A small call as one line, without HTTP around it.
pub(crate) fn pipe_call() -> Request {
    Request::new(EchoCall::SMALL.legacy() + "\n")
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
        let (mut legacy, mut modern) = (
            ENVELOPE.numbered_call(),
            ENVELOPE.modern_echo(EchoCall::SMALL),
        );
        for call in [line, body(legacy.with_id(ID)).1, body(modern.with_id(ID)).1] {
            assert_eq!(call["id"], ID);
            assert_eq!(call["params"]["arguments"]["text"], format!("{TEXT} {ID}"));
        }
    }

    #[test]
    fn a_long_text_has_its_number_at_its_end() {
        let call = EchoCall {
            tool: "t",
            length: 16 * 1024,
        };
        let sent = body(ENVELOPE.echo(call).with_id(1_000_000_003)).1;
        let text = sent["params"]["arguments"]["text"].as_str().unwrap();
        assert!(text.len() >= 16 * 1024 && text.len() < 17 * 1024);
        assert!(text.ends_with(&format!("{TEXT} 1000000003")));
        assert_eq!(text.matches("1000000003").count(), 1);
    }

    #[test]
    fn the_header_of_a_modern_call_mirrors_its_body() {
        let bytes = ENVELOPE
            .modern_echo(EchoCall::SMALL)
            .with_id(FIRST_ID)
            .to_vec();
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

    #[test]
    fn a_discovery_names_its_method_in_header_and_body() {
        let mut request = ENVELOPE.discover();
        let text = String::from_utf8(request.with_id(1_000_000_009).to_vec()).unwrap();
        assert!(text.contains("\r\nMcp-Method: server/discover\r\n") && !text.contains("Mcp-Name"));
        let sent = body(text.as_bytes()).1;
        assert_eq!(
            (&sent["id"], &sent["method"]),
            (&json!(1_000_000_009), &json!("server/discover"))
        );
        assert_eq!(
            sent["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"],
            MODERN
        );
    }
}
