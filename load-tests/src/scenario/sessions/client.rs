//! Clients that open sessions, and keep them or close them again. Every response is checked.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::message::{Envelope, Expect};
use crate::session::{HELLO, READY};
use crate::wire::{Answer, Connection, Target};

/// Texts that the response to `initialize` must contain, in addition to the header.
const HELLO_ANSWER: [&str; 2] = [r#""id":1"#, r#""protocolVersion":"2025-11-25""#];
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Running clients, each with one request in flight on its connection. A failed client ends all.
pub(super) struct Clients {
    shared: Arc<Shared>,
    tasks: JoinSet<anyhow::Result<()>>,
}

/// The sessions opened so far.
#[derive(Default)]
struct Shared {
    /// Number of sessions begun. With a `count`, no client begins a session beyond it.
    begun: AtomicUsize,
    over: AtomicBool,
    opened: Mutex<Vec<Opened>>,
}

/// A session, and the time that `initialize` took.
pub(super) type Opened = (String, Duration);

impl Shared {
    fn opened(&self) -> MutexGuard<'_, Vec<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
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
            let connection = Connection::open(&Target::Http(envelope.to)).await;
            let mut connection = connection.context("connecting")?;
            let shared = Arc::clone(&shared);
            tasks.spawn(async move {
                let more = |begun| count.is_none_or(|count| begun < count);
                while !shared.over.load(Ordering::Relaxed)
                    && more(shared.begun.fetch_add(1, Ordering::Relaxed))
                {
                    let visit = visit(envelope, &mut connection, count.is_none());
                    let opened = timeout(ANSWER_LIMIT, visit).await.context("a session");
                    match opened.flatten() {
                        Ok(opened) => shared.opened().push(opened),
                        Err(error) => {
                            shared.over.store(true, Ordering::Relaxed);
                            return Err(error);
                        }
                    }
                }
                Ok(())
            });
        }
        Ok(Self { shared, tasks })
    }

    pub(super) fn opened(&self) -> usize {
        self.shared.opened().len()
    }

    pub(super) fn have_failed(&self) -> bool {
        self.shared.over.load(Ordering::Relaxed)
    }

    /// Lets the clients finish the sessions that they have begun, and returns all.
    pub(super) async fn end(mut self) -> anyhow::Result<Vec<Opened>> {
        self.shared.over.store(true, Ordering::Relaxed);
        while let Some(client) = self.tasks.join_next().await {
            client.context("a client")??;
        }
        Ok(std::mem::take(&mut *self.shared.opened()))
    }
}

/// Opens a session, and closes it again if `closes`.
async fn visit(
    envelope: Envelope<'static>,
    connection: &mut Connection,
    closes: bool,
) -> anyhow::Result<Opened> {
    let start = Instant::now();
    let answer = connection.ask(&envelope.post(HELLO)).await?;
    let took = start.elapsed();
    let session = session_of(&answer)?;
    let envelope = envelope.in_session(Some(&session));
    let answer = connection.ask(&envelope.post(READY)).await?;
    answer.has_status(202, "notifications/initialized")?;
    if closes {
        let answer = connection.ask(&envelope.delete()).await?;
        answer.has_status(204, "DELETE")?;
    }
    Ok((session, took))
}

fn session_of(answer: &Answer<'_>) -> anyhow::Result<String> {
    answer.has_status(200, "initialize")?;
    let body = String::from_utf8_lossy(answer.body);
    if let Some(missing) = HELLO_ANSWER.iter().find(|part| !body.contains(*part)) {
        bail!("initialize answered without {missing}: {body}");
    }
    let session = answer.header("mcp-session-id");
    Ok(session.context("initialize gave no session")?.to_owned())
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
