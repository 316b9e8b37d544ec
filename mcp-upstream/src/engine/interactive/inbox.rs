//! The worker's reader's end of a call that talks. It never waits: what has no room is dropped and counted, or refused.

use std::sync::Arc;

use bytes::Bytes;
use prometheus::IntCounter;
use tokio::sync::mpsc;
use tooldock_workers::worker::{Ask, CallEvent, CallSink, Notice};

use crate::engine::{Event, EventSender, ask_failed};
use crate::jsonrpc::RelayedRequest;

/// What the worker's reader leaves for the call.
pub(super) enum Inward {
    Ask(Asking),
    Notice(Notice),
    Withdraw { key: Arc<str>, message: Bytes },
}

/// Questions, and the request one of them is, where it is to reach its client whole.
pub(super) struct Asking {
    pub(super) ask: Ask,
    pub(super) relayed: Option<Arc<RelayedRequest>>,
}

/// The reader's end. Never waits.
pub(in crate::engine) struct CallInbox {
    pub(super) events: Option<EventSender>,
    pub(super) inbox: mpsc::Sender<Inward>,
    pub(super) dropped: IntCounter,
}

impl CallInbox {
    /// Asks the client, with a whole request where it is one.
    pub(in crate::engine) fn ask(&self, ask: Ask, relayed: Option<Arc<RelayedRequest>>) {
        let asking = Asking { ask, relayed };
        if let Err(refused) = self.inbox.try_send(Inward::Ask(asking))
            && let Inward::Ask(asking) = refused.into_inner()
        {
            refuse(
                &asking.ask,
                "Too many messages of this call wait for its client",
            );
        }
    }

    /// Takes a question back; the whole message that does so goes to the client.
    pub(in crate::engine) fn withdraw(&self, key: Arc<str>, message: Bytes) {
        if self
            .inbox
            .try_send(Inward::Withdraw { key, message })
            .is_err()
        {
            self.dropped.inc();
        }
    }
}

impl CallSink for CallInbox {
    fn event(&self, event: CallEvent) {
        let tell = |event| {
            if let Some(events) = &self.events {
                events.tell(event, &self.dropped);
            }
        };
        match event {
            CallEvent::Progress(report) => tell(Event::Progress(report)),
            CallEvent::Log { level, params } => tell(Event::Log { level, params }),
            CallEvent::Dropped(count) if self.events.is_some() => self.dropped.inc_by(count),
            CallEvent::Dropped(_) => {}
            CallEvent::Ask(ask) => self.ask(ask, None),
            CallEvent::Notice(notice) => {
                if self.inbox.try_send(Inward::Notice(notice)).is_err() {
                    self.dropped.inc();
                }
            }
        }
    }
}

/// Fails questions before they are asked.
pub(super) fn refuse(ask: &Ask, reason: &str) {
    for question in &ask.questions {
        ask.replier.answer(&question.key, Err(&ask_failed(reason)));
    }
}
