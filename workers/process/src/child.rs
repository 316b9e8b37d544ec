//! Starts, watches and stops child processes. Every child runs under the guard (see [`guard`]), so no child outlives the
//! gateway.
//!
//! A [`Child`] belongs to the control runtime: it must be spawned, waited for and dropped there. Its output pipes, and the
//! writing end of its input, can be taken and used in any runtime. This module never restarts a child; the worker does.
//!
//! A child is stopped in steps: a polite request, which depends on the kind of child and is sent by the caller; SIGTERM to its
//! process group; a grace time; SIGKILL to its whole tree. [`Child::stop`] does all but the first. Dropping a [`Child`] closes
//! the control channel, and the guard then does these steps by itself.

pub mod confine;
pub mod guard;
mod hand_over;
pub mod left_behind;
mod low;
pub mod open_files;
pub mod output;
pub mod pipe;
mod slice;
mod tree;
pub mod variables;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::{ChildStderr, ChildStdout, Command};
use tokio::time::timeout;
use tooldock_base::gateway_process::GatewayProcess;
use tooldock_base::secret::Secret;

use self::confine::{Confinement, KernelSupport};
use crate::metrics::ProcessMetrics;

/// Maximum time until the guard reports that the command has started or could not be started.
const REPORT_LIMIT: Duration = Duration::from_secs(10);
/// Maximum time for the guard to end all processes after it was ordered to send SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// Maximum length of a line that a guard sends, in bytes. The longest are error messages of the operating system with a path.
const REPORT_MAX: usize = 16 * 1024;
/// Exit status of a command that could not be started; it left no process.
const NOT_STARTED: Exit = Exit::Code(127);

/// Makes this process not dumpable. Tools run as the same user; otherwise they could read this process's variables and memory
/// in `/proc`, including its tokens, or attach a debugger. As a consequence there are no core dumps, and only root can inspect
/// the process. Commands that it starts are dumpable again.
pub fn hide_from_tools() {
    // Cannot fail: the kernel allows this for every process.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Determines the sandbox features of the kernel, in a separate process. Blocks until that process ends.
pub fn kernel_support(guard: &Path) -> KernelSupport {
    let asked = std::process::Command::new(guard)
        .args(["__guard", confine::PROBE])
        .env_clear()
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let text = asked.map(|it| it.stdout).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

/// Lets other threads, as a rule, preempt this thread as soon as they wake up. Meant for threads for whose work no call waits.
/// Processes that this thread starts are not affected.
pub fn give_way() {
    slice::lengthen();
}

/// A command to run. Its environment is complete: no variable of the gateway is inherited.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    /// Executable of the command.
    pub program: PathBuf,
    /// Arguments of the command. They are visible to every user of the machine, so they must not contain secrets.
    pub args: Vec<OsString>,
    /// Complete environment of the command. Values print as `[redacted]`.
    pub env: Vec<(OsString, Secret)>,
    /// Working directory of the command.
    pub cwd: PathBuf,
    /// Standard input of the command.
    pub stdin: Stdin,
    /// CPU priority of the command.
    pub priority: Priority,
    /// The sandbox in which the command is started; `None` for no sandbox.
    pub sandbox: Option<Arc<Confinement>>,
}

/// CPU priority of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// Priority of the gateway itself, for processes that answer calls.
    #[default]
    Normal,
    /// As [`Priority::Normal`], but other threads that wake up may preempt the command until [`Child::answers_calls`] is called.
    /// For processes that have to load their code before they answer calls.
    Starting,
    /// A lower priority than processes that answer calls, also for all descendants. For installers and checks of code.
    Low,
}

/// The standard input of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stdin {
    /// The command's input is `/dev/null`.
    #[default]
    Null,
    /// The command's input is a pipe, see [`Child::take_stdin`].
    Piped,
}

/// Exit status of a child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command exited with this code.
    Code(i32),
    /// The command was ended by this signal.
    Signal(i32),
    /// The command's guard died first. The process tree was ended, but the command's exit status is unknown.
    Lost,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Lost => f.write_str("its guard was killed"),
        }
    }
}

/// Reason why a child did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The guard itself could not be started.
    #[error("cannot run {} in {}: {source}", guard.display(), cwd.display())]
    Guard {
        /// Path of the guard's executable.
        guard: PathBuf,
        /// The working directory of the command.
        cwd: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The guard ran, but the command could not be started.
    #[error("{0}")]
    Command(String),
    /// The command's standard input could not be created or passed to the guard.
    #[error("cannot make a standard input: {0}")]
    Input(io::Error),
    /// The guard ended, or did not report a start in time.
    #[error("the guard process did not report a start")]
    NoReport,
}

/// A running child process under its guard. Dropping it ends the whole process tree.
#[derive(Debug)]
pub struct Child {
    pid: Option<u32>,
    root: Option<tree::Root>,
    tag: String,
    control: UnixStream,
    received: BytesMut,
    guard: tokio::process::Child,
    stdin: Option<OwnedFd>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// Exit status of the command as the guard reported it. Stored, since a caller may stop waiting before the guard is reaped.
    reported: Option<Exit>,
    /// Exit status of the command; `None` until the guard, too, has ended and is reaped.
    exit: Option<Exit>,
    metrics: ProcessMetrics,
    /// Name of the command's sandbox in the log; `None` without a sandbox.
    label: Option<String>,
}

