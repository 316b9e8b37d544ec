//! A table with a store: what is written, and how another process goes on.

use tooldock_workers::worker::LogLevel;

use super::*;
use crate::session::{SessionPatch, SessionRecord};
#[cfg(feature = "redis")]
use crate::stores::redis::tests::{server::RedisServer, store_at};

fn recorded(limits: TableLimits, shadow: &Arc<Shadow>) -> SessionTable {
    table(limits, Some(shadow.stores()))
}

/// The patches there are, small enough to repeat.
fn patches() -> impl proptest::strategy::Strategy<Value = SessionPatch> {
    use proptest::prelude::*;
    let uri = || (0..4_u8).prop_map(|number| Arc::from(format!("test://{number}")));
    prop_oneof![
        Just(SessionPatch::Confirm),
        Just(SessionPatch::Initialize {
            version: ProtocolVersion::V2024_11_05,
            client: facts(r#"{"roots": {}}"#),
        }),
        (0..8_usize).prop_map(|level| SessionPatch::LogLevel(LogLevel::ALL[level])),
        uri().prop_map(SessionPatch::Subscribe),
        uri().prop_map(SessionPatch::Unsubscribe),
    ]
}

fn text(record: &SessionRecord) -> String {
    serde_json::to_string(record).expect("plain data")
}

proptest::proptest! {
    #[test]
    fn whatever_was_committed_the_record_says_what_the_session_is(
        patches in proptest::collection::vec(patches(), 0..40),
    ) {
        let runtime = crate::cost::runtime();
        let shadow = Arc::new(Shadow::default());
        runtime.block_on(committed_is_recorded(&shadow.stores(), patches));
    }
}

async fn committed_is_recorded(stores: &Stores, patches: Vec<SessionPatch>) {
    let one = table(ROOMY, Some(stores.clone()));
    let now = Instant::now();
    let session = open(&one, "a", now).await;
    for patch in patches {
        // A refused change is not recorded.
        let _ = one.commit(&session, patch, now).await;
    }
    let id = session.id().as_str();
    let record = async || {
        let record = stores.sessions.load(id).await.expect("works");
        record.expect("a record")
    };
    assert_eq!(text(&session.record(HOME)), text(&record().await));
    let another = table(ROOMY, Some(stores.clone()));
    let Located::Adopted(adopted) = another.locate(id, now).await.expect("works") else {
        panic!("it has a record only");
    };
    let home = Home { epoch: 1, ..HOME };
    assert_eq!(text(&adopted.session.record(home)), text(&record().await));
    assert_eq!(adopted.session.weight(), session.weight());
    books_balance(&another);
}

#[cfg(feature = "redis")]
#[test]
fn whatever_was_committed_redis_has_the_record_that_the_session_is() {
    use proptest::test_runner::{Config, TestRunner};
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    let server = RedisServer::start();
    let mut runner = TestRunner::new(Config::with_cases(30));
    let all = proptest::collection::vec(patches(), 0..40);
    let held = runner.run(&all, |patches| {
        // The connection of a store belongs to its runtime.
        runtime.block_on(committed_is_recorded(&in_redis(&server), patches));
        Ok(())
    });
    held.expect("the record says what the session is");
}

/// A process's own connection to that Redis.
#[cfg(feature = "redis")]
fn in_redis(server: &RedisServer) -> Stores {
    Stores::of(store_at(&server.url(), &EventLogConfig::default()))
}

#[tokio::test]
async fn of_many_who_ask_at_once_one_takes_the_session_up() {
    let shadow = Arc::new(Shadow::default());
    one_of_many_adopts(&shadow.stores()).await;
    assert_eq!(shadow.claims(), 1);
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn of_many_who_ask_at_once_one_takes_the_session_up_from_redis() {
    let server = RedisServer::start();
    one_of_many_adopts(&in_redis(&server)).await;
}

async fn one_of_many_adopts(stores: &Stores) {
    let now = Instant::now();
    let session = open(&table(ROOMY, Some(stores.clone())), "a", now).await;
    let another = table(ROOMY, Some(stores.clone()));
    let asks = (0..20).map(|_| another.locate(session.id().as_str(), now));
    let found = futures_util::future::join_all(asks).await;
    let mut adopted = 0;
    for located in found {
        match located.expect("works") {
            Located::Adopted(_) => adopted += 1,
            Located::Live(_) => {}
            Located::Absent => panic!("it has a record"),
        }
    }
    assert_eq!((adopted, another.count()), (1, 1));
}

#[tokio::test]
async fn of_two_processes_one_takes_the_session_up() {
    let shadow = Arc::new(Shadow::default());
    let now = Instant::now();
    let session = open(&recorded(ROOMY, &shadow), "a", now).await;
    let [one, two] = [recorded(ROOMY, &shadow), recorded(ROOMY, &shadow)];
    let id = session.id().as_str();
    let (one, two) = tokio::join!(one.locate(id, now), two.locate(id, now));
    let adopted = |located: Result<Located, StoreError>| {
        usize::from(matches!(located.expect("works"), Located::Adopted(_)))
    };
    assert_eq!(adopted(one) + adopted(two), 1);
}

#[tokio::test]
async fn a_session_that_is_over_has_no_record() {
    let shadow = Arc::new(Shadow::default());
    let limits = TableLimits {
        per_principal: 2,
        ..ROOMY
    };
    let store = recorded(limits, &shadow);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let there = |session: &Session| shadow.record(session.id().as_str()).is_some();
    let removed = open(&store, "a", at(0)).await;
    let stream = store.events.open(&removed, StreamKind::General, true);
    stream.await.expect("memory");
    assert_eq!(shadow.streams(), 1);
    assert!(store.remove(removed.id().as_str()).await.expect("works"));
    assert!(!there(&removed));
    assert_eq!(shadow.streams(), 0);
    let pushed_out = open(&store, "a", at(1)).await;
    let expired = open(&store, "a", at(2)).await;
    let used = open(&store, "a", at(3)).await;
    assert!(!there(&pushed_out) && there(&expired) && there(&used));
    used.touch(at(40));
    assert_eq!(store.evict_expired(at(70)).await, 1);
    assert!(!there(&expired) && there(&used));
    // Ended by another process: this one hears of it when it looks at the session.
    let sessions = shadow.stores().sessions;
    sessions.remove(used.id()).await.expect("works");
    used.touch(at(90));
    assert_eq!(store.evict_expired(at(99)).await, 0);
    assert_eq!(store.evict_expired(at(101)).await, 0);
    assert_eq!((store.count(), used.state()), (0, SessionState::Closed));
    books_balance(&store);
}

#[tokio::test]
async fn what_another_replica_may_have_and_what_ended_with_its_stream_is_not_taken_up() {
    let shadow = Arc::new(Shadow::default());
    let one = recorded(ROOMY, &shadow);
    let now = Instant::now();
    let elsewhere = open(&one, "a", now).await;
    let id = elsewhere.id().as_str();
    let mut record = shadow.record(id).expect("a record");
    record.home.replica = 7;
    let stores = shadow.stores().sessions;
    stores.insert(&record).await.expect("works");
    let sse = Binding {
        transport: SessionTransport::Sse,
        ..elsewhere.binding().clone()
    };
    let sse = one.create(sse, None, now).await.expect("works").session;
    let another = recorded(ROOMY, &shadow);
    for id in [id, sse.id().as_str(), "never given out"] {
        let located = another.locate(id, now).await.expect("works");
        assert!(matches!(located, Located::Absent));
    }
    assert!(shadow.record(id).is_some());
    assert!(shadow.record(sse.id().as_str()).is_none());
    assert_eq!((shadow.claims(), another.count()), (0, 0));
}

#[tokio::test]
async fn a_session_goes_on_without_its_store_and_is_recorded_once_that_works_again() {
    let shadow = Arc::new(Shadow::default());
    let store = recorded(ROOMY, &shadow);
    let now = Instant::now();
    let recorded = open(&store, "a", now).await;
    let level = || SessionPatch::LogLevel(LogLevel::Alert);
    shadow.fail(usize::MAX);
    let changed = store.commit(&recorded, level(), now).await;
    assert!(changed.expect("changed here").changed);
    let opened = open(&store, "a", now).await;
    assert!(alive(&store, &recorded, now).await && alive(&store, &opened, now).await);
    store.evict_expired(now).await;
    assert_eq!(store.unrecorded(), 2);

    shadow.fail(0);
    store.evict_expired(now).await;
    assert_eq!(store.unrecorded(), 0);
    for session in [&recorded, &opened] {
        let record = shadow.record(session.id().as_str()).expect("a record");
        assert_eq!(text(&record), text(&session.record(HOME)));
    }
}

#[tokio::test]
async fn a_session_in_use_is_not_ended_for_want_of_a_record_that_could_not_be_written() {
    let shadow = Arc::new(Shadow::default());
    let store = recorded(ROOMY, &shadow);
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    shadow.fail(usize::MAX);
    let session = open(&store, "a", at(0)).await;
    session.touch(at(40));
    shadow.fail(0);
    // The sweep tells the store that the session is in use, and then records it.
    assert_eq!(store.evict_expired(at(70)).await, 0);
    assert!(alive(&store, &session, at(70)).await);
    assert!(shadow.record(session.id().as_str()).is_some());
}

#[tokio::test]
async fn a_session_that_ends_while_it_is_recorded_again_has_no_record() {
    let shadow = Arc::new(Shadow::default());
    let store = recorded(ROOMY, &shadow);
    let now = Instant::now();
    for turns in 0..8 {
        shadow.fail(usize::MAX);
        let session = open(&store, "a", now).await;
        shadow.fail(0);
        let id = session.id().as_str();
        // The client ends the session at another step of the sweep each time.
        let removed = async {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            store.remove(id).await
        };
        let (_, removed) = tokio::join!(store.evict_expired(now), removed);
        assert!(removed.expect("works"), "{turns}");
        assert!(shadow.record(id).is_none(), "{turns}");
    }
}

#[tokio::test]
async fn a_session_that_cannot_be_removed_from_its_store_does_not_end_by_half() {
    let shadow = Arc::new(Shadow::default());
    let store = recorded(ROOMY, &shadow);
    let now = Instant::now();
    let session = open(&store, "a", now).await;
    let id = session.id().as_str();
    shadow.fail(1);
    assert!(store.remove(id).await.is_err());
    assert!(alive(&store, &session, now).await);
    assert!(store.remove(id).await.expect("works"));
}
