//! The id of a request: the client's own `X-Request-Id` where it is usable, else one of ours (OBS-07).

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::HeaderValue;

/// The longest id taken from a client, in bytes. It appears in every log and audit line of the request.
const MAX_LENGTH: usize = 128;

/// Makes ids that do not repeat: a random start per process, then a count.
#[derive(Debug)]
pub(crate) struct RequestIds {
    process: u32,
    next: AtomicU64,
    none: Arc<str>,
}

impl RequestIds {
    /// # Errors
    ///
    /// When the operating system has no randomness to give.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        Ok(Self {
            process: getrandom::u32()?,
            next: AtomicU64::new(1),
            none: Arc::from(""),
        })
    }

    /// The id of a request that has none yet.
    pub(crate) fn none(&self) -> Arc<str> {
        Arc::clone(&self.none)
    }

    /// The id of a request that came with `given` as its `X-Request-Id`.
    pub(crate) fn of(&self, given: Option<&HeaderValue>) -> Arc<str> {
        given
            .and_then(|value| value.to_str().ok())
            .filter(|text| usable(text))
            .map_or_else(|| self.mint(), Arc::from)
    }

    fn mint(&self) -> Arc<str> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut text = [0; 25];
        let mut rest = &mut text[..];
        write!(rest, "{:08x}-{number:x}", self.process).expect("two numbers and a dash fit");
        let unused = rest.len();
        let text = std::str::from_utf8(&text[..25 - unused]).expect("digits are text");
        Arc::from(text)
    }
}

/// Letters, digits and a few separators: nothing that could break a log line or a header.
fn usable(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= MAX_LENGTH
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_usable_id_and_replaces_any_other() {
        let ids = RequestIds::new().expect("randomness");
        let of = |text: &'static str| ids.of(Some(&HeaderValue::from_static(text)));
        assert_eq!(&*of("trace:1/abc=="), "trace:1/abc==");
        assert_ne!(&*of("two words"), "two words");
        assert_ne!(&*of(""), "");
        assert_ne!(ids.of(None), ids.of(None));
        let long = HeaderValue::from_str(&"x".repeat(129)).expect("valid header");
        assert_eq!(ids.of(Some(&long)).len(), ids.of(None).len());
    }
}
