//! A client's wish to hear of resources of a process that several clients share.
//!
//! The pool counts who wants what, asks the server once and asks it again after a restart; what is updated, and which
//! lists change, comes to the namespace's audience. Here is only the end of the wish.

use std::sync::{Arc, Weak};

use tooldock_workers::error::CallError;
use tooldock_workers::registry::Namespace;

use super::isolation::Place;
use super::{ExternalServers, Leased};
use crate::jsonrpc::ResponseOutcome;

/// Somebody's wish to hear of changes; dropping it ends it.
pub(crate) struct Watch {
    external: Weak<ExternalServers>,
    namespace: Arc<Namespace>,
    place: Place,
    uris: Vec<Arc<str>>,
}

/// Why a resource is not watched.
pub(crate) enum NotWatched {
    /// The server said no: its error object.
    Refused(bytes::Bytes),
    /// It could not be asked.
    Failed(CallError),
}

impl Watch {
    /// Watches resources through a process that is there. Those before one that is refused are given up again.
    pub(super) async fn begin(
        external: &Arc<ExternalServers>,
        namespace: &Arc<Namespace>,
        leased: &Leased,
        uris: impl Iterator<Item = Arc<str>>,
    ) -> Result<Self, NotWatched> {
        let mut watch = Self {
            external: Arc::downgrade(external),
            namespace: Arc::clone(namespace),
            place: leased.place.clone(),
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
        let Some(external) = self.external.upgrade() else {
            return;
        };
        let (key, era) = (&self.place.key, self.place.open.era);
        for uri in &self.uris {
            external
                .processes
                .unsubscribe(&self.namespace, key, era, uri);
        }
    }
}
