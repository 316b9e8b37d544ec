//! Principals: the owners of credentials, with the rights of the credential.

use std::sync::Arc;
use std::time::SystemTime;

use tooldock_base::grant::Grant;
use tooldock_base::key_maker::KeyMaker;
pub use tooldock_base::names::ANONYMOUS;
use tooldock_base::names::NamespaceName;
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_credentials::keys::KeyLimit;

/// Name of the principal of requests with `BEARER_TOKEN`. It may use every namespace.
pub const BEARER: &str = "bearer";

/// The owner of a credential, with the namespaces and tools that the credential opens.
#[derive(Debug)]
pub struct Principal {
    pub(crate) name: Arc<str>,
    pub(crate) namespaces: Arc<NamespaceScope>,
    pub(crate) grant: Option<Arc<Grant>>,
    /// The end of the credential, if it has one.
    pub(crate) ends: Option<SystemTime>,
    /// The limits of the API key, which apply in addition to those of the configuration.
    pub(crate) limits: Arc<[KeyLimit]>,
    /// The maker of API keys that the principal asks for.
    pub(crate) maker: KeyMaker,
}

impl Principal {
    /// Creates the principal of a credential that opens every tool of `namespaces` and ends only when the configuration drops it.
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

    /// Sets the maker that API keys made with this entry have.
    pub(crate) fn making(self, maker: KeyMaker) -> Self {
        Self { maker, ..self }
    }

    /// The principal of an access token.
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

    /// The end of the credential, which ends streams and sessions opened with it. `None` if the credential has no end.
    pub fn ends(&self) -> Option<SystemTime> {
        self.ends
    }

    /// The maker of API keys that the principal asks for.
    pub fn maker(&self) -> &KeyMaker {
        &self.maker
    }

    /// The limits of an API key; none for other credentials.
    pub fn limits(&self) -> &[KeyLimit] {
        &self.limits
    }

    /// The limits of an API key, shared; `None` without limits.
    pub fn shared_limits(&self) -> Option<Arc<[KeyLimit]>> {
        (!self.limits.is_empty()).then(|| Arc::clone(&self.limits))
    }

    /// The token's name, [`BEARER`] or [`ANONYMOUS`].
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The rights from the credential's scopes; `None` for a credential without scopes, which opens every tool of its
    /// namespaces.
    pub fn grant(&self) -> Option<&Arc<Grant>> {
        self.grant.as_ref()
    }

    /// The namespaces that the credential opens.
    pub fn namespaces(&self) -> &Arc<NamespaceScope> {
        &self.namespaces
    }

    /// Returns true if the token opens a namespace. The namespace's own list of principals applies in addition.
    pub fn opens(&self, namespace: &NamespaceName) -> bool {
        self.namespaces.opens(namespace)
    }
}
