//! Where the news of a worker goes that concern more than one call: lists that changed, resources that were updated.

use tooldock_workers::names::NamespaceName;
use tooldock_workers::worker::Notice;

/// Takes news of a namespace to whoever listens. Must not block.
pub(crate) trait Announce: Send + Sync {
    /// Something of this namespace changed.
    fn announce(&self, namespace: &NamespaceName, notice: Notice);
}

/// Tells nobody, for tests.
#[cfg(test)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Nobody;

#[cfg(test)]
impl Announce for Nobody {
    fn announce(&self, _: &NamespaceName, _: Notice) {}
}
