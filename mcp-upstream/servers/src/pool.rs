//! Pools: the processes of a server, and how they are leased, kept and ended.
//!
//! ```text
//!   lease ──▶ PoolShared ── State::step ──▶ actions ──▶ driver ──▶ Keeper, one for each process
//!               ▲                                                     │
//!               └──────────────── events ◀───────────────────────────┘
//! ```
//!
//! The state machine in `state` makes all decisions. One lock guards it together with the handles of processes and waiting
//! requests. Nearly every request gets its process under that lock without waiting. The driver, a task per pool in the control
//! runtime, starts and ends processes and runs the timers. It owns the keepers: when the driver ends, all keepers end.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tooldock_base::names::NamespaceName;
use tooldock_protocol::jsonrpc::ProtocolViolation;
use tooldock_protocol::version::{Era, EraSupport, ServerInfo};
use tooldock_sessions::broadcast::Audience;
use tooldock_sessions::catalogue::Catalogue;
use tooldock_workers::external::StdioSettings;
use tooldock_workers::registry::Registry;
use tooldock_workers::remote::BackendId;

use super::launch::{Launcher, ServerRef};
use super::metrics::{LastGood, ServerMetrics};
use super::pool::process::{Installation, Process};
use super::turns::{Requests, StartTurns};

mod driver;
mod everywhere;
mod lease;
mod leased;
mod pools;
pub mod process;
mod refusal;
mod replay_state;
mod report;
mod rules;
pub(super) mod state;

pub(super) use crate::key::ProcessKey;
pub use crate::key::{ConnectionKey, OpenAs, Opener};
use driver::Driver;
use lease::LeaseRequest;
pub use leased::ProcessLease;
pub use pools::{Pools, served};
pub(crate) use replay_state::ReplayState;
pub(crate) use report::PoolState;
use rules::{HangThresholds, LAST_GOOD, PoolRules};
use state::{InheritedSlot, PoolAction, PoolEvent, PoolStateMachine, ProcessId, WaiterId};
pub use state::{Presence, ServerCopy};

/// State of a pool, shared by its driver (the task that starts processes), the keepers of its processes and the leases of
/// callers.
pub(super) struct PoolShared {
    pub(super) launcher: Arc<dyn Launcher>,
    /// The runtime for background tasks that no client waits for.
    control: Handle,
    pub(super) registry: Arc<Registry>,
    pub(super) audience: Arc<Audience>,
    pub(super) metrics: Arc<ServerMetrics>,
    pub(super) catalogue: Arc<Catalogue>,
    /// Time limits after which a process is treated as hung.
    pub(super) patience: HangThresholds,
    /// Limit on the number of processes that start at the same time, shared by all pools.
    pub(super) turns: StartTurns,
    /// Number of requests that wait for a process.
    pub(super) requests: Requests,
    /// Installation of the server's package, shared by all starts of its processes.
    pub(super) installation: Installation,
    /// Handshakes that identify the gateway, for processes that several clients use, by era.
    common: [Arc<OpenAs>; 2],
    /// Data of the pool. The lock is never held across an await, and no object of other modules is dropped while it is held.
    inner: Mutex<PoolData>,
    /// Notified when there are actions for the driver, or when a timer must run earlier than planned.
    wake: Notify,
    /// True once the driver and all its processes have ended.
    over: watch::Sender<bool>,
    /// Name of the pool's current state ([`PoolState::as_str`]), for tasks that wait for a change.
    word: watch::Sender<&'static str>,
    /// Presence of the connection that all clients share, for tasks that wait for a change.
    presence: watch::Sender<Presence>,
}

