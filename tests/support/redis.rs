//! A running `redis-server` on a Unix socket in a folder of the test. It keeps nothing on disk.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::UnixStream;

use super::eventually;

/// Dropping it ends the process.
pub struct Redis {
    process: Child,
    folder: TempDir,
}

impl Redis {
    /// Starts a server and waits until it listens.
    ///
    /// # Panics
    ///
    /// When `redis-server` is not installed.
    pub async fn start() -> Self {
        let folder = TempDir::new().expect("a temporary directory");
        let process = server(&folder);
        let redis = Self { process, folder };
        redis.listens().await;
        redis
    }

    /// The URL for `sessions.store`.
    pub fn url(&self) -> String {
        format!("redis+unix://{}/socket", self.folder.path().display())
    }

    /// Stops the process without ending it, or lets it go on.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a pid");
        kill_process(pid, signal).expect("signalled");
    }

    /// Ends the process and what it kept, and starts another one.
    pub async fn lost_and_started_again(&mut self) {
        self.process.kill().expect("own child");
        self.process.wait().expect("own child");
        self.process = server(&self.folder);
        self.listens().await;
    }

    /// The number of keys whose names fit a pattern.
    pub fn keys(&self, pattern: &str) -> usize {
        self.ask(&["--scan", "--pattern", pattern]).lines().count()
    }

    /// The length of the list whose name is the only one that fits a pattern; 0 if there is none.
    pub fn length(&self, pattern: &str) -> usize {
        let names = self.ask(&["--scan", "--pattern", pattern]);
        let length = self.ask(&["llen", names.trim()]);
        length.trim().parse().unwrap_or_default()
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let told = Command::new("redis-cli")
            .arg("-s")
            .arg(self.folder.path().join("socket"))
            .args(arguments)
            .output()
            .expect("redis-cli comes with redis-server");
        String::from_utf8_lossy(&told.stdout).into_owned()
    }

    async fn listens(&self) {
        let socket = self.folder.path().join("socket");
        eventually("redis-server listens", || async {
            UnixStream::connect(&socket).await.ok()
        })
        .await;
    }
}

fn server(folder: &TempDir) -> Child {
    Command::new("redis-server")
        .args([
            "--port",
            "0",
            "--save",
            "",
            "--appendonly",
            "no",
            "--unixsocket",
        ])
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
