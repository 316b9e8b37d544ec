//! The pools of all servers of the registry.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::personal::PersonalSecrets;
use tooldock_workers::process::output::RecentLines;
use tooldock_workers::registry::{Namespace, Registry, Snapshot, UpstreamKind};
use tooldock_workers::remote::BackendId;

use super::key::{ConnectionKey, OpenAs, Opener};
use super::rules::Patience;
use super::state::{Event, Presence, ServerCopy};
use super::{Driver, Leased, PoolShared, PoolState};
use crate::broadcast::Audience;
use crate::catalogue::Catalogue;
use crate::jsonrpc::ProtocolViolation;
use crate::protocol::{Era, EraSupport};
use crate::stdio::launch::{Launchers, ServerRef};
use crate::stdio::metrics::{LastGood, StdioMetrics};
use crate::stdio::process::Opened;
use crate::stdio::turns::StartTurns;

/// Finds or makes the pool of a server. Dropping it ends every process, in the background.
pub(crate) struct Pools {
    launchers: Arc<dyn Launchers>,
    control: Handle,
    registry: Arc<Registry>,
    audience: Arc<Audience>,
    metrics: StdioMetrics,
    patience: Patience,
    turns: StartTurns,
    /// By namespace: the pool that serves, and those before it that are not over. Plain data; nothing awaits under it.
    pools: Mutex<HashMap<NamespaceName, Vec<Pool>>>,
    /// Nothing is made any more.
    ended: AtomicBool,
    maintenance: OnceLock<AbortHandle>,
}

