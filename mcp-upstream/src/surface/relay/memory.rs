//! Memory for long frames, reserved as their bytes arrive.
//!
//! The memory has two parts: one for clients that have shown a valid key, and one for all other clients (strangers). A single
//! key can use only its share of the first part. If a part is full and more bytes of a frame arrive, an incomplete frame loses
//! its memory: a frame of the user with the most memory, and among this user's frames one of the key with the most. Of several
//! frames with the same key, the youngest loses, so that the older ones are completed. Of several frames of strangers, the one
//! that got no new bytes for the longest time loses, so that incomplete frames block no client. If the choice falls on the
//! frame that needs memory, that frame waits instead.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tooldock_base::key_maker::KeyId;
use tooldock_credentials::keys::ApiKey;

use super::room::Counts;

/// Divisor: all clients without a valid key together may use the total memory divided by this number.
const STRANGERS_PART: usize = 4;
/// Divisor: a single key may use the memory for clients with a valid key divided by this number.
const KEY_PART: usize = 4;

/// The memory for long frames of a relay's clients.
pub(super) struct MemoryStore {
    /// Limits in bytes: for the frames of all clients with a valid key (`known`), for the frames of one key (`of_key`), and for
    /// the frames of clients without a valid key (`strangers`).
    known: usize,
    of_key: usize,
    strangers: usize,
    counts: Counts,
    frames: Mutex<Frames>,
    /// Notified when memory becomes free.
    freed: Arc<Notify>,
}

#[derive(Default)]
struct Frames {
    /// Frames with their reservations. The keys are numbers in the order in which the frames began.
    all: BTreeMap<u64, FrameReservation>,
    /// Number of events so far, for ordering them. An event is the beginning of a frame or a reservation.
    clock: u64,
}

struct FrameReservation {
    owner: FrameOwner,
    /// Number of bytes of memory that are reserved for the frame.
    held: usize,
    /// Number of the event at which memory was last reserved for the frame.
    grown: u64,
    whole: bool,
    loss: Arc<Loss>,
}

/// The client that sends a frame: its operating-system user and its key.
#[derive(Clone)]
pub(super) struct FrameOwner {
    pub(super) uid: u32,
    /// The valid key that the client has shown; `None` if it has shown none.
    pub(super) key: Option<Arc<ApiKey>>,
}

/// Signal to the reader of a frame that the frame has lost its memory.
#[derive(Default)]
struct Loss {
    lost: AtomicBool,
    reader: AtomicWaker,
}

/// Handle of the memory of one frame, which is freed when the handle is dropped.
pub(super) struct FrameMemory {
    store: Arc<MemoryStore>,
    number: u64,
    loss: Arc<Loss>,
}

impl FrameOwner {
    fn is_stranger(&self) -> bool {
        self.key.is_none()
    }

    fn key_id(&self) -> Option<KeyId> {
        self.key.as_ref().map(|key| key.record().id)
    }
}

/// Number of bytes that each user and each key has reserved in one part of the store.
struct Shares {
    of_user: HashMap<u32, usize>,
    of_key: HashMap<Option<KeyId>, usize>,
}

impl Frames {
    fn held(&self, of: impl Fn(&FrameOwner) -> bool) -> usize {
        let frames = self.all.values().filter(|frame| of(&frame.owner));
        frames.map(|frame| frame.held).sum()
    }

    /// Returns the bytes that users and keys have reserved in the part of `owner`, as if `owner` had reserved `more` in addition.
    fn shares(&self, owner: &FrameOwner, more: usize) -> Shares {
        let mut shares = Shares {
            of_user: HashMap::from([(owner.uid, more)]),
            of_key: HashMap::from([(owner.key_id(), more)]),
        };
        for frame in self.all.values() {
            if frame.owner.is_stranger() == owner.is_stranger() {
                *shares.of_user.entry(frame.owner.uid).or_default() += frame.held;
                *shares.of_key.entry(frame.owner.key_id()).or_default() += frame.held;
            }
        }
        shares
    }

    fn lose(&mut self, number: u64) {
        if let Some(frame) = self.all.get_mut(&number) {
            frame.held = 0;
            frame.loss.lost.store(true, Ordering::Release);
            frame.loss.reader.wake();
        }
    }
}

impl MemoryStore {
    /// Creates a store of `total` bytes. Each part has at least enough memory for one frame. `counts` returns true if a key is
    /// valid.
    pub(super) fn new(total: usize, frame_max: usize, counts: Counts) -> Self {
        let strangers = (total / STRANGERS_PART).max(frame_max);
        let known = total.saturating_sub(strangers).max(frame_max);
        Self {
            known,
            of_key: (known / KEY_PART).max(frame_max),
            strangers,
            counts,
            frames: Mutex::default(),
            freed: Arc::default(),
        }
    }

