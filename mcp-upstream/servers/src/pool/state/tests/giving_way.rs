//! Processes of absent clients give way to waiting requests.

use tooldock_process::worker::LogLevel;
use tooldock_protocol::jsonrpc::{Notification, ServerRequest};

use super::*;
use crate::link::Inbound;

/// A session's client; the machine sends it no messages.
struct Client;

impl Inbound for Client {
    fn notification(&self, _: Notification<'_>) {}
    fn request(&self, _: ServerRequest) {}
}

fn of(principal: &str) -> Arc<OpenAs> {
    let open = legacy_of(r#"{"roots":{}}"#, Some(principal));
    Arc::new(OpenAs {
        inbound: Some(Arc::new(Client)),
        ..(*open).clone()
    })
}

/// Sessions of ann with a process each, and no further slot.
fn full(settings: StdioSettings, sessions: &[&str]) -> World {
    let mut world = World::new(settings);
    for tag in sessions {
        let waiter = world.lease(session(tag), of("ann"));
        world.start_all(EraSupport::Legacy);
        world.release(world.granted[&waiter]);
    }
    world
}

fn processes(max_processes: usize) -> StdioSettings {
    StdioSettings {
        warm: 0,
        max_processes,
        ..StdioSettings::default()
    }
}

impl World {
    /// Reports which clients are away and for how many seconds, as the handlers would.
    fn away(&mut self, away: &[(ProcessId, u64)]) {
        let asked: Vec<_> = self.state.to_ask().iter().map(|(it, _)| *it).collect();
        let away = away.iter().filter(|(process, _)| asked.contains(process));
        let since = away.map(|(process, time)| (*process, self.now - seconds(*time)));
        let since = since.collect();
        self.step(PoolEvent::Away { since });
    }
}

#[test]
fn nobody_gives_way_while_nobody_waits() {
    let mut world = full(processes(2), &["a", "b"]);
    world.pass(seconds(300));
    assert!(world.state.to_ask().is_empty());
    world.away(&[(1, 300), (2, 300)]);
    assert!(world.stopped.is_empty());
}

#[test]
fn whose_client_has_been_away_longest_gives_way_to_one_who_waits() {
    let mut world = full(processes(3), &["a", "b", "c"]);
    world.now += seconds(500);
    let late = world.lease(session("d"), of("bob"));
    world.away(&[(1, 70), (2, 90)]);
    assert_eq!(world.stopped, [(2, StopReason::GaveWay)]);
    // A single slot for a waiting request, however often the machine steps.
    world.away(&[(1, 70)]);
    world.step(PoolEvent::Tick);
    assert_eq!(world.stopped.len(), 1);
    world.step(PoolEvent::Gone { process: 2 });
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&late));
}

#[test]
fn as_many_give_way_as_wait() {
    let mut world = full(processes(3), &["a", "b", "c"]);
    world.now += seconds(500);
    let waiting = ["d", "e"].map(|tag| world.lease(session(tag), of("bob")));
    world.away(&[(1, 90), (2, 80), (3, 70)]);
    let gave_way = |process| (process, StopReason::GaveWay);
    assert_eq!(world.stopped, [gave_way(1), gave_way(2)]);
    for process in [1, 2] {
        world.step(PoolEvent::Gone { process });
    }
    world.start_all(EraSupport::Legacy);
    assert!(waiting.iter().all(|it| world.granted.contains_key(it)));
}

#[test]
fn whose_client_is_there_or_was_a_moment_ago_stays_and_who_waits_is_refused() {
    let mut world = full(processes(3), &["a", "b", "c"]);
    // In a call, which may take any time.
    let busy = world.lease(session("a"), of("ann"));
    assert_eq!(world.granted[&busy], 1);
    world.now += seconds(500);
    let late = world.lease(session("d"), of("bob"));
    let asked: Vec<_> = world.state.to_ask().iter().map(|(it, _)| *it).collect();
    assert_eq!(asked, [2, 3]);
    world.step(PoolEvent::Away {
        since: vec![(1, world.now - seconds(500)), (2, world.now - seconds(50))],
    });
    world.pass(seconds(6));
    assert!(world.stopped.is_empty(), "{:?}", world.stopped);
    assert!(matches!(
        world.refused[&late],
        LeaseRefusal::Overloaded(PoolLimit::Processes)
    ));
}

