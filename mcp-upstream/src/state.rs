//! What all requests of a service share.

use std::sync::Arc;

use tooldock_workers::registry::Registry;

use crate::engine::Engine;
use crate::health::Health;
use crate::metrics::UpstreamMetrics;
use crate::rest::reload::ReloadControl;
use crate::session::store::SessionStore;

/// Everything behind the functions the edge calls; one per process.
pub(crate) struct Core {
    pub(crate) registry: Arc<Registry>,
    pub(crate) reloader: Option<Arc<dyn ReloadControl>>,
    pub(crate) sessions: Box<dyn SessionStore>,
    pub(crate) engine: Engine,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    pub(crate) health: Arc<Health>,
}
