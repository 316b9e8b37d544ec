//! Streams of one owner (a session): their numbers, the stream for server notifications, and the streams that are kept.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tooldock_protocol::seal::SessionId;

use super::{Stream, StreamKind};

/// Maximum number of streams of each kind that are kept without a reader, so that their client can resume them.
const KEPT_MAX: usize = 32;

/// Maximum number of request streams that a process opens without recording them while the store fails. A process that adopts
/// the session skips that many numbers: a client that resumes one of those streams then never gets the events of a different
/// stream.
pub(crate) const UNRECORDED_MAX: u32 = 1 << 12;

/// Number of sequences that are left unused after the newest stored event of a stream that this process has adopted. The former
/// process may have sent events with these sequences without storing them. A client that resumes after such an event has read
/// all stored events, and no event of this process.
pub(super) const UNSTORED_MAX: u64 = 1 << 35;

/// Number of sequences that each epoch of a session has: those of epoch N begin at N times this number, on adopted and on new
/// streams. Two processes therefore never give the same id to different events of a session, even if both have the session while
/// they are disconnected from each other. A process counts the events of all its sessions: it would have to send 2^36 events,
/// 10,000 a second for 80 days, to reach the next range. In a store whose numbers are doubles, sequences are exact for 2^17
/// adoptions.
const EPOCH_SEQUENCES: u64 = 2 * UNSTORED_MAX;

/// Returns the sequence (event number) after which the events of a session's epoch are numbered.
pub(super) fn begin_of(epoch: u32) -> u64 {
    u64::from(epoch) * EPOCH_SEQUENCES
}

/// Returns the epoch to which an event's sequence belongs.
pub(super) fn epoch_of(sequence: u64) -> u32 {
    u32::try_from(sequence / EPOCH_SEQUENCES).unwrap_or(u32::MAX)
}

/// Owner of streams: a session, from the point of view of the event log.
pub trait StreamOwner: Send + Sync {
    /// The id of the owner.
    fn id(&self) -> &SessionId;

    /// Number of times that processes have adopted the owner, including this one; 0 in the process that opened it.
    fn epoch(&self) -> u32;

    /// The streams of the owner.
    fn streams(&self) -> &OwnedStreams;

    /// Principal in whose account the memory of the streams is recorded.
    fn principal(&self) -> Option<&Arc<str>>;

    /// Returns the owner as the observer of its streams' readers. The reference is weak, so that a stream does not keep its
    /// owner in memory.
    fn readers(&self) -> Weak<dyn StreamReaders>;
}

/// Owner of streams, to which the streams report readers that attach or detach.
pub trait StreamReaders: Send + Sync {
    /// The streams of the owner.
    fn streams(&self) -> &OwnedStreams;

    /// Reports that a stream got a reader.
    fn reader_came(&self);

    /// Reports that a stream lost its reader.
    fn reader_left(&self, now: Instant);
}

/// The streams of an owner.
#[derive(Debug, Default)]
pub struct OwnedStreams {
    /// List of the streams. Locked before a stream's own lock.
    list: Mutex<List>,
    /// Number of streams with a reader.
    read: AtomicU32,
}

/// Streams of one owner, in the order in which they were opened.
#[derive(Debug, Default)]
struct List {
    closed: bool,
    counts: StreamCounts,
    /// Numbers of streams that were opened by other processes before this one adopted the session.
    earlier: StreamCounts,
    /// The streams in the order in which they were opened.
    streams: Vec<Arc<Stream>>,
}

/// Number of opened streams of each kind. General streams have even numbers, request streams odd ones. The first general stream,
/// the only one in most sessions, therefore has the same number in all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamCounts {
    generals: u32,
    requests: u32,
}

impl StreamCounts {
    /// Returns the number for a new stream; `None` when the numbers are used up.
    fn next(&mut self, kind: StreamKind) -> Option<u32> {
        match kind {
            StreamKind::General => {
                self.generals = self.generals.checked_add(1)?;
                self.generals.checked_mul(2)
            }
            StreamKind::Request => {
                self.requests = self.requests.checked_add(1)?;
                self.requests.checked_mul(2)?.checked_sub(1)
            }
            StreamKind::Sse => Some(0),
        }
    }

