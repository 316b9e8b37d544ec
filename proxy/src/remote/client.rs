//! The connection pools of all remote servers. A pool is created when a server is added, replaced when the server's configuration
//! changes, and dropped after the server is removed.
//!
//! Only the pool of the served version has an upkeep task. Requests may use a pool of another version until they end: requests
//! from before a reload, and requests that arrive before this module has processed the reload.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwapOption;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tooldock_base::names::NamespaceName;
use tooldock_credentials::secrets::{AuthorizationStore, PersonalSecrets};
use tooldock_upstream::http_client::{Backends, HttpClient};
use tooldock_workers::registry::{Registry, Snapshot, UpstreamKind};
use tooldock_workers::remote::{BackendSpec, RemoteServer};

use super::connect::Connector;
use super::headers::Headers;
use super::idle::Idle;
use super::lock;
use super::metrics::RemoteMetrics;
use super::names::{Addresses, Names};
use super::oauth::{ClientAuths, RemoteTokens};
use super::pool::{Core, Pool, PoolMember};
use super::tls::Material;
use super::upkeep;

/// Maximum number of versions of one server that have a pool. Older versions are kept for requests from before a reload.
const VERSIONS_MAX: usize = 16;

/// HTTP client for all remote servers.
pub(crate) struct RemoteClient {
    connector: Arc<Connector>,
    names: Arc<dyn Names>,
    metrics: Arc<RemoteMetrics>,
    /// The runtime on which the upkeep tasks of the pools run.
    control: Handle,
    /// Personal credentials of each principal for remote servers.
    personal: Arc<PersonalSecrets>,
    tokens: Arc<RemoteTokens>,
    /// The pools by server.
    servers: Mutex<Servers>,
}

type Servers = HashMap<NamespaceName, Versions>;

/// The pools of one server: that of the served version, and those of older versions.
#[derive(Default)]
struct Versions {
    served: Option<ServedPool>,
    /// Pools of versions other than the served one. Each exists only while a request uses it.
    others: Vec<Weak<Pool>>,
}

/// The pool of the served version. Dropping this value ends the pool's upkeep, even if requests still use the pool.
struct ServedPool {
    pool: Arc<Pool>,
    upkeep: AbortHandle,
}

impl Drop for ServedPool {
    fn drop(&mut self) {
        self.upkeep.abort();
    }
}

impl RemoteClient {
    pub(crate) fn new(
        names: Arc<dyn Names>,
        metrics: Arc<RemoteMetrics>,
        control: Handle,
        personal: Arc<PersonalSecrets>,
        authorizations: Option<Arc<AuthorizationStore>>,
    ) -> Arc<Self> {
        let of_tokens = Arc::clone(&metrics);
        Arc::new_cyclic(|client| Self {
            connector: Arc::default(),
            names,
            metrics,
            tokens: RemoteTokens::new(client.clone(), control.clone(), authorizations, of_tokens),
            control,
            personal,
            servers: Mutex::default(),
        })
    }

    /// For each OAuth client at a server, the form in which token endpoints accept its secret.
    pub(super) fn client_auths(&self) -> &ClientAuths {
        &self.tokens.client_auths
    }

    /// Waits for changes of the registry, and creates and drops pools as servers are added and removed. Never returns while the
    /// registry exists.
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

    fn install(&self, snapshot: &Snapshot) {
        let mut servers = lock(&self.servers);
        for (name, versions) in &mut *servers {
            let namespace = snapshot.find(name);
            if !namespace.is_some_and(|it| matches!(it.upstream, UpstreamKind::Remote(_))) {
                versions.served = None;
            }
        }
        servers.retain(|_, versions| versions.are_used());
        self.tokens.retain(|name| servers.contains_key(name));
        for namespace in snapshot.all() {
            if let UpstreamKind::Remote(server) = &namespace.upstream {
                self.serve_by(&mut servers, server);
            }
        }
    }

    /// Makes `server`, which is one version of a remote server's configuration, the served version. Returns its pool.
    fn serve_by(&self, servers: &mut Servers, server: &Arc<RemoteServer>) -> Arc<Pool> {
        let pool = self.pool(servers, server);
        let versions = servers.entry(server.name.clone()).or_default();
        if let Some(before) = versions.served() {
            if Arc::ptr_eq(before, &pool) {
                return pool;
            }
            *lock(&pool.leaving) = leaving(before, &pool.members);
        }
        for member in &pool.members {
            *lock(&member.core.served_in) = Arc::downgrade(&pool);
        }
        let upkeep = self.control.spawn(upkeep::keep(Arc::downgrade(&pool)));
        versions.served = Some(ServedPool {
            pool: Arc::clone(&pool),
            upkeep: upkeep.abort_handle(),
        });
        pool
    }

    /// The pool for requests that the gateway itself sends to a server.
    pub(super) fn pool_of(&self, server: &Arc<RemoteServer>) -> Arc<Pool> {
        self.pool(&mut lock(&self.servers), server)
    }

    /// Returns the pool of `server`, which is one version of a remote server's configuration, whether it is the served version
    /// or not. Creates the pool if it does not exist.
    fn pool(&self, servers: &mut Servers, server: &Arc<RemoteServer>) -> Arc<Pool> {
        let known = servers.get(&server.name);
        if let Some(found) = known.and_then(|known| known.of(server)) {
            return found;
        }
        let served = known.and_then(Versions::served);
        let pool = Arc::new(self.build(server, served.map(|it| &**it)));
        let versions = servers.entry(server.name.clone()).or_default();
        versions.note(&pool);
        pool
    }

