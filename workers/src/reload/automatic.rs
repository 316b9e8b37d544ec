//! Automatic reloads of single namespaces.
//!
//! If a worker's process ended or must be replaced, and the files have changed since the last reload, the worker refuses to
//! start another process and reports the refusal. Then only this namespace is reloaded, so that clients list the tools that are
//! loaded. Changes in folders of other namespaces still wait for a requested reload. If the namespace cannot be served, its
//! reload is retried at growing intervals.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tooldock_base::config::WorkersConfig;
use tooldock_base::names::NamespaceName;

use super::{Reloader, lock};
use crate::registry::UpstreamKind;

/// Code of the issue that the files of a namespace changed without a requested reload.
pub(super) const FILES_CHANGED: &str = "files_changed";
/// Code of the issue that a namespace declared other functions when one of its processes was restarted.
pub(super) const FUNCTIONS_CHANGED: &str = "functions_changed";

/// Namespaces that a run of a reload covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ReloadScope {
    /// The run covers all namespaces, because a reload was requested.
    All,
    /// The run covers only these namespaces, which are reloaded automatically.
    Only(BTreeSet<NamespaceName>),
}

impl ReloadScope {
    pub(super) fn covers(&self, name: &NamespaceName) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }

    /// Extends the scope by the namespaces of another scope.
    pub(super) fn extend(&mut self, other: Self) {
        match (self, other) {
            (Self::All, _) => {}
            (Self::Only(names), Self::Only(more)) => names.extend(more),
            (all, Self::All) => *all = Self::All,
        }
    }
}

/// State of the automatic reloads, by namespace.
#[derive(Debug, Default)]
pub(super) struct AutomaticReloads {
    paces: BTreeMap<NamespaceName, Pace>,
    /// Namespaces whose files changed while their worker started.
    unsettled: BTreeMap<NamespaceName, UnsettledStart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnsettledStart {
    /// The files changed during one start. The namespace is reloaded once more, with a new worker.
    Once,
    /// The files changed again during the next start, probably by the worker itself. The namespace is not reloaded again,
    /// since every further worker would change the files, too, and reloads would never end.
    Again,
}

#[derive(Debug)]
struct Pace {
    busy: bool,
    /// Time at which the last automatic reload ended, or the next one is to begin.
    last: Option<Instant>,
    delay: Duration,
}

impl Pace {
    /// Returns the delay before the next automatic reload: zero, or a growing delay if the last reload was a short time ago.
    fn next(&mut self, now: Instant, config: &WorkersConfig) -> Duration {
        let soon = |last| now.saturating_duration_since(last) <= config.crash_loop.window;
        self.delay = if self.last.is_some_and(soon) {
            let doubled = self.delay.saturating_mul(2);
            doubled.max(config.backoff.initial).min(config.backoff.max)
        } else {
            Duration::ZERO
        };
        self.last = Some(now + self.delay);
        self.delay
    }
}

impl Reloader {
    /// Reloads the namespace whenever its worker refuses to start a process. Ends with the worker.
    pub(super) fn watch(self: &Arc<Self>, name: NamespaceName, mut refusals: watch::Receiver<()>) {
        // A weak reference, because the reloader owns the worker: the task must keep neither of them in memory.
        let reloader = Arc::downgrade(self);
        tokio::spawn(async move {
            while refusals.changed().await.is_ok() {
                let Some(reloader) = reloader.upgrade() else {
                    return;
                };
                reloader.reload_itself(&name).await;
            }
        });
    }

