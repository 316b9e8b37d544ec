//! Streams of events: what a GET, an answer in events, `/sse` or `subscriptions/listen` is read from.
//!
//! A stream is a window of framed events, one reader's place in it, and a waker. The reader pulls; nothing is queued per
//! reader and no task runs per stream. There are two kinds of memory:
//!
//! - *kept*: General and Request streams of a session. Events have ids and stay after they were read, within bounds
//!   ([`log`]), so that a client that lost its connection goes on where it was.
//! - *passing*: HTTP+SSE, `subscriptions/listen`, answers without a session. Events have no ids and are gone once read;
//!   the stream is over when its reader leaves.
//!
//! What bounds them, in bytes of frames and a little per event: a kept stream `sessions.event_log.bytes` and `events`, the
//! kept streams of one session a 64th of `total` (but those that are read, and the newest, whatever they hold within
//! their own bounds), all kept streams `total`, beyond which the principal that holds the most loses its oldest events; a passing stream 16 MiB and 1024 events unread, all passing streams
//! `total` once more, beyond which each may hold 64 KiB. A stream's newest event may be of any size within those totals.
//!
//! The life of a kept stream, `▷` being a reader:
//!
//! ```text
//!            read ▷                        finish
//!   Unread ─────────▶ Attached ─────────────────────────▶ Finished ──▶ forgotten: aged out,
//!                     ▲      │  reader leaves, is too       ▲   │       one of too many,
//!             resume ▷│      │  slow or replaced; the       │   │ resume ▷ reads the rest,
//!                     │      ▼  pulse ends it               │   ▼       then the end
//!                     └── Detached ────── finish ───────────┘
//!                            (events go on being kept)
//!   any ── the session closes ──▶ Closed: readers end at once, events are dropped
//! ```
//!
//! With a store ([`store`]) every event of a kept stream is stored, then shown, and the window is its newest part here. A
//! process that goes on with a session reads a stream back when its client resumes it. A request's stream is over then: its
//! calls have ended with their process, and the responses they owed are errors.
//!
//! Exactly once and in order across the seam: the reader's place, the events and who reads are under one lock, so a
//! resume sees every event either in the window or after it. Locks are taken in the order pulse → stream and session's
//! list of streams → stream; none is held while a waker is called or anything is awaited.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

pub mod config;
pub(crate) mod frame;
mod ledger;
pub mod limit;
pub mod log;
mod metrics;
pub(crate) mod open;
mod owned;
pub mod pulse;
mod resumable;
mod staged;
pub mod store;
mod subscription;
mod window;

pub use limit::{StreamGuard, StreamLimiter};
pub use log::{EventLog, ResumeError, StreamKind};
pub use metrics::StreamMetrics;
pub(crate) use owned::Found;
pub use owned::{OwnedStreams, StreamCounts, StreamOwner, StreamReaders};
pub use pulse::Pulse;
pub use store::{EventStore, StoreError};
pub use subscription::Subscription;

use ledger::Share;
pub(crate) use ledger::in_memory;
use pulse::Place;
use window::{Bounds, Trimmed, Window};

/// What a passing stream may hold unread beyond its newest event: 1024 events, 16 MiB.
const PASSING: Bounds = Bounds {
    events: 1024,
    bytes: 16 * 1024 * 1024,
};

/// What a passing stream may hold even when all passing streams together hold more than they may: 64 KiB. So readers that
/// keep up go on while others use up the total.
const PASSING_SPARED: usize = 64 * 1024;

/// A stream of events. Shared by whoever writes to it and its reader.
pub struct Stream {
    number: u32,
    pulse: Arc<Pulse>,
    place: Place,
    /// The session it belongs to; `None` for a stream without one.
    session: Option<Weak<dyn StreamReaders>>,
    /// The account of what the principal's streams hold. `None` for a stream that keeps no event that was read.
    share: Option<Arc<Share>>,
    /// Short critical sections, nothing awaits under it.
    state: Mutex<State>,
    /// The reader left, or caught up with a writer that waits for it.
    moved: Notify,
}

struct State {
    window: Window,
    /// Events that are being stored.
    staged: staged::Queue,
    role: Role,
    phase: Phase,
    /// Which of the readers there were is the one that counts.
    reader: u32,
    attached: bool,
    /// The attached reader was too slow: it reads nothing more.
    cut: bool,
    waker: Option<Waker>,
    /// The event without data that the first reader gets.
    priming: Option<NonZeroU64>,
    /// The pulse's tick at the last write.
    wrote: u32,
    comment: bool,
    /// A writer waits for the reader to catch up.
    paced: bool,
    /// The stream ended before its end.
    broken: bool,
    /// This reader did not catch up once: nobody waits for it again.
    lagging: bool,
    ending: Ending,
    /// The last frame of a stream that the pulse ends, where it is not just when to come back.
    farewell: Option<Box<Bytes>>,
    /// The share has an entry for this stream.
    listed: bool,
}

