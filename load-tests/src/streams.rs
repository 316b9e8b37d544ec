//! Many idle event streams: what one costs in memory, how fast one event reaches all of them, and whether calls suffer.
//!
//! ```text
//! sessions opened ── memory ── a GET stream in each ── memory ── calls ── five events to all ── closed ── memory
//! ```
//!
//! The same streams are then held through an nginx in front of the same gateway, for what nginx adds. A process here may
//! hold 20,000 descriptors, so 19,000 streams are the most.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::load::{self, Load};
use crate::message::{Envelope, Expect, FIRST_ID};
use crate::options::Options;
use crate::plan::{ANNOUNCING_TOOL, ASYNC_TOOL, Layout};
use crate::processes::{CpuTimes, Memory};
use crate::servers::gateway::{Gateway, threads};
use crate::servers::nginx::{self, Nginx};
use crate::wire::{Connection, Target};

/// Streams held at once, in the order measured.
const COUNTS: [usize; 2] = [5_000, 19_000];
/// Events sent to all of them; the median counts.
const EVENTS: usize = 5;
/// Connections that call a tool meanwhile.
const CALLERS: usize = 8;
/// How long one event may take to reach the last stream.
const EVENT_LIMIT: Duration = Duration::from_secs(30);
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// Between the last change and a look at the memory.
const SETTLE: Duration = Duration::from_secs(2);
/// How an announced change is recognised on a stream.
const EVENT: &[u8] = b"list_changed";

/// What streams cost, one entry for each count, directly and behind nginx.
#[derive(Debug, Serialize)]
pub(crate) struct IdleStreams {
    pub(crate) direct: Vec<Held>,
    pub(crate) behind_nginx: Vec<Proxied>,
}

/// So many streams held by the gateway alone.
#[derive(Debug, Serialize)]
pub(crate) struct Held {
    pub(crate) streams: usize,
    /// Anonymous memory of the gateway for a session, before any stream.
    pub(crate) session_kib: f64,
    /// The same for a stream on top of its session.
    pub(crate) stream_kib: f64,
    /// What a stream left behind after all had closed.
    pub(crate) left_kib: f64,
    /// From sending the call that announces a change to the event on the last stream, in the order measured.
    pub(crate) fan_out_ms: Vec<f64>,
    /// CPU time of the gateway for one of these events.
    pub(crate) fan_out_cpu_ms: f64,
    /// p99 of tool calls from a few connections before the streams and while they idle.
    pub(crate) p99_before_us: f64,
    pub(crate) p99_meanwhile_us: f64,
}

/// The same streams through nginx.
#[derive(Debug, Serialize)]
pub(crate) struct Proxied {
    pub(crate) streams: usize,
    /// Anonymous memory of nginx's workers for a stream.
    pub(crate) nginx_kib: f64,
    pub(crate) fan_out_ms: Vec<f64>,
}

pub(crate) async fn idle(options: &Options) -> anyhow::Result<IdleStreams> {
    let mut direct = Vec::new();
    let mut behind_nginx = Vec::new();
    for count in COUNTS {
        eprintln!("  {count} streams");
        direct.push(held(options, count).await?);
    }
    if let Some(program) = nginx::program() {
        for count in COUNTS {
            eprintln!("  {count} streams behind nginx");
            behind_nginx.push(proxied(options, &program, count).await?);
        }
    }
    Ok(IdleStreams {
        direct,
        behind_nginx,
    })
}

async fn held(options: &Options, count: usize) -> anyhow::Result<Held> {
    let gateway = Gateway::with_tools(options, Layout::Separate).await?;
    let p99_before_us = calls(options, &gateway).await?;
    sleep(SETTLE).await;
    let empty = gateway.memory()?;
    let sessions = sessions(&gateway, count).await?;
    sleep(SETTLE).await;
    let with_sessions = gateway.memory()?;
    let streams = Streams::open(gateway.envelope(), &sessions).await?;
    sleep(SETTLE).await;
    let with_streams = gateway.memory()?;
    let p99_meanwhile_us = calls(options, &gateway).await?;
    let before = CpuTimes::of(&[gateway.id()])?;
    let fan_out_ms = streams.fan_out(&gateway).await?;
    let cpu = CpuTimes::of(&[gateway.id()])?.since(&before);
    drop(streams);
    sleep(SETTLE).await;
    let after = gateway.memory()?;
    let each = |now: Memory, then: Memory| {
        (now.anonymous_kib as f64 - then.anonymous_kib as f64) / count as f64
    };
    Ok(Held {
        streams: count,
        session_kib: each(with_sessions, empty),
        stream_kib: each(with_streams, with_sessions),
        left_kib: each(after, with_sessions),
        fan_out_ms,
        fan_out_cpu_ms: cpu as f64 / 1e6 / EVENTS as f64,
        p99_before_us,
        p99_meanwhile_us,
    })
}

