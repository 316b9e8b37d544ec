//! Folders of replicas that share a data directory. Each process has one folder, and holds its lock until it ends:
//!
//! ```text
//!   replicas/NAME/lock               free if the process has ended; its modification time is that of the last beat
//!                 announcement.json  the address, listeners and key of the replica, for the others
//!                 socket             requests that the others forward (bound by the proxy)
//!                 workers/           sockets of the workers of a process with a REPLICA_ID
//! ```
//!
//! Tools that run as the gateway's user can write to the folder, so an address is used only if the announcement is sealed by
//! the session key. A process without a key for sealing announces no address, and accepts none.
//!
//! A beat sets the modification time of one file and reads those of the others; it writes no data. A process that holds its
//! lock but does not beat for [`BEAT_LIFE`] is suspended. Each process measures this by its own monotonic clock, so that
//! changes of the system clock have no effect.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tooldock_base::data_dir::{replica_file_name, write_atomically};
use tooldock_base::file_lock::{FileLock, LockError};
use tooldock_base::regular_file;
use tooldock_protocol::seal::SessionKey;

use crate::replicas::{Announcement, BEAT_LIFE};
use crate::stream::StoreError;

const LOCK: &str = "lock";
const ANNOUNCEMENT: &str = "announcement.json";
const SOCKET: &str = "socket";

/// Maximum size of an announcement file, in bytes. The file grows with the names of listeners.
const ANNOUNCEMENT_BYTES_MAX: u64 = 256 * 1024;

/// Maximum time to wait for a lock. Another process may hold it for a moment, to check whether it is free.
const PATIENCE: Duration = Duration::from_secs(1);

/// Folder of this process's replica. Dropping this releases the folder's lock.
#[derive(Debug)]
pub struct ReplicaFolder {
    /// The folder that contains the folders of all replicas.
    all: PathBuf,
    path: PathBuf,
    lock: FileLock,
    /// Key that seals announcements; `None` if replicas of this machine forward no requests to each other.
    key: Option<SessionKey>,
    /// Announcement that this process has written into its folder, and the modification time of that file.
    announced: Option<(Announcement, SystemTime)>,
    /// True once this replica has removed its folder at shutdown; it is no longer announced then.
    left: bool,
    /// Most recent beats of the other replicas, by the names of their folders.
    beats: HashMap<OsString, LastHeartbeat>,
    /// Most recent time at which the folders of the other replicas were read.
    looked: Option<Instant>,
}

/// Content of an announcement file.
#[derive(Debug, Serialize, Deserialize)]
struct AnnouncementFile {
    announcement: Announcement,
    /// Copy of the announcement, sealed by the session key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sealed: Option<String>,
}

/// Most recent beat of another replica.
#[derive(Debug, Clone)]
struct LastHeartbeat {
    /// Modification time that the replica has set on its lock.
    set: SystemTime,
    /// Time at which this process noticed the beat, by its own clock.
    found: Instant,
    /// Most recent announcement that could be read. It is kept so that a replica still counts as up if a tool damages its file.
    announcement: Option<Announcement>,
}

