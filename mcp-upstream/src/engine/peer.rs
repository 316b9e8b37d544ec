//! The client of a running call, from the point of view of its upstream.

use std::sync::Arc;

use bytes::Bytes;
use prometheus::IntCounter;
use tooldock_workers::answers::AnswerAccount;
use tooldock_workers::worker::{CallSink, LogLevel};

use super::interactive::CallInbox;
use super::{CallSecrets, EventSender, PeerEvent};
use crate::interaction::{Interaction, QuestionSet, cannot_be_asked};

/// Sends messages to the client of a call before its answer, and asks it if possible. Never waits. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Takes messages for the client; `None` if they are dropped.
    heard: Option<PeerChannel>,
    /// Takes questions; `None` if the call may not ask.
    inbox: Option<Arc<CallInbox>>,
    /// Counts the answer of the call; `None` for requests of the gateway itself.
    answers: Option<AnswerAccount>,
}

/// The channel to a client that receives messages.
#[derive(Clone)]
struct PeerChannel {
    events: EventSender,
    /// Counts messages that are dropped because the client reads too slowly.
    dropped: IntCounter,
    /// The secrets that are hidden in messages.
    secrets: Arc<CallSecrets>,
}

impl Peer {
    /// The client of a call. With `heard`, progress and log messages go to the client, without the secrets; a client that
    /// reads too slowly loses messages, which are counted in `dropped`. With an inbox, the client can be asked.
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
        }
    }

    /// A peer without a client, for requests that the gateway makes itself.
    pub(crate) fn nobody() -> Self {
        Self {
            heard: None,
            inbox: None,
            answers: None,
        }
    }

    /// Passes a whole notification on. A log message with a level goes only to a client that wants that level. Messages that are
    /// not read in time are dropped and counted.
    pub(crate) fn say(&self, level: Option<LogLevel>, message: Bytes) {
        if let Some(heard) = &self.heard {
            let message = heard.secrets.hide_in(message);
            let event = PeerEvent::Message { level, message };
            heard.events.tell(event, &heard.dropped);
        }
    }

    /// Asks the client; questions that it cannot be asked fail at once.
    pub(crate) fn ask(&self, asked: QuestionSet) -> Vec<Arc<Interaction>> {
        if let Some(inbox) = &self.inbox {
            return inbox.ask(asked);
        }
        cannot_be_asked(asked);
        Vec::new()
    }

    /// Counts the answer of the call; `None` for requests of the gateway itself.
    pub(crate) fn answers(&self) -> Option<&AnswerAccount> {
        self.answers.as_ref()
    }

    /// Returns true if messages reach a client.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Returns true if the client can be asked.
    pub(crate) fn asks(&self) -> bool {
        self.inbox.is_some() && self.heard.is_some()
    }

    /// The sink for a worker's connection, which takes the events and questions of its function; `None` for a call that cannot
    /// ask.
    pub(crate) fn into_sink(self) -> Option<Arc<dyn CallSink>> {
        self.inbox.map(|inbox| inbox as Arc<dyn CallSink>)
    }
}
