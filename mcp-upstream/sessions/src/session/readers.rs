//! Readers of a session's streams, which keep the session in use. The table is notified when the last reader of a session
//! disconnects that it has skipped because of open streams.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::Instant;

use super::{Session, SessionId};
use crate::stream::{OwnedStreams, StreamOwner, StreamReaders};

/// Skipped sessions whose last reader has disconnected, so that the table checks them again. Contains a session at most once
/// per time it was skipped.
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
        // A reader that disconnects concurrently either sees `set_aside`, or is no longer counted by `any_read`.
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
