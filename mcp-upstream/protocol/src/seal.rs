//! Encrypts and authenticates ("seals") the tokens that clients store for the gateway: session ids, states of suspended calls,
//! and toolset handles (K-19).
//!
//! A token is `base64url(nonce ‖ AES-256-GCM(facts))` with a random nonce of 96 bits. It consists of visible ASCII, and cannot be
//! forged or read without the key. Each kind of token has its own associated data, so that a token is never accepted as one of
//! another kind. A session id contains its replica and facts about the session; whether the session still exists is stored only
//! in the session store.
//!
//! A key should seal at most 2^32 tokens. After that number, the probability that two have the same nonce is 2^-33. A gateway
//! that seals a hundred tokens a second reaches the number after more than a year.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tooldock_base::names::NamespaceName;
use zeroize::Zeroizing;

use crate::version::ProtocolVersion;

mod bound;
mod id;
mod task;

pub use bound::{BoundRequest, unix_millis};
pub use id::{NoRandomness, SessionId};
pub use task::TaskSeal;

const NONCE_BYTES: usize = 12;
/// Associated data of session ids, which distinguishes them from other kinds of sealed tokens.
const ID: &[u8] = b"tooldock session id";
/// Associated data of request states, which distinguishes them from other kinds of sealed tokens.
const STATE: &[u8] = b"tooldock request state";
/// Associated data of toolset handles, which distinguishes them from other kinds of sealed tokens.
const TOOLSET: &[u8] = b"tooldock toolset";
/// Associated data of passports, which a replica adds to requests that it forwards to another replica.
const FORWARD: &[u8] = b"tooldock forwarded request";
/// Associated data of the announcements that replicas write to a shared data directory.
const ANNOUNCE: &[u8] = b"tooldock announcement of a replica";
/// Associated data for sealing the nonces of test requests. The gateway sends these requests to itself, to check the reverse
/// proxies in front of it.
const PROBE: &[u8] = b"tooldock probe of the front";
/// Associated data of links to pages on which principals give their personal credentials.
const LINK: &[u8] = b"tooldock connect link";
/// Version of the binary format of the facts in a session id.
const LAYOUT: u8 = 1;
const RANDOM_BYTES: usize = 16;
const DIGEST_BYTES: usize = 16;
/// Size of the facts in a session id without the namespace, in bytes: format, replica, version, time, random bytes, digest.
const FIXED_BYTES: usize = 1 + 4 + 10 + 8 + RANDOM_BYTES + DIGEST_BYTES;

/// Key that encrypts and decrypts tokens. Cheap to clone; the key is wiped from memory when the last clone is dropped.
#[derive(Clone)]
pub struct SessionKey(Arc<DerivedKeys>);

/// The keys that are derived from the session key's bytes.
struct DerivedKeys {
    cipher: Aes256Gcm,
    /// Key for nonces that are derived from the sealed text, so that equal texts get equal seals.
    names: Zeroizing<[u8; 32]>,
    /// Digest that identifies the key without revealing it.
    digest: Arc<str>,
}

/// The facts about a session that its sealed id contains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedFacts {
    /// Number of the replica that opened the session.
    pub replica: u32,
    /// The namespace of the session.
    pub namespace: NamespaceName,
    /// The protocol version that was negotiated for the session.
    pub version: ProtocolVersion,
    /// Time when the session was opened, in whole seconds.
    pub issued_at: SystemTime,
    principal: [u8; DIGEST_BYTES],
}

