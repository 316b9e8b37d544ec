//! Detection of a blocked event loop: a function computes on it without awaiting, and every other call of the process waits.
//! The process reports the function itself; this module decides when the process is replaced because of it.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::rpc::Links;

/// Interval at which a blocked process is checked.
const LOOK: Duration = Duration::from_millis(100);

/// A function that blocks the event loop of its process, as the process reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BlockedLoop {
    /// Name of the tool, resource or prompt that blocks the loop; empty if the loop runs code that no call waits for.
    pub(super) subject: String,
    /// Id of the request that blocks the loop; empty if the loop runs code that no call waits for.
    pub(super) request: String,
    /// File, line and function that the blocked loop runs.
    pub(super) place: String,
    /// The call that blocks the loop; `None` if the gateway did not send it.
    pub(super) call: Option<BlockingCall>,
}

/// The call that a blocked event loop runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockingCall {
    /// Id of the call on its connection.
    pub(super) id: u64,
    /// Time at which the process began to run the call.
    pub(super) began: Instant,
}

impl BlockedLoop {
    /// Waits until the call that blocks the loop has run for longer than its time limit and its caller no longer waits for it. A
    /// call that its client cancelled may run until its time limit, too. Does not return if the loop is not blocked by a call
    /// with a time limit; a process that is silent for too long is detected by the heartbeat.
    pub(super) async fn past_limit(blocked: Option<&Self>, links: &Links) {
        let call = blocked.and_then(|it| Some((it.call?, &*it.request)));
        let Some((call, request)) = call else {
            return pending().await;
        };
        loop {
            let limit = links.limit_of_abandoned(call.id, request);
            if limit.is_some_and(|limit| call.began.elapsed() >= limit) {
                return;
            }
            sleep(LOOK).await;
        }
    }

    /// The blocking tool, resource or prompt as text for a log line.
    pub(super) fn named(&self) -> String {
        match &*self.subject {
            "" => "work that a call left behind".to_owned(),
            subject => subject.to_owned(),
        }
    }
}
