//! The pools of all servers: made when a server appears, swapped when it changes, left to end when it is gone.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, Weak};

use tokio::runtime::Handle;
use tooldock_upstream::http_client::{Backends, HttpClient};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::{Registry, Snapshot, UpstreamKind};
use tooldock_workers::remote::{BackendSpec, RemoteServer};

use super::connect::Connector;
use super::headers::Headers;
use super::idle::Idle;
use super::lock;
use super::metrics::RemoteMetrics;
use super::names::{Addresses, Names};
use super::pool::{Core, Member, Pool};
use super::tls::Material;
use super::upkeep;

/// Versions of one server that may be in use at once: those of requests that began before a reload.
const VERSIONS_MAX: usize = 16;

/// Reaches remote servers.
pub(crate) struct RemoteClient {
    connector: Arc<Connector>,
    names: Arc<dyn Names>,
    metrics: Arc<RemoteMetrics>,
    /// Where the upkeep of pools runs.
    control: Handle,
    /// Plain data.
    servers: Mutex<HashMap<NamespaceName, Versions>>,
}

/// The pool in use, and those of earlier versions that somebody still holds.
struct Versions {
    current: Arc<Pool>,
    earlier: Vec<Weak<Pool>>,
}

impl RemoteClient {
    pub(crate) fn new(
        names: Arc<dyn Names>,
        metrics: Arc<RemoteMetrics>,
        control: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            connector: Arc::default(),
            names,
            metrics,
            control,
            servers: Mutex::default(),
        })
    }

    /// Follows what is served: pools come and go with their servers. Runs until it is dropped.
    pub(crate) async fn follow(&self, registry: &Registry) {
        let mut published = registry.subscribe();
        loop {
            let snapshot = Arc::clone(&published.borrow_and_update());
            self.install(&snapshot);
            if published.changed().await.is_err() {
                return;
            }
        }
    }

    #[cfg(test)]
    pub(super) fn pool_of(&self, server: &Arc<RemoteServer>) -> Arc<Pool> {
        self.pool(&mut lock(&self.servers), server)
    }

    /// As if no server were configured any more.
    #[cfg(test)]
    pub(super) fn forget_all(&self) {
        self.install(&Snapshot::default());
    }

    fn install(&self, snapshot: &Snapshot) {
        let mut servers = lock(&self.servers);
        for namespace in snapshot.namespaces.values() {
            if let UpstreamKind::Remote(server) = &namespace.upstream {
                self.pool(&mut servers, server);
            }
        }
        servers.retain(|name, _| {
            let namespace = snapshot.namespaces.get(name);
            namespace.is_some_and(|it| matches!(it.upstream, UpstreamKind::Remote(_)))
        });
    }

    fn pool(
        &self,
        servers: &mut HashMap<NamespaceName, Versions>,
        server: &Arc<RemoteServer>,
    ) -> Arc<Pool> {
        let known = servers.get_mut(&server.name);
        if let Some(found) = known.as_ref().and_then(|known| known.of(server)) {
            return found;
        }
        let pool = Arc::new(self.build(server, known.as_deref().map(|it| &*it.current)));
        self.control.spawn(upkeep::keep(Arc::downgrade(&pool)));
        match known {
            Some(known) => known.replace(Arc::clone(&pool)),
            None => {
                let versions = Versions {
                    current: Arc::clone(&pool),
                    earlier: Vec::new(),
                };
                servers.insert(server.name.clone(), versions);
            }
        }
        pool
    }

    fn build(&self, server: &Arc<RemoteServer>, before: Option<&Pool>) -> Pool {
        let material = self.material(server, before);
        let same_connections =
            before.is_some_and(|before| same_connections(&before.server, server));
        let members = server.spec.backends.iter().map(|spec| {
            let kept = before.filter(|_| same_connections);
            let kept =
                kept.and_then(|it| it.members.iter().find(|it| it.spec.backend == spec.backend));
            let core = match kept {
                Some(kept) => Arc::clone(&kept.core),
                None => Arc::new(self.core(server, spec, &material)),
            };
            member(server, spec, core, false)
        });
        let members: Vec<_> = members.collect();
        let is_left = |old: &&Arc<Member>| {
            let stays = members.iter().any(|it| it.spec.id == old.spec.id);
            !stays && old.is_busy()
        };
        let mut leaving = Vec::new();
        if let Some(before) = before {
            let earlier = lock(&before.leaving);
            for old in before.members.iter().chain(&*earlier).filter(is_left) {
                leaving.push(member(&old.server, &old.spec, Arc::clone(&old.core), true));
            }
        }
        Pool::new(Arc::clone(server), members, leaving)
    }

    /// The certificates of a server. Those that cannot be used leave the ones before in use: connections go on.
    fn material(&self, server: &RemoteServer, before: Option<&Pool>) -> Material {
        match Material::new(&server.spec.tls) {
            Ok(material) => material,
            Err((key, what)) => {
                let name = &server.name;
                tracing::error!(namespace = %name, "upstreams.remote.{name}.{key}: {what}; the one before is used");
                let before = before.and_then(|it| it.members.first());
                before.map_or_else(Material::default, |it| it.core.material.clone())
            }
        }
    }

    fn core(&self, server: &RemoteServer, spec: &BackendSpec, material: &Material) -> Core {
        let series = self.metrics.series(&server.name, &spec.id);
        series.up.set(1);
        Core {
            health: Mutex::default(),
            idle: Idle::new(server.spec.keepalive),
            addresses: Addresses::new(
                spec.backend.host.clone(),
                server.spec.allow_private,
                Arc::clone(&self.names),
            ),
            material: material.clone(),
            connector: Arc::clone(&self.connector),
            in_flight: AtomicUsize::new(0),
            series,
        }
    }
}

fn member(
    server: &Arc<RemoteServer>,
    spec: &BackendSpec,
    core: Arc<Core>,
    removed: bool,
) -> Arc<Member> {
    let rules = &server.spec;
    Arc::new(Member {
        spec: spec.clone(),
        server: Arc::clone(server),
        headers: Headers::new(&rules.headers, rules.credentials.as_ref()),
        authority: spec.backend.authority(),
        core,
        removed,
    })
}

/// Whether connections made for one version of a server may serve another.
fn same_connections(one: &RemoteServer, other: &RemoteServer) -> bool {
    let (one, other) = (&one.spec, &other.spec);
    one.tls == other.tls
        && one.allow_private == other.allow_private
        && one.keepalive == other.keepalive
}

impl Versions {
    fn of(&self, server: &Arc<RemoteServer>) -> Option<Arc<Pool>> {
        let is = |pool: &Pool| Arc::ptr_eq(&pool.server, server);
        if is(&self.current) {
            return Some(Arc::clone(&self.current));
        }
        let mut earlier = self.earlier.iter().filter_map(Weak::upgrade);
        earlier.find(|pool| is(pool))
    }

    fn replace(&mut self, pool: Arc<Pool>) {
        let before = std::mem::replace(&mut self.current, pool);
        self.earlier.retain(|it| it.strong_count() > 0);
        if self.earlier.len() >= VERSIONS_MAX {
            self.earlier.remove(0);
        }
        self.earlier.push(Arc::downgrade(&before));
    }
}

impl HttpClient for RemoteClient {
    fn backends(&self, server: &Arc<RemoteServer>) -> Arc<dyn Backends> {
        self.pool(&mut lock(&self.servers), server)
    }
}