impl SessionKey {
    /// Derives all keys from 32 secret bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        let bytes = Zeroizing::new(bytes);
        let mut names = Sha256::new();
        names.update(b"tooldock nonces of names");
        names.update(*bytes);
        let mut digest = Sha256::new();
        digest.update(b"tooldock digest of a session key");
        digest.update(*bytes);
        let digest: [u8; 32] = digest.finalize().into();
        Self(Arc::new(DerivedKeys {
            cipher: Aes256Gcm::new((&*bytes).into()),
            names: Zeroizing::new(names.finalize().into()),
            digest: hex::encode(&digest[..DIGEST_BYTES]).into(),
        }))
    }

    /// Digest of the key, by which replicas check that they use the same key.
    pub fn digest(&self) -> &Arc<str> {
        &self.0.digest
    }

    /// Derives all keys from a text, such as the value of `SESSION_KEY`, by its SHA-256.
    pub fn from_text(text: &str) -> Self {
        Self::from_bytes(Sha256::digest(text.as_bytes()).into())
    }

    /// Creates a sealed id for a new session.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's random number generator fails.
    pub fn seal_id(
        &self,
        replica: u32,
        namespace: &NamespaceName,
        principal: Option<&str>,
        version: ProtocolVersion,
        now: SystemTime,
    ) -> Result<SessionId, NoRandomness> {
        let mut random = [0; RANDOM_BYTES];
        getrandom::fill(&mut random)?;
        let issued = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let namespace = namespace.as_str().as_bytes();
        let mut facts = Vec::with_capacity(FIXED_BYTES + namespace.len());
        facts.push(LAYOUT);
        facts.extend_from_slice(&replica.to_be_bytes());
        facts.extend_from_slice(version.as_str().as_bytes());
        facts.extend_from_slice(&issued.as_secs().to_be_bytes());
        facts.extend_from_slice(&random);
        facts.extend_from_slice(&digest(principal));
        facts.extend_from_slice(namespace);
        self.seal(ID, &facts).map(SessionId::from_sealed)
    }

    /// Decrypts the facts in a session id; `None` if the id was not sealed with this key.
    pub fn open(&self, id: &str) -> Option<SealedFacts> {
        SealedFacts::read(&self.unseal(ID, id)?)
    }

    /// Seals a state that the client must return when it retries its request.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's random number generator fails.
    pub fn seal_state(&self, state: &[u8]) -> Result<String, NoRandomness> {
        self.seal(STATE, state)
    }

    /// Decrypts a state that [`SessionKey::seal_state`] has sealed; `None` if it was modified, or sealed with another key.
    pub fn open_state(&self, sealed: &str) -> Option<Vec<u8>> {
        self.unseal(STATE, sealed)
    }

    /// Seals the passport of a request that is forwarded to another replica. The passport proves that a replica has sent it.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's random number generator fails.
    pub fn seal_passport(&self, passport: &[u8]) -> Result<String, NoRandomness> {
        self.seal(FORWARD, passport)
    }

    /// Decrypts a passport that [`SessionKey::seal_passport`] has sealed; `None` if it was modified, or sealed with another key.
    pub fn open_passport(&self, sealed: &str) -> Option<Vec<u8>> {
        self.unseal(FORWARD, sealed)
    }

    /// Seals the announcement that a replica writes to a data directory. Other processes of the same user can write there, too.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's random number generator fails.
    pub fn seal_announcement(&self, announcement: &[u8]) -> Result<String, NoRandomness> {
        self.seal(ANNOUNCE, announcement)
    }

    /// Decrypts an announcement that [`SessionKey::seal_announcement`] has sealed; `None` if it was modified, or sealed with
    /// another key.
    pub fn open_announcement(&self, sealed: &str) -> Option<Vec<u8>> {
        self.unseal(ANNOUNCE, sealed)
    }

    /// Seals the nonce of a test request, by which `tooldock doctor` checks the proxies in front of the gateway.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's random number generator fails.
    pub fn seal_probe(&self, nonce: &[u8]) -> Result<String, NoRandomness> {
        self.seal(PROBE, nonce)
    }

    /// Decrypts the nonce of a test request that [`SessionKey::seal_probe`] has sealed; `None` for any other text.
    pub fn open_probe(&self, sealed: &str) -> Option<Vec<u8>> {
        self.unseal(PROBE, sealed)
    }

    /// Seals the facts of a link to a page on which a principal gives a personal credential.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's random number generator fails.
    pub fn seal_link(&self, facts: &[u8]) -> Result<String, NoRandomness> {
        self.seal(LINK, facts)
    }

    /// Decrypts the facts of a link that [`SessionKey::seal_link`] has sealed; `None` for any other text.
    pub fn open_link(&self, sealed: &str) -> Option<Vec<u8>> {
        self.unseal(LINK, sealed)
    }

    /// Seals a client's toolset of an aggregate as a handle. The handle is valid only for this principal and this namespace.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`], if the operating system's random number generator fails.
    pub fn seal_toolset(
        &self,
        namespace: &NamespaceName,
        principal: Option<&str>,
        toolset: &[u8],
    ) -> Result<String, NoRandomness> {
        let mut plain = toolset_owner(namespace, principal).to_vec();
        plain.extend_from_slice(toolset);
        self.seal(TOOLSET, &plain)
    }

    /// Decrypts a handle that [`SessionKey::seal_toolset`] has sealed for the same namespace and principal; `None` for any other
    /// text.
    pub fn open_toolset(
        &self,
        namespace: &NamespaceName,
        principal: Option<&str>,
        handle: &str,
    ) -> Option<Vec<u8>> {
        let plain = self.unseal(TOOLSET, handle)?;
        let owner = toolset_owner(namespace, principal);
        Some(plain.strip_prefix(&owner)?.to_vec())
    }

    fn seal(&self, purpose: &[u8], plain: &[u8]) -> Result<String, NoRandomness> {
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce)?;
        let payload = Payload {
            msg: plain,
            aad: purpose,
        };
        let sealed = self
            .0
            .cipher
            .encrypt(&Nonce::from(nonce), payload)
            .expect("nothing near the cipher's limit of 64 GiB is sealed here");
        let mut whole = nonce.to_vec();
        whole.extend_from_slice(&sealed);
        Ok(URL_SAFE_NO_PAD.encode(whole))
    }

    fn unseal(&self, purpose: &[u8], sealed: &str) -> Option<Vec<u8>> {
        let whole = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (nonce, msg) = whole.split_first_chunk::<NONCE_BYTES>()?;
        let payload = Payload { msg, aad: purpose };
        self.0.cipher.decrypt(&Nonce::from(*nonce), payload).ok()
    }
}

