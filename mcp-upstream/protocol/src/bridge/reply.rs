//! Translates results and errors from the legacy era to the modern era, and back.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;
use smallvec::SmallVec;

use super::{SERVER_INFO, nulls, schemas};
use crate::jsonrpc::ResponseOutcome;
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::version::{CacheScope, code};

/// Time for which clients may cache a list if the server announces its changes: milliseconds, as JSON.
const ANNOUNCED_TTL_MS: &str = "300000";

/// Description of a legacy server. Results for modern clients contain a part of it.
#[derive(Debug, Clone, Copy)]
pub struct LegacyServer<'a> {
    /// The server's result of `initialize`.
    initialize: &'a str,
}

impl<'a> LegacyServer<'a> {
    /// Wraps the server's result of `initialize`, which contains the description.
    pub fn of(initialize: &'a [u8]) -> Self {
        Self {
            initialize: std::str::from_utf8(initialize).unwrap_or_default(),
        }
    }

    /// The server's `serverInfo`, without members that are `null`.
    fn info(&self) -> Option<Cow<'a, str>> {
        let info = spans::find(self.initialize, "serverInfo").filter(|it| *it != "null")?;
        Some(nulls::of_info(info).map_or(Cow::Borrowed(info), Cow::Owned))
    }

    fn announces(&self, list: &str) -> bool {
        let mut found = Some(self.initialize);
        for name in ["capabilities", list, "listChanged"] {
            found = found.and_then(|it| spans::find(it, name));
        }
        found == Some("true")
    }
}

/// Translates the result or error of a legacy server for a modern client. `scope` is the `cacheScope` that lists in the
/// result get.
pub fn to_modern(
    method: &str,
    reply: ResponseOutcome,
    server: LegacyServer<'_>,
    scope: CacheScope,
) -> ResponseOutcome {
    let result = match reply {
        ResponseOutcome::Result(result) => result,
        ResponseOutcome::Error(error) => {
            return ResponseOutcome::Error(recode(
                error,
                code::RESOURCE_NOT_FOUND,
                code::INVALID_PARAMS,
                |_| method == "resources/read",
            ));
        }
    };
    let Ok(object) = std::str::from_utf8(&result) else {
        return ResponseOutcome::Result(result);
    };
    let mut changes: SmallVec<[_; 4]> = SmallVec::new();
    changes.push(MemberEdit::Default("resultType", "\"complete\"".into()));
    if let Some((ttl, scope)) = cache_hint(method, server, scope) {
        changes.push(MemberEdit::Default("ttlMs", ttl.into()));
        changes.push(MemberEdit::Default(
            "cacheScope",
            format!("\"{}\"", scope.as_str()).into(),
        ));
    }
    if let Some(info) = server.info() {
        let meta = spans::find(object, "_meta").filter(|it| *it != "null");
        let meta = meta.unwrap_or("{}");
        let info = MemberEdit::Default(SERVER_INFO, info);
        changes.push(MemberEdit::Set("_meta", spans::edit(meta, &[info]).into()));
    }
    ResponseOutcome::Result(spans::edit(object, &changes).into())
}

/// Cache time of a result, in milliseconds as JSON, and its cache scope; `None` for methods whose results are not cached. The
/// time is 0 for contents of resources and for lists whose changes the server does not announce.
fn cache_hint(
    method: &str,
    server: LegacyServer<'_>,
    scope: CacheScope,
) -> Option<(&'static str, CacheScope)> {
    let list = match method {
        "tools/list" => "tools",
        "prompts/list" => "prompts",
        "resources/list" | "resources/templates/list" => "resources",
        "resources/read" => return Some(("0", CacheScope::Private)),
        _ => return None,
    };
    let ttl = if server.announces(list) {
        ANNOUNCED_TTL_MS
    } else {
        "0"
    };
    Some((ttl, scope))
}

/// Translates the result or error of a modern server for a legacy client.
pub fn to_legacy(method: &str, reply: ResponseOutcome) -> ResponseOutcome {
    match reply {
        ResponseOutcome::Result(result) => {
            let Ok(text) = std::str::from_utf8(&result) else {
                return ResponseOutcome::Result(result);
            };
            let mut changes: SmallVec<[_; 4]> = ["resultType", "ttlMs", "cacheScope"]
                .map(MemberEdit::Remove)
                .into_iter()
                .collect();
            changes.extend(match method {
                "tools/list" => schemas::of_list(text),
                "tools/call" => schemas::of_call(text),
                _ => None,
            });
            ResponseOutcome::Result(spans::edit(text, &changes).into())
        }
        ResponseOutcome::Error(error) => {
            let names_uri = |error: &RawValue| {
                let data = spans::member(error, "data");
                method == "resources/read"
                    && data.is_some_and(|data| spans::member(data, "uri").is_some())
            };
            let (from, to) = (code::INVALID_PARAMS, code::RESOURCE_NOT_FOUND);
            ResponseOutcome::Error(recode(error, from, to, names_uri))
        }
    }
}

