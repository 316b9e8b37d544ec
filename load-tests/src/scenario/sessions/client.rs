//! Clients that open sessions, and keep them or close them again. Every response is checked.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::message::{Envelope, Expect};
use crate::session::{HELLO, READY};
use crate::wire::{Answer, Connection, Target};

/// Texts that the response to `initialize` must contain, in addition to the header.
const HELLO_ANSWER: [&str; 2] = [r#""id":1"#, r#""protocolVersion":"2025-11-25""#];
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Running clients, each with one request in flight on its connection.
pub(super) struct Clients {
    shared: Arc<Shared>,
    tasks: JoinSet<anyhow::Result<()>>,
}

/// The results of the clients.
#[derive(Default)]
pub(super) struct Done {
    /// The sessions that were not closed.
    pub(super) sessions: Vec<String>,
    /// Latency of `initialize` in microseconds, for sessions that were closed again.
    pub(super) latencies_us: Vec<f64>,
}

#[derive(Default)]
struct Shared {
    /// Number of sessions begun. With a `count`, no client begins a session beyond it.
    begun: AtomicUsize,
    opened: AtomicUsize,
    over: AtomicBool,
    done: Mutex<Done>,
}

impl Shared {
    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    /// Starts clients. With a `count` they open that many sessions and do not close them; without one they open and close
    /// sessions until they are stopped.
    pub(super) async fn start(
        connections: usize,
        envelope: Envelope<'static>,
        count: Option<usize>,
    ) -> anyhow::Result<Self> {
        let shared = Arc::<Shared>::default();
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            let connection = Connection::open(&Target::Http(envelope.to))
                .await
                .context("connecting")?;
            let client = Client {
                connection,
                envelope,
            };
            tasks.spawn(client.drive(Arc::clone(&shared), count));
        }
        Ok(Self { shared, tasks })
    }

    pub(super) fn opened(&self) -> usize {
        self.shared.opened.load(Ordering::Relaxed)
    }

    pub(super) fn have_ended(&self) -> bool {
        self.tasks.is_empty() || self.shared.over.load(Ordering::Relaxed)
    }

    /// Lets the clients finish the sessions that they have begun.
    pub(super) async fn end(mut self) -> anyhow::Result<Done> {
        self.shared.over.store(true, Ordering::Relaxed);
        while let Some(client) = self.tasks.join_next().await {
            client.context("a client")??;
        }
        Ok(std::mem::take(&mut *self.shared.done()))
    }
}

struct Client {
    connection: Connection,
    envelope: Envelope<'static>,
}

impl Client {
    async fn drive(mut self, shared: Arc<Shared>, count: Option<usize>) -> anyhow::Result<()> {
        let outcome = self.work(&shared, count).await;
        if outcome.is_err() {
            // A failed client ends all, since the number would never be reached.
            shared.over.store(true, Ordering::Relaxed);
        }
        outcome
    }

    async fn work(&mut self, shared: &Shared, count: Option<usize>) -> anyhow::Result<()> {
        loop {
            let begun = shared.begun.fetch_add(1, Ordering::Relaxed);
            if shared.over.load(Ordering::Relaxed) {
                return Ok(());
            }
            if count.is_some_and(|count| begun >= count) {
                // The last opened session ends all clients.
                if Some(shared.opened.load(Ordering::Relaxed)) == count {
                    shared.over.store(true, Ordering::Relaxed);
                }
                return Ok(());
            }
            let (session, took) = timeout(ANSWER_LIMIT, self.open())
                .await
                .context("opening")??;
            if count.is_none() {
                timeout(ANSWER_LIMIT, self.close(&session))
                    .await
                    .context("closing")??;
            }
            shared.opened.fetch_add(1, Ordering::Relaxed);
            let mut done = shared.done();
            match count {
                Some(_) => done.sessions.push(session),
                None => done.latencies_us.push(took.as_secs_f64() * 1e6),
            }
        }
    }

    async fn open(&mut self) -> anyhow::Result<(String, Duration)> {
        let start = Instant::now();
        let answer = self.connection.ask(&self.envelope.post(HELLO)).await?;
        let took = start.elapsed();
        let session = session_of(&answer)?;
        let ready = self.envelope.in_session(Some(&session)).post(READY);
        let answer = self.connection.ask(&ready).await?;
        expect(&answer, 202, "notifications/initialized")?;
        Ok((session, took))
    }

