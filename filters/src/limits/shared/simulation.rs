//! Simulation of many replicas that share rate limits, with a simulated clock. It measures the number of calls that the replicas
//! admit together, and the cost of their exchanges with the store. docs/scaling.md has the figures.
//!
//! Real code: the limits of each replica, and their reports to the store. Simulated: the script of the store
//! (`mcp-upstream/sessions/stores/redis/budgets.lua`), the exchanges every 100 ms, at a different moment for each replica, and
//! the delay of their answers. Calls, delays and the time during which the store is unreachable are random, from a seed.

use std::collections::HashMap;

use governor::clock::FakeRelativeClock;

use super::*;
use crate::config::RateLimitConfig;
use crate::limits::{CountedBy, RateLimits, Subject};

/// Time by which the simulated clock advances in each step.
const TURN: Duration = Duration::from_millis(10);
/// Number of clock steps between two exchanges of a replica with the store (as in `proxy/serve/shared_limits.rs`).
const EXCHANGE: usize = 10;
/// Time by which the store shortens the times that a replica reports, since they are that old when they arrive
/// (`OPERATION_MAX` of the store's connection).
const KNOWN_AGE: Duration = Duration::from_millis(50);
/// Maximum number of budgets in one exchange with the store.
const BUDGETS: usize = 512;

/// Number of calls per second that the simulated limit allows for each budget.
const RATE: usize = 10;
/// Number of calls that the simulated limit allows in a burst.
const BURST: usize = 20;

struct Options {
    replicas: usize,
    principals: usize,
    seconds: usize,
    /// Number of attempted calls for each call that the limit allows.
    demand: usize,
    /// Clock steps during which the store is unreachable.
    away: std::ops::Range<usize>,
    /// Maximum delay of an answer of the store, in clock steps.
    delay: usize,
    seed: u64,
}

/// Results of one simulation.
struct Outcome {
    /// Number of admitted calls, by principal and second.
    admitted: Vec<Vec<usize>>,
    exchanges: usize,
    /// Total number of budgets that were reported in all exchanges.
    told: usize,
}

/// The simulated store: for each budget, the time at which it is full again.
#[derive(Default)]
struct Store(HashMap<[u8; 16], Duration>);

impl Store {
    /// Counts the reported use, as `budgets.lua` does, and returns the time until each budget is full again.
    fn take(&mut self, now: Duration, used: &[BudgetUse], replicas: usize) -> Vec<Duration> {
        let replicas = u32::try_from(replicas).expect("few");
        let taken = used.iter().map(|it| {
            let furthest = now + replicas * (it.window + Duration::from_secs(1));
            let kept = self.0.get(&it.name).copied().unwrap_or_default();
            let known = it.whole_in.saturating_sub(KNOWN_AGE);
            let whole = (kept.min(furthest).max(now) + it.taken).max(now + known);
            self.0.insert(it.name, whole);
            whole - now
        });
        taken.collect()
    }
}

/// Random number generator with a seed, so that simulations are repeatable.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        // The generator is splitmix64.
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }
}

/// An answer of the store that has not reached its replica yet.
struct Answer {
    due: usize,
    replica: usize,
    told: LimitUse<FakeRelativeClock>,
    whole_in: Vec<Duration>,
}

