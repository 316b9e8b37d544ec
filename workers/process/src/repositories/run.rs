//! The gateway's side of a job of the builder: starts the child process, reads its progress and its result, and removes anything
//! that it left.
//!
//! The child belongs to a task in the control runtime; the caller may be in another runtime. Dropping the future of a job ends
//! the child and all processes that it started, in the background.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::store::TreeStore;
use super::{
    Analysis, BuilderConfig, BuilderError, BuilderLine, BuilderRequest, Progress, RegistryEntry,
    RepoFile, Task,
};
use crate::child::variables::builder_variables;
use crate::child::{Child, Exit, Priority, ProcessSpec, Stdin};
use crate::metrics::WorkerMetrics;

/// Maximum number of builder processes that run at once; further jobs wait.
const JOBS_MAX: usize = 2;
/// Maximum time that a job waits until it may start; then it fails.
const TURN_WAIT: Duration = Duration::from_secs(60);
/// Maximum length of a line that a child writes, in bytes: the analysis of a large repository.
const LINE_MAX: u64 = 8 * 1024 * 1024;
/// Maximum number of progress messages that wait to be shown; further ones are dropped.
const PROGRESS_QUEUE: usize = 16;
/// Maximum number of bytes of a child's standard error that are kept for the log.
const STDERR_KEPT: usize = 4 * 1024;
/// Maximum time for a child to end after its result was read; then it is killed.
const AFTER_OUTPUT: Duration = Duration::from_secs(2);
/// Maximum length of an address, package name or query, in bytes.
const ARGUMENT_MAX: usize = 2048;

/// Executable, runtime, metrics and folder that the builder uses.
#[derive(Debug, Clone)]
pub struct BuilderHost {
    /// Executable that supports the commands `__guard` and `__builder`; in production the gateway's own.
    pub program: PathBuf,
    /// Runtime in which child processes are started and awaited.
    pub control: Handle,
    /// Metrics in which the children are counted.
    pub metrics: Arc<WorkerMetrics>,
    /// Folder of the stored trees, `$DATA/repos`.
    pub repos: PathBuf,
}

/// Removes incomplete trees that the builders of a killed gateway left. Trees that are still being written are not removed.
pub async fn clear_leftovers(repos: PathBuf) {
    // Errors are ignored: the next job tries the removal again.
    let _ = tokio::task::spawn_blocking(move || TreeStore::new(repos).sweep()).await;
}

/// Reads repositories, packages and the MCP registry. Each job runs in a separate child process.
#[derive(Debug)]
pub struct Builder {
    host: BuilderHost,
    config: ArcSwap<BuilderConfig>,
    turns: Arc<Semaphore>,
}

impl Builder {
    /// Creates a builder. No process is started until a job is requested.
    pub fn new(host: BuilderHost, config: BuilderConfig) -> Self {
        Self {
            host,
            config: ArcSwap::from_pointee(config),
            turns: Arc::new(Semaphore::new(JOBS_MAX)),
        }
    }

    /// Maximum duration of a job.
    pub fn timeout(&self) -> Duration {
        self.config.load().timeout
    }

    /// Changes the settings for jobs that begin from now on.
    pub fn reconfigure(&self, config: BuilderConfig) {
        self.config.store(Arc::new(config));
    }

