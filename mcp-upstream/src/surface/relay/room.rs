//! The connections of a relay, and which of them gives way when there are too many.
//!
//! Every process that reaches the socket may connect, with a key or without one. A connection is known while the key that
//! it has shown counts: until the key is revoked, expires or changes. All others are strangers.
//!
//! | comes | gives way |
//! |---|---|
//! | a connection, and all places of strangers are taken | the oldest stranger of the user (by `SO_PEERCRED`) with the most strangers |
//! | a valid key on a connection, and all places are those of known ones | the connection that has been idle longest, of the user and then of the key with the most |
//! | a valid key that enough connections have shown | the longest idle connection of the key |
//!
//! A connection that gives way is read once more before it ends: a client that has sent its first frame is judged by it,
//! however many others connect meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tooldock_workers::keys::ApiKey;

use super::memory::{FrameMemory, MemoryStore, Owner};

/// Connections at once.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Places for strangers when all others are those of known connections: there is always a way in.
const STRANGERS_MIN: usize = 32;
/// Connections that show the same key.
const OF_KEY_MAX: usize = 64;
/// Connections on their way out, beside those.
const LEAVING_MAX: usize = 256;
/// How long a client has at least to show its first frame, however many others connect.
const FIRST_FRAME: Duration = Duration::from_millis(50);

/// Whether a key counts at this moment.
pub(super) type Counts = Arc<dyn Fn(&Arc<ApiKey>) -> bool + Send + Sync>;

/// The clients of a relay.
pub(super) struct Room {
    places: Mutex<Places>,
    memory: Arc<MemoryStore>,
    counts: Counts,
    /// Woken when a connection that gave way has ended.
    left: Notify,
    /// Counts the moments at which connections became idle.
    idled: AtomicU64,
}

#[derive(Default)]
struct Places {
    /// By the order in which they came.
    taken: BTreeMap<u64, Place>,
    came: u64,
    leaving: usize,
}

struct Place {
    uid: u32,
    /// The key that was shown first, of those that still count.
    key: Option<Arc<ApiKey>>,
    signals: Arc<Signals>,
}

/// The state of a connection that its own tasks and other connections share.
#[derive(Default)]
struct Signals {
    /// Its place is given to another connection, unless it still shows a valid key.
    leaving: AtomicBool,
    /// Its time to show a key is over: what was sent is read, and nothing else is waited for.
    last_look: AtomicBool,
    /// Its place was given to another connection.
    leave: Notify,
    /// Nothing that the client has sent is left to be judged.
    judged: Notify,
    /// The task that reads.
    reader: AtomicWaker,
    /// Requests that run.
    running: AtomicUsize,
    /// A frame has begun and is not complete.
    unfinished: AtomicBool,
    idle_since: AtomicU64,
}

impl Place {
    fn is_leaving(&self) -> bool {
        self.signals.leaving.load(Ordering::Acquire)
    }

    fn is_known(&self, counts: &Counts) -> bool {
        !self.is_leaving() && self.key.as_ref().is_some_and(|key| counts(key))
    }

    fn is_stranger(&self, counts: &Counts) -> bool {
        !self.is_leaving() && !self.key.as_ref().is_some_and(|key| counts(key))
    }

    /// Nothing runs. Half a frame alone keeps no place.
    fn is_idle(&self) -> bool {
        self.signals.running.load(Ordering::Acquire) == 0
    }
}

impl Places {
    fn give_way(&mut self, number: u64) {
        if let Some(place) = self.taken.get_mut(&number) {
            place.signals.leaving.store(true, Ordering::Release);
            place.signals.leave.notify_one();
            self.leaving += 1;
        }
    }

    /// The stranger that gives way to a newcomer of a user: the oldest one of the user with the most.
    fn stranger(&self, uid: u32, counts: &Counts) -> Option<u64> {
        let strangers = || self.taken.iter().filter(|(_, it)| it.is_stranger(counts));
        let mut of_user = HashMap::from([(uid, 1_usize)]);
        for (_, place) in strangers() {
            *of_user.entry(place.uid).or_default() += 1;
        }
        let share = |place: &Place| of_user.get(&place.uid).copied();
        let most = strangers().max_by_key(|&(number, place)| (share(place), Reverse(number)));
        most.map(|(number, _)| *number)
    }

