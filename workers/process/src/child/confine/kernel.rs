//! Calls of the kernel that no library has a safe form of, and the probe of its parts.

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

/// Kind of mount namespace that a process may make.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountNamespace {
    /// No mount namespace.
    #[default]
    None,
    /// A mount namespace made with the privileges that the process has.
    Privileged,
    /// A mount namespace within a user namespace of its own.
    User,
}

/// Parts of the kernel that sandboxes are made of. The default has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSupport {
    /// Version of Landlock's interface; 0 without Landlock. Files since 1, TCP since 4, signals and abstract sockets since 6.
    pub landlock: u32,
    /// Mount namespaces.
    pub mounts: MountNamespace,
    /// True with seccomp filters.
    pub seccomp: bool,
    /// True if the guard can decide about connections: seccomp's notifications, descriptors of other processes, and Landlock's
    /// rules for TCP, without which a notification could be outrun.
    pub connections: bool,
}

impl KernelSupport {
    /// Tries each part, in forked children where that changes the process.
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

    /// True if `basic` can keep files away.
    pub fn keeps_files(&self) -> bool {
        self.landlock > 0 || self.mounts != MountNamespace::None
    }

    /// The parts that are missing, a phrase for each: what does not hold, and why.
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
    // SAFETY: with this flag the kernel reads no memory.
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
    // SAFETY: the number outlives the call, which reads it alone.
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

/// Tries to take a descriptor of a process, this one, and looks at the rule for those of children.
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

/// Makes a mount namespace in a forked child, which then ends; returns true if that is possible.
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
        // No program is run.
        Err(io::ErrorKind::Interrupted.into())
    });
    let _ = command.spawn();
    // It holds the child's end.
    drop(command);
    let mut byte = [0];
    outcome.read_exact(&mut byte).is_ok() && byte == [1]
}

/// Has the forked child of `command` call `enter` before it runs the program.
pub(super) fn before_exec(
    command: &mut Command,
    enter: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the only other thread that the guard has then is the allocator's, which is prepared for forks, so the forked
    // child may take any lock and allocate.
    unsafe {
        command.pre_exec(enter);
    }
}

/// Moves this process, which has one thread, to new namespaces.
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: no flag here concerns descriptors or memory that another thread uses.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Applies the limits of memory, processes and processors.
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
    // Core dumps would put memory into files.
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
        // Beginning somewhere, so that not all namespaces share the first processors.
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

/// Capabilities that stay for root: those that container engines leave, without raw devices and networks.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Gives up the capabilities that tools never need, and new ones for ever.
pub(super) fn drop_privileges() -> io::Result<()> {
    let _ = clear_ambient_capability_set();
    for capability in CapabilitySet::all().difference(KEPT).iter() {
        if capability_is_in_bounding_set(capability).unwrap_or(false) {
            // Without the right to do so there is no capability either.
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

/// Installs a filter. With `notifies`, returns the descriptor that its notifications are read from.
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
        // SAFETY: the program outlives the call, which reads it alone.
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
    // A signal then does not interrupt a call that the guard works on already. Since Linux 5.19.
    let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let listener = install(listens | killable).or_else(|_| install(listens))?;
    let listener = i32::try_from(listener).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(listener) }))
}

/// Waits for a call that a filter notifies about.
pub(super) fn next_notification(listener: BorrowedFd<'_>) -> io::Result<libc::seccomp_notif> {
    // SAFETY: all zero bytes are a value of the structure, which the kernel wants empty; it writes within it alone.
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

/// Returns true if the process of a notification still waits for its answer.
pub(super) fn is_waiting(listener: BorrowedFd<'_>, id: u64) -> bool {
    // SAFETY: the number outlives the call, which reads it alone.
    let outcome = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const id,
        )
    };
    outcome == 0
}

/// An answer to a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotificationAnswer {
    /// The call has been made, or refused, with this error number; 0 for success.
    Done(i32),
    /// The kernel makes the call.
    Continue,
}

/// Answers a notification. The process may be gone, which is no error.
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
    // SAFETY: the structure outlives the call, which reads it alone.
    unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw const response,
        );
    }
}

/// Connects a socket to an address in the kernel's own form. Returns the error number; 0 for success.
pub(super) fn connect(socket: BorrowedFd<'_>, address: &[u8]) -> i32 {
    let length = libc::socklen_t::try_from(address.len()).unwrap_or(0);
    // SAFETY: the address outlives the call, which reads `length` bytes of it.
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
