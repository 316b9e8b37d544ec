//! Calls of an aggregate: those that a member answers, and those that it answers itself.

use std::sync::{Arc, Mutex, PoisonError};

use super::references::References;
use crate::engine::{
    CallFacts, CallOutcome, Delegate, Peer, Talks, UpstreamCall, UpstreamReply, Work,
};
use crate::jsonrpc::Response;
use crate::session::CancelNotice;

/// A call that a member answers.
pub(super) struct MemberCall {
    pub(super) facts: CallFacts,
    /// The call as the member has it.
    pub(super) call: Arc<dyn UpstreamCall>,
    /// What the audit log calls the member.
    pub(super) via: Arc<str>,
    /// Publishes the URIs in the reply.
    pub(super) references: Option<References>,
}

impl CancelNotice for MemberCall {
    fn cancelled(&self, message: &str) {
        self.call.cancelled(message);
    }
}

impl UpstreamCall for MemberCall {
    fn facts(&self) -> &CallFacts {
        &self.facts
    }

    fn delegate(&self) -> Option<Delegate<'_>> {
        Some(Delegate {
            call: &self.call,
            via: &self.via,
        })
    }

    fn relayed(&self, reply: UpstreamReply) -> UpstreamReply {
        match &self.references {
            Some(references) => references.publish(&self.facts.method, reply),
            None => reply,
        }
    }

    /// The engine runs the member's call in its place.
    fn start(self: Arc<Self>, peer: Peer) -> Work {
        Arc::clone(&self.call).start(peer)
    }
}

/// A call that the aggregate answers itself.
pub(super) struct OwnCall {
    facts: CallFacts,
    /// Taken when the call has its turn.
    work: Mutex<Option<OwnWork>>,
}

/// What a call does once it has its turn.
pub(super) type OwnWork = std::pin::Pin<Box<dyn Future<Output = Response> + Send>>;

impl OwnCall {
    /// Does that when it has its turn.
    pub(super) fn new(mut facts: CallFacts, work: OwnWork) -> Arc<Self> {
        facts.talks = Talks::No;
        Arc::new(Self {
            facts,
            work: Mutex::new(Some(work)),
        })
    }
}

impl CancelNotice for OwnCall {
    fn cancelled(&self, _: &str) {}
}

impl UpstreamCall for OwnCall {
    fn facts(&self) -> &CallFacts {
        &self.facts
    }

    fn start(self: Arc<Self>, _: Peer) -> Work {
        let work = self
            .work
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        Box::pin(async move {
            let response = work.expect("a call runs once").await;
            CallOutcome::Ok(UpstreamReply::Response(response))
        })
    }
}
