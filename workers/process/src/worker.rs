//! The worker of a namespace: one or several supervised Python processes with the same code.
//!
//! # Theory of operation
//!
//! A [`Worker`] is a handle for its *members*, one for each of its processes. Each member has a *supervisor* task, which passes
//! events to the pure state machine in `state` and carries out the resulting actions. The supervisor starts *instances*, each of
//! which owns one process from its spawn to the end of its last descendant. A ready instance publishes its connection, and
//! [`Worker::call`] uses the connection of the member with the fewest calls: no call passes through a supervisor. A process that
//! asks to be recycled is replaced without a gap, so for a while its member has two instances.
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
//! Dropping the last `Arc` of a worker ends its supervisors, its processes and their descendants.

mod blocked;
mod boot;
mod call;
mod event;
mod idle;
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
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, timeout_at};
use tooldock_base::config::{DEBUGGER_TIMEOUT, PROCESSES_MAX, Sandbox, WorkersConfig};
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
use idle::IdleWatch;
use member::{WorkerMember, WorkerShared};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use rpc::fuzzing::worker_frame;
use rpc::{CallRefusal, Link};
pub use source_file::SourceFile;

/// Maximum time that a call waits for a worker that is starting or restarting; the call then fails.
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
    /// True if a function with the name of its file counts as a tool (Tool Vault's style); false if only declared functions are
    /// tools.
    pub vault_style: bool,
    /// Hash of the files with which the worker was started. A later process is started only if the files still have this hash.
    /// `None`: the files are not compared.
    pub files_hash: Option<FilesHash>,
    /// Path `<ns>.sock`, to which the first process of the worker renames its socket; at most 100 bytes long. Further processes
    /// use `<ns>.p1.sock` and so on.
    pub socket: PathBuf,
    /// Number of processes that share the calls; 1 to [`PROCESSES_MAX`].
    pub processes: usize,
    /// The complete environment of a process, which inherits no variables (WRK-18). Values print as `[redacted]`.
    pub environment: Vec<(OsString, Secret)>,
    /// Secret values that are masked in the output of the worker's processes and in the tracebacks of its functions.
    pub hidden: Vec<Secret>,
    /// Number of threads for sync tools in each process.
    pub sync_concurrency: usize,
    /// Maximum size of a frame that the worker may send, in bytes. Calls larger than this are refused as well.
    pub max_frame: u64,
    /// Maximum time that a process which asked to be replaced may continue to run its calls.
    pub drain: Duration,
    /// Maximum time without any message of a process, including answers to heartbeats; the process then counts as hung and is
    /// replaced.
    pub silence: Duration,
    /// Isolation of the worker's processes from the rest of the machine.
    pub sandbox: Sandbox,
    /// True if a process waits for a debugger before it loads the files, for at most [`DEBUGGER_TIMEOUT`].
    pub waits_for_debugger: bool,
}

/// Hash over the files of a namespace, by which changes of them are detected.
#[derive(Debug, Clone, Copy)]
pub struct FilesHash {
    /// Hash of the files when the worker was started.
    pub value: [u8; 32],
    /// Computes the current hash of a namespace's folder; `None` if the folder contains no namespace. Blocking.
    pub now: fn(&Path) -> Option<[u8; 32]>,
}

/// The common dependencies of a gateway's workers.
#[derive(Debug)]
pub struct WorkerHost {
    /// The executable with the subcommand `__guard`, which supervises a child process; in production the gateway's own
    /// executable.
    pub guard: PathBuf,
    /// Time limits, delays and thresholds of workers.
    pub config: WorkersConfig,
    /// Runtimes in which connections to workers are made.
    pub runtimes: Arc<Runtimes>,
    /// Metrics of workers.
    pub metrics: Arc<WorkerMetrics>,
    /// The last lines that workers printed.
    pub output: RecentOutput,
    /// Creates the sandboxes of the workers' processes.
    pub sandbox: Arc<SandboxHost>,
}

