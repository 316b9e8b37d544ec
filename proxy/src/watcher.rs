//! Automatic reloads after changes of files in the data directory.
//!
//! A change causes the same reload as `POST /reload`, in this process or in a separate core. The watcher runs in the process that
//! serves the management tools. A core in a separate process does not watch files and reloads only on request.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tooldock_upstream::management::core::{CoreLink, CoreRequest};
use tooldock_workers::watch::Watch;

use crate::config::{Effective, Role, WatcherConfig};

/// Pause after a failed reload before the next attempt.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The directory to watch, and the settings of the watcher.
pub(crate) struct WatchTarget {
    data_dir: PathBuf,
    config: WatcherConfig,
}

impl WatchTarget {
    /// The directory to watch. `None` if this process must not watch it.
    pub(crate) fn of(effective: &Effective) -> Option<Self> {
        let config = &effective.config.watcher;
        // With `--dev` the watcher is always on, because the operator edits files and expects that changes take effect.
        let is_wanted = config.enabled || effective.dev;
        (is_wanted && effective.role != Role::Core).then(|| Self {
            data_dir: effective.data_dir.clone(),
            config: config.clone(),
        })
    }
}

/// Reloads the core after each burst of changes. Runs until the future is dropped.
pub(crate) async fn run(watched: WatchTarget, core: Arc<dyn CoreLink>) {
    let WatchTarget { data_dir, config } = watched;
    let mut watch = Watch::start(&data_dir, config.debounce, config.poll_every()).await;
    tracing::info!("files are watched: their changes are reloaded");
    loop {
        watch.changed().await;
        tracing::info!("files have changed: reloading");
        while !reloaded(&*core).await {
            // The reload has failed. Before the next attempt, waits for one of two events:
            // - another change, which may correct the fault
            // - the end of a pause, after which the core may answer again
            tokio::select! {
                () = watch.changed() => {}
                () = tokio::time::sleep(TRY_AGAIN) => {}
            }
        }
    }
}

/// Reloads the core. Returns true if the reload succeeded, or if repeating it without another change would be useless.
async fn reloaded(core: &dyn CoreLink) -> bool {
    match core.send(CoreRequest::Reload).await {
        Ok(answer) if answer.status.is_success() => true,
        Ok(answer) => {
            tracing::warn!(status = %answer.status, "files have changed, and the core refused to reload");
            !answer.status.is_server_error()
        }
        Err(error) => {
            tracing::warn!(%error, "files have changed, and the core cannot be reached; it is asked again");
            false
        }
    }
}
