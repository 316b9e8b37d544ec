//! Interface to a store of events outside of this process. Without a store, events exist only in the windows of the streams.
//!
//! A stream is read completely from the store into a window, which then serves a client that resumes the stream. The opening of a
//! stream is stored as an event, too, since a client may resume immediately after it.

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

/// An event of a stream in the store.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// Sequence of the event. Sequences increase within a stream. The event that opened a stream has a sequence in the range of
    /// the stream's epoch, even if the client got no event to resume from.
    pub sequence: u64,
    /// The kind of the event, with its content.
    pub kind: EventKind,
}

/// The kind of an event, with its content.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The event states that the stream was opened.
    Opened {
        /// Ids of the requests whose responses belong on this stream, as raw JSON.
        owes: Vec<String>,
    },
    /// The event is a message for the client.
    Message(String),
}

/// Events of a stream that the store still contains.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// The events in the order of their sequences.
    pub events: Vec<StoredEvent>,
    /// Sequence of the newest event that is missing from `events`; 0 if none is.
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

/// Stores the events of streams. A stream's messages beyond the bounds of an in-memory window may be dropped, the oldest first.
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

    /// Reads the stored opening of a stream (how it was opened) and its newest messages, at most `max` messages. The result is
    /// empty if the stream is unknown.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be read.
    async fn read(&self, stream: StreamRef<'_>, max: usize) -> Result<Replay, StoreError>;

    /// Deletes the oldest streams of a session beyond the number that the store keeps. A process calls this after it has
    /// adopted the session, because opening a stream does not count the streams of earlier processes.
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

/// Failure of the store. Its text is for the log, not for clients.
#[derive(Debug, Clone, thiserror::Error)]
#[error("session store: {0}")]
pub struct StoreError(pub String);

impl fmt::Debug for StoredEvent {
    /// Omits the content of the event, which is the client's data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredEvent")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}
