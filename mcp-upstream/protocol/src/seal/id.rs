//! Session ids as opaque texts. Only the session key creates them and reads their facts.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// An opaque session id. It consists of visible ASCII, cannot be guessed, and is a credential of its client. Cheap to clone. It
/// is serialized only for the session store.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionId(Arc<str>);

/// Error: the operating system's random number generator failed.
#[derive(Debug, thiserror::Error)]
#[error("no randomness for a session id: {0}")]
pub struct NoRandomness(#[from] getrandom::Error);

impl SessionId {
    /// Wraps the text of an id that a [`super::SessionKey`] has sealed.
    pub fn from_sealed(text: String) -> Self {
        Self(text.into())
    }

    /// Creates a random id that contains no facts, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("randomness");
        Self(hex::encode(bytes).into())
    }

    /// The text of the id, as clients send it.
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
