//! Python environments of workers: the interpreter, the unpacked Python runtime, the base environment, and one virtual
//! environment per namespace (WRK-01, WRK-20, WRK-21).
//!
//! ```text
//! Toolchain = interpreter (Python ≥ 3.11) + runtime/<hash>/app + base environment (pydantic) + an empty environment
//!     │  made once, checked at every reload
//!     ▼
//! venvs/<ns> ──▶ venvs/.builds/<ns>-<hash>   its own packages first, then, by a .pth file, runtime and base
//! ```
//!
//! Nothing here is changed in place. An environment is built beside the old one, marked when it is complete, and put into use by
//! a rename, so a failed or interrupted build does not affect the environments in use. Installers run under the guard, with a
//! time limit and their own environment variables. No tool code runs here.

mod base;
mod empty;
mod installer;
mod interpreter;
mod lock;
mod node;
mod own;
mod paths;
mod runtime;
mod script;
mod stamp;
mod venv;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tooldock_base::config::WorkersConfig;
use tooldock_base::data_dir::{DataDir, short_hash};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::fault;
use tooldock_base::names::NamespaceName;

use crate::child::output::{RecentLines, RecentOutput};
use crate::metrics::ProcessMetrics;
use crate::requirements::Requirements;

use base::Base;
use installer::Installer;
use interpreter::Interpreter;
pub use interpreter::find_program;
pub use lock::{FileLock, LockOf};
pub use node::{NodeEnvironment, NodePackages, is_build};
pub use paths::paths_of;
pub use script::BOUNDS;
pub use venv::NamespaceEnvironment;

/// Maximum number of installers that run at once; further ones wait.
const INSTALLS_MAX: usize = 4;

/// Maximum number of the gateway's own Python scripts that run at once; further ones wait.
const SCRIPTS_MAX: usize = 2;

/// Maximum duration of a step without network, such as probing an interpreter or making an empty environment.
const LOCAL_STEP: Duration = Duration::from_secs(60);

/// Reason why a Python environment could not be made, in one line for clients and operators, without credentials.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct EnvironmentError(pub String);

impl EnvironmentError {
    fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    fn io(doing: &str, path: &Path, error: &std::io::Error) -> Self {
        Self(format!("cannot {doing} {}: {error}", path.display()))
    }
}

impl From<EnvironmentError> for CallError {
    fn from(error: EnvironmentError) -> Self {
        Self::new(CallErrorCode::DependencyError, error.0)
    }
}

/// Packages that a namespace's environment must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespacePackages<'a> {
    /// The namespace of the environment.
    pub namespace: &'a NamespaceName,
    /// Content of the namespace's `requirements.txt`; `None` if there is none.
    pub requirements: Option<&'a Requirements>,
    /// Packages to install in addition to `requirements.txt`, each as a requirement.
    pub packages: &'a [String],
    /// Hash over the local files that the requirements name.
    pub files_hash: [u8; 32],
}

/// Specifies if packages may be installed for a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packages {
    /// Packages may be installed, because a reload was requested.
    Install,
    /// Packages must not be installed, because the namespace reloads itself. Code that edits its own requirements must not start
    /// an installer, and requested reloads must not wait for such an installer.
    AsTheyAre,
}

/// The interpreter, runtime and packages on which the environments of all namespaces are based.
#[derive(Debug)]
pub struct Toolchain {
    interpreter: Interpreter,
    /// Folder that contains the Python runtime, `app`.
    runtime: PathBuf,
    base: Base,
    /// Folder of the empty environment that is copied for each namespace.
    empty: PathBuf,
    /// Id of the toolchain. If it is equal, interpreter, runtime and base environment are equal.
    pub id: String,
}

/// Prepares the toolchain and the environments of namespaces.
#[derive(Debug)]
pub struct Environments {
    data: Arc<DataDir>,
    config: WorkersConfig,
    installer: Installer,
    installs: Semaphore,
    scripts: Semaphore,
    /// Output of the installers, by namespace, for operators.
    output: RecentOutput,
    /// The toolchain that was made last; it is used as long as its files exist. The mutex protects only the pointer and is never
    /// held across an await.
    current: Mutex<Option<Arc<Toolchain>>>,
    /// Semaphore with one permit, which is needed to make the toolchain.
    making: Semaphore,
}

