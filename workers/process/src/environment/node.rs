//! The packages of a namespace's Node.js program: `venvs/.builds/<ns>-<hash>/node_modules`.
//!
//! The namespace's folder gets a symlink `node_modules` to that folder, since Node looks for packages only beside and above the
//! program's file. A folder `node_modules` that the author made is used as it is, and nothing is installed. Scripts of packages
//! never run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tooldock_base::data_dir::{short_hash, write_atomically};
use tooldock_base::names::NamespaceName;

use super::installer::Step;
use super::interpreter::find_program;
use super::lock::FileLock;
use super::venv::{point, remove_tree};
use super::{
    EnvironmentError, Environments, LOCAL_STEP, Packages, blocking, stamp, switch_symlink, turn,
};
use crate::child::Priority;
use crate::child::variables::server_variables;

/// Name of the folder in which Node looks for packages.
const MODULES: &str = "node_modules";
/// Name of the file that lists the packages.
const MANIFEST: &str = "package.json";
/// Name of the file that fixes the version of each package.
const LOCK: &str = "package-lock.json";

/// The packages that a Node.js program needs, as its files list them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodePackages {
    /// Content of `package.json`.
    pub manifest: Arc<[u8]>,
    /// Content of `package-lock.json`; `None` if there is none.
    pub lock: Option<Arc<[u8]>>,
}

/// Packages of a namespace's Node.js program, ready for use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEnvironment {
    /// Folder with the installed packages; `None` if the author's own `node_modules` is used.
    pub build: Option<PathBuf>,
    /// True if packages were installed, false if none had to be.
    pub synced: bool,
}

impl Environments {
    /// Installs the packages of a Node.js program for the namespace's folder `dir`, unless they are installed already.
    ///
    /// # Errors
    ///
    /// When npm is missing, fails or exceeds its time limit, when the files cannot be written, or when packages would have to be
    /// installed and `packages` forbids that.
    pub async fn prepare_node(
        &self,
        namespace: &NamespaceName,
        dir: &Path,
        wanted: &NodePackages,
        packages: Packages,
    ) -> Result<NodeEnvironment, EnvironmentError> {
        let modules = dir.join(MODULES);
        let builds = self.data.builds_dir();
        let is_ours = fs::read_link(&modules).is_ok_and(|target| is_build(&target));
        if !is_ours && modules.symlink_metadata().is_ok() {
            return Ok(NodeEnvironment {
                build: None,
                synced: false,
            });
        }
        let limit = match packages {
            Packages::Install => self.config.sync_timeout,
            Packages::AsTheyAre => LOCAL_STEP,
        };
        let mut key = format!("node\0{}\0", wanted.manifest.len()).into_bytes();
        key.extend_from_slice(&wanted.manifest);
        key.extend_from_slice(wanted.lock.as_deref().unwrap_or_default());
        let key = short_hash(&key);
        let build = builds.join(format!("{namespace}-{key}"));
        let _lock = FileLock::take(builds.join(format!("{namespace}.lock")), limit).await?;
        let missing = !stamp::is_stamped(&build, &key);
        if missing {
            if packages == Packages::AsTheyAre {
                return Err(EnvironmentError::new(format!(
                    "the packages of namespace {namespace} changed: a reload (POST /reload or SIGHUP) installs them"
                )));
            }
            self.install_node(namespace, &build, wanted).await?;
        }
        let (venv, link) = (
            self.data.venvs_dir().join(namespace.as_str()),
            build.clone(),
        );
        blocking(move || {
            if missing {
                stamp::write(&link, &key)?;
            }
            point(&venv, &link)?;
            switch_symlink(&modules, &link.join(MODULES))
        })
        .await?;
        Ok(NodeEnvironment {
            build: Some(build),
            synced: missing,
        })
    }

    async fn install_node(
        &self,
        namespace: &NamespaceName,
        build: &Path,
        wanted: &NodePackages,
    ) -> Result<(), EnvironmentError> {
        let npm = find_program("npm").ok_or_else(|| {
            EnvironmentError::new("npm is not on PATH: install Node.js, which brings it")
        })?;
        let (folder, files) = (build.to_owned(), wanted.clone());
        blocking(move || {
            remove_tree(&folder)?;
            fs::create_dir_all(folder.join(MODULES))
                .map_err(|error| EnvironmentError::io("create", &folder, &error))?;
            let lock = files.lock.iter().map(|it| (LOCK, it));
            for (name, content) in [(MANIFEST, &files.manifest)].into_iter().chain(lock) {
                let path = folder.join(name);
                write_atomically(&path, content, 0o644)
                    .map_err(|error| EnvironmentError::io("write", &path, &error))?;
            }
            Ok(())
        })
        .await?;
        let how = match wanted.lock {
            Some(_) => "ci",
            None => "install",
        };
        let registry = server_variables().into_iter();
        let registry = registry.filter(|(name, _)| {
            let name = name.to_string_lossy().to_ascii_lowercase();
            name.starts_with("npm_config_") || name == "node_extra_ca_certs"
        });
        let step = Step {
            doing: "install the packages of package.json",
            program: &npm,
            arguments: [
                how,
                "--ignore-scripts",
                "--omit=dev",
                "--no-audit",
                "--no-fund",
            ]
            .map(OsString::from)
            .into(),
            directory: build,
            variables: registry.collect(),
            limit: self.config.sync_timeout,
            priority: Priority::Low,
            lines: Some(self.output.of(namespace)),
        };
        let _turn = turn(&self.installs).await?;
        self.installer.run(step).await?;
        Ok(())
    }
}

/// Returns true if the target of a symlink is a folder of packages that a gateway installed, in this or another data directory
/// (the symlink may come from a backup); false for any other target.
pub fn is_build(target: &Path) -> bool {
    let builds = target.parent().and_then(Path::parent);
    target.ends_with(MODULES) && builds.is_some_and(|it| it.ends_with("venvs/.builds"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_packages_of_any_data_directory_is_the_gateways() {
        for (target, expected) in [
            ("/data/venvs/.builds/ns-0123456789abcdef/node_modules", true),
            (
                "/old/data/venvs/.builds/ns-0123456789abcdef/node_modules",
                true,
            ),
            ("/home/me/project/node_modules", false),
            ("../shared/node_modules", false),
        ] {
            assert_eq!(is_build(Path::new(target)), expected, "{target}");
        }
    }
}
