//! Port to the credentials of the edge, since this crate does not depend on the edge.

use tooldock_workers::explain::{Credential, Principals};

/// Finds credentials by a key's id or a principal's name, at the edge that authenticates requests.
pub trait Credentials: Send + Sync {
    /// Finds the credential of a principal or key.
    ///
    /// # Errors
    ///
    /// A sentence, if no credential has that name, or several have.
    fn find(&self, who: &str) -> Result<Credential, String>;

    /// The principals that have a credential.
    fn principals(&self) -> Principals;
}
