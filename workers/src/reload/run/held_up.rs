//! The log's word on namespaces that hold the first scan up: until it is over, the gateway is not ready.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::names::NamespaceName;
use crate::registry::Registry;

/// The time of the first scan after which the log names the namespaces that are not up yet. Each further line comes after
/// twice the time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Names at most that one line has.
const NAMED_MAX: usize = 20;

/// When the log is told next, if ever.
pub(super) struct HeldUp {
    since: Instant,
    next: Option<Instant>,
}

impl HeldUp {
    /// Begins to wait. Of later runs nothing is told: their namespaces are served meanwhile.
    pub(super) fn new(registry: &Registry) -> Self {
        let since = Instant::now();
        let is_first = registry.startup().is_scanning();
        Self {
            since,
            next: is_first.then(|| since + PATIENCE),
        }
    }

    /// Waits until the log is to be told.
    pub(super) async fn due(&self) {
        match self.next {
            Some(next) => sleep_until(next).await,
            None => std::future::pending().await,
        }
    }

    /// Names the namespaces that the scan waits for.
    pub(super) fn tell<'a>(&mut self, waited_for: impl Iterator<Item = &'a NamespaceName>) {
        let now = Instant::now();
        let waited = now.duration_since(self.since);
        self.next = Some(now + waited);
        let mut names: Vec<_> = waited_for.map(NamespaceName::as_str).collect();
        names.sort_unstable();
        let more = names.len().saturating_sub(NAMED_MAX);
        names.truncate(NAMED_MAX);
        tracing::warn!(
            namespaces = names.join(", "),
            more = (more > 0).then_some(more),
            seconds = waited.as_secs(),
            "the gateway is not ready yet: the first scan waits for these namespaces"
        );
    }
}
