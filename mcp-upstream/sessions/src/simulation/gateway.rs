//! Simulated replica: the real components of a gateway behind its surfaces, and the path of a request through them.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tooldock_protocol::seal::{SessionId, SessionKey};

use super::world::World;
use super::{PRINCIPALS, binding, client};
use crate::broadcast::Audience;
use crate::replicas::tests::announcement;
use crate::replicas::{
    Announcement, BEAT_LIFE, ForwardError, ReplicaId, Replicas, RoutedRequest, RoutingError,
};
use crate::session::config::{EventLogConfig, SessionsConfig};
use crate::session::table::{Located, ResumedStream, TableLimits};
use crate::session::{Session, SessionPatch, SessionState, SessionTable};
use crate::stores::redis::tests::simulated::{Process, ProcessState};
use crate::stream::frame::{self, EventId};
use crate::stream::{EventLog, KeepAlive, ResumeError, StreamKind, StreamMetrics, Subscription};

/// Network delay from one machine to another.
pub(super) const HOP: Duration = Duration::from_millis(1);
/// Interval between sweeps of sessions, as in the control loop of the gateway.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Time limit for opening a forwarded stream (`proxy/replicas/forward.rs`).
const HEAD: Duration = Duration::from_secs(10);
/// Maximum number of forwards of one request (`proxy/replicas/passport.rs`).
const HOPS_MAX: u8 = 2;

/// Process of a simulated replica.
pub(super) struct Gateway {
    /// Number of the replica in the simulation.
    pub(super) slot: usize,
    pub(super) replicas: Arc<Replicas>,
    pub(super) table: SessionTable,
    pub(super) events: Arc<EventLog>,
    pub(super) audience: Arc<Audience>,
    pub(super) process: Arc<Process>,
    /// True from the moment the process is frozen until its sessions have been compared with their records again.
    pub(super) in_doubt: AtomicBool,
    /// Duration of the longest sweep, in milliseconds. The control loop of a gateway waits for its sweeps.
    pub(super) longest_sweep: AtomicU64,
}

/// A request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ask {
    /// The notification `notifications/initialized`.
    Confirm,
    /// A call that is answered as JSON.
    Call,
    /// A call that is answered by a stream: progress, then the response.
    Streamed,
    /// Opening of a general stream (`GET`); with an event id, the stream is resumed after that event.
    Listen(Option<EventId>),
}

impl Ask {
    fn is_post(&self) -> bool {
        matches!(self, Self::Confirm | Self::Call | Self::Streamed)
    }
}

/// The answer to a request.
pub(super) enum Answer {
    Done,
    /// Response to a call, with the number of its events.
    Events(usize),
    /// An opened stream, and the process that writes it.
    Stream(Subscription, Arc<Gateway>),
    /// Response with status 404: the session was not found.
    NotFound,
    /// Response with status 503: the client may try again.
    Unavailable,
}

pub(super) fn limits() -> TableLimits {
    let config = SessionsConfig::default();
    TableLimits {
        ttl: config.ttl,
        unused_ttl: config.unused_ttl,
        max: usize::MAX,
        per_principal: usize::MAX,
        bytes: usize::MAX,
        bytes_per_principal: usize::MAX,
    }
}

pub(super) fn key() -> SessionKey {
    SessionKey::from_text("the key of a simulation")
}

impl Gateway {
    /// Starts a process of a replica.
    pub(super) fn start(world: &Arc<World>, slot: usize) -> Arc<Self> {
        let own = announcement(&format!("gateway-{slot}"));
        let process = Process::started();
        let connection = world.redis.connection(Some(own.id), &process);
        let replicas = Replicas::of(own, Arc::clone(&connection) as _);
        let stores = connection.stores();
        let keep_alive = KeepAlive::new(Duration::from_secs(15));
        let metrics = StreamMetrics::unregistered();
        let events = EventLog::new(EventLogConfig::default(), keep_alive, metrics);
        let events = Arc::new(events.with_store(stores.events));
        let table = SessionTable::new(
            limits(),
            key(),
            Arc::clone(&events),
            Some(stores.sessions),
            Arc::clone(&replicas),
        );
        let gateway = Arc::new(Self {
            slot,
            audience: Audience::among(Arc::clone(&events), Arc::clone(&replicas)),
            replicas,
            table,
            events,
            process,
            in_doubt: AtomicBool::new(false),
            longest_sweep: AtomicU64::new(0),
        });
        let own = Arc::clone(&gateway);
        tokio::spawn(async move {
            tokio::select! {
                () = own.process.killed() => {}
                () = own.beat() => {}
                () = own.sweep() => {}
            }
        });
        gateway
    }

