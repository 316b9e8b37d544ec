//! One call of the upstream from its start to its response, and what it says to its client meanwhile.
//!
//! What it says becomes messages, in order, before the response; how they travel is not decided here. Questions become
//! requests to the client under ids of the session. When the call ends, those still open are taken back
//! (`notifications/cancelled`).

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use futures_util::stream::FuturesUnordered;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::worker::{AskMethod, LogLevel};

use crate::engine::{self, Event, EventReceiver, EventSender, InputRequests, ask_failed};
use crate::jsonrpc::{self, Response, ResponseOutcome};
use crate::mcp::methods::UpstreamCall;
use crate::mcp::{CallContext, outgoing};
use crate::session::{InFlight, Session};

/// The longest part of a client's error message that is told to the function.
const REFUSAL_MAX: usize = 512;

/// A call that runs. In a session it can be cancelled by its id; dropping it cancels it in any case.
pub(super) struct CallDriver {
    /// Ends with the response.
    work: Pin<Box<dyn Future<Output = Vec<u8>> + Send>>,
    /// There where its client can be told and asked something before the response.
    messages_out: Option<ClientMessages>,
    /// What the call ended with, while there is still something to tell.
    response: Option<Vec<u8>>,
}

/// What a call came to.
pub(super) enum Step {
    /// A message for its client, before the response.
    Said(Vec<u8>),
    /// The response; nothing comes after it.
    Over(Vec<u8>),
}

impl CallDriver {
    /// The call of a request of this conversation, raw JSON its id. It runs in [`Self::step`].
    pub(super) fn new(cx: &CallContext<'_>, id: &str, mut call: Box<UpstreamCall>) -> Self {
        let (sender, messages_out) = match cx.streams && call.talks {
            true => {
                let (sender, messages_out) = ClientMessages::new(cx, &mut call);
                (Some(sender), Some(messages_out))
            }
            false => (None, None),
        };
        Self {
            work: Box::pin(work(cx, id, call, sender)),
            messages_out,
            response: None,
        }
    }

    /// Goes on until there is something for the client. Cancel safe; not to be called again after the response.
    pub(super) async fn step(&mut self) -> Step {
        let Some(messages_out) = &mut self.messages_out else {
            return Step::Over(self.work.as_mut().await);
        };
        loop {
            if let Some(message) = messages_out.messages.pop_front() {
                return Step::Said(message);
            }
            if self.response.is_some() {
                match messages_out.receiver.try_next() {
                    // A question of a call that is over needs no answer.
                    Some(Event::InputRequests(_)) => {}
                    Some(event) => messages_out.hear(event),
                    None if !messages_out.open.is_empty() => messages_out.take_back(),
                    None => return Step::Over(self.response.take().unwrap_or_default()),
                }
                continue;
            }
            // event: the function said or asked something; passed on.
            // answer: the client answered a question; handed to the call.
            // response: the call is over; what it said before is still taken up above.
            // In no order, so that a function that never stops talking cannot keep its call from its time limit.
            tokio::select! {
                event = messages_out.receiver.next() => messages_out.hear(event),
                Some(answered) = next_of(&mut messages_out.waiting), if messages_out.waiting.is_some() => {
                    messages_out.deliver(answered);
                }
                response = self.work.as_mut() => self.response = Some(response),
            }
        }
    }
}

/// Runs a call and gives its response.
fn work(
    cx: &CallContext<'_>,
    id: &str,
    call: Box<UpstreamCall>,
    sender: Option<EventSender>,
) -> impl Future<Output = Vec<u8>> + Send + use<> {
    let core = Arc::clone(cx.core);
    let caller = cx.caller.clone();
    let format = cx.result_format();
    let (handle, registration) = AbortHandle::new_pair();
    let entry = cx
        .session()
        .map(|session| InFlight::enter(session, id, handle, call.request.cancel_notice()));
    let id = id.to_owned();
    async move {
        let run = call.request.run(&core, &caller, sender);
        let outcome = Abortable::new(run, registration).await;
        drop(entry);
        let outcome = outcome.unwrap_or_else(|Aborted| Err(cancelled()));
        call.response(&id, &caller, &format, outcome)
            .unwrap_or_else(|failure| format.error(Some(&id), &failure))
    }
}

/// The outcome of a call that its client, or the end of its session, has stopped.
pub(super) fn cancelled() -> CallError {
    CallError::new(CallErrorCode::Cancelled, "The call was cancelled")
}

/// Hears what a call says and asks, and makes messages of it.
struct ClientMessages {
    receiver: EventReceiver,
    session: Option<Arc<Session>>,
    progress_token: Option<String>,
    /// How long one question may take.
    ask_timeout: Duration,
    /// Messages of the last event, not yet taken: as many as it has questions at most.
    messages: VecDeque<Vec<u8>>,
    /// Waits for answers; few calls ask.
    waiting: Option<Waiting>,
    /// Our requests that have no answer yet: ids and keys.
    open: Vec<(u64, Arc<str>)>,
}

