//! The gateway's control loop: the first scan for namespaces, the signals SIGHUP and SIGUSR1, the expiry of sessions, and the
//! drain, which finishes running work before the process ends.
//!
//! The loop has a small separate runtime, in which all owners of child processes run. So installing packages, or stopping a
//! worker that does not end, never takes a thread from requests. Message I/O runs in the proxy's runtimes (DESIGN §4,
//! *Processes*). The loop is not a Pingora background service, because those begin only inside `Server::run`, and objects that
//! are built earlier, such as the reloader, need this runtime already.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tooldock_credentials::keys::KeyStore;
use tooldock_otlp::OtlpGuard;
use tooldock_sessions::audit::AuditGuard;
use tooldock_sessions::replicas::{BEAT_EVERY, Replicas};
use tooldock_upstream::health::Health;
use tooldock_upstream::service::Service;
use tooldock_workers::reload::Reloader;

use crate::access_log::AccessLogGuard;
use crate::connection::LINGER;
use crate::metrics::EdgeMetrics;
use crate::reconfigure::Reconfigure;
use crate::relay::RelayServer;
use crate::replicas::ReplicaLink;
use crate::service_manager::{InProgressGuard, ServiceManager};
use crate::signals::Signals;
use crate::upgrade::{Offer, Predecessor, Successor};

/// Interval at which expired sessions are removed.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Interval at which expired API keys are looked for; the sessions of their principals are then ended.
const EXPIRED_KEYS_EVERY: Duration = Duration::from_secs(60);

/// Interval at which the drain checks whether all requests have been answered.
const DRAIN_CHECK: Duration = Duration::from_millis(10);

/// Time that the drain waits before it relies on the count of requests in flight: a connection that was accepted just before the
/// listeners closed may not have been counted yet.
const SETTLE: Duration = Duration::from_millis(50);

/// Maximum time that the drain waits for clients to receive the end of their streams.
const STREAMS_END: Duration = Duration::from_secs(2);

/// Maximum time that workers have to stop after the last request.
const WORKERS_STOP: Duration = Duration::from_secs(5);

/// Time that the first reload has to finish after its scan before the gateway is reported as ready. It takes longer only while
/// packages are being installed.
const SCAN_END: Duration = Duration::from_secs(1);

/// The control loop, with all objects that it controls.
pub(crate) struct ControlLoop {
    pub(crate) reloader: Arc<Reloader>,
    pub(crate) service: Service,
    pub(crate) health: Arc<Health>,
    pub(crate) metrics: Arc<EdgeMetrics>,
    pub(crate) reconfigure: Reconfigure,
    pub(crate) signals: Signals,
    /// The connection to the service manager that started this process, such as systemd.
    pub(crate) service_manager: ServiceManager,
    pub(crate) grace: Duration,
    pub(crate) audit: AuditGuard,
    pub(crate) access_log: Option<AccessLogGuard>,
    /// Owner of the OTLP export; `None` if nothing is exported.
    pub(crate) telemetry: Option<OtlpGuard>,
    /// The relay's server; `None` if the relay is off.
    pub(crate) relay: Option<RelayServer>,
    /// Connections to other replicas; `None` without replicas.
    pub(crate) replicas: Option<Arc<ReplicaLink>>,
    pub(crate) succession: AdjacentProcesses,
    /// True if this process runs namespaces; false for a separate process with the management tools, which leaves them to the
    /// core.
    pub(crate) serves_namespaces: bool,
    /// Text that is printed after the first scan, when the commands in it work.
    pub(crate) announcement: Option<String>,
}

/// The gateway process before this one, and the process after it (`serve --upgrade`).
pub(crate) struct AdjacentProcesses {
    /// The gateway process that this one replaces; `None` if there is none.
    pub(crate) predecessor: Option<Predecessor>,
    /// Sender that is set to true when this process may accept connections.
    pub(crate) gate: watch::Sender<bool>,
    pub(crate) offer: Offer,
    /// Receives each successor when it is ready to accept connections.
    pub(crate) successors: mpsc::Receiver<Successor>,
}

impl AdjacentProcesses {
    /// Lets a gateway that is started while this one stops take over the remaining listening sockets.
    async fn replaced(mut self, signals: Signals) {
        if let Some(successor) = self.successors.recv().await {
            tracing::info!("stopping: another gateway accepts connections now");
            signals.hand_over();
            self.offer.close();
            successor.report_stopped();
        }
    }
}

