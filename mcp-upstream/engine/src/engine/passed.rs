//! Calls in pass-through mode: the engine admits the call, the server's response is forwarded as it arrives, and the call's
//! resources are released at the end of the response.
//!
//! The order is that of any other call, by the same functions: policy, limits counted in tool calls, a permit of the queue, and
//! one time limit over all steps. `Engine::run` cannot be used, since it has the complete reply of a call when it returns; the
//! response of such a call is often still being received then. The surface sends the request to the server, and finishes the call
//! with the status that it found in the response. A call that is dropped unfinished is recorded as a call whose client
//! disconnected.

use std::time::Duration;

use http::StatusCode;
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::gate::Permit;
use tooldock_base::trace::{PassedTrace, UpstreamSpan};
use tooldock_sessions::audit::AuditSender;
use tooldock_sessions::call_error::CallCause;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::interaction::after;

use super::record::CallRecord;
use super::{CallFacts, CountedBy, Engine, turn};
use crate::trace::error_of;

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
    /// Admits a call and waits for its permit, then for the upstream's own `check` of the call. The call is boxed, because it is
    /// moved through many futures that would each copy it.
    ///
    /// # Errors
    ///
    /// When the call is not allowed; the refusal is recorded.
    pub async fn pass(
        &self,
        caller: &Caller,
        facts: CallFacts,
        check: impl Future<Output = Result<(), CallError>>,
    ) -> Result<Box<PassedCall>, (CallFacts, CallError)> {
        let record = CallRecord::begin(self, self.audit.clone(), caller, &facts, None);
        let limit = facts.timeout();
        let deadline = after(Instant::now(), limit);
        let trace = caller.trace.as_ref();
        let entered = async {
            self.admit(caller, &facts, CountedBy::All, || Ok(()))?;
            record.progress().reach();
            self.account_of(caller).room().await?;
            let permit = turn(&facts, &caller.principal, trace, deadline).await?;
            check.await.map(|()| permit)
        };
        match entered.await {
            Ok(permit) => Ok(Box::new(PassedCall {
                record,
                _permit: permit,
                span: facts.upstream_span(trace),
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
