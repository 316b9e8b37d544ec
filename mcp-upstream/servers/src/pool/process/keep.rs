//! The keeper: the task that owns a process. It starts, opens, watches and ends the process.
//!
//! The keeper reports each event to the pool. Its last report, that the process has entirely ended, frees the slot. Dropping
//! the task's future ends the process in the background.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::child::Exit;
use tooldock_protocol::version::{Era, EraSupport, ServerInfo};
use tooldock_workers::remote::BackendId;
use tooldock_workers::server_settings::Isolation;

use super::failure;
use super::open::{self, OpenOutcome, OpeningLimits};
use super::{InboundRouter, Process, listen, replay};
use crate::key::ProcessKey;
use crate::launch::{Instance, LaunchRequirements, LinkParts, Raw};
use crate::link::{Link, LinkEnd, LinkLimits};
use crate::pool::PoolShared;
use crate::pool::state::{Order, PoolEvent, ProcessEnd, ProcessId, StopReason};

/// Maximum time to wait for the exit code of a process that has closed its output.
const EXIT_WAIT: Duration = Duration::from_millis(50);
/// Maximum time to wait for the exit code of a process that ended before it was opened. It is longer, since the exit code is
/// then the only information to report.
const LAST_EXIT_WAIT: Duration = Duration::from_millis(500);
/// Maximum number of processes that are started to open one: the first may end during the probe, the second may refuse
/// `initialize`, and the third is then opened.
const TRIES: usize = 3;

/// A command of the pool to a keeper.
#[derive(Debug)]
pub(crate) enum Command {
    /// Open the spare process according to these instructions.
    Open(Order),
    /// End the process for this reason.
    Stop(StopReason),
}

/// The task that owns one process.
pub(crate) struct ProcessTask {
    pub(crate) id: ProcessId,
    pub(crate) pool: Arc<PoolShared>,
    pub(crate) commands: mpsc::Receiver<Command>,
}

/// A started process with the link to it.
struct ConnectedProcess {
    child: Box<dyn Instance>,
    link: Arc<Link>,
    router: Arc<InboundRouter>,
}

/// The phase of a process after it was started.
enum ProcessPhase {
    /// The process must be ended. The pool was informed before.
    End(Option<ConnectedProcess>),
    /// The process accepts requests.
    Serve(ConnectedProcess, Arc<Process>, Order),
}

impl ProcessTask {
    /// Runs until the process has ended. Without an order, the process is started as a spare and waits for an order.
    pub(crate) async fn run(mut self, order: Option<Order>) {
        let running = match self.begin(order).await {
            ProcessPhase::End(running) => running,
            ProcessPhase::Serve(running, process, order) => {
                self.serve(&running, &process, &order).await;
                process.over.send_replace(true);
                Some(running)
            }
        };
        if let Some(running) = running {
            running.end().await;
        }
        self.report(PoolEvent::Gone { process: self.id });
    }

