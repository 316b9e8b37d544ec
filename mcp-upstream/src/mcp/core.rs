//! State that all requests of the service share.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use tooldock_process::child::output::RecentLines;
use tooldock_sessions::broadcast::Audience;
use tooldock_sessions::session::SessionTable;
use tooldock_sessions::session::config::PollAfter;
use tooldock_sessions::stream::open::OpenStreams;
use tooldock_sessions::stream::{EventLog, Pulse, StreamLimiter};
use tooldock_workers::registry::Registry;

use crate::credentials::Credentials;
use crate::engine::Engine;
use crate::health::Health;
use crate::mcp::modern::SuspendedCalls;
use crate::mcp::pass_through::PassThrough;
use crate::metrics::UpstreamMetrics;
use crate::metrics::figures::FigureNotes;
use crate::pages::Pages;
use crate::probe::Probes;
use crate::reload::ReloadControl;
use crate::upstream::http::port::HttpClient;
use crate::upstream::system::Management;
use crate::upstream::{SessionChanges, Upstreams};

/// State behind the functions that the edge calls; one value per process.
pub(crate) struct Core {
    pub(crate) registry: Arc<Registry>,
    pub(crate) reloader: Option<Arc<dyn ReloadControl>>,
    pub(crate) sessions: Arc<SessionTable>,
    /// Write path for the records of sessions.
    pub(crate) changes: SessionChanges,
    pub(crate) engine: Engine,
    /// The upstreams of namespaces, by kind.
    pub(crate) upstreams: Upstreams,
    /// HTTP client of the proxy, which tracks the health of remote servers' backends.
    pub(crate) http_client: Option<Arc<dyn HttpClient>>,
    /// The single-page app that is served at `/ui/`.
    pub(crate) pages: Option<Arc<Pages>>,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    pub(crate) health: Arc<Health>,
    /// Store of the events of sessions' streams, which also opens and feeds the streams.
    pub(crate) events: Arc<EventLog>,
    /// Subscribers that receive the changes of namespaces.
    pub(crate) audience: Arc<Audience>,
    /// The timer of all streams, which also ends them at shutdown.
    pub(crate) pulse: Arc<Pulse>,
    /// Registry of open streams without a session.
    pub(crate) open_streams: OpenStreams,
    /// Limit of the number of long streams per principal.
    pub(crate) stream_limiter: StreamLimiter,
    /// Time after which an unanswered POST is cut short, so that its client polls for the response.
    pub(crate) poll_after: PollAfter,
    /// The pass-through mode for remote servers.
    pub(crate) passing: PassThrough,
    /// Modern calls that wait for their client's next request.
    pub(crate) suspended: SuspendedCalls,
    /// The management tools, if this process has them.
    pub(crate) management: Option<Arc<Management>>,
    /// Store of credentials, for lookups by name.
    pub(crate) credentials: Option<Arc<dyn Credentials>>,
    /// Facts about the process for the web UI, if this process serves it.
    pub(crate) web: Option<Arc<WebFacts>>,
    /// Nonces for probes of the servers in front of the gateway.
    pub(crate) probes: Probes,
    /// Counts of the last minute's calls, for the web UI.
    pub(crate) figures: FigureNotes,
}

/// Facts about the process and its files that the web UI shows.
#[derive(Debug, Clone)]
pub struct WebFacts {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The path of the data directory on the host, which is only shown and never opened.
    pub host_data_dir: String,
    /// The folder of the audit log.
    pub logs: PathBuf,
    /// The most recent lines of the gateway's log.
    pub log: Arc<RecentLines>,
    /// The certificates of listeners.
    pub certificates: Arc<dyn CertificateEnds>,
    /// The configuration in force.
    pub configuration: Arc<dyn ConfigurationView>,
}

/// Port to the configuration in force. Its methods read files: call them where blocking is allowed.
pub trait ConfigurationView: std::fmt::Debug + Send + Sync {
    /// All keys, sorted, with their values, credentials masked, and their sources.
    ///
    /// # Errors
    ///
    /// When a value cannot be written, in one sentence.
    fn in_force(&self) -> Result<Vec<ConfiguredValue>, String>;

    /// The reason why the configuration in the data directory is not in force; `None` if it is.
    fn problem(&self) -> Option<String>;

    /// The keys whose values the files and variables would change now.
    ///
    /// # Errors
    ///
    /// The reason why a reload would be refused.
    fn after_reload(&self) -> Result<Vec<ConfigurationChange>, String>;
}

/// A setting of the configuration in force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfiguredValue {
    /// The key, as `namespaces.defaults.timeout`.
    pub key: String,
    /// The value, credentials masked.
    pub value: serde_json::Value,
    /// The source of the value: the name of a variable, the path of a file, or `default`.
    pub source: String,
}

/// A key that a reload would change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigurationChange {
    /// The key, as `namespaces.defaults.timeout`.
    pub key: String,
    /// The value in force; `None` if the key is new.
    pub now: Option<serde_json::Value>,
    /// The value as the sources have it; `None` if they no longer have the key.
    pub then: Option<serde_json::Value>,
    /// True if the value is in force only after the next start.
    pub waits_for_start: bool,
}

/// Port to the certificates of listeners.
pub trait CertificateEnds: std::fmt::Debug + Send + Sync {
    /// Names of listeners with TLS, and the end of the first of each listener's certificates in seconds since 1970.
    fn ends(&self) -> Vec<(String, i64)>;
}
