//! Running processes of `redis-server`, each on a Unix socket in a folder of the test.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixStream;

use super::link::Link;
use super::ports::free_address;
use super::{eventually, eventually_within};

/// Time limit for a promotion: a Sentinel that found its own clock jump, as on a busy machine, does nothing for 30 s.
const PROMOTED: Duration = Duration::from_secs(90);

/// A Redis. Dropping it ends the process.
pub struct Redis {
    process: Child,
    folder: TempDir,
    arguments: Vec<String>,
}

impl Redis {
    /// Starts a server that keeps nothing on disk, and waits until it listens.
    ///
    /// # Panics
    ///
    /// When `redis-server` is not installed.
    pub async fn start() -> Self {
        Self::with(&["--port", "0"]).await
    }

    /// Starts a server that writes each change to disk before it answers, and waits until it listens.
    pub async fn start_keeping() -> Self {
        let keeps = ["--appendonly", "yes", "--appendfsync", "always"];
        Self::with(&[&["--port", "0"][..], &keeps].concat()).await
    }

    async fn with(options: &[&str]) -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let socket = folder.path().join("socket");
        let (path, socket) = (folder.path().to_string_lossy(), socket.to_string_lossy());
        let kept = ["--save", "", "--dir", &path, "--unixsocket", &socket];
        let arguments = options.iter().chain(&kept).map(|it| (*it).to_owned());
        let arguments = arguments.collect();
        Self::run(arguments, folder).await
    }

    async fn run(arguments: Vec<String>, folder: TempDir) -> Self {
        let redis = Self {
            process: server(&arguments),
            folder,
            arguments,
        };
        redis.listens().await;
        redis
    }

    /// The URL for `sessions.store`.
    pub fn url(&self) -> String {
        url(&self.socket())
    }

    /// A link to the server that can be cut, with the URL for `sessions.store`.
    pub fn link(&self) -> (Link, String) {
        let link = Link::to(self.socket());
        let url = url(&link.socket());
        (link, url)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Stops the process without ending it, or lets it continue.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a pid");
        kill_process(pid, signal).expect("signalled");
    }

    /// Kills the process and starts another one, which reads the state that this one has kept on disk.
    pub async fn killed_and_started_again(&mut self) {
        self.kill();
        self.process = server(&self.arguments);
        self.listens().await;
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process.kill().expect("own child");
        self.process.wait().expect("own child");
    }

    /// The number of keys whose names fit a pattern.
    pub fn keys(&self, pattern: &str) -> usize {
        self.names(pattern).lines().count()
    }

    /// The names of keys that fit a pattern, each on a line.
    pub fn names(&self, pattern: &str) -> String {
        self.ask(&["--scan", "--pattern", pattern])
    }

    /// The length of the list whose name is the only one that fits a pattern; 0 if there is none.
    pub fn length(&self, pattern: &str) -> usize {
        let names = self.names(pattern);
        let length = self.ask(&["llen", names.trim()]);
        length.trim().parse().unwrap_or_default()
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let told = Command::new("redis-cli")
            .arg("-s")
            .arg(self.socket())
            .args(arguments)
            .output()
            .expect("redis-cli comes with redis-server");
        String::from_utf8_lossy(&told.stdout).into_owned()
    }

    async fn listens(&self) {
        let socket = self.socket();
        eventually("redis-server listens", || async {
            UnixStream::connect(&socket).await.ok()
        })
        .await;
    }
}

fn url(socket: &Path) -> String {
    format!("redis+unix://{}", socket.display())
}

fn server(arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server is installed: .ci/prerequisites tests")
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A primary, its replica, and three Sentinels that promote the replica once they are told to.
pub struct Failover {
    pub primary: Redis,
    pub replica: Redis,
    sentinels: Vec<(Redis, SocketAddr)>,
}

impl Failover {
    /// Starts all of them and waits until a failover would succeed.
    ///
    /// # Panics
    ///
    /// When `redis-server` is not installed.
    pub async fn start() -> Self {
        let (first, second) = (free_address(), free_address());
        let (port, replicas_port) = (first.port().to_string(), second.port().to_string());
        let primary = Redis::with(&["--bind", "127.0.0.1", "--port", &port]).await;
        let follows = format!("127.0.0.1 {port}");
        let options = ["--bind", "127.0.0.1", "--port", &replicas_port];
        let replica = Redis::with(&[&options[..], &["--replicaof", &follows]].concat()).await;
        eventually("the replica follows the primary", async || {
            let told = replica.ask(&["info", "replication"]);
            told.contains("master_link_status:up").then_some(())
        })
        .await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let at = free_address();
            sentinels.push((sentinel(at, first).await, at));
        }
        let failover = Self {
            primary,
            replica,
            sentinels,
        };
        for (sentinel, _) in &failover.sentinels {
            eventually(
                "the Sentinels know each other and the replica",
                async || {
                    let quorum = sentinel.ask(&["sentinel", "ckquorum", "main"]);
                    let replicas = sentinel.ask(&["sentinel", "replicas", "main"]);
                    let all = quorum.contains("OK 3 usable")
                        && replicas.contains("master-link-status\nok");
                    all.then_some(())
                },
            )
            .await;
        }
        failover
    }

    /// The URL for `sessions.store`.
    pub fn url(&self) -> String {
        let addresses = self.sentinels.iter().map(|(_, at)| at.to_string());
        let addresses: Vec<_> = addresses.collect();
        format!("redis+sentinel://{}/main", addresses.join(","))
    }

    /// Has the Sentinels promote the replica, and waits until they have.
    ///
    /// They are told to, again where an attempt was given up, and do not notice the end of the primary by themselves: a Sentinel
    /// promotes no replica that lost its primary ten times `down-after-milliseconds` before the Sentinel noticed. With a value that
    /// is short enough for a test, that time passes on a busy machine, and then no replica is good enough for ever.
    pub async fn promoted(&self) {
        let (sentinel, _) = &self.sentinels[0];
        eventually_within(PROMOTED, "the replica is the primary", async || {
            let told = self.replica.ask(&["info", "replication"]);
            if told.contains("role:master") {
                return Some(());
            }
            sentinel.ask(&["sentinel", "failover", "main"]);
            None
        })
        .await;
    }
}

/// Starts a Sentinel for the primary at that address, which it does not take for dead by itself, however slow the machine is.
async fn sentinel(at: SocketAddr, primary: SocketAddr) -> Redis {
    let folder = TempDir::new().expect("a temporary directory");
    let path = folder.path();
    let lines = [
        "bind 127.0.0.1".to_owned(),
        format!("port {}", at.port()),
        format!("unixsocket {}", path.join("socket").display()),
        format!("dir {}", path.display()),
        format!("sentinel monitor main 127.0.0.1 {} 2", primary.port()),
        "sentinel down-after-milliseconds main 3600000".to_owned(),
        "sentinel failover-timeout main 60000".to_owned(),
    ];
    let file = path.join("sentinel.conf");
    fs::write(&file, lines.join("\n")).expect("written");
    let file = file.to_string_lossy().into_owned();
    Redis::run(vec![file, "--sentinel".to_owned()], folder).await
}
