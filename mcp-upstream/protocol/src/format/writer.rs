//! Writes a response in one pass: the client's id, the members of its era, and then the members of the method's result.

use std::borrow::Cow;
use std::collections::BTreeMap;

use memchr::memmem;
use serde_json::value::RawValue;

use super::{CacheScope, ResultFormat, begin};

/// Time for which results of 2026-07-28 may be cached, in milliseconds (MOD-08): five minutes. Lists change with a reload, and
/// clients that listen are notified of it. A client that does not listen uses an outdated list for at most this time.
const TTL_MS: u64 = 300_000;

/// A response that is being written.
pub struct ResultWriter<'d> {
    out: Vec<u8>,
    format: &'d ResultFormat,
    empty: bool,
    /// True if a `_meta` has been appended; then none is added at the end.
    has_meta: bool,
}

impl<'d> ResultWriter<'d> {
    /// Begins the response to the request with this id (raw JSON). `size` is the estimated length of the result, in bytes.
    pub fn begin(id: &str, format: &'d ResultFormat, size: usize) -> Self {
        let extra = match format {
            ResultFormat::Legacy(_) => 48,
            ResultFormat::Modern(_) => 288,
        };
        let mut out = Vec::with_capacity(id.len() + size + extra);
        begin(&mut out, id);
        out.push(b'{');
        let mut answer = Self {
            out,
            format,
            empty: true,
            has_meta: false,
        };
        if let ResultFormat::Modern(_) = format {
            answer.key("resultType").extend_from_slice(b"\"complete\"");
        }
        answer
    }

    /// Adds the default cache time and the cache scope of the result. Does nothing in the legacy format.
    pub fn cached(self, scope: CacheScope) -> Self {
        self.cached_for(TTL_MS, scope)
    }

    /// Adds a cache time in milliseconds and the cache scope of the result. Does nothing in the legacy format.
    pub fn cached_for(mut self, ttl_ms: u64, scope: CacheScope) -> Self {
        if let ResultFormat::Modern(_) = self.format {
            let ttl = ttl_ms.to_string();
            self.key("ttlMs").extend_from_slice(ttl.as_bytes());
            let out = self.key("cacheScope");
            out.push(b'"');
            out.extend_from_slice(scope.as_str().as_bytes());
            out.push(b'"');
        }
        self
    }

    /// Begins a member: writes its name, which must not need escaping. The caller appends the value to the returned buffer.
    pub fn key(&mut self, name: &'static str) -> &mut Vec<u8> {
        self.separate();
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        &mut self.out
    }

    /// Appends the members of a JSON object unchanged. The first `skipped` bytes after the opening brace are left out.
    pub fn members_after(&mut self, skipped: usize, object: &[u8]) {
        let inner = object.trim_ascii();
        let inner = inner.strip_prefix(b"{").unwrap_or_default();
        let inner = inner.strip_suffix(b"}").unwrap_or_default();
        let inner = inner.get(skipped..).unwrap_or_default().trim_ascii();
        if inner.is_empty() {
            return;
        }
        self.has_meta |= matches!(self.format, ResultFormat::Modern(_)) && has_meta(object);
        self.separate();
        self.out.extend_from_slice(inner);
    }

    /// Ends the response. In the modern format, `_meta` with `serverInfo` is added, unless a `_meta` has been appended.
    pub fn end(mut self) -> Vec<u8> {
        if let (ResultFormat::Modern(format), false) = (self.format, self.has_meta) {
            let out = self.key("_meta");
            out.push(b'{');
            format.meta(out);
            out.push(b'}');
        }
        self.out.extend_from_slice(b"}}");
        self.out
    }

    /// Adds a `_meta` with an additional member and ends the response. `write` appends the value of that member. The response
    /// must not contain a `_meta` yet.
    pub fn end_with_meta(
        mut self,
        name: &'static str,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Vec<u8> {
        let out = self.open_meta();
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        write(out);
        out.extend_from_slice(b"}}}");
        self.out
    }

    /// Ends the response with the members of a JSON object in its `_meta`. No `_meta` must have been appended before.
    pub fn end_with_own_meta(mut self, meta: &[u8]) -> Vec<u8> {
        let Some(own) = inner(meta) else {
            return self.end();
        };
        let out = self.open_meta();
        out.extend_from_slice(own);
        out.extend_from_slice(b"}}}");
        self.out
    }

    /// Begins `_meta`, with `serverInfo` in the modern format. The caller must append at least one more member.
    fn open_meta(&mut self) -> &mut Vec<u8> {
        let format = self.format;
        let out = self.key("_meta");
        out.push(b'{');
        if let ResultFormat::Modern(format) = format {
            format.meta(out);
            out.push(b',');
        }
        out
    }

