//! What an upstream asks of a client before it answers: elicitation, sampling, roots.
//!
//! A question is one [`Interaction`]: what is asked, the responder that takes the answer back to the upstream, and one
//! deadline. Whoever answers, the first answer counts, and it reaches the upstream once.
//!
//! ```text
//!            respond, fulfil ─────────────┐ (the client)
//!   open ──▶ Open ── fail ────────────────┼──▶ Answered ── deliver ──▶ Over
//!            withdraw (the upstream) ─────┤
//!            expire (the deadline) ───────┘
//!            abandon (the end of the scope) ───────────────────────▶ Over
//! ```
//!
//! A question has three names. Each name is an index that holds a weak reference, in the part within which the name is
//! unique, and ends with that part:
//!
//! | name | chosen by | index |
//! |---|---|---|
//! | the upstream's own id | a stdio server | [`ConnectionInteractions`] |
//! | the key within its call | the function, or the gateway for a server | [`CallInteractions`], which owns the entry |
//! | the id that the client sees | the gateway | [`SessionInteractions`]; a modern client answers by key |
//!
//! The owner enforces the deadline: a call's future for the questions of the call, a small task for a question that a
//! server asks outside of calls. A 2026-07-28 client's call that waits between two requests is kept by
//! [`SuspendedCalls`] until the deadline of what it asked.
//!
//! There is deliberately no table for the whole process. No name is unique beyond its session, call or connection, so
//! such a table would be these indexes again, with locks shared by strangers, and every scope's end would have to search
//! it. Kept apart, a question cannot be found from another client's session at all, and a scope ends by being dropped.
//!
//! All bounds stand in this module: [`OPEN_IN_CALL`], [`OPEN_IN_SESSION`], [`EARLY_MAX`], [`KEPT_ANSWERS_MAX`]; the
//! places of calls that wait for their client are the namespace's (`max_parked`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::worker::{Ask, AskMethod, Question, Replier};

use crate::jsonrpc::{self, Response, ResponseOutcome, ServerRequest, spans};
use crate::protocol::code;

mod call;
mod connection;
mod events;
mod messages;
mod session;
mod suspended;

pub(crate) use call::{CallInteractions, fulfil};
pub(crate) use connection::{ConnectionInteractions, Unanswered};
pub(crate) use events::{Event, EventReceiver, EventSender, events};
pub(crate) use session::{AnswerFate, SessionInteractions};
pub(crate) use suspended::{Bound, NoPlace, SuspendedCalls, Waiting};

/// Questions one call may have open at once.
pub(crate) const OPEN_IN_CALL: usize = 64;
/// Questions one session may have open at once. What bounds them in practice are the calls that ask.
pub(crate) const OPEN_IN_SESSION: usize = 1000;
/// Questions of a server before the call it was opened for has begun.
pub(crate) const EARLY_MAX: usize = 16;
/// Bytes of answers that are kept for a modern call while others of its questions are still open: 4 MiB, as large as one
/// message is by default. Answers that leave no question open are not kept and may be larger.
pub(crate) const KEPT_ANSWERS_MAX: usize = 4 * 1024 * 1024;

/// The longest part of a client's error message that is told to the function.
const REFUSAL_MAX: usize = 512;
/// Stands for "never" where a configured limit is too long to add to the clock.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// One question of an upstream to a client.
pub(crate) struct Interaction {
    /// What is asked; `None` for a request of a server that is none of the known kinds and only passes through.
    question: Option<Question>,
    limit: Duration,
    deadline: Instant,
    /// Owns the entry.
    scope: Weak<dyn Scope>,
    phase: Mutex<Phase>,
}

/// The call, or the wait outside of calls, that a question belongs to. Nothing here waits.
pub(crate) trait Scope: Send + Sync {
    /// Tells the client that a question is taken back: a whole message.
    fn take_back(&self, message: Vec<u8>);

    /// A question has its answer.
    fn settled(&self);
}

/// Where a question is in its life.
enum Phase {
    Open {
        responder: Responder,
        /// Under which id the client was asked, where it was asked by a request.
        client_id: Option<u64>,
    },
    Answered {
        responder: Responder,
        answer: Answer,
    },
    Over,
}

/// Takes the answer back to what asked. Dropped without an answer, a server's request fails.
pub(crate) enum Responder {
    /// A worker's function, which waits for the question's key.
    Function(Replier),
    /// A stdio server's own request, counted while it has no answer if it belongs to a call.
    Request(ServerRequest, Option<Unanswered>),
    /// A round of questions, all of which must be answered before the server is called again.
    Round(oneshot::Sender<Result<Bytes, CallError>>),
}

/// Questions that are asked at once.
pub(crate) type Asked = Vec<(Question, Responder)>;