/// What a stream is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    General,
    Request,
    Sse,
    Answer,
    Listen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Events may come.
    Open,
    /// What is here is all.
    Finished,
    /// There is nothing to read any more.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// The pulse ends the stream: what is here, then the farewell.
    Wanted,
    Said,
}

impl Role {
    pub(crate) const ALL: [Self; 5] = [
        Self::General,
        Self::Request,
        Self::Sse,
        Self::Answer,
        Self::Listen,
    ];

    /// The value of the metrics' label.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Request => "request",
            Self::Sse => "sse",
            Self::Answer => "answer",
            Self::Listen => "listen",
        }
    }

    /// Whether nothing but one of the two sides would ever end it.
    const fn is_long(self) -> bool {
        matches!(self, Self::General | Self::Sse | Self::Listen)
    }
}

impl From<StreamKind> for Role {
    fn from(kind: StreamKind) -> Self {
        match kind {
            StreamKind::General => Self::General,
            StreamKind::Request => Self::Request,
            StreamKind::Sse => Self::Sse,
        }
    }
}

/// Finishes a stream when dropped.
pub(crate) struct Finishing(Arc<Stream>);

impl Drop for Finishing {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Stream {
    /// A passing stream without a session: the answer to one request. `Audience::listen` of `broadcast` makes it a
    /// listener's.
    pub fn detached(pulse: &Arc<Pulse>) -> Arc<Self> {
        Self::passing(pulse, Role::Answer)
    }

    /// A passing stream that one of its two sides ends, without a session.
    pub(crate) fn listening(pulse: &Arc<Pulse>) -> Arc<Self> {
        Self::passing(pulse, Role::Listen)
    }

    /// A passing stream of that role, without a session.
    pub(crate) fn passing(pulse: &Arc<Pulse>, role: Role) -> Arc<Self> {
        Arc::new(Self::new(pulse, role, 0, None, None, 0))
    }

    fn new(
        pulse: &Arc<Pulse>,
        role: Role,
        number: u32,
        session: Option<Weak<dyn StreamReaders>>,
        share: Option<Arc<Share>>,
        sequence: u64,
    ) -> Self {
        Self {
            number,
            pulse: Arc::clone(pulse),
            place: Place::none(),
            session,
            share,
            state: Mutex::new(State {
                window: Window::after(sequence),
                staged: staged::Queue::default(),
                role,
                phase: Phase::Open,
                reader: 0,
                attached: false,
                cut: false,
                waker: None,
                priming: None,
                wrote: 0,
                comment: false,
                paced: false,
                broken: false,
                lagging: false,
                ending: Ending::No,
                farewell: None,
                listed: false,
            }),
            moved: Notify::new(),
        }
    }

    /// Puts a framed event on a passing stream. `false` means it is over: finished, left by its reader, or ended because
    /// the reader left more than 1024 events or 16 MiB unread beyond the newest, or more than 64 KiB when all passing
    /// streams together hold more than they may. Does nothing on a kept stream, whose events come through its
    /// [`EventLog`].
    pub fn push(&self, frame: Bytes) -> bool {
        if self.share.is_some() {
            return false;
        }
        let mut state = self.lock();
        if state.phase != Phase::Open {
            return false;
        }
        let before = state.window.cost();
        state.window.push(0, frame, Instant::now());
        let mut slow = state.window.trim(PASSING, true) == Trimmed::ReaderTooSlow;
        let after = state.window.cost();
        self.account(before, after);
        slow |= after > PASSING_SPARED && self.pulse.passing_exceeded();
        if slow {
            state.phase = Phase::Closed;
            state.window.clear();
            self.account(after, 0);
        }
        let waker = state.waker.take();
        drop(state);
        wake(waker);
        let metrics = self.pulse.metrics();
        if slow {
            metrics.slow_readers.inc();
            self.moved.notify_waiters();
        } else {
            metrics.events.inc();
        }
        !slow
    }

    /// Finishes the stream when what this gives back is dropped: whatever ends who feeds it, a panic included, no reader
    /// waits for more.
    pub(crate) fn finish_on_drop(self: &Arc<Self>) -> Finishing {
        Finishing(Arc::clone(self))
    }

