//! Hooks: services of the operator that see tool calls, results and lists of tools, and may change or refuse them.
//!
//! ```text
//!   Engine ──▶ HookSet::run ──▶ Hook: permit, time limit, fail rule ──▶ HookTarget ──▶ HTTP service or tool
//!      ▲                              │
//!      └── unchanged, changed bytes, or an error ◀── HookVerdict ◀── answer
//! ```
//!
//! The engine runs the hooks `call` after a call is admitted and before it waits for a permit of its namespace, and the hooks
//! `result` after the permit is released. So a slow hook holds no permit of a namespace. Each hook bounds its own requests in
//! time and in number. Requests and answers are raw JSON: a value that no hook changes keeps its bytes.
//!
//! The targets are in `mcp-upstream/service/hook_targets.rs`, since a tool is called through the service.
//!
//! | file | holds |
//! |---|---|
//! | `config.rs` | the keys of a hook, and their checks |
//! | `hook.rs` | a hook with its target: one request and its failures |
//! | `message.rs` | the request to a hook, and the reading of its answer |
//! | `metrics.rs` | the counters of requests to hooks |
//! | `note.rs` | facts about the hooks of a call, for the audit log |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use tooldock_base::answers::AnswerAccount;
use tooldock_base::error::CallError;
use tooldock_base::names::NamespaceName;

mod config;
mod hook;
mod message;
mod metrics;
mod note;

#[cfg(test)]
mod tests;

pub use config::{
    FailRule, HOOKS_MAX, HookAddress, HookConfig, HookEvent, HookEvents, InvalidHook,
};
pub use hook::{Hook, HookFailure, HookQuery, HookTarget};
pub(crate) use message::HookVerdict;
pub use metrics::HookMetrics;
pub use note::HookNote;
pub(crate) use note::HookOutcome;

/// The hooks in force, which a reload of the configuration replaces.
#[derive(Default)]
pub struct Hooks {
    /// False if there are no hooks. Calls then do no more than read this flag.
    is_set: AtomicBool,
    current: ArcSwap<HookSet>,
}

/// The hooks of one configuration, in its order.
#[derive(Default)]
pub(crate) struct HookSet(Vec<Hook>);

/// The namespaces through which a call has reached its upstream.
#[derive(Debug, Clone, Copy)]
pub enum HookPath<'a> {
    /// No hooks see the call, since a hook makes it.
    Unhooked,
    /// The client addressed the namespace itself.
    Direct,
    /// An aggregate runs the call in the namespace of a member.
    Through {
        /// The aggregate that runs the call.
        aggregate: &'a NamespaceName,
        /// The namespaces through which the call has reached the aggregate.
        outer: &'a HookPath<'a>,
    },
}

/// The subject of a hook: a call, its result, or a list of tools.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HookSubject<'a> {
    pub(crate) namespace: &'a NamespaceName,
    pub(crate) path: HookPath<'a>,
    /// Name of the called tool; `None` for lists, and for the result of a task.
    pub(crate) tool: Option<&'a str>,
    pub(crate) principal: Option<&'a str>,
    pub(crate) request_id: &'a Arc<str>,
    /// Account that counts the memory of large requests and answers.
    pub(crate) answers: &'a AnswerAccount,
}

impl Hooks {
    /// Replaces the hooks. Calls in flight end with the hooks that they began with.
    pub fn replace(&self, hooks: Vec<Hook>) {
        let any = !hooks.is_empty();
        self.current.store(Arc::new(HookSet(hooks)));
        self.is_set.store(any, Ordering::Release);
    }

    /// Returns the hooks if at least one of them is for this namespace, or for an aggregate on the path to it.
    pub(crate) fn of(&self, namespace: &NamespaceName, path: HookPath<'_>) -> Option<Arc<HookSet>> {
        if !self.is_set.load(Ordering::Acquire) || path.is_unhooked() {
            return None;
        }
        let set = self.current.load();
        let any = set.0.iter().any(|hook| hook.covers(namespace, path));
        any.then(|| Arc::clone(&set))
    }

    /// Returns true if a hook is for this namespace, so that the gateway must read the namespace's messages.
    pub fn cover(&self, namespace: &NamespaceName) -> bool {
        self.of(namespace, HookPath::Direct).is_some()
    }

    /// Returns true if a hook sees the lists of tools of this namespace.
    pub fn see_lists(&self, namespace: &NamespaceName) -> bool {
        let hooks = self.of(namespace, HookPath::Direct);
        hooks.is_some_and(|it| it.sees(HookEvent::List, namespace, HookPath::Direct))
    }
}

impl HookSet {
    /// Returns true if at least one of the hooks sees this event.
    pub(crate) fn sees(
        &self,
        event: HookEvent,
        namespace: &NamespaceName,
        path: HookPath<'_>,
    ) -> bool {
        let mut all = self.0.iter();
        all.any(|hook| hook.is_on(event) && hook.covers(namespace, path))
    }

    /// Runs the hooks for an event in their order. Each hook gets the value as the hook before has changed it. Returns the
    /// changed value; `None` if no hook has changed it.
    ///
    /// # Errors
    ///
    /// The refusal of a hook, or the failure of a hook with `fail: closed`.
    pub(crate) async fn run(
        &self,
        event: HookEvent,
        subject: &HookSubject<'_>,
        value: &str,
        note: &HookNote,
    ) -> Result<Option<Bytes>, CallError> {
        let mut changed: Option<Bytes> = None;
        for hook in &self.0 {
            if !hook.is_on(event) || !hook.covers(subject.namespace, subject.path) {
                continue;
            }
            let now = match &changed {
                // The bytes were read as UTF-8 when the hook before answered.
                Some(changed) => std::str::from_utf8(changed).unwrap_or(value),
                None => value,
            };
            match hook.ask(event, subject, now, note).await? {
                HookVerdict::Passed => {}
                HookVerdict::Changed(new) => changed = Some(new),
            }
        }
        Ok(changed)
    }
}

impl HookPath<'_> {
    fn is_unhooked(self) -> bool {
        match self {
            Self::Unhooked => true,
            Self::Direct => false,
            Self::Through { outer, .. } => outer.is_unhooked(),
        }
    }

    /// Returns true if `opens` is true for an aggregate on the path.
    fn any(self, opens: &dyn Fn(&NamespaceName) -> bool) -> bool {
        match self {
            Self::Unhooked | Self::Direct => false,
            Self::Through { aggregate, outer } => opens(aggregate) || outer.any(opens),
        }
    }
}
