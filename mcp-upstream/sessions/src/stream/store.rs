//! Port to a store of events outside of this process. Without a store, events exist only in the windows of the streams.
//!
//! A stream is read back completely, into a window, from which a client that resumes the stream is served as from any window.
//! The opening of a stream is stored as an event, too, since a client may resume right after it.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tooldock_protocol::seal::SessionId;

/// Identity of a kept stream in the store.
#[derive(Debug, Clone, Copy)]
pub struct StreamRef<'a> {
    /// The id of the stream's session.
    pub session: &'a SessionId,
    /// The stream's number in the session.
    pub number: u32,
}

/// A stored event of a stream.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// Sequence of the event; increases within a stream. That of an opening is behind the beginning of its
    /// epoch's range, also without an event to resume from.
    pub sequence: u64,
    /// The kind of the event, with its content.
    pub kind: EventKind,
}

/// The kind of an event, with its content.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The stream was opened.
    Opened {
        /// The requests whose responses the stream owes: their ids, raw JSON.
        owes: Vec<String>,
    },
    /// A message for the client.
    Message(String),
}

/// The stored remainder of a stream.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// The events in their order.
    pub events: Vec<StoredEvent>,
    /// Sequence of the newest event that was omitted; 0 if none was.
    pub dropped: u64,
}

/// Outcome of storing an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendOutcome {
    /// The event was stored.
    Kept,
    /// The event was not stored: another replica has claimed the session and now numbers the events of its streams.
    Foreign,
}

/// Stores the events of streams, each stream within the bounds of a window of this process; beyond those it may drop a stream's
/// oldest messages.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Appends an event to a stream.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn append(
        &self,
        stream: StreamRef<'_>,
        event: &StoredEvent,
    ) -> Result<AppendOutcome, StoreError>;

    /// Reads the opening and the newest messages of a stream, at most `max`. Empty if the stream is unknown.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be read.
    async fn read(&self, stream: StreamRef<'_>, max: usize) -> Result<Replay, StoreError>;

    /// Deletes the oldest streams of a session beyond the number that the store keeps. Called by a process that has adopted the
    /// session, since it does not count the streams of earlier processes when it opens its own.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn trim(&self, _session: &SessionId) -> Result<(), StoreError> {
        Ok(())
    }

    /// Deletes all streams of a session.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    async fn forget(&self, session: &SessionId) -> Result<(), StoreError>;
}

/// Failure of the store. The text is for the log, not for clients.
#[derive(Debug, Clone, thiserror::Error)]
#[error("session store: {0}")]
pub struct StoreError(pub String);

impl fmt::Debug for StoredEvent {
    /// The content is omitted, since it is the client's data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredEvent")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}
