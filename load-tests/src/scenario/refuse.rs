//! Refusals: the cost of a refusal, and the effect of an attack on admitted clients.
//!
//! ```text
//! per repetition:  nginx ── each kind of refusal at full speed, the 401 of a bare filter beside the gateway's
//!                  good calls: alone ── beside the same load on nginx ── beside an attack of each of two kinds
//! ```
//!
//! Client, gateway and attacker share the machine, so good calls are slower during an attack on any server. The gateway's part
//! is the difference to the same load on nginx, which does not serve the good calls.

mod kind;
mod same;

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;

use super::Run;
use super::run::at_nginx;
use crate::load::open::{Open, OpenLoad, OpenSample};
use crate::load::{self, Load, Sample, Window};
use crate::message::Expect;
use crate::options::Options;
use crate::processes::Queued;
use crate::report::{Numbers, Section};
use crate::servers::gateway::{ASYNC_TOOL, Gateway, Layout, NAMESPACE, Setup, threads};
use crate::servers::{Server, bare_filter};
use crate::streams::Aside;
use crate::wire::Target;

use kind::{BARE_FILTER, KINDS, Kind, LIMITED_NAMESPACE, RATE_LIMITED, UNAUTHORIZED};

/// Series of refusals at full speed, with a row for each kind.
const REFUSALS: &str = "refusals";
/// Series of good calls, with a row for each concurrent load.
const GOOD: &str = "good calls";
/// Time by which an attack outlasts the window of good calls, so that it covers the window.
const LONGER: Duration = Duration::from_millis(200);

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

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let options = run.options;
    let setup = Setup::new(Layout::Separate)
        .python(NAMESPACE)
        .empty(LIMITED_NAMESPACE);
    let gateway = Gateway::start(options, &setup).await?;
    gateway.has_worker(NAMESPACE).await?;
    let (mut section, mut kinds) = (Section::default(), KINDS.to_vec());
    let bare = bare_filter(threads()?).await?;
    if let Some(bare) = &bare {
        section.note(
            "The bare filter is `proxy/bin/bare_filter.rs`: Pingora with the gateway's threads, buffers and allocator, and a \
             `request_filter` that answers everybody with the bytes of the gateway's 401 (the run fails where they differ in \
             more than request id and date). It checks, counts, limits and logs nothing. Which of the two is measured first \
             changes with each repetition.",
        );
        if let Err(error) = same::check(gateway.address, bare.address).await {
            section.fail(format!(
                "the bare filter's 401 beside the gateway's: {error:#}"
            ));
        }
    } else {
        section.miss("a bare filter of the HTTP library: there is no release build of it beside this program (make load-binaries)");
        kinds.retain(|kind| *kind != BARE_FILTER);
    }
    for repetition in run.repetitions() {
        section.repetition = repetition;
        let n_us = run.reference().await?.map(|sample| sample.cpu_us);
        for &kind in &kinds {
            match refused(run, &gateway, bare.as_ref(), kind).await {
                Ok(sample) => {
                    let numbers = Numbers::of(&sample).with_ratio("cpu_n", "cpu_us", n_us);
                    section.add(REFUSALS, [kind.name()], numbers);
                }
                Err(error) => section.fail(format!("{}: {error:#}", kind.name())),
            }
        }
        // Reversed in each repetition, so that the gateway's 401 and the bare filter's come first in turn.
        kinds.reverse();
        let good = Open::start(OpenLoad {
            target: Target::Http(gateway.address),
            requests: vec![gateway.envelope().call(ASYNC_TOOL); run.count("good_connections")?],
            expect: Expect::ECHO,
            per_second: run.rate("good_per_second")?,
        })
        .await?;
        for beside in Beside::ALL {
            if beside == Beside::Nginx && run.nginx.is_none() {
                continue;
            }
            let name = format!("good calls {}", beside.name());
            match watched(run, &gateway, &good, beside).await {
                Ok((sample, attack, queued_ms)) => {
                    run.told(&mut section, &name, &sample);
                    let numbers = Numbers::of(&json!({"sample": sample, "attack": attack}));
                    section.add(GOOD, [beside.name()], numbers.with("queued_ms", queued_ms));
                }
                Err(error) => section.fail(format!("{name}: {error:#}")),
            }
        }
    }
    Ok(section)
}