struct PoolData {
    state: PoolStateMachine,
    /// Processes that accept requests, or that accepted requests earlier and have not ended yet.
    live: BTreeMap<ProcessId, Arc<Process>>,
    waiters: HashMap<WaiterId, LeaseRequest>,
    next_waiter: WaiterId,
    /// Actions that the state machine has decided and the driver has not carried out yet.
    actions: Vec<PoolAction>,
    /// The server's latest description of itself that is valid for all clients, by the era of the opening.
    known: HashMap<Era, ServerInfo>,
    /// Eras that the server supported when it was last available; `None` if it never was.
    spoke: Option<EraSupport>,
    /// Time since which no process accepts requests; `None` if a process does, or if none ever did.
    away_since: Option<Instant>,
    /// True once it was logged that clients get stored responses because the server is unavailable.
    told_of_last_good: bool,
}

impl PoolData {
    fn last_era(&self) -> Option<EraSupport> {
        self.state.server().or(self.spoke)
    }
}

impl PoolShared {
    fn new(
        launcher: Arc<dyn Launcher>,
        control: Handle,
        registry: Arc<Registry>,
        audience: Arc<Audience>,
        metrics: Arc<ServerMetrics>,
        mut patience: HangThresholds,
        turns: StartTurns,
    ) -> Self {
        let mut rules = PoolRules {
            keeps_state: launcher.keeps_state(),
            spreads: launcher.spreads(),
            ..PoolRules::from(&launcher.settings())
        };
        if launcher.needs_a_client() {
            // There are no spare processes, since a spare process would be opened without a client's credentials.
            rules.warm = 0;
        }
        if let Some(namespace) = registry.find(launcher.name()) {
            let own = namespace.tool_limits.values();
            let timeouts = own.filter_map(|limits| limits.timeout);
            let longest = timeouts.chain([namespace.limits.timeout]).max();
            let longest = longest.unwrap_or_default();
            patience = patience.with_calls_of(longest);
            let ask_timeout = namespace.limits.ask_timeout;
            rules = rules.with_calls_of(longest, ask_timeout);
        }
        let inner = PoolData {
            state: PoolStateMachine::new(rules),
            live: BTreeMap::new(),
            waiters: HashMap::new(),
            next_waiter: 0,
            actions: Vec::new(),
            known: HashMap::new(),
            spoke: None,
            away_since: None,
            told_of_last_good: false,
        };
        Self {
            launcher,
            control,
            registry,
            audience,
            metrics,
            catalogue: Arc::default(),
            patience,
            turns,
            requests: Requests::default(),
            installation: Installation::default(),
            common: [Era::Legacy, Era::Modern].map(|era| Arc::new(OpenAs::gateway(era))),
            inner: Mutex::new(inner),
            wake: Notify::new(),
            over: watch::Sender::new(false),
            word: watch::Sender::new("starting"),
            presence: watch::Sender::new(Presence::There),
        }
    }

    pub(super) fn settings(&self) -> StdioSettings {
        self.launcher.settings()
    }

    /// Returns the server's namespace.
    pub(super) fn name(&self) -> &NamespaceName {
        self.launcher.name()
    }

    /// Returns the maximum size of a result that any tool of the namespace allows, in bytes.
    pub(super) fn max_result(&self) -> u64 {
        let Some(namespace) = self.registry.find(self.name()) else {
            return tooldock_base::config::Limits::default().max_result.as_u64();
        };
        let own = namespace.tool_limits.values();
        own.filter_map(|limits| limits.max_result)
            .chain([namespace.limits.max_result])
            .map(|limit| limit.as_u64())
            .max()
            .unwrap_or_default()
    }

