//! The processes of one server: handed out, kept, ended.
//!
//! ```text
//!   lease ──▶ PoolShared ── State::step ──▶ actions ──▶ driver ──▶ Keeper, one for each process
//!               ▲                                                     │
//!               └──────────────── events ◀───────────────────────────┘
//! ```
//!
//! The state machine in `state` decides; a lock holds it together with the handles of processes and waiters. Nearly
//! every request finds its process under that lock and waits for nothing. What remains, to start and to end processes
//! and to wake up in time, is done by the driver, one task for each pool in the control runtime. It owns the keepers:
//! with the driver everything ends.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::value::{RawValue, to_raw_value};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, timeout};
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::external::StdioSettings;
use tooldock_workers::names::NamespaceName;
use tooldock_workers::registry::Registry;
use tooldock_workers::remote::BackendId;

use super::breaker::BreakerState;
use super::launch::{Launcher, ServerRef};
use super::metrics::{LastGood, ServerMetrics};
use super::process::failure::{self, ADVICE};
use super::process::{Installation, Opened, Process};
use super::turns::{Requests, StartTurns};
use crate::broadcast::Audience;
use crate::catalogue::Catalogue;
use crate::protocol::{Era, EraSupport};

mod driver;
mod key;
mod leased;
mod pools;
mod replay_state;
mod rules;
pub(super) mod state;

use driver::Driver;
pub(super) use key::Key;
pub(crate) use key::{ConnectionKey, OpenAs, Opener};
pub(crate) use leased::Leased;
pub(crate) use pools::{Pools, served};
pub(crate) use replay_state::ReplayState;
use rules::{LAST_GOOD, Patience, Rules, SLOT_WAIT, WAITERS_MAX};
use state::{Action, Event, Full, Place, ProcessId, Refusal, State, WaiterId};
pub(crate) use state::{Counts, Presence, ServerCopy};

/// How long a request waits for the pool to notice that the process it got has just ended.
const NOTICE: Duration = Duration::from_secs(1);
/// How often a request is given a process that has just ended, until it gives up.
const TRIES: usize = 3;
/// How long the server may take to confirm that nobody wants to hear of a resource any more.
const UNSUBSCRIBE: Duration = Duration::from_secs(30);
/// How long a client waits until all backends have heard what it asks of one of them.
const EVERYWHERE: Duration = Duration::from_secs(2);

/// What a pool's driver, keepers and leases share.
pub(super) struct PoolShared {
    pub(super) launcher: Arc<dyn Launcher>,
    /// Where what nobody waits for is done.
    control: Handle,
    pub(super) registry: Arc<Registry>,
    pub(super) audience: Arc<Audience>,
    pub(super) metrics: Arc<ServerMetrics>,
    pub(super) catalogue: Arc<Catalogue>,
    /// When a process is taken for hung.
    pub(super) patience: Patience,
    /// Those of all pools together.
    pub(super) turns: StartTurns,
    /// Requests that wait for a process.
    pub(super) requests: Requests,
    /// Whether the server's package is installed.
    pub(super) installation: Installation,
    /// How processes of several clients are opened, in either era.
    common: [Arc<OpenAs>; 2],
    /// Plain data, short sections; nothing awaits and nothing of others is dropped under it.
    inner: Mutex<Inner>,
    /// There is something for the driver.
    wake: Notify,
    /// The driver has ended: nothing of it is left.
    over: watch::Sender<bool>,
    /// The word for how it is, see [`PoolState::as_str`].
    word: watch::Sender<&'static str>,
    /// Whether what everybody shares is there.
    presence: watch::Sender<Presence>,
}

struct Inner {
    state: State,
    /// Processes that take requests, or did and are not gone yet.
    live: BTreeMap<ProcessId, Arc<Process>>,
    waiters: HashMap<WaiterId, Waiter>,
    next_waiter: WaiterId,
    /// For the driver.
    actions: Vec<Action>,
    /// What the server last said of itself to no client in particular, by how it was opened.
    known: HashMap<Era, Opened>,
    /// What it last spoke.
    spoke: Option<EraSupport>,
    /// Since when no process of it serves, if it ever did.
    away_since: Option<Instant>,
    /// That something answers for it was said.
    told_of_last_good: bool,
}

impl Inner {
    fn last_era(&self) -> Option<EraSupport> {
        self.state.server().or(self.spoke)
    }

