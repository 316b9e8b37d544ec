//! Changes of session records by clients' messages: the write path that surfaces and upstreams share.

use std::sync::Arc;

use tokio::time::Instant;
use tooldock_protocol::jsonrpc::RequestError;
use tooldock_sessions::session::table::SessionTable;
use tooldock_sessions::session::{Session, SessionPatch};
use tooldock_sessions::stream::StoreError;

use crate::metrics::UpstreamMetrics;

/// Changes the records of sessions, and counts the sessions that were evicted because of a limit. Cheap to clone.
#[derive(Clone)]
pub struct SessionChanges {
    table: Arc<SessionTable>,
    metrics: Arc<UpstreamMetrics>,
}

impl SessionChanges {
    /// Creates the changes of sessions in this table.
    pub fn new(table: Arc<SessionTable>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self { table, metrics }
    }

    /// Changes the record of a session. Returns true if the change made a difference. The change may evict other sessions of
    /// the principal.
    ///
    /// # Errors
    ///
    /// When the change would exceed a limit, or the store fails.
    pub async fn commit(
        &self,
        session: &Session,
        patch: SessionPatch,
    ) -> Result<bool, RequestError> {
        let committed = self.table.commit(session, patch, Instant::now()).await?;
        self.count_evicted(committed.evicted);
        Ok(committed.changed)
    }

    /// Counts sessions that were closed to make room.
    #[inline]
    pub fn count_evicted(&self, evicted: usize) {
        if evicted > 0 {
            self.metrics.sessions_evicted.inc_by(evicted as u64);
            self.metrics.sessions.set(gauge(self.table.count()));
        }
    }
}

/// The error for clients when the session store failed; the details are logged.
#[inline]
pub fn store_failure(error: &StoreError) -> RequestError {
    tracing::error!(%error, "the session store failed");
    RequestError::Internal
}

/// The error for clients when a session cannot be looked up in its store; the details are logged.
#[inline]
pub fn store_away(error: &StoreError) -> RequestError {
    tracing::error!(%error, "a session cannot be looked up");
    RequestError::StoreAway
}

/// A number of items as the value of a gauge.
#[inline]
pub fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
