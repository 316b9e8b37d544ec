//! The pure state machine of a pool: which processes there are, whose they are, who waits.
//!
//! ```text
//!            ┌── Spare ──┐ adopted                        leased and given back
//!   spawned ─┤           ▼                              ┌──────▶ Returned ──┐
//!            └──────▶ Starting ── handshake ──▶ Serving ┤                   │ leased again
//!                        │            ▲                 │◀──────────────────┘
//!                        │            │                 ├── too old, not wanted ──▶ Draining
//!                 failed │            │                 │ idle, session closed        │ unused
//!                        ▼                              ▼ ended unasked               ▼
//!                        └──────────────────────────▶ Stopping ── tree gone ──▶ (forgotten)
//! ```
//!
//! A *slot* is the place of one process at a time: the shared one, a session's, a principal's, a lease's. It outlives
//! its process while something about it is to be remembered: failures, subscriptions. What counts against the caps are
//! processes, in whatever state, until nothing of them is left.
//!
//! While nobody knows which protocol the server speaks, one start at a time finds out (the *scout*) and everyone else
//! waits for it. A server that says it is modern may take a handshake all the same: the first who wants one starts the
//! process that shows it, and a refusal is no failure. Waiters are served in order, but one that waits for its principal's cap does not hold up others.
//!
//! `serve` places waiters, `give_way` makes room for them, `upkeep` does what time asks for, `ends` what follows
//! failures and ends, `restart` what follows when an operator asks for new processes. Nothing in here
//! reads a clock, draws a random number of its own accord or touches a process.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;
use tooldock_workers::remote::BackendId;

use super::key::{ConnectionKey, Key, OpenAs, SlotKey};
use super::replay_state::ReplayState;
use super::rules::{Rules, SLOT_WAIT, SLOTS_MAX, WAITERS_MAX};
use crate::protocol::{Era, EraSupport};
use crate::stdio::breaker::{Breaker, BreakerState};
use give_way::Room;

mod ends;
mod event;
mod give_way;
mod restart;
mod serve;
mod upkeep;

pub(in crate::stdio) use event::{
    Action, End, Event, Failure, Full, Order, Place, ProcessId, Refusal, StopReason, WaiterId,
};

/// The whole state.
#[derive(Debug)]
pub(in crate::stdio) struct State {
    rules: Rules,
    breaker: Breaker,
    server: Option<EraSupport>,
    /// The start that finds out what the server speaks.
    scout: Option<ProcessId>,
    processes: BTreeMap<ProcessId, Process>,
    slots: HashMap<SlotKey, Slot>,
    waiting: VecDeque<Waiter>,
    spares: Spares,
    retired: bool,
    /// Processes that end for a restart. While there are some, none is started.
    restarting: BTreeSet<ProcessId>,
    next_process: ProcessId,
    next_lease: u64,
    last_error: Option<Failure>,
    /// How the last process ended unasked, until one starts.
    last_end: Option<Failure>,
    last_restart: Option<Restarted>,
    /// When it was last looked at what is due.
    looked_at: Option<Instant>,
    room: Room,
}

/// A process that took the place of one that had ended unasked.
#[derive(Debug, Clone, Copy)]
pub(in crate::stdio) struct Restarted {
    /// How that one had ended.
    pub(in crate::stdio) reason: &'static str,
    pub(in crate::stdio) at: Instant,
}

#[derive(Debug)]
struct Process {
    duty: Duty,
    born: Instant,
    /// Its package is being installed before it is started.
    installing: bool,
    users: usize,
    /// When it was last used, while nobody uses it.
    idle_since: Instant,
    principal: Option<Arc<str>>,
}

#[derive(Debug, Clone)]
enum Duty {
    Spare { runs: bool },
    Starting(SlotKey),
    Serving { slot: SlotKey, since: Instant },
    Returned { open: Arc<OpenAs>, era: Era },
    Draining { until: Instant, reason: StopReason },
    Stopping,
}