    fn separate(&mut self) {
        if !self.empty {
            self.out.push(b',');
        }
        self.empty = false;
    }
}

/// The members of a JSON object, without the braces around them; `None` if the object is empty.
fn inner(object: &[u8]) -> Option<&[u8]> {
    let inner = object.trim_ascii().strip_prefix(b"{")?;
    let inner = inner.strip_suffix(b"}")?.trim_ascii();
    (!inner.is_empty()).then_some(inner)
}

/// Returns true if the object has a member `_meta` at its top level. The object is parsed only if its text contains the name,
/// which is rare.
fn has_meta(object: &[u8]) -> bool {
    memmem::find(object, b"\"_meta\"").is_some()
        && serde_json::from_slice::<BTreeMap<Cow<'_, str>, &RawValue>>(object)
            .is_ok_and(|members| members.contains_key("_meta"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::ModernFormat;
    use super::*;
    use crate::version::ProtocolVersion;

    fn modern() -> ResultFormat {
        ResultFormat::Modern(ModernFormat::new("shared".parse().expect("a name")))
    }

    fn parsed(bytes: &[u8]) -> Value {
        serde_json::from_slice(bytes).expect("JSON")
    }

    #[test]
    fn a_legacy_result_is_its_members_alone() {
        let format = ResultFormat::Legacy(ProtocolVersion::V2025_11_25);
        let empty = ResultWriter::begin("\"a\"", &format, 0).cached(CacheScope::Public);
        assert_eq!(
            String::from_utf8(empty.end()).expect("UTF-8"),
            r#"{"jsonrpc":"2.0","id":"a","result":{}}"#
        );
        let mut answer = ResultWriter::begin("1.50", &format, 0);
        answer.members_after(0, br#" { "n": 9007199254740993 } "#);
        answer.members_after(0, b"{}");
        answer.key("x").extend_from_slice(b"null");
        assert_eq!(
            String::from_utf8(answer.end()).expect("UTF-8"),
            r#"{"jsonrpc":"2.0","id":1.50,"result":{"n": 9007199254740993,"x":null}}"#
        );
    }

    #[test]
    fn a_modern_result_says_that_it_is_one_and_who_answered() {
        let format = modern();
        let mut answer = ResultWriter::begin("1", &format, 0).cached(CacheScope::Private);
        answer.members_after(0, br#"{"contents":[{"_meta":{"a":1}}]}"#);
        let name = json!({ "name": "tooldock/shared", "version": env!("CARGO_PKG_VERSION") });
        assert_eq!(
            parsed(&answer.end())["result"],
            json!({
                "resultType": "complete", "ttlMs": 300_000, "cacheScope": "private",
                "contents": [{"_meta": {"a": 1}}],
                "_meta": { "io.modelcontextprotocol/serverInfo": name },
            })
        );
    }

    #[test]
    fn what_a_function_says_in_meta_stands_beside_who_answered() {
        let end = |format: &ResultFormat, meta: &[u8]| {
            let mut answer = ResultWriter::begin("1", format, 0);
            answer.key("content").extend_from_slice(b"[]");
            let text = answer.end_with_own_meta(meta);
            let value = parsed(&text);
            (text, value["result"]["_meta"].clone())
        };
        let legacy = ResultFormat::Legacy(ProtocolVersion::V2025_11_25);
        let (text, _) = end(&legacy, br#" {"a":1.50} "#);
        assert_eq!(
            String::from_utf8(text).expect("UTF-8"),
            r#"{"jsonrpc":"2.0","id":1,"result":{"content":[],"_meta":{"a":1.50}}}"#
        );
        assert_eq!(end(&legacy, b"{ }").1, Value::Null);
        let (_, meta) = end(&modern(), br#"{"a":1}"#);
        assert_eq!(meta["a"], 1);
        let server = &meta["io.modelcontextprotocol/serverInfo"];
        assert_eq!(server["name"], "tooldock/shared");
    }

    #[test]
    fn a_meta_of_the_result_itself_is_kept() {
        let format = modern();
        let mut answer = ResultWriter::begin("1", &format, 0);
        answer.members_after(0, br#"{"_meta":{"a":1}}"#);
        let bytes = answer.end();
        assert_eq!(memmem::find_iter(&bytes, b"_meta").count(), 1);
        assert_eq!(parsed(&bytes)["result"]["_meta"], json!({"a": 1}));
    }
}
