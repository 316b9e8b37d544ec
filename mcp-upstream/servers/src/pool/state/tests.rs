//! The state machine, driven by values: a world that starts and ends processes as the machine decides.

use std::time::Duration;

use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::version::ClientIdentity;
use tooldock_workers::external::{Restart, StdioSettings};
use tooldock_workers::server_settings::Isolation;

use super::*;

mod giving_way;
mod lasting;
mod orders;

fn modern() -> Arc<OpenAs> {
    Arc::new(OpenAs::gateway(Era::Modern))
}

fn legacy_of(capabilities: &str, principal: Option<&str>) -> Arc<OpenAs> {
    let capabilities = RawValue::from_string(capabilities.to_owned()).expect("JSON");
    let identity = ClientIdentity {
        capabilities: capabilities.into(),
        ..ClientIdentity::clone(ClientIdentity::gateway())
    };
    Arc::new(OpenAs {
        identity: Arc::new(identity),
        principal: principal.map(Into::into),
        ..OpenAs::gateway(Era::Legacy)
    })
}

fn legacy() -> Arc<OpenAs> {
    legacy_of("{}", None)
}

fn session(tag: &str) -> ConnectionKey {
    ConnectionKey::Session(tag.into())
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The machine's decisions, in their order.
struct World {
    state: PoolStateMachine,
    now: Instant,
    waiters: WaiterId,
    granted: HashMap<WaiterId, ProcessId>,
    refused: HashMap<WaiterId, LeaseRefusal>,
    started: Vec<(ProcessId, Order)>,
    spares: Vec<ProcessId>,
    stopped: Vec<(ProcessId, StopReason)>,
}

impl World {
    fn new(settings: StdioSettings) -> Self {
        Self {
            state: PoolStateMachine::new(PoolRules::from(&settings)),
            now: Instant::now(),
            waiters: 0,
            granted: HashMap::new(),
            refused: HashMap::new(),
            started: Vec::new(),
            spares: Vec::new(),
            stopped: Vec::new(),
        }
    }

    /// Without spares, which do not matter for most facts.
    fn plain() -> Self {
        Self::new(StdioSettings {
            warm: 0,
            ..StdioSettings::default()
        })
    }

    /// With room for one process, and no spares.
    fn of_one_process() -> Self {
        Self::new(StdioSettings {
            warm: 0,
            max_processes: 1,
            ..StdioSettings::default()
        })
    }

    fn step(&mut self, event: PoolEvent) {
        for action in self.state.step(event, self.now, 0.0) {
            match action {
                PoolAction::Grant { waiter, process } => {
                    assert!(self.granted.insert(waiter, process).is_none());
                }
                PoolAction::Refuse { waiter, refusal } => {
                    assert!(self.refused.insert(waiter, refusal).is_none());
                }
                PoolAction::Start { process, order } | PoolAction::Adopt { process, order } => {
                    self.started.push((process, order));
                }
                PoolAction::Spare { process } => self.spares.push(process),
                PoolAction::Stop { process, reason } => self.stopped.push((process, reason)),
            }
        }
    }

    fn lease(&mut self, key: ConnectionKey, open: Arc<OpenAs>) -> WaiterId {
        self.waiters += 1;
        let waiter = self.waiters;
        self.step(PoolEvent::Lease { waiter, key, open });
        waiter
    }

    /// Starts every process that was ordered.
    fn start_all(&mut self, server: EraSupport) {
        let mut seen = 0;
        while let Some((process, order)) = self.started.get(seen).cloned() {
            seen += 1;
            let opened = server.opened_for(order.slot.era);
            self.step(PoolEvent::Started {
                process,
                server,
                opened,
            });
        }
    }

    fn fail_last(&mut self) {
        let process = self.started.last().expect("one was started").0;
        let error = CallError::new(CallErrorCode::WorkerUnavailable, "no such file");
        let reason = "no such file; it said last: oh".into();
        let failure = ProcessFailure {
            error,
            reason,
            elsewhere: false,
        };
        self.step(PoolEvent::StartFailed { process, failure });
        self.step(PoolEvent::Gone { process });
    }

    fn lose(&mut self, process: ProcessId, end: ProcessEnd) {
        self.step(PoolEvent::Lost { process, end });
        self.step(PoolEvent::Gone { process });
    }

    fn release(&mut self, process: ProcessId) {
        let reusable = true;
        self.step(PoolEvent::Released { process, reusable });
    }

    /// Lets time pass, with a tick whenever the machine wants to be woken.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            match self.state.wake_at().filter(|at| *at <= end) {
                Some(at) => self.now = at.max(self.now + Duration::from_millis(10)),
                None => break,
            }
            self.step(PoolEvent::Tick);
        }
        self.now = end;
        self.step(PoolEvent::Tick);
    }
}

