//! Which events the client of a session may come back for (`Last-Event-ID`), and when it has to: its streams end with the
//! session's end at the server.
//!
//! The ids are the server's. While its first session lasts, each of them goes up again. Once the session was reopened, an id
//! may be of the server's session before, which means nothing to the server, or something else: then only an id that was
//! passed on since goes up. A client that comes back for older events gets a stream from now on.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::events;

/// Ids of a reopened session that are known, the latest.
const KNOWN_MAX: usize = 256;

/// The ids of events that a session's server gave.
#[derive(Default)]
pub(super) struct EventIds {
    /// How often the session has moved to another end at its server.
    moves: AtomicU32,
    moved: Notify,
    /// Hashes of those since the session was reopened; `None` while it was not. Plain data.
    since: Mutex<Option<VecDeque<u64>>>,
}

impl EventIds {
    /// The session has another end at its server from now on.
    pub(super) fn reopened(&self) {
        *self.lock() = Some(VecDeque::new());
    }

    /// The session is at its other end now: streams of the one before bring nothing more.
    pub(super) fn moved(&self) {
        self.moves.fetch_add(1, Ordering::Release);
        self.moved.notify_waiters();
    }

    /// Which end of the session at its server counts.
    pub(super) fn end_at_server(&self) -> u32 {
        self.moves.load(Ordering::Acquire)
    }

    /// Waits until another end of the session counts than that one.
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

    /// An event with that id is passed on.
    pub(super) fn note(&self, id: &[u8]) {
        if let Some(known) = &mut *self.lock() {
            if known.len() == KNOWN_MAX {
                known.pop_front();
            }
            known.push_back(hash(id));
        }
    }

    /// The same of a whole event, which may have no id.
    pub(super) fn note_event(&self, event: &[u8]) {
        let reopened = self.lock().is_some();
        if reopened && let Some(id) = events::fields(event).id {
            self.note(id);
        }
    }

    /// Whether the server may be asked for what follows that event.
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
