//! A process of an external server: its pipes, its end, and the steps that stop it.
//!
//! ```text
//! stdin closed ──2 s──▶ SIGTERM ──2 s──▶ SIGKILL of the whole tree      stop, and drop in the background
//! ```
//!
//! The child process is owned by a task in the control runtime. The owner of the [`ServerProcess`] may be in another runtime,
//! and moves the pipes to the runtime that reads messages. This module deliberately does not read the pipes or restart
//! processes.

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
/// Maximum time for a process to end after SIGTERM; it is killed then.
const TERMINATE_GRACE: Duration = Duration::from_secs(2);
/// Maximum wait for the last output of a process, which is quoted as the reason of its end.
const LAST_WORDS_WAIT: Duration = Duration::from_millis(500);
/// Maximum time of reading the last output of a process that ended.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// The common dependencies of all servers' processes in a gateway.
#[derive(Debug, Clone)]
pub struct ProcessHost {
    /// The executable with the subcommand `__guard`, which supervises a child process; in production the gateway's own
    /// executable.
    pub guard: PathBuf,
    /// The runtime that owns the child processes.
    pub control: Handle,
    /// Runtimes in which the messages of processes are read and written.
    pub runtimes: Arc<Runtimes>,
    /// Metrics of processes.
    pub metrics: Arc<WorkerMetrics>,
    /// Store of the last lines that processes printed.
    pub output: RecentOutput,
    /// Creates the sandboxes of the servers' processes.
    pub sandbox: Arc<SandboxHost>,
}

