//! The port to a store of events outside of this process. Without one the windows of the streams are all there is.
//!
//! A stream is read back as a whole, into a window. A client that resumes the stream is then served by the code that serves
//! any window. How a stream was opened is stored as an event, too: a client may resume right behind that event.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::seal::SessionId;

/// A stream of a session that keeps its events.
#[derive(Debug, Clone, Copy)]
pub struct StreamRef<'a> {
    /// The session.
    pub session: &'a SessionId,
    /// The stream's number in it.
    pub number: u32,
}

/// What happened to a stream.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredEvent {
    /// Increases within a stream. An opening without an event to come back to has 0.
    pub sequence: u64,
    /// What happened.
    pub kind: EventKind,
}

/// A kind of event, and what it holds.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The stream was opened.
    Opened {
        /// The requests whose responses it is for: their ids, raw JSON.
        owes: Vec<String>,
    },
    /// A message for the client.
    Message(String),
}

/// What is left of a stream.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// In their order.
    pub events: Vec<StoredEvent>,
    /// The newest event that is left out here; 0 if there is none.
    pub dropped: u64,
}

/// The answer of a store to an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It has.
    Kept,
    /// Another replica has claimed the session, and numbers its events now.
    Foreign,
}

/// Keeps the events of streams, each stream within the same bounds as a window of this process: beyond those it may forget
/// a stream's oldest messages.
#[async_trait]
pub trait EventStore: Send + Sync {
    /// Keeps one event more.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    async fn append(
        &self,
        stream: StreamRef<'_>,
        event: &StoredEvent,
    ) -> Result<Appended, StoreError>;

    /// The opening and the newest messages of a stream, at most so many. Nothing, if the stream is not known any more.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be read.
    async fn read(&self, stream: StreamRef<'_>, max: usize) -> Result<Replay, StoreError>;

    /// Forgets all streams of a session.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store cannot be written.
    async fn forget(&self, session: &SessionId) -> Result<(), StoreError>;
}

/// The store failed. The text is for the log, not for clients.
#[derive(Debug, Clone, thiserror::Error)]
#[error("session store: {0}")]
pub struct StoreError(pub String);

impl fmt::Debug for StoredEvent {
    /// Without what is said: that is the client's.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredEvent")
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}
