//! The listening sockets. Each address is bound once, early in the start, and the socket stays open. If an address is in use, the
//! start ends with an error that names the address.
//!
//! Sockets that exist already are adopted: those of a service manager, or of the gateway that this process replaces.
//!
//! All services that accept on an address share its socket. The alternative would be one socket per service with `SO_REUSEPORT`.
//! But then any other process of the same user, such as a tool, could listen on the address, too, and would receive some of the
//! clients and their tokens.
//!
//! The file of a Unix socket remains when the gateway ends, as after a crash: removing it could remove the file of a gateway
//! that was started meanwhile. The next start replaces the file if no process listens there.

use std::fs::{self, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, anyhow};
use rustix::fs::Mode;
use rustix::process::umask;

pub(crate) use self::passed::PassedSockets;
use crate::config::{Effective, ListenAddress, ListenerConfig, SocketMode};

mod passed;

/// Error text for a Unix socket whose path is that of a file of another kind.
pub(crate) const NO_SOCKET: &str =
    "a file stands there that is no socket: remove it, or choose another path";

/// Error text for a Unix socket whose folder does not exist.
pub(crate) const NO_FOLDER: &str = "its folder is not there: make it first";

/// Error text for a Unix socket on which another process already listens.
pub(crate) const TAKEN: &str = "another process listens there";

/// The sockets of all listeners that this process serves.
pub(crate) struct Sockets(Vec<(ListenAddress, BoundSocket)>);

/// A bound listening socket, TCP or Unix.
pub(crate) enum BoundSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Sockets {
    /// Binds the sockets, or adopts those that were passed to this process.
    ///
    /// # Errors
    ///
    /// The first address that cannot be bound, with its listener's name and the setting that changes it.
    pub(crate) fn bind(effective: &Effective, passed: &mut PassedSockets) -> anyhow::Result<Self> {
        let listeners = effective.served_listeners();
        let bound = listeners.map(|(index, listener)| {
            let bound = passed.take_or_bind(&listener.address, listener.mode.unwrap_or_default());
            let socket = bound.map_err(|error| {
                let why = cannot_bind(effective, (index, listener), &error);
                anyhow!("listener {}: {why}", listener.name)
            })?;
            Ok((listener.address.clone(), socket))
        });
        let mut sockets: Vec<_> = bound.collect::<anyhow::Result<_>>()?;
        if let Some((_, address)) = effective.replica_address() {
            let listed = ListenAddress::Tcp(address);
            let bound = passed.take_or_bind(&listed, SocketMode::default());
            let socket = bound
                .map_err(|error| anyhow!("replicas.address: cannot bind {address}: {error}"))?;
            sockets.push((listed, socket));
        }
        Ok(Self(sockets))
    }

    /// Duplicates the file descriptors of all sockets.
    ///
    /// # Errors
    ///
    /// When there are too many open files.
    pub(crate) fn handles(&self) -> anyhow::Result<Vec<(ListenAddress, BoundSocket)>> {
        let addresses = self.0.iter().map(|(address, _)| address);
        addresses
            .map(|address| Ok((address.clone(), self.handle(address)?)))
            .collect()
    }

    /// Duplicates the file descriptor of the socket at an address, for one service.
    ///
    /// # Errors
    ///
    /// When there are too many open files.
    pub(crate) fn handle(&self, address: &ListenAddress) -> anyhow::Result<BoundSocket> {
        let found = self.0.iter().find(|(bound, _)| bound == address);
        let (_, socket) = found.context("a listener without a socket")?;
        socket.try_clone().context("another handle of a socket")
    }
}

impl BoundSocket {
    /// Binds a socket. `mode` contains the permissions for the file of a Unix socket.
    fn bind(address: &ListenAddress, mode: SocketMode) -> io::Result<Self> {
        match address {
            ListenAddress::Tcp(address) => bind_tcp(*address),
            ListenAddress::Unix(path) => bind_unix(path, mode).map(Self::Unix),
        }
    }

