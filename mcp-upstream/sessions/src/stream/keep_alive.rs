//! State that all streams share: one timer for keep-alive comments, the switch that ends all streams, and the total
//! memory of passing streams.
//!
//! Streams with a reader are spread over slots, and at each tick of the timer the streams of one slot are due. A stream that has
//! written since the previous tick needs no comment. An idle stream therefore causes one visit per keep-alive interval and needs
//! no timer, and the comments of different streams are spread over time.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use slab::Slab;
use tokio::time::{MissedTickBehavior, interval};

use super::config::EventLogConfig;
use super::ledger::in_memory;
use super::{Stream, StreamMetrics, frame};

/// Number of slots, the groups of streams whose comments are due together. All comments of a slot are written without a pause,
/// and calls wait meanwhile, so slots must be small (with 16 slots, 19,000 idle streams doubled the p99 latency of calls).
const SLOTS: u32 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 7;
/// Difference between the retry times of successive slots, so that clients reconnect at different times after a shutdown.
const RETRY_STEP: Duration = Duration::from_millis(30);

/// Timer of the keep-alive comments of all streams. It can also end the streams, and counts the memory of passing streams (their
/// events are dropped once read).
pub struct KeepAlive {
    tick_every: Duration,
    tick: AtomicU32,
    ended: AtomicBool,
    /// Slots of the streams with a reader. Locked when a reader attaches or detaches, and by the tick, but never for a message.
    /// Always locked before a stream's own lock, never after it.
    slots: Mutex<Slots>,
    metrics: Arc<StreamMetrics>,
    /// Memory of the unread events of all passing streams together, in bytes.
    passing: AtomicUsize,
    /// Maximum memory of the unread events of all passing streams together, in bytes.
    passing_max: AtomicUsize,
}

pub(super) struct Slots {
    streams: [Slab<Arc<Stream>>; SLOTS as usize],
    next: u32,
}

/// A stream's position in the slots of the keep-alive timer. Read and written only while the lock of the slots is held.
#[derive(Debug)]
pub(super) struct KeepAliveSlot(AtomicU32);

impl KeepAlive {
    /// Creates a timer that leaves no idle stream without a comment for longer than `keepalive` while it runs.
    #[cfg(any(test, feature = "testing"))]
    pub fn new(keepalive: Duration) -> Arc<Self> {
        Self::measured(keepalive, StreamMetrics::unregistered())
    }

    /// Creates a timer that leaves no idle stream without a comment for longer than `keepalive` while it runs, and updates the
    /// service's metrics.
    pub fn measured(keepalive: Duration, metrics: Arc<StreamMetrics>) -> Arc<Self> {
        Arc::new(Self {
            // A stream that needs no comment has written since the previous tick. The time without a write is therefore at most
            // one round of all slots and one tick.
            tick_every: (keepalive / (SLOTS + 1)).max(Duration::from_millis(1)),
            tick: AtomicU32::new(0),
            ended: AtomicBool::new(false),
            slots: Mutex::new(Slots {
                streams: std::array::from_fn(|_| Slab::new()),
                next: 0,
            }),
            metrics,
            passing: AtomicUsize::new(0),
            passing_max: AtomicUsize::new(in_memory(EventLogConfig::default().total)),
        })
    }

    /// Sets the maximum memory of all passing streams together, in bytes.
    pub(super) fn bound_passing(&self, bytes: usize) {
        self.passing_max.store(bytes, Ordering::Relaxed);
    }

    /// Changes the memory counted for passing streams (streams whose events are kept only until they are read): one that used
    /// `before` bytes now uses `after`.
    pub(super) fn account_passing(&self, before: usize, after: usize) {
        if after >= before {
            self.passing.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.passing.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Returns true if passing streams together exceed their bound.
    pub(super) fn passing_exceeded(&self) -> bool {
        self.passing_bytes() > self.passing_max.load(Ordering::Relaxed)
    }

    /// Memory of the unread events of all passing streams together, in bytes.
    pub(super) fn passing_bytes(&self) -> usize {
        self.passing.load(Ordering::Relaxed)
    }

    /// Runs the timer until the future is dropped. One task per process runs it.
    pub async fn run(&self) {
        let mut ticks = interval(self.tick_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.beat();
        }
    }

    /// Ends every long stream (notifications, `/sse`, `subscriptions/listen`), after it has sent its client the time after which
    /// to reconnect. Long streams that are opened later end immediately. Streams of calls continue until their response is sent.
    pub fn end_all(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.end_present();
    }

    /// Ends the long streams (notifications, `/sse`, `subscriptions/listen`) that have a reader now, in the same way as
    /// [`KeepAlive::end_all`]. Streams that are opened later are not affected.
    pub fn end_present(&self) {
        let mut wakers = Vec::new();
        let slots = self.slots();
        for stream in slots.streams.iter().flatten() {
            wakers.extend(stream.1.end());
        }
        drop(slots);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns true if [`KeepAlive::end_all`] was called; false if it was not.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn metrics(&self) -> &StreamMetrics {
        &self.metrics
    }

    /// Number of the most recent tick.
    pub(super) fn now(&self) -> u32 {
        self.tick.load(Ordering::Relaxed)
    }

    pub(super) fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of streams with a reader.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.slots().streams.iter().map(Slab::len).sum()
    }

    fn beat(&self) {
        let before = self.tick.fetch_add(1, Ordering::Relaxed);
        let due = (before.wrapping_add(1) % SLOTS) as usize;
        let mut wakers = Vec::new();
        let slots = self.slots();
        for (_, stream) in &slots.streams[due] {
            wakers.extend(stream.comment(before));
        }
        drop(slots);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Slots {
    pub(super) fn enter(&mut self, stream: &Arc<Stream>) {
        let slot = self.next % SLOTS;
        self.next = self.next.wrapping_add(1);
        let key = self.streams[slot as usize].insert(Arc::clone(stream));
        // A larger key would need 2^25 streams in one slot, more than the available file descriptors and memory allow.
        let key = u32::try_from(key).unwrap_or(u32::MAX) << SLOT_BITS;
        stream.place.0.store(key | slot, Ordering::Relaxed);
    }

    pub(super) fn leave(&mut self, stream: &Arc<Stream>) {
        let place = stream.place.0.swap(KeepAliveSlot::NONE, Ordering::Relaxed);
        if place != KeepAliveSlot::NONE {
            let slot = &mut self.streams[(place % SLOTS) as usize];
            let left = slot.try_remove((place >> SLOT_BITS) as usize);
            if slot.is_empty() {
                // Frees the memory of a slot that once had many streams, as soon as it is empty.
                slot.shrink_to_fit();
            }
            debug_assert!(left.is_some_and(|left| Arc::ptr_eq(&left, stream)));
        }
    }
}

impl KeepAliveSlot {
    const NONE: u32 = u32::MAX;

    pub(super) fn none() -> Self {
        Self(AtomicU32::new(Self::NONE))
    }

    /// Returns the last frame for the stream's client when all streams are ended: the retry time, which depends on the slot.
    pub(super) fn last_frame(&self) -> bytes::Bytes {
        let slot = self.0.load(Ordering::Relaxed) % SLOTS;
        frame::retry(frame::RETRY + RETRY_STEP * slot)
    }
}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAlive")
            .field("tick_every", &self.tick_every)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
