//! Leases: the use of a process by one request.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::LogLevel;
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::version::{Era, ServerInfo};
use tooldock_workers::remote::BackendId;

use super::PoolShared;
use super::replay_state::{LastingRequest, ReplayState};
use super::state::{PoolEvent, ProcessId};
use crate::key::{ConnectionKey, OpenAs};
use crate::link::Link;
use crate::pool::process::tasks::Tasks;
use crate::pool::process::{ListenerGuard, Process, ProcessListener};

/// The use of a process for one request, until the response. Dropping it returns the process to the pool. A process for a single
/// request is then ended, unless [`ProcessLease::answered`] was called and the process has no open questions, calls or tasks.
pub struct ProcessLease {
    pool: Arc<PoolShared>,
    id: ProcessId,
    process: Arc<Process>,
    replay_state: Arc<ReplayState>,
    /// The opening parameters of a process that serves this request alone; `None` for other processes.
    exclusive: Option<Arc<OpenAs>>,
    /// True if the process serves one session.
    session: bool,
    /// Backends that were tried for the request, the current one last. Empty unless all clients share connections to several
    /// backends.
    tried: Vec<BackendId>,
    since: Instant,
    answered: AtomicBool,
    /// True once the response to the last request that the gateway itself sent on this lease has arrived.
    heard: AtomicBool,
}

impl ProcessLease {
    /// Creates the lease after the state machine has granted it. Called while the pool is locked.
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
            answered: AtomicBool::new(false),
            heard: AtomicBool::new(false),
        }
    }

    /// Passes the messages of a process that serves this request alone to the request's handler. Called outside the pool's lock.
    pub(super) fn activated(self) -> Self {
        if let Some(open) = &self.exclusive {
            // An exclusive process may have served another request before, so the handler is replaced.
            self.process.router().set_own(open.inbound.clone());
        }
        self
    }

    /// Sets the backends that were tried for the request.
    pub(super) fn after(mut self, tried: Vec<BackendId>) -> Self {
        self.tried = tried;
        self
    }

    /// Returns the backends that were tried for the request, for connections to several backends.
    #[inline]
    pub fn tried(&self) -> &[BackendId] {
        &self.tried
    }

    /// Returns the backend of the leased session of a remote server; `None` for a process.
    #[inline]
    pub fn backend(&self) -> Option<&BackendId> {
        self.process.backend()
    }

    /// Returns the server's description of itself, from the opening of the process.
    #[inline]
    pub fn opened(&self) -> &ServerInfo {
        self.process.opened()
    }

    /// Returns the process id, for tests. Panics for a session of a remote server.
    #[cfg(test)]
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid().expect("a process")
    }

    pub(super) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Registers a listener for messages of the process that belong to no call and can only concern the owner of this request. It
    /// is for shared processes only: a process that serves one client passes such messages to its handler.
    #[inline]
    pub fn hear(&self, listener: ProcessListener) -> ListenerGuard {
        self.process.router().hear(listener)
    }

    /// Returns the record of the tasks on the process and their owners.
    #[inline]
    pub fn tasks(&self) -> &Tasks {
        self.process.router().tasks()
    }

    /// Records that the request was answered. The first call also records the time since the lease began.
    #[inline]
    pub fn answered(&self) {
        if !self.answered.swap(true, Ordering::Relaxed) {
            let time = self.since.elapsed();
            self.pool.metrics.calls.observe(time.as_secs_f64());
            self.process.answered();
        }
    }

    /// Adds a client's subscription to a resource. The server gets only one request for each resource: later clients wait for its
    /// response, and if it fails, one of them sends the request again. Returns the server's response to the client whose request
    /// was sent, and `None` to all others. A restarted server gets the request again.
    ///
    /// # Errors
    ///
    /// When there are too many subscriptions, or the request to the server fails.
    pub async fn subscribe(&self, uri: &str) -> Result<Option<ResponseOutcome>, CallError> {
        self.replay_state.subscribe(uri).map_err(|error| {
            let name = self.pool.name();
            let message = format!("namespace {name}: {error}");
            CallError::new(CallErrorCode::Overloaded, message)
        })?;
        // A modern server has a single subscription for all resources, and the process's keeper renews it.
        if self.opened().era() == Era::Modern {
            return Ok(None);
        }
        let mut undo = SubscriptionRollback {
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

    /// Requests log messages of this level and above, from this process and from its later replacements. A shared process logs at
    /// the lowest level that any of its clients has requested. Returns `None` if that level was set already.
    ///
    /// # Errors
    ///
    /// When the request to the server fails.
    pub async fn set_log_level(
        &self,
        level: LogLevel,
    ) -> Result<Option<ResponseOutcome>, CallError> {
        let before = self.replay_state.level();
        // The level is recorded before the request is sent. Of two concurrent requests, the one for the lower level is then sent
        // last.
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

    /// Sends a request that the server has accepted also to its other backends, if all clients share connections to several.
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

    /// Records that the server accepted a request of the only client of this process. If the request has a lasting effect, it is
    /// sent again to a replacement of this process.
    pub fn granted(&self, method: &str, params: Option<&RawValue>) {
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

/// Guard that removes a client's subscription again if the server did not confirm it.
struct SubscriptionRollback<'a> {
    replay_state: &'a ReplayState,
    uri: Option<&'a str>,
}

impl Drop for SubscriptionRollback<'_> {
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
        let answered = *self.answered.get_mut();
        if !answered
            && !self.heard.load(Ordering::Relaxed)
            && !link.is_closed()
            && self.process.record_abandoned(self.since) >= self.pool.patience.suspect_after
        {
            self.process.request_ping();
        }
        // A process that sent its client a request, or has unfinished work, may have data of that client. It is not reused, so
        // that the data cannot reach the next client.
        let router = self.process.router();
        let clean = !router.has_asked() && link.in_flight() == 0 && !router.has_unfinished();
        let reusable = answered && clean && !link.is_closed();
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
