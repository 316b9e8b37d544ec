//! The state that the clients of one load share, and its result.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::bail;
use hdrhistogram::Histogram;
use serde::Serialize;

use super::curve::{curve, micros};
use super::{Sample, Window};
use crate::message::FIRST_ID;
use crate::processes::{CpuTimes, Ticks, machine_busy, time_of_ended_children};

/// Maximum number of wrong responses before a connection is abandoned: the first one gives the reason, the others only count.
const FAULTS_MAX: u64 = 100;
/// Maximum number of requests in one measurement, far above that of any server.
const REQUESTS_MAX: u64 = 50_000_000;
/// Largest latency that is recorded; up to here, latencies have three significant digits.
const LATENCY_MAX: Duration = Duration::from_secs(60);

/// An empty histogram of latencies in nanoseconds.
pub(super) fn latencies() -> anyhow::Result<Histogram<u64>> {
    let highest = u64::try_from(LATENCY_MAX.as_nanos()).unwrap_or(u64::MAX);
    Ok(Histogram::new_with_bounds(1_000, highest, 3)?)
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    WarmUp,
    Measured,
    Over,
}

/// The state that the connections share. All of them run on one thread, so no lock is ever contended.
pub(super) struct Shared {
    phase: AtomicU8,
    next_id: AtomicU64,
    closed: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
    faults: Mutex<Faults>,
}

/// Number of wrong or missing answers, and the description of the first.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) count: u64,
    pub(crate) first: Option<String>,
}

impl Shared {
    pub(super) fn new() -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            phase: AtomicU8::new(Phase::WarmUp as u8),
            next_id: AtomicU64::new(FIRST_ID),
            closed: AtomicU64::new(0),
            latencies: Mutex::new(self::latencies()?),
            faults: Mutex::default(),
        }))
    }

    /// The id of the next request; `None` when no more requests are to be sent.
    pub(super) fn next_id(&self) -> Option<u64> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        (!self.is(Phase::Over) && id < FIRST_ID + REQUESTS_MAX).then_some(id)
    }

    /// Counts a right answer.
    pub(super) fn answered(&self, took: Duration) {
        // Requests begun just before the window compensate for those that its end cuts off.
        if self.is(Phase::Measured) {
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            self.latencies
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .saturating_record(took);
        }
    }

    /// Counts a connection that was closed after an answer.
    pub(super) fn closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes the faults so far; a second call returns none.
    pub(super) fn faults(&self) -> Faults {
        std::mem::take(&mut *self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Counts a wrong answer. Returns true if the connection may continue.
    pub(super) fn fault(&self, what: String) -> bool {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.count += 1;
        faults.first.get_or_insert(what);
        faults.count < FAULTS_MAX
    }
}

/// CPU times up to one moment.
pub(crate) struct Spent {
    front: CpuTimes,
    front_ticks: Ticks,
    workers: CpuTimes,
    /// CPU time of workers that have ended.
    ended: u64,
    client: CpuTimes,
    machine: u64,
}

impl Spent {
    pub(crate) fn now(window: &Window) -> anyhow::Result<Self> {
        Ok(Self {
            front: CpuTimes::of_first(&window.front)?,
            front_ticks: Ticks::of(&window.front),
            // CPU time of workers that have ended is counted with the ended children.
            workers: CpuTimes::of_those_left(&window.workers),
            ended: time_of_ended_children(&window.front),
            client: CpuTimes::of(&[std::process::id()])?,
            machine: machine_busy()?,
        })
    }
}

/// CPU time between two moments, per request, in microseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Costs {
    /// CPU time of the processes under test.
    pub(crate) cpu_us: f64,
    /// The fraction of that CPU time spent in the kernel, counted in clock ticks.
    pub(crate) kernel_share: Option<f64>,
    pub(crate) worker_cpu_us: Option<f64>,
    /// CPU time of this program: it competes for the cores.
    pub(crate) client_cpu_us: f64,
    /// Cores used by other work: not by the processes under test, their workers or this program. Much of it spoils a sample.
    pub(crate) other_cores: f64,
}

impl Spent {
    /// The costs from this moment until `after`.
    pub(crate) fn until(&self, after: &Self, requests: u64, seconds: f64) -> Costs {
        let front = after.front.since(&self.front);
        let workers = after.workers.since(&self.workers) + after.ended.saturating_sub(self.ended);
        let client = after.client.since(&self.client);
        let machine = after.machine.saturating_sub(self.machine);
        let others = machine.saturating_sub(front + workers + client);
        let each = |nanoseconds: u64| nanoseconds as f64 / 1e3 / requests.max(1) as f64;
        Costs {
            cpu_us: each(front),
            kernel_share: after.front_ticks.kernel_share_since(self.front_ticks),
            worker_cpu_us: (workers > 0).then(|| each(workers)),
            client_cpu_us: each(client),
            other_cores: others as f64 / 1e9 / seconds,
        }
    }
}

impl Faults {
    pub(crate) fn none(self) -> anyhow::Result<()> {
        match self.first {
            Some(first) => bail!("{} wrong answers, the first one: {first}", self.count),
            None => Ok(()),
        }
    }
}

impl Shared {
    pub(super) fn sample(
        &self,
        before: &Spent,
        after: &Spent,
        seconds: f64,
    ) -> anyhow::Result<Sample> {
        let latencies = self
            .latencies
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let requests = latencies.len();
        if requests == 0 {
            bail!("no request was answered in {seconds:.1} s");
        }
        let costs = before.until(after, requests, seconds);
        if costs.cpu_us == 0.0 {
            bail!("the processes under test used no CPU time: not those that answered");
        }
        Ok(Sample {
            requests,
            per_second: requests as f64 / seconds,
            p50_us: micros(&latencies, 50.0),
            p99_us: micros(&latencies, 99.0),
            costs,
            closed: self.closed.load(Ordering::Relaxed),
            curve: curve(&latencies),
        })
    }
}
