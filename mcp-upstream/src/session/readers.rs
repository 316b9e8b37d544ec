//! Readers of a session's streams: reading keeps the session in use. For a session that the table has set aside, the table is
//! told when the last reader leaves.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::Instant;

use super::{Session, SessionId};
use crate::stream::{OwnedStreams, StreamOwner, StreamReaders};

/// Set-aside sessions whose last reader has left, so that the table checks them again. Holds a session at most once per time it
/// was set aside.
#[derive(Debug, Default)]
pub(super) struct ReleasedSessions(Mutex<Vec<SessionId>>);

impl ReleasedSessions {
    pub(super) fn put(&self, id: SessionId) {
        self.lock().push(id);
    }

    pub(super) fn take(&self) -> Vec<SessionId> {
        std::mem::take(&mut *self.lock())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<SessionId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Sets the session aside while one of its streams has a reader. Returns `false` if none has.
    pub(super) fn set_aside(&self, released: &Arc<ReleasedSessions>) -> bool {
        let _ = self.released.set(Arc::clone(released));
        self.set_aside.store(true, Ordering::SeqCst);
        // A reader that leaves concurrently either sees `set_aside`, or is not counted by `any_read` any more.
        self.streams.any_read() || !self.set_aside.swap(false, Ordering::SeqCst)
    }
}

impl StreamReaders for Session {
    fn streams(&self) -> &OwnedStreams {
        &self.streams
    }

    fn reader_came(&self) {
        self.streams.reader_came();
    }

    fn reader_left(&self, now: Instant) {
        self.touch(now);
        if self.streams.reader_left()
            && self.set_aside.swap(false, Ordering::SeqCst)
            && let Some(released) = self.released.get()
        {
            released.put(self.id.clone());
        }
    }
}

impl StreamOwner for Arc<Session> {
    fn id(&self) -> &SessionId {
        &self.id
    }

    fn epoch(&self) -> u32 {
        self.epoch
    }

    fn streams(&self) -> &OwnedStreams {
        &self.streams
    }

    fn principal(&self) -> Option<&Arc<str>> {
        self.binding.principal.as_ref()
    }

    fn readers(&self) -> Weak<dyn StreamReaders> {
        Arc::<Session>::downgrade(self)
    }
}
