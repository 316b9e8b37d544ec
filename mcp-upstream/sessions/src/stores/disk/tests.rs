//! Tests of the disk store: the contract of stores, and facts about the file itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use bytesize::ByteSize;
use tooldock_protocol::seal::SessionKey;

use super::*;
use crate::replicas::ReplicaId;
use crate::session::config::EventLogConfig;
use crate::stores::Stores;
use crate::stores::contract::tasks::MadeTasks;
use crate::stores::contract::{self, Made, ReplicaStore, message, new_record, opened, text};
use crate::tasks::{InsertedTask, TaskBounds, TaskOwner, TaskRecord, TaskStore};

contract::holds_for!(disk);

async fn disk(event_log: EventLogConfig) -> Made {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sessions.db");
    let all = folder.path().join("replicas");
    let store = opened_with(&file, event_log.clone());
    let replica = move |name: &str| {
        let store = opened_with(&file, event_log.clone());
        let own = ReplicaFolder::join(&all, name, Some(SessionKey::from_text("shared")));
        let own = own.expect("a name of its own");
        let directory = DiskDirectory::of(&store, own).expect("works");
        let stores = |id| Stores::of(store.of_replica(id));
        ReplicaStore::new(name, stores, Arc::new(directory))
    };
    Made {
        stores: Stores::of(store),
        replica: Some(Box::new(replica)),
        guard: Box::new(folder),
    }
}

contract::tasks::tasks_hold_for!(disk_tasks);

async fn disk_tasks() -> MadeTasks {
    let Made { stores, guard, .. } = disk(EventLogConfig::default()).await;
    MadeTasks {
        store: stores.tasks,
        guard,
    }
}

#[tokio::test]
async fn a_task_outlives_the_process_that_stored_it() {
    let (_folder, file) = folder();
    let owner = TaskOwner {
        principal: Some("ada".into()),
        namespace: "shared".parse().expect("a name"),
    };
    let task = TaskRecord::new(owner, "tool".into(), ReplicaId(7), 60_000).expect("randomness");
    let one = open(&file);
    let inserted = TaskStore::create(&one, &task, TaskBounds::default()).await;
    assert_eq!(inserted.expect("works"), InsertedTask::Stored);
    drop(one);
    let loaded = TaskStore::find(&open(&file), &task.id).await;
    assert_eq!(loaded.expect("works").expect("a task").record, task);
}

#[tokio::test]
async fn expired_tasks_are_deleted_from_the_file() {
    let (_folder, file) = folder();
    let store = open(&file);
    let owner = TaskOwner {
        principal: None,
        namespace: "shared".parse().expect("a name"),
    };
    for ttl in [1, 60_000] {
        let task = TaskRecord::new(owner.clone(), "tool".into(), ReplicaId(7), ttl);
        let task = TaskRecord {
            created: crate::tasks::unix_millis() - 1000,
            ..task.expect("randomness")
        };
        let inserted = TaskStore::create(&store, &task, TaskBounds::default()).await;
        assert_eq!(inserted.expect("works"), InsertedTask::Stored);
    }
    let mut connection = connect(&file).expect("opens");
    let count = |connection: &Connection| {
        let count = connection.query_row("SELECT count(*) FROM tasks", [], |row| row.get(0));
        count.map(|it: i64| it).expect("works")
    };
    assert_eq!(count(&connection), 2);
    let limits = bounds(EventLogConfig::default());
    housekeeper::purge(&mut connection, &limits).expect("works");
    assert_eq!(count(&connection), 1);
}

contract::holds_for_replicas!(replicas);

async fn replicas(event_log: EventLogConfig) -> Made {
    disk(event_log).await
}

fn bounds(event_log: EventLogConfig) -> Bounds {
    Bounds::of(&SessionsConfig {
        event_log,
        ..SessionsConfig::default()
    })
}