    fn state_now(&self) -> PoolState {
        let state = &self.state;
        let counts = state.counts();
        PoolState {
            processes: counts,
            waiting: state.waiting(),
            breaker: state.breaker(Instant::now()),
            server: state.server(),
            error: state.last_error().map(|failure| failure.error.clone()),
            // How a process ended is of no interest while another one serves.
            reason: state
                .why()
                .filter(|_| counts.serving == 0)
                .map(|failure| Arc::clone(&failure.reason)),
            dead: state.is_dead(),
            last_restart: state
                .last_restart()
                .map(|last| (last.reason, last.at.elapsed())),
        }
    }
}

struct Waiter {
    give: oneshot::Sender<Result<Leased, Refusal>>,
    key: ConnectionKey,
    open: Arc<OpenAs>,
    since: Instant,
}

/// How a pool is, for `/ready` and metrics.
#[derive(Debug, Clone)]
pub(crate) struct PoolState {
    /// Its processes.
    pub(crate) processes: Counts,
    /// Requests that wait for one.
    pub(crate) waiting: usize,
    /// Whether it is worth trying.
    pub(crate) breaker: BreakerState,
    /// What its server speaks, if that is known.
    pub(crate) server: Option<EraSupport>,
    /// Why its server does not start, until it does.
    pub(crate) error: Option<CallError>,
    /// Why no process serves, for those who operate the gateway: with what the server said last, without secrets.
    pub(crate) reason: Option<Arc<str>>,
    /// It ended, and is not to be restarted.
    pub(crate) dead: bool,
    /// How the last process had ended that another took the place of, and how long ago that was.
    pub(crate) last_restart: Option<(&'static str, Duration)>,
}

impl PoolState {
    /// One word for it: `ready`, `installing`, `starting`, `idle` or `failed`.
    pub(crate) fn as_str(&self) -> &'static str {
        if self.processes.serving > 0 {
            "ready"
        } else if self.processes.installing > 0 && !self.dead {
            // Even after failures: it takes its time now, and may be what helps.
            "installing"
        } else if self.dead || self.error.is_some() || self.breaker == BreakerState::Open {
            "failed"
        } else if self.processes.starting > 0 {
            "starting"
        } else {
            "idle"
        }
    }
}

/// A request that waits. Dropping it takes it from the queue.
struct Waiting<'a> {
    pool: &'a Arc<PoolShared>,
    waiter: WaiterId,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let waiter = self.waiter;
        let left = self.pool.lock().waiters.remove(&waiter);
        if left.is_some() {
            drop(left);
            self.pool.apply(Event::Abandoned { waiter });
        }
    }
}

