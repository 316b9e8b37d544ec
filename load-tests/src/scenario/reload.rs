//! Changes while others work: one of 200 namespaces changes its code, and the others should not notice.
//!
//! ```text
//! one namespace:   a new folder ── POST /reload ── its answer ── the first call          (worker start, several times)
//! 200 namespaces:  POST /reload with nothing changed; with one changed; nobody calls     (several times)
//!                  calls of others and of the one that changes ─┬─ a window without a reload
//!                                                               └─ a window with one     (several times)
//! ```
//!
//! After each change it must be the new code that answers, and no other process may have been replaced.

mod fleet;
mod results;
mod worker_start;

use std::time::Duration;

use anyhow::ensure;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Run, Scenario};
use crate::load::open::{Open, OpenSample};
use crate::options::Options;
use crate::processes::Queued;
use crate::report::Section;

use fleet::Fleet;
use results::{Found, Situation, Who};

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

/// Reloads nobody calls during, of either kind.
const QUIET_RELOADS: usize = 3;
/// Calls a second to namespaces that do not change.
const OTHERS_PER_SECOND: f64 = 600.0;
/// Calls a second to the one that does.
const CHANGING_PER_SECOND: f64 = 100.0;
/// A window with a reload in it lasts so long at least, so that it covers the end of the old worker, too.
const WINDOW_MIN: Duration = Duration::from_secs(1);

/// For the worker starts, the start of all processes, and the reloads nobody calls during.
const STARTS: Duration = Duration::from_secs(14);

/// Reloads under load.
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
    let mut found = Found::default();
    match worker_start::measure(run).await {
        Ok(starts) => found.worker_start = Some(starts),
        Err(error) => found.fail(format!("worker start: {error:#}")),
    }
    let start = Instant::now();
    let mut fleet = Fleet::start(run.options).await?;
    run.progress(&format!(
        "{} namespaces with {} processes after {:.1} s",
        fleet.namespaces(),
        fleet.processes(),
        start.elapsed().as_secs_f64()
    ));
    found.namespaces = fleet.namespaces();
    if let Err(error) = quiet(run, &mut fleet, &mut found).await {
        found.fail(format!("while nobody calls: {error:#}"));
    }
    if let Err(error) = under_load(run, &mut fleet, &mut found).await {
        found.fail(format!("under load: {error:#}"));
    }
    let started = fleet.servers_started().await?;
    if started != fleet.stdio() as f64 {
        let stdio = fleet.stdio();
        found.fail(format!(
            "{started} processes were started for {stdio} stdio servers"
        ));
    }
    Ok(found.section())
}

/// Reloads while nobody calls.
async fn quiet(run: &mut Run<'_>, fleet: &mut Fleet, found: &mut Found) -> anyhow::Result<()> {
    let reloads = if run.options.quick { 1 } else { QUIET_RELOADS };
    for _ in 0..reloads {
        let (ms, report) = fleet.reload().await?;
        ensure!(
            report.restarted.is_empty() && report.failed.is_empty(),
            "nothing had changed, and the reload answered {report:?}"
        );
        found.reload(Situation::NothingChanged, ms);
    }
    for _ in 0..reloads {
        let ms = fleet.change().await?;
        found.reload(Situation::OneChanged, ms);
    }
    fleet.is_otherwise_untouched()?;
    run.progress(&format!("reloads nobody calls during: {}", found.shown()));
    Ok(())
}

async fn under_load(run: &mut Run<'_>, fleet: &mut Fleet, found: &mut Found) -> anyhow::Result<()> {
    let (options, window) = (run.options, window(run.options));
    let calls = Calls::start(fleet).await?;
    for change in 1..=changes(options) {
        sleep(options.warm_up()).await;
        let ((), without) = calls.during(sleep(window)).await?;
        let ends = Instant::now() + window;
        let work = async {
            let ms = fleet.change().await;
            sleep_until(ends).await;
            ms
        };
        let (ms, with) = calls.during(work).await?;
        for (during, (samples, queued_ms)) in [(false, without), (true, with)] {
            for (who, sample) in Who::ALL.into_iter().zip(samples) {
                run.progress(&shown(change, who, during, &sample));
                if !during {
                    // The new worker's start looks like other work.
                    run.disturbed_by(sample.other_cores);
                }
                found.window(who, during, sample, queued_ms);
            }
        }
        let ms = ms?;
        run.progress(&format!("change {change}: answered after {ms:.0} ms"));
        found.reload(Situation::OneChangedUnderLoad, ms);
        // The search for processes takes the client's time, which the next warm-up makes up for.
        fleet.is_otherwise_untouched()?;
    }
    Ok(())
}

/// Calls that come all the time, to those that do not change and to the one that does.
struct Calls {
    others: Open,
    changing: Open,
    gateway: u32,
    workers: Vec<u32>,
}

impl Calls {
    async fn start(fleet: &Fleet) -> anyhow::Result<Self> {
        Ok(Self {
            others: Open::start(fleet.load_on_others(OTHERS_PER_SECOND).await?).await?,
            changing: Open::start(fleet.load_on_changing(CHANGING_PER_SECOND)).await?,
            gateway: fleet.gateway.id(),
            workers: fleet.workers_called()?,
        })
    }

    /// Watches both as long as something else takes, in the order of [`Who::ALL`], and how many milliseconds in each
    /// second the gateway's threads waited for a core.
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

fn shown(change: usize, who: Who, during: bool, sample: &OpenSample) -> String {
    let when = if during { "with a reload" } else { "without" };
    format!("change {change}, {} {when}: {}", who.name(), sample.shown())
}
