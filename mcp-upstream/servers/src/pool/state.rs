//! Pure state machine of a pool: its processes, their keys, and the waiting requests.
//!
//! ```text
//!            ┌── Spare ──┐ adopted                        leased and given back
//!   spawned ─┤           ▼                              ┌──────▶ Returned ──┐
//!            └──────▶ Starting ── handshake ──▶ Serving ┤                   │ leased again
//!                        │            ▲                 │◀──────────────────┘
//!                        │            │                 ├── too old, not wanted ──▶ Draining
//!                 failed │            │                 │ idle, session closed        │ unused
//!                        ▼                              ▼ ended by itself             ▼
//!                        └──────────────────────────▶ Stopping ── tree gone ──▶ (forgotten)
//! ```
//!
//! A *slot* has at most one process at a time: the shared process, or the process of a session, a principal or a single request.
//! It outlives its process while failures or subscriptions must be remembered. The limits count processes, in any state, until
//! they have entirely ended.
//!
//! While the eras of the server are unknown, only one process (the *scout*) is started, to detect them, and all other requests
//! wait for it. A server that reports the modern era may also accept a handshake (`initialize`): the first request that needs a
//! handshake starts a process to test this, and a refusal does not count as a failure. Waiting requests are served in order,
//! but a request whose principal has reached its limit does not delay others.
//!
//! `serve` assigns processes to waiting requests, `give_way` ends processes for them, `upkeep` handles timers, `ends` handles
//! failures and ends, `restart` handles restarts by an operator. This module reads no clock, draws no random number and starts
//! or ends no process itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;
use tooldock_protocol::version::{Era, EraSupport};
use tooldock_workers::remote::BackendId;

use super::replay_state::ReplayState;
use super::rules::{PoolRules, SLOT_WAIT, SLOTS_MAX, WAITERS_MAX};
use crate::breaker::{Breaker, BreakerState};
use crate::key::{ConnectionKey, OpenAs, ProcessKey, SlotKey};
use give_way::RoomDemand;

mod ends;
mod event;
mod give_way;
mod restart;
mod serve;
mod upkeep;

pub(crate) use event::{
    InheritedSlot, LeaseRefusal, Order, PoolAction, PoolEvent, PoolLimit, ProcessEnd,
    ProcessFailure, ProcessId, StopReason, WaiterId,
};

/// The state of a pool. Its methods are the transitions.
#[derive(Debug)]
pub(crate) struct PoolStateMachine {
    rules: PoolRules,
    breaker: Breaker,
    server: Option<EraSupport>,
    /// The starting process that detects the server's eras; `None` if none is starting or the eras are known.
    scout: Option<ProcessId>,
    processes: BTreeMap<ProcessId, PoolProcess>,
    slots: HashMap<SlotKey, PoolSlot>,
    waiting: VecDeque<QueuedRequest>,
    spares: Spares,
    retired: bool,
    /// Processes that are ending because of a restart by an operator. No process is started until all of them have ended.
    restarting: BTreeSet<ProcessId>,
    next_process: ProcessId,
    next_lease: u64,
    last_error: Option<ProcessFailure>,
    /// Reason why a process last ended by itself; cleared when a process starts.
    last_end: Option<ProcessFailure>,
    last_restart: Option<UnplannedRestart>,
    /// Time of the most recent step. All timers that were due at that time have been handled.
    looked_at: Option<Instant>,
    room: RoomDemand,
}

/// A process that ended by itself and was replaced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnplannedRestart {
    /// Reason for the end of the former process, as a metrics label.
    pub(crate) reason: &'static str,
    pub(crate) at: Instant,
}

#[derive(Debug)]
struct PoolProcess {
    duty: ProcessState,
    born: Instant,
    /// True while the process waits for the installation of its package.
    installing: bool,
    users: usize,
    /// Time at which the process became unused; it is meaningful only without users.
    idle_since: Instant,
    principal: Option<Arc<str>>,
}

#[derive(Debug, Clone)]
enum ProcessState {
    Spare { runs: bool },
    Starting(SlotKey),
    Serving { slot: SlotKey, since: Instant },
    Returned { open: Arc<OpenAs>, era: Era },
    Draining { until: Instant, reason: StopReason },
    Stopping,
}