#[test]
fn many_who_want_the_shared_process_start_it_once() {
    let mut world = World::plain();
    let all: Vec<_> = (0..10)
        .map(|_| world.lease(ConnectionKey::Shared, legacy()))
        .collect();
    assert_eq!((world.started.len(), world.granted.len()), (1, 0));
    world.start_all(EraSupport::Legacy);
    assert!(all.iter().all(|waiter| world.granted[waiter] == 1));
    let granted = world
        .state
        .grant_at_once(&ConnectionKey::Shared, Era::Modern);
    assert_eq!(granted.map(|(process, _)| process), Some(1));
    assert_eq!(world.started.len(), 1);
}

#[test]
fn until_the_protocol_is_known_one_start_finds_out_and_the_others_wait() {
    let mut world = World::plain();
    let shared = world.lease(ConnectionKey::Shared, modern());
    let own = world.lease(session("a"), legacy());
    assert_eq!(world.started.len(), 1);
    assert_eq!(world.started[0].1.server, None);
    world.start_all(EraSupport::Legacy);
    // The server knows only the handshake: the modern request is served by the only legacy process.
    assert_eq!((world.granted[&shared], world.granted[&own]), (1, 2));
    let legacy = world.lease(ConnectionKey::Shared, legacy());
    assert_eq!(world.granted[&legacy], 1);
    assert_eq!(world.started[1].1.server, Some(EraSupport::Legacy));
}

#[test]
fn a_server_of_both_eras_has_a_shared_process_for_each() {
    let mut world = World::plain();
    let legacy = world.lease(ConnectionKey::Shared, legacy());
    let modern = world.lease(ConnectionKey::Shared, modern());
    world.start_all(EraSupport::Dual);
    assert_ne!(world.granted[&legacy], world.granted[&modern]);
    assert_eq!(world.started[1].1.slot.era, Era::Modern);
}

#[test]
fn one_that_turns_out_to_be_of_the_era_that_is_served_already_is_not_kept() {
    let mut world = World::plain();
    world.lease(ConnectionKey::Shared, legacy());
    world.lease(ConnectionKey::Shared, modern());
    world.start_all(EraSupport::Dual);
    // A new release speaks only one of the eras.
    world.lose(2, ProcessEnd::Crash);
    let waiter = world.lease(ConnectionKey::Shared, modern());
    let process = world.started.last().expect("started again").0;
    world.step(PoolEvent::Started {
        process,
        server: EraSupport::Legacy,
        opened: Era::Legacy,
    });
    assert_eq!(world.stopped, [(process, StopReason::Surplus)]);
    assert_eq!(world.granted[&waiter], 1);
}

fn modern_at_least(world: &mut World) {
    world.lease(ConnectionKey::Shared, modern());
    world.step(PoolEvent::Started {
        process: 1,
        server: EraSupport::ModernAtLeast,
        opened: Era::Modern,
    });
}

#[test]
fn one_start_shows_whether_a_modern_server_takes_a_handshake_and_a_refusal_is_no_failure() {
    let mut world = World::plain();
    modern_at_least(&mut world);
    // A modern request does not need to know if there is a handshake.
    world.lease(ConnectionKey::Shared, modern());
    assert_eq!(world.started.len(), 1);
    let first = world.lease(ConnectionKey::Shared, legacy());
    let second = world.lease(ConnectionKey::Shared, legacy());
    let (_, order) = world.started.last().expect("started").clone();
    assert_eq!(order.server, Some(EraSupport::ModernAtLeast));
    assert_eq!((order.slot.era, world.started.len()), (Era::Legacy, 2));
    for _ in 0..20 {
        // Requests of its own era go on.
        let modern = world.lease(ConnectionKey::Shared, modern());
        assert_eq!(world.granted[&modern], 1);
    }
    world.fail_last();
    assert_eq!((world.granted[&first], world.granted[&second]), (1, 1));
    assert_eq!(world.state.server(), Some(EraSupport::Modern));
    assert!(world.state.last_error().is_none());
    let late = world.lease(ConnectionKey::Shared, legacy());
    assert_eq!((world.granted[&late], world.started.len()), (1, 2));
}

