//! A running `redis-server` on a Unix socket in a folder of the test.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixStream;

use super::eventually;
use super::link::Link;

/// A running Redis. Dropping it ends the process.
pub struct Redis {
    process: Child,
    folder: TempDir,
    keeps: bool,
}

impl Redis {
    /// Starts a server that keeps nothing on disk, and waits until it listens.
    ///
    /// # Panics
    ///
    /// When `redis-server` is not installed.
    pub async fn start() -> Self {
        Self::starting(false).await
    }

    /// Starts a server that writes each change to disk before it answers, and waits until it listens.
    pub async fn start_keeping() -> Self {
        Self::starting(true).await
    }

    async fn starting(keeps: bool) -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let process = server(&folder, keeps);
        let redis = Self {
            process,
            folder,
            keeps,
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
        self.process.kill().expect("own child");
        self.process.wait().expect("own child");
        self.process = server(&self.folder, self.keeps);
        self.listens().await;
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

fn server(folder: &TempDir, keeps: bool) -> Child {
    Command::new("redis-server")
        .args(["--port", "0", "--save", "", "--appendfsync", "always"])
        .args(["--appendonly", if keeps { "yes" } else { "no" }])
        .arg("--unixsocket")
        .arg(folder.path().join("socket"))
        .arg("--dir")
        .arg(folder.path())
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
