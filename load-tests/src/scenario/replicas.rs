//! Two replicas: calls of sessions that are live in the other one, and sessions whose replica is killed.
//!
//! ```text
//! two replicas of a Redis · two processes over one data directory
//!   per repetition:  calls at the home of the session ── by way of the other replica     (many clients, then one)
//!                    sessions of one replica ── SIGKILL ── the next call of each at the other ── started again
//! ```

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::json;
use tokio::time::sleep;

use super::Run;
use super::stores::{ECHO, in_sessions};
use crate::load::one_by_one::{self, Plan};
use crate::load::{self, Load, Window};
use crate::message::{Expect, Request};
use crate::options::Options;
use crate::processes::descendants;
use crate::report::{Numbers, Section};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{Gateway, Layout, Setup};
use crate::servers::redis::{self, Redis};
use crate::wire::{Connection, Target};

const REDIS: &str = "Redis";
const DISK: &str = "one data directory";
const DIRECT: &str = "direct";
const FORWARDED: &str = "by way of the other";
const CALLS: &str = "calls";
const ADOPTED: &str = "adopted";
/// Number of calls at a time after the replica counts as gone.
const AT_A_TIME: usize = 4;
/// Time from the kill until the replica counts as gone, which is 2 s after its last heartbeat in Redis.
const GONE: Duration = Duration::from_millis(2_500);
const AT_ONCE: &str = "at once";
const LATER: &str = "2.5 s later";
const LIVE: &str = "once more";
/// Time limit for replicas to discover each other.
const SEE_LIMIT: Duration = Duration::from_secs(20);

/// Two replicas that share sessions by a store.
struct Pair {
    by: &'static str,
    one: Gateway,
    two: Gateway,
}

impl Pair {
    async fn start(
        options: &Options,
        echo: &[String],
        redis: Option<&Redis>,
    ) -> anyhow::Result<Self> {
        let setup = || Setup::new(Layout::Separate).stdio(ECHO, echo.to_vec());
        let (by, one, two) = match redis {
            Some(redis) => (
                REDIS,
                Gateway::start(options, &setup().replica("one", redis)?).await?,
                Gateway::start(options, &setup().replica("two", redis)?).await?,
            ),
            None => {
                let one = Gateway::start(options, &setup().process("one")).await?;
                let two = one.beside(options, &setup().process("two")).await?;
                (DISK, one, two)
            }
        };
        let pair = Self { by, one, two };
        pair.see_each_other().await?;
        Ok(pair)
    }

    async fn see_each_other(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        for replica in [&self.one, &self.two] {
            while replica.metric("tooldock_replicas_up").await? != Some(2.0) {
                ensure!(
                    start.elapsed() < SEE_LIMIT,
                    "{}: the replicas do not see each other",
                    self.by
                );
                sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    fn ids(&self) -> Vec<u32> {
        vec![self.one.id(), self.two.id()]
    }

    /// A call in each of `count` new sessions of the first replica.
    async fn requests(&self, count: usize) -> anyhow::Result<Vec<Request>> {
        let envelope = self.one.envelope().of(ECHO);
        in_sessions(envelope, count, |it| it.numbered_call()).await
    }
}

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let echo = EchoProgram::find()?.command(Era::Legacy);
    let redis = Redis::start().await?;
    let mut section = Section::default();
    let mut pairs = vec![Pair::start(run.options, &echo, None).await?];
    match &redis {
        Some(redis) => pairs.push(Pair::start(run.options, &echo, Some(redis)).await?),
        None => section.miss(redis::MISSING),
    }
    for repetition in run.repetitions() {
        section.repetition = repetition;
        for pair in &mut pairs {
            calls(run, pair, &mut section).await.context(pair.by)?;
        }
        for pair in &mut pairs {
            orphans(run, pair, &mut section).await.context(pair.by)?;
        }
    }
    Ok(section)
}

/// Measures calls at the replica that has their session, and by way of the other replica.
async fn calls(run: &mut Run<'_>, pair: &Pair, section: &mut Section) -> anyhow::Result<()> {
    let options = run.options;
    let requests = pair.requests(options.connections).await?;
    for (way, replica) in [(DIRECT, &pair.one), (FORWARDED, &pair.two)] {
        let target = Target::Http(replica.address);
        let load = Load {
            target: target.clone(),
            requests: requests.clone(),
            expect: Expect::NUMBERED_ECHO,
            window: Window {
                workers: pair.ids().into_iter().flat_map(descendants).collect(),
                ..Window::by(options, pair.ids())
            },
        };
        let sample = run
            .right(&format!("{}, {way}", pair.by), &load)
            .await
            .context(way)?;
        let plan = Plan {
            connections: 10,
            calls: 100,
            limit: options.measured().mul_f64(0.1),
        };
        let open = async || Ok((Connection::open(&target).await?, ()));
        let one = requests.first().context("no session")?.clone();
        let alone = one_by_one::measure(plan, one, Expect::NUMBERED_ECHO, open).await?;
        run.progress(&format!(
            "{}, {way}: one client p50 {:.0} us",
            pair.by, alone.p50_us
        ));
        let numbers = Numbers::of(&json!({"many": sample, "one": alone}));
        section.add(CALLS, [pair.by, way], numbers);
    }
    Ok(())
}

/// Measures the next calls of sessions whose replica was killed.
async fn orphans(run: &mut Run<'_>, pair: &mut Pair, section: &mut Section) -> anyhow::Result<()> {
    let orphans = run.count("orphans")?;
    let mut at_once = pair.requests(orphans).await?;
    let later = at_once.split_off(orphans / 2);
    // The stdio server of the other replica is started before the kill.
    let target = Target::Http(pair.two.address);
    let warm = pair.two.envelope().of(ECHO).numbered_call();
    let server = Expect::NUMBERED_ECHO.asked(&target, warm, SEE_LIMIT);
    server.await.context("the other replica")?;
    pair.one.kill()?;
    let killed = Instant::now();
    let once = |requests: Vec<Request>| Load {
        target: target.clone(),
        requests,
        expect: Expect::NUMBERED_ECHO,
        window: Window::by(run.options, vec![pair.two.id()]),
    };
    let at_a_time = at_once.len();
    for (row, requests, at_a_time, after) in [
        (AT_ONCE, at_once, at_a_time, Duration::ZERO),
        (LATER, later.clone(), AT_A_TIME, GONE),
        (LIVE, later, AT_A_TIME, Duration::ZERO),
    ] {
        sleep(after.saturating_sub(killed.elapsed())).await;
        let (sample, faults) = load::once(once(requests), at_a_time).await.context(row)?;
        run.progress(&format!("{}, {row}: {}", pair.by, sample.shown()));
        if let Some(first) = faults.first {
            section.note(format!(
                "{}, {row}: {} refused: {first}",
                pair.by, faults.count
            ));
        }
        let numbers = Numbers::of(&sample).with("refused", faults.count as f64);
        section.add(ADOPTED, [pair.by, row], numbers);
    }
    pair.one.start_again().await?;
    pair.see_each_other().await
}
