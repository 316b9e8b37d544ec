//! Contract of stores: tests of the facts that every [`SessionStore`](crate::session::store::SessionStore) and
//! [`EventStore`](crate::stream::EventStore) must fulfil, including the in-memory store of the tests.
//!
//! A maker is an `async fn(EventLogConfig) -> Made` that creates the store. [`holds_for!`] makes a module of tests from it.

use std::any::Any;
use std::sync::Arc;

use futures_util::future::join_all;
use serde_json::value::RawValue;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::version::ProtocolVersion;

use crate::replicas::tests::announcement;
use crate::replicas::{Announcement, DirectoryReply, ReplicaDirectory, ReplicaId};
use crate::session::config::EventLogConfig;
use crate::session::toolset::EntryId;
use crate::session::{
    Affinity, Binding, ClientFacts, Home, SessionId, SessionPatch, SessionRecord, SessionTransport,
    Toolset,
};
use crate::stores::Stores;
use crate::stream::StreamCounts;
use crate::stream::store::{AppendOutcome, EventKind, StoredEvent, StreamRef};

/// A store under test, with the resources that it needs.
pub(crate) struct Made {
    /// Record and event interface of the store.
    pub(crate) stores: Stores,
    /// Opens the store as a replica of the given name; `None` if replicas cannot share the store.
    pub(crate) replica: Option<OpenReplica>,
    /// Resource that lives until the test ends: a server process, or a folder.
    pub(crate) guard: Box<dyn Any>,
}

/// Opens a store for the replica with that name.
pub(crate) type OpenReplica = Box<dyn Fn(&str) -> ReplicaStore>;

/// A store as one of its replicas uses it.
pub(crate) struct ReplicaStore {
    pub(crate) own: Announcement,
    pub(crate) stores: Stores,
    pub(crate) directory: Arc<dyn ReplicaDirectory>,
}

pub(crate) mod tasks;

/// Generates one test per fact of a contract, in a module named like the maker of the store.
macro_rules! holds_in {
    ($contract:path, $make:ident: $($fact:ident),* $(,)?) => {
        mod $make {
            use $contract as contract;
            $(#[tokio::test]
            async fn $fact() {
                contract::$fact(super::$make).await;
            })*
        }
    };
}
pub(crate) use holds_in;

/// Generates one test per fact for a store, in a module named like its maker. The tests use the real clock.
macro_rules! holds_for {
    ($make:ident) => {
        crate::stores::contract::holds_for!($make:
            a_record_is_loaded_as_it_was_inserted,
            an_insert_replaces_the_record,
            every_kind_of_patch_is_in_the_record,
            a_patch_made_twice_is_made_once,
            patches_of_many_writers_are_all_kept,
            a_patch_of_a_removed_session_does_not_bring_it_back,
            one_of_two_claims_wins,
            a_claim_keeps_the_patches_and_meets_the_current_home,
            touch_answers_the_sessions_without_a_record,
            remove_deletes_one_record_and_may_be_repeated,
            events_are_read_in_the_order_of_their_sequences,
            the_newest_messages_are_read_and_the_newest_one_left_out_is_named,
            the_opening_of_a_stream_outlives_its_messages,
            forget_ends_all_streams_of_one_session,
        );
    };
    ($make:ident: $($fact:ident),* $(,)?) => {
        mod $make {
            $(#[tokio::test]
            async fn $fact() {
                crate::stores::contract::$fact(super::$make).await;
            })*
        }
    };
}
pub(crate) use holds_for;

/// Generates the tests of stores that replicas share.
macro_rules! holds_for_replicas {
    ($make:ident) => {
        crate::stores::contract::holds_for!($make:
            events_are_taken_from_the_home_of_a_session_alone,
            changes_are_taken_from_the_home_of_a_session_alone,
            records_are_replaced_and_deleted_by_the_home_of_a_session_alone,
            news_are_heard_by_the_other_replicas_once,
            reloads_are_counted_for_all_replicas,
            a_replica_that_leaves_says_so_and_is_gone_then,
        );
    };
}
pub(crate) use holds_for_replicas;

/// Home of a session that was opened in replica 0 and never adopted.
const FIRST: Home = Home {
    replica: ReplicaId(0),
    epoch: 0,
};