    /// The known connection that gives way: an idle one of the user and the key with the most.
    fn idle(&self, counts: &Counts, among: impl Fn(&Place) -> bool) -> Option<u64> {
        let known = || self.taken.iter().filter(|(_, it)| it.is_known(counts));
        let key_of = |place: &Place| place.key.as_ref().map(|key| key.record().id);
        let (mut of_user, mut of_key) = (HashMap::new(), HashMap::new());
        for (_, place) in known() {
            *of_user.entry(place.uid).or_insert(0_usize) += 1;
            *of_key.entry(key_of(place)).or_insert(0_usize) += 1;
        }
        let idle = known().filter(|(_, place)| place.is_idle() && among(place));
        let first = idle.max_by_key(|(_, place)| {
            (
                of_user.get(&place.uid).copied(),
                of_key.get(&key_of(place)).copied(),
                !place.signals.unfinished.load(Ordering::Relaxed),
                Reverse(place.signals.idle_since.load(Ordering::Relaxed)),
            )
        });
        first.map(|(number, _)| *number)
    }
}

impl Room {
    /// A room whose long frames share that memory, and whose keys are judged by `counts`.
    pub(super) fn new(memory: MemoryStore, counts: Counts) -> Self {
        Self {
            places: Mutex::default(),
            memory: Arc::new(memory),
            counts,
            left: Notify::new(),
            idled: AtomicU64::new(0),
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clients that are connected.
    pub(super) fn taken(&self) -> usize {
        self.places().taken.len()
    }

    /// Waits while too many connections are on their way out.
    pub(super) async fn way_out(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.places().leaving < LEAVING_MAX {
                return;
            }
            left.await;
        }
    }

    /// A place for a client of a user. When all are taken, a stranger gives its own up. None where too many are on their
    /// way out.
    pub(super) fn enter(self: &Arc<Self>, uid: u32) -> Option<Guest> {
        let mut places = self.places();
        if places.leaving >= LEAVING_MAX {
            return None;
        }
        self.make_room_for_stranger(&mut places, uid);
        let number = places.came;
        places.came += 1;
        let signals = Arc::<Signals>::default();
        let place = Place {
            uid,
            key: None,
            signals: Arc::clone(&signals),
        };
        places.taken.insert(number, place);
        drop(places);
        Some(Guest {
            room: Arc::clone(self),
            number,
            uid,
            entered: Instant::now(),
            key: ArcSwapOption::empty(),
            signals,
        })
    }

    /// Has a stranger give way, where the next one would be too many.
    fn make_room_for_stranger(&self, places: &mut Places, uid: u32) {
        let staying = places.taken.len() - places.leaving;
        if staying < CONNECTIONS_MAX {
            return;
        }
        let known = places.taken.values();
        let known = known.filter(|place| place.is_known(&self.counts)).count();
        let most = CONNECTIONS_MAX.saturating_sub(known).max(STRANGERS_MIN);
        if staying - known >= most
            && let Some(stranger) = places.stranger(uid, &self.counts)
        {
            places.give_way(stranger);
        }
    }
}

/// A client's place, for as long as this value lives.
pub struct Guest {
    room: Arc<Room>,
    number: u64,
    uid: u32,
    entered: Instant,
    /// The key in [`Place::key`], to be compared without the lock.
    key: ArcSwapOption<ApiKey>,
    signals: Arc<Signals>,
}

impl Guest {
    /// The client has shown a key that counts. False where too many others show the same key, or too many any, and all of
    /// them have requests that run.
    pub(super) fn shows(&self, key: &Arc<ApiKey>) -> bool {
        let same = |shown: &Arc<ApiKey>| Arc::ptr_eq(shown, key);
        if !self.is_leaving() && self.key.load().as_ref().is_some_and(same) {
            return true;
        }
        let counts = &self.room.counts;
        let mut places = self.room.places();
        let Some(place) = places.taken.get(&self.number) else {
            return false;
        };
        if place.is_known(counts) {
            return true;
        }
        let is_of_key = |place: &Place| {
            let shown = place.key.as_ref();
            shown.is_some_and(|shown| shown.record().id == key.record().id)
        };
        let known = places.taken.values().filter(|it| it.is_known(counts));
        let (known, of_key) = known.fold((0, 0), |(known, of_key), place| {
            (known + 1, of_key + usize::from(is_of_key(place)))
        });
        let loser = if of_key >= OF_KEY_MAX {
            places.idle(counts, is_of_key).map(Some)
        } else if known >= CONNECTIONS_MAX {
            places.idle(counts, |_| true).map(Some)
        } else {
            Some(None)
        };
        let Some(loser) = loser else { return false };
        if let Some(loser) = loser {
            places.give_way(loser);
        }
        self.stay(&mut places);
        if let Some(place) = places.taken.get_mut(&self.number) {
            place.key = Some(Arc::clone(key));
        }
        self.key.store(Some(Arc::clone(key)));
        true
    }

