//! The port to a store of sessions outside of this process. Without one sessions end with the process, and nothing is
//! written anywhere.
//!
//! The live session is not in here: it is found in the table, without a wait, and what it does is recorded by patches. Only
//! taking a session up compares anything; a patch is the same whenever it arrives, so its writer need not read before.

use async_trait::async_trait;

use super::{Home, SessionId, SessionPatch, SessionRecord};
use crate::stream::StoreError;

/// Keeps the records of sessions. Each operation is whole or not at all. A record that is touched by nobody for twice the
/// lifetime of a session may be forgotten.
#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Keeps the record of a new session.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    async fn insert(&self, record: &SessionRecord) -> Result<(), StoreError>;

    /// The record of that session.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be read.
    async fn load(&self, id: &str) -> Result<Option<SessionRecord>, StoreError>;

    /// Makes a change, as [`SessionRecord::apply`] does it. A record that is gone stays gone, and a record that another replica has
    /// claimed stays as it is.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    async fn patch(&self, id: &SessionId, patch: &SessionPatch) -> Result<(), StoreError>;

    /// Gives a session another home, if its home is still `from`. Answers the record as it is then.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    async fn claim(
        &self,
        id: &SessionId,
        by: Home,
        from: Home,
    ) -> Result<Option<SessionRecord>, StoreError>;

    /// These sessions are still in use. Answers those that have no record.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    async fn touch(&self, ids: &[SessionId]) -> Result<Vec<SessionId>, StoreError>;

    /// Forgets a session. Answers whether there was a record.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    async fn remove(&self, id: &SessionId) -> Result<bool, StoreError>;
}
