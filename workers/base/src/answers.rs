//! Limits the memory of responses that have not yet reached their clients. There is one limit for all responses, and each
//! principal has a fair share of it.
//!
//! ```text
//!   server ──▶ AnswerAccount::keep ──▶ bytes that carry their claim ──▶ reply ──▶ AnswerClaim::waiting ──▶ client
//! ```
//!
//! A claim counts the bytes of a response. It is attached to these bytes and ends when the last of them is freed. Responses
//! smaller than [`COUNTED_FROM`] are not counted at first, so that an ordinary call costs only one comparison. They are counted
//! once one of their writes has to wait for its client.
//!
//! When the limit is reached, responses whose clients do not read are closed. Each principal with counted bytes has an equal
//! share of the limit. A new response of a principal within its share closes waiting responses of the principal that uses most.
//! A principal beyond its share can only close responses that have stalled. Closing a response ends its connection or HTTP/2
//! stream.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::error::{CallError, CallErrorCode};
use crate::metric_table;

/// Size in bytes from which a response is always counted. A smaller response is counted only while it waits for its client.
pub const COUNTED_FROM: usize = 64 * 1024;

/// Time after which a response that its client does not read counts as stalled: 5 s. It may then be closed for any other
/// response.
const STANDS_STILL: Duration = Duration::from_secs(5);

/// Maximum time for which a call waits for free memory before it begins: 1 s.
const ROOM_WAIT: Duration = Duration::from_secs(1);

metric_table! {
    /// Metrics of the memory for responses.
    pub struct AnswerMetrics(registry) {
        bytes: IntGauge = "tooldock_answer_bytes",
            "Bytes of large or waiting answers held in memory, from the server to the client";
        refused: IntCounter = "tooldock_answers_refused_total",
            "Calls and answers refused because all answers together reached their limit";
        closed: IntCounter = "tooldock_answers_closed_total",
            "Answers closed before their client had read them, to make room for others";
    }
}

/// Error: there is no memory left for further responses, because all responses together have reached their limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the answers that clients have not read yet take all the memory there is for answers")]
pub struct NoAnswerRoom;

impl From<NoAnswerRoom> for CallError {
    fn from(error: NoAnswerRoom) -> Self {
        let message = format!("There is no room for the answer: {error}; try again in 1 s");
        Self::new(CallErrorCode::Overloaded, message).retry_after(ROOM_WAIT)
    }
}

/// The principal in whose share a response is counted. For a caller without a principal it is the client's address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum AnswerOwner {
    Principal(Arc<str>),
    Address(IpAddr),
}

/// The limit on the memory of all responses in this process that have not yet reached their clients.
pub struct AnswerBudget {
    /// The limit for all responses together, in bytes.
    total: AtomicUsize,
    /// Copy of the ledger's counted bytes, which can be read without the lock.
    held: AtomicUsize,
    /// The counts by principal. The lock is taken only for responses that are large or wait. It is never held across an await or
    /// a call to other modules.
    ledger: Mutex<AnswerLedger>,
    /// Notified when memory for responses was freed or the limit was changed.
    freed: Notify,
    metrics: AnswerMetrics,
}

#[derive(Default)]
struct AnswerLedger {
    /// Total bytes of all claims that are not closed.
    held: usize,
    /// Total bytes of closed claims whose connections have not ended yet.
    closing: usize,
    /// The counted responses by principal.
    owners: HashMap<AnswerOwner, OwnedAnswers>,
    /// Sequence number of the response that began to wait most recently.
    turn: u64,
}

/// The counted responses of one principal.
#[derive(Default)]
struct OwnedAnswers {
    bytes: usize,
    claims: usize,
    /// Responses that wait for their client, by sequence number. The first has waited longest.
    waiting: BTreeMap<u64, (Instant, Arc<ClaimState>)>,
}

struct ClaimState {
    account: AnswerAccount,
    /// Number of bytes that the claim counts. It is changed only under the ledger's lock.
    bytes: AtomicUsize,
    /// True if the response was closed because other responses needed the memory. It is set once, under the ledger's lock.
    is_closed: AtomicBool,
    closed: Notify,
}