/// What a question was answered.
enum Answer {
    /// The whole response of a client that takes requests.
    Response(Response),
    /// The result of the question's method, a JSON object.
    Result(Bytes),
    /// Why there is none.
    Failed(CallError),
}

impl Interaction {
    /// A question that was asked now, of which `scope` is the owner.
    pub(crate) fn new(
        question: Option<Question>,
        responder: Responder,
        limit: Duration,
        scope: Weak<dyn Scope>,
    ) -> Arc<Self> {
        Arc::new(Self {
            question,
            limit,
            deadline: after(Instant::now(), limit),
            scope,
            phase: Mutex::new(Phase::Open {
                responder,
                client_id: None,
            }),
        })
    }

    /// What is asked, where it is of a known kind.
    pub(crate) fn question(&self) -> Option<&Question> {
        self.question.as_ref()
    }

    /// Until when it may be answered.
    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether it has no answer yet.
    pub(crate) fn is_open(&self) -> bool {
        matches!(*self.phase(), Phase::Open { .. })
    }

    /// Whether its upstream has the answer, or gets none.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.phase(), Phase::Over)
    }

    /// Whether a client that declared these capabilities, raw JSON, can be asked. If not, the question has failed.
    pub(crate) fn admit(&self, declared: &[u8]) -> bool {
        let Some(question) = &self.question else {
            return true;
        };
        let may = may_ask(declared, question.method);
        if !may {
            self.fail(missing_capability(question.method));
        }
        may
    }

    /// The request that asks the client under this id; `None` if nobody wants an answer any more.
    fn ask_under(&self, id: u64) -> Option<Vec<u8>> {
        let mut phase = self.phase();
        let Phase::Open {
            responder,
            client_id,
        } = &mut *phase
        else {
            return None;
        };
        *client_id = Some(id);
        Some(match (responder, &self.question) {
            (Responder::Request(request, _), _) => request.with_id(id),
            (_, Some(question)) => messages::question(id, question),
            (_, None) => return None,
        })
    }

    /// Takes the client's whole response. `false`: there was an answer already, or none is wanted.
    pub(crate) fn respond(&self, response: Response) -> bool {
        self.settle(Answer::Response(response), |_| None)
    }

    /// Takes the client's result. `false` as for [`Self::respond`].
    pub(crate) fn fulfil(&self, result: Bytes) -> bool {
        self.settle(Answer::Result(result), |_| None)
    }

    /// There will be no answer, and the client need not hear of that.
    pub(crate) fn fail(&self, why: CallError) -> bool {
        self.settle(Answer::Failed(why), |_| None)
    }

    /// The upstream does not want an answer any more: `message` is its whole `notifications/cancelled`.
    pub(crate) fn withdraw(&self, message: &[u8]) {
        let why = ask_failed("The question was withdrawn");
        self.settle(Answer::Failed(why), |id| {
            Some(messages::taken_back(id, message))
        });
    }

    /// The deadline is over.
    pub(crate) fn expire(&self) {
        let limit = self.limit.as_secs_f64();
        let why = ask_failed(format!("The client gave no answer within {limit} s"));
        self.settle(Answer::Failed(why), |id| {
            Some(messages::cancelled(id, "The question timed out"))
        });
    }

    /// Ends a question of a call that is over; what asked it gets no answer.
    fn abandon(&self) {
        let before = std::mem::replace(&mut *self.phase(), Phase::Over);
        if let Phase::Open {
            client_id: Some(id),
            ..
        } = before
        {
            self.tell(messages::cancelled(id, "The call is over"));
        }
    }

    /// Takes the answer to the upstream. An open question stays open.
    pub(crate) fn deliver(&self) {
        let mut phase = self.phase();
        match std::mem::replace(&mut *phase, Phase::Over) {
            Phase::Answered { responder, answer } => {
                drop(phase);
                let key = self.question.as_ref().map(|question| &*question.key);
                responder.answer(key.unwrap_or_default(), answer);
            }
            before => *phase = before,
        }
    }

    /// Bytes of an answer that waits to be delivered.
    fn kept(&self) -> usize {
        match &*self.phase() {
            Phase::Answered {
                answer: Answer::Result(result),
                ..
            } => result.len(),
            _ => 0,
        }
    }

    /// Notes an answer; a client that was asked by a request is told what `words` make of its id.
    fn settle(&self, answer: Answer, words: impl FnOnce(u64) -> Option<Vec<u8>>) -> bool {
        let mut phase = self.phase();
        let asked = match std::mem::replace(&mut *phase, Phase::Over) {
            Phase::Open {
                responder,
                client_id,
            } => {
                *phase = Phase::Answered { responder, answer };
                client_id
            }
            before => {
                *phase = before;
                return false;
            }
        };
        drop(phase);
        // The client hears of it first: a call that has all its answers may end at any time.
        if let Some(message) = asked.and_then(words) {
            self.tell(message);
        }
        if let Some(scope) = self.scope.upgrade() {
            scope.settled();
        }
        true
    }

    fn tell(&self, message: Vec<u8>) {
        if let Some(scope) = self.scope.upgrade() {
            scope.take_back(message);
        }
    }

    /// Plain data; nothing awaits under the lock.
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Interaction {
    /// Without what is asked: that is the users'.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interaction").finish_non_exhaustive()
    }
}

