//! Background tasks for API keys in a running gateway: one follows changes of the keys, another warns of keys that open no tools.
//! Streams of a key that is no longer valid are ended elsewhere (`gateway/credential_validity.rs`).

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tooldock_credentials::keys::{ChangeSocket, KeyState, KeyStore, KeyTable};
use tooldock_workers::registry::{Registry, Snapshot, UpstreamKind};

/// Starts the two background tasks: for changes of the keys, and for warnings about keys that open no tools.
pub(super) fn start(
    keys: &Arc<KeyStore>,
    changes: Option<ChangeSocket>,
    registry: &Arc<Registry>,
    control: &Runtime,
) {
    control.spawn(Arc::clone(keys).follow(changes));
    control.spawn(warn_of_idle_scopes(Arc::clone(keys), registry.subscribe()));
}

/// Binds the socket on which other processes announce that they have changed the keys. Must be called before the keys are read.
/// Without the socket, changes are found by checking the file several times a second.
pub(super) fn change_socket(file: &Path) -> Option<ChangeSocket> {
    let told = |error| {
        let file = file.display();
        tracing::warn!(%error, "{file}: changes of API keys by other processes count within a second, not at once");
    };
    ChangeSocket::bind(file).map_err(told).ok()
}

/// Warns once about each list of scopes that opens no tool. Nothing is logged while some tools are unknown.
async fn warn_of_idle_scopes(keys: Arc<KeyStore>, mut published: watch::Receiver<Arc<Snapshot>>) {
    let mut changes = keys.changes();
    let mut told = BTreeSet::new();
    loop {
        // Waits for one of two changes:
        // - keys or scopes have changed
        // - tools have changed
        let ended = tokio::select! {
            changed = changes.changed() => changed.is_err(),
            changed = published.changed() => changed.is_err(),
        };
        if ended {
            return;
        }
        let snapshot = Arc::clone(&published.borrow_and_update());
        let idle = idle_scopes(&keys.tables().load(), &snapshot);
        for (scopes, id) in &idle {
            if !told.contains(scopes) {
                tracing::warn!(
                    scopes,
                    key = id,
                    "no tool that is served now is open to API keys with these scopes"
                );
            }
        }
        told = idle.into_iter().map(|(scopes, _)| scopes).collect();
    }
}

/// The lists of scopes of active keys that open no tool, each with the id of one such key. Empty if there are external servers:
/// their tools are not known here, and might be opened by the scopes.
fn idle_scopes(table: &KeyTable, snapshot: &Snapshot) -> Vec<(String, String)> {
    let is_known = |kind: &UpstreamKind| {
        matches!(
            kind,
            UpstreamKind::Empty | UpstreamKind::Worker(_) | UpstreamKind::Failed(_)
        )
    };
    let mut namespaces = snapshot.namespaces.values();
    if snapshot.generation == 0 || !namespaces.all(|it| is_known(&it.upstream)) {
        return Vec::new();
    }
    let now = SystemTime::now();
    // Keys with the same scopes share one compiled list, so each list is checked only once.
    let mut seen = HashSet::new();
    let mut idle = Vec::new();
    for key in table
        .iter()
        .filter(|key| key.record().state(now) == KeyState::Active)
    {
        let (tools, opens) = (&key.grant().tools, key.namespaces());
        if !seen.insert((Arc::as_ptr(tools), Arc::as_ptr(opens))) {
            continue;
        }
        let open = snapshot.namespaces.values().any(|namespace| {
            opens.opens(&namespace.name) && namespace.tools.iter().any(|it| tools.allows(&it.name))
        });
        if !open {
            idle.push((key.record().scopes.join(","), key.record().id.to_string()));
        }
    }
    idle
}
