//! Streams of one owner, a session: their numbers, the stream for server notifications, and the streams that are kept.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tooldock_protocol::seal::SessionId;

use super::{Stream, StreamKind};

/// Maximum number of streams without a reader, of each kind, that are kept for their client to resume.
const KEPT_MAX: usize = 32;

/// Maximum number of request streams that a process opens without a record of them while the store fails. A process that adopts
/// the owner skips that many numbers: a client that resumes a stream by its number must not get another stream.
pub(crate) const UNRECORDED_MAX: u32 = 1 << 12;

/// Sequences that a stream leaves free behind its newest stored event when it is taken over. The process that held the stream,
/// cut off from the store, may have sent events with these sequences: a client that resumes after such an event has read every
/// stored event, and none of the new process.
pub(super) const UNSTORED_MAX: u64 = 1 << 35;

/// Size of the range of sequences of each epoch. The sequences of epoch N begin N ranges behind 0, on streams that a process has
/// taken over and on those that it opens, so that two processes never give an event of a session the same id: not even where
/// both hold the session, cut off from each other, and count the same streams. A process counts the events of all its sessions:
/// it would have to send 2^36 of them, 10,000 a second for 80 days, to reach the next range. In a store that counts in doubles,
/// sequences stay exact for 2^17 take-overs.
const EPOCH_SEQUENCES: u64 = 2 * UNSTORED_MAX;

/// The sequence behind which the events of an epoch are numbered.
pub(super) fn begin_of(epoch: u32) -> u64 {
    u64::from(epoch) * EPOCH_SEQUENCES
}

/// The epoch in which an event with that sequence was numbered.
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

    /// The principal that the streams are accounted to.
    fn principal(&self) -> Option<&Arc<str>>;

    /// The owner as the observer of its streams' readers. A weak reference, so that a stream does not keep its owner in memory.
    fn readers(&self) -> Weak<dyn StreamReaders>;
}

/// The owner as seen by one of its streams, which reports readers that attach or detach.
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
    /// Locked before a stream's own lock.
    list: Mutex<List>,
    /// The number of streams with a reader.
    read: AtomicU32,
}

/// Streams of one owner, in the order in which they were opened.
#[derive(Debug, Default)]
struct List {
    closed: bool,
    counts: StreamCounts,
    /// The counts of the streams that another process opened.
    earlier: StreamCounts,
    /// The streams in the order in which they were opened.
    streams: Vec<Arc<Stream>>,
}

/// Number of opened streams of each kind. General streams have even numbers and request streams odd ones, so that the first
/// general stream, the only one in most sessions, has the same number everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StreamCounts {
    generals: u32,
    requests: u32,
}

impl StreamCounts {
    /// The number for a new stream. `None` when the numbers are used up.
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

    /// Counts a stream that was opened; repeating it is harmless.
    pub(crate) fn raise(&mut self, number: u32) {
        let which = number.div_ceil(2);
        let count = match number % 2 {
            0 => &mut self.generals,
            _ => &mut self.requests,
        };
        *count = (*count).max(which);
    }

    /// The kind of the stream with this number, if it was opened.
    fn kind(self, number: u32) -> Option<StreamKind> {
        match (number % 2, number.div_ceil(2)) {
            (_, 0) => None,
            (0, which) => (which <= self.generals).then_some(StreamKind::General),
            (_, which) => (which <= self.requests).then_some(StreamKind::Request),
        }
    }

    /// The first number of a request stream after all numbers that the earlier process may have used without a record.
    pub(crate) fn behind_unrecorded(self) -> u32 {
        let last = self.requests.saturating_add(UNRECORDED_MAX);
        last.saturating_mul(2).saturating_sub(1)
    }

    /// The number of the newest general stream.
    pub(super) fn newest_general(self) -> Option<u32> {
        (self.generals > 0).then(|| self.generals.saturating_mul(2))
    }
}

/// The result of looking up a stream number.
#[derive(Debug)]
pub(crate) enum StreamLookup {
    /// A stream that is still kept.
    Kept(Arc<Stream>),
    /// A stream that was forgotten.
    Forgotten(StreamKind),
    /// A stream that another process opened.
    Earlier(StreamKind),
    /// A number that the session never used.
    Never,
}

impl OwnedStreams {
    /// Creates the list of an owner whose streams another process numbered up to these counts.
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

    /// Opens a stream with the next number. `None` when the numbers are used up. In a closed session the stream is over.
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

    /// The stream for server notifications: the newest with a reader, else the newest.
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

    /// Adds a stream that another process opened, unless it was added before. Returns the stream with that number, and true if
    /// it is the given one.
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
        // A stream's place is before the newer streams of its kind. Even and odd numbers are the two kinds.
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

    /// Frees memory, the oldest stream first, until the streams use at most `max` bytes: finished streams without a reader are
    /// removed, then the events of other streams without a reader. `but` and streams with a reader are not changed.
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
                held = held.saturating_sub(stream.shed());
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

    /// Ends the long streams, each with the time after which its client reconnects. Streams of requests continue.
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

    /// The number of streams that are kept or read.
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
    /// Removes the oldest streams without a reader beyond [`KEPT_MAX`]. They are returned, so that the caller drops them without
    /// the lock.
    fn prune(&mut self, kind: StreamKind) -> Vec<Arc<Stream>> {
        if self.streams.len() <= KEPT_MAX {
            return Vec::new();
        }
        let general = kind != StreamKind::Request;
        let parked = |it: &Arc<Stream>| it.is_general() == general && it.is_parked();
        // The newest stream was just opened: it has no reader yet and must be kept.
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
