//! State that all streams share: one timer for their keepalives, the switch that ends them, and the total memory of passing
//! streams.
//!
//! Streams with a reader are spread over slots; one slot is due per tick. A stream that wrote since the tick before needs no
//! comment. So an idle stream costs one visit per keepalive and no timer, and the comments of different streams are spread over
//! time.

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

/// Number of groups of streams whose comments are due together. The groups are many and small, since all comments of a group
/// are written in one go, and calls wait for that (with 16, the p99 of calls beside 19,000 idle streams doubled).
const SLOTS: u32 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 7;
/// Difference of the retry times of successive groups, so that the clients reconnect at different times after a shutdown.
const RETRY_STEP: Duration = Duration::from_millis(30);

/// Timer of the keep-alive comments of all streams, which can also end the streams and accounts the passing streams.
pub struct Pulse {
    tick_every: Duration,
    tick: AtomicU32,
    ended: AtomicBool,
    /// Locked before a stream's own lock, never after it: when a reader attaches or detaches, and by the tick, never for a
    /// message.
    slots: Mutex<Slots>,
    metrics: Arc<StreamMetrics>,
    /// Unread bytes of passing streams.
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
pub(super) struct PulseSlot(AtomicU32);

impl Pulse {
    /// A timer that, while it runs, leaves no idle stream without a comment for longer than `keepalive`.
    #[cfg(any(test, feature = "testing"))]
    pub fn new(keepalive: Duration) -> Arc<Self> {
        Self::measured(keepalive, StreamMetrics::unregistered())
    }

    /// A timer that, while it runs, leaves no idle stream without a comment for longer than `keepalive`, and updates the
    /// service's metrics.
    pub fn measured(keepalive: Duration, metrics: Arc<StreamMetrics>) -> Arc<Self> {
        Arc::new(Self {
            // A stream that skips its comment has written within the last tick: the silence is at most one round and that tick.
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

    /// Accounts a change of the cost of a passing window.
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

    /// Unread bytes of passing streams.
    pub(super) fn passing_bytes(&self) -> usize {
        self.passing.load(Ordering::Relaxed)
    }

    /// Ticks until the future is dropped. A single task of the process runs it.
    pub async fn run(&self) {
        let mut ticks = interval(self.tick_every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            self.beat();
        }
    }

    /// Ends every long stream, after sending its client the time to reconnect; streams opened later end immediately. Responses
    /// to calls may finish.
    pub fn end_all(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.end_present();
    }

    /// Ends the streams with a reader as [`Pulse::end_all`] does; streams opened later are not ended.
    pub fn end_present(&self) {
        let mut wakers = Vec::new();
        let slots = self.slots();
        for stream in slots.streams.iter().flatten() {
            wakers.extend(stream.1.end());
        }
        drop(slots);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns true if [`Pulse::end_all`] was called.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn metrics(&self) -> &StreamMetrics {
        &self.metrics
    }

    /// The number of the last tick.
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
        // 2^25 streams in one slot exceed the available descriptors and memory.
        let key = u32::try_from(key).unwrap_or(u32::MAX) << SLOT_BITS;
        stream.place.0.store(key | slot, Ordering::Relaxed);
    }

    pub(super) fn leave(&mut self, stream: &Arc<Stream>) {
        let place = stream.place.0.swap(PulseSlot::NONE, Ordering::Relaxed);
        if place != PulseSlot::NONE {
            let slot = &mut self.streams[(place % SLOTS) as usize];
            let left = slot.try_remove((place >> SLOT_BITS) as usize);
            if slot.is_empty() {
                // Frees the capacity of a burst of streams once the slot is empty.
                slot.shrink_to_fit();
            }
            debug_assert!(left.is_some_and(|left| Arc::ptr_eq(&left, stream)));
        }
    }
}

impl PulseSlot {
    const NONE: u32 = u32::MAX;

    pub(super) fn none() -> Self {
        Self(AtomicU32::new(Self::NONE))
    }

    /// The last frame for the stream's client when all streams are ended.
    pub(super) fn farewell(&self) -> bytes::Bytes {
        let slot = self.0.load(Ordering::Relaxed) % SLOTS;
        frame::retry(frame::RETRY + RETRY_STEP * slot)
    }
}

impl fmt::Debug for Pulse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pulse")
            .field("tick_every", &self.tick_every)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
