//! The head of a request as the edge reads it, from the headers of a test.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::mcp::head::{AcceptFlags, Carrier, McpHead, MirroredHeaders, SESSION_HEADER};

/// The name of the version header, in lower case.
pub(crate) const VERSION_HEADER: &str = "mcp-protocol-version";
/// The name of the header with which a client resumes a stream, in lower case.
pub(crate) const LAST_EVENT_ID_HEADER: &str = "last-event-id";
const METHOD_HEADER: &str = "mcp-method";

impl AcceptFlags {
    /// Reads the values of all `Accept` headers of a request. `q=0` excludes; the most specific range decides.
    pub(crate) fn parse<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut present = false;
        // (specificity, allowed) of the best match for JSON so far: 3 by name, 2 `application/*`, 1 `*/*`.
        let mut json = (0, false);
        // The best match for events so far, in the same form.
        let mut sse = (0, false);
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
                0
            };
            if specificity > json.0 {
                json = (specificity, !refused);
            }
            let specificity = if media.eq_ignore_ascii_case("text/event-stream") {
                3
            } else if media.eq_ignore_ascii_case("text/*") {
                2
            } else if media == "*/*" {
                1
            } else {
                0
            };
            if specificity > sse.0 {
                sse = (specificity, !refused);
            }
        }
        if !present {
            return Self::default();
        }
        Self {
            json_named: json == (3, true),
            sse_named: sse == (3, true),
            json_acceptable: json.1,
            sse_acceptable: sse.1,
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
    /// Reads the headers from a request's head. A value that is not text counts as sent and matches nothing.
    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let text = |name: &str| {
            headers
                .get(name)
                .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let version = text(VERSION_HEADER);
        Self {
            session: text(SESSION_HEADER),
            last_event_id: text(LAST_EVENT_ID_HEADER),
            mirrored: MirroredHeaders::wanted(
                version.as_deref(),
                headers.contains_key(METHOD_HEADER),
            )
            .then(|| Box::new(MirroredHeaders::from_headers(headers))),
            version,
            carrier: Carrier::Http,
            accept: AcceptFlags::parse(
                headers
                    .get_all(ACCEPT)
                    .iter()
                    .map(|value| value.to_str().unwrap_or("invalid")),
            ),
        }
    }
}