impl SealedFacts {
    /// Returns true if the session belongs to this namespace and this principal.
    pub fn belongs_to(&self, namespace: &NamespaceName, principal: Option<&str>) -> bool {
        self.namespace == *namespace && self.principal == digest(principal)
    }

    fn read(facts: &[u8]) -> Option<Self> {
        let (&layout, rest) = facts.split_first()?;
        let (replica, rest) = rest.split_first_chunk()?;
        let (version, rest) = rest.split_first_chunk::<10>()?;
        let (issued, rest) = rest.split_first_chunk()?;
        let (_random, rest) = rest.split_first_chunk::<RANDOM_BYTES>()?;
        let (principal, namespace) = rest.split_first_chunk()?;
        if layout != LAYOUT {
            return None;
        }
        Some(Self {
            replica: u32::from_be_bytes(*replica),
            namespace: std::str::from_utf8(namespace).ok()?.parse().ok()?,
            version: std::str::from_utf8(version).ok()?.parse().ok()?,
            issued_at: UNIX_EPOCH.checked_add(Duration::from_secs(u64::from_be_bytes(*issued)))?,
            principal: *principal,
        })
    }
}

/// Digest of the aggregate and the principal for which a toolset handle is valid.
fn toolset_owner(namespace: &NamespaceName, principal: Option<&str>) -> [u8; DIGEST_BYTES] {
    let mut hash = Sha256::new();
    hash.update(digest(principal));
    hash.update(namespace.as_str());
    let whole: [u8; 32] = hash.finalize().into();
    *whole.first_chunk().expect("16 of 32 bytes")
}

