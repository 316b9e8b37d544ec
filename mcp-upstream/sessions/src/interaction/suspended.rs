//! Calls that wait for their client between two of its requests (MRTR).
//!
//! A question ends the request that made it: the client receives the question and a sealed state, and the call is kept. A retry
//! with the state takes the call out; of two retries with the same state the first wins. The state is opaque to the client, and
//! valid for one principal, namespace, method, name and arguments only.
//!
//! Each suspended call is owned by a small task, which continues to poll it (its question may time out, its worker may end),
//! and drops and so cancels it if no retry takes it out in time. The table only refers to the task. A call is never run a
//! second time: a state whose call has ended is an error.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;
use sha2::Digest;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tooldock_base::names::NamespaceName;
use tooldock_base::parking::{ParkingFull, Shares};
use tooldock_protocol::seal::{BoundRequest, SessionKey, unix_millis};

use crate::replicas::{ReplicaId, ReplicaStatus, Replicas};

/// Length of a suspended call's number, in bytes. The number is random, so that it cannot be guessed, although the seal of the
/// state would suffice to protect the call.
const ID_BYTES: usize = 16;
/// Length of a request state before it is sealed, in bytes: number of the replica, number of the call, expiry in milliseconds of
/// Unix time, digest of the bound request.
const STATE_BYTES: usize = 4 + ID_BYTES + 8 + 32;

/// Maximum size of arguments that are compared by value, in bytes: 64 KiB. Parsed values use up to forty times the memory.
const ARGUMENTS_READ_MAX: usize = 64 * 1024;

type SuspensionId = [u8; ID_BYTES];

/// Reason why a retry gets no suspended call for its request state (`requestState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ResumeRefusal {
    /// The state was not created by this gateway, was changed, or was created for another request or principal.
    #[error("requestState is not valid for this request")]
    Invalid,
    /// The state has expired: no retry took the call out in time.
    #[error("requestState has expired; send the request again without it")]
    Expired,
    /// Another retry has taken the call, or the call ended together with the process that ran it.
    #[error(
        "no call waits for this requestState any more: it was used already or its call is gone; \
         send the request again without it"
    )]
    Gone,
    /// The call waits in a replica that cannot be reached now. The field is the number of that replica.
    #[error(
        "the call waits in another replica that cannot be reached now; try again in a few seconds"
    )]
    Elsewhere(u32),
}

/// The reason why a call cannot be suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SuspendRefusal {
    /// The maximum number of suspended calls of the namespace, or of the principal, is reached.
    #[error(transparent)]
    Full(ParkingFull),
    /// The operating system provided no random bytes, so that no state can be created.
    #[error("no randomness for a request state")]
    NoRandomness,
}

/// A call that can be suspended: it continues while it is suspended, until a retry takes it out.
pub trait Suspendable: Send + Sized + 'static {
    /// Continues the call until it has its response. Must store that response and be cancel safe.
    fn go_on(&mut self) -> impl Future<Output = ()> + Send;
}

/// The suspended calls of this process.
pub struct SuspendedCalls<T> {
    key: SessionKey,
    replicas: Arc<Replicas>,
    table: Arc<SuspensionTable<T>>,
}

/// Suspended calls by namespace and number. The lock is never held across an await.
struct SuspensionTable<T>(Mutex<HashMap<NamespaceName, NamespaceCalls<T>>>);

/// The suspended calls of one namespace.
struct NamespaceCalls<T> {
    entries: HashMap<SuspensionId, SuspensionEntry<T>>,
    /// Number of suspended calls of each principal, so that no principal exceeds its share of the namespace's maximum.
    shares: Shares,
}

struct SuspensionEntry<T> {
    principal: Arc<str>,
    claim: oneshot::Sender<oneshot::Sender<T>>,
    /// True once the call has its response, which waits for a retry; false while the call still runs.
    over: bool,
}

impl<T: Suspendable> SuspendedCalls<T> {
    /// Creates an empty table of suspended calls. `key` seals the request states, and each state contains the number of this
    /// replica.
    pub fn new(key: SessionKey, replicas: Arc<Replicas>) -> Self {
        Self {
            key,
            replicas,
            table: Arc::new(SuspensionTable(Mutex::default())),
        }
    }