#[derive(Debug)]
struct Slot {
    /// The process that has the place, starting or serving.
    process: Option<ProcessId>,
    open: Arc<OpenAs>,
    replay_state: Arc<ReplayState>,
    /// Failures in a row.
    failures: u32,
    not_before: Option<Instant>,
    /// Why its last process ended unasked.
    ended: Option<&'static str>,
    /// Ended, and not to be restarted.
    dead: bool,
    /// Its last process did not start or ended unasked, and none has served since.
    away: bool,
    /// To be filled without a request for it.
    eager: bool,
    last_used: Instant,
}

#[derive(Debug)]
struct Waiter {
    id: WaiterId,
    key: Key,
    open: Arc<OpenAs>,
    deadline: Instant,
}

/// The spare processes, and whether any are worth having.
#[derive(Debug, Default)]
struct Spares {
    /// When a process of somebody's own was last asked for.
    asked_for: Option<Instant>,
    failures: u32,
    not_before: Option<Instant>,
}

/// How many processes there are, for metrics and `/ready`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Taking requests.
    pub(crate) serving: usize,
    /// On their way there.
    pub(crate) starting: usize,
    /// Waiting for the installation of their package, before their start.
    pub(crate) installing: usize,
    /// Ready to be opened, or to be leased again.
    pub(crate) spare: usize,
    /// On their way out.
    pub(crate) stopping: usize,
}

/// Whether what everybody shares is there, for those who publish what it offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It serves, or will when it is asked: while nobody uses it, it may be stopped.
    There,
    /// It did not start, or ended; another process may take its place.
    Away,
    /// It did not start, or ended, and is not restarted.
    Dead,
}

/// How one copy of a server is: everybody's, or a client's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerCopy {
    /// It is there, or has no copies.
    Running,
    /// Nobody needed it yet, or it was stopped and starts when it is needed.
    Idle,
    /// It ended and is not started again.
    Ended,
}