/// Replaces the code `from` of an error by `to`, if `applies` returns true. Errors with other codes are not changed.
fn recode(error: Bytes, from: i32, to: i32, applies: impl Fn(&RawValue) -> bool) -> Bytes {
    let is_from = |error: &RawValue| {
        let code = spans::member(error, "code");
        code.is_some_and(|code| code.get().parse() == Ok(from))
    };
    let changed = spans::raw(&error)
        .filter(|error| is_from(error) && applies(error))
        .map(|error| {
            let to = MemberEdit::Set("code", Cow::Owned(to.to_string()));
            spans::edit(error.get(), &[to])
        });
    changed.map_or(error, Into::into)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const INITIALIZED: &[u8] =
        br#"{"serverInfo":{"name":"s","x":1.0},"capabilities":{"tools":{"listChanged":true},"prompts":{}}}"#;

    fn result(text: &'static str) -> ResponseOutcome {
        ResponseOutcome::Result(Bytes::from_static(text.as_bytes()))
    }

    fn text(reply: ResponseOutcome) -> String {
        let (ResponseOutcome::Result(span) | ResponseOutcome::Error(span)) = reply;
        String::from_utf8(span.to_vec()).expect("UTF-8")
    }

    fn modern(method: &str, reply: ResponseOutcome) -> String {
        text(to_modern(
            method,
            reply,
            LegacyServer::of(INITIALIZED),
            CacheScope::Public,
        ))
    }

    #[test]
    fn a_modern_client_is_told_what_a_legacy_server_does_not_say() {
        let call = modern("tools/call", result(r#"{"content":[],"n":1.50}"#));
        assert!(call.starts_with(r#"{"content":[],"n":1.50,"#), "{call}");
        assert!(call.contains(r#""x":1.0"#), "{call}");
        let call: Value = serde_json::from_str(&call).expect("JSON");
        assert_eq!(call["resultType"], "complete");
        assert_eq!(call["_meta"][SERVER_INFO]["name"], "s");
        assert!(call.get("ttlMs").is_none());
        for (method, ttl, scope) in [
            ("tools/list", 300_000, "public"),
            ("prompts/list", 0, "public"),
            ("resources/read", 0, "private"),
        ] {
            let list = modern(method, result(r#"{"_meta":{"a":1}}"#));
            let list: Value = serde_json::from_str(&list).expect("JSON");
            assert_eq!(
                (&list["ttlMs"], &list["cacheScope"]),
                (&json!(ttl), &json!(scope))
            );
            assert_eq!(list["_meta"]["a"], 1);
        }
    }

    #[test]
    fn a_modern_client_is_told_the_name_without_members_that_are_null() {
        let initialized = br#"{"serverInfo":{"name":"s","title":null,"icons":null,"x":1.0}}"#;
        let server = LegacyServer::of(initialized);
        for odd in [r#"{"a":1}"#, r#"{"a":1,"_meta":null}"#] {
            let reply = to_modern("x/own", result(odd), server, CacheScope::Public);
            let reply: Value = serde_json::from_str(&text(reply)).expect("JSON");
            let expected = json!({ "name": "s", "x": 1.0 });
            assert_eq!(reply["_meta"][SERVER_INFO], expected, "{odd}");
        }
    }

    #[test]
    fn a_legacy_client_is_spared_the_hints() {
        let reply = result(
            r#"{"resultType":"complete","tools":[],"ttlMs":1,"cacheScope":"public","x":2.0}"#,
        );
        assert_eq!(
            text(to_legacy("tools/list", reply)),
            r#"{"tools":[],"x":2.0}"#
        );
        let plain = result(r#"{ "a" : 1 }"#);
        assert_eq!(text(to_legacy("tools/call", plain)), r#"{ "a" : 1 }"#);
    }

    #[test]
    fn a_resource_that_is_not_there_has_each_eras_code() {
        let error =
            |text: &'static str| ResponseOutcome::Error(Bytes::from_static(text.as_bytes()));
        let old = r#"{"code":-32002,"message":"m","data":{"uri":"a://b"}}"#;
        let new = r#"{"code":-32602,"message":"m","data":{"uri":"a://b"}}"#;
        assert_eq!(modern("resources/read", error(old)), new);
        assert_eq!(text(to_legacy("resources/read", error(new))), old);
        // Elsewhere, and without a URI, the codes mean something else.
        assert_eq!(modern("tools/call", error(old)), old);
        assert_eq!(text(to_legacy("tools/call", error(new))), new);
        let other = r#"{"code":-32602,"message":"bad"}"#;
        assert_eq!(text(to_legacy("resources/read", error(other))), other);
    }
}
