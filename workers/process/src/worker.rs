//! The worker of a namespace: one or several supervised Python processes with the same code.
//!
//! # Theory of operation
//!
//! A [`Worker`] is a handle for its *members*, one for each of its processes. Each member has a *supervisor* task, which passes
//! events to the pure state machine in `state` and carries out the resulting actions; it starts *instances*, each of which owns
//! one process from its spawn to the end of its last descendant. A ready instance publishes its connection, and
//! [`Worker::call`] uses that of the member with the fewest calls: no call passes through a supervisor. A process that asks to
//! be recycled is replaced without a gap, so for a while its member has two instances.
//!
//! ```text
//! Worker ── member ──watch──▶ supervisor ──▶ state::step           (control runtime)
//!   │  │      …                   └──▶ instance ── process::Child ── guard ── python
//!   │  └─ least_busy
//!   └── call ──▶ rpc::Link ──▶ flusher, reader                      (the proxy's runtimes)
//! ```
//!
//! A call is one request and one response. Functions that take a context also send events and questions before the response: a
//! [`CallSink`] receives them, and a [`Replier`] sends the answers to the process that asked. The questions of a process fail
//! when it ends; the other members continue.
//!
//! Dropping the last `Arc` of a worker ends its supervisor, its processes and their descendants.

mod blocked;
mod boot;
mod call;
mod event;
mod instance;
mod least_busy;
mod member;
pub mod pending;
mod rpc;
mod source_file;
mod state;
mod supervisor;
mod sync_waits;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tooldock_base::config::{PROCESSES_MAX, Sandbox, WorkersConfig};
use tooldock_base::error::CallError;
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::prompt::Prompt;
use tooldock_base::redactor::Redactor;
use tooldock_base::resource::{Resource, ResourceTemplate};
use tooldock_base::runtimes::Runtimes;
use tooldock_base::secret::Secret;
use tooldock_base::tool::Tool;
use tooldock_base::worker_state::WorkerState;

use crate::child::output::{self, OutputLimit, RecentLines, RecentOutput};
use crate::metrics::WorkerMetrics;
use crate::sandbox::SandboxHost;

pub use call::{Operation, ToolReply, WorkerCall};
pub use event::{
    Answers, Ask, AskMethod, CallEvent, CallSink, LogLevel, Notice, OPEN_QUESTIONS_MAX, Question,
    Replier, UnknownLogLevel,
};
use member::{Common, WorkerMember};
use rpc::{CallRefusal, Link};
pub use source_file::SourceFile;

/// Maximum wait of a call for a worker that is starting or restarting.
const READY_WAIT: Duration = Duration::from_secs(5);

/// Everything needed to start one generation of a worker.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    /// The namespace that the worker serves.
    pub namespace: NamespaceName,
    /// Number of the generation, which distinguishes two generations of one namespace.
    pub generation: u64,
    /// The interpreter of the namespace's environment.
    pub python: PathBuf,
    /// The namespace's environment, passed as `--venv`.
    pub venv: PathBuf,
    /// The folder of the tool files, and the process's working directory.
    pub tools_dir: PathBuf,
    /// True if a function with the name of its file is a tool.
    pub vault_style: bool,
    /// The files that the worker was started from. A later process is only started from equal files. `None`: not compared.
    pub files_hash: Option<FilesHash>,
    /// `<ns>.sock`: the name to which the worker renames its own socket; at most 100 bytes long. Further processes have
    /// `<ns>.p1.sock` and so on.
    pub socket: PathBuf,
    /// Number of processes that share the calls; 1 to [`PROCESSES_MAX`].
    pub processes: usize,
    /// The complete environment of a process, which inherits no variables (WRK-18). Values print as `[redacted]`.
    pub environment: Vec<(OsString, Secret)>,
    /// The values that must not show in the output of the worker's processes, nor in the tracebacks of its functions.
    pub hidden: Vec<Secret>,
    /// Number of threads for sync tools in each process.
    pub sync_concurrency: usize,
    /// Maximum size of a frame that the worker may send, in bytes. Calls larger than this are refused as well.
    pub max_frame: u64,
    /// Maximum time for a process that asked to be replaced to continue with its calls.
    pub drain: Duration,
    /// Maximum silence of a process, heartbeats included, before it counts as hung and is replaced.
    pub silence: Duration,
    /// How far the processes are kept from the rest of the machine.
    pub sandbox: Sandbox,
}

