//! Time from a new folder of tools to the first call: the start of a worker without dependencies.

use std::time::{Duration, Instant};

use anyhow::Context;

use super::{Run, TO_ANSWER, TO_FIRST_CALL, TOOK};
use crate::message::Expect;
use crate::report::{Numbers, Section};
use crate::servers::gateway::{ASYNC_TOOL, Gateway, Layout};
use crate::wire::Target;

const STARTS_SUM: &str = "tooldock_worker_start_seconds_sum";
const STARTS_COUNT: &str = "tooldock_worker_start_seconds_count";
const FIRST_CALL_LIMIT: Duration = Duration::from_secs(10);

/// Adds namespaces to a gateway with one namespace, and measures the time until their tools can be called.
pub(super) async fn measure(run: &mut Run<'_>, section: &mut Section) -> anyhow::Result<()> {
    let gateway = Gateway::with_tools(run.options, Layout::Separate).await?;
    let starts = run.count_or_quick("starts")?;
    let before = started(&gateway).await?;
    for number in 1..=starts {
        let namespace = format!("new{number}");
        gateway.add_tools(&namespace)?;
        let start = Instant::now();
        let ms = || start.elapsed().as_secs_f64() * 1e3;
        gateway.reload().await?;
        let answered = ms();
        first_call(&gateway, &namespace)
            .await
            .with_context(|| format!("after the reload with {namespace}"))?;
        section.add(TOOK, [TO_ANSWER], Numbers::one("ms", answered));
        section.add(TOOK, [TO_FIRST_CALL], Numbers::one("ms", ms()));
        run.progress(&format!(
            "worker start {number} of {starts}: {answered:.0} ms"
        ));
    }
    let after = started(&gateway).await?;
    let count = after.1 - before.1;
    if count > 0.0 {
        let ready = (after.0 - before.0) / count * 1e3;
        section.note(format!(
            "Of a worker start, {ready:.0} ms pass between its process and its readiness, by the gateway's own count."
        ));
    }
    Ok(())
}

/// The seconds of all worker starts so far, and their number.
async fn started(gateway: &Gateway) -> anyhow::Result<(f64, f64)> {
    let value = async |series| {
        gateway
            .metric(series)
            .await?
            .with_context(|| format!("no {series}"))
    };
    Ok((value(STARTS_SUM).await?, value(STARTS_COUNT).await?))
}

/// Makes the first call. The reload has answered, so the tool must be available immediately.
async fn first_call(gateway: &Gateway, namespace: &str) -> anyhow::Result<()> {
    let request = gateway.envelope().of(namespace).call(ASYNC_TOOL);
    let target = Target::Http(gateway.address);
    Expect::ECHO.asked(&target, request, FIRST_CALL_LIMIT).await
}
