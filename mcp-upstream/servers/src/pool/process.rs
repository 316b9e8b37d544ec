//! An opened process of a server: its link, the server's description of itself, and the routing of its messages. A session of a
//! remote server is treated as a process, too: only [`crate::launch`] distinguishes the two.
//!
//! `keep` is the task that owns the process from its start until its last descendant has ended. Other code only exchanges
//! messages with the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout};
use tooldock_protocol::version::ClientIdentity;
use tooldock_protocol::version::{Era, MODERN, ServerInfo};
use tooldock_workers::remote::BackendId;

use crate::launch::{Instance, PersonalUse};
use crate::link::Link;

pub(crate) mod failure;
mod install;
pub(super) mod keep;
mod listen;
mod open;
mod replay;
mod router;
pub mod tasks;

pub(super) use install::Installation;
pub use router::{InboundRouter, ListenerGuard, ProcessListener};

/// An opened process, or an opened session of a remote server.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Option<u32>,
    /// The backend of a remote server's session; `None` for a process.
    backend: Option<BackendId>,
    link: Arc<Link>,
    opened: ServerInfo,
    /// The description of the client that the server got when the process was opened.
    identity: Arc<ClientIdentity>,
    router: Arc<InboundRouter>,
    /// The personal values with which the process was opened; `None` for a server without personal values.
    personal: Option<PersonalUse>,
    /// Notified when a request was abandoned without a response, so that the keeper pings the process.
    suspected: Notify,
    born: Instant,
    /// Start of the first request that was abandoned since the last response, in milliseconds after `born`; 0 if no request was
    /// abandoned since then.
    silent_since: AtomicU64,
    /// True once the pool has noticed that the process accepts no more requests.
    over: watch::Sender<bool>,
}

impl Process {
    fn new(
        child: &mut dyn Instance,
        link: Arc<Link>,
        opened: ServerInfo,
        identity: Arc<ClientIdentity>,
        router: Arc<InboundRouter>,
    ) -> Self {
        Self {
            pid: child.pid(),
            backend: child.backend().cloned(),
            personal: child.take_personal(),
            link,
            opened,
            identity,
            router,
            suspected: Notify::new(),
            born: Instant::now(),
            silent_since: AtomicU64::new(0),
            over: watch::Sender::new(false),
        }
    }

    /// Returns the process id of the server's command; `None` for a session of a remote server.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// The link to the process.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Returns the server's description of itself, from the opening of the process.
    pub(crate) fn opened(&self) -> &ServerInfo {
        &self.opened
    }

    /// Returns the backend of a remote server's session; `None` for a process.
    pub(super) fn backend(&self) -> Option<&BackendId> {
        self.backend.as_ref()
    }

    /// Returns the personal values with which the process was opened.
    pub(super) fn personal(&self) -> Option<&PersonalUse> {
        self.personal.as_ref()
    }

    /// Returns the router for messages that belong to no call.
    pub(crate) fn router(&self) -> &Arc<InboundRouter> {
        &self.router
    }

    /// Counts one more user of the process.
    pub(super) fn enter(&self) {
        self.router.enter();
    }

    /// Counts one user of the process less.
    pub(super) fn leave(&self) {
        self.router.leave();
    }

    /// Lets the keeper ping the process, because a request was abandoned without a response.
    pub(super) fn request_ping(&self) {
        self.suspected.notify_one();
    }

    /// Records that the process responded to a request.
    pub(super) fn answered(&self) {
        if self.silent_since.load(Ordering::Relaxed) != 0 {
            self.silent_since.store(0, Ordering::Relaxed);
        }
    }

    /// Records that a request that began at `since` was abandoned. Returns the time since the first such request without any
    /// response. If calls have short timeouts, a single abandoned call proves nothing about the process, but many together do.
    pub(super) fn record_abandoned(&self, since: Instant) -> Duration {
        let millis = |time: Instant| {
            let time = time.saturating_duration_since(self.born).as_millis();
            u64::try_from(time).unwrap_or(u64::MAX).max(1)
        };
        let order = Ordering::Relaxed;
        let first = self
            .silent_since
            .compare_exchange(0, millis(since), order, order);
        let since = first.map_or_else(|earlier| earlier, |_| millis(since));
        Duration::from_millis(millis(Instant::now()).saturating_sub(since))
    }

    /// Waits until the pool has noticed that the process accepts no more requests. Returns false if this takes longer than
    /// `patience`.
    pub(super) async fn is_over_within(&self, patience: Duration) -> bool {
        let mut over = self.over.subscribe();
        timeout(patience, over.wait_for(|over| *over)).await.is_ok()
    }

    /// Returns the parameters of a request of the gateway: `fields` and, for a modern process, the metadata that each request
    /// needs.
    fn own_params(&self, mut fields: serde_json::Value) -> Box<RawValue> {
        if self.opened.era() == Era::Modern {
            fields["_meta"] = serde_json::json!({
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": &*self.identity.capabilities,
                "io.modelcontextprotocol/clientInfo": &*self.identity.info,
            });
        }
        to_raw_value(&fields).expect("a value into memory")
    }
}
