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
//! Nothing here is changed in place: an environment is built beside the old one, stamped when complete, and switched to by a
//! rename, so a failed or interrupted build does not affect the environments in use. Installers run under the guard, with a time
//! limit and their own environment variables. No tool code runs here.

mod base;
mod empty;
mod installer;
mod interpreter;
mod lock;
mod own;
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
pub use script::BOUNDS;
pub use venv::NamespaceEnvironment;
pub(crate) use venv::PTH_FILE;

/// Maximum number of installs that run at once.
const INSTALLS_MAX: usize = 4;

/// Maximum number of the gateway's scripts that run at once.
const SCRIPTS_MAX: usize = 2;

/// Maximum time of a step without network: probing an interpreter, making an empty environment.
const LOCAL_STEP: Duration = Duration::from_secs(60);

/// Reason why an environment could not be made. One line for clients and operators, without credentials.
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

/// Packages of a namespace's environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespacePackages<'a> {
    /// The namespace.
    pub namespace: &'a NamespaceName,
    /// Content of its `requirements.txt`.
    pub requirements: Option<&'a Requirements>,
    /// Hash over the files on this machine that the requirements name.
    pub files_hash: [u8; 32],
}

/// Permission to install packages for a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packages {
    /// Allowed: a reload was requested.
    Install,
    /// The installation is not allowed: the namespace reloads itself. Code that edits its own requirements must not start an
    /// installer, and no requested reload may wait for such an installer.
    AsTheyAre,
}

/// The interpreter, runtime and packages that all namespaces' environments are built on.
#[derive(Debug)]
pub struct Toolchain {
    interpreter: Interpreter,
    /// The directory that holds `app` of the Python runtime.
    runtime: PathBuf,
    base: Base,
    /// The empty environment that is copied for each namespace.
    empty: PathBuf,
    /// Identity of interpreter, runtime and base environment: all three are equal for toolchains of equal id.
    pub id: String,
}

/// Prepares interpreters for namespaces.
#[derive(Debug)]
pub struct Environments {
    data: Arc<DataDir>,
    config: WorkersConfig,
    installer: Installer,
    installs: Semaphore,
    scripts: Semaphore,
    /// Output of installers, by namespace, for operators who watch.
    output: RecentOutput,
    /// The last toolchain, used again while its files are still there. The lock guards a pointer and is never held across an
    /// await.
    current: Mutex<Option<Arc<Toolchain>>>,
    /// Held while the toolchain is made.
    making: Semaphore,
}

impl Environments {
    /// Environments in a data directory; installers run under `guard`.
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

    /// The toolchain, made if it is missing. The first caller makes it, and the others wait.
    ///
    /// # Errors
    ///
    /// The missing part, and the command to run.
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

    /// A namespace's environment, built if its requirements or the interpreter changed, and `venvs/<ns>` pointing to it.
    ///
    /// Dropping the future ends the installer.
    ///
    /// # Errors
    ///
    /// The last output of the installer. `venvs/<ns>` is then as it was.
    pub async fn prepare(
        &self,
        wanted: NamespacePackages<'_>,
        toolchain: &Toolchain,
        packages: Packages,
    ) -> Result<NamespaceEnvironment, EnvironmentError> {
        venv::prepare(self, wanted, toolchain, packages).await
    }

    /// Points `venvs/<ns>` back to the build that serves, after a new build's worker did not come up: otherwise a worker that
    /// is restarted later would run with the new packages.
    pub fn point_back(&self, namespace: &NamespaceName, build: &Path) {
        let link = self.data.venvs_dir().join(namespace.as_str());
        if let Err(error) = venv::point(&link, build) {
            tracing::warn!(%namespace, %error, "the environment of an earlier version could not be restored");
        }
    }

    /// Removes unused environments and runtimes: those not in `keep`, and not current for any of `namespaces`.
    ///
    /// Blocking. Does nothing while another gateway shares the directory: its workers are unknown here.
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

    /// Removes the environments of a namespace that is gone, except those in `keep`. Blocking. Does nothing while another gateway
    /// shares the directory.
    pub fn collect_builds_of(&self, namespace: &NamespaceName, keep: &BTreeSet<PathBuf>) {
        if self.data.is_sole_user() {
            venv::collect_builds_of(&self.data, namespace, keep);
        }
    }

    /// Output of a namespace's installer, from now on.
    pub fn output(&self, namespace: &NamespaceName) -> Arc<RecentLines> {
        self.output.of(namespace)
    }

    /// Maximum time of an installer's run.
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

/// Runs blocking file work away from the runtime's threads.
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

/// Suffix of the name of a symlink that is about to replace another.
const SWITCHING: &str = ".link";

/// Returns true for names that [`switch_symlink`] gives: a crash between its two steps leaves the file.
fn is_switch_leftover(file_name: &str) -> bool {
    file_name
        .strip_suffix(SWITCHING)
        .and_then(|name| name.rsplit_once('.'))
        .is_some_and(|(_, random)| {
            random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

/// Points `link` at `target` in one step.
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
