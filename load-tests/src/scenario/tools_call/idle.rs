//! The memory of a gateway that has nothing to do.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::sleep;

use crate::options::Options;
use crate::processes::Memory;
use crate::servers::gateway::Gateway;

/// Between its start and the look at it: what is freed late counts as freed.
pub(super) const SETTLE: Duration = Duration::from_secs(2);

pub(super) async fn memory(options: &Options) -> anyhow::Result<Memory> {
    let gateway = Gateway::without_tools(options).await?;
    ensure!(
        gateway.has_no_children(),
        "a gateway without tools has child processes"
    );
    sleep(SETTLE).await;
    gateway.memory()
}
