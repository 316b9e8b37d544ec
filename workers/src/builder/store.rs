//! `$DATA/repos`: clones and downloads, by the address they came from.
//!
//! ```text
//! repos/<key>/source.json     address, revision, size, and files that were left out
//!             files/…         regular files, nothing else
//!       .building-<random>/   incomplete tree; locked by the process that builds it
//!       .lock                 exclusive while a tree is put in place or removed, shared while a file is read
//! ```
//!
//! A tree is built aside and renamed, so that readers see only complete trees. There are at most [`REPOS_MAX`] trees with
//! [`BYTES_MAX`] bytes in all; the tree that was used longest ago is removed first.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{BuilderError, RepoFile};
use crate::regular_file;

/// The most trees that are kept.
const REPOS_MAX: usize = 32;
/// The most bytes of all trees. A single tree may have more.
const BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// The largest file that is kept, and so the largest that is read.
pub const FILE_MAX: u64 = 1024 * 1024;

/// The largest `source.json`.
const SOURCE_MAX: u64 = 4 * 1024 * 1024;
/// Maximum wait for the lock. Its holder renames a folder or reads a file.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const LOCK_RETRY: Duration = Duration::from_millis(10);

const BUILDING: &str = ".building-";
const SOURCE: &str = "source.json";
/// The folder of a tree's files.
pub const FILES: &str = "files";

/// The folder of all trees.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// Content of `source.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct TreeSource {
    /// The address as the caller gave it.
    pub source: String,
    /// The commit or version.
    pub revision: String,
    /// The size of all files.
    pub bytes: u64,
    /// Files that are not kept, and the reasons: "is a symbolic link".
    pub left_out: BTreeMap<String, String>,
}

/// An incomplete tree. Dropping it removes it.
#[derive(Debug)]
pub struct Building {
    /// Its folder.
    pub path: PathBuf,
    /// Lock held while the tree is built.
    _lock: File,
}

impl Store {
    /// The store in `$DATA/repos`. Nothing is created yet.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Makes room for a new tree, and removes trees that killed builders left behind.
    ///
    /// # Errors
    ///
    /// When the folder cannot be written, or stays locked.
    pub fn begin(&self) -> io::Result<Building> {
        fs::DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&self.root)?;
        let exclusive = self.lock(Access::Exclusive)?;
        let abandoned = self.abandoned()?;
        let path = self.aside();
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        let lock = File::open(&path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        drop(exclusive);
        remove(abandoned);
        fs::create_dir(path.join(FILES))?;
        Ok(Building { path, _lock: lock })
    }

    /// Puts a complete tree in its place, instead of an older tree of the same address, and removes the oldest trees.
    ///
    /// # Errors
    ///
    /// As [`Store::begin`].
    pub fn complete(&self, building: Building, source: &TreeSource) -> io::Result<()> {
        let text = serde_json::to_vec(source)?;
        fs::write(building.path.join(SOURCE), text)?;
        let exclusive = self.lock(Access::Exclusive)?;
        let place = self.place_of(&source.source);
        let mut gone = Vec::new();
        if place.symlink_metadata().is_ok() {
            gone.push(self.put_aside(&place)?);
        }
        fs::rename(&building.path, &place)?;
        gone.extend(self.put_oldest_aside(&place)?);
        drop(exclusive);
        gone.iter().for_each(|it| drop(fs::remove_dir_all(it)));
        Ok(())
    }

    /// A name for a tree that is incomplete, or not wanted any more.
    fn aside(&self) -> PathBuf {
        self.root
            .join(format!("{BUILDING}{:016x}", fastrand::u64(..)))
    }

    /// Takes a tree away from readers. Removing it takes longer, and does not need the lock.
    fn put_aside(&self, tree: &Path) -> io::Result<PathBuf> {
        let aside = self.aside();
        fs::rename(tree, &aside)?;
        Ok(aside)
    }