#[test]
fn what_a_handshake_showed_is_not_forgotten_for_a_process_that_was_opened_before() {
    let mut world = World::plain();
    modern_at_least(&mut world);
    world.lease(session("a"), modern());
    let waiter = world.lease(ConnectionKey::Shared, legacy());
    for (process, server, opened) in [
        (3, EraSupport::Dual, Era::Legacy),
        (2, EraSupport::ModernAtLeast, Era::Modern),
    ] {
        world.step(PoolEvent::Started {
            process,
            server,
            opened,
        });
    }
    assert_eq!(world.granted[&waiter], 3);
    assert_eq!(world.state.server(), Some(EraSupport::Dual));
}

#[test]
fn a_server_with_no_room_for_another_process_is_taken_at_its_word() {
    let mut world = World::of_one_process();
    modern_at_least(&mut world);
    let waiter = world.lease(ConnectionKey::Shared, legacy());
    assert_eq!(world.granted[&waiter], 1);
    assert_eq!(world.state.server(), Some(EraSupport::Modern));
}

#[test]
fn a_principal_at_its_cap_waits_without_holding_up_others() {
    let mut world = World::new(StdioSettings {
        warm: 0,
        max_per_principal: 2,
        ..StdioSettings::default()
    });
    let of = |who| legacy_of("{}", Some(who));
    let first = world.lease(session("a1"), of("ann"));
    world.start_all(EraSupport::Legacy);
    world.lease(session("a2"), of("ann"));
    let third = world.lease(session("a3"), of("ann"));
    let other = world.lease(session("b1"), of("bob"));
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&other) && !world.granted.contains_key(&third));
    world.release(world.granted[&first]);
    world.step(PoolEvent::SessionClosed { tag: "a1".into() });
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&third));
    let fourth = world.lease(session("a4"), of("ann"));
    world.pass(seconds(6));
    assert!(matches!(
        world.refused[&fourth],
        LeaseRefusal::Overloaded(PoolLimit::Principal)
    ));
}

#[test]
fn at_the_cap_of_the_server_a_request_waits_for_five_seconds_and_is_then_refused() {
    let mut world = World::of_one_process();
    world.lease(session("a"), legacy());
    world.start_all(EraSupport::Legacy);
    let second = world.lease(session("b"), legacy());
    world.pass(seconds(4));
    assert!(world.refused.is_empty());
    world.pass(seconds(2));
    assert!(matches!(
        world.refused[&second],
        LeaseRefusal::Overloaded(PoolLimit::Processes)
    ));

    // A slot is free only when its process is gone entirely.
    let third = world.lease(session("c"), legacy());
    world.step(PoolEvent::SessionClosed { tag: "a".into() });
    assert_eq!(world.started.len(), 1);
    world.step(PoolEvent::Gone { process: 1 });
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&third));
}

#[test]
fn one_whose_wait_ends_just_after_a_look_is_not_forgotten() {
    let mut world = World::of_one_process();
    world.lease(session("a"), legacy());
    world.start_all(EraSupport::Legacy);
    let second = world.lease(session("b"), legacy());
    world.now += Duration::from_millis(1);
    let third = world.lease(session("c"), legacy());
    world.now = world.state.wake_at().expect("the second's time is limited");
    world.step(PoolEvent::Tick);
    assert!(world.refused.contains_key(&second) && !world.refused.contains_key(&third));
    // This takes longer than the third waiter's time.
    world.now += Duration::from_millis(2);
    assert!(world.state.wake_at().is_some_and(|at| at <= world.now));
}

#[test]
fn only_so_many_may_wait() {
    let mut world = World::plain();
    for _ in 0..WAITERS_MAX {
        world.lease(ConnectionKey::Shared, legacy());
    }
    let late = world.lease(ConnectionKey::Shared, legacy());
    assert!(matches!(
        world.refused[&late],
        LeaseRefusal::Overloaded(PoolLimit::Waiters)
    ));
    world.step(PoolEvent::Abandoned { waiter: 1 });
    world.lease(ConnectionKey::Shared, legacy());
    assert_eq!(world.refused.len(), 1);
}