    /// Adopts a Unix socket that another process has bound.
    ///
    /// # Errors
    ///
    /// When the socket has no path; errors of the operating system.
    fn of_unix(socket: UnixListener) -> io::Result<(ListenAddress, Self)> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let path = address.as_pathname();
        let path = path.ok_or_else(|| io::Error::other("a Unix socket without a path"))?;
        Ok((ListenAddress::Unix(path.to_owned()), Self::Unix(socket)))
    }

    /// Adopts a TCP socket that another process has bound.
    ///
    /// # Errors
    ///
    /// Errors of the operating system.
    fn of_tcp(socket: TcpListener) -> io::Result<(ListenAddress, Self)> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok((ListenAddress::Tcp(address), Self::Tcp(socket)))
    }

    /// Adopts a socket and checks that it is bound to the given address.
    ///
    /// # Errors
    ///
    /// When the socket is bound to another address; errors of the operating system.
    pub(crate) fn at(address: &ListenAddress, socket: OwnedFd) -> io::Result<Self> {
        let (bound, socket) = match address {
            ListenAddress::Tcp(_) => Self::of_tcp(socket.into())?,
            ListenAddress::Unix(_) => Self::of_unix(socket.into())?,
        };
        match bound == *address {
            true => Ok(socket),
            false => Err(io::Error::other(format!("it is bound to {bound}"))),
        }
    }

    /// Duplicates the file descriptor of the socket.
    ///
    /// # Errors
    ///
    /// When there are too many open files.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(socket) => socket.try_clone().map(Self::Tcp),
            Self::Unix(socket) => socket.try_clone().map(Self::Unix),
        }
    }
}

impl AsFd for BoundSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

/// Error text for an address that cannot be bound. It names the setting that changes the listener's address.
pub(crate) fn cannot_bind(
    effective: &Effective,
    (index, listener): (usize, &ListenerConfig),
    error: &io::Error,
) -> String {
    let moved_by = effective.port_is_set_by(index, listener);
    let holder = match error.kind() {
        io::ErrorKind::AddrInUse => {
            " (another program listens there, or a gateway that stops and still answers requests: it ends within \
             replicas.grace)"
        }
        _ => "",
    };
    format!(
        "cannot bind {}: {error}{holder}; {moved_by}",
        listener.address
    )
}

fn bind_tcp(address: std::net::SocketAddr) -> io::Result<BoundSocket> {
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(BoundSocket::Tcp(socket))
}

/// Binds a Unix socket with the permissions `mode`. The socket of an ended process is replaced.
///
/// # Errors
///
/// When another process listens there, or the file is no socket; errors of the operating system.
pub(crate) fn bind_unix(path: &Path, mode: SocketMode) -> io::Result<UnixListener> {
    remove_stale(path)?;
    // The file mode mask prevents that another user connects before the permissions are set.
    let before = umask(Mode::from_raw_mode(0o177));
    let bound = UnixListener::bind(path);
    umask(before);
    let socket = bound?;
    fs::set_permissions(path, Permissions::from_mode(mode.0))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Removes the file of a Unix socket on which no process listens any more. Any other file is kept, and causes an error.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, NO_SOCKET));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, TAKEN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_handed_over_is_used_at_its_own_address_alone() {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = ListenAddress::Tcp(socket.local_addr().expect("bound"));
        let another: ListenAddress = "127.0.0.1:1".parse().expect("an address");
        let handed = || OwnedFd::from(socket.try_clone().expect("a handle"));
        assert!(BoundSocket::at(&address, handed()).is_ok());
        assert!(BoundSocket::at(&another, handed()).is_err());
        let unix: ListenAddress = "unix:/run/mcp.sock".parse().expect("an address");
        assert!(BoundSocket::at(&unix, handed()).is_err());
    }

    #[test]
    fn the_socket_of_a_process_that_is_gone_is_replaced_and_nothing_else_is() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("mcp.sock");
        let mode = SocketMode(0o640);
        let first = bind_unix(&path, mode).expect("free");
        let permissions = fs::metadata(&path).expect("there").permissions();
        assert_eq!(permissions.mode() & 0o777, 0o640);

        let taken = bind_unix(&path, mode).expect_err("taken");
        assert!(
            taken.to_string().contains("another process listens"),
            "{taken}"
        );
        drop(first);
        bind_unix(&path, mode).expect("nobody listens any more");

        fs::remove_file(&path).expect("removed");
        fs::write(&path, "mine").expect("written");
        let kept = bind_unix(&path, mode).expect_err("a file");
        assert!(kept.to_string().contains("no socket"), "{kept}");
        assert_eq!(fs::read_to_string(&path).expect("kept"), "mine");
    }
}