/// Hash over the files of a namespace.
#[derive(Debug, Clone, Copy)]
pub struct FilesHash {
    /// The hash when the worker was started.
    pub value: [u8; 32],
    /// The current hash of a namespace folder; `None` if there is no namespace. Blocking.
    pub now: fn(&Path) -> Option<[u8; 32]>,
}

/// The common dependencies of a gateway's workers.
#[derive(Debug)]
pub struct WorkerHost {
    /// The executable that implements `__guard`; in production the gateway's own.
    pub guard: PathBuf,
    /// Time limits, delays and thresholds.
    pub config: WorkersConfig,
    /// Runtimes in which connections to workers are made.
    pub runtimes: Arc<Runtimes>,
    /// Metrics of workers.
    pub metrics: Arc<WorkerMetrics>,
    /// The last lines that workers printed.
    pub output: RecentOutput,
    /// Makes the sandboxes of processes.
    pub sandbox: Arc<SandboxHost>,
}

/// Declarations of a worker when it became ready.
#[derive(Debug, Clone, Default)]
pub struct Declarations {
    /// Tools, in the worker's order.
    pub tools: Vec<Arc<Tool>>,
    /// Resources, in the worker's order.
    pub resources: Vec<Arc<Resource>>,
    /// Resource templates, in the worker's order.
    pub resource_templates: Vec<Arc<ResourceTemplate>>,
    /// Prompts, in the worker's order.
    pub prompts: Vec<Arc<Prompt>>,
    /// True if arguments of a prompt or template can be completed.
    pub completions: bool,
    /// Issues about skipped files and functions.
    pub issues: Vec<Issue>,
    /// The namespace's files, and the use that the worker made of each.
    pub files: Vec<SourceFile>,
}

impl Declarations {
    /// Returns true if clients get equal lists for both declarations. Issues are not compared.
    fn lists_what(&self, other: &Self) -> bool {
        // `Debug` prints every field, so fields added later are compared automatically.
        let lists = |it: &Self| {
            format!(
                "{:?}",
                (
                    &it.tools,
                    &it.resources,
                    &it.resource_templates,
                    &it.prompts,
                    it.completions
                )
            )
        };
        lists(self) == lists(other)
    }

    /// Returns true if both declare the same names of tools, resources, templates and prompts.
    fn has_the_names_of(&self, other: &Self) -> bool {
        let names = |it: &Self| -> BTreeSet<(u8, Arc<str>)> {
            let tools = it.tools.iter().map(|tool| (0, Arc::clone(&tool.name)));
            let resources = it.resources.iter().map(|it| (1, Arc::from(&*it.uri)));
            let templates = it.resource_templates.iter();
            let templates = templates.map(|it| (2, Arc::from(&*it.uri_template)));
            let prompts = it.prompts.iter().map(|it| (3, Arc::clone(&it.name)));
            let both = tools.chain(resources);
            both.chain(templates).chain(prompts).collect()
        };
        names(self) == names(other)
    }
}

/// Handle for all processes of a namespace. The registry's snapshot and running calls share it.
pub struct Worker {
    /// Members of the worker, one for each process; at least one.
    members: Box<[WorkerMember]>,
    /// Notified when some member entered another state.
    changed: Arc<Notify>,
    /// Declarations of the first ready process.
    declared: Arc<OnceLock<Arc<Declarations>>>,
    /// Changes whenever the start of a process is refused.
    refused: watch::Receiver<()>,
    /// Start index of the next search for the least busy member, so that equally busy members take turns.
    turn: AtomicUsize,
    retired: AtomicBool,
    /// The rate and the redactor of logged tracebacks.
    output: OutputLimit,
    /// The last lines that the worker's processes printed, and the tracebacks of its functions.
    recent: Arc<RecentLines>,
}

impl WorkerSpec {
    /// Number of processes of a worker with this specification.
    fn members(&self) -> usize {
        self.processes.clamp(1, PROCESSES_MAX)
    }