/// A report of the guard: one line on the control socket.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    Started(u32),
    Failed(String),
    Ended(Exit),
    /// The sandbox refused a connection to this address.
    Refused(String),
}

impl Child {
    /// Starts a command under a guard and waits until it runs. Dropping the future ends the command.
    ///
    /// # Errors
    ///
    /// [`SpawnError`] names the program that could not be started, and the reason. Its text may contain paths, never values of
    /// the environment.
    pub async fn spawn(
        spec: &ProcessSpec,
        guard: &Path,
        metrics: &ProcessMetrics,
    ) -> Result<Self, SpawnError> {
        let failed = |source| SpawnError::Guard {
            guard: guard.to_owned(),
            cwd: spec.cwd.clone(),
            source,
        };
        let (control, guards_end) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
        control.set_nonblocking(true).map_err(failed)?;
        let control = UnixStream::from_std(control).map_err(failed)?;
        let stdin = match spec.stdin {
            Stdin::Null => None,
            Stdin::Piped => Some(hand_over::send(&control).map_err(SpawnError::Input)?),
        };
        let tag = format!("{}-{:016x}", GatewayProcess::this(), fastrand::u64(..));
        let mut command = Command::new(guard);
        command
            .arg("__guard")
            .args(stdin.as_ref().map(|_| guard::STDIN_OPTION))
            .args(open_files::for_children().into_iter().flatten())
            .args(spec.sandbox.iter().flat_map(|it| it.arguments()))
            .arg("--")
            .arg(&spec.program)
            .args(&spec.args)
            .env_clear()
            .envs(spec.env.iter().map(|(name, value)| (name, value.expose())))
            .env(tree::TAG_VARIABLE, &tag)
            .current_dir(&spec.cwd)
            .stdin(Stdio::from(OwnedFd::from(guards_end)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A separate process group: Ctrl-C in the terminal must reach only the gateway, which then stops the child.
            .process_group(0);
        // `command` is dropped after the start: it contains a copy of the guard's end of the socket, which would keep the socket
        // open after the guard's death.
        let process = match spec.priority {
            Priority::Normal | Priority::Starting => command.spawn().inspect(|_| drop(command)),
            Priority::Low => low::spawn(command).await,
        };
        let mut process = process.map_err(failed)?;
        metrics.started();
        let mut child = Self {
            pid: None,
            root: None,
            tag,
            control,
            received: BytesMut::new(),
            stdin,
            stdout: process.stdout.take(),
            stderr: process.stderr.take(),
            guard: process,
            reported: None,
            exit: None,
            metrics: metrics.clone(),
            label: spec.sandbox.as_ref().map(|it| it.label.clone()),
        };
        match timeout(REPORT_LIMIT, child.next_report()).await {
            Ok(Some(Report::Started(pid))) => {
                child.pid = Some(pid);
                child.root = tree::Root::of(pid);
                if spec.priority == Priority::Starting {
                    slice::lengthen_of(pid);
                }
                Ok(child)
            }
            Ok(Some(Report::Failed(message))) => {
                child.reported = Some(NOT_STARTED);
                child.wait().await;
                Err(SpawnError::Command(message))
            }
            Ok(Some(Report::Ended(_) | Report::Refused(_)) | None) | Err(_) => {
                child.stop(Duration::ZERO).await;
                Err(SpawnError::NoReport)
            }
        }
    }

    /// Process id of the command, not of its guard. It is also the id of the command's process group.
    pub fn pid(&self) -> u32 {
        self.pid.unwrap_or_default()
    }

    /// The writing end of the command's standard input, in non-blocking mode; `None` without one, and after the first call. The
    /// command's input ends when this descriptor is closed.
    pub fn take_stdin(&mut self) -> Option<OwnedFd> {
        self.stdin.take()
    }

    /// The command's standard output as a descriptor for another runtime, in non-blocking mode. `None` after the first call, and
    /// if it cannot be removed from this runtime.
    pub fn take_stdout_fd(&mut self) -> Option<OwnedFd> {
        self.stdout.take()?.into_owned_fd().ok()
    }

    /// The command's standard output; `None` after the first call.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// The command's standard error; `None` after the first call.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.stderr.take()
    }

    /// Reports that a command with [`Priority::Starting`] now answers calls, and gives it [`Priority::Normal`]. Processes that it
    /// has already started keep their priority.
    pub fn answers_calls(&self) {
        slice::restore_of(self.pid());
    }

    /// Orders the guard to send SIGTERM to the command's process group.
    pub fn terminate(&self) {
        self.order(b"T");
    }

    /// Orders the guard to send SIGKILL to the whole process tree.
    pub fn kill(&self) {
        self.order(b"K");
    }

    /// Sends an order to the guard. Errors are ignored: a byte always fits into the socket, and `wait` detects that a guard is
    /// gone.
    fn order(&self, byte: &[u8]) {
        let _ = rustix::io::write(&self.control, byte);
    }

    /// Waits until the command and all its descendants have ended and the guard is reaped. Cancel-safe. Returns at once if they
    /// have already ended.
    pub async fn wait(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        let exit = loop {
            if let Some(exit) = self.reported {
                break exit;
            }
            match self.next_report().await {
                Some(Report::Ended(exit)) => self.reported = Some(exit),
                Some(Report::Failed(_)) => self.reported = Some(NOT_STARTED),
                Some(Report::Started(_)) => {}
                Some(Report::Refused(address)) => self.log_refused(&address),
                None => {
                    self.end_lost_tree().await;
                    self.reported = Some(Exit::Lost);
                }
            }
        };
        if timeout(KILL_LIMIT, self.guard.wait()).await.is_err() {
            // The guard is killed, and tokio reaps it in the background.
            let _ = self.guard.start_kill();
        }
        self.ended(exit);
        exit
    }

    /// Stops the child: sends SIGTERM, waits for up to `grace`, then sends SIGKILL. A polite request must have been sent before.
    pub async fn stop(&mut self, grace: Duration) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        // The standard input is closed, since no further input follows.
        self.stdin = None;
        self.terminate();
        if let Ok(exit) = timeout(grace, self.wait()).await {
            return exit;
        }
        self.metrics.killed("grace_expired");
        self.kill();
        if let Ok(exit) = timeout(KILL_LIMIT, self.wait()).await {
            return exit;
        }
        // The guard does not react; it may have been stopped by a signal. After it is killed, `wait` detects the end of the
        // control channel and ends the process tree itself.
        let _ = self.guard.start_kill();
        self.wait().await
    }

