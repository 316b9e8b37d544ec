//! A process of an external server: its pipes, its end, and the steps that stop it.
//!
//! ```text
//! stdin closed ──2 s──▶ SIGTERM ──2 s──▶ SIGKILL of the whole tree      stop, and drop in the background
//! ```
//!
//! The child belongs to a task in the control runtime; the owner of the [`ServerProcess`] may be in another runtime, and moves
//! the pipes to the runtime that reads messages. This module deliberately does not read the pipes or restart processes.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::redactor::Redactor;
use tooldock_base::runtimes::Runtimes;
use tooldock_process::child::output::{
    LastLine, OutputHold, OutputLimit, Pump, RecentOutput, Stream,
};
use tooldock_process::child::{Child, Exit, Priority, ProcessSpec, Stdin};
use tooldock_process::metrics::{ServerMetrics, WorkerMetrics};
use tooldock_process::sandbox::{ProcessFacts, SandboxHost};

use super::spec::ExternalServer;
use super::startable::not_startable;

/// Maximum time for a process to end after its standard input was closed.
const EOF_GRACE: Duration = Duration::from_secs(2);
/// Maximum time for a process to end after SIGTERM.
const TERMINATE_GRACE: Duration = Duration::from_secs(2);
/// Maximum wait for the last output when an end is explained.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(500);
/// Maximum time of reading the last output of a process that ended.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// The common dependencies of all servers' processes in a gateway.
#[derive(Debug, Clone)]
pub struct ProcessHost {
    /// The executable that implements `__guard`; in production the gateway's own.
    pub guard: PathBuf,
    /// The runtime that processes belong to.
    pub control: Handle,
    /// Runtimes in which the messages of processes are read and written.
    pub runtimes: Arc<Runtimes>,
    /// Metrics that count processes.
    pub metrics: Arc<WorkerMetrics>,
    /// Store of the last lines that processes printed.
    pub output: RecentOutput,
    /// Makes the sandboxes of processes.
    pub sandbox: Arc<SandboxHost>,
}

/// A process of the server, in its sandbox.
async fn process(server: &ExternalServer, host: &ProcessHost) -> Result<ProcessSpec, String> {
    let (name, spec) = (server.name.clone(), server.spec.clone());
    let sandbox = Arc::clone(&host.sandbox);
    let confine = move || {
        let confined = sandbox.confine(
            &spec.sandbox,
            &ProcessFacts {
                namespace: &name,
                program: &spec.program,
                args: &spec.args,
                env: &spec.env,
                cwd: &spec.cwd,
                own: &[],
            },
        )?;
        let mut env = spec.env;
        let mut confinement = None;
        if let Some(confined) = confined {
            env.retain(|(name, _)| !confined.env.iter().any(|(other, _)| other == name));
            env.extend(confined.env);
            confinement = Some(confined.confinement);
        }
        Ok(ProcessSpec {
            program: spec.program,
            args: spec.args,
            env,
            cwd: spec.cwd,
            stdin: Stdin::Piped,
            priority: Priority::Normal,
            sandbox: confinement,
        })
    };
    let made = tokio::task::spawn_blocking(confine).await;
    made.unwrap_or_else(|_| Err("the gateway is shutting down".to_owned()))
}

impl ProcessHost {
    /// The counters of servers, by namespace.
    pub fn servers(&self) -> &ServerMetrics {
        self.metrics.servers()
    }
}

/// The gateway's ends of the pipes. Both are non-blocking and not registered with a runtime.
#[derive(Debug)]
pub struct Pipes {
    /// Standard input of the server. Dropping it asks the server to end.
    pub stdin: OwnedFd,
    /// Standard output of the server.
    pub stdout: OwnedFd,
}

/// A running process of a server. Dropping it ends the process and everything below it, in the background.
#[derive(Debug)]
pub struct ServerProcess {
    pid: u32,
    /// The pipes until they are taken. A plain mutex, held only while they are moved.
    pipes: Mutex<Option<Pipes>>,
    exit: watch::Receiver<Option<Exit>>,
    said: StderrTail,
    hold: OutputHold,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// Standard error of the process, as its reader leaves it.
#[derive(Debug, Clone)]
struct StderrTail {
    last: LastLine,
    /// True when standard error has been read to its end.
    all: watch::Receiver<bool>,
}

impl ServerProcess {
    /// Starts a process in the control runtime and waits until it runs. Its standard error is written to the log, at a bounded
    /// rate, and to the server's last lines. Dropping the future ends the process.
    ///
    /// # Errors
    ///
    /// `worker_unavailable` with the reason. It names the command, never a value of the environment.
    pub async fn spawn(server: &ExternalServer, host: &ProcessHost) -> Result<Self, CallError> {
        let stop = CancellationToken::new();
        let stop_on_drop = stop.clone().drop_guard();
        let (started, outcome) = oneshot::channel();
        let hold = OutputHold::default();
        let owner = ChildTask {
            server: server.clone(),
            host: host.clone(),
            hold: hold.clone(),
            stop: stop.clone(),
        };
        host.control.spawn(owner.run(started));
        let unavailable = |what: String| {
            CallError::new(
                CallErrorCode::WorkerUnavailable,
                format!("the server of namespace {}: {what}", server.name),
            )
            .retry_after(Duration::from_secs(1))
        };
        match outcome.await {
            Ok(Ok(started)) => Ok(Self {
                pid: started.pid,
                pipes: Mutex::new(Some(started.pipes)),
                exit: started.exit,
                said: started.said,
                hold,
                stop,
                _stop_on_drop: stop_on_drop,
            }),
            Ok(Err(reason)) => Err(unavailable(reason)),
            // The runtime has ended, or is shutting down.
            Err(_) => Err(unavailable("the gateway is shutting down".into())),
        }
    }