#[derive(Debug)]
struct PoolSlot {
    /// The slot's process, which is starting or accepts requests; `None` if the slot is empty.
    process: Option<ProcessId>,
    open: Arc<OpenAs>,
    replay_state: Arc<ReplayState>,
    /// Number of failures in a row of the processes in this slot.
    failures: u32,
    /// Time before which no process is started in this slot, even for a request.
    not_before: Option<Instant>,
    /// Time before which no process is started in this slot without a request. Until then, requests prefer other backends.
    not_filled_before: Option<Instant>,
    /// Reason why the slot's last process ended by itself, as a metrics label; `None` if it did not.
    ended: Option<&'static str>,
    /// True if the slot's process has ended and is not restarted; requests for the slot are refused.
    dead: bool,
    /// True if the slot's last process did not start or ended by itself, and no process has started since.
    away: bool,
    /// True if a process is to be started for the slot without waiting for a request.
    eager: bool,
    last_used: Instant,
}

#[derive(Debug)]
struct QueuedRequest {
    id: WaiterId,
    key: ProcessKey,
    open: Arc<OpenAs>,
    deadline: Instant,
}

/// State of the spare processes, and the time of the last demand for them.
#[derive(Debug, Default)]
struct Spares {
    /// Time of the last request for a process that serves one session or one request.
    asked_for: Option<Instant>,
    failures: u32,
    not_before: Option<Instant>,
}

/// Numbers of a pool's processes by state, for metrics and `/ready`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Number of processes that accept requests.
    pub serving: usize,
    /// Number of processes that are starting.
    pub starting: usize,
    /// Number of processes that wait for the installation of their package, before their start.
    pub installing: usize,
    /// Number of processes that wait to be opened, or to be leased again.
    pub spare: usize,
    /// Number of processes that are ending.
    pub stopping: usize,
}

/// Presence of the connection that all clients share. It determines whether the server's lists are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The connection is open, or will be opened when it is needed, since unused connections are closed.
    There,
    /// The connection could not be opened, or has ended. A new one may be opened.
    Away,
    /// The connection could not be opened, or has ended. No new one is opened.
    Dead,
}

/// State of the process or connection that serves a client: the shared one, or the client's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerCopy {
    /// The process is running, or the server needs none.
    Running,
    /// The process is not running and is started when it is needed.
    Idle,
    /// The process has ended and is not started again.
    Ended,
}

impl PoolStateMachine {
    pub(super) fn new(rules: PoolRules) -> Self {
        Self {
            breaker: Breaker::new(rules.breaker),
            rules,
            server: None,
            scout: None,
            processes: BTreeMap::new(),
            slots: HashMap::new(),
            waiting: VecDeque::new(),
            spares: Spares::default(),
            retired: false,
            restarting: BTreeSet::new(),
            next_process: 0,
            next_lease: 0,
            last_error: None,
            last_end: None,
            last_restart: None,
            looked_at: None,
            room: RoomDemand::default(),
        }
    }

