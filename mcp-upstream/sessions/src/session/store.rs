//! Interface to a store of sessions outside of this process. Without a store, sessions end with the process and nothing is
//! recorded.
//!
//! The table finds a live session without a request to the store, and records its changes by patches. Store operations compare
//! at most the home of a record, never the session's state: the effect of a patch does not depend on the earlier value, so a
//! writer need not read before it writes.

use async_trait::async_trait;

use super::{Home, SessionId, SessionPatch, SessionRecord};
use crate::stream::StoreError;

/// Stores the records of sessions. Each operation is atomic. A record that is not touched for twice the lifetime of a session may
/// be deleted.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Stores the complete record of a session, and replaces an earlier record unless its home is another replica. Returns true
    /// if the record was stored.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn insert(&self, record: &SessionRecord) -> Result<bool, StoreError>;

    /// Loads the record of a session.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be read.
    async fn load(&self, id: &str) -> Result<Option<SessionRecord>, StoreError>;

    /// Applies a patch, as [`SessionRecord::apply`] does. Deleted records, and records that another replica has claimed, are
    /// not changed.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn patch(&self, id: &SessionId, patch: &SessionPatch) -> Result<(), StoreError>;

    /// Moves a session from the home `from` to another home. Returns the resulting record; `None` if its home is no longer
    /// `from`.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn claim(
        &self,
        id: &SessionId,
        by: Home,
        from: Home,
    ) -> Result<Option<SessionRecord>, StoreError>;

    /// Marks sessions as still in use. Returns the sessions that have no record.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn touch(&self, ids: &[SessionId]) -> Result<Vec<SessionId>, StoreError>;

    /// Deletes a session's record, unless another replica has claimed it. Returns true if the store has no record of it
    /// afterwards.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn remove(&self, id: &SessionId) -> Result<bool, StoreError>;
}
