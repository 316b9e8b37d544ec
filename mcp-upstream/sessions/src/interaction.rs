//! Questions that upstreams ask clients before a call is answered: elicitation, sampling, roots.
//!
//! A question is an [`Interaction`]: its content, the responder that takes the answer back to the upstream, and a deadline. The
//! first answer counts, from any source, and it reaches the upstream once.
//!
//! ```text
//!            respond, fulfil ─────────────┐ (the client)
//!   open ──▶ Open ── fail ────────────────┼──▶ Answered ── deliver ──▶ Over
//!            expire (the deadline) ───────┘
//!            withdraw (the upstream), abandon (the end of the scope) ──▶ Over
//! ```
//!
//! A question has up to three names. Each name is an entry in an index of the scope in which the name is unique. The entry refers
//! to the question weakly, unless its scope owns the question, and ends with the scope:
//!
//! | name | chosen by | index |
//! |---|---|---|
//! | the upstream's own id | a stdio server | [`ConnectionInteractions`] |
//! | the key within its call | the Python function; the gateway for a server | [`CallInteractions`], which owns the entry |
//! | the id that the client sees | the gateway | `SessionInteractions`; a 2026-07-28 client answers by key |
//!
//! The deadline is enforced by the question's owner: by the call's future for the questions of a call, by a small task for a
//! question that a server asks outside of calls. A call of a 2026-07-28 client is suspended between two requests: it is kept
//! in [`SuspendedCalls`] until the deadline of its questions.
//!
//! There is deliberately no table for the whole process. Each id is unique only within its session, call or connection, so such
//! a table would repeat the three indexes, its locks would be shared by unrelated clients, and the end of each scope would have
//! to search it. With separate indexes, a question cannot be found from another client's session, and a scope is ended by
//! dropping it.
//!
//! The bounds on open questions and stored answers are in this module: [`OPEN_IN_CALL`], `OPEN_IN_SESSION`, [`EARLY_MAX`],
//! `KEPT_ANSWERS_MAX`. Events that wait to be read are bounded beside their queue (`interaction/events.rs`). The questions of
//! one message of a worker or of one `input_required` result are bounded by their reader, to as many as a call may have open. The
//! number of suspended calls is bounded by the namespace (`max_parked`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::{AskMethod, OPEN_QUESTIONS_MAX, Question};
use tooldock_protocol::jsonrpc::Response;

mod answer;
mod call;
mod connection;
mod events;
mod messages;
mod session;
mod suspended;

use answer::Answer;
use answer::refuse;
pub use answer::{QuestionSet, Responder, cannot_be_asked, of_function};
pub use call::{CallInteractions, fulfil};
pub use connection::ConnectionInteractions;
pub use connection::OpenQuestionGuard;
pub use events::{EventReceiver, EventSender, PeerEvent, events};
pub use messages::{TakenBack, notification};
pub use session::AnswerFate;
pub(crate) use session::{QUESTION_COST, SessionInteractions};
pub use suspended::{NoPlace, ResumeRefusal, Suspendable, SuspendedCalls};

/// Maximum number of open questions of one call: as many as a worker's function or an `input_required` result may ask.
pub const OPEN_IN_CALL: usize = OPEN_QUESTIONS_MAX;
/// Maximum number of open questions of one session. In practice the number of calls that ask is the tighter bound.
pub(crate) const OPEN_IN_SESSION: usize = 1000;
/// Maximum number of questions that a server may ask before the call for which the server was opened has begun.
pub const EARLY_MAX: usize = 16;
/// Maximum size of the answers that are stored for a modern call while others of its questions are open: 4 MiB, the default
/// size limit of a message. Answers that leave no question open are not stored and may be larger.
pub(crate) const KEPT_ANSWERS_MAX: usize = 4 * 1024 * 1024;

/// Duration used in place of a configured limit that is too long to add to the clock.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A question of an upstream to a client.
pub struct Interaction {
    /// The content; `None` for a server's request of an unknown kind, which is passed through.
    question: Option<Question>,
    /// The memory of the question until its last reference is dropped, in bytes.
    bytes: usize,
    limit: Duration,
    deadline: Instant,
    /// The call, or the wait outside of calls, that owns the question.
    scope: Weak<dyn QuestionOwner>,
    phase: Mutex<QuestionPhase>,
}

/// The owner of a question: a call, or a wait outside of calls. Its methods never wait.
pub trait QuestionOwner: Send + Sync {
    /// Sends the client the message that withdraws a question.
    fn take_back(&self, message: TakenBack);

    /// Called when a question has its answer, or needs none.
    fn settled(&self);
}

/// The state of a question. Small: a session's table holds the entry of a question that is over for a while.
enum QuestionPhase {
    Open {
        responder: Responder,
        /// Id of the request that carried the question to the client; `None` if no request did.
        client_id: Option<u64>,
    },
    Answered {
        responder: Responder,
        answer: Box<Answer>,
    },
    Over,
}

impl Interaction {
    /// Creates a question that belongs to `scope`, opened now.
    pub fn new(
        question: Option<Question>,
        responder: Responder,
        limit: Duration,
        scope: Weak<dyn QuestionOwner>,
    ) -> Arc<Self> {
        Arc::new(Self {
            bytes: responder.bytes(question.as_ref()),
            question,
            limit,
            deadline: after(Instant::now(), limit),
            scope,
            phase: Mutex::new(QuestionPhase::Open {
                responder,
                client_id: None,
            }),
        })
    }

    /// The content, if the question is of a known kind.
    pub fn question(&self) -> Option<&Question> {
        self.question.as_ref()
    }

