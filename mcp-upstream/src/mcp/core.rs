//! State that all requests of a service share.

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

/// The state behind the functions that the edge calls; one per process.
pub(crate) struct Core {
    pub(crate) registry: Arc<Registry>,
    pub(crate) reloader: Option<Arc<dyn ReloadControl>>,
    pub(crate) sessions: Arc<SessionTable>,
    /// Changes the recorded state of sessions.
    pub(crate) changes: SessionChanges,
    pub(crate) engine: Engine,
    /// The upstreams of namespaces, by kind.
    pub(crate) upstreams: Upstreams,
    /// Reports the health of remote servers' backends.
    pub(crate) http_client: Option<Arc<dyn HttpClient>>,
    /// The single-page app of `/ui/`.
    pub(crate) pages: Option<Arc<Pages>>,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    pub(crate) health: Arc<Health>,
    /// Keeps, opens and feeds the streams of sessions.
    pub(crate) events: Arc<EventLog>,
    /// Tells clients of changes in namespaces.
    pub(crate) audience: Arc<Audience>,
    /// The timer of all streams, and the switch that ends them.
    pub(crate) pulse: Arc<Pulse>,
    /// Open streams without a session.
    pub(crate) open_streams: OpenStreams,
    /// The most long streams that a principal may hold.
    pub(crate) stream_limiter: StreamLimiter,
    /// The time after which an unanswered POST is cut short, so that its client comes back.
    pub(crate) poll_after: PollAfter,
    /// Passes messages to and from remote servers.
    pub(crate) passing: PassThrough,
    /// Modern calls that wait for their client's next request.
    pub(crate) suspended: SuspendedCalls,
    /// The management tools, if this process has them.
    pub(crate) management: Option<Arc<Management>>,
    /// Looks up credentials by name.
    pub(crate) credentials: Option<Arc<dyn Credentials>>,
    /// Facts about the process for the web UI, if this process serves it.
    pub(crate) web: Option<Arc<WebFacts>>,
    /// The calls of the last minute, for the web UI.
    pub(crate) figures: FigureNotes,
}

/// Facts about the process and its files that the web UI shows.
#[derive(Debug, Clone)]
pub struct WebFacts {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The path of the data directory on the host; shown, and never opened.
    pub host_data_dir: String,
    /// The folder of the audit log.
    pub logs: PathBuf,
}
