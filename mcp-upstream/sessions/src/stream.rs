//! Streams of events, for a GET, a response in events, `/sse` or `subscriptions/listen`.
//!
//! A stream is a window of framed events, one reader's position in it, and a waker. The reader pulls events; there is no queue
//! and no task per reader or stream. There are two kinds of memory:
//!
//! - *kept*: General and Request streams of a session. Events have ids and remain after they were read, within bounds
//!   ([`log`]), so that a client that lost its connection resumes after the last event that it received.
//! - *passing*: HTTP+SSE, `subscriptions/listen`, responses without a session. Events have no ids and are dropped once read;
//!   the stream ends when its reader disconnects.
//!
//! Bounds, in bytes of frames with a small addition per event (`total` is `sessions.event_log.total`):
//!
//! - a kept stream: `sessions.event_log.bytes` and `events`;
//! - the kept streams of one session together: a 64th of `total`. Streams with a reader, and the newest stream, are excepted:
//!   they are bounded only by their own limits;
//! - all kept streams: `total`. Beyond it the principal that uses the most memory loses its oldest events;
//! - a passing stream: 16 MiB and 1024 unread events;
//! - all passing streams: `total` once more. Beyond it each may still use 64 KiB.
//!
//! A stream's newest event may be of any size within the totals.
//!
//! The life of a kept stream, `▷` marks a reader:
//!
//! ```text
//!            read ▷                        finish
//!   Unread ─────────▶ Attached ─────────────────────────▶ Finished ──▶ forgotten: aged out,
//!                     ▲      │  reader leaves, is too       ▲   │       one of too many,
//!             resume ▷│      │  slow or replaced; the       │   │ resume ▷ reads the rest,
//!                     │      ▼  KeepAlive ends it           │   ▼       then the end
//!                     └── Detached ────── finish ───────────┘
//!                            (events are still kept)
//!   any ── the session closes ──▶ Closed: readers end at once, events are dropped
//! ```
//!
//! With a store ([`store`]) every event of a kept stream is stored before its reader gets it, and the window contains its newest
//! events. A process that continues a session reads a stream from the store when its client resumes it. A request's stream is
//! then finished: its calls have ended with their process, and the client gets an error for each missing response.
//!
//! Delivery is exactly once and in order across a resume: the reader's position, the events and the current reader are protected
//! by one lock, so a resume finds every event either in the window or after it. Locks are taken in the order [`KeepAlive`] →
//! stream, and session's list of streams → stream. No lock is held while a waker is called or an await is pending.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

pub mod config;
pub mod frame;
pub mod keep_alive;
mod ledger;
pub mod limit;
pub mod log;
mod metrics;
pub mod open;
mod owned;
mod resumable;
mod staged;
pub mod store;
mod subscription;
mod window;

pub use keep_alive::KeepAlive;
pub use limit::{StreamLimiter, StreamPermit};
pub use log::{EventLog, ResumeError, StreamKind};
pub use metrics::StreamMetrics;
pub use owned::{OwnedStreams, StreamCounts, StreamOwner, StreamReaders};
pub(crate) use owned::{StreamLookup, UNRECORDED_MAX};
pub use store::{EventStore, StoreError};
pub use subscription::{HeldByStream, Subscription};

use keep_alive::KeepAliveSlot;
use ledger::Share;
pub use ledger::in_memory;
use window::{Bounds, TrimOutcome, Window};

/// Bounds on the unread events of a passing stream (its events are dropped once read), not counting its newest event: 1024
/// events, 16 MiB.
const PASSING: Bounds = Bounds {
    events: 1024,
    bytes: 16 * 1024 * 1024,
};

/// Memory that a passing stream (its events are dropped once read) may use even when all passing streams together exceed their
/// bound, in bytes: 64 KiB. A reader that reads at once therefore keeps its stream although other streams use up the total.
const PASSING_SPARED: usize = 64 * 1024;

/// A stream of events. Shared by its writer and its reader.
pub struct Stream {
    number: u32,
    /// Epoch of the session (number of its adoptions by processes) when the stream was opened. No event of an earlier epoch
    /// belongs to this stream.
    epoch: u32,
    keep_alive: Arc<KeepAlive>,
    place: KeepAliveSlot,
    /// Session of the stream; `None` for a stream without a session.
    session: Option<Weak<dyn StreamReaders>>,
    /// Account of the memory of the principal's kept streams; `None` for a passing stream, whose events are dropped once read.
    share: Option<Arc<Share>>,
    /// State of the stream. Critical sections are short; the lock is never held across an await.
    state: Mutex<StreamState>,
    /// Notified when the reader disconnects, or catches up with a writer that waits for it.
    moved: Notify,
}