impl AnswerBudget {
    /// Creates a memory limit of `total` bytes for all responses.
    pub fn new(total: usize, metrics: AnswerMetrics) -> Arc<Self> {
        Arc::new(Self {
            total: AtomicUsize::new(total),
            held: AtomicUsize::new(0),
            ledger: Mutex::default(),
            freed: Notify::new(),
            metrics,
        })
    }

    /// Creates a memory limit that is never reached, for a process that serves one client.
    ///
    /// # Panics
    ///
    /// Never: the names of its metrics are valid.
    pub fn unbounded() -> Arc<Self> {
        let metrics = AnswerMetrics::new(&prometheus::Registry::new());
        Self::new(usize::MAX, metrics.expect("valid names of metrics"))
    }

    /// Changes the memory limit for all responses, in bytes. If the new limit is already exceeded, no response is closed for
    /// that.
    pub fn set_total(&self, total: usize) {
        self.total.store(total, Ordering::Relaxed);
        self.freed.notify_waiters();
    }

    /// Number of counted bytes, including closed responses whose connections have not ended yet.
    pub fn bytes(&self) -> usize {
        let ledger = self.ledger();
        ledger.held + ledger.closing
    }

    fn is_tight(&self) -> bool {
        let held = self.held.load(Ordering::Relaxed);
        held.saturating_add(COUNTED_FROM) > self.total.load(Ordering::Relaxed)
    }

    fn ledger(&self) -> MutexGuard<'_, AnswerLedger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change to the ledger. Claims that the change closes are notified and dropped after the lock is released, because
    /// dropping them takes the lock.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut AnswerLedger, usize, &mut Vec<Arc<ClaimState>>) -> T,
    ) -> T {
        let mut closed = Vec::new();
        let total = self.total.load(Ordering::Relaxed);
        let outcome = {
            let mut ledger = self.ledger();
            let outcome = change(&mut ledger, total, &mut closed);
            self.held.store(ledger.held, Ordering::Relaxed);
            let bytes = ledger.held.saturating_add(ledger.closing);
            self.metrics
                .bytes
                .set(i64::try_from(bytes).unwrap_or(i64::MAX));
            outcome
        };
        self.metrics.closed.inc_by(closed.len() as u64);
        for claim in closed {
            claim.closed.notify_one();
        }
        outcome
    }
}

impl fmt::Debug for AnswerBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerBudget")
            .field("total", &self.total)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

impl AnswerLedger {
    fn owned_by(&self, owner: &AnswerOwner) -> usize {
        self.owners.get(owner).map_or(0, |owned| owned.bytes)
    }

    /// The share of each principal in bytes: the limit, divided by the number of principals with counted bytes, including
    /// `owner`.
    fn share(&self, owner: &AnswerOwner, total: usize) -> usize {
        let owners = self.owners.len() + usize::from(!self.owners.contains_key(owner));
        total / owners.max(1)
    }

    /// Returns true if a principal would stay within its share with `bytes` more.
    fn is_within_share(&self, owner: &AnswerOwner, bytes: usize, total: usize) -> bool {
        self.owned_by(owner).saturating_add(bytes) <= self.share(owner, total)
    }

    /// Frees memory for `bytes` by closing responses that wait for their clients. Returns true if there is room afterwards.
    fn make_room(
        &mut self,
        owner: &AnswerOwner,
        bytes: usize,
        total: usize,
        closed: &mut Vec<Arc<ClaimState>>,
    ) -> bool {
        while self.held.saturating_add(bytes) > total {
            let is_within = self.is_within_share(owner, bytes, total);
            let Some(claim) = self.longest_waiting(owner, is_within, total) else {
                return false;
            };
            claim.is_closed.store(true, Ordering::Release);
            let freed = claim.bytes.load(Ordering::Relaxed);
            self.give_back(&claim.account.owner, freed, 1);
            self.closing += freed;
            closed.push(claim);
        }
        true
    }

