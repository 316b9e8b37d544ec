//! Reads `$DATA/repos`, the stored clones and downloads. Each is a folder whose name is a hash of its address.
//!
//! ```text
//! repos/<key>/source.json     address, revision, size, and skipped files
//!             files/…         regular files, nothing else
//!       .building-<random>/   incomplete tree; locked by the process that builds it
//!       .lock                 exclusive while a tree is put in place or removed, shared while a file is read
//! ```
//!
//! A tree is built under a hidden name and then renamed, so that readers see only complete trees. This module defines the layout
//! of the folder and reads it; the builder's process writes it (`workers/builder/src/store.rs`).

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tooldock_base::regular_file;

use super::{BuilderError, RepoFile};

/// Maximum size of a file of a repository, in bytes; larger files are not stored.
pub const FILE_MAX: u64 = 1024 * 1024;

/// Maximum size of the file `source.json`, in bytes.
const SOURCE_MAX: u64 = 4 * 1024 * 1024;
/// Maximum time that is waited for the folder's lock. It is held while a folder is renamed or a file is read.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Pause between two attempts to acquire the lock.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Prefix of the names of trees that are incomplete or about to be removed.
pub const BUILDING: &str = ".building-";
/// Name of the file in a tree's folder with the tree's [`TreeSource`].
pub const SOURCE: &str = "source.json";
/// Name of the folder in a tree's folder with the repository's files.
pub const FILES: &str = "files";

/// The folder of all stored trees, `$DATA/repos`.
#[derive(Debug, Clone)]
pub struct TreeStore {
    root: PathBuf,
}

/// Content of a tree's `source.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct TreeSource {
    /// Address of the repository or package, as the caller wrote it.
    pub source: String,
    /// Commit of the repository, or version of the package.
    pub revision: String,
    /// Size of all files, in bytes.
    pub bytes: u64,
    /// Skipped files with the reasons, such as "is a symbolic link".
    pub left_out: BTreeMap<String, String>,
}

impl TreeSource {
    /// Reads the `source.json` of a tree; `None` if that file is missing or damaged.
    pub fn of(tree: &Path) -> Option<Self> {
        let text = read_at_most(&tree.join(SOURCE), SOURCE_MAX).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

impl TreeStore {
    /// Creates a store for the trees below `root`, without creating any folder yet.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Path of the folder of all trees.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Reads a text file of a stored tree.
    ///
    /// # Errors
    ///
    /// When the repository was not analysed, or the path is not that of a text file in its tree.
    pub fn read(&self, source: &str, path: &str) -> Result<RepoFile, BuilderError> {
        let relative = relative(path)?;
        let shown = relative.display().to_string();
        let not_analysed = || {
            // The message does not repeat the address, which may contain a password.
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
        let about = TreeSource::of(&place).ok_or_else(not_analysed)?;
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
        // The builder never writes links. If another program has put a link into the tree, it must not lead out of it.
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

    /// Removes incomplete trees whose builder no longer runs.
    pub fn sweep(&self) {
        let abandoned = match self.lock_exclusively() {
            Ok(_exclusive) => self.abandoned(),
            Err(error) => Err(error),
        };
        // Failed removals are ignored; the next builder tries them again.
        remove(abandoned.unwrap_or_default());
    }

    /// Path of the folder for the tree of a repository's address.
    pub fn place_of(&self, source: &str) -> PathBuf {
        let source = source.trim().trim_end_matches('/');
        let source = source.strip_suffix(".git").unwrap_or(source);
        let hash = Sha256::digest(source.as_bytes());
        let name: String = hash[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        self.root.join(name)
    }

    /// Locks the folder while a tree is put in place or removed. Dropping the file unlocks it.
    ///
    /// # Errors
    ///
    /// When the path is missing or not a folder, or another process holds the lock for too long.
    pub fn lock_exclusively(&self) -> io::Result<File> {
        self.lock(Access::Exclusive)
    }

    /// Waits for the lock up to [`LOCK_WAIT`]. Tools may write to this folder, so links and special files are not opened.
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

    /// Incomplete trees without a running builder, each with its lock held by this process.
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
}

/// Parses a path within a repository. Fails for paths that lead out of it.
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

/// Kind of lock on the folder of all trees.
#[derive(Debug, Clone, Copy)]
enum Access {
    Shared,
    Exclusive,
}

/// Options that open a file without following links and without blocking.
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

/// Removes trees. Failures are ignored, since the next builder tries the removal again.
fn remove(trees: Vec<(PathBuf, File)>) {
    for (path, _lock) in trees {
        let _ = fs::remove_dir_all(path);
    }
}

/// Sets the modification time of a tree's file, which is the time of the tree's last use.
fn touch(file: &Path) {
    if let Ok(file) = plain().append(true).open(file) {
        // A failure is harmless: the tree may be removed somewhat earlier.
        let _ = file.set_modified(SystemTime::now());
    }
}
