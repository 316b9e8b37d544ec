//! Handles writes that wait because their client does not read. The bytes of such a write are counted in the memory limit of all
//! responses, and the write is ended if other responses need the memory.
//!
//! Most writes complete immediately. For these, this module costs nothing.

use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{Either, ready};
use tooldock_base::answers::{AnswerAccount, AnswerClaim};

use crate::timeout::fast_timeout;

/// The client did not read the bytes of a write: it was too slow, or other responses needed the memory first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteAborted;

/// Limits on the time and the memory of the writes of a long stream.
#[derive(Debug, Clone)]
pub(crate) struct WriteLimits {
    /// Time limit for each write of the stream.
    pub(crate) timeout: Duration,
    /// Account in which the bytes of waiting writes are counted; `None` if they are not counted.
    pub(crate) answers: Option<AnswerAccount>,
}

impl WriteLimits {
    /// Runs `write`, which writes an event that occupies `size` bytes of memory, under these limits.
    ///
    /// # Errors
    ///
    /// [`WriteAborted`] when the client does not read in time, or other responses need the memory first.
    pub(crate) fn write<F: Future>(
        &self,
        size: usize,
        write: Pin<&mut F>,
    ) -> impl Future<Output = Result<F::Output, WriteAborted>> {
        self::write(self.answers.as_ref(), None, size, self.timeout, write)
    }
}

/// Runs a write with a time limit. While it waits, `size` bytes of its response are counted in `answers`, unless `claim` counts
/// them already. The write is first polled once; state for waiting is allocated only after that, so that the future of a stream
/// stays small.
///
/// # Errors
///
/// [`WriteAborted`] when the client does not read in time, or other responses need the memory first. Nothing more may then be
/// written to the connection.
pub(crate) fn write<F: Future>(
    answers: Option<&AnswerAccount>,
    claim: Option<&AnswerClaim>,
    size: usize,
    limit: Duration,
    mut write: Pin<&mut F>,
) -> impl Future<Output = Result<F::Output, WriteAborted>> {
    match write.as_mut().now_or_never() {
        Some(written) => Either::Left(ready(Ok(written))),
        None => Either::Right(Box::pin(write_counted(answers, claim, size, limit, write))),
    }
}

async fn write_counted<F: Future>(
    answers: Option<&AnswerAccount>,
    claim: Option<&AnswerClaim>,
    size: usize,
    limit: Duration,
    write: Pin<&mut F>,
) -> Result<F::Output, WriteAborted> {
    let claim = match (claim, answers) {
        (Some(claim), _) => Some(claim.clone()),
        (None, Some(answers)) if size > 0 => Some(answers.claim(size).map_err(|_| WriteAborted)?),
        (None, _) => None,
    };
    let write = fast_timeout(limit, write);
    let Some(claim) = claim else {
        return write.await.map_err(|_| WriteAborted);
    };
    let waiting = claim.waiting();
    // Waits for one of two events:
    // - the write has ended, or its time limit has expired
    // - other responses need the memory
    tokio::select! {
        biased;
        written = write => written.map_err(|_| WriteAborted),
        () = waiting.closed() => Err(WriteAborted),
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::sync::Arc;

    use prometheus::Registry;
    use tooldock_base::answers::{AnswerBudget, AnswerMetrics};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);
    const LONG: Duration = Duration::from_millis(1);

    fn account(total: usize) -> (Arc<AnswerBudget>, AnswerAccount) {
        let metrics = AnswerMetrics::new(&Registry::new()).expect("a fresh registry");
        let budget = AnswerBudget::new(total, metrics);
        let account = AnswerAccount::new(&budget, None, Ipv4Addr::LOCALHOST.into());
        (budget, account)
    }

    #[tokio::test]
    async fn a_write_that_is_done_at_once_is_not_counted_and_one_that_waits_is() {
        let (budget, account) = account(100);
        let done = write(Some(&account), None, 1000, LIMIT, pin!(async { 1 })).await;
        assert_eq!(done, Ok(1));
        let mut never = pin!(pending::<()>());
        {
            let mut waits = pin!(write(Some(&account), None, 60, LIMIT, never.as_mut()));
            assert!(waits.as_mut().now_or_never().is_none());
            assert_eq!(budget.bytes(), 60);
            // The first write waits with 60 of the 100 bytes, so there is no room for 41 more: the write is aborted, not begun.
            let other = write(Some(&account), None, 41, LIMIT, pin!(pending::<()>())).await;
            assert_eq!(other, Err(WriteAborted));
        }
        assert_eq!(budget.bytes(), 0);
        let late = write(Some(&account), None, 60, LONG, never).await;
        assert_eq!((late, budget.bytes()), (Err(WriteAborted), 0));
    }

    #[tokio::test]
    async fn a_write_that_waits_gives_way_to_the_answer_of_another_client() {
        let (budget, account) = account(100);
        let other = AnswerAccount::new(&budget, None, Ipv4Addr::new(192, 0, 2, 1).into());
        let claim = account.claim(100).expect("there is room");
        let mut never = pin!(pending::<()>());
        let answer = {
            let waits = write(Some(&account), Some(&claim), 100, LIMIT, never.as_mut());
            let mut waits = pin!(waits);
            assert!(waits.as_mut().now_or_never().is_none());
            let answer = other.claim(10).expect("the unread answer gives way");
            assert_eq!(waits.await, Err(WriteAborted));
            answer
        };
        drop((claim, answer));
        assert_eq!(budget.bytes(), 0);
    }
}
