//! `tooldock __guard [--stdin] [--open-files N] [--sandbox JSON] -- COMMAND ARGS…`: the small process between the gateway and
//! each of its children.
//!
//! A SIGKILLed gateway cannot end its children, but the guard can: it is the child subreaper of the process tree that it starts,
//! and it watches a socket whose other end only the gateway has. However the gateway ends, the kernel closes that end, and the
//! guard ends the tree, including processes that detached themselves.
//!
//! ```text
//! gateway ── control socket (the guard's stdin) ── guard ── COMMAND (own process group)
//!    └────── stdout and stderr, inherited by COMMAND ──────────┘
//! ```
//!
//! | direction | bytes | meaning |
//! |---|---|---|
//! | to the guard | one byte with a descriptor | only with `--stdin`, and first: the command's standard input, else `/dev/null` |
//! | | `T` | SIGTERM to the command's group |
//! | | `K` | SIGKILL to everything below the guard |
//! | | end of file | SIGTERM, [`GRACE`], then as `K`; a SIGTERM, SIGINT, SIGHUP or SIGQUIT to the guard has this effect, too |
//! | to the gateway | `pid <n>` | the command runs |
//! | | `failed <message>` | it could not be started; the guard exits with 127 |
//! | | `refused <address>` | the sandbox refused a connection; once for each address |
//! | | `exit <code>`, `exit signal <n>` | the command and all its descendants have ended; the guard exits alike |
//!
//! Other bytes are ignored. The guard has no async runtime and no configuration. It has no second thread until the command runs;
//! then, for a command with a sandbox ([`super::confine`]), a thread decides about its connections.
//!
//! If the guard is SIGKILLed, the gateway notices it and ends the tree itself: it finds the processes by group, by parent, and by
//! a tag in their environment. If both are killed at once, the next gateway on the data directory searches for that tag
//! (`left_behind`). An orphan that overwrote its own environment is not found. Control groups would find it, but the gateway may
//! not always create them; a parent-death signal would not help, since it reaches only one generation.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper, wait,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::confine::Confinement;
use super::{Exit, confine, hand_over, open_files, tree};

/// Option of the guard: the command's standard input is sent over the control socket.
pub(super) const STDIN_OPTION: &str = "--stdin";

/// Maximum time for the process tree to end after SIGTERM if the gateway is gone; then it is killed.
pub const GRACE: Duration = Duration::from_secs(2);

/// Maximum time for killing the remaining descendants of the command. Only a fork bomb or a process stuck in the kernel needs
/// that long.
const SWEEP_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two searches of `/proc` while processes are ending.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);

/// Runs the guard until its command has ended. `arguments` follow `__guard`: options, `--`, the command, its arguments.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let mut arguments = arguments.peekable();
    if arguments.next_if(|it| it == confine::PROBE).is_some() {
        confine::print_support();
        return ExitCode::SUCCESS;
    }
    let takes_stdin = arguments.next_if(|it| it == STDIN_OPTION).is_some();
    if arguments.next_if(|it| it == open_files::OPTION).is_some() {
        let soft = arguments.next().and_then(|it| it.to_str()?.parse().ok());
        if let Some(soft) = soft {
            open_files::lower(soft);
        }
    }
    let sandbox = match arguments.next_if(|it| it == confine::OPTION) {
        None => None,
        Some(_) => match confine::parse(&arguments.next().unwrap_or_default()) {
            Ok(sandbox) => Some(sandbox),
            Err(error) => {
                report(&format!("failed {error}"));
                return ExitCode::from(127);
            }
        },
    };
    arguments.next_if(|it| it == "--");
    let Some(program) = arguments.next() else {
        report("failed no command was given");
        return ExitCode::from(2);
    };
    let stdin = match takes_stdin.then(|| hand_over::receive(control())) {
        None => Stdio::null(),
        Some(Ok(stdin)) => stdin.into(),
        Some(Err(error)) => {
            report(&format!("failed cannot take a standard input: {error}"));
            return ExitCode::from(127);
        }
    };
    let mut command = Command::new(&program);
    command.args(arguments).stdin(stdin).process_group(0);
    match Guard::start(command, sandbox) {
        Ok(guard) => {
            let exit = guard.run();
            report(&match exit {
                Exit::Code(code) => format!("exit {code}"),
                Exit::Signal(signal) => format!("exit signal {signal}"),
                Exit::Lost => "exit signal 9".to_owned(),
            });
            exit_code(exit)
        }
        Err(error) => {
            report(&format!(
                "failed cannot start {}: {}",
                program.display(),
                why_not(&program, &error)
            ));
            ExitCode::from(127)
        }
    }
}

