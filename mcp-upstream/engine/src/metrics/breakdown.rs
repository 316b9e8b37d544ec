//! Counts of tool calls by tool and by principal (`observability.metrics`). Both are off by default, since each name adds a time
//! series, and the names come from others: from servers in pass-through mode, and from issuers of access tokens.
//!
//! Two limits apply: only the names with the most calls are exported, and only a limited number of names is counted at all.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{IntCounterVec, Opts, Registry};
use serde::{Deserialize, Serialize};
use tooldock_base::names::NamespaceName;

/// Maximum number of tools that are exported as time series.
const TOOLS_MAX: usize = 1_000;
/// Maximum number of principals that are exported as time series.
const PRINCIPALS_MAX: usize = 50;
/// Maximum number of names that are counted. When it is reached, the half with the fewest calls is forgotten.
const COUNTED_MAX: usize = 10_000;
/// Value of the label `principal` for calls without a credential.
const ANONYMOUS: &str = "anonymous";

/// The configuration `observability.metrics`: counts of calls in addition to those by namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakdownConfig {
    /// True to count tool calls by tool; the 1,000 tools with the most calls are exported. False to count by namespace only.
    pub per_tool: bool,
    /// Setting that counts calls by principal, or not.
    pub per_principal: PerPrincipal,
}

/// Values of `observability.metrics.per_principal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PerPrincipal {
    /// Tool calls are not counted by principal.
    #[default]
    #[serde(rename = "off")]
    Off,
    /// Tool calls are counted by principal; the 50 principals with the most calls are exported.
    #[serde(rename = "top_50")]
    Top50,
}

/// Numbers of ended calls of one tool or principal, by outcome.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    ok: u64,
    failed: u64,
}

impl Ends {
    fn all(self) -> u64 {
        self.ok + self.failed
    }
}

/// Numbers of ended calls, by the name of the tool or principal.
#[derive(Debug)]
struct Counts<K>(Mutex<HashMap<K, Ends>>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash + Ord + Clone> Counts<K> {
    fn count(&self, name: K, is_ok: bool) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= COUNTED_MAX && !counts.contains_key(&name) {
            let mut all: Vec<_> = counts.values().map(|ends| ends.all()).collect();
            let (_, median, _) = all.select_nth_unstable(COUNTED_MAX / 2);
            let (median, mut excess) = (*median, counts.len() / 2);
            counts.retain(|_, ends| {
                let is_forgotten = excess > 0 && ends.all() <= median;
                excess -= usize::from(is_forgotten);
                !is_forgotten
            });
        }
        let ends = counts.entry(name).or_default();
        match is_ok {
            true => ends.ok += 1,
            false => ends.failed += 1,
        }
    }

    /// Returns the names with the most calls, at most `most` of them, unordered.
    fn top(&self, most: usize) -> Vec<(K, Ends)> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = counts
            .iter()
            .map(|(name, ends)| (name.clone(), *ends))
            .collect();
        drop(counts);
        if all.len() > most {
            all.select_nth_unstable_by(most, |(one, ones), (other, others)| {
                others.all().cmp(&ones.all()).then_with(|| one.cmp(other))
            });
            all.truncate(most);
        }
        all
    }

    fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = HashMap::new();
    }
}

/// An ended tool call, to be counted by tool and by principal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallEnd<'a> {
    pub(crate) namespace: &'a NamespaceName,
    /// The tool's name; `None` if it is not known to be the name of a real tool. Such a call is not counted by tool.
    pub(crate) tool: Option<&'a Arc<str>>,
    pub(crate) principal: Option<&'a Arc<str>>,
    /// True if the call was delegated to a member of an aggregate. It is then counted for its principal at the member only.
    pub(crate) is_delegated: bool,
    pub(crate) is_ok: bool,
}

/// Counts of tool calls by tool and by principal.
#[derive(Debug, Default)]
pub struct Breakdown {
    per_tool: AtomicBool,
    per_principal: AtomicBool,
    tools: Counts<(NamespaceName, Arc<str>)>,
    principals: Counts<Arc<str>>,
}

impl Breakdown {
    /// Creates the counts and registers their metric families.
    ///
    /// # Errors
    ///
    /// If the registry already contains one of the families.
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Arc<Self>> {
        let counts = Arc::<Self>::default();
        registry.register(Box::new(Families {
            counts: Arc::clone(&counts),
            descriptions: [by_tool()?, by_principal()?]
                .iter()
                .flat_map(|family| family.desc().into_iter().cloned())
                .collect(),
        }))?;
        Ok(counts)
    }

    /// Enables or disables each of the two counts. Disabling a count deletes its numbers.
    pub fn configure(&self, config: BreakdownConfig) {
        let per_principal = config.per_principal == PerPrincipal::Top50;
        self.per_tool.store(config.per_tool, Ordering::Relaxed);
        self.per_principal.store(per_principal, Ordering::Relaxed);
        if !config.per_tool {
            self.tools.clear();
        }
        if !per_principal {
            self.principals.clear();
        }
    }

    /// Counts an ended tool call.
    pub(crate) fn count(&self, end: CallEnd<'_>) {
        if let Some(tool) = end.tool
            && self.per_tool.load(Ordering::Relaxed)
        {
            let name = (end.namespace.clone(), Arc::clone(tool));
            self.tools.count(name, end.is_ok);
        }
        if self.per_principal.load(Ordering::Relaxed) && !end.is_delegated {
            let name = end.principal.map_or_else(|| ANONYMOUS.into(), Arc::clone);
            self.principals.count(name, end.is_ok);
        }
    }

