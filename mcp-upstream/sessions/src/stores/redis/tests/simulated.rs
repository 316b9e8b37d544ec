//! A Redis in memory, for simulations: it keeps the contract of the real one, by the clock of the test, and works as long
//! for each operation as a real one does ([`Operation::work`]). One core does the work of a shard, in the order in which it
//! comes. Connections wait as [`link`](super::super::link) does: 50 ms, and a silent server is refused for a while.
//!
//! Answers come in whole milliseconds: the clock of the test has no others. Nothing expires here; runs are shorter than the
//! lives of keys.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tooldock_base::budget::BudgetUse;

use super::super::link::OPERATION_MAX;
use super::super::record::{self, FieldChangeKind};
use super::super::silence::Silence;
use super::*;
use crate::replicas::{Announcement, BEAT_LIFE, DirectoryReply, ReplicaDirectory, local_millis};
use crate::session::{Home, SessionPatch, SessionRecord};
use crate::stores::Stores;
use crate::stream::store::{AppendOutcome, Replay};
use crate::tasks::MemoryTasks;

/// An operation of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    Insert,
    Load,
    Patch,
    Claim,
    Touch,
    Remove,
    Open,
    Append,
    Read,
    Forget,
    Beat,
    Tell,
}

impl Operation {
    pub(crate) const ALL: [Self; 12] = [
        Self::Insert,
        Self::Load,
        Self::Patch,
        Self::Claim,
        Self::Touch,
        Self::Remove,
        Self::Open,
        Self::Append,
        Self::Read,
        Self::Forget,
        Self::Beat,
        Self::Tell,
    ];

    /// The time of the server's core that the operation takes, by `make simulate-redis` (docs/scaling.md): that of one beat
    /// grows with the replicas, that of a touch with the sessions.
    pub(crate) fn work(self, count: usize) -> Duration {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let nanos = match self {
            Self::Insert | Self::Open | Self::Read | Self::Forget => 10_000,
            Self::Load => 6_000,
            Self::Patch => 12_000,
            Self::Claim => 20_000,
            Self::Touch => 4_700 * count,
            Self::Remove => 5_000,
            Self::Append => 28_000,
            Self::Beat => 25_000 + 3_000 * count,
            Self::Tell => 15_000,
        };
        Duration::from_nanos(nanos)
    }
}

/// The state of the server, or of the network to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Condition {
    #[default]
    Up,
    /// Connections are refused.
    Away,
    /// Each answer takes so much longer.
    Slow(Duration),
}

/// The work of the server so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Work {
    pub(crate) operations: BTreeMap<Operation, u64>,
    /// The time that its busiest core has worked.
    pub(crate) busy: Duration,
    /// The longest queue that an operation met.
    pub(crate) longest_queue: Duration,
    /// Operations whose answer came too late.
    pub(crate) timeouts: u64,
    /// Operations that were not sent, or were refused.
    pub(crate) refused: u64,
}

impl Work {
    /// The work of these operations so far.
    pub(crate) fn of(&self, operation: Operation) -> u64 {
        self.operations.get(&operation).copied().unwrap_or_default()
    }

    /// The work since then.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let operations = self.operations.iter();
        Self {
            operations: operations
                .map(|(operation, count)| (*operation, count - before.of(*operation)))
                .collect(),
            busy: self.busy.saturating_sub(before.busy),
            longest_queue: self.longest_queue,
            timeouts: self.timeouts - before.timeouts,
            refused: self.refused - before.refused,
        }
    }
}

/// The server.
pub(crate) struct SimulatedRedis {
    server: Mutex<Server>,
}

struct Server {
    data: Data,
    condition: Condition,
    /// The moment at which each shard has finished its queued operations.
    shards: Vec<Instant>,
    worked: Vec<Duration>,
    work: Work,
    /// The time from a replica to the server and back.
    round_trip: Duration,
    /// The longest wait of a connection.
    patience: Duration,
    /// Answers of each hundred that are delayed, by up to 30 ms.
    delayed: u32,
    random: fastrand::Rng,
}

#[derive(Default)]
struct Data {
    sessions: HashMap<Key, StoredSession>,
    directory: Directory,
    bounds: EventLogConfig,
}