impl ReplicaFolder {
    /// Acquires the folder of the replica `name` below `all`. The first beat announces the replica. `key` seals announcements,
    /// if replicas of this machine forward requests to each other.
    ///
    /// # Errors
    ///
    /// [`StoreError`]: another process uses the name, or the folder cannot be created.
    pub fn join(all: &Path, name: &str, key: Option<SessionKey>) -> Result<Self, StoreError> {
        let path = all.join(replica_file_name(name));
        let lock = take_lock(&path, name)?;
        // An announcement that was left over describes the former process of the folder.
        match fs::remove_file(path.join(ANNOUNCEMENT)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &path.join(ANNOUNCEMENT))(error));
            }
            _ => {}
        }
        Ok(Self {
            all: all.to_owned(),
            path,
            lock,
            key,
            announced: None,
            left: false,
            beats: HashMap::new(),
            looked: None,
        })
    }

    /// Path of the socket at which this replica accepts requests from the others.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Reports that this replica is up, and returns the announcements of the other replicas that are up. Removes the folders of
    /// replicas that have ended.
    pub(super) fn beat(&mut self, own: &Announcement) -> Result<Vec<Announcement>, StoreError> {
        if !self.left {
            let lock = self.path.join(LOCK);
            self.lock
                .refresh(&lock)
                .map_err(failed("set the time of", &lock))?;
            self.announce(own)?;
        }
        self.others()
    }

    /// The announcements of the other replicas that are up.
    pub(super) fn others(&mut self) -> Result<Vec<Announcement>, StoreError> {
        self.look().map_err(failed("read", &self.all))
    }

    fn announce(&mut self, own: &Announcement) -> Result<(), StoreError> {
        let file = self.path.join(ANNOUNCEMENT);
        // Tools that run as this user may have changed the file, so its modification time is compared.
        let found = last_change(&file).map_err(failed("read", &file))?;
        let is_there = |(announced, time): &(Announcement, SystemTime)| {
            announced == own && found == Some(*time)
        };
        if self.announced.as_ref().is_some_and(is_there) {
            return Ok(());
        }
        let written = self.sealed(own).and_then(|sealed| {
            let announcement = own.clone();
            let file = AnnouncementFile {
                announcement,
                sealed,
            };
            serde_json::to_vec(&file).map_err(|error| error.to_string())
        });
        let text = written.map_err(StoreError)?;
        write_atomically(&file, &text, 0o600).map_err(failed("write", &file))?;
        let time = last_change(&file).map_err(failed("read", &file))?;
        self.announced = time.map(|time| (own.clone(), time));
        Ok(())
    }

    fn sealed(&self, own: &Announcement) -> Result<Option<String>, String> {
        let Some(key) = &self.key else {
            return Ok(None);
        };
        let text = serde_json::to_vec(own).map_err(|error| error.to_string())?;
        let sealed = key.seal_announcement(&text);
        sealed.map(Some).map_err(|error| error.to_string())
    }

    /// Reads the announcement in a folder. Returns `None` if the process has just started and has not written it yet, or if
    /// another version of the gateway wrote it in another format.
    fn announcement(&self, path: &Path) -> Option<Announcement> {
        let text = regular_file::read(&path.join(ANNOUNCEMENT), ANNOUNCEMENT_BYTES_MAX).ok()?;
        let file: AnnouncementFile = serde_json::from_slice(&text).ok()?;
        let sealed = file.sealed.as_deref();
        let opened = self
            .key
            .as_ref()
            .and_then(|key| key.open_announcement(sealed?))
            .and_then(|text| serde_json::from_slice(&text).ok());
        Some(opened.unwrap_or(Announcement {
            address: None,
            ..file.announcement
        }))
    }

    fn look(&mut self) -> io::Result<Vec<Announcement>> {
        let now = Instant::now();
        let before = self.looked.replace(now);
        let mut known = std::mem::take(&mut self.beats);
        if before.is_none_or(|before| now - before >= BEAT_LIFE) {
            // This process was suspended itself. The other processes may have been suspended at the same time, so their old beats
            // do not show that they have ended.
            known.clear();
        }
        let mut up = Vec::new();
        for entry in fs::read_dir(&self.all)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if path == self.path || !is_running(&path)? {
                continue;
            }
            let Some(set) = last_change(&path.join(LOCK))? else {
                continue;
            };
            let before = known.remove(&name);
            let found = match &before {
                Some(last) if last.set == set => last.found,
                _ => now,
            };
            let is_its_own = |it: &Announcement| *replica_file_name(&it.name) == *name;
            let read = self.announcement(&path).filter(is_its_own);
            let announcement = read.or(before.and_then(|last| last.announcement));
            if now - found < BEAT_LIFE {
                up.extend(announcement.clone());
            }
            let last = LastHeartbeat {
                set,
                found,
                announcement,
            };
            self.beats.insert(name, last);
        }
        Ok(up)
    }

    /// Removes the folder. Called at the end of the process.
    pub(super) fn leave(&mut self) {
        self.left = true;
        remove(&self.path, &self.lock);
    }
}

/// Creates a folder and takes its lock.
fn take_lock(path: &Path, name: &str) -> Result<FileLock, StoreError> {
    let deadline = Instant::now() + PATIENCE;
    let mut make = DirBuilder::new();
    make.recursive(true).mode(0o700);
    loop {
        make.create(path).map_err(failed("make", path))?;
        match FileLock::take(&path.join(LOCK), &format!("replica {name}"), PATIENCE) {
            Ok(lock) => return Ok(lock),
            // Another replica has just removed the folder of the former process, so it is created again.
            Err(LockError::Io { source, .. })
                if source.kind() == io::ErrorKind::NotFound && Instant::now() < deadline => {}
            Err(LockError::Held { holder, .. }) => {
                return Err(StoreError(format!(
                    "replica {name} runs on this data directory already ({holder}): set REPLICA_ID (replicas.id) to a name \
                     that no other gateway of this directory has, or stop that one"
                )));
            }
            Err(error) => return Err(StoreError(error.to_string())),
        }
    }
}

