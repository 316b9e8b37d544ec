//! Operations on a stream that the event log and the keep-alive timer (`KeepAlive`) use, in addition to those of the stream's
//! writer and reader.

use std::num::NonZeroU64;
use std::sync::{Arc, MutexGuard, Weak};
use std::task::Waker;

use bytes::Bytes;
use tokio::time::Instant;

use super::StreamReaders;
use super::frame::{self, EventId};
use super::ledger::Share;
use super::owned::{begin_of, epoch_of};
use super::store::{EventKind, Replay};
use super::window::{TrimOutcome, Window};
use super::{
    Ending, KeepAlive, Role, Stream, StreamKind, StreamPhase, StreamState, Subscription, wake,
};

/// State of a stream after events were removed from it.
pub(super) struct RemainingEvents {
    /// Sequence and time of the oldest event. The principal's account orders its streams by them. `None` without events: the
    /// stream then has no entry in the account.
    pub(super) oldest: Option<(u64, Instant)>,
    /// True if nothing can be read from the stream any more, so that it can be dropped.
    pub(super) useless: bool,
}

impl Stream {
    /// Creates a stream of a session that is opened in the given epoch (number of the session's adoptions). With `prime` its
    /// first reader first gets an event without data, from whose id the client can resume.
    pub(super) fn of_session(
        keep_alive: &Arc<KeepAlive>,
        kind: StreamKind,
        (number, epoch): (u32, u32),
        session: Weak<dyn StreamReaders>,
        share: Arc<Share>,
        prime: bool,
    ) -> Arc<Self> {
        let kept = kind != StreamKind::Sse;
        let begin = begin_of(epoch);
        let sequence = match prime {
            true => share.ledger().next_after(begin),
            false => begin,
        };
        let share = kept.then_some(share);
        let stream = Self::new(
            keep_alive,
            Role::from(kind),
            (number, epoch),
            Some(session),
            share,
            sequence,
        );
        if kept && prime {
            stream.lock().priming = NonZeroU64::new(sequence);
        }
        Arc::new(stream)
    }

    /// Creates a stream of a session that was live in another process, with its stored events.
    pub(super) fn restored(
        keep_alive: &Arc<KeepAlive>,
        kind: StreamKind,
        number: u32,
        session: Weak<dyn StreamReaders>,
        share: Arc<Share>,
        replay: &Replay,
    ) -> Arc<Self> {
        let role = Role::from(kind);
        let before = replay.dropped;
        let mut events = replay.events.iter();
        let opening = events.find(|event| matches!(event.kind, EventKind::Opened { .. }));
        // If the stored opening is missing, the stream may belong to any epoch, so the lowest is assumed.
        let epoch = opening.map_or(0, |event| epoch_of(event.sequence));
        let place = (number, epoch);
        let stream = Self::new(keep_alive, role, place, Some(session), Some(share), 0);
        let stream = Arc::new(stream);
        let mut state = stream.lock();
        state.window = Window::after_gap(before);
        let events = replay.events.iter().filter_map(|event| {
            let id = stream.event_id(event.sequence);
            match &event.kind {
                EventKind::Opened { .. } => {
                    state.window.skip(event.sequence);
                    None
                }
                EventKind::Message(message) => {
                    let framed = frame::message(Some(id), message.as_bytes());
                    Some((event.sequence, framed))
                }
            }
        });
        let events: Vec<_> = events.collect();
        stream.show(state, events);
        stream
    }

    /// Raises the newest sequence to `sequence`: a client may then resume after any event up to it, and later events get higher
    /// sequences.
    pub(super) fn skip(&self, sequence: u64) {
        self.lock().window.skip(sequence);
    }

    /// Returns true if the stream keeps events after they were read.
    pub(super) fn is_kept(&self) -> bool {
        self.share.is_some()
    }

    /// Returns true if an event with that sequence may belong to this stream. An event of an earlier epoch does not: it belongs
    /// to another stream with the same number.
    pub(super) fn may_have(&self, sequence: u64) -> bool {
        sequence >= begin_of(self.epoch)
    }

