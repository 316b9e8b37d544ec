//! The catalogue as one client saw it when its call began, for work on another thread.

use std::sync::Arc;

use tooldock_sessions::session::Toolset;

use super::catalogue::{Catalogue, PublishedEntry};
use super::own::CatalogueView;

/// A catalogue with the caller's toolset and visibility, owned so that it can be sent to another thread.
pub(super) struct Snapshot {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) toolset: Arc<Toolset>,
    /// True for entries that the caller may learn about, by position in the catalogue.
    pub(super) visible: Vec<bool>,
}

impl Snapshot {
    /// Runs `look` on the catalogue as the client saw it.
    pub(super) fn look<T>(&self, look: impl FnOnce(&CatalogueView<'_>) -> T) -> T {
        let visible = |entry: &PublishedEntry| self.visible.get(entry.at).copied().unwrap_or(false);
        look(&CatalogueView {
            catalogue: &self.catalogue,
            toolset: &self.toolset,
            visible: &visible,
        })
    }
}
