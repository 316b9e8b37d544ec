//! The client of a call, as its upstream sees it while the call runs.

use std::sync::Arc;

use bytes::Bytes;
use prometheus::IntCounter;
use tooldock_workers::worker::{CallSink, LogLevel};

use super::interactive::CallInbox;
use super::{Event, EventSender};
use crate::interaction::{Asked, Interaction, refuse};

/// Who can be told something before the answer, and perhaps asked. Never waits. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Peer {
    pub(super) events: Option<EventSender>,
    /// Of a call that may ask.
    pub(super) inbox: Option<Arc<CallInbox>>,
    pub(super) dropped: IntCounter,
}

impl Peer {
    /// Passes a whole notification on; a log message with a level only to a client that wants messages of it. What
    /// nobody reads in time is dropped and counted.
    pub(crate) fn say(&self, level: Option<LogLevel>, message: Bytes) {
        if let Some(events) = &self.events {
            events.tell(Event::Message { level, message }, &self.dropped);
        }
    }

    /// Asks the client; questions it cannot be asked fail at once.
    pub(crate) fn ask(&self, asked: Asked) -> Vec<Arc<Interaction>> {
        if let Some(inbox) = &self.inbox {
            return inbox.ask(asked);
        }
        refuse(asked, "The caller cannot be asked anything");
        Vec::new()
    }

    /// Whether anybody hears what is said.
    pub(crate) fn is_heard(&self) -> bool {
        self.events.is_some()
    }

    /// Whether anybody can be asked.
    pub(crate) fn asks(&self) -> bool {
        self.inbox.is_some() && self.events.is_some()
    }

    /// Where a worker's connection puts what its function says and asks; `None` for a call that cannot ask.
    pub(crate) fn into_sink(self) -> Option<Arc<dyn CallSink>> {
        self.inbox.map(|inbox| inbox as Arc<dyn CallSink>)
    }
}