type Waiting = FuturesUnordered<Pin<Box<dyn Future<Output = AnsweredInput> + Send>>>;

/// A question whose wait is over.
struct AnsweredInput {
    id: u64,
    questions: Arc<InputRequests>,
    key: Arc<str>,
    outcome: InputOutcome,
}

/// What came of a question.
enum InputOutcome {
    /// The client's response.
    Response(Response),
    /// Its time is up.
    Late,
    /// No answer can come: the session ended, or too many questions are open in it.
    Gone,
}

impl ClientMessages {
    fn new(cx: &CallContext<'_>, call: &mut UpstreamCall) -> (EventSender, Self) {
        let (sender, receiver) = engine::events();
        let messages_out = Self {
            receiver,
            session: cx.session().cloned(),
            progress_token: call.progress_token.take(),
            ask_timeout: call.request.namespace().limits.ask_timeout,
            messages: VecDeque::new(),
            waiting: None,
            open: Vec::new(),
        };
        (sender, messages_out)
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Progress(params) => {
                if let Some(token) = &self.progress_token {
                    let message = outgoing::progress(token, &params);
                    self.tell(message);
                }
            }
            Event::Log { level, params } => {
                if level >= self.wanted() {
                    self.tell(outgoing::log(&params));
                }
            }
            Event::Message { level, message } => {
                if level.is_none_or(|level| level >= self.wanted()) {
                    self.tell(message.into());
                }
            }
            Event::InputRequests(questions) => self.ask(questions),
            Event::Withdrawn { key, message } => self.withdraw(&key, &message),
        }
    }

    /// From which level on the client wants log messages. Read each time: it may change its mind.
    fn wanted(&self) -> LogLevel {
        let session = self.session.as_ref();
        session.map_or(LogLevel::Info, |session| session.log_level())
    }

    fn ask(&mut self, questions: InputRequests) {
        let questions = Arc::new(questions);
        for question in &questions.list {
            let asked = |session: &&Arc<Session>| {
                let declared = &session.client().capabilities;
                may_ask(declared.get().as_bytes(), question.method)
            };
            let Some(session) = self.session.as_ref().filter(asked) else {
                questions.answer(&question.key, Err(missing_capability(question.method)));
                continue;
            };
            let (id, answer) = session.ask();
            self.open.push((id, Arc::clone(&question.key)));
            let message = match &questions.relayed {
                Some(relayed) => relayed.with_id(id),
                None => outgoing::question(id, question),
            };
            self.tell(message);
            let (questions, key) = (Arc::clone(&questions), Arc::clone(&question.key));
            let limit = self.ask_timeout;
            let waiting = self.waiting.get_or_insert_default();
            waiting.push(Box::pin(async move {
                let outcome = match timeout(limit, answer).await {
                    Ok(Ok(answer)) => InputOutcome::Response(answer),
                    Ok(Err(_)) => InputOutcome::Gone,
                    Err(_) => InputOutcome::Late,
                };
                AnsweredInput {
                    id,
                    questions,
                    key,
                    outcome,
                }
            }));
        }
    }

    fn deliver(&mut self, answered: AnsweredInput) {
        let open = self.open.iter().position(|(id, _)| *id == answered.id);
        // Taken back meanwhile.
        let Some(open) = open else { return };
        self.open.swap_remove(open);
        let outcome = match answered.outcome {
            InputOutcome::Response(answer) => {
                if let Some(relayed) = &answered.questions.relayed {
                    relayed.respond(answer.clone());
                }
                match answer.outcome() {
                    ResponseOutcome::Result(result) => Ok(result),
                    ResponseOutcome::Error(error) => Err(refused(&error)),
                }
            }
            InputOutcome::Late => {
                let withdrawn = outgoing::cancelled(answered.id, "The question timed out");
                self.tell(withdrawn);
                Err(ask_failed("The client did not answer in time"))
            }
            InputOutcome::Gone => Err(ask_failed(
                "The client of this session cannot be asked any more",
            )),
        };
        answered.questions.answer(&answered.key, outcome);
    }

    /// Passes on that the upstream does not want an answer any more.
    fn withdraw(&mut self, key: &str, message: &[u8]) {
        let open = self.open.iter().position(|(_, own)| **own == *key);
        let Some(open) = open else { return };
        let (id, _) = self.open.swap_remove(open);
        self.tell(outgoing::taken_back(id, message));
    }

    /// Takes back what is open: the call is over.
    fn take_back(&mut self) {
        for (id, _) in std::mem::take(&mut self.open) {
            self.tell(outgoing::cancelled(id, "The call is over"));
        }
    }

    fn tell(&mut self, message: Vec<u8>) {
        self.messages.push_back(message);
    }
}

/// The next question whose wait is over.
async fn next_of(waiting: &mut Option<Waiting>) -> Option<AnsweredInput> {
    waiting.as_mut()?.next().await
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
        .and_then(jsonrpc::string)
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
