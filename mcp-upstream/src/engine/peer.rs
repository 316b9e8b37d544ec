//! The client of a call, as its upstream sees it while the call runs.

use std::sync::Arc;

use bytes::Bytes;
use prometheus::IntCounter;
use tooldock_workers::answers::AnswerAccount;
use tooldock_workers::worker::{CallSink, LogLevel};

use super::interactive::CallInbox;
use super::{CallSecrets, EventSender, PeerEvent};
use crate::interaction::{Asked, Interaction, cannot_be_asked};

/// Who can be told something before the answer, and perhaps asked. Never waits. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peer {
    /// Hears what is said; None where nobody does.
    heard: Option<Listener>,
    /// Of a call that may ask.
    inbox: Option<Arc<CallInbox>>,
    /// Counts the answer of the call; None where the gateway asks for itself.
    answers: Option<AnswerAccount>,
}

/// The client's ear.
#[derive(Clone)]
struct Listener {
    events: EventSender,
    /// Counts messages that are dropped because the client reads too slowly.
    dropped: IntCounter,
    /// Hidden in what is said.
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
            heard: heard.map(|(events, secrets)| Listener {
                events,
                dropped: dropped.clone(),
                secrets,
            }),
            inbox,
        }
    }

    /// Nobody: of a request that the gateway makes for itself.
    pub(crate) fn nobody() -> Self {
        Self {
            heard: None,
            inbox: None,
            answers: None,
        }
    }

    /// Passes a whole notification on; a log message with a level only to a client that wants messages of it. What
    /// nobody reads in time is dropped and counted.
    pub(crate) fn say(&self, level: Option<LogLevel>, message: Bytes) {
        if let Some(heard) = &self.heard {
            let message = heard.secrets.hide_in(message);
            let event = PeerEvent::Message { level, message };
            heard.events.tell(event, &heard.dropped);
        }
    }

    /// Asks the client; questions it cannot be asked fail at once.
    pub(crate) fn ask(&self, asked: Asked) -> Vec<Arc<Interaction>> {
        if let Some(inbox) = &self.inbox {
            return inbox.ask(asked);
        }
        cannot_be_asked(asked);
        Vec::new()
    }

    /// Counts the answer of the call; None where the gateway asks for itself.
    pub(crate) fn answers(&self) -> Option<&AnswerAccount> {
        self.answers.as_ref()
    }

    /// Whether anybody hears what is said.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard.is_some()
    }

    /// Whether anybody can be asked.
    pub(crate) fn asks(&self) -> bool {
        self.inbox.is_some() && self.heard.is_some()
    }

    /// Where a worker's connection puts what its function says and asks; `None` for a call that cannot ask.
    pub(crate) fn into_sink(self) -> Option<Arc<dyn CallSink>> {
        self.inbox.map(|inbox| inbox as Arc<dyn CallSink>)
    }
}
