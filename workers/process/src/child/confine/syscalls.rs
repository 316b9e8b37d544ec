//! System calls that sandboxed commands may not make. `docs/sandbox.md` lists them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use super::kernel::install_filter;

/// The refused system calls. They fail with `EPERM`.
const DENIED: &[libc::c_long] = &[
    // Access to other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Changes of mounts, and entering namespaces of other processes.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    // Opening files by handle, which bypasses the permissions of the folders above them.
    libc::SYS_open_by_handle_at,
    // Administration of the kernel and the machine, and interfaces that increase the kernel's attack surface.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    // Access to the kernel's key rings: all processes of the user share them, so a tool could read the keys of others.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_uselib,
];

/// Number of the system call `open_tree_attr` of Linux 6.15, which `libc` does not define yet.
const OPEN_TREE_ATTR: i64 = 467;

/// Installs a filter for this process and its descendants that refuses the calls in [`DENIED`]. With `no_network`, it also
/// refuses all sockets except Unix and netlink sockets; with `pinned`, the choice of other processors. The kernel ends programs
/// of another architecture.
pub(super) fn deny(no_network: bool, pinned: bool) -> io::Result<()> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        DENIED.iter().map(|call| (*call, Vec::new())).collect();
    // Setting limits of other processes is refused here, since Landlock does not prevent it for processes of the same user.
    let is_given = |argument: u8| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)
    };
    let others = vec![is_given(0).map_err(failed)?, is_given(2).map_err(failed)?];
    let rule = SeccompRule::new(others).map_err(failed)?;
    rules.insert(libc::SYS_prlimit64, vec![rule]);
    if pinned {
        rules.insert(libc::SYS_sched_setaffinity, Vec::new());
    }
    if no_network {
        let is_not = |family: i32| {
            let family = u64::try_from(family).unwrap_or_default();
            SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, family)
        };
        let other = vec![
            is_not(libc::AF_UNIX).map_err(failed)?,
            is_not(libc::AF_NETLINK).map_err(failed)?,
        ];
        let rule = SeccompRule::new(other).map_err(failed)?;
        rules.insert(libc::SYS_socket, vec![rule]);
    }
    let errno = u32::try_from(libc::EPERM).unwrap_or_default();
    let filter = SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno),
        std::env::consts::ARCH.try_into().map_err(failed)?,
    );
    let program: BpfProgram = filter.and_then(TryInto::try_into).map_err(failed)?;
    seccompiler::apply_filter(&program).map_err(failed)
}

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xC000_00B7;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: u32 = 0;

/// First number of the system calls of the x32 interface. All calls from it on are refused, since the filters do not list them.
const X32: u32 = 0x4000_0000;
/// The flag `MSG_FASTOPEN`, with which sending a message also makes a TCP connection.
const FAST_OPEN: u32 = 0x2000_0000;
/// The protocol `IPPROTO_MPTCP`, one connection over several TCP connections. Landlock's rules for TCP do not cover it.
const MULTIPATH: u32 = 262;
/// Address family and protocol of SMC sockets, which fall back to TCP if both ends have no shared memory.
const SMC: u32 = 43;
const SMC_PROTOCOL: u32 = 256;

/// Installs a filter. If `supervised` is true, it refuses ways to connect without the call `connect`, and the function returns
/// the descriptor by which the guard decides about each `connect`.
pub(super) fn notify(supervised: bool) -> io::Result<Option<OwnedFd>> {
    install_filter(&mut program(supervised), supervised)
}

