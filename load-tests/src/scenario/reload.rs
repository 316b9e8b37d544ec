//! Reloads under load: one of 200 namespaces changes its code, and the others should not notice.
//!
//! ```text
//! one namespace:   a new folder ── POST /reload ── its answer ── the first call          (worker start, several times)
//! 200 namespaces:  POST /reload with nothing changed; with one changed; nobody calls     (several times)
//!                  calls of others and of the one that changes ─┬─ a window without a reload
//!                                                               └─ a window with one     (several times)
//! ```
//!
//! After each change the new code must answer, and no other process may have been replaced.

mod fleet;
mod worker_start;

use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, sleep, sleep_until};

use super::Run;
use crate::load::open::{Open, OpenSample};
use crate::options::Options;
use crate::processes::Queued;
use crate::report::table::cell;
use crate::report::{Numbers, Row, Section};

use fleet::Fleet;
/// Series of milliseconds from the request to reload, and its rows.
const TOOK: &str = "from POST /reload";
const TO_ANSWER: &str = "a new folder to the answer";
const TO_FIRST_CALL: &str = "a new folder to its first call";
const NOTHING_CHANGED: &str = "none of 200 changed";
const ONE_CHANGED: &str = "one of 200 changed, nobody calls";
const UNDER_LOAD: &str = "one of 200 changed, under load";
/// Series of calls, with a row for each target, with and without a reload.
const WATCHED: &str = "calls";
const OTHERS: &str = "others";
const CHANGING: &str = "the one that changes";
const WITH: &str = "with";
const WITHOUT: &str = "without";

/// Minimum length of a window with a reload, so that it covers the end of the old worker, too.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Number of reloads under load.
fn changes(options: &Options) -> usize {
    if options.quick {
        1
    } else {
        options.repetitions + 2
    }
}

fn window(options: &Options) -> Duration {
    options.measured().max(WINDOW_MIN)
}

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let mut section = Section::default();
    if let Err(error) = worker_start::measure(run, &mut section).await {
        section.fail(format!("worker start: {error:#}"));
    }
    let start = Instant::now();
    let (python, stdio) = (run.count("python")?, run.count("stdio")?);
    let mut fleet = Fleet::start(run.options, python, stdio).await?;
    run.progress(&format!(
        "{} namespaces with {} processes after {:.1} s",
        python + stdio,
        fleet.processes(),
        start.elapsed().as_secs_f64()
    ));
    if let Err(error) = quiet(run, &mut fleet, &mut section).await {
        section.fail(format!("while nobody calls: {error:#}"));
    }
    if let Err(error) = under_load(run, &mut fleet, &mut section).await {
        section.fail(format!("under load: {error:#}"));
    }
    let started = fleet.servers_started().await?;
    if started != stdio as f64 {
        section.fail(format!(
            "{started} processes were started for {stdio} stdio servers"
        ));
    }
    let took = section.of(TOOK);
    let changes = [ONE_CHANGED, UNDER_LOAD].map(|name| took.row(&[name]).map_or(0, Row::times));
    let changes: usize = changes.iter().sum();
    if changes > 0 && section.failures.is_empty() {
        section.note(format!(
            "After each of {changes} changes the new code answered the first call, and every other process was the one it had \
             been."
        ));
    }
    Ok(section)
}

/// Measures reloads without concurrent calls.
async fn quiet(run: &mut Run<'_>, fleet: &mut Fleet, section: &mut Section) -> anyhow::Result<()> {
    let reloads = if run.options.quick {
        1
    } else {
        run.count("quiet_reloads")?
    };
    for _ in 0..reloads {
        let (ms, report) = fleet.reload().await?;
        ensure!(
            report.restarted.is_empty() && report.failed.is_empty(),
            "nothing had changed, and the reload answered {report:?}"
        );
        section.add(TOOK, [NOTHING_CHANGED], Numbers::one("ms", ms));
    }
    for _ in 0..reloads {
        let ms = fleet.change().await?;
        section.add(TOOK, [ONE_CHANGED], Numbers::one("ms", ms));
    }
    fleet.is_otherwise_untouched()?;
    run.progress(&format!(
        "reloads nobody calls during: nothing changed {} ms, one changed {} ms",
        cell(section.of(TOOK).median(&[NOTHING_CHANGED], "ms"), 0),
        cell(section.of(TOOK).median(&[ONE_CHANGED], "ms"), 0)
    ));
    Ok(())
}

async fn under_load(
    run: &mut Run<'_>,
    fleet: &mut Fleet,
    section: &mut Section,
) -> anyhow::Result<()> {
    let (options, window) = (run.options, window(run.options));
    let rates = [
        (OTHERS, run.rate("others_per_second")?),
        (CHANGING, run.rate("changing_per_second")?),
    ];
    let open = Calls::start(fleet, rates.map(|(_, rate)| rate)).await?;
    for change in 1..=changes(options) {
        sleep(options.warm_up()).await;
        let ((), without) = open.during(sleep(window)).await?;
        let ends = Instant::now() + window;
        let work = async {
            let ms = fleet.change().await;
            sleep_until(ends).await;
            ms
        };
        let (ms, with) = open.during(work).await?;
        for (at, (who, per_second)) in rates.into_iter().enumerate() {
            for (when, (samples, queued_ms)) in [(WITHOUT, &without), (WITH, &with)] {
                let (sample, per_second) = (&samples[at], per_second.to_string());
                if when == WITHOUT {
                    // The start of the new worker appears as other work.
                    run.disturbed_by(sample.other_cores);
                }
                run.told(section, &format!("calls of {who} {when} a reload"), sample);
                let numbers = Numbers::of(sample).with("queued_ms", *queued_ms);
                section.add(WATCHED, [who, &per_second, when], numbers);
            }
        }
        let ms = ms?;
        run.progress(&format!("change {change}: answered after {ms:.0} ms"));
        section.add(TOOK, [UNDER_LOAD], Numbers::one("ms", ms));
        // Finding the processes takes the client's time; the next warm-up compensates for that.
        fleet.is_otherwise_untouched()?;
    }
    Ok(())
}

/// Calls that run continuously, to namespaces that do not change and to the one that does.
struct Calls {
    others: Open,
    changing: Open,
    gateway: u32,
    workers: Vec<u32>,
}

impl Calls {
    async fn start(fleet: &Fleet, [others, changing]: [f64; 2]) -> anyhow::Result<Self> {
        Ok(Self {
            others: Open::start(fleet.load_on_others(others).await?).await?,
            changing: Open::start(fleet.load_on_changing(changing)).await?,
            gateway: fleet.gateway.id(),
            workers: fleet.workers_called()?,
        })
    }

    /// Measures both loads while `work` runs, those of others first, and the milliseconds per second for which the
    /// gateway's threads waited for a core.
    async fn during<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> anyhow::Result<(T, ([OpenSample; 2], f64))> {
        let queued = Queued::since_now(self.gateway);
        let front = [self.gateway];
        let inner = self.changing.during(&front, &self.workers, work);
        let (inner, others) = self.others.during(&front, &self.workers, inner).await?;
        let (outcome, changing) = inner?;
        Ok((outcome, ([others, changing], queued.ms_per_second())))
    }
}
