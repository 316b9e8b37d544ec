mod recorded;
mod schedules;

use tooldock_protocol::version::ProtocolVersion;

use super::*;
use crate::replicas::ReplicaId;
use crate::session::config::EventLogConfig;
use crate::session::tests::facts;
use crate::session::{SessionState, SessionTransport};
use crate::stores::Stores;
use crate::stream::{EventLog, KeepAlive, StreamKind, StreamMetrics, Subscription};
use crate::testing::shadow::Shadow;

fn store(max: usize, per_principal: usize) -> SessionTable {
    of(TableLimits {
        max,
        per_principal,
        ..ROOMY
    })
}

const ROOMY: TableLimits = TableLimits {
    ttl: Duration::from_secs(60),
    unused_ttl: Duration::from_secs(60),
    max: 100,
    per_principal: 100,
    bytes: usize::MAX,
    bytes_per_principal: usize::MAX,
};

fn of(limits: TableLimits) -> SessionTable {
    table(limits, None)
}

fn table(limits: TableLimits, stores: Option<Stores>) -> SessionTable {
    table_of(limits, stores, Replicas::alone())
}

fn table_of(limits: TableLimits, stores: Option<Stores>, replicas: Arc<Replicas>) -> SessionTable {
    let keep_alive = KeepAlive::new(Duration::from_secs(15));
    let config = EventLogConfig::default();
    let events = EventLog::new(config, keep_alive, StreamMetrics::unregistered());
    let (events, store) = match stores {
        Some(stores) => (events.with_store(stores.events), Some(stores.sessions)),
        None => (events, None),
    };
    let key = SessionKey::from_text("a key");
    SessionTable::new(limits, key, Arc::new(events), store, replicas)
}

/// Home of sessions of a gateway without replicas.
const HOME: Home = Home {
    replica: ReplicaId::ALONE,
    epoch: 0,
};

async fn read(session: &Arc<Session>) -> Subscription {
    let keep_alive = KeepAlive::new(Duration::from_secs(15));
    let limits = EventLogConfig::default();
    let log = EventLog::new(limits, keep_alive, StreamMetrics::unregistered());
    let stream = log.open(session, StreamKind::General, false).await;
    stream.expect("memory").read()
}

async fn open(store: &SessionTable, principal: &str, now: Instant) -> Arc<Session> {
    created(store, principal, None, now).await.session
}

