//! The catalogue as one client saw it when its call began, for work on another thread.

use std::sync::Arc;

use super::catalogue::{Catalogue, Entry};
use super::own::Shown;
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
    pub(super) fn look<T>(&self, look: impl FnOnce(&Shown<'_>) -> T) -> T {
        let visible = |entry: &Entry| self.visible.get(entry.at).copied().unwrap_or(false);
        look(&Shown {
            catalogue: &self.catalogue,
            toolset: &self.toolset,
            visible: &visible,
        })
    }
}
