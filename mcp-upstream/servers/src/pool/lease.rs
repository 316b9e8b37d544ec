//! Leases of processes for requests. A lease is usually granted at once, otherwise after a wait until a process is idle or has
//! started.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tooldock_base::error::CallError;
use tooldock_protocol::version::Era;
use tooldock_workers::remote::BackendId;

use super::state::{LeaseRefusal, PoolEvent, ProcessId, WaiterId};
use super::{PoolShared, ProcessLease};
use crate::key::{ConnectionKey, OpenAs};

/// Time limit for the pool to notice that a leased process has just ended.
const NOTICE: Duration = Duration::from_secs(1);
/// Number of leased processes that may turn out to have ended. After that many attempts the request fails.
const TRIES: usize = 3;

/// A request that waits for a process, as the pool stores it.
pub(super) struct LeaseRequest {
    pub(super) give: oneshot::Sender<Result<ProcessLease, LeaseRefusal>>,
    pub(super) key: ConnectionKey,
    pub(super) open: Arc<OpenAs>,
    pub(super) since: Instant,
}

/// Guard of a request that waits for a process. Dropping it removes the request from the queue.
struct LeaseWaitGuard<'a> {
    pool: &'a Arc<PoolShared>,
    waiter: WaiterId,
}

impl Drop for LeaseWaitGuard<'_> {
    fn drop(&mut self) {
        let waiter = self.waiter;
        let left = self.pool.lock().waiters.remove(&waiter);
        if left.is_some() {
            drop(left);
            self.pool.apply(PoolEvent::Abandoned { waiter });
        }
    }
}

impl PoolShared {
    /// Leases a process for a request, and starts one if needed. If the chosen backend fails, other backends are tried.
    pub(super) async fn lease(
        self: &Arc<Self>,
        key: &ConnectionKey,
        open: &Arc<OpenAs>,
    ) -> Result<ProcessLease, CallError> {
        let mut avoid = open.avoid.clone();
        let hash = open.hash;
        let open = match key.is_common() && open.headers.is_none() {
            true => self.common(open.era),
            false => open,
        };
        let is_spread = self.is_spread(key);
        let mut key = self.spread(key, &avoid, hash);
        loop {
            let leased = self.lease_of(&key, open).await;
            let ConnectionKey::Replica(backend) = &*key else {
                return leased;
            };
            avoid.push(backend.clone());
            match leased {
                Ok(leased) => return Ok(leased.after(avoid)),
                Err(error) if !is_spread || avoid.len() > self.launcher.further_backends() => {
                    return Err(error);
                }
                Err(error) => match self.choose(&avoid, hash) {
                    Some(next) => key = Cow::Owned(ConnectionKey::Replica(next)),
                    None => return Err(error),
                },
            }
        }
    }

    /// Leases a process for a key whose backend is already chosen.
    async fn lease_of(
        self: &Arc<Self>,
        key: &ConnectionKey,
        open: &Arc<OpenAs>,
    ) -> Result<ProcessLease, CallError> {
        for _ in 0..TRIES {
            let leased = match self.grant_at_once(key, open) {
                Some(leased) => leased,
                None => self.wait_for_lease(key, open).await?,
            };
            if !leased.is_closed() {
                return Ok(leased);
            }
            // The process has just ended, which its keeper will soon report. The next attempt then finds another process.
            let process = Arc::clone(leased.process());
            drop(leased);
            process.is_over_within(NOTICE).await;
        }
        self.metrics.refused("unavailable");
        Err(self.unavailable("keeps ending", Some(Duration::from_secs(1))))
    }

    /// Leases a running process that several clients share. Returns `None` for other keys, and if the caller would have to wait.
    pub(super) fn lease_common(
        self: &Arc<Self>,
        key: &ConnectionKey,
        era: Era,
    ) -> Option<ProcessLease> {
        // A server with several backends is not handled here: `spread` chooses a backend for each request.
        if !key.is_common() || self.launcher.spreads() {
            return None;
        }
        let leased = self.grant_at_once(key, self.common(era))?;
        (!leased.is_closed()).then_some(leased)
    }

    /// Chooses the backend for a request on a connection that all clients share. For a server without several backends, the key
    /// is returned unchanged.
    pub(super) fn spread<'a>(
        &self,
        key: &'a ConnectionKey,
        avoid: &[BackendId],
        hash: u64,
    ) -> Cow<'a, ConnectionKey> {
        let chosen = match self.is_spread(key) {
            true => self.choose(avoid, hash),
            false => None,
        };
        match chosen {
            Some(backend) => Cow::Owned(ConnectionKey::Replica(backend)),
            None => Cow::Borrowed(key),
        }
    }

    fn is_spread(&self, key: &ConnectionKey) -> bool {
        *key == ConnectionKey::Shared && self.launcher.spreads()
    }

    /// Chooses a backend that is not in `avoid`. Backends at which opening a connection failed recently are chosen last.
    fn choose(&self, avoid: &[BackendId], hash: u64) -> Option<BackendId> {
        let mut failing = self.lock().state.failing(Instant::now());
        if failing.is_empty() {
            return self.launcher.replica(avoid, hash);
        }
        failing.extend_from_slice(avoid);
        let other = self.launcher.replica(&failing, hash);
        other.or_else(|| self.launcher.replica(avoid, hash))
    }

    fn common(&self, era: Era) -> &Arc<OpenAs> {
        match era {
            Era::Legacy => &self.common[0],
            Era::Modern => &self.common[1],
        }
    }

    fn grant_at_once(
        self: &Arc<Self>,
        key: &ConnectionKey,
        open: &Arc<OpenAs>,
    ) -> Option<ProcessLease> {
        let (id, process, replay_state) = {
            let mut inner = self.lock();
            let (id, replay_state) = inner.state.grant_at_once(key, open.era)?;
            let process = inner.live.get(&id).map(Arc::clone);
            (id, process, replay_state)
        };
        // A process that can be leased is always in `live`, since both are changed under the same lock.
        Some(ProcessLease::new(self, id, process?, replay_state, key, open).activated())
    }

    async fn wait_for_lease(
        self: &Arc<Self>,
        key: &ConnectionKey,
        open: &Arc<OpenAs>,
    ) -> Result<ProcessLease, CallError> {
        let (give, given) = oneshot::channel();
        let waiter = {
            let mut inner = self.lock();
            inner.next_waiter += 1;
            let waiter = inner.next_waiter;
            inner.waiters.insert(
                waiter,
                LeaseRequest {
                    give,
                    key: key.clone(),
                    open: Arc::clone(open),
                    since: Instant::now(),
                },
            );
            waiter
        };
        let _waiting = LeaseWaitGuard { pool: self, waiter };
        self.apply(PoolEvent::Lease {
            waiter,
            key: key.clone(),
            open: Arc::clone(open),
        });
        match given.await {
            Ok(Ok(leased)) => Ok(leased),
            Ok(Err(refusal)) => Err(self.refused(refusal)),
            // The sender is dropped without an answer only when the pool is dropped.
            Err(_) => Err(self.refused(LeaseRefusal::Retired)),
        }
    }

    /// Returns a process to the pool directly, if no request waits. Returns false if this is not possible; the caller must then
    /// send an event to the state machine.
    pub(super) fn release_at_once(&self, process: ProcessId) -> bool {
        let mut inner = self.lock();
        inner.state.waiting() == 0 && inner.state.release_at_once(process, Instant::now())
    }
}
