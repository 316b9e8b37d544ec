//! Events on their way through the store: they are shown once they are stored, and in their order, however the store's
//! answers come. As many wait as there are writers.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::store::StreamRef;
use super::{Phase, Stream, frame};
use crate::seal::SessionId;

/// The events of a stream that are not shown yet. There only while there are some.
#[derive(Debug, Default)]
pub(super) struct Queue(Option<Box<Waiters>>);

/// Boxed as a whole: most streams have none.
#[derive(Debug, Default)]
struct Waiters {
    events: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    sequence: u64,
    frame: Bytes,
    settled: bool,
}

/// An event that is being stored. It is shown when this is dropped, whatever came of storing it: a client that is there
/// gets its answer without the store, too.
pub(super) struct Staged {
    stream: Arc<Stream>,
    sequence: u64,
}

impl Queue {
    /// The newest event in it.
    fn newest(&self) -> Option<u64> {
        let waiting = self.0.as_ref()?.events.back()?;
        Some(waiting.sequence)
    }

    /// Settles an event, and gives what may be shown now.
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

    /// Gives an event another frame, or none.
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

    /// Shows none of them any more.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }
}

impl Stream {
    /// Takes a message of a kept stream up, under that sequence unless another event has overtaken it. `None`: the stream
    /// is over.
    pub(super) fn stage(self: &Arc<Self>, sequence: u64, message: &[u8]) -> Option<Staged> {
        let share = self.share.as_ref()?;
        let mut state = self.lock();
        if state.phase != Phase::Open {
            return None;
        }
        let newest = state.staged.newest().unwrap_or(0);
        let sequence = match sequence > newest.max(state.window.newest()) {
            true => sequence,
            false => share.ledger().next_sequence(),
        };
        let frame = frame::message(Some(self.event_id(sequence)), message);
        let waiting = state.staged.0.get_or_insert_default();
        waiting.events.push_back(Waiting {
            sequence,
            frame,
            settled: false,
        });
        drop(state);
        Some(Staged {
            stream: Arc::clone(self),
            sequence,
        })
    }
}

impl Staged {
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Shows an event of a session that another replica has claimed: what belongs to a request reaches its client if that
    /// is still here, without an id to resume from. What the server says on its own is said by the other replica.
    pub(super) fn disown(&self, message: &[u8]) {
        let mut state = self.stream.lock();
        let frame = (!state.role.is_long()).then(|| frame::message(None, message));
        state.staged.reframe(self.sequence, frame);
    }

    /// The stream, as the store knows it.
    pub(super) fn stream<'a>(&self, session: &'a SessionId) -> StreamRef<'a> {
        StreamRef {
            session,
            number: self.stream.number(),
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let mut state = self.stream.lock();
        let shown = state.staged.settle(self.sequence);
        // Nothing is read of a closed stream. A finished one has had these before it was.
        if state.phase == Phase::Closed || shown.is_empty() {
            return;
        }
        let events = shown.len() as u64;
        self.stream.show(state, shown);
        if let Some(share) = &self.stream.share {
            share.ledger().metrics.events.inc_by(events);
        }
    }
}