    /// No event comes any more: the reader reads what is left, then the end.
    pub fn finish(&self) {
        let waker = {
            let mut state = self.lock();
            if state.phase == Phase::Open {
                state.phase = Phase::Finished;
            }
            state.waker.take()
        };
        wake(waker);
    }

    /// No event comes any more, and this is not the end: the reader reads what is left, and is then cut off. Nothing
    /// happens to a stream that is finished.
    pub(crate) fn break_off(&self) {
        let waker = {
            let mut state = self.lock();
            if state.phase == Phase::Open {
                state.phase = Phase::Finished;
                state.broken = true;
            }
            state.waker.take()
        };
        wake(waker);
    }

    /// Whether events that come now are read by nobody and kept for nobody.
    pub fn is_over(&self) -> bool {
        self.lock().phase != Phase::Open
    }

    /// Resolves when a passing stream has lost its reader, or has ended it for being too slow. Before there is one it
    /// waits.
    pub async fn reader_gone(&self) {
        loop {
            // Registered before the state is read, so that a reader that leaves in between is not missed.
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.lock().phase == Phase::Closed {
                return;
            }
            moved.await;
        }
    }

    /// Waits until the reader has taken so much that more may come, or until there is no reader to wait for, at most so
    /// long: a writer of many events goes by this instead of leaving a reader behind that only needs its turn. A reader
    /// that did not catch up in time is not waited for again.
    pub(crate) async fn caught_up(&self, patience: Duration) {
        let bounds = self
            .share
            .as_ref()
            .map_or(PASSING, |share| share.ledger().bounds());
        let taken = async {
            loop {
                let moved = self.moved.notified();
                tokio::pin!(moved);
                moved.as_mut().enable();
                {
                    let mut state = self.lock();
                    let waits = state.is_read() && !state.lagging;
                    if !waits || !state.window.is_behind(bounds) {
                        return;
                    }
                    state.paced = true;
                }
                moved.await;
            }
        };
        if timeout(patience, taken).await.is_err() {
            self.lock().lagging = true;
        }
    }

    /// Attaches a reader. An older one, if there is one, ends; the new one goes on where that one was.
    pub fn read(self: &Arc<Self>) -> Subscription {
        let mut slots = self.pulse.slots();
        let mut state = self.lock();
        let (subscription, replaced) = self.attach(&mut slots, &mut state);
        drop((state, slots));
        wake(replaced);
        subscription
    }

    fn attach(
        self: &Arc<Self>,
        slots: &mut pulse::Slots,
        state: &mut State,
    ) -> (Subscription, Option<Waker>) {
        state.reader = state.reader.wrapping_add(1);
        state.wrote = self.pulse.now();
        state.comment = false;
        state.cut = false;
        state.lagging = false;
        state.ending = Ending::No;
        if state.role.is_long() && self.pulse.has_ended() {
            state.ending = Ending::Wanted;
        }
        if !state.attached {
            state.attached = true;
            slots.enter(self);
            self.pulse.metrics().open(state.role).inc();
            if let Some(session) = self.session.as_ref().and_then(Weak::upgrade) {
                session.reader_came();
            }
        }
        let subscription = Subscription {
            stream: Arc::clone(self),
            reader: state.reader,
        };
        (subscription, state.waker.take())
    }

    /// Takes the reader off, if it is still the one that counts.
    fn detach(self: &Arc<Self>, reader: u32) {
        let mut slots = self.pulse.slots();
        let mut state = self.lock();
        if state.reader != reader || !state.attached {
            return;
        }
        state.attached = false;
        state.waker = None;
        slots.leave(self);
        self.pulse.metrics().open(state.role).dec();
        let passing = self.share.is_none();
        if passing {
            state.phase = Phase::Closed;
            let before = state.window.cost();
            state.window.clear();
            self.account(before, 0);
        }
        drop((state, slots));
        self.moved.notify_waiters();
        if let Some(session) = self.session.as_ref().and_then(Weak::upgrade) {
            session.reader_left(Instant::now());
        }
    }

    /// The window has changed from one cost to another: counted among what is kept, or what passes.
    fn account(&self, before: usize, after: usize) {
        match &self.share {
            Some(share) => share.account(before, after),
            None => self.pulse.account_passing(before, after),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether somebody reads and goes on reading.
    fn is_read(&self) -> bool {
        self.attached && !self.cut && self.ending == Ending::No && self.phase == Phase::Open
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (cost, listed) = (state.window.cost(), state.listed);
        self.account(cost, 0);
        if let Some(share) = &self.share {
            share.unlist(listed);
        }
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Stream")
            .field("role", &state.role)
            .field("number", &self.number)
            .field("phase", &state.phase)
            .field("attached", &state.attached)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
