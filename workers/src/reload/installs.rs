//! Installations of packages that may outlive the reload run that began them. If a second run is requested, a run over all
//! namespaces ends while its installers continue, and the second run waits for them. So a slow package index does not delay
//! changes of namespaces that need no installer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tooldock_base::names::NamespaceName;
use tooldock_process::environment::{
    EnvironmentError, NamespaceEnvironment, NamespacePackages, Packages, Toolchain,
};
use tooldock_process::requirements::Requirements;

use super::{Reloader, lock};
use crate::scan::NamespaceSource;

type Installed = Result<NamespaceEnvironment, EnvironmentError>;

/// The running installations of packages, by namespace.
#[derive(Debug, Default)]
pub(super) struct Installs(Mutex<BTreeMap<NamespaceName, Install>>);

/// A running installation of a namespace's packages. Dropping it ends the installer.
#[derive(Debug)]
struct Install {
    wanted: InstallKey,
    result: watch::Receiver<Option<Installed>>,
    task: AbortHandle,
}

impl Drop for Install {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Inputs of an installation. Several runs with equal inputs share one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct InstallKey {
    requirements: Option<Requirements>,
    packages: Vec<String>,
    files_hash: [u8; 32],
    toolchain: String,
}

impl Installs {
    /// Returns true if packages are being installed for all of these namespaces.
    pub(super) fn are_all<'a>(&self, mut names: impl Iterator<Item = &'a NamespaceName>) -> bool {
        let running = lock(&self.0);
        names.all(|name| running.contains_key(name))
    }

    /// Ends the installations of all namespaces except these.
    pub(super) fn keep(&self, names: &BTreeSet<NamespaceName>) {
        lock(&self.0).retain(|name, _| names.contains(name));
    }
}

impl Reloader {
    /// Prepares the environment of a namespace, with its packages. Waits for an installation with the same inputs that another
    /// run began; ends an installation with other inputs.
    ///
    /// # Errors
    ///
    /// As for [`tooldock_process::environment::Environments::prepare`].
    pub(super) async fn environment(
        self: &Arc<Self>,
        source: &NamespaceSource,
        toolchain: &Arc<Toolchain>,
        packages: Packages,
    ) -> Installed {
        if packages == Packages::AsTheyAre {
            let prepared = self
                .environments
                .prepare(source.packages(), toolchain, packages);
            return prepared.await;
        }
        let mut result = self.install(source, toolchain);
        let ended = result.wait_for(Option::is_some).await;
        let ended = ended.ok().and_then(|result| result.clone());
        ended.unwrap_or_else(|| {
            Err(EnvironmentError(
                "the installation was given up for a newer one".to_owned(),
            ))
        })
    }

    /// Returns the receiver of the installation's result. Begins the installation unless one with the same inputs is running.
    fn install(
        self: &Arc<Self>,
        source: &NamespaceSource,
        toolchain: &Arc<Toolchain>,
    ) -> watch::Receiver<Option<Installed>> {
        let NamespacePackages {
            namespace,
            requirements,
            packages,
            files_hash,
        } = source.packages();
        let wanted = InstallKey {
            requirements: requirements.cloned(),
            packages: packages.to_vec(),
            files_hash,
            toolchain: toolchain.id.clone(),
        };
        let mut running = lock(&self.installs.0);
        let is_same = |it: &&Install| it.wanted == wanted && !it.task.is_finished();
        if let Some(install) = running.get(namespace).filter(is_same) {
            return install.result.clone();
        }
        let (sender, result) = watch::channel(None);
        let task = Arc::clone(self).run_install(
            namespace.clone(),
            wanted.clone(),
            Arc::clone(toolchain),
            sender,
        );
        let install = Install {
            wanted,
            result: result.clone(),
            task: tokio::spawn(task).abort_handle(),
        };
        running.insert(namespace.clone(), install);
        result
    }

    async fn run_install(
        self: Arc<Self>,
        name: NamespaceName,
        wanted: InstallKey,
        toolchain: Arc<Toolchain>,
        result: watch::Sender<Option<Installed>>,
    ) {
        let packages = NamespacePackages {
            namespace: &name,
            requirements: wanted.requirements.as_ref(),
            packages: &wanted.packages,
            files_hash: wanted.files_hash,
        };
        let prepared = self
            .environments
            .prepare(packages, &toolchain, Packages::Install);
        let installed = tokio::select! {
            installed = prepared => installed,
            () = self.closing.cancelled() => return,
        };
        // Removed from the map before the result is sent, so that no later run waits for an installation that has ended.
        let own = {
            let mut running = lock(&self.installs.0);
            let is_own = |it: &Install| it.result.same_channel(&result.subscribe());
            match running.get(&name).is_some_and(is_own) {
                true => running.remove(&name),
                false => None,
            }
        };
        result.send_replace(Some(installed));
        // Dropping the installation aborts this task, which has no work left.
        drop(own);
    }
}
