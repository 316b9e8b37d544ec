//! Before the start of a process: its package is installed, once for all processes of its pool.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use super::failure::Raw;
use crate::stdio::pool::PoolShared;
use crate::stdio::pool::state::{Event, ProcessId};
use crate::stdio::turns::Requests;

/// Whether the package of a server is installed, as far as its pool knows.
#[derive(Debug, Default)]
pub(in crate::stdio) struct Installation {
    /// Set once it was done. Those who come meanwhile wait for that. Plain data; nothing awaits under the lock.
    done: Mutex<Arc<OnceCell<()>>>,
}

impl Installation {
    /// Installs the package, unless that was done.
    ///
    /// # Errors
    ///
    /// When it takes longer than `install_timeout`.
    pub(super) async fn ensure(
        &self,
        pool: &Arc<PoolShared>,
        process: ProcessId,
        requests: Option<Requests>,
    ) -> Result<(), Raw> {
        if !pool.launcher.prepares() {
            return Ok(());
        }
        let done = Arc::clone(&self.done.lock().unwrap_or_else(PoisonError::into_inner));
        let installed = done.get_or_try_init(async || {
            let _shown = Shown::new(pool, process);
            let _turn = pool.turns.installing.take(requests).await;
            pool.launcher.prepare().await
        });
        installed.await.map(drop)
    }

    /// A start failed: what was installed may not be there any more, or a new version may have to be.
    pub(in crate::stdio) fn forget(&self) {
        let fresh = Arc::default();
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.initialized() {
            *done = fresh;
        }
    }
}

/// Shows in `/ready` that a process waits for its package.
struct Shown<'a> {
    pool: &'a Arc<PoolShared>,
    process: ProcessId,
}

impl<'a> Shown<'a> {
    fn new(pool: &'a Arc<PoolShared>, process: ProcessId) -> Self {
        let now = true;
        pool.apply(Event::Installing { process, now });
        Self { pool, process }
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let (process, now) = (self.process, false);
        self.pool.apply(Event::Installing { process, now });
    }
}
