//! Installations of packages that may outlive the reload run that began them. If a second run is requested, a run over all
//! namespaces ends while its installers continue, and the second run waits for them. So a slow package index does not delay
//! changes of namespaces that need no installer.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tooldock_base::names::NamespaceName;
use tooldock_process::environment::{
    EnvironmentError, NamespaceEnvironment, NamespacePackages, NodeEnvironment, NodePackages,
    Packages, Toolchain,
};
use tooldock_process::requirements::Requirements;

use super::{Reloader, lock};
use crate::scan::NamespaceSource;

/// The running installations of packages.
#[derive(Debug, Default)]
pub(super) struct Installs {
    python: RunningInstalls<PythonKey, NamespaceEnvironment>,
    node: RunningInstalls<NodeKey, NodeEnvironment>,
}

/// Running installations of one kind, by namespace.
#[derive(Debug)]
struct RunningInstalls<K, T>(Arc<Mutex<BTreeMap<NamespaceName, Install<K, T>>>>);

/// A running installation of a namespace's packages. Dropping it ends the installer.
#[derive(Debug)]
struct Install<K, T> {
    wanted: K,
    result: watch::Receiver<Option<Result<T, EnvironmentError>>>,
    task: AbortHandle,
}

impl<K, T> Drop for Install<K, T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Inputs of an installation for Python. Several runs with equal inputs share one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PythonKey {
    requirements: Option<Requirements>,
    packages: Vec<String>,
    files_hash: [u8; 32],
    toolchain: String,
}

/// Inputs of an installation for Node.js. Several runs with equal inputs share one installation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodeKey {
    packages: NodePackages,
    dir: PathBuf,
}

impl Installs {
    /// Returns true if packages are being installed for all of these namespaces.
    pub(super) fn are_all<'a>(&self, mut names: impl Iterator<Item = &'a NamespaceName>) -> bool {
        names.all(|name| self.python.has(name) || self.node.has(name))
    }

    /// Ends the installations of all namespaces except these.
    pub(super) fn keep(&self, names: &BTreeSet<NamespaceName>) {
        self.python.keep(names);
        self.node.keep(names);
    }
}

impl<K, T> Default for RunningInstalls<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, T> RunningInstalls<K, T>
where
    K: PartialEq + Send + 'static,
    T: Clone + Send + Sync + 'static,
{
    fn has(&self, name: &NamespaceName) -> bool {
        lock(&self.0).contains_key(name)
    }

    fn end(&self, name: &NamespaceName) {
        drop(lock(&self.0).remove(name));
    }

    fn keep(&self, names: &BTreeSet<NamespaceName>) {
        lock(&self.0).retain(|name, _| names.contains(name));
    }

    /// Returns the result of the namespace's installation. Waits for the running installation if it has the inputs `wanted`;
    /// otherwise ends the running installation, and begins a new one that runs `work`. `closing`: cancelled when the gateway
    /// ends, which ends the installation.
    async fn result(
        &self,
        name: &NamespaceName,
        wanted: K,
        closing: CancellationToken,
        work: impl Future<Output = Result<T, EnvironmentError>> + Send + 'static,
    ) -> Result<T, EnvironmentError> {
        let mut result = {
            let mut running = lock(&self.0);
            let is_same = |it: &&Install<K, T>| it.wanted == wanted && !it.task.is_finished();
            match running.get(name).filter(is_same) {
                Some(install) => install.result.clone(),
                None => {
                    let (sender, result) = watch::channel(None);
                    let task = Self(Arc::clone(&self.0)).run(name.clone(), closing, work, sender);
                    let install = Install {
                        wanted,
                        result: result.clone(),
                        task: tokio::spawn(task).abort_handle(),
                    };
                    running.insert(name.clone(), install);
                    result
                }
            }
        };
        let ended = result.wait_for(Option::is_some).await;
        let ended = ended.ok().and_then(|result| result.clone());
        ended.unwrap_or_else(|| {
            Err(EnvironmentError(
                "the installation was given up for a newer one".to_owned(),
            ))
        })
    }

    async fn run(
        self,
        name: NamespaceName,
        closing: CancellationToken,
        work: impl Future<Output = Result<T, EnvironmentError>>,
        result: watch::Sender<Option<Result<T, EnvironmentError>>>,
    ) {
        let installed = tokio::select! {
            installed = work => installed,
            () = closing.cancelled() => return,
        };
        // The entry is removed before the result is sent, so that no later run waits for an installation that has ended.
        let own = {
            let mut running = lock(&self.0);
            let is_own = |it: &Install<K, T>| it.result.same_channel(&result.subscribe());
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

impl Reloader {
    /// Prepares the Python environment of a namespace, with its packages. Waits for an installation with the same inputs that
    /// another run began; ends an installation with other inputs.
    ///
    /// # Errors
    ///
    /// As for [`tooldock_process::environment::Environments::prepare`].
    pub(super) async fn environment(
        self: &Arc<Self>,
        source: &NamespaceSource,
        toolchain: &Arc<Toolchain>,
        packages: Packages,
    ) -> Result<NamespaceEnvironment, EnvironmentError> {
        if packages == Packages::AsTheyAre {
            let prepared = self
                .environments
                .prepare(source.packages(), toolchain, packages);
            return prepared.await;
        }
        let NamespacePackages {
            namespace,
            requirements,
            packages,
            files_hash,
        } = source.packages();
        let wanted = PythonKey {
            requirements: requirements.cloned(),
            packages: packages.to_vec(),
            files_hash,
            toolchain: toolchain.id.clone(),
        };
        let (reloader, inputs) = (Arc::clone(self), wanted.clone());
        let (name, toolchain) = (namespace.clone(), Arc::clone(toolchain));
        let work = async move {
            let packages = NamespacePackages {
                namespace: &name,
                requirements: inputs.requirements.as_ref(),
                packages: &inputs.packages,
                files_hash: inputs.files_hash,
            };
            let environments = &reloader.environments;
            environments
                .prepare(packages, &toolchain, Packages::Install)
                .await
        };
        self.installs.node.end(namespace);
        let running = &self.installs.python;
        let closing = self.closing.clone();
        running.result(namespace, wanted, closing, work).await
    }

    /// Prepares the packages of a namespace's Node.js program. Waits for an installation with the same inputs that another run
    /// began; ends an installation with other inputs.
    ///
    /// # Errors
    ///
    /// As for [`tooldock_process::environment::Environments::prepare_node`].
    pub(super) async fn node_environment(
        self: &Arc<Self>,
        source: &NamespaceSource,
        listed: &NodePackages,
        packages: Packages,
    ) -> Result<NodeEnvironment, EnvironmentError> {
        let (reloader, name) = (Arc::clone(self), source.name.clone());
        let wanted = NodeKey {
            packages: listed.clone(),
            dir: source.dir.clone(),
        };
        let inputs = wanted.clone();
        let work = async move {
            let environments = &reloader.environments;
            environments
                .prepare_node(&name, &inputs.dir, &inputs.packages, packages)
                .await
        };
        if packages == Packages::AsTheyAre {
            return work.await;
        }
        self.installs.python.end(&source.name);
        let running = &self.installs.node;
        let closing = self.closing.clone();
        running.result(&source.name, wanted, closing, work).await
    }
}