    fn build(&self, server: &Arc<RemoteServer>, served: Option<&Pool>) -> Pool {
        let material = self.material(server, served);
        let served = served.filter(|it| same_connections(&it.server, server));
        let members = server.spec.backends.iter().map(|spec| {
            let kept =
                served.and_then(|it| it.members.iter().find(|it| it.spec.backend == spec.backend));
            let core = match kept {
                Some(kept) => Arc::clone(&kept.core),
                None => Arc::new(self.core(server, spec, &material)),
            };
            member(server, spec, core, false)
        });
        Pool::new(Arc::clone(server), members.collect())
    }

    /// The certificates of a server. If the configured ones cannot be used, those of the pool `before` stay in use, so that
    /// connections are still possible.
    fn material(&self, server: &RemoteServer, before: Option<&Pool>) -> Material {
        match Material::new(&server.spec.tls) {
            Ok(material) => material,
            Err((key, what)) => {
                let name = &server.name;
                tracing::error!(namespace = %name, "{}.{key}: {what}; the one before is used", server.key());
                let before = before.and_then(|it| it.members.first());
                before.map_or_else(Material::default, |it| it.core.material.clone())
            }
        }
    }

    fn core(&self, server: &RemoteServer, spec: &BackendSpec, material: &Material) -> Core {
        let series = self.metrics.series(&server.name, &spec.id);
        series.set_healthy((spec.weight > 0).then_some(true));
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
            personal: Arc::clone(&self.personal),
            tokens: Arc::clone(&self.tokens),
            in_flight: AtomicUsize::new(0),
            series,
            served_in: Mutex::default(),
        }
    }
}

fn member(
    server: &Arc<RemoteServer>,
    spec: &BackendSpec,
    core: Arc<Core>,
    removed: bool,
) -> Arc<PoolMember> {
    let rules = &server.spec;
    let token = rules.oauth.as_ref().map(|_| "authorization");
    let of_request: Vec<_> = rules.personal.names().chain(token).collect();
    let headers = Headers::new(&rules.headers, rules.credentials.as_ref(), &of_request);
    Arc::new(PoolMember {
        spec: spec.clone(),
        server: Arc::clone(server),
        headers: match rules.api {
            Some(_) => headers.of_api(),
            None => headers,
        },
        authority: spec.backend.authority(),
        core,
        removed,
        moved: ArcSwapOption::empty(),
        told_redirect: AtomicBool::new(false),
    })
}

/// Returns true if connections that were opened for one version of a server may be used for the other version.
fn same_connections(one: &RemoteServer, other: &RemoteServer) -> bool {
    let (one, other) = (&one.spec, &other.spec);
    one.tls == other.tls
        && one.allow_private == other.allow_private
        && one.keepalive == other.keepalive
}

/// Backends that still have running requests but are not among `members`, the backends of the new version.
fn leaving(before: &Pool, members: &[Arc<PoolMember>]) -> Vec<Arc<PoolMember>> {
    let earlier = lock(&before.leaving);
    let all = before.members.iter().chain(&*earlier);
    let left = all.filter(|old| {
        let stays = members.iter().any(|it| it.spec.id == old.spec.id);
        !stays && old.is_busy()
    });
    let left = left.map(|old| member(&old.server, &old.spec, Arc::clone(&old.core), true));
    left.collect()
}

impl Versions {
    fn served(&self) -> Option<&Arc<Pool>> {
        self.served.as_ref().map(|it| &it.pool)
    }

    fn of(&self, server: &Arc<RemoteServer>) -> Option<Arc<Pool>> {
        let is = |pool: &Pool| Arc::ptr_eq(&pool.server, server);
        if let Some(served) = self.served().filter(|it| is(it)) {
            return Some(Arc::clone(served));
        }
        let mut others = self.others.iter().filter_map(Weak::upgrade);
        others.find(|pool| is(pool))
    }

    fn note(&mut self, pool: &Arc<Pool>) {
        self.others.retain(|it| it.strong_count() > 0);
        if self.others.len() >= VERSIONS_MAX {
            self.others.remove(0);
        }
        self.others.push(Arc::downgrade(pool));
    }

    fn are_used(&self) -> bool {
        self.served.is_some() || self.others.iter().any(|it| it.strong_count() > 0)
    }
}

impl HttpClient for RemoteClient {
    fn backends(&self, server: &Arc<RemoteServer>) -> Arc<dyn Backends> {
        self.pool_of(server)
    }

    fn current(&self, name: &NamespaceName) -> Option<Arc<dyn Backends>> {
        let servers = lock(&self.servers);
        let served = servers.get(name)?.served()?;
        Some(Arc::clone(served) as Arc<dyn Backends>)
    }
}

#[cfg(test)]
impl RemoteClient {
    /// Serves the version `server`, as after a reload that published it.
    pub(super) fn serve(&self, server: &Arc<RemoteServer>) -> Arc<Pool> {
        self.serve_by(&mut lock(&self.servers), server)
    }

    /// Drops all pools, as after a reload that removed all servers.
    pub(super) fn forget_all(&self) {
        self.install(&Snapshot::default());
    }

    /// The upkeep task of the pool of `server`. `None` if this version is not the served one.
    pub(super) fn upkeep(&self, server: &Arc<RemoteServer>) -> Option<AbortHandle> {
        let servers = lock(&self.servers);
        let served = servers.get(&server.name)?.served.as_ref()?;
        Arc::ptr_eq(&served.pool.server, server).then(|| served.upkeep.clone())
    }
}
