//! Messages of a client for all members: its log level, and notifications. They are sent only to running instances of servers;
//! no instance is started for them. An instance that starts later gets the level at its start.

use futures_util::future::join_all;
use tokio::time::{Duration, timeout};
use tooldock_process::worker::LogLevel;
use tooldock_protocol::format::ResultWriter;
use tooldock_protocol::jsonrpc::{Key, RequestError};
use tooldock_sessions::session::SessionPatch;

use super::member::MemberSlot;
use super::request::{AggregateRequest, may_reach, text_of};
use crate::engine::Peer;
use crate::upstream::{IncomingRequest, PreparedRequest, ServerCopy};

/// Time limit for passing a log level to the members.
const LEVEL_WAIT: Duration = Duration::from_secs(5);

impl AggregateRequest<'_> {
    /// Answers `logging/setLevel`: the level is stored in the session, and the request is sent to the members.
    pub(super) async fn set_level(
        &self,
        request: IncomingRequest<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let level = text_of(request.members, Key::LogLevel, "params.level")?;
        let level: LogLevel = level.parse().map_err(|_| {
            let levels = LogLevel::ALL.map(LogLevel::as_str).join(", ");
            RequestError::InvalidParams(format!("params.level must be one of {levels}").into())
        })?;
        if let Some(session) = self.cx.session() {
            let wanted = SessionPatch::LogLevel(level);
            self.shared.changes.commit(session, wanted).await?;
        }
        let hearing = self.live.slots.iter().filter(|slot| self.hears(slot));
        let told = hearing.map(async |slot| {
            let namespace = self.member_namespace(slot)?;
            let runner = self.shared.runner(&namespace);
            let upstream = runner.upstream();
            let cx = self.child(self.cx.body, namespace, upstream);
            if let PreparedRequest::Call(call) = upstream.prepare(&cx, request).get().await? {
                let _ = call.start(Peer::nobody()).await;
            }
            Ok::<_, RequestError>(())
        });
        // A member without logging refuses the request; that is no failure.
        let _ = timeout(LEVEL_WAIT, join_all(told)).await;
        let format = self.cx.result_format();
        Ok(PreparedRequest::Response(
            ResultWriter::begin(request.id, &format, 0).end(),
        ))
    }

    /// Passes a notification to all members whose server instance for this client is running.
    pub(super) fn notify(&self, method: &str, message: &str) {
        for slot in self.live.slots.iter().filter(|slot| self.hears(slot)) {
            let Ok(namespace) = self.member_namespace(slot) else {
                continue;
            };
            let runner = self.shared.runner(&namespace);
            let upstream = runner.upstream();
            let child = self.child(self.cx.body, namespace, upstream);
            upstream.notify(&child, method, message);
        }
    }

    /// Returns true if the instance of the member's server that gets this client's requests is running.
    fn hears(&self, slot: &MemberSlot) -> bool {
        let namespace = slot.namespace(&self.shared.home.registry);
        slot.offered().now
            && namespace.is_some_and(|namespace| {
                may_reach(self.cx.caller, slot, &namespace)
                    && self.copy(namespace) == ServerCopy::Running
            })
    }
}
