//! Limits that all replicas share: reports this replica's use of budgets to the store, and counts the use by other
//! replicas.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::time::MissedTickBehavior;
use tooldock_base::metric_table;
use tooldock_sessions::replicas::Replicas;

use crate::rules::Rules;

/// Interval of exchanges. Only requests within one interval can exceed a limit.
const EVERY: Duration = Duration::from_millis(100);

/// Maximum number of budgets in one exchange: few enough for the time in which Redis has to answer, and not to delay it.
const BUDGETS: usize = 512;

metric_table! {
    /// Counters of exchanges.
    pub(super) struct ExchangeMetrics(registry) {
        exchanges: IntCounterVec["outcome"] = "tooldock_shared_limit_exchanges_total",
            "Exchanges with the session store about limits that replicas share, by outcome (done, failed)";
    }
}

/// Shares the limits of the newest rules until its future is dropped. If the store does not respond, this replica counts alone,
/// and its use in that time is not reported later: it must not use up the budgets of other replicas.
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
                    // The heartbeats report that the store does not answer.
                    tracing::debug!(%error, "limits are not shared");
                    break;
                }
            }
        }
    }
}
