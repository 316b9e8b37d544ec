//! Requests that the gateway sends, on behalf of a client, to all processes with the same key.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::timeout;
use tooldock_protocol::version::Era;

use super::PoolShared;
use super::state::ProcessId;
use crate::key::ConnectionKey;
use crate::pool::process::Process;

/// Time limit for a server's response to a request that is repeated at other processes, or to an unsubscription.
const UNSUBSCRIBE: Duration = Duration::from_secs(30);
/// Time that a client waits until all other backends have answered a request that one backend has accepted.
const EVERYWHERE: Duration = Duration::from_secs(2);

impl PoolShared {
    /// Sends a request that succeeded at one process to all other processes for the same key. Waits for their responses for at
    /// most [`EVERYWHERE`]; requests without a response then continue in the background. A process that starts later gets the
    /// request when it starts.
    pub(super) async fn ask_everywhere(
        &self,
        (key, era): (&ConnectionKey, Era),
        granted: ProcessId,
        method: &str,
        params: &RawValue,
    ) {
        let others: Vec<_> = {
            let inner = self.lock();
            let serving = inner.state.place_of(key, era).map(|(_, serving)| serving);
            let others = serving.into_iter().flatten().filter(|it| *it != granted);
            let live = others.filter_map(|it| inner.live.get(&it).map(Arc::clone));
            live.collect()
        };
        let asked = others.into_iter().filter_map(|process| {
            let in_use = process.router().in_use();
            let mut call = process.link().request(method, Some(params), None).ok()?;
            // The task ends at the timeout, and there is at most one task for each backend and client request.
            Some(self.control.spawn(async move {
                let _ = timeout(UNSUBSCRIBE, call.answer()).await;
                // The call is dropped while the process still counts as in use, so that a missing response counts as unfinished
                // work of the process.
                drop(call);
                drop(in_use);
            }))
        });
        let _ = timeout(EVERYWHERE, join_all(asked.collect::<Vec<_>>())).await;
    }

    /// Ends a client's subscription to a resource. Does not wait for responses and starts no process, since a server that is not
    /// running has no subscriptions.
    pub(super) fn unsubscribe(&self, key: &ConnectionKey, era: Era, uri: &str) {
        let (replay_state, processes) = {
            let inner = self.lock();
            let Some((replay_state, serving)) = inner.state.place_of(key, era) else {
                return;
            };
            let live = serving.iter().filter_map(|it| inner.live.get(it));
            let live: Vec<_> = live.map(Arc::clone).collect();
            (replay_state, live)
        };
        if !replay_state.unsubscribe(uri) {
            return;
        }
        let params = serde_json::json!({ "uri": uri });
        let params = to_raw_value(&params).expect("a value into memory");
        let method = "resources/unsubscribe";
        // A modern server has a single subscription for all resources, and the process's keeper renews it.
        let legacy = |it: &Arc<Process>| it.opened().era() == Era::Legacy;
        for process in processes.into_iter().filter(legacy) {
            // The process counts as in use, since no message about the unsubscription may reach another client.
            let in_use = process.router().in_use();
            if let Ok(mut call) = process.link().request(method, Some(&params), None) {
                // The task ends at the timeout, and there is at most one task for each subscription and backend.
                self.control.spawn(async move {
                    let _ = timeout(UNSUBSCRIBE, call.answer()).await;
                    // The call is dropped while the process still counts as in use, so that a missing response counts as
                    // unfinished work of the process.
                    drop(call);
                    drop(in_use);
                });
            }
        }
    }
}
