//! Runs a call whose function may send progress, log messages and questions to its client before the reply.
//!
//! ```text
//!              ┌──────────── a question ───────────┐
//!   Running ───┤                                   ▼
//!   permit,    │                                Asking      clock stops, permit is released, call has a parking slot
//!   clock runs │                                   │
//!      ▲       │                                   │ every open question is answered, failed or out of time
//!      └───────┴─── a permit ──── Resuming ◀───────┘        clock runs again
//! ```
//!
//! Answers are delivered to the function only when all open questions are answered. With a single answer the function could
//! resume, and its time limit and permit would have to be suspended again while it waits for the others. They are delivered only
//! when the call has a permit again, so that the number of running calls never exceeds the number of permits.
//!
//! [`CallInteractions`] contains the questions, which the upstream opens and the client answers. Time limit, permit and parking
//! slot belong to the call's own future, so that dropping the future releases them, ends the questions and cancels the call in
//! the worker.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tooldock_base::answers::AnswerAccount;
use tooldock_base::gate::{Permit, Principal};
use tooldock_base::trace::RequestTrace;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::interaction::{CallInteractions, after};

use super::{
    CallFacts, CallOutcome, CallSecrets, Engine, EventSender, Peer, Work, end_span, timed_out, turn,
};

mod inbox;

pub(super) use inbox::CallInbox;

type Working<'w> = Pin<&'w mut (dyn Future<Output = CallOutcome> + Send)>;

/// A running call that may send progress, log messages and questions to its client.
pub(super) struct InteractiveCall<'a> {
    engine: &'a Engine,
    facts: &'a CallFacts,
    trace: Option<Arc<RequestTrace>>,
    /// Complete time limit of the call, for the error message.
    limit: Duration,
    /// Remaining time of the limit, updated whenever the clock stops.
    left: Duration,
    questions: Arc<CallInteractions>,
    secrets: Arc<CallSecrets>,
    principal: Principal,
    answers: AnswerAccount,
}

/// Outcome of the phase `Running`.
enum RunOutcome {
    Over(CallOutcome),
    Asked,
}

/// Outcome of the phase `Resuming`.
enum ResumeOutcome {
    Over(CallOutcome),
    Entered(Permit),
    AskedAgain,
}

impl<'a> InteractiveCall<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        facts: &'a CallFacts,
        caller: &Caller,
        limit: Duration,
        events: Option<EventSender>,
        answers: AnswerAccount,
    ) -> Self {
        let principal = caller.principal.clone();
        Self {
            engine,
            facts,
            trace: caller.trace.clone(),
            limit,
            left: limit,
            questions: CallInteractions::new(
                Arc::clone(&facts.namespace),
                principal.clone(),
                events,
            ),
            principal,
            secrets: Arc::new(engine.secrets_of(caller, facts)),
            answers,
        }
    }

    /// Runs the call to its end. `start` is called as soon as the call has a permit.
    pub(super) async fn run(mut self, start: impl FnOnce(Peer) -> Work + Send) -> CallOutcome {
        let began = Instant::now();
        let deadline = after(began, self.left);
        let permit = turn(self.facts, &self.principal, self.trace.as_ref(), deadline).await?;
        let span = self.facts.upstream_span(self.trace.as_ref());
        self.stop_clock(began);
        let dropped = &self.engine.metrics.events_dropped;
        let inbox = CallInbox {
            questions: Arc::clone(&self.questions),
            dropped: dropped.clone(),
            audience: Arc::clone(&self.engine.audience),
            secrets: Arc::clone(&self.secrets),
        };
        let events = self.questions.events().cloned();
        let heard = events.map(|events| (events, Arc::clone(&self.secrets)));
        let answers = self.answers.clone();
        let peer = Peer::new(heard, Some(Arc::new(inbox)), dropped, answers);
        let mut work = start(peer.traced(span.as_ref()));
        let outcome = self.phases(work.as_mut(), permit).await;
        end_span(span, &outcome);
        outcome
    }

    async fn phases(&mut self, mut work: Working<'_>, mut permit: Permit) -> CallOutcome {
        loop {
            if let RunOutcome::Over(outcome) = self.running(work.as_mut()).await {
                return outcome;
            }
            drop(permit);
            permit = loop {
                if let Some(outcome) = self.asking(work.as_mut()).await {
                    return outcome;
                }
                match self.resuming(work.as_mut()).await {
                    ResumeOutcome::Over(outcome) => return outcome,
                    ResumeOutcome::Entered(permit) => break permit,
                    ResumeOutcome::AskedAgain => {}
                }
            };
            self.questions.deliver();
        }
    }

    /// Runs the phase `Running`, in which the function computes.
    async fn running(&mut self, work: Working<'_>) -> RunOutcome {
        let began = Instant::now();
        let deadline = after(began, self.left);
        // The branches are polled in this order: the reply; a question; the end of the time limit.
        tokio::select! {
            biased;
            outcome = work => RunOutcome::Over(outcome),
            () = self.questions.asked() => {
                self.stop_clock(began);
                RunOutcome::Asked
            }
            () = sleep_until(deadline) => RunOutcome::Over(Err(timed_out(self.limit))),
        }
    }

    /// Runs the phase `Asking`, in which questions are open. Returns `None` once no question is open any more.
    async fn asking(&mut self, mut work: Working<'_>) -> Option<CallOutcome> {
        while let Some(deadline) = self.questions.next_deadline() {
            // The branches are polled in this order: the reply, since a function may end without waiting for answers; a new
            // question or an answer; the end of a question's time limit.
            tokio::select! {
                biased;
                outcome = work.as_mut() => return Some(outcome),
                () = self.questions.changed() => {}
                () = sleep_until(deadline) => self.questions.expire(),
            }
        }
        None
    }

    /// Runs the phase `Resuming`, in which no question is open and the call waits for a permit.
    async fn resuming(&mut self, work: Working<'_>) -> ResumeOutcome {
        let began = Instant::now();
        let deadline = after(began, self.left);
        let gate = Arc::clone(&self.questions.namespace().gate);
        let principal = self.principal.clone();
        // The branches are polled in this order: the reply; another question; a permit; the end of the time limit.
        let end = tokio::select! {
            biased;
            outcome = work => ResumeOutcome::Over(outcome),
            () = self.questions.opened() => ResumeOutcome::AskedAgain,
            permit = gate.resume(&principal) => ResumeOutcome::Entered(permit),
            () = sleep_until(deadline) => ResumeOutcome::Over(Err(timed_out(self.limit))),
        };
        self.stop_clock(began);
        end
    }

    fn stop_clock(&mut self, began: Instant) {
        self.left = self.left.saturating_sub(began.elapsed());
    }
}

impl Drop for InteractiveCall<'_> {
    /// Ends the open questions, because the call has its reply or its client has disconnected.
    fn drop(&mut self) {
        self.questions.end();
    }
}

#[cfg(test)]
mod tests;