fn opened_with(file: &Path, event_log: EventLogConfig) -> DiskStore {
    DiskStore::open(file, bounds(event_log)).expect("a store")
}

fn open(file: &Path) -> DiskStore {
    opened_with(file, EventLogConfig::default())
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sessions.db");
    (folder, file)
}

/// Stores the records of `sessions` new sessions.
async fn fill(store: &DiskStore, sessions: usize) -> Vec<SessionRecord> {
    let records: Vec<_> = std::iter::repeat_with(new_record).take(sessions).collect();
    let inserts = records.iter().map(|record| store.insert(record));
    let inserted = futures_util::future::join_all(inserts).await;
    assert!(inserted.iter().all(Result::is_ok));
    records
}

#[tokio::test]
async fn two_processes_share_one_file() {
    let (_folder, file) = folder();
    let (one, two) = (open(&file), open(&file));
    let records = fill(&one, 50).await;
    for record in &records {
        let loaded = two.load(record.id.as_str()).await.expect("works");
        assert_eq!(text(&loaded.expect("a record")), text(record));
    }
    let by = |replica| Home {
        replica: ReplicaId(replica),
        epoch: 1,
    };
    for record in &records {
        let (first, second) = tokio::join!(
            one.claim(&record.id, by(1), record.home),
            two.claim(&record.id, by(2), record.home),
        );
        let claims = [first, second].map(|claim| claim.expect("works").is_some());
        assert!(claims[0] != claims[1], "{claims:?}");
    }
}

#[tokio::test]
async fn the_file_is_for_its_owner_alone() {
    let (_folder, file) = folder();
    let store = open(&file);
    fill(&store, 1).await;
    for ending in ["", "-wal", "-shm"] {
        let path = file.with_file_name(format!("sessions.db{ending}"));
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
}

#[tokio::test]
async fn a_damaged_file_is_set_aside_and_an_empty_one_takes_its_place() {
    let (folder, file) = folder();
    fill(&open(&file), 500).await;
    // A copy without a write-ahead log, from which SQLite would restore the pages.
    let whole = Connection::open(&file).expect("a file");
    let half = folder.path().join("half.db");
    let copied = whole.execute("VACUUM INTO ?1", [half.to_str()]);
    copied.expect("a copy");
    let bytes = fs::read(&half).expect("a file");
    fs::write(&half, &bytes[..bytes.len() / 2]).expect("written");
    let text = folder.path().join("text.db");
    fs::write(&text, "x".repeat(5000)).expect("written");

    for (damaged, before) in [(half, bytes.len() as u64 / 2), (text, 5000)] {
        let store = open(&damaged);
        assert_eq!(count(&damaged, "sessions"), 0);
        fill(&store, 1).await;
        let name = damaged.file_name().and_then(|name| name.to_str());
        let aside = format!("{}.damaged-", name.expect("UTF-8"));
        let mut kept = fs::read_dir(folder.path()).expect("a folder");
        let kept = kept.find_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            (name.starts_with(&aside) && !name.ends_with("-wal") && !name.ends_with("-shm"))
                .then(|| entry.metadata().ok().map(|it| it.len()))
        });
        assert_eq!(kept.flatten(), Some(before), "{aside}");
    }
}

#[test]
fn a_file_of_a_newer_version_or_of_another_program_is_refused() {
    let (_folder, file) = folder();
    drop(open(&file));
    let refused = |change: &str| {
        let connection = Connection::open(&file).expect("a file");
        connection.execute_batch(change).expect("changed");
        drop(connection);
        DiskStore::open(&file, bounds(EventLogConfig::default()))
            .map(drop)
            .expect_err("refused")
            .0
    };
    let newer = refused("PRAGMA user_version = 2");
    assert!(
        newer.contains("sessions.db") && newer.contains("newer version"),
        "{newer}"
    );
    let other = refused("PRAGMA application_id = 1");
    assert!(other.contains("another program"), "{other}");
}