/// The filter as BPF instructions. Each test either returns a decision or continues with the next test.
fn program(supervised: bool) -> Vec<libc::sock_filter> {
    let refuse = |number: i32| libc::SECCOMP_RET_ERRNO | u32::try_from(number).unwrap_or_default();
    let mut program = vec![
        load(ARCHITECTURE_AT),
        skip_if(EQUAL, ARCHITECTURE, 1),
        ret(ALLOW),
    ];
    program.push(load(NUMBER_AT));
    if cfg!(target_arch = "x86_64") {
        program.extend([skip_unless(AT_LEAST, X32, 1), ret(refuse(libc::ENOSYS))]);
    }
    if supervised {
        program.extend([
            skip_unless(EQUAL, number(libc::SYS_connect), 1),
            ret(libc::SECCOMP_RET_USER_NOTIF),
        ]);
        for (call, argument) in [
            (libc::SYS_sendto, 3),
            (libc::SYS_sendmsg, 2),
            (libc::SYS_sendmmsg, 3),
        ] {
            program.extend([
                skip_unless(EQUAL, number(call), 4),
                load(argument_at(argument)),
                skip_unless(BITS, FAST_OPEN, 1),
                ret(refuse(libc::EOPNOTSUPP)),
                ret(ALLOW),
            ]);
        }
        program.extend([
            skip_unless(EQUAL, number(libc::SYS_socket), 8),
            load(argument_at(0)),
            skip_unless(EQUAL, SMC, 1),
            ret(refuse(libc::EAFNOSUPPORT)),
            load(argument_at(2)),
            skip_if(EQUAL, MULTIPATH, 1),
            skip_unless(EQUAL, SMC_PROTOCOL, 1),
            ret(refuse(libc::EPROTONOSUPPORT)),
            ret(ALLOW),
        ]);
    }
    program.push(ret(ALLOW));
    program
}

const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
/// Offsets of the fields within the kernel's `struct seccomp_data`, in bytes.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const EQUAL: u32 = libc::BPF_JEQ;
const AT_LEAST: u32 = libc::BPF_JGE;
const BITS: u32 = libc::BPF_JSET;

/// Offset of the lower 32 bits of an argument. Both supported architectures are little-endian.
fn argument_at(index: u32) -> u32 {
    16 + 8 * index
}

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn load(at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, at)
}

fn ret(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value)
}

fn skip_if(test: u32, value: u32, count: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | test | libc::BPF_K, count, 0, value)
}

fn skip_unless(test: u32, value: u32, count: u8) -> libc::sock_filter {
    instruction(libc::BPF_JMP | test | libc::BPF_K, 0, count, value)
}

fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    let code = u16::try_from(code).unwrap_or_default();
    libc::sock_filter { code, jt, jf, k }
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter as the kernel would, for a call with its number and its arguments.
    fn verdict(program: &[libc::sock_filter], call: libc::c_long, arguments: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(number(call).to_le_bytes());
        data.extend(ARCHITECTURE.to_le_bytes());
        data.extend(0_u64.to_le_bytes());
        data.extend(arguments.iter().flat_map(|it| it.to_le_bytes()));
        let (mut at, mut loaded) = (0, 0);
        loop {
            let step = program[at];
            at += 1;
            let code = u32::from(step.code);
            if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS {
                let from = step.k as usize;
                loaded = u32::from_le_bytes(data[from..from + 4].try_into().unwrap());
                continue;
            }
            if code == libc::BPF_RET | libc::BPF_K {
                return step.k;
            }
            let holds = match code & 0xf0 {
                libc::BPF_JEQ => loaded == step.k,
                libc::BPF_JGE => loaded >= step.k,
                libc::BPF_JSET => loaded & step.k != 0,
                other => panic!("{other:#x}"),
            };
            at += usize::from(if holds { step.jt } else { step.jf });
        }
    }

    #[test]
    fn the_guard_is_asked_about_connections_and_what_connects_otherwise_is_refused() {
        let program = program(true);
        let of = |call, arguments| verdict(&program, call, arguments);
        let fast = u64::from(FAST_OPEN);
        assert_eq!(of(libc::SYS_connect, [0; 6]), libc::SECCOMP_RET_USER_NOTIF);
        assert_eq!(of(libc::SYS_read, [0; 6]), ALLOW);
        for (call, at) in [
            (libc::SYS_sendto, 3),
            (libc::SYS_sendmsg, 2),
            (libc::SYS_sendmmsg, 3),
        ] {
            let mut arguments = [0; 6];
            assert_eq!(of(call, arguments), ALLOW);
            arguments[at] = fast | 1;
            assert_ne!(of(call, arguments), ALLOW);
        }
        assert_eq!(of(libc::SYS_socket, [2, 1, 6, 0, 0, 0]), ALLOW);
        assert_ne!(of(libc::SYS_socket, [2, 1, 262, 0, 0, 0]), ALLOW);
        assert_ne!(of(libc::SYS_socket, [2, 1, 256, 0, 0, 0]), ALLOW);
        assert_ne!(of(libc::SYS_socket, [43, 1, 0, 0, 0, 0]), ALLOW);
        if cfg!(target_arch = "x86_64") {
            assert_ne!(of(libc::SYS_read | 0x4000_0000, [0; 6]), ALLOW);
        }
    }
}
