//! Event log of a session's streams, from which a client that lost its connection resumes a stream. The streams own the events,
//! and the session owns the streams; every event of a session is added to its stream by this module.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use tokio::time::Instant;
use tooldock_protocol::seal::SessionId;

use super::config::EventLogConfig;
use super::frame::{self, EventId};
use super::ledger::{Ledger, in_memory};
use super::owned::begin_of;
use super::staged::StagingGuard;
use super::store::{AppendOutcome, EventKind, EventStore, StoreError, StoredEvent, StreamRef};
use super::{KeepAlive, Stream, StreamLookup, StreamMetrics, StreamOwner, Subscription};

mod restore;

/// Number of sessions to which a broadcast appends before it yields to other tasks of the runtime.
const BROADCAST_STEP: usize = 256;
/// Maximum number of concurrent writes of one broadcast to the store. All replicas broadcast a change at the same time, and this
/// must not delay other operations of the store by more than 50 ms: with this limit the store needs 22 ms for the writes of 50
/// replicas (docs/scaling.md).
const WRITES: usize = 16;

/// Use of a session's stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Server notifications outside of calls, read by a GET request of the client.
    General,
    /// The messages of one request, sent in the response to its POST.
    Request,
    /// The only stream of an HTTP+SSE session. Its events have no ids and are not stored: that transport cannot resume.
    Sse,
}

/// Opens and resumes the streams of sessions, and adds their events.
///
/// Within one stream, events are delivered in the order in which they were appended, each once to one reader; a reader that
/// resumes gets the events after the given one. Appending never waits for a reader: a reader that leaves too much unread is
/// disconnected, but the events remain in the log.
pub struct EventLog {
    keep_alive: Arc<KeepAlive>,
    ledger: Arc<Ledger>,
    /// Store that keeps events outside of this process; `None` if there is none.
    store: Option<Arc<dyn EventStore>>,
    /// True if the most recent attempt to store an event has failed.
    fails: AtomicBool,
}

impl EventLog {
    /// Creates a log within these bounds. Its streams use the keep-alive timer `keep_alive`.
    ///
    /// The total of [`EventLogConfig`] also bounds the passing streams of the timer (their events are dropped once read),
    /// separately from the kept streams.
    pub fn new(
        limits: EventLogConfig,
        keep_alive: Arc<KeepAlive>,
        metrics: Arc<StreamMetrics>,
    ) -> Self {
        keep_alive.bound_passing(in_memory(limits.total));
        Self {
            keep_alive,
            ledger: Arc::new(Ledger::new(limits, metrics)),
            store: None,
            fails: AtomicBool::new(false),
        }
    }

    /// Adds a store in which events are kept outside of this process.
    pub fn with_store(self, store: Arc<dyn EventStore>) -> Self {
        Self {
            store: Some(store),
            ..self
        }
    }

    fn stream(
        &self,
        session: &dyn StreamOwner,
        kind: StreamKind,
        prime: bool,
    ) -> Result<Arc<Stream>, StoreError> {
        let readers = session.readers();
        let share = self.ledger.share(session.principal());
        let epoch = session.epoch();
        session
            .streams()
            .open(kind, |number| {
                let place = (number, epoch);
                Stream::of_session(&self.keep_alive, kind, place, readers, share, prime)
            })
            .ok_or_else(|| StoreError("a session has used up its stream numbers".into()))
    }

    /// Adds a message to a stream of the session, and removes older events beyond the bounds. With a store the event is stored
    /// before it is sent to the client. If the store fails, the event is kept only in this process, and the failure is logged.
    /// If the stream has ended, the message is dropped.
    pub async fn append(&self, session: &dyn StreamOwner, stream: &Arc<Stream>, message: &[u8]) {
        if !stream.is_kept() {
            stream.push(frame::message(None, message));
            return;
        }
        let sequence = self.ledger.next_sequence();
        if let Some(store) = &self.store {
            let Some(staged) = stream.stage(sequence, message) else {
                return;
            };
            self.keep(&**store, session.id(), &staged, message).await;
        } else {
            let framed = frame::message(Some(stream.event_id(sequence)), message);
            if !stream.append(sequence, framed, message) {
                return;
            }
            self.ledger.metrics.events.inc();
        }
        session.streams().shrink(self.ledger.session_max(), stream);
        self.ledger.enforce_total();
    }

    /// Writes an event that waits in its stream's queue (`staged`) to the store.
    async fn keep(
        &self,
        store: &dyn EventStore,
        session: &SessionId,
        staged: &StagingGuard,
        message: &[u8],
    ) {
        let event = StoredEvent {
            sequence: staged.sequence(),
            kind: EventKind::Message(String::from_utf8_lossy(message).into_owned()),
        };
        let stored = store.append(staged.stream(session), &event).await;
        if self.noted(stored) == Some(AppendOutcome::Foreign) {
            staged.disown(message);
        }
    }