#[test]
fn a_leased_process_is_given_to_the_next_who_needs_one_just_like_it() {
    let mut world = World::plain();
    let asks = || legacy_of(r#"{"sampling":{}}"#, None);
    let first = world.lease(ConnectionKey::Exclusive, asks());
    world.start_all(EraSupport::Legacy);
    let process = world.granted[&first];
    world.release(process);
    let other = world.lease(ConnectionKey::Exclusive, legacy_of(r#"{"roots":{}}"#, None));
    let second = world.lease(ConnectionKey::Exclusive, asks());
    let third = world.lease(ConnectionKey::Exclusive, asks());
    assert_eq!(world.granted.get(&second), Some(&process));
    assert!(!world.granted.contains_key(&other) && !world.granted.contains_key(&third));
    // A process with unfinished work, or of a server with isolated sessions, ends.
    let reusable = false;
    world.step(PoolEvent::Released { process, reusable });
    assert_eq!(world.stopped, [(process, StopReason::Used)]);
    let mut apart = World::new(StdioSettings {
        isolation: Isolation::Session,
        warm: 0,
        ..StdioSettings::default()
    });
    apart.lease(ConnectionKey::Exclusive, legacy());
    apart.start_all(EraSupport::Legacy);
    apart.release(1);
    assert_eq!(apart.stopped, [(1, StopReason::Used)]);
}

#[test]
fn a_process_started_for_one_who_left_is_the_next_ones() {
    let mut world = World::plain();
    let first = world.lease(ConnectionKey::Exclusive, legacy());
    world.step(PoolEvent::Abandoned { waiter: first });
    world.start_all(EraSupport::Legacy);
    assert_eq!(world.state.counts().spare, 1);
    let second = world.lease(ConnectionKey::Exclusive, legacy());
    assert_eq!(world.granted.get(&second), Some(&1));
}

#[test]
fn a_process_given_back_makes_room_for_one_that_is_needed() {
    let mut world = World::of_one_process();
    world.lease(ConnectionKey::Exclusive, legacy());
    world.start_all(EraSupport::Legacy);
    world.release(1);
    world.lease(session("a"), legacy());
    assert_eq!(world.stopped, [(1, StopReason::Surplus)]);
    world.step(PoolEvent::Gone { process: 1 });
    assert_eq!(world.started.len(), 2);
}

#[test]
fn an_idle_process_stops_and_one_with_subscriptions_or_a_request_does_not() {
    let mut world = World::plain();
    let shared = world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    world.lease(session("busy"), legacy());
    world.lease(session("subscribed"), legacy());
    world.start_all(EraSupport::Legacy);
    let replay_state = world.state.replay_state_of(3).expect("it serves");
    replay_state.subscribe("test://a").expect("the first");
    world.release(world.granted[&shared]);
    world.release(3);
    world.pass(seconds(599));
    assert!(world.stopped.is_empty());
    world.pass(seconds(2));
    assert_eq!(world.stopped, [(1, StopReason::Idle)]);
    replay_state.unsubscribe("test://a");
    world.pass(seconds(601));
    assert_eq!(world.stopped[1..], [(3, StopReason::Idle)]);
    // The next request starts the process again.
    world.step(PoolEvent::Gone { process: 1 });
    world.lease(ConnectionKey::Shared, legacy());
    assert_eq!(world.started.len(), 4);
}

#[test]
fn a_server_that_was_stopped_for_nobodys_use_is_there_while_it_starts_again() {
    let mut world = World::plain();
    let shared = world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    world.release(world.granted[&shared]);
    world.pass(seconds(601));
    assert_eq!(world.stopped, [(1, StopReason::Idle)]);
    world.step(PoolEvent::Gone { process: 1 });
    assert_eq!(world.state.presence(), Presence::There);
    world.lease(ConnectionKey::Shared, legacy());
    assert_eq!(
        (world.started.len(), world.state.presence()),
        (2, Presence::There)
    );
    // A failed start, and the next start until it serves.
    world.fail_last();
    assert_eq!(world.state.presence(), Presence::Away);
    world.lease(ConnectionKey::Shared, legacy());
    world.pass(seconds(8));
    assert_eq!(
        (world.started.len(), world.state.presence()),
        (3, Presence::Away)
    );
    world.start_all(EraSupport::Legacy);
    assert_eq!(world.state.presence(), Presence::There);
}

#[test]
fn only_what_everybody_shares_counts_for_whether_a_server_is_there() {
    for (restart, end, lost) in [
        (Restart::Never, ProcessEnd::Crash, Presence::Dead),
        (Restart::OnFailure, ProcessEnd::Crash, Presence::Away),
        (Restart::OnFailure, ProcessEnd::Clean, Presence::Dead),
        (Restart::Always, ProcessEnd::Clean, Presence::Away),
    ] {
        let mut world = World::new(StdioSettings {
            restart,
            warm: 0,
            ..StdioSettings::default()
        });
        let shared = world.lease(ConnectionKey::Shared, legacy());
        world.start_all(EraSupport::Legacy);
        let own = world.lease(session("a"), legacy());
        let other = world.lease(session("b"), legacy());
        world.start_all(EraSupport::Legacy);
        world.lose(world.granted[&own], ProcessEnd::Crash);
        assert_eq!(world.state.presence(), Presence::There);
        // The copy of a session that still serves does not count as the shared one.
        world.lose(world.granted[&shared], end);
        assert!(world.granted.contains_key(&other));
        assert_eq!(world.state.presence(), lost);
    }
}

#[test]
fn an_old_process_finishes_what_it_does_while_its_successor_takes_what_is_new() {
    let mut world = World::plain();
    let early = world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    world.pass(seconds(24 * 3600 + 1));
    assert!(world.stopped.is_empty());
    let late = world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    assert_eq!((world.granted[&early], world.granted[&late]), (1, 2));
    world.release(1);
    assert_eq!(world.stopped, [(1, StopReason::Lifetime)]);
}

#[test]
fn a_process_with_outdated_credentials_takes_nothing_new_and_those_of_others_go_on() {
    let principal = |name: &str| ConnectionKey::Principal(name.into());
    let mut world = World::plain();
    let ada = world.lease(principal("ada"), legacy());
    world.start_all(EraSupport::Legacy);
    let bob = world.lease(principal("bob"), legacy());
    world.start_all(EraSupport::Legacy);
    let (old, others) = (world.granted[&ada], world.granted[&bob]);
    world.step(PoolEvent::Outdated { process: old });
    assert!(world.stopped.is_empty(), "its call goes on");
    let later = world.lease(principal("ada"), legacy());
    world.start_all(EraSupport::Legacy);
    assert!(![old, others].contains(&world.granted[&later]));
    let again = world.lease(principal("bob"), legacy());
    assert_eq!(world.granted[&again], others);
    world.release(old);
    assert_eq!(world.stopped, [(old, StopReason::Outdated)]);
}

#[test]
fn a_mute_process_takes_nothing_new_and_ends_once_it_is_idle() {
    let mut world = World::plain();
    let early = world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    let old = world.granted[&early];
    world.step(PoolEvent::Mute { process: old });
    assert!(world.stopped.is_empty(), "its call goes on");
    let late = world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    assert_ne!(world.granted[&late], old);
    world.release(old);
    assert_eq!(world.stopped, [(old, StopReason::Mute)]);
}

#[test]
fn what_drains_for_a_minute_is_stopped_all_the_same() {
    let mut world = World::plain();
    world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    world.step(PoolEvent::Retire);
    assert!(world.stopped.is_empty());
    world.pass(seconds(61));
    assert_eq!(world.stopped, [(1, StopReason::Retired)]);
    assert!(!world.state.is_over());
    world.step(PoolEvent::Gone { process: 1 });
    assert!(world.state.is_over());
    assert!(world.state.wake_at().is_none());
    let late = world.lease(ConnectionKey::Shared, legacy());
    assert!(matches!(world.refused[&late], LeaseRefusal::Retired));
}

#[test]
fn a_shared_process_that_crashes_is_replaced_at_once_and_asked_for_what_lasts() {
    let mut world = World::plain();
    world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    let replay_state = world.state.replay_state_of(1).expect("it serves");
    replay_state.subscribe("test://a").expect("the first");
    world.lose(1, ProcessEnd::Crash);
    world.pass(Duration::ZERO);
    let (_, order) = &world.started[1];
    assert_eq!(order.restart, Some("crash"));
    assert!(Arc::ptr_eq(&order.replay_state, &replay_state));
    assert_eq!(order.server, Some(EraSupport::Legacy));
}

#[test]
fn a_sessions_process_is_replaced_when_the_session_needs_it_or_waits_for_news() {
    let mut world = World::plain();
    world.lease(session("a"), legacy());
    world.start_all(EraSupport::Legacy);
    world.lose(1, ProcessEnd::Crash);
    world.pass(seconds(10));
    assert_eq!(world.started.len(), 1);
    world.lease(session("a"), legacy());
    world.start_all(EraSupport::Legacy);
    let replay_state = world.state.replay_state_of(2).expect("it serves");
    replay_state.subscribe("test://a").expect("the first");
    world.lose(2, ProcessEnd::Crash);
    world.pass(seconds(10));
    assert_eq!(world.started.len(), 3);
}

#[test]
fn the_policy_decides_what_follows_an_end() {
    for (restart, end, replaced) in [
        (Restart::Always, ProcessEnd::Clean, true),
        (Restart::OnFailure, ProcessEnd::Clean, false),
        (Restart::OnFailure, ProcessEnd::Unresponsive, true),
        (Restart::Never, ProcessEnd::Crash, false),
    ] {
        let mut world = World::new(StdioSettings {
            restart,
            ..StdioSettings::default()
        });
        world.lease(ConnectionKey::Shared, legacy());
        world.start_all(EraSupport::Legacy);
        world.lose(1, end);
        world.pass(seconds(10));
        assert_eq!(world.started.len() == 2, replaced, "{restart:?} {end:?}");
        let next = world.lease(ConnectionKey::Shared, legacy());
        match restart {
            Restart::Never => assert!(matches!(world.refused[&next], LeaseRefusal::Dead)),
            _ => assert_eq!(world.started.len(), 2, "{restart:?} {end:?}"),
        }
    }
}

#[test]
fn a_reload_starts_what_ended_for_good_and_no_process_that_serves() {
    for (restart, end, lost) in [
        (Restart::Never, ProcessEnd::Crash, true),
        (Restart::Never, ProcessEnd::Clean, true),
        (Restart::OnFailure, ProcessEnd::Clean, true),
        (Restart::OnFailure, ProcessEnd::Crash, false),
    ] {
        let mut world = World::new(StdioSettings {
            restart,
            warm: 0,
            ..StdioSettings::default()
        });
        world.lease(ConnectionKey::Shared, legacy());
        world.start_all(EraSupport::Legacy);
        world.step(PoolEvent::Revive);
        assert_eq!(world.started.len(), 1, "it serves");
        world.lose(1, end);
        assert_eq!(world.state.presence() == Presence::Dead, lost);
        let started = world.started.len();
        world.step(PoolEvent::Revive);
        let revived = world.started.len() > started;
        assert_eq!(revived, lost, "{restart:?} {end:?}");
        if lost {
            world.start_all(EraSupport::Legacy);
            assert_eq!(world.state.presence(), Presence::There);
        }
    }
}

#[test]
fn a_reload_starts_a_server_that_waits_for_its_next_attempt() {
    let mut world = World::plain();
    world.step(PoolEvent::Wanted {
        key: ConnectionKey::Shared,
        open: legacy(),
    });
    world.fail_last();
    for _ in 2..=5 {
        world.pass(seconds(8));
        world.fail_last();
    }
    assert_eq!(world.state.breaker(world.now), BreakerState::Open);
    let before = world.started.len();
    world.step(PoolEvent::Revive);
    assert_eq!(world.started.len(), before + 1);
    world.start_all(EraSupport::Legacy);
    assert_eq!(world.state.presence(), Presence::There);
}

#[test]
fn a_server_that_does_not_start_is_told_of_at_once_and_opens_the_breaker() {
    let mut world = World::plain();
    world.step(PoolEvent::Wanted {
        key: ConnectionKey::Shared,
        open: legacy(),
    });
    assert_eq!(world.started.len(), 1);
    let all = [
        world.lease(ConnectionKey::Shared, modern()),
        world.lease(session("a"), legacy()),
    ];
    world.fail_last();
    assert!(
        all.iter()
            .all(|waiter| matches!(world.refused[waiter], LeaseRefusal::Failed(_)))
    );
    // Starts are repeated with growing delays, until the breaker opens.
    for attempt in 2..=5 {
        world.pass(seconds(8));
        assert_eq!(world.started.len(), attempt);
        world.fail_last();
    }
    assert_eq!(world.state.breaker(world.now), BreakerState::Open);
    let during = world.lease(session("b"), legacy());
    assert!(matches!(
        world.refused[&during],
        LeaseRefusal::Unavailable { .. }
    ));
    // After that a single attempt decides; requests that come meanwhile wait for it.
    world.pass(seconds(5));
    let before = world.started.len();
    let probing = world.lease(session("c"), legacy());
    let waiting = world.lease(session("d"), legacy());
    assert!(world.started.len() <= before + 1);
    world.start_all(EraSupport::Legacy);
    assert_eq!(world.state.breaker(world.now), BreakerState::Closed);
    assert!(world.granted.contains_key(&probing) && world.granted.contains_key(&waiting));
    assert!(world.state.last_error().is_none());
}

#[test]
fn a_server_nobody_asks_for_is_not_tried_for_ever() {
    let mut world = World::plain();
    world.step(PoolEvent::Wanted {
        key: ConnectionKey::Shared,
        open: legacy(),
    });
    for _ in 0..100 {
        if world.state.counts().starting > 0 {
            world.fail_last();
        }
        world.pass(seconds(30));
    }
    let tried = world.started.len();
    world.pass(seconds(3600));
    assert_eq!(world.started.len(), tried);
    assert!(world.state.wake_at().is_none());
    world.lease(ConnectionKey::Shared, legacy());
    assert_eq!(world.started.len(), tried + 1);
}

#[test]
fn a_backend_that_fails_again_and_again_keeps_nobody_from_the_others() {
    let rules = PoolRules {
        spreads: true,
        ..PoolRules::from(&StdioSettings::default())
    };
    let mut world = World::plain();
    world.state = PoolStateMachine::new(rules);
    let at = |backend| ConnectionKey::Replica(BackendId::new(backend));
    for _ in 0..10 {
        world.lease(at("a:1"), legacy());
        world.fail_last();
        world.pass(seconds(1));
    }
    // Every request tried its backend again, since the delay after failures is at most a second.
    assert_eq!(world.started.len(), 10);
    assert_eq!(world.state.breaker(world.now), BreakerState::Closed);
    let other = world.lease(at("b:1"), legacy());
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&other));
}

#[test]
fn a_backend_that_flaps_comes_last_and_still_takes_requests_a_second_after_it_failed() {
    let rules = PoolRules {
        spreads: true,
        warm: 0,
        ..PoolRules::from(&StdioSettings::default())
    };
    let mut world = World::plain();
    world.state = PoolStateMachine::new(rules);
    let backend = BackendId::new("a:1");
    let take = |world: &mut World| {
        let waiter = world.lease(ConnectionKey::Replica(backend.clone()), legacy());
        world.pass(seconds(1));
        world.start_all(EraSupport::Legacy);
        world.granted.get(&waiter).copied()
    };
    for _ in 0..8 {
        let process = take(&mut world).expect("a connection, whatever failed before");
        world.release(process);
        world.lose(process, ProcessEnd::Crash);
    }
    world.pass(seconds(2));
    assert_eq!(
        world.state.failing(world.now),
        std::slice::from_ref(&backend)
    );
    assert_eq!(world.state.breaker(world.now), BreakerState::Closed);
    assert!(take(&mut world).is_some());
}

#[test]
fn what_lasts_at_a_backend_that_was_removed_lasts_at_another_and_a_session_with_state_is_lost() {
    let rules = PoolRules {
        spreads: true,
        keeps_state: true,
        warm: 0,
        ..PoolRules::from(&StdioSettings::default())
    };
    let mut world = World::plain();
    world.state = PoolStateMachine::new(rules);
    let (gone, stays) = (BackendId::new("a:1"), BackendId::new("b:1"));
    world.lease(ConnectionKey::Replica(gone.clone()), legacy());
    world.lease(session("a"), legacy());
    world.start_all(EraSupport::Legacy);
    let shared = world.state.replay_state_of(1).expect("it serves");
    shared.subscribe("test://a").expect("the first");
    world.step(PoolEvent::Removed {
        replicas: vec![gone],
        instead: Some(stays.clone()),
        processes: vec![1, 2],
    });
    assert!(world.stopped.is_empty(), "what runs is not cut off");
    assert!(world.state.has_lost(&"a".into()));
    let (_, order) = world.started.last().expect("started elsewhere");
    assert_eq!(order.slot.key.replica(), Some(&stays));
    assert_eq!(
        order.replay_state.subscriptions(),
        [Arc::<str>::from("test://a")]
    );
    world.release(1);
    world.release(2);
    let stopped = [1, 2].map(|process| (process, StopReason::Removed));
    assert_eq!(world.stopped, stopped);
}

#[test]
fn the_crashes_of_one_session_do_not_open_the_breaker_of_all() {
    let mut world = World::plain();
    for _ in 0..20 {
        let waiter = world.lease(session("mean"), legacy());
        world.start_all(EraSupport::Legacy);
        if let Some(process) = world.granted.get(&waiter) {
            world.lose(*process, ProcessEnd::Crash);
        }
    }
    assert_eq!(world.state.breaker(world.now), BreakerState::Closed);
    // Its session waits longer each time; other sessions do not.
    assert!(world.started.len() < 20);
    let other = world.lease(session("kind"), legacy());
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&other));
}

