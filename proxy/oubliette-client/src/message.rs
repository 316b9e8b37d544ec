//! The fields of the MCP client's messages that this program uses. Ids, tokens and arguments are kept as raw JSON, byte for
//! byte.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The protocol revision without sessions, in which each request is complete in itself.
pub(crate) const MODERN: &str = "2026-07-28";
/// The protocol revisions that a client may request by `initialize`, the newest first.
pub(crate) const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The era of the protocol, which decides how a client names its revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// The client opens a session with `initialize`, which names the revision.
    Legacy,
    /// Each request names the revision; there is no session.
    Modern,
}

/// A message of the MCP client.
#[derive(Debug, Deserialize)]
pub(crate) struct Message {
    pub(crate) jsonrpc: Option<Box<RawValue>>,
    #[serde(default, deserialize_with = "present")]
    pub(crate) id: Option<Box<RawValue>>,
    pub(crate) method: Option<String>,
    #[serde(default)]
    pub(crate) params: Option<Box<RawValue>>,
}

/// Deserializes a field that is present, even if its value is `null`. A message without an id is a notification; a message with
/// the id `null` is not.
fn present<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// The fields of `params` that this program uses. A field of an unexpected type is treated as missing.
#[derive(Debug, Default)]
pub(crate) struct RequestParams {
    /// The name of the called tool, in `tools/call`.
    pub(crate) name: Option<String>,
    /// The arguments of the called tool, in `tools/call`: a JSON object.
    pub(crate) arguments: Option<Box<RawValue>>,
    /// The protocol revision that the client requests in `initialize`.
    pub(crate) version: Option<String>,
    /// The id of the cancelled request, in `notifications/cancelled`.
    pub(crate) request: Option<Box<RawValue>>,
    /// True if `subscriptions/listen` subscribes to changes of the tool list.
    pub(crate) listens_to_tools: bool,
    /// The token under which progress of the request is reported.
    pub(crate) progress_token: Option<Box<RawValue>>,
    /// The protocol revision that a request of the modern era names in `_meta`.
    pub(crate) modern_version: Option<String>,
    /// True if a request of the modern era contains the client's capabilities, as it must.
    pub(crate) has_capabilities: bool,
}

impl RequestParams {
    /// Reads the parameters of a message.
    ///
    /// # Errors
    ///
    /// If the parameters are not a JSON object.
    pub(crate) fn of(params: Option<&RawValue>) -> Result<Self, &'static str> {
        let Some(params) = params else {
            return Ok(Self::default());
        };
        let members: RawParams = object(params).ok_or("params must be an object")?;
        let meta = members.meta.as_deref().and_then(object::<Meta>);
        let meta = meta.unwrap_or_default();
        let listens = members.notifications.as_deref().and_then(object::<Kinds>);
        let text = |raw: Option<Box<RawValue>>| -> Option<String> {
            serde_json::from_str(raw?.get()).ok()
        };
        Ok(Self {
            name: text(members.name),
            arguments: members.arguments,
            version: text(members.version),
            request: members.request.filter(|raw| is_id(raw)),
            listens_to_tools: listens
                .and_then(|kinds| kinds.tools)
                .is_some_and(|raw| raw.get() == "true"),
            progress_token: meta.progress_token.filter(|raw| is_id(raw)),
            modern_version: text(meta.version),
            has_capabilities: meta
                .capabilities
                .is_some_and(|raw| raw.get().starts_with('{')),
        })
    }
}

/// Returns true if a value can be the id of a request: a string or a number.
pub(crate) fn is_id(raw: &RawValue) -> bool {
    raw.get()
        .starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'))
}

fn object<'a, T: Deserialize<'a>>(raw: &'a RawValue) -> Option<T> {
    // The first byte is checked because `serde` would also read a struct from a JSON array.
    raw.get().starts_with('{').then_some(())?;
    serde_json::from_str(raw.get()).ok()
}

#[derive(Deserialize)]
struct RawParams {
    name: Option<Box<RawValue>>,
    arguments: Option<Box<RawValue>>,
    #[serde(rename = "protocolVersion")]
    version: Option<Box<RawValue>>,
    #[serde(rename = "requestId")]
    request: Option<Box<RawValue>>,
    notifications: Option<Box<RawValue>>,
    #[serde(rename = "_meta")]
    meta: Option<Box<RawValue>>,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(rename = "progressToken")]
    progress_token: Option<Box<RawValue>>,
    #[serde(rename = "io.modelcontextprotocol/protocolVersion")]
    version: Option<Box<RawValue>>,
    #[serde(rename = "io.modelcontextprotocol/clientCapabilities")]
    capabilities: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Kinds {
    #[serde(rename = "toolsListChanged")]
    tools: Option<Box<RawValue>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        serde_json::from_str(text).expect("a message")
    }

    #[test]
    fn an_id_that_is_null_is_told_from_none() {
        let with = message(r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#);
        assert_eq!(with.id.as_deref().map(RawValue::get), Some("null"));
        assert!(message(r#"{"jsonrpc":"2.0","method":"ping"}"#).id.is_none());
    }

    #[test]
    fn parameters_keep_their_bytes_and_surplus_ones_are_ignored() {
        let message = message(
            r#"{"params":{"name":"t","arguments":{"n":1.50},"x":[],"_meta":{"progressToken":7,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#,
        );
        let params = RequestParams::of(message.params.as_deref()).expect("an object");
        assert_eq!(params.name.as_deref(), Some("t"));
        assert_eq!(params.arguments.expect("there").get(), r#"{"n":1.50}"#);
        assert_eq!(params.progress_token.expect("there").get(), "7");
        assert_eq!(params.modern_version.as_deref(), Some(MODERN));
        assert!(params.has_capabilities);
    }

    #[test]
    fn parameters_of_another_shape_are_refused_or_absent() {
        let params = |text: &str| {
            let raw: Box<RawValue> = serde_json::from_str(text).expect("JSON");
            RequestParams::of(Some(&raw))
        };
        assert!(params("[]").is_err());
        let odd = params(r#"{"name":7,"requestId":{},"_meta":[]}"#).expect("an object");
        assert!(odd.name.is_none() && odd.request.is_none() && odd.modern_version.is_none());
    }
}
