//! Requests as prebuilt bytes with room for the id, and checks of answers.
//!
//! Building a request per call would use CPU time that the server needs, so only the ten digits of the id are rewritten.

mod echo;
mod expect;

use std::net::SocketAddr;

use serde_json::json;

pub(crate) use echo::{EchoCall, pipe_call};
pub(crate) use expect::Expect;

/// The first id. Ids have ten digits, so that all requests have the same length.
pub(crate) const FIRST_ID: u64 = 1_000_000_000;
const DIGITS: usize = 10;

/// The text that echo tools get and must return.
const TEXT: &str = "hello from the load";

/// A request that can be sent repeatedly, each time with another id.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    /// Positions of the id, also in a text that contains it.
    ids_at: Vec<usize>,
}

impl Request {
    /// Creates a request from a text; each occurrence of [`FIRST_ID`] is replaced by the id.
    fn new(text: String) -> Self {
        let id = FIRST_ID.to_string();
        Self {
            ids_at: text.match_indices(&id).map(|(at, _)| at).collect(),
            bytes: text.into_bytes(),
        }
    }

    /// The bytes of the request with an id of ten digits.
    pub(crate) fn with_id(&mut self, id: u64) -> &[u8] {
        for &at in &self.ids_at {
            let mut rest = id;
            for digit in self.bytes[at..at + DIGITS].iter_mut().rev() {
                // The remainder of a division by ten fits any byte.
                *digit = b'0' + (rest % 10) as u8;
                rest /= 10;
            }
        }
        &self.bytes
    }
}

/// The address, credentials and headers of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) token: &'a str,
    /// Path of the server's MCP endpoint.
    pub(crate) path: &'a str,
    pub(crate) namespace: &'a str,
    /// Id of the MCP session, if there is one.
    pub(crate) session: Option<&'a str>,
}

impl<'a> Envelope<'a> {
    /// Path of the MCP endpoint of the gateway and of most other servers.
    pub(crate) const PATH: &'static str = "/mcp";

    pub(crate) const fn new(to: SocketAddr, token: &'a str, namespace: &'a str) -> Self {
        Self {
            to,
            token,
            path: Self::PATH,
            namespace,
            session: None,
        }
    }

    pub(crate) fn at(self, to: SocketAddr) -> Self {
        Self { to, ..self }
    }

    pub(crate) fn with_token(self, token: &'a str) -> Self {
        Self { token, ..self }
    }

    /// The envelope for another namespace.
    pub(crate) fn of<'b>(self, namespace: &'b str) -> Envelope<'b>
    where
        'a: 'b,
    {
        Envelope { namespace, ..self }
    }

    pub(crate) fn in_session<'b>(self, session: Option<&'b str>) -> Envelope<'b>
    where
        'a: 'b,
    {
        Envelope { session, ..self }
    }

    /// The head of a `POST` with a body of `length` bytes.
    fn head(&self, length: usize) -> String {
        let session = self.session.map_or_else(String::new, |id| {
            format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n")
        });
        self.head_with(&session, length)
    }

    /// The head of a `POST` with further header lines `more`, each with its line end.
    fn head_with(&self, more: &str, length: usize) -> String {
        format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nX-Namespace: {}\r\n\
             Content-Type: application/json\r\nAccept: application/json, text/event-stream\r\n{more}\
             Content-Length: {length}\r\n\r\n",
            self.path, self.to, self.token, self.namespace
        )
    }

    /// A `POST` with `body`.
    pub(crate) fn post(&self, body: &str) -> Vec<u8> {
        format!("{}{body}", self.head(body.len())).into_bytes()
    }

    fn request(&self, rest: &str) -> Request {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{FIRST_ID}{rest}"#);
        Request::new(format!("{}{body}", self.head(body.len())))
    }

    pub(crate) fn ping(&self) -> Request {
        self.request(r#","method":"ping"}"#)
    }

    /// A ping as from a web page of `origin`.
    pub(crate) fn ping_from(&self, origin: &str) -> Request {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{FIRST_ID},"method":"ping"}}"#);
        let head = self.head_with(&format!("Origin: {origin}\r\n"), body.len());
        Request::new(head + &body)
    }

    /// A `DELETE`, which ends the session.
    pub(crate) fn delete(&self) -> Vec<u8> {
        self.head(0).replacen("POST", "DELETE", 1).into_bytes()
    }

    /// A `GET`, which opens a stream.
    pub(crate) fn stream(&self) -> Vec<u8> {
        let session = self.session.unwrap_or_default();
        format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nX-Namespace: {}\r\n\
             Accept: text/event-stream\r\nMcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n\r\n",
            self.path, self.to, self.token, self.namespace
        )
        .into_bytes()
    }

    pub(crate) fn call(&self, tool: &str) -> Request {
        let params = json!({"name": tool, "arguments": {"text": TEXT}});
        self.request(&format!(r#","method":"tools/call","params":{params}}}"#))
    }
}

/// A call as one line of the worker's protocol.
pub(crate) fn worker_call(tool: &str) -> Request {
    let arguments = json!({"text": TEXT});
    Request::new(format!(
        "{{\"id\":{FIRST_ID},\"op\":\"tools.call\",\"tool\":\"{tool}\",\"arguments\":{arguments}}}\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const ENVELOPE: Envelope<'_> = Envelope::new(
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8000),
        "t",
        "load",
    );

    pub(super) fn body(request: &[u8]) -> (usize, serde_json::Value) {
        let text = std::str::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .unwrap();
        assert_eq!(length.parse::<usize>().unwrap(), body.len());
        (body.len(), serde_json::from_str(body).unwrap())
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
        let session = ENVELOPE.in_session(Some("abc"));
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
}