#[tokio::test]
async fn an_operation_that_fails_takes_nothing_from_the_others() {
    let (_folder, file) = folder();
    let store = open(&file);
    let broken = store
        .writer
        .run(|connection, _| connection.execute("INSERT INTO nowhere VALUES (1)", []));
    let record = new_record();
    let (broken, inserted) = tokio::join!(broken, store.insert(&record));
    assert!(broken.is_err() && inserted.is_ok());
    assert!(
        store
            .load(record.id.as_str())
            .await
            .expect("works")
            .is_some()
    );
}

#[tokio::test]
async fn a_full_disk_fails_the_writes_alone_and_room_ends_that() {
    let (_folder, file) = folder();
    let store = open(&file);
    let kept = fill(&store, 1).await;
    let pages = |count: u32| {
        store
            .writer
            .run(move |connection, _| connection.pragma_update(None, "max_page_count", count))
    };
    pages(1).await.expect("set");
    let mut failure = None;
    while failure.is_none() {
        failure = store.insert(&new_record()).await.err();
    }
    let failure = failure.expect("the disk is full").0;
    assert!(failure.contains("full"), "{failure}");
    let loaded = store.load(kept[0].id.as_str()).await.expect("works");
    assert!(loaded.is_some());
    pages(1_000_000).await.expect("set");
    fill(&store, 100).await;
}

#[tokio::test]
async fn a_gateway_that_is_alone_writes_no_news_and_old_news_are_forgotten() {
    let made = replicas(EventLogConfig::default()).await;
    let folder: &tempfile::TempDir = made.guard.downcast_ref().expect("the folder");
    let file = folder.path().join("sessions.db");
    let open = made.replica.as_ref().expect("a store of replicas");
    let one = open("one");
    let tell = async |news: Vec<String>| {
        let told = one.directory.tell(one.own.id, &news).await;
        told.expect("works");
        count(&file, "news")
    };
    assert_eq!(tell(vec!["nobody hears".into()]).await, 0);
    let two = open("two");
    let beaten = two.directory.beat(&two.own, None).await;
    assert_eq!(beaten.expect("works").newest, 0);
    let many = (0..2000).map(|number| number.to_string()).collect();
    assert_eq!(tell(many).await, 1024);
    age(&file, "UPDATE news SET at = at - 100");
    assert_eq!(tell(vec!["new".into()]).await, 1);
    let heard = two.directory.beat(&two.own, Some(2000)).await;
    let heard = heard.expect("works");
    assert_eq!((heard.newest, heard.news), (2001, vec!["new".to_owned()]));
}

#[tokio::test]
async fn an_idle_replica_writes_nothing_into_the_file() {
    let made = replicas(EventLogConfig::default()).await;
    let folder: &tempfile::TempDir = made.guard.downcast_ref().expect("the folder");
    let open = made.replica.as_ref().expect("a store of replicas");
    let (one, two) = (open("one"), open("two"));
    let log = folder.path().join("sessions.db-wal");
    let length = || fs::metadata(&log).expect("a file").len();
    let before = length();
    for _ in 0..10 {
        for replica in [&one, &two] {
            let beaten = replica.directory.beat(&replica.own, Some(0)).await;
            beaten.expect("works");
        }
    }
    assert_eq!(length(), before);
}

#[tokio::test]
async fn a_file_from_before_there_were_replicas_is_used_by_them() {
    let (folder, file) = folder();
    let records = fill(&open(&file), 1).await;
    let store = open(&file).of_replica(ReplicaId::named("one"));
    let own = ReplicaFolder::join(&folder.path().join("replicas"), "one", None);
    let own = own.expect("free");
    DiskDirectory::of(&store, own).expect("tables are added");
    let by = Home {
        replica: ReplicaId::named("one"),
        epoch: 1,
    };
    let claimed = store.claim(&records[0].id, by, records[0].home).await;
    assert!(claimed.expect("works").is_some());
    drop(store);
    // Earlier versions check the number of the format.
    let connection = Connection::open(&file).expect("a file");
    let format: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .expect("a number");
    assert_eq!(format, 1);
}

