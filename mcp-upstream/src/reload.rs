//! Interface to the component that reloads the namespaces.

use std::sync::Arc;

use async_trait::async_trait;
use tooldock_workers::reload::ReloadReport;

/// Reloads the namespaces.
#[async_trait]
pub trait ReloadControl: Send + Sync {
    /// Scans the namespaces' folders again and publishes the changes. Concurrent calls share the outcome of the first.
    ///
    /// # Errors
    ///
    /// The reason why nothing was changed, in one line.
    async fn reload(&self) -> Result<Arc<ReloadReport>, String>;
}
