//! A file lock, acquired with a time limit, which excludes other processes that build the same environment.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::time::Instant;
use tooldock_base::regular_file;

use super::EnvironmentError;

/// Pause between two attempts to acquire a lock that another process holds.
const RETRY: Duration = Duration::from_millis(100);

/// An exclusive lock on a file, held until it is dropped.
#[derive(Debug)]
pub struct FileLock(#[expect(dead_code, reason = "closing the file releases the lock")] File);

impl FileLock {
    /// Acquires the lock, waiting up to `limit` while another process holds it.
    pub async fn take(path: PathBuf, limit: Duration) -> Result<Self, EnvironmentError> {
        let deadline = Instant::now() + limit;
        loop {
            match Self::try_take(&path)? {
                Some(lock) => return Ok(lock),
                None if Instant::now() >= deadline => {
                    return Err(EnvironmentError(format!(
                        "another process has held {} for {limit:?}",
                        path.display()
                    )));
                }
                None => tokio::time::sleep(RETRY).await,
            }
        }
    }

    /// Acquires the lock if it is free; returns `None` otherwise.
    pub fn try_take(path: &Path) -> Result<Option<Self>, EnvironmentError> {
        let failed = |error: std::io::Error| EnvironmentError::io("lock", path, &error);
        let file = regular_file::open_or_make(path, 0o600).map_err(failed)?;
        let held = file.metadata().map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Another process may have removed the file after it was opened here. Then this lock is on a file that no longer
            // counts.
            Ok(()) => match path.symlink_metadata() {
                Ok(found) if (found.dev(), found.ino()) == (held.dev(), held.ino()) => {
                    Ok(Some(Self(file)))
                }
                _ => Ok(None),
            },
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed(errno.into())),
        }
    }
}

/// The lock for work on the path `held_for`. If nothing exists at that path when the lock is dropped, the lock's file is removed,
/// so that requests with invented names leave no files.
#[derive(Debug)]
pub struct LockOf {
    path: PathBuf,
    held_for: PathBuf,
    _lock: FileLock,
}

impl LockOf {
    /// Acquires the lock for work on `held_for`, waiting as [`FileLock::take`] does.
    pub async fn take(
        path: PathBuf,
        held_for: PathBuf,
        limit: Duration,
    ) -> Result<Self, EnvironmentError> {
        let lock = FileLock::take(path.clone(), limit).await?;
        Ok(Self {
            path,
            held_for,
            _lock: lock,
        })
    }
}

impl Drop for LockOf {
    fn drop(&mut self) {
        // The file is removed while the lock is still held: processes that wait for it detect the removal, and start again.
        let found = self.held_for.symlink_metadata();
        if found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_user_can_hold_the_lock_nor_one_that_an_earlier_version_made() {
        use std::os::unix::fs::PermissionsExt as _;
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let _held = FileLock::try_take(&path).unwrap().unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_the_holder_up_to_the_limit() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("lock");
        let held = FileLock::try_take(&path).unwrap();
        assert!(held.is_some());
        let error = FileLock::take(path.clone(), Duration::from_secs(3))
            .await
            .unwrap_err();
        assert!(error.0.contains("3s"), "{error}");
        drop(held);
        assert!(FileLock::take(path, Duration::ZERO).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_goes_with_what_it_is_for_and_whoever_waited_has_one_of_its_own() {
        let temp = tempfile::tempdir().unwrap();
        let (path, held_for) = (temp.path().join("lock"), temp.path().join("for"));
        std::fs::write(&held_for, "").unwrap();
        let take = || {
            let (path, held_for) = (path.clone(), held_for.clone());
            LockOf::take(path, held_for, Duration::from_secs(60))
        };
        drop(take().await.unwrap());
        assert!(path.exists());
        let first = take().await.unwrap();
        let second = tokio::spawn(take());
        tokio::task::yield_now().await;
        std::fs::remove_file(&held_for).unwrap();
        drop(first);
        assert!(!path.exists());
        let second = second.await.unwrap().unwrap();
        assert!(FileLock::try_take(&path).unwrap().is_none(), "held");
        drop(second);
        assert!(!path.exists());
    }
}
