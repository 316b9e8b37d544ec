//! Sends the log level and the subscriptions of clients to a new process that replaces another, and reads the server's tools
//! from it.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};
use tooldock_base::error::CallError;
use tooldock_base::names::NamespaceName;
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::version::{Era, ServerInfo};
use tooldock_sessions::catalogue::{Catalogue, PageSource, late};

use super::Process;
use crate::pool::ReplayState;

/// Number of subscriptions that are sent at the same time.
const STEP: usize = 100;
/// Delay between the announcement that tools have changed and reading them, so that several changes in a row are read once.
const PAUSE: Duration = Duration::from_secs(1);

/// Sends the log level and the subscriptions to a new process. If the server refuses one of them, it most likely refused it
/// before as well, so the process is used nevertheless.
pub(super) async fn restore(process: &Process, replay_state: &ReplayState, limit: Duration) {
    // A modern process gets the log level with each request of a client, and `listen` renews its subscription.
    if process.opened.era() == Era::Modern {
        return;
    }
    let restore = async {
        if let Some(level) = replay_state.level() {
            let params = process.own_params(json!({ "level": level.as_str() }));
            if let Ok(call) = process
                .link
                .request("logging/setLevel", Some(&params), None)
            {
                let _ = call.await;
            }
        }
        for uris in replay_state.subscriptions().chunks(STEP) {
            let calls = uris.iter().filter_map(|uri| {
                let params = process.own_params(json!({ "uri": &**uri }));
                let method = "resources/subscribe";
                process.link.request(method, Some(&params), None).ok()
            });
            join_all(calls.collect::<Vec<_>>()).await;
        }
    };
    if timeout(limit, restore).await.is_err() {
        tracing::warn!(
            pid = process.pid,
            "a restarted server did not take up all subscriptions in time"
        );
    }
}

#[async_trait]
impl PageSource for Process {
    fn server(&self) -> ServerInfo {
        self.opened.clone()
    }

    async fn page(
        &self,
        method: &'static str,
        params: &RawValue,
    ) -> Result<ResponseOutcome, CallError> {
        let call = self.link.request(method, Some(params), None)?;
        call.of_gateway().await
    }
}

/// Reads the list of tools whenever it may have changed. The list is needed for hints on whether calls may be repeated, for REST,
/// and as a stored response while the server is unavailable. Never ends.
pub(super) async fn read_tools(
    process: &Process,
    namespace: &NamespaceName,
    catalogue: &Catalogue,
    limit: Duration,
) {
    let mut announced = catalogue.announced();
    announced.mark_unchanged();
    loop {
        if let Some(begun) = catalogue.turn(process.opened.era()).await {
            // A server without tools refuses the request, which is recorded. If the server has ended, the keeper handles that.
            let read = timeout(limit, catalogue.read(namespace, process)).await;
            begun.end(read.unwrap_or_else(|_| Err(late(namespace))));
        }
        if announced.changed().await.is_err() {
            return std::future::pending().await;
        }
        sleep(PAUSE).await;
        announced.mark_unchanged();
    }
}
