//! The port to whoever judges credentials: the edge, which the service does not know.

use tooldock_workers::explain::{Credential, Principals};

/// Finds whom a key's id or a principal's name stands for, at the edge that judges requests.
pub trait Credentials: Send + Sync {
    /// The credential.
    ///
    /// # Errors
    ///
    /// That nobody is called so, or several are; in words.
    fn find(&self, who: &str) -> Result<Credential, String>;

    /// The principals that can be asked about.
    fn principals(&self) -> Principals;
}
