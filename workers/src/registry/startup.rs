//! State of the gateway's start, for requests: until the first scan has ended, namespaces on disk or in the configuration count
//! as starting instead of unknown.
//!
//! A request for a starting namespace waits, with a limit on the time and on the number of waiting requests, and then gets an
//! error with a retry delay. For a namespace that starts in the background, requests wait until its first start succeeded or
//! failed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::NamespaceName;

use super::Registry;
use crate::scan;

/// Maximum time that a request waits for a starting namespace.
const PATIENCE: Duration = Duration::from_secs(8);

/// Delay after which a client is told to send its request again if the namespace is still starting.
pub const TRY_AGAIN: Duration = Duration::from_secs(2);

/// Maximum number of requests that wait for starting namespaces. Further ones get an error with a retry delay.
const WAITING_MAX: usize = 4096;

/// State of the gateway's start, with the namespaces that are still starting.
#[derive(Debug)]
pub struct Startup {
    /// True if namespaces may be starting. Requests for names that are not served read it without a lock.
    runs: AtomicBool,
    stage: watch::Sender<Stage>,
    waiting: Semaphore,
}

/// The namespaces that are expected to be served once they have started.
#[derive(Debug, Default)]
pub struct ExpectedNamespaces {
    /// Names from the configuration and from the file of external servers.
    pub names: BTreeSet<NamespaceName>,
    /// Tools directory: the names of its folders count in addition to `names`. `None` after the first scan.
    pub tools_dir: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct Stage {
    phase: StartupPhase,
    expected: ExpectedNamespaces,
    /// Time at which the first scan began; `None` if there is no scan.
    began: Option<Instant>,
    /// Namespaces that are published as failed because they have no environment yet. Attempts to build it continue.
    retried: BTreeSet<NamespaceName>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum StartupPhase {
    /// The first scan has ended, or there is none.
    #[default]
    Over,
    /// The first scan is running.
    FirstScan,
    /// The first scan failed: no namespace is known until a reload succeeds.
    Failed,
}

impl Default for Startup {
    /// Returns the state in which no namespace is starting.
    fn default() -> Self {
        Self {
            runs: AtomicBool::new(false),
            stage: watch::Sender::default(),
            waiting: Semaphore::new(WAITING_MAX),
        }
    }
}

impl Startup {
    /// Begins the first scan. `expected` are the namespaces that it will find.
    pub(crate) fn begin(&self, expected: ExpectedNamespaces) {
        self.stage
            .send_modify(|stage| stage.began = Some(Instant::now()));
        self.enter(StartupPhase::FirstScan, expected);
    }

    /// Time at which the first scan began; `None` if there is no scan.
    pub(crate) fn began(&self) -> Option<Instant> {
        self.stage.borrow().began
    }

    /// Records that a scan of all namespaces has ended. All are published except for `late`, which start in the background.
    pub(crate) fn scanned(&self, late: BTreeSet<NamespaceName>) {
        let expected = ExpectedNamespaces {
            names: late,
            tools_dir: None,
        };
        self.enter(StartupPhase::Over, expected);
    }

    /// Adds namespaces that are not served yet and continue to start in the background. Does nothing before the first scan is
    /// over, because all namespaces are expected then.
    pub(crate) fn expect_late<'a>(&self, names: impl Iterator<Item = &'a NamespaceName>) {
        self.stage.send_if_modified(|stage| {
            let over = stage.phase == StartupPhase::Over;
            if over {
                stage.expected.names.extend(names.cloned());
                let runs = !stage.expected.names.is_empty();
                self.runs.store(runs, Ordering::Release);
            }
            over
        });
    }

    /// Records that the first scan failed, so that no namespace is known.
    pub(crate) fn failed(&self) {
        self.stage.send_if_modified(|stage| {
            let scanning = stage.phase == StartupPhase::FirstScan;
            if scanning {
                stage.phase = StartupPhase::Failed;
            }
            scanning
        });
    }

    /// Records that a namespace that started in the background is published.
    pub(crate) fn came_up(&self, name: &NamespaceName) {
        self.stage.send_if_modified(|stage| {
            let late = stage.phase == StartupPhase::Over && stage.expected.names.remove(name);
            if late && stage.expected.names.is_empty() {
                self.runs.store(false, Ordering::Release);
            }
            late
        });
    }

    /// Records that a namespace without an environment is published as failed, and that attempts to build it continue.
    pub(crate) fn retried(&self, name: &NamespaceName) {
        self.stage
            .send_modify(|stage| _ = stage.retried.insert(name.clone()));
    }

    /// Records that the environment of a namespace has been built.
    pub(crate) fn made(&self, name: &NamespaceName) {
        self.stage
            .send_if_modified(|stage| stage.retried.remove(name));
    }

    /// Records that no environment is being built in the background any more, because later reloads build them.
    pub(crate) fn made_all(&self) {
        self.stage.send_if_modified(|stage| {
            let any = !stage.retried.is_empty();
            stage.retried.clear();
            any
        });
    }

    /// Returns true if a namespace is published as failed only because it has no environment yet, and attempts to build the
    /// environment continue. The namespace then counts as starting.
    pub fn is_retried(&self, name: &NamespaceName) -> bool {
        self.stage.borrow().retried.contains(name)
    }

    fn enter(&self, phase: StartupPhase, expected: ExpectedNamespaces) {
        self.stage.send_modify(|stage| {
            let runs = phase != StartupPhase::Over || !expected.names.is_empty();
            self.runs.store(runs, Ordering::Release);
            stage.phase = phase;
            stage.expected = expected;
        });
    }

    /// Returns true if namespaces may still be starting.
    pub fn is_running(&self) -> bool {
        self.runs.load(Ordering::Acquire)
    }

    /// Returns true while the first scan is running.
    pub fn is_scanning(&self) -> bool {
        self.is_running() && self.stage.borrow().phase == StartupPhase::FirstScan
    }

    /// Returns true if all namespaces were scanned once, or if there is no scan.
    pub fn is_scanned(&self) -> bool {
        !self.is_running() || self.stage.borrow().phase == StartupPhase::Over
    }

    /// The namespaces that start in the background.
    pub fn late(&self) -> Vec<NamespaceName> {
        if !self.is_running() {
            return Vec::new();
        }
        let stage = self.stage.borrow();
        let late = (stage.phase == StartupPhase::Over).then_some(&stage.expected.names);
        late.into_iter().flatten().cloned().collect()
    }

    /// The namespaces that the first scan will find, or that start in the background, sorted by name; some may already be
    /// served. Reads the tools directory until the first scan has ended.
    fn coming(&self) -> BTreeSet<NamespaceName> {
        if !self.is_running() {
            return BTreeSet::new();
        }
        let (mut coming, tools_dir) = {
            let expected = &self.stage.borrow().expected;
            (expected.names.clone(), expected.tools_dir.clone())
        };
        let folders = tools_dir.iter().flat_map(|dir| scan::claims(dir));
        coming.extend(folders.map(|claim| claim.name));
        coming
    }

    /// Returns true if the namespace is expected to be served once it has started.
    fn expects(&self, name: &NamespaceName) -> bool {
        if !self.is_running() {
            return false;
        }
        let tools_dir = {
            let stage = self.stage.borrow();
            if stage.expected.names.contains(name) {
                return true;
            }
            stage.expected.tools_dir.clone()
        };
        tools_dir.is_some_and(|dir| scan::has_folder(&dir, name))
    }

    /// Returns true if a request should wait: namespaces are starting, and the first scan has not failed.
    fn goes_on(&self) -> bool {
        self.is_running() && self.stage.borrow().phase != StartupPhase::Failed
    }
}

/// The error for a request whose namespace is starting.
pub fn starting(name: &NamespaceName) -> CallError {
    let again = TRY_AGAIN.as_secs();
    let message = match name.is_global() {
        true => {
            format!("The gateway is starting and serves no namespace yet: try again in {again} s")
        }
        false => format!("The namespace {name} is starting: try again in {again} s"),
    };
    CallError::new(CallErrorCode::Starting, message).retry_after(TRY_AGAIN)
}

impl Registry {
    /// Returns true if a namespace is starting and not served yet. Reads the tools directory during the first scan.
    pub fn awaits(&self, name: &NamespaceName) -> bool {
        // Checked in this order, because a namespace is published before it is removed from the starting ones.
        self.startup().expects(name) && !self.load().namespaces.contains_key(name)
    }