struct StreamState {
    window: Window,
    /// Events that are being written to the store, and are not visible to the reader yet.
    staged: staged::StagedEvents,
    role: Role,
    phase: StreamPhase,
    /// Number of the current reader. A reader with another number was replaced.
    reader: u32,
    attached: bool,
    /// True if the attached reader was too slow; it then gets no more events.
    cut: bool,
    waker: Option<Waker>,
    /// Sequence of the event without data that the first reader gets before any message.
    priming: Option<NonZeroU64>,
    /// Tick of the keep-alive timer (`KeepAlive`) when the reader attached or last got bytes. The time of the next keep-alive
    /// comment depends on this tick.
    wrote: u32,
    comment: bool,
    /// True while a writer waits for the reader to catch up.
    paced: bool,
    /// True if the stream was ended by [`Stream::break_off`], before its writer finished it.
    broken: bool,
    /// True if the current reader has once failed to catch up in time; writers then do not wait for it again.
    lagging: bool,
    ending: Ending,
    /// Last frame that the reader gets when the keep-alive timer (`KeepAlive`) or an operator ends the stream; `None` for the
    /// usual retry time.
    farewell: Option<Box<Bytes>>,
    /// True if the stream has an entry in its principal's account (`share`).
    listed: bool,
}

/// Use of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Notifications of a session, read by its GET request.
    General,
    /// The response to a request in a session, and the messages before it.
    Request,
    /// The only stream of an HTTP+SSE session.
    Sse,
    /// The response to a request without a session.
    Answer,
    /// The notifications of `subscriptions/listen`.
    Listen,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamPhase {
    /// The stream is open: events may be added.
    Open,
    /// The stream is finished: no events are added, but existing ones can be read.
    Finished,
    /// The stream is closed: no event can be read any more.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    /// The end of the stream was requested. The remaining events and the last frame are still sent.
    Wanted,
    Said,
}

impl Role {
    /// All roles, in the order of their metric gauges.
    pub const ALL: [Self; 5] = [
        Self::General,
        Self::Request,
        Self::Sse,
        Self::Answer,
        Self::Listen,
    ];

    /// Returns the value of the role's label in metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Request => "request",
            Self::Sse => "sse",
            Self::Answer => "answer",
            Self::Listen => "listen",
        }
    }

    /// Returns true for roles whose streams stay open until the client or the gateway ends them.
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

/// Guard that finishes a stream when dropped.
pub struct Finishing(Arc<Stream>);

impl Drop for Finishing {
    fn drop(&mut self) {
        self.0.finish();
    }
}

impl Stream {
    /// Creates a passing stream (its events are dropped once read) without a session, for the response to one request.
    pub fn detached(keep_alive: &Arc<KeepAlive>) -> Arc<Self> {
        Self::passing(keep_alive, Role::Answer)
    }

    /// Creates a passing stream (its events are dropped once read) without a session. It stays open until its client or the
    /// gateway ends it.
    pub fn listening(keep_alive: &Arc<KeepAlive>) -> Arc<Self> {
        Self::passing(keep_alive, Role::Listen)
    }

    /// Creates a passing stream with the given role, without a session.
    pub fn passing(keep_alive: &Arc<KeepAlive>, role: Role) -> Arc<Self> {
        Arc::new(Self::new(keep_alive, role, (0, 0), None, None, 0))
    }

