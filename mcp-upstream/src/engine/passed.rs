//! A call whose answer is passed on as it comes: the engine admits it, and what it holds travels with the answer.
//!
//! The same order as of any other call: policy, limits counted in tool calls, a place in the queue, one clock over all of
//! it. The upstream is asked by the surface, which ends the call with what it saw of the answer. A call that is dropped
//! unfinished is recorded as one whose client left.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout_at};
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::gate::Permit;

use super::record::CallRecord;
use super::{CallFacts, CountedBy, Engine, overloaded};
use crate::audit::AuditSender;
use crate::call_error::CallCause;
use crate::caller::Caller;

/// A call that was admitted and has its turn.
pub(crate) struct PassedCall {
    record: CallRecord<AuditSender>,
    _permit: Permit,
    facts: CallFacts,
    limit: Duration,
    deadline: Instant,
}

impl Engine {
    /// Admits a call and waits for its turn. The call is boxed: it travels through many futures, and each would move all of
    /// it.
    ///
    /// # Errors
    ///
    /// Why the call is not made; that is recorded.
    pub(crate) async fn pass(
        &self,
        caller: &Caller,
        facts: CallFacts,
    ) -> Result<Box<PassedCall>, (CallFacts, CallError)> {
        let record = CallRecord::begin(self, self.audit.clone(), caller, &facts, None);
        let limit = facts.timeout();
        let deadline = Instant::now() + limit;
        let entered = async {
            self.admit(caller, &facts, CountedBy::All, || Ok(()))?;
            record.reached().store(true, Ordering::Relaxed);
            self.account_of(caller).room().await?;
            let turn = timeout_at(deadline, facts.namespace.gate.enter(&caller.principal)).await;
            turn.ok().and_then(Result::ok).ok_or_else(overloaded)
        };
        match entered.await {
            Ok(permit) => Ok(Box::new(PassedCall {
                record,
                _permit: permit,
                facts,
                limit,
                deadline,
            })),
            Err(error) => {
                record.finish(Err(error.code), Some(CallCause::of(&error)));
                Err((facts, error))
            }
        }
    }
}

impl PassedCall {
    /// By when the answer must be there.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How long the answer may take in all.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// The most bytes that may be answered.
    pub(crate) fn max_result(&self) -> u64 {
        self.facts.max_result()
    }

    /// The call is not made after all: gives back its facts, and why.
    pub(crate) fn refuse(self: Box<Self>, error: CallError) -> (CallFacts, CallError) {
        let Self { record, facts, .. } = *self;
        record.finish(Err(error.code), Some(CallCause::of(&error)));
        (facts, error)
    }

    /// The call is over: how its answer is counted, or why there is none. `sent` is the status of an answer that is none of
    /// the server's.
    pub(crate) fn finish(
        mut self: Box<Self>,
        outcome: Result<&'static str, CallErrorCode>,
        cause: Option<CallCause>,
        sent: Option<StatusCode>,
    ) {
        if let Some(sent) = sent {
            self.record.sent(sent);
        }
        self.record.finish(outcome, cause);
    }
}
