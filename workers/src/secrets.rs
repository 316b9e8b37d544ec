//! Where secret values come from. The store itself is built elsewhere; workers only ask.

use std::collections::BTreeMap;
use std::fmt;

use crate::names::NamespaceName;

/// A secret value: never printed, never compared except by whoever holds it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value, for the one place that must hand it on.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

/// Gives a namespace its secrets: global ones overridden by its own (SCR-09). Placeholders are left out (SCR-11).
pub trait SecretSource: Send + Sync + 'static {
    /// The merged `KEY → value` map of one namespace.
    fn for_namespace(&self, namespace: &NamespaceName) -> BTreeMap<String, Secret>;
}

/// A source without secrets.
#[derive(Debug, Default, Clone, Copy)]
pub struct NoSecrets;

impl SecretSource for NoSecrets {
    fn for_namespace(&self, _namespace: &NamespaceName) -> BTreeMap<String, Secret> {
        BTreeMap::new()
    }
}
