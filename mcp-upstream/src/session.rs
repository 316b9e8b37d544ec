//! One client's conversation with one namespace.
//!
//! ```text
//!   initialize ──▶ New ── notifications/initialized ──▶ Ready
//!                   │                                     │
//!                   └───── DELETE, expiry, eviction ──────┴──▶ Closed
//! ```
//!
//! A session belongs to one namespace and one principal; for everyone else it does not exist (Q-07). Calls made in it
//! outlive the request that brought them: they end with their answer, by `notifications/cancelled`, or with the session.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tooldock_workers::names::NamespaceName;

use crate::protocol::ProtocolVersion;

pub mod config;
pub mod id;
mod in_flight;
mod last_use;
pub mod memory;
pub mod store;

pub use id::SessionId;
pub(crate) use in_flight::InFlight;
use last_use::LastUse;

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Initialized by us, not yet confirmed by the client.
    New = 0,
    /// In use.
    Ready = 1,
    /// Over; nothing brings it back.
    Closed = 2,
}

/// What a session is bound to, fixed at `initialize`.
#[derive(Debug, Clone)]
pub struct Binding {
    /// The namespace it talks to.
    pub namespace: NamespaceName,
    /// Whose token opened it.
    pub principal: Option<Arc<str>>,
    /// The version that was negotiated.
    pub version: ProtocolVersion,
}

/// A live session, shared by the store and the requests in it.
pub struct Session {
    id: SessionId,
    binding: Binding,
    /// Stands for the id in logs: an id is a credential.
    tag: Arc<str>,
    state: AtomicU8,
    became_ready: Notify,
    last_use: LastUse,
    in_flight: InFlight,
}

impl Session {
    /// A new session.
    pub fn new(id: SessionId, binding: Binding, now: Instant) -> Self {
        let digest = Sha256::digest(id.as_str().as_bytes());
        Self {
            tag: hex::encode(&digest[..8]).into(),
            id,
            binding,
            state: AtomicU8::new(State::New as u8),
            became_ready: Notify::new(),
            last_use: LastUse::new(now),
            in_flight: InFlight::default(),
        }
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// What it is bound to.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// A short digest of the id, for logs.
    pub fn tag(&self) -> &Arc<str> {
        &self.tag
    }

    /// Where it is in its life.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::New,
            1 => State::Ready,
            _ => State::Closed,
        }
    }

    /// Whether the session is this namespace's and this principal's.
    pub fn belongs_to(&self, namespace: &NamespaceName, principal: Option<&str>) -> bool {
        self.binding.namespace == *namespace && self.binding.principal.as_deref() == principal
    }

    /// The client confirmed the handshake. Says nothing to a closed session.
    pub fn confirm(&self) {
        let _ = self.state.compare_exchange(
            State::New as u8,
            State::Ready as u8,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        self.became_ready.notify_waiters();
    }

    /// Waits until the session is confirmed, at most so long: a request may overtake the confirmation on another
    /// connection (K-15). Answers whether it is.
    pub async fn confirmed_within(&self, patience: Duration) -> bool {
        if self.state() != State::New {
            return self.state() == State::Ready;
        }
        // Registered before the state is read again, so that a confirmation in between is not missed.
        let changed = self.became_ready.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if self.state() == State::New {
            let _ = timeout(patience, changed).await;
        }
        self.state() == State::Ready
    }

    /// Ends the session and the calls in it.
    pub fn close(&self) {
        self.state.store(State::Closed as u8, Ordering::Release);
        self.became_ready.notify_waiters();
        self.in_flight.cancel_all();
    }

    /// The session was used.
    pub fn touch(&self, now: Instant) {
        self.last_use.touch(now);
    }

    /// When the session was last used; a session with a call in flight is in use.
    pub fn used_at(&self, now: Instant) -> Instant {
        if self.in_flight.is_empty() {
            self.last_use.at()
        } else {
            now
        }
    }

    /// The calls running in it.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("tag", &self.tag)
            .field("binding", &self.binding)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Arc<Session> {
        let binding = Binding {
            namespace: "shared".parse().expect("a name"),
            principal: None,
            version: ProtocolVersion::V2025_11_25,
        };
        let id = SessionId::generate().expect("randomness");
        Arc::new(Session::new(id, binding, Instant::now()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_confirmation_that_arrives_while_waiting_is_seen() {
        let session = session();
        let waiting = tokio::spawn({
            let session = Arc::clone(&session);
            async move { session.confirmed_within(Duration::from_secs(1)).await }
        });
        tokio::task::yield_now().await;
        session.confirm();
        assert!(waiting.await.expect("not cancelled"));
        assert_eq!(session.state(), State::Ready);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_after_its_patience_or_with_the_session() {
        let session = session();
        let start = Instant::now();
        assert!(!session.confirmed_within(Duration::from_secs(1)).await);
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        session.close();
        session.confirm();
        assert!(!session.confirmed_within(Duration::from_secs(1)).await);
        assert_eq!(session.state(), State::Closed);
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }

    #[test]
    fn debug_output_does_not_hold_the_id() {
        let session = session();
        assert!(!format!("{session:?} {:?}", session.id()).contains(session.id().as_str()));
    }
}
