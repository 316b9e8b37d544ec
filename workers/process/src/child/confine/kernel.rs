//! System calls for which no library has a safe function, and the probe of the kernel's sandbox features.

#![allow(unsafe_code, reason = "no library has a safe form of these calls")]

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, CpuSet, UnshareFlags, capabilities,
    capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, sched_getaffinity, sched_setaffinity, set_capabilities,
    set_no_new_privs,
};
use serde::{Deserialize, Serialize};

use super::{Confinement, mounts};

/// Kind of mount namespace that a process may create.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountNamespace {
    /// The process may not create a mount namespace.
    #[default]
    None,
    /// The process has the privileges to create a mount namespace directly.
    Privileged,
    /// The process may create a mount namespace within a new user namespace.
    User,
}

/// Features of the kernel on which sandboxes are based. The default has none of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSupport {
    /// Version of Landlock's interface; 0 without Landlock. Landlock covers files since version 1, TCP since version 4, and
    /// signals and abstract sockets since version 6.
    pub landlock: u32,
    /// Kind of mount namespaces that the kernel allows.
    pub mounts: MountNamespace,
    /// True if the kernel supports seccomp filters.
    pub seccomp: bool,
    /// True if the guard can decide about connections. That needs seccomp notifications, access to descriptors of other
    /// processes, and Landlock's rules for TCP, which prevent connections that bypass the notifications.
    pub connections: bool,
}

impl KernelSupport {
    /// Tries each feature. Features that would change this process are tried in forked children.
    pub(super) fn probe() -> Self {
        let landlock = landlock_version();
        let seccomp = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"))
            && has_seccomp_action(libc::SECCOMP_RET_ERRNO);
        let notifications = seccomp && has_seccomp_action(libc::SECCOMP_RET_USER_NOTIF);
        let connections = notifications && landlock >= 4 && takes_descriptors();
        let kinds = [MountNamespace::Privileged, MountNamespace::User];
        let mounts = kinds.into_iter().find(|kind| can_mount(*kind));
        let mounts = mounts.unwrap_or_default();
        Self {
            landlock,
            mounts,
            seccomp,
            connections,
        }
    }

    /// Returns true if mode `basic` can hide files.
    pub fn keeps_files(&self) -> bool {
        self.landlock > 0 || self.mounts != MountNamespace::None
    }

    /// A phrase for each missing feature: the protection that is not in effect, and the reason.
    pub fn missing(&self) -> Vec<&'static str> {
        let mut missing = Vec::new();
        match (self.mounts, self.landlock) {
            (MountNamespace::None, 0) => missing.push(
                "files of the gateway and of other namespaces are open (neither mount namespaces nor Landlock)",
            ),
            (MountNamespace::None, _) => missing.push(
                "sockets and attributes of others' files are open, and tools cannot make or list files in the folders above \
                 the data directory (no mount namespaces)",
            ),
            _ => {}
        }
        match self.landlock {
            0 => missing.push(
                "/proc of other processes, signals and abstract sockets are open (no Landlock)",
            ),
            1..6 => missing.push(
                "signals and abstract sockets are open (Landlock older than version 6, Linux 6.12)",
            ),
            _ => {}
        }
        if !self.seccomp {
            missing.push("all calls of the kernel are open (no seccomp filters)");
        }
        if !self.connections {
            missing.push(
                "connections to the gateway's own listeners and to metadata addresses are open (needs Landlock 4, Linux 6.7, and \
                 seccomp notifications with pidfd_getfd)",
            );
        }
        missing
    }
}

fn landlock_version() -> u32 {
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag, the kernel reads no memory of the process.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

fn has_seccomp_action(action: u32) -> bool {
    // SAFETY: the kernel only reads the number, which outlives the call.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0_usize,
            &raw const action,
        )
    };
    outcome == 0
}

/// Returns true if a process may duplicate descriptors of its children. Tries it with this process, and checks Yama's rule,
/// which may forbid access to other processes.
fn takes_descriptors() -> bool {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope: u8 = scope
        .ok()
        .and_then(|it| it.trim().parse().ok())
        .unwrap_or(0);
    let may_attach = scope <= 1 || scope == 2 && rustix::process::geteuid().is_root();
    let own = pidfd_open(getpid(), PidfdFlags::empty());
    may_attach && own.is_ok_and(|own| pidfd_getfd(own, 0, PidfdGetfdFlags::empty()).is_ok())
}

/// Returns true if a mount namespace of this kind can be created. Tries it in a forked child, which then ends.
fn can_mount(kind: MountNamespace) -> bool {
    let Ok((mut outcome, childs_end)) = UnixStream::pair() else {
        return false;
    };
    let mut command = Command::new("/");
    before_exec(&mut command, move || {
        let dumpable = rustix::process::DumpableBehavior::Dumpable;
        let _ = rustix::process::set_dumpable_behavior(dumpable);
        let succeeded = mounts::try_out(kind).is_ok();
        let _ = (&childs_end).write_all(&[u8::from(succeeded)]);
        // The error ends the child before it executes a program.
        Err(io::ErrorKind::Interrupted.into())
    });
    let _ = command.spawn();
    // `command` contains a copy of the child's end of the socket; without the drop, the read below could wait for ever.
    drop(command);
    let mut byte = [0];
    outcome.read_exact(&mut byte).is_ok() && byte == [1]
}

