//! The client of a running call, as the call's upstream can reach it.

use std::sync::Arc;

use bytes::Bytes;
use prometheus::IntCounter;
use tooldock_base::answers::AnswerAccount;
use tooldock_base::trace::{PassedTrace, UpstreamSpan};
use tooldock_process::worker::{CallSink, LogLevel};
use tooldock_sessions::interaction::{Interaction, QuestionSet, Responder, cannot_be_asked};

use super::interactive::CallInbox;
use super::{CallSecrets, EventSender, PeerEvent};

/// Sends messages to the client of a call before the reply, and questions if the client can answer them. Never waits. Cheap to
/// clone.
#[derive(Clone)]
pub struct Peer {
    /// Channel for messages to the client; `None` if messages are dropped.
    heard: Option<PeerChannel>,
    /// Inbox for questions; `None` if the call may not ask questions.
    inbox: Option<Arc<CallInbox>>,
    /// Account that counts the bytes of the reply; `None` for requests of the gateway itself.
    answers: Option<AnswerAccount>,
    /// Trace to which the call belongs, for the upstream; `None` if the call is not traced.
    trace: Option<Arc<PassedTrace>>,
}

/// Channel to a client that receives messages before the reply.
#[derive(Clone)]
struct PeerChannel {
    events: EventSender,
    /// Counter of messages that are dropped because the client reads too slowly.
    dropped: IntCounter,
    /// Secrets that are removed from messages.
    secrets: Arc<CallSecrets>,
}

impl Peer {
    /// Creates the peer for the client of a call. With `heard`, progress and log messages are sent to the client after secrets
    /// were removed; messages for a client that reads too slowly are dropped and counted in `dropped`. With an inbox, questions
    /// can be sent to the client.
    pub(super) fn new(
        heard: Option<(EventSender, Arc<CallSecrets>)>,
        inbox: Option<Arc<CallInbox>>,
        dropped: &IntCounter,
        answers: AnswerAccount,
    ) -> Self {
        Self {
            answers: Some(answers),
            heard: heard.map(|(events, secrets)| PeerChannel {
                events,
                dropped: dropped.clone(),
                secrets,
            }),
            inbox,
            trace: None,
        }
    }

    /// Sets the trace of a call from its span, if it is traced.
    pub(super) fn traced(mut self, span: Option<&UpstreamSpan>) -> Self {
        self.trace = span.and_then(UpstreamSpan::passed).map(Arc::clone);
        self
    }

    /// Trace to which the call belongs, for the upstream; `None` if the call is not traced.
    pub(crate) fn trace(&self) -> Option<&Arc<PassedTrace>> {
        self.trace.as_ref()
    }

    /// Creates a peer without a client, for requests that the gateway makes itself.
    pub(crate) fn nobody() -> Self {
        Self {
            heard: None,
            inbox: None,
            answers: None,
            trace: None,
        }
    }

    /// Sends a complete notification. A log message is sent only if the client has requested its level. Messages beyond the
    /// bound of the call's queue are dropped and counted.
    pub(crate) fn say(&self, level: Option<LogLevel>, message: Bytes) {
        if let Some(heard) = &self.heard {
            let message = heard.secrets.hide_in(message);
            let event = PeerEvent::Message { level, message };
            heard.events.tell(event, &heard.dropped);
        }
    }

    /// Sends questions to the client; questions that the client does not support fail at once.
    pub(crate) fn ask(&self, asked: QuestionSet) -> Vec<Arc<Interaction>> {
        if let Some(inbox) = &self.inbox {
            return inbox.ask(asked);
        }
        cannot_be_asked(asked);
        Vec::new()
    }

    /// Stops the call's time limit until the returned question is settled, without a message to the client. `None` if the call
    /// cannot ask questions, has ended, or if too many calls wait already.
    pub(crate) fn wait_outside(&self, responder: Responder) -> Option<Arc<Interaction>> {
        self.inbox.as_ref()?.wait_outside(responder)
    }

    /// Account that counts the bytes of the reply; `None` for requests of the gateway itself.
    pub(crate) fn answers(&self) -> Option<&AnswerAccount> {
        self.answers.as_ref()
    }

    /// Returns true if messages before the reply reach a client; false if they are dropped.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Returns true if questions can be sent to the client.
    pub(crate) fn asks(&self) -> bool {
        self.inbox.is_some() && self.heard.is_some()
    }

    /// Returns the sink to which a worker's connection sends the events and questions of the function; `None` for a call that
    /// cannot send questions.
    pub(crate) fn into_sink(self) -> Option<Arc<dyn CallSink>> {
        self.inbox.map(|inbox| inbox as Arc<dyn CallSink>)
    }
}
