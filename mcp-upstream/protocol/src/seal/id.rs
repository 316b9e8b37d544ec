//! Session ids. Any module may compare ids; only the session key creates and reads them.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// An opaque session id: visible ASCII, unguessable, and a credential of its client. Cheap to clone. Serialized only for the
/// session store.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(Arc<str>);

/// Error of the operating system's source of random bytes.
#[derive(Debug, thiserror::Error)]
#[error("no randomness for a session id: {0}")]
pub struct NoRandomness(#[from] getrandom::Error);

impl SessionId {
    /// An id that a [`super::SessionKey`] sealed.
    pub fn from_sealed(text: String) -> Self {
        Self(text.into())
    }

    /// An id without facts, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("randomness");
        Self(hex::encode(bytes).into())
    }

    /// The id as the client sends it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SessionId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionId([redacted])")
    }
}
