//! The gateway's side of a job: starts the child, reads its progress and its answer, and removes all that is left of it.
//!
//! The child belongs to a task in the control runtime; the caller may be in another runtime. Dropping the future of a job
//! ends the child and all processes it started, in the background.

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

/// Maximum number of children that run at once.
const JOBS_MAX: usize = 2;
/// Maximum time that a job waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(60);
/// Maximum length of a line of a child, in bytes: an analysis of many files.
const LINE_MAX: u64 = 8 * 1024 * 1024;
/// Maximum number of progress lines that wait to be shown.
const PROGRESS_QUEUE: usize = 16;
/// Maximum number of bytes of a child's standard error that are kept for the log.
const STDERR_KEPT: usize = 4 * 1024;
/// Maximum time for a child to end after its last output.
const AFTER_OUTPUT: Duration = Duration::from_secs(2);
/// Maximum length of an address, package name or query, in bytes.
const ARGUMENT_MAX: usize = 2048;

/// Dependencies of the builder.
#[derive(Debug, Clone)]
pub struct BuilderHost {
    /// The executable that understands `__guard` and `__builder`; in production the gateway's own.
    pub program: PathBuf,
    /// The runtime that processes belong to.
    pub control: Handle,
    /// Metrics that count the children.
    pub metrics: Arc<WorkerMetrics>,
    /// Folder of the kept trees: `$DATA/repos`.
    pub repos: PathBuf,
}

/// Removes incomplete trees that builders of a killed gateway left. Trees that are being built stay.
pub async fn clear_leftovers(repos: PathBuf) {
    // The next job retries failed removals.
    let _ = tokio::task::spawn_blocking(move || TreeStore::new(repos).sweep()).await;
}

/// Reads repositories, packages and the MCP registry, each job in a separate child process.
#[derive(Debug)]
pub struct Builder {
    host: BuilderHost,
    config: ArcSwap<BuilderConfig>,
    turns: Arc<Semaphore>,
}

impl Builder {
    /// Creates a builder; it starts nothing until a job is requested.
    pub fn new(host: BuilderHost, config: BuilderConfig) -> Self {
        Self {
            host,
            config: ArcSwap::from_pointee(config),
            turns: Arc::new(Semaphore::new(JOBS_MAX)),
        }
    }

    /// Maximum time of a job.
    pub fn timeout(&self) -> Duration {
        self.config.load().timeout
    }

    /// Puts other settings in force for jobs that begin from now on.
    pub fn reconfigure(&self, config: BuilderConfig) {
        self.config.store(Arc::new(config));
    }

    /// Clones a repository and analyses it.
    ///
    /// # Errors
    ///
    /// The problem with the address or the repository, and the remedy.
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

    /// Reads a text file of a repository or package that was analysed, `repo_url` being that of its analysis.
    ///
    /// # Errors
    ///
    /// When the source was not analysed, or the path is no text file in it.
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
        // Progress comes as long as the job reports any; its end comes once.
        loop {
            tokio::select! {
                biased;
                Some(said) = heard.recv() => {
                    // Clients expect growing figures. git repeats itself, and the phases of small repositories overlap.
                    if said.percent > shown {
                        shown = said.percent;
                        progress(said);
                    }
                }
                answer = &mut job => return match answer {
                    Ok(Ok(BuilderLine::Error(error))) | Ok(Err(error)) => Err(error),
                    Ok(Ok(line)) => Ok(line),
                    // The runtime is gone, or shutting down.
                    Err(_) => Err(BuilderError::failed("the gateway is shutting down.")),
                },
            }
        }
    }
}

/// A child and its job, owned by a task in the control runtime.
struct Job {
    host: BuilderHost,
    request: BuilderRequest,
    said: mpsc::Sender<Progress>,
    cancelled: CancellationToken,
    /// Permit to run, released when the child has ended, not when its caller went away.
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
        // Either the child answers or its time is up; a caller that went away ends it early.
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
        // A child that has answered ends by itself. Any other is ended at once: nothing it holds is worth waiting for.
        let ended = answer.is_ok() && timeout(AFTER_OUTPUT, child.wait()).await.is_ok();
        if !ended {
            child.stop(Duration::ZERO).await;
        }
        if answer.is_err() {
            let store = TreeStore::new(self.host.repos.clone());
            // Errors do not matter: the next job removes incomplete trees, too.
            let _ = tokio::task::spawn_blocking(move || store.sweep()).await;
        }
        answer
    }

    /// Writes the request and reads until the child's answer.
    async fn converse(&self, child: &mut Child) -> Result<BuilderLine, BuilderError> {
        let mut request = serde_json::to_vec(&self.request)
            .map_err(|error| BuilderError::failed(format!("cannot write the request: {error}")))?;
        request.push(b'\n');
        // A request is smaller than the capacity of a pipe. A child that is gone is reported below.
        if let Some(stdin) = child.take_stdin() {
            let _ = rustix::io::write(&stdin, &request);
        }
        let (Some(stdout), Some(stderr)) = (child.take_stdout(), child.take_stderr()) else {
            return Err(no_answer());
        };
        let mut listen = pin!(self.listen(stdout));
        let mut words = pin!(last_words(stderr));
        let mut said = None;
        // Standard error is read beside standard output, so that the child never waits for it.
        let answer = loop {
            tokio::select! {
                answer = &mut listen => break answer,
                words = &mut words, if said.is_none() => said = Some(words),
            }
        };
        if let Some(answer) = answer {
            return Ok(answer);
        }
        // A child with unexpected output may still run.
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
                // Dropped if the queue is full: the child does not wait until its progress is shown.
                BuilderLine::Progress(progress) => _ = self.said.try_send(progress),
                answer => return Some(answer),
            }
        }
    }
}

/// The end of a child's standard error, for the log.
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
