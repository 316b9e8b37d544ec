//! Tests that every event log must pass (`contract`), tests of any order of events (`model`), and tests of this log alone.

use std::time::Duration;

use bytesize::ByteSize;
use futures_util::FutureExt;
use tooldock_protocol::version::ProtocolVersion;

use super::*;
use crate::session::{Binding, Session, SessionId, SessionTransport};
use crate::testing::shadow::Shadow;

mod contract;
mod model;
mod schedules;
mod staged;

pub(super) const AGE: Duration = Duration::from_secs(60);

pub(super) fn limits(events: usize, bytes: u64) -> EventLogConfig {
    EventLogConfig {
        events,
        bytes: ByteSize::b(bytes),
        age: AGE,
        total: ByteSize::mib(64),
    }
}

pub(super) fn log(limits: EventLogConfig) -> (EventLog, Arc<StreamMetrics>) {
    let metrics = StreamMetrics::unregistered();
    (log_over(limits, &metrics), metrics)
}

fn log_over(limits: EventLogConfig, metrics: &Arc<StreamMetrics>) -> EventLog {
    let keep_alive = KeepAlive::measured(Duration::from_secs(15), Arc::clone(metrics));
    EventLog::new(limits, keep_alive, Arc::clone(metrics))
}

/// The session in a process that has only its record.
pub(super) fn as_adopted(session: &Session) -> Arc<Session> {
    Arc::new(session.as_adopted())
}

pub(super) fn session() -> Arc<Session> {
    session_of(None)
}

pub(super) fn session_of(principal: Option<&str>) -> Arc<Session> {
    let binding = Binding {
        namespace: "shared".parse().expect("a name"),
        principal: principal.map(Arc::from),
        version: ProtocolVersion::V2025_11_25,
        transport: SessionTransport::Streamable,
    };
    Arc::new(Session::new(SessionId::random(), binding, Instant::now()))
}

/// An event as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: String,
    pub(super) data: String,
}

fn seen(frame: &Bytes) -> Seen {
    let text = std::str::from_utf8(frame).expect("UTF-8");
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.unwrap_or_default().to_owned()
    };
    Seen {
        id: field("id: "),
        data: field("data: "),
    }
}

/// The events that can be read without waiting, and true if the stream ended.
pub(super) fn ready(subscription: &mut Subscription) -> (Vec<Seen>, bool) {
    let mut read = Vec::new();
    loop {
        match subscription.next().now_or_never() {
            None => return (read, false),
            Some(None) => return (read, true),
            Some(Some(frame)) => read.push(seen(&frame)),
        }
    }
}

pub(super) fn data(read: &[Seen]) -> Vec<&str> {
    read.iter().map(|seen| &*seen.data).collect()
}

/// Opens a stream for appending.
async fn open(log: &EventLog, session: &Arc<Session>, kind: StreamKind) -> Arc<Stream> {
    log.open(session, kind, false).await.expect("memory")
}

async fn put(log: &EventLog, session: &Arc<Session>, stream: &Arc<Stream>, message: &str) {
    log.append(session, stream, message.as_bytes()).await;
}

contract::holds_for!(in_memory);
contract::holds_for!(stored);
contract::holds_for!(redis, tokio::test);
// The facts about resumption. The others concern the readers of a single process.
contract::holds_for!(taken_over:
    a_resumed_stream_goes_on_behind_the_named_event,
    priming_comes_first_and_can_be_resumed_from,
    what_is_said_while_nobody_listens_waits,
    what_is_older_than_the_window_is_left_out_and_counted,
    a_slow_reader_ends_and_its_log_stays,
    a_finished_stream_is_read_to_its_end_as_often_as_wanted,
);
contract::holds_for!(taken_over_from_redis, tokio::test:
    a_resumed_stream_goes_on_behind_the_named_event,
    priming_comes_first_and_can_be_resumed_from,
    what_is_said_while_nobody_listens_waits,
    what_is_older_than_the_window_is_left_out_and_counted,
    a_slow_reader_ends_and_its_log_stays,
    a_finished_stream_is_read_to_its_end_as_often_as_wanted,
);

