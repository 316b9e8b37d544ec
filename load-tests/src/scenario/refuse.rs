//! Refusals: the cost of a refusal, and the effect of an attack on admitted clients.
//!
//! ```text
//! per repetition:  nginx ── each kind of refusal at full speed, the 401 of a bare filter beside the gateway's
//!                  good calls: alone ── beside the same load on nginx ── beside an attack of each of two kinds
//! ```
//!
//! Client, gateway and attacker share the machine, so good calls are slower during an attack on any server. The gateway's part
//! is the difference to the same load on nginx, which does not serve the good calls.

mod attack;
mod found;
mod kind;
mod same;

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::run::at_nginx;
use super::{Run, Scenario};
use crate::load::open::{Open, OpenLoad, OpenSample};
use crate::load::{self, Sample};
use crate::message::Expect;
use crate::options::Options;
use crate::processes::Queued;
use crate::report::{Numbers, Section};
use crate::servers::bare_filter::{self, BareFilter};
use crate::servers::gateway::{ASYNC_TOOL, Gateway, Layout, NAMESPACE, Setup, threads};
use crate::wire::Target;

use attack::Attack;
use found::{GOOD, REFUSALS};
use kind::{BARE_FILTER, KINDS, Kind, LIMITED_NAMESPACE, RATE_LIMITED, UNAUTHORIZED};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "refuse",
    question: "What does it cost to refuse a request (401 for a wrong token; 403 for a wrong host, origin or namespace; 429 for \
        a used-up limit), what would it cost with nothing but the HTTP library, and do those who may get in suffer from those who may not? Refusals are asked for at full speed; \
        then good calls come at a fixed rate, alone and beside an attack at full speed.",
    default: true,
    takes,
    run: |run| Box::pin(measure(run)),
};

/// Rate of good calls per second, which a Python worker answers with ease.
const GOOD_PER_SECOND: f64 = 1000.0;
/// Number of connections for the good calls.
const GOOD_CONNECTIONS: usize = 32;
/// Time by which an attack outlasts the window of good calls, so that it covers the window.
const LONGER: Duration = Duration::from_millis(200);

fn takes(options: &Options) -> Duration {
    let repetitions = u32::try_from(options.repetitions).unwrap_or(u32::MAX);
    let each = options.warm_up() + options.measured();
    let measurements = 1 + KINDS.len() + Beside::ALL.len();
    let measurements = u32::try_from(measurements).unwrap_or(u32::MAX);
    Duration::from_secs(4) + (each * measurements + LONGER * 4) * repetitions
}

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let options = run.options;
    let gateway = Gateway::start(options, &setup()).await?;
    gateway.has_worker(NAMESPACE).await?;
    let (mut section, mut kinds) = (Section::default(), KINDS.to_vec());
    let bare = match bare_filter::program() {
        Some(program) => Some(BareFilter::start(&program, threads()?).await?),
        None => {
            section.miss("a bare filter of the HTTP library: there is no release build of it beside this program (make load-binaries)");
            kinds.retain(|kind| *kind != BARE_FILTER);
            None
        }
    };
    if let Some(bare) = &bare
        && let Err(error) = same::check(gateway.address, bare.address).await
    {
        section.fail(format!(
            "the bare filter's 401 beside the gateway's: {error:#}"
        ));
    }
    for repetition in 1..=options.repetitions {
        section.repetition = repetition;
        let n_us = run.reference().await?.map(|sample| sample.cpu_us);
        for &kind in &kinds {
            let take = async || match &bare {
                Some(bare) if kind == BARE_FILTER => refused_barely(options, bare).await,
                _ => refused(options, &gateway, kind).await,
            };
            let name = kind.name();
            match run
                .patiently(|sample: &Sample| sample.other_cores, take)
                .await
            {
                Ok(sample) => {
                    run.progress(&format!("{name}: {}", sample.shown()));
                    let numbers = Numbers::of(&sample).with_ratio("cpu_n", "cpu_us", n_us);
                    section.add(REFUSALS, [name], numbers);
                }
                Err(error) => section.fail(format!("{name}: {error:#}")),
            }
        }
        // Reversed in each repetition, so that the gateway's 401 and the bare filter's come first in turn.
        kinds.reverse();
        let good = Good::start(&gateway).await?;
        for beside in Beside::ALL {
            if beside == Beside::Nginx && run.nginx.is_none() {
                continue;
            }
            let nginx = run
                .nginx
                .as_ref()
                .map(|nginx| (nginx.address, nginx.processes()));
            let take = async || good.watch(options, beside, nginx.clone()).await;
            let name = format!("good calls {}", beside.name());
            let other = |(sample, ..): &Watched| sample.other_cores;
            match run.patiently(other, take).await {
                Ok((sample, attack, queued_ms)) => {
                    run.progress(&format!("{name}: {}", sample.shown()));
                    if let Some(fault) = sample.fault() {
                        section.fail(format!("{name}: {fault}"));
                    }
                    let numbers = Numbers::of(&json!({"sample": sample, "attack": attack}));
                    section.add(GOOD, [beside.name()], numbers.with("queued_ms", queued_ms));
                }
                Err(error) => section.fail(format!("{name}: {error:#}")),
            }
        }
        run.progress(&format!(
            "repetition {repetition} of {} done",
            options.repetitions
        ));
    }
    found::tell(&mut section);
    Ok(section)
}