    /// Number of the stream within its session.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the sequence of the newest event that the stream ever had, or of the event without data to resume from. If there
    /// was none, this is the sequence after which the stream's epoch begins.
    pub(super) fn newest(&self) -> u64 {
        self.lock().window.newest()
    }

    pub(crate) fn is_general(&self) -> bool {
        matches!(self.lock().role, Role::General | Role::Sse)
    }

    /// Returns true if a reader is attached and will read further events.
    pub(crate) fn is_read(&self) -> bool {
        self.lock().is_read()
    }

    /// Returns true if the stream has no reader, and is kept only because its client may resume it.
    pub(crate) fn is_parked(&self) -> bool {
        let state = self.lock();
        !state.attached && (state.phase != StreamPhase::Open || state.role == Role::General)
    }

    /// Returns true if the stream has no reader and gets no further events, and is kept only because its client may resume it.
    pub(crate) fn is_left(&self) -> bool {
        let state = self.lock();
        !state.attached && state.phase != StreamPhase::Open
    }

    /// Memory of the events of the stream, as counted in the total of kept streams, in bytes.
    pub(crate) fn cost(&self) -> usize {
        self.lock().window.cost()
    }

    /// Drops the events of a kept stream without a reader, and returns the number of freed bytes. A client that resumes the
    /// stream continues without these events.
    pub(crate) fn drop_events(&self) -> usize {
        let mut state = self.lock();
        if state.attached || !self.is_kept() {
            return 0;
        }
        let before = state.window.cost();
        state.window.clear();
        // The stream's entry in the principal's account is kept, although it is now outdated; it is corrected when it is next
        // used.
        self.account(before, 0);
        before
    }

    pub(super) fn event_id(&self, sequence: u64) -> EventId {
        EventId {
            stream: self.number,
            sequence,
        }
    }

    /// Adds a message to a kept stream; `framed` is the message formatted with `sequence`. If a newer event was added
    /// meanwhile, the message gets a higher sequence. Returns false if the stream is finished, or keeps no events.
    pub(super) fn append(self: &Arc<Self>, sequence: u64, framed: Bytes, message: &[u8]) -> bool {
        let Some(share) = &self.share else {
            return false;
        };
        let state = self.lock();
        if state.phase != StreamPhase::Open {
            return false;
        }
        if sequence > state.window.newest() {
            self.show(state, [(sequence, framed)]);
        } else {
            let sequence = share.ledger().next_after(state.window.newest());
            let framed = frame::message(Some(self.event_id(sequence)), message);
            self.show(state, [(sequence, framed)]);
        }
        true
    }

    /// Adds events that are newer than the existing ones to a kept stream, and wakes its reader.
    pub(super) fn show(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, StreamState>,
        events: impl IntoIterator<Item = (u64, Bytes)>,
    ) {
        let Some(share) = &self.share else {
            return;
        };
        let (ledger, now) = (share.ledger(), Instant::now());
        let before = state.window.cost();
        let reading = state.attached && !state.cut;
        let (mut slow, mut newest) = (false, 0);
        for (sequence, framed) in events {
            state.window.push(sequence, framed, now);
            slow |= state.window.trim(ledger.bounds(), reading) == TrimOutcome::ReaderTooSlow;
            newest = sequence;
        }
        state.cut |= slow;
        share.account(before, state.window.cost());
        let oldest = state.window.oldest().unwrap_or((newest, now));
        let listed = std::mem::replace(&mut state.listed, true);
        let waker = state.waker.take();
        drop(state);
        wake(waker);
        if slow {
            ledger.metrics.slow_readers.inc();
        }
        if !listed {
            share.list(oldest, self);
        }
    }

    /// Attaches a reader after the event with that sequence. The returned flag is true if later events were dropped before this
    /// reader could read them. Returns `None` if the stream has not reached that sequence.
    pub(super) fn read_after(self: &Arc<Self>, sequence: u64) -> Option<(Subscription, bool)> {
        let mut slots = self.keep_alive.slots();
        let mut state = self.lock();
        if sequence > state.window.newest() {
            return None;
        }
        let missed = state.window.seek(sequence);
        state.priming = None;
        let (subscription, replaced) = self.attach(&mut slots, &mut state);
        drop(state);
        drop(slots);
        wake(replaced);
        Some((subscription, missed))
    }

