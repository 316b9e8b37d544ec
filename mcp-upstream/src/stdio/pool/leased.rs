//! Leases: a process in use by one request.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::LogLevel;
use tooldock_workers::remote::BackendId;

use super::PoolShared;
use super::key::{ConnectionKey, OpenAs};
use super::replay_state::{LastingRequest, ReplayState};
use super::state::{PoolEvent, ProcessId};
use crate::jsonrpc::ResponseOutcome;
use crate::protocol::Era;
use crate::stdio::link::Link;
use crate::stdio::process::tasks::Tasks;
use crate::stdio::process::{ListenerGuard, Process, ProcessListener, ProcessOpening};

/// A lease of a process for one request, held until the response. Dropping it returns the process. A process for a single
/// request is ended, unless the request called [`ProcessLease::answered`] and the process has no open questions, calls or
/// tasks.
pub(crate) struct ProcessLease {
    pool: Arc<PoolShared>,
    id: ProcessId,
    process: Arc<Process>,
    replay_state: Arc<ReplayState>,
    /// The handshake of a process that serves this request alone.
    exclusive: Option<Arc<OpenAs>>,
    /// True for a process of one session.
    session: bool,
    /// Backends at which the request was tried, the current one last; for connections at several backends that all clients
    /// share.
    tried: Vec<BackendId>,
    since: Instant,
    answered: bool,
    /// True once the response to the last request that the gateway sent on this lease has arrived.
    heard: AtomicBool,
}

impl ProcessLease {
    /// Builds the lease that the state machine has granted and counted. Called under the pool's lock.
    pub(super) fn new(
        pool: &Arc<PoolShared>,
        id: ProcessId,
        process: Arc<Process>,
        replay_state: Arc<ReplayState>,
        key: &ConnectionKey,
        open: &Arc<OpenAs>,
    ) -> Self {
        process.enter();
        let exclusive = (*key == ConnectionKey::Exclusive).then(|| Arc::clone(open));
        Self {
            pool: Arc::clone(pool),
            id,
            process,
            replay_state,
            exclusive,
            session: matches!(key, ConnectionKey::Session(_)),
            tried: Vec::new(),
            since: Instant::now(),
            answered: false,
            heard: AtomicBool::new(false),
        }
    }

    /// Connects the request's handler to a process for this request alone. Called outside the pool's lock.
    pub(super) fn activated(self) -> Self {
        if let Some(open) = &self.exclusive {
            // The process may have served another request before.
            self.process.router().set_own(open.inbound.clone());
        }
        self
    }

    /// Sets the backends at which the request was tried.
    pub(super) fn after(mut self, tried: Vec<BackendId>) -> Self {
        self.tried = tried;
        self
    }

    /// The backends at which the request was tried, for connections that are spread over backends.
    pub(crate) fn tried(&self) -> &[BackendId] {
        &self.tried
    }

    /// The backend of a server that is reached over HTTP.
    pub(crate) fn backend(&self) -> Option<&BackendId> {
        self.process.backend()
    }

    /// The process's era, and the server's description of itself.
    pub(crate) fn opened(&self) -> &ProcessOpening {
        self.process.opened()
    }