    /// Selects the next response to close. Of the principals whose responses may be closed, the principal with the most counted
    /// bytes is taken; of its responses, the one that has waited longest for its client.
    fn longest_waiting(
        &mut self,
        owner: &AnswerOwner,
        is_within: bool,
        total: usize,
    ) -> Option<Arc<ClaimState>> {
        let share = self.share(owner, total);
        let stands_still = |owned: &OwnedAnswers| {
            let first = owned.waiting.first_key_value();
            first.is_some_and(|(_, (since, _))| since.elapsed() >= STANDS_STILL)
        };
        let (_, owned) = self
            .owners
            .iter_mut()
            .filter(|(other, owned)| {
                let displaced = is_within && *other != owner && owned.bytes > share;
                !owned.waiting.is_empty() && (displaced || stands_still(owned))
            })
            .max_by_key(|(_, owned)| owned.bytes)?;
        owned.waiting.pop_first().map(|(_, (_, claim))| claim)
    }

    fn give_back(&mut self, owner: &AnswerOwner, bytes: usize, claims: usize) {
        self.held -= bytes;
        if let Some(owned) = self.owners.get_mut(owner) {
            owned.bytes -= bytes;
            owned.claims -= claims;
            if owned.claims == 0 {
                self.owners.remove(owner);
            }
        }
    }
}

/// Counts the responses to one caller.
#[derive(Debug, Clone)]
pub struct AnswerAccount {
    budget: Arc<AnswerBudget>,
    owner: AnswerOwner,
}

impl AnswerAccount {
    /// Creates the account of a principal, or of a client's address without a principal.
    pub fn new(budget: &Arc<AnswerBudget>, principal: Option<&Arc<str>>, client: IpAddr) -> Self {
        Self {
            budget: Arc::clone(budget),
            owner: match principal {
                Some(principal) => AnswerOwner::Principal(Arc::clone(principal)),
                None => AnswerOwner::Address(client),
            },
        }
    }

    /// Waits at most 1 s until a call may begin. A call must wait if the limit is reached and the caller has used its share,
    /// because there would be no memory for its response.
    ///
    /// # Errors
    ///
    /// [`NoAnswerRoom`] if no memory became free in that time.
    pub async fn room(&self) -> Result<(), NoAnswerRoom> {
        if !self.budget.is_tight() {
            return Ok(());
        }
        // The future is boxed, so that futures of ordinary calls stay small.
        Box::pin(self.wait_for_room()).await
    }

    async fn wait_for_room(&self) -> Result<(), NoAnswerRoom> {
        let deadline = Instant::now() + ROOM_WAIT;
        loop {
            // Created before the check. Otherwise memory that is freed between the check and the wait would go unnoticed.
            let freed = self.budget.freed.notified();
            let may_begin = self.budget.change(|ledger, total, closed| {
                ledger.is_within_share(&self.owner, COUNTED_FROM, total)
                    || ledger.make_room(&self.owner, COUNTED_FROM, total, closed)
            });
            if may_begin {
                return Ok(());
            }
            if timeout_at(deadline, freed).await.is_err() {
                self.budget.metrics.refused.inc();
                return Err(NoAnswerRoom);
            }
        }
    }

    /// Counts `bytes` in the caller's account and in the limit of all responses, until the returned claim and all its copies are
    /// dropped.
    ///
    /// # Errors
    ///
    /// [`NoAnswerRoom`] if the limit would be exceeded; nothing is counted then.
    #[inline]
    pub fn claim(&self, bytes: usize) -> Result<AnswerClaim, NoAnswerRoom> {
        self.take(bytes, 1)?;
        Ok(AnswerClaim(Arc::new(ClaimState {
            account: self.clone(),
            bytes: AtomicUsize::new(bytes),
            is_closed: AtomicBool::new(false),
            closed: Notify::new(),
        })))
    }