fn simulate(options: &Options) -> Outcome {
    let rule =
        format!(r#"{{"key": "principal", "rate": {RATE}, "burst": {BURST}, "unit": "tool_call"}}"#);
    let rules: [RateLimitConfig; 1] = [serde_json::from_str(&rule).unwrap()];
    let clock = FakeRelativeClock::default();
    let limits = || RateLimits::new(&rules, &clock).shared(&rules);
    let replicas: Vec<_> = (0..options.replicas).map(|_| limits()).collect();
    let names: Vec<_> = (0..options.principals).map(|it| it.to_string()).collect();
    let mut random = Random(options.seed);
    let mut store = Store::default();
    let mut answers: Vec<Answer> = Vec::new();
    let turns = options.seconds * 100;
    let mut outcome = Outcome {
        admitted: vec![vec![0; options.seconds]; options.principals],
        exchanges: 0,
        told: 0,
    };
    for turn in 0..turns {
        let now = TURN * u32::try_from(turn).expect("short");
        let calls = options.principals * options.demand * RATE / 100;
        for _ in 0..calls {
            let (at, principal) = (
                random.below(options.replicas),
                random.below(options.principals),
            );
            let admitted = admits(&replicas[at], &names[principal]);
            outcome.admitted[principal][turn / 100] += usize::from(admitted);
        }
        for (at, limits) in replicas.iter().enumerate() {
            // A replica starts no exchange before the previous one is answered.
            let waits = answers.iter().any(|it| it.replica == at);
            if waits || (turn + at) % EXCHANGE != 0 {
                continue;
            }
            let told = limits.take_use();
            if told.used().is_empty() {
                continue;
            }
            outcome.exchanges += told.used().len().div_ceil(BUDGETS);
            outcome.told += told.used().len();
            if options.away.contains(&turn) {
                continue;
            }
            let whole_in = store.take(now, told.used(), options.replicas);
            answers.push(Answer {
                due: turn + 1 + random.below(options.delay),
                replica: at,
                told,
                whole_in,
            });
        }
        clock.advance(TURN);
        answers.retain(|it| {
            let is_due = it.due <= turn + 1;
            if is_due {
                it.told.move_on(0, &it.whole_in);
            }
            !is_due
        });
    }
    outcome
}

fn admits(limits: &RateLimits<FakeRelativeClock>, principal: &str) -> bool {
    let subject = Subject {
        principal,
        client: "192.0.2.1".parse().unwrap(),
        namespace: None,
        tool: Some("add"),
        own: &[],
        key: None,
    };
    limits.check_tool_call(subject, CountedBy::All).is_ok()
}

impl Outcome {
    /// Highest and lowest number of admitted calls of a principal during these seconds.
    fn extremes(&self, seconds: std::ops::Range<usize>) -> (usize, usize) {
        let sums = self.admitted.iter();
        let sums: Vec<usize> = sums.map(|it| it[seconds.clone()].iter().sum()).collect();
        (*sums.iter().max().unwrap(), *sums.iter().min().unwrap())
    }
}

#[test]
fn replicas_admit_together_what_a_limit_allows_and_a_burst_each_at_most() {
    for replicas in [2, 10, 50] {
        let options = Options {
            replicas,
            principals: 20,
            seconds: 60,
            demand: 10,
            away: 0..0,
            delay: 5,
            seed: 7,
        };
        let outcome = simulate(&options);
        let (most, fewest) = outcome.extremes(0..60);
        assert!(most <= 60 * RATE + replicas * BURST, "{replicas}: {most}");
        let (most, _) = outcome.extremes(20..60);
        assert!(most <= 40 * RATE + BURST, "{replicas}: {most} later");
        assert!(fewest >= 60 * RATE * 9 / 10, "{replicas}: {fewest}");
        assert!(outcome.exchanges <= replicas * 10 * 60 + replicas);
    }
}

#[test]
fn a_store_that_was_away_bounds_all_replicas_together_again() {
    let options = Options {
        replicas: 5,
        principals: 20,
        seconds: 60,
        demand: 20,
        away: 1000..2000,
        delay: 5,
        seed: 7,
    };
    let outcome = simulate(&options);
    let (most, fewest) = outcome.extremes(10..20);
    assert!(most <= 5 * (10 * RATE + BURST), "{most} while it was away");
    assert!(fewest > 2 * 10 * RATE, "{fewest}: each has the limit");
    let (most, fewest) = outcome.extremes(30..60);
    assert!(most <= 30 * RATE + BURST, "{most} afterwards");
    assert!(fewest >= 30 * RATE * 8 / 10, "{fewest} afterwards");
}

#[test]
#[ignore = "prints figures: make simulate"]
fn exchanges_and_excess_of_many_replicas() {
    for replicas in [2, 10, 50] {
        let options = Options {
            replicas,
            principals: 1000,
            seconds: 60,
            demand: 2,
            away: 0..0,
            delay: 2,
            seed: 7,
        };
        let outcome = simulate(&options);
        let (most, _) = outcome.extremes(0..60);
        let (later, fewest) = outcome.extremes(20..60);
        println!(
            "{replicas} replicas, 1000 budgets, twice what {RATE}/s with a burst of {BURST} allows, 60 s: {} exchanges and \
             {} budgets a second; a principal had {most} calls at most ({} by the limit), in the last 40 s {fewest} to \
             {later} (400)",
            outcome.exchanges / 60,
            outcome.told / 60,
            60 * RATE + BURST,
        );
    }
}
