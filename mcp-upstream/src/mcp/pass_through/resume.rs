//! Event ids from which the client of a session may resume (`Last-Event-ID`). When the session moves to another backend, its
//! streams end and the client has to resume them.
//!
//! The server chooses the ids. Every id is forwarded until the session is first reopened. After that, an id may belong to the
//! server's earlier session, where the server does not know it or takes it for another event; then only ids of events that were
//! forwarded since are sent to the server. A client that resumes from an older event gets a stream of new events only.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::events;

/// Maximum number of ids that are remembered of a reopened session; the latest are kept.
const KNOWN_MAX: usize = 256;

/// Record of the event ids that a session's server sent.
#[derive(Default)]
pub(super) struct EventIds {
    /// Number of times that the session has moved.
    moves: AtomicU32,
    moved: Notify,
    /// Hashes of the ids since the session was reopened; `None` if it never was.
    since: Mutex<Option<VecDeque<u64>>>,
}

impl EventIds {
    /// Starts the record, since the session was reopened.
    pub(super) fn reopened(&self) {
        *self.lock() = Some(VecDeque::new());
    }

    /// Counts a move of the session, after which streams from its earlier backend deliver nothing.
    pub(super) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Release);
        self.moved.notify_waiters();
    }

    /// The number of the session's moves so far, which identifies its current backend session.
    pub(super) fn end_at_server(&self) -> u32 {
        self.moves.load(Ordering::Acquire)
    }

    /// Waits until the session has moved again since it had moved `end` times.
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

    /// Records the id of an event that is passed on.
    pub(super) fn note(&self, id: &[u8]) {
        if let Some(known) = &mut *self.lock() {
            if known.len() == KNOWN_MAX {
                known.pop_front();
            }
            known.push_back(hash(id));
        }
    }

    /// Records the id of a complete event, if it has one.
    pub(super) fn note_event(&self, event: &[u8]) {
        let reopened = self.lock().is_some();
        if reopened && let Some(id) = events::fields(event).id {
            self.note(id);
        }
    }

    /// Returns true if the server may be asked to resume after the event with this id.
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
