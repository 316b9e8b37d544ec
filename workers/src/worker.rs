//! One namespace's worker: a supervised Python process and the one connection all calls share.
//!
//! # Theory of operation
//!
//! A [`Worker`] is a handle. Behind it a *supervisor* task asks the pure state machine in `state` what to do and does it;
//! it starts *instances*, each of which owns one process from spawn to the last of its descendants. A ready instance
//! publishes its connection, and [`Worker::call`] uses whatever connection is published: no call passes through the
//! supervisor. A worker that asks to be recycled is replaced without a gap, so for a while there are two instances.
//!
//! ```text
//! Worker ──watch──▶ supervisor ──▶ state::step           (control runtime)
//!   │                   └──▶ instance ── process::Child ── guard ── python
//!   └── call ──▶ rpc::Link ──▶ flusher, reader            (the proxy's runtimes)
//! ```
//!
//! A call is one request and one answer. Functions that take a context also say and ask something in between: a
//! [`CallSink`] hears it, and a [`Replier`] takes the answers back to the process that asked, and to no other.
//!
//! Dropping the last `Arc` of a worker ends its supervisor, its processes and their descendants.

mod boot;
mod call;
mod event;
mod instance;
pub mod pending;
mod rpc;
mod state;
mod supervisor;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout_at};

use crate::config::WorkersConfig;
use crate::error::{CallError, CallErrorCode};
use crate::metrics::{NamespaceMetrics, WorkerMetrics};
use crate::names::NamespaceName;
use crate::prompt::Prompt;
use crate::registry::Issue;
use crate::resource::{Resource, ResourceTemplate};
use crate::runtimes::Runtimes;
use crate::secrets::Secret;
use crate::tool::Tool;

pub use call::{Operation, ToolReply, WorkerCall};
pub use event::{
    Answers, Ask, AskMethod, CallEvent, CallSink, LogLevel, Notice, OPEN_QUESTIONS_MAX, Question,
    Replier, UnknownLogLevel,
};
use rpc::{Link, Refused};

/// How long a call waits for a worker that is starting or restarting.
const READY_WAIT: Duration = Duration::from_secs(5);

/// Everything needed to start one generation of a worker.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    /// The namespace it serves.
    pub namespace: NamespaceName,
    /// Tells two generations of one namespace apart.
    pub generation: u64,
    /// The interpreter of the namespace's environment.
    pub python: PathBuf,
    /// The namespace's environment, passed as `--venv`.
    pub venv: PathBuf,
    /// The folder of the tool files, and the process's working directory.
    pub tools_dir: PathBuf,
    /// `<ns>.sock`: what the worker renames its own socket to; at most 100 bytes long.
    pub socket: PathBuf,
    /// The whole environment, built from nothing (WRK-18). Values print as `[redacted]`.
    pub environment: Vec<(OsString, Secret)>,
    /// Threads for sync tools.
    pub sync_concurrency: usize,
    /// The largest frame the worker may send, in bytes. Calls larger than this are refused as well.
    pub max_frame: u64,
    /// How long a process that asked to be replaced may go on with the calls it has.
    pub drain: Duration,
    /// How long a process may say nothing, not even that it lives, before it counts as hung and is replaced.
    pub silence: Duration,
}

/// What workers of one gateway have in common.
#[derive(Debug)]
pub struct WorkerHost {
    /// The executable that understands `__guard`; in production the gateway's own.
    pub guard: PathBuf,
    /// Time limits, delays and thresholds.
    pub config: WorkersConfig,
    /// Where connections live.
    pub runtimes: Arc<Runtimes>,
    /// Where they are counted.
    pub metrics: Arc<WorkerMetrics>,
}

/// What a worker declared when it became ready.
#[derive(Debug, Clone, Default)]
pub struct Declared {
    /// Its tools, in its order.
    pub tools: Vec<Arc<Tool>>,
    /// Its resources, in its order.
    pub resources: Vec<Arc<Resource>>,
    /// Its resource templates, in its order.
    pub resource_templates: Vec<Arc<ResourceTemplate>>,
    /// Its prompts, in its order.
    pub prompts: Vec<Arc<Prompt>>,
    /// Whether some argument can be completed.
    pub completions: bool,
    /// What it skipped, and why.
    pub issues: Vec<Issue>,
}

/// A supervised worker; clones of its `Arc` are handed to the snapshot and to calls in flight.
pub struct Worker {
    shared: Arc<Shared>,
    /// By when the worker is to be gone, once it is not wanted any more.
    retire: watch::Sender<Option<Instant>>,
    supervisor: AbortHandle,
}

/// Where a worker is, for metrics and `/ready`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerState {
    /// Its process boots.
    Starting,
    /// It takes calls.
    Ready,
    /// Its process failed; the next one starts after a delay.
    Backoff {
        /// It failed so often that it is retried at the longest delay.
        crash_loop: bool,
    },
    /// It drains and ends.
    Stopping,
    /// Its processes are gone for good.
    Stopped,
    /// It cannot start, and no retry would change that.
    Failed,
}

