//! The processes that a run starts; none of them outlives the run.

pub(crate) mod echo;
pub(crate) mod gateway;
pub(crate) mod nginx;
pub(crate) mod peers;
pub(crate) mod redis;

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::processes;

/// Time for a process to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);
/// Time for a server to accept connections.
const READY_LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);
/// Number of lines shown of the log of a server that did not start.
const LOG_LINES_SHOWN: usize = 15;

/// A server process in the foreground. Dropping it asks the process to end, and kills it and its children if it does
/// not.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a process with its output in `log`. Its input is empty but stays open, as some servers end with their input.
    fn start(name: &str, mut command: Command, log: PathBuf) -> anyhow::Result<Self> {
        let output = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let child = command
            .stdin(Stdio::piped())
            .stdout(output.try_clone().context("its log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` returns true, as long as the process runs.
    async fn until(
        &mut self,
        limit: Duration,
        mut ready: impl AsyncFnMut() -> bool,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        while !ready().await {
            if let Some(status) = self.child.try_wait().context("waiting for it")? {
                bail!(
                    "{} ended with {status}\n{}",
                    self.name,
                    last_lines(&self.log)
                );
            }
            self.in_time(deadline, "was not ready").await?;
        }
        Ok(())
    }

    /// Waits until the process has ended by itself.
    async fn ended(&mut self, limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + limit;
        while !self.has_ended() {
            self.in_time(deadline, "had not ended").await?;
        }
        Ok(())
    }

    /// Pauses before the next look at the process.
    async fn in_time(&self, deadline: Instant, what: &str) -> anyhow::Result<()> {
        if Instant::now() >= deadline {
            bail!("{} {what} in time\n{}", self.name, last_lines(&self.log));
        }
        sleep(PAUSE).await;
        Ok(())
    }

    /// Kills the process and its children without asking, for servers that ignore SIGTERM.
    fn kill(&mut self) {
        // The children first, while they can still be found.
        for process in processes::descendants(self.id()) {
            signal(process, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Blocking is acceptable: this also runs while a panic unwinds, when awaiting is not possible.
        if self.has_ended() {
            return;
        }
        signal(self.id(), Signal::TERM);
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if self.has_ended() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        self.kill();
    }
}

fn signal(process: u32, signal: Signal) {
    if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
        // The process may have ended already.
        let _ = kill_process(process, signal);
    }
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

/// An address on which no process listens. Another process may take it before it is used; the start then fails with an
/// error.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a free port")?;
    listener.local_addr().context("a free port")
}

/// A server on a free port of loopback, with a folder of its own.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    process: Process,
    // Deleted after the process has ended.
    _folder: TempDir,
}

impl Server {
    /// Starts a server and waits until it accepts connections. `command` gets its folder and its address.
    async fn start(
        name: &str,
        command: impl FnOnce(&Path, SocketAddr) -> anyhow::Result<Command>,
    ) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("tooldock-load-").context("a temporary folder")?;
        let address = free_address()?;
        let command = command(folder.path(), address)?;
        let mut process = Process::start(name, command, folder.path().join("output.log"))?;
        let ready = async || TcpStream::connect(address).await.is_ok();
        process.until(READY_LIMIT, ready).await?;
        Ok(Self {
            address,
            process,
            _folder: folder,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// The process and all that it has started.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let started = processes::descendants(self.id());
        std::iter::once(self.id()).chain(started).collect()
    }

    /// Anonymous memory of all its processes together, in KiB.
    pub(crate) fn anonymous_kib(&self) -> anyhow::Result<u64> {
        let each = self.processes().into_iter().map(processes::Memory::of);
        each.map(|memory| Ok(memory?.anonymous_kib)).sum()
    }
}

/// Starts the bare filter with as many threads as the gateway has: the gateway's HTTP library with a filter that answers every
/// request with 401, a program of the gateway's crate. `None` if it was not built, and in a debug build, since the comparison
/// with an unoptimised filter would favour the gateway.
pub(crate) async fn bare_filter(threads: usize) -> anyhow::Result<Option<Server>> {
    let own = std::env::current_exe().context("finding this program's own file")?;
    let program = own.with_file_name("bare_filter");
    if cfg!(debug_assertions) || !program.is_file() {
        return Ok(None);
    }
    let started = Server::start("the bare filter", |_, address| {
        let mut command = Command::new(program);
        command.arg(address.to_string()).arg(threads.to_string());
        Ok(command)
    });
    started.await.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str, folder: &Path) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start("sh", command, folder.join("log")).unwrap()
    }

    #[test]
    fn dropping_ends_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let process = start("exec sleep 600", folder.path());
        let entry = PathBuf::from(format!("/proc/{}", process.id()));
        assert!(entry.exists());
        drop(process);
        assert!(!entry.exists());
    }

    #[test]
    fn one_that_does_not_listen_ends_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = start("trap '' TERM; sleep 600", folder.path());
        let deadline = Instant::now() + Duration::from_secs(10);
        let children = loop {
            let children = processes::descendants(process.id());
            if !children.is_empty() {
                break children;
            }
            assert!(Instant::now() < deadline, "no child");
            std::thread::yield_now();
        };
        process.kill();
        assert!(process.has_ended());
        // Somebody else's child now, and a zombie until that one looks.
        let runs = |id: &u32| processes::program(*id).is_some();
        while children.iter().any(runs) {
            assert!(Instant::now() < deadline, "a child is left");
            std::thread::yield_now();
        }
    }

    #[tokio::test]
    async fn a_server_that_ends_at_its_start_is_reported_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let mut process = start("echo no such key; exit 2", folder.path());
        let error = process
            .until(Duration::from_secs(60), async || false)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("exit status: 2") && error.contains("no such key"),
            "{error}"
        );
    }
}
