//! Translates the parameters of a request from the legacy era to the modern era, and back.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::jsonrpc::spans::{self, MemberEdit};
use crate::jsonrpc::{Key, Request, Unreadable};

/// The protocol version that is added to requests for modern servers, as a JSON string.
const VERSION: &str = "\"2026-07-28\"";

/// Keys in the `_meta` of modern requests that the protocol defines and legacy requests do not have.
const KEYS: [Key; 4] = [
    Key::ProtocolVersion,
    Key::Capabilities,
    Key::ClientInfo,
    Key::MinLogLevel,
];

/// Metadata that a legacy client sent once, when it opened its session, and that a modern server requires in each request.
#[derive(Debug, Clone, Copy)]
pub struct ClientMetadata<'a> {
    /// The client's capabilities, as a JSON object.
    pub capabilities: &'a str,
    /// The client's name and version (`clientInfo`), as a JSON object.
    pub info: &'a str,
    /// The least severe level of log messages that the client wants, as a JSON string; `None` if it has set no level.
    pub log_level: Option<&'a str>,
}

impl<'a> ClientMetadata<'a> {
    /// Edits that add the client's version, capabilities, name and log level to the `_meta` of a request.
    fn changes(self) -> SmallVec<[MemberEdit<'a>; 4]> {
        let mut changes = SmallVec::new();
        changes.push(MemberEdit::Set(
            Key::ProtocolVersion.name(),
            Cow::Borrowed(VERSION),
        ));
        changes.push(MemberEdit::Set(
            Key::Capabilities.name(),
            Cow::Borrowed(self.capabilities),
        ));
        changes.push(MemberEdit::Set(
            Key::ClientInfo.name(),
            Cow::Borrowed(self.info),
        ));
        if let Some(level) = self.log_level {
            changes.push(MemberEdit::Set(
                Key::MinLogLevel.name(),
                format!("\"{level}\"").into(),
            ));
        }
        changes
    }
}

/// Translates a request for a legacy server: removes the protocol's keys from `_meta`, and sets `requestState` to the server's
/// own state, if there is one. Answers to questions (`inputResponses`) stay in the request: a server that does not know them
/// ignores them, and a server that has asked needs them.
///
/// # Errors
///
/// [`Unreadable`], if the parameters cannot be read or edited.
pub fn to_legacy(request: &Request, state: Option<&str>) -> Result<Request, Unreadable> {
    let own = request.raw(Key::Meta);
    let without = KEYS.map(|key| MemberEdit::Remove(key.name()));
    let meta = own.and_then(|meta| spans::edited(meta, &without));
    let mut changes: SmallVec<[_; 5]> = SmallVec::new();
    changes.extend(state.map(|state| (Key::RequestState, Some(state))));
    match &meta {
        Some(meta) => changes.push((Key::Meta, Some(meta))),
        // `_meta` contains a repeated key, so it cannot be edited as a whole: each key is removed where it stands.
        None if own.is_some() => changes.extend(KEYS.map(|key| (key, None))),
        None => {}
    }
    request.edited(&changes)
}

/// Translates a request for a modern server: adds the client's version, capabilities, name and log level to `_meta`.
///
/// # Errors
///
/// [`Unreadable`], if the parameters cannot be read or edited.
pub fn to_modern(request: &Request, metadata: ClientMetadata<'_>) -> Result<Request, Unreadable> {
    let changes = metadata.changes();
    if let Some(meta) = spans::edited(request.raw(Key::Meta).unwrap_or("{}"), &changes) {
        return request.edited(&[(Key::Meta, Some(&meta))]);
    }
    // `_meta` contains a repeated key. The server must decide about that, so it is kept: only the protocol's keys are removed,
    // and their correct values appended.
    let without = request.edited(&KEYS.map(|key| (key, None)))?;
    match without
        .raw(Key::Meta)
        .and_then(|meta| spans::with_members(meta, &changes))
    {
        Some(meta) => without.edited(&[(Key::Meta, Some(&meta))]),
        // `_meta` is not an object. The request is forwarded as it is, and the server refuses it.
        None => Ok(without),
    }
}

/// Trace context of a request, as JSON strings (SEP-414).
#[derive(Debug, Clone, Copy)]
pub struct Trace<'a> {
    /// Value of `traceparent` (W3C Trace Context).
    pub parent: &'a str,
    /// Value of `tracestate`; `None` if there is none.
    pub state: Option<&'a str>,
    /// True if this trace context replaces the one in the request; false if the one in the request is kept.
    pub replaces: bool,
}

/// Adds a trace context to the `_meta` of a request. Returns `None` if the request is not changed: it has a trace context that
/// must be kept, or its `_meta` cannot be edited.
pub fn traced(request: &Request, trace: Trace<'_>) -> Option<Request> {
    const PARENT: &str = "traceparent";
    let meta = request.raw(Key::Meta).unwrap_or("{}");
    if !trace.replaces && spans::find(meta, PARENT).is_some() {
        return None;
    }
    let mut changes: SmallVec<[_; 2]> = SmallVec::new();
    changes.push(MemberEdit::Set(PARENT, Cow::Borrowed(trace.parent)));
    let state = trace.state.map(Cow::Borrowed);
    changes.extend(state.map(|state| MemberEdit::Set("tracestate", state)));
    let meta = spans::edited(meta, &changes)?;
    request.edited(&[(Key::Meta, Some(&meta))]).ok()
}

