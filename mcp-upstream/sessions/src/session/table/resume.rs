//! Resumption of a session's streams, in this process or in the replica that has claimed the session.
//!
//! A replica that is disconnected from the store keeps its sessions, and another replica may claim them meanwhile. A client
//! that returns from the other replica then resumes after an event that this process never sent. The event's number does not
//! show that: the sequences of two processes overlap, since each counts the events of all its sessions. The session's record
//! shows it.

use std::sync::Arc;

use super::SessionTable;
use crate::replicas::ReplicaId;
use crate::session::Session;
use crate::stream::{ResumeError, Subscription};

/// Outcome of resuming a stream of a session.
#[derive(Debug)]
pub enum ResumedStream {
    /// The stream continues in this process.
    Here(Subscription),
    /// Another replica has claimed the session; this process releases it.
    Elsewhere(ReplicaId),
}

impl SessionTable {
    /// Resumes a stream of a session that is live in this process.
    ///
    /// # Errors
    ///
    /// [`ResumeError`], as [`EventLog::resume`](crate::stream::EventLog::resume) returns it. For an event that this process
    /// does not know, the error is [`ResumeError::Unknown`] only if the record shows that the session belongs to this replica.
    /// Otherwise it is [`ResumeError::Store`], since another replica may have sent the event.
    pub async fn resume(
        &self,
        session: &Arc<Session>,
        last_event_id: &str,
    ) -> Result<ResumedStream, ResumeError> {
        match self.events.resume(session, last_event_id).await {
            Ok(stream) => Ok(ResumedStream::Here(stream)),
            Err(ResumeError::Unknown) if self.replicas.are_many() => {
                match self.compare(session.id()).await? {
                    Some(home) if home != self.replicas.own() => Ok(ResumedStream::Elsewhere(home)),
                    Some(_) => Err(ResumeError::Unknown),
                    // A missing record means that no other replica has claimed the session, unless the store has lost its
                    // records. Such a loss is checked for first.
                    None => {
                        self.records_complete().await?;
                        Err(ResumeError::Unknown)
                    }
                }
            }
            Err(error) => Err(error),
        }
    }
}
