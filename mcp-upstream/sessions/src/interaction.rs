//! Questions that upstreams ask clients while a call is in progress: elicitation, sampling, roots.
//!
//! A question is an [`Interaction`]: its content, the responder that passes the answer to the upstream, and a deadline. The first
//! answer is used, whatever its source, and the upstream receives it exactly once.
//!
//! ```text
//!            respond, fulfil ─────────────┐ (the client)
//!   open ──▶ Open ── fail ────────────────┼──▶ Answered ── deliver ──▶ Over
//!            expire (the deadline) ───────┘
//!            withdraw (the upstream), abandon (the end of the scope) ──▶ Over
//! ```
//!
//! A question has up to three identifiers. Each is unique only within one scope (a connection, a call, a session), which has an
//! index of its questions. The entries of an index are weak references, except in the scope that owns the question. An index ends
//! together with its scope.
//!
//! | identifier | chosen by | index |
//! |---|---|---|
//! | the upstream's own id | a stdio server | [`ConnectionInteractions`] |
//! | the key within its call | the Python function; the gateway for a server | [`CallInteractions`], which owns the entry |
//! | the id that the client sees | the gateway | `SessionInteractions`; a 2026-07-28 client answers by key |
//!
//! The owner of a question enforces its deadline: the call's future for the questions of a call, or a small task for a question
//! that a server asks outside of calls. A call of a 2026-07-28 client is suspended between two requests of the client: until the
//! deadline of its questions, it is stored in [`SuspendedCalls`].
//!
//! There is no table of all questions of the process. Since each identifier is unique only within its scope, such a table would
//! repeat the three indexes, unrelated clients would share its locks, and it would have to be searched at the end of each scope.
//! With separate indexes, a question cannot be found from another client's session, and a scope is ended by dropping it.
//!
//! The limits on open questions and stored answers are in this module: [`OPEN_IN_CALL`], `OPEN_IN_SESSION`, [`EARLY_MAX`],
//! `KEPT_ANSWERS_MAX`. The limits of the event queue are in `interaction/events.rs`. A single message of a worker, or a single
//! `input_required` result, may contain as many questions as a call may have open; its parser enforces that. The namespace limits
//! the number of suspended calls (`max_parked`).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use serde_json::value::RawValue;
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::{AskMethod, OPEN_QUESTIONS_MAX, Question};
use tooldock_protocol::bridge::links;
use tooldock_protocol::jsonrpc::{Response, spans};

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
pub use call::{AnswersTooLarge, CallInteractions, set_answer};
pub use connection::ConnectionInteractions;
pub use connection::OpenQuestionGuard;
pub use events::{EventReceiver, EventSender, PeerEvent, events};
pub use messages::{WithdrawalMessage, notification};
pub use session::AnswerOutcome;
pub(crate) use session::{QUESTION_COST, SessionInteractions};
pub use suspended::{ResumeRefusal, SuspendRefusal, Suspendable, SuspendedCalls};

/// Maximum number of open questions of one call. A worker's function or an `input_required` result may ask as many at once.
pub const OPEN_IN_CALL: usize = OPEN_QUESTIONS_MAX;
/// Maximum number of open questions of one session. Usually the limit on calls that wait for their client is reached first.
pub(crate) const OPEN_IN_SESSION: usize = 1000;
/// Maximum number of questions that a server may ask while its connection is being opened for a call, before the call begins.
pub const EARLY_MAX: usize = 16;
/// Maximum total size of answers that are stored for a call of a modern client while other questions of the call are open: 4 MiB,
/// the default maximum size of a message. If an answer leaves no question open, it is not stored and may be larger.
pub(crate) const KEPT_ANSWERS_MAX: usize = 4 * 1024 * 1024;

