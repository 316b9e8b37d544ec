//! Pools of all stdio and remote servers of the registry.

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
use tooldock_sessions::broadcast::Audience;
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::registry::{Namespace, Registry, Snapshot, UpstreamKind};
use tooldock_workers::remote::BackendId;

use super::key::{ConnectionKey, OpenAs, Opener};
use super::rules::HangThresholds;
use super::state::{PoolEvent, Presence, ServerCopy};
use super::{Driver, PoolShared, PoolState, ProcessLease};
use crate::jsonrpc::ProtocolViolation;
use crate::protocol::{Era, EraSupport};
use crate::stdio::launch::{Launchers, ServerRef};
use crate::stdio::metrics::{LastGood, StdioMetrics};
use crate::stdio::process::ProcessOpening;
use crate::stdio::turns::StartTurns;

/// The pools by namespace. Dropping the value ends every process, in the background.
pub(crate) struct Pools {
    launchers: Arc<dyn Launchers>,
    control: Handle,
    registry: Arc<Registry>,
    audience: Arc<Audience>,
    metrics: StdioMetrics,
    patience: HangThresholds,
    turns: StartTurns,
    /// By namespace: the current pool, and retired pools whose processes have not ended. No awaits under the lock.
    pools: Mutex<HashMap<NamespaceName, Vec<Pool>>>,
    /// True once the gateway shuts down, after which no pools are created.
    ended: AtomicBool,
    maintenance: OnceLock<AbortHandle>,
}

