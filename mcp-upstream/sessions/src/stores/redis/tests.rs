//! Tests of the store with a real `redis-server`: the contract of stores, and facts of this store alone.

use std::time::Duration;

use tokio::time::Instant;
use tooldock_protocol::version::ProtocolVersion;

use super::*;
use crate::session::{Binding, Session, SessionTransport};
use crate::stores::Stores;
use crate::stores::contract::tasks::{MadeTasks, tasks_hold_for};
use crate::stores::contract::{Made, ReplicaStore, holds_for, holds_for_replicas};
use crate::stream::store::{EventKind, StoredEvent, StreamRef};
use crate::stream::{EventLog, EventStore, KeepAlive, StreamMetrics};

mod budgets;
mod deployments;
mod measured;
pub(crate) mod server;
pub(crate) mod simulated;

use server::RedisServer;

/// Time limit of operations, long enough for a machine that is busy with other tests; production waits for 50 ms.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn store_at(url: &str, log: &EventLogConfig) -> RedisStore {
    let url = url.parse().expect("a Redis URL");
    let ttl = Duration::from_secs(60);
    RedisStore::waiting(&url, "tooldock:", ttl, log, PATIENCE).expect("a prefix")
}

fn made(store: RedisStore, server: RedisServer) -> Made {
    let shared = store.clone();
    let replica = move |name: &str| {
        let stores = |id| Stores::of(shared.clone().of_replica(id));
        ReplicaStore::new(name, stores, Arc::new(shared.clone()))
    };
    Made {
        stores: Stores::of(store),
        replica: Some(Box::new(replica)),
        guard: Box::new(server),
    }
}

async fn redis(log: EventLogConfig) -> Made {
    let server = RedisServer::start();
    made(store_at(&server.url(), &log), server)
}

holds_for!(redis);

tasks_hold_for!(redis_tasks);

async fn redis_tasks() -> MadeTasks {
    let Made { stores, guard, .. } = redis(EventLogConfig::default()).await;
    MadeTasks {
        store: stores.tasks,
        guard,
    }
}

async fn replicas(log: EventLogConfig) -> Made {
    redis(log).await
}

holds_for_replicas!(replicas);

/// A store for one process of a test.
fn store_of(server: &RedisServer) -> RedisStore {
    store_at(&server.url(), &EventLogConfig::default())
}

async fn refusal(url: &str) -> String {
    let url: RedisUrl = url.parse().expect("a Redis URL");
    let (ttl, log) = (Duration::from_secs(60), EventLogConfig::default());
    let refused = RedisStore::connect(&url, "tooldock:", ttl, &log).await;
    refused.expect_err("refused").to_string()
}

fn message(sequence: u64, text: &str) -> StoredEvent {
    let kind = EventKind::Message(text.into());
    StoredEvent { sequence, kind }
}

#[tokio::test]
async fn a_server_is_reached_over_tcp_with_user_and_password() {
    let server = RedisServer::listening(&["--user", "dock", "on", ">pass/word", "~*", "+@all"]);
    let port = server.port();
    let url = format!("redis://dock:pass%2Fword@127.0.0.1:{port}/3");
    let store = store_at(&url, &EventLogConfig::default());
    store.ping().await.expect("answers");
    let stored = server.command(&["-n", "3", "GET", "tooldock:version"]);
    assert_eq!(stored, "1");
}

#[tokio::test]
async fn a_password_is_read_from_its_file() {
    let server = RedisServer::with(&["--requirepass", "hunter2"]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "hunter2\n").expect("written");
    let url = format!("{}?password_file={}", server.url(), file.path().display());
    let store = store_at(&url, &EventLogConfig::default());
    store.ping().await.expect("answers");
    let missing = refusal(&format!("{}?password_file=/nowhere", server.url())).await;
    assert!(missing.contains("/nowhere cannot be read"), "{missing}");
}

#[tokio::test]
async fn a_wrong_password_and_none_are_told_apart_in_one_line() {
    let server = RedisServer::listening(&["--requirepass", "hunter2"]);
    let port = server.port();
    let none = refusal(&format!("redis://127.0.0.1:{port}")).await;
    assert!(none.contains("asks for a password"), "{none}");
    let wrong = refusal(&format!("redis://:hunter3@127.0.0.1:{port}")).await;
    assert!(wrong.contains("refuses the password"), "{wrong}");
    for told in [none, wrong] {
        assert!(told.contains(&format!("127.0.0.1:{port}")), "{told}");
        assert!(!told.contains("hunter") && !told.contains('\n'), "{told}");
    }
}

#[tokio::test]
async fn a_read_only_replica_is_refused() {
    let primary = RedisServer::listening(&[]);
    let replica = RedisServer::replica_of(&primary);
    let told = refusal(&replica.url()).await;
    assert!(told.contains("is a read-only replica"), "{told}");
}

#[tokio::test]
async fn a_store_of_a_newer_version_is_refused() {
    let server = RedisServer::start();
    server.command(&["SET", "tooldock:version", "2"]);
    let told = refusal(&server.url()).await;
    assert!(told.contains("upgrade this process"), "{told}");
    assert_eq!(server.command(&["GET", "tooldock:version"]), "2");
}