    /// Passes an event to the state machine. Waiting requests get the leases and refusals that result; the driver carries out the
    /// other actions.
    pub(super) fn apply(self: &Arc<Self>, event: PoolEvent) {
        let now = Instant::now();
        let mut given = Vec::new();
        let mut forgotten = Vec::new();
        let told_of_away = matches!(event, PoolEvent::Away { .. });
        let to_ask = {
            let mut inner = self.lock();
            let inner = &mut *inner;
            let mut events = VecDeque::from([event]);
            while let Some(event) = events.pop_front() {
                let gone = match &event {
                    PoolEvent::Gone { process } => Some(*process),
                    _ => None,
                };
                for action in inner.state.step(event, now, fastrand::f64()) {
                    match action {
                        PoolAction::Grant { waiter, process } => {
                            let live = inner.live.get(&process).map(Arc::clone);
                            let replay_state = inner.state.replay_state_of(process);
                            let waiter = inner.waiters.remove(&waiter);
                            if let (Some(waiter), Some(live), Some(replay_state)) =
                                (waiter, live, replay_state)
                            {
                                let (key, open) = (&waiter.key, &waiter.open);
                                let leased =
                                    ProcessLease::new(self, process, live, replay_state, key, open);
                                given.push((waiter, Ok(leased)));
                            } else {
                                // The request was dropped while it waited, so its process is returned.
                                events.push_back(PoolEvent::Released {
                                    process,
                                    reusable: true,
                                });
                            }
                        }
                        PoolAction::Refuse { waiter, refusal } => {
                            let waiter = inner.waiters.remove(&waiter);
                            given.extend(waiter.map(|waiter| (waiter, Err(refusal))));
                        }
                        other => inner.actions.push(other),
                    }
                }
                if let Some(process) = gone {
                    forgotten.extend(inner.live.remove(&process));
                }
            }
            inner.spoke = inner.state.server().or(inner.spoke);
            if inner.state.counts().serving > 0 {
                inner.away_since = None;
            } else if inner.spoke.is_some() {
                inner.away_since.get_or_insert(now);
            }
            self.metrics.breaker(inner.state.breaker(now));
            self.metrics.waiting(inner.state.waiting());
            let requests = inner.state.waiting();
            self.requests.store(requests, Ordering::Relaxed);
            let word = inner.state_now().as_str();
            self.word
                .send_if_modified(|shown| std::mem::replace(shown, word) != word);
            let presence = inner.state.presence();
            self.presence
                .send_if_modified(|shown| std::mem::replace(shown, presence) != presence);
            match told_of_away {
                true => Vec::new(),
                false => inner.state.to_ask(),
            }
        };
        drop(forgotten);
        // This is done outside the lock: if the request was dropped, dropping its lease returns the process, which takes the
        // lock.
        for (waiter, outcome) in given {
            self.metrics
                .waited(now.saturating_duration_since(waiter.since));
            let _ = waiter.give.send(outcome.map(ProcessLease::activated));
        }
        self.wake.notify_one();
        // This is done outside the pool's lock: `away_since` may drop the last reference to a session.
        if !to_ask.is_empty() {
            let asked = to_ask.into_iter();
            let away = asked.filter_map(|(process, inbound)| {
                let since = inbound.away_since(now)?;
                Some((process, since))
            });
            let since = away.collect();
            self.apply(PoolEvent::Away { since });
        }
    }

    /// Publishes an opened process, so that it can be leased.
    pub(super) fn started(
        self: &Arc<Self>,
        id: ProcessId,
        process: &Arc<Process>,
        server: EraSupport,
        key: &ProcessKey,
    ) {
        let opened = process.opened();
        {
            let mut inner = self.lock();
            inner.live.insert(id, Arc::clone(process));
            if !key.is_private() {
                inner.known.insert(opened.era(), opened.clone());
                inner.told_of_last_good = false;
            }
        }
        if key.is_shared() || process.personal().is_some() {
            // A new process may have other tools than the earlier one, so the lists are read again.
            self.catalogue.changed();
        }
        self.apply(PoolEvent::Started {
            process: id,
            server,
            opened: opened.era(),
        });
        // Personal values and backends may have changed while the process was opened.
        self.renew();
        // All connections are checked only if this process is at a removed backend, since a pool may have very many sessions.
        if process.backend().is_some_and(|it| !self.launcher.has(it)) {
            self.leave_removed();
        }
    }

