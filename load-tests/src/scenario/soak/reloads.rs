//! Repeatedly changes the code of a namespace and reloads. After each reload, the new code must answer.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::time::timeout;

use super::calls::plain_call;
use super::scene::{CHANGING, Scene};
use crate::servers::gateway::Gateway;
use crate::wire::exchange;

const EVERY: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "reloads";

/// The code of the namespace in one of its versions.
pub(super) fn code(version: u64) -> String {
    format!(
        "from fastmcp.tools import tool\n\n\n@tool\nasync def version() -> str:\n    \
         \"\"\"Which code this is.\"\"\"\n    return \"version {version};\"\n"
    )
}

pub(super) async fn change(gateway: &Gateway, scene: &Scene) {
    let mut version = 0;
    while wait(scene).await {
        version += 1;
        let changed = timeout(LIMIT, one(gateway, scene, version)).await;
        let changed = changed.with_context(|| format!("not done after {LIMIT:?}"));
        scene.books().outcome(NAME, changed.flatten());
    }
}

/// Waits for the next change; checks often whether the run is over, so that the end is not delayed.
async fn wait(scene: &Scene) -> bool {
    let next = Instant::now() + EVERY;
    while Instant::now() < next {
        if !scene.goes_on_after(Duration::from_millis(200)).await {
            return false;
        }
    }
    true
}

async fn one(gateway: &Gateway, scene: &Scene, version: u64) -> anyhow::Result<()> {
    gateway.write_code(CHANGING, &code(version))?;
    gateway.reload().await.context("POST /reload")?;
    let call = plain_call(scene.envelope(CHANGING), "version", scene.next_id());
    let (status, _, body) = exchange(gateway.address, &call, LIMIT).await?;
    let expected = format!("version {version};");
    ensure!(
        status == 200 && body.contains(&expected),
        "after the reload with {expected} {status}: {body}"
    );
    Ok(())
}
