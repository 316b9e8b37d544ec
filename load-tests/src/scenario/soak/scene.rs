//! State that all clients of the soak share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::books::Books;
use crate::message::{Envelope, FIRST_ID};

/// Namespace of the stdio server for protocol versions before 2026-07-28.
pub(super) const ECHO: &str = "echo";
/// Namespace of the stdio server for both eras.
pub(super) const DUAL: &str = "dual";
/// Namespace with a slow tool.
pub(super) const SLOW: &str = "slow";
/// A namespace whose code changes.
pub(super) const CHANGING: &str = "changing";
/// Namespace that is neither killed nor changed, for streams.
pub(super) const NEWS: &str = "news";

pub(super) struct Scene {
    envelope: Envelope<'static>,
    books: Books,
    over: AtomicBool,
    next_id: AtomicU64,
}

impl Scene {
    pub(super) fn new(envelope: Envelope<'static>) -> Arc<Self> {
        Arc::new(Self {
            envelope,
            books: Books::default(),
            over: AtomicBool::new(false),
            next_id: AtomicU64::new(FIRST_ID),
        })
    }

    pub(super) fn envelope(&self, namespace: &'static str) -> Envelope<'static> {
        self.envelope.of(namespace)
    }

    pub(super) fn books(&self) -> &Books {
        &self.books
    }

    /// A request id that no other request of the soak has.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Waits for `pause`; returns true if the run continues.
    pub(super) async fn goes_on_after(&self, pause: Duration) -> bool {
        sleep(pause).await;
        !self.is_over()
    }
}