/// Tools, resources and prompts that a worker declared when it became ready.
#[derive(Debug, Clone, Default)]
pub struct Declarations {
    /// Tools that the worker declared, in its order.
    pub tools: Vec<Arc<Tool>>,
    /// Resources that the worker declared, in its order.
    pub resources: Vec<Arc<Resource>>,
    /// Resource templates that the worker declared, in its order.
    pub resource_templates: Vec<Arc<ResourceTemplate>>,
    /// Prompts that the worker declared, in its order.
    pub prompts: Vec<Arc<Prompt>>,
    /// True if arguments of a prompt or template can be completed.
    pub completions: bool,
    /// Issues about skipped files and functions.
    pub issues: Vec<Issue>,
    /// The namespace's files, each with the use that the worker made of it.
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
    /// Notified when a process of the worker changes its state.
    changed: Arc<Notify>,
    /// Declarations (tools, resources, prompts) of the first ready process.
    declared: Arc<OnceLock<Arc<Declarations>>>,
    /// Channel that changes whenever the start of a process is refused because the namespace's files or functions changed.
    refused: watch::Receiver<()>,
    /// Start index of the next search for the least busy member, so that equally busy members take turns.
    turn: AtomicUsize,
    retired: AtomicBool,
    /// The worker that serves the namespace after this one.
    successor: OnceLock<Weak<Worker>>,
    /// Channel that stops and starts the worker's processes: false if they had no calls for long, true if a call waits.
    wanted: watch::Sender<bool>,
    /// The task that stops the processes for lack of calls; `None` if they always run.
    idle: Option<IdleWatch>,
    /// The rate limit and the redactor for logged tracebacks.
    output: OutputLimit,
    /// The last lines that the worker's processes printed, and the tracebacks of its functions.
    recent: Arc<RecentLines>,
}

impl WorkerSpec {
    /// Number of processes of a worker with this specification.
    fn members(&self) -> usize {
        self.processes.clamp(1, PROCESSES_MAX)
    }

    /// Maximum time until a process reports that it is ready, if it may take `limit` without a debugger.
    fn ready_limit(&self, limit: Duration) -> Duration {
        match self.waits_for_debugger {
            true => DEBUGGER_TIMEOUT,
            false => limit,
        }
    }

    /// Maximum time until all processes of the worker are ready, if each may take `limit`.
    pub fn boot_limit(&self, limit: Duration) -> Duration {
        let rounds = self.members().div_ceil(boots_at_once());
        limit.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX))
    }

    /// Socket paths of the worker's processes, in their order. A single process uses the socket of the specification.
    pub fn sockets(&self) -> impl Iterator<Item = PathBuf> {
        (0..self.members()).map(|number| match number {
            0 => self.socket.clone(),
            number => self.socket.with_extension(format!("p{number}.sock")),
        })
    }
}

