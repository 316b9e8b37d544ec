//! What forwarding needs of the processes of external servers: one with a process in its hands, one that hands them out.
//!
//! The pools satisfy it; so does the fake server of the tests. Nothing here starts, counts or ends a process.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tooldock_workers::error::CallError;
pub(crate) use tooldock_workers::external::Isolation;
use tooldock_workers::process::output::RecentLines;
use tooldock_workers::registry::Namespace;
use tooldock_workers::remote::BackendId;
use tooldock_workers::worker::LogLevel;

use crate::catalogue::Catalogue;
use crate::jsonrpc::{ProtocolViolation, Request, Response, ResponseOutcome};
pub(crate) use crate::protocol::{Era, EraSupport, ServerInfo};
pub(crate) use crate::stdio::link::Inbound;
use crate::stdio::link::{CallAccount, Canceller, NotificationSink};
use crate::stdio::metrics::LastGood;
pub(crate) use crate::stdio::pool::{ConnectionKey, OpenAs, Opener};
use crate::stdio::pool::{Presence, ServerCopy};
use crate::stdio::process::Listener;
use crate::stdio::process::tasks::Tasks;
use crate::upstream::health::ServerHealth;

/// A response that is on its way. Dropping it cancels the request.
pub(crate) type PendingResponse =
    Pin<Box<dyn Future<Output = Result<Response, Unanswered>> + Send>>;

/// A request that was sent.
pub(crate) struct SentRequest {
    /// The whole response.
    pub(crate) answer: PendingResponse,
    /// Gives the request up in its client's own words.
    pub(crate) cancel: Canceller,
}

/// Why there is no response.
#[derive(Debug, Clone)]
pub(crate) struct Unanswered {
    pub(crate) error: CallError,
    /// What became of the request.
    pub(crate) fate: Fate,
}

/// What became of a request without a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The server may have begun with it.
    Sent,
    /// Nothing of it reached the server.
    Unsent,
    /// The server did nothing with it, as it does not know the session any more.
    SessionGone,
    /// The server refused the request because it does not know the session. It may have begun to process the request.
    SessionRefused,
    /// There was no process for it.
    Unleased,
}

impl From<CallError> for Unanswered {
    fn from(error: CallError) -> Self {
        Self {
            error,
            fate: Fate::Sent,
        }
    }
}

/// Hands out processes.
#[async_trait]
pub(crate) trait Connector: Send + Sync {
    /// How the processes of a namespace's server are shared; `None` where the namespace is no external server.
    fn isolation(&self, namespace: &Namespace) -> Option<Isolation>;

    /// Whether a principal has what it takes to reach the server.
    ///
    /// # Errors
    ///
    /// `missing_credential`: the server needs credentials of whoever calls, and there are none.
    fn check_credentials(&self, _: &Namespace, _: Option<&str>) -> Result<(), CallError> {
        Ok(())
    }

    /// Whether the server is reached with credentials of whoever calls, so that what it answers is nobody else's.
    fn is_personal(&self, _: &Namespace) -> bool {
        false
    }

    /// What the server speaks, as far as it matters to a client of that era. Asks it the first time; `opener` is whose
    /// connection finds out.
    ///
    /// # Errors
    ///
    /// Why it cannot be asked.
    async fn speaks(
        &self,
        namespace: &Namespace,
        client: Era,
        opener: Opener,
    ) -> Result<EraSupport, CallError>;

    /// The same without asking; `None` where only asking tells. Nearly always it is known.
    fn known_to_speak(&self, _: &Namespace, _: Era) -> Option<EraSupport> {
        None
    }

    /// The process of that key, opened if it is not there. What one of a session or of a single call says of its own
    /// accord goes to [`OpenAs::inbound`]; of one that several share, changes go to the namespace's audience and the rest
    /// to who hears it ([`Connection::hear`]).
    ///
    /// # Errors
    ///
    /// Why there is none.
    async fn lease(
        &self,
        namespace: &Namespace,
        key: &ConnectionKey,
        open: OpenAs,
    ) -> Result<Arc<dyn Connection>, CallError>;

    /// The process of a key that several clients share, where it is there and nobody needs to wait: nearly always.
    fn lease_at_once(
        &self,
        _: &Namespace,
        _: &ConnectionKey,
        _: Era,
    ) -> Option<Arc<dyn Connection>> {
        None
    }

    /// Whether a further backend may take a request that these have not answered.
    fn has_another(&self, _: &Namespace, _tried: &[BackendId]) -> bool {
        true
    }

    /// Where a principal's task runs, of what everybody shares at several backends.
    fn place_of_task(
        &self,
        _: &Namespace,
        _: Era,
        _principal: Option<&Arc<str>>,
        _task: &str,
    ) -> Option<ConnectionKey> {
        None
    }

    /// Whether the state that the session of that tag had at its server is lost for good.
    fn has_lost(&self, _: &Namespace, _: &Arc<str>) -> bool {
        false
    }

