//! Messages to the service manager (`NOTIFY_SOCKET`), read from the socket of a manager.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::Gateway;

/// The longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of a manager.
struct Manager {
    folder: TempDir,
    socket: UnixDatagram,
}

impl Manager {
    fn listening() -> Self {
        let folder = TempDir::new().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { folder, socket }
    }

    fn address(&self) -> String {
        self.folder.path().join("notify").display().to_string()
    }

    /// The next message without signs of life and requests for more time.
    fn next(&self) -> Vec<String> {
        loop {
            let message = self.any();
            if !matches!(&*message[0], "WATCHDOG=1") && !message[0].starts_with("EXTEND") {
                return message;
            }
        }
    }

    /// The next message, a line each.
    fn any(&self) -> Vec<String> {
        let mut buffer = [0; 1024];
        let length = self.socket.recv(&mut buffer).expect("a message");
        let text = std::str::from_utf8(&buffer[..length]).unwrap();
        text.lines().map(str::to_owned).collect()
    }
}

#[tokio::test]
async fn a_service_manager_is_told_of_the_start_each_reload_and_the_stop() {
    let manager = Manager::listening();
    let gateway = Gateway::with_tools([("shared", "empty.py", "")])
        .env("NOTIFY_SOCKET", &manager.address())
        .start()
        .await;
    assert_eq!(manager.next(), ["READY=1"]);
    gateway.signal(Signal::HUP);
    let reload = manager.next();
    assert_eq!(reload[0], "RELOADING=1");
    let clock = reload[1].strip_prefix("MONOTONIC_USEC=").unwrap();
    assert!(clock.parse::<u64>().unwrap() > 0, "{reload:?}");
    assert_eq!(manager.next(), ["READY=1"]);
    gateway.signal(Signal::TERM);
    let stop = manager.next();
    assert_eq!(stop[0], "STOPPING=1");
    assert!(stop[1].starts_with("EXTEND_TIMEOUT_USEC="), "{stop:?}");
    gateway.ended().await;
}

#[tokio::test]
async fn a_watchdog_gets_signs_of_life_while_the_gateway_runs() {
    let manager = Manager::listening();
    let _gateway = Gateway::with_tools([("shared", "empty.py", "")])
        .env("NOTIFY_SOCKET", &manager.address())
        .env("WATCHDOG_USEC", "200000")
        .start()
        .await;
    let mut signs = 0;
    while signs < 3 {
        signs += usize::from(manager.any() == ["WATCHDOG=1"]);
    }
}

#[tokio::test]
async fn a_manager_that_reads_nothing_holds_up_no_start_no_call_and_no_stop() {
    let manager = Manager::listening();
    fill(&manager);
    let gateway = Gateway::with_tools([("shared", "empty.py", "")])
        .env("NOTIFY_SOCKET", &manager.address())
        .env("WATCHDOG_USEC", "20000")
        .start()
        .await;
    let health = reqwest::get(gateway.url("/health")).await.unwrap();
    assert_eq!(health.status(), 200);
    gateway.signal(Signal::TERM);
    gateway.ended().await;
}

/// Sends messages to the manager until its socket holds no more.
fn fill(manager: &Manager) {
    let socket = UnixDatagram::unbound().unwrap();
    socket.set_nonblocking(true).unwrap();
    while socket.send_to(b"full", manager.address()).is_ok() {}
}
