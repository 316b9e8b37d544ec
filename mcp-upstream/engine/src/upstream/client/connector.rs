//! The port to the connections of MCP servers: a connection in use, and the connector that leases connections.
//!
//! The pools implement the port, and so does the fake server of the tests. Processes are started, counted and ended by the
//! implementations.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tooldock_base::error::CallError;
use tooldock_process::child::output::RecentLines;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::jsonrpc::{ProtocolViolation, Request, Response, ResponseOutcome};
pub use tooldock_protocol::version::{Era, EraSupport, ServerInfo};
pub use tooldock_servers::link::Inbound;
use tooldock_servers::link::{CallAccount, Canceller, NotificationSink};
use tooldock_servers::metrics::LastGood;
use tooldock_servers::pool::process::ProcessListener;
use tooldock_servers::pool::process::tasks::Tasks;
pub use tooldock_servers::pool::{ConnectionKey, OpenAs, Opener};
use tooldock_servers::pool::{Presence, ServerCopy};
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::BackendId;
pub use tooldock_workers::server_settings::Isolation;

use crate::upstream::health::ServerHealth;

/// Future of a response. Dropping it cancels the request.
pub(crate) type PendingResponse =
    Pin<Box<dyn Future<Output = Result<Response, MissingResponse>> + Send>>;

/// A request that was sent to the server.
pub struct SentRequest {
    /// Future of the complete response.
    pub answer: PendingResponse,
    /// Handle that cancels the request with the client's own message.
    pub cancel: Canceller,
}

/// Failure of a request that got no response.
#[derive(Debug, Clone)]
pub struct MissingResponse {
    pub(crate) error: CallError,
    /// The last stage that the request reached.
    pub(crate) fate: RequestFate,
}

/// The last stage that a request reached before it failed without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFate {
    /// The server may have begun to process the request.
    Sent,
    /// No byte of the request reached the server.
    Unsent,
    /// The server did not process the request, because it no longer knows the session.
    SessionGone,
    /// The server refused the request because it does not know the session. It may have begun to process the request.
    SessionRefused,
    /// The request was not sent, since no process was available for it.
    Unleased,
}

impl From<CallError> for MissingResponse {
    fn from(error: CallError) -> Self {
        Self {
            error,
            fate: RequestFate::Sent,
        }
    }
}

/// Leases connections to MCP servers.
#[async_trait]
pub trait Connector: Send + Sync {
    /// Mode for sharing the processes of a namespace's server; `None` if the namespace is no external server.
    fn isolation(&self, namespace: &Namespace) -> Option<Isolation>;

    /// Checks that a principal has the credentials that the server needs.
    ///
    /// # Errors
    ///
    /// `missing_credential`: the server needs credentials of the caller, but the caller has none.
    fn check_credentials(&self, _: &Namespace, _: Option<&str>) -> Result<(), CallError> {
        Ok(())
    }

    /// Returns true if the server is reached with the caller's credentials, so that its answers concern no other principal.
    fn is_personal(&self, _: &Namespace) -> bool {
        false
    }

    /// The eras that the server supports, as far as relevant to a client of this era. Probes the server the first time;
    /// `opener`: the connection for the probe.
    ///
    /// # Errors
    ///
    /// The reason why the server cannot be probed.
    async fn speaks(
        &self,
        namespace: &Namespace,
        client: Era,
        opener: Opener,
    ) -> Result<EraSupport, CallError>;

    /// The eras that the server supports, if they are known without a request, the usual case; `None` if a probe is needed.
    fn known_to_speak(&self, _: &Namespace, _: Era) -> Option<EraSupport> {
        None
    }

    /// Leases the process for this key, and opens it if needed. Messages of a session's or a single call's process that belong
    /// to no call are passed to [`OpenAs::inbound`]; for a shared process, changes are passed to the namespace's audience and
    /// other messages to registered listeners ([`ServerConnection::hear`]).
    ///
    /// # Errors
    ///
    /// The reason why there is no process.
    async fn lease(
        &self,
        namespace: &Namespace,
        key: &ConnectionKey,
        open: OpenAs,
    ) -> Result<Arc<dyn ServerConnection>, CallError>;

    /// Leases the process for a shared key; `None` if that would need a wait, which is rare.
    fn lease_at_once(
        &self,
        _: &Namespace,
        _: &ConnectionKey,
        _: Era,
    ) -> Option<Arc<dyn ServerConnection>> {
        None
    }

    /// Returns true if a further backend may take a request that the backends in `tried` have not answered.
    fn has_another(&self, _: &Namespace, _tried: &[BackendId]) -> bool {
        true
    }

    /// The backend where a principal's task runs, among several backends that all clients share.
    fn place_of_task(
        &self,
        _: &Namespace,
        _: Era,
        _principal: Option<&Arc<str>>,
        _task: &str,
    ) -> Option<ConnectionKey> {
        None
    }

    /// Returns true if the state of this session at its server is permanently lost.
    fn has_lost(&self, _: &Namespace, _: &Arc<str>) -> bool {
        false
    }

    /// State of the instance of the server for this connection key.
    fn copy(&self, _: &Namespace, _: &ConnectionKey, _: Era) -> ServerCopy {
        ServerCopy::Running
    }