/// The owner's handle of a pool.
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
    /// Starts without pools; a server gets its pool and its first process when it is added to the registry.
    pub(crate) fn new(
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

    /// Like [`Self::new`], with different thresholds for treating a process as hung.
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
        // Weak references, so that the task keeps no processes alive.
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

    /// The store of principals' personal values.
    pub(crate) fn personal(&self) -> &PersonalSecrets {
        self.registry.personal()
    }

    /// Leases a process for a request, after waiting for its start or a free slot. Dropping the future ends the wait, but not the
    /// start.
    ///
    /// # Errors
    ///
    /// `overloaded` if no slot became free in time; `worker_unavailable`, with the reason, if the server does not start, failed
    /// too often, or is not restarted.
    pub(crate) async fn lease<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: ConnectionKey,
        open: OpenAs,
    ) -> Result<ProcessLease, CallError> {
        self.pool(server.into())?.lease(&key, &Arc::new(open)).await
    }

    /// Leases a process that several clients share; `None` if that would need a wait.
    pub(crate) fn lease_at_once<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: &ConnectionKey,
        era: Era,
    ) -> Option<ProcessLease> {
        // A retired pool grants no lease.
        self.of(server.into())?.lease_common(key, era)
    }

    /// The eras that a server supports, if known.
    pub(crate) fn known_era<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        wanted: Era,
    ) -> Option<EraSupport> {
        let era = self.of(server.into())?.served_era()?;
        // The server has not shown yet if it can be opened by a handshake.
        let unsure = era == EraSupport::ModernAtLeast && wanted == Era::Legacy;
        (!unsure).then_some(era)
    }

    /// The eras that a server supports, or supported when it was last available. If unknown, starts a process to determine
    /// them, and a second one if the first does not show whether it can be opened as wanted; the result is recorded. `opener`:
    /// the connection to use, for servers without a shared connection.
    ///
    /// # Errors
    ///
    /// Like [`Pools::lease`].
    pub(crate) async fn server_era<'a>(
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
        // The eras of an unavailable server stay unknown for now.
        let unsure = pool.server_era() == Some(EraSupport::ModernAtLeast);
        if wanted == Era::Modern || !unsure {
            return Ok(era);
        }
        // If no process starts in the legacy era, the known eras are kept, and the next caller tries again.
        let _ = lease(Era::Legacy).await;
        Ok(pool.last_era().unwrap_or(era))
    }

    /// A server's last description of itself, preferably from an opening in this era, also while it is unavailable. `None` if
    /// it has been unavailable for long or is not restarted.
    pub(crate) fn last_opened<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        era: Era,
    ) -> Option<ProcessOpening> {
        self.pool(server.into()).ok()?.known(era)
    }

    /// The catalogue of a server.
    ///
    /// # Errors
    ///
    /// When the server is not served any more.
    pub(crate) fn catalogue<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
    ) -> Result<Arc<Catalogue>, CallError> {
        Ok(Arc::clone(&self.pool(server.into())?.catalogue))
    }

    /// Has the lists of a namespace's server read again, if it runs.
    pub(crate) fn list_anew(&self, namespace: &NamespaceName) {
        if let Some(pool) = self.latest(namespace) {
            pool.catalogue.changed();
        }
    }

    /// Counts a request that was answered from a last good answer.
    pub(crate) fn fell_back<'a>(&self, server: impl Into<ServerRef<'a>>, what: LastGood) {
        if let Ok(pool) = self.pool(server.into()) {
            pool.fell_back(what);
        }
    }

    /// Counts a violation of the protocol by a server.
    pub(crate) fn violation<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        violation: ProtocolViolation,
    ) {
        if let Ok(pool) = self.pool(server.into()) {
            pool.violation(violation);
        }
    }

    /// Ends a client's subscription to a resource.
    pub(crate) fn unsubscribe<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: &ConnectionKey,
        era: Era,
        uri: &str,
    ) {
        // A removed pool has no subscriptions, and no new pool is created for it.
        if let Some(pool) = self.latest(server.into().name()) {
            pool.unsubscribe(key, era, uri);
        }
    }

    /// Returns true if a further backend of a server may take a request that the backends in `tried` have not answered.
    pub(crate) fn has_another<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        tried: &[BackendId],
    ) -> bool {
        let pool = self.of(server.into());
        pool.is_some_and(|pool| pool.has_another(tried))
    }

    /// The backend where a principal's task runs, among several backends that all clients share.
    pub(crate) fn place_of_task<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        era: Era,
        principal: Option<&Arc<str>>,
        task: &str,
    ) -> Option<ConnectionKey> {
        let pool = self.of(server.into())?;
        pool.place_of_task(era, principal, task)
    }

    /// State of the copy of a server that serves this key.
    pub(crate) fn copy<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: &ConnectionKey,
        era: Era,
    ) -> ServerCopy {
        let pool = self.of(server.into());
        pool.map_or(ServerCopy::Idle, |pool| pool.copy(key, era))
    }

    /// Returns true if a copy of a server runs a task of the principal.
    pub(crate) fn has_task<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        at: (&ConnectionKey, Era),
        principal: Option<&Arc<str>>,
        task: &str,
    ) -> bool {
        let pool = self.of(server.into());
        pool.is_some_and(|pool| pool.has_task(at, principal, task))
    }

    /// Returns true if a session's state at a server is lost with the connection that had it.
    pub(crate) fn has_lost<'a>(&self, server: impl Into<ServerRef<'a>>, tag: &Arc<str>) -> bool {
        let pool = self.of(server.into());
        pool.is_some_and(|pool| pool.has_lost(tag))
    }

    /// Ends the processes of a session.
    pub(crate) fn session_closed(&self, tag: &str) {
        let tag: Arc<str> = tag.into();
        for pool in self.all() {
            pool.apply(PoolEvent::SessionClosed {
                tag: Arc::clone(&tag),
            });
        }
    }

    /// Reports to the pools that a session has a reader again. A session with subscriptions gets a new process.
    pub(crate) fn session_returned(&self, tag: &Arc<str>) {
        for pool in self.all() {
            if pool.remembers(tag) {
                let tag = Arc::clone(tag);
                pool.apply(PoolEvent::SessionReturned { tag });
            }
        }
    }

    /// Waits until a new server's first process serves, has failed, or is known to take long.
    pub(crate) async fn settled<'a>(&self, server: impl Into<ServerRef<'a>>) {
        if let Ok(pool) = self.pool(server.into()) {
            pool.settled().await;
        }
    }

    /// Presence of the connection to a server that all clients share, now and whenever it changes.
    pub(crate) fn presence<'a>(
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
    pub(crate) fn restart<'a>(&self, server: impl Into<ServerRef<'a>>) -> Result<(), CallError> {
        self.pool(server.into())?.restart();
        Ok(())
    }

    /// Recent output of a server's processes; `None` for servers without processes.
    pub(crate) fn output<'a>(&self, server: impl Into<ServerRef<'a>>) -> Option<Arc<RecentLines>> {
        self.pool(server.into()).ok()?.launcher.output()
    }

    /// State of a namespace's pool; `None` if it has no pool.
    pub(crate) fn state(&self, namespace: &NamespaceName) -> Option<PoolState> {
        Some(self.latest(namespace)?.state())
    }

    /// Ends all processes: idle ones immediately, others when they become idle or `grace` is over.
    pub(crate) async fn shutdown(&self, grace: Duration) {
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
        // Ends the remaining processes: a dropped keeper ends its process in the background.
        self.lock().clear();
    }

    fn pool(&self, server: ServerRef<'_>) -> Result<Arc<PoolShared>, CallError> {
        let name = server.name();
        if let Some(pool) = self.serving(server) {
            return Ok(pool);
        }
        // The request may have begun before a reload: then the current pool takes it.
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

    /// The latest pool of this version of a server, possibly retired.
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

    /// Creates the pool of a server in the registry, and starts its first process. It inherits the lasting state of the former
    /// pool.
    fn make(&self, server: ServerRef<'_>) -> Arc<PoolShared> {
        let mut pools = self.lock();
        let own = pools.entry(server.name().clone()).or_default();
        let same = |pool: &&Pool| pool.shared.launcher.is(server) && !pool.shared.is_retired();
        if let Some(pool) = own.iter().find(same) {
            return Arc::clone(&pool.shared);
        }
        // All pools of a server use the catalogue of the first one.
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
        // Done under the lock: once the new pool is visible, another task may retire the old one, which drops its state.
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

    /// Creates the pools of new servers, with a first process, and retires the pools of removed servers.
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
                // Aborting the driver of a finished pool changes nothing.
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
        // Retired last, so that a successor exists before waiters are refused.
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

/// The stdio or remote server of a namespace; `None` for namespaces of other kinds.
pub(crate) fn served(namespace: &Namespace) -> Option<ServerRef<'_>> {
    match &namespace.upstream {
        UpstreamKind::External(server) => Some(ServerRef::Process(server)),
        UpstreamKind::Remote(server) => Some(ServerRef::Remote(server)),
        _ => None,
    }
}

/// The maintenance task, which runs as long as the pools exist. Wakes up for:
/// - another snapshot of the registry;
/// - other personal values of a principal;
/// - a reload, which starts servers that are not restarted otherwise;
/// - pools that are over.
async fn run(
    pools: Weak<Pools>,
    mut seen: watch::Receiver<Arc<Snapshot>>,
    mut personal: watch::Receiver<()>,
    mut reloads: watch::Receiver<u64>,
) {
    /// Interval of removing finished pools, while none is ending.
    const SWEEP: Duration = Duration::from_secs(60);
    /// Interval of removing finished pools, while some are ending: operators see them until they are removed.
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
        // Both references are dropped before waiting.
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
