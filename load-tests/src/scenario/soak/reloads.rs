//! Repeatedly changes the code of a namespace and reloads. After each reload, the new code must answer.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::time::timeout;

use super::scene::{CHANGING, Scene};
use crate::servers::gateway::Gateway;

const EVERY: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(60);
const NAME: &str = "reloads";

pub(super) async fn change(gateway: &Gateway, scene: &Scene) {
    let mut version = 0;
    while wait(scene).await {
        version += 1;
        let changed = timeout(LIMIT, gateway.change(CHANGING, version)).await;
        let changed = changed.with_context(|| format!("not done after {LIMIT:?}"));
        scene.books().outcome(NAME, changed.flatten().map(drop));
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