    /// The pid of the command, which is also its process group.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The pipes; `None` after the first call.
    pub fn take_pipes(&self) -> Option<Pipes> {
        self.pipes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Exit of the process, if it has ended. All its descendants have ended, too, then.
    pub fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Waits for the end of the process.
    pub async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        // The task ends early only with its runtime, and then the guard ends the process.
        exit.wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|exit| *exit)
            .unwrap_or(Exit::Lost)
    }

    /// The last line of standard error that is not empty, as it was logged. For a process that has ended, waits a moment until
    /// all of its output is read.
    pub async fn last_words(&self) -> Option<String> {
        if self.exit().is_some() {
            let mut all = self.said.all.clone();
            let _ = timeout(LAST_WORDS_WAIT, all.wait_for(|all| *all)).await;
        }
        self.said.last.line()
    }

    /// Buffers the process's standard error until [`ServerProcess::release_output`], once per process: the next request may be
    /// unknown to the server.
    pub fn hold_output(&self) {
        self.hold.begin();
    }

    /// Logs the buffered lines. If the server refused the request, four or more lines are logged as a single line.
    pub fn release_output(&self, refused: bool) {
        self.hold.end(refused);
    }

    /// Runs all steps of stopping. The owner of the pipes drops their `stdin` first: a server that waits for the end of its
    /// input otherwise ends only by the following signal. Dropping the future does not interrupt the steps.
    pub async fn stop(&self) -> Exit {
        drop(self.take_pipes());
        self.stop.cancel();
        self.exited().await
    }
}

struct StartedServer {
    pid: u32,
    pipes: Pipes,
    exit: watch::Receiver<Option<Exit>>,
    said: StderrTail,
}

/// The task that owns the child.
struct ChildTask {
    server: ExternalServer,
    host: ProcessHost,
    hold: OutputHold,
    stop: CancellationToken,
}

impl ChildTask {
    async fn run(self, started: oneshot::Sender<Result<StartedServer, String>>) {
        let spec = &self.server.spec;
        let process = match process(&self.server, &self.host).await {
            Ok(process) => process,
            Err(reason) => {
                let _ = started.send(Err(reason));
                return;
            }
        };
        let metrics = self
            .host
            .servers()
            .processes_of(&self.server.name, self.host.metrics.processes());
        if self.stop.is_cancelled() {
            // The caller was dropped.
            return;
        }
        // The start is not cancelled half-way, and is bounded by the time limit of a guard. A started process is ended and
        // counted below.
        let spawned = Child::spawn(&process, &self.host.guard, &metrics).await;
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let hint = not_startable(spec).map(|(_, hint)| format!("; {hint}"));
                let reason = format!("{error}{}", hint.unwrap_or_default());
                let _ = started.send(Err(reason));
                return;
            }
        };
        let last = LastLine::default();
        let log = child.take_stderr().map(|reader| {
            let suppressed = self.host.servers().output_suppressed(&self.server.name);
            let redactor = Redactor::new(&spec.secrets);
            let pump = Pump {
                namespace: self.server.name.clone(),
                stream: Stream::Stderr,
                reader,
                limit: OutputLimit::new(suppressed)
                    .hiding(redactor)
                    .explaining(self.host.sandbox.hints(&spec.sandbox, &self.server.name))
                    .remembering(&last)
                    .held_by(&self.hold)
                    .keeping(self.host.output.of(&self.server.name), Some(child.pid())),
                addressed: false,
            };
            tokio::spawn(pump.log())
        });
        let (ended, exit) = watch::channel(None);
        let (all_said, all) = watch::channel(false);
        let said = StderrTail { last, all };
        let pipes = child
            .take_stdin()
            .zip(child.take_stdout_fd())
            .map(|(stdin, stdout)| Pipes { stdin, stdout });
        let pid = child.pid();
        let outcome = pipes
            .map(|pipes| StartedServer {
                pid,
                pipes,
                exit,
                said,
            })
            .ok_or_else(|| "its pipes cannot be used".to_owned());
        // If the receiver was dropped, `stop` is cancelled or the pipes are dropped: the process ends soon.
        let _ = started.send(outcome);
        let exit = self.live(&mut child).await;
        tracing::debug!(namespace = %self.server.name, pid, %exit, "a server process ended");
        ended.send_replace(Some(exit));
        if let Some(mut log) = log
            && timeout(OUTPUT_WAIT, &mut log).await.is_err()
        {
            log.abort();
        }
        all_said.send_replace(true);
    }

    /// Waits for the end of the child, or for the order to end it; then ends it by the steps above.
    async fn live(&self, child: &mut Child) -> Exit {
        tokio::select! {
            exit = child.wait() => return exit,
            () = self.stop.cancelled() => {}
        }
        match timeout(EOF_GRACE, child.wait()).await {
            Ok(exit) => exit,
            Err(_elapsed) => child.stop(TERMINATE_GRACE).await,
        }
    }
}