fn setup() -> Setup {
    Setup::new(Layout::Separate)
        .python(NAMESPACE)
        .empty(LIMITED_NAMESPACE)
}

/// Measures a closed loop of refusals, and checks that the gateway has counted them.
async fn refused(options: &Options, gateway: &Gateway, kind: Kind) -> anyhow::Result<Sample> {
    let before = gateway.metric(&kind.counter()).await?.unwrap_or_default();
    let load = attack::load(options, gateway.address, gateway.id(), kind);
    let limit = options.warm_up() + options.measured();
    let (sample, faults) = load::tolerant(load).await?;
    kind.forgives(&faults, limit)?;
    let sample = sample?;
    let counted = gateway.metric(&kind.counter()).await?.unwrap_or_default() - before;
    ensure!(
        counted >= sample.requests as f64,
        "{} answers, of which the gateway counted {counted} as {}",
        sample.requests,
        kind.reason()
    );
    Ok(sample)
}

/// Measures the same load on the bare filter, which refuses all requests and counts none.
async fn refused_barely(options: &Options, bare: &BareFilter) -> anyhow::Result<Sample> {
    let load = attack::load(options, bare.address, bare.id(), UNAUTHORIZED);
    load::measure(load).await
}

/// The load that runs during good calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    /// The load runs against nginx: the machine is as busy, but the gateway is not attacked.
    Nginx,
    Refused(Kind),
}

impl Beside {
    const ALL: [Self; 4] = [
        Self::Nothing,
        Self::Nginx,
        Self::Refused(UNAUTHORIZED),
        Self::Refused(RATE_LIMITED),
    ];

    fn name(self) -> String {
        match self {
            Self::Nothing => "alone".to_owned(),
            Self::Nginx => "beside that load on nginx".to_owned(),
            Self::Refused(kind) => format!("beside {} at full speed", kind.status),
        }
    }
}

/// One window of good calls, the concurrent load, and the milliseconds per second for which the gateway's threads waited for a
/// core.
type Watched = (OpenSample, Option<Sample>, f64);

/// Good calls that run continuously.
struct Good<'a> {
    gateway: &'a Gateway,
    open: Open,
    worker: u32,
}

impl<'a> Good<'a> {
    async fn start(gateway: &'a Gateway) -> anyhow::Result<Self> {
        let open = Open::start(OpenLoad {
            target: Target::Http(gateway.address),
            requests: vec![gateway.envelope().call(ASYNC_TOOL); GOOD_CONNECTIONS],
            expect: Expect::ECHO,
            per_second: GOOD_PER_SECOND,
        })
        .await?;
        Ok(Self {
            gateway,
            open,
            worker: gateway.worker(NAMESPACE)?.0,
        })
    }

    /// Measures one window, and the concurrent load.
    async fn watch(
        &self,
        options: &Options,
        beside: Beside,
        nginx: Option<(std::net::SocketAddr, Vec<u32>)>,
    ) -> anyhow::Result<Watched> {
        let id = self.gateway.id();
        let mut others = vec![self.worker];
        let lasts = options.measured() + LONGER;
        let load = match beside {
            Beside::Nothing => None,
            Beside::Nginx => {
                let (address, processes) = nginx.context("nginx is not running")?;
                // CPU time of nginx does not count as other work.
                others.extend(&processes);
                Some(at_nginx(options, address, processes))
            }
            Beside::Refused(kind) => Some(attack::load(options, self.gateway.address, id, kind)),
        };
        let attack = load.map(|mut load| {
            load.window.measured = lasts;
            Attack::start(load)
        });
        let attack = attack.transpose()?;
        tokio::time::sleep(options.warm_up()).await;
        let front = [id];
        let queued = Queued::since_now(id);
        let watching = self.open.watch(options.measured(), &front, &others);
        let sample = watching.await?;
        let queued_ms = queued.ms_per_second();
        let Some(attack) = attack else {
            return Ok((sample, None, queued_ms));
        };
        let (attack, faults) = attack.end().await?;
        match beside {
            Beside::Refused(kind) => kind.forgives(&faults, options.warm_up() + lasts)?,
            _ => faults.none()?,
        }
        Ok((sample, Some(attack?), queued_ms))
    }
}
