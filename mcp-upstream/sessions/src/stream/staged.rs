//! Events that are being stored. An event becomes visible to the reader once it is stored, in the order of sequences, even if
//! the store responds in another order. The queue has one entry per concurrent writer.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tooldock_protocol::seal::SessionId;

use super::store::StreamRef;
use super::{Stream, StreamPhase, frame};

/// Queue of a stream's events that are not visible to the reader yet. Allocated only while it has entries.
#[derive(Debug, Default)]
pub(super) struct StagedEvents(Option<Box<Waiters>>);

/// Entries of the queue. They are allocated separately, since the queue of most streams is empty.
#[derive(Debug, Default)]
struct Waiters {
    events: VecDeque<StagedEntry>,
}

#[derive(Debug)]
struct StagedEntry {
    sequence: u64,
    frame: Bytes,
    settled: bool,
}

/// Guard of an event that is being stored. Dropping it makes the event visible to the reader, even if storing has failed: a
/// connected client gets its response without the store, too.
pub(super) struct StagingGuard {
    stream: Arc<Stream>,
    sequence: u64,
}

impl StagedEvents {
    /// Sequence of the newest event in the queue.
    fn newest(&self) -> Option<u64> {
        let waiting = self.0.as_ref()?.events.back()?;
        Some(waiting.sequence)
    }

    /// Marks an event as stored or failed. Returns the events that thereby become visible to the reader.
    fn settle(&mut self, sequence: u64) -> Vec<(u64, Bytes)> {
        let Some(waiters) = &mut self.0 else {
            return Vec::new();
        };
        let waiting = &mut waiters.events;
        if let Some(own) = waiting.iter_mut().find(|it| it.sequence == sequence) {
            own.settled = true;
        }
        let mut shown = Vec::new();
        while waiting.front().is_some_and(|first| first.settled) {
            let first = waiting.pop_front();
            shown.extend(first.map(|it| (it.sequence, it.frame)));
        }
        if waiting.is_empty() {
            self.0 = None;
        }
        shown
    }

    /// Replaces the formatted text of an event, or removes the event if `frame` is `None`.
    fn reframe(&mut self, sequence: u64, frame: Option<Bytes>) {
        let Some(waiters) = &mut self.0 else {
            return;
        };
        match frame {
            None => waiters.events.retain(|it| it.sequence != sequence),
            Some(frame) => {
                let mut events = waiters.events.iter_mut();
                if let Some(own) = events.find(|it| it.sequence == sequence) {
                    own.frame = frame;
                }
            }
        }
    }

    /// Drops the queued events, which the reader never gets.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

impl Stream {
    /// Queues a message of a kept stream. If a newer event was queued meanwhile, the message gets a higher sequence than
    /// `sequence`. Returns `None` if the stream is finished or closed.
    pub(super) fn stage(self: &Arc<Self>, sequence: u64, message: &[u8]) -> Option<StagingGuard> {
        let share = self.share.as_ref()?;
        let mut state = self.lock();
        if state.phase != StreamPhase::Open {
            return None;
        }
        let newest = state.staged.newest().unwrap_or(0);
        let newest = newest.max(state.window.newest());
        let sequence = match sequence > newest {
            true => sequence,
            false => share.ledger().next_after(newest),
        };
        let frame = frame::message(Some(self.event_id(sequence)), message);
        let waiting = state.staged.0.get_or_insert_default();
        waiting.events.push_back(StagedEntry {
            sequence,
            frame,
            settled: false,
        });
        drop(state);
        Some(StagingGuard {
            stream: Arc::clone(self),
            sequence,
        })
    }
}

impl StagingGuard {
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Handles an event that the store has refused, because another replica has claimed the session. A message of a request is
    /// still sent to the connected client, without an id to resume from. Any other notification is dropped, since the other
    /// replica sends it.
    pub(super) fn disown(&self, message: &[u8]) {
        let mut state = self.stream.lock();
        let frame = (!state.role.is_long()).then(|| frame::message(None, message));
        state.staged.reframe(self.sequence, frame);
    }

    /// Returns the stream's identity in the store.
    pub(super) fn stream<'a>(&self, session: &'a SessionId) -> StreamRef<'a> {
        StreamRef {
            session,
            number: self.stream.number(),
        }
    }
}

impl Drop for StagingGuard {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        let shown = state.staged.settle(self.sequence);
        // A closed stream has no reader.
        if state.phase == StreamPhase::Closed || shown.is_empty() {
            return;
        }
        let events = shown.len() as u64;
        self.stream.show(state, shown);
        if let Some(share) = &self.stream.share {
            share.ledger().metrics.events.inc_by(events);
        }
    }
}