impl Environments {
    /// Creates a manager of the environments in a data directory. Installers run under the executable `guard`.
    pub fn new(
        data: Arc<DataDir>,
        config: WorkersConfig,
        guard: PathBuf,
        metrics: ProcessMetrics,
    ) -> Self {
        Self {
            data,
            config,
            installer: Installer::new(guard, metrics),
            installs: Semaphore::new(INSTALLS_MAX),
            scripts: Semaphore::new(SCRIPTS_MAX),
            output: RecentOutput::default(),
            current: Mutex::new(None),
            making: Semaphore::new(1),
        }
    }

    /// Returns the toolchain, and makes it first if it is missing. Concurrent callers wait until the first one has made it.
    ///
    /// # Errors
    ///
    /// Names the missing part of the toolchain, and the command that installs it.
    pub async fn toolchain(&self) -> Result<Arc<Toolchain>, EnvironmentError> {
        let _turn = self.making.acquire().await;
        let current = self
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(toolchain) = current
            && toolchain.is_intact()
        {
            return Ok(toolchain);
        }
        let interpreter = Interpreter::find(&self.config.python, &self.installer).await?;
        let runtime = runtime::unpack(&self.data.runtime_dir()).await?;
        let base = base::prepare(
            self.base_path(),
            &self.config,
            &interpreter,
            &self.installer,
        )
        .await?;
        runtime::compile(&runtime, &interpreter, &self.installer).await;
        let empty = empty::prepare(&self.data.builds_dir(), &interpreter, &self.installer).await?;
        let id = short_hash(
            format!("{}\0{}\0{}", interpreter.id, runtime.display(), base.id).as_bytes(),
        );
        let toolchain = Arc::new(Toolchain {
            interpreter,
            runtime,
            base,
            empty,
            id,
        });
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&toolchain));
        Ok(toolchain)
    }

    /// Returns a namespace's environment, and points `venvs/<ns>` to it. It is built first if the requirements or the interpreter
    /// changed.
    ///
    /// Dropping the future ends the installer.
    ///
    /// # Errors
    ///
    /// The last output of the installer. `venvs/<ns>` is then not changed.
    pub async fn prepare(
        &self,
        wanted: NamespacePackages<'_>,
        toolchain: &Toolchain,
        packages: Packages,
    ) -> Result<NamespaceEnvironment, EnvironmentError> {
        venv::prepare(self, wanted, toolchain, packages).await
    }

    /// Points `venvs/<ns>` back to the build in use, after the worker of a new build did not start. Otherwise a worker that is
    /// restarted later would run with the new packages.
    pub fn point_back(&self, namespace: &NamespaceName, build: &Path) {
        let link = self.data.venvs_dir().join(namespace.as_str());
        if let Err(error) = venv::point(&link, build) {
            tracing::warn!(%namespace, %error, "the environment of an earlier version could not be restored");
        }
    }

    /// Removes unused environments and runtimes: those that are neither in `keep` nor in use for any of `namespaces`.
    ///
    /// Blocking. Does nothing while another gateway shares the directory, since its workers are unknown to this process.
    pub fn collect_garbage(&self, keep: &BTreeSet<PathBuf>, namespaces: &BTreeSet<NamespaceName>) {
        if !self.data.is_sole_user() {
            return;
        }
        venv::collect_garbage(&self.data, keep, namespaces);
        own::collect_garbage(&self.data);
        let current = self
            .current
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(toolchain) = current {
            runtime::collect_garbage(&self.data.runtime_dir(), &toolchain.runtime);
            empty::collect_garbage(&self.data.builds_dir(), &toolchain.empty);
        }
    }

    /// Removes the environments of a namespace that no longer exists, except those in `keep`. Blocking. Does nothing while
    /// another gateway shares the directory.
    pub fn collect_builds_of(&self, namespace: &NamespaceName, keep: &BTreeSet<PathBuf>) {
        if self.data.is_sole_user() {
            venv::collect_builds_of(&self.data, namespace, keep);
        }
    }

    /// The recent output of a namespace's installer. Installers that start later write to it, too.
    pub fn output(&self, namespace: &NamespaceName) -> Arc<RecentLines> {
        self.output.of(namespace)
    }

    /// Maximum duration of an installer's run.
    pub fn limit(&self) -> Duration {
        self.config.sync_timeout
    }

    fn base_path(&self) -> PathBuf {
        let root = self.data.root();
        let text = self
            .config
            .base_env
            .replace("$DATA", &root.to_string_lossy());
        std::path::absolute(&text).unwrap_or_else(|_| PathBuf::from(text))
    }
}

