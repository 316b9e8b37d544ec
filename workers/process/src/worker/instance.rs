//! A process of a worker, from its spawn to the last of its descendants.
//!
//! ```text
//! spawn ──▶ ready line ──▶ connect, greeting ──▶ serve ──▶ drain ──▶ shutdown op ──▶ SIGTERM ──▶ SIGKILL
//!   └───────────┴── failed ────┴──────────────────┴─ ended unasked ─────────────────────▲
//! ```
//!
//! An instance reports events and receives a single order: to finish, and the latest time for that. It deliberately does not
//! decide if another process follows.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::redactor::Redactor;

use super::blocked::BlockedLoop;
use super::boot::{self, Announcement, OP_PREFIX};
use super::rpc::{Connections, Links, RpcCloseReason};
use super::sync_waits::SyncWaits;
use super::{Declarations, WorkerHost, WorkerSpec};
use crate::child::confine::KeptPath;
use crate::child::output::{Divert, OutputLimit, Pump, Stream};
use crate::child::{Child, Exit, Priority, ProcessSpec, Stdin};
use crate::environment::paths_of;
use crate::metrics::NamespaceMetrics;
use crate::sandbox::{ProcessFacts, SandboxHost};

/// Maximum time for a process to end after it was asked to end.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(3);
/// Maximum time for a process to end after SIGTERM; it is killed then.
const TERMINATE_GRACE: Duration = Duration::from_secs(2);
/// Maximum wait for the exit status of a process that closed its connection; the status names the cause in the log.
const CAUSE_WAIT: Duration = Duration::from_millis(200);
/// Maximum time of reading the last output of a process that ended.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of unread announcements (messages outside a call) of a process. A process sends only a few in its lifetime.
const ANNOUNCEMENTS: usize = 16;

/// Report of an instance to the supervisor.
#[derive(Debug)]
pub(super) enum Report {
    /// The process was started.
    Started { pid: u32 },
    /// The process accepts calls.
    Booted {
        declared: Arc<Declarations>,
        links: Arc<Links>,
    },
    /// The files differ from those with which the worker was started. The process was not started, or it gets no calls and is
    /// ended.
    Outdated,
    /// The process failed to start, and is ended.
    BootFailed { error: CallError, permanent: bool },
    /// The process asks to be replaced.
    Recycle { reason: String },
    /// The process's event loop is blocked.
    Blocked(BlockedLoop),
    /// The process's event loop is no longer blocked. `after` is the time for which it was blocked since the report.
    Unblocked { after: Duration },
    /// The process's event loop is blocked by a call that is past its time limit. The process's pending calls have failed.
    Hung { subject: String },
    /// The process ended, or broke the protocol, without an order. The process's pending calls have failed.
    Ended { cause: String },
}

/// A process of a worker, with the settings and channels that its task uses.
pub(super) struct Instance {
    pub(super) number: u64,
    pub(super) spec: Arc<WorkerSpec>,
    pub(super) host: Arc<WorkerHost>,
    pub(super) metrics: Arc<NamespaceMetrics>,
    /// Permits to start: limits how many processes of the worker start at the same time.
    pub(super) boots: Arc<Semaphore>,
    pub(super) sync_waits: Arc<SyncWaits>,
    pub(super) reports: mpsc::Sender<(u64, Report)>,
    /// Channel with the time until which the process may continue its calls; set once the process must end.
    pub(super) finish: watch::Receiver<Option<Instant>>,
}

struct BootFailure {
    error: CallError,
    permanent: bool,
}

impl Instance {
    /// Runs the process until its tree has ended.
    pub(super) async fn run(self) {
        let mut finish = self.finish.clone();
        let turn = tokio::select! {
            () = asked_to_finish(&mut finish) => return,
            turn = self.boots.acquire() => turn,
        };
        let outdated = tokio::select! {
            () = asked_to_finish(&mut finish) => return,
            outdated = self.is_outdated() => outdated,
        };
        if outdated {
            self.report(Report::Outdated).await;
            return;
        }
        let started = Instant::now();
        let (spec, host) = (Arc::clone(&self.spec), Arc::clone(&self.host));
        let made = tokio::task::spawn_blocking(move || process(&spec, &host.sandbox)).await;
        let made = made.unwrap_or_else(|_| Err("the gateway is shutting down".to_owned()));
        let process = match made {
            Ok(process) => process,
            Err(reason) => {
                let error = self.unavailable(&reason);
                self.report(Report::BootFailed {
                    error,
                    permanent: true,
                })
                .await;
                return;
            }
        };
        let spawned = tokio::select! {
            () = asked_to_finish(&mut finish) => return,
            spawned = Child::spawn(&process, &self.host.guard, self.metrics.processes()) => spawned,
        };
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => {
                let error = self.unavailable(&error.to_string());
                self.report(Report::BootFailed {
                    error,
                    permanent: false,
                })
                .await;
                return;
            }
        };
        self.report(Report::Started { pid: child.pid() }).await;
        let (announce, mut announced) = mpsc::channel(ANNOUNCEMENTS);
        let mut output = self.read_output(&mut child, &announce);