/// A load of one kind of refusal on all connections.
fn refusals(options: &Options, to: SocketAddr, process: u32, kind: Kind) -> Load {
    Load {
        target: Target::Http(to),
        requests: vec![kind.request(to); options.connections],
        expect: kind.expect(),
        window: Window::by(options, vec![process]),
    }
}

/// Measures a closed loop of refusals, and checks that the gateway has counted them. The bare filter counts none.
async fn refused(
    run: &mut Run<'_>,
    gateway: &Gateway,
    bare: Option<&Server>,
    kind: Kind,
) -> anyhow::Result<Sample> {
    let options = run.options;
    if let Some(bare) = bare.filter(|_| kind == BARE_FILTER) {
        let load = refusals(options, bare.address, bare.id(), UNAUTHORIZED);
        return run.right(&kind.name(), &load).await;
    }
    let load = refusals(options, gateway.address, gateway.id(), kind);
    let take = async || {
        let before = gateway.metric(&kind.counter()).await?.unwrap_or_default();
        let (sample, faults) = load::tolerant(load.clone()).await?;
        kind.forgives(&faults, options.warm_up() + options.measured())?;
        let sample = sample?;
        let counted = gateway.metric(&kind.counter()).await?.unwrap_or_default() - before;
        ensure!(
            counted >= sample.requests as f64,
            "{} answers, of which the gateway counted {counted} as {}",
            sample.requests,
            kind.reason()
        );
        Ok(sample)
    };
    let sample = run
        .patiently(|sample: &Sample| sample.other_cores, take)
        .await?;
    run.progress(&format!("{}: {}", kind.name(), sample.shown()));
    Ok(sample)
}

/// Measures one window of good calls and the concurrent load; returns their samples, and the milliseconds per second for which
/// the gateway's threads waited for a core.
async fn watched(
    run: &mut Run<'_>,
    gateway: &Gateway,
    good: &Open,
    beside: Beside,
) -> anyhow::Result<(OpenSample, Option<Sample>, f64)> {
    let (options, id) = (run.options, gateway.id());
    let mut load = match beside {
        Beside::Nothing => None,
        Beside::Nginx => run.nginx.as_ref().map(|nginx| at_nginx(options, nginx)),
        Beside::Refused(kind) => Some(refusals(options, gateway.address, id, kind)),
    };
    let mut others = vec![gateway.worker(NAMESPACE)?.0];
    if let Some(load) = &mut load {
        load.window.measured += LONGER;
        // CPU time of nginx does not count as other work.
        others.extend(load.window.front.iter().filter(|process| **process != id));
    }
    let take = async || {
        // On the thread of the good calls, responses to the attack would delay theirs, and the client would measure itself.
        let thread = Aside::start("attack")?;
        let attack = load
            .clone()
            .map(|load| thread.handle().spawn(load::tolerant(load)));
        tokio::time::sleep(options.warm_up()).await;
        let queued = Queued::since_now(id);
        let sample = good.watch(options.measured(), &[id], &others).await?;
        let queued_ms = queued.ms_per_second();
        let Some(attack) = attack else {
            return Ok((sample, None, queued_ms));
        };
        let (attack, faults) = attack.await.context("the attack's thread")??;
        match beside {
            Beside::Refused(kind) => {
                kind.forgives(&faults, options.warm_up() + options.measured() + LONGER)?;
            }
            _ => faults.none()?,
        }
        Ok((sample, Some(attack?), queued_ms))
    };
    let other = |(sample, ..): &(OpenSample, Option<Sample>, f64)| sample.other_cores;
    run.patiently(other, take).await
}