/// Describes why a command was not started: the error of the operating system, and for a missing file the probable cause.
fn why_not(program: &OsStr, error: &io::Error) -> String {
    let by_name = !program.as_encoded_bytes().contains(&b'/');
    match error.kind() {
        io::ErrorKind::NotFound if by_name => "it is not on its PATH".to_owned(),
        io::ErrorKind::NotFound => format!("{error}, or the interpreter it names is missing"),
        _ => error.to_string(),
    }
}

/// The exit code that a shell would report for this exit status.
fn exit_code(exit: Exit) -> ExitCode {
    let code = match exit {
        Exit::Code(code) => code,
        Exit::Signal(signal) => 128 + signal,
        Exit::Lost => 137,
    };
    ExitCode::from(u8::try_from(code).unwrap_or(255))
}

/// Writes a line to the gateway. Errors are ignored: if the gateway is gone, the guard detects the end of the control channel.
fn report(line: &str) {
    let line = format!("{}\n", line.replace(['\n', '\r'], " "));
    let _ = rustix::io::write(rustix::stdio::stdin(), line.as_bytes());
}

struct Guard {
    command: Pid,
    /// Stream that becomes readable when a child has changed its state.
    children: UnixStream,
    /// Stream that becomes readable when the guard has received a signal to end.
    signals: UnixStream,
}

