//! Interface to the credentials of the edge, on which this crate does not depend.

use tooldock_workers::explain::{Credential, Principals};

/// Finds credentials by the id of a key or the name of a principal. The edge, which authenticates requests, implements this.
pub trait Credentials: Send + Sync {
    /// Finds the credential of a principal or key.
    ///
    /// # Errors
    ///
    /// A sentence for the operator, if no credential has that name, or several have.
    fn find(&self, who: &str) -> Result<Credential, String>;

    /// The principals that have a credential.
    fn principals(&self) -> Principals;
}