/// The digest of a session's id.
type Key = [u8; 16];

#[derive(Default)]
struct StoredSession {
    /// No fields: there is no record.
    fields: Vec<(Box<str>, Box<str>)>,
    streams: Vec<StoredStream>,
}

#[derive(Default)]
struct StoredStream {
    number: u32,
    opened: Option<Box<str>>,
    newest: u64,
    dropped: u64,
    bytes: usize,
    messages: VecDeque<(u64, Box<str>)>,
}

#[derive(Default)]
struct Directory {
    replicas: BTreeMap<ReplicaId, (Announcement, Instant)>,
    since: Option<Instant>,
    beat: Option<Instant>,
    reloads: u64,
    newest: u64,
    news: VecDeque<(u64, Instant, ReplicaId, String)>,
}

/// A process that can be frozen and killed.
#[derive(Debug)]
pub(crate) struct Process(watch::Sender<ProcessState>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessState {
    Runs,
    Frozen,
    Killed,
}

impl Process {
    pub(crate) fn started() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(ProcessState::Runs)))
    }

    pub(crate) fn set(&self, state: ProcessState) {
        self.0.send_replace(state);
    }

    pub(crate) fn state(&self) -> ProcessState {
        *self.0.borrow()
    }

    /// Waits while the process is frozen. Answers whether it runs.
    pub(crate) async fn runs(&self) -> bool {
        if self.state() == ProcessState::Frozen {
            let mut state = self.0.subscribe();
            let _ = state.wait_for(|it| *it != ProcessState::Frozen).await;
        }
        self.state() == ProcessState::Runs
    }

    /// Waits until the process is killed.
    pub(crate) async fn killed(&self) {
        let mut state = self.0.subscribe();
        let _ = state.wait_for(|it| *it == ProcessState::Killed).await;
    }
}

