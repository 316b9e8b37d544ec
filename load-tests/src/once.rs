//! What is measured once a run and not as a rate: how fast a worker starts, how much memory an idle gateway holds.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::time::sleep;

use crate::load::{self, Load};
use crate::message::{Envelope, Expect};
use crate::options::Options;
use crate::plan::{ASYNC_TOOL, Layout};
use crate::processes::Memory;
use crate::servers::gateway::{EMPTY_NAMESPACE, Gateway};
use crate::wire::{Connection, Target};

const STARTS: usize = 5;
const STARTS_SUM: &str = "tooldock_worker_start_seconds_sum";
const STARTS_COUNT: &str = "tooldock_worker_start_seconds_count";
/// Between the last request and the look at the memory: what is freed late counts as freed.
const SETTLE: Duration = Duration::from_secs(2);
const FIRST_CALL_LIMIT: Duration = Duration::from_secs(10);

/// How long it takes from a new folder to tools that can be called.
#[derive(Debug, Serialize)]
pub(crate) struct WorkerStart {
    /// `POST /reload` to its answer, in the order measured.
    pub(crate) reload_ms: Vec<f64>,
    /// The gateway's own mean over the same starts, from spawn to ready, if it has that metric.
    pub(crate) spawn_to_ready_ms: Option<f64>,
}

pub(crate) async fn worker_start(options: &Options) -> anyhow::Result<WorkerStart> {
    let gateway = Gateway::with_tools(options, Layout::Separate).await?;
    let mut reload_ms = Vec::new();
    let before = starts(&gateway).await?;
    for number in 1..=STARTS {
        let namespace = format!("new{number}");
        gateway.add_tools(&namespace)?;
        let start = Instant::now();
        gateway.reload().await?;
        reload_ms.push(start.elapsed().as_secs_f64() * 1e3);
        first_call(&gateway, &namespace)
            .await
            .with_context(|| format!("after the reload with {namespace}"))?;
    }
    let after = starts(&gateway).await?;
    let spawn_to_ready_ms = before.zip(after).and_then(|(before, after)| {
        let count = after.1 - before.1;
        (count > 0.0).then(|| (after.0 - before.0) / count * 1e3)
    });
    Ok(WorkerStart {
        reload_ms,
        spawn_to_ready_ms,
    })
}

/// Seconds and starts so far.
async fn starts(gateway: &Gateway) -> anyhow::Result<Option<(f64, f64)>> {
    Ok(gateway
        .metric(STARTS_SUM)
        .await?
        .zip(gateway.metric(STARTS_COUNT).await?))
}

/// The reload has answered, so the tool must be there, not soon.
async fn first_call(gateway: &Gateway, namespace: &str) -> anyhow::Result<()> {
    let envelope = Envelope {
        namespace,
        ..gateway.envelope()
    };
    let id = crate::message::FIRST_ID;
    let mut connection = Connection::open(&Target::Http(gateway.address)).await?;
    let mut request = envelope.call(ASYNC_TOOL);
    let answer =
        tokio::time::timeout(FIRST_CALL_LIMIT, connection.ask(request.with_id(id))).await??;
    let fault = Expect::ECHO.mismatch(&answer, id);
    ensure!(fault.is_none(), "{}", fault.unwrap_or_default());
    Ok(())
}

/// The gateway's memory without any worker.
#[derive(Debug, Serialize)]
pub(crate) struct IdleMemory {
    pub(crate) started: Memory,
    pub(crate) after_load: Memory,
}

pub(crate) async fn memory(options: &Options) -> anyhow::Result<IdleMemory> {
    let gateway = Gateway::without_tools(options).await?;
    ensure!(
        gateway.has_no_children(),
        "a gateway without tools has child processes"
    );
    sleep(SETTLE).await;
    let started = gateway.memory()?;
    let envelope = Envelope {
        namespace: EMPTY_NAMESPACE,
        ..gateway.envelope()
    };
    load::measure(Load {
        target: Target::Http(gateway.address),
        requests: vec![envelope.ping(); options.connections],
        expect: Expect::PONG,
        warm_up: options.warm_up(),
        measured: options.measured(),
        front: vec![gateway.id()],
        workers: Vec::new(),
    })
    .await?;
    sleep(SETTLE).await;
    Ok(IdleMemory {
        started,
        after_load: gateway.memory()?,
    })
}
