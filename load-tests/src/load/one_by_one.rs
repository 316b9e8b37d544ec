//! Sequential calls, on one connection after another: the latency of a call when no call waits for another.
//!
//! There are many connections, because a server with several threads assigns a connection to one of them, and by chance that is
//! the thread to which responses are delivered. The result is the mean of the medians of each connection; the 99th percentile
//! is that of all calls, since otherwise a single pause of the machine would decide it.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::time::timeout;

use super::curve::{curve, micros};
use crate::message::{Expect, FIRST_ID, Request};
use crate::wire::Connection;

/// Number of calls on each connection that are not counted.
const WARM_UP: u64 = 10;
/// Time limit of one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// The number of calls, and their time limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) connections: u32,
    /// Maximum number of counted calls on each connection.
    pub(crate) calls: u64,
    /// Time limit of each connection, half of it for its warm-up: slow servers get fewer calls.
    pub(crate) limit: Duration,
}

/// Latencies of the calls.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Latencies {
    /// Number of counted calls, on all connections.
    pub(crate) calls: u64,
    /// Number of all calls, warm-up included.
    pub(crate) sent: u64,
    /// Mean of the medians of each connection, in microseconds.
    pub(crate) p50_us: f64,
    /// 99th percentile of all calls, in microseconds.
    pub(crate) p99_us: f64,
    /// Latency of all calls in microseconds, by percentile.
    pub(crate) curve: Vec<(f64, f64)>,
}

/// Makes the calls and checks every response. `open` opens a connection, and returns an object that is dropped with it.
pub(crate) async fn measure<K>(
    plan: Plan,
    mut request: Request,
    expect: Expect,
    mut open: impl AsyncFnMut() -> anyhow::Result<(Connection, K)>,
) -> anyhow::Result<Latencies> {
    let mut all = Histogram::new_with_bounds(1_000, LATENCY_MAX_NS, 3)?;
    let mut each = all.clone();
    let (mut sent, mut p50_us) = (0, 0.0);
    for _ in 0..plan.connections {
        let (mut connection, mut _kept) = open().await?;
        each.reset();
        let mut warm = 0;
        let mut start = Instant::now();
        while each.len() < plan.calls {
            let id = FIRST_ID + sent;
            let called = Instant::now();
            let answer = timeout(ANSWER_LIMIT, connection.ask(request.with_id(id)))
                .await
                .context("no answer in time")??;
            let took = called.elapsed();
            if let Some(fault) = expect.mismatch(&answer, id) {
                bail!(fault);
            }
            let closes = answer.closes;
            sent += 1;
            if warm < WARM_UP {
                let enough = start.elapsed() > plan.limit / 2;
                warm = if enough { WARM_UP } else { warm + 1 };
                if warm == WARM_UP {
                    start = Instant::now();
                }
            } else {
                each.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
                if start.elapsed() > plan.limit {
                    break;
                }
            }
            if closes {
                (connection, _kept) = open().await?;
            }
        }
        p50_us += micros(&each, 50.0) / f64::from(plan.connections);
        all.add(&each)?;
    }
    Ok(Latencies {
        calls: all.len(),
        sent,
        p50_us,
        p99_us: micros(&all, 99.0),
        curve: curve(&all),
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;
    use crate::message::pipe_call;

    const PLAN: Plan = Plan {
        connections: 3,
        calls: 20,
        limit: Duration::from_secs(60),
    };

    /// A connection to a server that gives every line back.
    fn mirror() -> Connection {
        let (near, far) = tokio::io::duplex(4096);
        tokio::spawn(async move {
            let (read, mut write) = tokio::io::split(far);
            let mut lines = BufReader::new(read).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let _ = write.write_all(format!("{line}\n").as_bytes()).await;
            }
        });
        Connection::over(near)
    }

    #[tokio::test]
    async fn every_connection_has_its_calls_and_the_first_ones_do_not_count() {
        let mut opened = 0;
        let open = async || {
            opened += 1;
            Ok((mirror(), ()))
        };
        let found = measure(PLAN, pipe_call(), Expect::NUMBERED_ECHO, open)
            .await
            .unwrap();
        assert_eq!((opened, found.calls, found.sent), (3, 60, 90));
        assert!(found.p50_us > 0.0 && found.p99_us > 0.0);
    }

    #[tokio::test]
    async fn slow_connections_are_cut_short_after_a_call() {
        let plan = Plan {
            limit: Duration::ZERO,
            ..PLAN
        };
        let open = async || Ok((mirror(), ()));
        let found = measure(plan, pipe_call(), Expect::NUMBERED_ECHO, open)
            .await
            .unwrap();
        assert_eq!((found.calls, found.sent), (3, 6), "one before it");
    }

    #[tokio::test]
    async fn a_wrong_answer_is_an_error() {
        let open = async || Ok((mirror(), ()));
        let error = measure(PLAN, pipe_call(), Expect::PONG, open)
            .await
            .unwrap_err();
        assert!(error.to_string().contains("without"), "{error}");
    }
}
