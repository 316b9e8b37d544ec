//! Events that are being stored. An event is shown once it is stored, in the order of sequences, even if the store responds in
//! another order. The queue has an entry for each concurrent writer.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tooldock_protocol::seal::SessionId;

use super::store::StreamRef;
use super::{Stream, StreamPhase, frame};

/// Queue of a stream's events that are not shown yet. Allocated only while it has entries.
#[derive(Debug, Default)]
pub(super) struct StagedEvents(Option<Box<Waiters>>);

/// The events in the queue. The whole queue is boxed, since it is empty in most streams.
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

/// An event that is being stored. Dropping it shows the event, even if storing failed: a connected client gets its answer
/// without the store, too.
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

    /// Settles an event, and returns the events that may be shown now.
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

    /// Replaces the frame of an event, or removes the event.
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

    /// Drops the queued events without showing them.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

impl Stream {
    /// Queues a message of a kept stream, with this sequence unless another event has overtaken it. `None` if the stream is over.
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

    /// Handles an event of a session that another replica has claimed: messages of a request are sent to its client if that is
    /// still connected, without an id to resume from. Server notifications outside of calls are left to the other replica.
    pub(super) fn disown(&self, message: &[u8]) {
        let mut state = self.stream.lock();
        let frame = (!state.role.is_long()).then(|| frame::message(None, message));
        state.staged.reframe(self.sequence, frame);
    }

    /// The stream's identity in the store.
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
        // A closed stream is not read. A finished stream got these events before.
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
