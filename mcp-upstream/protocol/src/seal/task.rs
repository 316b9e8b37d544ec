//! Sealed names of tasks: equal names have equal seals, so that clients can compare them.

use aes_gcm::Nonce;
use aes_gcm::aead::{Aead, Payload};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tooldock_base::names::NamespaceName;

use super::{NONCE_BYTES, SessionKey, digest};

/// Associated data of task names.
const TASK: &[u8] = b"tooldock task name";
/// Names are padded to a multiple of this many bytes, so that their length reveals little.
const BLOCK: usize = 64;
/// Number of bytes before a name that contain its length.
const LENGTH_BYTES: usize = 4;

/// Seals and opens the names of one member's tasks for one principal.
#[derive(Clone)]
pub struct TaskSeal {
    key: SessionKey,
    bound_to: Vec<u8>,
}

impl SessionKey {
    /// The seal for task names of `member`, as the aggregate `home` publishes them to this principal.
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
    /// The published name of a task.
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

    /// The member's own name of a published task; `None` for a text without a valid seal.
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

    /// The nonce of a name: without the key it looks random, and only the same name gets the same nonce.
    fn nonce(&self, plain: &[u8]) -> [u8; NONCE_BYTES] {
        let mut hash = Sha256::new();
        hash.update(*self.key.0.names);
        hash.update(&self.bound_to);
        hash.update(plain);
        let whole: [u8; 32] = hash.finalize().into();
        *whole.first_chunk().expect("12 of 32 bytes")
    }
}
