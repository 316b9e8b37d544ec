//! The id of a request: the client's own `X-Request-Id` if it is usable, else an id made by the gateway (OBS-07).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderName, HeaderValue};

/// The header every answer carries, so that a client can name its request to the operator (OBS-07).
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Maximum length of an id taken from a client, in bytes. It appears in every log and audit line of the request.
const MAX_LENGTH: usize = 128;

/// Number of bytes of an id that distinguish this process from others.
const PREFIX: usize = 9;

/// Makes ids that do not repeat: a random start per process, then a count.
#[derive(Debug)]
pub(crate) struct RequestIds {
    /// The beginning of all ids: eight digits and a dash.
    process: [u8; PREFIX],
    next: AtomicU64,
}

impl RequestIds {
    /// Starts the count of ids.
    ///
    /// # Errors
    ///
    /// When the operating system has no randomness to give.
    pub(crate) fn new() -> Result<Self, getrandom::Error> {
        Ok(Self {
            process: prefix(getrandom::u32()?),
            next: AtomicU64::new(1),
        })
    }

    /// The id of a request with `given` as its `X-Request-Id`.
    pub(crate) fn of(&self, given: Option<&HeaderValue>) -> Arc<str> {
        given
            .and_then(|value| value.to_str().ok())
            .filter(|text| usable(text))
            .map_or_else(|| self.mint(), Arc::from)
    }

    /// Makes a new id.
    pub(crate) fn mint(&self) -> Arc<str> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Every request needs an id, so the digits are written by hand: formatting costs several times as much.
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

/// Fills `text` with the last hexadecimal digits of a number.
fn write_hex(mut number: u64, text: &mut [u8]) {
    for digit in text.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 0xf) as usize];
        number >>= 4;
    }
}

/// Returns true for letters, digits and a few separators: nothing that could break a log line or a header.
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
