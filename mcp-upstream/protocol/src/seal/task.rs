//! Encrypted ("sealed") names of tasks. Equal names have equal seals, so that clients can compare them.

use aes_gcm::Nonce;
use aes_gcm::aead::{Aead, Payload};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tooldock_base::names::NamespaceName;

use super::{NONCE_BYTES, SessionKey, digest};

/// Associated data of task names, which distinguishes them from other kinds of sealed tokens.
const TASK: &[u8] = b"tooldock task name";
/// Names are padded to a multiple of this number of bytes, so that the length of a seal reveals little about the name.
const BLOCK: usize = 64;
/// Size of the length that is written before a name, in bytes.
const LENGTH_BYTES: usize = 4;

/// Encrypts and decrypts the names of tasks of one aggregate member, for one principal.
#[derive(Clone)]
pub struct TaskSeal {
    key: SessionKey,
    bound_to: Vec<u8>,
}

impl SessionKey {
    /// Creates the seal for tasks of `member` whose names the aggregate `home` shows to this principal.
    pub fn task_seal(
        &self,
        home: &NamespaceName,
        member: &NamespaceName,
        principal: Option<&str>,
    ) -> TaskSeal {
        let mut bound = Sha256::new();
        bound.update(digest(principal));
        for name in [home.as_str(), member.as_str()] {
            bound.update((name.len() as u64).to_be_bytes());
            bound.update(name);
        }
        let mut bound_to = TASK.to_vec();
        bound_to.extend_from_slice(&bound.finalize());
        TaskSeal {
            key: self.clone(),
            bound_to,
        }
    }
}

impl TaskSeal {
    /// Encrypts a task's name. Clients get the result.
    pub fn seal(&self, name: &str) -> String {
        let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
        let mut plain = length.to_be_bytes().to_vec();
        plain.extend_from_slice(name.as_bytes());
        plain.resize(plain.len().next_multiple_of(BLOCK), 0);
        let nonce = self.nonce(&plain);
        let payload = Payload {
            msg: &plain,
            aad: &self.bound_to,
        };
        let sealed = (self.key.0.cipher)
            .encrypt(&Nonce::from(nonce), payload)
            .expect("no name is near the cipher's limit of 64 GiB");
        let mut whole = nonce.to_vec();
        whole.extend_from_slice(&sealed);
        URL_SAFE_NO_PAD.encode(whole)
    }

    /// Decrypts a task's name that a client sent; `None` for a text without a valid seal.
    pub fn open(&self, published: &str) -> Option<String> {
        let whole = URL_SAFE_NO_PAD.decode(published).ok()?;
        let (nonce, msg) = whole.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload {
            msg,
            aad: &self.bound_to,
        };
        let plain = self
            .key
            .0
            .cipher
            .decrypt(&Nonce::from(*nonce), payload)
            .ok()?;
        let (length, rest) = plain.split_first_chunk::<LENGTH_BYTES>()?;
        let name = rest.get(..u32::from_be_bytes(*length) as usize)?;
        String::from_utf8(name.to_vec()).ok()
    }

    /// Derives the nonce from the name and a secret key. Equal names get equal nonces; without the key they look random.
    fn nonce(&self, plain: &[u8]) -> [u8; NONCE_BYTES] {
        let mut hash = Sha256::new();
        hash.update(*self.key.0.names);
        hash.update(&self.bound_to);
        hash.update(plain);
        let whole: [u8; 32] = hash.finalize().into();
        *whole.first_chunk().expect("12 of 32 bytes")
    }
}