    async fn reload_itself(self: &Arc<Self>, name: &NamespaceName) {
        {
            let mut itself = lock(&self.itself);
            let pace = itself.paces.entry(name.clone()).or_insert(Pace {
                busy: false,
                last: None,
                delay: Duration::ZERO,
            });
            // Another task already reloads this namespace, and will check before it ends if the namespace needs one more reload.
            if std::mem::replace(&mut pace.busy, true) {
                return;
            }
        }
        while self.is_behind(name) {
            let delay = {
                let mut itself = lock(&self.itself);
                let pace = itself.paces.get_mut(name);
                pace.map_or(Duration::ZERO, |it| {
                    it.next(Instant::now(), &self.host.config)
                })
            };
            tokio::select! {
                () = sleep(delay) => {}
                () = self.closing.cancelled() => return,
            }
            if !self.is_behind(name) {
                break;
            }
            let failed = self.reload_only(name).await.is_err();
            // The run has logged a failure, and the loop tries again. During shutdown the loop ends instead.
            if failed && self.closing.is_cancelled() {
                return;
            }
            // The delay is measured from the end of this reload, so that even after a long reload the next one counts as early.
            if let Some(pace) = lock(&self.itself).paces.get_mut(name) {
                pace.last = Some(Instant::now());
            }
        }
        let mut itself = lock(&self.itself);
        if self.registry.namespace(name.as_str()).is_none() {
            itself.paces.remove(name);
            itself.unsettled.remove(name);
        } else if let Some(pace) = itself.paces.get_mut(name) {
            pace.busy = false;
        }
    }

    /// Returns true if the namespace must be reloaded: its worker refuses to start a process, or it failed and nothing retries
    /// it.
    fn is_behind(&self, name: &NamespaceName) -> bool {
        let Some(namespace) = self.registry.namespace(name.as_str()) else {
            return false;
        };
        match &namespace.upstream {
            UpstreamKind::Worker(worker) => worker.is_outdated(),
            UpstreamKind::Failed(_) => {
                let recovering = namespace.recovering.upgrade();
                recovering.is_none_or(|worker| worker.is_outdated())
            }
            UpstreamKind::Empty
            | UpstreamKind::External(_)
            | UpstreamKind::Remote(_)
            | UpstreamKind::Aggregate(_)
            | UpstreamKind::System => false,
        }
    }

    /// Records if the files of a namespace changed while its worker started. Returns true the first time they did: the namespace
    /// must then be reloaded once more. If they change again during the start after that reload, returns false, since the
    /// namespace would otherwise be reloaded for ever.
    pub(super) fn settle(&self, name: &NamespaceName, changed: bool) -> bool {
        let mut itself = lock(&self.itself);
        match changed {
            true => match itself.unsettled.entry(name.clone()) {
                Entry::Vacant(first) => {
                    first.insert(UnsettledStart::Once);
                    true
                }
                Entry::Occupied(mut before) => {
                    before.insert(UnsettledStart::Again);
                    false
                }
            },
            false => {
                itself.unsettled.remove(name);
                false
            }
        }
    }

    /// Returns true if the namespace needs a new worker, because its files changed while the current one started.
    pub(super) fn is_unsettled(&self, name: &NamespaceName) -> bool {
        lock(&self.itself).unsettled.get(name) == Some(&UnsettledStart::Once)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_for_everybody_covers_those_of_single_namespaces() {
        let only = |name: &str| ReloadScope::Only(BTreeSet::from([name.parse().unwrap()]));
        let mut scope = only("a");
        scope.extend(only("b"));
        assert!(scope.covers(&"a".parse().unwrap()) && scope.covers(&"b".parse().unwrap()));
        assert!(!scope.covers(&"c".parse().unwrap()));
        scope.extend(ReloadScope::All);
        assert_eq!(scope, ReloadScope::All);
        scope.extend(only("a"));
        assert_eq!(scope, ReloadScope::All);
    }

    #[test]
    fn reloads_that_follow_soon_wait_longer_each_time_up_to_the_longest_delay() {
        let config = WorkersConfig::default();
        let mut pace = Pace {
            busy: false,
            last: None,
            delay: Duration::ZERO,
        };
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..20 {
            let delay = pace.next(now, &config);
            now += delay;
            delays.push(delay);
        }
        assert_eq!(delays[0], Duration::ZERO);
        assert_eq!(delays[1], config.backoff.initial);
        assert_eq!(delays[2], config.backoff.initial * 2);
        assert_eq!(delays[19], config.backoff.max);
        now += config.crash_loop.window * 2;
        assert_eq!(pace.next(now, &config), Duration::ZERO, "long ago");
    }
}