    async fn beat(&self) {
        let hear = |news: &str| self.audience.announce_from_replica(news);
        self.replicas.run(|_| {}, hear, || "sources".into()).await;
    }

    async fn sweep(&self) {
        let mut tick = interval(SWEEP_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if !self.process.runs().await {
                return;
            }
            let began = Instant::now();
            self.events.sweep(began);
            self.table.evict_expired(began).await;
            let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.longest_sweep.fetch_max(took, Ordering::Relaxed);
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.process.state() == ProcessState::Runs
    }

    /// Opens a session.
    pub(super) async fn open(&self, world: &World, client_number: usize) -> Option<SessionId> {
        if !self.process.runs().await {
            return None;
        }
        let namespace = client_number % world.options.namespaces;
        let binding = binding(namespace, client_number % PRINCIPALS);
        let created = self.table.create(binding, Some(client()), Instant::now());
        let created = created.await.ok()?;
        Some(created.session.id().clone())
    }

    /// Answers a request that reached this replica.
    pub(super) fn ask<'a>(
        self: &'a Arc<Self>,
        world: &'a World,
        id: &'a SessionId,
        ask: &'a Ask,
        hops: u8,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, RoutingError>> + Send + 'a>> {
        let mut request = Request {
            world,
            at: self,
            id,
            ask,
            hops,
        };
        Box::pin(async move {
            if !self.process.runs().await {
                return Err(RoutingError::Unreachable);
            }
            self.replicas.route(&mut request).await
        })
    }

    /// Answers a request of a session that is live in this replica, as the service does.
    async fn answer(
        self: &Arc<Self>,
        session: &Arc<Session>,
        ask: &Ask,
    ) -> Result<Answer, ReplicaId> {
        if session.state() == SessionState::Closed {
            return Ok(Answer::NotFound);
        }
        let now = Instant::now();
        session.touch(now);
        match ask {
            Ask::Confirm => {
                let committed = self.table.commit(session, SessionPatch::Confirm, now);
                committed.await.expect("no bound is reached");
                Ok(Answer::Done)
            }
            Ask::Call => Ok(Answer::Done),
            Ask::Streamed => Ok(self.call(session).await),
            Ask::Listen(last) => self.listen(session, *last).await,
        }
    }

    async fn call(&self, session: &Arc<Session>) -> Answer {
        let owes: [Box<str>; 1] = ["7".into()];
        let opened = self
            .events
            .open_for_requests(session, StreamKind::Request, true, &owes);
        let Ok(stream) = opened.await else {
            return Answer::Unavailable;
        };
        self.note_stream(session, stream.number()).await;
        let mut read = stream.read();
        let progress = br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{}}"#;
        self.events.append(session, &stream, progress).await;
        let answer = br#"{"jsonrpc":"2.0","id":7,"result":{"content":[]}}"#;
        self.events.append(session, &stream, answer).await;
        stream.finish();
        let mut events = 0;
        while let Some(chunk) = read.next().await {
            events += usize::from(frame::read(&chunk).1.is_some());
        }
        Answer::Events(events)
    }

    async fn listen(
        self: &Arc<Self>,
        session: &Arc<Session>,
        last: Option<EventId>,
    ) -> Result<Answer, ReplicaId> {
        let subscription = match last {
            Some(last) => match self.table.resume(session, &last.to_string()).await {
                Ok(ResumedStream::Here(subscription)) => subscription,
                Ok(ResumedStream::Elsewhere(replica)) => return Err(replica),
                Err(ResumeError::Store(_)) => return Ok(Answer::Unavailable),
                // A real gateway answers with status 400, and the client then opens a new stream.
                Err(ResumeError::Malformed | ResumeError::Unknown) => {
                    return Box::pin(self.listen(session, None)).await;
                }
            },
            None => match self.events.open(session, StreamKind::General, true).await {
                Ok(stream) => {
                    self.audience.join(session);
                    stream.read()
                }
                Err(_) => return Ok(Answer::Unavailable),
            },
        };
        self.note_stream(session, subscription.number()).await;
        Ok(Answer::Stream(subscription, Arc::clone(self)))
    }

    async fn note_stream(&self, session: &Session, number: u32) {
        let opened = SessionPatch::OpenStream(number);
        let committed = self.table.commit(session, opened, Instant::now());
        committed.await.expect("no bound is reached");
    }
}

