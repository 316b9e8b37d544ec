//! A closed loop: every connection sends its next request after the answer to the last one.
//!
//! A closed loop measures the capacity and the cost of a server, but not the waiting time of clients that send at any
//! time, which the [`open`] loop measures.

mod curve;
pub(crate) mod one_by_one;
pub(crate) mod open;
pub(crate) mod pipes;
mod shared;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::message::{Expect, Request};
use crate::options::Options;
use crate::wire::{Caller, Target};

pub(crate) use shared::{Costs, Faults, Spent};
use shared::{Phase, Shared};

/// Maximum time for the last answers after the measurement.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Maximum time for all requests of [`once`].
const ONCE_LIMIT: Duration = Duration::from_secs(60);

/// A load: the target, the requests, the duration, and the processes whose CPU time counts.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) target: Target,
    /// A request for each connection.
    pub(crate) requests: Vec<Request>,
    pub(crate) expect: Expect,
    pub(crate) window: Window,
}

/// The duration of a measurement, and the processes whose CPU time counts.
#[derive(Clone, Default)]
pub(crate) struct Window {
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
    /// The processes under test; the first one must run to the end.
    pub(crate) front: Vec<u32>,
    /// The processes behind the program under test: the Python worker, or the stdio servers.
    pub(crate) workers: Vec<u32>,
}

impl Window {
    /// A window with the durations of the options.
    pub(crate) fn by(options: &Options, front: Vec<u32>) -> Self {
        Self {
            warm_up: options.warm_up(),
            measured: options.measured(),
            front,
            workers: Vec::new(),
        }
    }
}

/// The result of one measurement.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    #[serde(flatten)]
    pub(crate) costs: Costs,
    /// Connections that the server closed after an answer. It is no fault, but each costs a new connection.
    pub(crate) closed: u64,
    /// Latency in microseconds by percentile.
    pub(crate) curve: Vec<(f64, f64)>,
}

impl std::ops::Deref for Sample {
    type Target = Costs;

    fn deref(&self) -> &Costs {
        &self.costs
    }
}

impl Sample {
    /// Formats the sample as a line of progress.
    pub(crate) fn shown(&self) -> String {
        format!(
            "{:.0}/s, p50 {:.0} us, p99 {:.0} us, {:.1} us CPU",
            self.per_second, self.p50_us, self.p99_us, self.cpu_us
        )
    }
}

/// Runs the load once, and counts wrong responses separately, including those of the warm-up.
///
/// # Errors
///
/// When the load cannot be started or does not end. The inner error means that no request was answered.
pub(crate) async fn tolerant(load: Load) -> anyhow::Result<(anyhow::Result<Sample>, Faults)> {
    let shared = Shared::new()?;
    let mut connections = JoinSet::new();
    for request in load.requests {
        let mut caller = Caller::new(load.target.clone());
        caller.connect().await?;
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let mut request = request;
            while ask(&mut caller, &mut request, load.expect, &shared).await {}
        });
    }
    observe(&shared, connections, &load.window).await
}

/// Sends each request once, `at_a_time` of them concurrently, and waits for all responses. The durations of the window are
/// ignored. Wrong responses are counted separately.
pub(crate) async fn once(load: Load, at_a_time: usize) -> anyhow::Result<(Sample, Faults)> {
    let shared = Shared::new()?;
    shared.enter(Phase::Measured);
    let mut shares = vec![Vec::new(); at_a_time.min(load.requests.len())];
    let clients = shares.len();
    for (at, request) in load.requests.into_iter().enumerate() {
        shares[at % clients].push(request);
    }
    let mut opened = Vec::with_capacity(clients);
    for share in shares {
        let mut caller = Caller::new(load.target.clone());
        caller.connect().await?;
        opened.push((caller, share));
    }
    let before = Spent::now(&load.window)?;
    let start = Instant::now();
    let mut connections = JoinSet::new();
    for (mut caller, requests) in opened {
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            for mut request in requests {
                if !ask(&mut caller, &mut request, load.expect, &shared).await {
                    return;
                }
            }
        });
    }
    timeout(ONCE_LIMIT, connections.join_all())
        .await
        .with_context(|| format!("answers still missing after {ONCE_LIMIT:?}"))?;
    let after = Spent::now(&load.window)?;
    let sample = shared.sample(&before, &after, start.elapsed().as_secs_f64())?;
    Ok((sample, shared.faults()))
}

