//! Log lines about namespaces that delay the first scan. The gateway is not ready until the first scan has ended.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tooldock_base::names::NamespaceName;

use crate::registry::Registry;

/// Time of the first scan after which the log names the namespaces that are not ready yet. The interval doubles with each
/// further line.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum number of names in one log line.
const NAMED_MAX: usize = 20;

/// Timer of the log lines that name the namespaces which delay the first scan.
pub(super) struct ScanDelayLog {
    since: Instant,
    next: Option<Instant>,
}

impl ScanDelayLog {
    /// Starts the timer. Nothing is logged in runs after the first scan, since their namespaces are already served.
    pub(super) fn new(registry: &Registry) -> Self {
        let since = Instant::now();
        let is_first = registry.startup().is_scanning();
        Self {
            since,
            next: is_first.then(|| since + PATIENCE),
        }
    }

    /// Waits until the next log line is due. Never returns if no line is due.
    pub(super) async fn due(&self) {
        match self.next {
            Some(next) => sleep_until(next).await,
            None => std::future::pending().await,
        }
    }

    /// Logs the namespaces that the first scan waits for.
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
