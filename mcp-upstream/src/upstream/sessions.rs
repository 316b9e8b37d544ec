//! How a client's message changes its session: one write path for surfaces and upstreams.

use std::sync::Arc;

use tokio::time::Instant;

use crate::jsonrpc::RequestError;
use crate::metrics::UpstreamMetrics;
use crate::session::table::SessionTable;
use crate::session::{PatchRefused, Session, SessionPatch};
use crate::stream::StoreError;

/// Changes what is recorded of sessions, and counts those that others had to give way for. Cheap to clone.
#[derive(Clone)]
pub(crate) struct SessionChanges {
    table: Arc<SessionTable>,
    metrics: Arc<UpstreamMetrics>,
}

impl SessionChanges {
    pub(crate) fn new(table: Arc<SessionTable>, metrics: Arc<UpstreamMetrics>) -> Self {
        Self { table, metrics }
    }

    /// Changes what is recorded of a session, and answers whether anything is different now. It may cost the session's
    /// principal other sessions.
    ///
    /// # Errors
    ///
    /// A bound that the change would break.
    pub(crate) async fn commit(
        &self,
        session: &Session,
        patch: SessionPatch,
    ) -> Result<bool, RequestError> {
        let committed = self.table.commit(session, patch, Instant::now()).await?;
        self.count_evicted(committed.evicted);
        Ok(committed.changed)
    }

    pub(crate) fn count_evicted(&self, evicted: usize) {
        if evicted > 0 {
            self.metrics.sessions_evicted.inc_by(evicted as u64);
            self.metrics.sessions.set(gauge(self.table.count()));
        }
    }
}

impl From<PatchRefused> for RequestError {
    fn from(refused: PatchRefused) -> Self {
        match refused {
            PatchRefused::Initialized => Self::Shape("the session is initialized already".into()),
            PatchRefused::TooMuch(error) => Self::InvalidParams(error.to_string().into()),
            PatchRefused::TooManySubscriptions(_) => Self::InvalidParams(
                "the session has the maximum of subscriptions: unsubscribe from a resource first"
                    .into(),
            ),
        }
    }
}

/// A store that cannot be asked, as its client hears of it; the log says more.
pub(crate) fn store_failure(error: &StoreError) -> RequestError {
    tracing::error!(%error, "the session store failed");
    RequestError::Internal
}

/// A store that cannot be asked about a session, as its client hears of it; the log says more.
pub(crate) fn store_away(error: &StoreError) -> RequestError {
    tracing::error!(%error, "a session cannot be looked up");
    RequestError::StoreAway
}

/// A count as a gauge's value.
pub(crate) fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
