//! Lock files for files that several processes write. At most one process at a time can hold such a lock.
//!
//! The kernel locks the file, so the lock is released when its process dies. The text in the file is only for people: a process
//! that waits too long reports the holder named there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use humantime_serde::re::humantime::{format_duration, format_rfc3339_seconds};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::regular_file::tighten;

/// Interval between two attempts to acquire a lock that another process holds.
const TRY_EVERY: Duration = Duration::from_millis(25);

/// Mode of lock files. Other users cannot read them, because a user who can read the file can also lock it.
const MODE: u32 = 0o600;

/// Maximum number of bytes that are read from a lock file. The text in it is shorter.
const HOLDER_MAX: u64 = 256;

/// Reason why the lock was not acquired. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock for too long.
    #[error("{}: held by {holder} for longer than {}; end that command, or try again when it is done", path.display(), format_duration(*waited))]
    Held {
        /// Path of the lock file.
        path: PathBuf,
        /// The process that holds the lock, as text from the lock file.
        holder: String,
        /// Time for which this process waited for the lock.
        waited: Duration,
    },
    /// The operating system returned an error for the lock file.
    #[error("{}: cannot {doing}: {source}", path.display())]
    Io {
        /// The action that failed.
        doing: &'static str,
        /// Path of the lock file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// A lock on a file. Dropping the value releases it.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// Acquires the lock, and waits up to `patience` for it. `purpose` is shown to other processes that wait for the lock.
    ///
    /// # Errors
    ///
    /// [`LockError`]: another process holds the lock for longer, or the file cannot be opened or created.
    pub fn take(path: &Path, purpose: &str, patience: Duration) -> Result<Self, LockError> {
        let told = |doing| {
            move |source: io::Error| LockError::Io {
                doing,
                path: path.to_owned(),
                source,
            }
        };
        let deadline = Instant::now() + patience;
        loop {
            let file = open(path).map_err(told("open the lock"))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The lock does not count if another process has replaced the file meanwhile: a third process may have locked the
                // new file.
                Ok(()) if is_at(&file, path) => {
                    let lock = Self(file);
                    lock.say(purpose);
                    return Ok(lock);
                }
                Ok(()) | Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => {
                    sleep(TRY_EVERY);
                }
                Ok(()) | Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    return Err(LockError::Held {
                        holder: holder(&file),
                        path: PathBuf::from(path),
                        waited: patience,
                    });
                }
                Err(error) => return Err(told("lock")(error.into())),
            }
        }
    }

    /// Sets the file's modification time to now. Other processes can see by it that the holder is still running.
    ///
    /// # Errors
    ///
    /// When the operating system returns an error, or the file is no longer at `path`: other processes then do not respect this
    /// lock.
    pub fn refresh(&self, path: &Path) -> io::Result<()> {
        if !is_at(&self.0, path) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the lock file was removed or replaced",
            ));
        }
        self.0.set_modified(SystemTime::now())
    }

    fn say(&self, purpose: &str) {
        let since = format_rfc3339_seconds(SystemTime::now());
        let text = format!(
            "{purpose} (process {}, since {since})\n",
            std::process::id()
        );
        // Errors are ignored, because the lock works without this text.
        let _ = self.0.set_len(0);
        let _ = self.0.write_all_at(text.as_bytes(), 0);
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = self.0.set_len(0);
    }
}

/// Opens the lock's file, or creates it. Tools can create files in the same directory, and the caller may be root. Therefore no
/// link is followed, opening does not block, and only a file that was created here gets the directory's owner.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .mode(MODE)
        .custom_flags(flags.bits().cast_signed());
    match options.clone().create_new(true).open(path) {
        Ok(file) => {
            if let Some(directory) = path.parent() {
                belong_to_owner_of(&file, directory)?;
            }
            return Ok(file);
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() && metadata.nlink() <= 1 {
        true => {
            tighten(&file, MODE);
            Ok(file)
        }
        false => Err(io::Error::other(
            "not a regular file of one name only; remove it",
        )),
    }
}

/// Gives a file that root created the same owner as its directory. Otherwise the gateway that uses the directory could not read
/// the file.
pub fn belong_to_owner_of(file: &File, directory: &Path) -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let owner = fs::metadata(directory)?;
    if owner.uid() == 0 {
        return Ok(());
    }
    let (user, group) = (owner.uid(), owner.gid());
    let (user, group) = (
        rustix::fs::Uid::from_raw(user),
        rustix::fs::Gid::from_raw(group),
    );
    rustix::fs::fchown(file, Some(user), Some(group)).map_err(io::Error::from)
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(held), Ok(there)) => (held.dev(), held.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

fn holder(mut file: &File) -> String {
    let mut text = String::new();
    let _ = file.by_ref().take(HOLDER_MAX).read_to_string(&mut text);
    let text: String = text.trim().chars().filter(|it| !it.is_control()).collect();
    match text.is_empty() {
        true => "another process".to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_in_vain_is_told_who_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.lock");
        let held = FileLock::take(&path, "secrets edit", Duration::ZERO).unwrap();
        let error = FileLock::take(&path, "secrets set", Duration::ZERO).unwrap_err();
        let message = error.to_string();
        let process = format!(
            "held by secrets edit (process {}, since 2",
            std::process::id()
        );
        assert!(message.contains(&process), "{message}");
        drop(held);
        FileLock::take(&path, "secrets set", Duration::ZERO).unwrap();
    }

    #[test]
    fn a_lock_file_that_was_removed_protects_nothing_and_is_not_relied_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.lock");
        let held = FileLock::take(&path, "one", Duration::ZERO).unwrap();
        fs::remove_file(&path).unwrap();
        let other = FileLock::take(&path, "two", Duration::ZERO).unwrap();
        assert!(!is_at(&held.0, &path) && is_at(&other.0, &path));
    }

    #[test]
    fn no_file_but_the_locks_own_is_written_and_none_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets.lock");
        let victim = folder.path().join("victim");
        let refused = || {
            let error = FileLock::take(&path, "one", Duration::ZERO).unwrap_err();
            assert!(
                error.to_string().contains("cannot open the lock"),
                "{error}"
            );
            fs::remove_file(&path).unwrap();
        };
        fs::write(&victim, "kept").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        refused();
        fs::hard_link(&victim, &path).unwrap();
        refused();
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        refused();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    }
}
