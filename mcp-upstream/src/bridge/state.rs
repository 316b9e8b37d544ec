//! What a server that opens by `initialize` wants back (`requestState`), sealed on its way to a modern client.
//!
//! Such servers have no word for it, but some answer `input_required` all the same. Their state is wrapped here, so that
//! every state a client brings for such a server is one of ours: a changed or foreign one is refused before it runs
//! anything. Modern servers see to their own states.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tooldock_workers::json;

use crate::jsonrpc;
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::seal::SessionKey;

/// What all wrapped states begin with: states of suspended calls are random there, and of another length.
const MARK: &[u8; 8] = b"relayed\0";
const DIGEST: usize = 32;
/// Mark, expiry in milliseconds of Unix time, digest of what it is bound to.
const HEAD: usize = MARK.len() + 8 + DIGEST;
/// The longest state a server may want back.
const STATE_MAX: usize = 64 * 1024;

/// Which request a state belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound<'a> {
    pub(crate) principal: Option<&'a str>,
    pub(crate) namespace: &'a str,
    pub(crate) method: &'a str,
    /// The tool, the prompt or the URI.
    pub(crate) subject: &'a str,
    /// As they were spelled; empty where there are none.
    pub(crate) arguments: &'a [u8],
}

impl Bound<'_> {
    fn digest(&self) -> [u8; DIGEST] {
        let mut hash = Sha256::new();
        hash.update([u8::from(self.principal.is_some())]);
        for part in [
            self.principal.unwrap_or_default().as_bytes(),
            self.namespace.as_bytes(),
            self.method.as_bytes(),
            self.subject.as_bytes(),
            self.arguments,
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.finalize().into()
    }
}

/// The result with its state sealed for so long. `None`: it has none, or one that is no state.
pub(crate) fn sealed<'a>(
    key: &SessionKey,
    bound: impl FnOnce() -> Bound<'a>,
    result: &[u8],
    time: Duration,
) -> Option<String> {
    if !spans::may_hold(result, "requestState") {
        return None;
    }
    let object = spans::raw(result)?;
    let kind = spans::member(object, "resultType")?;
    if kind.get() != "\"input_required\"" {
        return None;
    }
    let state = spans::member(object, "requestState").and_then(jsonrpc::string)?;
    if state.len() > STATE_MAX {
        return None;
    }
    let mut plain = Vec::with_capacity(HEAD + state.len());
    plain.extend_from_slice(MARK);
    plain.extend_from_slice(&unix_millis(time).to_be_bytes());
    plain.extend_from_slice(&bound().digest());
    plain.extend_from_slice(state.as_bytes());
    let sealed = key.seal_state(&plain).ok()?;
    let state = MemberEdit::Set("requestState", format!("\"{sealed}\"").into());
    Some(spans::edit(object.get(), &[state]))
}

/// The server's own state again, raw JSON, of a sealed one.
///
/// # Errors
///
/// A state that is not ours, not for this request, or too old.
pub(crate) fn opened<'a>(
    key: &SessionKey,
    bound: impl FnOnce() -> Bound<'a>,
    sealed: &str,
) -> Result<String, InvalidState> {
    let sealed = json::raw(sealed).and_then(jsonrpc::string);
    let sealed = sealed.ok_or(InvalidState)?;
    let plain = key.open_state(&sealed).ok_or(InvalidState)?;
    let (mark, rest) = plain.split_first_chunk().ok_or(InvalidState)?;
    let (expires, rest) = rest.split_first_chunk().ok_or(InvalidState)?;
    let (digest, state) = rest.split_first_chunk().ok_or(InvalidState)?;
    if mark != MARK
        || *digest != bound().digest()
        || u64::from_be_bytes(*expires) < unix_millis(Duration::ZERO)
    {
        return Err(InvalidState);
    }
    Ok(serde_json::Value::from(String::from_utf8_lossy(state)).to_string())
}

/// A state nobody here gave out for this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("requestState is not valid for this request")]
pub(crate) struct InvalidState;

/// Unix time so far from now. A clock before 1970 reads as 1970.
fn unix_millis(from_now: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let then = now.unwrap_or_default().saturating_add(from_now);
    u64::try_from(then.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUND: Bound<'_> = Bound {
        principal: Some("ada"),
        namespace: "ns",
        method: "tools/call",
        subject: "t",
        arguments: br#"{"n":1}"#,
    };
    const MINUTE: Duration = Duration::from_secs(60);

    fn state(result: &str) -> &str {
        spans::find(result, "requestState").expect("a state")
    }

    #[test]
    fn a_state_comes_back_to_its_server_as_it_was() {
        let key = SessionKey::from_text("k");
        let result = br#"{"a":1.50,"resultType":"input_required","requestState":"x\"\u00e9"}"#;
        let sent = sealed(&key, || BOUND, result, MINUTE).expect("a state");
        assert!(
            sent.starts_with(r#"{"a":1.50,"#) && !sent.contains("x\\\""),
            "{sent}"
        );
        let back = opened(&key, || BOUND, state(&sent)).expect("ours");
        assert_eq!(back, r#""x\"é""#);
        let escaped = br#"{"resultType":"input_required","request\u0053tate":"theirs"}"#;
        let sent = sealed(&key, || BOUND, escaped, MINUTE).expect("a state");
        assert!(!sent.contains("theirs"), "{sent}");
        let odd = br#"{"resultType":"input_required","requestState":5}"#;
        assert_eq!(sealed(&key, || BOUND, odd, MINUTE), None);
        // A member of that name in any other result is the server's own affair.
        assert_eq!(
            sealed(&key, || BOUND, br#"{"requestState":"s"}"#, MINUTE),
            None
        );
    }

    #[test]
    fn another_requests_a_changed_and_a_foreign_state_are_refused() {
        let key = SessionKey::from_text("k");
        let result = br#"{"resultType":"input_required","requestState":"s"}"#;
        let sent = sealed(&key, || BOUND, result, MINUTE).expect("a state");
        let subject = Bound {
            subject: "u",
            ..BOUND
        };
        let arguments = Bound {
            arguments: br#"{"n":2}"#,
            ..BOUND
        };
        for other in [subject, arguments] {
            assert_eq!(opened(&key, || other, state(&sent)), Err(InvalidState));
        }
        let foreign = SessionKey::from_text("other");
        assert_eq!(opened(&foreign, || BOUND, state(&sent)), Err(InvalidState));
        for made_up in [r#""s""#, "5", "null", "{}"] {
            assert_eq!(opened(&key, || BOUND, made_up), Err(InvalidState));
        }
    }
}
