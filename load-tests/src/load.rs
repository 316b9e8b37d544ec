//! A closed loop: every connection sends its next request when it has the answer to the last.
//!
//! A closed loop shows what a server can do, not how it behaves when more comes in than it can take.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::message::{Expect, FIRST_ID, Request};
use crate::processes::{CpuTimes, machine_busy};
use crate::wire::{Connection, Target};

/// Answers that may be wrong before a connection gives up: the first one tells the reason, the rest only how many.
const FAULTS_MAX: u64 = 100;
/// Requests of one measurement. No server here comes near.
const REQUESTS_MAX: u64 = 50_000_000;
/// How long the last answers may take once the time is over.
const LAST_ANSWERS: Duration = Duration::from_secs(10);
/// Latencies are kept to three digits up to here.
const LATENCY_MAX: Duration = Duration::from_secs(60);

/// What to send where, for how long, and whose CPU time to count.
pub(crate) struct Load {
    pub(crate) target: Target,
    /// One for each connection.
    pub(crate) requests: Vec<Request>,
    pub(crate) expect: Expect,
    pub(crate) warm_up: Duration,
    pub(crate) measured: Duration,
    /// The processes under test.
    pub(crate) front: Vec<u32>,
    /// The Python worker behind them.
    pub(crate) worker: Option<u32>,
}

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Sample {
    pub(crate) requests: u64,
    pub(crate) per_second: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// CPU time of the process under test, for one request.
    pub(crate) cpu_us: f64,
    pub(crate) worker_cpu_us: Option<f64>,
    /// CPU time of this program, for one request: it takes part in the contest for the cores.
    pub(crate) client_cpu_us: f64,
    /// Cores that were busy with neither the process under test, nor its worker, nor this program. Much of it spoils
    /// a sample.
    pub(crate) other_cores: f64,
    /// Connections the server closed after an answer. Not a fault, but each costs a new one.
    pub(crate) closed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Phase {
    WarmUp,
    Measured,
    Over,
}

/// What the connections share. All of them are on one thread, so nothing here is ever contended.
struct Shared {
    phase: AtomicU8,
    next_id: AtomicU64,
    closed: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
    faults: Mutex<Faults>,
}

#[derive(Default)]
struct Faults {
    count: u64,
    first: Option<String>,
}

impl Shared {
    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u8
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Whether the connection may go on.
    fn fault(&self, what: String) -> bool {
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        faults.count += 1;
        faults.first.get_or_insert(what);
        faults.count < FAULTS_MAX
    }
}

/// CPU time up to one moment.
struct Spent {
    front: CpuTimes,
    worker: CpuTimes,
    client: CpuTimes,
    machine: u64,
}

impl Spent {
    fn now(front: &[u32], worker: &[u32]) -> anyhow::Result<Self> {
        Ok(Self {
            front: CpuTimes::of(front)?,
            worker: CpuTimes::of(worker)?,
            client: CpuTimes::of(&[std::process::id()])?,
            machine: machine_busy()?,
        })
    }
}

/// Runs the load once.
///
/// # Errors
///
/// When any answer of it was wrong or missing, warm-up included.
pub(crate) async fn measure(load: Load) -> anyhow::Result<Sample> {
    let highest = u64::try_from(LATENCY_MAX.as_nanos()).unwrap_or(u64::MAX);
    let shared = Arc::new(Shared {
        phase: AtomicU8::new(Phase::WarmUp as u8),
        next_id: AtomicU64::new(FIRST_ID),
        closed: AtomicU64::new(0),
        latencies: Mutex::new(Histogram::new_with_bounds(1_000, highest, 3)?),
        faults: Mutex::default(),
    });
    let mut connections = JoinSet::new();
    for request in load.requests {
        let connection = Connection::open(&load.target).await.context("connecting")?;
        connections.spawn(drive(
            connection,
            load.target.clone(),
            request,
            load.expect,
            Arc::clone(&shared),
        ));
    }
    sleep(load.warm_up).await;
    let worker: Vec<u32> = load.worker.into_iter().collect();
    let before = Spent::now(&load.front, &worker)?;
    let start = Instant::now();
    shared.enter(Phase::Measured);
    sleep(load.measured).await;
    shared.enter(Phase::Over);
    let seconds = start.elapsed().as_secs_f64();
    let after = Spent::now(&load.front, &worker)?;
    // Dropping the set ends what is left of it.
    timeout(LAST_ANSWERS, connections.join_all())
        .await
        .context("answers still missing 10 s after the end")?;

    let faults = std::mem::take(&mut *shared.faults.lock().unwrap_or_else(PoisonError::into_inner));
    if let Some(first) = faults.first {
        bail!("{} wrong answers, the first one: {first}", faults.count);
    }
    let latencies = shared
        .latencies
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let requests = latencies.len();
    if requests == 0 {
        bail!("no request was answered in {seconds:.1} s");
    }
    let front = after.front.since(&before.front);
    let worker = after.worker.since(&before.worker);
    let client = after.client.since(&before.client);
    if front == 0 {
        bail!("the processes under test used no CPU time: not those that answered");
    }
    let others =
        (after.machine.saturating_sub(before.machine)).saturating_sub(front + worker + client);
    let each = |nanoseconds: u64| nanoseconds as f64 / 1e3 / requests as f64;
    Ok(Sample {
        requests,
        per_second: requests as f64 / seconds,
        p50_us: latencies.value_at_quantile(0.50) as f64 / 1e3,
        p99_us: latencies.value_at_quantile(0.99) as f64 / 1e3,
        cpu_us: each(front),
        worker_cpu_us: load.worker.map(|_| each(worker)),
        client_cpu_us: each(client),
        other_cores: others as f64 / 1e9 / seconds,
        closed: shared.closed.load(Ordering::Relaxed),
    })
}

/// One connection until the time is over or it fails.
async fn drive(
    mut connection: Connection,
    target: Target,
    mut request: Request,
    expect: Expect,
    shared: Arc<Shared>,
) {
    while !shared.is(Phase::Over) {
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        if id >= FIRST_ID + REQUESTS_MAX {
            return;
        }
        let start = Instant::now();
        let closes = match connection.ask(request.with_id(id)).await {
            Ok(answer) => {
                let took = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
                if shared.is(Phase::Measured) {
                    // Those begun just before the window make up for those it cuts off at its end.
                    shared
                        .latencies
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .saturating_record(took);
                }
                let fault = expect.mismatch(&answer, id);
                let closes = answer.closes;
                if fault.is_some_and(|fault| !shared.fault(fault)) {
                    return;
                }
                closes
            }
            Err(error) => {
                shared.fault(format!("{error:#}"));
                return;
            }
        };
        if closes {
            shared.closed.fetch_add(1, Ordering::Relaxed);
            match Connection::open(&target).await {
                Ok(again) => connection = again,
                Err(error) => {
                    shared.fault(format!("connecting again: {error:#}"));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::message::Envelope;

    /// A server that answers each ping with what `answer` makes of the request's text.
    async fn load_on(answer: fn(&str) -> String) -> anyhow::Result<Sample> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let server = tokio::spawn(async move {
            let mut clients = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                clients.spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(read @ 1..) = client.read(&mut buffer).await {
                        let body = answer(std::str::from_utf8(&buffer[..read]).unwrap());
                        let text = format!(
                            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                            body.len()
                        );
                        if client.write_all(text.as_bytes()).await.is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let envelope = Envelope {
            to,
            token: "t",
            namespace: "n",
            session: None,
        };
        let sample = measure(Load {
            target: Target::Http(to),
            requests: vec![envelope.ping(); 3],
            expect: Expect::PONG,
            warm_up: Duration::from_millis(10),
            measured: Duration::from_millis(100),
            front: vec![std::process::id()],
            worker: None,
        })
        .await;
        server.abort();
        sample
    }

    fn pong(request: &str) -> String {
        let message: serde_json::Value =
            serde_json::from_str(request.rsplit("\r\n").next().unwrap()).unwrap();
        format!(
            r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#,
            message["id"]
        )
    }

    #[tokio::test]
    async fn right_answers_are_counted_and_timed() {
        let sample = load_on(pong).await.unwrap();
        assert!(sample.requests > 0 && sample.cpu_us > 0.0, "{sample:?}");
        assert!(
            sample.p50_us > 0.0 && sample.p50_us <= sample.p99_us,
            "{sample:?}"
        );
        assert_eq!((sample.closed, sample.worker_cpu_us), (0, None));
    }

    #[tokio::test]
    async fn an_answer_with_another_id_fails_the_measurement() {
        let error = load_on(|_| r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("not the answer to"), "{error}");
    }
}
