//! Asking a new process for what its predecessor had been asked for, and for what the gateway wants to know of it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::{sleep, timeout};
use tooldock_workers::error::{CallError, CallErrorCode};

use super::Process;
use crate::jsonrpc::ResponseOutcome;
use crate::protocol::Era;
use crate::stdio::lists::{BYTES_MAX, Lists};
use crate::stdio::pool::ReplayState;

/// Subscriptions asked for in one go.
const STEP: usize = 100;
/// Pages of a list of tools that are read; a server with more pages than this has no end of them.
const PAGES_MAX: usize = 100;
/// How long to wait after tools have changed: several changes in a row are one.
const PAUSE: Duration = Duration::from_secs(1);

/// Restores log level and subscriptions. What the server refuses now it most likely refused before, so that is not a
/// reason to do without it.
pub(super) async fn restore(process: &Process, replay_state: &ReplayState, limit: Duration) {
    // A modern process hears both with the requests of its clients, and `listen` renews the subscription.
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

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    next_cursor: Option<Box<RawValue>>,
}

/// Reads the list of tools, for what it says about repeating a call, for REST, and for when the server is away; again
/// whenever they may have changed. Never ends.
pub(super) async fn read_tools(process: &Process, lists: &Lists, limit: Duration) {
    let mut announced = lists.announced();
    announced.mark_unchanged();
    loop {
        let version = lists.tools().version;
        // A server without tools refuses it, one that ends is noticed elsewhere.
        if let Ok(Ok(pages)) = timeout(limit, read_pages(process)).await {
            lists.complete(process.opened.era(), version, pages);
        }
        if announced.changed().await.is_err() {
            return std::future::pending().await;
        }
        sleep(PAUSE).await;
        announced.mark_unchanged();
    }
}

/// All pages, each with the cursor it was asked for by, in the server's own spelling.
async fn read_pages(process: &Process) -> Result<Vec<(Option<String>, Bytes)>, CallError> {
    let mut pages = Vec::new();
    let mut cursor: Option<Box<RawValue>> = None;
    let mut bytes = 0_usize;
    for _ in 0..PAGES_MAX {
        let fields = match &cursor {
            Some(cursor) => json!({ "cursor": cursor }),
            None => json!({}),
        };
        let params = process.own_params(fields);
        let call = process.link.request("tools/list", Some(&params), None)?;
        let call = call.of_gateway();
        let ResponseOutcome::Result(result) = call.await? else {
            let refused = "the server does not list its tools";
            return Err(CallError::new(CallErrorCode::InternalError, refused));
        };
        let next = serde_json::from_slice::<Page>(&result).ok();
        bytes = bytes.saturating_add(result.len());
        let asked_by = cursor.map(|cursor| cursor.get().to_owned());
        pages.push((asked_by, result));
        cursor = next.and_then(|page| page.next_cursor);
        if cursor.is_none() || bytes > BYTES_MAX {
            break;
        }
    }
    if cursor.is_some() {
        tracing::warn!(
            pid = process.pid,
            pages = pages.len(),
            bytes,
            "a server's list of tools has too many pages; the remaining pages are not read"
        );
    }
    Ok(pages)
}
