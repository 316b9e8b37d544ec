//! Counters and histograms of the service. Label values are namespaces and constants, never text from a client.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use dashmap::DashMap;
use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};
use tooldock_base::metric_table;
use tooldock_base::names::NamespaceName;
use tooldock_base::poll_watch::PollWatch;

pub mod breakdown;
pub mod figures;
pub mod toolman;

use crate::hooks::HookMetrics;
use breakdown::Breakdown;
pub(crate) use breakdown::CallEnd;
use tooldock_servers::metrics::StdioMetrics;
use tooldock_sessions::stream::StreamMetrics;
use toolman::ToolmanMetrics;

/// Upper bounds of the latency histogram's buckets, in seconds. They range from a cache hit to the highest time limit of a call
/// that is allowed by default.
const LATENCY_SECONDS: [f64; 14] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0,
];

metric_table! {
    /// The metrics that the service exports to Prometheus.
    #[derive(Debug)]
    pub struct UpstreamMetrics(registry) {
        calls: IntCounterVec["namespace", "outcome"] = "tooldock_tool_calls_total",
            "Tool calls by namespace and outcome";
        other_calls: IntCounterVec["namespace", "method", "outcome"] = "tooldock_method_calls_total",
            "Resources read, prompts got and arguments completed, by namespace and outcome";
        latency: HistogramVec["namespace"] = "tooldock_tool_call_seconds",
            "Time of tool calls, waiting in the queue included", LATENCY_SECONDS;
        in_flight: IntGaugeVec["namespace"] = "tooldock_tool_calls_in_flight",
            "Calls of tools, resources, prompts and completions that run or wait";
        /// Number of events of calls that were dropped because the client did not read them in time.
        pub(crate) events_dropped: IntCounter = "tooldock_call_events_dropped_total",
            "Progress, log messages and notices of calls that found no room";
        /// Number of live sessions.
        pub sessions: IntGauge = "tooldock_sessions", "Sessions alive";
        /// Memory of live sessions.
        pub session_bytes: IntGauge = "tooldock_session_bytes",
            "Memory of sessions, without what their streams keep for resumption";
        /// Number of sessions whose record is behind.
        pub sessions_unrecorded: IntGauge = "tooldock_sessions_unrecorded",
            "Sessions whose record in the session store is behind, because the store could not be written";
        /// Number of running tasks.
        pub tasks_running: IntGauge = "tooldock_tasks_running",
            "Tasks of Python tools that run in this process, or whose outcome is not stored yet";
        /// Number of replicas that are up.
        pub replicas_up: IntGauge = "tooldock_replicas_up",
            "Replicas that share the session store and are up, this one included; 0 without such a store";
        /// Number of replicas to which requests cannot be forwarded.
        pub replicas_unreachable: IntGauge = "tooldock_replicas_unreachable",
            "Replicas that are up and to which this one cannot forward requests";
        /// Number of sessions that were opened.
        pub sessions_created: IntCounter = "tooldock_sessions_created_total", "Sessions opened";
        /// Number of sessions that ended by time.
        pub sessions_expired: IntCounter = "tooldock_sessions_expired_total", "Sessions ended by time";
        /// Number of sessions that made room for newer ones.
        pub sessions_evicted: IntCounter = "tooldock_sessions_evicted_total",
            "Sessions closed to make room for newer ones";
        /// Number of sessions that their clients ended.
        pub sessions_deleted: IntCounter = "tooldock_sessions_deleted_total",
            "Sessions ended by their client";
        namespaces_by_state: IntGaugeVec["state"] = "tooldock_namespaces",
            "Namespaces by state, as /ready has it: ready, idle, starting, installing, degraded, failed, empty, or that of a worker";
        /// Number of tools of all namespaces.
        pub tools: IntGauge = "tooldock_tools", "Tools of all namespaces, as far as the lists of their servers are known";
        member_state: IntGaugeVec["namespace", "member", "state"] = "tooldock_member_state",
            "The state of each member of an aggregate, as /ready has it: 1 for the state that it is in";
        pins: IntGaugeVec["namespace", "state"] = "tooldock_pins",
            "Recorded definitions of servers by namespace and state: approved, changed, new, suspicious";
        pins_file_failed: IntGauge = "tooldock_pins_file_failed",
            "1 while pins.json cannot be read or written, 0 otherwise";
        remote_requests: IntCounterVec["namespace", "mode"] = "tooldock_remote_requests_total",
            "Requests to namespaces of remote servers, by how they travel: client, pass_through";
        audit_dropped: IntCounter = "tooldock_audit_dropped_total",
            "Audit records that were lost: there was no room in the queue, or the file could not be written";
    }
    {
        /// Metrics by namespace. The counters of a namespace are found once, so that a call looks up one map instead of three.
        namespaces: DashMap<NamespaceName, Arc<NamespaceMetrics>, BuildHasherDefault<NameHasher>> = DashMap::default();
        /// The label values whose series are registered in the gauges, so that series that no longer apply can be removed.
        shown: Mutex<ShownConditions> = Mutex::default();
        /// Metrics of event streams and of the logs from which they are resumed.
        pub streams: Arc<StreamMetrics> = Arc::new(StreamMetrics::new(registry)?);
        /// Metrics of aggregates. Their calls are counted in other metrics.
        pub toolman: ToolmanMetrics = ToolmanMetrics::new(registry)?;
        /// Detector of requests that occupy a message thread for too long.
        pub polls: PollWatch = PollWatch::new(registry)?;
        /// Counts of calls by tool and by principal.
        breakdown: Arc<Breakdown> = Breakdown::new(registry)?;
        /// Metrics of hooks.
        pub hooks: HookMetrics = HookMetrics::new(registry)?;
        /// Metrics of external MCP servers.
        pub stdio: StdioMetrics = StdioMetrics::new(registry)?;
    }
}

