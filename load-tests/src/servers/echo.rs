//! The echo server: over pipes, for the gateway and its peers; over HTTP, for nginx; and without a front.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::time::timeout;

use super::Server;
use crate::load::pipes::Pipes;
use crate::processes;
use crate::session::{HELLO, READY};

const PROGRAM: &str = "tooldock-load-echo";
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// The protocol versions that the server supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    /// The versions that begin with `initialize`.
    Legacy,
    /// The versions that begin with `initialize`, and 2026-07-28.
    Dual,
}

impl Era {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Dual => "dual",
        }
    }
}

/// Path of the echo server's program.
#[derive(Debug, Clone)]
pub(crate) struct EchoProgram(PathBuf);

impl EchoProgram {
    /// Finds the program in the folder of this one.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("finding this program's own file")?;
        // Resolved as in `/proc`, so that its processes are recognized.
        let path = own.with_file_name(PROGRAM).canonicalize();
        let path = path.with_context(|| {
            format!(
                "no {PROGRAM} beside this program: build it with `cargo build --release --package tooldock-load-tests`"
            )
        })?;
        ensure!(
            path.to_str().is_some_and(|path| !path.contains('\'')),
            "a path that a shell cannot take as it is: {}",
            path.display()
        );
        Ok(Self(path))
    }

    /// The command line of the echo server.
    pub(crate) fn command(&self, era: Era) -> Vec<String> {
        vec![
            self.0.to_string_lossy().into_owned(),
            "--era".to_owned(),
            era.name().to_owned(),
        ]
    }

    /// Starts an echo server that listens for HTTP.
    pub(crate) async fn over_http(&self) -> anyhow::Result<Server> {
        let started = Server::start("the HTTP application", |_, address| {
            let mut command = Command::new(&self.0);
            command.args(["--era", "dual", "--http", &address.to_string()]);
            Ok(command)
        });
        started.await
    }

    /// Returns true if a process runs this program.
    pub(crate) fn is_run_by(&self, process: u32) -> bool {
        processes::program(process).is_some_and(|program| program == self.0)
    }

    /// The processes below another one that run this program for an era.
    pub(crate) fn run_below(&self, process: u32, era: Era) -> Vec<u32> {
        let all = processes::descendants(process).into_iter();
        let of_era = |process: &u32| {
            let arguments = processes::arguments(*process);
            self.is_run_by(*process) && arguments.last().is_some_and(|last| last == era.name())
        };
        all.filter(of_era).collect()
    }
}

/// An echo server on pipes, opened as a client before 2026-07-28 does. Dropping it ends the process.
pub(crate) struct Echo {
    child: Child,
}

impl Echo {
    pub(crate) async fn start(program: &EchoProgram) -> anyhow::Result<(Self, Pipes)> {
        let command = program.command(Era::Legacy);
        let child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the echo server")?;
        let mut echo = Self { child };
        let input = echo.child.stdin.take().context("its input")?;
        let output = echo.child.stdout.take().context("its output")?;
        let mut pipes = Pipes::new(input, output).context("its pipes")?;
        let opened = pipes.open(HELLO, READY);
        let answer = timeout(OPEN_LIMIT, opened).await.context("no answer")??;
        ensure!(answer.contains(PROGRAM), "initialize answered {answer}");
        Ok((echo, pipes))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
