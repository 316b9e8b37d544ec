//! Names in a run of the reload: several sources may claim a name, and only one of them is served under it. If a name now
//! belongs to a different namespace than in the previous run, the former namespace ends.

use std::sync::Arc;

use tooldock_base::names::NamespaceName;
use tooldock_base::precedence::{Claim, Names};
use tooldock_credentials::secrets::{OWNERS_FILE, Owners, RecordedOwners, Secrets, SecretsError};

use super::run::{Change, Changes};
use super::{Reloader, lock};
use crate::registry::Snapshot;
use crate::scan::NamespaceSource;
use crate::servers::configured;

impl Reloader {
    /// Decides for each name which source is served under it: the configuration, `external/config.yaml` as it was last read, or
    /// one of these folders. Folders that are not served under their name are removed from the list.
    pub(super) fn settle_names(&self, sources: &mut Vec<NamespaceSource>) -> Names {
        let servers = Arc::clone(&lock(&self.servers));
        let aggregates = Arc::clone(&lock(&self.aggregates));
        let file = Arc::clone(&lock(&self.servers_file));
        let vault = lock(&self.vault).clone();
        let elsewhere = vault.filter(|it| it.dir.is_some()).map(|it| it.name);
        let folder = |name: &NamespaceName| match elsewhere.as_ref() == Some(name) {
            true => Claim::vault(name),
            false => Claim::folder(name),
        };
        let folders = sources.iter().map(|source| folder(&source.name));
        let claims = configured(&servers, &aggregates).into_iter();
        let claims = claims.chain(file.claims()).chain(folders);
        let names = Names::settle(claims).with_refused(&servers.refused);
        sources.retain(|source| names.serves(&source.name, folder(&source.name).origin));
        names
    }

    /// Returns the secrets that the namespaces of these names may receive. New owners of secrets are recorded if `all` is true,
    /// which means that `names` contains all namespaces.
    pub(super) async fn bind_secrets(
        &self,
        secrets: &Secrets,
        names: &mut Names,
        all: bool,
    ) -> Secrets {
        let known = lock(&self.owners).clone();
        let RecordedOwners {
            owners: known,
            beside_values,
        } = match known {
            Some(known) => known,
            None => self.recorded_owners().await,
        };
        let servers = Arc::clone(&lock(&self.servers));
        let file = Arc::clone(&lock(&self.servers_file));
        let stdio = servers.stdio.iter();
        let stdio = stdio.filter_map(|(name, it)| (!it.personal.is_empty()).then_some(name));
        let remote = servers.over_http();
        let remote = remote.filter_map(|it| (!it.config.personal.is_empty()).then_some(it.name));
        let personal = stdio.chain(remote).chain(file.personal());
        let bound = known.bind(secrets, names, &personal.cloned().collect());
        names.note(bound.issues);
        // If the recorded owners could not be read, the result is not stored, so that the next run reads them again.
        if all && !bound.owners.is_incomplete() {
            let is_new = bound.owners != known;
            let beside_values = match is_new || !beside_values {
                true => self.record_owners(bound.owners.clone(), is_new).await,
                false => true,
            };
            *lock(&self.owners) = Some(RecordedOwners {
                owners: bound.owners,
                beside_values,
            });
        }
        bound.secrets
    }

    async fn recorded_owners(&self) -> RecordedOwners {
        let source = self.secrets.clone();
        let read = tokio::task::spawn_blocking(move || source.0.owners());
        read.await.ok().and_then(|read| {
            let told = |error: &SecretsError| tracing::error!(file = OWNERS_FILE, "which namespaces have the values of the secrets store is not known: {error}");
            read.inspect_err(told).ok()
        })
        .unwrap_or_else(|| RecordedOwners {
            owners: Owners::unknown(),
            beside_values: false,
        })
    }

    /// Records the owners of secrets. Returns true if the owners are stored together with the secrets' values. If they are not,
    /// logs that if `tell` is true.
    async fn record_owners(&self, owners: Owners, tell: bool) -> bool {
        let source = self.secrets.clone();
        let recorded = tokio::task::spawn_blocking(move || source.0.record_owners(&owners)).await;
        match recorded {
            Ok(Ok(true)) => return true,
            Ok(Ok(false)) if tell => tracing::warn!(
                file = OWNERS_FILE,
                "which namespaces have the values of the secrets store is recorded in {OWNERS_FILE}, which tools can remove: secrets.enc is not there, not encrypted in the present format, a link or a file of another user, or is being edited"
            ),
            Ok(Err(error)) if tell => tracing::warn!(
                file = OWNERS_FILE,
                "which namespaces have the values of the secrets store is known until the gateway ends, since it cannot be recorded: {error}"
            ),
            _ => {}
        }
        false
    }

    /// Puts these names into force, and logs each new issue. If a name now belongs to a different namespace, the former one ends:
    /// it is added to `changes` as removed, and missing in the returned snapshot, so that the new one gets none of its state.
    pub(super) fn adopt_names(
        &self,
        names: &Arc<Names>,
        before: &Arc<Snapshot>,
        changes: &mut Changes,
    ) -> Arc<Snapshot> {
        let known = std::mem::replace(&mut *lock(&self.names), Arc::clone(names));
        let told = known.all_issues();
        let issues = names.all_issues();
        for (name, issue) in issues.iter().filter(|it| !told.contains(it)) {
            tracing::warn!(namespace = %name, code = issue.code, "{}: {}", issue.subject, issue.message);
        }
        self.registry.set_unserved(names.unserved());
        let changed = names.changed_hands(&known);
        if changed.is_empty() {
            return Arc::clone(before);
        }
        let mut kept = Snapshot {
            generation: before.generation,
            namespaces: before.namespaces.clone(),
        };
        for name in changed {
            if kept.namespaces.remove(name).is_some() {
                changes.insert(name.clone(), Change::Remove);
            }
        }
        Arc::new(kept)
    }
}
