//! Channel between two gateways that transports packets with file descriptors: a Unix socket that preserves packet boundaries
//! (`SOCK_SEQPACKET`).
//!
//! The path of a data directory may be too long for a socket address. Therefore sockets are addressed through the file descriptor
//! of their folder.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::Pid;

use super::folder_of;

/// Maximum size of a packet in bytes. All addresses and names are shorter.
const PACKET_MAX: usize = 1024;

/// Maximum number of successors' connections that wait to be accepted.
const BACKLOG: i32 = 4;

/// The listening end of the channel between two gateways.
pub(super) struct ChannelListener(OwnedFd);

impl ChannelListener {
    /// Binds a socket to which only this user can connect. An existing file is replaced: it belongs to a gateway that has ended,
    /// because the lock of the data directory ensures that only one gateway binds the socket.
    ///
    /// # Errors
    ///
    /// Errors of the operating system.
    pub(super) fn bind(path: &Path) -> io::Result<Self> {
        let (folder, address) = addressed(path)?;
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = new_socket()?;
        bind(&socket, &address)?;
        drop(folder);
        // No other user can connect before the permissions are set: the socket refuses all connections until it listens.
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        listen(&socket, BACKLOG)?;
        Ok(Self(socket))
    }

    /// Waits for a connection.
    ///
    /// # Errors
    ///
    /// Errors of the operating system.
    pub(super) fn accept(&self) -> io::Result<Channel> {
        Ok(Channel(accept_with(&self.0, SocketFlags::CLOEXEC)?))
    }
}

/// Process id and user of the process at the other end of a connection.
pub(super) struct Peer {
    /// The process id; `None` if the process is in another PID namespace.
    pub(super) pid: Option<Pid>,
    pub(super) uid: u32,
}

/// A connected end of the channel between two gateways. Reads and writes block.
pub(super) struct Channel(OwnedFd);

impl Channel {
    /// Connects to a gateway.
    ///
    /// # Errors
    ///
    /// Errors of the operating system: the file does not exist, or no process listens there.
    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        let (_folder, address) = addressed(path)?;
        let socket = new_socket()?;
        connect(&socket, &address)?;
        Ok(Self(socket))
    }

    /// Process id and user of the process at the other end, as they were when it connected.
    ///
    /// # Errors
    ///
    /// Errors of the operating system.
    pub(super) fn peer(&self) -> io::Result<Peer> {
        let credentials = getsockopt(&self.0, PeerCredentials)?;
        Ok(Peer {
            pid: Pid::from_raw(credentials.pid()),
            uid: credentials.uid(),
        })
    }

    /// Sends a packet, together with a file descriptor if there is one.
    ///
    /// # Errors
    ///
    /// Errors of the operating system, or the other end was closed.
    pub(super) fn send(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(
            &self.0,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Waits for a packet. Returns its bytes and the file descriptor that was sent with it.
    ///
    /// # Errors
    ///
    /// Errors of the operating system, or the other end was closed.
    pub(super) fn receive(&self) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = vec![0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(
            &self.0,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        let mut descriptor = None;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptor = descriptors.last();
            }
        }
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(received.bytes);
        Ok((bytes, descriptor))
    }

    /// Waits for a packet with a time limit. The limit also applies to later packets.
    ///
    /// # Errors
    ///
    /// No packet arrived in time, or the errors of [`Channel::receive`].
    pub(super) fn receive_within(&self, limit: Duration) -> io::Result<Vec<u8>> {
        set_socket_timeout(&self.0, Timeout::Recv, Some(limit))?;
        Ok(self.receive()?.0)
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Creates the address of the socket at a path. The address is valid as long as the returned file descriptor of the folder is
/// open.
fn addressed(path: &Path) -> io::Result<(OwnedFd, SocketAddrUnix)> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::PATH;
    let folder = rustix::fs::open(folder_of(path)?, flags, Mode::empty())?;
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let short = Path::new("/proc/self/fd")
        .join(folder.as_raw_fd().to_string())
        .join(name);
    let address = SocketAddrUnix::new(short)?;
    Ok((folder, address))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn packets_keep_their_bounds_and_carry_descriptors_over_a_path_of_any_length() {
        let temp = tempfile::tempdir().expect("a folder");
        let folder = temp.path().join("d".repeat(120));
        fs::create_dir(&folder).expect("made");
        let path = folder.join("upgrade.sock");
        assert!(Channel::connect(&path).is_err());
        drop(ChannelListener::bind(&path).expect("bound"));
        let listener = ChannelListener::bind(&path).expect("a file that is left is replaced");
        let client = Channel::connect(&path).expect("connects");
        let server = listener.accept().expect("accepted");
        let peer = server.peer().expect("known");
        assert_eq!(peer.pid, Some(rustix::process::getpid()));
        assert_eq!(peer.uid, rustix::process::getuid().as_raw());

        let (mut one, other) = UnixStream::pair().expect("a pair");
        server.send(b"first", None).expect("sent");
        server.send(b"second", Some(other.as_fd())).expect("sent");
        drop(other);
        assert_eq!(client.receive().expect("came").0, b"first");
        let (bytes, descriptor) = client.receive().expect("came");
        assert_eq!(bytes, b"second");
        let mut passed = UnixStream::from(descriptor.expect("a descriptor"));
        passed.write_all(b"x").expect("written");
        let mut read = [0];
        std::io::Read::read_exact(&mut one, &mut read).expect("read");
        assert_eq!(&read, b"x");
        drop(server);
        let ended = client.receive().expect_err("closed").kind();
        assert_eq!(ended, io::ErrorKind::UnexpectedEof);
    }
}
