//! Prometheus metrics of workers and processes. A worker's counters are looked up once, so a call only updates atomics.

mod servers;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{IntCounter, IntGauge, Registry};
use tooldock_base::metric_table;
use tooldock_base::metric_table::forget;
use tooldock_base::names::NamespaceName;
use tooldock_base::worker_state::WorkerState;

pub use servers::ServerMetrics;
use servers::ServerSeries;

/// Histogram buckets for the duration of a worker's start, in seconds: from a warm start to one that loads large libraries.
const START_SECONDS: [f64; 10] = [0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0];

metric_table! {
    /// All metrics of workers and processes.
    #[derive(Debug, Clone)]
    pub struct WorkerMetrics(registry) {
        state: IntGaugeVec["namespace", "state"] = "tooldock_worker_state",
            "Worker processes of a namespace in each state; twice as many in all while a reload replaces them";
        restarts: IntCounterVec["namespace"] = "tooldock_worker_restarts_total",
            "Worker processes started after a worker's first one";
        in_flight: IntGaugeVec["namespace"] = "tooldock_worker_in_flight",
            "Calls the workers of a namespace have not answered yet";
        start_seconds: Histogram = "tooldock_worker_start_seconds",
            "From the spawn of a worker process to its first possible call", START_SECONDS;
        protocol_errors: IntCounterVec["namespace", "kind"] = "tooldock_worker_protocol_errors_total",
            "Lines of a worker that fit no call";
        sync_waits: IntCounterVec["namespace"] = "tooldock_worker_sync_waits_total",
            "Calls that waited for more than a second for a thread of sync_concurrency";
        output_suppressed: IntCounterVec["namespace"] = "tooldock_worker_output_suppressed_total",
            "Lines of worker output beyond the rate limit, not logged";
    }
    {
        processes: ProcessMetrics = ProcessMetrics::new(registry)?;
        servers: ServerMetrics = ServerMetrics::new(registry)?;
        /// Number of workers per namespace; each worker has one process at a time. The series of a namespace are removed with its
        /// last worker.
        ///
        /// The mutex is locked when a worker starts or ends, and never held across an await.
        namespaces: Arc<Mutex<HashMap<NamespaceName, usize>>> = Arc::default();
    }
}

metric_table! {
    /// Metrics of child processes of any kind.
    #[derive(Debug, Clone)]
    pub struct ProcessMetrics(registry) {
        live: IntGauge = "tooldock_processes_live", "Child processes running now";
        reaped: IntCounter = "tooldock_processes_reaped_total",
            "Child processes that ended and left nothing behind";
        killed: IntCounterVec["reason"] = "tooldock_processes_killed_total",
            "Process trees that had to be killed";
    }
    {
        /// Metrics of the external server whose processes these are; the processes are counted in them, too. `None` for others.
        server: Option<Arc<ServerSeries>> = None;
    }
}

impl ProcessMetrics {
    /// Counts a child that was started.
    pub(crate) fn started(&self) {
        self.live.inc();
        if let Some(server) = &self.server {
            server.started();
        }
    }

    /// Counts a child that has ended with all its descendants.
    pub(crate) fn reaped(&self) {
        self.live.dec();
        self.reaped.inc();
        if let Some(server) = &self.server {
            server.ended(true);
        }
    }

    /// Counts a child that was dropped before its end; its guard ends it.
    pub(crate) fn count_dropped(&self) {
        self.live.dec();
        if let Some(server) = &self.server {
            server.ended(false);
        }
    }

    /// Counts a process tree that had to be killed, with the reason.
    pub(crate) fn killed(&self, reason: &'static str) {
        self.killed.with_label_values(&[reason]).inc();
        if let Some(server) = &self.server {
            server.killed(reason);
        }
    }
}

impl WorkerMetrics {
    /// Creates metrics that belong to no registry and are never exported.
    pub fn unregistered() -> Self {
        Self::new(&Registry::new()).expect("a fresh registry holds no such names")
    }

    /// The metrics of child processes of any kind.
    pub fn processes(&self) -> &ProcessMetrics {
        &self.processes
    }

    /// The counts of external servers' processes.
    pub fn servers(&self) -> &ServerMetrics {
        &self.servers
    }