/// Digest of a principal's name. A missing principal and an empty name have different digests.
fn digest(principal: Option<&str>) -> [u8; DIGEST_BYTES] {
    let mut hash = Sha256::new();
    hash.update([u8::from(principal.is_some())]);
    hash.update(principal.unwrap_or_default());
    let whole: [u8; 32] = hash.finalize().into();
    *whole.first_chunk().expect("16 of 32 bytes")
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn mint(key: &SessionKey, namespace: &str, principal: Option<&str>) -> SessionId {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let namespace = namespace.parse().expect("a name");
        key.seal_id(7, &namespace, principal, ProtocolVersion::V2025_11_25, now)
            .expect("randomness")
    }

    #[test]
    fn an_id_says_whose_it_is_to_the_key_that_sealed_it() {
        let key = SessionKey::from_text("a key");
        let facts = key
            .open(mint(&key, "shared", Some("ada")).as_str())
            .expect("ours");
        assert_eq!(facts.replica, 7);
        assert_eq!(facts.version, ProtocolVersion::V2025_11_25);
        assert_eq!(
            facts.issued_at,
            UNIX_EPOCH + Duration::from_secs(1_800_000_000)
        );
        let shared = "shared".parse().expect("a name");
        let other = "other".parse().expect("a name");
        assert!(facts.belongs_to(&shared, Some("ada")));
        for (namespace, principal) in [
            (&other, Some("ada")),
            (&shared, Some("bob")),
            (&shared, Some("")),
            (&shared, None),
        ] {
            assert!(!facts.belongs_to(namespace, principal), "{principal:?}");
        }
        let nobodys = key.open(mint(&key, "shared", None).as_str()).expect("ours");
        assert!(nobodys.belongs_to(&shared, None));
        assert!(!nobodys.belongs_to(&shared, Some("")));
    }

    #[test]
    fn another_key_opens_nothing() {
        let key = SessionKey::from_text("a key");
        let same = SessionKey::from_bytes(Sha256::digest(b"a key").into());
        let other = SessionKey::from_text("another key");
        let id = mint(&key, "shared", None);
        assert!(same.open(id.as_str()).is_some());
        assert!(other.open(id.as_str()).is_none());
        let state = key.seal_state(b"parked").expect("randomness");
        assert_eq!(same.open_state(&state).as_deref(), Some(&b"parked"[..]));
        assert_eq!(other.open_state(&state), None);
    }

    #[test]
    fn ids_and_states_do_not_pass_for_each_other() {
        let key = SessionKey::from_text("a key");
        let id = mint(&key, "shared", None);
        let facts = key.unseal(ID, id.as_str()).expect("ours");
        assert_eq!(key.open_state(id.as_str()), None);
        assert_eq!(key.open(&key.seal_state(&facts).expect("randomness")), None);
    }

    #[test]
    fn a_toolset_opens_for_its_namespace_and_principal_alone() {
        let key = SessionKey::from_text("a key");
        let (all, other) = (
            "all".parse().expect("a name"),
            "other".parse().expect("a name"),
        );
        let handle = key
            .seal_toolset(&all, Some("ada"), b"set")
            .expect("randomness");
        let opened = |namespace, principal| key.open_toolset(namespace, principal, &handle);
        assert_eq!(opened(&all, Some("ada")).as_deref(), Some(&b"set"[..]));
        assert_eq!(opened(&all, Some("bob")), None);
        assert_eq!(opened(&all, None), None);
        assert_eq!(opened(&other, Some("ada")), None);
        assert_eq!(key.open_state(&handle), None);
        let state = key.seal_state(b"set").expect("randomness");
        assert_eq!(key.open_toolset(&all, Some("ada"), &state), None);
    }

    #[test]
    fn any_changed_byte_is_noticed() {
        let key = SessionKey::from_text("a key");
        let id = mint(&key, "shared", Some("ada"));
        let state = key.seal_state(b"state").expect("randomness");
        for at in 0..id.as_str().len() {
            for with in [b'A', b'b', b'9', b'-', b'_', b'=', b' ', b'+', b'\n', 0] {
                let changed = |text: &str| {
                    let mut bytes = text.as_bytes().to_vec();
                    let before = std::mem::replace(bytes.get_mut(at)?, with);
                    (before != with).then(|| String::from_utf8(bytes).expect("ASCII"))
                };
                if let Some(text) = changed(id.as_str()) {
                    assert_eq!(key.open(&text), None, "{at} {with}");
                }
                if let Some(text) = changed(&state) {
                    assert_eq!(key.open_state(&text), None, "{at} {with}");
                }
            }
        }
        for end in 0..id.as_str().len() {
            assert_eq!(key.open(&id.as_str()[..end]), None);
        }
        assert_eq!(key.open(&format!("{}A", id.as_str())), None);
        assert_eq!(key.open(&format!("{}=", id.as_str())), None);
    }

    #[test]
    fn ids_are_unique_and_visible_ascii() {
        let key = SessionKey::from_text("a key");
        let ids: HashSet<_> = (0..10_000).map(|_| mint(&key, "shared", None)).collect();
        assert_eq!(ids.len(), 10_000);
        for id in &ids {
            assert!(
                id.as_str()
                    .bytes()
                    .all(|byte| (0x21..=0x7e).contains(&byte))
            );
        }
        let longest = "x".repeat(63);
        assert!(mint(&key, &longest, None).as_str().len() < 256);
    }

    #[test]
    fn debug_output_holds_no_key() {
        let key = SessionKey::from_text("a key");
        assert_eq!(format!("{key:?}"), "SessionKey([redacted])");
    }

    proptest! {
        #[test]
        fn what_is_sealed_is_opened_and_nothing_else_is(state: Vec<u8>, noise in "\\PC{0,200}") {
            let key = SessionKey::from_text("a key");
            let sealed = key.seal_state(&state).expect("randomness");
            prop_assert!(sealed.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
            prop_assert_eq!(key.open_state(&sealed), Some(state));
            prop_assert_eq!(key.open_state(&noise), None);
            prop_assert_eq!(key.open(&noise), None);
        }
    }
}
