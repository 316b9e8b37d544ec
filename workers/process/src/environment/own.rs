//! The manager's own Python environment, `venvs/.manager` → `venvs/.builds/manager_<hash>`, separate from those of namespaces.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tooldock_base::data_dir::{DataDir, short_hash, write_atomically};
use tooldock_base::regular_file;

use super::installer::Step;
use super::{
    EnvironmentError, Environments, FileLock, LockOf, Toolchain, blocking, empty,
    is_switch_leftover, stamp, switch_symlink, venv,
};
use crate::child::Priority;

/// Name of the symlink in `venvs/` that refers to the manager's environment.
const LINK: &str = ".manager";
/// Lock file that is locked while packages are installed for the manager.
const LOCK: &str = ".manager.lock";
/// Prefix of the names of the manager's builds. It has no `-` and no `.`, so they cannot be names of a namespace's builds.
const PREFIX: &str = "manager_";
/// Name of the file in a build with the requested packages, one requirement per line.
const ASKED: &str = "tooldock-packages.txt";
/// Maximum size of the file [`ASKED`], in bytes.
const ASKED_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum number of packages in the manager's environment.
const PACKAGES_MAX: usize = 200;

impl Environments {
    /// Installs packages, by name, in addition to those already installed. A complete new environment replaces the previous one.
    ///
    /// # Errors
    ///
    /// The output of the installer. The environment is then not changed.
    pub async fn install_own(
        &self,
        toolchain: &Toolchain,
        packages: BTreeMap<String, String>,
    ) -> Result<(), EnvironmentError> {
        let link = self.data.venvs_dir().join(LINK);
        let builds = self.data.builds_dir();
        let lock = self.data.venvs_dir().join(LOCK);
        let _lock = LockOf::take(lock, link.clone(), self.config.sync_timeout).await?;
        let before = fs::read_link(&link)
            .ok()
            .map(|target| self.data.venvs_dir().join(target));
        let asked = before
            .as_ref()
            .map(|build| regular_file::read(&build.join(ASKED), ASKED_BYTES_MAX));
        let asked = asked.and_then(Result::ok).unwrap_or_default();
        let asked = String::from_utf8(asked).unwrap_or_default();
        let mut all: BTreeMap<String, String> = asked
            .lines()
            .filter_map(|line| line.split_once(' '))
            .map(|(name, requirement)| (name.to_owned(), requirement.to_owned()))
            .collect();
        all.extend(packages);
        if all.len() > PACKAGES_MAX {
            return Err(EnvironmentError(format!(
                "the manager's environment would have more than {PACKAGES_MAX} packages"
            )));
        }
        let written = all
            .iter()
            .map(|(name, requirement)| format!("{name} {requirement}\n"));
        let written: String = written.collect();
        let key = short_hash(format!("{}\0{written}", toolchain.interpreter.id).as_bytes());
        let build = builds.join(format!("{PREFIX}{key}"));
        if !stamp::is_complete(&build, &key) {
            let (template, fresh) = (toolchain.empty.clone(), build.clone());
            blocking(move || {
                venv::remove_tree(&fresh)?;
                empty::copy(&template, &fresh)
            })
            .await?;
            let (program, mut arguments) = venv::install_command(
                &build,
                toolchain,
                venv::OutputVolume::Errors,
                venv::Cache::Used,
            );
            arguments.extend(all.into_values().map(OsString::from));
            let step = Step {
                doing: "install packages",
                program: &program,
                arguments,
                directory: Path::new("/"),
                variables: Vec::new(),
                limit: self.config.sync_timeout,
                priority: Priority::Low,
                lines: None,
            };
            let turn = super::turn(&self.installs).await?;
            let installed = self.installer.run(step).await;
            drop(turn);
            if let Err(error) = installed {
                let _ = blocking(move || venv::remove_tree(&build)).await;
                return Err(error);
            }
        }
        let venvs = self.data.venvs_dir();
        blocking(move || {
            let list = build.join(ASKED);
            write_atomically(&list, written.as_bytes(), 0o644)
                .map_err(|error| EnvironmentError::io("write", &list, &error))?;
            stamp::write(&build, &key)?;
            let name = build.file_name().unwrap_or_default();
            switch_symlink(&link, &Path::new(".builds").join(name))?;
            // Leftovers of a crash and the previous environment are removed.
            for entry in fs::read_dir(venvs).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if name.starts_with(".manager.") && is_switch_leftover(&name) {
                    let _ = fs::remove_file(entry.path());
                }
            }
            for entry in fs::read_dir(&builds).into_iter().flatten().flatten() {
                if is_own(&entry.path()) && entry.path() != build {
                    venv::remove_tree(&entry.path())?;
                }
            }
            Ok(())
        })
        .await
    }
}

/// Removes builds of the manager's environment that were never finished.
pub(super) fn collect_garbage(data: &DataDir) {
    let venvs = data.venvs_dir();
    let current = fs::read_link(venvs.join(LINK)).map(|target| venvs.join(target));
    let builds = fs::read_dir(data.builds_dir());
    let builds = builds.into_iter().flatten().flatten();
    let unused: Vec<_> = builds
        .map(|entry| entry.path())
        .filter(|build| is_own(build) && current.as_ref().ok() != Some(build))
        .collect();
    if unused.is_empty() {
        return;
    }
    // Another process may be installing now, or may have finished since the link was read, so it is read again under the lock.
    let Ok(Some(_lock)) = FileLock::try_take(&venvs.join(LOCK)) else {
        return;
    };
    let current = fs::read_link(venvs.join(LINK)).map(|target| venvs.join(target));
    for build in unused {
        if current.as_ref().ok() != Some(&build) {
            let _ = venv::remove_tree(&build);
        }
    }
}

fn is_own(build: &Path) -> bool {
    let name = build.file_name().unwrap_or_default();
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}