    /// Suspends a call until `expires` and returns the sealed state with which a retry takes the call out. At most `max` calls of
    /// the namespace are kept, and for each principal only its share; an ended call makes room for another one.
    pub fn suspend(
        &self,
        call: T,
        bound: BoundRequest<'_>,
        expires: Instant,
        max: usize,
    ) -> Result<String, SuspendRefusal> {
        let mut id = SuspensionId::default();
        getrandom::fill(&mut id).map_err(|_| SuspendRefusal::NoRandomness)?;
        let state = self.seal(id, bound, expires)?;
        let (claim, claimed) = oneshot::channel();
        let mut table = self.table.lock();
        let calls = table.entry(bound.namespace.clone()).or_default();
        let principal: Arc<str> = bound.principal.unwrap_or_default().into();
        if let Err(full) = calls.shares.room(&principal, max) {
            // If the principal has used up its share, only a finished call of the same principal makes room.
            let own = full == ParkingFull::Principal;
            let goes =
                |entry: &SuspensionEntry<T>| entry.over && (!own || entry.principal == principal);
            let over = calls.entries.iter().find(|(_, entry)| goes(entry));
            let over = *over.ok_or(SuspendRefusal::Full(full))?.0;
            calls.remove(over);
        }
        let entry = SuspensionEntry {
            principal,
            claim,
            over: false,
        };
        calls.insert(id, entry);
        drop(table);
        let stay = SuspensionGuard {
            table: Arc::clone(&self.table),
            namespace: bound.namespace.clone(),
            id,
        };
        tokio::spawn(stay.run(call, claimed, expires));
        Ok(state)
    }

    /// Takes a suspended call out by its request state, if the state was created for this request.
    pub async fn take(&self, state: &str, bound: BoundRequest<'_>) -> Result<T, ResumeRefusal> {
        let (replica, id) = self.open(state, bound)?;
        match self.replicas.settled_status(replica).await {
            ReplicaStatus::Own => {}
            // The error must not state that the call has ended, since the client would then make the call a second time.
            ReplicaStatus::Up(_) | ReplicaStatus::Unclear => {
                return Err(ResumeRefusal::Elsewhere(replica.0));
            }
            ReplicaStatus::Leaving | ReplicaStatus::Gone => return Err(ResumeRefusal::Gone),
        }
        let entry = self
            .table
            .remove(bound.namespace, id)
            .ok_or(ResumeRefusal::Gone)?;
        let (hand, handed) = oneshot::channel();
        entry.claim.send(hand).map_err(|_| ResumeRefusal::Gone)?;
        handed.await.map_err(|_| ResumeRefusal::Gone)
    }

    /// Drops the calls of the principals for which `is_lost` is true, which cancels the calls.
    pub fn end_of(&self, is_lost: impl Fn(&str) -> bool) {
        let mut ended = Vec::new();
        let mut table = self.table.lock();
        for calls in table.values_mut() {
            let lost = calls
                .entries
                .iter()
                .filter(|(_, it)| is_lost(&it.principal));
            let lost: Vec<_> = lost.map(|(id, _)| *id).collect();
            ended.extend(lost.into_iter().filter_map(|id| calls.remove(id)));
        }
        table.retain(|_, calls| !calls.entries.is_empty());
        drop(table);
        // The entries are dropped after the lock is released, because dropping an entry ends the task of its call.
        drop(ended);
    }

    /// Returns true if a request's state belongs to a suspended call, including a call that has ended.
    pub fn seals(&self, state: Option<&RawValue>) -> bool {
        let state = state.and_then(tooldock_protocol::jsonrpc::string);
        let state = state.and_then(|state| self.key.open_state(&state));
        state.is_some_and(|state| state.len() == STATE_BYTES)
    }