    /// Clones a repository and analyses it.
    ///
    /// # Errors
    ///
    /// Describes the problem with the address or the repository, and the remedy.
    pub async fn analyze_repo(
        &self,
        repo_url: &str,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Analysis, BuilderError> {
        let task = Task::AnalyzeRepo(argument("repo_url", repo_url)?);
        analysis(self.run(task, progress).await?)
    }

    /// Downloads the source of an npm or PyPI package and analyses it.
    ///
    /// # Errors
    ///
    /// As [`Builder::analyze_repo`].
    pub async fn analyze_package(
        &self,
        package: &str,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Analysis, BuilderError> {
        let task = Task::AnalyzePackage(argument("package", package)?);
        analysis(self.run(task, progress).await?)
    }

    /// Searches the MCP registry.
    ///
    /// # Errors
    ///
    /// When the registry cannot be reached, or its response is not valid.
    pub async fn search_registry(&self, query: &str) -> Result<Vec<RegistryEntry>, BuilderError> {
        let task = Task::SearchRegistry(argument("query", query)?);
        match self.run(task, &mut |_| {}).await? {
            BuilderLine::Registry(entries) => Ok(entries),
            _ => Err(no_answer()),
        }
    }

    /// Reads a text file of an analysed repository or package. `repo_url` must be the URL in the result of the analysis.
    ///
    /// # Errors
    ///
    /// When the repository was not analysed, or the path is not that of a text file in it.
    pub async fn read_repo_file(
        &self,
        repo_url: &str,
        path: &str,
    ) -> Result<RepoFile, BuilderError> {
        let (source, path) = (argument("repo_url", repo_url)?, path.to_owned());
        let store = TreeStore::new(self.host.repos.clone());
        tokio::task::spawn_blocking(move || store.read(&source, &path))
            .await
            .map_err(|_| no_answer())?
    }

    async fn run(
        &self,
        task: Task,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<BuilderLine, BuilderError> {
        let turn = timeout(TURN_WAIT, Arc::clone(&self.turns).acquire_owned()).await;
        let Ok(Ok(turn)) = turn else {
            return Err(BuilderError::timed_out(format!(
                "{JOBS_MAX} other clones or analyses have been running for {} seconds. Try again when they are done.",
                TURN_WAIT.as_secs()
            )));
        };
        let request = BuilderRequest {
            task,
            repos: self.host.repos.clone(),
            config: BuilderConfig::clone(&self.config.load()),
        };
        let cancelled = CancellationToken::new();
        let _cancel_on_drop = cancelled.clone().drop_guard();
        let (said, mut heard) = mpsc::channel(PROGRESS_QUEUE);
        let job = Job {
            host: self.host.clone(),
            request,
            said,
            cancelled,
            _turn: turn,
        };
        let mut job = self.host.control.spawn(job.run());
        let mut shown = 0;
        // Progress is shown until the job's result arrives.
        loop {
            tokio::select! {
                biased;
                Some(said) = heard.recv() => {
                    // Lower figures are not shown, since clients expect growing ones: git reports phases repeatedly, and phases
                    // may overlap.
                    if said.percent > shown {
                        shown = said.percent;
                        progress(said);
                    }
                }
                answer = &mut job => return match answer {
                    Ok(Ok(BuilderLine::Error(error))) | Ok(Err(error)) => Err(error),
                    Ok(Ok(line)) => Ok(line),
                    // The task was cancelled, because its runtime is being shut down.
                    Err(_) => Err(BuilderError::failed("the gateway is shutting down.")),
                },
            }
        }
    }
}

/// A job with its child process, owned by a task in the control runtime.
struct Job {
    host: BuilderHost,
    request: BuilderRequest,
    said: mpsc::Sender<Progress>,
    cancelled: CancellationToken,
    /// Permit to run a job. It is released when the child has ended, not when the caller drops its future.
    _turn: OwnedSemaphorePermit,
}

impl Job {
    async fn run(self) -> Result<BuilderLine, BuilderError> {
        let spec = ProcessSpec {
            program: self.host.program.clone(),
            args: vec!["__builder".into()],
            env: builder_variables(),
            cwd: "/".into(),
            stdin: Stdin::Piped,
            priority: Priority::Low,
            sandbox: None,
        };
        let processes = self.host.metrics.processes();
        let child = Child::spawn(&spec, &self.host.program, processes).await;
        let mut child = child.map_err(|error| {
            BuilderError::failed(format!("cannot start the builder process: {error}"))
        })?;
        // Waits for the child's result, the time limit, or the cancellation by the caller.
        let outcome = tokio::select! {
            outcome = timeout(self.request.config.timeout, self.converse(&mut child)) => Some(outcome),
            () = self.cancelled.cancelled() => None,
        };
        let answer = match outcome {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Err(BuilderError::timed_out(format!(
                "not finished after {}. A smaller repository may be; the limit is the key builder.timeout.",
                humantime(self.request.config.timeout)
            ))),
            None => Err(BuilderError::failed("the call was cancelled.")),
        };
        // A child that has sent its result ends by itself. Otherwise it is ended at once, since it has nothing to save.
        let ended = answer.is_ok() && timeout(AFTER_OUTPUT, child.wait()).await.is_ok();
        if !ended {
            child.stop(Duration::ZERO).await;
        }
        if answer.is_err() {
            let store = TreeStore::new(self.host.repos.clone());
            // Errors are ignored: the next job removes incomplete trees, too.
            let _ = tokio::task::spawn_blocking(move || store.sweep()).await;
        }
        answer
    }

    /// Sends the request to the child, and reads its output until the result.
    async fn converse(&self, child: &mut Child) -> Result<BuilderLine, BuilderError> {
        let mut request = serde_json::to_vec(&self.request)
            .map_err(|error| BuilderError::failed(format!("cannot write the request: {error}")))?;
        request.push(b'\n');
        // The write does not block, since a request is smaller than the capacity of a pipe. If the child has ended, the code
        // below reports it.
        if let Some(stdin) = child.take_stdin() {
            let _ = rustix::io::write(&stdin, &request);
        }
        let (Some(stdout), Some(stderr)) = (child.take_stdout(), child.take_stderr()) else {
            return Err(no_answer());
        };
        let mut listen = pin!(self.listen(stdout));
        let mut words = pin!(last_words(stderr));
        let mut said = None;
        // Standard error is read at the same time as standard output; otherwise the child could block when that pipe is full.
        let answer = loop {
            tokio::select! {
                answer = &mut listen => break answer,
                words = &mut words, if said.is_none() => said = Some(words),
            }
        };
        if let Some(answer) = answer {
            return Ok(answer);
        }
        // The child may still run, if the output was not valid.
        let exit = match timeout(AFTER_OUTPUT, child.wait()).await {
            Ok(exit) => exit,
            Err(_) => child.stop(Duration::ZERO).await,
        };
        let said = match said {
            Some(said) => said,
            None => timeout(AFTER_OUTPUT, words).await.unwrap_or_default(),
        };
        tracing::warn!(%exit, stderr = said, "a builder process ended without an answer");
        Err(BuilderError::failed(match exit {
            Exit::Signal(_) | Exit::Code(134) => format!(
                "the process that read the repository was ended ({exit}): something in it takes more memory than allowed, or \
                 breaks a parser. Read single files of it elsewhere."
            ),
            _ => format!(
                "the process that read the repository failed ({exit}); its reason is in the gateway's log."
            ),
        }))
    }

    async fn listen(&self, stdout: impl AsyncRead + Unpin) -> Option<BuilderLine> {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut bounded = (&mut stdout).take(LINE_MAX);
            if bounded.read_until(b'\n', &mut line).await.ok()? == 0 {
                return None;
            }
            match serde_json::from_slice(&line).ok()? {
                // If the queue is full, the message is dropped, so that the child need not wait until its progress is shown.
                BuilderLine::Progress(progress) => _ = self.said.try_send(progress),
                answer => return Some(answer),
            }
        }
    }
}

/// Reads a child's standard error to its end, and returns its last bytes for the log.
async fn last_words(mut stderr: impl AsyncRead + Unpin) -> String {
    let mut kept = Vec::new();
    let mut chunk = [0; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        kept.extend_from_slice(&chunk[..read]);
        let surplus = kept.len().saturating_sub(STDERR_KEPT);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}

fn argument(name: &str, value: &str) -> Result<String, BuilderError> {
    let value = value.trim();
    if value.is_empty() || value.len() > ARGUMENT_MAX {
        return Err(BuilderError::invalid(format!(
            "`{name}` must have between 1 and {ARGUMENT_MAX} bytes."
        )));
    }
    if value.chars().any(char::is_control) {
        return Err(BuilderError::invalid(format!(
            "`{name}` holds a control character."
        )));
    }
    Ok(value.to_owned())
}

fn analysis(line: BuilderLine) -> Result<Analysis, BuilderError> {
    match line {
        BuilderLine::Analysis(analysis) => Ok(analysis),
        _ => Err(no_answer()),
    }
}

fn no_answer() -> BuilderError {
    BuilderError::failed("the builder process gave no answer.")
}

fn humantime(duration: Duration) -> String {
    format!("{duration:?}")
}
