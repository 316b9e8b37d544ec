//! The request headers of an MCP path that are needed after admission.

use std::fmt;

use http::HeaderMap;
use tooldock_sessions::profile::{AcceptRule, Profile};

use crate::protocol::ProtocolVersion;

/// The name of the session header, in lower case.
pub(crate) const SESSION_HEADER: &str = "mcp-session-id";

/// Name of a header in which a request of 2026-07-28 repeats its body's method or subject, in lower case.
const METHOD_HEADER: &str = "mcp-method";
const NAME_HEADER: &str = "mcp-name";
const PARAM_PREFIX: &str = "mcp-param-";
/// Prefix of all headers that repeat parts of the body.
const MIRROR_PREFIX: &str = "mcp-";
/// First protocol version whose requests repeat parts of the body in headers. Versions are dates, so they can be compared as
/// text.
const FIRST_MIRRORED: &str = "2026-07-28";

/// Headers of one request on an MCP path. The edge has refused requests that repeat `Mcp-Session-Id` or `MCP-Protocol-Version`.
#[derive(Clone, Default)]
pub struct McpHead {
    /// The value of `Mcp-Session-Id`, as sent.
    pub session: Option<String>,
    /// The value of `MCP-Protocol-Version`, as sent.
    pub version: Option<String>,
    /// The media types that `Accept` allows.
    pub accept: AcceptFlags,
    /// The value of `Last-Event-ID`, as sent.
    pub last_event_id: Option<String>,
    /// Parts of the body that headers repeat; present if the protocol version requires them or `Mcp-Method` was sent. Boxed,
    /// since most requests have none.
    pub mirrored: Option<Box<MirroredHeaders>>,
    /// Transport of the message, which determines if the message has headers at all.
    pub carrier: Carrier,
}

/// Transport of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Carrier {
    /// The message arrived over HTTP, where headers repeat parts of a 2026-07-28 message.
    #[default]
    Http,
    /// The message arrived over a pipe with one message per line and no headers.
    Lines,
}

/// Headers in which a request of 2026-07-28 repeats parts of its body, with the values as sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MirroredHeaders {
    /// The value of `Mcp-Method`.
    pub method: Option<String>,
    /// The value of `Mcp-Name`.
    pub name: Option<String>,
    /// The `Mcp-Param-*` headers: names in lower case without the prefix, and values.
    pub params: Vec<(String, String)>,
    /// Name of a mirrored header that was sent more than once; `None` if there is none.
    pub duplicate: Option<String>,
}

impl fmt::Debug for McpHead {
    /// Omits the session id, since it is a credential.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpHead")
            .field("session", &self.session.as_ref().map(|_| "[redacted]"))
            .field("version", &self.version)
            .field("accept", &self.accept)
            .field("last_event_id", &self.last_event_id)
            .field("mirrored", &self.mirrored)
            .field("carrier", &self.carrier)
            .finish()
    }
}

/// The parts of `Accept` that concern the two media types of Streamable HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptFlags {
    /// True if `application/json` is listed by name.
    pub json_named: bool,
    /// True if `text/event-stream` is listed by name.
    pub sse_named: bool,
    /// True if JSON may be sent: by name, by wildcard, or because the header is absent.
    pub json_acceptable: bool,
    /// True if events may be sent: by name, by wildcard, or because the header is absent.
    pub sse_acceptable: bool,
}

impl Default for AcceptFlags {
    /// Returns the flags of an absent header: every type is acceptable, no type is listed by name.
    fn default() -> Self {
        Self {
            json_named: false,
            sse_named: false,
            json_acceptable: true,
            sse_acceptable: true,
        }
    }
}

impl AcceptFlags {
    /// Returns true if a POST with this header may be answered in the given protocol version (MCP-15, MCP-16).
    pub fn satisfy(self, profile: &Profile, version: ProtocolVersion) -> bool {
        match profile.accept {
            AcceptRule::Strict if version >= ProtocolVersion::V2025_06_18 => self.names_both(),
            AcceptRule::Strict => self.json_acceptable,
            AcceptRule::Lenient => self.takes_either(),
        }
    }

    /// Returns true if JSON and events are both listed by name.
    pub(super) fn names_both(self) -> bool {
        self.json_named && self.sse_named
    }

    /// Returns true if JSON or events are acceptable.
    pub(super) fn takes_either(self) -> bool {
        self.json_acceptable || self.sse_acceptable
    }

    /// Returns true if a call may be answered with a stream: events are listed by name, or nothing else is acceptable. A wildcard
    /// does not suffice, since clients that send one usually cannot read streams.
    pub(super) fn streams(self) -> bool {
        self.sse_named || (self.sse_acceptable && !self.json_acceptable)
    }
}