#[test]
fn one_that_will_have_been_away_for_a_minute_soon_is_looked_at_then() {
    let mut world = full(processes(1), &["a"]);
    let since = world.now;
    world.now += seconds(57);
    let late = world.lease(session("b"), of("bob"));
    world.step(PoolEvent::Away {
        since: vec![(1, since)],
    });
    assert_eq!(world.state.wake_at(), Some(since + seconds(60)));
    world.now = since + seconds(60);
    world.step(PoolEvent::Tick);
    assert!(world.stopped.is_empty(), "what was said then is old");
    world.away(&[(1, 60)]);
    assert_eq!(world.stopped, [(1, StopReason::GaveWay)]);
    world.step(PoolEvent::Gone { process: 1 });
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&late));
    // No request waits: no timer is due.
    assert!(world.state.wake_at() > Some(world.now + seconds(60)));
}

#[test]
fn a_principal_with_all_its_processes_gets_one_of_its_own_and_nobody_elses() {
    let settings = StdioSettings {
        max_per_principal: 2,
        ..processes(100)
    };
    let mut world = full(settings, &["a", "b"]);
    let theirs = world.lease(session("c"), of("bob"));
    world.start_all(EraSupport::Legacy);
    world.release(world.granted[&theirs]);
    world.now += seconds(500);
    let late = world.lease(session("d"), of("ann"));
    world.away(&[(1, 70), (2, 80), (3, 90)]);
    assert_eq!(world.stopped, [(2, StopReason::GaveWay)]);
    // There is room for it beside the ending process.
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&late));
    world.step(PoolEvent::Gone { process: 2 });
}

#[test]
fn at_both_limits_one_end_is_enough() {
    let settings = StdioSettings {
        max_per_principal: 2,
        ..processes(2)
    };
    let mut world = full(settings, &["a", "b"]);
    world.now += seconds(500);
    let late = world.lease(session("c"), of("ann"));
    world.away(&[(1, 70), (2, 80)]);
    assert_eq!(world.stopped, [(2, StopReason::GaveWay)]);
    world.step(PoolEvent::Gone { process: 2 });
    world.start_all(EraSupport::Legacy);
    assert!(world.granted.contains_key(&late));
    assert_eq!(world.stopped.len(), 1);
}

#[test]
fn the_shared_process_may_need_the_place_too_and_is_not_one_to_give_way() {
    let mut world = full(processes(2), &["a", "b"]);
    world.now += seconds(500);
    world.lease(ConnectionKey::Shared, legacy());
    world.away(&[(1, 70)]);
    world.step(PoolEvent::Gone { process: 1 });
    world.start_all(EraSupport::Legacy);
    world.release(3);
    world.now += seconds(50);
    world.lease(session("c"), of("bob"));
    let asked: Vec<_> = world.state.to_ask().iter().map(|(it, _)| *it).collect();
    assert_eq!(asked, [2]);
}

#[test]
fn a_session_that_comes_back_gets_a_process_that_is_told_what_the_one_before_was() {
    let mut world = full(processes(1), &["a"]);
    let replay_state = world.state.replay_state_of(1).expect("it serves");
    replay_state.subscribe("test://a").expect("the first");
    assert!(replay_state.lower_level(LogLevel::Debug));
    world.now += seconds(500);
    let late = world.lease(session("b"), of("bob"));
    world.away(&[(1, 70)]);
    world.step(PoolEvent::Gone { process: 1 });
    world.start_all(EraSupport::Legacy);
    world.release(world.granted[&late]);
    world.step(PoolEvent::SessionClosed { tag: "b".into() });
    world.step(PoolEvent::Gone { process: 2 });
    world.pass(seconds(300));
    assert_eq!(world.started.len(), 2, "its subscription alone needs none");
    world.lease(session("a"), of("ann"));
    let (_, order) = world.started.last().expect("started");
    assert!(Arc::ptr_eq(&order.replay_state, &replay_state));
    assert_eq!(order.restart, None);
}

#[test]
fn a_session_that_listens_again_gets_its_process_for_news_of_resources_alone() {
    let mut world = full(processes(1), &["a"]);
    let replay_state = world.state.replay_state_of(1).expect("it serves");
    replay_state.subscribe("test://a").expect("the first");
    world.now += seconds(500);
    world.lease(session("b"), of("bob"));
    world.away(&[(1, 70)]);
    world.step(PoolEvent::Gone { process: 1 });
    world.step(PoolEvent::SessionClosed { tag: "b".into() });
    world.step(PoolEvent::Gone { process: 2 });
    assert!(world.state.remembers(&"a".into()));
    world.step(PoolEvent::SessionReturned { tag: "a".into() });
    let (_, order) = world.started.last().expect("started");
    assert!(Arc::ptr_eq(&order.replay_state, &replay_state));
}