fn events(events: usize) -> EventLogConfig {
    EventLogConfig {
        events,
        ..EventLogConfig::default()
    }
}

pub(crate) fn new_record() -> SessionRecord {
    SessionRecord {
        id: SessionId::random(),
        binding: Binding {
            namespace: "shared".parse().expect("a name"),
            principal: Some("somebody".into()),
            version: ProtocolVersion::V2025_11_25,
            transport: SessionTransport::Streamable,
        },
        home: FIRST,
        confirmed: false,
        negotiated: None,
        client: None,
        log_level: LogLevel::Warning,
        affinity: None,
        subscriptions: ["test://from the start".into()].into(),
        toolset: Toolset::default(),
        streams: StreamCounts::default(),
    }
}

fn client() -> ClientFacts {
    let json = |text: &str| RawValue::from_string(text.to_owned()).expect("JSON").into();
    ClientFacts {
        capabilities: json(r#"{"roots": {"listChanged": true}}"#),
        info: Some(json(r#"{"name": "ö \" client"}"#)),
    }
}

fn affinity(backend: &str) -> SessionPatch {
    SessionPatch::Affinity(Affinity {
        backend: backend.into(),
        session: Some("upstream".into()),
    })
}

fn toolset(entry: &str) -> SessionPatch {
    let mut toolset = Toolset::default();
    toolset.set(EntryId::of(0, entry), true, false);
    SessionPatch::Toolset(toolset)
}

/// Returns patches of every kind. No patch reverts another.
fn patches() -> Vec<SessionPatch> {
    vec![
        SessionPatch::Confirm,
        SessionPatch::Initialize {
            version: ProtocolVersion::V2024_11_05,
            client: client(),
        },
        SessionPatch::LogLevel(LogLevel::Alert),
        SessionPatch::Subscribe("test://a b".into()),
        SessionPatch::Subscribe("test://home".into()),
        SessionPatch::Unsubscribe("test://from the start".into()),
        affinity("backend"),
        toolset("tool"),
        SessionPatch::OpenStream(1),
        SessionPatch::OpenStream(4),
    ]
}

pub(crate) fn text(record: &SessionRecord) -> String {
    serde_json::to_string(record).expect("plain data")
}

/// Inserts a record, and returns the id of its session.
pub(crate) async fn inserted(made: &Made) -> SessionId {
    made.inserted().await.id
}

impl Made {
    async fn inserted(&self) -> SessionRecord {
        let record = new_record();
        let inserted = self.stores.sessions.insert(&record).await;
        inserted.expect("works");
        record
    }

    fn replica(&self, name: &str) -> ReplicaStore {
        self.replica.as_ref().expect("a store of replicas")(name)
    }

    async fn load(&self, id: &SessionId) -> Option<SessionRecord> {
        self.stores.sessions.load(id.as_str()).await.expect("works")
    }

    async fn patch(&self, id: &SessionId, patch: &SessionPatch) {
        self.stores.sessions.patch(id, patch).await.expect("works");
    }

    async fn append(&self, session: &SessionId, number: u32, event: &StoredEvent) {
        let stream = StreamRef { session, number };
        self.stores
            .events
            .append(stream, event)
            .await
            .expect("works");
    }

    /// Reads the newest messages of a stream, and the sequence of the newest event that was left out. The stored opening (how the
    /// stream was opened) comes first, if there is one.
    async fn read(&self, session: &SessionId, number: u32, max: usize) -> (Vec<String>, u64) {
        let stream = StreamRef { session, number };
        let replay = self.stores.events.read(stream, max).await.expect("works");
        let seen = replay.events.into_iter().map(|event| match event.kind {
            EventKind::Opened { owes } => format!("{} opened {}", event.sequence, owes.join(" ")),
            EventKind::Message(message) => format!("{} {message}", event.sequence),
        });
        (seen.collect(), replay.dropped)
    }
}

impl ReplicaStore {
    /// Creates a replica with that name.
    pub(crate) fn new(
        name: &str,
        stores: impl FnOnce(ReplicaId) -> Stores,
        directory: Arc<dyn ReplicaDirectory>,
    ) -> Self {
        let own = announcement(name);
        Self {
            stores: stores(own.id),
            own,
            directory,
        }
    }

    /// Home of a session in this replica, after `epoch` adoptions.
    fn home(&self, epoch: u32) -> Home {
        Home {
            replica: self.own.id,
            epoch,
        }
    }

    async fn append(&self, stream: StreamRef<'_>, sequence: u64) -> AppendOutcome {
        let event = message(sequence, "{}");
        let appended = self.stores.events.append(stream, &event).await;
        appended.expect("works")
    }

    async fn beat(&self, seen: Option<u64>) -> DirectoryReply {
        let heard = self.directory.beat(&self.own, seen).await;
        heard.expect("works")
    }
}

pub(crate) fn opened(sequence: u64, owes: &[&str]) -> StoredEvent {
    let owes = owes.iter().map(|id| id.to_string()).collect();
    StoredEvent {
        sequence,
        kind: EventKind::Opened { owes },
    }
}

pub(crate) fn message(sequence: u64, text: &str) -> StoredEvent {
    StoredEvent {
        sequence,
        kind: EventKind::Message(text.into()),
    }
}

macro_rules! fact {
    ($name:ident, |$store:ident| $body:block) => {
        fact!($name, 256, |$store| $body);
    };
    ($name:ident, $events:expr, |$store:ident| $body:block) => {
        pub(crate) async fn $name(make: impl AsyncFn(EventLogConfig) -> Made) {
            let $store = make(events($events)).await;
            $body
            drop($store.guard);
        }
    };
}

fact!(a_record_is_loaded_as_it_was_inserted, |store| {
    let mut record = new_record();
    assert!(store.load(&record.id).await.is_none());
    for patch in patches() {
        record.apply(&patch);
    }
    let inserted = store.stores.sessions.insert(&record).await;
    inserted.expect("works");
    let loaded = store.load(&record.id).await.expect("a record");
    assert_eq!(text(&loaded), text(&record));
    let other = SessionId::random();
    assert!(store.load(&other).await.is_none());
});

fact!(an_insert_replaces_the_record, |store| {
    let mut record = store.inserted().await;
    for patch in patches() {
        store.patch(&record.id, &patch).await;
    }
    record.home.epoch = 7;
    let inserted = store.stores.sessions.insert(&record).await;
    inserted.expect("works");
    let loaded = store.load(&record.id).await.expect("a record");
    assert_eq!(text(&loaded), text(&record));
});

fact!(every_kind_of_patch_is_in_the_record, |store| {
    let mut record = store.inserted().await;
    let mut changes = patches();
    // If several patches set the same field, the last one applies; the number of streams can only grow.
    changes.extend([
        SessionPatch::LogLevel(LogLevel::Debug),
        affinity("another"),
        toolset("another"),
        SessionPatch::Unsubscribe("test://home".into()),
        SessionPatch::Unsubscribe("test://never subscribed".into()),
        SessionPatch::OpenStream(2),
    ]);
    for patch in changes {
        store.patch(&record.id, &patch).await;
        record.apply(&patch);
        let loaded = store.load(&record.id).await.expect("a record");
        assert_eq!(text(&loaded), text(&record), "{patch:?}");
    }
});

fact!(a_patch_made_twice_is_made_once, |store| {
    let mut record = store.inserted().await;
    for patch in patches() {
        store.patch(&record.id, &patch).await;
        store.patch(&record.id, &patch).await;
        record.apply(&patch);
    }
    let loaded = store.load(&record.id).await.expect("a record");
    assert_eq!(text(&loaded), text(&record));
});

fact!(patches_of_many_writers_are_all_kept, |store| {
    let mut record = store.inserted().await;
    let mut changes = patches();
    changes.extend((0..50).map(|number| {
        let uri = format!("test://{number}");
        SessionPatch::Subscribe(uri.into())
    }));
    let writes = changes.iter().map(|patch| store.patch(&record.id, patch));
    join_all(writes).await;
    for patch in &changes {
        record.apply(patch);
    }
    let loaded = store.load(&record.id).await.expect("a record");
    assert_eq!(text(&loaded), text(&record));
});

fact!(
    a_patch_of_a_removed_session_does_not_bring_it_back,
    |store| {
        let record = store.inserted().await;
        let sessions = &store.stores.sessions;
        assert!(sessions.remove(&record.id).await.expect("works"));
        for patch in patches() {
            store.patch(&record.id, &patch).await;
        }
        assert!(store.load(&record.id).await.is_none());
        let by = Home {
            replica: ReplicaId(1),
            epoch: 1,
        };
        let claimed = sessions.claim(&record.id, by, FIRST).await;
        assert!(claimed.expect("works").is_none());
        let gone = sessions.touch(std::slice::from_ref(&record.id)).await;
        assert_eq!(gone.expect("works"), std::slice::from_ref(&record.id));
        assert!(store.load(&record.id).await.is_none());
    }
);

fact!(one_of_two_claims_wins, |store| {
    let sessions = &store.stores.sessions;
    for _ in 0..20 {
        let record = store.inserted().await;
        let home = |replica| Home {
            replica: ReplicaId(replica),
            epoch: 1,
        };
        let (one, two) = tokio::join!(
            sessions.claim(&record.id, home(1), FIRST),
            sessions.claim(&record.id, home(2), FIRST),
        );
        let claimed: Vec<_> = [one, two]
            .into_iter()
            .filter_map(|claim| claim.expect("works"))
            .collect();
        let [winner] = &claimed[..] else {
            panic!("{claimed:?}");
        };
        let loaded = store.load(&record.id).await.expect("a record");
        assert_eq!(text(&loaded), text(winner));
        assert_ne!(loaded.home, FIRST);
    }
});

fact!(
    a_claim_keeps_the_patches_and_meets_the_current_home,
    |store| {
        let mut record = store.inserted().await;
        for patch in patches() {
            store.patch(&record.id, &patch).await;
            record.apply(&patch);
        }
        let sessions = &store.stores.sessions;
        let home = |replica, epoch| Home {
            replica: ReplicaId(replica),
            epoch,
        };
        for (by, from) in [
            (home(1, 1), home(1, 0)),
            (home(1, 1), home(0, 1)),
            (home(1, 1), home(10, 0)),
        ] {
            let claimed = sessions.claim(&record.id, by, from).await;
            assert!(claimed.expect("works").is_none());
        }
        for (by, from) in [(home(3, 1), FIRST), (home(4, 2), home(3, 1))] {
            record.home = by;
            let claimed = sessions.claim(&record.id, by, from).await;
            let claimed = claimed.expect("works").expect("its home");
            assert_eq!(text(&claimed), text(&record));
        }
        let unsubscribe = SessionPatch::Unsubscribe("test://home".into());
        store.patch(&record.id, &unsubscribe).await;
        record.apply(&unsubscribe);
        let loaded = store.load(&record.id).await.expect("a record");
        assert_eq!(text(&loaded), text(&record));
    }
);

fact!(touch_answers_the_sessions_without_a_record, |store| {
    let (one, gone, two) = (
        store.inserted().await.id,
        SessionId::random(),
        store.inserted().await.id,
    );
    let sessions = &store.stores.sessions;
    assert_eq!(sessions.touch(&[]).await.expect("works"), []);
    let answered = sessions.touch(&[one.clone(), gone.clone(), two]).await;
    assert_eq!(answered.expect("works"), [gone]);
    let answered = sessions.touch(&[one]).await;
    assert_eq!(answered.expect("works"), []);
});

fact!(remove_deletes_one_record_and_may_be_repeated, |store| {
    let record = store.inserted().await;
    let other = store.inserted().await;
    let sessions = &store.stores.sessions;
    for _ in 0..2 {
        assert!(sessions.remove(&record.id).await.expect("works"));
        assert!(store.load(&record.id).await.is_none());
    }
    assert!(store.load(&other.id).await.is_some());
});

fact!(events_are_read_in_the_order_of_their_sequences, |store| {
    let session = SessionId::random();
    assert_eq!(store.read(&session, 2, 256).await, (vec![], 0));
    store.append(&session, 2, &opened(0, &[])).await;
    // Events may be written in another order than their sequence.
    for sequence in [3, 1, 10, 2] {
        let event = message(sequence, "{\"ö\": \"\\n\"}");
        store.append(&session, 2, &event).await;
    }
    let expected = [
        "0 opened ",
        "1 {\"ö\": \"\\n\"}",
        "2 {\"ö\": \"\\n\"}",
        "3 {\"ö\": \"\\n\"}",
        "10 {\"ö\": \"\\n\"}",
    ];
    let expected = expected.map(str::to_owned).to_vec();
    assert_eq!(store.read(&session, 2, 256).await, (expected, 0));
    assert_eq!(store.read(&session, 4, 256).await, (vec![], 0));
});

fact!(
    the_newest_messages_are_read_and_the_newest_one_left_out_is_named,
    8,
    |store| {
        let session = SessionId::random();
        store.append(&session, 1, &opened(5, &["1", "\"a\""])).await;
        for sequence in 11..=30 {
            store.append(&session, 1, &message(sequence, "{}")).await;
        }
        let expected = |from: u64| {
            let messages = (from..=30).map(|sequence| format!("{sequence} {{}}"));
            let opened = std::iter::once("5 opened 1 \"a\"".to_owned());
            opened.chain(messages).collect::<Vec<_>>()
        };
        assert_eq!(store.read(&session, 1, 8).await, (expected(23), 22));
        assert_eq!(store.read(&session, 1, 3).await, (expected(28), 27));
    }
);

fact!(the_opening_of_a_stream_outlives_its_messages, 4, |store| {
    let session = SessionId::random();
    store.append(&session, 3, &opened(0, &["7"])).await;
    for sequence in 1..=40 {
        store.append(&session, 3, &message(sequence, "{}")).await;
    }
    let (events, dropped) = store.read(&session, 3, 1).await;
    assert_eq!(events, ["0 opened 7", "40 {}"]);
    assert_eq!(dropped, 39);
});

fact!(forget_ends_all_streams_of_one_session, |store| {
    let (session, other) = (SessionId::random(), SessionId::random());
    for number in [1, 2, 3] {
        store.append(&session, number, &opened(0, &[])).await;
        store.append(&session, number, &message(9, "{}")).await;
    }
    // The opening of this stream (how it was opened) is not stored, because storing it has failed.
    store.append(&session, 5, &message(9, "{}")).await;
    store.append(&other, 1, &message(9, "{}")).await;
    store.stores.events.forget(&session).await.expect("works");
    for number in [1, 2, 3, 5] {
        assert_eq!(store.read(&session, number, 256).await, (vec![], 0));
    }
    let (kept, _) = store.read(&other, 1, 256).await;
    assert_eq!(kept, ["9 {}"]);
    store.stores.events.forget(&session).await.expect("again");
});

fact!(events_are_taken_from_the_home_of_a_session_alone, |store| {
    let (one, two) = (store.replica("one"), store.replica("two"));
    let mut record = new_record();
    record.home = one.home(0);
    let sessions = &one.stores.sessions;
    sessions.insert(&record).await.expect("works");
    let stream = StreamRef {
        session: &record.id,
        number: 2,
    };
    assert_eq!(one.append(stream, 1).await, AppendOutcome::Kept);
    assert_eq!(two.append(stream, 2).await, AppendOutcome::Foreign);
    let sessions = &two.stores.sessions;
    let claimed = sessions.claim(&record.id, two.home(1), record.home).await;
    assert!(claimed.expect("works").is_some());
    assert_eq!(one.append(stream, 2).await, AppendOutcome::Foreign);
    assert_eq!(two.append(stream, 3).await, AppendOutcome::Kept);
    let late = one.stores.events.append(stream, &opened(0, &["1"])).await;
    assert_eq!(late.expect("works"), AppendOutcome::Foreign);
    let (read, _) = store.read(&record.id, 2, 256).await;
    assert_eq!(read, ["1 {}", "3 {}"]);
});

fact!(
    records_are_replaced_and_deleted_by_the_home_of_a_session_alone,
    |store| {
        let (one, two) = (store.replica("one"), store.replica("two"));
        let mut record = new_record();
        record.home = one.home(0);
        let sessions = [&one.stores.sessions, &two.stores.sessions];
        assert!(sessions[0].insert(&record).await.expect("works"));
        let claimed = sessions[1].claim(&record.id, two.home(1), record.home);
        assert!(claimed.await.expect("works").is_some());
        assert!(!sessions[0].insert(&record).await.expect("works"));
        assert!(!sessions[0].remove(&record.id).await.expect("works"));
        let kept = store.load(&record.id).await.expect("a record");
        assert_eq!(kept.home, two.home(1));
        assert!(sessions[1].insert(&kept).await.expect("works"));
        assert!(sessions[1].remove(&record.id).await.expect("works"));
        assert!(store.load(&record.id).await.is_none());
    }
);

fact!(
    changes_are_taken_from_the_home_of_a_session_alone,
    |store| {
        let (one, two) = (store.replica("one"), store.replica("two"));
        let mut record = new_record();
        record.home = one.home(0);
        let sessions = [&one.stores.sessions, &two.stores.sessions];
        sessions[0].insert(&record).await.expect("works");
        let level = |level| SessionPatch::LogLevel(level);
        for (by, change, counts) in [
            (0, level(LogLevel::Alert), true),
            (1, level(LogLevel::Debug), false),
        ] {
            let patched = sessions[by].patch(&record.id, &change).await;
            patched.expect("works");
            if counts {
                record.apply(&change);
            }
        }
        let loaded = store.load(&record.id).await.expect("a record");
        assert_eq!(text(&loaded), text(&record));

        let claimed = sessions[1]
            .claim(&record.id, two.home(1), record.home)
            .await;
        let mut record = claimed.expect("works").expect("its home");
        for patch in patches() {
            sessions[0].patch(&record.id, &patch).await.expect("works");
        }
        let loaded = store.load(&record.id).await.expect("a record");
        assert_eq!(text(&loaded), text(&record));
        let change = level(LogLevel::Debug);
        sessions[1].patch(&record.id, &change).await.expect("works");
        record.apply(&change);
        let loaded = store.load(&record.id).await.expect("a record");
        assert_eq!(text(&loaded), text(&record));
    }
);

fact!(news_are_heard_by_the_other_replicas_once, |store| {
    let (one, two) = (store.replica("one"), store.replica("two"));
    let before = two.beat(None).await;
    assert_eq!((before.newest, before.news.len()), (0, 0));
    let news = ["first".to_owned(), "second".to_owned()];
    let told = one.directory.tell(one.own.id, &news).await;
    told.expect("works");
    assert!(two.beat(None).await.news.is_empty(), "none were asked for");
    let heard = two.beat(Some(0)).await;
    assert_eq!((heard.newest, &*heard.news), (2, &news[..]));
    assert_eq!(two.beat(Some(1)).await.news, news[1..]);
    assert!(two.beat(Some(2)).await.news.is_empty());
    let own = one.beat(Some(0)).await;
    assert!(own.news.is_empty(), "told by itself");
    assert_eq!(own.others, [two.own]);
});

fact!(reloads_are_counted_for_all_replicas, |store| {
    let (one, two) = (store.replica("one"), store.replica("two"));
    assert_eq!(two.beat(None).await.reloads, 0);
    for count in 1..=3 {
        let asked = one.directory.ask_reload().await;
        assert_eq!(asked.expect("works"), count);
        assert_eq!(one.beat(None).await.reloads, count);
        assert_eq!(two.beat(None).await.reloads, count);
    }
});

fact!(a_replica_that_leaves_says_so_and_is_gone_then, |store| {
    let (one, mut two) = (store.replica("one"), store.replica("two"));
    two.beat(None).await;
    assert_eq!(one.beat(None).await.others, [two.own.clone()]);
    two.own.leaving = true;
    assert!(two.beat(None).await.known, "by its first beat");
    assert_eq!(one.beat(None).await.others, [two.own.clone()]);
    two.directory.leave(&two.own).await.expect("works");
    assert_eq!(one.beat(None).await.others, []);
});

/// The in-memory store of the tests.
async fn shadow(_: EventLogConfig) -> Made {
    let shadow = Arc::new(crate::testing::shadow::Shadow::default());
    Made {
        stores: shadow.stores(),
        replica: None,
        guard: Box::new(()),
    }
}

holds_for!(shadow);
