//! The memory of an idle gateway.

use std::time::Duration;

use anyhow::ensure;
use tokio::time::sleep;

use crate::options::Options;
use crate::processes::Memory;
use crate::servers::gateway::Gateway;

/// Time between its start and the reading, so that memory that is freed late counts as freed.
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
