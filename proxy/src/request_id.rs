//! The id of a request: the client's `X-Request-Id` if it is usable, otherwise an id that the gateway generates (OBS-07).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderName, HeaderValue};

/// Header that each response contains, so that a client can name its request to the operator (OBS-07).
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length in bytes of an id from a client. It is bounded because the id appears in each log and audit line of the
/// request. A longer id is replaced.
const MAX_LENGTH: usize = 128;

/// Number of characters at the beginning of an id that distinguish this process from others.
const PREFIX: usize = 9;

/// Generates unique ids: a random prefix per process, followed by a count.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// The common prefix of all ids of this process: eight digits and a dash.
    process: [u8; PREFIX],
    next: AtomicU64,
}

impl RequestIds {
    /// Creates the generator with a random prefix.
    ///
    /// # Errors
    ///
    /// When the operating system provides no randomness.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        Ok(Self {
            process: prefix(getrandom::u32()?),
            next: AtomicU64::new(1),
        })
    }

    /// Returns the id for a request: `given`, its `X-Request-Id`, if that is usable, otherwise a new id.
    pub(crate) fn of(&self, given: Option<&HeaderValue>) -> Arc<str> {
        given
            .and_then(|value| value.to_str().ok())
            .filter(|text| usable(text))
            .map_or_else(|| self.mint(), Arc::from)
    }

    /// Creates a new request id.
    pub(crate) fn mint(&self) -> Arc<str> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // The digits are written by hand, because formatting costs several times as much and each request needs an id.
        let mut text = [0; PREFIX + 16];
        text[..PREFIX].copy_from_slice(&self.process);
        let digits = 16 - (number | 1).leading_zeros() as usize / 4;
        let text = &mut text[..PREFIX + digits];
        write_hex(number, &mut text[PREFIX..]);
        Arc::from(std::str::from_utf8(text).expect("digits are text"))
    }
}

fn prefix(process: u32) -> [u8; PREFIX] {
    let mut text = [b'-'; PREFIX];
    write_hex(process.into(), &mut text[..PREFIX - 1]);
    text
}

/// Writes the last hexadecimal digits of a number to `text`, as many as fit.
fn write_hex(mut number: u64, text: &mut [u8]) {
    for digit in text.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 0xf) as usize];
        number >>= 4;
    }
}

/// Returns true if the id consists of letters, digits and a few separators, so that it cannot break a log line or a header.
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
    fn an_id_is_the_process_and_a_count() {
        let ids = RequestIds {
            process: prefix(0x00ab_cdef),
            next: AtomicU64::new(1),
        };
        let mut number = 1_u64;
        for _ in 0..64 {
            ids.next.store(number, Ordering::Relaxed);
            assert_eq!(*ids.mint(), *format!("00abcdef-{number:x}"));
            assert_eq!(
                *ids.mint(),
                *format!("00abcdef-{:x}", number.wrapping_add(1))
            );
            number = number.wrapping_mul(2) + 1;
        }
        ids.next.store(0x1f_0000_00a0, Ordering::Relaxed);
        assert_eq!(&*ids.mint(), "00abcdef-1f000000a0");
    }

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