/// The logs that the contract holds for.
mod makers {
    use super::contract::Made;
    use super::*;
    use crate::stores::redis::tests::{server::RedisServer, store_at};

    pub(super) fn in_memory(limits: EventLogConfig) -> Made {
        let (log, metrics) = log(limits);
        Made {
            log: Arc::new(log),
            metrics,
            heir: None,
            guard: Box::new(()),
        }
    }

    /// A log with a store.
    pub(super) fn stored(limits: EventLogConfig) -> Made {
        Made {
            heir: None,
            ..taken_over(limits)
        }
    }

    /// A log with a store, from which another process serves the clients that come back.
    pub(super) fn taken_over(limits: EventLogConfig) -> Made {
        let shadow = Arc::new(Shadow::default());
        let metrics = StreamMetrics::unregistered();
        let heir = {
            let metrics = Arc::clone(&metrics);
            move || log_over(limits.clone(), &metrics).with_store(Arc::clone(&shadow) as _)
        };
        Made {
            log: Arc::new(heir()),
            metrics,
            heir: Some(Box::new(heir)),
            guard: Box::new(()),
        }
    }

    /// A log with Redis.
    pub(super) fn redis(limits: EventLogConfig) -> Made {
        Made {
            heir: None,
            ..taken_over_from_redis(limits)
        }
    }

    /// A log with Redis, from which another process serves the clients that come back.
    pub(super) fn taken_over_from_redis(limits: EventLogConfig) -> Made {
        let server = RedisServer::start();
        let url = server.url();
        let metrics = StreamMetrics::unregistered();
        let heir = {
            let metrics = Arc::clone(&metrics);
            move || {
                // Each process has its own connection.
                let store = store_at(&url, &limits);
                log_over(limits.clone(), &metrics).with_store(Arc::new(store))
            }
        };
        Made {
            log: Arc::new(heir()),
            metrics,
            heir: Some(Box::new(heir)),
            guard: Box::new(server),
        }
    }
}

#[tokio::test]
async fn a_client_resumes_elsewhere_after_an_event_that_its_process_could_not_store() {
    let shadow = Arc::new(Shadow::default());
    let metrics = StreamMetrics::unregistered();
    let process = || log_over(limits(256, 1 << 20), &metrics).with_store(Arc::clone(&shadow) as _);
    let (cut_off, before) = (process(), session());
    let stream = open(&cut_off, &before, StreamKind::General).await;
    let mut reader = stream.read();
    put(&cut_off, &before, &stream, "stored").await;
    shadow.fail(1);
    put(&cut_off, &before, &stream, "only sent").await;
    let read = ready(&mut reader).0;
    assert_eq!(data(&read), ["stored", "only sent"]);

    let (heir, session) = (process(), as_adopted(&before));
    heir.restore(&session).await.expect("works");
    assert!(heir.append_general(&session, b"next").await);
    for event in &read {
        let mut resumed = heir.resume(&session, &event.id).await.expect("resumes");
        let next = ready(&mut resumed).0;
        assert_eq!(data(&next), ["next"]);
        assert!(read.iter().all(|event| event.id != next[0].id));
    }
}

#[tokio::test]
async fn a_client_resumes_after_an_unstored_event_of_a_process_that_has_counted_billions() {
    let shadow = Arc::new(Shadow::default());
    let metrics = StreamMetrics::unregistered();
    let process = || log_over(limits(256, 1 << 20), &metrics).with_store(Arc::clone(&shadow) as _);
    let (cut_off, before) = (process(), session());
    let stream = open(&cut_off, &before, StreamKind::General).await;
    put(&cut_off, &before, &stream, "stored").await;
    // Events of other sessions: this stream is idle for weeks.
    cut_off.ledger.count_up_to(10_000_000_000);
    shadow.fail(1);
    put(&cut_off, &before, &stream, "only sent").await;
    let read = ready(&mut stream.read()).0;
    let last = read.last().expect("two events");

    let (heir, session) = (process(), as_adopted(&before));
    heir.restore(&session).await.expect("works");
    assert!(heir.append_general(&session, b"next").await);
    let mut resumed = heir.resume(&session, &last.id).await.expect("resumes");
    assert_eq!(data(&ready(&mut resumed).0), ["next"]);
}

