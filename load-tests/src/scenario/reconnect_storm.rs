//! All streams are lost at the same time: all clients reconnect with `Last-Event-ID` while events are being published.
//!
//! ```text
//! everybody has a stream ── calls ──┬─ sockets closed, or left open ── everybody back ──┬── everybody has everything?
//!                                   └─ calls on their schedule, an event every 100 ms ──┘
//! ```

mod found;
mod queue;
mod wave;

use std::time::{Duration, Instant};

use super::{Run, Scenario};
use crate::options::Options;
use crate::report::Section;
use crate::servers::gateway::{Gateway, Layout};
use crate::streams::{Crowd, Publisher};
use wave::{Wave, Way};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "reconnect_storm",
    question: "Thousands of `GET` streams are lost at once, and their clients come back at once, each with its `Last-Event-ID`, \
               while events go on being published: how long until the last one is back, has every stream every event exactly \
               once and in order, is anybody refused, what does it cost, and what do calls on other connections feel of it? \
               The sockets are closed first, or left open as by a client whose network has changed.",
    default: true,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Numbers of streams. The first suffices for most gateways; the second is the maximum for a process on this machine.
const STREAMS: usize = 5_000;
const MANY: usize = 19_000;

/// Factor of the expected time of all waves after which no further wave begins.
const SLOWNESS: u32 = 2;

fn takes(options: &Options) -> Duration {
    // Opening, closing and waiting for the last events, with the calls before and during each wave.
    let waves = 2 * u32::try_from(options.repetitions).unwrap_or(u32::MAX) + 1;
    Duration::from_secs(18) + (options.measured() * 2 + Duration::from_secs(1)) * waves
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let options = run.options;
    let start = Instant::now();
    let gateway = Gateway::with_tools(options, Layout::Separate).await?;
    let mut publisher = Publisher::open(gateway.envelope()).await?;
    let mut crowd = Crowd::new(gateway.envelope())?;
    let waves = [Way::Closed, Way::LeftOpen].repeat(options.repetitions);
    let waves = waves.into_iter().map(|way| (STREAMS, way));
    // With the sockets left open, the old and the new ones would exceed the limit of a process.
    let mut waves = waves.chain([(MANY, Way::Closed)]);
    let mut found = Vec::new();
    while start.elapsed() < takes(options) * SLOWNESS
        && let Some((streams, way)) = waves.next()
    {
        if crowd.open() < streams {
            run.progress(&format!("{streams} streams"));
            crowd.sign_up(streams).await?;
            crowd.open_up_to(streams, gateway.address).await?;
        }
        let wave = Wave::run(options, &gateway, &mut publisher, &mut crowd, way).await?;
        run.progress(&wave.shown());
        run.disturbed_by(wave.before.other_cores);
        found.push(wave);
    }
    let mut section = found::section(&found);
    for (streams, way) in waves {
        let name = way.name(streams);
        section.miss(format!("a wave of {name}: the machine is too slow"));
    }
    Ok(section)
}