    async fn begin(&mut self, order: Option<Order>) -> ProcessPhase {
        let limit = self.pool.settings().connect_timeout;
        // The number of waiting requests gives a start priority. No request waits for a spare.
        let requests = order.as_ref().map(|_| Arc::clone(&self.pool.requests));
        let (pool, id) = (Arc::clone(&self.pool), self.id);
        let opening = &order;
        let outcome = async {
            let installed = pool.installation.ensure(&pool, id, requests.clone());
            installed.await?;
            let turn = pool.turns.starting.take(requests).await;
            let started = Instant::now();
            let running = timeout(limit, start(&pool, opening.as_ref(), &[])).await;
            let running = running.unwrap_or_else(|_| Err(slow(&pool)))?;
            Ok::<_, Raw>((turn, started, running))
        };
        let outcome = tokio::select! {
            outcome = outcome => outcome,
            _ = stopped(&mut self.commands) => return ProcessPhase::End(None),
        };
        // The start permit is kept until the process accepts requests or has failed.
        let (turn, started, running) = match outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.failed(None, order.as_ref(), error),
        };
        let (order, until) = match order {
            Some(order) => (order, started + limit),
            None => {
                // A spare needs its start permit only until it is running.
                drop(turn);
                let Some(order) = self.wait_for_order(&running).await else {
                    return ProcessPhase::End(Some(running));
                };
                (order, Instant::now() + limit)
            }
        };
        self.open(running, order, until).await
    }

    /// Waits until the pool sends an order to open the spare process, which is returned. Returns `None` if the process must be
    /// ended or has ended.
    async fn wait_for_order(&mut self, running: &ConnectedProcess) -> Option<Order> {
        self.report(PoolEvent::Spawned { process: self.id });
        tokio::select! {
            command = self.commands.recv() => match command {
                Some(Command::Open(order)) => Some(order),
                Some(Command::Stop(_)) | None => None,
            },
            _ = running.link.closed() => {
                let exit = failure::exit_within(&*running.child, EXIT_WAIT).await;
                let (process, end) = (self.id, end_of(exit));
                self.report(PoolEvent::Lost { process, end });
                None
            }
        }
    }

    /// Opens the MCP connection with the process. If the process ends before it is open, another one is started.
    async fn open(
        &mut self,
        mut running: ConnectedProcess,
        order: Order,
        until: Instant,
    ) -> ProcessPhase {
        let mut server = order.server;
        let mut outcome = Err(Raw::from(not_opened(&self.pool)));
        let mut tries = TRIES;
        let mut avoid = Vec::new();
        loop {
            running.router.set_own(order.open.inbound.clone());
            let limits = OpeningLimits {
                probe: self.pool.settings().probe_timeout,
                until,
            };
            let identity = &order.open.identity;
            let wanted = order.slot.era;
            let child = &running.child;
            if server.is_none() {
                child.hold_output();
            }
            let heard = |refused| child.release_output(refused);
            let attempted = tokio::select! {
                attempted = open::open(&running.link, identity, server, wanted, limits, &heard) => attempted,
                _ = stopped(&mut self.commands) => return ProcessPhase::End(Some(running)),
            };
            let tried = server.is_some_and(|server| open::is_trial(server, wanted));
            let found = match attempted {
                Ok(OpenOutcome::Opened {
                    opened,
                    version,
                    server,
                }) => {
                    outcome = Ok((opened, version, server));
                    break;
                }
                Ok(OpenOutcome::TryAnother { server }) => {
                    tries -= 1;
                    Some(server)
                }
                // The handshake was refused, and it is not known yet whether the server works without one. So opening without a
                // handshake is tried next.
                Err(_) if tried && order.server.is_none() => {
                    tries -= 1;
                    Some(EraSupport::Modern)
                }
                Err(_) if self.may_lead_elsewhere(&order, &running, &mut avoid) => server,
                Err(error) => {
                    let asked = match server.map(|server| server.opened_for(wanted)) {
                        Some(Era::Modern) => "server/discover",
                        Some(Era::Legacy) | None => "initialize",
                    };
                    outcome = Err(running.why_not_open(&self.pool, error, asked).await);
                    break;
                }
            };
            if tries == 0 {
                break;
            }
            server = found;
            // The former process is ended in the background, since waiting for its end would delay all requests.
            running.link.close();
            running.router.set_own(None);
            running = tokio::select! {
                again = timeout_at(until, start(&self.pool, Some(&order), &avoid)) => {
                    match again.unwrap_or_else(|_| Err(slow(&self.pool))) {
                        Ok(running) => running,
                        Err(error) => return self.failed(None, Some(&order), error.into()),
                    }
                }
                _ = stopped(&mut self.commands) => return ProcessPhase::End(None),
            };
        }
        match outcome {
            Ok((opened, version, server)) => {
                self.opened(running, order, (opened, version), server).await
            }
            Err(error) => self.failed(Some(running), Some(&order), error),
        }
    }

    /// Returns true if another backend may open the connection that this backend did not open. The failed backend is added to
    /// `avoid`. A connection whose key names its backend is not opened at another one.
    fn may_lead_elsewhere(
        &self,
        order: &Order,
        running: &ConnectedProcess,
        avoid: &mut Vec<BackendId>,
    ) -> bool {
        let Some(backend) = running.child.backend() else {
            return false;
        };
        avoid.push(backend.clone());
        let launcher = &self.pool.launcher;
        order.slot.key.replica().is_none()
            && avoid.len() <= launcher.further_backends()
            && launcher.has_replica(avoid)
    }

    async fn opened(
        &mut self,
        mut running: ConnectedProcess,
        order: Order,
        (opened, version): (ServerInfo, &'static str),
        server: EraSupport,
    ) -> ProcessPhase {
        if opened.era() == Era::Modern {
            running.link.opened(None);
        }
        let pool = &self.pool;
        tracing::info!(
            namespace = %pool.name(),
            pid = running.child.pid(),
            backend = running.child.backend().map(BackendId::as_str),
            version,
            "a {} of the server of namespace {} is ready",
            running.connection_kind(),
            pool.name()
        );
        let process = Arc::new(Process::new(
            &mut *running.child,
            Arc::clone(&running.link),
            opened,
            Arc::clone(&order.open.identity),
            Arc::clone(&running.router),
        ));
        let limit = pool.settings().connect_timeout;
        tokio::select! {
            () = replay::restore(&process, &order.replay_state, limit) => {}
            _ = stopped(&mut self.commands) => return ProcessPhase::End(Some(running)),
        }
        pool.started(self.id, &process, server, &order.slot.key);
        ProcessPhase::Serve(running, process, order)
    }

    /// Runs while the process accepts requests, and returns when it has ended or must be ended. Handles:
    /// - commands of the pool;
    /// - the end of the link or of the process;
    /// - the suspicion that the process hangs, and the result of the ping;
    /// - a mute process, whose messages are withheld: the pool is informed, so that it gets no new requests.
    ///
    /// In the meantime, the subscription of a modern process is kept open, and the tools of the shared process are read.
    async fn serve(&mut self, running: &ConnectedProcess, process: &Process, order: &Order) {
        let limit = self.pool.settings().connect_timeout;
        let patience = self.pool.patience.alive_within;
        let (catalogue, name) = (&self.pool.catalogue, self.pool.name());
        let beside = async {
            let key = &order.slot.key;
            let read = async {
                if key.is_shared() {
                    replay::read_tools(process, name, catalogue, limit).await;
                }
            };
            let listen = async {
                // A process for a single request gets no subscription, since its notifications would continue after the request.
                if !matches!(key, ProcessKey::Exclusive(_)) {
                    listen::listen(process, &order.replay_state).await;
                }
            };
            tokio::join!(read, listen);
            std::future::pending::<()>().await;
        };
        tokio::pin!(beside);
        let mute = running
            .router
            .is_mute_for(self.pool.settings().isolation_mute);
        tokio::pin!(mute);
        let launcher = &self.pool.launcher;
        let mut is_replaced = order.slot.key.is_private() || launcher.keeps_state();
        let mut asking: Option<Pin<Box<dyn Future<Output = bool> + Send + '_>>> = None;
        let (end, what) = loop {
            tokio::select! {
                biased;
                reason = stopped(&mut self.commands) => {
                    match reason {
                        Some(StopReason::GaveWay) => self.tell_of_giving_way(process),
                        // An operator may restart a server because it hangs. Its calls fail now, not when the process has been
                        // ended.
                        Some(StopReason::Restarted) => running.link.close(),
                        _ => {}
                    }
                    return;
                }
                closed = running.link.closed() => {
                    if let LinkEnd::Violation(what) = closed {
                        tracing::warn!(
                            namespace = %self.pool.name(),
                            pid = process.pid,
                            "a {} of the server broke the protocol: {what}",
                            running.connection_kind()
                        );
                    }
                    let exit = failure::exit_within(&*running.child, EXIT_WAIT).await;
                    let what = match closed {
                        LinkEnd::Violation(what) => format!("broke the protocol: {what}"),
                        LinkEnd::Disconnected | LinkEnd::Ended => running.child.how_ended(exit),
                    };
                    break (end_of(exit), what);
                }
                exit = running.child.exited() => {
                    break (end_of(Some(exit)), running.child.how_ended(Some(exit)));
                }
                () = process.suspected.notified(), if asking.is_none() => {
                    asking = Some(Box::pin(is_alive(process, patience)));
                }
                alive = async { asking.as_mut().expect("asked for only when there").await },
                    if asking.is_some() =>
                {
                    asking = None;
                    if !alive {
                        break (ProcessEnd::Unresponsive, "stopped answering".to_owned());
                    }
                    process.answered();
                }
                () = &mut mute, if !is_replaced => {
                    is_replaced = true;
                    self.tell_of_muteness(process);
                    self.report(PoolEvent::Mute { process: self.id });
                }
                () = &mut beside => {}
            }
        };
        self.report(PoolEvent::Lost {
            process: self.id,
            end,
        });
        if self.pool.has_ended(&order.slot.key) {
            running.router.ended_for_good();
        }
        running.settle().await;
        // No more messages will arrive, so pending calls fail now, before the process is ended.
        running.link.close();
        let why = Raw::of_end(&*self.pool.launcher, &*running.child, &what).await;
        let why = why.of(&*self.pool.launcher);
        tracing::warn!(
            namespace = %self.pool.name(),
            pid = process.pid,
            backend = running.child.backend().map(BackendId::as_str),
            ?end,
            "{} unasked",
            why.reason
        );
        self.report(PoolEvent::Explained { why });
    }

    fn failed(
        &self,
        running: Option<ConnectedProcess>,
        order: Option<&Order>,
        raw: Raw,
    ) -> ProcessPhase {
        let server = &*self.pool.launcher;
        let mut failure = raw.of(server);
        let replica = order.and_then(|order| order.slot.key.replica());
        failure.elsewhere = server.needs_a_client()
            || replica.is_some_and(|it| server.has_replica(std::slice::from_ref(it)));
        let why = &failure.reason;
        let tried = order.and_then(|order| order.server.zip(Some(order.slot.era)));
        if tried.is_some_and(|(server, wanted)| open::is_trial(server, wanted)) {
            tracing::info!(
                namespace = %server.name(),
                "the server of namespace {} does not accept initialize, so older clients are served by translation: {why}",
                server.name()
            );
        } else {
            tracing::warn!(
                namespace = %server.name(),
                "the server of namespace {} did not start: {why}",
                server.name()
            );
        }
        self.pool.installation.forget();
        self.report(PoolEvent::StartFailed {
            process: self.id,
            failure,
        });
        ProcessPhase::End(running)
    }

    fn tell_of_giving_way(&self, process: &Process) {
        let name = self.pool.name();
        // With a process for each session, the operator has declared that the server keeps state, which is lost now.
        let lost = match self.pool.settings().isolation {
            Isolation::Session => "; what the process remembered for that session is lost",
            _ => "",
        };
        tracing::info!(
            namespace = %name,
            pid = process.pid,
            "a process of the server of namespace {name} gave way to a client that waits: its own client has had \
             neither a request nor an open stream for a minute, and gets another process if it comes back{lost}"
        );
    }

    fn tell_of_muteness(&self, process: &Process) {
        let name = self.pool.name();
        tracing::info!(
            namespace = %name,
            pid = process.pid,
            "a process of the server of namespace {name} is replaced: it never answered what a client gave up, and until it \
             does, its log messages reach no other client (isolation_mute)"
        );
    }

    fn report(&self, event: PoolEvent) {
        self.pool.apply(event);
    }
}

