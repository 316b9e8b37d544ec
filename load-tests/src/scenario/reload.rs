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
mod found;
mod worker_start;

use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Run, Scenario};
use crate::load::open::{Open, OpenSample};
use crate::options::Options;
use crate::processes::Queued;
use crate::report::table::cell;
use crate::report::{Numbers, Section};

use fleet::Fleet;
use found::{NOTHING_CHANGED, ONE_CHANGED, TOOK, UNDER_LOAD, WATCHED, WITH, WITHOUT};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "reload",
    question: "Does anybody notice when one of 200 namespaces changes its code? 190 are stdio servers, 10 are folders of Python tools; \
        while calls come to several of them at a fixed rate, one folder gets new code and `POST /reload` is asked: how long is its \
        answer, how many calls fail (none may), what happens to latency, which other processes are replaced (none may be)? Apart \
        from that: how long from a new folder of tools to its first call?",
    default: true,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Number of reloads of each kind without concurrent calls.
const QUIET_RELOADS: usize = 3;
/// Rates of calls per second to namespaces that do not change, and to the one that does.
const CALLS: [(&str, f64); 2] = [("others", 600.0), ("the one that changes", 100.0)];
/// Minimum length of a window with a reload, so that it covers the end of the old worker, too.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// Time for the worker starts, the start of all processes, and the reloads without calls.
const STARTS: Duration = Duration::from_secs(14);

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

fn takes(options: &Options) -> Duration {
    let changes = u32::try_from(changes(options)).unwrap_or(u32::MAX);
    let each = options.warm_up() + window(options) * 2 + Duration::from_millis(500);
    STARTS + each * changes
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let mut section = Section::default();
    if let Err(error) = worker_start::measure(run, &mut section).await {
        section.fail(format!("worker start: {error:#}"));
    }
    let start = Instant::now();
    let mut fleet = Fleet::start(run.options).await?;
    run.progress(&format!(
        "{} namespaces with {} processes after {:.1} s",
        fleet::NAMESPACES,
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
    if started != fleet.stdio() as f64 {
        let stdio = fleet.stdio();
        section.fail(format!(
            "{started} processes were started for {stdio} stdio servers"
        ));
    }
    found::tell(&mut section);
    Ok(section)
}

/// Measures reloads without concurrent calls.
async fn quiet(run: &mut Run<'_>, fleet: &mut Fleet, section: &mut Section) -> anyhow::Result<()> {
    let reloads = if run.options.quick { 1 } else { QUIET_RELOADS };
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
    let open = Calls::start(fleet).await?;
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
        for (at, (who, per_second)) in CALLS.into_iter().enumerate() {
            for (when, (samples, queued_ms)) in [(WITHOUT, &without), (WITH, &with)] {
                let (sample, per_second) = (&samples[at], per_second.to_string());
                run.progress(&format!(
                    "change {change}, {who} {when} a reload: {}",
                    sample.shown()
                ));
                if when == WITHOUT {
                    // The start of the new worker appears as other work.
                    run.disturbed_by(sample.other_cores);
                }
                if let Some(fault) = sample.fault() {
                    section.fail(format!("calls of {who} {when} a reload: {fault}"));
                }
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
    async fn start(fleet: &Fleet) -> anyhow::Result<Self> {
        Ok(Self {
            others: Open::start(fleet.load_on_others(CALLS[0].1).await?).await?,
            changing: Open::start(fleet.load_on_changing(CALLS[1].1)).await?,
            gateway: fleet.gateway.id(),
            workers: fleet.workers_called()?,
        })
    }

    /// Measures both loads while `work` runs, in the order of [`CALLS`], and the milliseconds per second for which the
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
