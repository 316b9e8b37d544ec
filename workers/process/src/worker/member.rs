//! A process of a worker across its restarts: the state that its supervisor publishes and calls read.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::worker_state::WorkerState;

use super::rpc::{Link, Links};
use super::sync_waits::SyncWaits;
use super::{Declarations, WorkerHost, WorkerSpec, supervisor};
use crate::metrics::NamespaceMetrics;

/// State that the processes of one worker share.
pub(super) struct WorkerShared {
    /// Permits to start: limits how many processes of the worker start at the same time.
    pub(super) boots: Arc<Semaphore>,
    /// Notified when a process of the worker changes its state.
    pub(super) changed: Arc<Notify>,
    /// Declarations of the worker's first ready process: [`PublishedState::declared`].
    pub(super) declared: Arc<OnceLock<Arc<Declarations>>>,
    /// Notified of every refused start of a process: [`PublishedState::refused`].
    pub(super) refused: Arc<watch::Sender<()>>,
    /// Counter of calls that waited long for a thread: [`PublishedState::sync_waits`].
    pub(super) sync_waits: Arc<SyncWaits>,
    /// Channel that stops and starts the worker's processes: false if they had no calls for long, true if a call waits.
    pub(super) wanted: watch::Sender<bool>,
}

/// Handle of the process; dropping it ends the supervisor and its processes.
pub(super) struct WorkerMember {
    shared: Arc<PublishedState>,
    /// Channel with the time by which the process must have ended; `None` while the process is needed.
    retire: watch::Sender<Option<Instant>>,
    supervisor: AbortHandle,
}

/// State that the supervisor publishes and calls read.
#[derive(Debug)]
pub(super) struct PublishedState {
    pub(super) spec: Arc<WorkerSpec>,
    pub(super) metrics: Arc<NamespaceMetrics>,
    /// Permits to start: limits how many processes of the worker start at the same time.
    pub(super) boots: Arc<Semaphore>,
    /// Connections that calls use; empty while no process is ready.
    pub(super) links: ArcSwapOption<Links>,
    status: watch::Sender<Status>,
    /// Notified when any process of the worker changes its status.
    changed: Arc<Notify>,
    first_boot: watch::Sender<Option<Result<(), CallError>>>,
    /// The tools, resources and prompts that the first ready process of the worker declared. A process with other declarations
    /// gets no calls.
    pub(super) declared: Arc<OnceLock<Arc<Declarations>>>,
    /// True if the last start of a process was refused, because its files or functions differ from those with which the worker
    /// was started.
    pub(super) outdated: AtomicBool,
    /// Notified of every refused start of any process of the worker.
    pub(super) refused: Arc<watch::Sender<()>>,
    /// Counts calls that waited long for a thread, over all processes of the worker.
    pub(super) sync_waits: Arc<SyncWaits>,
    /// Id of the current process; 0 while no process runs.
    pub(super) pid: AtomicU32,
    pub(super) restarts: AtomicU64,
    in_flight: AtomicUsize,
    /// True if a call has begun since the value was last taken.
    used: AtomicBool,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Status {
    pub(super) state: WorkerState,
    /// Time of the next start, while the worker waits after a failure.
    pub(super) retry_at: Option<Instant>,
}

impl WorkerMember {
    /// Starts the supervisor in the current runtime.
    pub(super) fn start(spec: WorkerSpec, host: Arc<WorkerHost>, common: &WorkerShared) -> Self {
        let metrics = Arc::new(host.metrics.worker(&spec.namespace));
        metrics.entered(WorkerState::Starting);
        let shared = Arc::new(PublishedState {
            spec: Arc::new(spec),
            metrics,
            boots: Arc::clone(&common.boots),
            links: ArcSwapOption::empty(),
            status: watch::Sender::new(Status {
                state: WorkerState::Starting,
                retry_at: None,
            }),
            changed: Arc::clone(&common.changed),
            first_boot: watch::Sender::new(None),
            declared: Arc::clone(&common.declared),
            outdated: AtomicBool::new(false),
            refused: Arc::clone(&common.refused),
            sync_waits: Arc::clone(&common.sync_waits),
            pid: AtomicU32::new(0),
            restarts: AtomicU64::new(0),
            in_flight: AtomicUsize::new(0),
            used: AtomicBool::new(false),
        });
        let (retire, retired) = watch::channel(None);
        let wanted = common.wanted.subscribe();
        let supervisor = supervisor::run(Arc::clone(&shared), host, retired, wanted);
        let supervisor = tokio::spawn(supervisor);
        Self {
            shared,
            retire,
            supervisor: supervisor.abort_handle(),
        }
    }