    fn frames(&self) -> MutexGuard<'_, Frames> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a frame, for which no memory is reserved yet.
    pub(super) fn begin(self: &Arc<Self>, owner: FrameOwner) -> FrameMemory {
        let loss = Arc::<Loss>::default();
        let mut frames = self.frames();
        let number = frames.clock;
        frames.clock += 1;
        let frame = FrameReservation {
            owner,
            held: 0,
            grown: number,
            whole: false,
            loss: Arc::clone(&loss),
        };
        frames.all.insert(number, frame);
        drop(frames);
        FrameMemory {
            store: Arc::clone(self),
            number,
            loss,
        }
    }

    /// Reserves `bytes` more for a frame. If needed, other frames lose their memory. Returns false if the frame has to wait.
    fn grow(&self, frames: &mut Frames, number: u64, bytes: usize) -> bool {
        let Some(frame) = frames.all.get(&number) else {
            return false;
        };
        let owner = frame.owner.clone();
        loop {
            let of_key = frames.held(|it| it.key_id() == owner.key_id());
            let of_part = frames.held(|it| it.is_stranger() == owner.is_stranger());
            let (of_key_max, of_part_max) = match owner.is_stranger() {
                true => (self.strangers, self.strangers),
                false => (self.of_key, self.known),
            };
            let key_is_full = of_key + bytes > of_key_max;
            if !key_is_full && of_part + bytes <= of_part_max {
                break;
            }
            match self.loser(frames, number, bytes, key_is_full) {
                Some(loser) if loser != number => {
                    frames.lose(loser);
                    self.freed.notify_waiters();
                }
                _ => return false,
            }
        }
        let now = frames.clock;
        frames.clock += 1;
        if let Some(frame) = frames.all.get_mut(&number) {
            frame.held += bytes;
            frame.grown = now;
        }
        true
    }

    /// Finds the frame that loses its memory so that `bytes` more can be reserved for the frame `number`; it may be that frame
    /// itself. With `of_key`, only frames of the same key are considered, otherwise all frames of the part.
    fn loser(&self, frames: &Frames, number: u64, bytes: usize, of_key: bool) -> Option<u64> {
        let wanting = &frames.all.get(&number)?.owner;
        let shares = frames.shares(wanting, bytes);
        let competes = |&(at, frame): &(&u64, &FrameReservation)| {
            let owner = &frame.owner;
            let within = match of_key {
                true => owner.key_id() == wanting.key_id(),
                false => owner.is_stranger() == wanting.is_stranger(),
            };
            *at == number || (within && !frame.whole && frame.held > 0)
        };
        let weight = |&(at, frame): &(&u64, &FrameReservation)| {
            let owner = &frame.owner;
            let is_taken_back = owner.key.as_ref().is_some_and(|key| !(self.counts)(key));
            let age = match owner.is_stranger() {
                true => u64::MAX - frame.grown,
                false => *at,
            };
            (
                is_taken_back,
                shares.of_user.get(&owner.uid).copied(),
                shares.of_key.get(&owner.key_id()).copied(),
                age,
            )
        };
        let first = frames.all.iter().filter(competes).max_by_key(weight);
        first.map(|(at, _)| *at)
    }
}

impl FrameMemory {
    /// Reserves memory until the frame has `bytes`. Returns false if other frames use the memory and need not give it up. Then
    /// [`FrameMemory::freed`] resolves when another attempt may succeed.
    pub(super) fn reach(&self, bytes: usize) -> bool {
        let mut frames = self.store.frames();
        let held = frames.all.get(&self.number).map_or(0, |frame| frame.held);
        bytes <= held || self.store.grow(&mut frames, self.number, bytes - held)
    }

    /// Returns a future that resolves when memory becomes free after this call.
    pub(super) fn freed(&self) -> OwnedNotified {
        Arc::clone(&self.store.freed).notified_owned()
    }

    /// Returns true if the frame has lost its memory, so that reading must end. Otherwise `reader` is woken when this happens.
    pub(super) fn is_lost(&self, reader: &Waker) -> bool {
        self.loss.reader.register(reader);
        self.loss.lost.load(Ordering::Acquire)
    }

    /// Records that the frame is complete and has this size in bytes. A complete frame cannot lose its memory to another frame.
    pub(super) fn complete(&self, bytes: usize) {
        let mut frames = self.store.frames();
        if let Some(frame) = frames.all.get_mut(&self.number) {
            frame.held = frame.held.min(bytes);
            frame.whole = true;
        }
        drop(frames);
        self.store.freed.notify_waiters();
    }

    /// Counts the frame for the key that it contains. Returns false if that key has used up its share of the memory.
    pub(super) fn belongs_to(&self, key: &Arc<ApiKey>) -> bool {
        let mut frames = self.store.frames();
        let Some(frame) = frames.all.get_mut(&self.number) else {
            return false;
        };
        if !frame.owner.is_stranger() {
            return true;
        }
        let held = std::mem::take(&mut frame.held);
        frame.owner.key = Some(Arc::clone(key));
        let fits = self.store.grow(&mut frames, self.number, held);
        if !fits && let Some(frame) = frames.all.get_mut(&self.number) {
            frame.owner.key = None;
            frame.held = held;
        }
        fits
    }
}

