//! Readers of a session's streams. A session is in use while a stream has a reader: the session table then skips it in the search
//! for sessions to close, and is notified when the session's last reader disconnects.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::time::Instant;

use super::{Session, SessionId};
use crate::stream::{OwnedStreams, StreamOwner, StreamReaders};

/// Sessions that the table had skipped because of their readers, and whose readers have all disconnected since. The table checks
/// them again. A session is listed at most once for each time that it was skipped.
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
    /// Marks the session as skipped in the table's search for idle sessions, if one of its streams has a reader. Returns false,
    /// without the mark, if none has.
    pub(super) fn set_aside(&self, released: &Arc<ReleasedSessions>) -> bool {
        let _ = self.released.set(Arc::clone(released));
        self.set_aside.store(true, Ordering::SeqCst);
        // A reader may disconnect before or after these steps. In both orders it sees the mark, or is no longer counted here.
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
