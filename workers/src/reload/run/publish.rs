//! Publication of a run's changes to the registry, and the end of workers that serve no namespace.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tooldock_base::names::NamespaceName;
use tooldock_process::worker::Worker;

use super::{Change, Changes};
use crate::registry::{Namespace, Snapshot};
use crate::reload::automatic::ReloadScope;
use crate::reload::{Reloader, external, lock};

impl Reloader {
    /// Ends the workers of the run's namespaces that failed to start and are still being restarted. The run starts these
    /// namespaces itself.
    pub(super) fn take_over_recovering(self: &Arc<Self>, scope: &ReloadScope) {
        let taken: Vec<_> = {
            let mut fleet = lock(&self.fleet);
            let recovering = std::mem::take(&mut fleet.recovering);
            let (taken, left) = recovering
                .into_iter()
                .partition(|(name, _)| scope.covers(name));
            fleet.recovering = left;
            let taken: BTreeMap<_, _> = taken;
            taken.into_values().collect()
        };
        for worker in taken {
            self.retire(worker, Duration::ZERO);
        }
    }

    /// Ends the workers that were started for a namespace but do not serve it.
    pub(super) fn retire_unpublished(self: &Arc<Self>, name: &NamespaceName) {
        let serving = self.registry.namespace(name.as_str());
        let serves = |worker: &Arc<Worker>| {
            let serving = serving.as_ref();
            serving.is_some_and(|namespace| namespace.is_run_by(worker))
        };
        let workers: Vec<_> = lock(&self.fleet)
            .members
            .iter()
            .map(|member| Arc::clone(&member.worker))
            // A retired worker is excluded: it still finishes its last calls.
            .filter(|worker| !worker.is_retired())
            .filter(|worker| worker.spec().namespace == *name && !serves(worker))
            .collect();
        for worker in workers {
            self.retire(worker, Duration::ZERO);
        }
    }

    /// Publishes a snapshot with these changes. Returns the namespaces that were replaced or removed.
    pub(in crate::reload) fn publish(
        &self,
        changes: Changes,
    ) -> Vec<(NamespaceName, Arc<Namespace>)> {
        let _publishing = lock(&self.publishing);
        let before = self.registry.snapshot();
        let mut namespaces = before.namespaces.clone();
        let mut replaced = Vec::new();
        for (name, change) in changes {
            let old = match change {
                Change::Publish(namespace) => namespaces.insert(name.clone(), namespace),
                Change::Remove => namespaces.remove(&name),
            };
            replaced.extend(old.map(|old| (name, old)));
        }
        let next = Snapshot {
            generation: before.generation + 1,
            namespaces,
        };
        let servers = self.host.metrics.servers();
        servers.serve(external::served(&next));
        self.registry.swap(next);
        replaced
    }
}
