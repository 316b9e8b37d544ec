//! The streams of one owner, a session: their numbers, which of them takes what the server says on its own, which are kept.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::time::Instant;

use super::{Stream, StreamKind};

/// Streams without a reader that are kept for their client to come back to, of each kind.
const KEPT_MAX: usize = 32;

/// Whose streams are opened, fed and resumed: a session, as the event log sees it.
pub trait StreamOwner: Send + Sync {
    /// Its streams.
    fn streams(&self) -> &OwnedStreams;

    /// Whose account the streams are on.
    fn principal(&self) -> Option<&Arc<str>>;

    /// Who hears that a reader came or left. Weak: a stream keeps its owner alive no longer.
    fn readers(&self) -> Weak<dyn StreamReaders>;
}

/// The owner as one of its streams knows it: who hears that a reader came or left.
pub trait StreamReaders: Send + Sync {
    /// The streams this one is among.
    fn streams(&self) -> &OwnedStreams;

    /// A stream got a reader.
    fn reader_came(&self);

    /// A stream lost its reader.
    fn reader_left(&self, now: Instant);
}

/// The streams of an owner.
#[derive(Debug, Default)]
pub struct OwnedStreams {
    /// Taken before a stream's own lock.
    list: Mutex<List>,
    /// Streams with a reader.
    read: AtomicU32,
}

#[derive(Debug, Default)]
struct List {
    closed: bool,
    /// How many there were of each kind. General streams have even numbers and the others odd ones, so that the first
    /// general stream, which most sessions have and no other, is called the same everywhere.
    generals: u32,
    requests: u32,
    /// In the order in which they were opened.
    streams: Vec<Arc<Stream>>,
}

/// What a number stands for.
#[derive(Debug)]
pub(crate) enum Found {
    /// A stream that is still here.
    Kept(Arc<Stream>),
    /// One there was.
    Forgotten(StreamKind),
    /// The session never had it.
    Never,
}

impl OwnedStreams {
    /// Opens a stream under the next number. `None` when the numbers are used up. In a closed session the stream is over.
    pub(crate) fn open(
        &self,
        kind: StreamKind,
        make: impl FnOnce(u32) -> Arc<Stream>,
    ) -> Option<Arc<Stream>> {
        let mut list = self.lock();
        let number = match kind {
            StreamKind::General => {
                list.generals = list.generals.checked_add(1)?;
                list.generals.checked_mul(2)?
            }
            StreamKind::Request => {
                list.requests = list.requests.checked_add(1)?;
                list.requests.checked_mul(2)?.checked_sub(1)?
            }
            StreamKind::Sse => 0,
        };
        let stream = make(number);
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

    /// The stream for what the server says on its own: the newest that is read, else the newest.
    pub(crate) fn general(&self) -> Option<Arc<Stream>> {
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

    /// The stream of that number.
    pub(crate) fn find(&self, number: u32) -> Found {
        let list = self.lock();
        let kept = list.streams.iter().find(|it| it.number() == number);
        if let Some(stream) = kept.filter(|_| number != 0) {
            return Found::Kept(Arc::clone(stream));
        }
        match (number % 2, number.div_ceil(2)) {
            (_, 0) => Found::Never,
            (0, which) if which <= list.generals => Found::Forgotten(StreamKind::General),
            (1, which) if which <= list.requests => Found::Forgotten(StreamKind::Request),
            _ => Found::Never,
        }
    }

    /// Forgets a stream.
    pub(crate) fn remove(&self, stream: &Arc<Stream>) {
        let mut list = self.lock();
        let at = list.streams.iter().position(|it| Arc::ptr_eq(it, stream));
        let removed = at.map(|at| list.streams.remove(at));
        drop(list);
        drop(removed);
    }

    /// Gives back memory, the oldest stream first, until all hold no more than `max` bytes: streams that are finished and
    /// read by nobody are forgotten, then the other ones nobody reads lose their events. `but` and streams with a reader
    /// stay as they are.
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

    /// Ends all streams and forgets what they hold.
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

    /// Whether somebody reads one of them.
    pub(crate) fn any_read(&self) -> bool {
        self.read.load(Ordering::SeqCst) > 0
    }

    /// Streams that are kept or read.
    pub(crate) fn len(&self) -> usize {
        self.lock().streams.len()
    }

    pub(crate) fn reader_came(&self) {
        self.read.fetch_add(1, Ordering::SeqCst);
    }

    /// Answers whether that was the last one.
    pub(crate) fn reader_left(&self) -> bool {
        self.read.fetch_sub(1, Ordering::SeqCst) == 1
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl List {
    /// Takes out the oldest of the streams that are only kept, beyond so many. They are dropped without the lock.
    fn prune(&mut self, kind: StreamKind) -> Vec<Arc<Stream>> {
        if self.streams.len() <= KEPT_MAX {
            return Vec::new();
        }
        let general = kind != StreamKind::Request;
        let parked = |it: &Arc<Stream>| it.is_general() == general && it.is_parked();
        // The newest one, just opened, has no reader yet and is not to go.
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