impl ControlLoop {
    /// Runs the control loop until the gateway has been drained. The caller then ends the process.
    ///
    /// Seven events are handled: the end of the first scan; SIGHUP; SIGUSR1; the timer for expired sessions; the watchdog timer of
    /// the service manager; a successor that is ready; a signal to stop. The timers of streams, and the ends of API keys, are
    /// handled by tasks of their own until the end.
    pub(crate) async fn run(mut self) {
        let mut stop = self.signals.stop_requested();
        let stopped = async move {
            let _ = stop.wait_for(|stop| *stop).await;
        };
        let mut stopped = std::pin::pin!(stopped);
        let mut reload_requests = self.signals.reload_requests();
        let mut reopen_requests = self.signals.reopen_requests();
        let mut sweep = interval(SWEEP_EVERY);
        let first_scan = first_scan(
            self.serves_namespaces.then(|| Arc::clone(&self.reloader)),
            Arc::clone(&self.health),
            Arc::clone(self.service.replicas()),
            Takeover {
                predecessor: self.succession.predecessor.take(),
                gate: self.succession.gate.clone(),
                offer: self.succession.offer.clone(),
            },
            self.announcement.take(),
            self.service_manager.starting(),
        );
        let mut first_scan = std::pin::pin!(first_scan);
        let mut scanned = false;
        let mut watchdog = self.service_manager.sign_of_life_every().map(interval);
        let mut successor = None;
        let streams = self.service.clone();
        tokio::spawn(async move { streams.run_streams().await });
        let keys = Arc::clone(&self.reconfigure.keys);
        tokio::spawn(LostPrincipals::default().watch(self.service.clone(), keys));
        loop {
            tokio::select! {
                () = first_scan.as_mut(), if !scanned => scanned = true,
                changed = reload_requests.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let unfinished = self.service_manager.reloading();
                    let outcome = self.reconfigure.apply();
                    let reloader = Arc::clone(&self.reloader);
                    // A reload has a single result, which combines configuration, certificates and namespaces: the worst of the
                    // three.
                    reloader.note(outcome);
                    // The reload runs in a separate task, since it may install packages for minutes, and must not delay a stop.
                    if self.serves_namespaces {
                        tokio::spawn(async move {
                            report(reloader.reload().await);
                            drop(unfinished);
                        });
                    }
                }
                Ok(()) = reopen_requests.changed() => {
                    tracing::info!("log files are opened anew");
                    self.audit.reopen();
                    if let Some(log) = &self.access_log {
                        log.reopen();
                    }
                }
                _ = sweep.tick() => {
                    self.service_manager.extend();
                    self.service.evict_expired().await;
                }
                () = tick(watchdog.as_mut()) => self.service_manager.alive(),
                Some(ready) = self.succession.successors.recv() => {
                    self.signals.hand_over();
                    successor = Some(ready);
                    break;
                }
                () = stopped.as_mut() => break,
            }
        }
        self.drain(successor).await;
    }

    /// Ends all running work in this order: streams; requests, when they are answered or the grace period is over; workers, which
    /// requests need. A successor is notified as soon as it may accept connections.
    async fn drain(self, successor: Option<Successor>) {
        tracing::info!(grace = ?self.grace, "stopping: no new connections, waiting for requests in flight");
        self.health.set_draining();
        let stops = successor.is_none();
        if stops {
            self.succession.offer.stop();
        }
        self.service_manager.stopping(self.grace);
        // From here on no reload begins, and a running one is not waited for, since it may install packages for minutes.
        self.reloader.close();
        // Streams that clients open from here on end immediately.
        self.service.replicas().leave().await;
        // If a successor accepts new connections, idle connections stay open here for a short time.
        let linger = successor.as_ref().map(|_| Instant::now() + LINGER);
        if let Some(successor) = successor {
            successor.report_stopped();
        }
        match stops {
            true => drop(tokio::spawn(self.succession.replaced(self.signals))),
            false => self.succession.offer.close(),
        }
        if let Some(relay) = &self.relay {
            relay.stop();
        }
        let deadline = Instant::now() + self.grace;
        let lingers = || linger.is_some_and(|until| Instant::now() < until.min(deadline));
        // A client that opens its stream anew at the successor moves its session there. If no requests can be forwarded to the
        // successor, streams stay open while other connections may still bring requests for the same sessions.
        let forwards = !self.service.replicas().forwarded_to().is_empty();
        while !forwards && lingers() && self.metrics.connections.get() > self.metrics.streams_open()
        {
            tokio::time::sleep(DRAIN_CHECK).await;
        }
        self.service.end_streams();
        if let Some(replicas) = &self.replicas {
            replicas.end_streams();
        }
        let relayed = || self.relay.as_ref().map_or(0, RelayServer::open);
        // Other replicas may forward requests to this one until they receive its next heartbeat.
        let heard = match self.service.replicas().has_others() {
            true => SETTLE + BEAT_EVERY,
            false => SETTLE,
        };
        tokio::time::sleep(heard.min(self.grace)).await;
        let awaited = || lingers() && self.metrics.connections.get() > 0;
        while (self.metrics.in_flight.get() > 0 || relayed() > 0 || awaited())
            && Instant::now() < deadline
        {
            tokio::time::sleep(DRAIN_CHECK).await;
        }
        // All streams have been ended. A client that does not receive the last bytes within this time is not waited for.
        let patience = deadline.min(Instant::now() + STREAMS_END);
        while self.metrics.streams_open() > 0 && Instant::now() < patience {
            tokio::time::sleep(DRAIN_CHECK).await;
        }
        let left = self.metrics.in_flight.get();
        if left > 0 {
            tracing::warn!(
                left,
                "the grace period is over, ending requests that still run"
            );
        }
        // If calls are still running after the grace period, workers are stopped immediately.
        let patience = if left > 0 {
            Duration::ZERO
        } else {
            WORKERS_STOP
        };
        self.service.end_servers(patience).await;
        self.reloader.shutdown(patience).await;
        self.service.replicas().leave_directory().await;
        // Dropping the guards of the logs writes their queued lines.
        drop((self.audit, self.access_log));
        tracing::info!("stopped");
        // Dropping the guard of the export sends its last batches.
        drop(self.telemetry);
    }
}