    /// Returns true if an instance of the server runs a task of the principal.
    fn has_task(
        &self,
        _: &Namespace,
        _: (&ConnectionKey, Era),
        _principal: Option<&Arc<str>>,
        _task: &str,
    ) -> bool {
        false
    }

    /// Ends the process of a closed session.
    fn end_session(&self, tag: &Arc<str>);

    /// Reports to the pools that a session has a reader again and must receive notifications of its subscriptions.
    fn session_returned(&self, _: &Arc<str>) {}

    /// The most recent description that the server gave of itself, preferably from an opening in this era.
    fn last_opening(&self, namespace: &Namespace, era: Era) -> Option<ServerInfo>;

    /// The server's catalogue for all clients, the same object for as long as the namespace is served.
    ///
    /// # Errors
    ///
    /// When the server is no longer served.
    fn catalogue(&self, namespace: &Namespace) -> Result<Arc<Catalogue>, CallError>;

    /// State of a namespace's server; `None` if it was not needed yet.
    fn health(&self, namespace: &Namespace) -> Option<ServerHealth>;

    /// Ends every connection of the server, with its running calls, and opens new ones.
    ///
    /// # Errors
    ///
    /// When the server is no longer served.
    fn restart(&self, _: &Namespace) -> Result<(), CallError> {
        Ok(())
    }

    /// Recent output of the server's processes; `None` for servers without processes.
    fn output(&self, _: &Namespace) -> Option<Arc<RecentLines>> {
        None
    }

    /// Availability of the connection to the server that all clients share, now and whenever it changes.
    fn presence(&self, _: &Namespace) -> Option<watch::Receiver<Presence>> {
        None
    }

    /// Waits until a new server serves, has failed, or turns out to take long.
    async fn settled(&self, _: &Namespace) {}

    /// Ends a client's subscription to a resource. Does not wait for the server's response.
    fn unsubscribe(&self, namespace: &Namespace, key: &ConnectionKey, era: Era, uri: &str);

    /// Counts a request that was answered with the server's last good response, because the server itself did not answer.
    fn fell_back(&self, _: &Namespace, _: LastGood) {}

    /// Counts a message that a server should not have sent.
    fn violation(&self, _: &Namespace, _: ProtocolViolation) {}
}

/// A leased, opened process, or a session at a backend.
#[async_trait]
pub trait ServerConnection: Send + Sync {
    /// The server's answer to the opening: its description of itself.
    fn opening(&self) -> &ServerInfo;

    /// Sends a request of the gateway. On an error, nothing was written.
    ///
    /// # Errors
    ///
    /// When the process has ended, or accepts no more requests.
    fn request(
        &self,
        method: &str,
        params: Option<&RawValue>,
        sink: Option<Arc<dyn NotificationSink>>,
    ) -> Result<SentRequest, CallError>;

    /// Sends the complete request of a client of the server's own era. On an error, nothing was written. `of_client`: the
    /// client's headers to send along. `account`: the request's owner, and the counter for the bytes of its response.
    ///
    /// # Errors
    ///
    /// When the process has ended, or accepts no more requests.
    fn forward(
        &self,
        request: &Request,
        sink: Option<Arc<dyn NotificationSink>>,
        of_client: Option<&Arc<HeaderMap>>,
        account: Option<CallAccount>,
    ) -> Result<SentRequest, CallError>;

    /// Sends the complete notification of a client.
    ///
    /// # Errors
    ///
    /// When the process has ended, or accepts no more messages.
    fn notify(&self, message: &str) -> Result<(), CallError>;

    /// The backends at which the request was tried, for connections that are spread over backends.
    fn tried(&self) -> &[BackendId] {
        &[]
    }

    /// The backend of a remote server's session; `None` for a process.
    fn backend(&self) -> Option<&BackendId> {
        None
    }

    /// The owners of the tasks on the process.
    fn tasks(&self) -> &Tasks;

    /// Registers a listener for messages of a shared process that can only concern the owner of this lease. The listener is
    /// removed with the lease. Called at most once.
    fn hear(&self, listener: ProcessListener);

    /// Adds a client's subscription to a resource. Returns `None` if no request was needed, because other clients were already
    /// subscribed.
    ///
    /// # Errors
    ///
    /// When the request to the server fails, or there are too many subscriptions.
    async fn subscribe(&self, uri: &str) -> Result<Option<ResponseOutcome>, CallError>;

    /// Requests log messages from this level on, now and after a restart. No request is sent for a level that is in effect.
    async fn set_log_level(&self, level: LogLevel) -> Result<ResponseOutcome, CallError>;

    /// Records that the server granted a request of its only client, so that requests with a lasting effect are repeated after a
    /// restart.
    fn granted(&self, _method: &str, _params: Option<&RawValue>) {}

    /// Records that the request of this lease was answered. A process that no other client has used may then serve another
    /// request.
    fn answered(&self);
}

/// An error of the gateway as a JSON-RPC error object.
pub(crate) fn error_object(code: i32, message: &str) -> Bytes {
    serde_json::json!({ "code": code, "message": message })
        .to_string()
        .into()
}
