//! Tests of a table with a store: the records that it writes, and how another process continues its sessions.

use futures_util::future::AbortHandle;
use tooldock_process::worker::LogLevel;

use super::*;
use crate::session::in_flight::NoNotice;
use crate::session::table::ResumedStream;
use crate::session::{InFlightCalls, SessionPatch, SessionRecord};
use crate::stores::redis::tests::{server::RedisServer, store_at};
use crate::stream::ResumeError;

fn recorded(limits: TableLimits, shadow: &Arc<Shadow>) -> SessionTable {
    table(limits, Some(shadow.stores()))
}

/// All kinds of patches, with few values so that patches repeat.
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

/// Stores of one process, with its own connection to Redis.
fn in_redis(server: &RedisServer) -> Stores {
    Stores::of(store_at(&server.url(), &EventLogConfig::default()))
}

#[tokio::test]
async fn of_many_who_ask_at_once_one_takes_the_session_up() {
    let shadow = Arc::new(Shadow::default());
    one_of_many_adopts(&shadow.stores()).await;
    assert_eq!(shadow.claims(), 1);
}

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
            Located::Absent | Located::Elsewhere(_) => panic!("it has a record"),
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
    // Another process has ended the session: this one notices when it checks the session.
    let sessions = shadow.stores().sessions;
    sessions.remove(used.id()).await.expect("works");
    used.touch(at(90));
    assert_eq!(store.evict_expired(at(99)).await, 0);
    assert_eq!(store.evict_expired(at(101)).await, 0);
    assert_eq!((store.count(), used.state()), (0, SessionState::Closed));
    books_balance(&store);
}

#[tokio::test]
async fn a_stream_that_was_opened_without_a_record_has_its_number_for_itself() {
    let shadow = Arc::new(Shadow::default());
    let now = Instant::now();
    let one = recorded(ROOMY, &shadow);
    let session = open(&one, "a", now).await;
    shadow.fail(usize::MAX);
    let unrecorded = one.events.open(&session, StreamKind::Request, true).await;
    let unrecorded = unrecorded.expect("without the store").number();
    shadow.fail(0);
    let another = recorded(ROOMY, &shadow);
    let located = another.locate(session.id().as_str(), now).await;
    let Ok(Located::Adopted(OpenedSession { session, .. })) = located else {
        panic!("it has a record only");
    };
    let opened = another.events.open(&session, StreamKind::Request, true);
    assert_ne!(opened.await.expect("works").number(), unrecorded);
    let id = format!("{unrecorded}-1");
    let resumed = another.events.resume(&session, &id).await;
    assert!(matches!(resumed, Err(ResumeError::Unknown)));
}

