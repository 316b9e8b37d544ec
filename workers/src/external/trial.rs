//! Trial of a Python server before it is served: a separate process imports its file and runs nothing.
//!
//! The trial shows at a reload the faults that would otherwise show at the first call: a file that cannot be imported, with its
//! line, or a server that registers nothing.

use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::time::timeout;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::redactor::Redactor;
use tooldock_process::child::output::{LastLine, OutputLimit, Pump, Stream};
use tooldock_process::child::{Child, Priority, Stdin};
use tooldock_process::worker::WorkerHost;

use super::process::process;
use super::spec::ExternalServer;

/// Time for the start and the end of the interpreter, in addition to the time limit of the import.
const SLACK: Duration = Duration::from_secs(15);
/// Maximum time for a process to end after SIGTERM. After that time it is killed.
const TERMINATE_GRACE: Duration = Duration::from_secs(2);
/// Maximum length of the process's answer, in bytes.
const ANSWER_MAX: u64 = 64 * 1024;

/// Result of a trial that succeeded: the file has a server that can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trial {
    /// True if the server registers no tool, resource or prompt; false if it registers any, or if its lists cannot be read.
    pub(crate) is_empty: bool,
}

#[derive(Deserialize)]
struct TrialAnswer {
    op: String,
    #[serde(default)]
    empty: bool,
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl Trial {
    /// Imports the file of a Python server. The last argument of the server's command names the file. `limit`: time limit of the
    /// import.
    ///
    /// # Errors
    ///
    /// `dependency_error` when a package is missing; `worker_unavailable` when the import fails for another reason or takes too
    /// long, or the file has no server. The message names the file, and the line if it is known.
    pub(crate) async fn run(
        server: &ExternalServer,
        host: &WorkerHost,
        limit: Duration,
    ) -> Result<Self, CallError> {
        let unavailable = |what: String| {
            let message = format!("the server of namespace {}: {what}", server.name);
            CallError::new(CallErrorCode::WorkerUnavailable, message)
        };
        let mut spec = process(server, &host.sandbox).await.map_err(unavailable)?;
        let at = spec.args.len().saturating_sub(1);
        let options = ["--check".to_owned(), limit.as_secs().max(1).to_string()];
        spec.args.splice(at..at, options.map(Into::into));
        spec.stdin = Stdin::Null;
        spec.priority = Priority::Starting;
        let servers = host.metrics.servers();
        let metrics = servers.processes_of(&server.name, host.metrics.processes());
        let spawned = Child::spawn(&spec, &host.guard, &metrics).await;
        let mut child = spawned.map_err(|error| unavailable(error.to_string()))?;
        let last = LastLine::default();
        let log = child.take_stderr().map(|reader| Pump {
            namespace: server.name.clone(),
            stream: Stream::Stderr,
            reader,
            limit: OutputLimit::new(servers.output_suppressed(&server.name))
                .hiding(Redactor::new(&server.spec.secrets))
                .explaining(host.sandbox.hints(&server.spec.sandbox, &server.name))
                .remembering(&last)
                .keeping(host.output.of(&server.name), Some(child.pid())),
            addressed: false,
        });
        let stdout = child.take_stdout();
        let log = async {
            if let Some(log) = log {
                log.log().await;
            }
        };
        let ended = async {
            let answer = timeout(limit + SLACK, answer(stdout)).await;
            // After its answer, the process has a short time to end. It may never end by itself, since the file may have started
            // threads that run forever.
            let exit = timeout(TERMINATE_GRACE, child.wait()).await;
            if exit.is_err() {
                child.stop(TERMINATE_GRACE).await;
            }
            (answer, exit)
        };
        let ((answer, exit), ()) = tokio::join!(ended, log);
        let Ok(answer) = answer else {
            return Err(unavailable(format!(
                "its file was not imported within {} s",
                (limit + SLACK).as_secs()
            )));
        };
        match answer {
            Some(answer) if answer.op == "checked" => Ok(Self {
                is_empty: answer.empty,
            }),
            Some(answer) => {
                let code = match &*answer.code {
                    "dependency_error" => CallErrorCode::DependencyError,
                    _ => CallErrorCode::WorkerUnavailable,
                };
                let message = server.without_secrets(&answer.message);
                Err(CallError::new(code, message))
            }
            None => {
                let said = last.line().map(|last| format!("; it said last: {last}"));
                let said = said.unwrap_or_default();
                let exit =
                    exit.map_or_else(|_| "closed its output".to_owned(), |it| it.to_string());
                Err(unavailable(format!(
                    "{exit} while its file was imported{said}"
                )))
            }
        }
    }
}

async fn answer(stdout: Option<impl AsyncRead + Unpin>) -> Option<TrialAnswer> {
    let mut lines = BufReader::new(stdout?.take(ANSWER_MAX)).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Ok(answer) = serde_json::from_str(&line) {
            return Some(answer);
        }
    }
    None
}
