//! The pools of all stdio and remote servers in the registry.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;
use tooldock_credentials::secrets::PersonalSecrets;
use tooldock_process::child::output::RecentLines;
use tooldock_protocol::jsonrpc::ProtocolViolation;
use tooldock_protocol::version::{Era, EraSupport, ServerInfo};
use tooldock_sessions::broadcast::Audience;
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::registry::{Namespace, Registry, Snapshot, UpstreamKind};
use tooldock_workers::remote::BackendId;

use super::rules::HangThresholds;
use super::state::{PoolEvent, Presence, ServerCopy};
use super::{Driver, PoolShared, PoolState, ProcessLease};
use crate::key::{ConnectionKey, OpenAs, Opener};
use crate::launch::{Launchers, ServerRef};
use crate::metrics::{LastGood, StdioMetrics};
use crate::turns::StartTurns;

/// The pools of all servers, by namespace. Dropping this value ends every process, in the background.
pub struct Pools {
    launchers: Arc<dyn Launchers>,
    control: Handle,
    registry: Arc<Registry>,
    audience: Arc<Audience>,
    metrics: StdioMetrics,
    patience: HangThresholds,
    turns: StartTurns,
    /// The pools of each namespace: the current one, and retired ones whose processes have not ended. The lock is never held
    /// across an await.
    pools: Mutex<HashMap<NamespaceName, Vec<Pool>>>,
    /// True once the gateway shuts down; no pool is created then.
    ended: AtomicBool,
    maintenance: OnceLock<AbortHandle>,
}

/// Owning handle of a pool. Dropping it ends the pool's driver and all its processes.
struct Pool {
    shared: Arc<PoolShared>,
    driver: AbortHandle,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Pools {
    /// Creates the set of pools, which is empty at first. A server gets its pool and first process when it is added to the
    /// registry.
    pub fn new(
        launchers: Arc<dyn Launchers>,
        control: Handle,
        registry: Arc<Registry>,
        audience: Arc<Audience>,
        metrics: StdioMetrics,
    ) -> Arc<Self> {
        Self::with_patience(
            launchers,
            control,
            registry,
            audience,
            metrics,
            HangThresholds::default(),
        )
    }

    /// Creates the set of pools like [`Self::new`], with other time limits after which a process is treated as hung.
    pub(super) fn with_patience(
        launchers: Arc<dyn Launchers>,
        control: Handle,
        registry: Arc<Registry>,
        audience: Arc<Audience>,
        metrics: StdioMetrics,
        patience: HangThresholds,
    ) -> Arc<Self> {
        let pools = Arc::new(Self {
            launchers,
            control,
            registry,
            audience,
            metrics,
            patience,
            turns: StartTurns::of_machine(),
            pools: Mutex::default(),
            ended: AtomicBool::new(false),
            maintenance: OnceLock::new(),
        });
        // The maintenance task gets weak references, so that it does not keep the pools and their processes alive.
        let (seen, changed, reloads) = (
            pools.registry.subscribe(),
            pools.registry.personal().subscribe(),
            pools.registry.reloads(),
        );
        let task = run(Arc::downgrade(&pools), seen, changed, reloads);
        let task = pools.control.spawn(task);
        let _ = pools.maintenance.set(task.abort_handle());
        pools
    }

    /// Returns the store of principals' personal values.
    #[inline]
    pub fn personal(&self) -> &PersonalSecrets {
        self.registry.personal()
    }

    /// Leases a process for a request: at once if it is running and idle or shared, else after a wait until it has started or a
    /// slot is free. Dropping the future ends the wait, but not the start.
    ///
    /// # Errors
    ///
    /// `overloaded` if no slot became free in time; `worker_unavailable`, with the reason, if the server does not start, failed
    /// too often, or is not restarted.
    pub async fn lease<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: ConnectionKey,
        open: OpenAs,
    ) -> Result<ProcessLease, CallError> {
        let server = server.into();
        // Nearly every request gets its lease here. A retired pool grants none.
        let running = self.of(server);
        if let Some(leased) = running.and_then(|pool| pool.lease_common(&key, open.era)) {
            return Ok(leased);
        }
        // Boxed to keep the futures of other requests small.
        let waiting = async { self.pool(server)?.lease(&key, &Arc::new(open)).await };
        Box::pin(waiting).await
    }

