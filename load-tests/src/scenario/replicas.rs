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

use super::stores::{ECHO, in_sessions};
use super::{Run, Scenario};
use crate::load::one_by_one::{self, Plan};
use crate::load::{self, Load, Sample, Window};
use crate::message::{Expect, Request};
use crate::options::Options;
use crate::processes::descendants;
use crate::report::table::{figure, middle, sum};
use crate::report::{Numbers, Row, Section, Series, Table};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{Gateway, Layout, Setup};
use crate::servers::redis::{self, Redis};
use crate::wire::{Connection, Target};

pub(crate) const SCENARIO: Scenario = Scenario {
    name: "replicas",
    question: "What does a call cost whose session lives on another replica, and how long does a session wait for its next answer \
               when its replica is killed? Two replicas with a Redis on loopback, and two processes over one data directory.",
    default: false,
    takes,
    run: |run| Box::pin(measure(run)),
};

const REDIS: &str = "Redis";
const DISK: &str = "one data directory";
const DIRECT: &str = "direct";
const FORWARDED: &str = "by way of the other";
const CALLS: &str = "calls";
const ADOPTED: &str = "adopted";
/// Number of sessions that lose their replica: half of them call immediately, each on a separate connection; the other half
/// call after the replica counts as gone, [`AT_A_TIME`] at a time.
const ORPHANS: usize = 400;
const AT_A_TIME: usize = 4;
/// Time from the kill until the replica counts as gone, which is 2 s after its last heartbeat in Redis.
const GONE: Duration = Duration::from_millis(2_500);
const AT_ONCE: &str = "at once";
const LATER: &str = "2.5 s later";
const LIVE: &str = "once more";
/// Time limit for replicas to discover each other.
const SEE_LIMIT: Duration = Duration::from_secs(20);

fn takes(options: &Options) -> Duration {
    let calls = (options.measured() + options.warm_up()) * 6;
    (calls + Duration::from_secs(12)) * options.repetitions as u32 + Duration::from_secs(15)
}

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

async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let echo = EchoProgram::find()?.command(Era::Legacy);
    let redis = Redis::start().await?;
    let mut section = Section::default();
    let mut pairs = vec![Pair::start(run.options, &echo, None).await?];
    match &redis {
        Some(redis) => pairs.push(Pair::start(run.options, &echo, Some(redis)).await?),
        None => section.miss(redis::MISSING),
    }
    for repetition in 1..=run.options.repetitions {
        section.repetition = repetition;
        for pair in &mut pairs {
            calls(run, pair, &mut section).await.context(pair.by)?;
        }
        for pair in &mut pairs {
            orphans(run, pair, &mut section).await.context(pair.by)?;
        }
    }
    tell(&mut section);
    Ok(section)
}

/// Measures calls at the replica that has their session, and by way of the other replica.
async fn calls(run: &mut Run<'_>, pair: &Pair, section: &mut Section) -> anyhow::Result<()> {
    let options = run.options;
    let requests = pair.requests(options.connections).await?;
    for (way, replica) in [(DIRECT, &pair.one), (FORWARDED, &pair.two)] {
        let target = Target::Http(replica.address);
        let take = async || {
            let window = Window {
                workers: pair.ids().into_iter().flat_map(descendants).collect(),
                ..Window::by(options, pair.ids())
            };
            load::measure(Load {
                target: target.clone(),
                requests: requests.clone(),
                expect: Expect::NUMBERED_ECHO,
                window,
            })
            .await
        };
        let sample = run.patiently(|sample: &Sample| sample.other_cores, take);
        let sample = sample.await.context(way)?;
        let plan = Plan {
            connections: 10,
            calls: 100,
            limit: options.measured().mul_f64(0.1),
        };
        let open = async || Ok((Connection::open(&target).await?, ()));
        let one = requests.first().context("no session")?.clone();
        let alone = one_by_one::measure(plan, one, Expect::NUMBERED_ECHO, open).await?;
        run.progress(&format!(
            "{}, {way}: {}; one client p50 {:.0} us",
            pair.by,
            sample.shown(),
            alone.p50_us
        ));
        let numbers = Numbers::of(&json!({"many": sample, "one": alone}));
        section.add(CALLS, [pair.by, way], numbers);
    }
    Ok(())
}

/// Measures the next calls of sessions whose replica was killed.
async fn orphans(run: &mut Run<'_>, pair: &mut Pair, section: &mut Section) -> anyhow::Result<()> {
    let mut at_once = pair.requests(ORPHANS).await?;
    let later = at_once.split_off(ORPHANS / 2);
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

fn tell(section: &mut Section) {
    let (calls, adopted) = (section.of(CALLS), section.of(ADOPTED));
    let tables = vec![
        Table::of(
            &calls.rows,
            &["replicas of", "call"],
            [
                middle("calls/s", "many.per_second", 0),
                middle("p50 us", "many.p50_us", 0),
                middle("p99 us", "many.p99_us", 0),
                middle("CPU us, both", "many.cpu_us", 1),
                figure("CPU / direct", 2, |row| {
                    to_direct(calls, row, "many.cpu_us")
                }),
                middle("one client p50 us", "one.p50_us", 0),
                middle("one client p99 us", "one.p99_us", 0),
                figure("p50 / direct", 2, |row| to_direct(calls, row, "one.p50_us")),
            ],
        )
        .captioned("Calls in sessions of one replica"),
        Table::of(
            &adopted.rows,
            &["replicas of", "next call"],
            [
                sum("answered", &["requests"]),
                sum("refused", &["refused"]),
                middle("p50 us", "p50_us", 0),
                middle("p99 us", "p99_us", 0),
                middle("CPU us", "cpu_us", 1),
            ],
        )
        .captioned(
            "The next call of each session after its replica was killed, at the other replica",
        ),
    ];
    section.tables = tables;
    section.note(
        "A replica of a Redis counts as gone 2 s after its last beat: calls that are sent `at once` wait for that. Each of them \
         has a connection of its own; those of `2.5 s later` are sent 4 at a time, and `once more` is the next call of the same \
         sessions, which are live then. `refused`: a claim asks Redis, which has 50 ms to answer; a client whose call has 503 \
         is to try again.",
    );
}

/// Ratio of a number to that of direct calls, within each repetition.
fn to_direct(calls: &Series, row: &Row, number: &str) -> Option<f64> {
    row.ratio_to(calls.row(&[row.name(), DIRECT])?, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forwarded_call_is_compared_with_a_direct_one_of_the_same_pair() {
        let mut section = Section::default();
        for (by, way, cpu_us) in [
            (DISK, DIRECT, 10.0),
            (REDIS, DIRECT, 20.0),
            (REDIS, FORWARDED, 50.0),
        ] {
            section.add(CALLS, [by, way], Numbers::one("many.cpu_us", cpu_us));
        }
        tell(&mut section);
        let ratios = section.tables[0].rows.iter().map(|row| row[6].as_str());
        assert_eq!(ratios.collect::<Vec<_>>(), ["1.00", "1.00", "2.50"]);
    }
}
