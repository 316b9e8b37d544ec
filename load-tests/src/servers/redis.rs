//! A `redis-server` for the sessions of gateways, without persistence.

use std::process::Command;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Server;

const PROGRAM: &str = "redis-server";

/// The note of a scenario that has no Redis.
pub(crate) const MISSING: &str =
    "redis-server is not installed: no sessions in Redis (apt-get install redis-server)";

/// A running Redis.
pub(crate) struct Redis(Server);

impl Redis {
    /// Starts a server on loopback; `None` if none is installed.
    pub(crate) async fn start() -> anyhow::Result<Option<Self>> {
        if Command::new(PROGRAM).arg("--version").output().is_err() {
            return Ok(None);
        }
        let server = Server::start(PROGRAM, |folder, address| {
            let mut command = Command::new(PROGRAM);
            command
                .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
                .args(["--save", "", "--appendonly", "no"])
                .arg("--dir")
                .arg(folder);
            Ok(command)
        });
        Ok(Some(Self(server.await?)))
    }

    /// The URL for `sessions.store`.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.0.address)
    }

    /// Memory that Redis has allocated (`used_memory`), in bytes.
    pub(crate) async fn used_memory(&self) -> anyhow::Result<u64> {
        let mut connection = TcpStream::connect(self.0.address).await.context(PROGRAM)?;
        connection.write_all(b"INFO memory\r\nQUIT\r\n").await?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await?;
        let mut lines = answer.lines();
        let Some(used) = lines.find_map(|line| line.strip_prefix("used_memory:")) else {
            bail!("INFO memory answered {answer}");
        };
        used.trim().parse().context("used_memory")
    }
}