/// Duration that replaces a configured limit which is too long to be added to the clock: 30 years.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A question that an upstream asks a client, with its state and deadline.
pub struct Interaction {
    /// Content of the question; `None` for a server's request of an unknown kind, which is forwarded unchanged.
    question: Option<Question>,
    /// Memory that the question occupies until its last reference is dropped, in bytes.
    bytes: usize,
    limit: Duration,
    deadline: Instant,
    /// The owner of the question: a call, or a task that waits outside of calls.
    scope: Weak<dyn QuestionOwner>,
    phase: Mutex<QuestionPhase>,
}

/// The owner of a question: a call, or a task that waits outside of calls. The methods must return immediately.
pub trait QuestionOwner: Send + Sync {
    /// Sends the client the message that cancels a question.
    fn take_back(&self, message: WithdrawalMessage);

    /// Called when a question has been answered, or needs no answer any more.
    fn settled(&self);
}

/// The state of a question. It is kept small, since the index of a session contains finished questions for a while.
enum QuestionPhase {
    Open {
        responder: Responder,
        /// Id of the request by which the client was asked; `None` if the client was not asked by a request.
        client_id: Option<u64>,
    },
    Answered {
        responder: Responder,
        answer: Box<Answer>,
    },
    Over,
}

impl Interaction {
    /// Creates an open question that `scope` owns. It must be answered within `limit` from now.
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

    /// Creates a copy of a task's question for a client that waits for the task. `params`: the parameters as this client gets them.
    /// `None` for a server's request of an unknown kind.
    pub fn copy_for_client(
        self: &Arc<Self>,
        params: Bytes,
        scope: Weak<dyn QuestionOwner>,
    ) -> Option<Arc<Self>> {
        let question = self.question.as_ref()?;
        let question = Question {
            params,
            ..question.clone()
        };
        let limit = self.deadline.saturating_duration_since(Instant::now());
        let responder = Responder::Task(Arc::clone(self));
        Some(Self::new(Some(question), responder, limit, scope))
    }

    /// Content of the question; `None` for a server's request of an unknown kind.
    pub fn question(&self) -> Option<&Question> {
        self.question.as_ref()
    }

    /// Size of the question for the limits of queues, in bytes. It never changes.
    fn bytes(&self) -> usize {
        self.bytes
    }

    /// Time until which the question may be answered.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns true if the question has not been answered, failed or cancelled yet.
    pub fn is_open(&self) -> bool {
        matches!(*self.phase(), QuestionPhase::Open { .. })
    }

    /// Returns true if the question is finished: the upstream has received the answer, or will receive none.
    pub fn is_over(&self) -> bool {
        matches!(*self.phase(), QuestionPhase::Over)
    }

    /// Returns true if a client with these declared capabilities (raw JSON) supports the question. Otherwise fails the question.
    pub fn admit(&self, declared: &[u8]) -> bool {
        let Some(question) = &self.question else {
            return true;
        };
        let may = may_ask(declared, question);
        if !may {
            self.fail(missing_capability(question));
        }
        may
    }

    /// Builds the request by which the client is asked, with this id. Returns `None` if the question is no longer open.
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

    /// Stores the client's complete response as the answer. Returns false if the question is no longer open.
    pub(crate) fn respond(&self, response: Response) -> bool {
        self.settle(Answer::Response(response), |_| None)
    }

    /// Stores the client's result as the answer. Returns false if the question is no longer open.
    pub fn set_answer(&self, result: Bytes) -> bool {
        self.settle(Answer::Result(result), |_| None)
    }

    /// Stores an error as the answer, without a message to the client. Returns false if the question is no longer open.
    pub fn fail(&self, why: CallError) -> bool {
        self.settle(Answer::Failed(why), |_| None)
    }

    /// Ends the question, since the upstream has cancelled it. `message` is the upstream's complete `notifications/cancelled`.
    pub(crate) fn withdraw(&self, message: &[u8]) {
        self.end(|id| messages::taken_back(id, message));
    }

