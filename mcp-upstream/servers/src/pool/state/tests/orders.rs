//! Leases of processes: requested, granted, released and abandoned while processes start, fail and end, in every order of these
//! events.

use std::collections::BTreeMap;

use tooldock_sessions::testing::schedule::{Schedule, every, some};

use super::*;

/// Maximum number of processes of the pool. The clients want more.
const PROCESSES: usize = 2;

/// A pool with its clients and its processes.
struct Orders {
    world: World,
    keys: HashMap<WaiterId, ConnectionKey>,
    /// Leases that are in use, each with its process.
    held: BTreeMap<WaiterId, ProcessId>,
    /// Requests whose grant was checked or that were abandoned. `started` and `stopped`: numbers of the checked orders to start
    /// and stop.
    seen_grants: Vec<WaiterId>,
    started: usize,
    stopped: usize,
    /// Processes that were ordered and still exist: true once the process serves, false while it starts.
    processes: BTreeMap<ProcessId, bool>,
    stopping: Vec<ProcessId>,
    gone: Vec<ProcessId>,
    /// Numbers of faults that may still happen: failed starts, lost processes, abandoned requests, closed sessions.
    failures: usize,
    losses: usize,
    abandons: usize,
    closes: usize,
}

/// Event that the test may apply next to the pool.
#[derive(Debug, Clone, Copy)]
enum Next {
    Lease,
    Start(ProcessId),
    Fail(ProcessId),
    Lose(ProcessId),
    Gone(ProcessId),
    Release(WaiterId),
    Abandon(WaiterId),
    Close,
}

/// Returns the connection keys of the requests, in the order of the requests.
fn keys() -> [ConnectionKey; 4] {
    [
        session("a"),
        ConnectionKey::Exclusive,
        session("b"),
        session("a"),
    ]
}

impl Orders {
    fn new() -> Self {
        Self {
            world: World::new(StdioSettings {
                warm: 0,
                max_processes: PROCESSES,
                ..StdioSettings::default()
            }),
            keys: HashMap::new(),
            held: BTreeMap::new(),
            seen_grants: Vec::new(),
            started: 0,
            stopped: 0,
            processes: BTreeMap::new(),
            stopping: Vec::new(),
            gone: Vec::new(),
            failures: 1,
            losses: 1,
            abandons: 1,
            closes: 1,
        }
    }

    /// Returns the events that may come next, in a fixed order.
    fn possible(&self) -> Vec<Next> {
        let mut possible = Vec::new();
        if self.keys.len() < keys().len() {
            possible.push(Next::Lease);
        }
        for (process, serves) in &self.processes {
            if self.stopping.contains(process) {
                possible.push(Next::Gone(*process));
                continue;
            }
            match serves {
                false => {
                    possible.push(Next::Start(*process));
                    if self.failures > 0 {
                        possible.push(Next::Fail(*process));
                    }
                }
                true if self.losses > 0 => possible.push(Next::Lose(*process)),
                true => {}
            }
        }
        possible.extend(self.held.keys().copied().map(Next::Release));
        let mut waiting: Vec<_> = self.keys.keys().copied().collect();
        waiting.retain(|it| !self.seen_grants.contains(it) && !self.world.refused.contains_key(it));
        waiting.sort_unstable();
        if self.abandons > 0 {
            possible.extend(waiting.first().copied().map(Next::Abandon));
        }
        if self.closes > 0 && self.keys.len() > 1 {
            possible.push(Next::Close);
        }
        possible
    }