/// Sends a request and reads the answer. Returns true if the client may continue.
async fn ask(caller: &mut Caller, request: &mut Request, expect: Expect, shared: &Shared) -> bool {
    if let Err(error) = caller.connect().await {
        shared.fault(format!("{error:#}"));
        return false;
    }
    let Some(id) = shared.next_id() else {
        return false;
    };
    let start = Instant::now();
    let asked = caller.ask(request.with_id(id), |answer| {
        let took = start.elapsed();
        if answer.closes {
            shared.closed();
        }
        (took, expect.mismatch(answer, id))
    });
    match asked.await {
        Ok((took, None)) => shared.answered(took),
        Ok((_, Some(fault))) => return shared.fault(fault),
        Err(error) => {
            shared.fault(format!("{error:#}"));
            return false;
        }
    }
    true
}

/// Measures clients that are running already, and waits until they have ended.
async fn observe(
    shared: &Shared,
    clients: JoinSet<()>,
    window: &Window,
) -> anyhow::Result<(anyhow::Result<Sample>, Faults)> {
    sleep(window.warm_up).await;
    let before = Spent::now(window)?;
    let start = Instant::now();
    shared.enter(Phase::Measured);
    sleep(window.measured).await;
    shared.enter(Phase::Over);
    let seconds = start.elapsed().as_secs_f64();
    let after = Spent::now(window)?;
    // Dropping the set aborts the clients that are still running.
    timeout(LAST_ANSWERS, clients.join_all())
        .await
        .context("answers still missing 10 s after the end")?;
    let faults = shared.faults();
    Ok((shared.sample(&before, &after, seconds), faults))
}

#[cfg(test)]
mod tests {
    use super::open::tests::Server;
    use super::*;

    /// A server that answers each ping with what `answer` makes of its id.
    async fn tolerant_load_on(
        answer: fn(u64) -> u64,
    ) -> anyhow::Result<(anyhow::Result<Sample>, Faults)> {
        let server = Server::start(Duration::ZERO, answer).await;
        let window = Window {
            warm_up: Duration::from_millis(10),
            measured: Duration::from_millis(100),
            front: vec![std::process::id()],
            ..Window::default()
        };
        tolerant(Load {
            target: Target::Http(server.address),
            requests: server.pings(3),
            expect: Expect::PONG,
            window,
        })
        .await
    }

    #[tokio::test]
    async fn right_answers_are_counted_and_timed() {
        let (sample, faults) = tolerant_load_on(|id| id).await.unwrap();
        faults.none().unwrap();
        let sample = sample.unwrap();
        assert!(sample.requests > 0 && sample.cpu_us > 0.0, "{sample:?}");
        assert!(
            sample.p50_us > 0.0 && sample.p50_us <= sample.p99_us,
            "{sample:?}"
        );
        assert_eq!((sample.closed, sample.worker_cpu_us), (0, None));
    }

    #[tokio::test]
    async fn requests_that_are_sent_once_are_all_answered() {
        let server = Server::start(Duration::ZERO, |id| id).await;
        let load = Load {
            target: Target::Http(server.address),
            requests: server.pings(7),
            expect: Expect::PONG,
            window: Window {
                front: vec![std::process::id()],
                ..Window::default()
            },
        };
        let (sample, faults) = once(load, 3).await.unwrap();
        faults.none().unwrap();
        assert_eq!(sample.requests, 7);
    }

    #[tokio::test]
    async fn a_wrong_answer_is_counted_where_it_is_tolerated_and_the_rest_measured() {
        let second_wrong = |id| if id == 1_000_000_001 { 7 } else { id };
        let (sample, faults) = tolerant_load_on(second_wrong).await.unwrap();
        assert!(sample.unwrap().requests > 0);
        assert_eq!(faults.count, 1);
        let first = faults.first.unwrap();
        assert!(first.contains("not the answer to 1000000001"), "{first}");
    }

    #[tokio::test]
    async fn an_answer_with_another_id_fails_the_measurement() {
        let (_, faults) = tolerant_load_on(|_| 1).await.unwrap();
        let error = faults.none().unwrap_err().to_string();
        assert!(error.contains("not the answer to"), "{error}");
    }
}
