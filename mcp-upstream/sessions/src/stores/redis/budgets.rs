//! Limit budgets that replicas share: strings in Redis, many of which are changed by one script. Times are by the clock of
//! Redis.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Script;
use tooldock_base::budget::BudgetUse;

use super::RedisStore;
use super::link::OPERATION_MAX;
use crate::stream::StoreError;

static BUDGETS: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("budgets.lua")));

impl RedisStore {
    pub(super) async fn take_from_budgets(
        &self,
        used: &[BudgetUse],
        replicas: usize,
    ) -> Result<Vec<Duration>, StoreError> {
        let mut script = BUDGETS.arg(replicas);
        for budget in used {
            // The replica's value is older than the moment at which Redis uses it, by the delay of the connection. Without this
            // correction, each exchange would postpone the time at which the budget is full again.
            let known = budget.whole_in.saturating_sub(OPERATION_MAX);
            script.key(self.keys.budget(&budget.name));
            for time in [budget.taken, known, budget.window] {
                script.arg(micros(time));
            }
        }
        let script = &script;
        // A failed command is not repeated: the second attempt would count the use twice.
        let whole_in = self.link.run_once(|mut connection| async move {
            script.invoke_async::<Vec<u64>>(&mut connection).await
        });
        Ok(whole_in
            .await?
            .into_iter()
            .map(Duration::from_micros)
            .collect())
    }
}

/// Converts a duration to microseconds, up to the largest number that Lua represents exactly.
fn micros(time: Duration) -> u64 {
    const EXACT: u64 = 1 << 52;
    u64::try_from(time.as_micros()).unwrap_or(EXACT).min(EXACT)
}
