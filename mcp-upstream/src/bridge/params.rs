//! The parameters of a request, from one era to the other.

use std::borrow::Cow;

use serde_json::value::RawValue;
use smallvec::SmallVec;

use super::key;
use crate::jsonrpc::spans::{self, Change};

/// [`crate::protocol::MODERN`], quoted.
const VERSION: &str = "\"2026-07-28\"";

/// What a client of the older era said once, and a modern server wants to hear each time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientMetadata<'a> {
    /// A JSON object.
    pub(crate) capabilities: &'a str,
    /// A JSON object.
    pub(crate) info: &'a str,
    /// The level it wants log messages of.
    pub(crate) log_level: Option<&'a str>,
}

/// Without what the protocol itself put there. Answers that came along (`inputResponses`) stay: a server that never heard
/// of them ignores them, and one that asked for them all the same gets them.
pub(crate) fn to_legacy(params: &RawValue) -> String {
    let Some(meta) = spans::find(params.get(), "_meta") else {
        return params.get().to_owned();
    };
    let keys = [key::VERSION, key::CAPABILITIES, key::CLIENT, key::LOG_LEVEL];
    let meta = spans::edit(meta, &keys.map(Change::Remove));
    spans::edit(params.get(), &[Change::Set("_meta", meta.into())])
}

/// With what modern servers want to know of the client.
pub(crate) fn to_modern(params: Option<&RawValue>, metadata: ClientMetadata<'_>) -> String {
    let params = params.map_or("{}", RawValue::get);
    let meta = spans::find(params, "_meta").unwrap_or("{}");
    let mut changes: SmallVec<[_; 4]> = SmallVec::new();
    changes.push(Change::Set(key::VERSION, Cow::Borrowed(VERSION)));
    changes.push(Change::Set(
        key::CAPABILITIES,
        Cow::Borrowed(metadata.capabilities),
    ));
    changes.push(Change::Set(key::CLIENT, Cow::Borrowed(metadata.info)));
    if let Some(level) = metadata.log_level {
        changes.push(Change::Set(key::LOG_LEVEL, format!("\"{level}\"").into()));
    }
    let meta = spans::edit(meta, &changes);
    spans::edit(params, &[Change::Set("_meta", meta.into())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::MODERN;

    const CLIENT: ClientMetadata<'_> = ClientMetadata {
        capabilities: r#"{"roots":{}}"#,
        info: r#"{"name":"c"}"#,
        log_level: Some("info"),
    };

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    #[test]
    fn a_legacy_server_is_told_nothing_of_the_modern_era_and_the_rest_as_it_was() {
        let params = format!(
            r#"{{"name":"t","arguments":{{"n":1.50}},"_meta":{{"{}":"2026-07-28","{}":{{}},"progressToken":9007199254740993,"x/y":null}},"z":1}}"#,
            key::VERSION,
            key::CAPABILITIES
        );
        assert_eq!(
            to_legacy(&raw(&params)),
            r#"{"name":"t","arguments":{"n":1.50},"_meta":{"progressToken":9007199254740993,"x/y":null},"z":1}"#
        );
        assert_eq!(to_legacy(&raw(r#"{ "a":1 }"#)), r#"{ "a":1 }"#);
    }

    #[test]
    fn a_modern_server_is_told_who_asks() {
        let with = to_modern(
            Some(&raw(r#"{"name":"t","_meta":{"progressToken":1.0}}"#)),
            CLIENT,
        );
        assert!(
            with.starts_with(r#"{"name":"t","_meta":{"progressToken":1.0,"#),
            "{with}"
        );
        for text in [&with, &to_modern(None, CLIENT)] {
            let value: serde_json::Value = serde_json::from_str(text).expect("JSON");
            let meta = &value["_meta"];
            assert_eq!(meta[key::VERSION], MODERN);
            assert_eq!(meta[key::CAPABILITIES]["roots"], serde_json::json!({}));
            assert_eq!(meta[key::CLIENT]["name"], "c");
            assert_eq!(meta[key::LOG_LEVEL], "info");
        }
    }
}
