//! Addresses for gateways of tests that run side by side.
//!
//! A port found by binding and releasing it may be given to the next test, or to an outgoing connection, before the gateway
//! binds it. So ports come from below the range that the kernel assigns, and each is held by a lock on a file of its name for
//! as long as the test's process lives.

use std::fs::{self, File, TryLockError};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Mutex;

/// Below Linux's default ephemeral range (32768–60999).
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// The locks that this process holds.
static HELD: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// An address that no other test on this machine uses.
///
/// # Panics
///
/// When every port is taken, or the lock files cannot be written.
pub fn free_address() -> SocketAddr {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-ports");
    fs::create_dir_all(&folder).expect("a folder for lock files");
    // Processes begin at different places, so that they do not compete for the first port.
    let span = PORTS.end - PORTS.start;
    let start = (std::process::id() % u32::from(span)) as u16;
    for step in 0..span {
        let port = PORTS.start + (start + step) % span;
        let lock = File::create(folder.join(port.to_string())).expect("a lock file");
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => panic!("cannot lock port {port}: {error}"),
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            HELD.lock().expect("not poisoned").push(lock);
            return address;
        }
    }
    panic!("every port of {PORTS:?} is taken");
}