#[test]
fn a_spare_is_there_once_processes_of_ones_own_are_asked_for_and_goes_when_they_are_not() {
    let mut world = World::new(StdioSettings::default());
    world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    assert!(world.spares.is_empty());
    let first = world.lease(session("a"), legacy());
    let spare = world.spares[0];
    world.start_all(EraSupport::Legacy);
    world.step(PoolEvent::Spawned { process: spare });
    let second = world.lease(session("b"), legacy());
    assert_eq!(world.started.last().map(|it| it.0), Some(spare));
    assert_eq!(world.spares.len(), 2);
    world.start_all(EraSupport::Legacy);
    assert_ne!(world.granted[&first], world.granted[&second]);
    let next = world.spares[1];
    world.step(PoolEvent::Spawned { process: next });
    world.pass(seconds(601));
    assert!(world.stopped.contains(&(next, StopReason::Idle)));
}

#[test]
fn spares_that_die_are_not_replaced_in_a_hurry() {
    let mut world = World::new(StdioSettings {
        isolation: Isolation::Session,
        ..StdioSettings::default()
    });
    world.step(PoolEvent::Wanted {
        key: ConnectionKey::Shared,
        open: legacy(),
    });
    for _ in 0..50 {
        let process = *world.spares.last().expect("one at least");
        world.step(PoolEvent::Spawned { process });
        world.lose(process, ProcessEnd::Crash);
        world.pass(seconds(1));
    }
    assert!(world.spares.len() < 10, "{}", world.spares.len());
    assert_eq!(world.state.breaker(world.now), BreakerState::Closed);
}

