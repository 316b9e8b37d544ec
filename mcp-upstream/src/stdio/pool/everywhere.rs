//! What the gateway asks of several processes of a place on behalf of their clients.

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

/// How long the server may take to confirm that nobody wants to hear of a resource any more.
const UNSUBSCRIBE: Duration = Duration::from_secs(30);
/// How long a client waits until all backends have heard what it asks of one of them.
const EVERYWHERE: Duration = Duration::from_secs(2);

impl PoolShared {
    /// Asks all other processes of a place for what was granted at one of them. Waits for their answers, but no longer
    /// than [`EVERYWHERE`]: what is asked goes on. A process that starts later is asked as it starts.
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
            // Bounded by its time; there is one for each request of a client and backend at most.
            Some(self.control.spawn(async move {
                let _ = timeout(UNSUBSCRIBE, call.answer()).await;
                // Before the use ends, so that a call without an answer is known to be one.
                drop(call);
                drop(in_use);
            }))
        });
        let _ = timeout(EVERYWHERE, join_all(asked.collect::<Vec<_>>())).await;
    }

    /// One client less wants to hear of a resource. Waits for nothing and starts nothing: a server that is away has
    /// nothing to unsubscribe from.
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
        // A modern server's one subscription is renewed by its keeper.
        let legacy = |it: &Arc<Process>| it.opened().era() == Era::Legacy;
        for process in processes.into_iter().filter(legacy) {
            // What the server says of it is nobody else's.
            let in_use = process.router().in_use();
            if let Ok(mut call) = process.link().request(method, Some(&params), None) {
                // Bounded by its time; there is one for each subscription and backend at most.
                self.control.spawn(async move {
                    let _ = timeout(UNSUBSCRIBE, call.answer()).await;
                    // Before the use ends, so that a call without an answer is known to be one.
                    drop(call);
                    drop(in_use);
                });
            }
        }
    }
}