    /// The namespaces that are starting and not served yet, sorted by name.
    pub fn awaited(&self) -> Vec<NamespaceName> {
        // Read in this order, because a namespace is published before it is removed from the starting ones.
        let coming = self.startup().coming();
        let served = self.load();
        let awaited = coming.into_iter();
        awaited
            .filter(|name| !served.namespaces.contains_key(name))
            .collect()
    }

    /// Returns true if any namespace except that of the management tools is served.
    fn serves_any(&self) -> bool {
        let served = self.load();
        let mut names = served.namespaces.keys();
        names.any(|name| !name.is_system())
    }

    /// Subscribes to later changes of the start's state.
    pub fn startup_steps(&self) -> StartupSteps {
        StartupSteps(self.startup().stage.subscribe())
    }

    /// Waits until a starting namespace is served, has failed to start, or the maximum waiting time is over.
    pub async fn wait_for(&self, name: &NamespaceName) {
        let startup = self.startup();
        let Ok(_place) = startup.waiting.try_acquire() else {
            return;
        };
        let mut published = self.subscribe();
        let mut steps = self.startup_steps();
        let arrived = async {
            while startup.goes_on() && self.awaits(name) {
                tokio::select! {
                    changed = published.changed() => if changed.is_err() { return },
                    () = steps.next() => {}
                }
            }
        };
        // The result is ignored: afterwards the caller checks the snapshot itself.
        let _ = timeout(PATIENCE, arrived).await;
    }

