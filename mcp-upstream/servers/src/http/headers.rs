//! The headers of requests to backends: those of the transport, and values mirrored from the message.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_protocol::jsonrpc::{self, Key, Members, Message};
use tooldock_protocol::version::{MODERN, mirrored};
use tooldock_sessions::catalogue::Catalogue;

pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
pub(super) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Maximum depth of nested `properties` that are searched for mirrored arguments.
const DEPTH_MAX: usize = 16;

/// A message to a backend, and the values in it that are mirrored in HTTP headers.
pub(super) struct Outgoing<'a> {
    method: Option<Cow<'a, str>>,
    members: Option<Members<'a>>,
}

impl<'a> Outgoing<'a> {
    /// Reads a message of the gateway, which is JSON-RPC.
    pub(super) fn of(message: &'a Bytes) -> Self {
        let text = std::str::from_utf8(message).unwrap_or_default();
        let (method, members) = match jsonrpc::message(text) {
            Ok(
                Message::Request {
                    method, members, ..
                }
                | Message::Notification { method, members },
            ) => (Some(method), Some(members)),
            _ => (None, None),
        };
        Self { method, members }
    }

    /// The message's method; `None` for a response.
    pub(super) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// Returns true if the message is a request that opens a connection.
    pub(super) fn opens(&self) -> bool {
        matches!(self.method(), Some("initialize" | "server/discover"))
    }

    /// Mirrors method, name and arguments of the message in headers, as a server of 2026-07-28 requires (SEP-2243).
    pub(super) fn mirror(&self, headers: &mut HeaderMap, catalogue: &Catalogue) {
        headers.insert(VERSION, HeaderValue::from_static(MODERN));
        let Some(method) = self.method() else {
            return;
        };
        if let Ok(value) = HeaderValue::from_str(&mirrored::encode(method)) {
            headers.insert(METHOD, value);
        }
        let key = match method {
            "tools/call" | "prompts/get" => Key::Name,
            "resources/read" => Key::Uri,
            "tasks/get" | "tasks/update" | "tasks/cancel" => Key::TaskId,
            _ => return,
        };
        let named = self.members.as_ref().and_then(|members| members.get(key));
        if let Some(named) = named.and_then(jsonrpc::string)
            && let Ok(value) = HeaderValue::from_str(&mirrored::encode(&named))
        {
            headers.insert(NAME, value);
        }
        if method == "tools/call" {
            self.mirror_arguments(headers, catalogue);
        }
    }

    /// Copies the arguments that the tool's schema marks into headers. If the tool's schema is not known yet, no headers are
    /// sent, and the server refuses a call that needs them.
    fn mirror_arguments(&self, headers: &mut HeaderMap, catalogue: &Catalogue) -> Option<()> {
        let members = self.members.as_ref()?;
        let name = members.get(Key::Name).and_then(jsonrpc::string)?;
        let tools = catalogue.known()?;
        let schema = tools.tool(&name)?.input_schema()?.get();
        // Shortcut: few tools mirror arguments, and a search for the key shows if this one does.
        memchr::memmem::find(schema.as_bytes(), b"x-mcp-header")?;
        mirror_properties(schema, members.get(Key::Arguments)?, headers, DEPTH_MAX)
    }
}

/// Keys of a property's schema that are relevant for headers.
#[derive(Deserialize)]
struct Property<'a> {
    #[serde(borrow, default, rename = "x-mcp-header")]
    header: Option<&'a RawValue>,
    #[serde(borrow, default)]
    properties: Option<&'a RawValue>,
}

/// Walks the nested `properties` of a schema together with the arguments that they describe.
fn mirror_properties(
    schema: &str,
    arguments: &RawValue,
    headers: &mut HeaderMap,
    depth: usize,
) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let schema: Property<'_> = serde_json::from_str(schema).ok()?;
    let given = jsonrpc::entries(arguments)?;
    for (key, property) in jsonrpc::entries(schema.properties?)? {
        let Some((_, value)) = given.iter().find(|(own, _)| *own == key) else {
            continue;
        };
        let own = serde_json::from_str::<Property<'_>>(property.get());
        let header = own.ok().and_then(|own| jsonrpc::string(own.header?));
        if let Some(header) = header
            && let Ok(name) = HeaderName::try_from(format!("mcp-param-{header}"))
            && let Some(text) = scalar(value)
            && let Ok(text) = HeaderValue::from_str(&mirrored::encode(&text))
        {
            headers.insert(name, text);
        }
        mirror_properties(property.get(), value, headers, depth);
    }
    Some(())
}

/// The text of a JSON value for a header; `None` for objects, lists and `null`.
fn scalar(value: &RawValue) -> Option<Cow<'_, str>> {
    match value.get().as_bytes().first()? {
        b'"' => jsonrpc::string(value),
        b't' | b'f' | b'-' | b'0'..=b'9' => Some(Cow::Borrowed(value.get())),
        _ => None,
    }
}

/// The headers of every POST to a backend.
pub(super) fn of_post() -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(6);
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    let both = HeaderValue::from_static("application/json, text/event-stream");
    headers.insert(header::ACCEPT, both);
    headers
}

/// The headers of every GET for a stream. `after`: id of the event after which the stream continues.
pub(super) fn of_get(after: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(4);
    let events = HeaderValue::from_static("text/event-stream");
    headers.insert(header::ACCEPT, events);
    if let Some(after) = after.and_then(|id| HeaderValue::from_str(id).ok()) {
        headers.insert(LAST_EVENT_ID, after);
    }
    headers
}
