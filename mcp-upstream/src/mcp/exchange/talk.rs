//! One call of the upstream from its start to its response, and what it says to its client meanwhile.
//!
//! What it says becomes messages on a channel, in order, before the response; how they travel is not decided here.
//! Questions become requests to the client under ids of the session. When the call ends, those still open are taken
//! back (`notifications/cancelled`).

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::worker::{AskMethod, LogLevel};

use crate::caller::Caller;
use crate::engine::{self, Event, EventReceiver, Questions, ask_failed};
use crate::envelope;
use crate::mcp::methods::{self, Dress, UpstreamCall};
use crate::mcp::{Conversation, outgoing};
use crate::session::{InFlight, Session};
use crate::state::Core;
use crate::stdio::message::{Answer, RawReply};

/// Messages of one POST on their way to its stream; each may be as large as the worker's answers are. A full channel
/// slows down who speaks.
const SAID: usize = 4;
/// The longest part of a client's error message that is told to the function.
const REFUSAL_MAX: usize = 512;

/// A prepared call and everything its response needs.
pub(super) struct Talk {
    core: Arc<Core>,
    caller: Caller,
    session: Option<Arc<Session>>,
    /// The request's id, raw JSON.
    id: String,
    dress: Dress,
    call: Box<UpstreamCall>,
}

/// Where a call's messages go.
pub(super) type Sayer = mpsc::Sender<Vec<u8>>;

/// The channel the calls of one POST speak into.
pub(super) fn channel() -> (Sayer, mpsc::Receiver<Vec<u8>>) {
    mpsc::channel(SAID)
}

impl Talk {
    /// The call of a request of this conversation.
    pub(super) fn new(conversation: &Conversation<'_>, id: &str, call: Box<UpstreamCall>) -> Self {
        Self {
            core: Arc::clone(conversation.core),
            caller: conversation.caller.clone(),
            session: conversation.session().cloned(),
            id: id.to_owned(),
            dress: conversation.dress(),
            call,
        }
    }

    /// Runs the call and gives its response. `say` is there when its client can be told and asked something first.
    ///
    /// In a session the call can be cancelled by its id. Dropping the future cancels it in any case.
    pub(super) async fn run(self, say: Option<Sayer>) -> Vec<u8> {
        let Self {
            core,
            caller,
            session,
            id,
            dress,
            call,
        } = self;
        let (sender, receiver) = match say.as_ref().filter(|_| call.talks) {
            Some(_) => {
                let (sender, receiver) = engine::events();
                (Some(sender), Some(receiver))
            }
            None => (None, None),
        };
        let (handle, registration) = AbortHandle::new_pair();
        let entry = session
            .as_ref()
            .map(|session| InFlight::enter(session, &id, handle, call.request.last_words()));
        let work = call.request.clone().run(&core, &caller, sender);
        let work = pin!(Abortable::new(work, registration));
        let outcome = match (receiver, &say) {
            (Some(receiver), Some(say)) => {
                let ears = Ears::new(session.as_ref(), &call, say);
                ears.follow(work, receiver).await
            }
            _ => work.await,
        };
        drop(entry);
        let outcome = outcome.unwrap_or_else(|Aborted| Err(cancelled()));
        call.response(&id, &caller, &dress, outcome)
            .unwrap_or_else(|failure| dress.error(Some(&id), &failure))
    }
}

/// The outcome of a call that its client, or the end of its session, has stopped.
pub(super) fn cancelled() -> CallError {
    CallError::new(CallErrorCode::Cancelled, "The call was cancelled")
}

/// Hears what a call says and asks, and passes it on.
struct Ears<'a> {
    session: Option<&'a Arc<Session>>,
    progress_token: Option<&'a str>,
    /// How long one question may take.
    ask_timeout: Duration,
    say: &'a Sayer,
    waiting: FuturesUnordered<Pin<Box<dyn Future<Output = Answered> + Send>>>,
    /// Our requests that have no answer yet: ids and keys.
    open: Vec<(u64, Arc<str>)>,
}

/// A question whose wait is over.
struct Answered {
    id: u64,
    questions: Arc<Questions>,
    key: Arc<str>,
    outcome: Heard,
}

/// What came of a question.
enum Heard {
    /// The client's response.
    Answer(Answer),
    /// Its time is up.
    Late,
    /// No answer can come: the session ended, or too many questions are open in it.
    Gone,
}

type Outcome = Result<methods::Outcome, Aborted>;

impl<'a> Ears<'a> {
    fn new(session: Option<&'a Arc<Session>>, call: &'a UpstreamCall, say: &'a Sayer) -> Self {
        Self {
            session,
            progress_token: call.progress_token.as_deref(),
            ask_timeout: call.request.namespace().limits.ask_timeout,
            say,
            waiting: FuturesUnordered::new(),
            open: Vec::new(),
        }
    }

