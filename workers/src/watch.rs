//! Watches the data directory for changes that a reload would put into force (RLD-05).
//!
//! ```text
//! inotify ──▶ source.rs: is the path relevant?     ──▶ burst.rs: quiet for `debounce` ──▶ Watch::changed
//! polling ──▶ fingerprint.rs: did anything change? ──┘
//! ```
//!
//! Changes are not queued: any number of changed files results in a single notification. The operating system stops watching a
//! folder that is removed, so the folders are checked every `LOOK_EVERY`, and replaced folders are watched again.

mod burst;
mod fingerprint;
mod source;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use burst::Burst;
use fingerprint::fingerprint;
use source::ChangeWatcher;

/// Interval at which the watcher checks for replaced folders. A check takes only a few system calls.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval at which files are polled if the operating system does not report changes and no interval is configured.
const POLL_EVERY: Duration = Duration::from_secs(5);

/// Watcher that reports changes in a data directory.
#[derive(Debug)]
pub struct Watch {
    root: PathBuf,
    mark: Arc<Notify>,
    burst: Burst,
    means: Means,
}

#[derive(Debug)]
enum Means {
    /// The operating system reports changes to this watcher.
    Told(Arc<Mutex<ChangeWatcher>>),
    /// Files are polled at the interval `every`; `last` is the fingerprint of the last poll.
    Polled { every: Duration, last: Option<u64> },
}

impl Watch {
    /// Starts watching a data directory. A change is reported once nothing has changed for `debounce`. If `poll` is set, files
    /// are polled at that interval, for volumes whose changes the system does not report, such as network volumes.
    pub async fn start(root: &Path, debounce: Duration, poll: Option<Duration>) -> Self {
        let mark = Arc::new(Notify::new());
        let means = match poll {
            Some(every) => Means::Polled { every, last: None },
            None => told(root, &mark).await,
        };
        Self {
            root: root.to_owned(),
            mark,
            burst: Burst::new(debounce),
            means,
        }
    }

    /// Waits for a change, and then until nothing has changed for the configured time. Dropping the future may lose a change.
    pub async fn changed(&mut self) {
        let every = match self.means {
            Means::Told(_) => LOOK_EVERY,
            Means::Polled { every, .. } => every,
        };
        let mut look = interval_at(Instant::now(), every);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mark = Arc::clone(&self.mark);
        let burst = self.burst;
        let mut settled = std::pin::pin!(burst.settled(&mark));
        loop {
            // Handles:
            // - a change, after which nothing has changed for the configured time;
            // - the time for the next check of the folders or poll of the files.
            tokio::select! {
                () = &mut settled => break,
                _ = look.tick() => self.look().await,
            }
        }
        // The change may be a new folder, which must be watched before its files are read: otherwise later changes would be
        // missed.
        self.renew().await;
    }

    /// Checks once: watches replaced folders again or, if files are polled, compares them with the previous poll.
    async fn look(&mut self) {
        let changed = match &mut self.means {
            Means::Told(_) => self.renew().await,
            Means::Polled { last, .. } => {
                let root = self.root.clone();
                let Ok(now) = tokio::task::spawn_blocking(move || fingerprint(&root)).await else {
                    return;
                };
                last.replace(now).is_some_and(|before| before != now)
            }
        };
        if changed {
            self.mark.notify_one();
        }
    }

    /// Watches replaced folders again. Returns true if any folder was replaced. Runs on another thread, since it takes long for
    /// a large tree.
    async fn renew(&mut self) -> bool {
        let Means::Told(source) = &self.means else {
            return false;
        };
        let (source, root) = (Arc::clone(source), self.root.clone());
        let renew = move || {
            let mut source = source.lock().unwrap_or_else(PoisonError::into_inner);
            source.renew(&root).map_err(|error| error.to_string())
        };
        let renewed = tokio::task::spawn_blocking(renew).await;
        let renewed = renewed.unwrap_or_else(|error| Err(error.to_string()));
        renewed.unwrap_or_else(|error| {
            self.means = looking(&error);
            true
        })
    }
}

async fn told(root: &Path, mark: &Arc<Notify>) -> Means {
    let (root, mark) = (root.to_owned(), Arc::clone(mark));
    let new = move || ChangeWatcher::new(&root, mark).map_err(|error| error.to_string());
    let source = tokio::task::spawn_blocking(new).await;
    match source.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(source) => Means::Told(Arc::new(Mutex::new(source))),
        Err(error) => looking(&error),
    }
}

/// Logs the error and switches to polling, because the system does not report changes.
fn looking(error: &str) -> Means {
    tracing::warn!(
        %error,
        "the system does not tell of changes; files are looked at every {POLL_EVERY:?} instead (watcher.poll sets how often)"
    );
    Means::Polled {
        every: POLL_EVERY,
        last: None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("tools/calc")).unwrap();
        folder
    }

    async fn told(watch: &mut Watch) {
        tokio::time::timeout(DEADLINE, watch.changed())
            .await
            .expect("a change is told");
    }

    async fn changes_are_told(poll: Option<Duration>) {
        let folder = folder();
        let tools = folder.path().join("tools");
        let mut watch = Watch::start(folder.path(), Duration::from_millis(20), poll).await;
        if poll.is_some() {
            watch.look().await;
        }
        fs::write(tools.join("calc/add.py"), "1").unwrap();
        told(&mut watch).await;
        fs::create_dir(tools.join("new")).unwrap();
        told(&mut watch).await;
        fs::write(tools.join("new/tool.py"), "1").unwrap();
        told(&mut watch).await;
        fs::write(folder.path().join("secrets.enc"), "1").unwrap();
        told(&mut watch).await;
        // Removed and made again: the system's watch died with the old folder.
        fs::remove_dir_all(&tools).unwrap();
        told(&mut watch).await;
        fs::create_dir_all(tools.join("calc")).unwrap();
        told(&mut watch).await;
        fs::write(tools.join("calc/add.py"), "2").unwrap();
        told(&mut watch).await;
    }

    #[tokio::test]
    async fn changes_are_told_by_the_system_in_folders_that_were_made_again_too() {
        changes_are_told(None).await;
    }

    #[tokio::test]
    async fn changes_are_found_by_looking() {
        changes_are_told(Some(Duration::from_millis(20))).await;
    }
}
