//! The worker's reader's end of a call that talks. It never waits: what has no room is dropped and counted, or refused.

use prometheus::IntCounter;
use tokio::sync::mpsc;
use tooldock_workers::worker::{Ask, CallEvent, CallSink, Notice};

use crate::engine::{Event, EventSender, ask_failed};

/// What the worker's reader leaves for the call.
pub(super) enum Inward {
    Ask(Ask),
    Notice(Notice),
}

/// The reader's end. Never waits.
pub(super) struct Sink {
    pub(super) events: Option<EventSender>,
    pub(super) inbox: mpsc::Sender<Inward>,
    pub(super) dropped: IntCounter,
}

impl CallSink for Sink {
    fn event(&self, event: CallEvent) {
        let tell = |event| {
            if let Some(events) = &self.events {
                events.tell(event, &self.dropped);
            }
        };
        match event {
            CallEvent::Progress(report) => tell(Event::Progress(report)),
            CallEvent::Log { level, params } => tell(Event::Log { level, params }),
            CallEvent::Ask(ask) => {
                if let Err(refused) = self.inbox.try_send(Inward::Ask(ask))
                    && let Inward::Ask(ask) = refused.into_inner()
                {
                    refuse(&ask, "The call has too much to say at once");
                }
            }
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
