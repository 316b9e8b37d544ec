//! A file lock against other processes that build the same environment, with a time limit.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use tokio::time::Instant;

use super::EnvironmentError;

/// Between two tries. Only ever waited for while another gateway builds the same thing.
const RETRY: Duration = Duration::from_millis(100);

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct FileLock(
    #[expect(dead_code, reason = "closing the file releases the lock")] File,
);

impl FileLock {
    /// Takes the lock, waiting up to `limit` for whoever holds it.
    pub(crate) async fn take(path: PathBuf, limit: Duration) -> Result<Self, EnvironmentError> {
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

    /// Takes the lock if nobody holds it.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Self>, EnvironmentError> {
        let failed = |error: std::io::Error| EnvironmentError::io("lock", path, &error);
        // Tool code can put anything in the place of the file: a pipe must not be waited on, nor a symlink followed.
        let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .custom_flags(flags.bits() as i32)
            .open(path)
            .map_err(failed)?;
        let held = file.metadata().map_err(failed)?;
        if !held.is_file() {
            return Err(EnvironmentError(format!(
                "{} is no regular file; remove it",
                path.display()
            )));
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Somebody may have removed the file between the two steps, and then another one is the lock.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
