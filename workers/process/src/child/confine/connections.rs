//! Decides about each `connect` call of a sandboxed command and its descendants. Runs in the guard.
//!
//! The kernel suspends the call and notifies the guard. The guard reads the address, duplicates the socket's descriptor, and
//! connects the socket itself, so the command cannot change the address after the decision. Landlock forbids all TCP connections
//! that the command makes by itself, so exchanging the socket in the meantime does not help it either. The kernel itself
//! completes calls for other kinds of sockets, such as Unix sockets, whose paths exist only in the command's mount namespace.
//!
//! Datagrams that each contain their address (`sendto`, `sendmsg`) are not connections and are always allowed.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tooldock_base::address::is_public;
use tooldock_base::config::SandboxAddress;

use super::kernel::{self, NotificationAnswer};
use super::{Confinement, NetworkRule};

/// Maximum length of a socket address, in bytes: the size of the kernel's `sockaddr_storage`. A longer one is refused.
const ADDRESS_MAX: u64 = 128;
/// Maximum number of concurrent connection attempts for blocking sockets; further calls fail with `EAGAIN`.
const WAITING_MAX: usize = 256;
/// Maximum number of refused addresses that are reported to the gateway; further ones are refused without a report.
const REPORTED_MAX: usize = 32;
/// Time for which the resolved addresses of allowed host names are used before they are resolved again.
const RESOLVED_FOR: Duration = Duration::from_secs(30);
/// Port of DNS resolvers.
const DNS: u16 = 53;

/// Decides which connections a sandboxed command may make, and makes the allowed ones.
pub(super) struct ConnectionJudge {
    listener: OwnedFd,
    network: NetworkRule,
    own_ports: Vec<u16>,
    destinations: Vec<SandboxAddress>,
    resolved: Mutex<Option<(Instant, Vec<Vec<IpAddr>>)>>,
    reported: Mutex<HashSet<SocketAddr>>,
    report: fn(&str),
    /// Number of current connection attempts for blocking sockets; each has its own thread.
    waiting: AtomicUsize,
}

impl ConnectionJudge {
    pub(super) fn new(own: &Confinement, listener: OwnedFd, report: fn(&str)) -> Self {
        let destinations = match &own.network {
            NetworkRule::Only(texts) => texts.iter().filter_map(|it| it.parse().ok()).collect(),
            NetworkRule::Open | NetworkRule::None | NetworkRule::Public => Vec::new(),
        };
        Self {
            listener,
            network: own.network.clone(),
            own_ports: own.own_ports.clone(),
            destinations,
            resolved: Mutex::default(),
            reported: Mutex::default(),
            report,
            waiting: AtomicUsize::new(0),
        }
    }

    /// Starts the thread that reads the kernel's notifications. The thread runs until the guard ends.
    pub(super) fn start(self) -> io::Result<()> {
        let own = Arc::new(self);
        let read = move || {
            loop {
                match kernel::next_notification(own.listener.as_fd()) {
                    Ok(notification) => own.decide(&notification),
                    Err(error) => match error.raw_os_error() {
                        // Ignored: the calling process has ended, or a signal interrupted the call.
                        Some(libc::ENOENT | libc::EINTR) => {}
                        _ => return,
                    },
                }
            }
        };
        let thread = std::thread::Builder::new().name("connections".into());
        thread.spawn(read).map(drop)
    }

    fn answer(&self, id: u64, answer: NotificationAnswer) {
        kernel::answer(self.listener.as_fd(), id, answer);
    }

