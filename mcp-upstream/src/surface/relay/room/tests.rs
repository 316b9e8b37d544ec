use std::future::Future;
use std::pin::pin;

use futures_util::poll;
use tokio::time::advance;

use super::super::testing::Keys;
use super::*;

const UID: u32 = 1000;
const OTHER: u32 = 2000;

fn room(keys: &Keys) -> Arc<Room> {
    let memory = MemoryStore::new(64, 8, keys.counts());
    Arc::new(Room::new(memory, keys.counts()))
}

fn entered(room: &Arc<Room>, uid: u32, count: usize) -> Vec<Arc<RelayRegistration>> {
    let enter = |_| Arc::new(room.enter(uid).expect("a place"));
    (0..count).map(enter).collect()
}

/// The positions of the guests that are to give way.
fn leaving(guests: &[Arc<RelayRegistration>]) -> Vec<usize> {
    let leaving = guests.iter().enumerate().filter(|(_, it)| it.is_leaving());
    leaving.map(|(at, _)| at).collect()
}

async fn is_ready(future: impl Future) -> bool {
    poll!(pin!(future)).is_ready()
}

#[test]
fn the_oldest_stranger_gives_way_and_a_client_with_a_valid_key_does_not() {
    let keys = Keys::new();
    let room = room(&keys);
    let guests = entered(&room, UID, CONNECTIONS_MAX);
    assert!(guests[0].shows(&keys.make()));
    let late = entered(&room, UID, 2);
    assert_eq!(leaving(&guests), [1, 2]);
    assert_eq!(leaving(&late), [0; 0]);
    drop(guests);
    assert_eq!(room.taken(), 2);
    assert_eq!(room.places().leaving, 0);
}

#[test]
fn strangers_of_the_user_with_the_most_give_way_to_those_of_another() {
    let keys = Keys::new();
    let room = room(&keys);
    let first = entered(&room, OTHER, 1);
    let flood = entered(&room, UID, CONNECTIONS_MAX + LEAVING_MAX - 1);
    assert_eq!(leaving(&first), [0; 0], "the other user's only one stays");
    assert_eq!(leaving(&flood).len(), LEAVING_MAX);
    assert!(room.enter(OTHER).is_none(), "too many are on their way out");
    drop(flood);
    assert!(room.enter(OTHER).is_some());
}

#[test]
fn a_connection_whose_key_was_revoked_is_a_strangers_and_gives_way() {
    let keys = Keys::new();
    let room = room(&keys);
    let lost: Vec<_> = (0..CONNECTIONS_MAX / OF_KEY_MAX)
        .map(|_| keys.make())
        .collect();
    let guests = entered(&room, UID, CONNECTIONS_MAX);
    let running: Vec<_> = guests.iter().map(RelayRegistration::working).collect();
    for (at, guest) in guests.iter().enumerate() {
        assert!(guest.shows(&lost[at / OF_KEY_MAX]));
    }
    let kept = keys.make();
    let late = entered(&room, UID, 1);
    assert!(!late[0].shows(&kept), "all others are busy");
    keys.revoke(&lost[1]);
    assert!(late[0].shows(&kept));
    let more = entered(&room, UID, OF_KEY_MAX);
    assert!(more[1..].iter().all(|guest| guest.shows(&kept)));
    assert!(
        leaving(&guests).iter().all(|at| at / OF_KEY_MAX == 1),
        "{:?}",
        leaving(&guests)
    );
    drop(running);
}

#[test]
fn there_is_a_way_in_when_all_places_have_valid_keys_and_an_idle_one_gives_way_to_a_valid_key() {
    let keys = Keys::new();
    let room = room(&keys);
    let guests = entered(&room, UID, CONNECTIONS_MAX);
    let shown: Vec<_> = (0..CONNECTIONS_MAX / (OF_KEY_MAX - 1) + 1)
        .map(|_| keys.make())
        .collect();
    for (at, guest) in guests.iter().enumerate() {
        assert!(guest.shows(&shown[at / (OF_KEY_MAX - 1)]));
        drop(guest.working());
    }
    let busy: Vec<_> = guests[..3].iter().map(RelayRegistration::working).collect();
    let late = entered(&room, UID, STRANGERS_MIN + 1);
    assert_eq!(leaving(&guests), [0; 0]);
    assert_eq!(leaving(&late), [0], "strangers have a few places");
    assert!(late[1].shows(&keys.make()));
    assert_eq!(leaving(&guests), [3], "of those that do nothing, the first");
    assert!(late[2].shows(&shown[1]));
    assert_eq!(leaving(&guests).len(), 2);
    drop(busy);
}

#[test]
fn a_key_has_so_many_connections_and_its_idle_ones_give_way_to_its_next() {
    let keys = Keys::new();
    let room = room(&keys);
    let key = keys.make();
    let guests = entered(&room, UID, OF_KEY_MAX);
    let mut busy: Vec<_> = guests.iter().map(RelayRegistration::working).collect();
    assert!(guests.iter().all(|guest| guest.shows(&key)));
    let late = entered(&room, UID, 1);
    assert!(!late[0].shows(&key) && late[0].shows(&keys.make()));
    // A frame with another key changes nothing: the connection counts for its first key.
    assert!(late[0].shows(&key));
    let late = entered(&room, UID, 1);
    assert!(!late[0].shows(&key));
    busy.remove(5);
    assert!(late[0].shows(&key));
    assert_eq!(leaving(&guests), [5]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_shows_a_valid_key_at_the_last_moment_stays() {
    let keys = Keys::new();
    let room = room(&keys);
    let guests = entered(&room, UID, CONNECTIONS_MAX);
    let late = entered(&room, UID, 2);
    assert_eq!(leaving(&guests), [0, 1]);
    advance(FIRST_FRAME).await;
    let soon = Duration::from_secs(20);
    let mut turned_out = pin!(guests[0].wait_for_eviction(soon));
    assert!(!is_ready(turned_out.as_mut()).await, "not read yet");
    assert!(guests[0].shows(&keys.make()));
    guests[0].has_been_read();
    assert!(!is_ready(turned_out.as_mut()).await);
    guests[1].has_been_read();
    assert!(is_ready(guests[1].wait_for_eviction(soon)).await);
    assert_eq!(room.places().leaving, 1);
    drop(late);
}