impl Toolchain {
    /// Returns true if the files of the toolchain are still in place.
    fn is_intact(&self) -> bool {
        self.interpreter.executable.is_file()
            && self.runtime.join("app").is_dir()
            && self.base.python.is_file()
            && self.base.site_packages.is_dir()
            && self.empty.is_dir()
    }
}

/// Runs blocking file operations in a thread for blocking work.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EnvironmentError> + Send + 'static,
) -> Result<T, EnvironmentError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| EnvironmentError::new("a file operation was interrupted"))?
}

/// Waits for a permit of a semaphore.
async fn turn(semaphore: &Semaphore) -> Result<SemaphorePermit<'_>, EnvironmentError> {
    let closed = |_| EnvironmentError::new("the gateway is stopping");
    semaphore.acquire().await.map_err(closed)
}

/// Suffix of the name of a temporary symlink that will replace another symlink.
const SWITCHING: &str = ".link";

/// Returns true for names of temporary symlinks of [`switch_symlink`]. A crash may leave such a symlink.
fn is_switch_leftover(file_name: &str) -> bool {
    file_name
        .strip_suffix(SWITCHING)
        .and_then(|name| name.rsplit_once('.'))
        .is_some_and(|(_, random)| {
            random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

/// Makes the symlink `link` point to `target`, atomically.
fn switch_symlink(link: &Path, target: &Path) -> Result<(), EnvironmentError> {
    if std::fs::read_link(link).is_ok_and(|current| current == target) {
        return Ok(());
    }
    let failed = |error: std::io::Error| EnvironmentError::io("switch", link, &error);
    let mut beside = link.as_os_str().to_owned();
    beside.push(format!(".{:016x}{SWITCHING}", fastrand::u64(..)));
    let beside = PathBuf::from(beside);
    fault::point();
    std::os::unix::fs::symlink(target, &beside).map_err(failed)?;
    fault::point();
    std::fs::rename(&beside, link).map_err(failed)?;
    fault::point();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tooldock_base::fault::{FOLDER, dying_everywhere};

    use super::*;

    /// Run by [`a_switch_that_is_killed_anywhere_leaves_the_old_environment_or_the_new_one`] in a separate process.
    #[test]
    #[ignore = "dies"]
    fn a_switch_that_is_killed() {
        let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
        switch_symlink(&folder.join("ns"), Path::new("new")).unwrap();
    }

    #[test]
    fn a_switch_that_is_killed_anywhere_leaves_the_old_environment_or_the_new_one() {
        let prepared = || {
            let folder = tempfile::tempdir().unwrap();
            switch_symlink(&folder.path().join("ns"), Path::new("old")).unwrap();
            folder
        };
        let test = "environment::tests::a_switch_that_is_killed";
        let died = dying_everywhere(test, &[], prepared, |at, folder| {
            let target = fs::read_link(folder.join("ns")).unwrap();
            let expected = if (1..=2).contains(&at) { "old" } else { "new" };
            assert_eq!(target, Path::new(expected), "{at}");
            let others = fs::read_dir(folder).unwrap().filter_map(|entry| {
                let name = entry.unwrap().file_name().into_string().unwrap();
                (name != "ns").then_some(name)
            });
            for name in others {
                assert!(is_switch_leftover(&name), "nobody would remove {name}");
            }
        });
        assert_eq!(died, 3);
    }
}