/// Returns the specification of a server's process, with its sandbox.
pub(super) async fn process(
    server: &ExternalServer,
    sandbox: &Arc<SandboxHost>,
) -> Result<ProcessSpec, String> {
    let (name, spec) = (server.name.clone(), server.spec.clone());
    let own = server.folder.as_ref().map(|folder| folder.own.clone());
    // The files of a folder decide the arguments and variables of its server.
    let is_of_files = own.is_some();
    let own = own.unwrap_or_default();
    let sandbox = Arc::clone(sandbox);
    let confine = move || {
        let (args, env): (&[_], &[_]) = match is_of_files {
            true => (&[], &[]),
            false => (&spec.args, &spec.env),
        };
        let confined = sandbox.confine(
            &spec.sandbox,
            &ProcessFacts {
                namespace: &name,
                program: &spec.program,
                args,
                env,
                cwd: &spec.cwd,
                own: &own,
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

/// A running process of a server. Dropping it ends the process and its descendants in the background.
#[derive(Debug)]
pub struct ServerProcess {
    pid: u32,
    /// The pipes, until they are taken. A plain mutex, locked only while they are moved.
    pipes: Mutex<Option<Pipes>>,
    exit: watch::Receiver<Option<Exit>>,
    said: StderrTail,
    hold: OutputHold,
    stop: CancellationToken,
    _stop_on_drop: DropGuard,
}

/// The last line of the process's standard error, and the progress of reading it.
#[derive(Debug, Clone)]
struct StderrTail {
    last: LastLine,
    /// True once standard error has been read to its end.
    all: watch::Receiver<bool>,
}

impl ServerProcess {
    /// Starts a process in the control runtime and waits until it runs. Its standard error is written to the log, at a bounded
    /// rate, and to the server's recent lines. Dropping the future ends the process.
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
            // The sender was dropped, because the runtime has ended or is shutting down.
            Err(_) => Err(unavailable("the gateway is shutting down".into())),
        }
    }

    /// The pid of the server's program, which is also the id of its process group.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the pipes the first time, and `None` afterwards.
    pub fn take_pipes(&self) -> Option<Pipes> {
        self.pipes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Exit status of the process; `None` while it runs. All its descendants have ended as well when this is set.
    pub fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Waits until the process has ended, and returns its exit status.
    pub async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        // The owning task ends early only together with its runtime; the guard ends the process then.
        exit.wait_for(Option::is_some)
            .await
            .ok()
            .and_then(|exit| *exit)
            .unwrap_or(Exit::Lost)
    }

    /// The last non-empty line of standard error, as it was logged. If the process has ended, waits for at most half a second
    /// until all of its output was read.
    pub async fn last_words(&self) -> Option<String> {
        if self.exit().is_some() {
            let mut all = self.said.all.clone();
            let _ = timeout(LAST_WORDS_WAIT, all.wait_for(|all| *all)).await;
        }
        self.said.last.line()
    }

    /// Buffers the process's standard error until [`ServerProcess::release_output`]; only the first call has an effect. Used
    /// before a request that the server may not support, because some servers then log many lines.
    pub fn hold_output(&self) {
        self.hold.begin();
    }

    /// Logs the buffered lines. If `refused` is true, because the server refused the request, four or more lines are replaced by
    /// a single line.
    pub fn release_output(&self, refused: bool) {
        self.hold.end(refused);
    }

    /// Stops the process and waits for its end: closes its standard input, then sends SIGTERM, then SIGKILL. If the pipes were
    /// taken, their owner must drop `stdin` first: otherwise a server that waits for the end of its input ends only by the
    /// signal. Dropping the future does not interrupt the steps.
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

/// The task that owns the child process.
struct ChildTask {
    server: ExternalServer,
    host: ProcessHost,
    hold: OutputHold,
    stop: CancellationToken,
}

impl ChildTask {
    async fn run(self, started: oneshot::Sender<Result<StartedServer, String>>) {
        let spec = &self.server.spec;
        let process = match process(&self.server, &self.host.sandbox).await {
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
            // The caller of `spawn` was dropped, so no process is needed.
            return;
        }
        // The start is not cancelled half-way; the guard's time limit bounds it. If the process is no longer needed after its
        // start, it is ended and counted below.
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
        // If the receiver was dropped, then `stop` is cancelled or the pipes close, and either ends the process soon.
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

    /// Waits until the child has ended or is ordered to end; in the second case closes its input, then sends SIGTERM and SIGKILL.
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use tooldock_base::config::{Sandbox, SandboxMode};
    use tooldock_base::secret::Secret;
    use tooldock_process::child::confine::{KeptPath, KernelSupport};
    use tooldock_process::sandbox::HostFacts;

    use super::*;
    use crate::external::StdioSettings;
    use crate::external::spec::{ServedFolder, StdioSpec};

    fn server(data: &Path, other: &Path) -> ExternalServer {
        let other = other.display();
        let spec = StdioSpec {
            program: "/usr/bin/env".into(),
            args: vec![format!("server.py:x={other}").into()],
            personal: Default::default(),
            env: vec![("PATH".into(), Secret::new(format!("{other}:/usr/bin")))],
            secrets: Vec::new(),
            cwd: data.join("tools/ns"),
            settings: StdioSettings::default(),
            sandbox: Sandbox::of(SandboxMode::Basic),
        };
        ExternalServer::new("ns".parse().expect("a name"), spec)
    }

    #[tokio::test]
    async fn arguments_and_variables_that_a_folder_decides_open_no_path_of_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path();
        let (own, other) = (data.join("tools/ns"), data.join("tools/other"));
        fs::create_dir_all(&own).expect("made");
        fs::create_dir_all(&other).expect("made");
        let host = SandboxHost::new(HostFacts {
            support: KernelSupport {
                landlock: 7,
                seccomp: true,
                ..KernelSupport::default()
            },
            data: Some(data.to_owned()),
            ..HostFacts::default()
        });
        let host = Arc::new(host);
        let configured = server(data, &other);
        let of_folder = configured.clone().of_folder(ServedFolder {
            environment: None,
            packages: own.clone(),
            own: vec![KeptPath::readable(&own)],
        });
        // The operator's own configuration may name other folders.
        for (server, opened) in [(configured, true), (of_folder, false)] {
            let spec = process(&server, &host).await.expect("a process");
            let confinement = spec.sandbox.expect("a sandbox");
            let is_opened = confinement.kept.iter().any(|it| it.path == other);
            assert_eq!(is_opened, opened, "{:?}", confinement.kept);
        }
    }
}
