//! What streams of a session keep so that a client that lost one can go on where it was. One implementation keeps it
//! in this process; a shared one may follow behind the same trait.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{Stream, StreamOwner, Subscription};

/// What a stream of a session is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// What the server says on its own; a GET of the client.
    General,
    /// What belongs to one request; the answer to a POST.
    Request,
    /// The one stream of an HTTP+SSE session. It has no ids and keeps nothing: that transport cannot resume.
    Sse,
}

/// Opens, feeds and resumes the streams of sessions.
///
/// Within one stream events are delivered in the order in which they were appended, each once to one reader, and after
/// a resume again from the named one on. Appending never waits for a reader: one that leaves too much unread loses its
/// stream, not its log.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Opens a stream of a session. With `prime` its first reader gets an event without data first, whose id it can
    /// resume from (2025-11-25 and later). In a session that has ended the stream is over from the start.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the log cannot be written.
    async fn open(
        &self,
        session: &dyn StreamOwner,
        kind: StreamKind,
        prime: bool,
    ) -> Result<Arc<Stream>, StoreError>;

    /// Puts a message on a stream of the session. On a stream that is over it goes nowhere.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the log cannot be written.
    async fn append(
        &self,
        session: &dyn StreamOwner,
        stream: &Arc<Stream>,
        message: &[u8],
    ) -> Result<(), StoreError>;

    /// Puts a message on exactly one general stream of the session: the newest that has a reader, else the newest, for
    /// its client to fetch. Answers whether there was one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the log cannot be written.
    async fn append_general(
        &self,
        session: &dyn StreamOwner,
        message: &[u8],
    ) -> Result<bool, StoreError>;

    /// The same message for many sessions, each as [`EventLog::append_general`] does it. Answers how many it reached.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the log cannot be written.
    async fn broadcast(
        &self,
        sessions: &[&dyn StreamOwner],
        message: &[u8],
    ) -> Result<usize, StoreError> {
        let mut reached = 0;
        for session in sessions {
            reached += usize::from(self.append_general(*session, message).await?);
        }
        Ok(reached)
    }

    /// Takes up a stream behind an event. A reader that was still attached loses it. What is older than the log is
    /// left out; a stream that is no longer kept goes on empty (a general one) or is over (a request's).
    ///
    /// # Errors
    ///
    /// [`ResumeError`].
    async fn resume(
        &self,
        session: &dyn StreamOwner,
        last_event_id: &str,
    ) -> Result<Subscription, ResumeError>;

    /// Ends the session's streams and forgets their events. To be called once the session is closed.
    async fn forget(&self, session: &dyn StreamOwner);

    /// Forgets events whose time is up. To be called every second or so.
    fn sweep(&self, now: Instant);
}

/// Why a stream cannot be taken up.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The id is not spelled like one of ours.
    #[error("malformed event id")]
    Malformed,
    /// The session never had such an event.
    #[error("unknown event id")]
    Unknown,
    /// The log cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The store failed. The text is for the log, not for clients.
#[derive(Debug, thiserror::Error)]
#[error("session store: {0}")]
pub struct StoreError(pub String);