#[tokio::test]
async fn a_client_resumes_after_an_event_of_a_process_between_two_others_that_stored_nothing() {
    let shadow = Arc::new(Shadow::default());
    let metrics = StreamMetrics::unregistered();
    let process = || log_over(limits(256, 1 << 20), &metrics).with_store(Arc::clone(&shadow) as _);
    let (first, opened) = (process(), session());
    let stream = open(&first, &opened, StreamKind::General).await;
    put(&first, &opened, &stream, "stored").await;

    let (second, session) = (process(), as_adopted(&opened));
    second.restore(&session).await.expect("works");
    let id = format!("{}-0", stream.number());
    let mut reader = second.resume(&session, &id).await.expect("resumes");
    shadow.fail(usize::MAX);
    assert!(second.append_general(&session, b"only sent").await);
    shadow.fail(0);
    let read = ready(&mut reader).0;
    assert_eq!(data(&read), ["stored", "only sent"]);

    let (third, session) = (process(), as_adopted(&session));
    third.restore(&session).await.expect("works");
    assert!(third.append_general(&session, b"next").await);
    for event in &read {
        let mut resumed = third.resume(&session, &event.id).await.expect("resumes");
        assert_eq!(data(&ready(&mut resumed).0), ["next"]);
    }
}

/// Two homes of a session that cannot see each other open a stream of the same number each.
#[tokio::test]
async fn events_of_a_home_that_is_cut_off_are_never_those_of_the_new_home() {
    let shadow = Arc::new(Shadow::default());
    let metrics = StreamMetrics::unregistered();
    let process = || log_over(limits(256, 1 << 20), &metrics).with_store(Arc::clone(&shadow) as _);
    let (cut_off, before) = (process(), session());
    let first = open(&cut_off, &before, StreamKind::General).await;
    put(&cut_off, &before, &first, "stored").await;
    let (heir, session) = (process(), as_adopted(&before));
    heir.restore(&session).await.expect("works");

    // Without the store, which holds what the new home writes.
    let alone = log_over(limits(256, 1 << 20), &metrics);
    let there = open(&alone, &before, StreamKind::General).await;
    let here = open(&heir, &session, StreamKind::General).await;
    assert_eq!(there.number(), here.number());
    for message in ["1", "2", "3"] {
        put(&alone, &before, &there, &format!("there {message}")).await;
        put(&heir, &session, &here, &format!("here {message}")).await;
    }
    let (there, here) = (ready(&mut there.read()).0, ready(&mut here.read()).0);
    assert_eq!((there.len(), here.len()), (3, 3));
    let other = |id: &str| here.iter().all(|event| event.id != id);
    assert!(
        there.iter().all(|event| other(&event.id)),
        "{there:?} {here:?}"
    );

    // An event of the one is unknown to the other: nothing is skipped, and nothing comes twice.
    for event in &here {
        let resumed = alone.resume(&before, &event.id).await;
        assert!(matches!(resumed, Err(ResumeError::Unknown)), "{}", event.id);
    }
    for event in &there {
        let mut resumed = heir.resume(&session, &event.id).await.expect("goes on");
        assert!(
            ready(&mut resumed).0.is_empty(),
            "messages of another stream"
        );
        assert!(heir.append_general(&session, b"next").await);
        assert_eq!(data(&ready(&mut resumed).0), ["next"]);
    }
    // Nor is it at a third home, which reads the stream of the second from the store.
    let (third, session) = (process(), as_adopted(&session));
    third.restore(&session).await.expect("works");
    let mut resumed = third.resume(&session, &there[0].id).await.expect("goes on");
    assert!(
        ready(&mut resumed).0.is_empty(),
        "messages of another stream"
    );
    let mut resumed = third.resume(&session, &here[0].id).await.expect("resumes");
    assert_eq!(data(&ready(&mut resumed).0), ["here 2", "here 3"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_was_taken_over_ages_beside_those_that_began_here() {
    let shadow = Arc::new(Shadow::default());
    let metrics = StreamMetrics::unregistered();
    let process = || log_over(limits(256, 1 << 20), &metrics).with_store(Arc::clone(&shadow) as _);
    let (before, there) = (process(), session());
    let stream = open(&before, &there, StreamKind::General).await;
    put(&before, &there, &stream, "old").await;
    let (log, taken) = (process(), as_adopted(&there));
    log.restore(&taken).await.expect("works");
    assert!(log.append_general(&taken, b"old").await);
    let here = session();
    let stream = open(&log, &here, StreamKind::General).await;
    tokio::time::advance(AGE / 2).await;
    put(&log, &here, &stream, "young").await;
    let held = log.ledger.bytes();
    tokio::time::advance(AGE / 2 + Duration::from_secs(1)).await;
    log.sweep(Instant::now());
    assert!(log.ledger.bytes() < held / 2, "{}", log.ledger.bytes());
}

#[tokio::test(start_paused = true)]
async fn the_total_takes_the_oldest_event_of_all_streams() {
    let each = 1000;
    let (log, _) = log(EventLogConfig {
        // Room for ten events, including their overhead.
        total: ByteSize::b(10 * (each + 150)),
        ..limits(256, 1 << 20)
    });
    let message = "x".repeat(usize::try_from(each).expect("small"));
    let sessions = [session(), session(), session()];
    let mut streams = Vec::new();
    for session in &sessions {
        streams.push(open(&log, session, StreamKind::General).await);
    }
    // In turns, so that the oldest event is always another stream's.
    for round in 0..12 {
        for (session, stream) in sessions.iter().zip(&streams) {
            put(&log, session, stream, &format!("{round} {message}")).await;
            assert!(log.ledger.bytes() <= 10 * 1150);
        }
    }
    for (session, stream) in sessions.iter().zip(&streams) {
        let id = format!("{}-0", stream.number());
        let mut events = log.resume(session, &id).await.expect("a stream it has");
        let (left, _) = ready(&mut events);
        let rounds: Vec<_> = data(&left)
            .iter()
            .map(|data| data.split(' ').next().expect("a round").to_owned())
            .collect();
        assert!(
            rounds.ends_with(&["9".into(), "10".into(), "11".into()]),
            "{rounds:?}"
        );
        assert!(rounds.len() <= 4, "{rounds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn one_session_does_not_push_out_what_others_keep() {
    let (log, _) = log(EventLogConfig {
        total: ByteSize::kib(64),
        ..limits(8, 1024)
    });
    let share = log.ledger.session_max();
    let (quiet, noisy) = (session(), session());
    let kept = open(&log, &quiet, StreamKind::Request).await;
    put(&log, &quiet, &kept, "kept").await;
    let message = "x".repeat(900);
    let general = open(&log, &noisy, StreamKind::General).await;
    put(&log, &noisy, &general, &message).await;
    // A session's share bounds finished streams and those that never finish; only the newest may exceed it.
    for number in 0..100 {
        let stream = open(&log, &noisy, StreamKind::Request).await;
        put(&log, &noisy, &stream, &message).await;
        if number % 2 == 0 {
            stream.finish();
        }
        assert!(log.ledger.bytes() <= 2 * share, "{}", log.ledger.bytes());
    }
    let id = |stream: &Stream| format!("{}-0", stream.number());
    let mut events = log.resume(&quiet, &id(&kept)).await.expect("kept");
    assert_eq!(data(&ready(&mut events).0), ["kept"]);
    let mut events = log.resume(&noisy, &id(&general)).await.expect("its own");
    assert_eq!(ready(&mut events), (vec![], false), "goes on without");
    put(&log, &noisy, &general, "more").await;
    assert_eq!(data(&ready(&mut events).0), ["more"]);
}

#[tokio::test(start_paused = true)]
async fn sessions_large_events_and_replays_of_one_principal_take_nothing_from_another() {
    const TOTAL: usize = 256 * 1024;
    let (log, _) = log(EventLogConfig {
        total: ByteSize::b(TOTAL as u64),
        ..limits(256, 64 * 1024)
    });
    let quiet = session_of(Some("quiet"));
    let kept = open(&log, &quiet, StreamKind::Request).await;
    for number in 0..20 {
        put(&log, &quiet, &kept, &format!("{number}")).await;
    }
    let id = |stream: &Stream| format!("{}-0", stream.number());
    let (small, large) = ("x".repeat(10), "x".repeat(TOTAL / 2));
    let mut unread = Vec::new();
    for number in 0..1000 {
        let session = session_of(Some("greedy"));
        let stream = open(&log, &session, StreamKind::Request).await;
        let message = if number % 50 == 0 { &large } else { &small };
        put(&log, &session, &stream, message).await;
        stream.finish();
        // A client that resumes and stops reading keeps its position, and takes no room of others.
        let replay = log.resume(&session, &id(&stream)).await;
        unread.push((session, stream, replay.expect("a stream it has")));
        assert!(log.ledger.bytes() <= TOTAL, "{}", log.ledger.bytes());
    }
    let mut events = log.resume(&quiet, &id(&kept)).await.expect("kept");
    let expected: Vec<_> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(data(&ready(&mut events).0), expected);
}

proptest::proptest! {
    #[test]
    fn a_principal_within_its_equal_part_of_the_total_loses_nothing(
        steps in proptest::collection::vec((0..3_usize, 0..4_usize, 1..900_usize), 1..150),
    ) {
        const TOTAL: usize = 12 * 1024;
        let (log, _) = log(EventLogConfig { total: ByteSize::b(TOTAL as u64), ..limits(256, 8192) });
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let mut streams = Vec::new();
            for principal in [None, Some("a"), Some("b")] {
                for _ in 0..4 {
                    let session = session_of(principal);
                    let stream = open(&log, &session, StreamKind::General).await;
                    streams.push((session, stream));
                }
            }
            let held = |principal: usize| -> usize {
                let own = &streams[principal * 4..][..4];
                own.iter().map(|(_, stream)| stream.cost()).sum()
            };
            // Including the overhead of an event besides its message.
            let mut put_by = [0; 3];
            for (principal, stream, length) in steps {
                let before = [0, 1, 2].map(held);
                put_by[principal] += length + 100;
                let (session, stream) = &streams[principal * 4 + stream];
                put(&log, session, stream, &"x".repeat(length)).await;
                let after = [0, 1, 2].map(held);
                let all: usize = after.iter().sum();
                assert!(all <= TOTAL && all == log.ledger.bytes(), "{all}");
                for principal in 0..3 {
                    let within = put_by[principal] <= TOTAL / 3;
                    assert!(!within || after[principal] >= before[principal]);
                }
            }
        });
    }
}

#[tokio::test(start_paused = true)]
async fn what_ages_is_gone_and_leaves_no_memory_behind() {
    let (log, metrics) = log(limits(256, 1 << 20));
    let session = session();
    let general = open(&log, &session, StreamKind::General).await;
    let request = open(&log, &session, StreamKind::Request).await;
    put(&log, &session, &general, "1").await;
    put(&log, &session, &request, "2").await;
    request.finish();
    log.sweep(Instant::now());
    assert!(metrics.log_bytes.get() > 0);
    tokio::time::advance(AGE / 2).await;
    put(&log, &session, &general, "3").await;
    tokio::time::advance(AGE / 2 + Duration::from_secs(1)).await;
    log.sweep(Instant::now());
    // The finished request has no events left, so the session forgets it; the general stream stays.
    assert_eq!(session.streams().len(), 1);
    assert_eq!(Arc::strong_count(&request), 1);
    let mut events = log
        .resume(&session, &format!("{}-0", general.number()))
        .await
        .expect("kept");
    assert_eq!(data(&ready(&mut events).0), ["3"]);
    assert_eq!(metrics.window_misses.get(), 1);
    drop(events);
    tokio::time::advance(AGE * 2).await;
    log.sweep(Instant::now());
    log.sweep(Instant::now());
    assert_eq!((log.ledger.bytes(), metrics.log_bytes.get()), (0, 0));
    assert_eq!(log.ledger.listed(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_has_not_taken_what_ages_loses_its_stream() {
    let (log, metrics) = log(limits(256, 1 << 20));
    let session = session();
    let stream = open(&log, &session, StreamKind::General).await;
    let mut stuck = stream.read();
    put(&log, &session, &stream, "1").await;
    tokio::time::advance(AGE * 2).await;
    put(&log, &session, &stream, "2").await;
    log.sweep(Instant::now());
    assert_eq!(ready(&mut stuck), (vec![], true));
    assert_eq!(metrics.slow_readers.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn closing_a_session_gives_its_memory_back() {
    let (log, _) = log(limits(256, 1 << 20));
    let session = session();
    let stream = open(&log, &session, StreamKind::General).await;
    let mut reader = stream.read();
    for _ in 0..100 {
        put(&log, &session, &stream, "x").await;
    }
    assert!(log.ledger.bytes() > 0);
    session.close();
    assert_eq!(log.ledger.bytes(), 0);
    assert_eq!(ready(&mut reader), (vec![], true));
    put(&log, &session, &stream, "late").await;
    assert_eq!(log.ledger.bytes(), 0);
    let late = open(&log, &session, StreamKind::General).await;
    assert!(late.is_over());
    assert_eq!(session.streams().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_streams_do_not_pile_up_in_the_ledger() {
    let (log, _) = log(limits(256, 1 << 20));
    for _ in 0..5000 {
        let session = session();
        let stream = open(&log, &session, StreamKind::Request).await;
        put(&log, &session, &stream, "x").await;
    }
    assert_eq!(log.ledger.bytes(), 0);
    assert!(log.ledger.listed() < 3000, "{}", log.ledger.listed());
}

#[tokio::test(start_paused = true)]
async fn a_broadcast_is_framed_once_for_all_streams_of_a_number() {
    let (log, metrics) = log(limits(256, 1 << 20));
    let sessions: Vec<_> = (0..1000).map(|_| session()).collect();
    let mut readers = Vec::new();
    for session in &sessions {
        let stream = open(&log, session, StreamKind::General).await;
        readers.push(stream.read());
    }
    let silent = session();
    let mut all = sessions.clone();
    all.push(silent);
    let all: Vec<&dyn StreamOwner> = all.iter().map(|session| session as _).collect();
    let reached = log.broadcast(&all, b"{}").await;
    assert_eq!((reached, metrics.events.get()), (1000, 1000));
    let first = readers[0].next().await.expect("the event");
    for reader in &mut readers[1..] {
        let frame = reader.next().await.expect("the event");
        assert!(
            std::ptr::eq(frame.as_ptr(), first.as_ptr()),
            "one frame for all"
        );
        assert_eq!(reader.next().now_or_never(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_broadcast_that_was_overtaken_keeps_the_order_of_the_stream() {
    let (log, _) = log(limits(256, 1 << 20));
    let session = session();
    let stream = open(&log, &session, StreamKind::General).await;
    let mut reader = stream.read();
    // Simulates another append between taking the sequence and appending to the stream.
    let early = log.ledger.next_sequence();
    put(&log, &session, &stream, "1").await;
    let framed = frame::message(Some(stream.event_id(early)), b"2");
    stream.append(early, framed, b"2");
    let (read, _) = ready(&mut reader);
    assert_eq!(data(&read), ["1", "2"]);
    let sequences: Vec<_> = read
        .iter()
        .map(|seen| EventId::parse(&seen.id).expect("ours").sequence)
        .collect();
    assert!(sequences.is_sorted_by(|a, b| a < b), "{sequences:?}");
}
