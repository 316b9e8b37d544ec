//! Finds addresses in the configuration that cannot be bound: those of listeners, of the relay and for other replicas. The start
//! of a gateway would fail with them, because another program uses the address, this machine has no such address, or the folder
//! of a Unix socket is missing. An address in use is an error. The other faults are only warnings, since the configuration may be
//! checked on another machine, and a service manager may create the folder.
//!
//! Addresses of a gateway that runs on the same data directory are not reported: its configuration is usually checked before it
//! is reloaded. A running gateway stores its addresses in the data directory.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use tooldock_base::listening;
use tooldock_workers::servers::Finding;

use crate::config::{Effective, ListenAddress};
use crate::sockets;

/// Returns a finding for each address that cannot be bound.
pub(crate) fn findings(effective: &Effective) -> Vec<Finding> {
    let own = listening::addresses(&effective.data_dir);
    let listeners = effective.config.listeners.iter().enumerate();
    let refused = listeners.filter_map(|(index, listener)| {
        let error = refusal(&listener.address, &own)?;
        Some(Finding {
            is_error: error.kind() == io::ErrorKind::AddrInUse,
            place: format!("listener {}", listener.name),
            message: sockets::cannot_bind(effective, (index, listener), &error),
        })
    });
    let relay = effective.config.relay.socket().and_then(|path| {
        let data = &effective.data_dir;
        if path.parent() == Some(data) && !data.exists() {
            // A missing data directory is no fault: the start creates it before it binds the relay's socket there.
            return None;
        }
        let error = refusal(&ListenAddress::Unix(path.to_owned()), &own)?;
        Some(Finding {
            is_error: error.kind() == io::ErrorKind::AddrInUse,
            place: "relay.socket".to_owned(),
            message: format!("cannot bind {}: {error}", path.display()),
        })
    });
    let replicas = effective.replica_address().and_then(|(_, bound)| {
        let error = refusal(&ListenAddress::Tcp(bound), &own)?;
        Some(Finding {
            is_error: error.kind() == io::ErrorKind::AddrInUse,
            place: "replicas.address".to_owned(),
            message: format!("cannot bind {bound}: {error}"),
        })
    });
    refused.chain(relay).chain(replicas).collect()
}

/// Returns the reason why an address cannot be bound; `None` if it can be, or if it is in `own`, the addresses of the running
/// gateway.
fn refusal(address: &ListenAddress, own: &BTreeSet<String>) -> Option<io::Error> {
    if own.contains(&address.to_string()) {
        return None;
    }
    match address {
        ListenAddress::Tcp(address) => try_tcp(*address).err(),
        ListenAddress::Unix(path) => try_unix(path).err(),
    }
}

/// Binds an address for a moment, without listening there: a gateway that starts at the same time can still bind it.
fn try_tcp(address: SocketAddr) -> io::Result<()> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(bind(&socket, &address)?)
}

/// Returns an error if a process listens on this Unix socket, if another kind of file has its path, or if its folder is missing.
fn try_unix(path: &Path) -> io::Result<()> {
    let in_use = |what: &str| Err(io::Error::new(io::ErrorKind::AddrInUse, what));
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return Err(io::Error::new(io::ErrorKind::NotFound, sockets::NO_FOLDER));
    }
    match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return in_use(sockets::NO_SOCKET),
    }
    match UnixStream::connect(path) {
        Ok(_) => in_use(sockets::TAKEN),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn an_address_is_free_until_another_program_listens_there() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let taken = listener.local_addr().expect("bound");
        let own = BTreeSet::new();
        let error = refusal(&taken.into(), &own).expect("taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let everywhere = SocketAddr::from(([0, 0, 0, 0], taken.port()));
        assert!(refusal(&everywhere.into(), &own).is_some());
        assert!(refusal(&taken.into(), &[taken.to_string()].into()).is_none());
        drop(listener);
        // Two checks at once do not see each other.
        let socket = socket_with(
            AddressFamily::INET,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        );
        let socket = socket.expect("a socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("set");
        bind(&socket, &taken).expect("free");
        assert!(refusal(&taken.into(), &own).is_none());
    }

    #[test]
    fn an_address_of_another_machine_and_a_folder_that_is_not_there_are_told_of() {
        let own = BTreeSet::new();
        let elsewhere: SocketAddr = "192.0.2.1:7000".parse().expect("an address");
        let error = refusal(&elsewhere.into(), &own).expect("refused");
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("none/gw.sock");
        let error = refusal(&ListenAddress::Unix(socket), &own).expect("refused");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_unix_socket_is_free_until_a_process_listens_or_a_file_stands_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| ListenAddress::Unix(folder.path().join(name));
        let own = BTreeSet::new();
        assert!(refusal(&at("none.sock"), &own).is_none());
        let listener = UnixListener::bind(folder.path().join("live.sock")).expect("bound");
        let error = refusal(&at("live.sock"), &own).expect("taken");
        assert!(
            error.to_string().contains("another process listens"),
            "{error}"
        );
        assert!(refusal(&at("live.sock"), &[at("live.sock").to_string()].into()).is_none());
        drop(listener);
        assert!(
            refusal(&at("live.sock"), &own).is_none(),
            "a socket of a process that is gone"
        );
        fs::write(folder.path().join("file"), "mine").expect("written");
        assert!(refusal(&at("file"), &own).is_some());
        assert!(
            folder.path().join("live.sock").exists(),
            "nothing is removed"
        );
    }
}
