//! From a new folder of tools to the first call: what a worker without dependencies takes to start.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Serialize;
use tokio::time::timeout;

use super::Run;
use crate::message::{Envelope, Expect, FIRST_ID};
use crate::servers::gateway::{ASYNC_TOOL, Gateway, Layout};
use crate::wire::{Connection, Target};

const STARTS: usize = 5;
const STARTS_QUICK: usize = 2;
const STARTS_SUM: &str = "tooldock_worker_start_seconds_sum";
const STARTS_COUNT: &str = "tooldock_worker_start_seconds_count";
const FIRST_CALL_LIMIT: Duration = Duration::from_secs(10);

/// How long it takes from a new folder to tools that can be called.
#[derive(Debug, Default, Serialize)]
pub(super) struct WorkerStart {
    /// `POST /reload` to its answer, in the order measured.
    pub(super) reload_ms: Vec<f64>,
    /// From the same moment to the answer of the first call.
    pub(super) first_call_ms: Vec<f64>,
    /// The gateway's own mean over the same starts, from spawn to ready.
    pub(super) spawn_to_ready_ms: Option<f64>,
}

/// A gateway with one namespace gets others.
pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<WorkerStart> {
    let gateway = Gateway::with_tools(run.options, Layout::Separate).await?;
    let starts = if run.options.quick {
        STARTS_QUICK
    } else {
        STARTS
    };
    let mut found = WorkerStart::default();
    let before = started(&gateway).await?;
    for number in 1..=starts {
        let namespace = format!("new{number}");
        gateway.add_tools(&namespace)?;
        let start = Instant::now();
        gateway.reload().await?;
        found.reload_ms.push(start.elapsed().as_secs_f64() * 1e3);
        first_call(&gateway, &namespace)
            .await
            .with_context(|| format!("after the reload with {namespace}"))?;
        found
            .first_call_ms
            .push(start.elapsed().as_secs_f64() * 1e3);
    }
    let after = started(&gateway).await?;
    let count = after.1 - before.1;
    found.spawn_to_ready_ms = (count > 0.0).then(|| (after.0 - before.0) / count * 1e3);
    run.progress(&format!(
        "{starts} worker starts: {:.0?} ms",
        found.reload_ms
    ));
    Ok(found)
}

/// Seconds and starts so far.
async fn started(gateway: &Gateway) -> anyhow::Result<(f64, f64)> {
    let value = async |series| {
        gateway
            .metric(series)
            .await?
            .with_context(|| format!("no {series}"))
    };
    Ok((value(STARTS_SUM).await?, value(STARTS_COUNT).await?))
}

/// The reload has answered, so the tool must be there, not soon.
async fn first_call(gateway: &Gateway, namespace: &str) -> anyhow::Result<()> {
    let envelope = Envelope {
        namespace,
        ..gateway.envelope()
    };
    let mut connection = Connection::open(&Target::Http(gateway.address)).await?;
    let mut request = envelope.call(ASYNC_TOOL);
    let asked = connection.ask(request.with_id(FIRST_ID));
    let answer = timeout(FIRST_CALL_LIMIT, asked)
        .await
        .context("no answer")??;
    let fault = Expect::ECHO.mismatch(&answer, FIRST_ID);
    ensure!(fault.is_none(), "{}", fault.unwrap_or_default());
    Ok(())
}
