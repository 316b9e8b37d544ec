//! The `subscriptions/listen` request to a modern process. Notifications from a shared process are passed to all subscribers of
//! the namespace; those from a session's process are passed to that session.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;
use tooldock_protocol::jsonrpc::Notification;
use tooldock_protocol::version::Era;

use super::{InboundRouter, Process};
use crate::link::NotificationSink;
use crate::pool::ReplayState;

/// Maximum number of resources in the request. It keeps the line to the server at a reasonable length; further resources are left
/// out.
const URIS_MAX: usize = 10_000;
/// Pause before a subscription that has ended is first renewed. It is doubled each time, up to `PAUSE_MAX`.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum pause before a subscription that has ended is renewed.
const PAUSE_MAX: Duration = Duration::from_secs(60);

struct SubscriptionSink(Arc<InboundRouter>);

impl NotificationSink for SubscriptionSink {
    fn notification(&self, notification: Notification<'_>) {
        self.0.heard(&notification);
    }
}

/// Keeps the subscription open, and renews it when the set of subscribed resources changes. Never ends.
pub(super) async fn listen(process: &Process, replay_state: &ReplayState) {
    if process.opened.era() == Era::Legacy {
        return pending().await;
    }
    let mut pause = PAUSE;
    let mut before = None;
    loop {
        // The notification of changes is requested before the set is read, so that no change is missed.
        let changed = replay_state.changed();
        tokio::pin!(changed);
        changed.as_mut().enable();
        let mut uris = replay_state.subscriptions();
        uris.truncate(URIS_MAX);
        let params = process.own_params(json!({ "notifications": {
            "toolsListChanged": true,
            "promptsListChanged": true,
            "resourcesListChanged": true,
            "resourceSubscriptions": uris,
        }}));
        let ear = Arc::new(SubscriptionSink(Arc::clone(&process.router)));
        let method = "subscriptions/listen";
        let Ok(call) = process.link.request(method, Some(&params), Some(ear)) else {
            return pending().await;
        };
        let mut call = call.of_gateway();
        // The former request is dropped only after the new one was sent, so that no notification in between is missed.
        drop(before.take());
        let ended = tokio::select! {
            () = &mut changed => false,
            _ = call.answer() => true,
        };
        if ended {
            // The server does not support the request, or has ended the stream. The request is repeated after a pause.
            tokio::select! {
                () = sleep(pause) => {}
                () = &mut changed => {}
            }
            pause = (pause * 2).min(PAUSE_MAX);
        } else {
            pause = PAUSE;
            before = Some(call);
        }
    }
}