/// Starts a process and opens a link to it.
async fn start(
    pool: &Arc<PoolShared>,
    order: Option<&Order>,
    avoid: &[BackendId],
) -> Result<ConnectedProcess, CallError> {
    let key = order.map(|order| &order.slot.key);
    let router = InboundRouter::new(
        pool.name().clone(),
        Arc::clone(&pool.audience),
        Arc::clone(&pool.catalogue),
        Arc::clone(&pool.metrics),
    );
    let of = Arc::downgrade(pool);
    // 0 stands for a pool that was dropped. The link then uses the limit that it got last.
    let max_result = move || of.upgrade().map_or(0, |pool| pool.max_result());
    let parts = LinkParts {
        limits: LinkLimits::new(max_result),
        inbound: Arc::clone(&router) as _,
        catalogue: Arc::clone(&pool.catalogue),
    };
    let place = LaunchRequirements {
        key,
        avoid,
        headers: order.and_then(|order| order.open.headers.as_ref()),
        principal: match key {
            Some(ProcessKey::Principal(name)) => Some(name),
            _ => order.and_then(|order| order.open.principal.as_ref()),
        },
    };
    let (link, child) = pool.launcher.launch(place, parts).await?;
    Ok(ConnectedProcess {
        child,
        link,
        router,
    })
}

