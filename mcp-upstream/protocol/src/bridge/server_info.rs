//! Builds results of `initialize` and `server/discover` for clients from a server's description of itself.

use std::borrow::Cow;

use bytes::Bytes;

use super::{SERVER_INFO, nulls};
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::version::{CacheScope, ServerInfo};

/// Time for which clients may cache the result of `server/discover`: milliseconds, as JSON.
const TTL_MS: &str = "300000";

/// The capabilities that a server declared, as raw JSON.
fn capabilities(opening: &ServerInfo) -> Option<&str> {
    let (ServerInfo::Legacy(result) | ServerInfo::Modern(result)) = opening;
    spans::find(std::str::from_utf8(result).ok()?, "capabilities")
}

/// Returns true if the server declared a capability. `path` contains its name and, if needed, the names of nested members.
pub fn declares(opening: &ServerInfo, path: &[&str]) -> bool {
    let mut found = capabilities(opening);
    for name in path {
        found = found.and_then(|it| spans::find(it, name));
    }
    found.is_some_and(|it| !matches!(it, "false" | "null"))
}

/// The server's result of `initialize` or `server/discover`, without members that are `null`.
fn result_text(result: &Bytes) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(result);
    nulls::of_opening(&text).map_or(text, Cow::Owned)
}

/// Builds the result of `initialize` for a legacy client, with the protocol version that was negotiated with it.
pub fn initialize(opening: &ServerInfo, version: &str) -> Bytes {
    let version = MemberEdit::Set("protocolVersion", format!("\"{version}\"").into());
    let result = match opening {
        ServerInfo::Legacy(result) => spans::edit(&result_text(result), &[version]),
        ServerInfo::Modern(result) => {
            let mut changes: Vec<_> = ["supportedVersions", "resultType", "ttlMs", "cacheScope"]
                .map(MemberEdit::Remove)
                .into();
            changes.push(version);
            changes.push(MemberEdit::Default("capabilities", Cow::Borrowed("{}")));
            // A modern server's name is in `_meta`; in the result of `initialize` it must be a separate member.
            let result = result_text(result);
            let meta = spans::find(&result, "_meta");
            let info = meta.and_then(|meta| spans::find(meta, SERVER_INFO));
            if let Some(meta) = meta {
                let rest = spans::edit(meta, &[MemberEdit::Remove(SERVER_INFO)]);
                changes.push(match &*rest {
                    "{}" => MemberEdit::Remove("_meta"),
                    _ => MemberEdit::Set("_meta", rest.into()),
                });
            }
            let info = info.unwrap_or(r#"{"name":"unknown","version":""}"#);
            changes.push(MemberEdit::Default("serverInfo", Cow::Borrowed(info)));
            spans::edit(&result, &changes)
        }
    };
    result.into()
}

/// Builds the result of `server/discover` for a modern client, with the protocol versions that the listener serves.
pub fn discover(opening: &ServerInfo, versions: &[&str], scope: CacheScope) -> Bytes {
    let versions = serde_json::Value::from(versions).to_string();
    let scope = format!("\"{}\"", scope.as_str());
    let mut changes = vec![
        MemberEdit::Set("supportedVersions", versions.into()),
        MemberEdit::Set("cacheScope", scope.into()),
    ];
    let (ServerInfo::Legacy(result) | ServerInfo::Modern(result)) = opening;
    let result = result_text(result);
    match opening {
        ServerInfo::Modern(_) => {
            changes.push(MemberEdit::Default(
                "resultType",
                Cow::Borrowed("\"complete\""),
            ));
            changes.push(MemberEdit::Default("ttlMs", Cow::Borrowed(TTL_MS)));
        }
        ServerInfo::Legacy(_) => {
            changes.push(MemberEdit::Set("resultType", Cow::Borrowed("\"complete\"")));
            changes.push(MemberEdit::Set("ttlMs", Cow::Borrowed(TTL_MS)));
            changes.push(MemberEdit::Default("capabilities", Cow::Borrowed("{}")));
            changes.push(MemberEdit::Remove("protocolVersion"));
            changes.push(MemberEdit::Remove("serverInfo"));
            if let Some(info) = spans::find(&result, "serverInfo") {
                let meta = spans::find(&result, "_meta").unwrap_or("{}");
                let info = MemberEdit::Set(SERVER_INFO, info.into());
                changes.push(MemberEdit::Set("_meta", spans::edit(meta, &[info]).into()));
            }
        }
    }
    spans::edit(&result, &changes).into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn legacy() -> ServerInfo {
        ServerInfo::Legacy(Bytes::from_static(
            br#"{"protocolVersion":"2025-06-18","capabilities":{"tools":{"listChanged":true},"x":{"n":1.0}},"serverInfo":{"name":"s"},"instructions":"do"}"#,
        ))
    }

    fn modern() -> ServerInfo {
        ServerInfo::Modern(Bytes::from_static(
            br#"{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"a/b":{}}},"ttlMs":5,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"m"}},"y":1.50}"#,
        ))
    }

    fn value(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    #[test]
    fn a_legacy_client_gets_initialize_of_either_server() {
        let own = initialize(&legacy(), "2025-11-25");
        assert!(own.starts_with(br#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true},"x":{"n":1.0}}"#));
        assert_eq!(value(&own)["instructions"], "do");
        let bridged = value(&initialize(&modern(), "2025-11-25"));
        assert_eq!(bridged["protocolVersion"], "2025-11-25");
        assert_eq!(bridged["serverInfo"], json!({ "name": "m" }));
        assert_eq!(bridged["capabilities"]["extensions"], json!({ "a/b": {} }));
        assert_eq!(bridged["y"], 1.5);
        for gone in [
            "resultType",
            "supportedVersions",
            "ttlMs",
            "cacheScope",
            "_meta",
        ] {
            assert!(bridged.get(gone).is_none(), "{gone}");
        }
        let more = ServerInfo::Modern(Bytes::from_static(
            br#"{"supportedVersions":["2026-07-28"],"_meta":{"a/b":1.50,"io.modelcontextprotocol/serverInfo":{"name":"m"}}}"#,
        ));
        assert_eq!(
            initialize(&more, "2025-11-25"),
            r#"{"_meta":{"a/b":1.50},"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"m"}}"#
        );
    }

    #[test]
    fn a_modern_client_gets_discover_of_either_server() {
        let versions = ["2026-07-28", "2025-11-25"];
        let of = |opening: &ServerInfo| value(&discover(opening, &versions, CacheScope::Private));
        for (opening, ttl, name) in [(legacy(), 300_000, "s"), (modern(), 5, "m")] {
            let found = of(&opening);
            assert_eq!(found["resultType"], "complete");
            assert_eq!(found["supportedVersions"], json!(versions));
            assert_eq!(
                (&found["ttlMs"], &found["cacheScope"]),
                (&json!(ttl), &json!("private"))
            );
            assert_eq!(found["_meta"][SERVER_INFO]["name"], name);
            assert!(found.get("serverInfo").is_none() && found.get("protocolVersion").is_none());
        }
    }

    #[test]
    fn a_capability_is_there_or_not() {
        assert!(declares(&legacy(), &["tools", "listChanged"]));
        assert!(declares(&legacy(), &["x"]));
        assert!(!declares(&legacy(), &["resources", "subscribe"]));
    }
}