        let boot = async {
            let booted = self
                .boot(&mut child, &mut output, announce, &mut announced)
                .await;
            // The files are compared again, because they may have changed while the process read them.
            (booted, self.is_outdated().await)
        };
        let booted = tokio::select! {
            () = asked_to_finish(&mut finish) => None,
            booted = boot => Some(booted),
        };
        drop(turn);
        match booted {
            None => {}
            Some((_, true)) => self.report(Report::Outdated).await,
            Some((Err(BootFailure { error, permanent }), false)) => {
                self.report(Report::BootFailed { error, permanent }).await;
            }
            Some((Ok((declared, connections)), false)) => {
                child.answers_calls();
                self.metrics.started(started.elapsed());
                self.report(Report::Booted {
                    declared: Arc::new(declared),
                    links: Arc::clone(connections.links()),
                })
                .await;
                self.serve(&mut child, &connections, &mut announced).await;
            }
        }
        child.stop(TERMINATE_GRACE).await;
        let _ = timeout(OUTPUT_WAIT, output.finished()).await;
    }

    /// Returns true if the files differ from those with which the worker was started. Not checked for the first process, for
    /// which the caller that starts the worker checks the files.
    async fn is_outdated(&self) -> bool {
        let Some(started_with) = self.spec.files_hash.filter(|_| self.number > 1) else {
            return false;
        };
        let folder = self.spec.tools_dir.clone();
        let now = tokio::task::spawn_blocking(move || (started_with.now)(&folder)).await;
        !matches!(now, Ok(Some(now)) if now == started_with.value)
    }

    /// Starts to read standard output and standard error, so that the process is never blocked by a full pipe.
    fn read_output(&self, child: &mut Child, announce: &mpsc::Sender<Announcement>) -> Output {
        let limit = OutputLimit::new(self.metrics.output_suppressed.clone())
            .hiding(Redactor::new(&self.spec.hidden))
            .explaining(
                self.host
                    .sandbox
                    .hints(&self.spec.sandbox, &self.spec.namespace),
            )
            .keeping(self.host.output.of(&self.spec.namespace), Some(child.pid()));
        let mut tasks = JoinSet::new();
        if let Some(reader) = child.take_stderr() {
            let pump = Pump {
                namespace: self.spec.namespace.clone(),
                stream: Stream::Stderr,
                reader,
                limit: limit.clone(),
                addressed: true,
            };
            tasks.spawn(pump.log());
        }
        if let Some(reader) = child.take_stdout() {
            let pump = Pump {
                namespace: self.spec.namespace.clone(),
                stream: Stream::Stdout,
                reader,
                limit,
                addressed: false,
            };
            let (announce, spec) = (announce.clone(), Arc::clone(&self.spec));
            let divert = Divert {
                prefix: OP_PREFIX,
                line_max: usize::try_from(spec.max_frame).unwrap_or(usize::MAX),
                take: move |line: &[u8]| match boot::read(line, &spec) {
                    // If the queue is full, the announcement is dropped: the queued ones already tell the gateway the same.
                    Some(announcement) => {
                        let _ = announce.try_send(announcement);
                        true
                    }
                    None => false,
                },
            };
            tasks.spawn(pump.divert(divert));
        }
        Output(tasks)
    }

    /// Waits until the process reports that it is ready, then connects to it.
    async fn boot(
        &self,
        child: &mut Child,
        output: &mut Output,
        announce: mpsc::Sender<Announcement>,
        announced: &mut mpsc::Receiver<Announcement>,
    ) -> Result<(Declarations, Connections), BootFailure> {
        let limit = self.spec.ready_limit(self.host.config.ready_timeout);
        let (generation, declared) = match timeout(limit, self.first_word(child, output, announced))
            .await
        {
            Err(_elapsed) => {
                return Err(self.failure(&format!("was not ready after {}s", limit.as_secs_f64())));
            }
            Ok(Announcement::Ready {
                generation,
                declared,
            }) => (generation, declared),
            Ok(Announcement::Failed(error)) => {
                return Err(BootFailure {
                    permanent: error.code == CallErrorCode::DependencyError,
                    error,
                });
            }
            Ok(_) => return Err(self.failure("gave up while starting")),
        };
        if generation != self.spec.generation {
            return Err(self.failure("says that it is another generation"));
        }
        let connect = async {
            let runtimes = self.host.runtimes.all().await;
            Connections::make(&runtimes, &self.spec, &self.metrics, &announce).await
        };
        tokio::select! {
            connected = connect => match connected {
                Ok(connections) => Ok((declared, connections)),
                Err(error) => Err(self.failure(&format!("cannot be reached: {error}"))),
            },
            exit = child.wait() => Err(self.ended_early(exit)),
        }
    }

    /// Waits for the first announcement (message outside a call) of the process. An announcement still counts if the process
    /// printed it and then exited.
    async fn first_word(
        &self,
        child: &mut Child,
        output: &mut Output,
        announced: &mut mpsc::Receiver<Announcement>,
    ) -> Announcement {
        let exit = tokio::select! {
            Some(announcement) = announced.recv() => return announcement,
            exit = child.wait() => exit,
        };
        // Lines that the process printed before it ended may not have been read yet.
        let _ = timeout(OUTPUT_WAIT, output.finished()).await;
        announced
            .try_recv()
            .unwrap_or_else(|_| Announcement::Failed(self.ended_early(exit).error))
    }

    /// Serves calls until the process has ended or is ordered to end; in the second case its calls may finish, then it is asked
    /// to end. Meanwhile this handles:
    /// - the end of the process or of a connection, which is reported;
    /// - announcements of the process, such as the request to be replaced;
    /// - a call that blocks the event loop past its time limit, which ends the process;
    /// - the order to end.
    async fn serve(
        &self,
        child: &mut Child,
        connections: &Connections,
        announced: &mut mpsc::Receiver<Announcement>,
    ) {
        let links = connections.links();
        let mut finish = self.finish.clone();
        let mut blocked: Option<(BlockedLoop, Instant)> = None;
        loop {
            tokio::select! {
                exit = child.wait() => {
                    links.close(&RpcCloseReason::Disconnected);
                    self.report(Report::Ended { cause: exit.to_string() }).await;
                    return;
                }
                closed = links.closed() => {
                    links.close(&closed);
                    let cause = match (closed, timeout(CAUSE_WAIT, child.wait()).await) {
                        (RpcCloseReason::Violation(what), _) => what.to_owned(),
                        (_, Ok(exit)) => exit.to_string(),
                        (_, Err(_)) => "its connection was closed".to_owned(),
                    };
                    self.report(Report::Ended { cause }).await;
                    return;
                }
                Some(announcement) = announced.recv() => match announcement {
                    Announcement::Recycle { reason } => {
                        self.report(Report::Recycle { reason }).await;
                    }
                    Announcement::Blocked(found) => {
                        blocked = Some((found.clone(), Instant::now()));
                        self.report(Report::Blocked(found)).await;
                    }
                    Announcement::Unblocked => {
                        if let Some((_, since)) = blocked.take() {
                            self.report(Report::Unblocked { after: since.elapsed() }).await;
                        }
                    }
                    Announcement::Waited { count } => self.count_waits(count),
                    Announcement::Ready { .. } | Announcement::Failed(_) => {}
                },
                () = BlockedLoop::past_limit(blocked.as_ref().map(|(it, _)| it), links) => {
                    links.close(&RpcCloseReason::Violation("a call keeps it busy past its time limit"));
                    let subject = blocked.map(|(it, _)| it.named()).unwrap_or_default();
                    self.report(Report::Hung { subject }).await;
                    return;
                }
                () = asked_to_finish(&mut finish) => break,
            }
        }
        drain(child, links, finish).await;
        links.close(&RpcCloseReason::Ended);
        connections.send_shutdown();
        let _ = timeout(SHUTDOWN_GRACE, child.wait()).await;
    }

    /// Counts calls that waited for a thread, and logs their number at most once a minute.
    fn count_waits(&self, count: u64) {
        self.metrics.sync_waits.inc_by(count);
        let Some(calls) = self.sync_waits.add(count, Instant::now()) else {
            return;
        };
        let (namespace, threads) = (&self.spec.namespace, self.spec.sync_concurrency);
        tracing::warn!(
            namespace = namespace.as_str(),
            calls,
            sync_concurrency = threads,
            "calls of namespace {namespace} waited for more than a second behind other plain (not async) functions, of \
             which {threads} run at once in a process; sync_concurrency raises that number"
        );
    }

    async fn report(&self, report: Report) {
        // Sending fails only if the supervisor was dropped, which ends this instance as well.
        let _ = self.reports.send((self.number, report)).await;
    }

    fn ended_early(&self, exit: Exit) -> BootFailure {
        self.failure(&format!("ended while starting ({exit}); its log says why"))
    }

    fn failure(&self, what: &str) -> BootFailure {
        BootFailure {
            error: self.unavailable(what),
            permanent: false,
        }
    }

    fn unavailable(&self, what: &str) -> CallError {
        CallError::new(
            CallErrorCode::WorkerUnavailable,
            format!("the worker of namespace {}: {what}", self.spec.namespace),
        )
        .retry_after(Duration::from_secs(1))
    }
}

