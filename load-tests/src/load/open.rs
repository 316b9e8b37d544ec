//! An open loop: requests are sent on a fixed schedule, even if earlier ones are not answered.
//!
//! The open loop measures how long a client waits that sends at any time. Latency counts from the time at which a request was
//! due, so a pause of the server of one second affects all requests due in that second, not one per connection.
//!
//! ```text
//! ticks ── due requests ── queue ── connections, one request in flight on each
//! ```
//!
//! All of it runs on one thread, as in the closed loop.

mod tally;
mod ticks;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::shared::Spent;
use super::{LAST_ANSWERS, Window};
use crate::message::{Expect, FIRST_ID, Request};
use crate::wire::{Caller, Target};

pub(crate) use tally::OpenSample;
use tally::Tally;
use ticks::Ticks;

/// Maximum number of due requests that wait for a connection. Further requests are not sent, and counted as unanswered.
const QUEUE_MAX: usize = 100_000;
/// Time limit of one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Maximum rate, in requests per second; the schedule has a resolution of a tenth of a millisecond.
const RATE_MAX: f64 = 1e6;

/// A load: the target, the requests, and the rate.
pub(crate) struct OpenLoad {
    pub(crate) target: Target,
    /// A request for each connection; connections are used in turn as they become free. Their number bounds the
    /// requests in flight, so it must exceed the number that a healthy server has at a time.
    pub(crate) requests: Vec<Request>,
    pub(crate) expect: Expect,
    pub(crate) per_second: f64,
}

/// A running open loop. Dropping it ends the loop.
pub(crate) struct Open {
    per_second: f64,
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

/// State that the schedule and the connections share.
struct Shared {
    queue: Mutex<VecDeque<Due>>,
    /// Notified when a request was put into the queue.
    more: Notify,
    /// The tally of the current window; `None` between windows.
    tally: Mutex<Option<Arc<Tally>>>,
    next_id: AtomicU64,
}

/// A request that is due.
struct Due {
    at: Instant,
    tally: Option<Arc<Tally>>,
}

impl Open {
    /// Opens the connections and begins to send.
    pub(crate) async fn start(load: OpenLoad) -> anyhow::Result<Self> {
        ensure!(
            load.per_second > 0.0 && load.per_second <= RATE_MAX,
            "{} requests a second",
            load.per_second
        );
        ensure!(!load.requests.is_empty(), "no connection to send on");
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            more: Notify::new(),
            tally: Mutex::default(),
            next_id: AtomicU64::new(FIRST_ID),
        });
        let mut tasks = JoinSet::new();
        for request in load.requests {
            let mut caller = Caller::new(load.target.clone());
            caller.connect().await?;
            tasks.spawn(drive(caller, request, load.expect, Arc::clone(&shared)));
        }
        // Before the timer starts, so that each tick comes just after a request is due, and not just before.
        let start = Instant::now();
        let ticks = Ticks::every(Duration::from_secs_f64(1.0 / load.per_second))?;
        tasks.spawn(pace(start, ticks, load.per_second, Arc::clone(&shared)));
        Ok(Self {
            per_second: load.per_second,
            shared,
            tasks,
        })
    }

    /// Measures for the time `lasts`. `front` and `workers` are the processes whose CPU time counts, as in [`Window`].
    ///
    /// # Errors
    ///
    /// When a process under test has ended. The sample counts wrong and missing answers.
    pub(crate) async fn watch(
        &self,
        lasts: Duration,
        front: &[u32],
        workers: &[u32],
    ) -> anyhow::Result<OpenSample> {
        let ((), sample) = self.during(front, workers, sleep(lasts)).await?;
        Ok(sample)
    }

    /// Measures while a future runs.
    pub(crate) async fn during<T>(
        &self,
        front: &[u32],
        workers: &[u32],
        work: impl Future<Output = T>,
    ) -> anyhow::Result<(T, OpenSample)> {
        ensure!(!self.tasks.is_empty(), "nothing is sent");
        let window = Arc::new(Window {
            front: front.to_vec(),
            workers: workers.to_vec(),
            ..Window::default()
        });
        let before = spent(&window).await?;
        let tally = Arc::new(Tally::new()?);
        *self.shared.tally() = Some(Arc::clone(&tally));
        let outcome = work.await;
        *self.shared.tally() = None;
        let seconds = tally.seconds();
        let after = spent(&window).await?;
        // Requests that are not answered then are counted as unanswered.
        let _ = timeout(LAST_ANSWERS, tally.all_answered()).await;
        let sample = tally.sample(self.per_second, seconds, &before, &after)?;
        Ok((outcome, sample))
    }
}

/// Reads CPU times on another thread: reading those of hundreds of processes takes a while, and the schedule must not wait.
async fn spent(window: &Arc<Window>) -> anyhow::Result<Spent> {
    let window = Arc::clone(window);
    tokio::task::spawn_blocking(move || Spent::now(&window))
        .await
        .context("CPU times")?
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, VecDeque<Due>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> MutexGuard<'_, Option<Arc<Tally>>> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, at: Instant) {
        let tally = self.tally().clone().filter(|tally| tally.counts(at));
        if let Some(tally) = &tally {
            tally.due();
        }
        let mut queue = self.queue();
        if queue.len() < QUEUE_MAX {
            queue.push_back(Due { at, tally });
            // Busy connections take further requests when they are done.
            self.more.notify_one();
        }
    }

    async fn take(&self) -> Due {
        loop {
            let next = self.queue().pop_front();
            match next {
                Some(due) => return due,
                None => self.more.notified().await,
            }
        }
    }
}

