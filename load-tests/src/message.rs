//! Requests as prebuilt bytes with a place for the id, and whether an answer is the right one.
//!
//! Building a request per call would cost the client the very CPU the server needs, so only the ten digits of the id
//! are written anew.

use std::net::SocketAddr;

use serde_json::json;

use crate::plan::ANNOUNCING_TOOL;
use crate::wire::Answer;

/// Ids have ten digits, so that every request is as long as any other.
pub(crate) const FIRST_ID: u64 = 1_000_000_000;
const DIGITS: usize = 10;

/// What the echo tools are given and must give back.
const TEXT: &str = "hello from the load";

/// A request that can be sent again and again, each time with another id.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    id_at: usize,
}

impl Request {
    /// `before` ends where the id begins.
    fn new(before: &str, after: &str) -> Self {
        let bytes = format!("{before}{FIRST_ID}{after}").into_bytes();
        Self {
            bytes,
            id_at: before.len(),
        }
    }

    /// The bytes to send for an id of ten digits.
    pub(crate) fn with_id(&mut self, id: u64) -> &[u8] {
        let mut rest = id;
        for digit in self.bytes[self.id_at..self.id_at + DIGITS].iter_mut().rev() {
            // A remainder of ten fits any byte.
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        &self.bytes
    }
}

/// Where a message goes and who sends it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) token: &'a str,
    pub(crate) namespace: &'a str,
    /// The MCP session, where there is one.
    pub(crate) session: Option<&'a str>,
}

