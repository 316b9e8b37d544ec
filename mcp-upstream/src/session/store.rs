//! Where sessions live. One implementation keeps them in this process; a shared one may follow behind the same trait.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Binding, ClientFacts, Session};
pub use crate::stream::StoreError;

/// Creates, finds and ends sessions. An id is valid only while the store knows it.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Opens a session, whose client may have said already what it is. A full table makes room, in sessions and in bytes;
    /// the new session is not refused for it. A session that is not used for a while after that ends.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written, no id can be made, or the client said too much.
    async fn create(
        &self,
        binding: Binding,
        client: Option<ClientFacts>,
        now: Instant,
    ) -> Result<Created, StoreError>;

    /// The session of that id if it is alive. Finding it is no use of it: that is the caller's to say, once it knows
    /// that the session is the client's ([`Session::touch`]).
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be asked.
    async fn get(&self, id: &str, now: Instant) -> Result<Option<Arc<Session>>, StoreError>;

    /// What this process knows about an id, without waiting. May be stale or miss a
    /// session that lives elsewhere.
    fn peek(&self, id: &str) -> Option<Arc<Session>>;

    /// To be called after a session has come to hold more or less. Closes other sessions where that is too much together,
    /// and answers how many.
    fn weigh(&self, session: &Session, now: Instant) -> usize;

    /// Ends a session. Answers whether it was there.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    async fn remove(&self, id: &str) -> Result<bool, StoreError>;

    /// Ends sessions whose time is up and answers how many; a large backlog takes several sweeps. Costs by the number
    /// ended, not by the number alive.
    async fn evict_expired(&self, now: Instant) -> usize;

    /// Sessions alive in this process.
    fn count(&self) -> usize;

    /// What they hold, in bytes.
    fn bytes(&self) -> usize;
}

/// What opening a session did.
#[derive(Debug)]
pub struct Created {
    /// The new session.
    pub session: Arc<Session>,
    /// Sessions that were closed to make room.
    pub evicted: usize,
}