    /// Switches to another version of the server whose connections can be kept. Connections to backends that the new version does
    /// not have get no further requests.
    fn adopt(self: &Arc<Self>, server: ServerRef<'_>) {
        if self.launcher.adopt(server) {
            // The new version may have backends with other tools, so the lists are read again.
            self.catalogue.changed();
            self.leave_removed();
        }
    }

    /// Informs the state machine of backends that the server no longer has, so that they get no further requests.
    fn leave_removed(self: &Arc<Self>) {
        let is_gone = |backend: &BackendId| !self.launcher.has(backend);
        let (processes, replicas): (Vec<_>, Vec<_>) = {
            let inner = self.lock();
            let live = inner.live.iter();
            let left = live.filter(|(_, it)| it.backend().is_some_and(is_gone));
            let processes = left.map(|(process, _)| *process).collect();
            let replicas = inner.state.known_replicas().into_iter();
            (processes, replicas.filter(is_gone).collect())
        };
        if processes.is_empty() && replicas.is_empty() {
            return;
        }
        self.apply(PoolEvent::Removed {
            replicas,
            instead: self.launcher.replica(&[], 0),
            processes,
        });
    }

    /// Ends processes that were opened with personal values that have changed since. Running requests are finished; the next
    /// request gets a new process.
    fn renew(self: &Arc<Self>) {
        let outdated: Vec<_> = {
            let inner = self.lock();
            let live = inner.live.iter();
            let own = live.filter_map(|(id, process)| Some((*id, process.personal()?)));
            let outdated = own.filter(|(_, own)| self.launcher.is_outdated(own));
            outdated.map(|(process, _)| process).collect()
        };
        for process in outdated {
            self.apply(PoolEvent::Outdated { process });
        }
    }

    /// Returns the server's last description of itself, preferably from an opening in this era. `None` if the server has been
    /// unavailable for long or will not be restarted, since the description may then be outdated.
    fn known(&self, era: Era) -> Option<ServerInfo> {
        let inner = self.lock();
        let away = inner.away_since.map(|since| since.elapsed());
        if inner.state.is_dead() || away.is_some_and(|away| away > LAST_GOOD) {
            return None;
        }
        let known = inner.known.get(&era);
        known.or_else(|| inner.known.get(&era.other())).cloned()
    }

    /// Counts a violation of the protocol by the server.
    fn violation(&self, violation: ProtocolViolation) {
        self.metrics.violation(violation);
    }

    /// Counts a request that was answered from a stored response, and logs the first one.
    fn fell_back(&self, what: LastGood) {
        self.metrics.fell_back(what);
        if !std::mem::replace(&mut self.lock().told_of_last_good, true) {
            tracing::warn!(
                namespace = %self.name(),
                "the server of namespace {} is away: clients get its last known description and lists",
                self.name()
            );
        }
    }

    /// Returns true if the pool has a slot (the place of at most one process) for this session.
    fn remembers(&self, tag: &Arc<str>) -> bool {
        self.lock().state.remembers(tag)
    }

    fn server_era(&self) -> Option<EraSupport> {
        self.lock().state.server()
    }

    /// Returns the eras that the server supports now or, if it is unavailable, supported last.
    fn last_era(&self) -> Option<EraSupport> {
        self.lock().last_era()
    }

    /// Returns the eras that the server supports now or, if it is unavailable, supported last; `None` for a retired pool.
    fn served_era(&self) -> Option<EraSupport> {
        let inner = self.lock();
        (!inner.state.is_retired())
            .then(|| inner.last_era())
            .flatten()
    }

    /// Returns true if there is another backend for a request that the backends in `tried` have not answered.
    fn has_another(&self, tried: &[BackendId]) -> bool {
        !self.launcher.spreads() || self.launcher.has_replica(tried)
    }

