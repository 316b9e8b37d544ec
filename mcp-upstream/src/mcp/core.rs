//! What all requests of a service share.

use std::path::PathBuf;
use std::sync::Arc;

use tooldock_workers::registry::Registry;

use crate::broadcast::Audience;
use crate::credentials::Credentials;
use crate::engine::Engine;
use crate::health::Health;
use crate::mcp::modern::SuspendedCalls;
use crate::mcp::pass_through::PassThrough;
use crate::metrics::UpstreamMetrics;
use crate::metrics::figures::FigureNotes;
use crate::pages::Pages;
use crate::reload::ReloadControl;
use crate::session::SessionTable;
use crate::session::config::PollAfter;
use crate::stream::open::OpenStreams;
use crate::stream::{EventLog, Pulse, StreamLimiter};
use crate::upstream::http::port::HttpClient;
use crate::upstream::system::Management;
use crate::upstream::{SessionChanges, Upstreams};

/// Everything behind the functions the edge calls; one per process.
pub(crate) struct Core {
    pub(crate) registry: Arc<Registry>,
    pub(crate) reloader: Option<Arc<dyn ReloadControl>>,
    pub(crate) sessions: Arc<SessionTable>,
    /// How what is recorded of a session changes.
    pub(crate) changes: SessionChanges,
    pub(crate) engine: Engine,
    /// What runs namespaces, by kind.
    pub(crate) upstreams: Upstreams,
    /// Knows how the backends of remote servers are.
    pub(crate) http_client: Option<Arc<dyn HttpClient>>,
    /// The single-page app of `/ui/`.
    pub(crate) pages: Option<Arc<Pages>>,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    pub(crate) health: Arc<Health>,
    /// What streams of sessions keep, and how they are opened and fed.
    pub(crate) events: Arc<EventLog>,
    /// Who hears of a namespace's changes.
    pub(crate) audience: Arc<Audience>,
    /// The timer of all streams, and the switch that ends them.
    pub(crate) pulse: Arc<Pulse>,
    /// Open streams that no session knows of.
    pub(crate) open_streams: OpenStreams,
    /// How many long streams a principal may hold.
    pub(crate) stream_limiter: StreamLimiter,
    /// When a POST that is still not answered is cut short for its client to come back.
    pub(crate) poll_after: PollAfter,
    /// Passes the messages of remote servers on.
    pub(crate) passing: PassThrough,
    /// Modern calls that wait for their client's next request.
    pub(crate) suspended: SuspendedCalls,
    /// The management tools, where this process has them.
    pub(crate) management: Option<Arc<Management>>,
    /// Whom names stand for.
    pub(crate) credentials: Option<Arc<dyn Credentials>>,
    /// What the web UI is told, where this process serves one.
    pub(crate) web: Option<Arc<WebFacts>>,
    /// The calls of the last minute, for the web UI.
    pub(crate) figures: FigureNotes,
}

/// What the web UI is told of the process and its files.
#[derive(Debug, Clone)]
pub struct WebFacts {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The same as the host has it; shown, and never opened.
    pub host_data_dir: String,
    /// Where the audit log is.
    pub logs: PathBuf,
}
