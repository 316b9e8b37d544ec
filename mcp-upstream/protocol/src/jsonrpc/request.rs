//! A complete request of a client, parsed once: its bytes, and the positions of its known members. Edits of the request adjust
//! the positions.

use std::fmt;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use smallvec::SmallVec;
use tooldock_base::json::InvalidJson;

use super::index::{Index, names};
use super::key::Key;
use super::spans::{self, MemberEdit};
use super::splice::{Edit, splice};

/// Member of `_meta` in requests to stdio servers that contains the gateway's id of the request.
pub(crate) const ORIGIN: &str = "tooldock/request_id";

/// A client's request: its bytes, and the positions of its known members.
#[derive(Clone)]
pub struct Request {
    message: Bytes,
    index: Index,
}

/// Error: the parameters of a request, or a new value for them, are not valid JSON or are nested too deep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the parameters cannot be read, or are nested too deep")]
pub struct Unreadable;

impl From<InvalidJson> for Unreadable {
    fn from(_: InvalidJson) -> Self {
        Self
    }
}

impl Request {
    /// Combines a message with its index. `index` must have been built from `message`.
    pub fn new(message: Bytes, index: Index) -> Self {
        Self { message, index }
    }

    /// Creates a request that the gateway itself sends. `params` is raw JSON. The id is set when the request is sent.
    ///
    /// # Errors
    ///
    /// [`Unreadable`], if `params` is not JSON or is nested too deep.
    pub fn own(method: &str, params: &str) -> Result<Self, Unreadable> {
        let method = serde_json::Value::from(method);
        let message = format!(r#"{{"jsonrpc":"2.0","id":0,"method":{method},"params":{params}}}"#);
        let index = Index::of(&message)?;
        Ok(Self::new(message.into(), index))
    }

    /// The value of a member as raw JSON; `None` if the member is missing.
    pub fn raw(&self, key: Key) -> Option<&str> {
        std::str::from_utf8(self.bytes(key)?).ok()
    }

    /// The value of a member as bytes, without checking that they are UTF-8; `None` if the member is missing.
    pub fn bytes(&self, key: Key) -> Option<&[u8]> {
        self.message.get(self.index.get(key)?.range())
    }

    /// The request's progress token as raw JSON; `None` if it has none that is a string or a number.
    pub fn token(&self) -> Option<&str> {
        self.raw(Key::ProgressToken).filter(|raw| names(raw))
    }

    /// The length of the message in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a message is never empty")]
    pub fn len(&self) -> usize {
        self.message.len()
    }

    /// Sets members of the request to raw JSON, or removes them if the value is `None`. All other bytes stay unchanged.
    ///
    /// # Errors
    ///
    /// [`Unreadable`], if a value is not JSON or is nested too deep.
    pub fn edited(&self, changes: &[(Key, Option<&str>)]) -> Result<Self, Unreadable> {
        let mut edited = self.clone();
        for (key, value) in changes {
            match value {
                Some(value) => edited.set(*key, value)?,
                None => edited.remove(*key),
            }
        }
        Ok(edited)
    }

    fn set(&mut self, key: Key, value: &str) -> Result<(), Unreadable> {
        if let (Some(old), Some(whole)) = (self.index.get(key), self.index.whole(key)) {
            let (at, begin) = (old.range(), whole.range().start);
            self.replace(at.clone(), value);
            return Ok(self.index.added(key, begin, value, at.start)?);
        }
        let Some(params) = self.index.get(Key::Params) else {
            // The request has no parameters yet: an empty object is appended as its last member.
            let end = self.message.iter().rposition(|byte| *byte == b'}');
            let end = end.unwrap_or(0);
            self.replace(end..end, ",\"params\":{}");
            let at = end + ",\"params\":".len();
            self.index.added(Key::Params, end + 1, "{}", at)?;
            return self.set(key, value);
        };
        let end = params.range().end - 1;
        let before = self.message[..end].trim_ascii_end();
        let comma = if before.ends_with(b"{") { "" } else { "," };
        let quoted = serde_json::Value::from(key.name());
        let start = format!("{comma}{quoted}:");
        self.replace(end..end, &format!("{start}{value}"));
        let begin = end + comma.len();
        Ok(self.index.added(key, begin, value, end + start.len())?)
    }

    fn remove(&mut self, key: Key) {
        let Some(whole) = self.index.whole(key) else {
            return;
        };
        let Range { start, end } = whole.range();
        let after = self.message[end..].trim_ascii_start();
        let before = self.message[..start].trim_ascii_end();
        let at = if let Some(rest) = after.strip_prefix(b",") {
            start..self.message.len() - rest.trim_ascii_start().len()
        } else if let Some(rest) = before.strip_suffix(b",") {
            rest.len()..end
        } else {
            start..end
        };
        self.replace(at, "");
    }

    fn replace(&mut self, at: Range<usize>, with: &str) {
        let mut out = BytesMut::with_capacity(self.message.len() + with.len());
        splice(&mut out, &self.message, &mut [Edit::at(at.clone(), with)]);
        self.message = out.freeze();
        self.index.replaced(at, with.len());
    }

    /// Appends the request to `out` with another id, which also replaces its progress token if it has one. `origin` is the
    /// gateway's id of the request; it is added to `_meta` as `tooldock/request_id`.
    pub fn write_as(&self, out: &mut BytesMut, id: &str, origin: Option<&str>) {
        let Some(origin) = origin else {
            return self.write_with(out, id, None);
        };
        if let Some(meta) = self.raw(Key::Meta)
            && spans::may_hold(meta.as_bytes(), ORIGIN)
        {
            // The client has sent this member itself. Its value is replaced by the gateway's id of the request.
            let set = MemberEdit::Set(ORIGIN, quoted(origin).into());
            let meta = spans::edited(meta, &[set]);
            let edited = meta.and_then(|it| self.edited(&[(Key::Meta, Some(&it))]).ok());
            return edited.as_ref().unwrap_or(self).write_with(out, id, None);
        }
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        match origin.bytes().all(is_plain) {
            true => self.write_with(out, id, self.added(origin)),
            false => {
                let quoted = quoted(origin);
                let inner = &quoted[1..quoted.len() - 1];
                self.write_with(out, id, self.added(inner));
            }
        }
    }

    /// Computes the text that adds the gateway's request id to `_meta`, and its position. Returns `None` if the request has no
    /// object to add it to. `origin` must be escaped as in a JSON string.
    fn added<'a>(&self, origin: &'a str) -> Option<ExtraMember<'a>> {
        // The text is inserted after the object's last member.
        let end = |key| {
            let range = self.index.get(key)?.range();
            let inner = self.message.get(range.clone())?;
            let inner = inner.strip_prefix(b"{")?.strip_suffix(b"}")?;
            let comma = match inner.trim_ascii().is_empty() {
                true => "",
                false => ",",
            };
            Some((range.end - 1, comma))
        };
        if self.index.get(Key::Meta).is_some() {
            let (at, comma) = end(Key::Meta)?;
            let texts = [comma, "\"tooldock/request_id\":\"", origin, "\""];
            return Some(ExtraMember { at, texts });
        }
        let (at, comma) = end(Key::Params)?;
        let start = "\"_meta\":{\"tooldock/request_id\":\"";
        let texts = [comma, start, origin, "\"}"];
        Some(ExtraMember { at, texts })
    }

    fn write_with(&self, out: &mut BytesMut, id: &str, added: Option<ExtraMember<'_>>) {
        let texts = added.iter().flat_map(|it| it.texts);
        let room = texts.map(str::len).sum::<usize>();
        out.reserve(self.message.len() + 2 * id.len() + room);
        let place = |key| Some((self.index.get(key)?.range(), [id, "", "", ""]));
        let of_id = place(Key::Id);
        let of_token = self.token().and_then(|_| place(Key::ProgressToken));
        let added = added.map(|it| (it.at..it.at, it.texts));
        let edits = [of_id, of_token, added];
        let mut edits: SmallVec<[(Range<usize>, [&str; 4]); 3]> =
            edits.into_iter().flatten().collect();
        edits.sort_unstable_by_key(|(range, _)| range.start);
        let mut at = 0;
        for (range, texts) in edits {
            out.extend_from_slice(&self.message[at..range.start]);
            for text in texts {
                out.extend_from_slice(text.as_bytes());
            }
            at = range.end;
        }
        out.extend_from_slice(&self.message[at..]);
    }
}

/// A member that is inserted while a request is written. Its text consists of several consecutive parts.
struct ExtraMember<'a> {
    at: usize,
    texts: [&'a str; 4],
}

/// Converts a text to a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl fmt::Debug for Request {
    /// Leaves out the request's contents, which are the users' data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").finish_non_exhaustive()
    }
}
