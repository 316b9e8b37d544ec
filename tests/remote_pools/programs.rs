//! Copies of servers of others: processes that can be killed and started again on the same port.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::net::TcpStream;

use crate::support::ports::free_address;
use crate::support::programs::{node, python, root};
use crate::support::{READY_DEADLINE, eventually_within};

/// The maker of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    /// `server-everything` of the TypeScript SDK.
    Everything,
    /// A server of FastMCP, which records its calls.
    FastMcp,
}

/// A running copy. Dropping it ends the process.
pub struct Program {
    maker: Maker,
    pub address: SocketAddr,
    process: Child,
}

impl Program {
    /// Starts a copy, without waiting for it. `record` is the file for its calls.
    pub fn spawn(maker: Maker, record: &Path) -> Self {
        let address = free_address();
        Self {
            maker,
            address,
            process: start(maker, address, record),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.address)
    }

    /// Waits until it listens.
    pub async fn listens(&self) {
        eventually_within(READY_DEADLINE, "the server listens", || async {
            TcpStream::connect(self.address).await.ok()
        })
        .await;
    }

    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again on its port.
    pub async fn come_back(&mut self, record: &Path) {
        self.process = start(self.maker, self.address, record);
        self.listens().await;
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

fn start(maker: Maker, address: SocketAddr, record: &Path) -> Child {
    let port = address.port().to_string();
    let mut command = match maker {
        Maker::Everything => {
            let (mut node, packages) = node();
            let script = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
            node.arg(packages.join(script)).arg("streamableHttp");
            node
        }
        Maker::FastMcp => fast_mcp(&port, record),
    };
    command
        .env("PORT", port)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().expect("the server starts")
}

fn fast_mcp(port: &str, record: &Path) -> Command {
    let mut python = python("clients-fastmcp");
    let script = root().join("tests/fixtures/servers/fastmcp_http.py");
    python.arg(script).arg(port).arg(record);
    python
}
