//! One call of the upstream from its start to its response, and what it says to its client meanwhile.
//!
//! What it says becomes messages, in order, before the response; how they travel is not decided here. Questions become
//! requests to the client under ids of the session.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::{AbortHandle, Abortable, Aborted};
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::worker::LogLevel;

use crate::engine::{self, Event, EventReceiver, EventSender};
use crate::interaction::Interaction;
use crate::mcp::methods::UpstreamCall;
use crate::mcp::{CallContext, outgoing};
use crate::session::{InFlight, Session};

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
                // Questions of a call that is over are over, too, and were taken back if they were asked.
                match messages_out.receiver.try_next() {
                    Some(event) => messages_out.hear(event),
                    None => return Step::Over(self.response.take().unwrap_or_default()),
                }
                continue;
            }
            // event: the function said or asked something; passed on.
            // response: the call is over; what it said before is still taken up above.
            // In no order, so that a function that never stops talking cannot keep its call from its time limit.
            tokio::select! {
                event = messages_out.receiver.next() => messages_out.hear(event),
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
    /// Messages of the last event, not yet taken: as many as it has questions at most.
    messages: VecDeque<Vec<u8>>,
}

impl ClientMessages {
    fn new(cx: &CallContext<'_>, call: &mut UpstreamCall) -> (EventSender, Self) {
        let (sender, receiver) = engine::events();
        let messages_out = Self {
            receiver,
            session: cx.session().cloned(),
            progress_token: call.progress_token.take(),
            messages: VecDeque::new(),
        };
        (sender, messages_out)
    }

    fn hear(&mut self, event: Event) {
        let message = match event {
            Event::Progress(params) => {
                let token = self.progress_token.as_ref();
                token.map(|token| outgoing::progress(token, &params))
            }
            Event::Log { level, params } => {
                (level >= self.wanted()).then(|| outgoing::log(&params))
            }
            Event::Message { level, message } => level
                .is_none_or(|level| level >= self.wanted())
                .then(|| message.into()),
            Event::InputRequests(questions) => {
                let asked = questions.iter().filter_map(|it| self.ask(it));
                let asked: Vec<_> = asked.collect();
                self.messages.extend(asked);
                None
            }
        };
        self.messages.extend(message);
    }

    /// From which level on the client wants log messages. Read each time: it may change its mind.
    fn wanted(&self) -> LogLevel {
        let session = self.session.as_ref();
        session.map_or(LogLevel::Info, |session| session.log_level())
    }

    /// The request that asks a question, under an id of the session.
    fn ask(&self, question: &Arc<Interaction>) -> Option<Vec<u8>> {
        let session = self.session.as_ref();
        let declared = session.map(|session| session.client().capabilities.get());
        let may = question.admit(declared.unwrap_or("{}").as_bytes());
        session.filter(|_| may)?.ask(question)
    }
}