fn count(file: &Path, table: &str) -> usize {
    let connection = Connection::open(file).expect("a file");
    let sql = format!("SELECT count(*) FROM {table}");
    connection
        .query_row(&sql, [], |row| row.get(0))
        .expect("a count")
}

/// Moves rows into the past by the SQL `change`.
fn age(file: &Path, change: &str) {
    let connection = Connection::open(file).expect("a file");
    connection.execute_batch(change).expect("changed");
}

#[tokio::test]
async fn old_rows_are_forgotten_and_the_others_stay() {
    let (_folder, file) = folder();
    let store = open(&file);
    let records = fill(&store, 3).await;
    let stream = |number| StreamRef {
        session: &records[0].id,
        number,
    };
    for number in [1, 2] {
        let owes: &[&str] = if number == 1 { &[] } else { &["7"] };
        store
            .append(stream(number), &opened(0, owes))
            .await
            .expect("works");
        store
            .append(stream(number), &message(u64::from(number), "{}"))
            .await
            .expect("works");
    }
    age(
        &file,
        "UPDATE sessions SET used = used - 200000 WHERE key IN (SELECT key FROM sessions LIMIT 1)",
    );
    age(
        &file,
        "UPDATE streams SET at = at - 8000; UPDATE events SET at = at - 400 WHERE stream = 1",
    );
    let kept = records.len() - 1;
    housekeeper::purge(
        &mut connect(&file).expect("a file"),
        &bounds(EventLogConfig::default()),
    )
    .expect("purged");
    assert_eq!(count(&file, "sessions"), kept);
    assert_eq!(count(&file, "events WHERE stream = 1"), 0);
    // The requests of the other stream were answered long ago.
    assert_eq!(count(&file, "streams WHERE number = 2"), 0);
}

#[tokio::test]
async fn a_long_write_ahead_log_is_emptied_while_the_store_is_open() {
    let (_folder, file) = folder();
    let store = open(&file);
    fill(&store, 500).await;
    let log = file.with_file_name("sessions.db-wal");
    let length = || fs::metadata(&log).expect("a file").len();
    let connection = connect(&file).expect("a file");
    housekeeper::checkpoint(&connection, u32::MAX).expect("copied");
    assert!(length() > 0);
    housekeeper::checkpoint(&connection, 1).expect("emptied");
    assert_eq!(length(), 0);
    fill(&store, 1).await;
}

#[tokio::test]
async fn a_file_beyond_its_bytes_loses_its_oldest_messages() {
    let (_folder, file) = folder();
    let log = EventLogConfig {
        events: 100_000,
        bytes: ByteSize::gib(1),
        ..EventLogConfig::default()
    };
    let store = opened_with(&file, log.clone());
    let session = new_record().id;
    let stream = StreamRef {
        session: &session,
        number: 1,
    };
    let long = "x".repeat(10_000);
    for sequence in 1..=1200 {
        store
            .append(stream, &message(sequence, &long))
            .await
            .expect("works");
    }
    let bounds = Bounds {
        bytes: 8 * 1024 * 1024,
        ..bounds(log)
    };
    housekeeper::purge(&mut connect(&file).expect("a file"), &bounds).expect("purged");
    let left = store
        .read(stream, usize::MAX - 1)
        .await
        .expect("works")
        .events;
    assert!(!left.is_empty() && left.len() < 1200, "{}", left.len());
    assert_eq!(left.last().map(|event| event.sequence), Some(1200));
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let refused = DiskStore::open(
        Path::new("/proc/nowhere/sessions.db"),
        bounds(EventLogConfig::default()),
    );
    let error = refused.map(drop).expect_err("refused").0;
    assert!(error.starts_with("/proc/nowhere/sessions.db: "), "{error}");
}