impl State {
    pub(super) fn new(rules: Rules) -> Self {
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
            room: Room::default(),
        }
    }

    /// What follows from an event. `jitter` is a random number in `0.0..1.0`. An event that means nothing any more, such
    /// as the end of a process that was told to end, changes nothing.
    pub(super) fn step(&mut self, event: Event, now: Instant, jitter: f64) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Wanted { key, open } => self.wanted(&key, open, now),
            Event::Lease { waiter, key, open } => {
                self.lease(waiter, key, open, now, &mut actions);
            }
            Event::Abandoned { waiter } => self.waiting.retain(|it| it.id != waiter),
            Event::Released { process, reusable } => {
                self.released(process, reusable, now, &mut actions);
            }
            Event::Installing { process, now } => {
                if let Some(entry) = self.processes.get_mut(&process) {
                    entry.installing = now;
                }
            }
            Event::Spawned { process } => {
                if let Some(Process {
                    duty: Duty::Spare { runs },
                    ..
                }) = self.processes.get_mut(&process)
                {
                    *runs = true;
                }
            }
            Event::Started {
                process,
                server,
                opened,
            } => self.started(process, server, opened, now, &mut actions),
            Event::StartFailed { process, failure } => {
                self.start_failed(process, failure, now, jitter, &mut actions);
            }
            Event::Explained { why } => self.last_end = Some(why),
            Event::Lost { process, end } => self.lost(process, end, now, jitter),
            Event::Gone { process } => {
                // Its task may have ended without having said so.
                self.lost(process, End::Crash, now, jitter);
                self.processes.remove(&process);
                self.restarting.remove(&process);
            }
            Event::Inherit { places } => self.inherit(places, now),
            Event::SessionClosed { tag } => self.session_closed(&tag, now, &mut actions),
            Event::SessionReturned { tag } => self.session_returned(&tag),
            Event::Away { since } => self.room.note_away(since, now),
            Event::Outdated { process } => {
                self.vacate(process, now, true);
                self.drain(process, StopReason::Outdated, now, &mut actions);
            }
            Event::Mute { process } => {
                self.vacate(process, now, true);
                self.drain(process, StopReason::Mute, now, &mut actions);
            }
            Event::Removed {
                replicas,
                instead,
                processes,
            } => self.removed((&replicas, instead.as_ref()), processes, now, &mut actions),
            Event::Restart => self.restart(now, &mut actions),
            Event::Revive => self.revive(),
            Event::Retire => self.retire(now, &mut actions),
            Event::Tick => {}
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

    /// The way of nearly every request: its process is there. Nothing else follows from that.
    pub(super) fn grant_at_once(
        &mut self,
        key: &ConnectionKey,
        wanted: Era,
    ) -> Option<(ProcessId, Arc<ReplayState>)> {
        let key = Key::lasting(key)?;
        let era = self.server?.opened_for(wanted);
        let slot = self.slots.get(&SlotKey { key, era })?;
        let process = slot.process?;
        let entry = self.processes.get_mut(&process)?;
        matches!(entry.duty, Duty::Serving { .. }).then(|| {
            entry.users += 1;
            (process, Arc::clone(&slot.replay_state))
        })
    }

    /// The way back of nearly every request. Answers whether more follows from it, for [`State::step`] to find out.
    pub(super) fn release_at_once(&mut self, process: ProcessId, now: Instant) -> bool {
        let Some(entry) = self.processes.get_mut(&process) else {
            return true;
        };
        match &entry.duty {
            Duty::Serving { slot, .. } if !matches!(slot.key, Key::Exclusive(_)) => {
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
        // It also answers for what is true of all of them: what the server speaks and can do.
        let key = SlotKey {
            key: Key::lasting(key).unwrap_or(Key::Shared),
            era: open.era,
        };
        self.slots.entry(key).or_insert_with(|| Slot {
            eager: true,
            ..Slot::new(open, now)
        });
    }

    fn lease(
        &mut self,
        waiter: WaiterId,
        key: ConnectionKey,
        open: Arc<OpenAs>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        if self.waiting.len() >= WAITERS_MAX {
            let refusal = Refusal::Overloaded(Full::Waiters);
            actions.push(Action::Refuse { waiter, refusal });
            return;
        }
        let key = Key::lasting(&key).unwrap_or_else(|| {
            self.next_lease += 1;
            Key::Exclusive(self.next_lease)
        });
        if key.is_private() {
            self.spares.asked_for = Some(now);
        }
        self.waiting.push_back(Waiter {
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
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.processes.get_mut(&process) else {
            return;
        };
        entry.users = entry.users.saturating_sub(1);
        entry.idle_since = now;
        match entry.duty.clone() {
            Duty::Draining { reason, .. } if entry.users == 0 => {
                self.stop(process, reason, now, actions);
            }
            Duty::Serving { slot, .. } if matches!(slot.key, Key::Exclusive(_)) => {
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

    /// What lasts in places of several clients and of sessions, for the pool that takes this one's place.
    pub(super) fn lasting(&self) -> Vec<Place> {
        let all = self.slots.iter().map(|(key, slot)| Place {
            slot: key.clone(),
            open: Arc::clone(&slot.open),
            replay_state: Arc::clone(&slot.replay_state),
            lost: self.keeps_state_of(key) && (slot.process.is_some() || slot.dead),
        });
        all.filter(|place| place.lost || place.replay_state.lasts())
            .collect()
    }

    /// Its clients do not know that the server was replaced: what they wait for comes from this one.
    fn inherit(&mut self, places: Vec<Place>, now: Instant) {
        for place in places {
            if self.slots.len() >= SLOTS_MAX {
                return;
            }
            let lasting = self.of_replicas(&place.slot);
            let slot = self
                .slots
                .entry(place.slot)
                .or_insert_with(|| Slot::lasting(place.open, lasting, now));
            slot.replay_state.take_over(&place.replay_state);
            slot.dead |= place.lost && self.rules.keeps_state;
            slot.eager |= slot.replay_state.is_awaited() && !slot.dead;
        }
    }

    /// Whether what a place's process knows is lost with it.
    fn keeps_state_of(&self, slot: &SlotKey) -> bool {
        self.rules.keeps_state && slot.key.is_of_session()
    }

    /// What runs at backends that were removed goes on there; what comes next goes elsewhere, or is told that its state is
    /// lost.
    fn removed(
        &mut self,
        (replicas, instead): (&[BackendId], Option<&BackendId>),
        processes: Vec<ProcessId>,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        for process in processes {
            let slot = match self.processes.get(&process).map(|it| &it.duty) {
                Some(Duty::Serving { slot, .. }) => Some(slot.clone()),
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
            matches!(&it.duty, Duty::Starting(slot) if left(slot)).then_some(*process)
        });
        for process in starting.collect::<Vec<_>>() {
            self.stop(process, StopReason::Removed, now, actions);
        }
        let (gone, kept) = self.slots.drain().partition(|(key, _)| left(key));
        self.slots = kept;
        let gone: HashMap<SlotKey, Slot> = gone;
        for (key, place) in gone {
            let lasting = place.replay_state;
            let Some(instead) = instead.filter(|_| lasting.lasts()) else {
                continue;
            };
            // All places of that kind have it in common.
            let key = SlotKey {
                key: Key::Replica(instead.clone()),
                era: key.era,
            };
            let slot = self.slots.entry(key);
            let slot = slot.or_insert_with(|| Slot::lasting(place.open, Some(lasting), now));
            slot.eager |= slot.replay_state.is_awaited();
        }
    }

    fn session_closed(&mut self, tag: &Arc<str>, now: Instant, actions: &mut Vec<Action>) {
        for era in [Era::Legacy, Era::Modern] {
            let slot = SlotKey {
                key: Key::Session(Arc::clone(tag)),
                era,
            };
            if let Some(process) = self.slots.remove(&slot).and_then(|slot| slot.process) {
                self.stop(process, StopReason::SessionClosed, now, actions);
            }
        }
        self.waiting.retain(|waiter| {
            let ours = matches!(&waiter.key, Key::Session(it) if it == tag);
            if ours {
                let refusal = Refusal::SessionClosed;
                let waiter = waiter.id;
                actions.push(Action::Refuse { waiter, refusal });
            }
            !ours
        });
    }

    /// Who listens again for news of a resource is to hear it, without asking for anything else first.
    fn session_returned(&mut self, tag: &Arc<str>) {
        for era in [Era::Legacy, Era::Modern] {
            let key = Key::Session(Arc::clone(tag));
            if let Some(place) = self.slots.get_mut(&SlotKey { key, era }) {
                place.eager |= place.process.is_none() && place.replay_state.is_awaited();
            }
        }
    }

    /// Whether there is a place of a session.
    pub(super) fn remembers(&self, tag: &Arc<str>) -> bool {
        [Era::Legacy, Era::Modern].into_iter().any(|era| {
            let key = Key::Session(Arc::clone(tag));
            self.slots.contains_key(&SlotKey { key, era })
        })
    }

    fn retire(&mut self, now: Instant, actions: &mut Vec<Action>) {
        self.retired = true;
        self.slots.clear();
        for waiter in self.waiting.drain(..) {
            let refusal = Refusal::Retired;
            let waiter = waiter.id;
            actions.push(Action::Refuse { waiter, refusal });
        }
        let all: Vec<_> = self.processes.keys().copied().collect();
        for process in all {
            self.drain(process, StopReason::Retired, now, actions);
        }
    }

    /// Ends a process once nobody uses it, and at last when none of its calls could still be on time. The caller has
    /// taken its slot from it.
    fn drain(
        &mut self,
        process: ProcessId,
        reason: StopReason,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        let Some(entry) = self.processes.get_mut(&process) else {
            return;
        };
        match &entry.duty {
            Duty::Stopping | Duty::Draining { .. } => {}
            duty if entry.users > 0 => {
                let private = matches!(duty, Duty::Serving { slot, .. } if slot.key.is_private());
                let limit = match private {
                    true => self.rules.drain_private,
                    false => self.rules.drain,
                };
                let until = now + limit;
                entry.duty = Duty::Draining { until, reason };
            }
            _ => self.stop(process, reason, now, actions),
        }
    }

    fn stop(
        &mut self,
        process: ProcessId,
        reason: StopReason,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        self.forget_scout(process);
        if let Some(entry) = self.processes.get_mut(&process)
            && !matches!(entry.duty, Duty::Stopping)
        {
            if matches!(entry.duty, Duty::Starting(_)) {
                self.breaker.undecided(now);
            }
            entry.duty = Duty::Stopping;
            actions.push(Action::Stop { process, reason });
        }
    }

    fn forget_scout(&mut self, process: ProcessId) {
        if self.scout == Some(process) {
            self.scout = None;
        }
    }

    /// Nothing of it is left, and nothing will come.
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

    /// Why the last start failed, until one succeeds.
    pub(super) fn last_error(&self) -> Option<&Failure> {
        self.last_error.as_ref()
    }

    /// Why no process serves: why the last start failed, else how the last process ended.
    pub(super) fn why(&self) -> Option<&Failure> {
        self.last_error.as_ref().or(self.last_end.as_ref())
    }

    /// A place at some backend, for what everybody shares.
    fn replica(&self, slot: &SlotKey) -> Option<&Slot> {
        let shared = slot.key.is_shared();
        let mut all = self.slots.iter().filter(|_| shared);
        let found = all.find(|(it, _)| it.era == slot.era && it.key.replica().is_some());
        found.map(|(_, slot)| slot)
    }

    /// The backends at which what everybody shares has a process, and that process.
    pub(super) fn replicas(&self, wanted: Era) -> Vec<(BackendId, ProcessId)> {
        let era = self.server.map_or(wanted, |it| it.opened_for(wanted));
        let slots = self.slots.iter().filter(|(key, _)| key.era == era);
        let replicas = slots.filter_map(|(key, slot)| Some((key.key.replica()?, slot.process?)));
        replicas
            .map(|(backend, process)| (backend.clone(), process))
            .collect()
    }

    /// The backends that have a place for what everybody shares.
    pub(super) fn known_replicas(&self) -> Vec<BackendId> {
        let replicas = self.slots.keys().filter_map(|slot| slot.key.replica());
        replicas.cloned().collect()
    }

    /// A failure that speaks against the server as a whole. Where several backends share the work, their own health says
    /// which of them is worth trying, and one that ends again and again is no reason to keep clients from the others.
    fn count_failure(&mut self, now: Instant) {
        match self.rules.spreads {
            true => self.breaker.undecided(now),
            false => self.breaker.failed(now),
        }
    }

    /// What lasts at all backends alike, for the place at one more of them.
    fn of_replicas(&self, slot: &SlotKey) -> Option<Arc<ReplayState>> {
        slot.key.replica()?;
        Some(Arc::clone(&self.replica(slot)?.replay_state))
    }

    /// Backends where what everybody shares failed just now.
    pub(super) fn failing(&self, now: Instant) -> Vec<BackendId> {
        let delayed = self
            .slots
            .iter()
            .filter(|(_, slot)| slot.delayed(now).is_some());
        delayed
            .filter_map(|(slot, _)| slot.key.replica().cloned())
            .collect()
    }

    /// The last process that took another's place.
    pub(super) fn last_restart(&self) -> Option<Restarted> {
        self.last_restart
    }

    /// Whether what everybody shares ended and is not to be restarted.
    pub(super) fn is_dead(&self) -> bool {
        let mut shared = self.slots.iter().filter(|(slot, _)| slot.key.is_shared());
        shared.any(|(_, slot)| slot.dead)
    }

    /// Whether what everybody shares ended of its own accord, where only failures are a reason to start it again. It starts
    /// when somebody needs it.
    fn is_done(&self) -> bool {
        let mut shared = self.slots.iter().filter(|(slot, _)| slot.key.is_shared());
        let clean = |slot: &Slot| slot.ended == Some(End::Clean.as_str());
        shared.any(|(_, slot)| slot.away && clean(slot) && !self.rules.restarts(true))
    }

    /// Whether what everybody shares is there. Processes of sessions and of requests count for nothing.
    pub(super) fn presence(&self) -> Presence {
        let mut shared = self.slots.iter().filter(|(slot, _)| slot.key.is_shared());
        let serves = |slot: &Slot| {
            let entry = slot.process.and_then(|it| self.processes.get(&it));
            entry.is_some_and(|it| matches!(it.duty, Duty::Serving { .. }))
        };
        if self.is_dead() || self.is_done() {
            Presence::Dead
        } else if shared.clone().any(|(_, slot)| serves(slot)) {
            // Of several backends one is enough.
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

    /// Whether what a session's process knew is gone with the process, for good.
    pub(super) fn has_lost(&self, tag: &Arc<str>) -> bool {
        self.rules.keeps_state && self.has_ended(&Key::Session(Arc::clone(tag)))
    }

    /// Whether the last process in the place of that key ended, and no other one takes its place.
    pub(super) fn has_ended(&self, key: &Key) -> bool {
        let ended = |era| {
            let key = key.clone();
            let slot = self.slots.get(&SlotKey { key, era });
            slot.is_some_and(|it| it.dead)
        };
        ended(Era::Legacy) || ended(Era::Modern)
    }

    /// How the copy is that is reached by that key.
    pub(super) fn copy(&self, key: &ConnectionKey, wanted: Era) -> ServerCopy {
        // A process for one request alone is over with it.
        let Some(lasting) = Key::lasting(key) else {
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

    /// What lasts in a place, and the processes that serve it: of what everybody shares at several backends, those at all
    /// of them.
    pub(super) fn place_of(
        &self,
        key: &ConnectionKey,
        wanted: Era,
    ) -> Option<(Arc<ReplayState>, Vec<ProcessId>)> {
        let key = Key::lasting(key)?;
        let slot = |era| {
            let key = key.clone();
            let slot = SlotKey { key, era };
            let found = self.slots.get(&slot);
            found.or_else(|| self.replica(&slot))
        };
        let slot = match self.server {
            Some(server) => slot(server.opened_for(wanted)),
            // Nothing is known while it does not start: then what it was is on record.
            None => slot(wanted).or_else(|| slot(wanted.other())),
        }?;
        let serves = |process: &ProcessId| {
            let entry = self.processes.get(process);
            entry.is_some_and(|it| matches!(it.duty, Duty::Serving { .. }))
        };
        let lasting = &slot.replay_state;
        let alike = self
            .slots
            .values()
            .filter(|it| Arc::ptr_eq(&it.replay_state, lasting));
        let serving = alike.filter_map(|slot| slot.process).filter(serves);
        Some((Arc::clone(lasting), serving.collect()))
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for process in self.processes.values() {
            *match process.duty {
                Duty::Serving { .. } => &mut counts.serving,
                Duty::Starting(_) | Duty::Spare { runs: false } if process.installing => {
                    &mut counts.installing
                }
                Duty::Starting(_) | Duty::Spare { runs: false } => &mut counts.starting,
                Duty::Spare { runs: true } | Duty::Returned { .. } => &mut counts.spare,
                Duty::Draining { .. } | Duty::Stopping => &mut counts.stopping,
            } += 1;
        }
        counts
    }
}

impl Slot {
    fn new(open: Arc<OpenAs>, now: Instant) -> Self {
        Self {
            process: None,
            open,
            replay_state: Arc::default(),
            failures: 0,
            not_before: None,
            ended: None,
            dead: false,
            away: false,
            eager: false,
            last_used: now,
        }
    }

    /// A place where that lasts.
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
}

#[cfg(test)]
mod tests;