async fn proxied(
    options: &Options,
    program: &std::path::Path,
    count: usize,
) -> anyhow::Result<Proxied> {
    let gateway = Gateway::with_tools(options, Layout::Separate).await?;
    let nginx = Nginx::in_front_of(program, threads()?, gateway.address).await?;
    let sessions = sessions(&gateway, count).await?;
    let before = nginx.anonymous_kib()?;
    let through = Envelope {
        to: nginx.address,
        ..gateway.envelope()
    };
    let streams = Streams::open(through, &sessions).await?;
    sleep(SETTLE).await;
    let after = nginx.anonymous_kib()?;
    Ok(Proxied {
        streams: count,
        nginx_kib: (after as f64 - before as f64) / count as f64,
        fan_out_ms: streams.fan_out(&gateway).await?,
    })
}

async fn calls(options: &Options, gateway: &Gateway) -> anyhow::Result<f64> {
    let sample = load::measure(Load {
        target: Target::Http(gateway.address),
        requests: vec![gateway.envelope().call(ASYNC_TOOL); CALLERS],
        expect: Expect::ECHO,
        warm_up: options.warm_up(),
        measured: options.measured(),
        front: vec![gateway.id()],
        workers: Vec::new(),
    })
    .await?;
    Ok(sample.p99_us)
}

/// Opens sessions over a few connections.
async fn sessions(gateway: &Gateway, count: usize) -> anyhow::Result<Vec<String>> {
    let mut connection = Connection::open(&Target::Http(gateway.address)).await?;
    let mut sessions = Vec::with_capacity(count);
    for _ in 0..count {
        sessions.push(gateway.open_session_on(&mut connection).await?);
    }
    Ok(sessions)
}

/// Open streams and how many events have arrived on them.
struct Streams {
    count: usize,
    arrived: Arc<Arrived>,
    // Ends the readers, and with them the connections.
    _readers: JoinSet<()>,
}

#[derive(Default)]
struct Arrived {
    events: AtomicUsize,
    closed: AtomicUsize,
    progress: Notify,
}

impl Streams {
    async fn open(envelope: Envelope<'static>, sessions: &[String]) -> anyhow::Result<Self> {
        let arrived = Arc::new(Arrived::default());
        let mut readers = JoinSet::new();
        for session in sessions {
            let envelope = Envelope {
                session: Some(session),
                ..envelope
            };
            let stream = timeout(OPEN_LIMIT, open(&envelope)).await??;
            readers.spawn(read(stream, Arc::clone(&arrived)));
        }
        Ok(Self {
            count: sessions.len(),
            arrived,
            _readers: readers,
        })
    }

    /// Announces a change, several times, each after the last one has reached every stream.
    async fn fan_out(&self, gateway: &Gateway) -> anyhow::Result<Vec<f64>> {
        let mut connection = Connection::open(&Target::Http(gateway.address)).await?;
        let mut request = gateway.envelope().announce();
        let mut times = Vec::new();
        for event in 0..EVENTS {
            let id = FIRST_ID + event as u64;
            let target = self.arrived.events.load(Ordering::Relaxed) + self.count;
            let start = Instant::now();
            let answer = connection.ask(request.with_id(id)).await?;
            let fault = Expect::ANNOUNCED.mismatch(&answer, id);
            ensure!(
                fault.is_none(),
                "{ANNOUNCING_TOOL}: {}",
                fault.unwrap_or_default()
            );
            self.arrived.until(target).await?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        Ok(times)
    }
}

impl Arrived {
    async fn until(&self, target: usize) -> anyhow::Result<()> {
        let all = async {
            while self.events.load(Ordering::Relaxed) < target {
                self.progress.notified().await;
            }
        };
        if timeout(EVENT_LIMIT, all).await.is_err() {
            bail!(
                "{} of {target} events after {EVENT_LIMIT:?}; {} streams were closed",
                self.events.load(Ordering::Relaxed),
                self.closed.load(Ordering::Relaxed)
            );
        }
        Ok(())
    }
}

/// Opens a stream and reads its head.
async fn open(envelope: &Envelope<'_>) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(envelope.to)
        .await
        .context("connecting")?;
    stream.write_all(&envelope.stream()).await?;
    let mut head = Vec::with_capacity(512);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        match stream.read(&mut chunk).await? {
            0 => bail!("closed before its head: {}", String::from_utf8_lossy(&head)),
            read => head.extend_from_slice(&chunk[..read]),
        }
    }
    let text = String::from_utf8_lossy(&head);
    ensure!(
        text.starts_with("HTTP/1.1 200") && text.contains("text/event-stream"),
        "not a stream: {text}"
    );
    Ok(stream)
}

/// Counts the events of one stream. A comment is none.
async fn read(mut stream: TcpStream, arrived: Arc<Arrived>) {
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
        // An event is small and written at once, so it does not come in two reads.
        let events = chunk[..read]
            .windows(EVENT.len())
            .filter(|window| *window == EVENT)
            .count();
        if events > 0 {
            arrived.events.fetch_add(events, Ordering::Relaxed);
            arrived.progress.notify_one();
        }
    }
    arrived.closed.fetch_add(1, Ordering::Relaxed);
}
