//! The connections of a relay, and the choice of the one that gives way when there are too many.
//!
//! Every process that reaches the socket may connect, with a key or without one. A connection is known while the key that it has
//! shown is valid: until the key is revoked, expires or changes. All others are strangers.
//!
//! | event | gives way |
//! |---|---|
//! | a connection, while all places of strangers are taken | the oldest stranger of the user (by `SO_PEERCRED`) with the most strangers |
//! | a valid key on a connection, while known connections have all places | the connection that has been idle longest, of the user and then of the key with the most |
//! | a valid key that enough connections have shown | the longest idle connection of the key |
//!
//! A connection that gives way is read once more before it ends: a client that has sent its first frame is judged by that frame,
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

use super::memory::{FrameMemory, FrameOwner, MemoryStore};

/// The most concurrent connections.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// The places for strangers when known connections have all others: there is always a way in.
const STRANGERS_MIN: usize = 32;
/// The most connections that show the same key.
const OF_KEY_MAX: usize = 64;
/// The most connections on their way out, in addition to [`CONNECTIONS_MAX`].
const LEAVING_MAX: usize = 256;
/// The least time that a client has for its first frame, however many others connect.
const FIRST_FRAME: Duration = Duration::from_millis(50);

/// Returns true if a key is valid at this moment.
pub(super) type Counts = Arc<dyn Fn(&Arc<ApiKey>) -> bool + Send + Sync>;

/// The clients of a relay.
pub(super) struct Room {
    places: Mutex<Places>,
    memory: Arc<MemoryStore>,
    counts: Counts,
    /// Notified when a connection that gave way has ended.
    left: Notify,
    /// A clock that orders the moments at which connections became idle.
    idled: AtomicU64,
}

#[derive(Default)]
struct Places {
    /// The places in the order in which they were taken.
    taken: BTreeMap<u64, ConnectionSeat>,
    came: u64,
    leaving: usize,
}

struct ConnectionSeat {
    uid: u32,
    /// The first key shown among those that are still valid.
    key: Option<Arc<ApiKey>>,
    signals: Arc<Signals>,
}

/// The state of a connection that its own tasks and other connections share.
#[derive(Default)]
struct Signals {
    /// True when the place is given to another connection, unless this one still shows a valid key.
    leaving: AtomicBool,
    /// True when the time to show a key is over: frames that were sent are read, and no more are awaited.
    last_look: AtomicBool,
    /// Notified when the place is given to another connection.
    leave: Notify,
    /// Notified when all frames that the client has sent are judged.
    judged: Notify,
    /// The waker of the reading task.
    reader: AtomicWaker,
    /// The number of running requests.
    running: AtomicUsize,
    /// True when a frame has begun and is not complete.
    unfinished: AtomicBool,
    idle_since: AtomicU64,
}

impl ConnectionSeat {
    fn is_leaving(&self) -> bool {
        self.signals.leaving.load(Ordering::Acquire)
    }

    fn is_known(&self, counts: &Counts) -> bool {
        !self.is_leaving() && self.key.as_ref().is_some_and(|key| counts(key))
    }

    fn is_stranger(&self, counts: &Counts) -> bool {
        !self.is_leaving() && !self.key.as_ref().is_some_and(|key| counts(key))
    }

    /// Returns true if no request runs. An incomplete frame alone keeps no place.
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

    /// The stranger that gives way to a newcomer of this user: the oldest one of the user with the most.
    fn stranger(&self, uid: u32, counts: &Counts) -> Option<u64> {
        let strangers = || self.taken.iter().filter(|(_, it)| it.is_stranger(counts));
        let mut of_user = HashMap::from([(uid, 1_usize)]);
        for (_, place) in strangers() {
            *of_user.entry(place.uid).or_default() += 1;
        }
        let share = |place: &ConnectionSeat| of_user.get(&place.uid).copied();
        let most = strangers().max_by_key(|&(number, place)| (share(place), Reverse(number)));
        most.map(|(number, _)| *number)
    }

    /// The known connection that gives way: an idle one of the user and the key with the most.
    fn idle(&self, counts: &Counts, among: impl Fn(&ConnectionSeat) -> bool) -> Option<u64> {
        let known = || self.taken.iter().filter(|(_, it)| it.is_known(counts));
        let key_of = |place: &ConnectionSeat| place.key.as_ref().map(|key| key.record().id);
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
    /// A room whose long frames share this memory, and whose keys `counts` judges.
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

    /// The number of connected clients.
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

    /// A place for a client of this user. When all are taken, a stranger gives way. `None` if too many connections are on their
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
        let place = ConnectionSeat {
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

    /// Makes a stranger give way, if the next one would be too many.
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
    /// The key in [`ConnectionSeat::key`], for comparisons without the lock.
    key: ArcSwapOption<ApiKey>,
    signals: Arc<Signals>,
}

impl Guest {
    /// Notes that the client has shown a valid key. Returns false if too many others show the same key, or any valid key, and all
    /// of them have running requests.
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
        let is_of_key = |place: &ConnectionSeat| {
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

    /// Lets the connection keep its place after all.
    fn stay(&self, places: &mut Places) {
        if self.signals.leaving.swap(false, Ordering::AcqRel) {
            self.signals.last_look.store(false, Ordering::Release);
            places.leaving -= 1;
        }
    }

    /// The key that the client has shown, if it is valid now.
    fn known_by(&self) -> Option<Arc<ApiKey>> {
        let key = self.key.load_full();
        key.filter(|key| (self.room.counts)(key))
    }

    fn is_leaving(&self) -> bool {
        self.signals.leaving.load(Ordering::Acquire)
    }

    /// Returns true if the connection is to give way as soon as all its input is read. Wakes this reader when that happens.
    pub(super) fn is_to_leave(&self, reader: &Waker) -> bool {
        self.signals.reader.register(reader);
        self.signals.last_look.load(Ordering::Acquire)
    }

    /// Notes that the reader has read all input that the client has sent.
    pub(super) fn has_been_read(&self) {
        self.signals.judged.notify_one();
    }

    /// Notes that a frame has begun, or is complete.
    pub(super) fn is_in_frame(&self, unfinished: bool) {
        self.signals.unfinished.store(unfinished, Ordering::Relaxed);
    }

    /// Waits until another client needs this place and the input of this client is read, for no longer than `last_look`. Returns
    /// true if this client is a stranger.
    ///
    /// Must be polled after the lines that were read, so that they are judged first.
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
            // A request may have begun at the moment when the connection was found idle.
            if stranger || self.signals.running.load(Ordering::Acquire) == 0 {
                return stranger;
            }
            self.stay(&mut self.room.places());
        }
    }

    /// Registers a running request, until the value is dropped.
    pub(super) fn working(self: &Arc<Self>) -> RunningRequest {
        self.signals.running.fetch_add(1, Ordering::AcqRel);
        RunningRequest(Arc::clone(self))
    }

    /// A handle for the memory of a long frame; nothing is reserved yet.
    pub(super) fn memory(&self) -> FrameMemory {
        let owner = FrameOwner {
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
