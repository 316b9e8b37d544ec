//! The results of a run: tables and verdicts for people, every sample as JSON, and the charts.

pub(crate) mod budget;
mod markdown;
mod publish;
mod section;
mod series;
mod show;
pub(crate) mod table;

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::options::Options;
use crate::quiet::QUIET_N_US;
use crate::scenario;

use budget::Verdict;

pub(crate) use publish::publish;
pub(crate) use section::Section;
pub(crate) use series::{Numbers, Row, median, spread};
pub(crate) use show::{Shown, Sizes};
pub(crate) use table::Table;

const JSON: &str = "report.json";
const MARKDOWN: &str = "report.md";

/// All results of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The command line without paths, which are specific to one machine.
    pub(crate) command: String,
    /// The gateway's name and version.
    pub(crate) gateway: String,
    /// The day, and the commit from which this program was built, if git is available.
    #[serde(default)]
    pub(crate) when: String,
    pub(crate) machine: Machine,
    pub(crate) seconds: f64,
    pub(crate) repetitions: usize,
    pub(crate) connections: usize,
    /// True if the run only checked that everything works, without measuring costs.
    pub(crate) quick: bool,
    /// Programs that no scenario could compare with, and the reasons.
    pub(crate) missing: Vec<String>,
    /// The reason why the run ended early; `None` if it did not.
    pub(crate) cut_short: Option<String>,
    pub(crate) sections: Vec<Answered>,
}

/// The result of a scenario that ran.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answered {
    pub(crate) name: String,
    pub(crate) question: String,
    /// Duration of the scenario in seconds.
    pub(crate) seconds: f64,
    /// Cores that were busy with other work during each sample.
    pub(crate) other_cores: Vec<f64>,
    /// Each measured **n** of the scenario, in microseconds; empty without nginx.
    #[serde(default)]
    pub(crate) n_us: Vec<f64>,
    #[serde(flatten)]
    pub(crate) section: Section,
}

impl Answered {
    /// The median CPU time of a request to nginx, in microseconds.
    fn n(&self) -> Option<f64> {
        median(self.n_us.iter().copied())
    }

    /// Returns true if the machine was quiet enough for times and ratios to be conclusive.
    fn was_quiet(&self) -> bool {
        self.n().is_none_or(|n| n <= QUIET_N_US)
    }

    /// Marks verdicts that cannot be judged because the machine was not quiet.
    pub(crate) fn judged(mut self) -> Self {
        if !self.was_quiet() {
            let verdicts = self.section.verdicts.into_iter();
            self.section.verdicts = verdicts.map(Verdict::on_a_noisy_machine).collect();
        }
        self
    }
}

impl Report {
    pub(crate) fn new(options: &Options, machine: Machine) -> anyhow::Result<Self> {
        Ok(Self {
            command: options.command(),
            gateway: options.gateway_version()?,
            when: options.when(),
            machine,
            seconds: options.seconds,
            repetitions: options.repetitions,
            connections: options.connections,
            quick: options.quick,
            missing: Vec::new(),
            cut_short: None,
            sections: Vec::new(),
        })
    }

    /// Returns true if the run was completed and no scenario reported a failure.
    pub(crate) fn is_whole(&self) -> bool {
        let mut sections = self.sections.iter();
        self.cut_short.is_none() && sections.all(|answered| answered.section.failures.is_empty())
    }

    /// Returns true if all default scenarios ran.
    fn ran_all(&self) -> bool {
        let has = |name: &str| self.sections.iter().any(|answered| answered.name == name);
        let mut defaults = scenario::PLAN
            .scenarios
            .iter()
            .filter(|scenario| scenario.default);
        defaults.all(|scenario| has(&scenario.name))
    }

    /// Prints the report, and writes it with its charts to the folder in the options.
    pub(crate) fn write(&self, options: &Options) -> anyhow::Result<()> {
        println!("{}", markdown::whole(self, false));
        let folder = options.out()?;
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let json = serde_json::to_string_pretty(self).context("the report as JSON")? + "\n";
        write(&folder.join(JSON), &json)?;
        if let Some(file) = &options.json {
            write(file, &json)?;
        }
        self.write_charts(&folder)?;
        write(&folder.join(MARKDOWN), &markdown::whole(self, true))?;
        eprintln!("report and charts: {}", folder.display());
        Ok(())
    }

