//! The catalogue as one client saw it when its call began, for work on another thread.

use std::sync::Arc;

use super::catalogue::{Catalogue, PublishedEntry};
use super::own::CatalogueView;
use crate::session::Toolset;

/// A catalogue, a toolset, and the entries that the caller may know of.
pub(super) struct Snapshot {
    pub(super) catalogue: Arc<Catalogue>,
    pub(super) toolset: Arc<Toolset>,
    /// Visibility of entries for the caller, by position.
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