    fn decide(self: &Arc<Self>, notification: &libc::seccomp_notif) {
        let id = notification.id;
        match self.call(notification) {
            Ok(ConnectCall::NotOurs) => self.answer(id, NotificationAnswer::Continue),
            Ok(ConnectCall::Refused) => self.answer(id, NotificationAnswer::Done(libc::EACCES)),
            Ok(ConnectCall::Connect {
                socket,
                address,
                waits: false,
            }) => {
                let outcome = kernel::connect(socket.as_fd(), &address);
                self.answer(id, NotificationAnswer::Done(outcome));
            }
            Ok(ConnectCall::Connect {
                socket,
                address,
                waits: true,
            }) => {
                if self.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
                    self.waiting.fetch_sub(1, Ordering::AcqRel);
                    return self.answer(id, NotificationAnswer::Done(libc::EAGAIN));
                }
                let own = Arc::clone(self);
                let connect = move || {
                    let outcome = kernel::connect(socket.as_fd(), &address);
                    own.waiting.fetch_sub(1, Ordering::AcqRel);
                    own.answer(id, NotificationAnswer::Done(outcome));
                };
                let thread = std::thread::Builder::new().stack_size(64 * 1024);
                if thread.spawn(connect).is_err() {
                    self.waiting.fetch_sub(1, Ordering::AcqRel);
                    self.answer(id, NotificationAnswer::Done(libc::EAGAIN));
                }
            }
            Err(error) => {
                let number = error.raw_os_error().unwrap_or(libc::EACCES);
                self.answer(id, NotificationAnswer::Done(number));
            }
        }
    }

    fn call(&self, notification: &libc::seccomp_notif) -> io::Result<ConnectCall> {
        let [descriptor, at, length, ..] = notification.data.args;
        let thread = notification.pid;
        if length > ADDRESS_MAX {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut address = vec![0; usize::try_from(length).unwrap_or_default()];
        let memory = match fs::File::open(format!("/proc/{thread}/mem")) {
            // The process made itself undumpable, so the address cannot be read from its memory. Landlock still forbids it
            // TCP connections.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Ok(ConnectCall::NotOurs);
            }
            opened => opened?,
        };
        memory
            .read_exact_at(&mut address, at)
            .map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
        let process = process_of(thread)?;
        let process = pidfd_open(process, PidfdFlags::empty())?;
        // If the caller has ended, its process id may have been reused, and the bytes may be from another process.
        if !kernel::is_waiting(self.listener.as_fd(), notification.id) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let number = descriptor as u32 as i32;
        let socket = pidfd_getfd(process, number, PidfdGetfdFlags::empty())?;
        let family = sockopt::socket_domain(&socket)?;
        if family != AddressFamily::INET && family != AddressFamily::INET6 {
            return Ok(ConnectCall::NotOurs);
        }
        let is_stream = sockopt::socket_type(&socket)? == SocketType::STREAM;
        // An address without an internet family is not checked: with `AF_UNSPEC`, `connect` only removes a socket's peer.
        if let Some(address) = kernel::internet_address(&address)
            && !self.allows(address, is_stream)
        {
            self.tell(address);
            return Ok(ConnectCall::Refused);
        }
        let waits = is_stream && !rustix::fs::fcntl_getfl(&socket)?.contains(OFlags::NONBLOCK);
        Ok(ConnectCall::Connect {
            socket,
            address,
            waits,
        })
    }

    fn allows(&self, address: SocketAddr, is_stream: bool) -> bool {
        let ip = address.ip().to_canonical();
        if is_stream && (is_own(address, ip, &self.own_ports) || is_metadata(ip)) {
            // DNS is allowed at a metadata address, because the resolver of some clouds has one.
            return address.port() == DNS && is_metadata(ip) && self.network == NetworkRule::Open;
        }
        match &self.network {
            NetworkRule::Open => true,
            NetworkRule::None => false,
            _ if address.port() == DNS && resolvers().contains(&ip) => true,
            NetworkRule::Public => is_public(ip),
            NetworkRule::Only(_) => self.is_named(address),
        }
    }

    fn is_named(&self, address: SocketAddr) -> bool {
        let mut kept = self.resolved.lock().unwrap_or_else(PoisonError::into_inner);
        let lookup = || {
            let of = |it: &SandboxAddress| match it.literal() {
                Some(ip) => vec![ip],
                None => (it.host.as_str(), 0)
                    .to_socket_addrs()
                    .map(|all| all.map(|it| it.ip()).collect())
                    .unwrap_or_default(),
            };
            self.destinations.iter().map(of).collect::<Vec<_>>()
        };
        let is_fresh = |at: Instant| at.elapsed() < RESOLVED_FOR;
        let (at, resolved) = match kept.take() {
            Some((at, resolved)) if is_fresh(at) => (at, resolved),
            // The previous addresses stay allowed: for names with many addresses, each DNS response contains different ones.
            Some((_, before)) => {
                let mut resolved = lookup();
                for (now, before) in resolved.iter_mut().zip(before) {
                    now.extend(before);
                    now.truncate(64);
                }
                (Instant::now(), resolved)
            }
            None => (Instant::now(), lookup()),
        };
        let named = self.destinations.iter().zip(&resolved);
        let mut named = named.map(|(destination, ips)| destination.allows(address, ips));
        let is_named = named.any(|it| it);
        *kept = Some((at, resolved));
        is_named
    }

    /// Reports a refused address to the gateway, once for each address.
    fn tell(&self, address: SocketAddr) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.len() < REPORTED_MAX && reported.insert(address) {
            (self.report)(&format!("refused {address}"));
        }
    }
}