    fn write_charts(&self, folder: &Path) -> anyhow::Result<()> {
        let sections = self.sections.iter().map(|answered| &answered.section);
        for chart in sections.flat_map(|section| &section.charts) {
            write(&folder.join(format!("{}.svg", chart.file)), &chart.svg()?)?;
        }
        Ok(())
    }

    /// Reads the report that a run has written to a folder.
    fn read(folder: &Path) -> anyhow::Result<Self> {
        let file = folder.join(JSON);
        let context = || format!("{}: measure first", file.display());
        let text = fs::read_to_string(&file).with_context(context)?;
        serde_json::from_str(&text).with_context(context)
    }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

/// Formats a duration as `M:SS`.
pub(crate) fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::budget::Outcome;
    use super::*;
    use crate::chart::Chart;

    pub(super) fn report(sections: Vec<Answered>) -> Report {
        Report {
            command: "tooldock-load".to_owned(),
            gateway: "tooldock 1.2.3".to_owned(),
            when: "2026-01-02".to_owned(),
            machine: Machine::here(),
            seconds: 1.0,
            repetitions: 3,
            connections: 32,
            quick: false,
            missing: Vec::new(),
            cut_short: None,
            sections,
        }
    }

    pub(super) fn answered(name: &str, section: Section) -> Answered {
        Answered {
            name: name.to_owned(),
            question: "What?".to_owned(),
            seconds: 61.0,
            other_cores: Vec::new(),
            n_us: Vec::new(),
            section,
        }
    }

    pub(super) fn chart(file: &str) -> Chart {
        Chart::new(
            file,
            "How much",
            "us",
            crate::chart::Across::Seconds,
            Vec::new(),
        )
    }

    #[test]
    fn a_report_reads_back_what_was_written_and_has_its_charts_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut section = Section {
            charts: vec![chart("refuse")],
            verdicts: vec![budget::tests::budget("`ping`").verdict(Some(2.0))],
            ..Section::default()
        };
        let numbers = Numbers::of(&serde_json::json!({"us": 1.5, "curve": [[50.0, 1.0]]}));
        section.add("calls", ["a"], numbers);
        let written = report(vec![answered("refuse", section)]);
        let out = folder.path().join("out");
        let options = Options::parse_from(["x", "--out", out.to_str().unwrap()]);
        written.write(&options).unwrap();
        let read = Report::read(&out).unwrap();
        let (read, written) = (&read.sections[0].section, &written.sections[0].section);
        assert_eq!(read.charts, written.charts);
        assert_eq!(read.verdicts, written.verdicts);
        assert_eq!(read.series, written.series);
        let markdown = fs::read_to_string(out.join(MARKDOWN)).unwrap();
        assert!(markdown.contains("(refuse.svg)") && out.join("refuse.svg").is_file());
    }

    #[test]
    fn a_scenario_with_n_above_that_of_a_quiet_machine_is_not_judged() {
        let judged = |n_us: &[f64]| {
            let section = Section {
                verdicts: vec![budget::tests::budget("`ping`").verdict(Some(1.0))],
                ..Section::default()
            };
            let n_us = n_us.to_vec();
            let measured = Answered {
                n_us,
                ..answered("refuse", section)
            };
            measured.judged().section.verdicts[0].outcome
        };
        assert_eq!(judged(&[7.0, 11.0, 30.0]), Outcome::GoalReached);
        assert_eq!(judged(&[7.0, 11.1, 30.0]), Outcome::NotJudged);
        assert_eq!(judged(&[]), Outcome::GoalReached, "no nginx");
    }

    #[test]
    fn a_failure_anywhere_makes_it_less_than_whole() {
        let failed = Section {
            failures: vec!["status 503".to_owned()],
            ..Section::default()
        };
        let fine = answered("refuse", Section::default());
        assert!(report(vec![fine]).is_whole());
        assert!(!report(vec![answered("refuse", failed)]).is_whole());
        let mut interrupted = report(Vec::new());
        interrupted.cut_short = Some("interrupted".to_owned());
        assert!(!interrupted.is_whole());
        assert!(markdown::whole(&interrupted, false).contains("CUT SHORT: interrupted"));
    }

    #[test]
    fn minutes_have_two_digits_of_seconds() {
        assert_eq!(minutes(Duration::from_secs(65)), "1:05");
        assert_eq!(minutes(Duration::from_millis(9_900)), "0:09");
    }
}
