//! Who is connected, and how much their frames may hold in memory.
//!
//! Whoever reaches the socket may connect, with a key or without one. So that a container without a valid key keeps
//! nobody else out, a client that has shown none makes room for a new one when all places are taken, and its long frames
//! share memory of their own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Connections at once.
pub(super) const CONNECTIONS_MAX: usize = 256;
/// Connections that show the same key.
const OF_KEY_MAX: usize = 64;
/// The part of the memory for frames that clients without a valid key share.
const STRANGERS_PART: usize = 4;

/// The clients of a relay.
#[derive(Debug)]
pub(super) struct Room {
    places: Mutex<Places>,
    /// Bytes of long frames, of clients with a valid key.
    frames: Arc<Semaphore>,
    /// The same, of those without.
    strangers: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Places {
    /// By the order in which they came.
    taken: BTreeMap<u64, Place>,
    came: u64,
}

#[derive(Debug)]
struct Place {
    /// The id of the key that was shown first.
    key: Option<Arc<str>>,
    leave: Arc<Notify>,
}

/// A client's place, for as long as this value lives.
#[derive(Debug)]
pub struct Guest {
    room: Arc<Room>,
    number: u64,
    leave: Arc<Notify>,
    known: AtomicBool,
}

/// Memory for one frame, until this is dropped.
#[derive(Debug)]
pub(super) struct FrameMemory(OwnedSemaphorePermit);

impl FrameMemory {
    /// Gives back what the frame did not need.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let surplus = self.0.num_permits().saturating_sub(bytes);
        drop(self.0.split(surplus));
    }
}

impl Room {
    /// A room where all long frames together hold at most `frames_total` bytes, which is at least that of one.
    pub(super) fn new(frames_total: usize, frame_max: usize) -> Self {
        let strangers = (frames_total / STRANGERS_PART).max(frame_max);
        let frames = frames_total.saturating_sub(strangers).max(frame_max);
        let semaphore = |bytes: usize| Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
        Self {
            places: Mutex::default(),
            frames: semaphore(frames),
            strangers: semaphore(strangers),
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Clients that are connected.
    pub(super) fn taken(&self) -> usize {
        self.places().taken.len()
    }

    /// A place for a client. When all are taken, the client that came first of those without a valid key loses its own;
    /// where there is none such, there is no place.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Guest> {
        let mut places = self.places();
        if places.taken.len() >= CONNECTIONS_MAX {
            let stranger = places.taken.iter().find(|(_, place)| place.key.is_none());
            let number = *stranger?.0;
            let place = places.taken.remove(&number)?;
            place.leave.notify_one();
        }
        let number = places.came;
        places.came += 1;
        let leave = Arc::new(Notify::new());
        let place = Place {
            key: None,
            leave: Arc::clone(&leave),
        };
        places.taken.insert(number, place);
        drop(places);
        Some(Guest {
            room: Arc::clone(self),
            number,
            leave,
            known: AtomicBool::new(false),
        })
    }
}

impl Guest {
    /// The client has shown a valid key. False where too many others show the same one.
    pub(super) fn shows(&self, key: &Arc<str>) -> bool {
        if self.known.load(Ordering::Relaxed) {
            return true;
        }
        let mut places = self.room.places();
        let of_key = |place: &&Place| place.key.as_ref() == Some(key);
        if places.taken.values().filter(of_key).count() >= OF_KEY_MAX {
            return false;
        }
        if let Some(place) = places.taken.get_mut(&self.number) {
            place.key = Some(Arc::clone(key));
        }
        self.known.store(true, Ordering::Relaxed);
        true
    }

    /// Waits until another client has this one's place.
    pub(super) async fn turned_out(&self) {
        self.leave.notified().await;
    }

    /// Waits for memory for a frame. `None`: no frame may be so long.
    pub(super) async fn memory(&self, bytes: usize) -> Option<FrameMemory> {
        let shared = match self.known.load(Ordering::Relaxed) {
            true => &self.room.frames,
            false => &self.room.strangers,
        };
        let bytes = u32::try_from(bytes).ok()?;
        let permit = Arc::clone(shared).acquire_many_owned(bytes).await;
        permit.ok().map(FrameMemory)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.room.places().taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;

    use futures_util::poll;

    use super::*;

    fn room() -> Arc<Room> {
        Arc::new(Room::new(64, 8))
    }

    fn key(id: usize) -> Arc<str> {
        id.to_string().into()
    }

    async fn is_ready(future: impl Future) -> bool {
        poll!(pin!(future)).is_ready()
    }

    #[tokio::test]
    async fn whoever_has_shown_no_key_makes_room_for_others() {
        let room = room();
        let mut guests: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| room.enter().expect("a place"))
            .collect();
        assert!(guests[0].shows(&key(0)));
        let late = room.enter().expect("the place of the second");
        assert_eq!(room.taken(), CONNECTIONS_MAX);
        assert!(!is_ready(guests[0].turned_out()).await);
        assert!(is_ready(guests[1].turned_out()).await);
        assert!(!is_ready(guests[2].turned_out()).await);
        // A place that was lost already is not given back once more.
        drop(guests.remove(1));
        assert_eq!(room.taken(), CONNECTIONS_MAX);
        drop(late);
        assert_eq!(room.taken(), CONNECTIONS_MAX - 1);
    }

    #[test]
    fn clients_with_keys_keep_their_places() {
        let room = room();
        let guests: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| room.enter().expect("a place"))
            .collect();
        for (at, guest) in guests.iter().enumerate() {
            assert!(guest.shows(&key(at / OF_KEY_MAX)));
        }
        assert!(room.enter().is_none());
        drop(guests);
        assert_eq!(room.taken(), 0);
    }

    #[test]
    fn one_key_does_not_take_all_places() {
        let room = room();
        let guests: Vec<_> = (0..OF_KEY_MAX)
            .map(|_| room.enter().expect("a place"))
            .collect();
        assert!(guests.iter().all(|guest| guest.shows(&key(1))));
        let late = room.enter().expect("a place");
        assert!(!late.shows(&key(1)) && late.shows(&key(2)));
        // A frame with another key changes nothing: the places are counted by the first.
        assert!(late.shows(&key(1)));
    }

    #[tokio::test]
    async fn frames_of_strangers_leave_memory_for_the_others() {
        let room = room();
        let (stranger, known) = (
            room.enter().expect("a place"),
            room.enter().expect("a place"),
        );
        assert!(known.shows(&key(1)));
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(stranger.memory(8).await.expect("room"));
        }
        assert!(!is_ready(stranger.memory(8)).await);
        let mut frame = known.memory(48).await.expect("room");
        assert!(!is_ready(known.memory(8)).await);
        frame.shrink(40);
        assert!(is_ready(known.memory(8)).await);
        held.pop();
        assert!(is_ready(stranger.memory(8)).await);
    }
}