/// Adds the values of [`ClientMetadata`] to a request's `_meta`, a JSON object, for modern servers.
pub fn modern_meta(meta: &str, metadata: ClientMetadata<'_>) -> String {
    spans::edit(meta, &metadata.changes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::MODERN;

    const CLIENT: ClientMetadata<'_> = ClientMetadata {
        capabilities: r#"{"roots":{}}"#,
        info: r#"{"name":"c"}"#,
        log_level: Some("info"),
    };

    fn request(params: &str) -> Request {
        Request::own("tools/call", params).expect("JSON")
    }

    fn params(request: &Request) -> &str {
        request.raw(Key::Params).expect("parameters")
    }

    #[test]
    fn a_legacy_server_is_told_nothing_of_the_modern_era_and_the_rest_as_it_was() {
        let own = format!(
            r#"{{"name":"t","arguments":{{"n":1.50}},"_meta":{{"{}":"2026-07-28","{}":{{}},"progressToken":9007199254740993,"x/y":null}},"requestState":"ours","z":1}}"#,
            Key::ProtocolVersion.name(),
            Key::Capabilities.name()
        );
        let legacy = to_legacy(&request(&own), Some("\"theirs\"")).expect("JSON");
        assert_eq!(
            params(&legacy),
            r#"{"name":"t","arguments":{"n":1.50},"_meta":{"progressToken":9007199254740993,"x/y":null},"requestState":"theirs","z":1}"#
        );
        assert_eq!(legacy.token(), Some("9007199254740993"));
        let plain = to_legacy(&request(r#"{ "a":1 }"#), None).expect("JSON");
        assert_eq!(params(&plain), r#"{ "a":1 }"#);
    }

    #[test]
    fn a_modern_server_is_told_who_asks() {
        let modern = |own: &str| to_modern(&request(own), CLIENT).expect("JSON");
        let with = modern(r#"{"name":"t","_meta":{"progressToken":1.0}}"#);
        let begin = r#"{"name":"t","_meta":{"progressToken":1.0,"#;
        assert!(params(&with).starts_with(begin), "{}", params(&with));
        assert_eq!(with.token(), Some("1.0"));
        for request in [with, modern("{}"), modern(r#"{"a":[]}"#)] {
            let value = serde_json::from_str::<serde_json::Value>(params(&request)).expect("JSON");
            let meta = &value["_meta"];
            assert_eq!(meta[Key::ProtocolVersion.name()], MODERN);
            assert_eq!(
                meta[Key::Capabilities.name()]["roots"],
                serde_json::json!({})
            );
            assert_eq!(meta[Key::ClientInfo.name()]["name"], "c");
            assert_eq!(meta[Key::MinLogLevel.name()], "info");
        }
    }
    #[test]
    fn a_trace_goes_into_the_metadata_unless_the_request_names_one() {
        let trace = Trace {
            parent: "\"00-a\"",
            state: Some("\"v=1\""),
            replaces: false,
        };
        let traced = |own: &str| traced(&request(own), trace);
        let with = traced(r#"{"n":1.50,"_meta":{"progressToken":1.0}}"#).expect("added");
        let expected =
            r#"{"n":1.50,"_meta":{"progressToken":1.0,"traceparent":"00-a","tracestate":"v=1"}}"#;
        assert_eq!(params(&with), expected);
        assert_eq!(with.token(), Some("1.0"));
        let with = traced("{}").expect("added");
        let expected = r#"{"_meta":{"traceparent":"00-a","tracestate":"v=1"}}"#;
        assert_eq!(params(&with), expected);
        for own in [r#"{"_meta":{"traceparent":"mine"}}"#, r#"{"_meta":7}"#] {
            assert!(traced(own).is_none(), "{own}");
        }
        let own = r#"{"n":1.50,"_meta":{"traceparent":"mine","x":1}}"#;
        let ours = Trace {
            state: None,
            replaces: true,
            ..trace
        };
        let with = super::traced(&request(own), ours).expect("replaced");
        let expected = r#"{"n":1.50,"_meta":{"traceparent":"00-a","x":1}}"#;
        assert_eq!(params(&with), expected);
    }

    #[test]
    fn metadata_with_an_unknown_key_twice_is_translated_all_the_same() {
        let [version, level] = [Key::ProtocolVersion, Key::MinLogLevel].map(Key::name);
        let own = format!(
            r#"{{"name":"t","_meta":{{"x":1,"{version}":"2026-07-28","x":1.50,"{level}":"info"}},"z":1}}"#
        );
        let legacy = to_legacy(&request(&own), Some("\"theirs\"")).expect("JSON");
        assert_eq!(
            params(&legacy),
            r#"{"name":"t","_meta":{"x":1,"x":1.50},"z":1,"requestState":"theirs"}"#
        );
        let own = format!(r#"{{"_meta":{{"x":1,"{version}":"mine","x":1.50}},"z":1}}"#);
        let modern = to_modern(&request(&own), CLIENT).expect("JSON");
        let meta = modern.raw(Key::Meta).expect("metadata");
        assert!(meta.starts_with(r#"{"x":1,"x":1.50,"#), "{meta}");
        let value = serde_json::from_str::<serde_json::Value>(meta).expect("JSON");
        assert_eq!(value[version], MODERN);
        assert_eq!(value[level], "info");
        assert!(!meta.contains("mine"), "{meta}");
    }
}