impl SimulatedRedis {
    pub(crate) fn start(shards: usize, bounds: EventLogConfig, seed: u64) -> Arc<Self> {
        let data = Data {
            bounds,
            ..Data::default()
        };
        let server = Server {
            data,
            condition: Condition::Up,
            shards: vec![Instant::now(); shards],
            worked: vec![Duration::ZERO; shards],
            work: Work::default(),
            round_trip: Duration::from_millis(1),
            patience: OPERATION_MAX,
            delayed: 0,
            random: fastrand::Rng::with_seed(seed),
        };
        Arc::new(Self {
            server: Mutex::new(server),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Server> {
        self.server.lock().expect("no panic")
    }

    /// The connection of a process; `replica` as in [`RedisStore::of_replica`].
    pub(crate) fn connection(
        self: &Arc<Self>,
        replica: Option<ReplicaId>,
        process: &Arc<Process>,
    ) -> Arc<SimulatedConnection> {
        Arc::new(SimulatedConnection {
            redis: Arc::clone(self),
            replica,
            process: Arc::clone(process),
            silence: Mutex::default(),
        })
    }

    pub(crate) fn set(&self, condition: Condition) {
        self.lock().condition = condition;
    }

    /// Delays so many of a hundred answers.
    pub(crate) fn delay(&self, of_a_hundred: u32) {
        self.lock().delayed = of_a_hundred;
    }

    /// Loses everything, as a server without persistence that is started again.
    pub(crate) fn lose_data(&self) {
        let mut server = self.lock();
        let bounds = server.data.bounds.clone();
        server.data = Data {
            bounds,
            ..Data::default()
        };
    }

    pub(crate) fn work(&self) -> Work {
        self.lock().work.clone()
    }

    /// Operations that failed so far.
    pub(crate) fn work_failed(&self) -> u64 {
        let server = self.lock();
        server.work.timeouts + server.work.refused
    }

    /// Forgets the longest queue.
    pub(crate) fn watch_queue(&self) {
        self.lock().work.longest_queue = Duration::ZERO;
    }
}

impl Server {
    /// Takes an operation into the queue of its shard, and answers the time until its answer is there; `None` where it is refused.
    fn admit(&mut self, operation: Operation, shard: usize, count: usize) -> Option<Duration> {
        if self.condition == Condition::Away {
            return None;
        }
        let now = Instant::now();
        let work = operation.work(count);
        let shard = shard % self.shards.len();
        let begins = self.shards[shard].max(now);
        self.shards[shard] = begins + work;
        self.worked[shard] += work;
        self.work.busy = self.worked.iter().max().copied().unwrap_or_default();
        self.work.longest_queue = self.work.longest_queue.max(begins - now);
        *self.work.operations.entry(operation).or_default() += match operation {
            Operation::Touch => count as u64,
            _ => 1,
        };
        let mut way = self.round_trip;
        if let Condition::Slow(more) = self.condition {
            way += more;
        }
        if self.delayed > 0 && self.random.u32(0..100) < self.delayed {
            way += Duration::from_millis(self.random.u64(1..30));
        }
        Some(begins + work + way - now)
    }
}

/// The connection of one process.
pub(crate) struct SimulatedConnection {
    redis: Arc<SimulatedRedis>,
    replica: Option<ReplicaId>,
    process: Arc<Process>,
    silence: Mutex<Silence>,
}

/// An operation that was sent: the server carries it out even if its caller no longer waits.
struct Sent<F: FnOnce(&mut Data)> {
    redis: Arc<SimulatedRedis>,
    work: Option<F>,
}

impl<F: FnOnce(&mut Data)> Sent<F> {
    fn carry_out(&mut self) {
        if let Some(work) = self.work.take() {
            work(&mut self.redis.lock().data);
        }
    }
}

impl<F: FnOnce(&mut Data)> Drop for Sent<F> {
    fn drop(&mut self) {
        self.carry_out();
    }
}

impl SimulatedConnection {
    pub(crate) fn stores(self: &Arc<Self>) -> Stores {
        Stores {
            sessions: Arc::clone(self) as _,
            events: Arc::clone(self) as _,
            tasks: Arc::new(MemoryTasks::default()),
        }
    }

    async fn run<T: Send + 'static>(
        &self,
        (operation, shard, count): (Operation, usize, usize),
        work: impl FnOnce(&mut Data) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        if !self.process.runs().await {
            return Err(StoreError("the process was killed".into()));
        }
        let began = Instant::now();
        let patience = self.redis.lock().patience;
        let takes = match self.silence().refuses(began) {
            true => None,
            false => self.redis.lock().admit(operation, shard, count),
        };
        let Some(takes) = takes else {
            self.redis.lock().work.refused += 1;
            sleep(Duration::from_millis(1)).await;
            return Err(StoreError("refused".into()));
        };
        let (done, answer) = std::sync::mpsc::sync_channel(1);
        let mut sent = Sent {
            redis: Arc::clone(&self.redis),
            work: Some(move |data: &mut Data| _ = done.send(work(data))),
        };
        if takes > patience {
            tokio::spawn(async move {
                sleep(takes).await;
                sent.carry_out();
            });
            sleep(patience).await;
        } else {
            sleep(takes).await;
            sent.carry_out();
        }
        if !self.process.runs().await {
            return Err(StoreError("the process was killed".into()));
        }
        // A process may be frozen while it waits.
        if takes > patience || began.elapsed() > patience + Duration::from_millis(1) {
            self.redis.lock().work.timeouts += 1;
            self.silence().record_timeout(Instant::now());
            return Err(StoreError("did not answer within 50 ms".into()));
        }
        self.silence().end();
        answer
            .try_recv()
            .map_err(|_| StoreError("no answer".into()))
    }

    fn silence(&self) -> MutexGuard<'_, Silence> {
        self.silence.lock().expect("no panic")
    }
}

fn key(session: &str) -> Key {
    let digest: [u8; 32] = Sha256::digest(session).into();
    *digest.first_chunk().expect("16 of 32 bytes")
}

/// The shard of a session.
fn shard(key: Key) -> usize {
    usize::from(u16::from_be_bytes([key[0], key[1]]))
}

fn one(operation: Operation, key: Key) -> (Operation, usize, usize) {
    (operation, shard(key), 1)
}

impl StoredSession {
    fn has_record(&self) -> bool {
        !self.fields.is_empty()
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.fields.iter();
        let (_, value) = fields.find(|(field, _)| **field == *name)?;
        Some(value)
    }

