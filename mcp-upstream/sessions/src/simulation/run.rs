//! Course of a run: sessions are opened and used, faults follow one after the other in an order that the seed determines, and
//! at the end the figures are collected.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Options;
use super::clients::Pings;
use super::figures::{Figures, Part, Tally};
use super::gateway::{Ask, DOUBT_MAX, Gateway, live};
use super::world::{World, resident};
use crate::broadcast::Change;
use crate::replicas::{BEAT_EVERY, BEAT_LIFE};
use crate::stores::redis::tests::simulated::{Condition, ProcessState};

/// Number of sessions that are opened per second.
const OPENED: usize = 10_000;
/// Interval between two rounds of client requests.
const TURN: Duration = Duration::from_millis(10);
/// Number of rounds between two readings of all streams; `SLOW_READING` applies to more than `MANY` sessions.
const READING: u64 = 100;
const SLOW_READING: u64 = 500;
/// Number of sessions above which streams are read less often, because reading would take most of the run's time.
const MANY: usize = 100_000;
/// Number of events that are sent on general streams per second.
pub(super) const PINGS: u64 = 20;

/// A fault, or a burst of changes, that a run simulates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Change of a single namespace in all replicas.
    Change,
    /// Change of all namespaces in all replicas.
    Changes,
    Killed,
    Frozen,
    StoreSlow,
    StoreAway,
    Delays,
    DataLost,
}

impl Fault {
    pub(super) const ALL: [Self; 8] = [
        Self::Change,
        Self::Changes,
        Self::Killed,
        Self::Frozen,
        Self::StoreSlow,
        Self::StoreAway,
        Self::Delays,
        Self::DataLost,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Change => "change",
            Self::Changes => "changes",
            Self::Killed => "killed",
            Self::Frozen => "frozen",
            Self::StoreSlow => "store_slow",
            Self::StoreAway => "store_away",
            Self::Delays => "delays",
            Self::DataLost => "data_lost",
        }
    }

    /// Parses the option `faults`.
    pub(super) fn parse(text: &str) -> Option<Vec<Self>> {
        match text {
            "all" => Some(Self::ALL.to_vec()),
            "none" => Some(Vec::new()),
            names => names
                .split(',')
                .map(|name| Self::ALL.into_iter().find(|it| it.name() == name))
                .collect(),
        }
    }
}

/// Runs a simulation to its end.
pub(super) async fn run(options: Options) -> Figures {
    let mut course = Course::new(options);
    course.start().await;
    course.open().await;
    let resident = resident();
    course
        .part("steady", Duration::from_secs(60), async |_| {})
        .await;
    course.faults().await;
    course.end(resident).await
}

struct Course {
    world: Arc<World>,
    /// Random numbers for the faults, independent of the traffic.
    faults: fastrand::Rng,
    traffic: fastrand::Rng,
    digest: u64,
    turns: u64,
    pings: u32,
    /// Number of requests to send in the next round; the fraction is kept for the round after it.
    due: f64,
    plan: Vec<String>,
    parts: Vec<Part>,
}

