//! The connections of a relay, and the choice of the connection that is ended for another one when there are too many.
//!
//! Any process that can open the socket may connect, with or without a key. A connection counts as *known* while the key that it
//! has shown is valid, that is until the key is revoked, expires or changes. All other connections are *strangers*.
//!
//! | event | connection that is ended |
//! |---|---|
//! | a new connection, beyond the limit of strangers | the oldest stranger of the user with the most strangers |
//! | a valid key, beyond the limit of known connections | the longest idle connection of the user, then key, with the most |
//! | a valid key, beyond the limit of connections per key | the longest idle connection of the key |
//!
//! The user of a connection is the operating-system user of the client's process (`SO_PEERCRED`).
//!
//! Before a connection is ended, its input is read once more: if the client has already sent a frame with a valid key, the
//! connection is kept, no matter how many others connect at the same time.

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
use tooldock_credentials::keys::ApiKey;

use super::memory::{FrameMemory, FrameOwner, MemoryStore};

/// Maximum number of concurrent connections of a relay.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Number of connections that are always available to strangers, even if known connections use all others.
const STRANGERS_MIN: usize = 32;
/// Maximum number of connections that show the same key.
const OF_KEY_MAX: usize = 64;
/// Maximum number of connections that are being ended. They are allowed in addition to [`CONNECTIONS_MAX`].
const LEAVING_MAX: usize = 256;
/// Minimum time that a new client has to send its first frame, however many others connect.
const FIRST_FRAME: Duration = Duration::from_millis(50);

/// Function that returns true if a key is valid at this moment.
pub(super) type Counts = Arc<dyn Fn(&Arc<ApiKey>) -> bool + Send + Sync>;

/// The connected clients of a relay.
pub(super) struct Room {
    places: Mutex<Places>,
    memory: Arc<MemoryStore>,
    counts: Counts,
    /// Notified when a connection that was being ended has closed.
    left: Notify,
    /// Number of times that a connection became idle, for ordering these moments.
    idled: AtomicU64,
}

#[derive(Default)]
struct Places {
    /// Connections by number, in the order in which they were opened.
    taken: BTreeMap<u64, ConnectionSeat>,
    came: u64,
    leaving: usize,
}

struct ConnectionSeat {
    uid: u32,
    /// The key that the connection showed first and that was valid then; `None` if it has shown none.
    key: Option<Arc<ApiKey>>,
    signals: Arc<Signals>,
}

/// State of a connection that its tasks share with those of other connections.
#[derive(Default)]
struct Signals {
    /// True if the connection was chosen to be ended for another one. It is kept after all if it shows a valid key in time.
    leaving: AtomicBool,
    /// True once the time for showing a key is over. Frames that were already sent are still read, but no further ones are
    /// awaited.
    last_look: AtomicBool,
    /// Notified when the connection is chosen to be ended.
    leave: Notify,
    /// Notified when all frames that the client has sent so far were checked.
    judged: Notify,
    /// Waker of the task that reads from the connection.
    reader: AtomicWaker,
    /// Number of requests of the connection that are running.
    running: AtomicUsize,
    /// True while a frame has begun and is not complete.
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

    /// Returns true if no request is running. An incomplete frame does not count, so it does not protect the connection from
    /// being ended.
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

    /// Returns the stranger to be ended for a new client of this user: the oldest stranger of the user with the most strangers.
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

    /// Returns the known connection to be ended for another one: the longest idle one of the user and the key with the most
    /// connections. `among`: returns true for the connections to consider.
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
    /// Creates the empty set of connections of a relay. `memory`: the memory for their long frames; `counts`: returns true if a
    /// key is valid.
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

    /// Returns the number of connected clients.
    pub(super) fn taken(&self) -> usize {
        self.places().taken.len()
    }

    /// Waits while too many connections are being ended.
    pub(super) async fn room_for_next(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.places().leaving < LEAVING_MAX {
                return;
            }
            left.await;
        }
    }

    /// Registers a client of this operating-system user. If the maximum is reached, a stranger is chosen to be ended. `None` if
    /// too many connections are being ended.
    pub(super) fn enter(self: &Arc<Self>, uid: u32) -> Option<RelayRegistration> {
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
        Some(RelayRegistration {
            room: Arc::clone(self),
            number,
            uid,
            entered: Instant::now(),
            key: ArcSwapOption::empty(),
            signals,
        })
    }

    /// Chooses a stranger to be ended if the new client would be one too many.
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

/// A client's registration among the relay's connections. Dropping it removes the client.
pub struct RelayRegistration {
    room: Arc<Room>,
    number: u64,
    uid: u32,
    entered: Instant,
    /// Copy of the key in [`ConnectionSeat::key`], which can be compared without the lock.
    key: ArcSwapOption<ApiKey>,
    signals: Arc<Signals>,
}

impl RelayRegistration {
    /// Records that the client has shown a valid key. Returns false if there are too many connections with the same key, or with
    /// any valid key, and all of them have running requests.
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

    /// Withdraws the decision to end the connection.
    fn stay(&self, places: &mut Places) {
        if self.signals.leaving.swap(false, Ordering::AcqRel) {
            self.signals.last_look.store(false, Ordering::Release);
            places.leaving -= 1;
        }
    }

    /// Returns the key that the client has shown, if it is still valid.
    fn known_by(&self) -> Option<Arc<ApiKey>> {
        let key = self.key.load_full();
        key.filter(|key| (self.room.counts)(key))
    }

    fn is_leaving(&self) -> bool {
        self.signals.leaving.load(Ordering::Acquire)
    }

    /// Returns true if the connection must end as soon as all its input is read. Otherwise `reader` is woken when this happens.
    pub(super) fn is_to_leave(&self, reader: &Waker) -> bool {
        self.signals.reader.register(reader);
        self.signals.last_look.load(Ordering::Acquire)
    }

    /// Reports that all input that the client has sent so far was read.
    pub(super) fn has_been_read(&self) {
        self.signals.judged.notify_one();
    }

    /// Records that a frame is incomplete (true) or that all frames are complete (false).
    pub(super) fn is_in_frame(&self, unfinished: bool) {
        self.signals.unfinished.store(unfinished, Ordering::Relaxed);
    }

    /// Waits until this connection is chosen to be ended and its input is read; reading may take at most `last_look`. Returns
    /// true if the client is a stranger.
    ///
    /// Must be polled after the lines that were read, so that they are handled first.
    pub(super) async fn wait_for_eviction(&self, last_look: Duration) -> bool {
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
            // A request may have begun just after the connection was found to be idle. Then the connection is kept.
            if stranger || self.signals.running.load(Ordering::Acquire) == 0 {
                return stranger;
            }
            self.stay(&mut self.room.places());
        }
    }

    /// Registers a running request until the returned guard is dropped.
    pub(super) fn working(self: &Arc<Self>) -> RunningRequest {
        self.signals.running.fetch_add(1, Ordering::AcqRel);
        RunningRequest(Arc::clone(self))
    }

    /// Creates a handle for the memory of a long frame. No memory is reserved yet.
    pub(super) fn memory(&self) -> FrameMemory {
        let owner = FrameOwner {
            uid: self.uid,
            key: self.known_by(),
        };
        self.room.memory.begin(owner)
    }
}

/// Guard that counts a running request of a client.
pub(super) struct RunningRequest(Arc<RelayRegistration>);

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let RelayRegistration { room, signals, .. } = &*self.0;
        let now = room.idled.fetch_add(1, Ordering::Relaxed);
        signals.idle_since.store(now, Ordering::Relaxed);
        signals.running.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for RelayRegistration {
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