    /// Handles an event, and returns the actions that result. `jitter` is a random number in `0.0..1.0`. An outdated event, such
    /// as the end of a process that was stopped before, changes nothing.
    pub(super) fn step(&mut self, event: PoolEvent, now: Instant, jitter: f64) -> Vec<PoolAction> {
        let mut actions = Vec::new();
        match event {
            PoolEvent::Wanted { key, open } => self.wanted(&key, open, now),
            PoolEvent::Lease { waiter, key, open } => {
                self.lease(waiter, key, open, now, &mut actions);
            }
            PoolEvent::Abandoned { waiter } => self.waiting.retain(|it| it.id != waiter),
            PoolEvent::Released { process, reusable } => {
                self.released(process, reusable, now, &mut actions);
            }
            PoolEvent::Installing { process, now } => {
                if let Some(entry) = self.processes.get_mut(&process) {
                    entry.installing = now;
                }
            }
            PoolEvent::Spawned { process } => {
                if let Some(PoolProcess {
                    duty: ProcessState::Spare { runs },
                    ..
                }) = self.processes.get_mut(&process)
                {
                    *runs = true;
                }
            }
            PoolEvent::Started {
                process,
                server,
                opened,
            } => self.started(process, server, opened, now, &mut actions),
            PoolEvent::StartFailed { process, failure } => {
                self.start_failed(process, failure, now, jitter, &mut actions);
            }
            PoolEvent::Explained { why } => self.last_end = Some(why),
            PoolEvent::Lost { process, end } => self.lost(process, end, now, jitter),
            PoolEvent::Gone { process } => {
                // If the keeper's task ended without reporting `Lost`, the process is treated as crashed.
                self.lost(process, ProcessEnd::Crash, now, jitter);
                self.processes.remove(&process);
                self.restarting.remove(&process);
            }
            PoolEvent::Inherit { places } => self.inherit(places, now),
            PoolEvent::SessionClosed { tag } => self.session_closed(&tag, now, &mut actions),
            PoolEvent::SessionReturned { tag } => self.session_returned(&tag),
            PoolEvent::Away { since } => self.room.note_away(since, now),
            PoolEvent::Outdated { process } => {
                self.vacate(process, now, true);
                self.drain(process, StopReason::Outdated, now, &mut actions);
            }
            PoolEvent::Mute { process } => {
                self.vacate(process, now, true);
                self.drain(process, StopReason::Mute, now, &mut actions);
            }
            PoolEvent::Removed {
                replicas,
                instead,
                processes,
            } => self.removed((&replicas, instead.as_ref()), processes, now, &mut actions),
            PoolEvent::Restart => self.restart(now, &mut actions),
            PoolEvent::Revive => self.revive(now),
            PoolEvent::Retire => self.retire(now, &mut actions),
            PoolEvent::Tick => {}
        }
        self.keep_up(now, &mut actions);
        self.serve(now, &mut actions);
        self.room.forget_away();
        if !self.retired {
            self.fill_eagerly(now, &mut actions);
            self.keep_spares(now, &mut actions);
        }
        self.looked_at = Some(now);
        actions
    }

    /// Leases a process if no action is needed for it, which is the case for nearly every request. Returns `None` otherwise.
    pub(super) fn grant_at_once(
        &mut self,
        key: &ConnectionKey,
        wanted: Era,
    ) -> Option<(ProcessId, Arc<ReplayState>)> {
        let key = ProcessKey::lasting(key)?;
        let era = self.server?.opened_for(wanted);
        let slot = self.slots.get(&SlotKey { key, era })?;
        let process = slot.process?;
        let entry = self.processes.get_mut(&process)?;
        matches!(entry.duty, ProcessState::Serving { .. }).then(|| {
            entry.users += 1;
            (process, Arc::clone(&slot.replay_state))
        })
    }

    /// Returns a process if no action is needed for it, which is the case for nearly every request. Returns false if actions may
    /// be needed; [`PoolStateMachine::step`] must handle the return then.
    pub(super) fn release_at_once(&mut self, process: ProcessId, now: Instant) -> bool {
        let Some(entry) = self.processes.get_mut(&process) else {
            return true;
        };
        match &entry.duty {
            ProcessState::Serving { slot, .. } if !matches!(slot.key, ProcessKey::Exclusive(_)) => {
                entry.users = entry.users.saturating_sub(1);
                entry.idle_since = now;
                true
            }
            _ => false,
        }
    }

    fn wanted(&mut self, key: &ConnectionKey, open: Arc<OpenAs>, now: Instant) {
        if self.rules.is_private() {
            self.spares.asked_for = Some(now);
        }
        // The shared process is used by default, since it also shows the eras and capabilities of the whole server.
        let key = SlotKey {
            key: ProcessKey::lasting(key).unwrap_or(ProcessKey::Shared),
            era: open.era,
        };
        self.slots.entry(key).or_insert_with(|| PoolSlot {
            eager: true,
            ..PoolSlot::new(open, now)
        });
    }

    fn lease(
        &mut self,
        waiter: WaiterId,
        key: ConnectionKey,
        open: Arc<OpenAs>,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) {
        if self.waiting.len() >= WAITERS_MAX {
            let refusal = LeaseRefusal::Overloaded(PoolLimit::Waiters);
            actions.push(PoolAction::Refuse { waiter, refusal });
            return;
        }
        let key = ProcessKey::lasting(&key).unwrap_or_else(|| {
            self.next_lease += 1;
            ProcessKey::Exclusive(self.next_lease)
        });
        if key.is_private() {
            self.spares.asked_for = Some(now);
        }
        self.waiting.push_back(QueuedRequest {
            id: waiter,
            key,
            open,
            deadline: now + SLOT_WAIT,
        });
    }

