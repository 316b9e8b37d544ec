//! Running processes of `redis-server`, each on a Unix socket in a folder of the test.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
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

/// Options with which Redis writes each change to disk before it responds.
const KEEPS: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

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
        Self::with(&[&["--port", "0"][..], &KEEPS].concat()).await
    }

    /// Starts a server like [`Redis::start_keeping`] that also listens on `address`.
    pub async fn start_keeping_at(address: SocketAddr) -> Self {
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        Self::with(&[&listening(&ip, &port)[..], &KEEPS].concat()).await
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

/// Options of a server that listens on an address, also for other network namespaces.
fn listening<'a>(ip: &'a str, port: &'a str) -> Vec<&'a str> {
    let open = ["--bind", ip, "--port", port, "--protected-mode", "no"];
    // A primary sends its data to a new replica at once, instead of after 5 s.
    [&open[..], &["--repl-diskless-sync-delay", "0"]].concat()
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
    /// Addresses of the primary and of the replica, in this order.
    addresses: [SocketAddr; 2],
    sentinels: Vec<(Redis, SocketAddr)>,
}

impl Failover {
    /// Starts all of them and waits until a failover would succeed.
    ///
    /// # Panics
    ///
    /// When `redis-server` is not installed.
    pub async fn start() -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST).await
    }

    /// Starts the servers like [`Failover::start`], all at the IP address `address`.
    pub async fn start_at(address: Ipv4Addr) -> Self {
        let free = || SocketAddr::from((address, free_address().port()));
        let (first, second) = (free(), free());
        let (port, replicas_port) = (first.port().to_string(), second.port().to_string());
        let ip = address.to_string();
        let primary = Redis::with(&listening(&ip, &port)).await;
        let follows = format!("{ip} {port}");
        let options = listening(&ip, &replicas_port);
        let replica = Redis::with(&[&options[..], &["--replicaof", &follows]].concat()).await;
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            let at = free();
            sentinels.push((sentinel(at, first).await, at));
        }
        let failover = Self {
            primary,
            replica,
            addresses: [first, second],
            sentinels,
        };
        failover.follows().await;
        failover.replicated().await;
        failover
    }

    /// Waits until the Sentinels know each other and the replica, so that a failover would succeed.
    async fn replicated(&self) {
        for (sentinel, _) in &self.sentinels {
            eventually_within(
                PROMOTED,
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
    }

    /// Kills the primary, has the replica promoted, and starts the killed process again as the replica of the new primary.
    pub async fn failed_over(&mut self) {
        self.primary.kill();
        self.promoted().await;
        std::mem::swap(&mut self.primary, &mut self.replica);
        self.addresses.reverse();
        let primary = self.addresses[0];
        // A Sentinel that does not know the new primary yet would make it a replica of the restarted process, which has no data.
        for (sentinel, _) in &self.sentinels {
            eventually_within(PROMOTED, "the Sentinels name the new primary", async || {
                let named = sentinel.ask(&["sentinel", "get-master-addr-by-name", "main"]);
                let port = primary.port().to_string();
                (named.lines().nth(1) == Some(&port)).then_some(())
            })
            .await;
        }
        let follows = format!("{} {}", primary.ip(), primary.port());
        let arguments = &mut self.replica.arguments;
        match arguments.iter().position(|it| it == "--replicaof") {
            Some(at) => arguments[at + 1] = follows,
            None => arguments.extend(["--replicaof".to_owned(), follows]),
        }
        self.replica.killed_and_started_again().await;
        self.follows().await;
        self.replicated().await;
    }

    /// Waits until the replica has the data of the primary.
    async fn follows(&self) {
        eventually("the replica follows the primary", async || {
            let told = self.replica.ask(&["info", "replication"]);
            let follows = told.contains("master_link_status:up")
                && told.contains(&format!("master_port:{}\r", self.addresses[0].port()));
            follows.then_some(())
        })
        .await;
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
        format!("bind {}", at.ip()),
        "protected-mode no".to_owned(),
        format!("port {}", at.port()),
        format!("unixsocket {}", path.join("socket").display()),
        format!("dir {}", path.display()),
        format!(
            "sentinel monitor main {} {} 2",
            primary.ip(),
            primary.port()
        ),
        "sentinel down-after-milliseconds main 3600000".to_owned(),
        "sentinel failover-timeout main 60000".to_owned(),
    ];
    let file = path.join("sentinel.conf");
    fs::write(&file, lines.join("\n")).expect("written");
    let file = file.to_string_lossy().into_owned();
    Redis::run(vec![file, "--sentinel".to_owned()], folder).await
}
