//! The scenarios: each asks one question and answers it with tables, charts and verdicts.
//!
//! A scenario is a file in this folder, with a subfolder if it needs more files. It defines a `SCENARIO` for the table below.
//! It starts the servers that it needs, measures through [`load`](crate::load), and returns a [`Section`]; no other module
//! refers to it.

pub(crate) mod run;

mod idle_sse;
mod manage;
mod reconnect_storm;
mod refuse;
mod reload;
mod remote;
mod replicas;
mod sessions;
mod soak;
mod stores;
mod tools_call;
mod upgrade;

use std::pin::Pin;
use std::time::Duration;

use crate::options::Options;
use crate::report::Section;

pub(crate) use run::Run;

/// A question, and the function that answers it.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    /// One paragraph of Markdown.
    pub(crate) question: &'static str,
    /// True if the scenario runs when no scenario is named.
    pub(crate) default: bool,
    /// Expected duration with these options on a machine without other work. The scenario is aborted after a multiple of it,
    /// see [`Scenario::limit`].
    pub(crate) takes: fn(&Options) -> Duration,
    /// The function: `run: |run| Box::pin(measure(run))`. It returns an error for faults that make the rest pointless, such as
    /// a gateway that does not start; wrong responses and missing measurements are recorded in the section.
    pub(crate) run: for<'r> fn(&'r mut Run<'_>) -> Answering<'r>,
}

pub(crate) type Answering<'r> = Pin<Box<dyn Future<Output = anyhow::Result<Section>> + 'r>>;

/// All scenarios, in the order in which they run and are reported.
pub(crate) const ALL: [&Scenario; 12] = [
    &tools_call::SCENARIO,
    &remote::SCENARIO,
    &refuse::SCENARIO,
    &idle_sse::SCENARIO,
    &reconnect_storm::SCENARIO,
    &sessions::SCENARIO,
    &reload::SCENARIO,
    &manage::SCENARIO,
    &stores::SCENARIO,
    &replicas::SCENARIO,
    &upgrade::SCENARIO,
    &soak::SCENARIO,
];

/// Factor by which a slow or busy machine may exceed the expected duration.
const SLOWNESS: u32 = 3;
/// Time for starts and stops, whatever the options.
const START: Duration = Duration::from_secs(60);

impl Scenario {
    /// Time limit of the scenario.
    pub(crate) fn limit(&self, options: &Options) -> Duration {
        (self.takes)(options) * SLOWNESS + START + options.patience()
    }
}

/// The scenarios that the options select.
pub(crate) fn wanted(options: &Options) -> impl Iterator<Item = &'static Scenario> {
    let named = |scenario: &Scenario| options.only.iter().any(|name| name == scenario.name);
    let none_named = options.only.is_empty();
    ALL.into_iter()
        .filter(move |scenario| (none_named && scenario.default) || named(scenario))
}

pub(crate) fn is_name(name: &str) -> bool {
    ALL.iter().any(|scenario| scenario.name == name)
}

/// Lists the scenarios for the help text.
pub(crate) fn names_help() -> String {
    let mut text = String::from("Scenarios:\n");
    for scenario in ALL {
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

    fn names(arguments: &[&str]) -> Vec<&'static str> {
        let options = Options::parse_from(["x"].iter().chain(arguments));
        wanted(&options).map(|scenario| scenario.name).collect()
    }

    #[test]
    fn names_are_unique_and_in_the_help() {
        let unique: std::collections::BTreeSet<_> =
            ALL.iter().map(|scenario| scenario.name).collect();
        assert_eq!(unique.len(), ALL.len());
        assert!(unique.iter().all(|name| names_help().contains(name)));
    }

    #[test]
    fn scenarios_that_take_long_run_only_when_they_are_named() {
        let named = ["soak", "remote", "manage", "stores", "replicas", "upgrade"];
        assert_eq!(names(&[]).len(), ALL.len() - named.len());
        assert!(!named.iter().any(|name| names(&[]).contains(name)));
        // In the order of the table, whatever the order of the names.
        let some = names(&["--scenario", "soak", "--only", "refuse"]);
        assert_eq!(some, ["refuse", "soak"]);
    }

    #[test]
    fn a_scenario_is_given_more_time_than_it_takes_and_more_with_patience() {
        let plain = Options::parse_from(["x"]);
        let patient = Options::parse_from(["x", "--patience", "100"]);
        for scenario in ALL {
            let (takes, limit) = ((scenario.takes)(&plain), scenario.limit(&plain));
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
            .map(|scenario| (scenario.takes)(&options))
            .sum();
        assert!(all <= Duration::from_secs(420), "{all:?}");
    }
}