    /// The number of calls that wait now.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        let table = self.table.lock();
        table.values().map(|calls| calls.entries.len()).sum()
    }

    fn seal(
        &self,
        id: SuspensionId,
        bound: BoundRequest<'_>,
        expires: Instant,
    ) -> Result<String, SuspendRefusal> {
        let left = expires.saturating_duration_since(Instant::now());
        let mut state = Vec::with_capacity(STATE_BYTES);
        state.extend_from_slice(&self.replicas.own().0.to_be_bytes());
        state.extend_from_slice(&id);
        state.extend_from_slice(&unix_millis(left).to_be_bytes());
        state.extend_from_slice(&digest_of(&bound));
        self.key
            .seal_state(&state)
            .map_err(|_| SuspendRefusal::NoRandomness)
    }

    fn open(
        &self,
        state: &str,
        bound: BoundRequest<'_>,
    ) -> Result<(ReplicaId, SuspensionId), ResumeRefusal> {
        let state = self.key.open_state(state).ok_or(ResumeRefusal::Invalid)?;
        let (replica, rest) = state.split_first_chunk().ok_or(ResumeRefusal::Invalid)?;
        let (id, rest) = rest.split_first_chunk().ok_or(ResumeRefusal::Invalid)?;
        let (expires, digest) = rest.split_first_chunk().ok_or(ResumeRefusal::Invalid)?;
        if *digest != digest_of(&bound) {
            return Err(ResumeRefusal::Invalid);
        }
        if u64::from_be_bytes(*expires) < unix_millis(Duration::ZERO) {
            return Err(ResumeRefusal::Expired);
        }
        Ok((ReplicaId(u32::from_be_bytes(*replica)), *id))
    }
}

/// Digest of the request to which a state is bound. A retry may spell equal arguments differently, if they are at most 64 KiB.
fn digest_of(bound: &BoundRequest<'_>) -> [u8; 32] {
    let mut hash = bound.hash();
    // Whitespace has no meaning, so arguments are compared by value. Numbers out of range (1e400) are compared by spelling, and
    // so are arguments whose value would use too much memory.
    let short = bound.arguments.len() <= ARGUMENTS_READ_MAX;
    let value = short.then(|| serde_json::from_slice::<serde_json::Value>(bound.arguments));
    match value {
        Some(Ok(arguments)) => hash.update(arguments.to_string()),
        Some(Err(_)) | None => hash.update(bound.arguments),
    }
    hash.finalize().into()
}

impl<T> SuspensionTable<T> {
    fn remove(&self, namespace: &NamespaceName, id: SuspensionId) -> Option<SuspensionEntry<T>> {
        let mut table = self.lock();
        let calls = table.get_mut(namespace)?;
        let entry = calls.remove(id);
        if calls.entries.is_empty() {
            table.remove(namespace);
        }
        entry
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NamespaceName, NamespaceCalls<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for NamespaceCalls<T> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            shares: Shares::default(),
        }
    }
}

impl<T> NamespaceCalls<T> {
    fn insert(&mut self, id: SuspensionId, entry: SuspensionEntry<T>) {
        self.shares.take(Arc::clone(&entry.principal));
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: SuspensionId) -> Option<SuspensionEntry<T>> {
        let entry = self.entries.remove(&id)?;
        self.shares.give_back(&entry.principal);
        Some(entry)
    }
}

/// Guard of a suspended call's table entry, owned by the call's task. Dropping it, even by a panic of the call, removes
/// the entry.
struct SuspensionGuard<T> {
    table: Arc<SuspensionTable<T>>,
    namespace: NamespaceName,
    id: SuspensionId,
}

impl<T> Drop for SuspensionGuard<T> {
    fn drop(&mut self) {
        // The entry is dropped after the lock is released. Usually a retry has removed it from the table before.
        let entry = self.table.remove(&self.namespace, self.id);
        drop(entry);
    }
}

impl<T: Suspendable> SuspensionGuard<T> {
    /// Keeps the suspended call until a retry takes it, its entry is removed, or `expires` is reached. Without a retry the call
    /// is dropped.
    async fn run(
        self,
        mut call: T,
        mut claimed: oneshot::Receiver<oneshot::Sender<T>>,
        expires: Instant,
    ) {
        let mut over = false;
        loop {
            tokio::select! {
                biased;
                // A retry takes the call, or its entry was removed.
                claim = &mut claimed => {
                    if let Ok(hand) = claim {
                        // If the client of the retry has disconnected meanwhile, sending fails and the call is dropped, as any
                        // modern call is dropped when its client disconnects.
                        let _ = hand.send(call);
                    }
                    return;
                }
                // No retry took the call in time.
                () = tokio::time::sleep_until(expires) => return,
                // The call has ended before a retry. Its response is kept until a retry takes it, or `expires` is reached.
                () = call.go_on(), if !over => {
                    over = true;
                    let mut table = self.table.lock();
                    let calls = table.get_mut(&self.namespace);
                    let entry = calls.and_then(|calls| calls.entries.get_mut(&self.id));
                    if let Some(entry) = entry {
                        entry.over = true;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
