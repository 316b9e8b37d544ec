//! The text of an API key: `td_` or `oub_`, twelve characters that are the key's public id, `_`, forty random characters, and a
//! checksum of six characters over the preceding text.
//!
//! The checksum distinguishes a mistyped key from a wrong one without a look-up. It is no protection, since it can be computed
//! without a secret.

use sha2::{Digest as _, Sha256};
use tooldock_base::key_maker::KeyId;
use tooldock_base::secret::Secret;

/// Characters of a key's text: digits, capital and small letters. They need no escaping in headers and shells, and a double
/// click selects the complete key.
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Number of random characters of a key, which are 238 bits. They cannot be guessed, so a fast hash is secure enough.
const RANDOM_BYTES: usize = 40;
const CHECKSUM_BYTES: usize = 6;

/// Kind of a key, recognizable by its prefix. It shows the purpose for which the key was created; all kinds have the same effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeyKind {
    /// Key with the prefix `td_`, for clients of the gateway.
    #[default]
    Gateway,
    /// Key with the prefix `oub_`, for containers that use the relay.
    Relay,
}

impl KeyKind {
    const ALL: [Self; 2] = [Self::Gateway, Self::Relay];

    /// The prefix of keys of this kind.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Gateway => "td_",
            Self::Relay => "oub_",
        }
    }
}

/// Returns true if a credential has the prefix of a key, valid or not. It is then not compared with other kinds of credentials.
pub fn looks_like_key(text: &[u8]) -> bool {
    KeyKind::ALL
        .iter()
        .any(|kind| text.starts_with(kind.prefix().as_bytes()))
}

/// Extracts the id from the text of a key; `None` if the text does not have the form of a key.
pub(super) fn id_of(text: &[u8]) -> Option<KeyId> {
    let rest = KeyKind::ALL
        .iter()
        .find_map(|kind| text.strip_prefix(kind.prefix().as_bytes()))?;
    if rest.len() != KeyId::BYTES + 1 + RANDOM_BYTES + CHECKSUM_BYTES || rest[KeyId::BYTES] != b'_'
    {
        return None;
    }
    let (signed, sum) = text.split_at(text.len() - CHECKSUM_BYTES);
    (checksum(signed) == sum).then(|| KeyId::of(&rest[..KeyId::BYTES]))?
}

/// Creates a random id of a key.
///
/// # Errors
///
/// When the operating system returns no random bytes.
pub(super) fn new_id() -> Result<KeyId, getrandom::Error> {
    let mut id = [0; KeyId::BYTES];
    random(&mut id, KeyId::ALPHABET)?;
    Ok(KeyId::of(&id).expect("characters of the alphabet"))
}

/// Creates the text of a new key with this id, with a random secret part.
///
/// # Errors
///
/// When the operating system returns no random bytes.
pub(super) fn generate(kind: KeyKind, id: KeyId) -> Result<Secret, getrandom::Error> {
    let mut secret = zeroize::Zeroizing::new([0; RANDOM_BYTES]);
    random(&mut *secret, ALPHABET)?;
    let mut text = String::with_capacity(80);
    text.push_str(kind.prefix());
    text.push_str(id.as_str());
    text.push('_');
    text.extend(secret.iter().map(|&byte| char::from(byte)));
    let sum = checksum(text.as_bytes());
    text.extend(sum.iter().map(|&byte| char::from(byte)));
    Ok(Secret::new(text))
}

/// Fills `place` with random characters of an alphabet, all equally likely.
fn random(place: &mut [u8], alphabet: &[u8]) -> Result<(), getrandom::Error> {
    // Bytes from `fair` on are discarded: they would make the alphabet's first characters more likely than the others.
    let fair = 256 / alphabet.len() * alphabet.len();
    let mut bytes = zeroize::Zeroizing::new([0; 64]);
    let mut filled = 0;
    while filled < place.len() {
        getrandom::fill(&mut *bytes)?;
        let fair = bytes.iter().filter(|&&byte| usize::from(byte) < fair);
        for (slot, byte) in place[filled..].iter_mut().zip(fair) {
            *slot = alphabet[usize::from(*byte) % alphabet.len()];
            filled += 1;
        }
    }
    Ok(())
}

/// Computes the checksum of a key's text: six characters derived from its SHA-256.
fn checksum(text: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let digest = Sha256::digest(text);
    std::array::from_fn(|at| ALPHABET[usize::from(digest[at]) % ALPHABET.len()])
}

#[cfg(test)]
mod tests {
    use tooldock_base::key_maker::InvalidKeyId;

    use super::*;

    fn key(kind: KeyKind) -> (KeyId, Secret) {
        let id = new_id().unwrap();
        (id, generate(kind, id).unwrap())
    }

    #[test]
    fn a_key_names_its_id_and_has_more_than_32_random_characters() {
        for kind in KeyKind::ALL {
            let (id, text) = key(kind);
            let text = text.expose();
            assert_eq!(id_of(text.as_bytes()), Some(id), "{text}");
            assert!(text.starts_with(kind.prefix()) && looks_like_key(text.as_bytes()));
            let secret = text.rsplit('_').next().unwrap();
            assert_eq!(secret.len(), RANDOM_BYTES + CHECKSUM_BYTES);
            let graphic = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            assert!(text.bytes().all(graphic), "{text}");
        }
    }

    #[test]
    fn a_typing_error_anywhere_is_seen() {
        let (_, text) = key(KeyKind::Gateway);
        let text = text.expose().as_bytes();
        for at in 0..text.len() {
            let mut other = text.to_vec();
            other[at] = if other[at] == b'a' { b'b' } else { b'a' };
            assert_eq!(id_of(&other), None, "{at}");
            let mut shorter = text.to_vec();
            shorter.remove(at);
            assert_eq!(id_of(&shorter), None, "{at}");
        }
        let relay = [b"oub_", &text[3..]].concat();
        assert_eq!(id_of(&relay), None);
        for wrong in [&b""[..], b"td_", b"oub_x", b"td_\xff\xfe", &[b'x'; 5000]] {
            assert_eq!(id_of(wrong), None);
        }
    }

    #[test]
    fn ids_are_read_as_they_are_written_and_nothing_else_is_one() {
        let id = new_id().unwrap();
        assert_eq!(id.to_string().parse(), Ok(id));
        for wrong in ["", "abc", "ABCDEFGHIJKL", "abcdefghijk_", "../../etc/pa"] {
            assert_eq!(wrong.parse::<KeyId>(), Err(InvalidKeyId), "{wrong}");
        }
    }
}
