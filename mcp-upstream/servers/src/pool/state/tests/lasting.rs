//! State that outlives a process: subscriptions, log levels, the record of restarts.

use tooldock_process::worker::LogLevel;

use super::*;

#[test]
fn a_leased_process_is_not_given_to_another_principal() {
    let mut world = World::plain();
    let asks = |principal| legacy_of(r#"{"sampling":{}}"#, Some(principal));
    let first = world.lease(ConnectionKey::Exclusive, asks("ada"));
    world.start_all(EraSupport::Legacy);
    let process = world.granted[&first];
    world.release(process);
    let other = world.lease(ConnectionKey::Exclusive, asks("bob"));
    assert!(!world.granted.contains_key(&other));
    let own = world.lease(ConnectionKey::Exclusive, asks("ada"));
    assert_eq!(world.granted.get(&own), Some(&process));
}

#[test]
fn what_was_asked_for_once_outlives_an_idle_process_and_not_its_session() {
    let mut world = World::plain();
    world.lease(session("a"), legacy());
    world.start_all(EraSupport::Legacy);
    let replay_state = world.state.replay_state_of(1).expect("it serves");
    assert!(replay_state.lower_level(LogLevel::Debug));
    world.release(1);
    world.pass(seconds(601));
    assert_eq!(world.stopped, [(1, StopReason::Idle)]);
    world.step(PoolEvent::Gone { process: 1 });
    world.lease(session("a"), legacy());
    let (_, order) = world.started.last().expect("started again");
    assert_eq!(order.replay_state.level(), Some(LogLevel::Debug));
    world.step(PoolEvent::SessionClosed { tag: "a".into() });
    assert!(world.state.slots.is_empty());
}

#[test]
fn sessions_that_come_and_go_leave_no_record() {
    let mut world = World::plain();
    for number in 0..100 {
        let tag = number.to_string();
        world.lease(session(&tag), legacy());
        world.start_all(EraSupport::Legacy);
        let process = world.started.last().expect("started").0;
        match number % 3 {
            0 => world.lose(process, ProcessEnd::Crash),
            1 => world.release(process),
            _ => {}
        }
        world.step(PoolEvent::SessionClosed { tag: tag.into() });
        world.step(PoolEvent::Gone { process });
    }
    assert!(world.state.slots.is_empty());
    assert!(world.state.processes.is_empty());
    assert!(world.state.waiting.is_empty());
}

#[test]
fn the_pool_that_takes_anothers_place_asks_for_what_lasted_in_it() {
    let mut old = World::plain();
    old.lease(ConnectionKey::Shared, legacy());
    old.lease(session("a"), legacy());
    old.start_all(EraSupport::Legacy);
    let shared = old.state.replay_state_of(1).expect("it serves");
    shared.subscribe("test://a").expect("the first");
    let own = old.state.replay_state_of(2).expect("it serves");
    assert!(own.lower_level(LogLevel::Info));
    let places = old.state.lasting();
    assert_eq!(places.len(), 2);

    let mut new = World::plain();
    new.step(PoolEvent::Inherit { places });
    new.step(PoolEvent::Wanted {
        key: ConnectionKey::Shared,
        open: modern(),
    });
    new.start_all(EraSupport::Legacy);
    // A single process for both: the subscription, and the shared connection.
    assert_eq!(new.state.counts().serving, 1, "{:?}", new.started);
    let serving = new.started.iter();
    let replay_state = serving
        .filter_map(|(process, _)| new.state.replay_state_of(*process))
        .next()
        .expect("one serves");
    assert_eq!(replay_state.subscriptions(), [Arc::<str>::from("test://a")]);
    new.lease(session("a"), legacy());
    let (_, order) = new.started.last().expect("started");
    assert_eq!(order.replay_state.level(), Some(LogLevel::Info));
}

#[test]
fn a_wish_ends_while_the_server_is_down() {
    let mut world = World::plain();
    world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    let replay_state = world.state.replay_state_of(1).expect("it serves");
    replay_state.subscribe("test://a").expect("the first");
    world.release(1);
    world.lose(1, ProcessEnd::Crash);
    world.fail_last();
    assert_eq!(world.state.server(), None);
    let place = world.state.place_of(&ConnectionKey::Shared, Era::Modern);
    let (found, process) = place.expect("it is remembered");
    assert!(process.is_empty() && found.unsubscribe("test://a"));
    assert!(!replay_state.is_awaited());
}

#[test]
fn a_call_that_may_wait_for_its_client_is_waited_for_as_long() {
    let settings = StdioSettings {
        warm: 0,
        ..StdioSettings::default()
    };
    let mut world = World::plain();
    world.state =
        PoolStateMachine::new(PoolRules::from(&settings).with_calls_of(seconds(90), seconds(600)));
    world.lease(ConnectionKey::Shared, legacy());
    world.lease(ConnectionKey::Exclusive, legacy());
    world.start_all(EraSupport::Legacy);
    world.step(PoolEvent::Retire);
    world.pass(seconds(89));
    assert!(world.stopped.is_empty());
    world.pass(seconds(2));
    assert_eq!(world.stopped, [(1, StopReason::Retired)]);
    world.pass(seconds(600));
    assert_eq!(world.stopped[1..], [(2, StopReason::Retired)]);
}

#[test]
fn a_restart_is_on_record_with_its_reason() {
    let mut world = World::plain();
    world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    assert!(world.state.last_restart().is_none());
    world.lose(1, ProcessEnd::Unresponsive);
    let restart = world.state.last_restart().expect("it was replaced");
    assert_eq!((restart.reason, restart.at), ("unresponsive", world.now));
}

#[test]
fn one_that_is_not_restarted_is_dead() {
    let mut world = World::new(StdioSettings {
        warm: 0,
        restart: Restart::Never,
        ..StdioSettings::default()
    });
    world.lease(ConnectionKey::Shared, legacy());
    world.start_all(EraSupport::Legacy);
    assert!(!world.state.is_dead());
    world.lose(1, ProcessEnd::Crash);
    assert!(world.state.is_dead());
}