    /// Waits for a starting namespace. Returns the error for the request if the namespace is still starting afterwards; `None` if
    /// it is served or not known.
    pub async fn starting(&self, name: &NamespaceName) -> Option<CallError> {
        if !self.awaits(name) {
            return None;
        }
        self.wait_for(name).await;
        self.awaits(name).then(|| starting(name))
    }

    /// Waits until the first scan is over. Namespaces whose packages are still being installed are not waited for.
    pub async fn wait_until_scanned(&self) {
        let mut steps = self.startup_steps();
        while !self.startup().is_scanned() {
            steps.next().await;
        }
    }

    /// Waits until no namespace is starting, or the maximum waiting time is over, for requests that concern all namespaces.
    /// Returns true if all namespaces were scanned, or if any is served.
    pub async fn wait_for_scan(&self) -> bool {
        let startup = self.startup();
        let began = startup.stage.borrow().began;
        if let (Some(began), Ok(_place)) = (began, startup.waiting.try_acquire()) {
            let mut steps = self.startup_steps();
            let over = async {
                while startup.goes_on() {
                    steps.next().await;
                }
            };
            let _ = timeout_at(began + PATIENCE, over).await;
        }
        startup.is_scanned() || self.serves_any()
    }
}

/// Receiver of changes of the start's state.
#[derive(Debug)]
pub struct StartupSteps(watch::Receiver<Stage>);

impl StartupSteps {
    /// Waits for the next change. Does not return after the registry was dropped.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::registry::Snapshot;

    fn name(name: &str) -> NamespaceName {
        name.parse().unwrap()
    }

    fn starting(tools: &std::path::Path) -> Arc<Registry> {
        std::fs::create_dir_all(tools.join("folder")).unwrap();
        let registry = Arc::new(Registry::default());
        registry.startup().begin(ExpectedNamespaces {
            names: BTreeSet::from([name("configured")]),
            tools_dir: Some(tools.to_owned()),
        });
        registry
    }

    #[test]
    fn folders_and_names_of_the_configuration_are_on_their_way_up_until_the_first_scan_is_over() {
        let tools = tempfile::tempdir().unwrap();
        assert!(!Registry::default().awaits(&name("configured")));
        let registry = starting(tools.path());
        assert!(registry.awaits(&name("configured")) && registry.awaits(&name("folder")));
        assert!(!registry.awaits(&name("nope")));
        assert_eq!(registry.awaited(), [name("configured"), name("folder")]);
        assert!(!registry.startup().is_scanned());
        registry.startup().scanned(BTreeSet::new());
        assert!(registry.startup().is_scanned() && !registry.startup().is_running());
        for known in ["configured", "folder"] {
            assert!(!registry.awaits(&name(known)), "{known}");
        }
        assert_eq!(registry.awaited(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_the_scan_and_otherwise_by_its_bound() {
        let tools = tempfile::tempdir().unwrap();
        let registry = starting(tools.path());
        let before = Instant::now();
        registry.wait_for(&name("nope")).await;
        assert_eq!(before.elapsed(), Duration::ZERO, "nothing to wait for");
        registry.wait_for(&name("folder")).await;
        assert_eq!(before.elapsed(), PATIENCE);
        assert!(!registry.wait_for_scan().await, "nothing is published");
        assert_eq!(before.elapsed(), PATIENCE, "bounded from the start on");

        let waiting = tokio::spawn({
            let registry = Arc::clone(&registry);
            async move { registry.wait_for(&name("folder")).await }
        });
        tokio::task::yield_now().await;
        registry.swap(Snapshot {
            generation: 1,
            ..Snapshot::default()
        });
        registry.startup().scanned(BTreeSet::new());
        waiting.await.unwrap();
        assert_eq!(before.elapsed(), PATIENCE);
        assert!(registry.wait_for_scan().await);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_scan_that_failed_and_its_names_stay_expected() {
        let tools = tempfile::tempdir().unwrap();
        let registry = starting(tools.path());
        registry.startup().failed();
        let before = Instant::now();
        registry.wait_for(&name("folder")).await;
        assert!(!registry.wait_for_scan().await);
        assert_eq!(before.elapsed(), Duration::ZERO);
        assert!(registry.awaits(&name("folder")) && !registry.startup().is_scanned());
        registry.startup().scanned(BTreeSet::new());
        registry.startup().failed();
        assert!(
            registry.startup().is_scanned(),
            "only the first scan counts"
        );
    }

    #[test]
    fn a_namespace_that_comes_up_beside_the_start_is_awaited_until_it_is_published() {
        let registry = Registry::default();
        registry.startup().scanned(BTreeSet::from([name("shared")]));
        assert!(registry.startup().is_scanned() && registry.awaits(&name("shared")));
        assert_eq!(registry.startup().late(), [name("shared")]);
        registry.startup().came_up(&name("shared"));
        assert!(!registry.startup().is_running() && registry.startup().late().is_empty());
    }
}
