//! State of a simulation: all replicas, their shared store, the balancer in front of them, and the clients.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;

use super::clients::{Client, Pings};
use super::figures::Tally;
use super::gateway::Gateway;
use super::{Balancer, Options};
use crate::replicas::ReplicaId;
use crate::session::config::EventLogConfig;
use crate::stores::redis::tests::simulated::{ProcessState, SimulatedRedis};

pub(super) struct World {
    pub(super) options: Options,
    pub(super) redis: Arc<SimulatedRedis>,
    slots: Mutex<Vec<Slot>>,
    clients: Mutex<Vec<Client>>,
    /// Messages of servers on general streams, by client.
    pings: Mutex<HashMap<usize, Pings>>,
    random: Mutex<fastrand::Rng>,
    tally: Mutex<Tally>,
}

/// A replica from the balancer's point of view.
struct Slot {
    id: ReplicaId,
    /// Process of the replica; `None` while it is killed.
    gateway: Option<Arc<Gateway>>,
    /// True if the balancer sends requests to the replica; false once a health check has failed.
    in_rotation: bool,
}

impl World {
    /// Creates a simulation without replicas, whose clients have not opened their sessions yet.
    pub(super) fn started(options: Options) -> Arc<Self> {
        let mut random = fastrand::Rng::with_seed(options.seed);
        let clients = (0..options.sessions).map(|_| Client {
            listens: random.u32(0..100) < options.listening,
            ..Client::default()
        });
        let clients = clients.collect();
        let redis = SimulatedRedis::start(options.shards, EventLogConfig::default(), options.seed);
        Arc::new(Self {
            redis,
            slots: Mutex::default(),
            clients: Mutex::new(clients),
            pings: Mutex::default(),
            random: Mutex::new(random),
            tally: Mutex::default(),
            options,
        })
    }

    /// Starts one more replica.
    pub(super) fn add(self: &Arc<Self>) {
        let slot = self.slots().len();
        let gateway = Gateway::start(self, slot);
        let id = gateway.replicas.own();
        self.slots().push(Slot {
            id,
            gateway: Some(gateway),
            in_rotation: true,
        });
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().expect("no panic")
    }

    pub(super) fn clients(&self) -> MutexGuard<'_, Vec<Client>> {
        self.clients.lock().expect("no panic")
    }

    pub(super) fn pings(&self) -> MutexGuard<'_, HashMap<usize, Pings>> {
        self.pings.lock().expect("no panic")
    }

    pub(super) fn random(&self) -> MutexGuard<'_, fastrand::Rng> {
        self.random.lock().expect("no panic")
    }

    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no panic")
    }

    /// Processes that have not been killed.
    pub(super) fn gateways(&self) -> Vec<Arc<Gateway>> {
        let slots = self.slots();
        slots.iter().filter_map(|it| it.gateway.clone()).collect()
    }

    pub(super) fn gateway(&self, slot: usize) -> Option<Arc<Gateway>> {
        self.slots()[slot].gateway.clone()
    }

    /// Process at the address of a replica; `None` if the replica was killed.
    pub(super) fn at(&self, id: ReplicaId) -> Option<Arc<Gateway>> {
        let slots = self.slots();
        let slot = slots.iter().find(|it| it.id == id)?;
        slot.gateway.clone()
    }

    /// The replica to which the balancer sends a client's request.
    pub(super) fn choose(&self, client: usize) -> Option<Arc<Gateway>> {
        let slots = self.slots();
        let count = slots.len();
        let first = match self.options.balancer {
            Balancer::Random => self.random().usize(0..count),
            Balancer::HashOfId => {
                let clients = self.clients();
                let Some(id) = &clients[client].id else {
                    drop(clients);
                    return slots[self.random().usize(0..count)].gateway.clone();
                };
                // The last characters of a sealed id are as evenly distributed as a digest of it.
                let bytes = id.as_str().bytes().rev().take(6);
                bytes.fold(0_usize, |all, byte| all * 64 + usize::from(byte)) % count
            }
            Balancer::Sticky => {
                let known = self.clients()[client].at;
                known.unwrap_or_else(|| self.random().usize(0..count))
            }
        };
        let mut order = (0..count).map(|step| &slots[(first + step) % count]);
        let chosen = order.find(|it| it.in_rotation)?;
        let gateway = chosen.gateway.clone();
        if let Some(gateway) = &gateway {
            self.clients()[client].at = Some(gateway.slot);
        }
        gateway
    }

    /// Removes a replica from the balancer's rotation, or adds it again.
    pub(super) fn rotate(&self, slot: usize, in_rotation: bool) {
        self.slots()[slot].in_rotation = in_rotation;
    }

    /// Ends the process of a replica, as SIGKILL does. The balancer finds its port closed immediately.
    pub(super) fn kill(&self, slot: usize) {
        let gateway = {
            let slots = &mut self.slots()[slot];
            slots.in_rotation = false;
            slots.gateway.take()
        };
        if let Some(gateway) = gateway {
            gateway.process.set(ProcessState::Killed);
        }
    }

    /// Starts a new process of a replica that was killed.
    pub(super) fn start_again(self: &Arc<Self>, slot: usize) {
        let gateway = Gateway::start(self, slot);
        let mut slots = self.slots();
        slots[slot].gateway = Some(gateway);
        slots[slot].in_rotation = true;
    }
}

/// Resident memory of this process, in bytes.
pub(super) fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|it| it.parse::<u64>().ok());
    pages.unwrap_or_default() * 4096
}

/// Time since `then`, in whole milliseconds.
pub(super) fn millis_since(then: Instant) -> usize {
    let elapsed: Duration = then.elapsed();
    usize::try_from(elapsed.as_millis()).unwrap_or(usize::MAX)
}