/// The states of a namespace. For each state a series is exported even with the value 0, so that alerts can rely on it.
const NAMESPACE_STATES: [&str; 5] = ["ready", "starting", "degraded", "failed", "empty"];

/// State of a member of an aggregate, for the gauge `tooldock_member_state`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MemberState {
    /// The namespace of the aggregate to which the member belongs.
    pub namespace: NamespaceName,
    /// The member's name in the aggregate.
    pub member: Arc<str>,
    /// The member's state, as `/ready` shows it.
    pub state: &'static str,
}

impl MemberState {
    fn labels(&self) -> [&str; 3] {
        [self.namespace.as_str(), &self.member, self.state]
    }
}

/// The states, members and pins whose series are registered in the gauges.
#[derive(Debug, Default)]
struct ShownConditions {
    states: BTreeSet<&'static str>,
    members: BTreeSet<MemberState>,
    pins: BTreeSet<(NamespaceName, &'static str)>,
}

/// FNV-1a hasher, which is fast for short names. Attackers cannot choose the names of namespaces, so collisions are no concern.
#[derive(Debug)]
struct NameHasher(u64);

impl Default for NameHasher {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The metrics of one namespace.
#[derive(Debug)]
pub struct NamespaceMetrics {
    name: NamespaceName,
    calls: IntCounterVec,
    other_calls: IntCounterVec,
    ok: IntCounter,
    pub(crate) breakdown: Arc<Breakdown>,
    pub(crate) latency: Histogram,
    /// Calls that run or wait.
    pub in_flight: IntGauge,
}

impl UpstreamMetrics {
    /// Returns the counter of lost audit records, for [`tooldock_sessions::audit::Audit::start`].
    #[inline]
    pub fn audit_dropped(&self) -> IntCounter {
        self.audit_dropped.clone()
    }

    /// Returns the counts of calls by tool and by principal.
    pub fn breakdown(&self) -> &Arc<Breakdown> {
        &self.breakdown
    }

    /// Updates the gauges of namespaces by state, and of the members of aggregates by state.
    pub fn show_conditions(
        &self,
        states: &BTreeMap<&'static str, i64>,
        members: BTreeSet<MemberState>,
    ) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut shown.states);
        shown.states = NAMESPACE_STATES.into_iter().chain(before).collect();
        shown.states.extend(states.keys());
        for state in &shown.states {
            let count = states.get(state).copied().unwrap_or_default();
            self.namespaces_by_state
                .with_label_values(&[state])
                .set(count);
        }
        for gone in shown.members.difference(&members) {
            let _ = self.member_state.remove_label_values(&gone.labels());
        }
        for member in &members {
            self.member_state.with_label_values(&member.labels()).set(1);
        }
        shown.members = members;
    }