fn slow(pool: &PoolShared) -> CallError {
    let name = pool.name();
    CallError::new(
        CallErrorCode::WorkerUnavailable,
        format!("the server of namespace {name} took too long to start"),
    )
}

fn not_opened(pool: &PoolShared) -> CallError {
    let name = pool.name();
    CallError::new(
        CallErrorCode::WorkerUnavailable,
        format!("the server of namespace {name} was not opened"),
    )
}

impl ConnectedProcess {
    /// Returns the kind of connection, for the log: a process or a session.
    fn connection_kind(&self) -> &'static str {
        match self.child.pid() {
            Some(_) => "process",
            None => "session",
        }
    }

    /// Waits until the running calls have ended, after the connection stopped accepting calls. Waits at most for
    /// [`Instance::leaves_calls`].
    async fn settle(&self) {
        let limit = self.child.leaves_calls();
        if !limit.is_zero() {
            let _ = timeout(limit, self.link.without_calls()).await;
        }
    }

    /// Closes the process's input, then ends the process.
    async fn end(self) {
        self.link.finish();
        self.child.stop().await;
        self.link.close();
    }

    /// Describes the failure of a process that could not be opened: how it ended, if it did, and its last output.
    async fn why_not_open(&self, pool: &PoolShared, error: CallError, asked: &str) -> Raw {
        if !self.link.is_closed() || self.link.closed().await != LinkEnd::Disconnected {
            let said = self.child.last_words().await;
            return Raw { error, said };
        }
        let exit = failure::exit_within(&*self.child, LAST_EXIT_WAIT).await;
        let (name, what) = (pool.name(), self.child.how_ended(exit));
        let message = format!("the server of namespace {name} {what} before it answered {asked}");
        Raw {
            error: CallError { message, ..error },
            said: self.child.last_words().await,
        }
    }
}

