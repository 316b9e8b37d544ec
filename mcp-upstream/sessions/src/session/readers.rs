//! Readers of a session's streams: a session is in use while a stream has a reader. If the table has skipped a session because of
//! its readers, the table is notified when the last of them disconnects.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::Instant;

use super::{Session, SessionId};
use crate::stream::{OwnedStreams, StreamOwner, StreamReaders};

/// Skipped sessions whose last reader has disconnected, so that the table checks them again. A session is listed at most once
/// for each time that it was skipped.
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
    /// Marks the session as skipped, if one of its streams has a reader. Returns false, without the mark, if none has.
    pub(super) fn set_aside(&self, released: &Arc<ReleasedSessions>) -> bool {
        let _ = self.released.set(Arc::clone(released));
        self.set_aside.store(true, Ordering::SeqCst);
        // Both orders of these steps and of a reader that disconnects are safe: the reader sees the mark, or is no longer
        // counted here.
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