impl Guard {
    fn start(mut command: Command, sandbox: Option<Confinement>) -> io::Result<Self> {
        // The process gets a name other than the gateway's: a `pkill` of the gateway must not kill the guards, too, since they
        // have to end the gateway's children.
        let _ = rustix::thread::set_name(c"guard");
        // Must precede the start of the command: processes that detach themselves become children of the guard, not of process 1.
        set_child_subreaper(Some(getpid()))?;
        // Registered before the spawn; otherwise the end of a very short command would not be detected.
        let children = signal_pipe(&[SIGCHLD])?;
        let signals = signal_pipe(&[SIGTERM, SIGINT, SIGHUP, SIGQUIT])?;
        // These signals are meant for the gateway, but may be sent to a whole service (`systemctl kill`). They get an empty
        // handler and are not ignored, since the command would inherit that they are ignored.
        for signal in [SIGUSR1, SIGUSR2] {
            signal_hook::flag::register(signal, Arc::default())?;
        }
        let mut confined = sandbox
            .map(|sandbox| confine::prepare(&mut command, sandbox))
            .transpose()?;
        let child = command.spawn().map_err(|error| {
            let reason = confined
                .as_mut()
                .and_then(confine::ConfinedCommand::failure);
            reason.map_or(error, io::Error::other)
        })?;
        // `command` is dropped, since it contains a copy of the child's standard input, which would keep that pipe open.
        drop(command);
        // The guard's own copies of the output pipes are closed: they would keep the pipes open after the command closed its
        // ends.
        let null = File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        if let Some(confined) = confined
            && let Err(error) = confined.supervise(report)
        {
            // The thread that decides about connections did not start. The command is killed, since its calls of `connect`
            // would never be answered.
            tree::kill_each(&tree::descendants(getpid()));
            return Err(error);
        }
        report(&format!("pid {}", child.id()));
        let command = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("the command has no usable pid"))?;
        Ok(Self {
            command,
            children,
            signals,
        })
    }

    /// Waits until the command has ended, then ends all its remaining descendants. Events that are handled:
    /// - the control channel: an order from the gateway, or its end;
    /// - a signal to the guard: treated as the end of the gateway;
    /// - a child: the command, or a detached process that became a child of the guard;
    /// - the end of the grace time.
    fn run(mut self) -> Exit {
        let mut control_open = true;
        let mut kill_at: Option<Instant> = None;
        let exit = loop {
            if let ReapOutcome::Command(exit) = self.reap() {
                break exit;
            }
            let wake = self.wait_for_event(control_open, kill_at);
            if wake.children {
                drain(&mut self.children);
            }
            let mut end = false;
            if wake.signal {
                drain(&mut self.signals);
                end = true;
            }
            if wake.control {
                match read_orders() {
                    Orders::Closed => {
                        control_open = false;
                        end = true;
                    }
                    Orders::Given { terminate, kill } => {
                        if terminate {
                            self.terminate();
                        }
                        if kill {
                            kill_at = Some(Instant::now());
                        }
                    }
                }
            }
            if end && kill_at.is_none() {
                self.terminate();
                kill_at = Some(Instant::now() + GRACE);
            }
            if kill_at.is_some_and(|at| at <= Instant::now()) {
                tree::kill_each(&tree::descendants(getpid()));
                // Repeated after a pause, since a process may have forked in the meantime.
                kill_at = Some(Instant::now() + SWEEP_PAUSE);
            }
        };
        self.sweep();
        exit
    }

    /// Sends SIGTERM to the command's process group. The group's id cannot have been reused, since the command is not reaped yet.
    fn terminate(&self) {
        let _ = kill_process_group(self.command, Signal::TERM);
    }

    /// Reaps all children that have ended, up to the command.
    fn reap(&self) -> ReapOutcome {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.command => {
                    return ReapOutcome::Command(exit_of(status));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return ReapOutcome::NothingYet,
                Err(_) => return ReapOutcome::NoChildren,
            }
        }
    }

    /// Kills the command's descendants in rounds. Processes whose parent was killed become children of the guard, and are killed
    /// in the next round, until none is left.
    fn sweep(&mut self) {
        let started = Instant::now();
        while !matches!(self.reap(), ReapOutcome::NoChildren) && started.elapsed() < SWEEP_LIMIT {
            tree::kill_each(&tree::descendants(getpid()));
            self.wait_for_event(false, Some(Instant::now() + SWEEP_PAUSE));
            drain(&mut self.children);
        }
    }

    fn wait_for_event(&self, control_open: bool, until: Option<Instant>) -> Wake {
        let timeout = until.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let readable = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds = vec![
            readable(self.children.as_fd()),
            readable(self.signals.as_fd()),
        ];
        if control_open {
            fds.push(readable(control()));
        }
        // Errors are ignored: the call was interrupted, or the error occurs again in the next round. All event handlers may be
        // called without an event.
        let _ = poll(&mut fds, timeout.as_ref());
        let ready = |index: usize| {
            fds.get(index)
                .is_some_and(|fd: &PollFd<'_>| !fd.revents().is_empty())
        };
        Wake {
            children: ready(0),
            signal: ready(1),
            control: ready(2),
        }
    }
}

enum ReapOutcome {
    Command(Exit),
    NothingYet,
    NoChildren,
}

struct Wake {
    children: bool,
    signal: bool,
    control: bool,
}

enum Orders {
    Given { terminate: bool, kill: bool },
    Closed,
}

/// The control channel to the gateway, which is the guard's standard input.
fn control() -> BorrowedFd<'static> {
    rustix::stdio::stdin()
}

fn read_orders() -> Orders {
    let mut bytes = [0; 64];
    match rustix::io::read(control(), &mut bytes) {
        Ok(0) => Orders::Closed,
        Ok(count) => Orders::Given {
            terminate: bytes[..count].contains(&b'T'),
            kill: bytes[..count].contains(&b'K'),
        },
        Err(Errno::INTR | Errno::AGAIN) => Orders::Given {
            terminate: false,
            kill: false,
        },
        Err(_) => Orders::Closed,
    }
}

/// Creates a stream that becomes readable when one of the signals arrives.
fn signal_pipe(signals: &[i32]) -> io::Result<UnixStream> {
    let (receive, send) = UnixStream::pair()?;
    receive.set_nonblocking(true)?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, send.try_clone()?)?;
    }
    Ok(receive)
}

fn drain(pipe: &mut UnixStream) {
    let mut bytes = [0; 64];
    while matches!(pipe.read(&mut bytes), Ok(count) if count > 0) {}
}

fn exit_of(status: WaitStatus) -> Exit {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Lost,
    }
}