    /// Waits for the outcome of the process's first start.
    pub(super) async fn ready(&self) -> Result<(), CallError> {
        let mut outcome = self.shared.first_boot.subscribe();
        loop {
            if let Some(outcome) = &*outcome.borrow_and_update() {
                return outcome.clone();
            }
            // This cannot fail: the sender belongs to `self`.
            let _ = outcome.changed().await;
        }
    }

    /// Returns true if the process is not started again, because its files or functions have changed.
    pub(super) fn is_outdated(&self) -> bool {
        self.shared.outdated.load(Ordering::Relaxed)
    }

    pub(super) fn state(&self) -> WorkerState {
        self.shared.status.borrow().state
    }

    pub(super) fn spec(&self) -> &WorkerSpec {
        &self.shared.spec
    }

    /// The pid of the current process.
    pub(super) fn pid(&self) -> Option<u32> {
        Some(self.shared.pid.load(Ordering::Relaxed)).filter(|pid| *pid != 0)
    }

    pub(super) fn restarts(&self) -> u64 {
        self.shared.restarts.load(Ordering::Relaxed)
    }

    /// Number of calls that wait for the process or its answer.
    pub(super) fn in_flight(&self) -> usize {
        self.shared.in_flight.load(Ordering::Relaxed)
    }

    /// State that the supervisor publishes, for the task that watches for lack of calls.
    pub(super) fn published(&self) -> &Arc<PublishedState> {
        &self.shared
    }

    /// Returns true if the process has a connection that accepts calls.
    pub(super) fn takes_calls(&self) -> bool {
        let links = self.shared.links.load();
        links.as_ref().is_some_and(|it| !it.here().is_closed())
    }

    /// The connection to the process, if it accepts calls.
    pub(super) fn link(&self) -> Option<Arc<Link>> {
        let links = self.shared.links.load();
        let link = links.as_ref()?.here();
        (!link.is_closed()).then(|| Arc::clone(link))
    }

    /// Counts a call as in flight until the guard is dropped.
    pub(super) fn count(&self) -> InFlightCount<'_> {
        InFlightCount::begin(&self.shared)
    }

    /// Orders the process to end by `until`; the earliest order applies.
    pub(super) fn retire(&self, until: Instant) {
        self.retire.send_if_modified(|current| {
            let sooner = current.is_none_or(|current| until < current);
            if sooner {
                *current = Some(until);
            }
            sooner
        });
    }

    /// Waits until the process and its successors have permanently ended.
    pub(super) async fn stopped(&self) {
        let mut status = self.shared.status.subscribe();
        while status.borrow_and_update().state != WorkerState::Stopped {
            // `changed` cannot fail, since `self` owns the sender. The loop ends: every supervisor sets `Stopped` at its end.
            let _ = status.changed().await;
        }
    }

    /// The error for calls while the process accepts none, with the reason why it accepts none.
    pub(super) fn unavailable(&self) -> CallError {
        let status = *self.shared.status.borrow();
        if status.state == WorkerState::Failed
            && let Some(Err(error)) = &*self.shared.first_boot.borrow()
        {
            return error.clone();
        }
        let namespace = &self.shared.spec.namespace;
        let message = match status.state {
            WorkerState::Starting | WorkerState::Backoff { .. } if self.is_outdated() => {
                format!(
                    "the process of namespace {namespace} ended, and its files are no longer those that were loaded; the namespace is being reloaded"
                )
            }
            WorkerState::Starting
            | WorkerState::Ready
            | WorkerState::Degraded
            | WorkerState::Idle => {
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
}

impl Drop for WorkerMember {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl PublishedState {
    /// Lets the time without calls begin now.
    pub(super) fn mark_used(&self) {
        self.used.store(true, Ordering::Relaxed);
    }

    /// Returns true if calls are in flight, or one has begun since the last question.
    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed) || self.in_flight.load(Ordering::Relaxed) > 0
    }

    /// Publishes the state of the process.
    pub(super) fn enter(&self, status: Status) {
        self.metrics.entered(status.state);
        self.status.send_replace(status);
        self.changed.notify_waiters();
    }

    /// Sets the outcome that [`WorkerMember::ready`] returns. Only the first outcome counts.
    pub(super) fn first_boot(&self, outcome: Result<(), CallError>) {
        self.first_boot.send_if_modified(|first| {
            let unknown = first.is_none();
            first.get_or_insert(outcome);
            unknown
        });
    }
}

/// Guard that counts a call as in flight until it is dropped.
pub(super) struct InFlightCount<'a>(&'a PublishedState);

impl<'a> InFlightCount<'a> {
    fn begin(shared: &'a PublishedState) -> Self {
        shared.in_flight.fetch_add(1, Ordering::Relaxed);
        shared.mark_used();
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