    /// Logs when the store begins to fail and when it works again. Returns the outcome of the append, or `None` if the store
    /// failed. Connected clients get the event in both cases.
    fn noted(&self, stored: Result<AppendOutcome, StoreError>) -> Option<AppendOutcome> {
        let fails = stored.is_err();
        if self.fails.load(Ordering::Relaxed) != fails
            && self.fails.swap(fails, Ordering::Relaxed) != fails
        {
            match &stored {
                Err(error) => tracing::error!(
                    %error,
                    "events are kept in this process alone until the session store can be written"
                ),
                Ok(_) => tracing::info!("events are kept in the session store again"),
            }
        }
        stored.ok()
    }
}

/// A message for the general streams of many sessions. It has one sequence, and is formatted once per stream number.
struct Broadcast<'a> {
    message: &'a [u8],
    sequence: u64,
    passing: Option<Bytes>,
    /// Formatted message by stream number. The general streams of most sessions have the same number, so there are few entries.
    kept: HashMap<u32, Bytes>,
}

impl Broadcast<'_> {
    fn kept(&mut self, stream: u32) -> Bytes {
        let id = EventId {
            stream,
            sequence: self.sequence,
        };
        let message = self.message;
        let framed = self.kept.entry(stream);
        framed
            .or_insert_with(|| frame::message(Some(id), message))
            .clone()
    }

    fn passing(&mut self) -> Bytes {
        let message = self.message;
        let framed = self
            .passing
            .get_or_insert_with(|| frame::message(None, message));
        framed.clone()
    }
}