    /// Maximum time until all processes of the worker are up, if one of them may take `limit`.
    pub fn boot_limit(&self, limit: Duration) -> Duration {
        let rounds = self.members().div_ceil(boots_at_once());
        limit.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
    }

    /// The sockets of the worker's processes, in their order. A single process has the socket of the specification.
    pub fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.members()).map(|number| match number {
            0 => self.socket.clone(),
            number => self.socket.with_extension(format!("p{number}.sock")),
        })
    }
}

/// Maximum number of processes of one worker that boot concurrently. Booting needs processor time: more processes would delay
/// each other.
fn boots_at_once() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

impl Worker {
    /// Starts a worker. Its supervisors and its processes belong to the current runtime; dropping the last `Arc` ends
    /// them.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub fn start(spec: WorkerSpec, host: Arc<WorkerHost>) -> Arc<Self> {
        let (refused, refusals) = watch::channel(());
        let common = Common {
            boots: Arc::new(Semaphore::new(boots_at_once())),
            changed: Arc::new(Notify::new()),
            declared: Arc::default(),
            refused: Arc::new(refused),
            sync_waits: Arc::default(),
        };
        let recent = host.output.of(&spec.namespace);
        let start = |socket| {
            let spec = WorkerSpec {
                socket,
                ..spec.clone()
            };
            WorkerMember::start(spec, Arc::clone(&host), &common)
        };
        let members = spec.sockets().map(start).collect();
        // Made after the handles of its members: the series of a namespace are removed with the last handle.
        let suppressed = host
            .metrics
            .worker(&spec.namespace)
            .output_suppressed
            .clone();
        Arc::new(Self {
            output: OutputLimit::new(suppressed)
                .hiding(Redactor::new(&spec.hidden))
                .explaining(host.sandbox.hints(&spec.sandbox, &spec.namespace))
                .keeping(Arc::clone(&recent), None),
            recent,
            members,
            changed: common.changed,
            declared: common.declared,
            refused: refusals,
            turn: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
        })
    }

    /// The outcome of the first boot of all the worker's processes.
    ///
    /// # Errors
    ///
    /// The error of a process that failed: `dependency_error` if it reported that (the worker then stays
    /// [`WorkerState::Failed`]), otherwise `worker_unavailable`, and the worker continues to retry; [`Worker::declared`] has
    /// the outcome of later boots.
    pub async fn ready(&self) -> Result<Arc<Declarations>, CallError> {
        for member in &self.members {
            member.ready().await?;
        }
        Ok(self.declared().expect("a process that is ready declared"))
    }

    /// Declarations of the first ready process. A process with other declarations gets no calls.
    pub fn declared(&self) -> Option<Arc<Declarations>> {
        self.declared.get().cloned()
    }

    /// Returns true if a process is not restarted, because its files or functions differ from those with which the worker was
    /// started.
    pub fn is_outdated(&self) -> bool {
        self.members.iter().any(WorkerMember::is_outdated)
    }

    /// Returns true if the worker is outdated and has no process left for calls: none of its declared functions is loaded.
    pub fn is_lost(&self) -> bool {
        self.is_outdated() && !self.members.iter().any(WorkerMember::takes_calls)
    }

    /// Changes whenever the start of a process is refused because the worker is outdated. Closed when the worker has ended.
    pub fn refusals(&self) -> watch::Receiver<()> {
        self.refused.clone()
    }

    /// Runs one call in the process with the fewest calls. Has no time limit of its own, except for the wait for a process (5
    /// s) if none is ready; dropping the future cancels the call in the process.
    ///
    /// # Errors
    ///
    /// The function's own error, or `worker_unavailable`, `overloaded`, `result_too_large` or `internal_error` of this module.
    pub async fn call(
        &self,
        call: WorkerCall,
        sink: Option<Arc<dyn CallSink>>,
    ) -> Result<ToolReply, CallError> {
        let mut deadline = None;
        loop {
            let (member, link) = match self.least_busy() {
                Some(free) => free,
                None => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + READY_WAIT);
                    self.wait_for_link(deadline).await?
                }
            };
            let _counted = member.count();
            match link.begin(&call, sink.clone()) {
                Ok(sent) => return sent.answer().await,
                Err(CallRefusal::Failed(error)) => return Err(error),
                // The connection has ended; nothing was sent, so the next connection may run the call.
                Err(CallRefusal::Closed) => {}
            }
        }
    }

    /// A text of the worker's functions in the form that may be logged: without the namespace's secrets, unable to forge a log
    /// line, and within the rate of the worker's output. `None` if too much was logged already; that is counted and reported.
    pub fn loggable(&self, text: &str) -> Option<String> {
        output::loggable(&self.spec().namespace, text, &self.output)
    }

    /// The last lines that the worker's processes printed, with the tracebacks of its functions, as the log shows them.
    /// A later generation of the namespace continues them.
    pub fn recent_output(&self) -> Arc<RecentLines> {
        Arc::clone(&self.recent)
    }

    /// State of the worker: that of the process that is nearest to taking calls; degraded if that is ready and another process is
    /// degraded.
    pub fn state(&self) -> WorkerState {
        match self.best().state() {
            WorkerState::Ready if self.states().any(|it| it == WorkerState::Degraded) => {
                WorkerState::Degraded
            }
            state => state,
        }
    }

    /// States of the worker's processes.
    pub fn states(&self) -> impl Iterator<Item = WorkerState> {
        self.members.iter().map(WorkerMember::state)
    }

    /// Specification that the worker was started with.
    pub fn spec(&self) -> &WorkerSpec {
        self.members[0].spec()
    }

    /// The pid of the worker's current process (not of the guard around it); with several, that of the first that runs.
    pub fn pid(&self) -> Option<u32> {
        self.pids().next()
    }

    /// The pids of the worker's current processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().filter_map(WorkerMember::pid)
    }

    /// Number of process starts after the first ones.
    pub fn restarts(&self) -> u64 {
        self.members.iter().map(WorkerMember::restarts).sum()
    }

    /// Number of calls that wait for the worker or its answer.
    pub fn in_flight(&self) -> usize {
        self.members.iter().map(WorkerMember::in_flight).sum()
    }

    /// Returns true if the worker was requested to end: later calls must be sent to its successor.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Ends the worker: starts no new process, serves calls until none has been in flight for a moment or `drain` is over, then
    /// asks the processes to end, and finally kills them. Returns when all process trees have ended. May be called again; the
    /// shortest drain applies.
    pub async fn retire(&self, drain: Duration) {
        self.retired.store(true, Ordering::Relaxed);
        let until = Instant::now() + drain;
        for member in &self.members {
            member.retire(until);
        }
        for member in &self.members {
            member.stopped().await;
        }
    }

    /// The member with the fewest calls among those that accept calls.
    fn least_busy(&self) -> Option<(&WorkerMember, Arc<Link>)> {
        if let [only] = &*self.members {
            return Some((only, only.link()?));
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let calls = |member: &WorkerMember| member.takes_calls().then(|| member.in_flight());
        let chosen = least_busy::find(self.members.iter().map(calls), turn)?;
        let member = &self.members[chosen];
        // If the connection has just ended, the search is repeated after a short wait.
        Some((member, member.link()?))
    }

    /// Waits for a starting process, until one accepts calls.
    async fn wait_for_link(
        &self,
        deadline: Instant,
    ) -> Result<(&WorkerMember, Arc<Link>), CallError> {
        let _waiting = self.members[0].count();
        loop {
            // Created before the check, so that a link published between the two is not missed.
            let changed = self.changed.notified();
            if let Some(free) = self.least_busy() {
                return Ok(free);
            }
            let best = self.best();
            if !best.state().may_come() || timeout_at(deadline, changed).await.is_err() {
                return Err(best.unavailable());
            }
        }
    }

    /// The member that is nearest to taking calls.
    fn best(&self) -> &WorkerMember {
        let nearest = self.members.iter().min_by_key(|it| it.state().distance());
        nearest.expect("a worker has at least one process")
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
            vault_style: false,
            files_hash: None,
            socket: "/nowhere/demo.sock".into(),
            processes: 1,
            environment: vec![("TOKEN".into(), Secret::new("hunter2"))],
            hidden: Vec::new(),
            sync_concurrency: 1,
            max_frame: 1024 * 1024,
            drain: Duration::from_secs(30),
            silence: Duration::from_secs(30),
            sandbox: Default::default(),
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
}