    /// Counts a stream with this number as opened; has no effect if it is counted already.
    pub(crate) fn raise(&mut self, number: u32) {
        let which = number.div_ceil(2);
        let count = match number % 2 {
            0 => &mut self.generals,
            _ => &mut self.requests,
        };
        *count = (*count).max(which);
    }

    /// Returns the kind of the stream with this number; `None` if no such stream was opened.
    fn kind(self, number: u32) -> Option<StreamKind> {
        match (number % 2, number.div_ceil(2)) {
            (_, 0) => None,
            (0, which) => (which <= self.generals).then_some(StreamKind::General),
            (_, which) => (which <= self.requests).then_some(StreamKind::Request),
        }
    }

    /// Returns the highest number of a request stream that an earlier process may have used without recording it.
    pub(crate) fn highest_unrecorded(self) -> u32 {
        let last = self.requests.saturating_add(UNRECORDED_MAX);
        last.saturating_mul(2).saturating_sub(1)
    }

    /// Number of the newest general stream; `None` if none was opened.
    pub(super) fn newest_general(self) -> Option<u32> {
        (self.generals > 0).then(|| self.generals.saturating_mul(2))
    }
}

/// Result of looking up a stream by its number.
#[derive(Debug)]
pub(crate) enum StreamLookup {
    /// The stream is still kept.
    Kept(Arc<Stream>),
    /// The stream was opened by this process, but is no longer kept.
    Forgotten(StreamKind),
    /// The stream was opened by another process.
    Earlier(StreamKind),
    /// The session has never used this number.
    Never,
}

impl OwnedStreams {
    /// Creates the streams of a session that this process adopts. `counts`: number of streams of each kind that other processes
    /// have opened in it. New streams are numbered after them.
    pub(crate) fn after(counts: StreamCounts) -> Self {
        let list = List {
            counts,
            earlier: counts,
            ..List::default()
        };
        Self {
            list: Mutex::new(list),
            ..Self::default()
        }
    }

    /// Opens a stream with the next number. Returns `None` when the numbers are used up. In a closed session the new stream is
    /// finished from the start.
    pub(crate) fn open(
        &self,
        kind: StreamKind,
        make: impl FnOnce(u32) -> Arc<Stream>,
    ) -> Option<Arc<Stream>> {
        let mut list = self.lock();
        let stream = make(list.counts.next(kind)?);
        if list.closed {
            stream.close();
            return Some(stream);
        }
        list.streams.push(Arc::clone(&stream));
        let (dropped, streams) = (list.prune(kind), list);
        drop(streams);
        drop(dropped);
        Some(stream)
    }

    /// Returns the stream for server notifications: the newest that has a reader, else the newest.
    pub fn general(&self) -> Option<Arc<Stream>> {
        let list = self.lock();
        let mut newest = None;
        for stream in list.streams.iter().rev().filter(|it| it.is_general()) {
            if stream.is_read() {
                return Some(Arc::clone(stream));
            }
            newest.get_or_insert(stream);
        }
        newest.cloned()
    }

    /// Finds the stream with this number.
    pub(crate) fn find(&self, number: u32) -> StreamLookup {
        let list = self.lock();
        let kept = list.streams.iter().find(|it| it.number() == number);
        if let Some(stream) = kept.filter(|_| number != 0) {
            return StreamLookup::Kept(Arc::clone(stream));
        }
        match (list.earlier.kind(number), list.counts.kind(number)) {
            (Some(kind), _) => StreamLookup::Earlier(kind),
            (None, Some(kind)) => StreamLookup::Forgotten(kind),
            (None, None) => StreamLookup::Never,
        }
    }

    /// Adds a stream that another process opened, unless a stream with its number is listed already. Returns the listed stream,
    /// and true if it is the given one.
    pub(super) fn restore(&self, kind: StreamKind, stream: Arc<Stream>) -> (Arc<Stream>, bool) {
        let mut list = self.lock();
        let number = stream.number();
        let known = list.streams.iter().find(|it| it.number() == number);
        if let Some(known) = known {
            return (Arc::clone(known), false);
        }
        if list.closed {
            stream.close();
            return (stream, false);
        }
        let dropped = list.prune(kind);
        // The stream is inserted before the newer streams of its kind. Even and odd numbers are the two kinds.
        let newer = |it: &Arc<Stream>| it.number() % 2 == number % 2 && it.number() > number;
        let place = list.streams.iter().position(newer);
        let place = place.unwrap_or(list.streams.len());
        list.streams.insert(place, Arc::clone(&stream));
        drop(list);
        drop(dropped);
        (stream, true)
    }

