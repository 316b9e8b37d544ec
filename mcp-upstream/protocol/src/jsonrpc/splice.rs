//! Replaces parts of a message's text, mainly values that must be unique on a connection: request ids, progress tokens, and the
//! request id in a cancellation. All other bytes stay unchanged.
//!
//! The code of the connection to the server chooses the new values.

use std::borrow::Cow;
use std::ops::Range;

use bytes::BufMut;

use crate::jsonrpc::{self, Key, Members, Message};

/// An edit of a message: the position of a part, and its replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit<'a> {
    /// The position of the replaced text.
    pub span: Range<usize>,
    /// The replacement, as raw JSON.
    pub with: Cow<'a, str>,
}

impl<'a> Edit<'a> {
    /// Creates an edit that replaces `part`, which must be a slice of `whole`, as parsed members are.
    pub fn new(whole: &str, part: &str, with: impl Into<Cow<'a, str>>) -> Self {
        Self {
            span: span(whole, part),
            with: with.into(),
        }
    }

    /// Creates an edit that replaces the text at this position.
    pub fn at(span: Range<usize>, with: impl Into<Cow<'a, str>>) -> Self {
        let with = with.into();
        Self { span, with }
    }
}

/// Position of `part` in `whole`. `part` must be a slice of `whole`.
pub fn span(whole: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
    start..start + part.len()
}

/// Appends a text with edits applied to it. The edits may be in any order, but must not overlap.
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

/// Replaces line breaks in JSON text by spaces. In valid JSON, raw line breaks are always white space. In other text, the
/// replacement ensures that one message is sent as one line.
pub fn on_one_line(text: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\r', b'\n', &text[at..]) {
        at += found;
        text[at] = b' ';
    }
}

/// Replaces the request id in a `notifications/cancelled`. Returns `None` if the message contains none.
pub fn with_request_id(message: &str, id: &str) -> Option<Vec<u8>> {
    let old = notified(message, None)?.name(Key::RequestId)?;
    Some(edited(message, old, id))
}

/// Replaces the progress token in a `notifications/progress`. Returns `None` if the message is not such a notification.
pub fn with_progress_token(message: &str, token: &str) -> Option<Vec<u8>> {
    let old = notified(message, Some("notifications/progress"))?.name(Key::Progress)?;
    Some(edited(message, old, token))
}

/// Parses a notification, which must have the method `wanted` if that is given. Returns `None` for any other message, and for one
/// that another parser could interpret differently.
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
