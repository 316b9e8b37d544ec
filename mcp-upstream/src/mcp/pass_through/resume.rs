//! Event ids from which the client of a session may resume (`Last-Event-ID`). When the session moves to another backend, its
//! streams end and the client has to resume them.
//!
//! The server chooses the ids. Until the session is first reopened at the server, every `Last-Event-ID` is forwarded. After
//! that, an old id may be unknown to the server's new session, or may name another event there. So only ids of events that were
//! forwarded since the last reopening are sent to the server. A client that resumes from an older event gets only new events.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::events;

/// Maximum number of event ids that are remembered for a reopened session. The oldest id is dropped for a new one.
const KNOWN_MAX: usize = 256;

/// Record of the event ids that a session's server sent.
#[derive(Default)]
pub(super) struct EventIds {
    /// Number of times that the session has moved to a new session at the server.
    moves: AtomicU32,
    moved: Notify,
    /// Hashes of the event ids that were forwarded since the session was last reopened; `None` if it was never reopened.
    since: Mutex<Option<VecDeque<u64>>>,
}

impl EventIds {
    /// Records that the session was reopened at the server: clients can no longer resume from event ids that they got before.
    pub(super) fn reopened(&self) {
        *self.lock() = Some(VecDeque::new());
    }

    /// Counts a move of the session to a new session at the server, and ends the waits in `moves_from`.
    pub(super) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Release);
        self.moved.notify_waiters();
    }

    /// Returns the number of the session's moves so far. It identifies the current session at the server.
    pub(super) fn end_at_server(&self) -> u32 {
        self.moves.load(Ordering::Acquire)
    }

    /// Waits until the number of the session's moves differs from `end`.
    pub(super) async fn moves_from(&self, end: u32) {
        loop {
            let mut moved = pin!(self.moved.notified());
            moved.as_mut().enable();
            if self.end_at_server() != end {
                return;
            }
            moved.await;
        }
    }

    /// Records the id of an event that is forwarded to the client.
    pub(super) fn note(&self, id: &[u8]) {
        if let Some(known) = &mut *self.lock() {
            if known.len() == KNOWN_MAX {
                known.pop_front();
            }
            known.push_back(hash(id));
        }
    }

    /// Records the id of a complete event, if the event has one.
    pub(super) fn note_event(&self, event: &[u8]) {
        let reopened = self.lock().is_some();
        if reopened && let Some(id) = events::fields(event).id {
            self.note(id);
        }
    }

    /// Returns true if a resumption from this event id may be forwarded to the server.
    pub(super) fn may_resume(&self, id: &[u8]) -> bool {
        let known = self.lock();
        known.as_ref().is_none_or(|it| it.contains(&hash(id)))
    }

    fn lock(&self) -> MutexGuard<'_, Option<VecDeque<u64>>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn hash(id: &[u8]) -> u64 {
    static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    STATE.hash_one(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_session_was_reopened_only_its_new_events_can_be_come_back_for() {
        let ids = EventIds::default();
        assert!(ids.may_resume(b"a"));
        ids.note(b"a");
        ids.reopened();
        assert!(!ids.may_resume(b"a"));
        ids.note_event(b"data: x\n\n");
        ids.note_event(b"id: b\ndata: x\n\n");
        assert!(ids.may_resume(b"b") && !ids.may_resume(b"a"));
        for number in 0..KNOWN_MAX {
            ids.note(number.to_string().as_bytes());
        }
        assert!(!ids.may_resume(b"b") && ids.may_resume(b"0"));
    }
}