    fn released(
        &mut self,
        process: ProcessId,
        reusable: bool,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) {
        let Some(entry) = self.processes.get_mut(&process) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        entry.idle_since = now;
        match entry.duty.clone() {
            ProcessState::Draining { reason, .. } if entry.users == 0 => {
                self.stop(process, reason, now, actions);
            }
            ProcessState::Serving { slot, .. } if matches!(slot.key, ProcessKey::Exclusive(_)) => {
                if reusable {
                    self.set_aside(process, &slot, now, actions);
                } else {
                    self.slots.remove(&slot);
                    self.stop(process, StopReason::Used, now, actions);
                }
            }
            _ => {}
        }
    }

    /// Returns the subscriptions and log levels of all slots, for the pool that replaces this one.
    pub(super) fn lasting(&self) -> Vec<InheritedSlot> {
        let all = self.slots.iter().map(|(key, slot)| InheritedSlot {
            slot: key.clone(),
            open: Arc::clone(&slot.open),
            replay_state: Arc::clone(&slot.replay_state),
            lost: self.keeps_state_of(key) && (slot.process.is_some() || slot.dead),
        });
        all.filter(|place| place.lost || place.replay_state.has_lasting_state())
            .collect()
    }

    /// Takes over the subscriptions and log levels of the former pool. Clients do not notice that the server was replaced, so
    /// this pool must continue their notifications.
    fn inherit(&mut self, places: Vec<InheritedSlot>, now: Instant) {
        for place in places {
            if self.slots.len() >= SLOTS_MAX {
                return;
            }
            let lasting = self.of_replicas(&place.slot);
            let slot = self
                .slots
                .entry(place.slot)
                .or_insert_with(|| PoolSlot::lasting(place.open, lasting, now));
            slot.replay_state.take_over(&place.replay_state);
            slot.dead |= place.lost && self.rules.keeps_state;
            slot.eager |= slot.replay_state.is_awaited() && !slot.dead;
        }
    }

    /// Returns true if the state of a session is lost when the slot's process ends.
    fn keeps_state_of(&self, slot: &SlotKey) -> bool {
        self.rules.keeps_state && slot.key.is_of_session()
    }

    /// Handles removed backends. Calls that run there continue. Later requests are sent to other backends; they fail if their
    /// session's state was at a removed backend.
    fn removed(
        &mut self,
        (replicas, instead): (&[BackendId], Option<&BackendId>),
        processes: Vec<ProcessId>,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) {
        for process in processes {
            let slot = match self.processes.get(&process).map(|it| &it.duty) {
                Some(ProcessState::Serving { slot, .. }) => Some(slot.clone()),
                _ => None,
            };
            self.vacate(process, now, true);
            if let Some(slot) = slot.filter(|it| self.keeps_state_of(it))
                && let Some(place) = self.slots.get_mut(&slot)
            {
                place.dead = true;
                place.eager = false;
            }
            self.drain(process, StopReason::Removed, now, actions);
        }
        let left = |key: &SlotKey| key.key.replica().is_some_and(|it| replicas.contains(it));
        let starting = self.processes.iter().filter_map(|(process, it)| {
            matches!(&it.duty, ProcessState::Starting(slot) if left(slot)).then_some(*process)
        });
        for process in starting.collect::<Vec<_>>() {
            self.stop(process, StopReason::Removed, now, actions);
        }
        let (gone, kept) = self.slots.drain().partition(|(key, _)| left(key));
        self.slots = kept;
        let gone: HashMap<SlotKey, PoolSlot> = gone;
        for (key, place) in gone {
            let lasting = place.replay_state;
            let Some(instead) = instead.filter(|_| lasting.has_lasting_state()) else {
                continue;
            };
            // The slots of all backends share one set of subscriptions and one log level.
            let key = SlotKey {
                key: ProcessKey::Replica(instead.clone()),
                era: key.era,
            };
            let slot = self.slots.entry(key);
            let slot = slot.or_insert_with(|| PoolSlot::lasting(place.open, Some(lasting), now));
            slot.eager |= slot.replay_state.is_awaited();
        }
    }

