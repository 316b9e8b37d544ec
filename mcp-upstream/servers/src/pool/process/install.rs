//! Installation of a server's package before the server is first started, once for all processes of its pool.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use crate::launch::Raw;
use crate::pool::PoolShared;
use crate::pool::state::{PoolEvent, ProcessId};
use crate::turns::Requests;

/// State of the installation of a server's package, shared by all processes of a pool.
#[derive(Debug, Default)]
pub(crate) struct Installation {
    /// Set once the package is installed; concurrent starts wait for it. The lock is never held across an await.
    done: Mutex<Arc<OnceCell<()>>>,
}

impl Installation {
    /// Installs the package, unless it is installed already.
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
            let _shown = InstallationGuard::new(pool, process);
            let _turn = pool.turns.installing.take(requests).await;
            pool.launcher.prepare().await
        });
        installed.await.map(drop)
    }

    /// Forgets that the package was installed, after a failed start. The package may have been removed, or a new version may be
    /// needed, so the next start installs it again.
    pub(crate) fn forget(&self) {
        let fresh = Arc::default();
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.initialized() {
            *done = fresh;
        }
    }
}

/// Guard during which `/ready` shows that a process waits for the installation of its package.
struct InstallationGuard<'a> {
    pool: &'a Arc<PoolShared>,
    process: ProcessId,
}

impl<'a> InstallationGuard<'a> {
    fn new(pool: &'a Arc<PoolShared>, process: ProcessId) -> Self {
        let now = true;
        pool.apply(PoolEvent::Installing { process, now });
        Self { pool, process }
    }
}

impl Drop for InstallationGuard<'_> {
    fn drop(&mut self) {
        let (process, now) = (self.process, false);
        self.pool.apply(PoolEvent::Installing { process, now });
    }
}
