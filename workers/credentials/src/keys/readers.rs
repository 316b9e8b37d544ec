//! Notifies running gateways of changes of the file of API keys that they use.
//!
//! ```text
//! $DATA/keys.json.gateways/   one socket for each running gateway
//!   writer ── connects, after the file is replaced ──▶ gateway ── reads the file ──▶ answers
//! ```
//!
//! A writer waits for the answers, so a new key is valid, or a revoked key invalid, when the writer's command returns. A gateway
//! binds its socket before it reads the file for the first time, so it does not miss a change that is made in between. If a
//! notification fails, the gateway still detects the change, since it checks the file several times a second.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Suffix that, appended to the path of the file of keys, gives the path of the folder with the gateways' sockets.
const SUFFIX: &str = ".gateways";

/// Maximum time that a writer waits for the answers of all gateways together.
const PATIENCE: Duration = Duration::from_secs(5);

/// Maximum number of running gateways that a process waits for after it has changed the keys. Each gateway has a socket;
/// sockets beyond this number are ignored.
const READERS_MAX: usize = 64;

/// Answer that a gateway sends to the writer after it has read the changed file.
pub(super) const OBEYED: &[u8] = b"read\n";

/// The socket on which a running gateway is notified of changes of its file of keys. Dropping it removes the socket.
#[derive(Debug)]
pub struct ChangeSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ChangeSocket {
    /// Binds the socket of this process next to the file of keys, before the file is read. Sockets of processes that have ended
    /// are removed.
    ///
    /// # Errors
    ///
    /// When the folder cannot be created or written.
    pub fn bind(keys: &Path) -> io::Result<Self> {
        let folder = folder_of(keys);
        if let Some(parent) = folder.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let opened = open(&folder)?;
        for name in sockets(&folder) {
            if connected(&opened, &name)
                .is_err_and(|it| it.kind() == io::ErrorKind::ConnectionRefused)
            {
                let _ = fs::remove_file(folder.join(&name));
            }
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let name = format!("{:016x}.sock", u64::from_ne_bytes(random));
        let listener = UnixListener::bind(short(&opened, name.as_ref()))?;
        listener.set_nonblocking(true)?;
        let path = folder.join(name);
        Ok(Self { listener, path })
    }

    /// A duplicate of the listening socket, to accept the connections of writers.
    pub(super) fn listener(&self) -> io::Result<UnixListener> {
        self.listener.try_clone()
    }
}

impl Drop for ChangeSocket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Result of notifying the running gateways of a change: numbers of those that confirmed it in time, and of the others.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct NotifiedGateways {
    /// Number of gateways that confirmed in time that they have read the changed file.
    pub(super) confirmed: usize,
    /// Number of gateways that did not confirm in time that they have read the changed file.
    pub(super) behind: usize,
}

/// Notifies all running gateways, and waits until they have read the changed file or the time is over.
pub(super) fn await_readers(keys: &Path) -> NotifiedGateways {
    let folder = folder_of(keys);
    let Ok(opened) = open(&folder) else {
        return NotifiedGateways::default();
    };
    let deadline = Instant::now() + PATIENCE;
    let mut heard = NotifiedGateways::default();
    let mut asked = Vec::new();
    for name in sockets(&folder) {
        match connected(&opened, &name) {
            Ok(stream) => asked.push(stream),
            // The socket is gone, or no process listens on it: the gateway has ended.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
                ) => {}
            Err(_) => heard.behind += 1,
        }
    }
    for mut stream in asked {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut answer = [0; OBEYED.len()];
        let read = stream
            .set_read_timeout(Some(left.max(Duration::from_millis(1))))
            .and_then(|()| stream.read_exact(&mut answer));
        match read {
            Ok(()) if answer == *OBEYED => heard.confirmed += 1,
            // The gateway ended while the writer waited for its answer.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset
                ) => {}
            _ => heard.behind += 1,
        }
    }
    heard
}

fn folder_of(keys: &Path) -> PathBuf {
    let mut folder = OsString::from(keys);
    folder.push(SUFFIX);
    folder.into()
}

fn open(folder: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    Ok(rustix::fs::open(folder, flags, Mode::empty())?)
}

/// The names of the gateways' sockets in the folder, in no particular order.
fn sockets(folder: &Path) -> Vec<OsString> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let names = names.filter(|name| Path::new(name).extension().is_some_and(|it| it == "sock"));
    names.take(READERS_MAX).collect()
}

/// A path to an entry of an open folder that is short enough for the address of a Unix socket, even if the folder's own path
/// is too long.
fn short(folder: &OwnedFd, name: &Path) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd())).join(name)
}

/// Connects to a socket without blocking, since no gateway may be listening on it.
fn connected(folder: &OwnedFd, name: &OsString) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(short(folder, name.as_ref()))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &address)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_a_gateway_that_was_killed_is_waited_for_by_nobody_and_removed_by_the_next() {
        let long = tempfile::tempdir().unwrap();
        // Longer than the maximum address of a socket.
        let keys = long.path().join("x".repeat(200)).join("keys.json");
        assert_eq!(await_readers(&keys).behind, 0);
        let first = ChangeSocket::bind(&keys).unwrap();
        let second = ChangeSocket::bind(&keys).unwrap();
        assert!(first.path.exists(), "it lives");
        let left = first.path.clone();
        drop((first, second));
        assert!(!left.exists());
        let folder = folder_of(&keys);
        drop(UnixListener::bind(short(&open(&folder).unwrap(), Path::new("dead.sock"))).unwrap());
        assert_eq!(await_readers(&keys).behind, 0);
        let _third = ChangeSocket::bind(&keys).unwrap();
        assert_eq!(sockets(&folder).len(), 1);
    }
}