impl Drop for ConnectedProcess {
    /// Removes the router's handler. Otherwise a request of the server that waits for an answer would form a cycle: it owns the
    /// link, the link owns the router, and the router owns the handler with the request.
    fn drop(&mut self) {
        self.router.set_own(None);
    }
}

/// Classifies the end of a process. A process that closed its output without exiting counts as crashed.
fn end_of(exit: Option<Exit>) -> ProcessEnd {
    match exit {
        Some(Exit::Code(0)) => ProcessEnd::Clean,
        _ => ProcessEnd::Crash,
    }
}

/// Waits for the pool's command to stop, and returns its reason; `None` if the pool has ended.
async fn stopped(commands: &mut mpsc::Receiver<Command>) -> Option<StopReason> {
    while let Some(command) = commands.recv().await {
        if let Command::Stop(reason) = command {
            tracing::debug!(reason = reason.as_str(), "a process of a server is stopped");
            return Some(reason);
        }
    }
    None
}

/// Pings the process. Returns true if any response arrives in time, even an error.
async fn is_alive(process: &Process, patience: Duration) -> bool {
    let params = process.own_params(serde_json::json!({}));
    let ask = || process.link.request("ping", Some(&params), None);
    let mut call = ask();
    if call.is_err() {
        // The outbox is full, so the server is not reading. It may read later, so the ping is sent once more after a while.
        sleep(patience).await;
        call = ask();
    }
    match call {
        Ok(mut call) => matches!(timeout(patience, call.answer()).await, Ok(Ok(_))),
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::json;
    use tooldock_protocol::version::ClientIdentity;

    use super::*;
    use crate::launch::Instance;
    use crate::metrics::ServerMetrics;
    use crate::scene::Scene;

    const PATIENCE: Duration = Duration::from_secs(15);

    fn process(scene: &Scene) -> Process {
        let opened = ServerInfo::Legacy("{}".into());
        let router = InboundRouter::new(
            "demo".parse().expect("a name"),
            super::super::router::tests::audience(),
            Arc::default(),
            ServerMetrics::unregistered("demo"),
        );
        let link = Arc::clone(&scene.link);
        let gateway = Arc::clone(ClientIdentity::gateway());
        Process::new(&mut Silent, link, opened, gateway, router)
    }

    /// A connection without a server behind it.
    struct Silent;

    #[async_trait]
    impl Instance for Silent {
        fn how_ended(&self, _: Option<Exit>) -> String {
            "ended".into()
        }

        async fn stop(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_answers_nothing_at_all_is_not_alive() {
        let scene = Scene::new();
        let process = process(&scene);
        let asked = Instant::now();
        assert!(!is_alive(&process, PATIENCE).await);
        assert_eq!(asked.elapsed(), PATIENCE);
    }

    #[tokio::test]
    async fn a_process_that_answers_with_an_error_is() {
        let mut scene = Scene::new();
        let process = process(&scene);
        let answer = async {
            let asked = scene.peer.json().await;
            let error = json!({ "code": -32601, "message": "no" });
            let answer = json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error });
            scene.peer.send(&answer.to_string()).await;
        };
        let (alive, ()) = tokio::join!(is_alive(&process, PATIENCE), answer);
        assert!(alive);
    }

    #[test]
    fn only_exit_code_zero_is_a_clean_end() {
        assert_eq!(end_of(Some(Exit::Code(0))), ProcessEnd::Clean);
        for exit in [
            Some(Exit::Code(1)),
            Some(Exit::Signal(9)),
            Some(Exit::Lost),
            None,
        ] {
            assert_eq!(end_of(exit), ProcessEnd::Crash);
        }
    }
}