    /// Reads a text file of a tree that is kept.
    ///
    /// # Errors
    ///
    /// When the source was not analysed, or the path is no text file in its tree.
    pub fn read(&self, source: &str, path: &str) -> Result<RepoFile, BuilderError> {
        let relative = relative(path)?;
        let shown = relative.display().to_string();
        let not_analysed = || {
            // Without the address: it may contain a password.
            BuilderError::not_found(
                "this repo_url was not analysed, or so long ago that its files were removed. Call analyze_repo with exactly \
                 this repo_url first, then read_repo_file again.",
            )
        };
        if self.root.symlink_metadata().is_err() {
            return Err(not_analysed());
        }
        let Ok(_shared) = self.lock(Access::Shared) else {
            return Err(BuilderError::failed(
                "the folder of repositories cannot be read, or is in use. Try again.",
            ));
        };
        let place = self.place_of(source);
        let about = source_of(&place).ok_or_else(not_analysed)?;
        touch(&place.join(SOURCE));
        if let Some(reason) = about.left_out.get(&shown) {
            return Err(BuilderError::failed(format!(
                "cannot read {shown}: the file {reason}."
            )));
        }
        let missing = || {
            BuilderError::not_found(format!(
                "there is no file {shown:?} in this repository. `files` in the result of analyze_repo lists its files."
            ))
        };
        let files = place.join(FILES);
        let (Ok(root), Ok(file)) = (files.canonicalize(), files.join(&relative).canonicalize())
        else {
            return Err(missing());
        };
        // No link is ever written into a tree; a link that another program put there leads nowhere.
        if !file.starts_with(&root) {
            return Err(BuilderError::invalid(format!(
                "{shown:?} leads out of the repository."
            )));
        }
        if !file.is_file() {
            return Err(BuilderError::invalid(format!(
                "{shown:?} is a folder, not a file."
            )));
        }
        let unreadable =
            |error: io::Error| BuilderError::failed(format!("cannot read {shown}: {error}."));
        let bytes = read_at_most(&file, FILE_MAX + 1).map_err(unreadable)?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(BuilderError::too_large(format!(
                "{shown} is larger than 1 MiB."
            )));
        }
        let text = String::from_utf8(bytes)
            .ok()
            .filter(|text| !text.contains('\0'));
        let content = text.ok_or_else(|| {
            BuilderError::failed(format!(
                "{shown} is a binary file; only text in UTF-8 can be read."
            ))
        })?;
        Ok(RepoFile {
            path: shown,
            content,
        })
    }

    /// Removes trees whose builder is gone.
    pub fn sweep(&self) {
        let abandoned = match self.lock(Access::Exclusive) {
            Ok(_exclusive) => self.abandoned(),
            Err(error) => Err(error),
        };
        // The next builder retries failed removals.
        remove(abandoned.unwrap_or_default());
    }

    fn place_of(&self, source: &str) -> PathBuf {
        let source = source.trim().trim_end_matches('/');
        let source = source.strip_suffix(".git").unwrap_or(source);
        let hash = Sha256::digest(source.as_bytes());
        let name: String = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.root.join(name)
    }

    /// Waits for the lock up to [`LOCK_WAIT`]. Tools may write here, so only a plain file is opened, and no link is followed.
    fn lock(&self, access: Access) -> io::Result<File> {
        if !self.root.symlink_metadata()?.is_dir() {
            return Err(io::Error::other("the folder of repositories is a link"));
        }
        let file = plain()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.root.join(".lock"))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("its lock is no file"));
        }
        let how = match access {
            Access::Shared => FlockOperation::NonBlockingLockShared,
            Access::Exclusive => FlockOperation::NonBlockingLockExclusive,
        };
        let deadline = Instant::now() + LOCK_WAIT;
        loop {
            match flock(&file, how) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    thread::sleep(LOCK_RETRY);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Trees without a running builder, each with its own lock.
    fn abandoned(&self) -> io::Result<Vec<(PathBuf, File)>> {
        let mut abandoned = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let name = entry.file_name();
            if !name.as_encoded_bytes().starts_with(BUILDING.as_bytes())
                || !entry.file_type()?.is_dir()
            {
                continue;
            }
            let locked = plain()
                .read(true)
                .open(entry.path())
                .ok()
                .filter(|it| flock(it, FlockOperation::NonBlockingLockExclusive).is_ok());
            abandoned.extend(locked.map(|it| (entry.path(), it)));
        }
        Ok(abandoned)
    }

    fn put_oldest_aside(&self, new: &Path) -> io::Result<Vec<PathBuf>> {
        let mut gone = Vec::new();
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.root)? {
            let path = entry?.path();
            let source = path.join(SOURCE);
            let hidden = path
                .file_name()
                .is_some_and(|it| it.as_encoded_bytes().starts_with(b"."));
            if hidden || path == new {
                continue;
            }
            let about = source_of(&path);
            // A damaged tree is the first to go.
            let used = about
                .as_ref()
                .and_then(|_| source.metadata().ok()?.modified().ok());
            kept.push((used, about.map_or(0, |it| it.bytes), path));
        }
        kept.sort();
        let mut bytes: u64 = kept.iter().map(|(_, bytes, _)| bytes).sum();
        bytes += source_of(new).map_or(0, |it| it.bytes);
        let mut count = kept.len() + 1;
        for (_, size, path) in kept {
            if count <= REPOS_MAX && bytes <= BYTES_MAX {
                break;
            }
            gone.push(self.put_aside(&path)?);
            count -= 1;
            bytes -= size;
        }
        Ok(gone)
    }
}

