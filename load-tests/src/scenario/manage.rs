//! Work of the management tools during calls. It should not slow the calls, since child processes of lower priority do it.
//!
//! ```text
//! calls on a fixed schedule ─┬─ a window in which nothing else happens
//!                            └─ a window of clones, analyses, checks of code and installs      (several times)
//! ```

mod work;

use std::time::Duration;

use tokio::time::sleep;

use super::{Run, Scenario};
use crate::chart::Chart;
use crate::load::open::OpenSample;
use crate::options::Options;
use crate::report::budget;
use crate::report::table::{figure, middle, most, sum, times};
use crate::report::{Numbers, Row, Section, Series, Table};
use crate::servers::free_address;
use crate::servers::gateway::{Gateway, Layout, NAMESPACE, Setup};
use crate::streams::calls_beside;

use work::{MANAGED, STEPS, Work};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "manage",
    question: "Do calls notice that another namespace is managed meanwhile? Calls come at a fixed rate; beside them a repository is \
        cloned and analysed, and in another namespace code is checked and served, and a package is installed, again and again: what \
        happens to the latency of the calls (none may fail), and how long does each piece of work take?",
    default: false,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Rate of calls per second: so low that calls coincide with the work and not with each other.
const CALLS_PER_SECOND: f64 = 200.0;
/// Duration of a window in multiples of the measured time. With the default of a second, a sample has the latencies of
/// 1,000 calls.
const SECONDS_OF_CALLS: u32 = 5;
/// Time for the start, the preparation, and the first piece of work, which creates files that later pieces reuse.
const START: Duration = Duration::from_secs(30);
/// Time for the work that is still running at the end of a window.
const LAST_WORK: Duration = Duration::from_secs(5);

/// Series of calls with and without concurrent work.
const CALLS: &str = "calls";
const WITHOUT: &str = "nothing";
const WITH: &str = "clone, analysis, build";
/// Series of the milliseconds of each step.
const TOOK: &str = "steps";

fn window(options: &Options) -> Duration {
    options.measured() * SECONDS_OF_CALLS
}

fn takes(options: &Options) -> Duration {
    let repetitions = u32::try_from(options.repetitions).unwrap_or(u32::MAX);
    START + (window(options) * 2 + LAST_WORK) * repetitions
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let mut section = Section::default();
    let work = Work::prepare()?;
    let manager = free_address()?;
    let setup = Setup::new(Layout::Separate)
        .python(NAMESPACE)
        .python(MANAGED);
    let setup = work.setup(setup).manager(manager);
    let gateway = Gateway::start(run.options, &setup).await?;
    for namespace in [NAMESPACE, MANAGED] {
        gateway.has_worker(namespace).await?;
    }
    let mut work = work.on(gateway.envelope().at(manager));
    // Outside of any window: the first install creates files that later ones reuse.
    for (step, ms) in work.piece().await? {
        run.progress(&format!("the first {step}: {ms:.0} ms"));
    }
    let open = calls_beside(&gateway, CALLS_PER_SECOND).await?;
    sleep(run.options.warm_up()).await;
    for _ in 0..run.options.repetitions {
        let front = [gateway.id()];
        let lasts = window(run.options);
        let take = async || open.watch(lasts, &front, &[]).await;
        let without = run
            .patiently(|sample: &OpenSample| sample.other_cores, take)
            .await?;
        let (worked, with) = open.during(&front, &[], work.keep_on(lasts)).await?;
        let (after, pieces) = worked?;
        work = after;
        for (name, sample) in [(WITHOUT, &without), (WITH, &with)] {
            run.progress(&format!("beside {name}: {}", sample.shown()));
            if let Some(fault) = sample.fault() {
                section.fail(format!("calls beside {name}: {fault}"));
            }
            section.add(CALLS, [name], Numbers::of(sample));
        }
        for (step, ms) in pieces.into_iter().flatten() {
            section.add(TOOK, [step], Numbers::one("ms", ms));
        }
        section.repetition += 1;
    }
    tell(&mut section);
    Ok(section)
}

/// Ratio of the p99 of calls during work to that without work.
fn slower(calls: &Series, row: &Row) -> Option<f64> {
    let without = calls.median(&[WITHOUT], "p99_us")?;
    (row.name() == WITH).then_some(row.median("p99_us")? / without)
}

fn tell(section: &mut Section) {
    let (calls, took) = (section.of(CALLS), section.of(TOOK));
    let ratio = calls.row(&[WITH]).and_then(|row| slower(calls, row));
    let of_calls = [
        sum("calls", &["due"]),
        sum("failed", &["wrong", "unanswered"]),
        middle("p50 us", "p50_us", 0),
        middle("p99 us", "p99_us", 0),
        figure("p99 to that without", 2, |row| slower(calls, row)),
        most("worst us", "max_us", 0),
        sum("late", &["late"]),
    ];
    let of_steps = [times("times"), middle("ms", "ms", 0), most("most", "ms", 0)];
    let tables = vec![
        Table::of(&calls.rows, &["beside"], of_calls)
            .captioned("Tool calls on a fixed schedule, and what happens beside them"),
        Table::of(&took.rows, &["management tool"], of_steps)
            .captioned("What each step of the work takes beside the calls"),
    ];
    let latency = calls
        .curves("curve")
        .map(|(name, curve)| (format!("beside {name}"), curve));
    let charts = vec![Chart::new("manage", "Calls beside management", "us").percentiles(latency)];
    let verdicts = vec![budget::CALLS_BESIDE_MANAGEMENT.verdict(ratio)];
    (section.tables, section.charts, section.verdicts) = (tables, charts, verdicts);
    section.note(format!(
        "One piece of work is {}, one after the other.",
        STEPS.join(", ")
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_beside_work_are_compared_with_those_without() {
        let mut section = Section::default();
        for (name, p99) in [(WITHOUT, 1000.0), (WITH, 1150.0)] {
            section.add(CALLS, [name], Numbers::one("p99_us", p99));
        }
        section.add(TOOK, [STEPS[0]], Numbers::one("ms", 300.0));
        tell(&mut section);
        let verdict = budget::CALLS_BESIDE_MANAGEMENT.verdict(Some(1.15));
        assert_eq!(section.verdicts, [verdict]);
        assert_eq!(section.tables[1].rows.len(), 1);
    }
}