    fn set(&mut self, name: String, value: String) {
        match self.fields.iter_mut().find(|(field, _)| **field == *name) {
            Some((_, own)) => *own = value.into(),
            None => self.fields.push((name.into(), value.into())),
        }
    }

    fn folded(&self) -> Result<Option<SessionRecord>, StoreError> {
        let fields = self.fields.iter();
        record::folded(
            fields
                .map(|(name, value)| (name.to_string(), value.to_string()))
                .collect(),
        )
    }

    /// True if another replica than this one has the session.
    fn is_foreign(&self, replica: Option<ReplicaId>) -> bool {
        let home = replica.and_then(|_| self.field("home"));
        home.is_some_and(|home| {
            let (at, _) = home.split_once(':').expect("a home");
            Some(at) != replica.map(|it| it.0.to_string()).as_deref()
        })
    }

    fn stream(&mut self, number: u32) -> &mut StoredStream {
        let known = self.streams.iter().position(|it| it.number == number);
        let at = known.unwrap_or_else(|| {
            self.streams.push(StoredStream {
                number,
                ..StoredStream::default()
            });
            self.streams.len() - 1
        });
        &mut self.streams[at]
    }
}

#[async_trait]
impl SessionStore for SimulatedConnection {
    async fn insert(&self, record: &SessionRecord) -> Result<bool, StoreError> {
        let key = key(record.id.as_str());
        let (fields, home) = (record::fields(record)?, record.home.replica);
        self.run(one(Operation::Insert, key), move |data| {
            let session = data.sessions.entry(key).or_default();
            if session.is_foreign(Some(home)) {
                return false;
            }
            session.fields.clear();
            fields
                .into_iter()
                .for_each(|(name, value)| session.set(name, value));
            true
        })
        .await
    }

    async fn load(&self, id: &str) -> Result<Option<SessionRecord>, StoreError> {
        let key = key(id);
        self.run(one(Operation::Load, key), move |data| {
            let session = data.sessions.get(&key);
            session.map_or(Ok(None), StoredSession::folded)
        })
        .await?
    }

    async fn patch(&self, id: &SessionId, patch: &SessionPatch) -> Result<(), StoreError> {
        let key = key(id.as_str());
        let (change, replica) = (record::change(patch)?, self.replica);
        self.run(one(Operation::Patch, key), move |data| {
            let Some(session) = data.sessions.get_mut(&key) else {
                return;
            };
            if !session.has_record() || session.is_foreign(replica) {
                return;
            }
            match change.kind {
                FieldChangeKind::Set => session.set(change.field, change.value),
                FieldChangeKind::Delete => {
                    session.fields.retain(|(name, _)| **name != *change.field);
                }
                FieldChangeKind::Raise => {
                    let number = |text: &str| text.parse::<u64>().expect("a number");
                    let known = session.field(&change.field).map_or(0, number);
                    if number(&change.value) > known {
                        session.set(change.field, change.value);
                    }
                }
            }
        })
        .await
    }

    async fn claim(
        &self,
        id: &SessionId,
        by: Home,
        from: Home,
    ) -> Result<Option<SessionRecord>, StoreError> {
        let key = key(id.as_str());
        self.run(one(Operation::Claim, key), move |data| {
            let Some(session) = data.sessions.get_mut(&key) else {
                return Ok(None);
            };
            if session.field("home") != Some(&*record::home(from)) {
                return Ok(None);
            }
            session.set("home".into(), record::home(by));
            session.folded()
        })
        .await?
    }

    async fn touch(&self, ids: &[SessionId]) -> Result<Vec<SessionId>, StoreError> {
        let mut gone = Vec::new();
        for ids in ids.chunks(TOUCHED_AT_ONCE) {
            let keys: Vec<_> = ids.iter().map(|id| key(id.as_str())).collect();
            let count = keys.len();
            let missing = self.run((Operation::Touch, shard(keys[0]), count), move |data| {
                let there = |key| {
                    data.sessions
                        .get(key)
                        .is_some_and(StoredSession::has_record)
                };
                keys.iter().map(|key| !there(key)).collect::<Vec<_>>()
            });
            let answered = ids.iter().zip(missing.await?);
            gone.extend(answered.filter(|(_, gone)| *gone).map(|(id, _)| id.clone()));
        }
        Ok(gone)
    }

