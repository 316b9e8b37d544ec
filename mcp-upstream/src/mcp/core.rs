//! State that all requests of the service share.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use tooldock_engine::connect_links::ConnectLinks;
use tooldock_engine::engine::Engine;
use tooldock_engine::metrics::UpstreamMetrics;
use tooldock_engine::metrics::figures::FigureNotes;
use tooldock_engine::upstream::system::Management;
use tooldock_engine::upstream::{SessionChanges, Upstreams};
use tooldock_process::child::output::RecentLines;
use tooldock_servers::http::port::HttpClient;
use tooldock_sessions::broadcast::Audience;
use tooldock_sessions::session::SessionTable;
use tooldock_sessions::session::config::PollAfter;
use tooldock_sessions::stream::open::OpenStreams;
use tooldock_sessions::stream::{EventLog, KeepAlive, StreamLimiter};
use tooldock_workers::registry::Registry;

use crate::credentials::Credentials;
use crate::health::Health;
use crate::mcp::modern::SuspendedCalls;
use crate::mcp::pass_through::UpstreamSessions;
use crate::mcp::tasks::Tasks;
use crate::pages::Pages;
use crate::probe::Probes;
use crate::reload::ReloadControl;

/// State of the functions that the edge calls. There is one value per process.
pub(crate) struct Core {
    pub(crate) registry: Arc<Registry>,
    pub(crate) reloader: Option<Arc<dyn ReloadControl>>,
    pub(crate) sessions: Arc<SessionTable>,
    /// Changes sessions and their records; all code that writes session records uses it.
    pub(crate) changes: SessionChanges,
    pub(crate) engine: Engine,
    /// The upstreams, by the kind of their namespaces.
    pub(crate) upstreams: Upstreams,
    /// HTTP client for remote servers, which tracks the health of their backends; without it, calls of their tools fail.
    pub(crate) http_client: Option<Arc<dyn HttpClient>>,
    /// Files of the web UI, which are served at `/ui/`; `None` if there are none.
    pub(crate) pages: Option<Arc<Pages>>,
    pub(crate) metrics: Arc<UpstreamMetrics>,
    pub(crate) health: Arc<Health>,
    /// Event log of sessions' streams, which opens the streams and adds their events.
    pub(crate) events: Arc<EventLog>,
    /// Subscribers that are notified of the changes of namespaces.
    pub(crate) audience: Arc<Audience>,
    /// Timer for keep-alive comments on all streams. It also ends the streams at shutdown.
    pub(crate) keep_alive: Arc<KeepAlive>,
    /// Registry of open streams without a session.
    pub(crate) open_streams: OpenStreams,
    /// Limits on the number and the memory of long-lived streams per principal.
    pub(crate) stream_limiter: StreamLimiter,
    /// Maximum time that the stream of an unanswered POST stays open. The client then resumes the stream to get the response.
    pub(crate) poll_after: PollAfter,
    /// The remote servers' sessions of the sessions in pass-through mode.
    pub(crate) upstream_sessions: UpstreamSessions,
    /// Modern calls that wait for their client's next request.
    pub(crate) suspended: SuspendedCalls,
    /// Calls of Python tools that continue after their requests.
    pub(crate) tasks: Tasks,
    /// The management tools, if this process has them.
    pub(crate) management: Option<Arc<Management>>,
    /// Interface to the edge's credentials, for lookups by name.
    pub(crate) credentials: Option<Arc<dyn Credentials>>,
    /// Links to pages on which principals give their personal credentials for servers; `None` if there are no such pages.
    pub(crate) links: Option<Arc<dyn ConnectLinks>>,
    /// Facts about the process for the web UI, if this process serves it.
    pub(crate) web: Option<Arc<WebFacts>>,
    /// Nonces for probes of the servers in front of the gateway.
    pub(crate) probes: Probes,
    /// Counts of the calls in the past minute, for the web UI.
    pub(crate) figures: FigureNotes,
}

/// Facts about the process and its files that the web UI shows.
#[derive(Debug, Clone)]
pub struct WebFacts {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Path of the data directory on the host of the container. It is shown to users, and never opened.
    pub host_data_dir: String,
    /// The folder of the audit log.
    pub logs: PathBuf,
    /// The most recent lines of the gateway's log.
    pub log: Arc<RecentLines>,
    /// Interface to the certificates of listeners.
    pub certificates: Arc<dyn CertificateEnds>,
    /// Interface to the configuration in force.
    pub configuration: Arc<dyn ConfigurationView>,
}

/// Interface to the configuration in force. Its methods read files, so they must be called where blocking is allowed.
pub trait ConfigurationView: std::fmt::Debug + Send + Sync {
    /// Returns all keys in sorted order, with their values and sources. Credentials are masked.
    ///
    /// # Errors
    ///
    /// When a value cannot be written, in one sentence.
    fn in_force(&self) -> Result<Vec<ConfiguredValue>, String>;

    /// Returns the reason why the configuration in the data directory is not in force; `None` if it is in force.
    fn problem(&self) -> Option<String>;

    /// Returns the keys whose values would change if the files and variables were read now.
    ///
    /// # Errors
    ///
    /// The reason why a reload would be refused.
    fn after_reload(&self) -> Result<Vec<ConfigurationChange>, String>;
}

/// A setting of the configuration in force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfiguredValue {
    /// Key of the setting, such as `namespaces.defaults.timeout`.
    pub key: String,
    /// Value of the setting, with credentials masked.
    pub value: serde_json::Value,
    /// Source of the value: the name of a variable, the path of a file, or `default`.
    pub source: String,
}

/// A key that a reload would change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfigurationChange {
    /// The changed key, such as `namespaces.defaults.timeout`.
    pub key: String,
    /// The value in force; `None` if the key is new.
    pub now: Option<serde_json::Value>,
    /// Value after a reload; `None` if the sources no longer contain the key.
    pub then: Option<serde_json::Value>,
    /// True if the new value applies only after the next start of the process; false if a reload applies it.
    pub waits_for_start: bool,
}

/// Interface to the certificates of listeners.
pub trait CertificateEnds: std::fmt::Debug + Send + Sync {
    /// Returns the name of each listener with TLS, and the earliest time at which a certificate of it expires, in seconds since
    /// 1970.
    fn ends(&self) -> Vec<(String, i64)>;
}