/// Creates an interval that skips missed ticks, instead of making up for them, after the task was delayed.
fn interval(every: Duration) -> Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Waits for the next tick of an interval; without an interval, waits forever.
async fn tick(interval: Option<&mut Interval>) {
    match interval {
        Some(interval) => drop(interval.tick().await),
        None => std::future::pending().await,
    }
}

/// Principals without a valid API key whose stored tasks have been deleted.
#[derive(Default)]
struct LostPrincipals(HashSet<Arc<str>>);

impl LostPrincipals {
    /// Ends the work of lost principals whenever API keys are revoked or have expired. Does not return. It has a task of its own,
    /// because a store may take long to delete many principals' tasks, and a stop must not wait for that.
    async fn watch(mut self, service: Service, keys: Arc<KeyStore>) {
        let mut losses = keys.losses();
        let mut expired = interval(EXPIRED_KEYS_EVERY);
        loop {
            tokio::select! {
                Ok(()) = losses.changed() => {}
                _ = expired.tick() => {}
            }
            self.end(&service, &keys).await;
        }
    }

    /// Ends the sessions, suspended calls and tasks of principals whose API keys have expired or been revoked. The stored tasks
    /// are deleted once: later ones may belong to a newer key of the same name, which another replica knows before this one.
    async fn end(&mut self, service: &Service, keys: &KeyStore) {
        let keys = keys.tables().snapshot();
        let principals = keys.principals(SystemTime::now());
        let is_lost =
            |principal: &str| principal.starts_with("key:") && !principals.contains(principal);
        service.end_principals(is_lost).await;
        let all = keys.iter().map(|key| key.principal());
        let lost: HashSet<_> = all
            .filter(|principal| !principals.contains(*principal))
            .cloned()
            .collect();
        self.0.retain(|principal| lost.contains(principal));
        for principal in lost {
            if self.0.contains(&principal) {
                continue;
            }
            if let Err(error) = service.forget_tasks(&principal).await {
                tracing::warn!(%error, "tasks of principals without a valid key are not deleted yet");
                return;
            }
            self.0.insert(principal);
        }
    }
}

/// The last steps of a start: the predecessor is stopped, and this process accepts connections.
struct Takeover {
    predecessor: Option<Predecessor>,
    gate: watch::Sender<bool>,
    offer: Offer,
}

impl Takeover {
    /// Accepts connections before the first scan if the predecessor no longer accepts any.
    async fn begin(&mut self, replicas: &Replicas) {
        if self.predecessor.as_ref().is_some_and(|it| it.stops) {
            self.relieve(replicas).await;
        }
    }

    async fn complete(mut self, replicas: &Replicas) {
        self.relieve(replicas).await;
        self.offer.start();
    }

    async fn relieve(&mut self, replicas: &Replicas) {
        if let Some(predecessor) = self.predecessor.take() {
            // An error means that the task panicked, which the panic hook has logged.
            let _ = tokio::task::spawn_blocking(|| predecessor.relieve()).await;
            replicas.predecessor_stopping().await;
        }
        self.gate.send_replace(true);
    }
}

async fn first_scan(
    reloader: Option<Arc<Reloader>>,
    health: Arc<Health>,
    replicas: Arc<Replicas>,
    mut arrival: Takeover,
    announcement: Option<String>,
    start: InProgressGuard,
) {
    arrival.begin(&replicas).await;
    if let Some(reloader) = reloader {
        let registry = Arc::clone(reloader.registry());
        let mut scan = tokio::spawn(async move { report(reloader.reload().await) });
        // The scan may finish long before the reload, which also installs packages. With a predecessor, which still serves all
        // namespaces, the complete reload is awaited.
        let serves = arrival.predecessor.is_some();
        let scanned = async {
            registry.wait_until_scanned().await;
            tokio::time::sleep(SCAN_END).await;
        };
        // An error means that the task panicked, which the panic hook has logged.
        tokio::select! {
            _ = &mut scan => {}
            () = scanned, if !serves => {}
        }
    }
    health.set_ready();
    arrival.complete(&replicas).await;
    drop(start);
    if let Some(text) = announcement {
        println!("{text}");
    }
}

fn report(
    outcome: Result<
        Arc<tooldock_workers::reload::ReloadReport>,
        tooldock_workers::reload::ReloadError,
    >,
) {
    match outcome {
        Ok(report) => tracing::info!(
            namespaces = report.namespaces.len(),
            restarted = report.workers_restarted.len(),
            synced = report.deps_synced.len(),
            failed = report.failed.len(),
            "namespaces loaded"
        ),
        Err(error) => {
            tracing::error!(%error, "the namespaces could not be loaded, the ones before stay")
        }
    }
}
