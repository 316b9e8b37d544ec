//! The example namespace that the first start of a gateway creates: its environment is built in the background, and the
//! attempt is repeated if packages cannot be downloaded.
//!
//! As long as the example's folder is unchanged, neither the first scan nor a reload of other namespaces waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use tooldock_base::data_dir::{STARTER, is_starter};
use tooldock_base::names::NamespaceName;
use tooldock_process::environment::EnvironmentError;

use super::Reloader;
use super::automatic::ReloadScope;
use super::run::{Change, Changes};
use super::wanted::DesiredNamespace;
use crate::scan::NamespaceSource;

/// Delay after the first failure to build the environment; it doubles with each further failure.
const RETRY_FIRST: Duration = Duration::from_secs(5);

/// Maximum delay between two attempts to build the environment.
const RETRY_MAX: Duration = Duration::from_secs(120);

/// Removes the example namespace from the sources of a run and returns it, if the run would need a base environment only for
/// this namespace.
pub(super) fn taken_out(
    reloader: &Reloader,
    sources: &mut Vec<NamespaceSource>,
) -> Option<NamespaceSource> {
    let startup = reloader.registry.startup();
    let mut python = sources.iter().filter(|source| source.needs_python());
    let only = python.next().filter(|_| python.next().is_none())?;
    let beside = startup.is_scanning()
        || startup.is_retried(&only.name)
        || startup.late().contains(&only.name);
    if !beside || only.name.as_str() != STARTER || !is_starter(&only.dir) {
        return None;
    }
    let at = sources.iter().position(|source| source.needs_python())?;
    Some(sources.remove(at))
}

impl Reloader {
    /// Starts the example namespace in the background, as soon as its environment can be built.
    pub(super) fn bring_up_starter(self: &Arc<Self>, wanted: DesiredNamespace) {
        let reloader = Arc::clone(self);
        tokio::spawn(async move {
            tokio::select! {
                () = reloader.starter(&wanted) => {}
                () = reloader.closing.cancelled() => {}
            }
        });
    }

    async fn starter(self: &Arc<Self>, wanted: &DesiredNamespace) {
        let name = &wanted.source.name;
        let startup = self.registry.startup();
        let mut pause = RETRY_FIRST;
        let mut told = None;
        loop {
            match self.environments.toolchain().await {
                Ok(_) => {
                    startup.made(name);
                    // A failure is ignored here, because the reload has published and logged it.
                    let _ = self.request(ReloadScope::Only([name.clone()].into())).await;
                    return startup.came_up(name);
                }
                Err(error) => {
                    if told.as_ref() != Some(&error.0) {
                        tracing::warn!(
                            namespace = %name,
                            "the example namespace {name} has no environment yet and is tried again (namespaces.starter: false leaves it away): {error}"
                        );
                    }
                    told = Some(error.0.clone());
                    if !self.publish_unmade(wanted, error) {
                        return;
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Publishes the example namespace as failed, so that calls report why it has no environment. Returns true if the environment
    /// must be retried, false if a reload has taken over.
    fn publish_unmade(&self, wanted: &DesiredNamespace, error: EnvironmentError) -> bool {
        let name = &wanted.source.name;
        let startup = self.registry.startup();
        if startup.is_retried(name) {
            return true;
        }
        if !startup.late().contains(name) {
            return false;
        }
        startup.retried(name);
        let failed = wanted.failed(None, "dependency_error", &error.into());
        self.publish(Changes::from([(name.clone(), Change::Publish(failed))]));
        startup.came_up(name);
        true
    }

    /// Returns true if the namespace is served from a folder, or starts in the background.
    pub(super) fn has_folder_of(&self, name: &NamespaceName) -> bool {
        match self.registry.namespace(name.as_str()) {
            Some(served) => served.has_folder(),
            None => self.registry.startup().late().contains(name),
        }
    }
}
