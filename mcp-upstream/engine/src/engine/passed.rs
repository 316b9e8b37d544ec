//! Calls in pass-through mode: the engine admits the call, the server's response is forwarded as it arrives, and the call's
//! resources are released at the end of the response.
//!
//! The order is that of any other call: policy, limits counted in tool calls, a permit of the queue, and one time limit over
//! all steps. The surface sends the request to the server, and finishes the call with the status that it found in the response.
//! A call that is dropped unfinished is recorded as a call whose client disconnected.

use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout_at};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Permit;
use tooldock_base::trace::{PassedTrace, UpstreamSpan};
use tooldock_sessions::audit::AuditSender;
use tooldock_sessions::call_error::CallCause;
use tooldock_sessions::caller::Caller;

use super::record::CallRecord;
use super::{CallFacts, CountedBy, Engine, overloaded};
use crate::trace::{QUEUE, error_of};

/// A call in pass-through mode that was admitted and has a permit.
pub struct PassedCall {
    record: CallRecord<AuditSender>,
    _permit: Permit,
    facts: CallFacts,
    limit: Duration,
    deadline: Instant,
    span: Option<UpstreamSpan>,
}

impl Engine {
    /// Admits a call and waits for its permit. The call is boxed, because it is moved through many futures that would each copy
    /// it.
    ///
    /// # Errors
    ///
    /// When the call is not allowed; the refusal is recorded.
    pub async fn pass(
        &self,
        caller: &Caller,
        facts: CallFacts,
    ) -> Result<Box<PassedCall>, (CallFacts, CallError)> {
        let record = CallRecord::begin(self, self.audit.clone(), caller, &facts, None);
        let limit = facts.timeout();
        let deadline = Instant::now() + limit;
        let entered = async {
            self.admit(caller, &facts, CountedBy::All, || Ok(()))?;
            record.progress().reach();
            self.account_of(caller).room().await?;
            let _waiting = caller.trace.as_ref().map(|it| it.part(QUEUE));
            let turn = timeout_at(deadline, facts.namespace.gate.enter(&caller.principal)).await;
            turn.ok().and_then(Result::ok).ok_or_else(overloaded)
        };
        match entered.await {
            Ok(permit) => Ok(Box::new(PassedCall {
                record,
                _permit: permit,
                span: facts.upstream_span(caller.trace.as_ref()),
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
    /// Deadline of the complete response.
    #[inline]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Time limit of the call, up to the end of the response.
    #[inline]
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// Trace to which the request to the server belongs; `None` if the call is not traced.
    #[inline]
    pub fn trace(&self) -> Option<&PassedTrace> {
        self.span.as_ref()?.passed().map(|it| &**it)
    }

    /// Maximum size of the response, in bytes.
    #[inline]
    pub fn max_result(&self) -> u64 {
        self.facts.max_result()
    }

    /// Records that the call is refused after it was admitted, and returns its facts with the error.
    pub fn refuse(self: Box<Self>, error: CallError) -> (CallFacts, CallError) {
        let Self {
            record,
            facts,
            span,
            ..
        } = *self;
        if let Some(span) = span {
            span.ended(Some(error.code.as_str()));
        }
        record.finish(Err(error.code), Some(CallCause::of(&error)));
        (facts, error)
    }

    /// Records the end of the call, with the status of the response for the metrics, or with an error code. `sent` is the HTTP
    /// status if the gateway wrote the response itself.
    pub fn finish(
        mut self: Box<Self>,
        outcome: Result<&'static str, CallErrorCode>,
        cause: Option<CallCause>,
        sent: Option<StatusCode>,
    ) {
        if let Some(sent) = sent {
            self.record.sent(sent);
        }
        if let Some(span) = self.span.take() {
            span.ended(error_of(outcome));
        }
        self.record.finish(outcome, cause);
    }
}
