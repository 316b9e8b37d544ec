//! Principals: the owners of credentials, and the rights that their credentials give them.

use std::sync::Arc;
use std::time::SystemTime;

use tooldock_base::grant::Grant;
use tooldock_base::key_maker::KeyMaker;
use tooldock_base::names::NamespaceName;
pub use tooldock_base::names::{ANONYMOUS, GATEWAY};
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_credentials::keys::KeyLimit;

/// Name of the principal of requests with `BEARER_TOKEN`. It may use every namespace.
pub const BEARER: &str = "bearer";

/// The owner of a credential, with the namespaces and tools that the credential gives access to.
#[derive(Debug)]
pub struct Principal {
    pub(crate) name: Arc<str>,
    pub(crate) namespaces: Arc<NamespaceScope>,
    pub(crate) grant: Option<Arc<Grant>>,
    /// Time at which the credential expires; `None` if it does not expire.
    pub(crate) ends: Option<SystemTime>,
    /// Rate limits of the principal's API key, which apply in addition to those of the configuration; empty for other
    /// credentials.
    pub(crate) limits: Arc<[KeyLimit]>,
    /// Identifies the principal's credential. It is recorded as the maker of API keys that the principal creates.
    pub(crate) maker: KeyMaker,
}

impl Principal {
    /// Creates the principal of a configured credential. It may use every tool of `namespaces` and does not expire.
    pub(crate) fn unlimited(name: &str, namespaces: NamespaceScope) -> Self {
        Self {
            name: name.into(),
            namespaces: Arc::new(namespaces),
            grant: None,
            ends: None,
            limits: Arc::default(),
            maker: KeyMaker::default(),
        }
    }

    /// Sets the maker that is recorded in API keys which the principal creates.
    pub(crate) fn making(self, maker: KeyMaker) -> Self {
        Self { maker, ..self }
    }

    /// Creates the principal of an OAuth access token.
    pub(crate) fn of_access_token(
        name: &str,
        namespaces: NamespaceScope,
        grant: Grant,
        ends: Option<SystemTime>,
    ) -> Self {
        Self {
            grant: Some(Arc::new(grant)),
            ends,
            ..Self::unlimited(name, namespaces)
        }
    }

    /// Time at which the credential expires. Streams and sessions that were opened with it end then. `None` if it does not
    /// expire.
    pub fn ends(&self) -> Option<SystemTime> {
        self.ends
    }

    /// The maker that is recorded in API keys which the principal creates.
    pub fn maker(&self) -> &KeyMaker {
        &self.maker
    }

    /// The rate limits of the principal's API key; empty for other credentials.
    pub fn limits(&self) -> &[KeyLimit] {
        &self.limits
    }

    /// The rate limits of the principal's API key, as a shared value; `None` if there are none.
    pub fn shared_limits(&self) -> Option<Arc<[KeyLimit]>> {
        (!self.limits.is_empty()).then(|| Arc::clone(&self.limits))
    }

    /// The principal's name. [`BEARER`] for `BEARER_TOKEN`, [`ANONYMOUS`] for requests without a credential.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The rights that the credential's scopes grant; `None` for a credential without scopes, which may use every tool of its
    /// namespaces.
    pub fn grant(&self) -> Option<&Arc<Grant>> {
        self.grant.as_ref()
    }

    /// The namespaces that the credential gives access to.
    pub fn namespaces(&self) -> &Arc<NamespaceScope> {
        &self.namespaces
    }

    /// Returns true if the credential gives access to the namespace. The namespace's own list of principals applies in addition.
    pub fn opens(&self, namespace: &NamespaceName) -> bool {
        self.namespaces.opens(namespace)
    }
}