#[tokio::test]
async fn what_ended_with_its_stream_is_not_taken_up() {
    let shadow = Arc::new(Shadow::default());
    let one = recorded(ROOMY, &shadow);
    let now = Instant::now();
    let sse = Binding {
        transport: SessionTransport::Sse,
        ..open(&one, "a", now).await.binding().clone()
    };
    let sse = one.create(sse, None, now).await.expect("works").session;
    let another = recorded(ROOMY, &shadow);
    for id in [sse.id().as_str(), "never given out"] {
        let located = another.locate(id, now).await.expect("works");
        assert!(matches!(located, Located::Absent));
    }
    assert!(shadow.record(sse.id().as_str()).is_none());
    assert_eq!(another.count(), 0);
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
    // The sweep keeps the session although it has no record yet, and records it.
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

mod homes {
    use super::*;
    use crate::replicas::tests::{Board, beats};
    use crate::replicas::{BEAT_EVERY, BEAT_LIFE, ReplicaStatus};

    /// Two replicas with one store, both up.
    struct Two {
        shadow: Arc<Shadow>,
        board: Arc<Board>,
        replicas: [Arc<Replicas>; 2],
        tables: [SessionTable; 2],
    }

    impl Two {
        async fn up() -> Self {
            let shadow = Arc::new(Shadow::default());
            let board = Arc::new(Board::default());
            let replicas = ["one", "two"].map(|name| board.replica(name));
            let of = |it: &Arc<Replicas>| table_of(ROOMY, Some(shadow.stores()), Arc::clone(it));
            let tables = [of(&replicas[0]), of(&replicas[1])];
            beats(&[&replicas[0], &replicas[1]], BEAT_LIFE).await;
            Self {
                shadow,
                board,
                replicas,
                tables,
            }
        }

        async fn located(&self, at: usize, session: &Session) -> Located {
            let found = self.tables[at].locate(session.id().as_str(), Instant::now());
            found.await.expect("works")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_live_at_its_home_alone_while_that_is_up() {
        let two = Two::up().await;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let home = two.replicas[0].own();
        assert!(matches!(two.located(0, &session).await, Located::Live(_)));
        assert!(matches!(two.located(1, &session).await, Located::Elsewhere(it) if it == home));
        assert_eq!((two.shadow.claims(), two.tables[1].count()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_session_of_a_replica_that_is_gone_or_leaves_is_claimed() {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let second = open(&two.tables[1], "a", Instant::now()).await;
        beats(&[other], BEAT_LIFE).await;
        let Located::Adopted(adopted) = two.located(1, &session).await else {
            panic!("its home is gone");
        };
        assert_eq!(adopted.session.id(), session.id());

        beats(&[one, other], BEAT_LIFE).await;
        other.leave().await;
        beats(&[one], Duration::ZERO).await;
        assert_eq!(one.standing(other.own()), ReplicaStatus::Leaving);
        assert!(matches!(two.located(0, &second).await, Located::Adopted(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_was_silent_gives_up_sessions_that_others_claimed_and_keeps_the_rest() {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        let claimed = open(&two.tables[0], "a", Instant::now()).await;
        let kept = open(&two.tables[0], "a", Instant::now()).await;
        beats(&[other], BEAT_LIFE).await;
        assert!(matches!(
            two.located(1, &claimed).await,
            Located::Adopted(_)
        ));
        beats(&[one, other], Duration::ZERO).await;
        let home = other.own();
        assert!(matches!(two.located(0, &claimed).await, Located::Elsewhere(it) if it == home));
        assert_eq!(claimed.state(), SessionState::Closed);
        assert!(matches!(two.located(0, &kept).await, Located::Live(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_leaves_hands_claimed_sessions_over_and_their_calls_run_on() {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let mut stream = read(&session).await;
        let (call, registration) = AbortHandle::new_pair();
        let running = InFlightCalls::enter(&session, "1", call, Arc::new(NoNotice));
        one.leave().await;
        beats(&[other], Duration::ZERO).await;
        assert!(matches!(
            two.located(1, &session).await,
            Located::Adopted(_)
        ));
        let home = other.own();
        assert!(matches!(two.located(0, &session).await, Located::Elsewhere(it) if it == home));
        assert!(!registration.handle().is_aborted());
        assert!(running.is_of_open_session());
        let farewell = stream.next().await.expect("ends with a time to wait");
        assert!(farewell.starts_with(b"retry:"), "{farewell:?}");
        assert_eq!(stream.next().await, None);
        assert_eq!(two.tables[0].count(), 0);
        books_balance(&two.tables[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_claimed_after_its_silent_home_beats_again_is_given_up_too() {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        beats(&[other], BEAT_LIFE).await;
        // The replica runs again before the other one has noticed its pause.
        beats(&[one], Duration::ZERO).await;
        assert!(matches!(two.located(0, &session).await, Located::Live(_)));
        assert!(matches!(
            two.located(1, &session).await,
            Located::Adopted(_)
        ));
        let home = other.own();
        assert!(matches!(two.located(0, &session).await, Located::Elsewhere(it) if it == home));
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_was_killed_and_started_again_gives_up_sessions_that_were_claimed_before_others_heard_it()
     {
        let two = Two::up().await;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let restarted = two.board.replica("one");
        let table = table_of(ROOMY, Some(two.shadow.stores()), Arc::clone(&restarted));
        let located = || table.locate(session.id().as_str(), Instant::now());
        assert!(matches!(located().await, Ok(Located::Adopted(_))));
        // Its beats are refused while the last one of its predecessor counts.
        beats(&[&two.replicas[1], &restarted], BEAT_LIFE).await;
        let home = two.replicas[1].own();
        assert!(matches!(
            two.located(1, &session).await,
            Located::Adopted(_)
        ));
        assert!(matches!(located().await, Ok(Located::Elsewhere(it)) if it == home));
        assert_eq!(table.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_whose_beats_are_refused_uses_no_session_that_another_replica_has_claimed() {
        let two = Two::up().await;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let restarted = two.board.replica("one");
        let table = table_of(ROOMY, Some(two.shadow.stores()), Arc::clone(&restarted));
        let located = || table.locate(session.id().as_str(), Instant::now());
        assert!(matches!(located().await, Ok(Located::Adopted(_))));
        beats(&[&two.replicas[1], &restarted], BEAT_LIFE - BEAT_EVERY).await;
        beats(&[&two.replicas[1]], BEAT_EVERY).await;
        let home = two.replicas[1].own();
        assert!(matches!(
            two.located(1, &session).await,
            Located::Adopted(_)
        ));
        assert!(matches!(located().await, Ok(Located::Elsewhere(it)) if it == home));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_opened_before_others_have_heard_its_home_is_given_up_when_they_claim_it()
     {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        beats(&[other], BEAT_LIFE).await;
        beats(&[one], Duration::ZERO).await;
        let kept = open(&two.tables[0], "a", Instant::now()).await;
        assert!(matches!(two.located(0, &kept).await, Located::Live(_)));
        let session = open(&two.tables[0], "a", Instant::now()).await;
        assert!(matches!(
            two.located(1, &session).await,
            Located::Adopted(_)
        ));
        let home = other.own();
        assert!(matches!(two.located(0, &session).await, Located::Elsewhere(it) if it == home));
        assert!(matches!(two.located(0, &kept).await, Located::Live(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_that_is_claimed_while_its_record_is_written_again_belongs_to_its_claimant() {
        let two = Two::up().await;
        let other = &two.replicas[1];
        let mut sessions = Vec::new();
        for _ in 0..6 {
            sessions.push(open(&two.tables[0], "a", Instant::now()).await);
        }
        beats(&[other], BEAT_LIFE).await;
        for (turns, session) in sessions.iter().enumerate() {
            two.shadow.fail(1);
            let level = SessionPatch::LogLevel(LogLevel::Alert);
            let committed = two.tables[0].commit(session, level, Instant::now());
            committed.await.expect("changed here");
            // The sweep comes at another step of the claim each time.
            let recorded = async {
                for _ in 0..turns {
                    tokio::task::yield_now().await;
                }
                two.tables[0].record_again().await;
            };
            let (claimed, ()) = tokio::join!(two.located(1, session), recorded);
            assert!(matches!(claimed, Located::Adopted(_)), "{turns}");
            let record = two.shadow.record(session.id().as_str()).expect("a record");
            assert_eq!(record.home.replica, other.own(), "{turns}");
        }
    }

    /// Opens a general stream of a session, and returns the id of its first event.
    async fn opened_stream(table: &SessionTable, session: &Arc<Session>) -> String {
        let stream = table.events.open(session, StreamKind::General, true);
        let stream = stream.await.expect("memory");
        let opened = SessionPatch::OpenStream(stream.number());
        let noted = table.commit(session, opened, Instant::now()).await;
        noted.expect("changed here");
        event_id(&stream.read().next().await.expect("the priming event"))
    }

    fn event_id(frame: &[u8]) -> String {
        let text = std::str::from_utf8(frame).expect("UTF-8");
        let id = text.lines().find_map(|line| line.strip_prefix("id: "));
        id.expect("an id").to_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_of_a_later_home_is_unknown_to_no_home_that_is_cut_off_from_the_store() {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let first = opened_stream(&two.tables[0], &session).await;
        beats(&[other], BEAT_LIFE).await;
        let Located::Adopted(adopted) = two.located(1, &session).await else {
            panic!("its home is gone");
        };
        // On the stream that the new home took over, and on one that it opened.
        let resumed = two.tables[1].events.resume(&adopted.session, &first);
        let mut reader = resumed.await.expect("the stream");
        let events = &two.tables[1].events;
        assert!(events.append_general(&adopted.session, b"{}").await);
        let later = event_id(&reader.next().await.expect("the event"));
        let opened = opened_stream(&two.tables[1], &adopted.session).await;

        let resume = |id| two.tables[0].resume(&session, id);
        two.shadow.fail(usize::MAX);
        for id in [&later, &opened] {
            let refused = resume(id).await;
            assert!(matches!(refused, Err(ResumeError::Store(_))), "{id}");
        }
        let malformed = resume("nonsense").await;
        assert!(matches!(malformed, Err(ResumeError::Malformed)));
        assert!(
            matches!(resume(&first).await, Ok(ResumedStream::Here(_))),
            "its own event"
        );

        two.shadow.fail(0);
        let moved = resume(&later).await;
        assert!(matches!(moved, Ok(ResumedStream::Elsewhere(it)) if it == other.own()));
        assert_eq!(session.state(), SessionState::Closed);
        beats(&[one], Duration::ZERO).await;
        assert!(
            matches!(two.located(0, &session).await, Located::Elsewhere(it) if it == other.own())
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_no_home_had_is_unknown_once_the_record_names_this_replica() {
        let two = Two::up().await;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let first = opened_stream(&two.tables[0], &session).await;
        let (number, _) = first.split_once('-').expect("two parts");
        for id in [format!("{number}-{}", u64::MAX), "9-1".to_owned()] {
            let resume = || two.tables[0].resume(&session, &id);
            two.shadow.fail(usize::MAX);
            assert!(matches!(resume().await, Err(ResumeError::Store(_))), "{id}");
            two.shadow.fail(0);
            assert!(matches!(resume().await, Err(ResumeError::Unknown)), "{id}");
        }
        // Without a record there was no claim, unless the store has lost it.
        let store = two.shadow.stores().sessions;
        store.remove(session.id()).await.expect("works");
        let resume = || two.tables[0].resume(&session, "9-1");
        assert!(matches!(resume().await, Err(ResumeError::Unknown)));
        two.board.forget();
        beats(&[&two.replicas[0]], Duration::ZERO).await;
        assert!(matches!(resume().await, Err(ResumeError::Store(_))));
        assert_eq!(session.state(), SessionState::New);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_a_lone_process_never_had_is_unknown_whether_or_not_its_store_works() {
        let shadow = Arc::new(Shadow::default());
        let table = recorded(ROOMY, &shadow);
        let session = open(&table, "a", Instant::now()).await;
        shadow.fail(usize::MAX);
        let refused = table.resume(&session, "9-1").await;
        assert!(matches!(refused, Err(ResumeError::Unknown)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_sweep_ends_claimed_sessions_that_nobody_asks_for() {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        let claimed = open(&two.tables[0], "a", Instant::now()).await;
        beats(&[other], BEAT_LIFE).await;
        assert!(matches!(
            two.located(1, &claimed).await,
            Located::Adopted(_)
        ));
        beats(&[one, other], Duration::ZERO).await;
        two.tables[0].evict_expired(Instant::now()).await;
        assert_eq!(
            (claimed.state(), two.tables[0].count()),
            (SessionState::Closed, 0)
        );
        assert!(
            two.shadow.record(claimed.id().as_str()).is_some(),
            "it goes on elsewhere"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_without_a_record_is_asked_for_where_it_was_opened() {
        let two = Two::up().await;
        two.shadow.fail(1);
        let session = open(&two.tables[0], "a", Instant::now()).await;
        two.shadow.fail(0);
        assert!(two.shadow.record(session.id().as_str()).is_none());
        let home = two.replicas[0].own();
        assert!(matches!(two.located(1, &session).await, Located::Elsewhere(it) if it == home));
        two.shadow.fail(1);
        assert!(matches!(two.located(1, &session).await, Located::Elsewhere(it) if it == home));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_without_a_record_is_not_absent_while_the_replica_that_opened_it_may_be_cut_off()
     {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        two.shadow.fail(1);
        let session = open(&two.tables[0], "a", Instant::now()).await;
        two.shadow.fail(0);
        beats(&[other], BEAT_LIFE).await;
        assert_eq!(other.standing(one.own()), ReplicaStatus::Gone);
        let home = one.own();
        assert!(matches!(two.located(1, &session).await, Located::Elsewhere(it) if it == home));
        // Its address does not answer either.
        let [silent] = other.silent().try_into().expect("one replica");
        other.note_ended(&silent);
        assert!(matches!(two.located(1, &session).await, Located::Absent));
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_without_a_record_is_absent_once_the_replica_that_opened_it_has_said_farewell()
     {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        two.shadow.fail(1);
        let session = open(&two.tables[0], "a", Instant::now()).await;
        two.shadow.fail(0);
        one.leave().await;
        beats(&[other], BEAT_LIFE).await;
        assert!(other.silent().is_empty());
        assert!(matches!(two.located(1, &session).await, Located::Absent));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_forgot_everything_gets_all_records_again_at_the_next_sweep() {
        let two = Two::up().await;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let store = two.shadow.stores().sessions;
        store.remove(session.id()).await.expect("works");
        two.board.forget();
        beats(&[&two.replicas[0]], Duration::ZERO).await;
        two.tables[0].evict_expired(Instant::now()).await;
        assert!(two.shadow.record(session.id().as_str()).is_some());
        assert_eq!(two.tables[0].unrecorded(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_not_taken_for_absent_while_its_home_writes_records_again() {
        let two = Two::up().await;
        let [one, other] = &two.replicas;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        beats(&[other], BEAT_LIFE).await;
        let Located::Adopted(adopted) = two.located(1, &session).await else {
            panic!("its home is gone");
        };
        beats(&[one, other], Duration::ZERO).await;
        assert!(matches!(
            two.located(0, &session).await,
            Located::Elsewhere(_)
        ));

        let store = two.shadow.stores().sessions;
        store.remove(session.id()).await.expect("works");
        two.shadow.fail(usize::MAX);
        let level = SessionPatch::LogLevel(LogLevel::Alert);
        let committed = two.tables[1].commit(&adopted.session, level, Instant::now());
        committed.await.expect("changed here");
        two.tables[1].evict_expired(Instant::now()).await;
        two.shadow.fail(0);
        beats(&[other, one], Duration::ZERO).await;
        let asked = || two.tables[0].locate(session.id().as_str(), Instant::now());
        assert!(asked().await.is_err(), "it goes on at the other one");

        two.tables[1].evict_expired(Instant::now()).await;
        beats(&[other, one], Duration::ZERO).await;
        assert!(matches!(asked().await, Ok(Located::Elsewhere(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn records_that_the_store_lost_are_written_again_and_end_no_session() {
        let two = Two::up().await;
        let session = open(&two.tables[0], "a", Instant::now()).await;
        let store = two.shadow.stores().sessions;
        store.remove(session.id()).await.expect("works");
        let begin = Instant::now();
        session.touch(begin + ROOMY.ttl / 2);
        two.tables[0].evict_expired(begin + ROOMY.ttl).await;
        assert_ne!(session.state(), SessionState::Closed);
        assert!(two.shadow.record(session.id().as_str()).is_some());
    }
}