    fn new(
        keep_alive: &Arc<KeepAlive>,
        role: Role,
        (number, epoch): (u32, u32),
        session: Option<Weak<dyn StreamReaders>>,
        share: Option<Arc<Share>>,
        sequence: u64,
    ) -> Self {
        Self {
            number,
            epoch,
            keep_alive: Arc::clone(keep_alive),
            place: KeepAliveSlot::none(),
            session,
            share,
            state: Mutex::new(StreamState {
                window: Window::after(sequence),
                staged: staged::StagedEvents::default(),
                role,
                phase: StreamPhase::Open,
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

    /// Adds a framed event to a passing stream (its events are dropped once read). Returns false if the stream has ended: it was
    /// finished, its reader has disconnected, or its reader was too slow. A reader is too slow if more than 1024 events or 16 MiB
    /// before the newest event are unread, or more than 64 KiB while all passing streams together exceed their bound. Does
    /// nothing on a kept stream, whose events are added through its [`EventLog`].
    pub fn push(&self, frame: Bytes) -> bool {
        if self.share.is_some() {
            return false;
        }
        let mut state = self.lock();
        if state.phase != StreamPhase::Open {
            return false;
        }
        let before = state.window.cost();
        state.window.push(0, frame, Instant::now());
        let mut slow = state.window.trim(PASSING, true) == TrimOutcome::ReaderTooSlow;
        let after = state.window.cost();
        self.account(before, after);
        slow |= after > PASSING_SPARED && self.keep_alive.passing_exceeded();
        if slow {
            state.phase = StreamPhase::Closed;
            state.window.clear();
            self.account(after, 0);
        }
        let waker = state.waker.take();
        drop(state);
        wake(waker);
        let metrics = self.keep_alive.metrics();
        if slow {
            metrics.slow_readers.inc();
            self.moved.notify_waiters();
        } else {
            metrics.events.inc();
        }
        !slow
    }

    /// Returns a guard that finishes the stream when dropped. However the writer ends, even by a panic, no reader then waits for
    /// further events.
    pub fn finish_on_drop(self: &Arc<Self>) -> Finishing {
        Finishing(Arc::clone(self))
    }

    /// Finishes the stream: the reader gets the remaining events, then the end.
    pub fn finish(&self) {
        let waker = {
            let mut state = self.lock();
            if state.phase == StreamPhase::Open {
                state.phase = StreamPhase::Finished;
            }
            state.waker.take()
        };
        wake(waker);
    }

    /// Ends the stream before its writer has finished it: the reader gets the remaining events, and is then informed that the
    /// stream was broken off. A finished stream is not changed.
    pub fn break_off(&self) {
        let waker = {
            let mut state = self.lock();
            if state.phase == StreamPhase::Open {
                state.phase = StreamPhase::Finished;
                state.broken = true;
            }
            state.waker.take()
        };
        wake(waker);
    }

    /// Returns true if the stream accepts no events: an added event would be neither read nor kept.
    pub fn is_over(&self) -> bool {
        self.lock().phase != StreamPhase::Open
    }

    /// Waits until a passing stream (its events are dropped once read) has lost its reader, or has ended because its reader was
    /// too slow. Keeps waiting if there is no reader yet.
    pub async fn reader_gone(&self) {
        loop {
            // The waiter is registered before the state is read, so that a reader that disconnects in between is not missed.
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            if self.lock().phase == StreamPhase::Closed {
                return;
            }
            moved.await;
        }
    }

    /// Waits until the reader has read enough that the stream accepts more events, or until there is no reader, at most for
    /// `patience`. A writer of many events calls this, so that a reader that was not scheduled yet does not count as too slow. A
    /// reader that did not catch up in time is not waited for again.
    pub async fn wait_for_reader(&self, patience: Duration) {
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

    /// Attaches a reader. An earlier reader is detached; the new one continues from its position.
    pub fn read(self: &Arc<Self>) -> Subscription {
        let mut slots = self.keep_alive.slots();
        let mut state = self.lock();
        let (subscription, replaced) = self.attach(&mut slots, &mut state);
        drop((state, slots));
        wake(replaced);
        subscription
    }

    fn attach(
        self: &Arc<Self>,
        slots: &mut keep_alive::Slots,
        state: &mut StreamState,
    ) -> (Subscription, Option<Waker>) {
        state.reader = state.reader.wrapping_add(1);
        state.wrote = self.keep_alive.now();
        state.comment = false;
        state.cut = false;
        state.lagging = false;
        state.ending = Ending::No;
        if state.role.is_long() && self.keep_alive.has_ended() {
            state.ending = Ending::Wanted;
        }
        if !state.attached {
            state.attached = true;
            slots.enter(self);
            self.keep_alive.metrics().open(state.role).inc();
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

    /// Detaches the reader, if it is still the current one.
    fn detach(self: &Arc<Self>, reader: u32) {
        let mut slots = self.keep_alive.slots();
        let mut state = self.lock();
        if state.reader != reader || !state.attached {
            return;
        }
        state.attached = false;
        state.waker = None;
        slots.leave(self);
        self.keep_alive.metrics().open(state.role).dec();
        let passing = self.share.is_none();
        if passing {
            state.phase = StreamPhase::Closed;
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

    /// Records a change of the memory of the stream's events in the total of kept or of passing streams.
    fn account(&self, before: usize, after: usize) {
        match &self.share {
            Some(share) => share.account(before, after),
            None => self.keep_alive.account_passing(before, after),
        }
    }

    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamState {
    /// Returns true if a reader is attached and can get further events.
    fn is_read(&self) -> bool {
        self.attached && !self.cut && self.ending == Ending::No && self.phase == StreamPhase::Open
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