impl Building {
    /// The folder of its files.
    pub fn files(&self) -> PathBuf {
        self.path.join(FILES)
    }
}

impl Drop for Building {
    fn drop(&mut self) {
        // The folder is not there any more if the tree was completed. The next builder retries failed removals.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A path inside of a repository.
fn relative(path: &str) -> Result<PathBuf, BuilderError> {
    let refuse = |why: &str| {
        Err(BuilderError::invalid(format!(
            "the path {path:?} {why}. Give a path as in `files` of the result of analyze_repo, such as src/index.ts."
        )))
    };
    if path.is_empty() || path.len() > 4096 {
        return refuse("is empty or too long");
    }
    if path.contains(['\0', '\n', '\r']) {
        return refuse("holds a control character");
    }
    let mut clean = PathBuf::new();
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::CurDir => {}
            Component::ParentDir => return refuse("leads out of the repository"),
            Component::RootDir | Component::Prefix(_) => return refuse("is absolute"),
        }
    }
    if clean.as_os_str().is_empty() {
        return refuse("names no file");
    }
    Ok(clean)
}

/// Kinds of access to the folder.
#[derive(Debug, Clone, Copy)]
enum Access {
    Shared,
    Exclusive,
}

/// Options that open without following links and without blocking.
fn plain() -> OpenOptions {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
    let mut options = OpenOptions::new();
    options.custom_flags(flags.cast_signed());
    options
}