    fn session_closed(&mut self, tag: &Arc<str>, now: Instant, actions: &mut Vec<PoolAction>) {
        for era in [Era::Legacy, Era::Modern] {
            let slot = SlotKey {
                key: ProcessKey::Session(Arc::clone(tag)),
                era,
            };
            if let Some(process) = self.slots.remove(&slot).and_then(|slot| slot.process) {
                self.stop(process, StopReason::SessionClosed, now, actions);
            }
        }
        self.waiting.retain(|waiter| {
            let ours = matches!(&waiter.key, ProcessKey::Session(it) if it == tag);
            if ours {
                let refusal = LeaseRefusal::SessionClosed;
                let waiter = waiter.id;
                actions.push(PoolAction::Refuse { waiter, refusal });
            }
            !ours
        });
    }

    /// Starts a session's process if the session has subscriptions, since its client waits for notifications without sending a
    /// request.
    fn session_returned(&mut self, tag: &Arc<str>) {
        for era in [Era::Legacy, Era::Modern] {
            let key = ProcessKey::Session(Arc::clone(tag));
            if let Some(place) = self.slots.get_mut(&SlotKey { key, era }) {
                place.eager |= place.process.is_none() && place.replay_state.is_awaited();
            }
        }
    }

    /// Returns true if there is a slot for this session.
    pub(super) fn remembers(&self, tag: &Arc<str>) -> bool {
        [Era::Legacy, Era::Modern].into_iter().any(|era| {
            let key = ProcessKey::Session(Arc::clone(tag));
            self.slots.contains_key(&SlotKey { key, era })
        })
    }

    fn retire(&mut self, now: Instant, actions: &mut Vec<PoolAction>) {
        self.retired = true;
        self.slots.clear();
        for waiter in self.waiting.drain(..) {
            let refusal = LeaseRefusal::Retired;
            let waiter = waiter.id;
            actions.push(PoolAction::Refuse { waiter, refusal });
        }
        let all: Vec<_> = self.processes.keys().copied().collect();
        for process in all {
            self.drain(process, StopReason::Retired, now, actions);
        }
    }

    /// Ends a process when it becomes idle, at the latest when all its calls must have timed out. The caller must have removed
    /// the process from its slot.
    fn drain(
        &mut self,
        process: ProcessId,
        reason: StopReason,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) {
        let Some(entry) = self.processes.get_mut(&process) else {
            return;
        };
        match &entry.duty {
            ProcessState::Stopping | ProcessState::Draining { .. } => {}
            duty if entry.users > 0 => {
                let private =
                    matches!(duty, ProcessState::Serving { slot, .. } if slot.key.is_private());
                let limit = match private {
                    true => self.rules.drain_private,
                    false => self.rules.drain,
                };
                let until = now + limit;
                entry.duty = ProcessState::Draining { until, reason };
            }
            _ => self.stop(process, reason, now, actions),
        }
    }

    fn stop(
        &mut self,
        process: ProcessId,
        reason: StopReason,
        now: Instant,
        actions: &mut Vec<PoolAction>,
    ) {
        self.forget_scout(process);
        if let Some(entry) = self.processes.get_mut(&process)
            && !matches!(entry.duty, ProcessState::Stopping)
        {
            if matches!(entry.duty, ProcessState::Starting(_)) {
                self.breaker.undecided(now);
            }
            entry.duty = ProcessState::Stopping;
            actions.push(PoolAction::Stop { process, reason });
        }
    }

    fn forget_scout(&mut self, process: ProcessId) {
        if self.scout == Some(process) {
            self.scout = None;
        }
    }

    /// Returns true once the pool is retired and all its processes have ended.
    pub(super) fn is_over(&self) -> bool {
        self.retired && self.processes.is_empty()
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired
    }

    pub(super) fn breaker(&self, now: Instant) -> BreakerState {
        self.breaker.state(now)
    }