    /// Counts the bytes of a response until the last of them is freed. A small response is returned without being counted.
    ///
    /// # Errors
    ///
    /// [`NoAnswerRoom`] if the limit would be exceeded.
    #[inline]
    pub fn keep(&self, bytes: Bytes) -> Result<Bytes, NoAnswerRoom> {
        if bytes.len() < COUNTED_FROM {
            return Ok(bytes);
        }
        Ok(self.claim(bytes.len())?.keep(bytes))
    }

    fn take(&self, bytes: usize, claims: usize) -> Result<(), NoAnswerRoom> {
        let taken = self.budget.change(|ledger, total, closed| {
            if !ledger.make_room(&self.owner, bytes, total, closed) {
                return false;
            }
            ledger.held += bytes;
            let owned = ledger.owners.entry(self.owner.clone()).or_default();
            owned.bytes += bytes;
            owned.claims += claims;
            true
        });
        match taken {
            true => Ok(()),
            false => {
                self.budget.metrics.refused.inc();
                Err(NoAnswerRoom)
            }
        }
    }
}

/// A count of a response's bytes. Copies share the count. It ends when the last copy is dropped.
#[derive(Clone)]
pub struct AnswerClaim(Arc<ClaimState>);

impl AnswerClaim {
    /// Attaches the claim to the bytes, so that it ends when the last of them is freed.
    #[must_use]
    #[inline]
    pub fn keep(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ClaimedBytes {
            bytes,
            _claim: self,
        })
    }

    /// Adds bytes to the claim.
    ///
    /// # Errors
    ///
    /// [`NoAnswerRoom`] if the limit would be exceeded or the response was closed; the claim is not changed then.
    pub fn grow(&self, bytes: usize) -> Result<(), NoAnswerRoom> {
        if self.0.is_closed.load(Ordering::Acquire) {
            return Err(NoAnswerRoom);
        }
        self.0.account.take(bytes, 0)?;
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Registers the response as waiting for its client until the returned value is dropped.
    pub fn waiting(&self) -> WaitingAnswer {
        let account = &self.0.account;
        let turn = account.budget.change(|ledger, _, _| {
            ledger.turn += 1;
            let is_closed = self.0.is_closed.load(Ordering::Acquire);
            if !is_closed && let Some(owned) = ledger.owners.get_mut(&account.owner) {
                let since = (Instant::now(), Arc::clone(&self.0));
                owned.waiting.insert(ledger.turn, since);
            }
            ledger.turn
        });
        WaitingAnswer {
            claim: self.clone(),
            turn,
        }
    }
}

impl fmt::Debug for AnswerClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerClaim")
            .field("bytes", &self.0.bytes)
            .finish_non_exhaustive()
    }
}

/// A response that is registered as waiting for its client to read.
#[derive(Debug)]
pub struct WaitingAnswer {
    claim: AnswerClaim,
    turn: u64,
}

impl WaitingAnswer {
    /// Waits until the response is closed because others need its memory. The caller must then drop the response immediately, and
    /// close its connection.
    pub async fn closed(&self) {
        let state = &self.claim.0;
        loop {
            if state.is_closed.load(Ordering::Acquire) {
                return;
            }
            state.closed.notified().await;
        }
    }
}

impl Drop for WaitingAnswer {
    fn drop(&mut self) {
        let account = &self.claim.0.account;
        account.budget.change(|ledger, _, _| {
            if let Some(owned) = ledger.owners.get_mut(&account.owner) {
                owned.waiting.remove(&self.turn);
            }
        });
    }
}

struct ClaimedBytes {
    bytes: Bytes,
    _claim: AnswerClaim,
}

impl AsRef<[u8]> for ClaimedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for ClaimState {
    fn drop(&mut self) {
        let (bytes, is_closed) = (*self.bytes.get_mut(), *self.is_closed.get_mut());
        let account = &self.account;
        account.budget.change(|ledger, _, _| match is_closed {
            true => ledger.closing -= bytes,
            false => ledger.give_back(&account.owner, bytes, 1),
        });
        account.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
