//! Work of the management tools during calls. It should not slow the calls, since child processes of lower priority do it.
//!
//! ```text
//! calls on a fixed schedule ─┬─ a window in which nothing else happens
//!                            └─ a window of clones, analyses, checks of code and installs      (several times)
//! ```

mod work;

use tokio::time::sleep;

use super::Run;
use crate::report::{Numbers, Section};
use crate::servers::free_address;
use crate::servers::gateway::{Gateway, Layout, NAMESPACE, Setup};
use crate::streams::calls_beside;

use work::{MANAGED, Work};

/// Duration of a window in multiples of the measured time. With the default of a second, a sample has the latencies of
/// 1,000 calls.
const SECONDS_OF_CALLS: u32 = 5;
/// Series of calls with and without concurrent work.
const CALLS: &str = "calls";
const WITHOUT: &str = "nothing";
const WITH: &str = "clone, analysis, build";
/// Series of the milliseconds of each step.
const TOOK: &str = "steps";

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
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
    let open = calls_beside(&gateway, run.rate("calls_per_second")?).await?;
    sleep(run.options.warm_up()).await;
    for repetition in run.repetitions() {
        section.repetition = repetition;
        let front = [gateway.id()];
        let lasts = run.options.measured() * SECONDS_OF_CALLS;
        let without = run.watch(&open, lasts, &front).await?;
        let (worked, with) = open.during(&front, &[], work.keep_on(lasts)).await?;
        let (after, pieces) = worked?;
        work = after;
        for (name, sample) in [(WITHOUT, &without), (WITH, &with)] {
            run.told(&mut section, &format!("calls beside {name}"), sample);
            section.add(CALLS, [name], Numbers::of(sample));
        }
        for (step, ms) in pieces.into_iter().flatten() {
            section.add(TOOK, [step], Numbers::one("ms", ms));
        }
    }
    Ok(section)
}
