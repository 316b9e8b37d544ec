//! Tokens of principals and of the manager. Only their SHA-256 digests are stored, never their text.
//!
//! The token can be guessed from the digest if it is weak. So a digest is kept as secret as a token: `Debug` and serialisation
//! write `[redacted]` in its place.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 digest of a token.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct TokenDigest([u64; 4]);

/// Error about a text that is not a SHA-256 digest. The error does not contain the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a SHA-256 digest: 64 hexadecimal digits are needed, as `printf %s TOKEN | sha256sum` prints them"
)]
pub struct InvalidDigest;

impl TokenDigest {
    /// Computes the digest of a token that a client sent.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        Self::of_bytes(Sha256::digest(token).into())
    }

    fn of_bytes(bytes: [u8; 32]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        Self(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
    }

    /// The bytes of the digest.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Compares two digests in constant time.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        self.0.as_slice().ct_eq(&other.0).into()
    }
}

impl Hash for TokenDigest {
    /// Uses the first 8 bytes of the digest as its hash: they are already evenly distributed.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

impl FromStr for TokenDigest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut digest = [0; 32];
        hex::decode_to_slice(text, &mut digest).map_err(|_| InvalidDigest)?;
        Ok(Self::of_bytes(digest))
    }
}

impl TryFrom<String> for TokenDigest {
    type Error = InvalidDigest;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TokenDigest> for String {
    fn from(_: TokenDigest) -> Self {
        "[redacted]".into()
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// A token that the operator sets in clear text (`BEARER_TOKEN`, `MANAGER_INTERNAL_TOKEN`). Only its digest is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretToken(TokenDigest);

/// Error about a text that cannot be used as a token. The error does not contain the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a usable token: 1 to 4096 visible ASCII characters without spaces are needed, since nothing else survives in a header"
)]
pub struct InvalidToken;

/// Maximum length of a token, in bytes. A longer one would not fit into a request head of the default maximum size.
const TOKEN_BYTES_MAX: usize = 4096;

impl SecretToken {
    /// Checks a token and stores its digest; the text is not kept.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`] if the text cannot be sent in an HTTP header as a token.
    pub fn new(text: &str) -> Result<Self, InvalidToken> {
        let sendable = (1..=TOKEN_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic());
        if sendable {
            Ok(Self(TokenDigest::of(text.as_bytes())))
        } else {
            Err(InvalidToken)
        }
    }

    /// The digest with which the tokens of requests are compared.
    pub(crate) fn digest(&self) -> TokenDigest {
        self.0
    }
}

/// Computes the digest of a token, in the form that entries of `admission.tokens` contain.
///
/// # Errors
///
/// [`InvalidToken`] if the text cannot be sent in an HTTP header as a token.
pub fn config_digest(token: &str) -> Result<String, InvalidToken> {
    SecretToken::new(token)?;
    Ok(hex::encode(Sha256::digest(token.as_bytes())))
}

/// Extracts the token from the header value `Bearer <token>`; `None` for another scheme. The scheme may be in any case.
pub(crate) fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.trim_ascii().split_at_checked(6)?;
    let token = rest.trim_ascii_start();
    let separated = token.len() < rest.len();
    (scheme.eq_ignore_ascii_case(b"bearer") && separated && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn a_hex_digest_matches_the_token_it_was_made_of() {
        let digest: TokenDigest = OF_ABC.parse().unwrap();
        assert!(digest.matches(&TokenDigest::of(b"abc")));
        assert!(!digest.matches(&TokenDigest::of(b"abd")));
        assert_eq!(OF_ABC.to_uppercase().parse(), Ok(digest));
    }

    #[test]
    fn a_token_is_written_into_the_configuration_as_its_digest() {
        assert_eq!(config_digest("abc").as_deref(), Ok(OF_ABC));
        assert_eq!(config_digest("two words"), Err(InvalidToken));
    }

    #[test]
    fn anything_but_64_hex_digits_is_refused() {
        for text in [
            "",
            "abc",
            &OF_ABC[1..],
            &format!("{OF_ABC}0"),
            &"g".repeat(64),
        ] {
            assert_eq!(text.parse::<TokenDigest>(), Err(InvalidDigest));
        }
    }

    #[test]
    fn no_output_shows_a_digest() {
        let digest: TokenDigest = OF_ABC.parse().unwrap();
        let token = SecretToken::new("abc").unwrap();
        let shown = format!(
            "{digest:?} {token:?} {}",
            serde_json::to_string(&digest).unwrap()
        );
        assert!(!shown.contains("ba7816"), "{shown}");
    }

    #[test]
    fn tokens_that_cannot_be_sent_are_refused() {
        assert!(SecretToken::new("change_me").is_ok());
        for text in ["", "two words", "line\n", "tökén", &"x".repeat(4097)] {
            assert_eq!(SecretToken::new(text), Err(InvalidToken));
        }
    }
}
