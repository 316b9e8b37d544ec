//! The run: executes the scenarios one after another, each with a separate time limit.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::time::timeout;

use crate::options::Options;
use crate::report::{Answered, Report, Section, minutes};
use crate::scenario::{self, Run, Scenario};
use crate::servers::nginx::{self, Task};

/// Time for starts and stops around the scenarios.
const OVERHEAD: Duration = Duration::from_secs(60);
/// Time to make the base environment of the Python workers, if it is missing.
const FIRST_TIME: Duration = Duration::from_secs(600);

/// Time limit of the complete run.
pub(crate) fn deadline(options: &Options) -> Duration {
    let scenarios: Duration = scenario::wanted(options)
        .map(|scenario| limit(scenario, options))
        .sum();
    scenarios + OVERHEAD
}

/// Time limit of a scenario.
fn limit(scenario: &Scenario, options: &Options) -> Duration {
    let is_prepared = options.python_base_env().is_ok_and(|base| base.exists());
    let first_time = if is_prepared {
        Duration::ZERO
    } else {
        FIRST_TIME
    };
    scenario.limit(options) + first_time
}

/// Runs all scenarios that the options select, and adds their sections to the report. The failure of a scenario is recorded in
/// the report, and the run continues.
pub(crate) async fn run(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let nginx = nginx::start(Task::Fixed, options.connections).await?;
    if nginx.is_none() {
        let missing = "nginx is not installed: no ratios (apt-get install nginx-light)";
        report.missing.push(missing.to_owned());
    }
    let takes = |scenario: &Scenario| scenario.takes(options);
    let mut left: Duration = scenario::wanted(options).map(takes).sum();
    let mut run = Run::new(options, nginx);
    for scenario in scenario::wanted(options) {
        run.enter(scenario, left);
        left = left.saturating_sub(takes(scenario));
        run.patience.wait_for_quiet().await?;
        let (start, limit) = (Instant::now(), limit(scenario, options));
        let answer = timeout(limit, scenario::runner(&scenario.name, &mut run))
            .await
            .with_context(|| format!("not done after {}", minutes(limit)))
            .flatten();
        let mut section = answer.unwrap_or_else(|error| Section {
            failures: vec![format!("{error:#}")],
            ..Section::default()
        });
        // A scenario without ratios to nginx has not measured yet how quiet the machine was.
        if run.references().is_empty()
            && let Err(error) = run.reference().await
        {
            section.failures.push(format!("nginx: {error:#}"));
        }
        scenario
            .shown
            .tell(&scenario.name, &scenario.sizes, &mut section);
        for failure in &section.failures {
            run.progress(&format!("FAILED: {failure}"));
        }
        let answered = Answered {
            name: scenario.name.clone(),
            question: scenario.question.clone(),
            seconds: start.elapsed().as_secs_f64(),
            other_cores: run.disturbances().to_vec(),
            n_us: run.references().to_vec(),
            section,
        };
        report.sections.push(answered.judged());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn the_run_has_more_time_than_its_scenarios_together() {
        let options = Options::parse_from(["x"]);
        let limits: Duration = scenario::wanted(&options)
            .map(|scenario| scenario.limit(&options))
            .sum();
        assert!(deadline(&options) > limits);
        let one = Options::parse_from(["x", "--scenario", "refuse"]);
        assert!(deadline(&one) < deadline(&options));
    }
}
