//! Calls of an aggregate: answered by a member, or by the aggregate itself.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::format::ResultFormat;
use tooldock_protocol::version::code;
use tooldock_sessions::audit::Transport;
use tooldock_sessions::session::CancelNotice;

use super::own::AggregateReply;
use super::references::References;
use crate::engine::{
    CallFacts, CallMessages, CallOutcome, Delegate, Peer, UpstreamCall, UpstreamReply, Work,
};

/// A call of an aggregate that one of its members answers.
pub(super) struct MemberCall {
    pub(super) facts: CallFacts,
    /// The member's own call, which does the work.
    pub(super) call: Arc<dyn UpstreamCall>,
    /// The aggregate's tool through which the client called the member's entry (`toolman_call`), and the arguments of that tool;
    /// `None` if the client called the entry directly.
    pub(super) by_way_of: Option<(&'static str, Bytes)>,
    /// The member's name in the audit log.
    pub(super) via: Arc<str>,
    /// Rewrites the URIs in the reply to published ones; `None` if the URIs are published unchanged.
    pub(super) references: Option<References>,
    /// The format of results for this client.
    pub(super) format: ResultFormat,
}

impl MemberCall {
    /// An error message that advises a model how to continue without the member.
    fn unreachable(&self, error: &CallError) -> String {
        let server = &self.via;
        let reason = error.message.trim_end_matches('.');
        format!(
            "server {server} did not answer this call: {reason}. Call tools/list to see what there is now, and go on with other tools or tell the user that server {server} is away"
        )
    }
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

    /// Converts an error about an unavailable member to the form of the aggregate's own responses (AGG-39). Other errors, and all
    /// errors for REST, are returned unchanged.
    fn not_relayed(&self, error: CallError) -> CallOutcome {
        let is_away = matches!(
            error.code,
            CallErrorCode::WorkerUnavailable
                | CallErrorCode::DependencyError
                | CallErrorCode::UpstreamError
        );
        if !is_away || self.facts.transport == Transport::Rest {
            return Err(error);
        }
        let said = AggregateReply::failed(self.unreachable(&error), error.code);
        let response = match self.facts.method.is_tool_call() {
            true => said.as_result(&self.format),
            false => said.rpc_error(code::INTERNAL),
        };
        Ok(UpstreamReply::Response(response))
    }

    fn asked_as(&self) -> (&str, &[u8]) {
        match &self.by_way_of {
            Some((name, arguments)) => (name, arguments),
            None => (&self.facts.subject, self.facts.named_arguments()),
        }
    }

    fn has_lost_its_session(&self) -> bool {
        self.call.has_lost_its_session()
    }

    /// Never called: the engine runs the member's call (`delegate`) in place of this one.
    fn start(self: Arc<Self>, peer: Peer) -> Work {
        Arc::clone(&self.call).start(peer)
    }
}

/// A call that the aggregate answers itself.
pub(super) struct OwnCall {
    facts: CallFacts,
    /// The work of the call, taken out when the engine starts it. `None` for a refused call.
    work: Mutex<Option<OwnCallFuture>>,
    refused: Option<CallError>,
}

/// The work of an aggregate's own call. The engine starts it after its limits have admitted the call.
pub(super) type OwnCallFuture = std::pin::Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

impl OwnCall {
    /// Creates a call whose `work` runs when the engine starts the call.
    pub(super) fn new(mut facts: CallFacts, work: OwnCallFuture) -> Arc<Self> {
        facts.talks = CallMessages::No;
        Arc::new(Self {
            facts,
            work: Mutex::new(Some(work)),
            refused: None,
        })
    }

    /// Creates a call that the engine refuses with `error`.
    pub(super) fn refused(mut facts: CallFacts, error: CallError) -> Arc<Self> {
        facts.talks = CallMessages::No;
        Arc::new(Self {
            facts,
            work: Mutex::new(None),
            refused: Some(error),
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

    fn admit(&self) -> Result<(), CallError> {
        self.refused.clone().map_or(Ok(()), Err)
    }

    fn start(self: Arc<Self>, _: Peer) -> Work {
        let work = self
            .work
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        work.expect("a call runs once")
    }
}