    /// The connection keeps its place after all.
    fn stay(&self, places: &mut Places) {
        if self.signals.leaving.swap(false, Ordering::AcqRel) {
            self.signals.last_look.store(false, Ordering::Release);
            places.leaving -= 1;
        }
    }

    /// The key that the client has shown, where it counts now.
    fn known_by(&self) -> Option<Arc<ApiKey>> {
        let key = self.key.load_full();
        key.filter(|key| (self.room.counts)(key))
    }

    fn is_leaving(&self) -> bool {
        self.signals.leaving.load(Ordering::Acquire)
    }

    /// Wakes the reader of this connection when the connection is to give way as soon as nothing is left to be read. True
    /// if that is so already.
    pub(super) fn is_to_leave(&self, reader: &Waker) -> bool {
        self.signals.reader.register(reader);
        self.signals.last_look.load(Ordering::Acquire)
    }

    /// The reader has found nothing more that the client has sent.
    pub(super) fn has_been_read(&self) {
        self.signals.judged.notify_one();
    }

    /// A frame has begun, or is complete.
    pub(super) fn is_in_frame(&self, unfinished: bool) {
        self.signals.unfinished.store(unfinished, Ordering::Relaxed);
    }

    /// Waits until another client has this one's place, and what this one has sent is read, for no longer than
    /// `last_look`. Whether this one is a stranger.
    ///
    /// Poll it after the lines that were read: they are judged first.
    pub(super) async fn turned_out(&self, last_look: Duration) -> bool {
        loop {
            self.signals.leave.notified().await;
            sleep_until(self.entered + FIRST_FRAME).await;
            self.signals
                .last_look
                .store(self.is_leaving(), Ordering::Release);
            self.signals.reader.wake();
            let _ = timeout(last_look, self.signals.judged.notified()).await;
            if !self.is_leaving() {
                continue;
            }
            let stranger = self.known_by().is_none();
            // A request may have begun in the moment in which the connection was found idle.
            if stranger || self.signals.running.load(Ordering::Acquire) == 0 {
                return stranger;
            }
            self.stay(&mut self.room.places());
        }
    }

    /// A request that runs, until the value is dropped.
    pub(super) fn working(self: &Arc<Self>) -> RunningRequest {
        self.signals.running.fetch_add(1, Ordering::AcqRel);
        RunningRequest(Arc::clone(self))
    }

    /// Memory for a frame that turns out to be long; none of it is reserved yet.
    pub(super) fn memory(&self) -> FrameMemory {
        let owner = Owner {
            uid: self.uid,
            key: self.known_by(),
        };
        self.room.memory.begin(owner)
    }
}

/// A running request of a client.
pub(super) struct RunningRequest(Arc<Guest>);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let Guest { room, signals, .. } = &*self.0;
        let now = room.idled.fetch_add(1, Ordering::Relaxed);
        signals.idle_since.store(now, Ordering::Relaxed);
        signals.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut places = self.room.places();
        places.taken.remove(&self.number);
        if self.is_leaving() {
            places.leaving -= 1;
            drop(places);
            self.room.left.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests;