/// Returns true if a process holds the lock of a folder. If none does, its process has ended, and this function removes the
/// folder.
fn is_running(path: &Path) -> io::Result<bool> {
    let lock = path.join(LOCK);
    if last_change(&lock)?.is_none() {
        return Ok(false);
    }
    match FileLock::take(&lock, "removal of a replica that has ended", Duration::ZERO) {
        Ok(lock) => {
            remove(path, &lock);
            Ok(false)
        }
        Err(LockError::Held { .. }) => Ok(true),
        Err(LockError::Io { source, .. }) if is_absent(&source) => Ok(false),
        // The replica may be up. The error is returned, so that the replica does not count as gone.
        Err(LockError::Io { source, .. }) => Err(source),
    }
}

/// Removes a folder whose lock this process holds. The lock file is removed last: a process that starts with the same name
/// meanwhile either waits for the lock and creates the folder again, or keeps the folder.
fn remove(path: &Path, _held: &FileLock) {
    let files = fs::read_dir(path).into_iter().flatten().flatten();
    for file in files.filter(|file| file.file_name() != LOCK) {
        let path = file.path();
        // Directories contain the sockets of the workers of the process that has ended.
        let _ = match file.file_type() {
            Ok(kind) if kind.is_dir() => fs::remove_dir_all(path),
            _ => fs::remove_file(path),
        };
    }
    let _ = fs::remove_file(path.join(LOCK));
    let _ = fs::remove_dir(path);
}

