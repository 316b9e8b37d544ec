//! A client's subscription to resources of a process that several clients share.
//!
//! The pool counts the subscriptions, sends one request to the server, and repeats it after a restart; updates and changed
//! lists are passed to the namespace's audience. This module only begins and ends a client's subscription.

use std::sync::{Arc, Weak};

use tooldock_base::error::CallError;
use tooldock_protocol::jsonrpc::ResponseOutcome;
use tooldock_protocol::version::Era;
use tooldock_servers::pool::{ConnectionKey, served};
use tooldock_sessions::stream::HeldByStream;
use tooldock_workers::registry::Namespace;

use super::{ConnectionLease, ExternalServers};

/// A client's subscription; dropping the value ends the subscription.
pub(crate) struct Watch {
    external: Weak<ExternalServers>,
    namespace: Arc<Namespace>,
    key: ConnectionKey,
    era: Era,
    uris: Vec<Arc<str>>,
}

/// Reason why a subscription to a resource failed.
pub(crate) enum NotWatched {
    /// The server refused the subscription with this error object.
    Refused(bytes::Bytes),
    /// The server could not be reached, or the request failed.
    Failed(CallError),
}

impl HeldByStream for Watch {}

impl Watch {
    /// Subscribes to resources through a leased process. If the server refuses a resource, the subscriptions made so far are
    /// ended.
    pub(super) async fn begin(
        external: &Arc<ExternalServers>,
        namespace: &Arc<Namespace>,
        leased: &ConnectionLease,
        uris: impl Iterator<Item = Arc<str>>,
    ) -> Result<Self, NotWatched> {
        let mut watch = Self {
            external: Arc::downgrade(external),
            namespace: Arc::clone(namespace),
            key: leased.key.clone(),
            era: leased.era,
            uris: Vec::new(),
        };
        for uri in uris {
            let answer = leased.process.subscribe(&uri).await;
            match answer.map_err(NotWatched::Failed)? {
                None | Some(ResponseOutcome::Result(_)) => watch.uris.push(uri),
                Some(ResponseOutcome::Error(error)) => return Err(NotWatched::Refused(error)),
            }
        }
        Ok(watch)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (Some(external), Some(server)) = (self.external.upgrade(), served(&self.namespace))
        else {
            return;
        };
        for uri in &self.uris {
            external.pools.unsubscribe(server, &self.key, self.era, uri);
        }
    }
}