/// A request that has reached a replica.
struct Request<'a> {
    world: &'a World,
    at: &'a Arc<Gateway>,
    id: &'a SessionId,
    ask: &'a Ask,
    hops: u8,
}

impl RoutedRequest for Request<'_> {
    type Answer = Answer;

    async fn here(&mut self) -> Result<Answer, ReplicaId> {
        let located = self.at.table.locate(self.id.as_str(), Instant::now());
        let session = match located.await {
            Err(_) => return Ok(Answer::Unavailable),
            Ok(Located::Absent) => return Ok(Answer::NotFound),
            Ok(Located::Elsewhere(replica)) => return Err(replica),
            Ok(Located::Live(session)) => session,
            Ok(Located::Adopted(adopted)) => {
                self.world.tally().adopted(Instant::now());
                if adopted.session.streams().had_general() {
                    self.at.audience.join(&adopted.session);
                }
                adopted.session
            }
        };
        self.at.answer(&session, self.ask).await
    }

    async fn there(&mut self, other: &Announcement) -> Result<Answer, ForwardError> {
        self.world.tally().forwards += 1;
        sleep(HOP).await;
        // No process listens at the address of a killed replica.
        let gateway = self.world.at(other.id).ok_or(ForwardError::Repeatable)?;
        let broken = match self.ask.is_post() {
            true => ForwardError::Lost,
            false => ForwardError::Repeatable,
        };
        let answered = tokio::select! {
            answered = gateway.ask(self.world, self.id, self.ask, self.hops + 1) => answered,
            () = gateway.process.killed() => return Err(broken),
            () = self.at.replicas.gone(other.id) => return Err(broken),
            () = sleep(HEAD), if !self.ask.is_post() => return Err(broken),
        };
        sleep(HOP).await;
        Ok(answered.unwrap_or(Answer::Unavailable))
    }

    fn may_be_forwarded(&self) -> bool {
        self.hops < HOPS_MAX
    }
}

/// Sessions of a gateway without a store, and the readers of their streams.
pub(super) async fn sessions_without_store(
    sessions: usize,
    listen: bool,
) -> (SessionTable, Vec<Subscription>) {
    let keep_alive = KeepAlive::new(Duration::from_secs(15));
    let metrics = StreamMetrics::unregistered();
    let events = EventLog::new(EventLogConfig::default(), keep_alive, metrics);
    let events = Arc::new(events);
    let alone = Replicas::alone();
    let table = SessionTable::new(limits(), key(), Arc::clone(&events), None, alone);
    let mut read = Vec::new();
    for number in 0..sessions {
        let binding = binding(number % 10, number % PRINCIPALS);
        let created = table.create(binding, Some(client()), Instant::now());
        let session = created.await.expect("randomness").session;
        if listen {
            let stream = events.open(&session, StreamKind::General, true).await;
            read.push(stream.expect("memory").read());
        }
    }
    (table, read)
}

/// Time after which a process that was frozen has compared all its sessions with their records.
pub(super) const DOUBT_MAX: Duration = BEAT_LIFE.saturating_mul(10);

/// Ids of live sessions, and the number of sessions that are live more than once.
pub(super) fn live(gateways: &[Arc<Gateway>]) -> (HashSet<SessionId>, usize) {
    let mut live = HashSet::new();
    let mut doubled = 0;
    for session in gateways.iter().flat_map(|it| it.table.all()) {
        let open = session.state() != SessionState::Closed;
        doubled += usize::from(open && !live.insert(session.id().clone()));
    }
    (live, doubled)
}
