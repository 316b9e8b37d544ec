//! Open streams that belong to no session: of requests without a session, and of remote servers in pass-through. Operators can
//! list these streams and end each of them.
//!
//! Streams of a session are found through the session. A stream leaves the list when its reader disconnects.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::time::Instant;
use tooldock_base::names::NamespaceName;

use super::{HeldByStream, Stream};

/// Use of an open stream without a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenKind {
    /// Notifications about changes, for the `subscriptions/listen` of a client.
    Listen,
    /// The response to one request, while its call runs.
    Answer,
    /// A stream of a remote server that is passed through to a client.
    PassedThrough,
}

impl OpenKind {
    /// Returns the name of this use in responses for operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::Answer => "answer",
            Self::PassedThrough => "passed_through",
        }
    }
}

/// Entry of an open stream without a session, for operators.
#[derive(Debug, Clone)]
pub struct OpenStream {
    /// Use of the stream.
    pub kind: OpenKind,
    /// Namespace of the request that opened the stream.
    pub namespace: NamespaceName,
    /// Principal of the request that opened the stream; `None` without authentication.
    pub principal: Option<Arc<str>>,
    /// Time at which the stream was opened.
    pub since: Instant,
}

/// List of the open streams without a session. Clones share it.
#[derive(Clone, Default)]
pub struct OpenStreams {
    /// The open streams. The lock is never held across an await. The number of entries is bounded by that of connections, since
    /// each entry belongs to a response that is being sent.
    open: Arc<Mutex<NumberedStreams>>,
}

#[derive(Default)]
struct NumberedStreams {
    last: u64,
    streams: BTreeMap<u64, (OpenStream, Weak<Stream>)>,
}

/// Removes a stream from the list when dropped.
pub struct OpenStreamGuard {
    open: OpenStreams,
    number: u64,
}

impl OpenStreams {
    /// Adds a stream to the list until the returned guard is dropped.
    pub fn enter(
        &self,
        kind: OpenKind,
        namespace: &NamespaceName,
        principal: Option<&Arc<str>>,
        stream: &Arc<Stream>,
    ) -> OpenStreamGuard {
        let entry = OpenStream {
            kind,
            namespace: namespace.clone(),
            principal: principal.cloned(),
            since: Instant::now(),
        };
        let mut open = self.lock();
        open.last += 1;
        let number = open.last;
        open.streams.insert(number, (entry, Arc::downgrade(stream)));
        OpenStreamGuard {
            open: self.clone(),
            number,
        }
    }

    /// All open streams with their numbers, the newest first.
    pub fn all(&self) -> Vec<(u64, OpenStream)> {
        let open = self.lock();
        let newest = open.streams.iter().rev();
        newest
            .map(|(number, (entry, _))| (*number, entry.clone()))
            .collect()
    }

    /// Ends a stream. Returns `false` if the stream is not in the list any more.
    pub fn end(&self, number: u64) -> bool {
        let stream = {
            let open = self.lock();
            let found = open.streams.get(&number);
            found.and_then(|(_, stream)| stream.upgrade())
        };
        // Done after the lock is released, since the reader that is woken may remove the stream from the list.
        let Some(stream) = stream else {
            return false;
        };
        stream.end_for_operator();
        true
    }

    fn lock(&self) -> MutexGuard<'_, NumberedStreams> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldByStream for OpenStreamGuard {}

impl Drop for OpenStreamGuard {
    fn drop(&mut self) {
        let removed = self.open.lock().streams.remove(&self.number);
        // Dropped after the lock is released, since the entry may hold the last reference to a name.
        drop(removed);
    }
}

impl fmt::Debug for OpenStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenStreams")
            .field("open", &self.lock().streams.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::KeepAlive;
    use super::*;

    #[tokio::test]
    async fn a_stream_is_listed_until_its_guard_goes_and_ends_when_asked() {
        let (open, name) = (OpenStreams::default(), "a".parse().expect("valid"));
        let stream = Stream::detached(&KeepAlive::new(Duration::from_secs(15)));
        let listed = open.enter(OpenKind::Answer, &name, None, &stream);
        let [(number, shown)] = open.all().try_into().expect("one");
        assert_eq!((shown.kind, &shown.namespace), (OpenKind::Answer, &name));
        assert!(!open.end(number + 1));
        assert!(open.end(number));
        assert!(stream.is_over());
        drop(listed);
        assert!(open.all().is_empty());
        assert!(!open.end(number));
    }
}
