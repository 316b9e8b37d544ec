//! The request to which a sealed state belongs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tooldock_base::names::NamespaceName;

/// The request for which a state was sealed. The state is invalid in any other request.
#[derive(Debug, Clone, Copy)]
pub struct BoundRequest<'a> {
    /// The principal's name; `None` without authentication.
    pub principal: Option<&'a str>,
    /// The namespace of the request.
    pub namespace: &'a NamespaceName,
    /// The method of the request.
    pub method: &'a str,
    /// The name of the tool or prompt, or the URI of the resource.
    pub subject: &'a str,
    /// The arguments of the request as JSON; empty if there are none.
    pub arguments: &'a [u8],
}

impl BoundRequest<'_> {
    /// Hashes all fields except the arguments: callers differ in how they compare arguments, and add them themselves. The length
    /// of each field is hashed as well, so that `("a", "bc")` and `("ab", "c")` differ.
    pub fn hash(&self) -> Sha256 {
        let mut hash = Sha256::new();
        hash.update([u8::from(self.principal.is_some())]);
        for part in [
            self.principal.unwrap_or_default(),
            self.namespace.as_str(),
            self.method,
            self.subject,
        ] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part.as_bytes());
        }
        hash
    }
}

/// The time `from_now` after the current time, in milliseconds since 1970. If the clock is set before 1970, 1970 is used.
pub fn unix_millis(from_now: Duration) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let then = now.unwrap_or_default().saturating_add(from_now);
    u64::try_from(then.as_millis()).unwrap_or(u64::MAX)
}
