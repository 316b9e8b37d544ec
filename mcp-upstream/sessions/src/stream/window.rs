//! The remaining events of one stream, and the position of its reader.
//!
//! The window is plain data: its stream has the lock, the clock and the tasks. Events are removed only at the front, so a window
//! always contains the newest events without a gap.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::time::Instant;

/// Memory of one event in addition to its bytes, as counted in the total over all streams.
const EVENT_OVERHEAD: usize = 64;

/// Bounds of one stream's window (its remaining events).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Maximum number of events in the window.
    pub(crate) events: usize,
    /// Maximum length of the window's formatted events together, in bytes.
    pub(crate) bytes: usize,
}

impl Bounds {
    /// Memory of a window at these bounds, in bytes, as counted in the total over all streams.
    pub(crate) fn max_cost(self) -> usize {
        let overhead = self.events.saturating_mul(EVENT_OVERHEAD);
        self.bytes.saturating_add(overhead)
    }
}

/// Formatted events in order. Uses no heap memory while it is empty.
#[derive(Debug, Default)]
pub(crate) struct Window {
    events: VecDeque<WindowEvent>,
    bytes: usize,
    /// Number of events at the front of the window that the reader has read.
    read: usize,
    /// Sequence of the newest event that was removed; 0 if none was.
    evicted: u64,
    /// Sequence of the newest event that was ever added to the window.
    newest: u64,
}

#[derive(Debug)]
struct WindowEvent {
    sequence: u64,
    frame: Bytes,
    at: Instant,
}

/// Result of trimming a window to its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrimOutcome {
    /// The window is within its bounds, or only its newest unread event exceeds them.
    Within,
    /// The reader has left more unread than the bounds allow: unread events were removed.
    ReaderTooSlow,
}

impl Window {
    /// Creates an empty window whose next event comes after `sequence`.
    pub(crate) fn after(sequence: u64) -> Self {
        Self {
            newest: sequence,
            ..Self::default()
        }
    }

    /// Creates an empty window that has lost its events up to `sequence`.
    pub(crate) fn after_gap(sequence: u64) -> Self {
        Self {
            evicted: sequence,
            newest: sequence,
            ..Self::default()
        }
    }

    /// Raises the newest sequence to `sequence`, although no event with it is added.
    pub(crate) fn skip(&mut self, sequence: u64) {
        self.newest = self.newest.max(sequence);
    }

    /// Sequence of the newest event that was ever added, or skipped.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Sequence and time of the oldest event in the window.
    pub(crate) fn oldest(&self) -> Option<(u64, Instant)> {
        self.events.front().map(|event| (event.sequence, event.at))
    }

    /// Memory of the window as counted in the total over all streams, in bytes.
    pub(crate) fn cost(&self) -> usize {
        self.bytes + self.events.len() * EVENT_OVERHEAD
    }

    /// Adds an event. Sequences of a stream increase; on streams whose events have no ids, all are 0.
    pub(crate) fn push(&mut self, sequence: u64, frame: Bytes, at: Instant) {
        self.bytes += frame.len();
        self.newest = sequence;
        self.events.push_back(WindowEvent {
            sequence,
            frame,
            at,
        });
    }

    /// Returns true if the unread events use at least half of the bounds.
    pub(crate) fn is_behind(&self, bounds: Bounds) -> bool {
        let unread = self.events.iter().skip(self.read);
        unread.len() >= (bounds.events / 2).max(1)
            || unread.map(|event| event.frame.len()).sum::<usize>() > bounds.bytes / 2
    }

    /// Returns the next event that the reader has not read, and keeps it in the window.
    pub(crate) fn read(&mut self) -> Option<Bytes> {
        let frame = self.events.get(self.read)?.frame.clone();
        self.read += 1;
        Some(frame)
    }

    /// Returns the next event, and removes it from the window.
    pub(crate) fn take(&mut self) -> Option<Bytes> {
        self.evict().map(|(frame, _)| frame)
    }

    /// Sets the reader's position after the event with that sequence. Returns true if later events were removed from the window.
    pub(crate) fn seek(&mut self, sequence: u64) -> bool {
        self.read = self
            .events
            .partition_point(|event| event.sequence <= sequence);
        sequence < self.evicted
    }

    /// Removes the oldest event. Returns true if the reader had not read it, and `None` if the window is empty.
    pub(crate) fn evict_oldest(&mut self) -> Option<bool> {
        self.evict().map(|(_, unread)| unread)
    }

    /// Removes all events.
    pub(crate) fn clear(&mut self) {
        let newest = self.newest;
        let evicted = self.events.back().map_or(self.evicted, |_| newest);
        *self = Self {
            evicted,
            newest,
            ..Self::default()
        };
    }

