//! The media types of remote servers' responses. Some servers send JSON with another type than `application/json`, or without a
//! type.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};

use super::port::{BackendResponse, BodyError, ResponseBody};

/// Maximum number of bytes at the beginning of a body that are searched for the first character of JSON.
const BEGINNING_MAX: usize = 4096;
/// Maximum length of a media type in an error message, in characters.
const SHOWN_MAX: usize = 60;
/// The byte order mark of UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Kind of a body by its media type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaKind {
    /// JSON, by any of the types that servers use for it.
    Json,
    /// Server-sent events (`text/event-stream`).
    Events,
    /// No type, or plain text: the body itself may be JSON.
    Unlabelled,
    /// Any other media type.
    Other,
}

/// Reads the kind of a body from its `Content-Type`. If the header lists several types, the first one counts.
pub fn media_kind(headers: &HeaderMap) -> MediaKind {
    let media = media_type(headers);
    let is = |known: &str| media.eq_ignore_ascii_case(known.as_bytes());
    let json = [
        "application/json",
        "application/json-rpc",
        "application/jsonrpc",
        "application/jsonrequest",
        "application/x-json",
        "text/json",
        "text/x-json",
    ];
    let suffix = media.len().saturating_sub("+json".len());
    if json.into_iter().any(is) || media[suffix..].eq_ignore_ascii_case(b"+json") {
        MediaKind::Json
    } else if is("text/event-stream") {
        MediaKind::Events
    } else if media.is_empty() || is("text/plain") {
        MediaKind::Unlabelled
    } else {
        MediaKind::Other
    }
}

/// The media type without its parameters; empty if the header is absent.
fn media_type(headers: &HeaderMap) -> &[u8] {
    let value = headers.get(header::CONTENT_TYPE);
    let value = value.map_or(&[][..], HeaderValue::as_bytes);
    let end = memchr::memchr2(b';', b',', value).unwrap_or(value.len());
    value[..end].trim_ascii()
}

/// Text for the media type in error messages, to follow "answered with".
pub fn shown_media_type(headers: &HeaderMap) -> String {
    let media = media_type(headers);
    if media.is_empty() {
        return "a body without a media type".to_owned();
    }
    let shown = media.iter().take(SHOWN_MAX).map(|&byte| match byte {
        b'/' | b'+' | b'.' | b'-' | b'_' => char::from(byte),
        _ if byte.is_ascii_alphanumeric() => char::from(byte),
        _ => '?',
    });
    let end = match media.len() > SHOWN_MAX {
        true => "…",
        false => "",
    };
    format!("the media type {}{end}", shown.collect::<String>())
}

/// Reads the beginning of a body without a media type. Returns true, with the response, if the body is JSON: an object or a list.
/// The bytes read remain in the body of the response.
///
/// # Errors
///
/// The body ended before its end, or took too long.
pub async fn begins_as_json(
    mut response: BackendResponse,
) -> Result<(BackendResponse, bool), BodyError> {
    let mut read = Bytes::new();
    let first = loop {
        let first = first_byte(&read);
        if first.is_some() || read.len() > BEGINNING_MAX {
            break first;
        }
        match response.body.chunk().await? {
            Some(piece) if read.is_empty() => read = piece,
            Some(piece) => read = [&read[..], &piece].concat().into(),
            None => break None,
        }
    };
    if !read.is_empty() {
        response.body = Box::new(ReadAhead::new(read, response.body));
    }
    Ok((response, matches!(first, Some(b'{' | b'['))))
}

/// The first byte after white space and a byte order mark; `None` if more of the body must be read to find it.
fn first_byte(beginning: &[u8]) -> Option<u8> {
    let text = beginning.trim_ascii_start();
    match text.strip_prefix(MARK) {
        Some(text) => text.trim_ascii_start().first().copied(),
        None if MARK.starts_with(text) => None,
        None => text.first().copied(),
    }
}

/// Removes a byte order mark from the beginning of a body.
#[inline]
pub fn without_mark(body: Bytes) -> Bytes {
    match body.trim_ascii_start().strip_prefix(MARK) {
        Some(text) => body.slice_ref(text),
        None => body,
    }
}

