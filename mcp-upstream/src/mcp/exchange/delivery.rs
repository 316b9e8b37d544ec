//! Converts the events that a call sends before its response into messages for a client that accepts a stream, in order.
//! Questions become requests to the client with ids of the session. The caller of this module sends the messages.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use tooldock_engine::engine::{CallMessages, UpstreamCall};
use tooldock_engine::upstream::CallContext;
use tooldock_process::worker::LogLevel;
use tooldock_sessions::interaction::{self, EventSender, Interaction, PeerEvent};
use tooldock_sessions::session::{CancelNotice, InFlightCalls, Session};

use crate::jsonrpc::RequestError;
use crate::mcp::driver::{CallDriver, DriverStep};
use crate::mcp::tasks::{AwaitingPost, TaskWait};
use crate::mcp::{Core, call};

/// A running call whose messages are read one by one. In a session the client can cancel it by its request id. Dropping it
/// cancels it.
pub(super) struct StreamedCall {
    /// Driver of the call, whose outcome is the call's response.
    driver: CallDriver<Bytes>,
    session: Option<Arc<Session>>,
    progress_token: Option<String>,
    /// Messages of the most recent event that were not returned yet: at most one per question of the event.
    messages: VecDeque<Vec<u8>>,
}

/// Next message or response of a call.
pub(super) enum Step {
    /// A message for the client, before the response.
    Said(Vec<u8>),
    /// The response of the call, after which no message follows.
    Over(Bytes),
}

impl StreamedCall {
    /// Creates the streamed call for the request with the raw id `id`. The call runs in [`Self::step`]. `waits` is true if its
    /// response waits for the responses of other calls, so that its memory is counted meanwhile.
    pub(super) fn new(
        core: &Arc<Core>,
        cx: &CallContext<'_>,
        id: &str,
        call: Arc<dyn UpstreamCall>,
        waits: bool,
        refused: &Arc<OnceLock<RequestError>>,
    ) -> Self {
        let talks = cx.streams && call.facts().talks != CallMessages::No;
        let (sender, events) = talks.then(interaction::events).unzip();
        Self {
            session: cx.session().cloned(),
            progress_token: call.facts().progress_token.clone(),
            messages: VecDeque::new(),
            driver: CallDriver::new(work(core, cx, id, call, sender, waits, refused), events),
        }
    }

    /// Creates the streamed wait for the end of a task. Only a client in a session that accepts a stream is asked meanwhile.
    pub(super) fn waiting(
        cx: &CallContext<'_>,
        id: &str,
        wait: TaskWait,
        post: &Arc<AwaitingPost>,
        refused: &Arc<OnceLock<RequestError>>,
    ) -> Self {
        let session = cx.session().cloned();
        let can_be_asked = cx.streams && session.is_some();
        let (sender, events) = can_be_asked.then(interaction::events).unzip();
        let response = wait.run(session.as_ref(), id, post, sender);
        let (format, refused) = (cx.result_format(), Arc::clone(refused));
        let id = id.to_owned();
        let work = async move {
            Bytes::from(response.await.unwrap_or_else(|failure| {
                let response = format.error(Some(&id), &failure);
                let _ = refused.set(failure);
                response
            }))
        };
        Self {
            session,
            progress_token: None,
            messages: VecDeque::new(),
            driver: CallDriver::new(work, events),
        }
    }

    /// Runs the call until its next message for the client, or its response. Cancel safe. Must not be called again after the
    /// response.
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
        // The level is read for each event, since the client may change it.
        let session = self.session.as_ref();
        let wanted = session.map_or(LogLevel::Info, |session| session.log_level());
        let token = self.progress_token.as_deref();
        self.messages
            .extend(interaction::notification(event, token, Some(wanted)));
    }

    /// Returns the request that sends a question to the client, with an id of the session; `None` if no question can be sent to
    /// the client.
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
