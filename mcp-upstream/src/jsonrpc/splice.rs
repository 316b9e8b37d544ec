//! Rewriting the few names that must be unique on a link, in place: request ids, progress tokens, subscription ids, and
//! the request id a cancellation names. Found by the parser, replaced as spans; every other byte stays.
//!
//! It decides nothing: what a name becomes is the link's business.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::LazyLock;

use bytes::BufMut;
use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_workers::json;

use crate::jsonrpc::{self, Message};

/// Where a message says which subscription it belongs to.
pub(crate) const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// A span of a message and what takes its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit<'a> {
    /// Where it stands.
    pub(crate) span: Range<usize>,
    /// Raw JSON.
    pub(crate) with: Cow<'a, str>,
}

impl<'a> Edit<'a> {
    /// `part` must be a part of `whole`, as the parser's spans are.
    pub(crate) fn new(whole: &str, part: &str, with: impl Into<Cow<'a, str>>) -> Self {
        Self {
            span: span(whole, part),
            with: with.into(),
        }
    }

    /// The same, where it is known where.
    pub(crate) fn at(span: Range<usize>, with: impl Into<Cow<'a, str>>) -> Self {
        let with = with.into();
        Self { span, with }
    }
}

/// Where a part stands in its whole.
pub(crate) fn span(whole: &str, part: &str) -> Range<usize> {
    let start = (part.as_ptr() as usize).saturating_sub(whole.as_ptr() as usize);
    start..start + part.len()
}

/// Appends a text with its edits, which do not overlap. Their order does not matter.
pub(crate) fn splice(out: &mut impl BufMut, text: &[u8], edits: &mut [Edit<'_>]) {
    edits.sort_unstable_by_key(|edit| edit.span.start);
    let mut at = 0;
    for edit in edits {
        out.put_slice(&text[at..edit.span.start]);
        out.put_slice(edit.with.as_bytes());
        at = edit.span.end;
    }
    out.put_slice(&text[at..]);
}

/// Makes the line breaks of JSON text spaces. In valid JSON only whitespace holds a raw one; in anything else the
/// replacement keeps one line from becoming two.
pub(crate) fn on_one_line(text: &mut [u8]) {
    let mut at = 0;
    while let Some(found) = memchr::memchr2(b'\r', b'\n', &text[at..]) {
        at += found;
        text[at] = b' ';
    }
}

/// The names in an object of parameters, or in a result. Only strings and numbers are names.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Names<'a> {
    /// `_meta.progressToken`: a request's.
    pub(crate) own_progress: Option<&'a str>,
    /// `progressToken`: the one a progress notification is about.
    pub(crate) progress: Option<&'a str>,
    /// `_meta["io.modelcontextprotocol/subscriptionId"]`.
    pub(crate) subscription: Option<&'a str>,
    /// `requestId`: the one a cancellation is about.
    pub(crate) request: Option<&'a str>,
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "requestId")]
    request_id: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default, rename = "progressToken")]
    progress_token: Option<&'a RawValue>,
    // The name cannot be a constant here.
    #[serde(borrow, default, rename = "io.modelcontextprotocol/subscriptionId")]
    subscription_id: Option<&'a RawValue>,
}

impl<'a> Names<'a> {
    /// Finds the names. Anything but an object has none.
    ///
    /// # Errors
    ///
    /// When a name is there twice: which one counts would depend on the reader.
    pub(crate) fn of(object: Option<&'a RawValue>) -> Result<Self, serde_json::Error> {
        let Some(text) = object.map(RawValue::get).filter(|text| may_have(text)) else {
            return Ok(Self::default());
        };
        let params: Params<'a> = json::from_str(text)?;
        let meta = match params
            .meta
            .map(RawValue::get)
            .filter(|meta| is_object(meta))
        {
            Some(meta) => json::from_str::<Meta<'a>>(meta)?,
            None => Meta {
                progress_token: None,
                subscription_id: None,
            },
        };
        Ok(Self {
            own_progress: meta.progress_token.and_then(name),
            progress: params.progress_token.and_then(name),
            subscription: meta.subscription_id.and_then(name),
            request: params.request_id.and_then(name),
        })
    }
}

/// A cheap look, so that large arguments are not parsed for nothing: letters can only be written as themselves or as
/// `\u`.
pub(crate) fn may_have(text: &str) -> bool {
    /// Made once: making one costs more than looking through a usual message.
    static PARTS: LazyLock<[Finder<'static>; 4]> =
        LazyLock::new(|| ["progressToken", "subscriptionId", "requestId", "\\u"].map(Finder::new));
    is_object(text)
        && PARTS
            .iter()
            .any(|part| part.find(text.as_bytes()).is_some())
}

fn is_object(text: &str) -> bool {
    text.starts_with('{')
}

fn name(raw: &RawValue) -> Option<&str> {
    let text = raw.get();
    text.starts_with(|first: char| matches!(first, '"' | '-' | '0'..='9'))
        .then_some(text)
}

/// A `notifications/cancelled` that names another request. `None` if it names none.
pub(crate) fn with_request_id(message: &str, id: &str) -> Option<Vec<u8>> {
    let old = Names::of(notified(message)?).ok()?.request?;
    Some(edited(message, old, id))
}

/// A `notifications/progress` under another token. `None` if it is none.
pub(crate) fn with_progress_token(message: &str, token: &str) -> Option<Vec<u8>> {
    let Ok(Message::Notification { method, params }) = jsonrpc::message(message) else {
        return None;
    };
    let old = Names::of(params).ok()?.progress?;
    (method == "notifications/progress").then(|| edited(message, old, token))
}

/// The request a `notifications/cancelled` with these parameters is about, raw.
pub(crate) fn request_id(params: &[u8]) -> Option<&str> {
    Names::of(Some(serde_json::from_slice(params).ok()?))
        .ok()?
        .request
}

fn notified(message: &str) -> Option<Option<&RawValue>> {
    match jsonrpc::message(message) {
        Ok(Message::Notification { params, .. }) => Some(params),
        _ => None,
    }
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
pub(crate) mod tests;