/// A body whose beginning was read already and is returned again.
pub struct ReadAhead {
    read: Option<Bytes>,
    rest: Box<dyn ResponseBody>,
}

impl ReadAhead {
    /// A body that begins with `read` and continues with `rest`.
    #[inline]
    pub fn new(read: Bytes, rest: Box<dyn ResponseBody>) -> Self {
        let read = Some(read);
        Self { read, rest }
    }
}

#[async_trait]
impl ResponseBody for ReadAhead {
    async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        match self.read.take() {
            Some(read) => Ok(Some(read)),
            None => self.rest.chunk().await,
        }
    }

    fn is_over(&self) -> bool {
        self.read.is_none() && self.rest.is_over()
    }

    fn may_be_cut(&self) -> bool {
        self.rest.may_be_cut()
    }

    fn take_coded(&mut self) -> Option<(HeaderValue, Bytes)> {
        self.rest.take_coded()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::open;
    use super::*;

    fn headers(media: &str) -> HeaderMap {
        let value = HeaderValue::from_bytes(media.as_bytes()).expect("a value");
        [(header::CONTENT_TYPE, value)].into_iter().collect()
    }

    #[test]
    fn json_has_many_names_and_other_types_are_shown() {
        for (media, kind) in [
            ("application/json", MediaKind::Json),
            ("Application/JSON; charset=utf-8", MediaKind::Json),
            ("application/json, application/json", MediaKind::Json),
            ("application/json-rpc", MediaKind::Json),
            ("application/jsonrequest;v=1", MediaKind::Json),
            ("text/json", MediaKind::Json),
            ("application/x-json", MediaKind::Json),
            ("application/vnd.api+json", MediaKind::Json),
            ("application/problem+JSON; a=b", MediaKind::Json),
            ("text/event-stream", MediaKind::Events),
            ("text/plain; charset=utf-8", MediaKind::Unlabelled),
            ("", MediaKind::Unlabelled),
            ("application/jsonp", MediaKind::Other),
            ("text/html", MediaKind::Other),
            ("json", MediaKind::Other),
        ] {
            assert_eq!(media_kind(&headers(media)), kind, "{media}");
        }
        assert_eq!(media_kind(&HeaderMap::new()), MediaKind::Unlabelled);
        let shown = |media: &str| shown_media_type(&headers(media));
        assert_eq!(shown("text/html; charset=x"), "the media type text/html");
        assert_eq!(shown("tüxt/<b>"), "the media type t??xt/?b?");
        assert_eq!(shown(&"x".repeat(99)).chars().count(), 15 + SHOWN_MAX + 1);
    }

    #[tokio::test]
    async fn an_unlabelled_body_is_json_by_its_first_byte_and_stays_whole() {
        let cases: [(&[&'static [u8]], bool); 8] = [
            (&[b"{}"], true),
            (&[b" \r\n", b"\xef", b"\xbb\xbf", b" [", b"]"], true),
            (&[b"\xef\xbb\xbf{}"], true),
            (&[b"Hello {}"], false),
            (&[b"<html>"], false),
            (&[b"\xef\xbb", b"x"], false),
            (&[b"  "], false),
            (&[], false),
        ];
        for (pieces, is_json) in cases {
            let (response, pour) = open(200, &[]);
            for piece in pieces {
                let piece = Ok(Bytes::from_static(piece));
                pour.send(piece).await.expect("room");
            }
            drop(pour);
            let (mut response, found) = begins_as_json(response).await.expect("read");
            assert_eq!(found, is_json, "{pieces:?}");
            let mut whole = Vec::new();
            while let Some(piece) = response.body.chunk().await.expect("read") {
                whole.extend_from_slice(&piece);
            }
            assert_eq!(whole, pieces.concat());
        }
        let marked = Bytes::from_static(b" \xef\xbb\xbf{}");
        assert_eq!(&without_mark(marked)[..], b"{}");
    }
}