    /// Creates the metrics of one worker.
    pub(crate) fn worker(&self, namespace: &NamespaceName) -> NamespaceMetrics {
        *lock(&self.namespaces).entry(namespace.clone()).or_default() += 1;
        let label = &[namespace.as_str()];
        NamespaceMetrics {
            states: WorkerState::NAMES
                .map(|state| self.state.with_label_values(&[namespace.as_str(), state])),
            current: Mutex::new(None),
            restarts: self.restarts.with_label_values(label),
            in_flight: self.in_flight.with_label_values(label),
            output_suppressed: self.output_suppressed.with_label_values(label),
            sync_waits: self.sync_waits.with_label_values(label),
            all: self.clone(),
            namespace: namespace.clone(),
        }
    }
}

/// The metrics of one worker. When it is dropped, the namespace's series are removed, unless another worker of the namespace
/// exists.
#[derive(Debug)]
pub(crate) struct NamespaceMetrics {
    states: [IntGauge; WorkerState::NAMES.len()],
    current: Mutex<Option<&'static str>>,
    restarts: IntCounter,
    pub(crate) in_flight: IntGauge,
    pub(crate) output_suppressed: IntCounter,
    pub(crate) sync_waits: IntCounter,
    all: WorkerMetrics,
    namespace: NamespaceName,
}

impl NamespaceMetrics {
    /// Counts the worker in this state, and no longer in its previous state.
    pub(crate) fn entered(&self, state: WorkerState) {
        self.count_in(Some(state.as_str()));
    }

    pub(crate) fn restarted(&self) {
        self.restarts.inc();
    }

    pub(crate) fn started(&self, after: Duration) {
        self.all.start_seconds.observe(after.as_secs_f64());
    }

    pub(crate) fn protocol_error(&self, kind: &'static str) {
        self.protocol_errors(kind, 1);
    }

    pub(crate) fn protocol_errors(&self, kind: &'static str, count: usize) {
        self.all
            .protocol_errors
            .with_label_values(&[self.namespace.as_str(), kind])
            .inc_by(count as u64);
    }

    pub(crate) fn processes(&self) -> &ProcessMetrics {
        &self.all.processes
    }

    fn count_in(&self, next: Option<&'static str>) {
        let gauge = |name: &str| {
            WorkerState::NAMES
                .iter()
                .position(|known| *known == name)
                .map(|index| &self.states[index])
        };
        let mut current = lock(&self.current);
        if let Some(gauge) = current.and_then(gauge) {
            gauge.dec();
        }
        if let Some(gauge) = next.and_then(gauge) {
            gauge.inc();
        }
        *current = next;
    }
}

impl Drop for NamespaceMetrics {
    fn drop(&mut self) {
        self.count_in(None);
        let mut namespaces = lock(&self.all.namespaces);
        let Some(count) = namespaces.get_mut(&self.namespace) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        namespaces.remove(&self.namespace);
        // The series are removed while the lock is held, so that a worker that starts in the meantime does not lose its new
        // series.
        let name = self.namespace.as_str();
        forget(&self.all.state, name);
        forget(&self.all.in_flight, name);
        for family in [
            &self.all.restarts,
            &self.all.protocol_errors,
            &self.all.output_suppressed,
            &self.all.sync_waits,
        ] {
            forget(family, name);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series_of(registry: &Registry, namespace: &str) -> usize {
        registry
            .gather()
            .iter()
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .filter(|metric| {
                metric
                    .get_label()
                    .iter()
                    .any(|label| label.value() == namespace)
            })
            .count()
    }

    #[test]
    fn a_worker_is_counted_in_one_state_and_its_series_go_with_the_last_one() {
        let registry = Registry::new();
        let metrics = WorkerMetrics::new(&registry).expect("the registry is empty");
        let name: NamespaceName = "github".parse().expect("valid");
        let old = metrics.worker(&name);
        old.entered(WorkerState::Starting);
        old.entered(WorkerState::Ready);
        old.protocol_error("late");
        let state = |state: &str| metrics.state.with_label_values(&["github", state]).get();
        assert_eq!((state("starting"), state("ready")), (0, 1));
        let new = metrics.worker(&name);
        drop(old);
        assert_eq!(state("ready"), 0);
        assert!(series_of(&registry, "github") > 0);
        drop(new);
        assert_eq!(series_of(&registry, "github"), 0);
    }
}