    /// How the copy of the server is that is reached by that key.
    fn copy(&self, _: &Namespace, _: &ConnectionKey, _: Era) -> ServerCopy {
        ServerCopy::Running
    }

    /// Whether a copy of the server runs a principal's task.
    fn has_task(
        &self,
        _: &Namespace,
        _: (&ConnectionKey, Era),
        _principal: Option<&Arc<str>>,
        _task: &str,
    ) -> bool {
        false
    }

    /// The session of that tag is over, and with it its process.
    fn end_session(&self, tag: &Arc<str>);

    /// The session of that tag listens again: news it waits for is to reach it.
    fn session_returned(&self, _: &Arc<str>) {}

    /// What the server last said of itself when it was opened so.
    fn last_opening(&self, namespace: &Namespace, era: Era) -> Option<ServerInfo>;

    /// What the server offers to everybody. The same one for as long as the namespace is served.
    ///
    /// # Errors
    ///
    /// The server is not served any more.
    fn catalogue(&self, namespace: &Namespace) -> Result<Arc<Catalogue>, CallError>;

    /// How the server of a namespace is; `None` where nobody asked for it yet.
    fn health(&self, namespace: &Namespace) -> Option<ServerHealth>;

    /// Ends every connection of the server, with the calls that run there, and opens new ones.
    ///
    /// # Errors
    ///
    /// The server is not served any more.
    fn restart(&self, _: &Namespace) -> Result<(), CallError> {
        Ok(())
    }

    /// What the processes of the server printed lately; `None` where it has none.
    fn output(&self, _: &Namespace) -> Option<Arc<RecentLines>> {
        None
    }

    /// Whether what everybody shares of the server is there, now and whenever that changes.
    fn presence(&self, _: &Namespace) -> Option<watch::Receiver<Presence>> {
        None
    }

    /// Waits until a server that came into the registry serves, why it does not is known, or that takes long.
    async fn settled(&self, _: &Namespace) {}

    /// One client less wants to hear of a resource. Waits for nothing.
    fn unsubscribe(&self, namespace: &Namespace, key: &ConnectionKey, era: Era, uri: &str);

    /// What a server last said answered for it.
    fn fell_back(&self, _: &Namespace, _: LastGood) {}

    /// Counts a message that a server should not have sent.
    fn violation(&self, _: &Namespace, _: ProtocolViolation) {}
}

/// An opened process, held while it is used.
#[async_trait]
pub(crate) trait Connection: Send + Sync {
    /// How it was opened.
    fn opening(&self) -> &ServerInfo;

    /// Sends a request of ours. An error means that nothing was written.
    ///
    /// # Errors
    ///
    /// The process is gone, or takes no more.
    fn request(
        &self,
        method: &str,
        params: Option<&RawValue>,
        sink: Option<Arc<dyn NotificationSink>>,
    ) -> Result<SentRequest, CallError>;

    /// Sends the whole request of a client of the server's own era. An error means that nothing was written.
    /// `of_client`: what of the client's own headers goes with it. `account`: the request's owner, and the counter for
    /// the bytes of its answer.
    ///
    /// # Errors
    ///
    /// As for [`Self::request`].
    fn forward(
        &self,
        request: &Request,
        sink: Option<Arc<dyn NotificationSink>>,
        of_client: Option<&Arc<HeaderMap>>,
        account: Option<CallAccount>,
    ) -> Result<SentRequest, CallError>;

    /// Sends the whole notification of a client.
    ///
    /// # Errors
    ///
    /// The process is gone, or takes no more.
    fn notify(&self, message: &str) -> Result<(), CallError>;

    /// The backends that the request was tried at, where it could have gone to any.
    fn tried(&self) -> &[BackendId] {
        &[]
    }

    /// The backend that it leads to, of a server that is reached over HTTP.
    fn backend(&self) -> Option<&BackendId> {
        None
    }

    /// Whose the tasks of the process are.
    fn tasks(&self) -> &Tasks;

    /// Registers a listener for messages of a shared process that can only concern the owner of this use, for as long
    /// as the process is held. Called once: the listener does not change.
    fn hear(&self, listener: Listener);

    /// Asks for news of a resource, for one more client. `None`: others had asked for it before.
    ///
    /// # Errors
    ///
    /// When the server cannot be asked, or is asked for too much already.
    async fn subscribe(&self, uri: &str) -> Result<Option<ResponseOutcome>, CallError>;

    /// Asks for log messages from that level on, now and after a restart. What was asked for that much already is not asked
    /// again.
    async fn set_log_level(&self, level: LogLevel) -> Result<ResponseOutcome, CallError>;

    /// The server answered a request of its one client with a result.
    fn granted(&self, _method: &str, _params: Option<&RawValue>) {}

    /// The request it was leased for has its answer: one that nobody else had may serve another.
    fn answered(&self);
}

/// An error of ours as its peer is told it.
pub(crate) fn error_object(code: i32, message: &str) -> Bytes {
    serde_json::json!({ "code": code, "message": message })
        .to_string()
        .into()
}