/// Modification time of a file; `None` if the file does not exist.
fn last_change(file: &Path) -> io::Result<Option<SystemTime>> {
    match fs::symlink_metadata(file) {
        Ok(metadata) => metadata.modified().map(Some),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |error| StoreError(format!("{}: cannot {doing} it: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replicas::BEAT_EVERY;
    use crate::replicas::tests::announcement;

    fn key(text: &str) -> SessionKey {
        SessionKey::from_text(text)
    }

    struct Replica {
        folder: ReplicaFolder,
        own: Announcement,
    }

    fn join(all: &Path, name: &str) -> Replica {
        Replica {
            folder: ReplicaFolder::join(all, name, Some(key("shared"))).expect("a name of its own"),
            own: announcement(name),
        }
    }

    impl Replica {
        /// Beats, and returns the names of the other replicas that are up.
        fn beat(&mut self) -> Vec<String> {
            let up = self.folder.beat(&self.own).expect("works");
            let mut names: Vec<_> = up.iter().map(|other| other.name.to_string()).collect();
            names.sort();
            names
        }
    }

    fn names(all: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(all).expect("a folder");
        entries
            .map(|it| it.expect("an entry").file_name())
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_is_up_from_its_first_beat_and_gone_once_its_process_has_ended() {
        let all = tempfile::tempdir().expect("a folder");
        let mut one = join(all.path(), "one");
        let mut two = join(all.path(), "two");
        assert!(one.beat().is_empty(), "not announced yet");
        assert_eq!(two.beat(), ["one"]);
        assert_eq!(one.beat(), ["two"]);
        // A killed process leaves its files, and no lock.
        drop(two);
        assert!(all.path().join("two").join(ANNOUNCEMENT).exists());
        assert!(one.beat().is_empty());
        assert_eq!(names(all.path()), ["one"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_frozen_replica_is_gone_a_life_after_its_last_beat_and_up_with_its_next_one() {
        let all = tempfile::tempdir().expect("a folder");
        let (mut one, mut two) = (join(all.path(), "one"), join(all.path(), "two"));
        two.beat();
        assert_eq!(one.beat(), ["two"]);
        let mut steps = 0;
        while steps < 10 && one.beat() == ["two"] {
            tokio::time::advance(BEAT_EVERY).await;
            steps += 1;
        }
        assert_eq!(BEAT_EVERY * steps, BEAT_LIFE);
        assert!(
            all.path().join("two").exists(),
            "its process holds the lock"
        );
        two.beat();
        assert_eq!(one.beat(), ["two"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_was_frozen_itself_takes_no_other_for_gone() {
        let all = tempfile::tempdir().expect("a folder");
        let (mut one, mut two) = (join(all.path(), "one"), join(all.path(), "two"));
        two.beat();
        assert_eq!(one.beat(), ["two"]);
        tokio::time::advance(BEAT_LIFE * 10).await;
        assert_eq!(one.beat(), ["two"]);
    }

    #[test]
    fn a_second_process_of_one_name_is_refused_with_the_first_ones_number_and_the_remedy() {
        let all = tempfile::tempdir().expect("a folder");
        let first = join(all.path(), "one");
        let refused = ReplicaFolder::join(all.path(), "one", None);
        let refused = refused.expect_err("refused").0;
        let process = format!("process {}", std::process::id());
        for part in ["replica one", &process, "REPLICA_ID (replicas.id)"] {
            assert!(refused.contains(part), "{part}: {refused}");
        }
        drop(first);
        join(all.path(), "one");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_starts_again_takes_nothing_from_the_announcement_of_its_predecessor() {
        let all = tempfile::tempdir().expect("a folder");
        let mut other = join(all.path(), "other");
        let mut first = join(all.path(), "one");
        first.own.leaving = true;
        first.beat();
        drop(first);
        let mut second = join(all.path(), "one");
        assert!(other.beat().is_empty());
        second.beat();
        let [up] = &other.folder.beat(&other.own).expect("works")[..] else {
            panic!("one other");
        };
        assert_eq!(*up, second.own);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_leaves_removes_its_folder_and_does_not_come_back() {
        let all = tempfile::tempdir().expect("a folder");
        let (mut one, mut two) = (join(all.path(), "one"), join(all.path(), "two"));
        two.beat();
        two.own.leaving = true;
        two.beat();
        let told = one.folder.beat(&one.own).expect("works");
        assert!(told[0].leaving);
        two.folder.leave();
        assert_eq!(two.beat(), ["one"]);
        assert!(one.beat().is_empty());
        assert_eq!(names(all.path()), ["one"]);
        // The name is free as soon as the replica has left, before its process has ended.
        join(all.path(), "two");
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_folder_fails_the_beats_of_its_replica() {
        let all = tempfile::tempdir().expect("a folder");
        let mut one = join(all.path(), "one");
        one.beat();
        fs::remove_dir_all(all.path().join("one")).expect("removed");
        let failure = one.folder.beat(&one.own).expect_err("its lock is gone").0;
        assert!(failure.contains("one/lock"), "{failure}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_counts_if_it_is_sealed_by_a_key_that_is_hidden() {
        let all = tempfile::tempdir().expect("a folder");
        let mut one = join(all.path(), "one");
        let mut two = join(all.path(), "two");
        let mut heard = |two: &mut Replica| {
            two.folder.announced = None;
            two.beat();
            let up = one.folder.beat(&one.own).expect("works");
            let [up] = &up[..] else { panic!("{up:?}") };
            assert_eq!(up.name, two.own.name);
            up.address.clone()
        };
        assert_eq!(heard(&mut two), two.own.address);
        let file = all.path().join("two").join(ANNOUNCEMENT);
        let whole = fs::read_to_string(&file).expect("a file");
        for unsealed in [None, Some(key("another"))] {
            two.folder.key = unsealed;
            assert_eq!(heard(&mut two), None);
        }
        // A forged address next to the sealed announcement of the replica.
        let forged = whole.replace("127.0.0.1:1", "127.0.0.1:2");
        assert_ne!(forged, whole);
        fs::write(&file, forged).expect("written");
        let up = one.folder.beat(&one.own).expect("works");
        assert_eq!(up[0].address, two.own.address);
        one.folder.key = None;
        let up = one.folder.beat(&one.own).expect("works");
        assert_eq!(up[0].address, None, "this replica has no hidden key");
    }

    #[tokio::test(start_paused = true)]
    async fn strange_entries_are_no_replicas_and_stay() {
        let all = tempfile::tempdir().expect("a folder");
        fs::write(all.path().join("file"), "mine").expect("written");
        fs::create_dir(all.path().join("folder")).expect("made");
        let mut one = join(all.path(), "one");
        assert!(one.beat().is_empty());
        assert_eq!(names(all.path()).len(), 3);
    }

    #[test]
    fn a_replica_whose_announcement_was_changed_stays_up_and_writes_it_again() {
        let all = tempfile::tempdir().expect("a folder");
        let (mut one, mut two) = (join(all.path(), "one"), join(all.path(), "two"));
        two.beat();
        assert_eq!(one.beat(), ["two"]);
        let file = all.path().join("two").join(ANNOUNCEMENT);
        let of_one = fs::read(all.path().join("one").join(ANNOUNCEMENT)).expect("announced");
        for changed in [&b"{"[..], &of_one] {
            let kept = fs::read(&file).expect("announced");
            fs::write(&file, changed).expect("written");
            assert_eq!(one.beat(), ["two"]);
            two.beat();
            assert_eq!(fs::read(&file).expect("announced").len(), kept.len());
            assert_eq!(one.beat(), ["two"]);
        }
    }
}