impl Course {
    fn new(options: Options) -> Self {
        let seed = options.seed;
        Self {
            world: World::started(options),
            faults: fastrand::Rng::with_seed(seed ^ 0xFA01),
            traffic: fastrand::Rng::with_seed(seed ^ 0x7AFF),
            digest: 0,
            turns: 0,
            pings: 0,
            due: 0.0,
            plan: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Starts the replicas one after the other, so that their beats are spread over time, and waits until each has received the
    /// beats of the others.
    async fn start(&mut self) {
        let replicas = self.world.options.replicas;
        let apart = BEAT_EVERY / u32::try_from(replicas).unwrap_or(u32::MAX);
        for _ in 0..replicas {
            self.world.add();
            sleep(apart).await;
        }
        sleep(2 * BEAT_LIFE).await;
    }

    /// Opens all sessions.
    async fn open(&mut self) {
        let sessions = self.world.options.sessions;
        let each = OPENED * usize::try_from(TURN.as_millis()).unwrap_or(1) / 1000;
        let begin = self.begin();
        for first in (0..sessions).step_by(each) {
            for client in first..sessions.min(first + each) {
                tokio::spawn(Arc::clone(&self.world).come(client));
            }
            self.turn(false).await;
        }
        for _ in 0..2 * SLOW_READING {
            self.turn(false).await;
        }
        self.finish("opening", begin);
    }

    /// Runs a period of the given length with traffic, and runs `doing` at the same time.
    async fn part(&mut self, name: &str, time: Duration, doing: impl AsyncFnOnce(&Arc<World>)) {
        let begin = self.begin();
        let world = Arc::clone(&self.world);
        let turns = async {
            let end = Instant::now() + time;
            while Instant::now() < end {
                self.turn(true).await;
            }
        };
        tokio::join!(turns, doing(&world));
        self.finish(name, begin);
    }

    /// Runs one round of client requests and readings.
    async fn turn(&mut self, traffic: bool) {
        self.turns += 1;
        if traffic {
            self.traffic();
        }
        let reading = match self.world.options.sessions > MANY {
            true => SLOW_READING,
            false => READING,
        };
        if self.turns.is_multiple_of(reading) {
            self.world.read_streams();
        }
        sleep(TURN).await;
    }

    fn traffic(&mut self) {
        let Options {
            sessions,
            rate,
            streamed,
            ..
        } = self.world.options;
        self.due += sessions as f64 * rate / 60.0 * TURN.as_secs_f64();
        while self.due >= 1.0 {
            self.due -= 1.0;
            let client = self.traffic.usize(0..sessions);
            let ask = match self.traffic.u32(0..100) < streamed {
                true => Ask::Streamed,
                false => Ask::Call,
            };
            self.digest = self.digest.wrapping_mul(31).wrapping_add(client as u64);
            let world = Arc::clone(&self.world);
            tokio::spawn(async move { world.request(client, ask).await });
        }
        if self.turns.is_multiple_of(100 / PINGS) {
            self.pings += 1;
            self.world.ping(self.pings);
        }
    }

    fn begin(&self) -> (Instant, crate::stores::redis::tests::simulated::Work) {
        self.world.redis.watch_queue();
        *self.world.tally() = Tally::default();
        (Instant::now(), self.world.redis.work())
    }

    fn finish(
        &mut self,
        name: &str,
        (began, before): (Instant, crate::stores::redis::tests::simulated::Work),
    ) {
        let gateways = self.world.gateways();
        let sweeps = gateways
            .iter()
            .map(|it| it.longest_sweep.swap(0, Ordering::Relaxed));
        let part = Part {
            name: name.to_owned(),
            time: began.elapsed(),
            began,
            work: self.world.redis.work().since(&before),
            tally: self.world.tally().clone(),
            longest_sweep: sweeps.max().unwrap_or_default(),
        };
        self.parts.push(part);
    }

    /// Simulates all faults, in an order that the seed determines.
    async fn faults(&mut self) {
        let mut faults = self.world.options.faults.clone();
        self.faults.shuffle(&mut faults);
        for fault in faults {
            let slot = self.faults.usize(0..self.world.options.replicas);
            let seconds = Duration::from_secs(self.faults.u64(3..12));
            self.fault(fault, slot, seconds).await;
            // Sessions of the killed replica that were not used since it was killed exist only in the store. A later fault that
            // loses the store's data would end them. A request in each session makes them live again.
            if fault == Fault::Killed {
                self.ask_all().await;
            }
        }
    }

    async fn fault(&mut self, fault: Fault, slot: usize, time: Duration) {
        let name = match fault {
            Fault::Change | Fault::Changes | Fault::DataLost => String::new(),
            Fault::Killed | Fault::Frozen => format!(" gateway-{slot} for {} s", time.as_secs()),
            _ => format!(" for {} s", time.as_secs()),
        };
        self.plan.push(format!("{}{name}", fault.name()));
        let after = Duration::from_secs(20);
        self.part(fault.name(), time + after, async |world| match fault {
            Fault::Change => announce(world, slot, 1),
            Fault::Changes => announce(world, slot, world.options.namespaces),
            Fault::Killed => {
                world.kill(slot);
                sleep(time).await;
                world.start_again(slot);
            }
            Fault::Frozen => freeze(world, slot, time).await,
            Fault::StoreSlow => {
                let slow = Condition::Slow(Duration::from_millis(500));
                while_store(world, slow, time).await;
            }
            Fault::StoreAway => while_store(world, Condition::Away, time).await,
            Fault::Delays => {
                world.redis.delay(20);
                sleep(time).await;
                world.redis.delay(0);
            }
            Fault::DataLost => {
                world.pings().values_mut().for_each(Pings::excuse);
                world.redis.lose_data();
            }
        })
        .await;
        // Every frozen replica has compared its sessions with their records by now, before the next fault.
        for gateway in self.world.gateways() {
            gateway.in_doubt.store(false, Ordering::Relaxed);
        }
    }

    async fn end(mut self, resident: u64) -> Figures {
        let begin = self.begin();
        for _ in 0..2 * SLOW_READING {
            self.turn(false).await;
        }
        sleep(DOUBT_MAX).await;
        let unanswered = self.ask_all().await;
        for _ in 0..2 * SLOW_READING {
            self.turn(false).await;
        }
        let unheard_changes = self.change_all().await;
        self.finish("end", begin);
        let world = &self.world;
        let (live, live_twice) = live(&world.gateways());
        let pings = world.pings();
        let faults = pings.values().map(Pings::faults);
        let (lost_events, doubled) = faults.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        let doubled_by_id: usize = self.parts.iter().map(|it| it.tally.doubled_events).sum();
        let clients = world.clients();
        self.plan.push(format!("traffic {:x}", self.digest));
        Figures {
            options: world.options.clone(),
            plan: self.plan.clone(),
            unanswered,
            lost_sessions: clients.iter().filter(|it| it.lost).count(),
            live: live.len(),
            live_twice,
            lost_events,
            doubled_events: doubled + doubled_by_id,
            pings: pings.len(),
            unheard_changes,
            listening: clients.iter().filter(|it| it.has_stream()).count(),
            resident,
            parts: self.parts.clone(),
        }
    }

    /// Sends a request of each client. Returns the number of clients that got no answer.
    async fn ask_all(&mut self) -> usize {
        let sessions = self.world.options.sessions;
        let mut unanswered = 0;
        for first in (0..sessions).step_by(1000) {
            let asked = (first..sessions.min(first + 1000)).map(|client| {
                let world = Arc::clone(&self.world);
                async move { world.request(client, Ask::Call).await.is_none() }
            });
            let missing = futures_util::future::join_all(asked).await;
            unanswered += missing.into_iter().filter(|it| *it).count();
        }
        unanswered
    }

    /// Announces a change of all namespaces. Returns the number of listening clients that were not notified of it.
    async fn change_all(&mut self) -> usize {
        self.world
            .clients()
            .iter_mut()
            .for_each(|it| it.changes = 0);
        announce(&self.world, 0, self.world.options.namespaces);
        for _ in 0..6 * SLOW_READING {
            self.turn(false).await;
        }
        let clients = self.world.clients();
        let mut listening = clients.iter().filter(|it| it.listens);
        listening.by_ref().filter(|it| it.changes == 0).count()
    }
}

/// Announces from one replica to all replicas that the tools of the first `namespaces` namespaces have changed.
fn announce(world: &Arc<World>, slot: usize, namespaces: usize) {
    let Some(gateway) = world.gateway(slot) else {
        return;
    };
    for number in 0..namespaces {
        let namespace = super::binding(number, 0).namespace;
        gateway
            .audience
            .announce_everywhere(&namespace, Change::Tools);
    }
}

async fn while_store(world: &Arc<World>, condition: Condition, time: Duration) {
    world.redis.set(condition);
    sleep(time).await;
    world.redis.set(Condition::Up);
}

/// Stops a process for a time, as SIGSTOP does. The balancer removes it from its rotation after 5 s.
async fn freeze(world: &Arc<World>, slot: usize, time: Duration) {
    const NOTICED: Duration = Duration::from_secs(5);
    let Some(gateway) = world.gateway(slot) else {
        return;
    };
    gateway.in_doubt.store(true, Ordering::Relaxed);
    gateway.process.set(ProcessState::Frozen);
    sleep(time.min(NOTICED)).await;
    world.rotate(slot, time <= NOTICED);
    sleep(time.saturating_sub(NOTICED)).await;
    gateway.process.set(ProcessState::Runs);
    world.rotate(slot, true);
    let _: Arc<Gateway> = gateway;
}