    /// The number of opened streams of each kind.
    pub(crate) fn counts(&self) -> StreamCounts {
        self.lock().counts
    }

    /// Returns true if there ever was a stream for server notifications.
    pub fn had_general(&self) -> bool {
        self.counts().generals > 0
    }

    /// Removes a stream.
    pub(crate) fn remove(&self, stream: &Arc<Stream>) {
        let mut list = self.lock();
        let at = list.streams.iter().position(|it| Arc::ptr_eq(it, stream));
        let removed = at.map(|at| list.streams.remove(at));
        drop(list);
        drop(removed);
    }

    /// Frees memory until the streams use at most `max` bytes, beginning with the oldest. First finished streams without a reader
    /// are removed, then the events of unfinished streams without a reader. The stream `but`, and streams with a reader, are not
    /// changed.
    pub(crate) fn shrink(&self, max: usize, but: &Arc<Stream>) {
        let mut list = self.lock();
        if list.streams.len() < 2 {
            return;
        }
        let mut held: usize = list.streams.iter().map(|it| it.cost()).sum();
        if held <= max {
            return;
        }
        let mut dropped = Vec::new();
        list.streams.retain(|stream| {
            let goes = held > max && !Arc::ptr_eq(stream, but) && stream.is_left();
            if goes {
                held = held.saturating_sub(stream.cost());
                dropped.push(Arc::clone(stream));
            }
            !goes
        });
        for stream in &list.streams {
            if held > max && !Arc::ptr_eq(stream, but) {
                held = held.saturating_sub(stream.drop_events());
            }
        }
        drop(list);
        drop(dropped);
    }

    /// Ends all streams and drops their events.
    pub(crate) fn close(&self) {
        let streams = {
            let mut list = self.lock();
            list.closed = true;
            std::mem::take(&mut list.streams)
        };
        for stream in streams {
            stream.close();
        }
    }

    /// Ends the long streams (notifications and `/sse`). Each sends its client the time after which to reconnect. Streams of
    /// requests continue.
    pub(crate) fn end_long(&self) {
        for stream in self.lock().streams.clone() {
            if let Some(waker) = stream.end() {
                waker.wake();
            }
        }
    }

    /// Returns true if any stream has a reader.
    pub(crate) fn any_read(&self) -> bool {
        self.read.load(Ordering::SeqCst) > 0
    }

    /// Number of streams that are kept or have a reader.
    #[expect(
        clippy::len_without_is_empty,
        reason = "only the number is shown to operators"
    )]
    pub fn len(&self) -> usize {
        self.lock().streams.len()
    }

    pub(crate) fn reader_came(&self) {
        self.read.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that a stream has lost its reader. Returns true if no stream has a reader any more.
    pub(crate) fn reader_left(&self) -> bool {
        self.read.fetch_sub(1, Ordering::SeqCst) == 1
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// Removes the oldest streams without a reader beyond [`KEPT_MAX`], and returns them, so that the caller can drop them
    /// after it has released the lock.
    fn prune(&mut self, kind: StreamKind) -> Vec<Arc<Stream>> {
        if self.streams.len() <= KEPT_MAX {
            return Vec::new();
        }
        let general = kind != StreamKind::Request;
        let parked = |it: &Arc<Stream>| it.is_general() == general && it.is_parked();
        // The newest stream is not considered: it was just opened, has no reader yet and must be kept.
        let kept = self.streams.len() - 1;
        let parked: Vec<bool> = self.streams[..kept].iter().map(parked).collect();
        let mut surplus = parked.iter().filter(|it| **it).count();
        let mut dropped = Vec::new();
        let mut place = parked.into_iter().chain([false]);
        self.streams.retain(|stream| {
            let goes = place.next() == Some(true) && surplus > KEPT_MAX;
            if goes {
                surplus -= 1;
                dropped.push(Arc::clone(stream));
            }
            !goes
        });
        dropped
    }
}