    /// Removes the oldest events until the window is within its bounds. The newest event is kept regardless of its size. If
    /// `reading` is true, unread events are kept as long as they are within the bounds without the newest one.
    pub(crate) fn trim(&mut self, bounds: Bounds, reading: bool) -> TrimOutcome {
        let mut trimmed = TrimOutcome::Within;
        while self.events.len() > 1 && !self.within(bounds, self.events.len(), self.bytes) {
            if reading && self.read == 0 && trimmed == TrimOutcome::Within {
                let newest = self.events.back().map_or(0, |event| event.frame.len());
                if self.within(bounds, self.events.len() - 1, self.bytes - newest) {
                    break;
                }
                trimmed = TrimOutcome::ReaderTooSlow;
            }
            self.evict();
        }
        trimmed
    }

    fn within(&self, bounds: Bounds, events: usize, bytes: usize) -> bool {
        events <= bounds.events.max(1) && bytes <= bounds.bytes
    }

    fn evict(&mut self) -> Option<(Bytes, bool)> {
        let event = self.events.pop_front()?;
        self.bytes -= event.frame.len();
        self.evicted = event.sequence;
        let unread = self.read == 0;
        self.read = self.read.saturating_sub(1);
        if self.events.is_empty() {
            // An idle stream must not keep the memory of earlier events.
            self.events = VecDeque::new();
        }
        Some((event.frame, unread))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(sizes: &[usize]) -> Window {
        let mut window = Window::after(100);
        for (number, size) in sizes.iter().enumerate() {
            let sequence = 101 + number as u64;
            window.push(sequence, Bytes::from(vec![b'x'; *size]), Instant::now());
        }
        window
    }

    fn sequences(window: &Window) -> Vec<u64> {
        window.events.iter().map(|event| event.sequence).collect()
    }

    const BOUNDS: Bounds = Bounds {
        events: 3,
        bytes: 10,
    };

    #[test]
    fn without_a_reader_the_oldest_go_first() {
        let mut window = filled(&[1, 1, 1, 1, 1]);
        assert_eq!(window.trim(BOUNDS, false), TrimOutcome::Within);
        assert_eq!(sequences(&window), [103, 104, 105]);
        let mut window = filled(&[4, 4, 4]);
        assert_eq!(window.trim(BOUNDS, false), TrimOutcome::Within);
        assert_eq!(sequences(&window), [102, 103]);
        let mut window = filled(&[1, 50]);
        assert_eq!(window.trim(BOUNDS, false), TrimOutcome::Within);
        assert_eq!(sequences(&window), [102]);
    }

    #[test]
    fn what_a_reader_has_not_taken_stays_while_only_the_newest_is_too_much() {
        let mut window = filled(&[5, 5, 50]);
        assert_eq!(window.trim(BOUNDS, true), TrimOutcome::Within);
        assert_eq!(sequences(&window), [101, 102, 103]);
        window.push(104, Bytes::from_static(b"x"), Instant::now());
        assert_eq!(window.trim(BOUNDS, true), TrimOutcome::ReaderTooSlow);
        assert_eq!(sequences(&window), [104]);
        let mut window = filled(&[1, 1, 1, 1]);
        assert_eq!(window.trim(BOUNDS, true), TrimOutcome::Within);
        window.read();
        assert_eq!(window.trim(BOUNDS, true), TrimOutcome::Within);
        assert_eq!(sequences(&window), [102, 103, 104]);
    }

    #[test]
    fn a_reader_keeps_its_place_while_the_front_goes() {
        let mut window = filled(&[1, 1, 1]);
        assert!(window.read().is_some());
        assert_eq!(window.evict_oldest(), Some(false));
        assert_eq!(window.evict_oldest(), Some(true));
        assert!(window.read().is_some());
        assert!(window.read().is_none());
        assert_eq!(window.evict_oldest(), Some(false));
        assert_eq!(window.evict_oldest(), None);
    }

    #[test]
    fn seeking_says_when_something_in_between_is_gone() {
        let mut window = filled(&[1, 1, 1]);
        assert!(!window.seek(100));
        window.evict_oldest();
        assert!(window.seek(100));
        assert!(!window.seek(101));
        assert!(!window.seek(102));
        assert!(window.read().is_some());
        assert!(window.read().is_none());
        window.clear();
        assert!(window.seek(102));
        assert!(!window.seek(103));
    }

    #[test]
    fn an_empty_window_holds_no_memory() {
        let mut window = filled(&[1, 1, 1]);
        assert_eq!(window.cost(), 3 + 3 * EVENT_OVERHEAD);
        while window.take().is_some() {}
        assert_eq!((window.cost(), window.events.capacity()), (0, 0));
        assert_eq!(window.newest(), 103);
    }
}
