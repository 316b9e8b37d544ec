//! Detects that another replica has stopped answering while a request waits for its response. Until the response arrives, health
//! requests are sent to that replica. Heartbeats are not sufficient: they are sent by the control runtime even if the threads
//! that answer requests hang. There is no time limit for the response itself, because its tool may take any time.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::{sleep, timeout};

/// Interval between two health requests.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// Time limit for the answer to a health request.
const ANSWER: Duration = Duration::from_secs(5);
/// Number of consecutive health requests without an answer after which a replica counts as silent.
const UNANSWERED_MAX: u32 = 3;

/// Waits until a replica counts as silent. `ask` sends a health request, and returns true if the replica answered.
pub(super) async fn silence<'a>(ask: impl Fn() -> BoxFuture<'a, bool>) {
    let mut unanswered = 0;
    while unanswered < UNANSWERED_MAX {
        sleep(EVERY).await;
        let answered = timeout(ANSWER, ask()).await.unwrap_or(false);
        unanswered = if answered { 0 } else { unanswered + 1 };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_replica_is_silent_after_three_questions_in_a_row_without_an_answer() {
        let asked = Cell::new(0);
        // The third one is answered, and no further one.
        silence(|| {
            asked.set(asked.get() + 1);
            Box::pin(ready(asked.get() == 3))
        })
        .await;
        assert_eq!(asked.get(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_hangs_is_not_waited_for() {
        let begun = Instant::now();
        silence(|| Box::pin(pending())).await;
        assert_eq!(begun.elapsed(), (EVERY + ANSWER) * UNANSWERED_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_that_answers_is_not_silent_however_long_a_call_takes() {
        let day = Duration::from_secs(24 * 60 * 60);
        let silent = timeout(day, silence(|| Box::pin(ready(true)))).await;
        assert!(silent.is_err());
    }
}
