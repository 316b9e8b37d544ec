//! A child process and its end. Every child runs under the guard (see [`guard`]), so none outlives the gateway.
//!
//! Owned by the control runtime: a [`Child`] is spawned, waited for and dropped there. Its output pipes can be taken and
//! read anywhere, and so can the writing end of its input, where it has one. What it deliberately does not do: restart
//! anything (that is the worker's state machine).
//!
//! The ladder out of a child: whatever is polite for its kind (the caller's part), SIGTERM to its group, a grace time,
//! SIGKILL to its whole tree. [`Child::stop`] is the second half. Dropping a [`Child`] closes the control channel, on
//! which the guard runs the same ladder by itself.

pub mod guard;
mod hand_over;
mod left_behind;
mod low;
pub mod open_files;
pub mod output;
pub mod pipe;
mod slice;
mod tree;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::BytesMut;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::process::{ChildStderr, ChildStdout, Command};
use tokio::time::timeout;

pub use left_behind::GatewayProcess;

use crate::metrics::ProcessMetrics;
use crate::secrets::Secret;

/// How long the guard may take to say that it started the command, or could not.
const REPORT_LIMIT: Duration = Duration::from_secs(10);
/// How long the guard may take to end everything after SIGKILL was ordered.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// The longest line a guard sends: an error message of the operating system with a path in it.
const REPORT_MAX: usize = 16 * 1024;
/// How a command ends that could not be started; nothing is left behind of it.
const NOT_STARTED: Exit = Exit::Code(127);

/// Makes this process one that is not dumpable. Tools run as the same user, and could otherwise read its variables and
/// memory, its tokens among them, in `/proc`, or attach a debugger. It costs core dumps, and whoever wants to look inside
/// has to be root. A command that is started is dumpable again.
pub fn hide_from_tools() {
    // The kernel refuses this to nobody.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Lets whatever wakes up have the core of this thread at once, as a rule. For threads that no call waits for; what they
/// start does not give way.
pub fn give_way() {
    slice::lengthen();
}

/// What to run. The environment is complete: nothing of the gateway's own is inherited.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    /// The executable.
    pub program: PathBuf,
    /// Its arguments. They are visible to every user of the machine: no secrets here.
    pub args: Vec<OsString>,
    /// Its environment, built from nothing. Values print as `[redacted]`.
    pub env: Vec<(OsString, Secret)>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// What it reads.
    pub stdin: Stdin,
    /// Who goes first where cores are scarce.
    pub priority: Priority,
}

/// How a command competes for the cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// As the gateway does: whatever answers calls.
    #[default]
    Normal,
    /// As [`Priority::Normal`], but it gives way to what wakes up until [`Child::answers_calls`] is told: whatever is to answer
    /// calls, and first has to load its code.
    Starting,
    /// Behind what answers calls, with all it starts: installers, and checks of code.
    Low,
}

/// The standard input of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stdin {
    /// `/dev/null`.
    #[default]
    Null,
    /// A pipe, see [`Child::take_stdin`].
    Piped,
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It exited with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// Its guard died first; the tree was ended, its status is unknown.
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

/// Why a child did not start.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The guard itself could not be run.
    #[error("cannot run {} in {}: {source}", guard.display(), cwd.display())]
    Guard {
        /// The guard's executable.
        guard: PathBuf,
        /// The working directory it was to run in.
        cwd: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The guard ran, the command could not be started.
    #[error("{0}")]
    Command(String),
    /// The command's standard input could not be made or handed over.
    #[error("cannot make a standard input: {0}")]
    Input(io::Error),
    /// The guard ended or stayed silent.
    #[error("the guard process did not report a start")]
    NoReport,
}

/// A running child. Dropping it ends its whole process tree.
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
    /// How the command ended, as the guard told it. Kept, since who waits may stop waiting before the guard is reaped.
    reported: Option<Exit>,
    /// The same, once the guard is reaped, too.
    exit: Option<Exit>,
    metrics: ProcessMetrics,
}

