//! Rewrites parts of a message in place, mainly the names that must be unique on a connection: request ids, progress tokens,
//! and the request id in a cancellation. Every other byte is unchanged.
//!
//! The link to the server chooses the new values.

use std::borrow::Cow;
use std::ops::Range;

use bytes::BufMut;

use crate::jsonrpc::{self, Key, Members, Message};

/// A span of a message and its replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit<'a> {
    /// The position of the replaced text.
    pub span: Range<usize>,
    /// The replacement, raw JSON.
    pub with: Cow<'a, str>,
}

impl<'a> Edit<'a> {
    /// Replaces `part`, which must be a slice of `whole`, as the parser's spans are.
    pub fn new(whole: &str, part: &str, with: impl Into<Cow<'a, str>>) -> Self {
        Self {
            span: span(whole, part),
            with: with.into(),
        }
    }

    /// Replaces the text at a known position.
    pub fn at(span: Range<usize>, with: impl Into<Cow<'a, str>>) -> Self {
        let with = with.into();
        Self { span, with }
    }
}

/// The position of `part` in `whole`; `part` must be a slice of `whole`.
pub fn span(whole: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
    start..start + part.len()
}

/// Appends a text with its edits, which must not overlap. Their order is irrelevant.
pub fn splice(out: &mut impl BufMut, text: &[u8], edits: &mut [Edit<'_>]) {
    edits.sort_unstable_by_key(|edit| edit.span.start);
    let mut at = 0;
    for edit in edits {
        out.put_slice(&text[at..edit.span.start]);
        out.put_slice(edit.with.as_bytes());
        at = edit.span.end;
    }
    out.put_slice(&text[at..]);
}

/// Replaces the line breaks of JSON text by spaces. In valid JSON only whitespace contains raw line breaks; in any other text
/// the replacement prevents one line from becoming two.
pub fn on_one_line(text: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\r', b'\n', &text[at..]) {
        at += found;
        text[at] = b' ';
    }
}

/// A `notifications/cancelled` with the request id replaced. `None` if the message has none.
pub fn with_request_id(message: &str, id: &str) -> Option<Vec<u8>> {
    let old = notified(message, None)?.name(Key::RequestId)?;
    Some(edited(message, old, id))
}

/// A `notifications/progress` with the token replaced. `None` if the message is not such a notification.
pub fn with_progress_token(message: &str, token: &str) -> Option<Vec<u8>> {
    let old = notified(message, Some("notifications/progress"))?.name(Key::Progress)?;
    Some(edited(message, old, token))
}

/// The members of a notification with this method, unless another reader could find others.
fn notified<'a>(message: &'a str, wanted: Option<&str>) -> Option<Members<'a>> {
    let Ok(Message::Notification { method, members }) = jsonrpc::message(message) else {
        return None;
    };
    members.unique().ok()?;
    wanted
        .is_none_or(|wanted| method == wanted)
        .then_some(members)
}

fn edited(message: &str, old: &str, new: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(message.len() + new.len());
    splice(
        &mut out,
        message.as_bytes(),
        &mut [Edit::new(message, old, new)],
    );
    out
}

#[cfg(test)]
mod tests;