    /// Fails the question, since its deadline has passed.
    pub fn expire(&self) {
        let limit = self.limit.as_secs_f64();
        let why = ask_failed(format!("The client gave no answer within {limit} s"));
        self.settle(Answer::Failed(why), |id| {
            Some(messages::cancelled(id, "The question timed out"))
        });
    }

    /// Ends the question, since its call has ended.
    pub fn abandon(&self) {
        self.end(|id| messages::cancelled(id, "The call is over"));
    }

    /// Ends an open question whose answer the upstream no longer needs. If the client was asked by a request, it gets a message
    /// that cancels the request; `words` creates the message for the request's id.
    fn end(&self, words: impl FnOnce(u64) -> WithdrawalMessage) {
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

    /// Passes the stored answer to the upstream. Does nothing if the question is still open, or finished.
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

    /// Size of the stored answer, in bytes; 0 if there is none.
    fn kept(&self) -> usize {
        match &*self.phase() {
            QuestionPhase::Answered { answer, .. } => answer.kept(),
            QuestionPhase::Open { .. } | QuestionPhase::Over => 0,
        }
    }

    /// Stores an answer. If the client was asked by a request, `words` may create a message that cancels the request; it gets the
    /// request's id. Returns false if the question is no longer open.
    fn settle(&self, answer: Answer, words: impl FnOnce(u64) -> Option<WithdrawalMessage>) -> bool {
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

    fn settled(&self, taken_back: Option<WithdrawalMessage>) {
        let Some(scope) = self.scope.upgrade() else {
            return;
        };
        // The message must be sent before the owner is notified: a call that has all its answers may end immediately.
        if let Some(message) = taken_back {
            scope.take_back(message);
        }
        scope.settled();
    }

    /// Locks the state of the question. The lock is never held across an await.
    fn phase(&self) -> MutexGuard<'_, QuestionPhase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Interaction {
    /// Leaves out the question's content, which is the users' data.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Interaction").finish_non_exhaustive()
    }
}

/// Creates the error for a question that was not answered.
pub fn ask_failed(message: impl Into<String>) -> CallError {
    CallError::new(CallErrorCode::AskFailed, message)
}

/// The time `limit` after `now`. A limit that is too long for the clock is shortened.
pub fn after(now: Instant, limit: Duration) -> Instant {
    now.checked_add(limit).unwrap_or_else(|| now + FAR)
}

/// Returns true if a client with these declared capabilities (raw JSON) supports the question. `null` means no capabilities. An
/// elicitation in URL mode needs the member `url` of the capability; one with a form needs `form`, or a capability without both.
fn may_ask(declared: &[u8], question: &Question) -> bool {
    let declared = serde_json::from_slice::<HashMap<String, &RawValue>>(declared);
    let declared = declared.unwrap_or_default();
    let capability = declared.get(question.method.capability());
    let Some(capability) = capability.filter(|declared| declared.get() != "null") else {
        return false;
    };
    if question.method != AskMethod::Elicit {
        return true;
    }
    let has = |mode| spans::member(capability, mode).is_some_and(|it| it.get() != "null");
    match links::is_url(&question.params) {
        true => has("url"),
        false => has("form") || !has("url"),
    }
}

/// Creates the error for a question that the client does not support, since it lacks the capability. If the question is a page to
/// open, the error contains its link.
fn missing_capability(question: &Question) -> CallError {
    let capability = question.method.capability();
    let link = links::of_question(question);
    let message = match &link {
        Some(link) => format!(
            "The client cannot open links (it has no capability \"{capability}.url\"). Open this link in a browser, and call \
             again: {}",
            link.text()
        ),
        None => format!("The client cannot be asked here: it has no capability \"{capability}\""),
    };
    let mut error = CallError::new(CallErrorCode::MissingCapability, message);
    let modes = if link.is_some() { r#""url":{}"# } else { "" };
    let details = format!(r#"{{"requiredCapabilities":{{"{capability}":{{{modes}}}}}}}"#);
    error.details = serde_json::from_str(&details).ok();
    error
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