    async fn remove(&self, id: &SessionId) -> Result<bool, StoreError> {
        let (key, replica) = (key(id.as_str()), self.replica);
        self.run(one(Operation::Remove, key), move |data| {
            let Some(session) = data.sessions.get_mut(&key) else {
                return true;
            };
            if session.is_foreign(replica) {
                return false;
            }
            session.fields.clear();
            true
        })
        .await
    }
}

#[async_trait]
impl EventStore for SimulatedConnection {
    async fn append(
        &self,
        stream: StreamRef<'_>,
        event: &StoredEvent,
    ) -> Result<AppendOutcome, StoreError> {
        let key = key(stream.session.as_str());
        let (number, sequence, replica) = (stream.number, event.sequence, self.replica);
        match &event.kind {
            EventKind::Opened { .. } => {
                let opened = serde_json::to_string(event).expect("plain data");
                self.run(one(Operation::Open, key), move |data| {
                    let session = data.sessions.entry(key).or_default();
                    if session.is_foreign(replica) {
                        return AppendOutcome::Foreign;
                    }
                    session.stream(number).opened = Some(opened.into());
                    AppendOutcome::Kept
                })
                .await
            }
            EventKind::Message(message) => {
                let message: Box<str> = message.as_str().into();
                self.run(one(Operation::Append, key), move |data| {
                    let Data {
                        sessions, bounds, ..
                    } = data;
                    let session = sessions.entry(key).or_default();
                    if session.is_foreign(replica) {
                        return AppendOutcome::Foreign;
                    }
                    session.stream(number).append(sequence, message, bounds);
                    AppendOutcome::Kept
                })
                .await
            }
        }
    }

    async fn read(&self, stream: StreamRef<'_>, max: usize) -> Result<Replay, StoreError> {
        let key = key(stream.session.as_str());
        let number = stream.number;
        self.run(one(Operation::Read, key), move |data| {
            let session = data.sessions.get(&key);
            let stream = session.and_then(|it| it.streams.iter().find(|it| it.number == number));
            stream.map_or_else(Replay::default, |stream| stream.replay(max))
        })
        .await
    }

    async fn forget(&self, session: &SessionId) -> Result<(), StoreError> {
        let key = key(session.as_str());
        self.run(one(Operation::Forget, key), move |data| {
            if let Some(session) = data.sessions.get_mut(&key) {
                session.streams.clear();
                if !session.has_record() {
                    data.sessions.remove(&key);
                }
            }
        })
        .await
    }
}

impl StoredStream {
    fn append(&mut self, sequence: u64, message: Box<str>, bounds: &EventLogConfig) {
        self.bytes += message.len();
        self.messages.push_back((sequence, message));
        let bytes_max = usize::try_from(bounds.bytes.as_u64()).unwrap_or(usize::MAX);
        while self.messages.len() > 1
            && (self.messages.len() > bounds.events.max(1) || self.bytes > bytes_max)
        {
            let (oldest, message) = self.messages.pop_front().expect("two at least");
            self.bytes -= message.len();
            self.dropped = self.dropped.max(oldest);
        }
        self.newest = self.newest.max(sequence);
    }

    fn replay(&self, max: usize) -> Replay {
        let mut dropped = match self.messages.is_empty() {
            true => self.dropped.max(self.newest),
            false => self.dropped,
        };
        let mut read: Vec<_> = self.messages.iter().collect();
        read.sort_by_key(|(sequence, _)| *sequence);
        read.retain(|(sequence, _)| *sequence > dropped);
        let surplus = read.len().saturating_sub(max);
        if let Some((newest_left_out, _)) = read.drain(..surplus).next_back() {
            dropped = *newest_left_out;
        }
        let opened = self.opened.iter();
        let mut events: Vec<StoredEvent> = opened
            .map(|opened| serde_json::from_str(opened).expect("as written"))
            .collect();
        events.extend(read.into_iter().map(|(sequence, message)| StoredEvent {
            sequence: *sequence,
            kind: EventKind::Message(message.to_string()),
        }));
        events.sort_by_key(|event| event.sequence);
        Replay { events, dropped }
    }
}

/// The shard of the directory.
const DIRECTORY: usize = 0;

/// The time for which news are kept.
const NEWS_LIFE: Duration = BEAT_LIFE.saturating_mul(5);

#[async_trait]
impl ReplicaDirectory for SimulatedConnection {
    async fn beat(
        &self,
        own: &Announcement,
        seen: Option<u64>,
    ) -> Result<DirectoryReply, StoreError> {
        let replicas = self.redis.lock().data.directory.replicas.len().max(1);
        let own = own.clone();
        self.run((Operation::Beat, DIRECTORY, replicas), move |data| {
            data.directory.beat(own, seen)
        })
        .await
    }

