//! The scenarios: each asks one question and answers it with tables, charts and verdicts.
//!
//! `scenarios.yaml` is the table of all scenarios: questions, sizes, durations, and how measurements are shown. The code of a
//! scenario is a function in this folder, named in [`runner`]. It starts the servers that it needs, measures through
//! [`load`](crate::load), and adds numbers to a [`Section`]; no other module refers to it.

pub(crate) mod run;

mod calls;
mod idle_sse;
mod manage;
mod reconnect_storm;
mod refuse;
mod reload;
mod replicas;
mod sessions;
mod soak;
mod stores;
mod upgrade;

use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::options::Options;
use crate::report::budget::Budget;
use crate::report::{Section, Shown, Sizes};
use crate::servers::peers::Peer;

pub(crate) use run::Run;

/// The table of budgets and scenarios.
pub(crate) static PLAN: LazyLock<Plan> = LazyLock::new(|| {
    let text = include_str!("../scenarios.yaml");
    serde_yaml::from_str(text).expect("load-tests/scenarios.yaml, which tests read")
});

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// All budgets, in the order of the report.
    pub(crate) budgets: Vec<Budget>,
    /// Known peers, whether installed or not.
    pub(crate) peers: Vec<Peer>,
    /// All scenarios, in the order in which they run and are reported.
    pub(crate) scenarios: Vec<Scenario>,
}

/// A question, and how its answer is measured and shown.
#[derive(Debug, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// One paragraph of Markdown.
    pub(crate) question: String,
    /// True if the scenario runs when no scenario is named.
    #[serde(default)]
    pub(crate) default: bool,
    /// Counts and rates by name.
    #[serde(default)]
    pub(crate) sizes: Sizes,
    takes: Takes,
    #[serde(default)]
    cases: Vec<calls::Case>,
    #[serde(flatten)]
    pub(crate) shown: Shown,
}

/// Expected duration of a scenario on a machine without other work: seconds, and multiples of the times of the options.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Takes {
    start: f64,
    #[serde(default)]
    each: f64,
    #[serde(default)]
    measured: f64,
    #[serde(default)]
    warm_up: f64,
    /// Seconds of each peer in each repetition.
    #[serde(default)]
    peer: f64,
    #[serde(default)]
    soak: bool,
}

/// The future of a scenario. It ends with an error for faults that make the rest pointless, such as a gateway that does not
/// start; wrong responses and missing measurements are recorded in the section.
pub(crate) type Answering<'r> = Pin<Box<dyn Future<Output = anyhow::Result<Section>> + 'r>>;

/// Starts the code of a scenario.
pub(crate) fn runner<'r>(name: &str, run: &'r mut Run<'_>) -> Answering<'r> {
    match name {
        "tools_call" => Box::pin(calls::tools_call(run)),
        "remote" => Box::pin(calls::remote(run)),
        "refuse" => Box::pin(refuse::measure(run)),
        "idle_sse" => Box::pin(idle_sse::measure(run)),
        "reconnect_storm" => Box::pin(reconnect_storm::measure(run)),
        "sessions" => Box::pin(sessions::measure(run)),
        "reload" => Box::pin(reload::measure(run)),
        "manage" => Box::pin(manage::measure(run)),
        "stores" => Box::pin(stores::measure(run)),
        "replicas" => Box::pin(replicas::measure(run)),
        "upgrade" => Box::pin(upgrade::measure(run)),
        "soak" => Box::pin(soak::measure(run)),
        _ => Box::pin(async { bail!("a scenario without code") }),
    }
}

/// Factor by which a slow or busy machine may exceed the expected duration.
const SLOWNESS: u32 = 3;
/// Time for starts and stops, whatever the options.
const START: Duration = Duration::from_secs(60);