enum ConnectCall {
    /// A `connect` call that the kernel itself completes, for example for a Unix socket.
    NotOurs,
    Refused,
    Connect {
        socket: OwnedFd,
        address: Vec<u8>,
        /// True if the socket is blocking, so that the caller waits until the connection is made.
        waits: bool,
    },
}

/// The process id of a thread, from its id.
fn process_of(thread: u32) -> io::Result<Pid> {
    let status = fs::read_to_string(format!("/proc/{thread}/status"))?;
    let process = status.lines().find_map(|it| it.strip_prefix("Tgid:"));
    process
        .and_then(|it| it.trim().parse().ok())
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Returns true if the address may be that of a gateway's listener: one of `own_ports` at an address of this machine.
fn is_own(address: SocketAddr, ip: IpAddr, own_ports: &[u16]) -> bool {
    own_ports.contains(&address.port()) && is_of_this_machine(ip)
}

fn is_of_this_machine(ip: IpAddr) -> bool {
    // An address belongs to this machine if a socket can be bound to it. Link-local IPv6 addresses can only be bound with their
    // interface, so all of them count as addresses of this machine.
    let is_of_link = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
    is_of_link || ip.is_loopback() || ip.is_unspecified() || UdpSocket::bind((ip, 0)).is_ok()
}

/// Returns true for the metadata addresses of clouds, from which machines get their credentials.
fn is_metadata(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.octets() == [100, 100, 100, 200],
        IpAddr::V6(ip) => {
            ip.segments()[..4] == [0xfd00, 0xec2, 0, 0]
                || ip.segments()[..2] == [0xfd20, 0xce]
                || ip.segments() == [0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe]
        }
    }
}

/// The DNS resolvers in `/etc/resolv.conf`.
fn resolvers() -> BTreeSet<IpAddr> {
    let text = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let named = text.lines().filter_map(|it| it.strip_prefix("nameserver"));
    named.filter_map(|it| it.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::child::confine::KernelSupport;
    use tooldock_base::config::SandboxMode;

    fn judge(network: NetworkRule) -> ConnectionJudge {
        let own = Confinement {
            label: "ns".into(),
            mode: SandboxMode::Basic,
            support: KernelSupport::default(),
            covered: Vec::new(),
            hidden: Vec::new(),
            programs: Vec::new(),
            kept: Vec::new(),
            read: Vec::new(),
            write: Vec::new(),
            network,
            own_ports: vec![8001],
            memory: None,
            pids: None,
            cpu: None,
        };
        let listener = fs::File::open("/dev/null").unwrap().into();
        ConnectionJudge::new(&own, listener, |_| {})
    }

    #[test]
    fn the_gateways_ports_and_metadata_addresses_are_refused_under_every_rule() {
        let rules = [
            NetworkRule::Open,
            NetworkRule::Public,
            NetworkRule::Only(vec!["127.0.0.1:*".into(), "169.254.169.254:80".into()]),
        ];
        for rule in rules {
            let judge = self::judge(rule);
            for address in [
                "127.0.0.1:8001",
                "127.9.9.9:8001",
                "0.0.0.0:8001",
                "[::]:8001",
                "[::1]:8001",
                "[::ffff:127.0.0.1]:8001",
                "169.254.169.254:80",
                "[::ffff:169.254.169.254]:80",
                "[fd00:ec2::254]:80",
            ] {
                assert!(!judge.allows(address.parse().unwrap(), true), "{address}");
            }
        }
    }

    #[test]
    fn each_rule_opens_its_own_addresses() {
        let only = NetworkRule::Only(vec!["127.0.0.1:5432".into(), "[2001:db8::1]:*".into()]);
        for (rule, address, allowed) in [
            (NetworkRule::Open, "127.0.0.1:5432", true),
            (NetworkRule::Open, "192.0.2.1:8001", true),
            (NetworkRule::Public, "127.0.0.1:5432", false),
            (NetworkRule::Public, "10.0.0.1:443", false),
            (NetworkRule::Public, "8.8.8.8:443", true),
            (only.clone(), "127.0.0.1:5432", true),
            (only.clone(), "127.0.0.1:5433", false),
            (only.clone(), "[2001:db8::1]:1", true),
            (only, "8.8.8.8:443", false),
        ] {
            let judge = self::judge(rule.clone());
            assert_eq!(
                judge.allows(address.parse().unwrap(), true),
                allowed,
                "{rule:?} {address}"
            );
        }
    }
}