    /// Size of the question in a queue, in bytes; constant.
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// The moment until which the question may be answered.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true if the question has no answer yet.
    pub fn is_open(&self) -> bool {
        matches!(*self.phase(), QuestionPhase::Open { .. })
    }

    /// Returns true if the upstream has the answer, or gets none.
    pub fn is_over(&self) -> bool {
        matches!(*self.phase(), QuestionPhase::Over)
    }

    /// Returns true if a client with these declared capabilities, raw JSON, supports the question; fails the question
    /// otherwise.
    pub fn admit(&self, declared: &[u8]) -> bool {
        let Some(question) = &self.question else {
            return true;
        };
        let may = may_ask(declared, question.method);
        if !may {
            self.fail(missing_capability(question.method));
        }
        may
    }

    /// The request that asks the client with this id; `None` if the question is over or answered.
    fn ask_under(&self, id: u64) -> Option<Vec<u8>> {
        let mut phase = self.phase();
        let QuestionPhase::Open {
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

    /// Accepts the client's complete response. Returns `false` if the question was answered before, or no answer is wanted.
    pub(crate) fn respond(&self, response: Response) -> bool {
        self.settle(Answer::Response(response), |_| None)
    }

    /// Accepts the client's result. Returns `false` as `Self::respond` does.
    pub fn fulfil(&self, result: Bytes) -> bool {
        self.settle(Answer::Result(result), |_| None)
    }

    /// Fails the question without a message to the client. Returns `false` as `Self::respond` does.
    pub fn fail(&self, why: CallError) -> bool {
        self.settle(Answer::Failed(why), |_| None)
    }

    /// Withdraws the question for the upstream. `message` is the upstream's complete `notifications/cancelled`.
    pub(crate) fn withdraw(&self, message: &[u8]) {
        self.end(|id| messages::taken_back(id, message));
    }

    /// Fails the question, since its deadline is over.
    pub fn expire(&self) {
        let limit = self.limit.as_secs_f64();
        let why = ask_failed(format!("The client gave no answer within {limit} s"));
        self.settle(Answer::Failed(why), |id| {
            Some(messages::cancelled(id, "The question timed out"))
        });
    }

    /// Ends the question, since its call is over.
    fn abandon(&self) {
        self.end(|id| messages::cancelled(id, "The call is over"));
    }

    /// Ends an open question whose answer the upstream no longer awaits, and drops it. If a request carried the question to the
    /// client, the client receives the message that `words` makes for the request's id.
    fn end(&self, words: impl FnOnce(u64) -> TakenBack) {
        let mut phase = self.phase();
        if !matches!(*phase, QuestionPhase::Open { .. }) {
            return;
        }
        let before = std::mem::replace(&mut *phase, QuestionPhase::Over);
        drop(phase);
        if let QuestionPhase::Open { client_id, .. } = before {
            self.settled(client_id.map(words));
        }
    }

    /// Delivers the answer to the upstream. Does nothing if the question is open.
    pub fn deliver(&self) {
        let mut phase = self.phase();
        match std::mem::replace(&mut *phase, QuestionPhase::Over) {
            QuestionPhase::Answered { responder, answer } => {
                drop(phase);
                let key = self.question.as_ref().map(|question| &*question.key);
                responder.answer(key.unwrap_or_default(), *answer);
            }
            before => *phase = before,
        }
    }

    /// The size of an answer that waits to be delivered, in bytes; 0 without one.
    fn kept(&self) -> usize {
        match &*self.phase() {
            QuestionPhase::Answered { answer, .. } => answer.kept(),
            QuestionPhase::Open { .. } | QuestionPhase::Over => 0,
        }
    }

    /// Stores an answer. If a request carried the question to the client, the client receives the message that `words` makes
    /// for the request's id.
    fn settle(&self, answer: Answer, words: impl FnOnce(u64) -> Option<TakenBack>) -> bool {
        let mut phase = self.phase();
        let asked = match std::mem::replace(&mut *phase, QuestionPhase::Over) {
            QuestionPhase::Open {
                responder,
                client_id,
            } => {
                let answer = Box::new(answer);
                *phase = QuestionPhase::Answered { responder, answer };
                client_id
            }
            before => {
                *phase = before;
                return false;
            }
        };
        drop(phase);
        self.settled(asked.and_then(words));
        true
    }

    fn settled(&self, taken_back: Option<TakenBack>) {
        let Some(scope) = self.scope.upgrade() else {
            return;
        };
        // The message to the client comes first: a call that has all its answers may end at any time.
        if let Some(message) = taken_back {
            scope.take_back(message);
        }
        scope.settled();
    }

    /// Locks the phase of the question. The lock is never held across an await.
    fn phase(&self) -> MutexGuard<'_, QuestionPhase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Interaction {
    /// The content is omitted, since it is the users' data.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interaction").finish_non_exhaustive()
    }
}

/// The error of a question that got no answer.
pub fn ask_failed(message: impl Into<String>) -> CallError {
    CallError::new(CallErrorCode::AskFailed, message)
}

/// The moment `limit` after `now`, capped for very long limits.
pub fn after(now: Instant, limit: Duration) -> Instant {
    now.checked_add(limit).unwrap_or_else(|| now + FAR)
}

/// Returns true if a client with these declared capabilities, raw JSON, supports the method. `null` declares none.
fn may_ask(declared: &[u8], method: AskMethod) -> bool {
    let declared = serde_json::from_slice::<HashMap<String, &RawValue>>(declared);
    let declared = declared.unwrap_or_default();
    let capability = declared.get(method.capability());
    capability.is_some_and(|declared| declared.get() != "null")
}

/// The error of a question for which no client has the capability.
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

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
