//! Limits that all replicas share. This replica reports its use of budgets to the store, and adds the use by other replicas to
//! its own counts.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::MissedTickBehavior;
use tooldock_base::metric_table;
use tooldock_sessions::replicas::Replicas;

use crate::rules::Rules;

/// Interval at which use is exchanged with the store. A limit can be exceeded only by requests within one interval.
const EVERY: Duration = Duration::from_millis(100);

/// Maximum number of budgets in one exchange. It is small enough that Redis answers within its time limit and other requests to
/// Redis are not delayed.
const BUDGETS: usize = 512;

metric_table! {
    /// Counters of the exchanges with the store.
    pub(super) struct ExchangeMetrics(registry) {
        exchanges: IntCounterVec["outcome"] = "tooldock_shared_limit_exchanges_total",
            "Exchanges with the session store about limits that replicas share, by outcome (done, failed)";
    }
}

/// Shares the limits of the rules in force until the future is dropped. While the store does not respond, this replica counts
/// only its own use. That use is not reported later, because it would reduce the budgets of other replicas at the wrong time.
pub(super) async fn share(
    rules: Arc<ArcSwap<Rules>>,
    replicas: Arc<Replicas>,
    metrics: ExchangeMetrics,
) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let limits = rules.load().admission.take_use();
        for (at, used) in limits.used().chunks(BUDGETS).enumerate() {
            let answer = replicas.take_budgets(used).await;
            let outcome = if answer.is_ok() { "done" } else { "failed" };
            metrics.exchanges.with_label_values(&[outcome]).inc();
            match answer {
                Ok(whole_in) => limits.move_on(at * BUDGETS, &whole_in),
                Err(error) => {
                    // Not logged as a warning: the heartbeats already report that the store does not answer.
                    tracing::debug!(%error, "limits are not shared");
                    break;
                }
            }
        }
    }
}
