//! Requests that the gateway sends, for a client, to several processes with the same key.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::timeout;

use super::PoolShared;
use super::key::ConnectionKey;
use super::state::ProcessId;
use crate::protocol::Era;
use crate::stdio::process::Process;

/// Time limit for the server's response to a repeated request or an unsubscription.
const UNSUBSCRIBE: Duration = Duration::from_secs(30);
/// Time that a client waits for the responses of all other backends to a request that one backend granted.
const EVERYWHERE: Duration = Duration::from_secs(2);

impl PoolShared {
    /// Repeats a request that succeeded at one process at all other processes for the same key. Waits for their responses for
    /// at most [`EVERYWHERE`], after which the requests continue. A process that starts later gets the request at its start.
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
            // Bounded by the timeout; there is at most one task per request of a client and backend.
            Some(self.control.spawn(async move {
                let _ = timeout(UNSUBSCRIBE, call.answer()).await;
                // Dropped while the process still counts as in use, so that a missing response counts as unfinished work of the
                // process.
                drop(call);
                drop(in_use);
            }))
        });
        let _ = timeout(EVERYWHERE, join_all(asked.collect::<Vec<_>>())).await;
    }

    /// Ends a client's subscription to a resource. Does not wait and starts no process: a server that is not running has no
    /// subscriptions.
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
        // The single subscription of a modern server is renewed by its keeper.
        let legacy = |it: &Arc<Process>| it.opened().era() == Era::Legacy;
        for process in processes.into_iter().filter(legacy) {
            // The process counts as in use: messages about the unsubscription concern no other client.
            let in_use = process.router().in_use();
            if let Ok(mut call) = process.link().request(method, Some(&params), None) {
                // Bounded by the timeout; there is at most one task per subscription and backend.
                self.control.spawn(async move {
                    let _ = timeout(UNSUBSCRIBE, call.answer()).await;
                    // Dropped while the process still counts as in use, so that a missing response counts as unfinished work of
                    // the process.
                    drop(call);
                    drop(in_use);
                });
            }
        }
    }
}