impl Scenario {
    /// Expected duration with these options. The scenario is aborted after a multiple of it, see [`Scenario::limit`].
    pub(crate) fn takes(&self, options: &Options) -> Duration {
        let Takes { start, .. } = self.takes;
        let peers = Peer::all(options).map_or(0, |(peers, _)| peers.len());
        let each = self.takes.each
            + self.takes.measured * options.seconds
            + self.takes.warm_up * options.warm_up
            + self.takes.peer * peers as f64;
        let soak = if self.takes.soak {
            options.soak()
        } else {
            Duration::ZERO
        };
        Duration::from_secs_f64(start + each * options.repetitions as f64) + soak
    }

    /// Time limit of the scenario.
    pub(crate) fn limit(&self, options: &Options) -> Duration {
        self.takes(options) * SLOWNESS + START + options.patience()
    }

    /// A count or a rate of the table.
    pub(crate) fn size(&self, name: &str) -> anyhow::Result<f64> {
        let size = self.sizes.get(name).copied();
        size.with_context(|| format!("scenarios.yaml: {} has no size {name}", self.name))
    }
}

/// The scenarios that the options select.
pub(crate) fn wanted(options: &Options) -> impl Iterator<Item = &'static Scenario> {
    let named = |scenario: &Scenario| options.only.contains(&scenario.name);
    let none_named = options.only.is_empty();
    PLAN.scenarios
        .iter()
        .filter(move |scenario| (none_named && scenario.default) || named(scenario))
}

pub(crate) fn is_name(name: &str) -> bool {
    PLAN.scenarios.iter().any(|scenario| scenario.name == name)
}

/// Lists the scenarios for the help text.
pub(crate) fn names_help() -> String {
    let mut text = String::from("Scenarios:\n");
    for scenario in &PLAN.scenarios {
        let apart = if scenario.default {
            ""
        } else {
            " (only when named)"
        };
        let question = scenario.question.replace('`', "");
        text.push_str(&format!("  {:<16} {question}{apart}\n", scenario.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn names(arguments: &[&str]) -> Vec<String> {
        let options = Options::parse_from(["x"].iter().chain(arguments));
        wanted(&options)
            .map(|scenario| scenario.name.clone())
            .collect()
    }

    #[test]
    fn names_are_unique_and_in_the_help() {
        let unique: std::collections::BTreeSet<_> = PLAN
            .scenarios
            .iter()
            .map(|scenario| &scenario.name)
            .collect();
        assert_eq!(unique.len(), PLAN.scenarios.len());
        assert!(unique.iter().all(|name| names_help().contains(*name)));
    }

    #[test]
    fn scenarios_that_take_long_run_only_when_they_are_named() {
        let named = ["soak", "remote", "manage", "stores", "replicas", "upgrade"];
        assert_eq!(names(&[]).len(), PLAN.scenarios.len() - named.len());
        assert!(
            !named
                .iter()
                .any(|name| names(&[]).contains(&(*name).to_owned()))
        );
        // In the order of the table, whatever the order of the names.
        let some = names(&["--scenario", "soak", "--only", "refuse"]);
        assert_eq!(some, ["refuse", "soak"]);
    }

    #[test]
    fn a_scenario_is_given_more_time_than_it_takes_and_more_with_patience() {
        let plain = Options::parse_from(["x"]);
        let patient = Options::parse_from(["x", "--patience", "100"]);
        for scenario in &PLAN.scenarios {
            let (takes, limit) = (scenario.takes(&plain), scenario.limit(&plain));
            assert!(limit > takes, "{}", scenario.name);
            assert_eq!(
                scenario.limit(&patient),
                limit + Duration::from_secs(100),
                "{}",
                scenario.name
            );
        }
    }

    #[test]
    fn the_default_run_takes_seven_minutes_at_most() {
        let options = Options::parse_from(["x"]);
        let all: Duration = wanted(&options)
            .map(|scenario| scenario.takes(&options))
            .sum();
        assert!(all <= Duration::from_secs(420), "{all:?}");
    }
}