    /// Runs the call to its end.
    async fn follow(
        mut self,
        mut work: Pin<&mut (impl Future<Output = Outcome> + Send)>,
        mut receiver: EventReceiver,
    ) -> Outcome {
        let mut speaks = true;
        let outcome = loop {
            // event: the function said or asked something; passed on.
            // answer: the client answered a question; handed to the call.
            // outcome: the call is over; what it said before is still taken up below.
            // In no order, so that a function that never stops talking cannot keep its call from its time limit.
            tokio::select! {
                event = receiver.next(), if speaks => match event {
                    Some(event) => self.hear(event).await,
                    None => speaks = false,
                },
                Some(answered) = self.waiting.next() => self.deliver(answered).await,
                outcome = work.as_mut() => break outcome,
            }
        };
        while let Some(event) = receiver.try_next() {
            // A question of a call that is over needs no answer.
            if !matches!(event, Event::Questions(_)) {
                self.hear(event).await;
            }
        }
        for (id, _) in std::mem::take(&mut self.open) {
            self.tell(outgoing::cancelled(id, "The call is over")).await;
        }
        outcome
    }

    async fn hear(&mut self, event: Event) {
        match event {
            Event::Progress(params) => {
                if let Some(token) = self.progress_token {
                    self.tell(outgoing::progress(token, &params)).await;
                }
            }
            Event::Log { level, params } => {
                if level >= self.wanted() {
                    self.tell(outgoing::log(&params)).await;
                }
            }
            Event::Message { level, message } => {
                if level.is_none_or(|level| level >= self.wanted()) {
                    self.tell(message.into()).await;
                }
            }
            Event::Questions(questions) => self.ask(questions).await,
            Event::Withdrawn { key, message } => self.withdraw(&key, &message).await,
        }
    }

    /// From which level on the client wants log messages. Read each time: it may change its mind.
    fn wanted(&self) -> LogLevel {
        let session = self.session;
        session.map_or(LogLevel::Info, |session| session.log_level())
    }

    async fn ask(&mut self, questions: Questions) {
        let questions = Arc::new(questions);
        for question in &questions.list {
            let asked = |session: &&Arc<Session>| {
                let declared = &session.client().capabilities;
                may_ask(declared.get().as_bytes(), question.method)
            };
            let Some(session) = self.session.filter(asked) else {
                questions.answer(&question.key, Err(missing_capability(question.method)));
                continue;
            };
            let (id, answer) = session.ask();
            self.open.push((id, Arc::clone(&question.key)));
            let message = match &questions.verbatim {
                Some(verbatim) => verbatim.behind(id),
                None => outgoing::question(id, question),
            };
            self.tell(message).await;
            let (questions, key) = (Arc::clone(&questions), Arc::clone(&question.key));
            let limit = self.ask_timeout;
            self.waiting.push(Box::pin(async move {
                let outcome = match timeout(limit, answer).await {
                    Ok(Ok(answer)) => Heard::Answer(answer),
                    Ok(Err(_)) => Heard::Gone,
                    Err(_) => Heard::Late,
                };
                Answered {
                    id,
                    questions,
                    key,
                    outcome,
                }
            }));
        }
    }

    async fn deliver(&mut self, answered: Answered) {
        let open = self.open.iter().position(|(id, _)| *id == answered.id);
        // Taken back meanwhile.
        let Some(open) = open else { return };
        self.open.swap_remove(open);
        let outcome = match answered.outcome {
            Heard::Answer(answer) => {
                if let Some(verbatim) = &answered.questions.verbatim {
                    verbatim.respond(answer.clone());
                }
                match answer.reply() {
                    RawReply::Result(result) => Ok(result),
                    RawReply::Error(error) => Err(refused(&error)),
                }
            }
            Heard::Late => {
                let withdrawn = outgoing::cancelled(answered.id, "The question timed out");
                self.tell(withdrawn).await;
                Err(ask_failed("The client did not answer in time"))
            }
            Heard::Gone => Err(ask_failed(
                "The client of this session cannot be asked any more",
            )),
        };
        answered.questions.answer(&answered.key, outcome);
    }

    /// Passes on that the upstream does not want an answer any more.
    async fn withdraw(&mut self, key: &str, message: &[u8]) {
        let open = self.open.iter().position(|(_, own)| **own == *key);
        let Some(open) = open else { return };
        let (id, _) = self.open.swap_remove(open);
        self.tell(outgoing::taken_back(id, message)).await;
    }

    fn tell(&self, message: Vec<u8>) -> impl Future<Output = ()> + Send + use<'a> {
        let say = self.say;
        async move {
            // A stream that is gone ends the call by dropping it, not from here.
            let _ = say.send(message).await;
        }
    }
}

/// Whether a client that declared these capabilities, raw JSON, can be asked this. `null` declares nothing.
pub(in crate::mcp) fn may_ask(declared: &[u8], method: AskMethod) -> bool {
    let declared = serde_json::from_slice::<HashMap<String, &RawValue>>(declared);
    let declared = declared.unwrap_or_default();
    let capability = declared.get(method.capability());
    capability.is_some_and(|declared| declared.get() != "null")
}

/// A question nobody can be asked.
pub(in crate::mcp) fn missing_capability(method: AskMethod) -> CallError {
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
        .and_then(envelope::string)
        .unwrap_or_default();
    let message: String = message.chars().take(REFUSAL_MAX).collect();
    ask_failed(format!(
        "The client answered with an error{code}: {message}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_can_be_asked_what_it_declared_and_null_declares_nothing() {
        let declared = br#"{"elicitation":null,"s\u0061mpling":{},"other":[1]}"#;
        assert!(!may_ask(declared, AskMethod::Elicit));
        assert!(may_ask(declared, AskMethod::Sample));
        assert!(!may_ask(declared, AskMethod::Roots));
        assert!(!may_ask(b"[]", AskMethod::Sample));
    }
}