impl Responder {
    fn answer(self, key: &str, answer: Answer) {
        match (self, answer) {
            (Self::Request(request, _unanswered), Answer::Response(response)) => {
                request.forward(&response);
            }
            (Self::Request(request, _unanswered), Answer::Result(result)) => {
                match spans::raw(&result) {
                    Some(result) => {
                        request.answer(Ok(result));
                    }
                    None => request.refuse(code::INTERNAL, "The client's answer cannot be read"),
                }
            }
            (Self::Request(request, _unanswered), Answer::Failed(error)) => {
                let code = match error.code {
                    CallErrorCode::MissingCapability => code::METHOD_NOT_FOUND,
                    _ => code::INTERNAL,
                };
                request.refuse(code, &error.message);
            }
            (Self::Function(replier), answer) => {
                replier.answer(key, answer.outcome().as_deref());
            }
            (Self::Round(waits), answer) => {
                let _ = waits.send(answer.outcome());
            }
        }
    }
}

impl Answer {
    /// The answer for what takes results only.
    fn outcome(self) -> Result<Bytes, CallError> {
        match self {
            Self::Response(response) => match response.outcome() {
                ResponseOutcome::Result(result) => Ok(result),
                ResponseOutcome::Error(error) => Err(refused(&error)),
            },
            Self::Result(result) => Ok(result),
            Self::Failed(error) => Err(error),
        }
    }
}

/// The questions of a function.
pub(crate) fn of_function(ask: Ask) -> Asked {
    let Ask { questions, replier } = ask;
    let questions = questions.into_iter();
    questions
        .map(|it| (it, Responder::Function(replier.clone())))
        .collect()
}

/// Fails questions before they are asked.
pub(crate) fn refuse(asked: Asked, reason: &str) {
    for (question, responder) in asked {
        responder.answer(&question.key, Answer::Failed(ask_failed(reason)));
    }
}

/// A question that got no answer.
pub(crate) fn ask_failed(message: impl Into<String>) -> CallError {
    CallError::new(CallErrorCode::AskFailed, message)
}

/// That much later.
pub(crate) fn after(now: Instant, limit: Duration) -> Instant {
    now.checked_add(limit).unwrap_or_else(|| now + FAR)
}

/// Whether a client that declared these capabilities, raw JSON, can be asked this. `null` declares nothing.
fn may_ask(declared: &[u8], method: AskMethod) -> bool {
    let declared = serde_json::from_slice::<HashMap<String, &RawValue>>(declared);
    let declared = declared.unwrap_or_default();
    let capability = declared.get(method.capability());
    capability.is_some_and(|declared| declared.get() != "null")
}

/// A question nobody can be asked.
fn missing_capability(method: AskMethod) -> CallError {
    let capability = method.capability();
    let mut error = CallError::new(
        CallErrorCode::MissingCapability,
        format!("The client cannot be asked here: it has no capability \"{capability}\""),
    );
    let details = format!(r#"{{"requiredCapabilities":{{"{capability}":{{}}}}}}"#);
    error.details = serde_json::from_str(&details).ok();
    error
}

/// The client's error object as what the function is told.
fn refused(error: &[u8]) -> CallError {
    #[derive(Deserialize)]
    struct Refusal<'a> {
        #[serde(borrow, default)]
        code: Option<&'a RawValue>,
        #[serde(borrow, default)]
        message: Option<&'a RawValue>,
    }
    let refusal = serde_json::from_slice::<Refusal<'_>>(error).ok();
    let code = refusal
        .as_ref()
        .and_then(|refusal| refusal.code)
        .map_or_else(String::new, |code| {
            let code: String = code.get().chars().take(16).collect();
            format!(" ({code})")
        });
    let message = refusal
        .and_then(|refusal| refusal.message)
        .and_then(jsonrpc::string)
        .unwrap_or_default();
    let message: String = message.chars().take(REFUSAL_MAX).collect();
    ask_failed(format!(
        "The client answered with an error{code}: {message}"
    ))
}

#[cfg(test)]
pub(crate) mod tests;