/// Maximum number of processes of one worker that start at the same time. Starting needs processor time: more processes would
/// delay each other.
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
        let common = WorkerShared {
            boots: Arc::new(Semaphore::new(boots_at_once())),
            changed: Arc::new(Notify::new()),
            declared: Arc::default(),
            refused: Arc::new(refused),
            sync_waits: Arc::default(),
            wanted: watch::Sender::new(true),
        };
        let recent = host.output.of(&spec.namespace);
        let start = |socket| {
            let spec = WorkerSpec {
                socket,
                ..spec.clone()
            };
            WorkerMember::start(spec, Arc::clone(&host), &common)
        };
        let members: Box<[WorkerMember]> = spec.sockets().map(start).collect();
        // While a debugger is attached, a person may look at the process for a long time without a call.
        let idle_stop = host.config.idle_stop.filter(|_| !spec.waits_for_debugger);
        let idle = idle_stop.map(|after| {
            let published = members.iter().map(|it| Arc::clone(it.published()));
            IdleWatch::start(after, published.collect(), common.wanted.clone())
        });
        // The metrics of a namespace are removed when their last handle is dropped. This handle is created after the members,
        // because each member has a handle of them, too.
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
            successor: OnceLock::new(),
            wanted: common.wanted,
            idle,
        })
    }

    /// Waits for the first start of all the worker's processes, and returns the worker's declarations.
    ///
    /// # Errors
    ///
    /// The error of a process that failed: `dependency_error` if a dependency is missing (the worker then stays
    /// [`WorkerState::Failed`]), otherwise `worker_unavailable`, and the worker continues to retry. [`Worker::declared`] returns
    /// the declarations after a later, successful start.
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

    /// Returns true if the worker is outdated (its files or functions changed) and no process is left that accepts calls.
    pub fn is_lost(&self) -> bool {
        self.is_outdated() && !self.members.iter().any(WorkerMember::takes_calls)
    }

    /// Receiver that changes whenever the start of a process is refused because the worker is outdated. Closed when the worker
    /// has ended.
    pub fn refusals(&self) -> watch::Receiver<()> {
        self.refused.clone()
    }

    /// Runs one call in the process with the fewest calls. If no process is ready, waits for one for at most 5 seconds; there is
    /// no other time limit. If the worker is replaced meanwhile, its successor runs the call. Dropping the future cancels the
    /// call in the process.
    ///
    /// # Errors
    ///
    /// The function's own error; or `worker_unavailable`, `overloaded`, `result_too_large` or `internal_error` from the gateway.
    pub async fn call(
        &self,
        call: WorkerCall,
        sink: Option<Arc<dyn CallSink>>,
    ) -> Result<ToolReply, CallError> {
        let mut deadline = None;
        let mut successor = None::<Arc<Self>>;
        loop {
            let worker = successor.as_deref().unwrap_or(self);
            let (member, link) = match worker.least_busy() {
                Some(free) => free,
                None => {
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + READY_WAIT);
                    match worker.wait_for_link(deadline).await {
                        Ok(free) => free,
                        Err(error) => {
                            successor = Some(worker.successor().ok_or(error)?);
                            continue;
                        }
                    }
                }
            };
            let _counted = member.count();
            match link.begin(&call, sink.clone()) {
                Ok(sent) => return sent.answer().await,
                Err(CallRefusal::Failed(error)) => return Err(error),
                // The connection has ended before the call was sent, so the call may run over another connection.
                Err(CallRefusal::Closed) => {}
            }
        }
    }

    /// Names the worker that serves the namespace from now on. Calls that wait for a process of this worker when it is retired
    /// run there.
    pub fn hand_over_to(&self, successor: &Arc<Self>) {
        let _ = self.successor.set(Arc::downgrade(successor));
    }

    /// The worker that has replaced this one, if there is one.
    fn successor(&self) -> Option<Arc<Self>> {
        self.successor.get()?.upgrade()
    }

    /// Returns a text of the worker's functions in a form that may be logged: without the namespace's secrets, and escaped so
    /// that it cannot imitate a log line. `None` if the worker's output exceeded its rate limit; the omitted text is counted.
    pub fn loggable(&self, text: &str) -> Option<String> {
        output::loggable(&self.spec().namespace, text, &self.output)
    }

    /// The last lines that the worker's processes printed, with the tracebacks of its functions, as they appear in the log. The
    /// next generation of the namespace's worker appends to the same lines.
    pub fn recent_output(&self) -> Arc<RecentLines> {
        Arc::clone(&self.recent)
    }

    /// State of the worker: the state of the process that is nearest to accepting calls. If that process is ready and another one
    /// is degraded, the worker is degraded.
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

    /// The pid of the worker's process (not of the guard around it); with several processes, of the first one that runs.
    pub fn pid(&self) -> Option<u32> {
        self.pids().next()
    }

    /// The pids of the worker's current processes.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.iter().filter_map(WorkerMember::pid)
    }

    /// Number of times that processes of the worker were started again.
    pub fn restarts(&self) -> u64 {
        self.members.iter().map(WorkerMember::restarts).sum()
    }

    /// Number of calls that wait for the worker or its answer.
    pub fn in_flight(&self) -> usize {
        self.members.iter().map(WorkerMember::in_flight).sum()
    }

    /// Returns true if the worker was ordered to end; later calls must be sent to its successor.
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

    /// The member with the fewest calls among those that accept calls, with its connection.
    fn least_busy(&self) -> Option<(&WorkerMember, Arc<Link>)> {
        if let [only] = &*self.members {
            return Some((only, only.link()?));
        }
        // A process that was still starting when the others were stopped for lack of calls must not serve alone.
        if self.idle.is_some() && !*self.wanted.borrow() {
            self.wanted.send_replace(true);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let calls = |member: &WorkerMember| member.takes_calls().then(|| member.in_flight());
        let chosen = least_busy::find(self.members.iter().map(calls), turn)?;
        let member = &self.members[chosen];
        // `None` if the connection has just ended; the caller then waits and searches again.
        Some((member, member.link()?))
    }

    /// Waits until a process accepts calls. If the worker was stopped for lack of calls, starts its processes.
    async fn wait_for_link(
        &self,
        deadline: Instant,
    ) -> Result<(&WorkerMember, Arc<Link>), CallError> {
        let _waiting = self.members[0].count();
        loop {
            // Created before the check, so that a connection that is published between the two is not missed.
            let changed = self.changed.notified();
            if let Some(free) = self.least_busy() {
                return Ok(free);
            }
            let best = self.best();
            if best.state() == WorkerState::Idle {
                self.wanted.send_replace(true);
            }
            if !best.state().may_accept_calls() || timeout_at(deadline, changed).await.is_err() {
                return Err(best.unavailable());
            }
        }
    }

    /// The member whose state is nearest to accepting calls.
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
            waits_for_debugger: false,
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