    async fn tell(&self, own: ReplicaId, news: &[String]) -> Result<(), StoreError> {
        let news = news.to_vec();
        self.run((Operation::Tell, DIRECTORY, 1), move |data| {
            let directory = &mut data.directory;
            for news in news {
                directory.newest += 1;
                let told = (directory.newest, Instant::now(), own, news);
                directory.news.push_back(told);
            }
        })
        .await
    }

    async fn leave(&self, own: &Announcement) -> Result<(), StoreError> {
        let (id, incarnation) = (own.id, own.incarnation);
        self.run((Operation::Tell, DIRECTORY, 1), move |data| {
            let replicas = &mut data.directory.replicas;
            let known = replicas.get(&id);
            if known.is_some_and(|(it, _)| it.incarnation == incarnation) {
                replicas.remove(&id);
            }
        })
        .await
    }

    async fn ask_reload(&self) -> Result<u64, StoreError> {
        self.run((Operation::Tell, DIRECTORY, 1), |data| {
            data.directory.reloads += 1;
            data.directory.reloads
        })
        .await
    }

    async fn take_budgets(
        &self,
        used: &[BudgetUse],
        _: usize,
    ) -> Result<Vec<Duration>, StoreError> {
        Ok(used.iter().map(|it| it.whole_in).collect())
    }
}

impl Directory {
    /// The work of `beat.lua`.
    fn beat(&mut self, own: Announcement, seen: Option<u64>) -> DirectoryReply {
        let now = Instant::now();
        if self.beat.is_none_or(|beat| now - beat >= BEAT_LIFE) {
            self.since = Some(now);
        }
        self.beat = Some(now);
        self.news.retain(|(_, at, ..)| now - *at <= NEWS_LIFE);
        let lives = |at: &Instant| now - *at < BEAT_LIFE;
        let known = self.replicas.get(&own.id);
        let recognized = known.is_some_and(|(it, _)| it.incarnation == own.incarnation);
        let rival = known.is_some_and(|(_, at)| !recognized && lives(at));
        let id = own.id;
        if !rival {
            self.replicas.insert(id, (own, now));
        }
        let others = self.replicas.values();
        let others = others.filter(|(it, at)| it.id != id && lives(at));
        let seen = seen.unwrap_or(u64::MAX);
        let news = self.news.iter();
        let news = news.filter(|(number, _, by, _)| *number > seen && *by != id);
        DirectoryReply {
            others: others.map(|(it, _)| it.clone()).collect(),
            settled: self.since.is_some_and(|since| now - since >= BEAT_LIFE),
            rival,
            known: recognized,
            reloads: self.reloads,
            newest: self.newest,
            news: news.map(|(.., news)| news.clone()).collect(),
            now: local_millis(),
        }
    }
}

/// The server in the tests of the contract, each with a clock of its own.
async fn in_memory(log: EventLogConfig) -> Made {
    let server = SimulatedRedis::start(2, log, 7);
    // The clock of these tests is the real one.
    server.lock().patience = PATIENCE;
    let process = Process::started();
    let stores = server.connection(None, &process).stores();
    let replica = move |name: &str| {
        let stores = |id| server.connection(Some(id), &process).stores();
        let directory = server.connection(None, &process);
        ReplicaStore::new(name, stores, directory)
    };
    Made {
        stores,
        replica: Some(Box::new(replica)),
        guard: Box::new(()),
    }
}

holds_for!(in_memory);

async fn replicas_in_memory(log: EventLogConfig) -> Made {
    in_memory(log).await
}

holds_for_replicas!(replicas_in_memory);
