//! `$DATA/repos`: clones and downloads, by the address they came from.
//!
//! ```text
//! repos/<key>/source.json     address, revision, size, and files that were left out
//!             files/…         regular files, nothing else
//!       .building-<random>/   incomplete tree; locked by the process that builds it
//!       .lock                 exclusive while a tree is put in place or removed, shared while a file is read
//! ```
//!
//! A tree is built aside and renamed, so that readers see only complete trees. This is the side that reads, with the layout of
//! the folder; the builder's process writes (`workers/builder/src/store.rs`).

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

/// Maximum size of a file that is kept, and so of a file that is read, in bytes.
pub const FILE_MAX: u64 = 1024 * 1024;

/// Maximum size of `source.json`, in bytes.
const SOURCE_MAX: u64 = 4 * 1024 * 1024;
/// Maximum wait for the lock. Its holder renames a folder or reads a file.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Pause between two attempts to take the lock.
const LOCK_RETRY: Duration = Duration::from_millis(10);

/// Prefix of the names of trees that are incomplete or being removed.
pub const BUILDING: &str = ".building-";
/// File name of a tree's [`TreeSource`].
pub const SOURCE: &str = "source.json";
/// Name of the folder in a tree that holds the repository's files.
pub const FILES: &str = "files";

/// The folder of all trees.
#[derive(Debug, Clone)]
pub struct TreeStore {
    root: PathBuf,
}

/// Content of `source.json`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct TreeSource {
    /// Address of the repository or package, as the caller gave it.
    pub source: String,
    /// Commit of the repository, or version of the package.
    pub revision: String,
    /// Size of all files, in bytes.
    pub bytes: u64,
    /// Files that are not kept, and the reasons: "is a symbolic link".
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
    /// The store in `$DATA/repos`. Nothing is created yet.
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Path of the folder of all trees.
    pub fn root(&self) -> &Path {
        &self.root
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
        // No link is ever written into a tree; a link that another program put there is not followed out of the tree.
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
        let abandoned = match self.lock_exclusively() {
            Ok(_exclusive) => self.abandoned(),
            Err(error) => Err(error),
        };
        // The next builder retries failed removals.
        remove(abandoned.unwrap_or_default());
    }

    /// Path of the folder for the tree of an address.
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
    /// When the folder is missing or no folder, or its lock is held for too long.
    pub fn lock_exclusively(&self) -> io::Result<File> {
        self.lock(Access::Exclusive)
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
}

/// Parses a path inside of a repository. Refuses paths that lead out of it.
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

/// Access to the folder for which it is locked.
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
