//! The sandbox of a command, from its description to its application just before `exec`. The guard applies it to its own child.
//!
//! ```text
//! gateway ── Confinement (JSON, an option of the guard) ──▶ guard ── fork ──▶ mounts, rlimits, Landlock, seccomp ── exec
//!                                                             └── connections: decides about each `connect` of the tree
//! ```
//!
//! | protected | by | if the kernel does not support that |
//! |---|---|---|
//! | files of the gateway and of other namespaces | an empty folder over them, by mounts | Landlock rules for all other files |
//! | all other files, in mode `strict` | Landlock rules | the command is not started |
//! | `/proc` of other processes, ptrace, signals, abstract sockets | a Landlock domain with scopes | not protected |
//! | connections | Landlock; the guard makes the allowed ones, by seccomp notifications | not protected, or by port |
//! | system calls that tools never need | seccomp | not protected |
//!
//! The gateway probes the kernel once ([`KernelSupport`]) and describes a sandbox with the features that the kernel has. If such
//! a feature cannot be applied when a command starts, the start fails.

mod connections;
mod files;
mod kernel;
mod mounts;
mod syscalls;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use tooldock_base::config::SandboxMode;

pub use kernel::{KernelSupport, MountNamespace};

/// Option of the guard whose value is the command's sandbox as JSON.
pub(super) const OPTION: &str = "--sandbox";
/// Argument of the guard in place of a command. The guard then prints [`KernelSupport`] as JSON and exits.
pub(super) const PROBE: &str = "--probe-sandbox";

/// Complete description of a sandbox: every path is absolute, and the kernel supports every feature that it uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Name of the sandboxed namespace, for the log.
    pub label: String,
    /// Mode of the sandbox; never [`SandboxMode::Off`].
    pub mode: SandboxMode,
    /// Features of the kernel that the sandbox uses.
    pub support: KernelSupport,
    /// Folders that are replaced by an empty folder in the sandbox.
    pub covered: Vec<PathBuf>,
    /// Files that cannot be read in the sandbox.
    pub hidden: Vec<PathBuf>,
    /// Programs that the gateway also runs outside of a sandbox. They cannot be changed in the sandbox.
    pub programs: Vec<PathBuf>,
    /// Paths below covered folders that remain accessible, if they exist.
    pub kept: Vec<KeptPath>,
    /// All paths that may be read, with [`SandboxMode::Strict`].
    pub read: Vec<PathBuf>,
    /// All paths that may be read and written, with [`SandboxMode::Strict`].
    pub write: Vec<PathBuf>,
    /// Connections that the command may make.
    pub network: NetworkRule,
    /// Ports of this machine at which the gateway itself listens, except those for clients. The command may not connect to them.
    pub own_ports: Vec<u16>,
    /// Maximum private writable memory of each process, in bytes; `None` for no limit.
    pub memory: Option<u64>,
    /// Maximum number of processes and threads; `None` for no limit.
    pub pids: Option<u32>,
    /// Number of processors that the command may use; `None` for all.
    pub cpu: Option<u32>,
}

/// A path below a covered folder that remains accessible.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeptPath {
    /// Path of the file or folder.
    pub path: PathBuf,
    /// True if the path may be written, too; false if it may only be read.
    pub writable: bool,
}

/// Connections that a sandboxed command may make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkRule {
    /// Connections to any address except the gateway's own listeners and cloud metadata addresses.
    Open,
    /// No connections at all.
    None,
    /// Connections to public addresses and to the system's DNS resolvers only.
    Public,
    /// Connections to these destinations, `host:port`, and to the system's DNS resolvers only.
    Only(Vec<String>),
}

impl Confinement {
    /// The guard's arguments for this sandbox.
    pub(super) fn arguments(&self) -> [OsString; 2] {
        // Serialization cannot fail for strings and numbers. If it did, the guard would refuse to start the command.
        let text = serde_json::to_string(self).unwrap_or_default();
        [OPTION.into(), text.into()]
    }