impl MirroredHeaders {
    /// Returns true if a request with this version header must repeat parts of its body in headers, or states by sending
    /// `Mcp-Method` that it does.
    pub fn wanted(version: Option<&str>, method_sent: bool) -> bool {
        method_sent || version.is_some_and(|version| version.trim() >= FIRST_MIRRORED)
    }

    /// Reads the mirrored headers from a request's head.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let mut mirrored = Self::default();
        for (name, value) in headers {
            let name = name.as_str();
            if name.starts_with(MIRROR_PREFIX) {
                mirrored.take(name, &String::from_utf8_lossy(value.as_bytes()));
            }
        }
        mirrored
    }

    /// Stores a header of the request if it is a mirrored one. `name` is in lower case.
    pub fn take(&mut self, name: &str, value: &str) {
        let seen = match name {
            METHOD_HEADER => self.method.replace(value.to_owned()).is_some(),
            NAME_HEADER => self.name.replace(value.to_owned()).is_some(),
            _ => {
                let Some(param) = name.strip_prefix(PARAM_PREFIX) else {
                    return;
                };
                let seen = self.params.iter().any(|(known, _)| known == param);
                self.params.push((param.to_owned(), value.to_owned()));
                seen
            }
        };
        if seen {
            self.duplicate = Some(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::head::VERSION_HEADER;

    #[test]
    fn mirrored_headers_are_read_where_a_request_mirrors_its_body() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("mcp-name", "echo"),
            ("mcp-param-region", "eu"),
            ("mcp-param-region", "us"),
        ] {
            headers.append(name, value.parse().expect("a value"));
        }
        for (version, there) in [
            (None, false),
            (Some("2025-11-25"), false),
            (Some("2026-07-28"), true),
            (Some("2027-01-01"), true),
        ] {
            headers.remove(VERSION_HEADER);
            if let Some(version) = version {
                headers.insert(VERSION_HEADER, version.parse().expect("a value"));
            }
            let head = McpHead::from_headers(&headers);
            assert_eq!(head.mirrored.is_some(), there, "{version:?}");
        }
        headers.remove(VERSION_HEADER);
        headers.insert(METHOD_HEADER, "tools/call".parse().expect("a value"));
        let mirrored = McpHead::from_headers(&headers)
            .mirrored
            .expect("it says so");
        assert_eq!(mirrored.method.as_deref(), Some("tools/call"));
        assert_eq!(mirrored.name.as_deref(), Some("echo"));
        assert_eq!(
            mirrored.params,
            [
                ("region".to_owned(), "eu".to_owned()),
                ("region".to_owned(), "us".to_owned())
            ]
        );
        assert_eq!(mirrored.duplicate.as_deref(), Some("mcp-param-region"));
    }

    #[test]
    fn debug_output_does_not_hold_the_session() {
        let head = McpHead {
            session: Some("a-credential".into()),
            ..McpHead::default()
        };
        assert!(!format!("{head:?}").contains("a-credential"));
    }

    #[test]
    fn strict_versions_want_both_types_by_name() {
        let core = Profile::core();
        for (accept, strict, lenient) in [
            ("application/json, text/event-stream", true, true),
            ("text/event-stream;q=0.5,Application/JSON", true, true),
            ("application/json", false, true),
            ("text/event-stream", false, false),
            ("*/*", false, true),
            ("application/*", false, true),
            ("*/*, application/json;q=0", false, false),
            ("application/json, text/event-stream;q=0", false, true),
            ("text/html", false, false),
            ("", false, true),
        ] {
            let flags = AcceptFlags::parse([accept]);
            let satisfies = |version| flags.satisfy(&core, version);
            assert_eq!(satisfies(ProtocolVersion::V2025_11_25), strict, "{accept}");
            assert_eq!(satisfies(ProtocolVersion::V2025_06_18), strict, "{accept}");
            assert_eq!(satisfies(ProtocolVersion::V2025_03_26), lenient, "{accept}");
        }
        let lenient = Profile {
            accept: AcceptRule::Lenient,
            ..core.clone()
        };
        for (accept, taken, streams) in [
            ("text/event-stream", true, true),
            ("text/*", true, true),
            ("text/*;q=0.2, application/json;q=0", true, true),
            ("application/json", true, false),
            ("*/*", true, false),
            ("", true, false),
            ("application/*, text/*", true, false),
            ("text/event-stream, */*;q=0.1", true, true),
            ("text/html", false, false),
            ("*/*;q=0", false, false),
        ] {
            let flags = AcceptFlags::parse([accept]);
            for version in [ProtocolVersion::V2025_11_25, ProtocolVersion::V2025_03_26] {
                assert_eq!(flags.satisfy(&lenient, version), taken, "{accept}");
            }
            assert_eq!(flags.streams(), streams, "{accept}");
        }
        assert!(AcceptFlags::parse([]).satisfy(&core, ProtocolVersion::V2025_03_26));
    }
}