impl Envelope<'_> {
    /// The head of `POST /mcp` for a body of this length.
    fn head(&self, length: usize) -> String {
        let session = self.session.map_or_else(String::new, |id| {
            format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n")
        });
        format!(
            "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nX-Namespace: {}\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{session}\
             Content-Length: {length}\r\n\r\n",
            self.to, self.token, self.namespace
        )
    }

    /// Any message as it is.
    pub(crate) fn post(&self, body: &str) -> Vec<u8> {
        format!("{}{body}", self.head(body.len())).into_bytes()
    }

    fn request(&self, rest: &str) -> Request {
        let before = r#"{"jsonrpc":"2.0","id":"#;
        let head = self.head(before.len() + DIGITS + rest.len());
        Request::new(&format!("{head}{before}"), rest)
    }

    pub(crate) fn ping(&self) -> Request {
        self.request(r#","method":"ping"}"#)
    }

    /// The call after which every open stream has an event.
    pub(crate) fn announce(&self) -> Request {
        let params = json!({"name": ANNOUNCING_TOOL, "arguments": {}});
        self.request(&format!(r#","method":"tools/call","params":{params}}}"#))
    }

    /// `GET /mcp`, which stays open.
    pub(crate) fn stream(&self) -> Vec<u8> {
        let session = self.session.unwrap_or_default();
        format!(
            "GET /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nX-Namespace: {}\r\n\
             Accept: text/event-stream\r\nMcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n\r\n",
            self.to, self.token, self.namespace
        )
        .into_bytes()
    }

    pub(crate) fn call(&self, tool: &str) -> Request {
        let params = json!({"name": tool, "arguments": {"text": TEXT}});
        self.request(&format!(r#","method":"tools/call","params":{params}}}"#))
    }
}

/// The same call as one line of the worker's own protocol.
pub(crate) fn worker_call(tool: &str) -> Request {
    let arguments = json!({"text": TEXT});
    Request::new(
        r#"{"id":"#,
        &format!(",\"op\":\"tools.call\",\"tool\":\"{tool}\",\"arguments\":{arguments}}}\n"),
    )
}

/// What a right answer looks like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expect {
    pub(crate) status: u16,
    /// Its id must be the request's.
    pub(crate) id: bool,
    pub(crate) contains: &'static str,
}

impl Expect {
    pub(crate) const PONG: Self = Self {
        status: 200,
        id: true,
        contains: r#""result":{}"#,
    };
    pub(crate) const ECHO: Self = Self {
        status: 200,
        id: true,
        contains: TEXT,
    };
    pub(crate) const ANNOUNCED: Self = Self {
        status: 200,
        id: true,
        contains: "announced",
    };
    /// Refused before the body is read, so without its id.
    pub(crate) const REFUSED: Self = Self {
        status: 401,
        id: false,
        contains: "-32010",
    };
    /// nginx answers the same text to all.
    pub(crate) const FIXED: Self = Self {
        status: 200,
        id: false,
        contains: r#""result":{}"#,
    };

    /// Why it is not the right answer to `id`, if it is not.
    pub(crate) fn mismatch(&self, answer: &Answer<'_>, id: u64) -> Option<String> {
        let fault = if answer.status != self.status {
            format!("status {} instead of {}", answer.status, self.status)
        } else if self.id && id_of(answer.body) != Some(id) {
            format!("not the answer to {id}")
        } else if find(answer.body, br#""isError":true"#).is_some() {
            "the tool failed".to_owned()
        } else if find(answer.body, self.contains.as_bytes()).is_none() {
            format!("without {:?}", self.contains)
        } else {
            return None;
        };
        let shown = String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]);
        Some(format!("{fault}: {shown}"))
    }
}

/// The first numeric `id` of a message.
fn id_of(body: &[u8]) -> Option<u64> {
    let start = find(body, br#""id":"#)? + br#""id":"#.len();
    let digits = body[start..].trim_ascii_start();
    let length = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(&digits[..length]).ok()?.parse().ok()
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENVELOPE: Envelope<'_> = Envelope {
        to: SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8000),
        token: "t",
        namespace: "load",
        session: None,
    };

    fn body(request: &[u8]) -> (usize, serde_json::Value) {
        let text = std::str::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .unwrap();
        assert_eq!(length.parse::<usize>().unwrap(), body.len());
        (body.len(), serde_json::from_str(body).unwrap())
    }

    fn answer(status: u16, body: &str) -> Answer<'_> {
        Answer {
            status,
            head: b"",
            body: body.as_bytes(),
            closes: false,
        }
    }

    #[test]
    fn a_patched_request_is_valid_and_as_long_as_before() {
        for mut request in [ENVELOPE.ping(), ENVELOPE.call("echo_async")] {
            let first = body(request.with_id(FIRST_ID));
            let second = body(request.with_id(1_234_567_890));
            assert_eq!(first.0, second.0);
            assert_eq!(first.1["id"], FIRST_ID);
            assert_eq!(second.1["id"], 1_234_567_890);
        }
    }

    #[test]
    fn a_session_travels_with_its_version() {
        let session = Envelope {
            session: Some("abc"),
            ..ENVELOPE
        };
        let bytes = session.ping().with_id(FIRST_ID).to_vec();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("Mcp-Session-Id: abc\r\nMCP-Protocol-Version: 2025-11-25\r\n"));
    }

    #[test]
    fn a_worker_call_is_one_line_of_json() {
        let mut request = worker_call("echo_async");
        let line = request.with_id(1_000_000_007).strip_suffix(b"\n").unwrap();
        let value: serde_json::Value = serde_json::from_slice(line).unwrap();
        assert_eq!(
            (&value["id"], &value["tool"]),
            (&json!(1_000_000_007), &json!("echo_async"))
        );
        assert!(!line.contains(&b'\n'));
    }

    #[test]
    fn the_answer_to_another_request_is_a_fault() {
        let right = r#"{"jsonrpc":"2.0","id": 1000000001,"result":{}}"#;
        assert_eq!(
            Expect::PONG.mismatch(&answer(200, right), FIRST_ID + 1),
            None
        );
        assert!(
            Expect::PONG
                .mismatch(&answer(200, right), FIRST_ID)
                .is_some()
        );
        assert!(
            Expect::PONG
                .mismatch(&answer(503, right), FIRST_ID + 1)
                .is_some()
        );
    }

    #[test]
    fn a_failed_tool_is_a_fault_though_its_status_is_200() {
        let text = format!(r#"{{"id":{FIRST_ID},"result":{{"isError":true,"content":"{TEXT}"}}}}"#);
        let fault = Expect::ECHO
            .mismatch(&answer(200, &text), FIRST_ID)
            .unwrap();
        assert!(fault.starts_with("the tool failed"), "{fault}");
    }

    #[test]
    fn an_answer_without_an_id_or_with_a_text_id_matches_no_number() {
        for body in [
            "",
            "{}",
            r#"{"id":null}"#,
            r#"{"id":"1000000000"}"#,
            r#"{"id":"#,
        ] {
            assert_eq!(id_of(body.as_bytes()), None, "{body}");
        }
    }
}