/// What the supervisor publishes and calls read.
#[derive(Debug)]
struct Shared {
    spec: Arc<WorkerSpec>,
    metrics: Arc<NamespaceMetrics>,
    /// Where calls go; empty while there is no ready process.
    link: ArcSwapOption<Link>,
    status: watch::Sender<Status>,
    first_boot: watch::Sender<Option<Result<Arc<Declared>, CallError>>>,
    declared: ArcSwapOption<Declared>,
    /// 0 while there is no process.
    pid: AtomicU32,
    restarts: AtomicU64,
    in_flight: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct Status {
    state: WorkerState,
    /// When the next process starts, in `Backoff`.
    retry_at: Option<Instant>,
}

impl WorkerState {
    /// Every value of [`WorkerState::as_str`].
    pub(crate) const NAMES: [&'static str; 7] = [
        "starting",
        "ready",
        "backoff",
        "crash_loop",
        "stopping",
        "stopped",
        "failed",
    ];

    /// The state as metrics and `/ready` show it. A crash loop is a state of its own there.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Backoff { crash_loop: false } => "backoff",
            Self::Backoff { crash_loop: true } => "crash_loop",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

impl Worker {
    /// Starts a worker. Its supervisor and its processes belong to the current runtime; dropping the last `Arc` ends
    /// them.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start(spec: WorkerSpec, host: Arc<WorkerHost>) -> Arc<Self> {
        let metrics = Arc::new(host.metrics.worker(&spec.namespace));
        metrics.entered(WorkerState::Starting);
        let shared = Arc::new(Shared {
            spec: Arc::new(spec),
            metrics,
            link: ArcSwapOption::empty(),
            status: watch::Sender::new(Status {
                state: WorkerState::Starting,
                retry_at: None,
            }),
            first_boot: watch::Sender::new(None),
            declared: ArcSwapOption::empty(),
            pid: AtomicU32::new(0),
            restarts: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
        });
        let (retire, retired) = watch::channel(None);
        let supervisor = tokio::spawn(supervisor::run(Arc::clone(&shared), host, retired));
        Arc::new(Self {
            shared,
            retire,
            supervisor: supervisor.abort_handle(),
        })
    }

    /// The outcome of the first boot.
    ///
    /// # Errors
    ///
    /// Why it failed: `dependency_error` if the worker said so (it then stays [`WorkerState::Failed`]), else
    /// `worker_unavailable`, and the worker goes on trying; [`Worker::declared`] has the outcome of later boots.
    pub async fn ready(&self) -> Result<Arc<Declared>, CallError> {
        let mut outcome = self.shared.first_boot.subscribe();
        loop {
            if let Some(outcome) = &*outcome.borrow_and_update() {
                return outcome.clone();
            }
            // The sender lives as long as `self`, so this returns only when something was sent.
            let _ = outcome.changed().await;
        }
    }

    /// What the process that became ready last declared.
    pub fn declared(&self) -> Option<Arc<Declared>> {
        self.shared.declared.load_full()
    }