impl Drop for FrameMemory {
    fn drop(&mut self) {
        self.store.frames().all.remove(&self.number);
        self.store.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_util::FutureExt as _;

    use super::super::testing::Keys;
    use super::*;

    const UID: u32 = 1000;
    const OTHER: u32 = 2000;
    const FRAME_MAX: usize = 10;

    /// Creates a store that holds at most 40 bytes of frames with valid keys (10 bytes per key), and 10 bytes of frames without.
    fn store(keys: &Keys) -> Arc<MemoryStore> {
        let store = MemoryStore {
            known: 40,
            of_key: 10,
            strangers: 10,
            ..MemoryStore::new(50, FRAME_MAX, keys.counts())
        };
        Arc::new(store)
    }

    fn of_key(store: &Arc<MemoryStore>, key: &Arc<ApiKey>) -> FrameMemory {
        let key = Some(Arc::clone(key));
        store.begin(FrameOwner { uid: UID, key })
    }

    fn stranger(store: &Arc<MemoryStore>, uid: u32) -> FrameMemory {
        store.begin(FrameOwner { uid, key: None })
    }

    fn is_lost(frame: &FrameMemory) -> bool {
        frame.is_lost(Waker::noop())
    }

    #[test]
    fn memory_is_taken_as_bytes_arrive_and_a_key_has_no_more_than_its_share() {
        let keys = Keys::new();
        let store = Arc::new(MemoryStore::new(400, FRAME_MAX, keys.counts()));
        let (one, other) = (keys.make(), keys.make());
        let unfinished: Vec<_> = (0..70).map(|_| of_key(&store, &one)).collect();
        assert!(unfinished.iter().all(|frame| frame.reach(1)));
        assert_eq!(unfinished.iter().filter(|it| is_lost(it)).count(), 0);
        // The first frame is completed; the youngest frames of the same key lose their memory.
        assert!(unfinished[0].reach(FRAME_MAX));
        let lost = |frames: &[FrameMemory]| frames.iter().filter(|it| is_lost(it)).count();
        assert_eq!((lost(&unfinished), lost(&unfinished[..60])), (4, 0));
        let frame = of_key(&store, &other);
        assert!(frame.reach(FRAME_MAX));
        assert_eq!(lost(&unfinished), 4, "another key has its own share");
    }

    #[test]
    fn frames_that_are_answered_lose_nothing_and_others_wait_for_them() {
        let keys = Keys::new();
        let store = store(&keys);
        let key = keys.make();
        let held = of_key(&store, &key);
        assert!(held.reach(FRAME_MAX));
        held.complete(8);
        let next = of_key(&store, &key);
        let freed = next.freed();
        assert!(next.reach(2) && !next.reach(3));
        assert!(!is_lost(&held));
        drop(held);
        assert!(freed.now_or_never().is_some());
        assert!(next.reach(FRAME_MAX));
    }

    #[test]
    fn the_key_with_the_most_loses_to_another_and_a_revoked_one_first() {
        let keys = Keys::new();
        let store = store(&keys);
        let shown: Vec<_> = (0..6).map(|_| keys.make()).collect();
        let frames: Vec<_> = shown.iter().map(|key| of_key(&store, key)).collect();
        for (frame, bytes) in frames.iter().zip([10, 9, 9, 8, 4]) {
            assert!(frame.reach(bytes));
        }
        assert!(frames[5].reach(1));
        assert!(is_lost(&frames[0]));
        keys.revoke(&shown[4]);
        assert!(frames[5].reach(FRAME_MAX));
        assert!(frames[5].reach(FRAME_MAX));
        let next = of_key(&store, &keys.make());
        assert!(next.reach(5));
        assert!(is_lost(&frames[4]) && !is_lost(&frames[3]));
    }

    #[test]
    fn half_frames_of_strangers_keep_neither_another_user_nor_a_newcomer_out() {
        let keys = Keys::new();
        let store = store(&keys);
        let flood: Vec<_> = (0..5).map(|_| stranger(&store, UID)).collect();
        assert!(flood.iter().all(|frame| frame.reach(2)));
        let other = stranger(&store, OTHER);
        assert!(other.reach(4));
        let lost = |frames: &[FrameMemory]| frames.iter().map(is_lost).collect::<Vec<_>>();
        assert_eq!(lost(&flood), [true, true, false, false, false]);
        // The oldest frame of the same user loses its memory.
        let newcomer = stranger(&store, UID);
        assert!(newcomer.reach(2));
        assert_eq!(lost(&flood), [true, true, true, false, false]);
        assert!(!is_lost(&other));
    }

    #[test]
    fn a_frame_that_has_shown_a_key_counts_for_that_key() {
        let keys = Keys::new();
        let store = store(&keys);
        let key = keys.make();
        let first = stranger(&store, UID);
        assert!(first.reach(FRAME_MAX));
        first.complete(FRAME_MAX);
        assert!(first.belongs_to(&key));
        let second = stranger(&store, UID);
        assert!(second.reach(FRAME_MAX), "strangers have theirs again");
        second.complete(FRAME_MAX);
        assert!(!second.belongs_to(&key), "the key has its share");
        drop(first);
        assert!(second.belongs_to(&key));
    }
}