    /// Removes events that are older than `since`.
    pub(super) fn evict_before(&self, since: Instant) -> RemainingEvents {
        self.evict(|_, at| at < since)
    }

    /// Removes the event with that sequence, if it is still the oldest.
    pub(super) fn evict_one(&self, sequence: u64) -> RemainingEvents {
        self.evict(|oldest, _| oldest == sequence)
    }

    fn evict(&self, mut goes: impl FnMut(u64, Instant) -> bool) -> RemainingEvents {
        let mut state = self.lock();
        let before = state.window.cost();
        let mut slow = false;
        while state
            .window
            .oldest()
            .is_some_and(|(sequence, at)| goes(sequence, at))
        {
            slow |= state.window.evict_oldest() == Some(true);
        }
        self.account(before, state.window.cost());
        let oldest = state.window.oldest();
        state.listed = oldest.is_some();
        let useless = oldest.is_none() && state.phase != StreamPhase::Open && !state.attached;
        // A reader that had not read the removed events is disconnected, since it must not miss events unnoticed.
        slow &= state.attached && !state.cut;
        state.cut |= slow;
        let waker = slow.then(|| state.waker.take()).flatten();
        drop(state);
        wake(waker);
        if let Some(share) = self.share.as_ref().filter(|_| slow) {
            share.ledger().metrics.slow_readers.inc();
        }
        RemainingEvents { oldest, useless }
    }

    /// Ends the stream together with its session: its events are dropped, and its reader gets the end of the stream.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.phase = StreamPhase::Closed;
        state.priming = None;
        state.staged.clear();
        let before = state.window.cost();
        state.window.clear();
        self.account(before, 0);
        let waker = state.waker.take();
        drop(state);
        wake(waker);
        self.moved.notify_waiters();
    }

    /// Changes the role of the stream to `Listen`: the keep-alive timer (`KeepAlive`) may then end the stream, after sending
    /// `farewell` as its last event.
    pub(crate) fn listen(&self, farewell: Bytes) {
        let mut state = self.lock();
        let gauges = state.attached.then(|| self.keep_alive.metrics());
        if let Some(metrics) = gauges {
            metrics.open(state.role).dec();
            metrics.open(Role::Listen).inc();
        }
        state.role = Role::Listen;
        state.farewell = Some(Box::new(farewell));
        if self.keep_alive.has_ended() && state.ending == Ending::No {
            state.ending = Ending::Wanted;
        }
        let waker = state.waker.take();
        drop(state);
        wake(waker);
    }

    /// Ends a long stream (notifications, `/sse`, `subscriptions/listen`) after its remaining events and its last frame. Streams
    /// of requests are not changed. Returns the waker of the reader, which the caller must wake.
    pub(super) fn end(&self) -> Option<Waker> {
        let mut state = self.lock();
        if !state.role.is_long() || state.ending != Ending::No {
            return None;
        }
        state.ending = Ending::Wanted;
        state.waker.take()
    }

    /// Ends a stream at an operator's request. A long stream (notifications, `/sse`, `subscriptions/listen`) first sends its last
    /// frame, so that its client reconnects as usual. The stream of a request is finished.
    pub(super) fn end_for_operator(&self) {
        let is_long = self.lock().role.is_long();
        match is_long {
            // There is no waker while the reader writes an event; it then finds the end by itself.
            true => wake(self.end()),
            false => self.finish(),
        }
    }

    /// Requests a keep-alive comment, unless the stream has written since the tick `tick_before`. Called by the keep-alive timer.
    pub(super) fn comment(&self, tick_before: u32) -> Option<Waker> {
        let mut state = self.lock();
        if state.wrote == tick_before {
            return None;
        }
        state.comment = true;
        state.waker.take()
    }
}