fn read_at_most(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = regular_file::open(path)?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The content of a tree's `source.json`, unless it is damaged.
fn source_of(tree: &Path) -> Option<TreeSource> {
    let text = read_at_most(&tree.join(SOURCE), SOURCE_MAX).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Removes trees; the next builder retries failed removals.
fn remove(trees: Vec<(PathBuf, File)>) {
    for (path, _lock) in trees {
        let _ = fs::remove_dir_all(path);
    }
}

/// Records that a tree was used.
fn touch(file: &Path) {
    if let Ok(file) = plain().append(true).open(file) {
        // If this fails, the tree may be removed a little early.
        let _ = file.set_modified(SystemTime::now());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::builder::BuilderErrorCode;

    fn store() -> (tempfile::TempDir, Store) {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::new(temp.path().join("repos"));
        (temp, store)
    }

    fn keep(store: &Store, source: &str, bytes: u64) -> PathBuf {
        let building = store.begin().unwrap();
        fs::write(building.files().join("a.txt"), source).unwrap();
        let about = TreeSource {
            source: source.into(),
            bytes,
            left_out: BTreeMap::from([("link".into(), "is a symbolic link".into())]),
            ..TreeSource::default()
        };
        store.complete(building, &about).unwrap();
        store.place_of(source)
    }

    #[test]
    fn reads_files_of_what_was_analysed_and_of_nothing_else() {
        let (_temp, store) = store();
        let not_yet = store.read("https://h/x", "a.txt").unwrap_err();
        assert!(not_yet.message.contains("analyze_repo"), "{not_yet}");
        keep(&store, "https://h/x", 1);
        for same in ["https://h/x", "https://h/x.git", " https://h/x/ "] {
            assert_eq!(store.read(same, "./a.txt").unwrap().content, "https://h/x");
        }
        assert!(store.read("https://h/y", "a.txt").is_err());
        let missing = store.read("https://h/x", "b.txt").unwrap_err();
        assert_eq!(missing.code, BuilderErrorCode::NotFound);
        let link = store.read("https://h/x", "link").unwrap_err();
        assert!(link.message.contains("symbolic link"), "{link}");
    }

    #[test]
    fn paths_that_lead_out_and_files_that_are_no_text_are_refused() {
        let (temp, store) = store();
        let place = keep(&store, "x", 1);
        fs::write(temp.path().join("secret"), "hush").unwrap();
        let files = place.join(FILES);
        std::os::unix::fs::symlink(temp.path().join("secret"), files.join("out")).unwrap();
        fs::write(files.join("binary"), b"\x7fELF\0").unwrap();
        fs::write(files.join("large"), vec![b'a'; FILE_MAX as usize + 1]).unwrap();
        fs::create_dir(files.join("folder")).unwrap();
        for (path, says) in [
            ("../source.json", "leads out"),
            ("a/../../source.json", "leads out"),
            ("/etc/passwd", "is absolute"),
            ("", "is empty"),
            (".", "names no file"),
            ("a\0b", "control character"),
            ("out", "leads out"),
            ("binary", "binary"),
            ("large", "larger than 1 MiB"),
            ("folder", "is a folder"),
        ] {
            let error = store.read("x", path).unwrap_err();
            assert!(error.message.contains(says), "{path:?}: {error}");
            assert!(!error.message.contains("hush"));
        }
    }

    #[test]
    fn the_tree_that_was_used_longest_ago_goes_first() {
        let (_temp, store) = store();
        let old = SystemTime::now() - Duration::from_secs(3600);
        let places: Vec<_> = (0..REPOS_MAX)
            .map(|index| keep(&store, &format!("repo {index}"), 1))
            .collect();
        for (age, place) in places.iter().enumerate() {
            let file = File::options()
                .append(true)
                .open(place.join(SOURCE))
                .unwrap();
            file.set_modified(old + Duration::from_secs(age as u64))
                .unwrap();
        }
        store.read("repo 0", "a.txt").unwrap();
        keep(&store, "one more", 1);
        assert!(places[0].exists(), "it was read a moment ago");
        assert!(!places[1].exists());
        assert!(places[2].exists());
        let last = keep(&store, "a large one", 2 * BYTES_MAX);
        assert!(last.exists() && !places[0].exists() && !places[2].exists());
    }

    #[test]
    fn links_and_pipes_in_the_folder_are_neither_followed_nor_waited_for() {
        let (temp, store) = store();
        let place = keep(&store, "x", 1);
        let victim = temp.path().join("victim");
        fs::write(&victim, "kept").unwrap();
        let lock = store.root.join(".lock");
        fs::remove_file(&lock).unwrap();
        std::os::unix::fs::symlink(&victim, &lock).unwrap();
        assert!(store.read("x", "a.txt").is_err());
        assert!(store.begin().is_err());
        fs::remove_file(&lock).unwrap();
        let pipe = |path: &Path| {
            rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o600.into()).unwrap();
        };
        let file = place.join(FILES).join("pipe");
        pipe(&file);
        assert!(store.read("x", "pipe").is_err());
        fs::remove_file(place.join(SOURCE)).unwrap();
        pipe(&place.join(SOURCE));
        assert!(store.read("x", "a.txt").is_err());
        let elsewhere = Store::new(temp.path().join("linked"));
        std::os::unix::fs::symlink(temp.path(), &elsewhere.root).unwrap();
        assert!(elsewhere.begin().is_err());
        assert_eq!(fs::read_to_string(victim).unwrap(), "kept");
    }

    #[test]
    fn what_a_killed_builder_left_behind_is_removed_and_what_is_being_built_is_not() {
        let (_temp, store) = store();
        let building = store.begin().unwrap();
        let abandoned = store.root.join(".building-0");
        fs::create_dir(&abandoned).unwrap();
        store.sweep();
        assert!(building.path.exists() && !abandoned.exists());
        drop(building);
        let left = fs::read_dir(&store.root).unwrap().count();
        assert_eq!(left, 1, "the lock file");
    }
}
