//! Before the start of a process: its package is installed, once for all processes of its pool.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;
use tokio::time::Instant;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::external::{InstallStep, NotInstalled, StdioSpec};

use super::failure::Raw;
use crate::stdio::pool::PoolShared;
use crate::stdio::pool::state::{Event, ProcessId};
use crate::stdio::turns::Requests;

/// Whether the package of a server is installed, as far as its pool knows.
#[derive(Debug)]
pub(in crate::stdio) struct Installation {
    /// `None`: nothing is to be installed, or the start does that.
    step: Option<InstallStep>,
    /// Set once it was done. Those who come meanwhile wait for that. Plain data; nothing awaits under the lock.
    done: Mutex<Arc<OnceCell<()>>>,
}

impl Installation {
    pub(in crate::stdio) fn of(spec: &StdioSpec) -> Self {
        Self {
            step: InstallStep::of(spec),
            done: Mutex::default(),
        }
    }

    /// Installs the package, unless that was done. A tool that fails or does not understand is not the end: the start
    /// shows what is wrong.
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
        let Some(step) = &self.step else {
            return Ok(());
        };
        let done = Arc::clone(&self.done.lock().unwrap_or_else(PoisonError::into_inner));
        let installed = done.get_or_try_init(async || {
            let _shown = Shown::new(pool, process);
            let _turn = pool.turns.installing.take(requests).await;
            run(step, pool).await
        });
        installed.await.map(drop)
    }

    /// A start failed: what was installed may not be there any more, or a new version may have to be.
    pub(super) fn forget(&self) {
        let fresh = Arc::default();
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.initialized() {
            *done = fresh;
        }
    }
}

async fn run(step: &InstallStep, pool: &PoolShared) -> Result<(), Raw> {
    let server = &pool.server;
    let name = &server.name;
    let limit = pool.settings().install_timeout;
    tracing::info!(
        namespace = %name,
        "the package of the server of namespace {name} is installed, for at most {}",
        humantime_serde::re::humantime::format_duration(limit)
    );
    let began = Instant::now();
    match step.run(server, &pool.host, limit).await {
        Ok(()) => {
            tracing::info!(
                namespace = %name,
                seconds = began.elapsed().as_secs_f32(),
                "the package of the server of namespace {name} has been installed"
            );
            Ok(())
        }
        Err(error @ NotInstalled::Failed { .. }) => {
            tracing::warn!(
                namespace = %name,
                "installing the package of the server of namespace {name} failed, the server is started all the same: \
                 {error}"
            );
            Ok(())
        }
        Err(NotInstalled::TooLong { limit, last }) => {
            let limit = humantime_serde::re::humantime::format_duration(limit);
            let message = format!(
                "the server of namespace {name} was not started: its package was not installed within {limit} \
                 (configuration key install_timeout)"
            );
            Err(Raw {
                error: CallError::new(CallErrorCode::WorkerUnavailable, message),
                said: last,
            })
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
