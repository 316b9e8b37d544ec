//! The sandbox of a command, from its description to the moment before `exec`. The guard applies it to its own child.
//!
//! ```text
//! gateway ── Confinement (JSON, an option of the guard) ──▶ guard ── fork ──▶ mounts, rlimits, Landlock, seccomp ── exec
//!                                                             └── connections: decides about each `connect` of the tree
//! ```
//!
//! | part | by | where the kernel has none |
//! |---|---|---|
//! | files of the gateway and of others | an empty folder over them, in a mount namespace | Landlock rules for all beside them |
//! | `strict`: all other files | Landlock rules | refused: the command is not started |
//! | `/proc` of others, ptrace, signals, abstract sockets | a Landlock domain with scopes | open |
//! | connections | Landlock forbids them; the guard makes the allowed ones, by seccomp's notifications | open, or by port |
//! | calls of the kernel that tools never need | seccomp | open |
//!
//! The gateway probes the kernel once ([`KernelSupport`]) and describes a sandbox by the parts that the kernel has. If such a part
//! cannot be applied when a command starts, the start fails.

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

/// Option of the guard: the sandbox, as JSON.
pub(super) const OPTION: &str = "--sandbox";
/// Argument in place of a command: the guard prints [`KernelSupport`] as JSON and ends.
pub(super) const PROBE: &str = "--probe-sandbox";

/// A sandbox, complete: every path is absolute, and every part is one that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Name of the namespace, for the log.
    pub label: String,
    /// Mode of the sandbox; never [`SandboxMode::Off`].
    pub mode: SandboxMode,
    /// The parts of the kernel to use.
    pub support: KernelSupport,
    /// Folders over which an empty one stands.
    pub covered: Vec<PathBuf>,
    /// Files that cannot be read.
    pub hidden: Vec<PathBuf>,
    /// Programs that the gateway runs outside of a sandbox: they cannot be changed.
    pub programs: Vec<PathBuf>,
    /// Paths below covered folders that stay, if they exist.
    pub kept: Vec<KeptPath>,
    /// With [`SandboxMode::Strict`], all paths that may be read.
    pub read: Vec<PathBuf>,
    /// With [`SandboxMode::Strict`], all paths that may be read and written.
    pub write: Vec<PathBuf>,
    /// Connections that the command may make.
    pub network: NetworkRule,
    /// Ports of this machine that the command may not connect to.
    pub own_ports: Vec<u16>,
    /// Maximum private writable memory of a process, in bytes.
    pub memory: Option<u64>,
    /// Maximum number of processes and threads.
    pub pids: Option<u32>,
    /// Number of processors.
    pub cpu: Option<u32>,
}

/// A path below a covered folder that stays.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeptPath {
    /// Path of the file or folder.
    pub path: PathBuf,
    /// True if it can be written.
    pub writable: bool,
}

/// Connections that a command may make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkRule {
    /// Connections to any address but the gateway's own listeners and metadata addresses.
    Open,
    /// No connections.
    None,
    /// Connections to public addresses and to the system's DNS resolvers only.
    Public,
    /// Connections to these destinations, `host:port`, and to the system's DNS resolvers only.
    Only(Vec<String>),
}

impl Confinement {
    /// The guard's arguments for this sandbox.
    pub(super) fn arguments(&self) -> [OsString; 2] {
        // A structure of strings and numbers has a JSON form; without one the guard refuses to start the command.
        let text = serde_json::to_string(self).unwrap_or_default();
        [OPTION.into(), text.into()]
    }

    /// True when the guard decides about connections.
    fn supervises_connections(&self) -> bool {
        self.support.connections && self.network != NetworkRule::None
    }
}

/// The guard's part of a sandbox, beside and after the start of its command.
pub(super) struct ConfinedCommand {
    confinement: Confinement,
    /// The guard's end of the channel to the forked child.
    channel: UnixStream,
}

/// Reads the guard's option.
pub(super) fn parse(text: &OsString) -> Result<Confinement, String> {
    let text = text.to_str().unwrap_or_default();
    serde_json::from_str(text).map_err(|error| format!("the sandbox cannot be read: {error}"))
}

/// Has the child of `command` put itself into the sandbox before it runs the program.
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
    /// The reason why the child could not enter the sandbox, if that is why it did not start. Called after the spawn.
    pub(super) fn failure(&mut self) -> Option<String> {
        use std::io::Read as _;
        let mut text = [0; 1024];
        self.channel.set_nonblocking(true).ok()?;
        let length = self.channel.read(&mut text).ok()?;
        let text = String::from_utf8_lossy(text.get(..length)?).into_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Begins to decide about connections, in a thread of its own. Called after the spawn.
    pub(super) fn supervise(self, report: fn(&str)) -> io::Result<()> {
        if !self.confinement.supervises_connections() {
            return Ok(());
        }
        let listener: OwnedFd = super::hand_over::receive(&self.channel)?;
        connections::ConnectionJudge::new(&self.confinement, listener, report).start()
    }
}

/// A part of the sandbox that could not be applied.
struct NotConfined {
    part: &'static str,
    error: io::Error,
}

impl fmt::Display for NotConfined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the sandbox's {}: {}", self.part, self.error)
    }
}

/// Puts this process into the sandbox. Runs in the forked child, which has one thread.
fn enter(own: &Confinement, cwd: &Path, channel: &UnixStream) -> Result<(), NotConfined> {
    let failed = |part| move |error| NotConfined { part, error };
    // The guard is not dumpable, and a process that is not cannot map the ids of its user namespace.
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

/// Prints [`KernelSupport`] as JSON.
pub(super) fn print_support() {
    let support = KernelSupport::probe();
    if let Ok(text) = serde_json::to_string(&support) {
        println!("{text}");
    }
}
