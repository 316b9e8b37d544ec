//! The bare filter: the gateway's HTTP library with a filter that answers every request with 401; a program of the
//! gateway's crate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::{Process, free_address};

const PROGRAM: &str = "bare_filter";
const READY_LIMIT: Duration = Duration::from_secs(10);

/// A running bare filter.
pub(crate) struct BareFilter {
    pub(crate) address: SocketAddr,
    process: Process,
    // Deleted after the process has ended.
    _folder: TempDir,
}

impl BareFilter {
    /// Starts the bare filter with as many threads as the gateway has.
    pub(crate) async fn start(program: &Path, threads: usize) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("tooldock-load-bare-").context("a temporary folder")?;
        let address = free_address()?;
        let mut command = Command::new(program);
        command.arg(address.to_string()).arg(threads.to_string());
        let log = folder.path().join("output.log");
        let mut process = Process::start("the bare filter", command, log)?;
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
}

/// Path of the bare filter in the folder of this program, if it was built; `None` in a debug build, since the comparison with
/// an unoptimised filter would favour the gateway.
pub(crate) fn program() -> Option<PathBuf> {
    if cfg!(debug_assertions) {
        return None;
    }
    let own = std::env::current_exe().ok()?;
    Some(own.with_file_name(PROGRAM)).filter(|file| file.is_file())
}