    pub(super) fn server(&self) -> Option<EraSupport> {
        self.server
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the failure of the last start; `None` if a start has succeeded since.
    pub(super) fn last_error(&self) -> Option<&ProcessFailure> {
        self.last_error.as_ref()
    }

    /// Returns the reason why no process accepts requests: the failure of the last start, or else the end of the last process.
    pub(super) fn failure_reason(&self) -> Option<&ProcessFailure> {
        self.last_error.as_ref().or(self.last_end.as_ref())
    }

    /// Returns the slot of any backend, if `slot` belongs to a connection that all clients share.
    fn replica(&self, slot: &SlotKey) -> Option<&PoolSlot> {
        let shared = slot.key.is_shared();
        let mut all = self.slots.iter().filter(|_| shared);
        let found = all.find(|(it, _)| it.era == slot.era && it.key.replica().is_some());
        found.map(|(_, slot)| slot)
    }

    /// Returns the backends that have a shared process, each with its process.
    pub(super) fn replicas(&self, wanted: Era) -> Vec<(BackendId, ProcessId)> {
        let era = self.server.map_or(wanted, |it| it.opened_for(wanted));
        let slots = self.slots.iter().filter(|(key, _)| key.era == era);
        let replicas = slots.filter_map(|(key, slot)| Some((key.key.replica()?, slot.process?)));
        replicas
            .map(|(backend, process)| (backend.clone(), process))
            .collect()
    }

    /// Returns the backends that have a slot for a connection shared by all clients.
    pub(super) fn known_replicas(&self) -> Vec<BackendId> {
        let replicas = self.slots.keys().filter_map(|slot| slot.key.replica());
        replicas.cloned().collect()
    }

    /// Counts a failure of the whole server for the circuit breaker. Failures of a server with several backends are not counted,
    /// since health checks choose the backend, and a failing backend must not keep clients from the others.
    fn count_failure(&mut self, now: Instant) {
        match self.rules.spreads {
            true => self.breaker.undecided(now),
            false => self.breaker.failed(now),
        }
    }

    /// Returns the subscriptions and log level that all backends share, if the slot belongs to a backend.
    fn of_replicas(&self, slot: &SlotKey) -> Option<Arc<ReplayState>> {
        slot.key.replica()?;
        Some(Arc::clone(&self.replica(slot)?.replay_state))
    }

    /// Returns the backends whose shared connection has failed recently. The more often a backend has failed in a row, the longer
    /// it is in this list.
    pub(super) fn failing(&self, now: Instant) -> Vec<BackendId> {
        let failing = self.slots.iter().filter(|(_, slot)| slot.is_failing(now));
        failing
            .filter_map(|(slot, _)| slot.key.replica().cloned())
            .collect()
    }

    /// Returns the most recent case of a process that ended by itself and was replaced.
    pub(super) fn last_restart(&self) -> Option<UnplannedRestart> {
        self.last_restart
    }

    /// Returns true if the connection that all clients share has ended and is not restarted.
    pub(super) fn is_dead(&self) -> bool {
        let mut shared = self.slots.iter().filter(|(slot, _)| slot.key.is_shared());
        shared.any(|(_, slot)| slot.dead)
    }

    /// Returns true if the connection that all clients share exited with code 0 and is not restarted for that reason. The next
    /// request opens it again.
    fn is_done(&self) -> bool {
        let mut shared = self.slots.iter().filter(|(slot, _)| slot.key.is_shared());
        let clean = |slot: &PoolSlot| slot.ended == Some(ProcessEnd::Clean.as_str());
        shared.any(|(_, slot)| slot.away && clean(slot) && !self.rules.restarts(true))
    }

    /// Returns the presence of the connection that all clients share. Processes of sessions and single requests do not matter.
    pub(super) fn presence(&self) -> Presence {
        let mut shared = self.slots.iter().filter(|(slot, _)| slot.key.is_shared());
        let serves = |slot: &PoolSlot| {
            let entry = slot.process.and_then(|it| self.processes.get(&it));
            entry.is_some_and(|it| matches!(it.duty, ProcessState::Serving { .. }))
        };
        if self.is_dead() || self.is_done() {
            Presence::Dead
        } else if shared.clone().any(|(_, slot)| serves(slot)) {
            // A single backend with an open connection suffices.
            Presence::There
        } else if shared.any(|(_, slot)| slot.away) {
            Presence::Away
        } else {
            Presence::There
        }
    }

    #[cfg(test)]
    pub(super) fn remembers_no_session(&self) -> bool {
        !self.slots.keys().any(|slot| slot.key.is_private())
    }

    /// Returns true if a session's state is lost for good, because its process has ended.
    pub(super) fn has_lost(&self, tag: &Arc<str>) -> bool {
        self.rules.keeps_state && self.has_ended(&ProcessKey::Session(Arc::clone(tag)))
    }

    /// Returns true if the last process for this key has ended and is not replaced.
    pub(super) fn has_ended(&self, key: &ProcessKey) -> bool {
        let ended = |era| {
            let key = key.clone();
            let slot = self.slots.get(&SlotKey { key, era });
            slot.is_some_and(|it| it.dead)
        };
        ended(Era::Legacy) || ended(Era::Modern)
    }

    /// Returns the state of the process that serves this key.
    pub(super) fn copy(&self, key: &ConnectionKey, wanted: Era) -> ServerCopy {
        // The process of a single request is never running before the request.
        let Some(lasting) = ProcessKey::lasting(key) else {
            return ServerCopy::Idle;
        };
        if self.has_ended(&lasting) {
            return ServerCopy::Ended;
        }
        match self.place_of(key, wanted) {
            Some((_, serving)) if !serving.is_empty() => ServerCopy::Running,
            _ => ServerCopy::Idle,
        }
    }

    /// Returns the subscriptions and log level for a key, and the processes that serve the key. If all clients share connections
    /// to several backends, the processes at all backends are returned.
    pub(super) fn place_of(
        &self,
        key: &ConnectionKey,
        wanted: Era,
    ) -> Option<(Arc<ReplayState>, Vec<ProcessId>)> {
        let key = ProcessKey::lasting(key)?;
        let slot = |era| {
            let key = key.clone();
            let slot = SlotKey { key, era };
            let found = self.slots.get(&slot);
            found.or_else(|| self.replica(&slot))
        };
        let slot = match self.server {
            Some(server) => slot(server.opened_for(wanted)),
            // While the server does not start, its eras are unknown, and the slot may be recorded under either era.
            None => slot(wanted).or_else(|| slot(wanted.other())),
        }?;
        let serves = |process: &ProcessId| {
            let entry = self.processes.get(process);
            entry.is_some_and(|it| matches!(it.duty, ProcessState::Serving { .. }))
        };
        let lasting = &slot.replay_state;
        let alike = self
            .slots
            .values()
            .filter(|it| Arc::ptr_eq(&it.replay_state, lasting));
        let serving = alike.filter_map(|slot| slot.process).filter(serves);
        Some((Arc::clone(lasting), serving.collect()))
    }

    pub(super) fn counts(&self) -> PoolCounts {
        let mut counts = PoolCounts::default();
        for process in self.processes.values() {
            *match process.duty {
                ProcessState::Serving { .. } => &mut counts.serving,
                ProcessState::Starting(_) | ProcessState::Spare { runs: false }
                    if process.installing =>
                {
                    &mut counts.installing
                }
                ProcessState::Starting(_) | ProcessState::Spare { runs: false } => {
                    &mut counts.starting
                }
                ProcessState::Spare { runs: true } | ProcessState::Returned { .. } => {
                    &mut counts.spare
                }
                ProcessState::Draining { .. } | ProcessState::Stopping => &mut counts.stopping,
            } += 1;
        }
        counts
    }
}

impl PoolSlot {
    fn new(open: Arc<OpenAs>, now: Instant) -> Self {
        Self {
            process: None,
            open,
            replay_state: Arc::default(),
            failures: 0,
            not_before: None,
            not_filled_before: None,
            ended: None,
            dead: false,
            away: false,
            eager: false,
            last_used: now,
        }
    }

    /// Creates a slot. `state`: the subscriptions and log level that the slot uses; `None` for a slot that has none yet.
    fn lasting(open: Arc<OpenAs>, state: Option<Arc<ReplayState>>, now: Instant) -> Self {
        let fresh = Self::new(open, now);
        Self {
            replay_state: state.unwrap_or_else(|| Arc::clone(&fresh.replay_state)),
            ..fresh
        }
    }

    fn delayed(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| *at > now)
    }

    /// Returns true if the slot has failed, so that no process is started in it yet without a request.
    fn is_failing(&self, now: Instant) -> bool {
        self.not_filled_before.is_some_and(|at| at > now)
    }
}

#[cfg(test)]
mod tests;