/// Error: a stream cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The event id is malformed.
    #[error("malformed event id")]
    Malformed,
    /// No event of the session had that id in this process.
    #[error("unknown event id")]
    Unknown,
    /// The store of events cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl EventLog {
    /// Opens a stream of a session. With `prime` its first reader first gets an event without data, from whose id the client can
    /// resume (protocol version 2025-11-25 and later). In a session that has ended, the new stream is finished from the start.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the log cannot be written.
    pub async fn open(
        &self,
        session: &dyn StreamOwner,
        kind: StreamKind,
        prime: bool,
    ) -> Result<Arc<Stream>, StoreError> {
        self.open_for_requests(session, kind, prime, &[]).await
    }

    /// Opens a stream for the responses to the requests with these ids, as raw JSON. If this process ends before it has sent
    /// all of the responses, a client that resumes the stream gets errors instead.
    ///
    /// # Errors
    ///
    /// As [`EventLog::open`].
    pub async fn open_for_requests(
        &self,
        session: &dyn StreamOwner,
        kind: StreamKind,
        prime: bool,
        owes: &[Box<str>],
    ) -> Result<Arc<Stream>, StoreError> {
        let stream = self.stream(session, kind, prime)?;
        if let Some(store) = self.store.as_ref().filter(|_| stream.is_kept()) {
            let opened = StoredEvent {
                sequence: stream.newest(),
                kind: EventKind::Opened {
                    owes: owes.iter().map(|id| id.to_string()).collect(),
                },
            };
            let number = stream.number();
            let session = session.id();
            self.noted(store.append(StreamRef { session, number }, &opened).await);
        }
        Ok(stream)
    }

    /// Returns true if there is a store, so that events outlive this process.
    pub fn is_stored(&self) -> bool {
        self.store.is_some()
    }

    /// Adds a message to exactly one general stream of the session: the newest that has a reader, else the newest, whose client
    /// may resume it later. Returns false if the session has no general stream.
    pub async fn append_general(&self, session: &dyn StreamOwner, message: &[u8]) -> bool {
        let Some(stream) = session.streams().general() else {
            return false;
        };
        self.append(session, &stream, message).await;
        true
    }

    /// Sends a message to many sessions, to each as [`EventLog::append_general`] does. Returns the number of sessions with a
    /// general stream.
    pub async fn broadcast(&self, sessions: &[&dyn StreamOwner], message: &[u8]) -> usize {
        let mut broadcast = Broadcast {
            message,
            sequence: self.ledger.next_sequence(),
            passing: None,
            kept: HashMap::new(),
        };
        let mut reached = 0;
        for some in sessions.chunks(BROADCAST_STEP) {
            reached += match &self.store {
                Some(store) => self.broadcast_stored(&**store, some, &mut broadcast).await,
                None => self.broadcast_here(some, &mut broadcast),
            };
            self.ledger.enforce_total();
            tokio::task::yield_now().await;
        }
        reached
    }

    fn broadcast_here(
        &self,
        sessions: &[&dyn StreamOwner],
        broadcast: &mut Broadcast<'_>,
    ) -> usize {
        let mut reached = 0;
        for session in sessions {
            let Some(stream) = session.streams().general() else {
                continue;
            };
            reached += 1;
            if !stream.is_kept() {
                stream.push(broadcast.passing());
                continue;
            }
            let framed = broadcast.kept(stream.number());
            stream.append(broadcast.sequence, framed, broadcast.message);
            let max = self.ledger.session_max();
            session.streams().shrink(max, &stream);
        }
        self.ledger.metrics.events.inc_by(reached as u64);
        reached
    }

    /// Broadcasts through the store, with at most [`WRITES`] concurrent writes.
    async fn broadcast_stored(
        &self,
        store: &dyn EventStore,
        sessions: &[&dyn StreamOwner],
        broadcast: &mut Broadcast<'_>,
    ) -> usize {
        let mut reached = 0;
        let mut writes = Vec::new();
        for session in sessions {
            let Some(stream) = session.streams().general() else {
                continue;
            };
            reached += 1;
            if !stream.is_kept() {
                stream.push(broadcast.passing());
                self.ledger.metrics.events.inc();
                continue;
            }
            let message = broadcast.message;
            let Some(staged) = stream.stage(broadcast.sequence, message) else {
                continue;
            };
            writes.push(async move {
                self.keep(store, session.id(), &staged, message).await;
                drop(staged);
                let max = self.ledger.session_max();
                session.streams().shrink(max, &stream);
            });
        }
        stream::iter(writes)
            .buffer_unordered(WRITES)
            .collect::<()>()
            .await;
        reached
    }

    /// Resumes a stream after the event with the id `last_event_id`. A reader that is still attached is disconnected. Later
    /// events that the log no longer contains are omitted. If the stream no longer exists, the client gets a new, empty stream
    /// in place of a general stream, and a finished stream in place of a request's stream.
    ///
    /// # Errors
    ///
    /// [`ResumeError::Malformed`], if the id cannot be parsed. [`ResumeError::Unknown`], if no event of the session has the id,
    /// or if it belongs to a request's stream of another process of which no event was stored. [`ResumeError::Store`], if the
    /// store cannot be read.
    pub async fn resume(
        &self,
        session: &dyn StreamOwner,
        last_event_id: &str,
    ) -> Result<Subscription, ResumeError> {
        let id = EventId::parse(last_event_id).ok_or(ResumeError::Malformed)?;
        let found = match session.streams().find(id.stream) {
            StreamLookup::Earlier(kind) => match self.take_over(session, id.stream, kind).await? {
                Some(stream) => StreamLookup::Kept(stream),
                // The process that may have opened the stream has stored no event of it, so the outcome of the request is
                // unknown.
                None if kind == StreamKind::Request => return Err(ResumeError::Unknown),
                // The sequences of the stream are those of another process, so they cannot be compared with this process's.
                None => StreamLookup::Earlier(kind),
            },
            found => found,
        };
        let own = begin_of(session.epoch());
        let newest = own.saturating_add(self.ledger.newest_sequence());
        let (stream, forgotten) = match found {
            // Another process opened a stream with the same number, and the event belongs to that stream. This process does not
            // have the events of that stream.
            StreamLookup::Kept(stream) if !stream.may_have(id.sequence) => {
                if !stream.is_general() {
                    return Err(ResumeError::Unknown);
                }
                (self.stream(session, StreamKind::General, false)?, true)
            }
            StreamLookup::Kept(stream) => (stream, false),
            StreamLookup::Never => return Err(ResumeError::Unknown),
            StreamLookup::Forgotten(_) if id.sequence > newest => {
                return Err(ResumeError::Unknown);
            }
            StreamLookup::Forgotten(kind) | StreamLookup::Earlier(kind) => {
                let stream = match kind {
                    StreamKind::General => self.stream(session, kind, false)?,
                    StreamKind::Request | StreamKind::Sse => Stream::detached(&self.keep_alive),
                };
                if kind != StreamKind::General {
                    stream.finish();
                }
                (stream, true)
            }
        };
        let (subscription, missed) = if forgotten {
            (stream.read(), true)
        } else {
            stream.read_after(id.sequence).ok_or(ResumeError::Unknown)?
        };
        let metrics = &self.ledger.metrics;
        metrics.replays.inc();
        metrics.window_misses.inc_by(u64::from(missed));
        Ok(subscription)
    }

    /// Deletes the stored events of a session's streams.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be written.
    pub(crate) async fn forget(&self, session: &SessionId) -> Result<(), StoreError> {
        match &self.store {
            Some(store) => store.forget(session).await,
            None => Ok(()),
        }
    }

    /// Drops expired events. To be called about once per second.
    pub fn sweep(&self, now: Instant) {
        self.ledger.sweep(now);
    }
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog")
            .field("bytes", &self.ledger.bytes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
