//! The few request headers that matter after admission.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::profile::{AcceptRule, Profile};
use crate::protocol::ProtocolVersion;

/// The name of the session header, in lower case.
pub(crate) const SESSION_HEADER: &str = "mcp-session-id";
/// The name of the version header, in lower case.
pub(crate) const VERSION_HEADER: &str = "mcp-protocol-version";

/// The headers of one POST or DELETE on an MCP path. The edge has refused duplicates of them.
#[derive(Debug, Clone, Default)]
pub struct McpHead {
    /// `Mcp-Session-Id`, as sent.
    pub session: Option<String>,
    /// `MCP-Protocol-Version`, as sent.
    pub version: Option<String>,
    /// What `Accept` allows.
    pub accept: AcceptFlags,
}

/// What the `Accept` header says about the two media types of Streamable HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptFlags {
    /// `application/json` is listed by name.
    pub json_named: bool,
    /// `text/event-stream` is listed by name.
    pub sse_named: bool,
    /// JSON may be sent: by name, by wildcard, or because the header is absent.
    pub json_acceptable: bool,
}

impl Default for AcceptFlags {
    /// An absent header: anything goes, nothing is named.
    fn default() -> Self {
        Self {
            json_named: false,
            sse_named: false,
            json_acceptable: true,
        }
    }
}

impl AcceptFlags {
    /// Reads the values of all `Accept` headers of a request. `q=0` excludes; the most specific range decides.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut present = false;
        // (specificity, allowed) of the best match for JSON so far: 3 by name, 2 `application/*`, 1 `*/*`.
        let mut json = (0, false);
        let mut sse_named = false;
        for range in values.into_iter().flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media = parts.next().unwrap_or_default();
            if media.is_empty() {
                continue;
            }
            present = true;
            let refused = parts.any(quality_is_zero);
            let specificity = if media.eq_ignore_ascii_case("application/json") {
                3
            } else if media.eq_ignore_ascii_case("application/*") {
                2
            } else if media == "*/*" {
                1
            } else {
                sse_named |= media.eq_ignore_ascii_case("text/event-stream") && !refused;
                continue;
            };
            if specificity > json.0 {
                json = (specificity, !refused);
            }
        }
        if !present {
            return Self::default();
        }
        Self {
            json_named: json == (3, true),
            sse_named,
            json_acceptable: json.1,
        }
    }

    /// Whether a POST with this header may be answered under a version (MCP-15, MCP-16).
    pub fn satisfy(self, profile: &Profile, version: ProtocolVersion) -> bool {
        if profile.accept == AcceptRule::Strict && version >= ProtocolVersion::V2025_06_18 {
            self.json_named && self.sse_named
        } else {
            self.json_acceptable
        }
    }
}

fn quality_is_zero(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else {
        return false;
    };
    name.trim().eq_ignore_ascii_case("q")
        && value
            .trim()
            .parse::<f32>()
            .is_ok_and(|quality| quality <= 0.0)
}

impl McpHead {
    /// Picks the headers out of a request's head. A value that is no text counts as sent and matches nothing.
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let text = |name: &str| {
            headers
                .get(name)
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        Self {
            session: text(SESSION_HEADER),
            version: text(VERSION_HEADER),
            accept: AcceptFlags::parse(
                headers
                    .get_all(ACCEPT)
                    .iter()
                    .map(|value| value.to_str().unwrap_or("invalid")),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(AcceptFlags::parse([]).satisfy(&core, ProtocolVersion::V2025_03_26));
    }
}
