//! Metrics of external servers' processes, by namespace. The series of a namespace are removed when it is no longer served and
//! its last process has ended. So a server without running processes keeps its counts.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::{IntCounter, Registry};
use tooldock_base::metric_table;
use tooldock_base::names::NamespaceName;

use super::{ProcessMetrics, forget};

/// All metrics of external servers' processes. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ServerMetrics(Arc<Families>);

metric_table! {
    #[derive(Debug)]
    struct Families(registry) {
        live: IntGaugeVec["namespace"] = "tooldock_server_processes_live",
            "Processes of an external server running now";
        started: IntCounterVec["namespace"] = "tooldock_server_processes_started_total",
            "Processes of an external server that were started";
        reaped: IntCounterVec["namespace"] = "tooldock_server_processes_reaped_total",
            "Processes of an external server that ended and left nothing behind";
        killed: IntCounterVec["namespace", "reason"] = "tooldock_server_processes_killed_total",
            "Process trees of an external server that had to be killed";
        restarts: IntCounterVec["namespace", "reason"] = "tooldock_server_restarts_total",
            "Processes of an external server that were started in the place of another";
        output_suppressed: IntCounterVec["namespace"] = "tooldock_server_output_suppressed_total",
            "Lines of an external server's standard error beyond the rate limit, not logged";
    }
    {
        /// Reasons to keep the series of each namespace. The mutex is locked when a process starts or ends, and never held across
        /// an await.
        namespaces: Mutex<HashMap<NamespaceName, SeriesHolders>> = Mutex::default();
    }
}

/// Reasons to keep a namespace's series: it is served, or has processes.
#[derive(Debug, Default)]
struct SeriesHolders {
    served: bool,
    processes: usize,
}

/// The series of a namespace in which one process is counted. Dropping it means that the process is no longer counted.
pub(crate) struct ServerSeries {
    families: Arc<Families>,
    namespace: NamespaceName,
}

impl fmt::Debug for ServerSeries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerSeries")
            .field(&self.namespace)
            .finish()
    }
}

impl ServerMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self(Arc::new(Families::new(registry)?)))
    }

    /// Counts a process that replaces another. `reason` is a metrics label with few different values.
    pub fn restarted(&self, namespace: &NamespaceName, reason: &'static str) {
        self.0.lock().entry(namespace.clone()).or_default();
        let labels = &[namespace.as_str(), reason];
        self.0.restarts.with_label_values(labels).inc();
    }

    /// The metrics for one process of a server. The process is counted in the namespace's series and in those of all processes.
    pub fn processes_of(&self, namespace: &NamespaceName, all: &ProcessMetrics) -> ProcessMetrics {
        let mut namespaces = self.0.lock();
        namespaces.entry(namespace.clone()).or_default().processes += 1;
        ProcessMetrics {
            server: Some(Arc::new(ServerSeries {
                families: Arc::clone(&self.0),
                namespace: namespace.clone(),
            })),
            ..all.clone()
        }
    }

    /// Counter of a server's output lines that were not logged because of the rate limit.
    pub fn output_suppressed(&self, namespace: &NamespaceName) -> IntCounter {
        let label = &[namespace.as_str()];
        self.0.output_suppressed.with_label_values(label)
    }

    /// Sets the external servers that are served now. The series of servers that are no longer served are removed if they have no
    /// processes.
    pub fn serve<'a>(&self, names: impl Iterator<Item = &'a NamespaceName>) {
        let mut namespaces = self.0.lock();
        for known in namespaces.values_mut() {
            known.served = false;
        }
        for name in names {
            namespaces.entry(name.clone()).or_default().served = true;
        }
        namespaces.retain(|name, known| self.0.keep(name, known));
    }
}

impl Families {
    fn lock(&self) -> MutexGuard<'_, HashMap<NamespaceName, SeriesHolders>> {
        self.namespaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a namespace's series must be kept; otherwise removes them. Must be called while the lock is held, so that
    /// a process that starts in the meantime does not lose its new series.
    fn keep(&self, name: &NamespaceName, known: &SeriesHolders) -> bool {
        if known.served || known.processes > 0 {
            return true;
        }
        let name = name.as_str();
        forget(&self.live, name);
        for family in [
            &self.started,
            &self.reaped,
            &self.killed,
            &self.restarts,
            &self.output_suppressed,
        ] {
            forget(family, name);
        }
        false
    }
}

impl ServerSeries {
    pub(super) fn started(&self) {
        let label = &[self.namespace.as_str()];
        self.families.live.with_label_values(label).inc();
        self.families.started.with_label_values(label).inc();
    }

    pub(super) fn ended(&self, reaped: bool) {
        let label = &[self.namespace.as_str()];
        self.families.live.with_label_values(label).dec();
        if reaped {
            self.families.reaped.with_label_values(label).inc();
        }
    }

    pub(super) fn killed(&self, reason: &'static str) {
        let labels = &[self.namespace.as_str(), reason];
        self.families.killed.with_label_values(labels).inc();
    }
}

impl Drop for ServerSeries {
    fn drop(&mut self) {
        let mut namespaces = self.families.lock();
        let Some(known) = namespaces.get_mut(&self.namespace) else {
            return;
        };
        known.processes -= 1;
        if !self.families.keep(&self.namespace, known) {
            namespaces.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::WorkerMetrics;

    /// Every series with this namespace: its value by the family's name.
    fn series(registry: &Registry) -> Vec<(String, f64)> {
        let mut found = Vec::new();
        for family in registry.gather() {
            for metric in family.get_metric() {
                if metric.get_label().iter().any(|it| it.value() == "time") {
                    let value = metric.get_gauge().value() + metric.get_counter().value();
                    found.push((family.name().to_owned(), value));
                }
            }
        }
        found
    }

    #[test]
    fn a_process_is_counted_twice_and_series_stay_while_the_server_is_served() {
        let registry = Registry::new();
        let metrics = WorkerMetrics::new(&registry).unwrap();
        let name: NamespaceName = "time".parse().unwrap();
        let servers = metrics.servers();
        servers.serve([&name].into_iter());
        let process = servers.processes_of(&name, metrics.processes());
        process.started();
        process.killed("grace_expired");
        servers.restarted(&name, "crash");
        assert_eq!(metrics.processes().live.get(), 1);
        process.reaped();
        drop(process);
        let value = |wanted: &str| {
            let all = series(&registry);
            all.iter().find(|(name, _)| name == wanted).map(|it| it.1)
        };
        assert_eq!(value("tooldock_server_processes_live"), Some(0.0));
        for name in [
            "processes_started",
            "processes_reaped",
            "processes_killed",
            "restarts",
        ] {
            assert_eq!(
                value(&format!("tooldock_server_{name}_total")),
                Some(1.0),
                "{name}"
            );
        }
        assert_eq!(metrics.processes().live.get(), 0);
        let last = servers.processes_of(&name, metrics.processes());
        last.started();
        servers.serve([].into_iter());
        assert!(!series(&registry).is_empty(), "a process is still there");
        drop(last);
        assert_eq!(series(&registry), []);
    }
}
