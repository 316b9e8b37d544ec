//! Many idle event streams: what one costs in memory, how fast one event reaches all of them, and whether calls suffer.
//!
//! ```text
//! calls ── memory ── sessions ── memory ── a GET stream in each ── memory ── calls ── five events ── …
//!   … the same with more … ── closed ── memory ── calls ── the same streams through nginx ── memory ── five events
//! ```
//!
//! Calls are measured without streams before and after them, so that a machine that became slower meanwhile is seen.

mod held;
mod report;

use std::time::Duration;

use super::{Run, Scenario};
use crate::options::Options;
use crate::report::Section;
use crate::servers::gateway::{Gateway, Layout};
use crate::streams::{Crowd, Publisher};
use held::{Found, behind_nginx, calls, calls_take, held, settled};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "idle_sse",
    question: "5,000, then 19,000 `GET` streams are open (a process here may hold 20,000 descriptors), each in a session of its \
               own, and idle but for their keepalives: how much memory does one take, how long until one event is on the last of \
               them, do calls on other connections get slower, and what stays when all have closed? 5,000 are then held through \
               nginx (`proxy_pass`, unbuffered) in front.",
    default: true,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Streams held at once, in the order measured.
const COUNTS: [usize; 2] = [5_000, 19_000];
/// Behind nginx a stream takes two descriptors of one of its processes, and a port to the gateway: fewer than for 19,000.
const BEHIND_NGINX: usize = 5_000;

fn takes(options: &Options) -> Duration {
    let windows = u32::try_from(options.repetitions * (COUNTS.len() + 2)).unwrap_or(u32::MAX);
    Duration::from_secs(32) + calls_take(options) * windows
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let gateway = Gateway::with_tools(run.options, Layout::Separate).await?;
    let mut publisher = Publisher::open(gateway.envelope()).await?;
    let mut crowd = Crowd::new(gateway.envelope())?;
    let mut found = Found {
        before: calls(run, &gateway).await?,
        ..Found::default()
    };
    let empty = settled(&gateway).await?;
    for count in COUNTS {
        run.progress(&format!("{count} streams"));
        let earlier = found.direct.last();
        let held = held(run, &gateway, &mut publisher, &mut crowd, count, earlier).await?;
        run.progress(&held.shown());
        found.direct.push(held);
    }
    crowd.start_over().await;
    let after = settled(&gateway).await?;
    found.left(empty, after);
    found.after = calls(run, &gateway).await?;
    match crate::servers::nginx::program() {
        None => found.missing = Some("nginx is not installed: no streams behind it".to_owned()),
        Some(program) => {
            run.progress("the same behind nginx");
            let behind =
                behind_nginx(&program, &gateway, &mut publisher, &mut crowd, BEHIND_NGINX).await?;
            found.behind_nginx = Some(behind);
        }
    }
    Ok(report::section(&found))
}
