//! Changes of namespaces by a manager: folders, tool files, requirements. Does not depend on HTTP or MCP.
//!
//! Every name is a type that was validated once (`NamespaceName`, [`ToolFileName`]), every path is below `tools/`, and no
//! symlink to a target outside is followed. A change holds the lock of the workspace, so that two managers on one volume do not
//! interfere; it is made by a rename, so that a reader, a reload or a crash sees the old file or the new one.
//!
//! Changes are not served before a reload, and no code of a tool is run by this module.

mod file_name;
mod folder;
mod history;
mod inspect;
mod leftovers;
mod package;
mod requirements;
mod servers;
mod servers_file;
mod tool_file;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, Semaphore};
use tooldock_base::config::WorkersConfig;
use tooldock_base::data_dir::DataDir;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::Names;
use tooldock_process::environment::{Environments, FileLock};
use tooldock_process::metrics::WorkerMetrics;

use crate::aggregate::AggregatesConfig;
use crate::servers::ServersConfig;

pub use file_name::{InvalidToolFileName, InvalidToolFileVersion, ToolFileName, ToolFileVersion};
pub use folder::NamespaceFolder;
pub use history::{KeptVersion, ListedFile, ToolFiles};
pub(crate) use inspect::INSPECT_SCRIPT;
pub use inspect::{Fault, FileInspection, FoundTool};
pub use package::{InvalidPackageSpec, PackageSpec};
pub use requirements::NotInstalled;
pub use servers::{ManagedServer, ServerRefused, check_texts};
pub use servers_file::LockedServers;
pub use tool_file::{FileChange, TOOL_FILE_BYTES_MAX};

/// Reason why a change was not made, as one line for the caller. No file was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotDone(String);

impl NotDone {
    fn io(doing: &str, path: &Path, error: &io::Error) -> Self {
        Self(format!("cannot {doing} {}: {error}", path.display()))
    }
}

/// The namespaces of a data directory, for managers that change them.
#[derive(Debug)]
pub struct Workspace {
    data: Arc<DataDir>,
    environments: Environments,
    toolchain_turn: Semaphore,
    listings: Semaphore,
    python_version: OnceCell<String>,
    /// Names that the configuration defines. The mutex is locked only to copy or replace the pointer.
    configured: Mutex<Arc<Names>>,
}

impl Workspace {
    /// Opens the namespaces of a data directory. `guard` is the executable with the subcommand `__guard`, under which child
    /// processes run.
    pub fn new(
        data: Arc<DataDir>,
        config: WorkersConfig,
        guard: PathBuf,
        metrics: &WorkerMetrics,
    ) -> Self {
        let processes = metrics.processes().clone();
        Self {
            environments: Environments::new(Arc::clone(&data), config, guard, processes),
            data,
            toolchain_turn: Semaphore::new(1),
            listings: Semaphore::new(2),
            python_version: OnceCell::new(),
            configured: Mutex::default(),
        }
    }

    /// Sets the names that the configuration uses; initially there are none. Namespaces and servers with these names cannot be
    /// created, since the configuration's namespaces would be served instead.
    pub fn set_configured(&self, servers: &ServersConfig, aggregates: &AggregatesConfig) {
        let names = Names::settle(crate::servers::configured(servers, aggregates));
        *self.configured_names() = Arc::new(names);
    }

    fn configured_names(&self) -> MutexGuard<'_, Arc<Names>> {
        self.configured
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an error if the configuration defines the name.
    fn not_configured(&self, name: &NamespaceName) -> Result<(), NotDone> {
        match self.configured_names().winner(name) {
            None => Ok(()),
            Some(claim) => Err(NotDone(format!(
                "the name {name} is taken by {} of the gateway's configuration; choose another one",
                claim.place
            ))),
        }
    }

    /// The version of the Python interpreter that runs tools.
    ///
    /// # Errors
    ///
    /// The reason why there is no usable interpreter.
    pub async fn python_version(&self) -> Result<String, String> {
        const SCRIPT: &str = "import platform; print(platform.python_version())";
        let asked = self.python_version.get_or_try_init(async || {
            let version = self.environments.run_script(SCRIPT, Vec::new()).await;
            let version = version.map_err(|error| error.to_string())?;
            Ok(String::from_utf8_lossy(&version).trim().to_owned())
        });
        asked.await.cloned()
    }
}

impl Workspace {
    /// Acquires the lock for changes. Fails after 30 seconds: changes are short, so a longer wait indicates a fault.
    async fn lock(&self) -> Result<FileLock, NotDone> {
        const PATIENCE: Duration = Duration::from_secs(30);
        let path = self.data.root().join("manager.lock");
        let lock = FileLock::take(path, PATIENCE).await;
        lock.map_err(|error| NotDone(format!("another manager is at work: {error}")))
    }
}

/// Runs blocking file work outside the runtime's threads. The work is finished even if the future is dropped.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NotDone> + Send + 'static,
) -> Result<T, NotDone> {
    tokio::task::spawn_blocking(work).await.map_err(|_| {
        NotDone("a file operation was interrupted; the log of the gateway says more".to_owned())
    })?
}

impl From<NotDone> for CallError {
    fn from(error: NotDone) -> Self {
        let mut message = error.0;
        if let Some(first) = message.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        Self::new(CallErrorCode::ToolError, message)
    }
}

#[cfg(test)]
mod tests;