impl PoolShared {
    fn new(
        launcher: Arc<dyn Launcher>,
        control: Handle,
        registry: Arc<Registry>,
        audience: Arc<Audience>,
        metrics: Arc<ServerMetrics>,
        mut patience: Patience,
        turns: StartTurns,
    ) -> Self {
        let mut rules = Rules {
            keeps_state: launcher.keeps_state(),
            spreads: launcher.spreads(),
            ..Rules::from(&launcher.settings())
        };
        if launcher.needs_a_client() {
            // A spare would be opened for nobody.
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
        let inner = Inner {
            state: State::new(rules),
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

    /// The namespace of its server.
    pub(super) fn name(&self) -> &NamespaceName {
        self.launcher.name()
    }

    /// The largest result any tool of the namespace may give.
    pub(super) fn max_result(&self) -> u64 {
        let Some(namespace) = self.registry.find(self.name()) else {
            return tooldock_workers::config::Limits::default()
                .max_result
                .as_u64();
        };
        let own = namespace.tool_limits.values();
        own.filter_map(|limits| limits.max_result)
            .chain([namespace.limits.max_result])
            .map(|limit| limit.as_u64())
            .max()
            .unwrap_or_default()
    }

    /// A process for a request, started if it must be.
    async fn lease(
        self: &Arc<Self>,
        key: &ConnectionKey,
        open: &Arc<OpenAs>,
    ) -> Result<Leased, CallError> {
        let mut avoid = open.avoid.clone();
        let hash = open.hash;
        let open = match key.is_common() && open.headers.is_none() {
            true => self.common(open.era),
            false => open,
        };
        loop {
            let key = self.spread(key, &avoid, hash);
            match (self.lease_of(&key, open).await, &*key) {
                (Err(error), ConnectionKey::Replica(backend))
                    if avoid.len() < self.launcher.further_backends() =>
                {
                    avoid.push(backend.clone());
                    if self.launcher.replica(&avoid, hash).is_none() {
                        return Err(error);
                    }
                }
                (Ok(leased), ConnectionKey::Replica(backend)) => {
                    avoid.push(backend.clone());
                    return Ok(leased.after(avoid));
                }
                (leased, _) => return leased,
            }
        }
    }

    /// The same, where it is settled which.
    async fn lease_of(
        self: &Arc<Self>,
        key: &ConnectionKey,
        open: &Arc<OpenAs>,
    ) -> Result<Leased, CallError> {
        for _ in 0..TRIES {
            let leased = match self.lease_at_once(key, open) {
                Some(leased) => leased,
                None => self.wait_for_lease(key, open).await?,
            };
            if !leased.is_closed() {
                return Ok(leased);
            }
            // Its keeper is about to say so; then another one takes its place.
            let process = Arc::clone(leased.process());
            drop(leased);
            process.is_over_within(NOTICE).await;
        }
        self.metrics.refused("unavailable");
        Err(self.unavailable("keeps ending", Some(Duration::from_secs(1))))
    }

    /// A process that several clients share, if it is there.
    fn lease_common(self: &Arc<Self>, key: &ConnectionKey, era: Era) -> Option<Leased> {
        // Which of several it is, is settled once for each request.
        if self.launcher.spreads() {
            return None;
        }
        let leased = self.lease_at_once(key, self.common(era))?;
        (!leased.is_closed()).then_some(leased)
    }

    /// What everybody shares is spread over the backends of a server that has several: those first whose connection did
    /// not fail just now.
    fn spread<'a>(
        &self,
        key: &'a ConnectionKey,
        avoid: &[BackendId],
        hash: u64,
    ) -> Cow<'a, ConnectionKey> {
        if *key != ConnectionKey::Shared || !self.launcher.spreads() {
            return Cow::Borrowed(key);
        }
        let mut failing = self.lock().state.failing(Instant::now());
        let picked = match failing.is_empty() {
            true => self.launcher.replica(avoid, hash),
            false => {
                failing.extend_from_slice(avoid);
                let other = self.launcher.replica(&failing, hash);
                other.or_else(|| self.launcher.replica(avoid, hash))
            }
        };
        match picked {
            Some(backend) => Cow::Owned(ConnectionKey::Replica(backend)),
            None => Cow::Borrowed(key),
        }
    }

    fn common(&self, era: Era) -> &Arc<OpenAs> {
        match era {
            Era::Legacy => &self.common[0],
            Era::Modern => &self.common[1],
        }
    }

    fn lease_at_once(self: &Arc<Self>, key: &ConnectionKey, open: &Arc<OpenAs>) -> Option<Leased> {
        let (id, process, replay_state) = {
            let mut inner = self.lock();
            let (id, replay_state) = inner.state.grant_at_once(key, open.era)?;
            let process = inner.live.get(&id).map(Arc::clone);
            (id, process, replay_state)
        };
        // A process that serves is always there: both are set and taken under one lock.
        Some(Leased::new(self, id, process?, replay_state, key, open).activated())
    }

    async fn wait_for_lease(
        self: &Arc<Self>,
        key: &ConnectionKey,
        open: &Arc<OpenAs>,
    ) -> Result<Leased, CallError> {
        let (give, given) = oneshot::channel();
        let waiter = {
            let mut inner = self.lock();
            inner.next_waiter += 1;
            let waiter = inner.next_waiter;
            inner.waiters.insert(
                waiter,
                Waiter {
                    give,
                    key: key.clone(),
                    open: Arc::clone(open),
                    since: Instant::now(),
                },
            );
            waiter
        };
        let _waiting = Waiting { pool: self, waiter };
        self.apply(Event::Lease {
            waiter,
            key: key.clone(),
            open: Arc::clone(open),
        });
        match given.await {
            Ok(Ok(leased)) => Ok(leased),
            Ok(Err(refusal)) => Err(self.refused(refusal)),
            // Only with the pool.
            Err(_) => Err(self.refused(Refusal::Retired)),
        }
    }

    /// Tells the state machine what happened, and those who waited what follows. The rest is the driver's.
    pub(super) fn apply(self: &Arc<Self>, event: Event) {
        let now = Instant::now();
        let mut given = Vec::new();
        let mut forgotten = Vec::new();
        let told_of_away = matches!(event, Event::Away { .. });
        let to_ask = {
            let mut inner = self.lock();
            let inner = &mut *inner;
            let mut events = VecDeque::from([event]);
            while let Some(event) = events.pop_front() {
                let gone = match &event {
                    Event::Gone { process } => Some(*process),
                    _ => None,
                };
                for action in inner.state.step(event, now, fastrand::f64()) {
                    match action {
                        Action::Grant { waiter, process } => {
                            let live = inner.live.get(&process).map(Arc::clone);
                            let replay_state = inner.state.replay_state_of(process);
                            let waiter = inner.waiters.remove(&waiter);
                            if let (Some(waiter), Some(live), Some(replay_state)) =
                                (waiter, live, replay_state)
                            {
                                let (key, open) = (&waiter.key, &waiter.open);
                                let leased =
                                    Leased::new(self, process, live, replay_state, key, open);
                                given.push((waiter, Ok(leased)));
                            } else {
                                // Left at this moment: what was meant for it goes back.
                                events.push_back(Event::Released {
                                    process,
                                    reusable: true,
                                });
                            }
                        }
                        Action::Refuse { waiter, refusal } => {
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
        // Outside the lock: one that is not taken any more comes back by being dropped.
        for (waiter, outcome) in given {
            self.metrics
                .waited(now.saturating_duration_since(waiter.since));
            let _ = waiter.give.send(outcome.map(Leased::activated));
        }
        self.wake.notify_one();
        // Outside the lock, too: to ask may be to hold the last of a session for a moment.
        if !to_ask.is_empty() {
            let asked = to_ask.into_iter();
            let away = asked.filter_map(|(process, inbound)| {
                let since = inbound.away_since(now)?;
                Some((process, since))
            });
            let since = away.collect();
            self.apply(Event::Away { since });
        }
    }

    /// A process takes requests now.
    pub(super) fn started(
        self: &Arc<Self>,
        id: ProcessId,
        process: &Arc<Process>,
        server: EraSupport,
        key: &Key,
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
            // Another process may have other tools than the one before.
            self.catalogue.changed();
        }
        self.apply(Event::Started {
            process: id,
            server,
            opened: opened.era(),
        });
        // The values and the backends may have changed while it was opened.
        self.renew();
        // Of one backend alone: a pool may have very many sessions.
        if process.backend().is_some_and(|it| !self.launcher.has(it)) {
            self.leave_removed();
        }
    }

    /// Goes by another version of the server, whose connections may be the same. Connections to backends that the new
    /// version lacks take nothing new.
    fn adopt(self: &Arc<Self>, server: ServerRef<'_>) {
        if self.launcher.adopt(server) {
            // A backend that the version before lacked may have other tools.
            self.catalogue.changed();
            self.leave_removed();
        }
    }

    /// Leaves the backends that the server has not any more.
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
        self.apply(Event::Removed {
            replicas,
            instead: self.launcher.replica(&[], 0),
            processes,
        });
    }

    /// Ends the processes that were opened with personal values which are others now. Those who use one are not cut off;
    /// the next request gets another.
    fn renew(self: &Arc<Self>) {
        let outdated: Vec<_> = {
            let inner = self.lock();
            let live = inner.live.iter();
            let own = live.filter_map(|(id, process)| Some((*id, process.personal()?)));
            let outdated = own.filter(|(_, own)| self.launcher.is_outdated(own));
            outdated.map(|(process, _)| process).collect()
        };
        for process in outdated {
            self.apply(Event::Outdated { process });
        }
    }

    /// What the server last said of itself, preferably when it was opened so. Nothing once it has been away for long, or
    /// is not coming back: what it said then is true no more.
    fn known(&self, era: Era) -> Option<Opened> {
        let inner = self.lock();
        let away = inner.away_since.map(|since| since.elapsed());
        if inner.state.is_dead() || away.is_some_and(|away| away > LAST_GOOD) {
            return None;
        }
        let known = inner.known.get(&era);
        known.or_else(|| inner.known.get(&era.other())).cloned()
    }

    /// Something the server said before answered for it.
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

    /// Whether something of a session is on record.
    fn remembers(&self, tag: &Arc<str>) -> bool {
        self.lock().state.remembers(tag)
    }

    fn server_era(&self) -> Option<EraSupport> {
        self.lock().state.server()
    }

    /// What it speaks, or spoke when it last did.
    fn last_era(&self) -> Option<EraSupport> {
        self.lock().last_era()
    }

    /// The same, if it still takes requests.
    fn served_era(&self) -> Option<EraSupport> {
        let inner = self.lock();
        (!inner.state.is_retired())
            .then(|| inner.last_era())
            .flatten()
    }

    /// Whether a further backend may take a request that these have not answered.
    fn has_another(&self, tried: &[BackendId]) -> bool {
        !self.launcher.spreads() || self.launcher.replica(tried, 0).is_some()
    }

    /// Where a principal's task runs, of what everybody shares at several backends: each knows its own tasks alone.
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

    /// Whether the last process in the place of that key ended, and no other one takes its place.
    pub(super) fn has_ended(&self, key: &Key) -> bool {
        self.lock().state.has_ended(key)
    }

    /// How the copy is that is reached by that key.
    fn copy(&self, key: &ConnectionKey, era: Era) -> ServerCopy {
        self.lock().state.copy(key, era)
    }

    /// Whether a process of a place runs a principal's task.
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

    /// Whether the state of a session is lost, with the backend that had it.
    fn has_lost(&self, tag: &Arc<str>) -> bool {
        self.lock().state.has_lost(tag)
    }

    /// Asks all other processes of a place for what was granted at one of them. Waits for their answers, but no longer
    /// than [`EVERYWHERE`]: what is asked goes on. A process that starts later is asked as it starts.
    async fn ask_everywhere(
        &self,
        (key, era): (&ConnectionKey, Era),
        granted: ProcessId,
        method: &str,
        params: &RawValue,
    ) {
        let others: Vec<_> = {
            let inner = self.lock();
            let serving = inner.state.place_of(key, era).map(|(_, serving)| serving);
            let others = serving.into_iter().flatten().filter(|it| *it != granted);
            let live = others.filter_map(|it| inner.live.get(&it).map(Arc::clone));
            live.collect()
        };
        let asked = others.into_iter().filter_map(|process| {
            let in_use = process.router().in_use();
            let mut call = process.link().request(method, Some(params), None).ok()?;
            // Bounded by its time; there is one for each request of a client and backend at most.
            Some(self.control.spawn(async move {
                let _ = timeout(UNSUBSCRIBE, call.answer()).await;
                // Before the use ends, so that a call without an answer is known to be one.
                drop(call);
                drop(in_use);
            }))
        });
        let _ = timeout(EVERYWHERE, join_all(asked.collect::<Vec<_>>())).await;
    }

    /// One client less wants to hear of a resource. Waits for nothing and starts nothing: a server that is away has
    /// nothing to unsubscribe from.
    fn unsubscribe(&self, key: &ConnectionKey, era: Era, uri: &str) {
        let (replay_state, processes) = {
            let inner = self.lock();
            let Some((replay_state, serving)) = inner.state.place_of(key, era) else {
                return;
            };
            let live = serving.iter().filter_map(|it| inner.live.get(it));
            let live: Vec<_> = live.map(Arc::clone).collect();
            (replay_state, live)
        };
        if !replay_state.unsubscribe(uri) {
            return;
        }
        let params = serde_json::json!({ "uri": uri });
        let params = to_raw_value(&params).expect("a value into memory");
        let method = "resources/unsubscribe";
        // A modern server's one subscription is renewed by its keeper.
        let legacy = |it: &Arc<Process>| it.opened().era() == Era::Legacy;
        for process in processes.into_iter().filter(legacy) {
            // What the server says of it is nobody else's.
            let in_use = process.router().in_use();
            if let Ok(mut call) = process.link().request(method, Some(&params), None) {
                // Bounded by its time; there is one for each subscription and backend at most.
                self.control.spawn(async move {
                    let _ = timeout(UNSUBSCRIBE, call.answer()).await;
                    // Before the use ends, so that a call without an answer is known to be one.
                    drop(call);
                    drop(in_use);
                });
            }
        }
    }

    /// Ends every process, with the calls that run there, and starts new ones.
    fn restart(self: &Arc<Self>) {
        tracing::info!(
            namespace = %self.name(),
            "the server of namespace {} is restarted, as was asked for",
            self.name()
        );
        self.installation.forget();
        self.apply(Event::Restart);
    }

    /// What the pool before this one leaves to it.
    fn lasting(&self) -> Vec<Place> {
        self.lock().state.lasting()
    }

    /// Whether nothing of it is left, for good.
    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Waits for that.
    async fn over(&self) {
        let mut over = self.over.subscribe();
        // The sender is `self`.
        let _ = over.wait_for(|over| *over).await;
    }

    /// Takes a process back. `false`: more follows from that than the state machine does at once.
    fn release_at_once(&self, process: ProcessId) -> bool {
        let mut inner = self.lock();
        inner.state.waiting() == 0 && inner.state.release_at_once(process, Instant::now())
    }

    fn is_retired(&self) -> bool {
        self.lock().state.is_retired()
    }

    fn state(&self) -> PoolState {
        self.lock().state_now()
    }

    /// Whether what everybody shares is there, now and whenever that changes.
    fn presence(&self) -> watch::Receiver<Presence> {
        self.presence.subscribe()
    }

    /// Waits until its first process serves, or why it does not is known, or that will take long.
    async fn settled(&self) {
        let mut word = self.word.subscribe();
        // The sender is `self`.
        let _ = word.wait_for(|word| *word != "starting").await;
    }

    fn refused(&self, refusal: Refusal) -> CallError {
        let (reason, error) = match refusal {
            Refusal::Overloaded(full) => (
                full.as_str(),
                CallError::new(CallErrorCode::Overloaded, self.overloaded(full))
                    .retry_after(Duration::from_secs(1)),
            ),
            Refusal::Unavailable { retry_after } => (
                "unavailable",
                self.failed_repeatedly(retry_after),
            ),
            Refusal::Dead => (
                "unavailable",
                self.unavailable(
                    "ended and is not restarted (restart: never). Ask whoever operates the gateway to start it again: \
                     POST /reload after a change does",
                    None,
                ),
            ),
            Refusal::StateLost => (
                "unavailable",
                self.unavailable(
                    "lost the state of this session with the backend that held it (stateful: true). Begin a new session",
                    None,
                ),
            ),
            Refusal::Failed(error) => ("failed", error),
            Refusal::SessionClosed => (
                "session",
                CallError::new(CallErrorCode::Cancelled, "the session is over"),
            ),
            Refusal::Retired => ("retired", self.unavailable("was replaced or stopped", None)),
        };
        self.metrics.refused(reason);
        error
    }

    /// What is told while the breaker is open: how it was the last time.
    fn failed_repeatedly(&self, retry_after: Duration) -> CallError {
        let last = self.lock().state.why().map(|failure| failure.error.clone());
        let what = match &last {
            Some(last) => {
                let what = failure::what(&last.message, self.name().as_str());
                format!("failed repeatedly, the last time so: {what}")
            }
            None => format!("failed repeatedly. {ADVICE}"),
        };
        self.unavailable(&what, Some(retry_after))
    }

    fn overloaded(&self, full: Full) -> String {
        let settings = self.settings();
        let limits = ServerLimits {
            name: self.name().as_str(),
            processes: settings.max_processes,
            principal: settings.max_per_principal,
        };
        limits.message(full)
    }

    fn unavailable(&self, what: &str, retry_after: Option<Duration>) -> CallError {
        let name = self.name();
        let error = CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!("the server of namespace {name} {what}"),
        );
        match retry_after {
            Some(time) => error.retry_after(time),
            None => error,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits of one server, for those who meet them.
struct ServerLimits<'a> {
    name: &'a str,
    processes: usize,
    principal: usize,
}

impl ServerLimits<'_> {
    fn message(&self, full: Full) -> String {
        let name = self.name;
        let seconds = SLOT_WAIT.as_secs();
        match full {
            Full::Processes => format!(
                "namespace {name}: no process of its server became free within {seconds} s, and it may have no more than {} \
                 (configuration key max_processes)",
                self.processes
            ),
            Full::Principal => format!(
                "namespace {name}: no process became free within {seconds} s, and one principal may have no more than {} \
                 (configuration key max_per_principal)",
                self.principal
            ),
            Full::Waiters => format!(
                "namespace {name}: {WAITERS_MAX} requests wait for a process of its server already"
            ),
        }
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
