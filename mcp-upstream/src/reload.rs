//! The port to whoever reloads the namespaces.

use std::sync::Arc;

use async_trait::async_trait;
use tooldock_workers::reload::ReloadReport;

/// Whoever can reload the namespaces.
#[async_trait]
pub trait ReloadControl: Send + Sync {
    /// Rescans the folders and swaps in what changed. A second reload at the same time shares the first one's outcome.
    ///
    /// # Errors
    ///
    /// Why nothing was changed, in one line.
    async fn reload(&self) -> Result<Arc<ReloadReport>, String>;
}