/// Opens a session whose client's description has that size.
async fn open_with(
    store: &SessionTable,
    principal: &str,
    bytes: usize,
    now: Instant,
) -> Arc<Session> {
    let said = format!(r#"{{"x":"{}"}}"#, "x".repeat(bytes - 8));
    let created = created(store, principal, Some(facts(&said)), now);
    created.await.session
}

async fn created(
    store: &SessionTable,
    principal: &str,
    client: Option<ClientFacts>,
    now: Instant,
) -> OpenedSession {
    let binding = Binding {
        namespace: "shared".parse().expect("a name"),
        principal: Some(principal.into()),
        version: ProtocolVersion::V2025_11_25,
        transport: SessionTransport::Streamable,
    };
    store.create(binding, client, now).await.expect("memory")
}

async fn alive(store: &SessionTable, session: &Session, now: Instant) -> bool {
    let found = store.locate(session.id().as_str(), now);
    match found.await.expect("memory") {
        Located::Live(session) => session.touch(now),
        Located::Adopted(_) => panic!("there is no store"),
        Located::Absent => return false,
        Located::Elsewhere(_) => panic!("there are no replicas"),
    }
    true
}

fn books_balance(store: &SessionTable) {
    store.index().balance(store.count());
}

fn closed(sessions: &[Arc<Session>]) -> Vec<bool> {
    let closed = |session: &Arc<Session>| session.state() == SessionState::Closed;
    sessions.iter().map(closed).collect()
}

#[tokio::test]
async fn a_full_principal_loses_its_least_recently_used_session() {
    let store = store(100, 2);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let first = open(&store, "a", at(0)).await;
    let second = open(&store, "a", at(1)).await;
    let other = open(&store, "b", at(0)).await;
    assert!(alive(&store, &first, at(2)).await);
    let third = open(&store, "a", at(3)).await;
    assert_eq!(second.state(), SessionState::Closed);
    assert!(!alive(&store, &second, at(3)).await);
    for session in [&first, &third, &other] {
        assert!(alive(&store, session, at(3)).await);
    }
    books_balance(&store);
}

#[tokio::test]
async fn a_full_table_takes_from_the_principal_that_holds_the_most() {
    let store = store(4, 10);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let quiet = open(&store, "quiet", at(0)).await;
    let mut greedy = Vec::new();
    for second in 1..8 {
        greedy.push(open(&store, "greedy", at(second)).await);
    }
    assert_eq!(store.count(), 4);
    assert!(alive(&store, &quiet, at(9)).await);
    let survivors = greedy
        .iter()
        .filter(|session| session.state() != SessionState::Closed);
    assert_eq!(survivors.count(), 3);
    assert!(alive(&store, &greedy[6], at(9)).await);
    books_balance(&store);
}

#[tokio::test]
async fn sessions_expire_by_their_last_use() {
    let store = store(100, 100);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let used = open(&store, "a", at(0)).await;
    let idle = open(&store, "a", at(0)).await;
    assert!(alive(&store, &used, at(50)).await);
    assert!(!alive(&store, &idle, at(60)).await);
    assert_eq!(store.evict_expired(at(59)).await, 0);
    assert_eq!(store.evict_expired(at(60)).await, 1);
    assert_eq!(idle.state(), SessionState::Closed);
    assert!(alive(&store, &used, at(109)).await);
    assert_eq!(store.evict_expired(at(168)).await, 0);
    assert_eq!(store.evict_expired(at(169)).await, 1);
    assert_eq!(store.count(), 0);
    books_balance(&store);
}

#[tokio::test]
async fn removal_leaves_nothing_behind() {
    let store = store(100, 100);
    let now = Instant::now();
    for _ in 0..50 {
        let session = open(&store, "a", now).await;
        assert!(store.remove(session.id().as_str()).await.expect("memory"));
        assert!(!store.remove(session.id().as_str()).await.expect("memory"));
    }
    assert_eq!(store.count(), 0);
    books_balance(&store);
}

#[tokio::test]
async fn a_table_of_sessions_all_in_use_still_makes_room() {
    use crate::session::InFlightCalls;
    use futures_util::future::AbortHandle;
    let store = store(2, 2);
    let start = Instant::now();
    let mut calls = Vec::new();
    let mut sessions = Vec::new();
    for second in 0..4 {
        let session = open(&store, "a", start + Duration::from_secs(second)).await;
        calls.push(InFlightCalls::enter(
            &session,
            "1",
            AbortHandle::new_pair().0,
            Arc::new(crate::session::in_flight::NoNotice),
        ));
        sessions.push(session);
    }
    assert_eq!(store.count(), 2);
    assert_eq!(sessions[0].state(), SessionState::Closed);
    assert_ne!(sessions[3].state(), SessionState::Closed);
}

#[tokio::test]
async fn a_full_principal_keeps_the_sessions_with_an_open_stream() {
    let store = store(100, 3);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let streaming = open(&store, "a", at(0)).await;
    let stream = read(&streaming).await;
    let other = open(&store, "a", at(1)).await;
    let other_stream = read(&other).await;
    let idle = open(&store, "a", at(2)).await;
    let next = open(&store, "a", at(3)).await;
    assert_eq!(idle.state(), SessionState::Closed);
    drop(other_stream);
    open(&store, "a", at(20)).await;
    assert_eq!(other.state(), SessionState::Closed);
    assert_ne!(streaming.state(), SessionState::Closed);
    assert_ne!(next.state(), SessionState::Closed);
    books_balance(&store);
    drop(stream);
}

#[tokio::test]
async fn if_all_sessions_have_a_stream_the_oldest_goes() {
    let store = store(100, 3);
    let start = Instant::now();
    let mut streams = Vec::new();
    let mut sessions = Vec::new();
    for second in 0..5 {
        let session = open(&store, "a", start + Duration::from_secs(second)).await;
        streams.push(read(&session).await);
        sessions.push(session);
    }
    let closed: Vec<_> = sessions
        .iter()
        .map(|it| it.state() == SessionState::Closed)
        .collect();
    assert_eq!(closed, [true, true, false, false, false]);
    assert_eq!(streams[0].next().await, None);
    books_balance(&store);
}

#[tokio::test]
async fn a_session_lives_as_long_as_a_stream_of_it_is_read() {
    let store = store(100, 100);
    let start = Instant::now();
    let session = open(&store, "a", start).await;
    let stream = read(&session).await;
    let late = start + Duration::from_secs(1000);
    assert_eq!(store.evict_expired(late).await, 0);
    assert!(alive(&store, &session, start + Duration::from_secs(900)).await);
    drop(stream);
    assert_eq!(store.evict_expired(late + Duration::from_secs(59)).await, 0);
    assert_eq!(store.evict_expired(late + Duration::from_secs(61)).await, 1);
    assert_eq!(session.state(), SessionState::Closed);
}

const KIB: usize = 1024;

#[tokio::test]
async fn a_principal_that_holds_its_share_of_bytes_loses_its_least_recently_used_sessions() {
    let store = of(TableLimits {
        bytes_per_principal: 100 * KIB,
        ..ROOMY
    });
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let other = open_with(&store, "b", 60 * KIB, at(0)).await;
    let mut own = Vec::new();
    for second in 0..3 {
        own.push(open_with(&store, "a", 20 * KIB, at(second)).await);
    }
    let stream = read(&own[1]).await;
    assert!(alive(&store, &own[0], at(3)).await);
    // The least recently used session without a stream is closed first, then the next.
    own.push(open_with(&store, "a", 50 * KIB, at(4)).await);
    assert_eq!(closed(&own), [false, false, true, false]);
    own.push(open_with(&store, "a", 15 * KIB, at(5)).await);
    assert_eq!(closed(&own), [true, false, true, false, false]);
    assert_ne!(other.state(), SessionState::Closed);
    assert!(store.bytes() < 200 * KIB);
    books_balance(&store);
    drop(stream);
}

#[tokio::test]
async fn where_all_bytes_are_held_the_principal_that_holds_the_most_gives_way() {
    let store = of(TableLimits {
        bytes: 200 * KIB,
        ..ROOMY
    });
    let start = Instant::now();
    let quiet = open_with(&store, "quiet", 20 * KIB, start).await;
    // The principal has more sessions, but they take little memory.
    let mut many = Vec::new();
    for _ in 0..10 {
        many.push(open(&store, "many", start).await);
    }
    for second in 1..20 {
        let now = start + Duration::from_secs(second);
        open_with(&store, "greedy", 50 * KIB, now).await;
        assert!(store.bytes() <= 200 * KIB);
        books_balance(&store);
    }
    assert_ne!(quiet.state(), SessionState::Closed);
    assert!(!closed(&many).contains(&true));
    let more = open_with(&store, "quiet", 20 * KIB, start + Duration::from_secs(30)).await;
    assert_eq!(closed(&[quiet, more]), [false, false]);
}

#[tokio::test]
async fn a_session_that_grows_makes_room_among_the_others_of_its_principal() {
    let store = of(TableLimits {
        bytes_per_principal: 40 * KIB,
        ..ROOMY
    });
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let growing = open(&store, "a", at(0)).await;
    let others = [
        open_with(&store, "a", 10 * KIB, at(1)).await,
        open_with(&store, "a", 10 * KIB, at(2)).await,
    ];
    assert_eq!(store.weigh(&growing, at(3)), 0);
    for number in 0..40 {
        let uri = format!("test://{number}");
        growing.subscriptions().add(&uri).expect("within");
    }
    assert_eq!(store.weigh(&growing, at(3)), 1);
    assert_eq!(closed(&others), [true, false]);
    books_balance(&store);
    for number in 40..1000 {
        let uri = format!("test://{number}");
        growing.subscriptions().add(&uri).expect("within");
    }
    // The session exceeds its share, but no other session is left to close.
    assert_eq!(store.weigh(&growing, at(3)), 1);
    assert_eq!((store.count(), store.weigh(&growing, at(4))), (1, 0));
    assert_ne!(growing.state(), SessionState::Closed);
    assert_eq!(store.bytes(), growing.weight());
    let stream = read(&growing).await;
    let next = open(&store, "a", at(5)).await;
    assert_eq!(growing.state(), SessionState::Closed);
    assert_eq!(store.weigh(&growing, at(5)), 0, "it is gone");
    assert_eq!((store.count(), store.bytes()), (1, next.weight()));
    books_balance(&store);
    drop(stream);
}

#[tokio::test]
async fn a_session_that_nobody_uses_after_it_was_opened_ends_soon() {
    let store = of(TableLimits {
        unused_ttl: Duration::from_secs(10),
        ..ROOMY
    });
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let unused = open(&store, "a", at(0)).await;
    let used = open(&store, "a", at(0)).await;
    let read_from = open(&store, "a", at(0)).await;
    let stream = read(&read_from).await;
    // A use in the moment of the opening counts as well.
    assert!(alive(&store, &used, at(0)).await);
    assert_eq!(store.evict_expired(at(9)).await, 0);
    assert_eq!(store.evict_expired(at(10)).await, 1);
    assert_eq!(unused.state(), SessionState::Closed);
    books_balance(&store);
    assert_eq!(store.evict_expired(at(59)).await, 0);
    assert_eq!(store.evict_expired(at(61)).await, 1);
    assert_eq!(used.state(), SessionState::Closed);
    drop(stream);
    assert_ne!(read_from.state(), SessionState::Closed);
    books_balance(&store);
}

/// Checks [`Session::weight`]: a table full of sessions takes no more memory than is booked.
#[test]
fn what_is_on_the_books_covers_what_sessions_take() {
    let runtime = crate::cost::runtime();
    let facts_of = |number: usize| facts(&format!(r#"{{"x":"{number:02000}"}}"#));
    for client in [false, true] {
        let store = of(TableLimits {
            max: 10_000,
            per_principal: 10_000,
            ..ROOMY
        });
        let cost = allocation_counter::measure(|| {
            runtime.block_on(async {
                for number in 0..5000 {
                    let client = client.then(|| facts_of(number));
                    created(&store, "a", client, Instant::now()).await;
                }
            });
        });
        let taken = usize::try_from(cost.bytes_current).expect("more than before");
        let booked = store.bytes();
        assert!(taken <= booked, "{taken} taken, {booked} on the books");
        assert!(taken * 2 > booked, "{taken} taken, {booked} on the books");
    }
}

proptest::proptest! {
    #[test]
    fn whatever_happens_the_books_balance_and_no_bound_is_passed(
        steps in proptest::collection::vec((0..3_usize, 0..6_usize, 0..50_usize), 1..80),
    ) {
        let runtime = crate::cost::runtime();
        runtime.block_on(async {
            let limits = TableLimits {
                ttl: Duration::from_secs(30),
                unused_ttl: Duration::from_secs(5),
                max: 12,
                per_principal: 6,
                bytes: 120 * KIB,
                bytes_per_principal: 60 * KIB,
            };
            let store = of(limits);
            let start = Instant::now();
            let mut sessions: Vec<Arc<Session>> = Vec::new();
            let mut streams = Vec::new();
            for (second, (principal, step, which)) in steps.into_iter().enumerate() {
                let now = start + Duration::from_secs(second as u64);
                let any = |sessions: &[Arc<Session>]| {
                    sessions.get(which % sessions.len().max(1)).cloned()
                };
                let one = any(&sessions);
                match (step, one) {
                    (0 | 1, _) => {
                        let principal = ["a", "b", "c"][principal];
                        sessions.push(open_with(&store, principal, which * KIB + 8, now).await);
                    }
                    (2, Some(one)) => {
                        let _ = one.subscriptions().add(&"u".repeat(which * 100));
                        store.weigh(&one, now);
                        assert!(one.state() == SessionState::Closed || store.count() > 0);
                    }
                    (3, Some(one)) => streams.push(read(&one).await),
                    (4, Some(one)) => {
                        alive(&store, &one, now).await;
                        streams.truncate(which);
                    }
                    (_, Some(one)) if which % 2 == 0 => {
                        store.remove(one.id().as_str()).await.expect("memory");
                    }
                    _ => {
                        store.evict_expired(now).await;
                    }
                }
                books_balance(&store);
                let index = store.index();
                assert!(index.held().sessions <= limits.max);
                for principal in ["a", "b", "c"] {
                    let held = index.held_by(&Some(Arc::from(principal)));
                    assert!(held.sessions <= limits.per_principal);
                    // A single session may exceed the share.
                    assert!(held.bytes <= limits.bytes_per_principal || held.sessions == 1);
                }
                drop(index);
                sessions.retain(|session| session.state() != SessionState::Closed);
            }
        });
    }
}