    fn log_refused(&self, address: &str) {
        let namespace = self.label.as_deref().unwrap_or_default();
        tracing::warn!(
            namespace,
            "the sandbox refused a connection to {address}; sandbox.network names what may be connected to, and the gateway's own \
             listeners and metadata addresses stay closed"
        );
    }

    /// Ends the process tree of a guard that was killed. The tree's processes are found by process group, by parent, and by
    /// the tag (an environment variable that all of them inherit).
    async fn end_lost_tree(&self) {
        self.metrics.killed("guard_lost");
        let (root, tag) = (self.root, self.tag.clone());
        let swept = tokio::task::spawn_blocking(move || tree::end_lost(root, &tag)).await;
        if let Err(error) = swept {
            tracing::error!(%error, "processes of a killed guard may be left behind");
        }
    }

    fn ended(&mut self, exit: Exit) {
        if self.exit.replace(exit).is_none() {
            self.metrics.reaped();
        }
    }

    /// The guard's next report; `None` if the guard is gone. Cancel-safe: an incomplete line stays in `received`.
    async fn next_report(&mut self) -> Option<Report> {
        loop {
            while let Some(end) = memchr::memchr(b'\n', &self.received) {
                let line = self.received.split_to(end + 1);
                if let Some(report) = parse_report(&String::from_utf8_lossy(&line[..end])) {
                    return Some(report);
                }
            }
            if self.received.len() > REPORT_MAX {
                return None;
            }
            match self.control.read_buf(&mut self.received).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.exit.is_some() {
            return;
        }
        self.metrics.count_dropped();
        // A running guard detects that the control channel is closed, and ends the tree. If it has died, this process must do it.
        if matches!(self.guard.try_wait(), Ok(Some(_))) {
            tree::end_lost(self.root, &self.tag);
        }
    }
}

fn parse_report(line: &str) -> Option<Report> {
    let (word, rest) = line.split_once(' ')?;
    match word {
        "pid" => rest.parse().ok().map(Report::Started),
        "refused" => Some(Report::Refused(rest.to_owned())),
        "failed" => Some(Report::Failed(rest.to_owned())),
        "exit" => match rest.strip_prefix("signal ") {
            Some(signal) => signal.parse().ok().map(Exit::Signal),
            None => rest.parse().ok().map(Exit::Code),
        }
        .map(Report::Ended),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_line_a_guard_sends_and_ignores_the_rest() {
        assert_eq!(parse_report("pid 42"), Some(Report::Started(42)));
        assert_eq!(
            parse_report("failed cannot start x: not found"),
            Some(Report::Failed("cannot start x: not found".into()))
        );
        assert_eq!(parse_report("exit 3"), Some(Report::Ended(Exit::Code(3))));
        assert_eq!(
            parse_report("exit signal 9"),
            Some(Report::Ended(Exit::Signal(9)))
        );
        for line in ["", "pid", "pid x", "exit signal", "hello world"] {
            assert_eq!(parse_report(line), None, "{line}");
        }
    }

    #[test]
    fn printing_a_spec_shows_no_value_of_the_environment() {
        let spec = ProcessSpec {
            program: "/bin/true".into(),
            args: Vec::new(),
            env: vec![("TOKEN".into(), Secret::new("hunter2"))],
            cwd: "/".into(),
            stdin: Stdin::Null,
            priority: Priority::Normal,
            sandbox: None,
        };
        let text = format!("{spec:?}");
        assert!(
            text.contains("TOKEN") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
