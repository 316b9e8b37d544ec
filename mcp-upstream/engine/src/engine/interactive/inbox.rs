//! Receives the events and questions of a call from its upstream. Never waits: an event beyond the bound of the call's queue is
//! dropped and counted, a question beyond the bound is refused.

use std::sync::Arc;

use prometheus::IntCounter;
use tooldock_process::worker::{CallEvent, CallSink};
use tooldock_sessions::broadcast::Audience;
use tooldock_sessions::interaction::{
    CallInteractions, Interaction, QuestionSet, Responder, of_function,
};

use crate::engine::{CallSecrets, PeerEvent};

/// Receives a call's events and questions from the reader of the upstream's connection. Never waits.
pub(in crate::engine) struct CallInbox {
    pub(super) questions: Arc<CallInteractions>,
    pub(super) dropped: IntCounter,
    /// Subscribers of the namespace, which receive the changes that the function announces.
    pub(super) audience: Arc<Audience>,
    /// Secrets that are removed from messages.
    pub(super) secrets: Arc<CallSecrets>,
}

impl CallInbox {
    /// Sends questions to the client; questions that the client does not support fail at once.
    pub(in crate::engine) fn ask(&self, asked: QuestionSet) -> Vec<Arc<Interaction>> {
        self.questions.open(asked)
    }

    /// Stops the call's time limit until the returned question is settled, without a message to the client. `None` if the call
    /// cannot ask questions, has ended, or if too many calls wait already.
    pub(in crate::engine) fn wait_outside(&self, responder: Responder) -> Option<Arc<Interaction>> {
        self.questions.wait_outside(responder)
    }
}

impl CallSink for CallInbox {
    fn event(&self, event: CallEvent) {
        let events = self.questions.events();
        let tell = |event| {
            if let Some(events) = events {
                events.tell(event, &self.dropped);
            }
        };
        match event {
            CallEvent::Progress(report) if events.is_some() => {
                tell(PeerEvent::Progress(self.secrets.hide_in(report)));
            }
            CallEvent::Log { level, params } if events.is_some() => {
                let params = self.secrets.hide_in(params);
                tell(PeerEvent::Log { level, params });
            }
            CallEvent::Progress(_) | CallEvent::Log { .. } => {}
            CallEvent::Dropped(count) if events.is_some() => self.dropped.inc_by(count),
            CallEvent::Dropped(_) => {}
            CallEvent::Ask(ask) => {
                self.ask(of_function(ask));
            }
            CallEvent::Notice(notice) => {
                let namespace = &self.questions.namespace().name;
                self.audience.announce_everywhere(namespace, notice.into());
            }
        }
    }
}
