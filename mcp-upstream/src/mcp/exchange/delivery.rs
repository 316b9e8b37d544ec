//! Converts the events of a call, in order and before its response, into messages for a client that accepts a stream. Sending
//! the messages is left to the caller. Questions become requests to the client with ids of the session.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use tooldock_process::worker::LogLevel;
use tooldock_sessions::interaction::{self, EventSender, Interaction, PeerEvent};
use tooldock_sessions::session::{CancelNotice, InFlightCalls, Session};

use crate::engine::{Talks, UpstreamCall};
use crate::jsonrpc::RequestError;
use crate::mcp::driver::{CallDriver, DriverStep};
use crate::mcp::{Core, call};
use crate::upstream::CallContext;

/// A running call whose messages are read one by one. In a session it can be cancelled by its id; dropping it always cancels
/// it.
pub(super) struct StreamedCall {
    /// Drives the call and ends with its response.
    driver: CallDriver<Bytes>,
    session: Option<Arc<Session>>,
    progress_token: Option<String>,
    /// Messages of the last event that were not read yet: at most as many as the event has questions.
    messages: VecDeque<Vec<u8>>,
}

/// The next step of a call.
pub(super) enum Step {
    /// A message for the client, before the response.
    Said(Vec<u8>),
    /// The response, after which no message follows.
    Over(Bytes),
}

impl StreamedCall {
    /// Starts tracking the call of a request, with the request's id as raw JSON. The call runs in [`Self::step`]. `waits`: the
    /// response waits for those of other calls, and its memory is counted meanwhile.
    pub(super) fn new(
        core: &Arc<Core>,
        cx: &CallContext<'_>,
        id: &str,
        call: Arc<dyn UpstreamCall>,
        waits: bool,
        refused: &Arc<OnceLock<RequestError>>,
    ) -> Self {
        let talks = cx.streams && call.facts().talks != Talks::No;
        let (sender, events) = talks.then(interaction::events).unzip();
        Self {
            session: cx.session().cloned(),
            progress_token: call.facts().progress_token.clone(),
            messages: VecDeque::new(),
            driver: CallDriver::new(work(core, cx, id, call, sender, waits, refused), events),
        }
    }

    /// Runs the call to its next message for the client. Cancel safe; must not be called again after the response.
    pub(super) async fn step(&mut self) -> Step {
        loop {
            if let Some(message) = self.messages.pop_front() {
                return Step::Said(message);
            }
            match self.driver.next().await {
                DriverStep::Event(event) => self.hear(event),
                DriverStep::Over(response) => return Step::Over(response),
            }
        }
    }

    fn hear(&mut self, event: PeerEvent) {
        if let PeerEvent::InputRequests(questions) = event {
            let asked = questions.iter().filter_map(|it| self.ask(it));
            let asked: Vec<_> = asked.collect();
            self.messages.extend(asked);
            return;
        }
        // Read for each event: the client may change the level.
        let session = self.session.as_ref();
        let wanted = session.map_or(LogLevel::Info, |session| session.log_level());
        let token = self.progress_token.as_deref();
        self.messages
            .extend(interaction::notification(event, token, Some(wanted)));
    }

    /// The request that carries a question to the client, with an id of the session; `None` if the client cannot be asked.
    fn ask(&self, question: &Arc<Interaction>) -> Option<Vec<u8>> {
        let session = self.session.as_ref();
        let declared = session.map(|session| session.client().capabilities.get());
        let may = question.admit(declared.unwrap_or("{}").as_bytes());
        session.filter(|_| may)?.ask(question)
    }
}

/// Runs a call and returns its response.
fn work(
    core: &Arc<Core>,
    cx: &CallContext<'_>,
    id: &str,
    call: Arc<dyn UpstreamCall>,
    sender: Option<EventSender>,
    waits: bool,
    refused: &Arc<OnceLock<RequestError>>,
) -> impl Future<Output = Bytes> + Send + use<> {
    let (core, refused) = (Arc::clone(core), Arc::clone(refused));
    let caller = cx.caller.clone();
    let format = cx.result_format();
    let (handle, registration) = AbortHandle::new_pair();
    let entry = cx.session().map(|session| {
        InFlightCalls::enter(
            session,
            id,
            handle,
            Arc::clone(&call) as Arc<dyn CancelNotice>,
        )
    });
    let id = id.to_owned();
    async move {
        let run = core.engine.run(&caller, &call, sender);
        let outcome = Abortable::new(run, registration).await;
        drop(entry);
        let outcome = outcome.unwrap_or_else(|Aborted| Err(call::cancelled()));
        let written = |outcome| {
            let response = call::response(call.facts(), &id, &caller, &format, outcome);
            Bytes::from(response.unwrap_or_else(|failure| {
                let response = format.error(Some(&id), &failure);
                if matches!(failure, RequestError::InsufficientScope { .. }) {
                    let _ = refused.set(failure);
                }
                response
            }))
        };
        let response = written(outcome);
        if !waits {
            return response;
        }
        let kept = core.engine.account_of(&caller).keep(response);
        kept.unwrap_or_else(|no_room| written(Err(no_room.into())))
    }
}