    async fn close(&mut self, session: &str) -> anyhow::Result<()> {
        let delete = self.envelope.in_session(Some(session)).delete();
        let answer = self.connection.ask(&delete).await?;
        expect(&answer, 204, "DELETE")
    }
}

fn session_of(answer: &Answer<'_>) -> anyhow::Result<String> {
    expect(answer, 200, "initialize")?;
    let body = String::from_utf8_lossy(answer.body);
    if let Some(missing) = HELLO_ANSWER.iter().find(|part| !body.contains(*part)) {
        bail!("initialize answered without {missing}: {body}");
    }
    let session = answer.header("mcp-session-id");
    Ok(session.context("initialize gave no session")?.to_owned())
}

fn expect(answer: &Answer<'_>, status: u16, to: &str) -> anyhow::Result<()> {
    ensure!(
        answer.status == status,
        "{to} answered {} instead of {status}: {}",
        answer.status,
        String::from_utf8_lossy(answer.body)
    );
    Ok(())
}

/// Sends one ping in a session, on a separate connection.
pub(super) async fn ping(envelope: Envelope<'_>, session: &str) -> anyhow::Result<()> {
    let ping = envelope.in_session(Some(session)).ping();
    Expect::PONG
        .asked(&Target::Http(envelope.to), ping, ANSWER_LIMIT)
        .await
}

/// `count` elements of `all` at even distances, beginning with the first.
pub(super) fn spread<T: Clone>(all: &[T], count: usize) -> Vec<T> {
    let count = count.min(all.len());
    let places = (0..count).map(|at| at * all.len() / count);
    places.map(|place| all[place].clone()).collect()
}

pub(super) fn percentile(values: &[f64], percentile: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    // The smallest value such that at least `percentile` percent of the values do not exceed it.
    let rank = (sorted.len() as f64 * percentile / 100.0).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use super::*;

    const ENVELOPE: Envelope<'_> = Envelope::new(
        SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000),
        "t",
        "n",
    );

    #[test]
    fn a_session_is_put_where_its_messages_have_one() {
        let envelope = ENVELOPE.in_session(Some("abc"));
        let ready = String::from_utf8(envelope.post(READY)).unwrap();
        assert!(ready.contains("\r\nMcp-Session-Id: abc\r\n"), "{ready}");
        assert!(ready.ends_with(READY), "{ready}");
        let delete = String::from_utf8(envelope.delete()).unwrap();
        assert!(delete.starts_with("DELETE /mcp HTTP/1.1\r\n"), "{delete}");
        assert!(delete.contains("\r\nMcp-Session-Id: abc\r\n"), "{delete}");
        assert!(delete.ends_with("\r\n\r\n"), "{delete}");
    }

    #[test]
    fn an_answer_without_a_session_or_of_another_version_opens_none() {
        let answer = |head: &'static str, body: &'static str| {
            session_of(&Answer {
                status: 200,
                head: head.as_bytes(),
                body: body.as_bytes(),
                closes: false,
            })
        };
        let head = "HTTP/1.1 200 OK\r\nMcp-Session-Id: abc\r\n\r\n";
        let body = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25"}}"#;
        assert_eq!(answer(head, body).unwrap(), "abc");
        assert!(answer("HTTP/1.1 200 OK\r\n\r\n", body).is_err());
        assert!(
            answer(
                head,
                r#"{"id":1,"result":{"protocolVersion":"2025-06-18"}}"#
            )
            .is_err()
        );
    }

    #[test]
    fn what_is_spread_begins_with_the_first_and_is_even() {
        let all: Vec<usize> = (0..100).collect();
        assert_eq!(spread(&all, 4), [0, 25, 50, 75]);
        assert_eq!(spread(&all[..3], 10), [0, 1, 2]);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), 50.0);
        assert_eq!(percentile(&values, 99.0), 99.0);
        assert_eq!(percentile(&[7.0], 99.0), 7.0);
    }
}
