//! `redis-server` of one test: it listens on a Unix socket, and on a loopback port if the test needs it, writes nothing to
//! disk, and ends with the test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Time limit for a promotion: a Sentinel that found its own clock jump, as on a busy machine, does nothing for 30 s.
const PROMOTED_MAX: Duration = Duration::from_secs(90);

/// Time limit for the start of a server on a busy machine.
const START_MAX: Duration = Duration::from_secs(30);

pub(crate) struct RedisServer {
    process: Child,
    folder: TempDir,
    port: u16,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further options.
    pub(crate) fn with(options: &[&str]) -> Self {
        Self::at(0, options)
    }

    /// Starts a server that listens on a port as well.
    pub(crate) fn listening(options: &[&str]) -> Self {
        Self::at(free_port(), options)
    }

    fn at(port: u16, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let process = run(&folder, port, options);
        Self {
            process,
            folder,
            port,
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Address of the server's socket.
    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// Starts a replica of another server.
    pub(crate) fn replica_of(primary: &Self) -> Self {
        let follows = format!("127.0.0.1 {}", primary.port());
        let replica = Self::listening(&["--replicaof", &follows]);
        replica.until(&["INFO", "replication"], "master_link_status:up");
        replica
    }

    /// Starts a Sentinel that watches only the primary with the name `main`.
    pub(crate) fn sentinel_of(primary: &Self) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let socket = folder.path().join("socket");
        let lines = [
            "bind 127.0.0.1".to_owned(),
            format!("port {port}"),
            format!("unixsocket {}", socket.display()),
            format!("dir {}", folder.path().display()),
            format!("sentinel monitor main 127.0.0.1 {} 1", primary.port()),
            // However slow the machine is, a primary that runs is not taken for dead.
            "sentinel down-after-milliseconds main 3600000".to_owned(),
            "sentinel failover-timeout main 60000".to_owned(),
        ];
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, lines.join("\n")).expect("written");
        let mut command = Command::new("redis-server");
        command.arg(file).arg("--sentinel");
        let process = started(command, "+monitor master main");
        Self {
            process,
            folder,
            port,
        }
    }

    /// Starts a cluster of one node, which serves all slots.
    pub(crate) fn cluster() -> Self {
        let bus = free_port().to_string();
        let server = Self::listening(&["--cluster-enabled", "yes", "--cluster-port", &bus]);
        server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
        server.until(&["CLUSTER", "INFO"], "cluster_state:ok");
        server
    }

    /// Waits until the output of a command contains these words.
    pub(crate) fn until(&self, command: &[&str], words: &str) {
        let start = Instant::now();
        while !self.command(command).contains(words) {
            assert!(start.elapsed() < START_MAX, "{}", self.command(command));
            std::thread::yield_now();
        }
    }

    /// Has this Sentinel promote a replica, and waits until it has. An attempt that was given up is repeated.
    pub(crate) fn promote(&self, replica: &Self) {
        let start = Instant::now();
        while !replica
            .command(&["INFO", "replication"])
            .contains("role:master")
        {
            let told = self.command(&["SENTINEL", "FAILOVER", "main"]);
            assert!(start.elapsed() < PROMOTED_MAX, "{told}");
            std::thread::yield_now();
        }
    }

    /// Ends the server like a crash.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the server again, without data.
    pub(crate) fn start_again(&mut self) {
        self.process = run(&self.folder, self.port, &[]);
    }

    /// Runs a command by `redis-cli`, and returns its output.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .args(words)
            .output()
            .expect("redis-cli comes with redis-server: apt-get install redis-server");
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        text.trim_end().to_owned()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a free port below those that the system gives to connections, so that no other process takes it before the server
/// does. Each test process begins at different ports.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const PROCESSES: u32 = 1_200;
    const EACH: u32 = 8;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let begin = std::process::id() % PROCESSES * EACH;
    let free = |_| {
        let at = begin + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(FIRST + at % (PROCESSES * EACH)).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| port)
    };
    (0..PROCESSES).find_map(free).expect("a free port")
}

fn run(folder: &TempDir, port: u16, options: &[&str]) -> Child {
    let path = folder.path();
    let mut command = Command::new("redis-server");
    command
        .args(["--save", "", "--appendonly", "no"])
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .arg("--unixsocket")
        .arg(path.join("socket"))
        .arg("--dir")
        .arg(path)
        .args(["--repl-diskless-sync-delay", "0"])
        .args(options);
    // `Ready to …` on a port, `… is now ready to …` on a socket alone.
    started(command, "eady to accept connections")
}

/// Starts a process, waits until it has printed these words, and keeps reading its output afterwards.
fn started(mut command: Command, words: &'static str) -> Child {
    let started = command.stdout(Stdio::piped()).spawn();
    let mut process = started.expect("this test needs redis-server: apt-get install redis-server");
    let output = BufReader::new(process.stdout.take().expect("piped"));
    let (ready, wait) = sync_channel(1);
    std::thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if line.contains(words) {
                let _ = ready.try_send(());
            }
        }
    });
    if let Err(error) = wait.recv_timeout(START_MAX) {
        let _ = process.kill();
        let _ = process.wait();
        panic!("redis-server does not start: {error}");
    }
    process
}