#[tokio::test]
async fn a_server_that_is_away_is_named_without_its_password() {
    let port = server::free_port();
    let told = refusal(&format!("redis://user:hunter2@127.0.0.1:{port}")).await;
    assert!(told.contains("cannot be reached"), "{told}");
    assert!(told.contains(&format!("127.0.0.1:{port}")), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn an_operation_does_not_wait_for_a_server_that_accepts_and_says_nothing() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("the loopback");
    let port = silent.local_addr().expect("bound").port();
    let url: RedisUrl = format!("redis://127.0.0.1:{port}").parse().expect("a URL");
    let (ttl, log) = (Duration::from_secs(60), EventLogConfig::default());
    let store = RedisStore::unconnected(&url, "tooldock:", ttl, &log).expect("a prefix");
    let mut waits = Vec::new();
    for _ in 0..8 {
        let start = tokio::time::Instant::now();
        let told = store.load("id").await.expect_err("no answer").to_string();
        assert!(told.contains("did not answer within 50 ms"), "{told}");
        waits.push(start.elapsed().as_millis());
    }
    // Measured by the paused clock, which rounds up by a millisecond. After these operations Redis counts as silent.
    assert!(
        waits[..5].iter().all(|wait| (50..=51).contains(wait)),
        "{waits:?}"
    );
    assert_eq!(waits[5..], [0, 0, 0]);
}

/// Waits until the store answers again.
async fn answers(store: &RedisStore) {
    let again = async {
        while store.ping().await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let again = tokio::time::timeout(PATIENCE, again).await;
    again.expect("the store connects again");
}

#[tokio::test]
async fn a_server_that_was_away_is_used_again() {
    let mut server = RedisServer::start();
    let store = store_of(&server);
    store.ping().await.expect("answers");
    server.kill();
    let told = store.ping().await.expect_err("it is away").to_string();
    assert!(told.contains("cannot be reached"), "{told}");
    server.start_again();
    answers(&store).await;
}

#[tokio::test]
async fn a_connection_that_the_server_closed_costs_no_operation() {
    let server = RedisServer::start();
    let store = store_of(&server);
    for _ in 0..3 {
        store.ping().await.expect("answers");
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    store.ping().await.expect("answers on a new connection");
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_loaded_again() {
    let server = RedisServer::start();
    let store = store_of(&server);
    let session = SessionId::random();
    let stream = StreamRef {
        session: &session,
        number: 2,
    };
    for sequence in 1..=3 {
        let appended = store.append(stream, &message(sequence, "{}")).await;
        appended.expect("works");
        server.command(&["SCRIPT", "FLUSH"]);
    }
    let read = store.read(stream, 256).await.expect("works");
    assert_eq!(read.events.len(), 3);
}

#[tokio::test]
async fn no_name_of_a_key_holds_the_id_and_every_key_expires() {
    let server = RedisServer::start();
    let made = made(store_of(&server), server);
    let session = crate::stores::contract::inserted(&made).await;
    let stores = &made.stores;
    let stream = StreamRef {
        session: &session,
        number: 1,
    };
    let owes = vec!["1".to_owned()];
    let opened = StoredEvent {
        sequence: 0,
        kind: EventKind::Opened { owes },
    };
    for event in [opened, message(1, "{}")] {
        stores.events.append(stream, &event).await.expect("works");
    }
    let server: &RedisServer = made.guard.downcast_ref().expect("the server");
    let keys = server.command(&["KEYS", "*"]);
    assert_eq!(keys.lines().count(), 4, "{keys}");
    for key in keys.lines() {
        assert!(!key.contains(session.as_str()), "{key}");
        let expires: i64 = server.command(&["TTL", key]).parse().expect("a number");
        let lives = match key.split(':').nth(1) {
            Some("version") => -1..=-1,
            Some("events") => 1..=300,
            _ => 61..=120,
        };
        assert!(lives.contains(&expires), "{key} {expires}");
    }
    // Touched shortly before it expires.
    for kind in ["session", "streams"] {
        let key = keys.lines().find(|key| key.contains(kind)).expect("a key");
        server.command(&["EXPIRE", key, "20"]);
        let touched = stores.sessions.touch(std::slice::from_ref(&session)).await;
        assert_eq!(touched.expect("works"), []);
        let expires: i64 = server.command(&["TTL", key]).parse().expect("a number");
        assert!(expires > 60, "{key} {expires}");
    }
}

#[tokio::test]
async fn a_stream_is_trimmed_to_its_bounds_in_redis() {
    let server = RedisServer::start();
    let log = EventLogConfig {
        events: 8,
        bytes: bytesize::ByteSize::b(1000),
        ..EventLogConfig::default()
    };
    let store = store_at(&server.url(), &log);
    let session = SessionId::random();
    let stream = StreamRef {
        session: &session,
        number: 2,
    };
    let length = || {
        let key = store.keys.of(session.as_str()).events(2);
        server.command(&["LLEN", &key])
    };
    for sequence in 1..=20 {
        let appended = store.append(stream, &message(sequence, "{}")).await;
        appended.expect("works");
    }
    assert_eq!(length(), "8");
    let large = "x".repeat(400);
    for sequence in 21..=24 {
        let appended = store.append(stream, &message(sequence, &large)).await;
        appended.expect("works");
    }
    assert_eq!(length(), "2", "by their bytes");
    // The newest message stays, whatever its size.
    let appended = store.append(stream, &message(25, &"x".repeat(5000))).await;
    appended.expect("works");
    let read = store.read(stream, 256).await.expect("works");
    assert_eq!((read.events.len(), read.dropped), (1, 24));
}

#[tokio::test]
async fn messages_that_aged_out_are_known_to_be_left_out() {
    let server = RedisServer::start();
    let store = store_of(&server);
    let session = SessionId::random();
    let stream = StreamRef {
        session: &session,
        number: 2,
    };
    let opened = StoredEvent {
        sequence: 1,
        kind: EventKind::Opened { owes: vec![] },
    };
    for event in [opened, message(2, "{}"), message(3, "{}")] {
        store.append(stream, &event).await.expect("works");
    }
    server.command(&["DEL", &store.keys.of(session.as_str()).events(2)]);
    let read = store.read(stream, 256).await.expect("works");
    assert_eq!((read.events.len(), read.dropped), (1, 3), "the opening");
    store
        .append(stream, &message(4, "{}"))
        .await
        .expect("works");
    let read = store.read(stream, 256).await.expect("works");
    assert_eq!((read.events.len(), read.dropped), (2, 3));
}

#[tokio::test]
async fn an_event_that_was_stored_twice_is_read_once() {
    let server = RedisServer::start();
    let store = store_of(&server);
    let session = SessionId::random();
    let stream = StreamRef {
        session: &session,
        number: 2,
    };
    for sequence in [1, 2, 1, 2] {
        let appended = store.append(stream, &message(sequence, "{}")).await;
        appended.expect("works");
    }
    let read = store.read(stream, 256).await.expect("works");
    assert_eq!((read.events.len(), read.dropped), (2, 0));
}

#[tokio::test]
async fn streams_that_earlier_processes_left_are_trimmed_at_a_take_over() {
    let server = RedisServer::start();
    let store = store_of(&server);
    let binding = Binding {
        namespace: "shared".parse().expect("a name"),
        principal: None,
        version: ProtocolVersion::V2025_11_25,
        transport: SessionTransport::Streamable,
    };
    let before = Session::new(SessionId::random(), binding, Instant::now());
    let session = before.id().clone();
    let opened = StoredEvent {
        sequence: 0,
        kind: EventKind::Opened { owes: vec![] },
    };
    // Three processes, each of which opens request streams behind a gap in the numbers.
    let gap = 2 * crate::stream::UNRECORDED_MAX;
    let numbers =
        (0..3).flat_map(|process| (0..500).map(move |at| process * (gap + 1000) + 2 * at + 1));
    let numbers: Vec<u32> = numbers.collect();
    for number in numbers.iter().copied().chain([2]) {
        let stream = StreamRef {
            session: &session,
            number,
        };
        store.append(stream, &opened).await.expect("works");
        let appended = store.append(stream, &message(1, "{}")).await;
        appended.expect("works");
    }
    let stored = async |number| {
        let stream = StreamRef {
            session: &session,
            number,
        };
        let read = store.read(stream, 256).await.expect("works");
        read.events.len()
    };
    assert_eq!(stored(1).await, 2);

    let keep_alive = KeepAlive::new(Duration::from_secs(15));
    let log = EventLog::new(
        EventLogConfig::default(),
        keep_alive,
        StreamMetrics::unregistered(),
    );
    let log = log.with_store(Arc::new(store.clone()));
    let taken_up = Arc::new(before.as_adopted().as_adopted());
    log.restore(&taken_up).await.expect("works");
    let (old, kept) = numbers.split_at(1500 - 1024);
    assert_eq!((stored(old[0]).await, stored(old[475]).await), (0, 0));
    assert_eq!((stored(kept[0]).await, stored(kept[1023]).await), (2, 2));
    assert_eq!(stored(2).await, 2, "the general stream");
    let fields = server.command(&["HLEN", &store.keys.of(session.as_str()).streams()]);
    assert_eq!(fields, (4 * 1025).to_string());
}

#[tokio::test]
async fn the_oldest_streams_of_a_session_go_for_new_ones() {
    let server = RedisServer::start();
    let store = store_of(&server);
    let session = SessionId::random();
    let stream = |number| StreamRef {
        session: &session,
        number,
    };
    let opened = StoredEvent {
        sequence: 0,
        kind: EventKind::Opened { owes: vec![] },
    };
    for number in [1, 2, 3] {
        store.append(stream(number), &opened).await.expect("works");
        let appended = store.append(stream(number), &message(1, "{}")).await;
        appended.expect("works");
    }
    store.append(stream(2049), &opened).await.expect("works");
    let mut left = Vec::new();
    for number in [1, 2, 3] {
        let read = store.read(stream(number), 256).await.expect("works");
        left.push(read.events.len());
    }
    assert_eq!(left, [0, 2, 2]);
}
