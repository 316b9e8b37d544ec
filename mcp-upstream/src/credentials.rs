//! Port to the edge's credentials; the service does not know the edge.

use tooldock_workers::explain::{Credential, Principals};

/// Looks up credentials by a key's id or a principal's name, at the edge that judges requests.
pub trait Credentials: Send + Sync {
    /// The credential.
    ///
    /// # Errors
    ///
    /// In words: if no credential has that name, or several have.
    fn find(&self, who: &str) -> Result<Credential, String>;

    /// The principals that can be asked about.
    fn principals(&self) -> Principals;
}
