//! Encrypts and authenticates ("seals") the `requestState` of legacy servers before it is sent to a modern client.
//!
//! The revisions of legacy servers do not define `requestState`, but some servers answer `input_required` nevertheless. Their
//! state is sealed, so that only states which this gateway has sent are accepted from clients: a modified or foreign state is
//! refused before anything runs. Modern servers protect their states themselves.

use std::time::Duration;

use sha2::Digest;
use tooldock_base::json;

use crate::jsonrpc;
use crate::jsonrpc::spans::{self, MemberEdit};
use crate::seal::{BoundRequest, SessionKey, unix_millis};

/// First bytes of the sealed state of a legacy server. They distinguish it from the state of a suspended call, which begins with
/// random bytes and has another length.
const MARK: &[u8; 8] = b"relayed\0";
const DIGEST: usize = 32;
/// Length of the header before the server's state, in bytes: mark, expiry in milliseconds of Unix time, digest of the request
/// that the state belongs to.
const HEAD: usize = MARK.len() + 8 + DIGEST;
/// Maximum length of a server's state, in bytes. A longer one is not sealed, so it cannot be used.
const STATE_MAX: usize = 64 * 1024;

/// Digest of the request that a state belongs to, including its arguments exactly as they were written.
fn digest_of(bound: &BoundRequest<'_>) -> [u8; DIGEST] {
    let mut hash = bound.hash();
    hash.update((bound.arguments.len() as u64).to_be_bytes());
    hash.update(bound.arguments);
    hash.finalize().into()
}

/// Seals the state in an `input_required` result, valid for `time`. Returns `None` if the result is not changed: it has no state,
/// or one that is not a string or too long.
pub fn sealed<'a>(
    key: &SessionKey,
    bound: impl FnOnce() -> BoundRequest<'a>,
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
    plain.extend_from_slice(&digest_of(&bound()));
    plain.extend_from_slice(state.as_bytes());
    let sealed = key.seal_state(&plain).ok()?;
    let state = MemberEdit::Set("requestState", format!("\"{sealed}\"").into());
    Some(spans::edit(object.get(), &[state]))
}

/// Opens a sealed state from a client. Returns the server's own state, as raw JSON.
///
/// # Errors
///
/// The state was not sealed by this gateway, was sealed for another request, or has expired.
pub fn opened<'a>(
    key: &SessionKey,
    bound: impl FnOnce() -> BoundRequest<'a>,
    sealed: &str,
) -> Result<String, InvalidState> {
    let sealed = json::raw(sealed).and_then(jsonrpc::string);
    let sealed = sealed.ok_or(InvalidState)?;
    let plain = key.open_state(&sealed).ok_or(InvalidState)?;
    let (mark, rest) = plain.split_first_chunk().ok_or(InvalidState)?;
    let (expires, rest) = rest.split_first_chunk().ok_or(InvalidState)?;
    let (digest, state) = rest.split_first_chunk().ok_or(InvalidState)?;
    if mark != MARK
        || *digest != digest_of(&bound())
        || u64::from_be_bytes(*expires) < unix_millis(Duration::ZERO)
    {
        return Err(InvalidState);
    }
    Ok(serde_json::Value::from(String::from_utf8_lossy(state)).to_string())
}

/// Error: the state was not sealed by this gateway for this request, or has expired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("requestState is not valid for this request")]
pub struct InvalidState;

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use tooldock_base::names::NamespaceName;

    use super::*;

    static NAMESPACE: LazyLock<NamespaceName> = LazyLock::new(|| "ns".parse().expect("a name"));

    fn bound() -> BoundRequest<'static> {
        BoundRequest {
            principal: Some("ada"),
            namespace: &NAMESPACE,
            method: "tools/call",
            subject: "t",
            arguments: br#"{"n":1}"#,
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    fn state(result: &str) -> &str {
        spans::find(result, "requestState").expect("a state")
    }

    #[test]
    fn a_state_comes_back_to_its_server_as_it_was() {
        let key = SessionKey::from_text("k");
        let result = br#"{"a":1.50,"resultType":"input_required","requestState":"x\"\u00e9"}"#;
        let sent = sealed(&key, bound, result, MINUTE).expect("a state");
        assert!(
            sent.starts_with(r#"{"a":1.50,"#) && !sent.contains("x\\\""),
            "{sent}"
        );
        let back = opened(&key, bound, state(&sent)).expect("ours");
        assert_eq!(back, r#""x\"é""#);
        let escaped = br#"{"resultType":"input_required","request\u0053tate":"theirs"}"#;
        let sent = sealed(&key, bound, escaped, MINUTE).expect("a state");
        assert!(!sent.contains("theirs"), "{sent}");
        let odd = br#"{"resultType":"input_required","requestState":5}"#;
        assert_eq!(sealed(&key, bound, odd, MINUTE), None);
        // A member of that name in any other result is the server's own affair.
        assert_eq!(
            sealed(&key, bound, br#"{"requestState":"s"}"#, MINUTE),
            None
        );
    }

    #[test]
    fn another_requests_a_changed_and_a_foreign_state_are_refused() {
        let key = SessionKey::from_text("k");
        let result = br#"{"resultType":"input_required","requestState":"s"}"#;
        let sent = sealed(&key, bound, result, MINUTE).expect("a state");
        let subject = BoundRequest {
            subject: "u",
            ..bound()
        };
        let arguments = BoundRequest {
            arguments: br#"{"n":2}"#,
            ..bound()
        };
        for other in [subject, arguments] {
            assert_eq!(opened(&key, || other, state(&sent)), Err(InvalidState));
        }
        let foreign = SessionKey::from_text("other");
        assert_eq!(opened(&foreign, bound, state(&sent)), Err(InvalidState));
        for made_up in [r#""s""#, "5", "null", "{}"] {
            assert_eq!(opened(&key, bound, made_up), Err(InvalidState));
        }
    }
}