    /// Returns the counted tools with their numbers of calls, in order, for tests.
    #[cfg(test)]
    pub(crate) fn tools_counted(&self) -> Vec<(String, u64)> {
        let tools = self.tools.top(usize::MAX).into_iter();
        let mut tools: Vec<_> = tools
            .map(|((_, tool), ends)| (tool.to_string(), ends.all()))
            .collect();
        tools.sort();
        tools
    }

    /// The counted principals with their numbers of calls.
    #[cfg(test)]
    pub(crate) fn principals_counted(&self) -> Vec<(String, u64)> {
        let principals = self.principals.top(usize::MAX).into_iter();
        let counted = principals.map(|(name, ends)| (name.to_string(), ends.all()));
        counted.collect()
    }
}

fn by_tool() -> prometheus::Result<IntCounterVec> {
    let options = Opts::new(
        "tooldock_tool_calls_by_tool_total",
        "Tool calls by namespace, tool and outcome (ok, error), of the tools with the most calls",
    );
    IntCounterVec::new(options, &["namespace", "tool", "outcome"])
}

fn by_principal() -> prometheus::Result<IntCounterVec> {
    let options = Opts::new(
        "tooldock_tool_calls_by_principal_total",
        "Tool calls by principal and outcome (ok, error), of the principals with the most calls",
    );
    IntCounterVec::new(options, &["principal", "outcome"])
}

/// Prometheus collector of the two metric families: calls by tool, and calls by principal.
struct Families {
    counts: Arc<Breakdown>,
    descriptions: Vec<Desc>,
}

impl Collector for Families {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut families = Vec::new();
        let outcomes = |ends: Ends| [("ok", ends.ok), ("error", ends.failed)];
        if let Ok(family) = by_tool() {
            for ((namespace, tool), ends) in self.counts.tools.top(TOOLS_MAX) {
                for (outcome, calls) in outcomes(ends) {
                    let labels = [namespace.as_str(), &tool, outcome];
                    family.with_label_values(&labels).inc_by(calls);
                }
            }
            families.extend(family.collect());
        }
        if let Ok(family) = by_principal() {
            for (principal, ends) in self.counts.principals.top(PRINCIPALS_MAX) {
                for (outcome, calls) in outcomes(ends) {
                    family
                        .with_label_values(&[&*principal, outcome])
                        .inc_by(calls);
                }
            }
            families.extend(family.collect());
        }
        families.retain(|family| !family.get_metric().is_empty());
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: BreakdownConfig = BreakdownConfig {
        per_tool: true,
        per_principal: PerPrincipal::Top50,
    };

    /// The lines of the exposition.
    fn lines(registry: &Registry) -> Vec<String> {
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather());
        let text = text.expect("text");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn calls_are_counted_by_tool_and_principal_where_that_is_asked_for() {
        let registry = Registry::new();
        let counts = Breakdown::new(&registry).expect("a fresh registry");
        let (namespace, add) = ("calc".parse().expect("a name"), "add".into());
        let ada = Arc::from("ada");
        let by_ada = |is_ok| CallEnd {
            namespace: &namespace,
            tool: Some(&add),
            principal: Some(&ada),
            is_delegated: false,
            is_ok,
        };
        let count = |is_ok| counts.count(by_ada(is_ok));
        count(true);
        assert_eq!(lines(&registry), [""; 0]);
        counts.configure(BOTH);
        count(true);
        count(true);
        count(false);
        counts.count(CallEnd {
            principal: None,
            ..by_ada(true)
        });
        counts.count(CallEnd {
            is_delegated: true,
            ..by_ada(true)
        });
        assert_eq!(
            lines(&registry),
            [
                "tooldock_tool_calls_by_principal_total{outcome=\"error\",principal=\"ada\"} 1",
                "tooldock_tool_calls_by_principal_total{outcome=\"error\",principal=\"anonymous\"} 0",
                "tooldock_tool_calls_by_principal_total{outcome=\"ok\",principal=\"ada\"} 2",
                "tooldock_tool_calls_by_principal_total{outcome=\"ok\",principal=\"anonymous\"} 1",
                "tooldock_tool_calls_by_tool_total{namespace=\"calc\",outcome=\"error\",tool=\"add\"} 1",
                "tooldock_tool_calls_by_tool_total{namespace=\"calc\",outcome=\"ok\",tool=\"add\"} 4",
            ]
        );
        counts.configure(BreakdownConfig::default());
        assert_eq!(lines(&registry), [""; 0]);
    }

    #[test]
    fn the_names_with_the_most_calls_are_exported_and_the_names_that_are_counted_are_bounded() {
        let registry = Registry::new();
        let counts = Breakdown::new(&registry).expect("a fresh registry");
        counts.configure(BOTH);
        let namespace = "calc".parse().expect("a name");
        let count = |name: &str| {
            let name = Arc::from(name);
            counts.count(CallEnd {
                namespace: &namespace,
                tool: Some(&name),
                principal: Some(&name),
                is_delegated: false,
                is_ok: true,
            });
        };
        for _ in 0..3 {
            count("often");
        }
        for number in 0..30_000 {
            count(&format!("name-{number}"));
        }
        let lines = lines(&registry);
        let of = |family: &str| lines.iter().filter(|line| line.starts_with(family)).count();
        assert_eq!(of("tooldock_tool_calls_by_tool_total"), 2 * TOOLS_MAX);
        assert_eq!(
            of("tooldock_tool_calls_by_principal_total"),
            2 * PRINCIPALS_MAX
        );
        let often = "{outcome=\"ok\",principal=\"often\"} 3";
        assert!(lines.iter().any(|line| line.ends_with(often)), "{lines:?}");
        let counted = counts.tools.0.lock().expect("not poisoned").len();
        assert!(counted <= COUNTED_MAX, "{counted}");
    }
}