/// One line of the guard.
#[derive(Debug, PartialEq, Eq)]
enum Report {
    Started(u32),
    Failed(String),
    Ended(Exit),
}

impl Child {
    /// Starts a command under a guard and waits until it runs. Dropping the future ends what was started.
    ///
    /// # Errors
    ///
    /// [`SpawnError`] says which of the two programs could not be run and why. Its text holds paths, never values of
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
            // A Ctrl-C in the gateway's terminal is the gateway's to handle.
            .process_group(0);
        // The command holds the guard's end of the socket until it is dropped, and would hide the guard's death.
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
            Ok(Some(Report::Ended(_)) | None) | Err(_) => {
                child.stop(Duration::ZERO).await;
                Err(SpawnError::NoReport)
            }
        }
    }

    /// The pid of the command (not of its guard), which is also its process group.
    pub fn pid(&self) -> u32 {
        self.pid.unwrap_or_default()
    }

    /// The writing end of the command's standard input, once, where it has one. Non-blocking. While it is open
    /// anywhere in the gateway, the command waits for more.
    pub fn take_stdin(&mut self) -> Option<OwnedFd> {
        self.stdin.take()
    }

    /// The command's standard output for another runtime than this one, once. Non-blocking; `None` also if it cannot
    /// be taken out of this one.
    pub fn take_stdout_fd(&mut self) -> Option<OwnedFd> {
        self.stdout.take()?.into_owned_fd().ok()
    }

    /// The command's standard output, once.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    /// The command's standard error, once.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.stderr.take()
    }

    /// Tells that a command of [`Priority::Starting`] answers calls from here on: it has the priority
    /// [`Priority::Normal`]. Processes that it started meanwhile still give way.
    pub fn answers_calls(&self) {
        slice::restore_of(self.pid());
    }

    /// Sends SIGTERM to the command's group.
    pub fn terminate(&self) {
        self.order(b"T");
    }

    /// Sends SIGKILL to the whole tree.
    pub fn kill(&self) {
        self.order(b"K");
    }

    /// One byte always fits into the socket; if the guard is gone, `wait` finds that out.
    fn order(&self, byte: &[u8]) {
        let _ = rustix::io::write(&self.control, byte);
    }

    /// Waits until the command and everything it left behind have ended and the guard is reaped. Cancel-safe; once it
    /// ended, answers at once.
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
                None => {
                    self.end_lost_tree().await;
                    self.reported = Some(Exit::Lost);
                }
            }
        };
        if timeout(KILL_LIMIT, self.guard.wait()).await.is_err() {
            // Not awaited without a limit: tokio reaps it in the background.
            let _ = self.guard.start_kill();
        }
        self.ended(exit);
        exit
    }

    /// The ladder after whatever was polite: SIGTERM, up to `grace`, SIGKILL.
    pub async fn stop(&mut self, grace: Duration) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        // Nothing is written any more, so nothing is worth waiting for.
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
        // The guard does not do its part (it may be stopped). Without it `wait` meets the end of the control channel
        // and ends the tree from here.
        let _ = self.guard.start_kill();
        self.wait().await
    }

    /// The guard was killed. What it guarded belongs to nobody now, so it is found by group, parent and tag.
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

    /// The guard's next line; `None` when it is gone. Cancel-safe: what was read stays in `received`.
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
        self.metrics.let_go();
        // A living guard sees the control channel close. Only if it died unnoticed is there something left to do.
        if matches!(self.guard.try_wait(), Ok(Some(_))) {
            tree::end_lost(self.root, &self.tag);
        }
    }
}

fn parse_report(line: &str) -> Option<Report> {
    let (word, rest) = line.split_once(' ')?;
    match word {
        "pid" => rest.parse().ok().map(Report::Started),
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
        };
        let text = format!("{spec:?}");
        assert!(
            text.contains("TOKEN") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
