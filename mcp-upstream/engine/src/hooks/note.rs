//! Facts about the hooks of one call, which its audit record contains.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;

/// Outcome of a hook. Of several hooks of a call, the greatest is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HookOutcome {
    /// The hook passed the value unchanged.
    Passed = 1,
    /// The hook changed the value.
    Changed,
    /// The hook failed, and the event went on without it (`fail: open`).
    Skipped,
    /// The hook failed, and the event was refused (`fail: closed`).
    Failed,
    /// The hook refused the event.
    Refused,
}

/// The outcomes of the hooks of a call, and the arguments that they changed.
#[derive(Debug, Default)]
pub struct HookNote {
    greatest: AtomicU8,
    arguments: OnceLock<Bytes>,
}

impl HookNote {
    /// Records the outcome of a hook.
    pub(crate) fn record(&self, outcome: HookOutcome) {
        self.greatest.fetch_max(outcome as u8, Ordering::Relaxed);
    }

    /// Records the arguments with which a hook replaced the client's arguments.
    pub(crate) fn replaced(&self, arguments: Bytes) {
        let _ = self.arguments.set(arguments);
    }

    /// The arguments that replaced those of the client; `None` if no hook changed them.
    pub(crate) fn arguments(&self) -> Option<&Bytes> {
        self.arguments.get()
    }

    /// Word for the audit log; `None` if no hook was asked.
    pub fn word(&self) -> Option<&'static str> {
        match self.greatest.load(Ordering::Relaxed) {
            0 => None,
            1 => Some("passed"),
            2 => Some("changed"),
            3 => Some("skipped"),
            4 => Some("failed"),
            _ => Some("refused"),
        }
    }
}