    /// Returns the key of the backend at which a principal's task runs. It is searched among the shared connections to several
    /// backends, since each backend has only its own tasks.
    fn place_of_task(
        &self,
        era: Era,
        principal: Option<&Arc<str>>,
        task: &str,
    ) -> Option<ConnectionKey> {
        if !self.launcher.spreads() {
            return None;
        }
        let replicas: Vec<_> = {
            let inner = self.lock();
            let replicas = inner.state.replicas(era).into_iter();
            let live = replicas.filter_map(|(backend, process)| {
                Some((backend, Arc::clone(inner.live.get(&process)?)))
            });
            live.collect()
        };
        let mut replicas = replicas.into_iter();
        let found = replicas.find(|(_, process)| process.router().tasks().owns(principal, task));
        found.map(|(backend, _)| ConnectionKey::Replica(backend))
    }

    /// Returns true if the most recent process for this key has ended, and no other was started in its place.
    pub(super) fn has_ended(&self, key: &ProcessKey) -> bool {
        self.lock().state.has_ended(key)
    }

    /// Returns the state of the server's process that serves this key.
    fn copy(&self, key: &ConnectionKey, era: Era) -> ServerCopy {
        self.lock().state.copy(key, era)
    }

    /// Returns true if a process for this key is running this task of the principal.
    fn has_task(
        &self,
        (key, era): (&ConnectionKey, Era),
        principal: Option<&Arc<str>>,
        task: &str,
    ) -> bool {
        let inner = self.lock();
        let place = inner.state.place_of(key, era);
        let serving = place.map(|(_, serving)| serving);
        let live = serving.iter().flatten().filter_map(|it| inner.live.get(it));
        live.into_iter()
            .any(|process| process.router().tasks().owns(principal, task))
    }

    /// Returns true if a session's state was lost with the connection that had it.
    fn has_lost(&self, tag: &Arc<str>) -> bool {
        self.lock().state.has_lost(tag)
    }

    /// Ends every process, with its running calls, and starts new ones.
    fn restart(self: &Arc<Self>) {
        tracing::info!(
            namespace = %self.name(),
            "the server of namespace {} is restarted, as was asked for",
            self.name()
        );
        self.installation.forget();
        self.apply(PoolEvent::Restart);
    }

    /// Starts the shared process again if it has ended and would not be restarted now: never, or only after a pause.
    fn revive(self: &Arc<Self>) {
        if !self.lock().state.is_down(Instant::now()) {
            return;
        }
        tracing::info!(
            namespace = %self.name(),
            "the server of namespace {} is down; the reload starts it",
            self.name()
        );
        self.installation.forget();
        self.apply(PoolEvent::Revive);
    }

    /// Returns the requests that must be sent again to new processes, such as subscriptions. The next pool of this server takes
    /// them over.
    fn lasting(&self) -> Vec<InheritedSlot> {
        self.lock().state.lasting()
    }

    /// Returns true once the pool and all its processes have ended.
    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits until the pool and all its processes have ended.
    async fn over(&self) {
        let mut over = self.over.subscribe();
        // The sender is a field of `self`, so the wait ends only when the value becomes true.
        let _ = over.wait_for(|over| *over).await;
    }

    fn is_retired(&self) -> bool {
        self.lock().state.is_retired()
    }

    fn state(&self) -> PoolState {
        self.lock().state_now()
    }

    /// Returns a receiver of changes in the availability of the connection that all clients share, as a [`Presence`].
    fn presence(&self) -> watch::Receiver<Presence> {
        self.presence.subscribe()
    }

    /// Waits until the pool is no longer in the state `starting`: a process accepts requests or has failed, or the server's
    /// package is being installed.
    async fn settled(&self) {
        let mut word = self.word.subscribe();
        // The sender is a field of `self`, so the wait ends only when the state changes.
        let _ = word.wait_for(|word| *word != "starting").await;
    }

    fn lock(&self) -> MutexGuard<'_, PoolData> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PoolShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("namespace", self.name())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