/// The tasks that read a process's output; dropping it ends them.
struct Output(JoinSet<()>);

impl Output {
    async fn finished(&mut self) {
        while self.0.join_next().await.is_some() {}
    }
}

/// Returns the specification of a worker's process, with its sandbox. Blocking.
fn process(spec: &WorkerSpec, sandbox: &SandboxHost) -> Result<ProcessSpec, String> {
    let mut args = vec!["-m".into(), "app.worker_main".into()];
    let mut option = |name: &str, value: std::ffi::OsString| {
        args.push(name.into());
        args.push(value);
    };
    option("--namespace", spec.namespace.as_str().into());
    option("--socket", spec.socket.clone().into());
    option("--venv", spec.venv.clone().into());
    option("--tools", spec.tools_dir.clone().into());
    option("--generation", spec.generation.to_string().into());
    option(
        "--sync-concurrency",
        spec.sync_concurrency.to_string().into(),
    );
    option("--max-frame", spec.max_frame.to_string().into());
    if spec.vault_style {
        option("--style", "vault".into());
    }
    if spec.waits_for_debugger {
        args.push("--debug".into());
    }
    args.push("--addressed-log".into());
    let mut own = vec![
        KeptPath::writable(&spec.tools_dir),
        KeptPath::readable(&spec.venv),
    ];
    own.extend(paths_of(&spec.python));
    own.extend(spec.socket.parent().map(KeptPath::writable));
    let confined = sandbox.confine(
        &spec.sandbox,
        &ProcessFacts {
            namespace: &spec.namespace,
            program: &spec.python,
            args: &[],
            env: &[],
            cwd: &spec.tools_dir,
            own: &own,
        },
    )?;
    let mut env = spec.environment.clone();
    let mut confinement = None;
    if let Some(confined) = confined {
        env.retain(|(name, _)| !confined.env.iter().any(|(other, _)| other == name));
        env.extend(confined.env);
        confinement = Some(confined.confinement);
    }
    Ok(ProcessSpec {
        program: spec.python.clone(),
        args,
        env,
        cwd: spec.tools_dir.clone(),
        stdin: Stdin::Null,
        priority: Priority::Starting,
        sandbox: confinement,
    })
}

/// Waits until the instance is ordered to end. The end of the supervisor counts as this order.
async fn asked_to_finish(finish: &mut watch::Receiver<Option<Instant>>) {
    let _ = finish.wait_for(Option::is_some).await;
}

/// Waits until no call is in flight, the time limit is over, or the process or its connection has ended. The time limit may be
/// shortened meanwhile.
async fn drain(child: &mut Child, links: &Links, mut finish: watch::Receiver<Option<Instant>>) {
    loop {
        let until = finish.borrow_and_update().unwrap_or_else(Instant::now);
        tokio::select! {
            () = links.drained() => return,
            () = sleep_until(until) => return,
            _ = links.closed() => return,
            _ = child.wait() => return,
            changed = finish.changed() => if changed.is_err() {
                // The sender of the time limit was dropped, so the limit cannot change any more. The pause prevents a busy loop.
                sleep(Duration::from_millis(10)).await;
            },
        }
    }
}