/// Puts requests into the queue at the times when they are due.
async fn pace(start: Instant, mut ticks: Ticks, per_second: f64, shared: Arc<Shared>) {
    let mut put = 0u64;
    // A timer that fails ends the schedule; the sample then has no due requests.
    while ticks.next().await.is_ok() {
        let now = Instant::now();
        loop {
            let at = start + Duration::from_secs_f64(put as f64 / per_second);
            if at > now {
                break;
            }
            shared.put(at);
            put += 1;
        }
    }
}

/// Sends due requests on one connection, one at a time, until the future is dropped.
async fn drive(mut caller: Caller, mut request: Request, expect: Expect, shared: Arc<Shared>) {
    loop {
        let due = shared.take().await;
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let sent = Instant::now();
        let asked = caller.ask(request.with_id(id), |answer| expect.mismatch(answer, id));
        let outcome = timeout(ANSWER_LIMIT, asked)
            .await
            .with_context(|| format!("no answer within {ANSWER_LIMIT:?}"))
            .flatten()
            .and_then(|fault| fault.map_or(Ok(()), |fault| Err(anyhow::Error::msg(fault))));
        if let Some(tally) = due.tally {
            tally.answered(due.at, sent, outcome);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicUsize;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::message::Envelope;

    const FEW_SECONDS: Duration = Duration::from_secs(30);

    /// A server of pings that takes its time.
    pub(in crate::load) struct Server {
        pub(in crate::load) address: SocketAddr,
        answered: Arc<AtomicUsize>,
        _task: JoinSet<()>,
    }

    impl Server {
        /// `answer` makes the id of an answer of that of the request.
        pub(in crate::load) async fn start(takes: Duration, answer: fn(u64) -> u64) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let answered = Arc::new(AtomicUsize::new(0));
            let mut task = JoinSet::new();
            let count = Arc::clone(&answered);
            task.spawn(async move {
                let mut clients = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    clients.spawn(respond(client, takes, answer, Arc::clone(&count)));
                }
            });
            Self {
                address,
                answered,
                _task: task,
            }
        }

        async fn open(&self, connections: usize, per_second: f64) -> anyhow::Result<Open> {
            Open::start(OpenLoad {
                target: Target::Http(self.address),
                requests: self.pings(connections),
                expect: Expect::PONG,
                per_second,
            })
            .await
        }

        pub(in crate::load) fn pings(&self, connections: usize) -> Vec<Request> {
            vec![Envelope::new(self.address, "t", "n").ping(); connections]
        }

        /// Measures until it has answered so often.
        async fn watched(&self, open: &Open, answers: usize) -> OpenSample {
            let answered = async {
                let answers = answers + self.answered.load(Ordering::Relaxed);
                while self.answered.load(Ordering::Relaxed) < answers {
                    sleep(Duration::from_millis(1)).await;
                }
                7
            };
            let work = timeout(FEW_SECONDS, answered);
            let own = [std::process::id()];
            let (seven, sample) = open.during(&own, &[], work).await.unwrap();
            assert_eq!(seven.unwrap(), 7);
            sample
        }
    }

    async fn respond(
        mut client: TcpStream,
        takes: Duration,
        answer: fn(u64) -> u64,
        count: Arc<AtomicUsize>,
    ) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = client.read(&mut buffer).await {
            let text = std::str::from_utf8(&buffer[..read]).unwrap();
            let message: serde_json::Value =
                serde_json::from_str(text.rsplit("\r\n").next().unwrap()).unwrap();
            let id = answer(message["id"].as_u64().unwrap());
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            sleep(takes).await;
            if client.write_all((head + &body).as_bytes()).await.is_err() {
                return;
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn requests_leave_on_schedule_and_all_are_accounted_for() {
        let server = Server::start(Duration::ZERO, |id| id).await;
        let open = server.open(4, 500.0).await.unwrap();
        let sample = server.watched(&open, 50).await;
        assert!(
            sample.due > 0 && sample.answered == sample.due,
            "{sample:?}"
        );
        // Never ahead of the schedule, but for one due at its very beginning.
        assert!(
            sample.due as f64 <= 500.0 * sample.seconds + 1.0,
            "{sample:?}"
        );
        assert_eq!((sample.wrong, sample.unanswered), (0, 0), "{sample:?}");
        assert!(sample.fault().is_none() && sample.p50_us > 0.0);
        assert!(!sample.curve.is_empty() && !sample.worst.is_empty());
    }

    #[tokio::test]
    async fn latency_counts_from_when_a_request_was_due() {
        // One connection and 20 ms for each answer: at 200 a second the tenth waits for more than a tenth of a second.
        let server = Server::start(Duration::from_millis(20), |id| id).await;
        let open = server.open(1, 200.0).await.unwrap();
        let sample = server.watched(&open, 10).await;
        assert_eq!(sample.answered, sample.due, "{sample:?}");
        assert!(sample.max_us > 100_000.0, "{sample:?}");
        assert!(sample.late > 0, "{sample:?}");
    }

    #[tokio::test]
    async fn wrong_answers_are_counted_and_the_connection_is_made_anew() {
        let server = Server::start(Duration::ZERO, |_| 1).await;
        let open = server.open(2, 500.0).await.unwrap();
        let sample = server.watched(&open, 10).await;
        assert!(sample.due > 0 && sample.wrong == sample.due, "{sample:?}");
        assert_eq!(sample.answered, 0, "{sample:?}");
        let fault = sample.fault().unwrap();
        assert!(fault.contains("not the answer to"), "{fault}");
    }

    #[tokio::test]
    async fn impossible_schedules_are_refused() {
        let server = Server::start(Duration::ZERO, |id| id).await;
        for (connections, rate) in [(1, 0.0), (1, 1e9), (0, 10.0)] {
            assert!(server.open(connections, rate).await.is_err());
        }
    }
}