    /// Runs one call. Has no time limit of its own besides the wait for a worker that is restarting (5 s); dropping the
    /// future cancels the call in the worker.
    ///
    /// # Errors
    ///
    /// The worker's own error, or `worker_unavailable`, `overloaded`, `result_too_large`, `internal_error` from here.
    pub async fn call(
        &self,
        call: WorkerCall,
        sink: Option<Arc<dyn CallSink>>,
    ) -> Result<ToolReply, CallError> {
        let _counted = InFlightCount::begin(&self.shared);
        let mut published = self.shared.link.load_full();
        let mut deadline = None;
        loop {
            let link = match published.take() {
                Some(link) => link,
                None => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + READY_WAIT);
                    self.shared.wait_for_link(deadline).await?
                }
            };
            match link.begin(&call, sink.clone()) {
                Ok(sent) => return sent.answer().await,
                Err(Refused::Failed(error)) => return Err(error),
                // It is over; nothing was sent, so the next connection may take the call.
                Err(Refused::Closed) => {}
            }
        }
    }

    /// Where the worker is.
    pub fn state(&self) -> WorkerState {
        self.shared.status.borrow().state
    }

    /// What it was started with.
    pub fn spec(&self) -> &WorkerSpec {
        &self.shared.spec
    }

    /// The pid of its current process (not of the guard around it).
    pub fn pid(&self) -> Option<u32> {
        Some(self.shared.pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    /// Processes started after the first one.
    pub fn restarts(&self) -> u64 {
        self.shared.restarts.load(Ordering::Relaxed)
    }

    /// Calls that wait for the worker or its answer.
    pub fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// Ends the worker: no new process, calls are served until none has been in flight for a moment or `drain` is over,
    /// then the process is asked to end, and made to. Returns when its whole process tree is gone. Asking again is
    /// harmless; the shortest drain wins.
    pub async fn retire(&self, drain: Duration) {
        let until = Instant::now() + drain;
        self.retire.send_if_modified(|current| {
            let sooner = current.is_none_or(|current| until < current);
            if sooner {
                *current = Some(until);
            }
            sooner
        });
        let mut status = self.shared.status.subscribe();
        while status.borrow_and_update().state != WorkerState::Stopped {
            // The sender lives as long as `self`; a supervisor that ends any other way leaves `Stopped` as well.
            let _ = status.changed().await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("namespace", &self.spec().namespace)
            .field("generation", &self.spec().generation)
            .field("state", &self.state().as_str())
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn open_link(&self) -> Option<Arc<Link>> {
        self.link.load_full().filter(|link| !link.is_closed())
    }

    /// Waits for a worker that is on its way.
    async fn wait_for_link(&self, deadline: Instant) -> Result<Arc<Link>, CallError> {
        // Subscribed before looking, so that a link published between the two is not missed.
        let mut status = self.status.subscribe();
        loop {
            let now = *status.borrow_and_update();
            if let Some(link) = self.open_link() {
                return Ok(link);
            }
            match now.state {
                WorkerState::Starting | WorkerState::Ready | WorkerState::Backoff { .. } => {}
                WorkerState::Stopping | WorkerState::Stopped | WorkerState::Failed => {
                    return Err(self.unavailable(now));
                }
            }
            if timeout_at(deadline, status.changed()).await.is_err() {
                return Err(self.unavailable(now));
            }
        }
    }

    fn unavailable(&self, status: Status) -> CallError {
        if status.state == WorkerState::Failed
            && let Some(Err(error)) = &*self.first_boot.borrow()
        {
            return error.clone();
        }
        let namespace = &self.spec.namespace;
        let message = match status.state {
            WorkerState::Starting | WorkerState::Ready => {
                format!("the worker of namespace {namespace} is still starting")
            }
            WorkerState::Backoff { crash_loop: false } => {
                format!("the worker of namespace {namespace} failed; it is being restarted")
            }
            WorkerState::Backoff { crash_loop: true } => {
                format!(
                    "the worker of namespace {namespace} keeps failing; it is retried from time to time"
                )
            }
            WorkerState::Stopping | WorkerState::Stopped | WorkerState::Failed => {
                format!("the worker of namespace {namespace} is stopped")
            }
        };
        let wait = status
            .retry_at
            .map_or(Duration::ZERO, |at| at.duration_since(Instant::now()));
        CallError::new(CallErrorCode::WorkerUnavailable, message)
            .retry_after(wait.max(Duration::from_secs(1)))
    }

    /// Publishes where the worker is.
    fn enter(&self, status: Status) {
        self.metrics.entered(status.state);
        self.status.send_replace(status);
    }

    /// Answers [`Worker::ready`], the first time.
    fn first_boot(&self, outcome: Result<Arc<Declared>, CallError>) {
        self.first_boot.send_if_modified(|first| {
            let unknown = first.is_none();
            first.get_or_insert(outcome);
            unknown
        });
    }
}

/// Counts a call as in flight while it lives.
struct InFlightCount<'a>(&'a Shared);

impl<'a> InFlightCount<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.in_flight.fetch_add(1, Ordering::Relaxed);
        shared.metrics.in_flight.inc();
        Self(shared)
    }
}

impl Drop for InFlightCount<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn spec() -> WorkerSpec {
        WorkerSpec {
            namespace: "demo".parse().expect("valid"),
            generation: 7,
            python: "/usr/bin/python3".into(),
            venv: "/nowhere".into(),
            tools_dir: "/".into(),
            socket: "/nowhere/demo.sock".into(),
            environment: vec![("TOKEN".into(), Secret::new("hunter2"))],
            sync_concurrency: 1,
            max_frame: 1024 * 1024,
            drain: Duration::from_secs(30),
            silence: Duration::from_secs(30),
        }
    }

    #[test]
    fn printing_a_spec_shows_no_value_of_the_environment() {
        let text = format!("{:?}", spec());
        assert!(
            text.contains("TOKEN") && !text.contains("hunter2"),
            "{text}"
        );
    }

    #[test]
    fn every_state_has_a_name_that_metrics_know() {
        for state in [
            WorkerState::Starting,
            WorkerState::Ready,
            WorkerState::Backoff { crash_loop: false },
            WorkerState::Backoff { crash_loop: true },
            WorkerState::Stopping,
            WorkerState::Stopped,
            WorkerState::Failed,
        ] {
            assert!(WorkerState::NAMES.contains(&state.as_str()), "{state:?}");
        }
    }
}
