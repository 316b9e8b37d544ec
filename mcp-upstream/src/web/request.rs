//! A request in the form that the API's handlers read: path segments, query parameters, body, and pages of lists.

use bytes::Bytes;
use http::Method;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tooldock_base::names::NamespaceName;
use tooldock_sessions::caller::Caller;
use tooldock_workers::manage::ToolFileName;

use super::WebRequest;
use super::answer::{Answer, WebFailure, json_of};

/// Default number and maximum number of entries on a page of a list.
const PAGE: usize = 100;
const PAGE_MAX: usize = 500;
/// Maximum number of query parameters that are read; further ones are ignored.
const PARAMETERS_MAX: usize = 32;

/// A request of the API that has passed the edge's checks.
pub(super) struct ApiRequest {
    pub(super) method: Method,
    /// The segments of the path after `/api/`, decoded.
    pub(super) segments: Vec<String>,
    parameters: Vec<(String, String)>,
    pub(super) body: Bytes,
    pub(super) content_type: String,
    pub(super) wants_events: bool,
    /// True if the request comes from a command of the command line, over a listener of the profile `core`; false if it comes
    /// over `/api`.
    pub(super) is_of_command: bool,
    /// True if the request was protected on its way from the client to the gateway, by TLS or because it did not leave this
    /// machine; false if it may have crossed a network unencrypted.
    pub(super) is_private: bool,
}

impl ApiRequest {
    pub(super) fn new(
        caller: &Caller,
        method: Method,
        query: Option<String>,
        body: Bytes,
        web: WebRequest,
    ) -> Result<Self, WebFailure> {
        let of_command = web.path.strip_prefix("/operator/");
        let path = of_command.or_else(|| web.path.strip_prefix("/api/"));
        let path = path.unwrap_or_default();
        let segments = path.split('/').map(decoded).collect();
        let parameters = serde_urlencoded::from_str(query.as_deref().unwrap_or_default());
        let mut parameters: Vec<(String, String)> = parameters.map_err(|error| {
            WebFailure::invalid("query", format!("The query cannot be read: {error}"))
        })?;
        parameters.truncate(PARAMETERS_MAX);
        // A local connection without TLS may come from a proxy on this machine. It is private if the client itself is on this
        // machine, or if the public address uses HTTPS, so that the proxy's clients use TLS.
        let speaks_for_itself = caller.client.is_loopback()
            || caller.client.is_unspecified()
            || caller.profile.public_url.starts_with("https://");
        Ok(Self {
            method,
            segments,
            is_of_command: of_command.is_some(),
            parameters,
            body,
            content_type: web.content_type,
            wants_events: web.wants_events,
            is_private: web.is_tls || (web.is_local && speaks_for_itself),
        })
    }

    /// A parameter of the query; `None` if it is absent or empty.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        let mut found = self.parameters.iter().filter(|(key, _)| key == name);
        found
            .next()
            .map(|(_, value)| &**value)
            .filter(|value| !value.is_empty())
    }

    /// The text of the parameter `q`, which filters a list, in lower case; empty if there is no filter.
    pub(super) fn wanted(&self) -> String {
        self.parameter("q").unwrap_or_default().to_lowercase()
    }

    /// Maximum number of entries on a page, from the request's parameter `limit`.
    pub(super) fn limit(&self) -> Result<usize, WebFailure> {
        let Some(text) = self.parameter("limit") else {
            return Ok(PAGE);
        };
        let limit = text
            .parse()
            .ok()
            .filter(|limit| (1..=PAGE_MAX).contains(limit));
        limit.ok_or_else(|| {
            WebFailure::invalid(
                "limit",
                format!("limit must be a number from 1 to {PAGE_MAX}"),
            )
        })
    }

    /// Responds with a page of a list under the key `name`, with the total number of entries and the next cursor. `rest`: an
    /// object with further keys.
    pub(super) fn page(&self, name: &str, all: Vec<Value>, rest: Value) -> Answer {
        self.page_of(name, all, Value::from, rest)
    }

    /// Responds with a page of a list, like [`Self::page`], if rendering an entry is costly: `shown` is called only for the
    /// entries of the page.
    pub(super) fn page_of<T>(
        &self,
        name: &str,
        all: Vec<T>,
        shown: impl Fn(T) -> Value,
        rest: Value,
    ) -> Answer {
        let limit = self.limit()?;
        let from = match self.parameter("cursor") {
            None => 0,
            Some(text) => text.parse::<usize>().map_err(|_| {
                WebFailure::invalid("cursor", "cursor must be next_cursor of the page before")
            })?,
        };
        let total = all.len();
        let page = all.into_iter().skip(from).take(limit);
        let page: Vec<_> = page.map(shown).collect();
        let end = from.saturating_add(page.len());
        let mut body = match rest {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        body.insert(name.to_owned(), page.into());
        body.insert("total".to_owned(), total.into());
        if end < total {
            body.insert("next_cursor".to_owned(), end.to_string().into());
        }
        json_of(&body)
    }

    /// Parses the body as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, WebFailure> {
        let kind = self
            .content_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(WebFailure::new(
                http::StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                "The body has to be JSON; send `Content-Type: application/json`.",
            ));
        }
        let mut reader = serde_json::Deserializer::from_slice(&self.body);
        serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let field = error.path().to_string();
            WebFailure::invalid(&field, format!("The body is not as it has to be: {error}"))
        })
    }
}

/// Decodes a segment of a path. The edge has refused segments that cannot be decoded.
fn decoded(segment: &str) -> String {
    let mut bytes = Vec::with_capacity(segment.len());
    let mut rest = segment.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|it| std::str::from_utf8(it).ok());
        let octet = digits.and_then(|it| u8::from_str_radix(it, 16).ok());
        match (byte, octet) {
            (b'%', Some(octet)) => {
                bytes.push(octet);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses a namespace's name.
pub(super) fn namespace(text: &str) -> Result<NamespaceName, WebFailure> {
    text.parse()
        .map_err(|error| WebFailure::invalid("namespace", format!("{error}")))
}

/// Parses a tool file's name.
pub(super) fn file(text: &str) -> Result<ToolFileName, WebFailure> {
    text.parse()
        .map_err(|error| WebFailure::invalid("filename", format!("{error}")))
}