    /// Sets the gauge of pinned definitions, by namespace and state. `failed`: true while the file with the pins cannot be
    /// read or written.
    pub fn show_pins(&self, pins: BTreeMap<(NamespaceName, &'static str), i64>, failed: bool) {
        self.pins_file_failed.set(i64::from(failed));
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, state) in shown.pins.iter().filter(|it| !pins.contains_key(*it)) {
            let _ = self.pins.remove_label_values(&[name.as_str(), state]);
        }
        for ((name, state), count) in &pins {
            let labels = [name.as_str(), state];
            self.pins.with_label_values(&labels).set(*count);
        }
        shown.pins = pins.into_keys().collect();
    }

    /// Counts a request to a remote server. `mode`: `client` or `pass_through`.
    #[inline]
    pub fn remote_request(&self, name: &NamespaceName, mode: &str) {
        let labels = [name.as_str(), mode];
        self.remote_requests.with_label_values(&labels).inc();
    }

    /// Returns the number of a namespace's tool calls with this outcome, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn calls_of(&self, namespace: &str, outcome: &str) -> u64 {
        self.calls.with_label_values(&[namespace, outcome]).get()
    }

    /// Returns the number of calls of a method other than `tools/call` with this outcome, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn others_of(&self, namespace: &str, method: &str, outcome: &str) -> u64 {
        let labels = [namespace, method, outcome];
        self.other_calls.with_label_values(&labels).get()
    }

    /// Returns the number of requests to a remote server in this mode, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn remote_requests_of(&self, namespace: &str, mode: &str) -> u64 {
        let labels = [namespace, mode];
        self.remote_requests.with_label_values(&labels).get()
    }

    /// Returns the metrics of a namespace, which are created on first use.
    pub fn namespace(&self, name: &NamespaceName) -> Arc<NamespaceMetrics> {
        if let Some(metrics) = self.namespaces.get(name) {
            return Arc::clone(&metrics);
        }
        let labels = [name.as_str()];
        let metrics = NamespaceMetrics {
            name: name.clone(),
            calls: self.calls.clone(),
            other_calls: self.other_calls.clone(),
            breakdown: Arc::clone(&self.breakdown),
            ok: self.calls.with_label_values(&[name.as_str(), "ok"]),
            latency: self.latency.with_label_values(&labels),
            in_flight: self.in_flight.with_label_values(&labels),
        };
        Arc::clone(
            &self
                .namespaces
                .entry(name.clone())
                .or_insert_with(|| Arc::new(metrics)),
        )
    }
}

impl NamespaceMetrics {
    /// Counts a call of a method other than `tools/call`, by its method and outcome.
    pub(crate) fn count_other(&self, method: &'static str, outcome: &'static str) {
        self.other_calls
            .with_label_values(&[self.name.as_str(), method, outcome])
            .inc();
    }

    /// Counts a tool call by its outcome: `ok` or one of the fixed error codes.
    pub(crate) fn count(&self, outcome: &'static str) {
        if outcome == "ok" {
            self.ok.inc();
        } else {
            self.calls
                .with_label_values(&[self.name.as_str(), outcome])
                .inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::Registry;

    use super::*;

    #[test]
    fn registers_once_and_counts_by_namespace_and_outcome() {
        let registry = Registry::new();
        let metrics = UpstreamMetrics::new(&registry).expect("a fresh registry");
        assert!(UpstreamMetrics::new(&registry).is_err());
        let name = "shared".parse().expect("a name");
        metrics.namespace(&name).count("ok");
        metrics.namespace(&name).count("ok");
        metrics.namespace(&name).count("overloaded");
        let of = |outcome| metrics.calls_of("shared", outcome);
        assert_eq!((of("ok"), of("overloaded")), (2, 1));
    }
}