    /// Returns the eras that a server supports; `None` if it is not known whether the wanted era is supported.
    pub fn known_era<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        wanted: Era,
    ) -> Option<EraSupport> {
        let era = self.of(server.into())?.served_era()?;
        // It is not known yet whether this server also accepts `initialize`.
        let unsure = era == EraSupport::ModernAtLeast && wanted == Era::Legacy;
        (!unsure).then_some(era)
    }

    /// Returns the eras that a server supports, or supported when it was last available. If they are unknown, a process is
    /// started to detect them, and a second one if the first does not show whether the wanted era is supported. The result is
    /// recorded. `opener`: the connection to use for the detection.
    ///
    /// # Errors
    ///
    /// Like [`Pools::lease`].
    pub async fn server_era<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        wanted: Era,
        opener: Opener,
    ) -> Result<EraSupport, CallError> {
        let pool = self.pool(server.into())?;
        let key = match &opener {
            Opener::Everybody => ConnectionKey::Shared,
            Opener::Principal(name) => ConnectionKey::Principal(Arc::clone(name)),
            Opener::Client(_) => ConnectionKey::Exclusive,
        };
        let lease = async |era| {
            let open = OpenAs {
                headers: match &opener {
                    Opener::Client(headers) => Some(Arc::clone(headers)),
                    Opener::Everybody | Opener::Principal(_) => None,
                },
                ..OpenAs::gateway(era)
            };
            pool.lease(&key, &Arc::new(open)).await
        };
        let era = match pool.last_era() {
            Some(era) => era,
            None => {
                let leased = lease(Era::Modern).await?;
                let opened = match leased.opened().era() {
                    Era::Legacy => EraSupport::Legacy,
                    Era::Modern => EraSupport::ModernAtLeast,
                };
                pool.server_era().unwrap_or(opened)
            }
        };
        // `server_era` is `None` while the server is unavailable. The second detection is then left for later.
        let unsure = pool.server_era() == Some(EraSupport::ModernAtLeast);
        if wanted == Era::Modern || !unsure {
            return Ok(era);
        }
        // If no process starts in the legacy era, the known eras are kept, and the next request tries the detection again.
        let _ = lease(Era::Legacy).await;
        Ok(pool.last_era().unwrap_or(era))
    }

    /// Returns a server's last description of itself, preferably from an opening in this era, even while the server is
    /// unavailable. `None` if the server has been unavailable for long or is not restarted.
    pub fn last_opened<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        era: Era,
    ) -> Option<ServerInfo> {
        self.pool(server.into()).ok()?.known(era)
    }

    /// Returns the catalogue (the lists of tools, prompts and resources) of a server.
    ///
    /// # Errors
    ///
    /// When the server is not served any more.
    pub fn catalogue<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
    ) -> Result<Arc<Catalogue>, CallError> {
        Ok(Arc::clone(&self.pool(server.into())?.catalogue))
    }

    /// Marks the lists of a namespace's server as outdated, so that they are read again.
    #[inline]
    pub fn list_anew(&self, namespace: &NamespaceName) {
        if let Some(pool) = self.latest(namespace) {
            pool.catalogue.changed();
        }
    }

    /// Counts a request that was answered from a stored response, because the server is unavailable.
    pub fn fell_back<'a>(&self, server: impl Into<ServerRef<'a>>, what: LastGood) {
        if let Ok(pool) = self.pool(server.into()) {
            pool.fell_back(what);
        }
    }

    /// Counts a violation of the protocol by a server.
    pub fn violation<'a>(&self, server: impl Into<ServerRef<'a>>, violation: ProtocolViolation) {
        if let Ok(pool) = self.pool(server.into()) {
            pool.violation(violation);
        }
    }

    /// Ends a client's subscription to a resource.
    pub fn unsubscribe<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: &ConnectionKey,
        era: Era,
        uri: &str,
    ) {
        // If there is no pool, there is no subscription to end, so none is created.
        if let Some(pool) = self.latest(server.into().name()) {
            pool.unsubscribe(key, era, uri);
        }
    }

    /// Returns true if the server has another backend for a request that the backends in `tried` have not answered.
    pub fn has_another<'a>(&self, server: impl Into<ServerRef<'a>>, tried: &[BackendId]) -> bool {
        let pool = self.of(server.into());
        pool.is_some_and(|pool| pool.has_another(tried))
    }

    /// Returns the key of the backend at which a principal's task runs, for a server with shared connections to several backends.
    pub fn place_of_task<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        era: Era,
        principal: Option<&Arc<str>>,
        task: &str,
    ) -> Option<ConnectionKey> {
        let pool = self.of(server.into())?;
        pool.place_of_task(era, principal, task)
    }

    /// Returns the state of the server's process that serves this key.
    pub fn copy<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: &ConnectionKey,
        era: Era,
    ) -> ServerCopy {
        let pool = self.of(server.into());
        pool.map_or(ServerCopy::Idle, |pool| pool.copy(key, era))
    }

    /// Returns true if the server's process for this key is running this task of the principal.
    pub fn has_task<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        at: (&ConnectionKey, Era),
        principal: Option<&Arc<str>>,
        task: &str,
    ) -> bool {
        let pool = self.of(server.into());
        pool.is_some_and(|pool| pool.has_task(at, principal, task))
    }

    /// Returns true if a session's state at a server was lost with the connection that had it.
    pub fn has_lost<'a>(&self, server: impl Into<ServerRef<'a>>, tag: &Arc<str>) -> bool {
        let pool = self.of(server.into());
        pool.is_some_and(|pool| pool.has_lost(tag))
    }

    /// Ends the processes of a session.
    #[inline]
    pub fn session_closed(&self, tag: &str) {
        let tag: Arc<str> = tag.into();
        for pool in self.all() {
            pool.apply(PoolEvent::SessionClosed {
                tag: Arc::clone(&tag),
            });
        }
    }

    /// Informs the pools that a session's client is connected again. A session with subscriptions then gets a new process if it
    /// has none.
    #[inline]
    pub fn session_returned(&self, tag: &Arc<str>) {
        for pool in self.all() {
            if pool.remembers(tag) {
                let tag = Arc::clone(tag);
                pool.apply(PoolEvent::SessionReturned { tag });
            }
        }
    }

    /// Waits until a new server's first process accepts requests, has failed, or waits for the installation of its package.
    pub async fn settled<'a>(&self, server: impl Into<ServerRef<'a>>) {
        if let Ok(pool) = self.pool(server.into()) {
            pool.settled().await;
        }
    }

    /// Returns a receiver of changes in the availability of the connection to a server that all clients share, as a
    /// [`Presence`]; `None` if the server is not served.
    pub fn presence<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
    ) -> Option<watch::Receiver<Presence>> {
        Some(self.pool(server.into()).ok()?.presence())
    }

    /// Ends the processes of a server, with their running calls, and starts new ones.
    ///
    /// # Errors
    ///
    /// When the server is no longer served.
    pub fn restart<'a>(&self, server: impl Into<ServerRef<'a>>) -> Result<(), CallError> {
        self.pool(server.into())?.restart();
        Ok(())
    }

    /// Returns the recent output of a server's processes; `None` for servers without processes.
    pub fn output<'a>(&self, server: impl Into<ServerRef<'a>>) -> Option<Arc<RecentLines>> {
        self.pool(server.into()).ok()?.launcher.output()
    }

    /// Returns the state of a namespace's pool; `None` if it has no pool.
    pub fn state(&self, namespace: &NamespaceName) -> Option<PoolState> {
        Some(self.latest(namespace)?.state())
    }

    /// Ends all processes: idle processes at once, others when they become idle or `grace` has passed.
    pub async fn shutdown(&self, grace: Duration) {
        self.ended.store(true, Ordering::Release);
        self.stop_following();
        let all = self.all();
        for pool in &all {
            pool.apply(PoolEvent::Retire);
        }
        let over = async {
            for pool in &all {
                pool.over().await;
            }
        };
        if timeout(grace, over).await.is_err() {
            tracing::warn!(
                "some server processes did not end in time; they are ended in the background"
            );
        }
        // The remaining processes are ended: dropping their keepers ends them in the background.
        self.lock().clear();
    }

    fn pool(&self, server: ServerRef<'_>) -> Result<Arc<PoolShared>, CallError> {
        let name = server.name();
        if let Some(pool) = self.serving(server) {
            return Ok(pool);
        }
        // The request may have begun before a reload replaced its server. The request is then sent to the current server's pool.
        let current = self.registry.find(name);
        match current.as_deref().and_then(served) {
            Some(current) if !self.ended.load(Ordering::Acquire) => Ok(self.make(current)),
            _ => Err(CallError::new(
                CallErrorCode::WorkerUnavailable,
                format!("the server of namespace {name} is not served any more"),
            )),
        }
    }

    fn serving(&self, server: ServerRef<'_>) -> Option<Arc<PoolShared>> {
        self.of(server).filter(|pool| !pool.is_retired())
    }

    /// Returns the latest pool of this version of a server. The pool may be retired.
    fn of(&self, server: ServerRef<'_>) -> Option<Arc<PoolShared>> {
        let pools = self.lock();
        let mut own = pools.get(server.name())?.iter().rev();
        own.find(|pool| pool.shared.launcher.is(server))
            .map(|pool| Arc::clone(&pool.shared))
    }

    pub(super) fn latest(&self, namespace: &NamespaceName) -> Option<Arc<PoolShared>> {
        let pools = self.lock();
        let latest = pools.get(namespace)?.last()?;
        Some(Arc::clone(&latest.shared))
    }

    /// Creates the pool of a server in the registry, and starts its first process. The new pool takes over the former pool's
    /// subscriptions and log levels.
    fn make(&self, server: ServerRef<'_>) -> Arc<PoolShared> {
        let mut pools = self.lock();
        let own = pools.entry(server.name().clone()).or_default();
        let same = |pool: &&Pool| pool.shared.launcher.is(server) && !pool.shared.is_retired();
        if let Some(pool) = own.iter().find(same) {
            return Arc::clone(&pool.shared);
        }
        // If there are several pools of one server, they use the same catalogue.
        let known = own.iter().find(|pool| pool.shared.launcher.is(server));
        let catalogue = known.map(|pool| Arc::clone(&pool.shared.catalogue));
        let catalogue = catalogue.unwrap_or_default();
        catalogue.set_lists(server.lists());
        catalogue.set_pins(self.registry.pins_of(server.name()));
        let shared = PoolShared::new(
            self.launchers.launcher(server),
            self.control.clone(),
            Arc::clone(&self.registry),
            Arc::clone(&self.audience),
            self.metrics.server(server.name()),
            self.patience,
            self.turns.clone(),
        );
        let shared = Arc::new(PoolShared {
            catalogue,
            ..shared
        });
        // The former pool's state is read under the lock: once the new pool is visible, another task may retire the former
        // pool, and the state is then dropped.
        let before = own.last().map(|pool| pool.shared.lasting());
        let driver = Driver::new(Arc::clone(&shared)).run();
        let driver = self.control.spawn(driver).abort_handle();
        own.push(Pool {
            shared: Arc::clone(&shared),
            driver,
        });
        drop(pools);
        if let Some(places) = before.filter(|places| !places.is_empty()) {
            shared.apply(PoolEvent::Inherit { places });
        }
        if shared.launcher.needs_a_client() {
            shared.apply(PoolEvent::Tick);
            return shared;
        }
        let open = Arc::new(OpenAs::gateway(Era::Modern));
        let key = shared.spread(&ConnectionKey::Shared, &[], 0);
        let key = key.into_owned();
        shared.apply(PoolEvent::Wanted { key, open });
        shared
    }

    /// Compares the pools with a snapshot of the registry: creates the pools of new servers, with a first process, and retires
    /// the pools of removed servers.
    fn follow(&self, snapshot: &Snapshot) {
        let mut wanted = HashMap::new();
        for namespace in snapshot.all() {
            if let Some(server) = served(namespace) {
                wanted.insert(&namespace.name, server);
            }
        }
        let mut retired = Vec::new();
        let mut adopted = Vec::new();
        {
            let mut pools = self.lock();
            for (name, own) in pools.iter_mut() {
                // Dropping a finished pool aborts its driver, which has no effect any more.
                own.retain(|pool| !pool.shared.is_over());
                for pool in own.iter() {
                    let shared = Arc::clone(&pool.shared);
                    match wanted.get(name).filter(|it| shared.launcher.is(**it)) {
                        Some(server) => adopted.push((shared, *server)),
                        None => retired.push(shared),
                    }
                }
            }
            pools.retain(|name, own| {
                let kept = !own.is_empty() || wanted.contains_key(name);
                if !kept {
                    self.metrics.forget(name);
                }
                kept
            });
        }
        for (pool, server) in adopted {
            pool.adopt(server);
        }
        for server in wanted.into_values() {
            if self.serving(server).is_none() {
                self.make(server);
            }
        }
        // Old pools are retired last, so that their successors exist when waiting requests are refused and retried.
        for pool in retired {
            pool.apply(PoolEvent::Retire);
        }
    }

    fn stop_following(&self) {
        if let Some(task) = self.maintenance.get() {
            task.abort();
        }
    }

    fn all(&self) -> Vec<Arc<PoolShared>> {
        let pools = self.lock();
        let all = pools.values().flatten();
        all.map(|pool| Arc::clone(&pool.shared)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NamespaceName, Vec<Pool>>> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the stdio or remote server of a namespace; `None` for namespaces of other kinds.
pub fn served(namespace: &Namespace) -> Option<ServerRef<'_>> {
    match &namespace.upstream {
        UpstreamKind::External(server) => Some(ServerRef::Process(server)),
        UpstreamKind::Remote(server) => Some(ServerRef::Remote(server)),
        _ => None,
    }
}

/// The maintenance task, which runs as long as the pools exist. Wakes up for:
/// - a new snapshot of the registry;
/// - a change of a principal's personal values;
/// - a reload, which also starts servers that would not be restarted otherwise;
/// - the time to remove finished pools.
async fn run(
    pools: Weak<Pools>,
    mut seen: watch::Receiver<Arc<Snapshot>>,
    mut personal: watch::Receiver<()>,
    mut reloads: watch::Receiver<u64>,
) {
    /// Interval at which finished pools are removed, while no pool is ending.
    const SWEEP: Duration = Duration::from_secs(60);
    /// Interval at which finished pools are removed, while some pools are ending. It is short, since operators see ended pools
    /// until they are removed.
    const SOON: Duration = Duration::from_secs(1);
    loop {
        let snapshot = Arc::clone(&seen.borrow_and_update());
        let Some(pools) = pools.upgrade() else {
            return;
        };
        personal.mark_unchanged();
        pools.follow(&snapshot);
        let reloaded = reloads.has_changed().unwrap_or_default();
        reloads.mark_unchanged();
        for pool in pools.all() {
            pool.renew();
            if reloaded {
                pool.revive();
            }
        }
        let leaving = pools.all().iter().any(|pool| pool.is_retired());
        // Both references are dropped before the wait, since they would keep the pools and the snapshot alive.
        drop((pools, snapshot));
        let sweep = if leaving { SOON } else { SWEEP };
        let changed = tokio::select! {
            changed = seen.changed() => changed,
            changed = personal.changed() => changed,
            changed = async {
                let changed = reloads.changed().await;
                reloads.mark_changed();
                changed
            } => changed,
            () = sleep(sweep) => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        self.stop_following();
    }
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools")
            .field("namespaces", &self.lock().len())
            .finish_non_exhaustive()
    }
}