/// The owner's end of a pool.
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
    /// No pools yet; servers get theirs, and their first process, as they come into the registry.
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
            Patience::default(),
        )
    }

    /// The same, with other ideas of when a process is taken for hung.
    pub(super) fn with_patience(
        launchers: Arc<dyn Launchers>,
        control: Handle,
        registry: Arc<Registry>,
        audience: Arc<Audience>,
        metrics: StdioMetrics,
        patience: Patience,
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
        // Weak: the task is no reason to keep processes.
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

    /// The personal values of principals.
    pub(crate) fn personal(&self) -> &PersonalSecrets {
        self.registry.personal()
    }

    /// A process for one request, which waits for it: for its start, or for a place. Dropping the future gives the wait
    /// up, not the start.
    ///
    /// # Errors
    ///
    /// `overloaded` where no place came free in time; `worker_unavailable`, with the reason, where the server does not
    /// start, failed too often, or is not to be restarted.
    pub(crate) async fn lease<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: ConnectionKey,
        open: OpenAs,
    ) -> Result<Leased, CallError> {
        self.pool(server.into())?.lease(&key, &Arc::new(open)).await
    }

    /// A process that several share, where it is there and nobody needs to wait.
    pub(crate) fn lease_at_once<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: &ConnectionKey,
        era: Era,
    ) -> Option<Leased> {
        // One that is retired grants nothing.
        self.of(server.into())?.lease_common(key, era)
    }

    /// What a server speaks, as far as that is known.
    pub(crate) fn known_era<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        wanted: Era,
    ) -> Option<EraSupport> {
        let era = self.of(server.into())?.served_era()?;
        // Whether such a one can be opened by a handshake is still to be tried.
        let unsure = era == EraSupport::ModernAtLeast && wanted == Era::Legacy;
        (!unsure).then_some(era)
    }

    /// What a server speaks, or spoke before it went away. Starts a process to find out where nothing is known, and one
    /// more where that alone does not say whether it can be opened as wanted; what comes of that is on record then.
    /// `opener` is whose connection finds out, where none is everybody's.
    ///
    /// # Errors
    ///
    /// As [`Pools::lease`].
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
        // Of one that is away nothing more is found out now.
        let unsure = pool.server_era() == Some(EraSupport::ModernAtLeast);
        if wanted == Era::Modern || !unsure {
            return Ok(era);
        }
        // Without a process for that, it is what it said: the next who asks tries again.
        let _ = lease(Era::Legacy).await;
        Ok(pool.last_era().unwrap_or(era))
    }

    /// What a server last said of itself, preferably when it was opened so, whether or not it can be asked now. Nothing
    /// where it has been away for long or is not restarted.
    pub(crate) fn last_opened<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        era: Era,
    ) -> Option<Opened> {
        self.pool(server.into()).ok()?.known(era)
    }

    /// What a server offers.
    ///
    /// # Errors
    ///
    /// It is not served any more.
    pub(crate) fn catalogue<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
    ) -> Result<Arc<Catalogue>, CallError> {
        Ok(Arc::clone(&self.pool(server.into())?.catalogue))
    }

    /// What a server last said answered for it.
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

    /// One client less wants to hear of a resource.
    pub(crate) fn unsubscribe<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: &ConnectionKey,
        era: Era,
        uri: &str,
    ) {
        // A pool that is gone has nothing to unsubscribe from, and none is made for it.
        if let Some(pool) = self.latest(server.into().name()) {
            pool.unsubscribe(key, era, uri);
        }
    }

    /// Whether a further backend of a server may take a request that these have not answered.
    pub(crate) fn has_another<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        tried: &[BackendId],
    ) -> bool {
        let pool = self.of(server.into());
        pool.is_some_and(|pool| pool.has_another(tried))
    }

    /// Where a principal's task runs, of what everybody shares at several backends.
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

    /// How the copy of a server is that is reached by that key.
    pub(crate) fn copy<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
        key: &ConnectionKey,
        era: Era,
    ) -> ServerCopy {
        let pool = self.of(server.into());
        pool.map_or(ServerCopy::Idle, |pool| pool.copy(key, era))
    }

    /// Whether a copy of a server runs a principal's task.
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

    /// Whether the state of a session at a server is lost, with the backend that had it.
    pub(crate) fn has_lost<'a>(&self, server: impl Into<ServerRef<'a>>, tag: &Arc<str>) -> bool {
        let pool = self.of(server.into());
        pool.is_some_and(|pool| pool.has_lost(tag))
    }

    /// Ends the processes of a session.
    pub(crate) fn session_closed(&self, tag: &str) {
        let tag: Arc<str> = tag.into();
        for pool in self.all() {
            pool.apply(Event::SessionClosed {
                tag: Arc::clone(&tag),
            });
        }
    }

    /// A session listens again. Its process is opened anew if the session waits for news of a resource.
    pub(crate) fn session_returned(&self, tag: &Arc<str>) {
        for pool in self.all() {
            if pool.remembers(tag) {
                let tag = Arc::clone(tag);
                pool.apply(Event::SessionReturned { tag });
            }
        }
    }

    /// Waits until a server that came into the registry serves, or why it does not is known.
    pub(crate) async fn settled<'a>(&self, server: impl Into<ServerRef<'a>>) {
        if let Ok(pool) = self.pool(server.into()) {
            pool.settled().await;
        }
    }

    /// Whether what everybody shares of a server is there, now and whenever that changes.
    pub(crate) fn presence<'a>(
        &self,
        server: impl Into<ServerRef<'a>>,
    ) -> Option<watch::Receiver<Presence>> {
        Some(self.pool(server.into()).ok()?.presence())
    }

    /// Ends the processes of a server, with the calls that run there, and starts new ones.
    ///
    /// # Errors
    ///
    /// The server is not served any more.
    pub(crate) fn restart<'a>(&self, server: impl Into<ServerRef<'a>>) -> Result<(), CallError> {
        self.pool(server.into())?.restart();
        Ok(())
    }

    /// What the processes of a server printed lately; `None` where it has none of its own.
    pub(crate) fn output<'a>(&self, server: impl Into<ServerRef<'a>>) -> Option<Arc<RecentLines>> {
        self.pool(server.into()).ok()?.launcher.output()
    }

    /// How the pool of a namespace is; `None` where it has none.
    pub(crate) fn state(&self, namespace: &NamespaceName) -> Option<PoolState> {
        Some(self.latest(namespace)?.state())
    }

    /// Ends everything: what is not used at once, what is used when it is not any more or when the time is over.
    pub(crate) async fn shutdown(&self, grace: Duration) {
        self.ended.store(true, Ordering::Release);
        self.stop_following();
        let all = self.all();
        for pool in &all {
            pool.apply(Event::Retire);
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
        // Ends what is left: a dropped keeper runs the ladder in the background.
        self.lock().clear();
    }

    fn pool(&self, server: ServerRef<'_>) -> Result<Arc<PoolShared>, CallError> {
        let name = server.name();
        if let Some(pool) = self.serving(server) {
            return Ok(pool);
        }
        // The request may have begun before a reload: then the one that serves now takes it.
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

    /// The latest pool of a server, which may be retired.
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

    /// The pool of a server that is in the registry, with its first process on the way. What lasted in the pool before it
    /// lasts here.
    fn make(&self, server: ServerRef<'_>) -> Arc<PoolShared> {
        let mut pools = self.lock();
        let own = pools.entry(server.name().clone()).or_default();
        let same = |pool: &&Pool| pool.shared.launcher.is(server) && !pool.shared.is_retired();
        if let Some(pool) = own.iter().find(same) {
            return Arc::clone(&pool.shared);
        }
        // A namespace keeps the catalogue that it found first, so that all pools of a server have the same one.
        let known = own.iter().find(|pool| pool.shared.launcher.is(server));
        let catalogue = known.map(|pool| Arc::clone(&pool.shared.catalogue));
        let catalogue = catalogue.unwrap_or_default();
        catalogue.set_lists(server.lists());
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
        // Under the lock: as soon as the new one is seen, another may retire the one before, which forgets it.
        let before = own.last().map(|pool| pool.shared.lasting());
        let driver = Driver::new(Arc::clone(&shared)).run();
        let driver = self.control.spawn(driver).abort_handle();
        own.push(Pool {
            shared: Arc::clone(&shared),
            driver,
        });
        drop(pools);
        if let Some(places) = before.filter(|places| !places.is_empty()) {
            shared.apply(Event::Inherit { places });
        }
        if shared.launcher.needs_a_client() {
            shared.apply(Event::Tick);
            return shared;
        }
        let open = Arc::new(OpenAs::gateway(Era::Modern));
        let key = shared.spread(&ConnectionKey::Shared, &[], 0);
        let key = key.into_owned();
        shared.apply(Event::Wanted { key, open });
        shared
    }

    /// Makes the pools of new servers, with a first process, and retires those of servers that are gone.
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
                // An aborted driver of one that is over changes nothing.
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
        // Last, so that a successor is on its way before those who wait are told.
        for pool in retired {
            pool.apply(Event::Retire);
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

/// The server of a namespace that has one.
pub(crate) fn served(namespace: &Namespace) -> Option<ServerRef<'_>> {
    match &namespace.upstream {
        UpstreamKind::External(server) => Some(ServerRef::Process(server)),
        UpstreamKind::Remote(server) => Some(ServerRef::Remote(server)),
        _ => None,
    }
}

/// The one maintenance task, for as long as there are pools. It wakes up for:
/// - another snapshot of the registry;
/// - other personal values of some principal;
/// - a reload, which starts servers that are not to be restarted otherwise;
/// - pools that are over.
async fn run(
    pools: Weak<Pools>,
    mut seen: watch::Receiver<Arc<Snapshot>>,
    mut personal: watch::Receiver<()>,
    mut reloads: watch::Receiver<u64>,
) {
    /// How often pools that are over are looked for, while nothing else happens …
    const SWEEP: Duration = Duration::from_secs(60);
    /// … and while some are on their way there: what operators see of them goes when they do.
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
        // Neither of them is kept for longer than it is needed.
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