    /// Returns true if the guard decides about each connection; false if the sandbox allows no connections, or the kernel lacks
    /// support.
    fn supervises_connections(&self) -> bool {
        self.support.connections && self.network != NetworkRule::None
    }
}

/// State of the guard for a sandboxed command that it is starting.
pub(super) struct ConfinedCommand {
    confinement: Confinement,
    /// The guard's end of the channel to the forked child.
    channel: UnixStream,
}

/// Parses the guard's option with the sandbox.
pub(super) fn parse(text: &OsString) -> Result<Confinement, String> {
    let text = text.to_str().unwrap_or_default();
    serde_json::from_str(text).map_err(|error| format!("the sandbox cannot be read: {error}"))
}

/// Makes the forked child of `command` enter the sandbox before it executes the program.
pub(super) fn prepare(
    command: &mut Command,
    confinement: Confinement,
) -> io::Result<ConfinedCommand> {
    let (channel, childs_end) = UnixStream::pair()?;
    let own = confinement.clone();
    let cwd = std::env::current_dir()?;
    kernel::before_exec(command, move || {
        let outcome = enter(&own, &cwd, &childs_end);
        if let Err(error) = &outcome {
            use std::io::Write as _;
            let _ = (&childs_end).write_all(error.to_string().as_bytes());
        }
        outcome.map_err(|_| io::Error::from(io::ErrorKind::PermissionDenied))
    });
    Ok(ConfinedCommand {
        confinement,
        channel,
    })
}

impl ConfinedCommand {
    /// The reason why the child could not enter the sandbox; `None` if another error prevented the start. Must be called after
    /// the spawn.
    pub(super) fn failure(&mut self) -> Option<String> {
        use std::io::Read as _;
        let mut text = [0; 1024];
        self.channel.set_nonblocking(true).ok()?;
        let length = self.channel.read(&mut text).ok()?;
        let text = String::from_utf8_lossy(text.get(..length)?).into_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Starts the thread that decides about the command's connections, if the sandbox needs it. Must be called after the spawn.
    pub(super) fn supervise(self, report: fn(&str)) -> io::Result<()> {
        if !self.confinement.supervises_connections() {
            return Ok(());
        }
        let listener: OwnedFd = super::hand_over::receive(&self.channel)?;
        connections::ConnectionJudge::new(&self.confinement, listener, report).start()
    }
}

/// Error for a sandbox feature that could not be applied.
struct NotConfined {
    part: &'static str,
    error: io::Error,
}

impl fmt::Display for NotConfined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the sandbox's {}: {}", self.part, self.error)
    }
}

/// Makes this process enter the sandbox. Runs in the forked child, which has a single thread.
fn enter(own: &Confinement, cwd: &Path, channel: &UnixStream) -> Result<(), NotConfined> {
    let failed = |part| move |error| NotConfined { part, error };
    // The child inherits from the guard that it is not dumpable, and such a process cannot map ids of a user namespace.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)
        .map_err(|error| failed("own /proc")(error.into()))?;
    if own.support.mounts != MountNamespace::None {
        mounts::cover(own, cwd).map_err(failed("mounts"))?;
    }
    kernel::limit(own).map_err(failed("limits"))?;
    kernel::drop_privileges().map_err(failed("privileges"))?;
    if own.support.landlock > 0 {
        files::restrict(own).map_err(failed("Landlock rules"))?;
    }
    if own.support.seccomp {
        syscalls::deny(own.network == NetworkRule::None, own.cpu.is_some())
            .map_err(failed("seccomp filter"))?;
        let listener =
            syscalls::notify(own.supervises_connections()).map_err(failed("seccomp filter"))?;
        if let Some(listener) = listener {
            super::hand_over::send_descriptor(channel, &listener).map_err(failed("connections"))?;
        }
    }
    Ok(())
}

/// Probes the kernel, and prints the resulting [`KernelSupport`] as JSON.
pub(super) fn print_support() {
    let support = KernelSupport::probe();
    if let Ok(text) = serde_json::to_string(&support) {
        println!("{text}");
    }
}