#[test]
fn closing_a_session_ends_its_process_starting_or_not_and_whoever_waits_in_it() {
    let mut world = World::plain();
    world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    let starting = world.lease(session("a"), legacy());
    world.step(PoolEvent::SessionClosed { tag: "a".into() });
    assert!(matches!(
        world.refused[&starting],
        LeaseRefusal::SessionClosed
    ));
    assert_eq!(world.stopped, [(2, StopReason::SessionClosed)]);
    // The process started all the same; that changes nothing.
    world.start_all(EraSupport::Legacy);
    world.step(PoolEvent::Gone { process: 2 });
    let counts = world.state.counts();
    assert_eq!((counts.serving, counts.stopping), (1, 0));
}

#[test]
fn a_start_whose_task_broke_off_counts_as_failed() {
    let mut world = World::plain();
    let waiter = world.lease(ConnectionKey::Shared, legacy());
    world.step(PoolEvent::Gone { process: 1 });
    world.pass(seconds(1));
    assert_eq!(world.started.len(), 2);
    world.start_all(EraSupport::Legacy);
    assert_eq!(world.granted[&waiter], 2);
}

#[test]
fn why_nothing_serves_is_known_until_something_does() {
    let mut world = World::plain();
    let why = |world: &World| world.state.failure_reason().map(|it| it.reason.to_string());
    world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    assert_eq!(why(&world), None);
    let error = CallError::new(CallErrorCode::WorkerUnavailable, "it ended");
    let reason = "exited with status 3; it said last: oh".into();
    world.step(PoolEvent::Lost {
        process: 1,
        end: ProcessEnd::Crash,
    });
    world.step(PoolEvent::Explained {
        why: ProcessFailure {
            error,
            reason,
            elsewhere: false,
        },
    });
    world.step(PoolEvent::Gone { process: 1 });
    let ended = "exited with status 3; it said last: oh";
    assert_eq!(why(&world).as_deref(), Some(ended));
    world.fail_last();
    let failed = "no such file; it said last: oh";
    assert_eq!(why(&world).as_deref(), Some(failed));
    world.pass(seconds(10));
    world.start_all(EraSupport::Legacy);
    assert_eq!(why(&world), None);
}

#[test]
fn a_process_that_waits_for_its_package_is_told_apart_from_one_that_starts() {
    let mut world = World::plain();
    world.lease(ConnectionKey::Shared, legacy());
    let counts = |world: &World| {
        let counts = world.state.counts();
        (counts.installing, counts.starting, counts.serving)
    };
    assert_eq!(counts(&world), (0, 1, 0));
    for (now, expected) in [(true, (1, 0, 0)), (false, (0, 1, 0))] {
        world.step(PoolEvent::Installing { process: 1, now });
        assert_eq!(counts(&world), expected);
    }
    world.step(PoolEvent::Installing {
        process: 1,
        now: true,
    });
    world.start_all(EraSupport::Legacy);
    assert_eq!(counts(&world), (0, 0, 1));
}