    /// The pid of the process. Panics for a session of a remote server.
    #[cfg(test)]
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid().expect("a process")
    }

    pub(super) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Registers a listener for messages of the process that belong to no call but can only concern the owner of this
    /// request. For shared processes only: a process with a single user has a handler.
    pub(crate) fn hear(&self, listener: ProcessListener) -> ListenerGuard {
        self.process.router().hear(listener)
    }

    /// The owners of the tasks on the process.
    pub(crate) fn tasks(&self) -> &Tasks {
        self.process.router().tasks()
    }

    /// Records that the request was answered, with the time that it took.
    pub(crate) fn answered(&mut self) {
        if !std::mem::replace(&mut self.answered, true) {
            let time = self.since.elapsed();
            self.pool.metrics.calls.observe(time.as_secs_f64());
            self.process.answered();
        }
    }

    /// Adds a client's subscription to a resource. The server gets one request: later clients wait for its response, and one of
    /// them repeats the request if there was none. Returns the server's response to the client that sent the request, `None` to
    /// all others. A restarted server gets the request again.
    ///
    /// # Errors
    ///
    /// When there are too many subscriptions, or the request to the server fails.
    pub(crate) async fn subscribe(&self, uri: &str) -> Result<Option<ResponseOutcome>, CallError> {
        self.replay_state.subscribe(uri).map_err(|error| {
            let name = self.pool.name();
            let message = format!("namespace {name}: {error}");
            CallError::new(CallErrorCode::Overloaded, message)
        })?;
        // The single subscription of a modern server is renewed by its keeper.
        if self.opened().era() == Era::Modern {
            return Ok(None);
        }
        let mut undo = Undo {
            replay_state: &self.replay_state,
            uri: Some(uri),
        };
        let mut granted = None;
        if let Some(confirmed) = self.replay_state.confirmed(uri) {
            let asked = confirmed.get_or_try_init(async || {
                let params = json!({ "uri": uri });
                match self.ask("resources/subscribe", &params).await {
                    Ok(reply @ ResponseOutcome::Result(_)) => {
                        self.ask_everywhere("resources/subscribe", &params).await;
                        granted = Some(reply);
                        Ok(())
                    }
                    other => Err(other),
                }
            });
            if let Err(refused) = asked.await {
                return refused.map(Some);
            }
        }
        undo.uri = None;
        Ok(granted)
    }

    /// Requests log messages of this level and above, also from replacements of this process. A shared process logs at the
    /// lowest level that any of its clients wants: `None` if that level is set already.
    ///
    /// # Errors
    ///
    /// When the request to the server fails.
    pub(crate) async fn set_log_level(
        &self,
        level: LogLevel,
    ) -> Result<Option<ResponseOutcome>, CallError> {
        let before = self.replay_state.level();
        // Recorded before the request, so that of two concurrent requests the one for the lower level is the last.
        if !self.replay_state.lower_level(level) {
            return Ok(None);
        }
        let params = json!({ "level": level.as_str() });
        let reply = self.ask("logging/setLevel", &params).await;
        match reply {
            Ok(ResponseOutcome::Result(_)) => {
                self.ask_everywhere("logging/setLevel", &params).await;
            }
            _ => self.replay_state.restore_level(level, before),
        }
        reply.map(Some)
    }

    /// Sends a granted request also to the other backends that all clients share.
    async fn ask_everywhere(&self, method: &str, params: &serde_json::Value) {
        let Some(own) = self.tried.last() else {
            return;
        };
        let key = ConnectionKey::Replica(own.clone());
        let params = to_raw_value(params).expect("a value into memory");
        let place = (&key, self.opened().era());
        self.pool
            .ask_everywhere(place, self.id, method, &params)
            .await;
    }

    /// Records that the server granted a request of its only client. If the effect lasts, the request is sent to a replacement
    /// of this process, too.
    pub(crate) fn granted(&self, method: &str, params: Option<&RawValue>) {
        if let Some(wish) = self
            .session
            .then(|| LastingRequest::of(method, params))
            .flatten()
        {
            self.replay_state.note(wish);
        }
    }

    async fn ask(
        &self,
        method: &str,
        params: &serde_json::Value,
    ) -> Result<ResponseOutcome, CallError> {
        let params = to_raw_value(params).expect("a value into memory");
        self.heard.store(false, Ordering::Relaxed);
        let reply = self.request(method, Some(&params), None)?.await;
        if reply.is_ok() {
            self.heard.store(true, Ordering::Relaxed);
            self.process.answered();
        }
        reply
    }
}

/// Guard that reverts a subscription if the server did not confirm it.
struct Undo<'a> {
    replay_state: &'a ReplayState,
    uri: Option<&'a str>,
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(uri) = self.uri {
            self.replay_state.unsubscribe(uri);
        }
    }
}

impl Deref for ProcessLease {
    type Target = Link;

    fn deref(&self) -> &Link {
        self.process.link()
    }
}

impl Drop for ProcessLease {
    fn drop(&mut self) {
        self.process.leave();
        let link = self.process.link();
        if !self.answered
            && !self.heard.load(Ordering::Relaxed)
            && !link.is_closed()
            && self.process.waited_in_vain(self.since) >= self.pool.patience.suspect_after
        {
            self.process.suspect();
        }
        // A process that has asked its client or has unfinished work is not reused: its data must not reach the next client.
        let router = self.process.router();
        let clean = !router.has_asked() && link.in_flight() == 0 && !router.has_unfinished();
        let reusable = self.answered && clean && !link.is_closed();
        if self.exclusive.is_some() {
            self.process.router().set_own(None);
        } else if self.pool.release_at_once(self.id) {
            return;
        }
        self.pool.apply(PoolEvent::Released {
            process: self.id,
            reusable,
        });
    }
}

impl fmt::Debug for ProcessLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessLease")
            .field("process", &self.process.pid())
            .field("exclusive", &self.exclusive.is_some())
            .finish_non_exhaustive()
    }
}