/// Makes the forked child of `command` call `enter` before it executes the program.
pub(super) fn before_exec(
    command: &mut Command,
    enter: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: at this time, the guard's only other thread is the allocator's, which is prepared for forks. So the forked child
    // may acquire any lock and allocate memory.
    unsafe {
        command.pre_exec(enter);
    }
}

/// Moves this process into new namespaces. The process must have a single thread.
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: none of the flags concerns descriptors or memory that another thread uses.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Applies the sandbox's limits on memory, processes and processors to this process.
pub(super) fn limit(own: &Confinement) -> io::Result<()> {
    let limit = |resource, most: u64| {
        setrlimit(
            resource,
            Rlimit {
                current: Some(most),
                maximum: Some(most),
            },
        )
    };
    // Core dumps are disabled, since they would write the memory to files.
    limit(Resource::Core, 0)?;
    if let Some(memory) = own.memory {
        limit(Resource::Data, memory)?;
    }
    if let Some(pids) = own.pids {
        limit(Resource::Nproc, pids.into())?;
    }
    if let Some(count) = own.cpu {
        let allowed = sched_getaffinity(None)?;
        let mut chosen = CpuSet::new();
        // The processors are chosen from a random one on, so that not all namespaces use the first processors.
        let all: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|it| allowed.is_set(*it))
            .collect();
        let begin = fastrand::usize(..all.len().max(1));
        let turned = all.iter().cycle().skip(begin).take(all.len());
        for processor in turned.take(count as usize) {
            chosen.set(*processor);
        }
        sched_setaffinity(None, &chosen)?;
    }
    Ok(())
}

/// Capabilities that a command of root keeps: the usual ones in containers, except those for raw network access and devices.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Drops the capabilities that tools never need, and prevents this process and its descendants from gaining new ones.
pub(super) fn drop_privileges() -> io::Result<()> {
    let _ = clear_ambient_capability_set();
    for capability in CapabilitySet::all().difference(KEPT).iter() {
        if capability_is_in_bounding_set(capability).unwrap_or(false) {
            // A failure is harmless: a process that may not remove it does not have the capability either.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    let held = capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: held.effective.intersection(KEPT),
            permitted: held.permitted.intersection(KEPT),
            inheritable: CapabilitySet::empty(),
        },
    )?;
    set_no_new_privs(true)?;
    Ok(())
}

/// Installs a seccomp filter. If `notifies` is true, returns the descriptor from which its notifications are read.
pub(super) fn install_filter(
    program: &mut [libc::sock_filter],
    notifies: bool,
) -> io::Result<Option<OwnedFd>> {
    let length =
        u16::try_from(program.len()).map_err(|_| io::Error::other("the filter is too long"))?;
    let program = libc::sock_fprog {
        len: length,
        filter: program.as_mut_ptr(),
    };
    let install = |flags: libc::c_ulong| {
        // SAFETY: the kernel only reads the program, which outlives the call.
        let outcome = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            )
        };
        match outcome {
            0.. => Ok(outcome),
            _ => Err(io::Error::last_os_error()),
        }
    };
    if !notifies {
        return install(0).map(|_| None);
    }
    let listens = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // With this flag, a signal does not interrupt a call on which the guard already works. Kernels before Linux 5.19 lack it.
    let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let listener = install(listens | killable).or_else(|_| install(listens))?;
    let listener = i32::try_from(listener).map_err(io::Error::other)?;
    // SAFETY: the kernel has just created this descriptor, and no other code has it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(listener) }))
}

/// Waits for the next call for which a filter sends a notification.
pub(super) fn next_notification(listener: BorrowedFd<'_>) -> io::Result<libc::seccomp_notif> {
    // SAFETY: a structure of zero bytes is valid, and the kernel requires it; the kernel writes only within the structure.
    unsafe {
        let mut notification: libc::seccomp_notif = std::mem::zeroed();
        let outcome = libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut notification,
        );
        match outcome {
            0 => Ok(notification),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Returns true if the process that caused a notification still waits for the answer.
pub(super) fn is_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the kernel only reads the number, which outlives the call.
    let outcome = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const id,
        )
    };
    outcome == 0
}

/// Answer of the guard to a seccomp notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotificationAnswer {
    /// The guard has made or refused the call; contains the error number of the result, 0 for success.
    Done(i32),
    /// The kernel continues the call as if there were no filter.
    Continue,
}

/// Answers a notification. Errors are ignored: the process may have ended.
pub(super) fn answer(listener: BorrowedFd<'_>, id: u64, answer: NotificationAnswer) {
    let (error, flags) = match answer {
        NotificationAnswer::Done(number) => (-number, 0),
        NotificationAnswer::Continue => (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32),
    };
    let response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
    };
    // SAFETY: the kernel only reads the structure, which outlives the call.
    unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw const response,
        );
    }
}

/// Connects a socket to an address given as the bytes of a `sockaddr`. Returns the error number; 0 for success.
pub(super) fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> i32 {
    let length = libc::socklen_t::try_from(address.len()).unwrap_or(0);
    // SAFETY: the kernel only reads `length` bytes of the address, which outlives the call.
    let outcome = unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length) };
    match outcome {
        0 => 0,
        _ => io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(libc::EINVAL),
    }
}

/// Reads an IPv4 or IPv6 address from the bytes of a `sockaddr`; `None` for other address families.
pub(super) fn internet_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => {
            let ip: [u8; 4] = bytes.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::new(ip.into(), port))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = bytes.get(8..24)?.try_into().ok()?;
            Some(SocketAddr::new(ip.into(), port))
        }
        _ => None,
    }
}