    fn happen(&mut self, next: Next) {
        match next {
            Next::Lease => {
                let key = keys()[self.keys.len()].clone();
                let waiter = self.world.lease(key.clone(), legacy());
                self.keys.insert(waiter, key);
            }
            Next::Start(process) => {
                self.processes.insert(process, true);
                self.world.step(PoolEvent::Started {
                    process,
                    server: EraSupport::Legacy,
                    opened: Era::Legacy,
                });
            }
            Next::Fail(process) => {
                self.failures -= 1;
                let error = CallError::new(CallErrorCode::WorkerUnavailable, "no such file");
                let failure = ProcessFailure {
                    error,
                    reason: "no such file".into(),
                    elsewhere: false,
                };
                self.world.step(PoolEvent::StartFailed { process, failure });
                self.end(process);
            }
            Next::Lose(process) => {
                self.losses -= 1;
                let end = ProcessEnd::Crash;
                self.world.step(PoolEvent::Lost { process, end });
                self.end(process);
            }
            Next::Gone(process) => self.end(process),
            Next::Release(waiter) => {
                let process = self.held.remove(&waiter).expect("held");
                self.world.release(process);
            }
            Next::Abandon(waiter) => {
                self.abandons -= 1;
                self.seen_grants.push(waiter);
                self.world.step(PoolEvent::Abandoned { waiter });
            }
            Next::Close => {
                self.closes -= 1;
                self.world
                    .step(PoolEvent::SessionClosed { tag: "a".into() });
            }
        }
        self.look();
    }

    fn end(&mut self, process: ProcessId) {
        self.gone.push(process);
        self.processes.remove(&process);
        self.stopping.retain(|it| *it != process);
        self.world.step(PoolEvent::Gone { process });
    }

    /// Reads the pool's new decisions and checks them.
    fn look(&mut self) {
        for (process, _) in &self.world.started[self.started..] {
            self.processes.insert(*process, false);
        }
        self.started = self.world.started.len();
        for (process, _) in &self.world.stopped[self.stopped..] {
            if self.processes.contains_key(process) && !self.stopping.contains(process) {
                self.stopping.push(*process);
            }
        }
        self.stopped = self.world.stopped.len();
        assert!(self.processes.len() <= PROCESSES, "too many processes");
        let mut granted: Vec<_> = self.world.granted.iter().map(|it| (*it.0, *it.1)).collect();
        granted.sort_unstable();
        for (waiter, process) in granted {
            if self.seen_grants.contains(&waiter) {
                continue;
            }
            assert!(
                !self.gone.contains(&process),
                "a process that is gone is leased"
            );
            assert_eq!(
                self.processes.get(&process),
                Some(&true),
                "no process serves"
            );
            self.seen_grants.push(waiter);
            self.held.insert(waiter, process);
        }
        let held: Vec<_> = self.held.iter().collect();
        for (at, (one, process)) in held.iter().enumerate() {
            for (other, same) in &held[at + 1..] {
                let shares = self.keys[*one] == self.keys[*other]
                    && self.keys[*one] != ConnectionKey::Exclusive;
                assert!(process != same || shares, "two clients have a process");
            }
        }
    }

    /// Lets events happen, except faults, until each request was granted, refused or abandoned.
    fn settle(&mut self) {
        for _ in 0..100 {
            let next = self.possible().into_iter().find(|next| {
                !matches!(
                    next,
                    Next::Fail(_) | Next::Lose(_) | Next::Abandon(_) | Next::Close
                )
            });
            match next {
                Some(next) => self.happen(next),
                None => {
                    self.world.pass(seconds(10));
                    self.look();
                    let is_over = |it: &WaiterId| {
                        self.seen_grants.contains(it) || self.world.refused.contains_key(it)
                    };
                    if self.keys.keys().all(is_over) && self.possible().iter().all(is_fault) {
                        return;
                    }
                }
            }
        }
        panic!("requests wait for ever: {:?}", self.possible());
    }
}

fn is_fault(next: &Next) -> bool {
    matches!(
        next,
        Next::Fail(_) | Next::Lose(_) | Next::Abandon(_) | Next::Close
    )
}

/// Lets `events` events happen as the schedule chooses, then settles.
fn run(schedule: &mut Schedule, events: usize) {
    let mut orders = Orders::new();
    for _ in 0..events {
        let possible = orders.possible();
        if possible.is_empty() {
            break;
        }
        orders.happen(possible[schedule.choose(possible.len())]);
    }
    orders.settle();
}

#[test]
fn in_every_order_of_seven_events_a_process_has_one_client_and_each_request_an_end() {
    let count = every(|schedule| run(schedule, 7));
    println!("{count} orders");
}

#[test]
fn in_many_orders_of_twenty_events_a_process_has_one_client_and_each_request_an_end() {
    some(2_000, |schedule| run(schedule, 20));
}
