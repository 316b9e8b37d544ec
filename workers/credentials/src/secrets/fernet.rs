//! Fernet, the format in which the older Python system encrypted its files (version 1): AES-128-CBC and HMAC-SHA256.
//!
//! A token is `version ‖ time ‖ IV ‖ ciphertext ‖ HMAC over the preceding bytes`, in url-safe base64. The first half of the key
//! is for the HMAC, the second for encryption. Tokens are read for upgrades, and written by `tooldock secrets export` for
//! downgrades.

use aes::Aes128;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockModeDecrypt as _, BlockModeEncrypt as _, KeyIvInit as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::key::DerivedKey;

const VERSION: u8 = 0x80;
const HEAD: usize = 1 + 8;
const IV: usize = 16;
const TAG: usize = 32;

/// Decrypts a Fernet token; returns `None` if the key is wrong or the token was changed.
pub(super) fn open(token: &str, key: &DerivedKey) -> Option<Zeroizing<Vec<u8>>> {
    let whole = URL_SAFE.decode(token).ok()?;
    if whole.first() != Some(&VERSION) || whole.len() < HEAD + IV + TAG {
        return None;
    }
    let (signed, tag) = whole.split_at(whole.len() - TAG);
    let (signing, encryption) = key.split_at(16);
    let mut mac = Hmac::<Sha256>::new_from_slice(signing).ok()?;
    mac.update(signed);
    mac.verify_slice(tag).ok()?;
    let (iv, ciphertext) = signed[HEAD..].split_at(IV);
    let cipher = cbc::Decryptor::<Aes128>::new_from_slices(encryption, iv).ok()?;
    let mut plain = Zeroizing::new(ciphertext.to_vec());
    let length = cipher.decrypt_padded::<Pkcs7>(&mut plain).ok()?.len();
    plain.truncate(length);
    Some(plain)
}

/// Encrypts `plain` as a Fernet token.
pub(super) fn seal(
    plain: &[u8],
    key: &DerivedKey,
    unix_seconds: u64,
) -> Result<String, getrandom::Error> {
    let mut iv = [0; IV];
    getrandom::fill(&mut iv)?;
    let (signing, encryption) = key.split_at(16);
    let cipher = cbc::Encryptor::<Aes128>::new_from_slices(encryption, &iv)
        .expect("half a key and an IV are 16 bytes each");
    let mut whole = vec![VERSION];
    whole.extend_from_slice(&unix_seconds.to_be_bytes());
    whole.extend_from_slice(&iv);
    whole.extend_from_slice(&cipher.encrypt_padded_vec::<Pkcs7>(plain));
    let mut mac = Hmac::<Sha256>::new_from_slice(signing).expect("a MAC takes a key of any size");
    mac.update(&whole);
    whole.extend_from_slice(&mac.finalize().into_bytes());
    Ok(URL_SAFE.encode(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_opens_with_its_key_alone_and_unchanged() {
        let key = DerivedKey::new([7; 32]);
        for plain in [&b""[..], b"sixteen bytes!!!", b"some text"] {
            let token = seal(plain, &key, 1_700_000_000).unwrap();
            assert_eq!(&**open(&token, &key).unwrap(), plain);
            assert!(open(&token, &DerivedKey::new([8; 32])).is_none());
            let mut bytes = URL_SAFE.decode(&token).unwrap();
            for at in [0, 5, 12, 30, bytes.len() - 1] {
                bytes[at] ^= 1;
                assert!(open(&URL_SAFE.encode(&bytes), &key).is_none(), "{at}");
                bytes[at] ^= 1;
            }
        }
        for token in ["", "gAAA", "not base64!", &"A".repeat(100)] {
            assert!(open(token, &key).is_none(), "{token}");
        }
    }
}
