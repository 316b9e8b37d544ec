//! What a session is called. Only this file knows how an id is made; everyone else compares it.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Random bytes of an id.
const ID_BYTES: usize = 32;

/// An opaque session id: visible ASCII, unguessable, a credential of its client. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(Arc<str>);

/// The system gave no randomness.
#[derive(Debug, thiserror::Error)]
#[error("no randomness for a session id: {0}")]
pub struct NoRandomness(getrandom::Error);

impl SessionId {
    /// A new id.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`] when the operating system's source fails.
    pub fn generate() -> Result<Self, NoRandomness> {
        let mut bytes = [0; ID_BYTES];
        getrandom::fill(&mut bytes).map_err(NoRandomness)?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes).into()))
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn ids_are_unique_and_visible_ascii() {
        let ids: HashSet<_> = (0..10_000)
            .map(|_| SessionId::generate().expect("randomness"))
            .collect();
        assert_eq!(ids.len(), 10_000);
        for id in &ids {
            assert_eq!(id.as_str().len(), 43);
            assert!(id.as_str().bytes().all(|byte| byte.is_ascii_graphic()));
        }
    }
}
