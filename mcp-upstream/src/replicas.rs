//! The replicas of a gateway: processes that serve the same sessions from one store.
//!
//! ```text
//!   beat ──▶ ReplicaDirectory ──▶ Heard: other replicas that beat within BEAT_LIFE
//!              (a store)              │
//!                                     ▼
//!   a session of another replica ─▶ Standing: Up ── its requests are forwarded there
//!                                             Gone, Leaving ── this replica claims the session
//!                                             Unclear ── waits for the next beats
//! ```
//!
//! A replica that did not beat for [`BEAT_LIFE`] counts as gone, and its sessions are claimed by the replicas that are
//! asked for them. A process that was stopped for longer (SIGSTOP, a suspended machine) learns it from its own clock and
//! checks each session against its record before the next use ([`Replicas::lapses`]).

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, timeout_at};
use tooldock_workers::budget::BudgetUse;

use self::news::Outbox;
use self::peers::Peers;
pub use self::reloads::{AnnouncedReload, OtherReload, OtherReloadOutcome};
pub use self::routing::{RoutedRequest, Unanswered, Unrouted};
use crate::stream::StoreError;

mod news;
mod peers;
mod reloads;
mod routing;

/// The time between two beats.
pub const BEAT_EVERY: Duration = Duration::from_millis(500);
/// A replica counts as up for so long after its last beat.
pub const BEAT_LIFE: Duration = Duration::from_secs(2);
/// The longest wait of a request for the next beats: a life, a beat, and a margin.
const WAIT_MAX: Duration = Duration::from_millis(3000);

/// The number of a replica, as it stands in sealed session ids and in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReplicaId(pub u32);

impl ReplicaId {
    /// The number of a gateway without replicas.
    pub const ALONE: Self = Self(0);

    /// The number of the replica of that name (`replicas.id`).
    pub fn named(name: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
        let first = digest.first_chunk().expect("4 of 32 bytes");
        Self(u32::from_be_bytes(*first).max(1))
    }
}

/// A replica as it announces itself to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Its number.
    pub id: ReplicaId,
    /// Its name, for logs and `/ready`.
    pub name: Arc<str>,
    /// A random number of the process: two processes with one name have different ones.
    pub incarnation: u64,
    /// `host:port`, or `unix:PATH` on one machine, where others reach it; `None` where they cannot.
    pub address: Option<Arc<str>>,
    /// The process that listens at a `unix:` address: another one may listen there once it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Arc<str>>,
    /// A digest of the session key. Replicas with different keys do not understand each other's session ids.
    pub key: Arc<str>,
    /// The names of its listeners for clients: a forwarded request is judged as one of the listener that its client asked.
    #[serde(default)]
    pub listeners: BTreeSet<Arc<str>>,
    /// True if it is about to end: its sessions may be claimed.
    pub leaving: bool,
    /// A digest of the namespaces that it serves.
    #[serde(default)]
    pub sources: Option<Arc<str>>,
    /// The last reload that it made because another replica asked for it.
    #[serde(default)]
    pub reloaded: Option<AnnouncedReload>,
    /// True if the store lacks records of its sessions, or changes of them.
    #[serde(default)]
    pub behind: bool,
}

/// The answer of a directory to a beat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The other replicas that beat within [`BEAT_LIFE`].
    pub others: Vec<Announcement>,
    /// True if a replica that is not among `others` is gone. A directory that goes by beats alone knows that once it has been
    /// beaten at without a pause for [`BEAT_LIFE`].
    pub settled: bool,
    /// True if another process beats under this replica's number. The beat was not taken then.
    pub rival: bool,
    /// True if the directory holds an earlier beat of this process. Otherwise the store has lost its data, the records of
    /// sessions included.
    pub known: bool,
    /// How many reloads were asked for on all replicas ([`ReplicaDirectory::ask_reload`]).
    pub reloads: u64,
    /// The number of the newest news that any replica told.
    pub newest: u64,
    /// News of other replicas behind those that were heard before, in their order.
    pub news: Vec<String>,
    /// The directory's clock, in milliseconds of Unix time: one clock for all replicas.
    pub now: u64,
}

/// The port to the directory of replicas, which a store keeps.
#[async_trait]
pub trait ReplicaDirectory: Send + Sync {
    /// True for a directory that is on this machine: it loses nothing that it holds, and a beat finds at once that a process
    /// has ended.
    fn is_local(&self) -> bool {
        false
    }

    /// Says that a replica is up, and answers the others that are, and their news behind the number `seen`: none without
    /// a number.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not answer.
    async fn beat(&self, own: &Announcement, seen: Option<u64>) -> Result<Heard, StoreError>;

    /// Tells the other replicas news. They are kept for a few beats.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not answer.
    async fn tell(&self, own: ReplicaId, news: &[String]) -> Result<(), StoreError>;

    /// Removes a replica that ends.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not answer.
    async fn leave(&self, own: &Announcement) -> Result<(), StoreError>;

    /// Asks all replicas for a reload. Answers how many were asked for so far, this one included.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not answer.
    async fn ask_reload(&self) -> Result<u64, StoreError>;

    /// Counts the use of budgets of limits by one of so many replicas. Answers for each budget the time until it is whole
    /// again, by the use of all of them.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not answer. It may have counted the use all the same.
    async fn take_budgets(
        &self,
        used: &[BudgetUse],
        replicas: usize,
    ) -> Result<Vec<Duration>, StoreError>;
}

/// The state of a replica, as the last beats tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is this process.
    Own,
    /// It is up.
    Up(Announcement),
    /// It ends, and said so.
    Leaving,
    /// It did not beat for [`BEAT_LIFE`].
    Gone,
    /// The directory has not been heard for long enough to tell.
    Unclear,
}

/// This replica among the others. A gateway without replicas has no directory: then every other number is of an earlier
/// process, which is gone.
pub struct Replicas {
    own: Announcement,
    directory: Option<Arc<dyn ReplicaDirectory>>,
    leaving: AtomicBool,
    known: watch::Sender<Known>,
    /// Pauses of this process's beats that were longer than [`BEAT_LIFE`].
    lapses: AtomicU64,
    /// Losses of the store's data that this replica's beats have found.
    losses: AtomicU64,
    behind: AtomicBool,
    outbox: Outbox,
    peers: Peers,
    /// The last reload that another replica asked for.
    reloaded: Mutex<Option<AnnouncedReload>>,
    /// The number of the last reload that this replica has asked of all; `None` if they were not told.
    asked: Mutex<Option<u64>>,
    /// Wakes the beats before their time.
    due: Notify,
    /// The replica that this process succeeds.
    predecessor: OnceLock<ReplicaId>,
}

/// The outcome of the last beats.
#[derive(Debug, Clone)]
struct Known {
    others: Arc<HashMap<ReplicaId, Announcement>>,
    settled: bool,
    rival: bool,
    reloads: Option<u64>,
    /// The number of the newest news that were heard.
    seen: Option<u64>,
    /// The digest of this replica's namespaces, as the last beat announced it.
    sources: Option<Arc<str>>,
    /// The directory's clock minus this machine's, in milliseconds.
    clock_ahead: i64,
    /// The time of the last such loss.
    lost: Option<Instant>,
    /// True if the last beat failed.
    fails: bool,
    /// The last beat that was tried, and the last that was taken.
    tried: Instant,
    taken: Option<Instant>,
}

/// The outcome of one beat.
#[derive(Default)]
struct Beat {
    /// The number of a reload that another replica has asked for.
    reload: Option<u64>,
    /// News of other replicas.
    news: Vec<String>,
}

/// The state of the replicas, for `/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replication {
    /// The name of this replica.
    pub name: Arc<str>,
    /// `up` or `away`: the store by which replicas find each other.
    pub store: &'static str,
    /// True if another process has this replica's name.
    pub rival: bool,
    /// The other replicas that are up, by name.
    pub others: Vec<OtherReplica>,
}

/// Another replica, for `/ready`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OtherReplica {
    /// Its name.
    pub name: Arc<str>,
    /// Why requests cannot be forwarded to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<&'static str>,
    /// `differ` if it serves other namespaces than this replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<&'static str>,
}

impl Replicas {
    /// A gateway without replicas.
    pub fn alone() -> Arc<Self> {
        Self::with(
            Announcement {
                id: ReplicaId::ALONE,
                name: "alone".into(),
                incarnation: 0,
                address: None,
                process: None,
                key: "".into(),
                listeners: BTreeSet::new(),
                leaving: false,
                sources: None,
                reloaded: None,
                behind: false,
            },
            None,
        )
    }

    /// A replica with a directory. Nothing is heard before [`Replicas::run`].
    pub fn of(own: Announcement, directory: Arc<dyn ReplicaDirectory>) -> Arc<Self> {
        Self::with(own, Some(directory))
    }

    /// A replica without a directory, under a number of its own: what earlier processes had is claimed.
    pub fn single(own: Announcement) -> Arc<Self> {
        Self::with(own, None)
    }

    fn with(own: Announcement, directory: Option<Arc<dyn ReplicaDirectory>>) -> Arc<Self> {
        let known = Known {
            others: Arc::default(),
            settled: directory.is_none(),
            rival: false,
            reloads: None,
            seen: None,
            sources: None,
            clock_ahead: 0,
            lost: None,
            fails: false,
            tried: Instant::now(),
            taken: None,
        };
        Arc::new(Self {
            own,
            directory,
            leaving: AtomicBool::new(false),
            known: watch::Sender::new(known),
            lapses: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            behind: AtomicBool::new(false),
            outbox: Outbox::default(),
            peers: Peers::default(),
            reloaded: Mutex::default(),
            asked: Mutex::default(),
            due: Notify::new(),
            predecessor: OnceLock::new(),
        })
    }

    /// The number of this replica.
    pub fn own(&self) -> ReplicaId {
        self.own.id
    }

    /// The name of this replica.
    pub fn name(&self) -> &str {
        &self.own.name
    }

    /// True if there may be other replicas.
    pub fn are_many(&self) -> bool {
        self.directory.is_some()
    }

    /// True if another replica was up at the last beat.
    pub fn has_others(&self) -> bool {
        !self.known.borrow().others.is_empty()
    }

    fn is_local(&self) -> bool {
        self.directory.as_ref().is_some_and(|it| it.is_local())
    }

    /// The time in milliseconds of Unix time, by the clock that all replicas share.
    pub fn now(&self) -> u64 {
        let ahead = self.known.borrow().clock_ahead;
        local_millis().saturating_add_signed(ahead)
    }

    /// The state of a replica, by the last beats.
    pub fn standing(&self, id: ReplicaId) -> Standing {
        let known = self.known.borrow();
        if id == self.own.id {
            // Sessions of that number may live in the rival: a claim would take them from it.
            return match known.rival {
                true => Standing::Unclear,
                false => Standing::Own,
            };
        }
        match known.others.get(&id) {
            Some(other) if other.leaving => Standing::Leaving,
            Some(other) => Standing::Up(other.clone()),
            None if known.settled && !self.is_stale(&known) => Standing::Gone,
            None => Standing::Unclear,
        }
    }

    /// The state of a replica; waits for the next beats while it is not clear, for 3 s at most.
    pub async fn settled_standing(&self, id: ReplicaId) -> Standing {
        self.wait(|| self.standing(id), |it| *it == Standing::Unclear)
            .await
    }

    /// Notes the replica that this process succeeds, at the same address.
    pub fn succeed(&self, predecessor: ReplicaId) {
        let _ = self.predecessor.set(predecessor);
    }

    /// True for this replica, the replica that it succeeds, and once it leaves, a successor at its address: requests that are
    /// forwarded to any of them come here, also over connections that were opened before a hand-over. Another replica at the
    /// address of this one is a mistake in their configuration.
    pub fn answers_for(&self, id: ReplicaId) -> bool {
        let is_the_successor = || {
            let known = self.known.borrow();
            let address = known.others.get(&id).and_then(|it| it.address.as_ref());
            self.is_leaving() && address.is_some() && address == self.own.address.as_ref()
        };
        id == self.own.id || self.predecessor.get() == Some(&id) || is_the_successor()
    }

    /// Waits until this process has heard that its predecessor leaves, for 3 s at most: before that it would forward requests
    /// to the predecessor, at its own address.
    pub async fn relieved(&self) {
        let Some(predecessor) = self.predecessor.get() else {
            return;
        };
        self.due.notify_one();
        self.wait(
            || self.standing(*predecessor),
            |it| matches!(it, Standing::Up(_) | Standing::Unclear),
        )
        .await;
    }

    /// Waits until a replica that could not be reached is no longer up, for 3 s at most.
    pub async fn departure(&self, id: ReplicaId) -> Standing {
        if self.is_local() {
            self.due.notify_one();
        }
        self.wait(
            || self.standing(id),
            |it| matches!(it, Standing::Up(_) | Standing::Unclear),
        )
        .await
    }

    /// True if a replica has ended since the last beat, as far as a directory on this machine tells by a beat at once.
    pub async fn has_just_ended(&self, id: ReplicaId) -> bool {
        if !self.is_local() {
            return false;
        }
        let mut beats = self.known.subscribe();
        self.due.notify_one();
        let _ = timeout_at(Instant::now() + BEAT_EVERY, beats.changed()).await;
        matches!(self.standing(id), Standing::Gone | Standing::Leaving)
    }

    /// Waits until a replica is gone, however long that takes.
    pub async fn gone(&self, id: ReplicaId) {
        let mut beats = self.known.subscribe();
        while self.standing(id) != Standing::Gone {
            if beats.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn wait(
        &self,
        look: impl Fn() -> Standing,
        waits: impl Fn(&Standing) -> bool,
    ) -> Standing {
        let deadline = Instant::now() + WAIT_MAX;
        let mut beats = self.known.subscribe();
        loop {
            let standing = look();
            if !waits(&standing) {
                return standing;
            }
            match timeout_at(deadline, beats.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return look(),
            }
        }
    }

    fn is_stale(&self, known: &Known) -> bool {
        self.directory.is_some() && known.taken.is_none_or(|taken| taken.elapsed() >= BEAT_LIFE)
    }

    /// The number of pauses between beats that were long enough for other replicas to claim sessions of this process. After a
    /// pause (SIGSTOP, a suspended machine) the next beat is awaited, for 100 ms at most. A directory that is away
    /// counts as no pause: it takes no claims either.
    pub async fn lapses(&self) -> u64 {
        const NEXT_BEAT: Duration = Duration::from_millis(100);
        if self.directory.is_some() && self.known.borrow().tried.elapsed() >= BEAT_LIFE {
            let mut beats = self.known.subscribe();
            let _ = timeout_at(Instant::now() + NEXT_BEAT, beats.changed()).await;
        }
        self.lapses.load(Ordering::Acquire)
    }

    /// True if this replica has told the others that it ends: they may claim its sessions at any moment.
    pub fn is_leaving(&self) -> bool {
        self.directory.is_some() && self.leaving.load(Ordering::Acquire)
    }

    /// The number of times the store lost its data, as a Redis without persistence does at each start.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Says if the store lacks records of this replica's sessions: the others are told by the next beat.
    pub fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Ordering::Release);
    }

    /// Waits for the next beat, and answers if a session may be live without a record: another replica says that records of its
    /// sessions are missing, or the directory has lost what it knew so lately that they have not all said so. Waits for 700 ms
    /// at most.
    pub async fn are_records_missing(&self) -> bool {
        const SAID: Duration = Duration::from_secs(4);
        const NEXT_BEAT: Duration = Duration::from_millis(700);
        if self.is_local() {
            return false;
        }
        if self.directory.is_some() {
            let mut beats = self.known.subscribe();
            let _ = timeout_at(Instant::now() + NEXT_BEAT, beats.changed()).await;
        }
        let known = self.known.borrow();
        let lost_lately = known.lost.is_some_and(|lost| lost.elapsed() < SAID);
        lost_lately || known.others.values().any(|other| other.behind)
    }

    /// Tells the other replicas that this one ends: its sessions may be claimed from now on.
    pub async fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        if let Some(directory) = &self.directory {
            self.beat(&**directory).await;
        }
    }

    /// Asks all replicas for a reload; this one has made its own.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the directory does not answer: only this replica has reloaded.
    pub async fn ask_reload(&self) -> Result<(), StoreError> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let asked = directory.ask_reload().await;
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = asked.as_ref().ok().copied();
        let reloads = asked?;
        self.known.send_modify(|known| {
            // A reload that others asked for meanwhile is still to be made.
            if known.reloads.is_none_or(|before| before + 1 == reloads) {
                known.reloads = Some(reloads);
            }
        });
        Ok(())
    }

    /// Tells the others the use of budgets of limits by this replica. Answers for each budget the time until it is whole
    /// again, by the use of all replicas.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the directory does not answer.
    pub async fn take_budgets(&self, used: &[BudgetUse]) -> Result<Vec<Duration>, StoreError> {
        let Some(directory) = &self.directory else {
            return Ok(Vec::new());
        };
        let replicas = self.known.borrow().others.len() + 1;
        directory.take_budgets(used, replicas).await
    }

    /// Tells the other replicas news, soon. Does not wait.
    pub fn tell(&self, news: String) {
        if self.directory.is_some() {
            self.outbox.put(news);
        }
    }

    /// Beats until it is dropped; `reload` is called with its number when another replica has asked for one, `hear` for each of
    /// its news. `sources` is the digest of the namespaces that this replica serves.
    pub async fn run(
        &self,
        reload: impl Fn(u64),
        hear: impl Fn(&str),
        sources: impl Fn() -> Arc<str>,
    ) {
        let Some(directory) = &self.directory else {
            return std::future::pending().await;
        };
        let mut tick = tokio::time::interval(BEAT_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_due = tokio::select! {
                _ = tick.tick() => true,
                () = self.due.notified() => true,
                () = self.outbox.filled() => false,
            };
            if is_due {
                let sources = sources();
                self.known.send_if_modified(|known| {
                    known.sources = Some(sources);
                    false
                });
                let beat = self.beat(&**directory).await;
                beat.news.iter().for_each(|news| hear(news));
                if let Some(number) = beat.reload {
                    reload(number);
                }
            }
            self.outbox.empty_into(&**directory, self.own.id).await;
        }
    }

    /// Beats once.
    async fn beat(&self, directory: &dyn ReplicaDirectory) -> Beat {
        let mut own = self.own.clone();
        own.leaving = self.leaving.load(Ordering::Acquire);
        own.reloaded = self.last_reload();
        own.behind = self.behind.load(Ordering::Acquire);
        let seen = {
            let known = self.known.borrow();
            own.sources.clone_from(&known.sources);
            known.seen
        };
        let began = Instant::now();
        let heard = directory.beat(&own, seen).await;
        let now = Instant::now();
        let mut beat = Beat::default();
        self.known.send_modify(|known| {
            // A process may be frozen in the middle of a beat, which then fails at once when it goes on.
            known.tried = began;
            match heard {
                Ok(heard) => beat = self.heard(known, heard, (began, now)),
                Err(error) => {
                    if !std::mem::replace(&mut known.fails, true) {
                        tracing::error!(
                            %error,
                            "the replicas cannot be heard: sessions that live here go on, those of other replicas cannot be claimed"
                        );
                    }
                }
            }
        });
        beat
    }

    fn heard(&self, known: &mut Known, heard: Heard, (began, now): (Instant, Instant)) -> Beat {
        if std::mem::replace(&mut known.fails, false) {
            tracing::info!("the replicas can be heard again");
        }
        if heard.rival != known.rival {
            self.tell_rival(heard.rival);
        }
        self.tell_changes(known, &heard);
        // From the begin of the last beat to the end of this one: no shorter than the pause that the directory saw, wherever
        // in between the process was frozen.
        if known.taken.is_some_and(|taken| now - taken >= BEAT_LIFE) {
            self.lapses.fetch_add(1, Ordering::Release);
        }
        if known.taken.is_some() && !heard.known && !heard.rival {
            self.losses.fetch_add(1, Ordering::Release);
            known.lost = Some(now);
        }
        self.count_reloads_from(heard.reloads);
        known.settled = heard.settled;
        known.rival = heard.rival;
        known.clock_ahead = i64::try_from(heard.now).unwrap_or(i64::MAX)
            - i64::try_from(local_millis()).unwrap_or(i64::MAX);
        known.taken = Some(began);
        let others = heard.others.into_iter();
        known.others = Arc::new(others.map(|other| (other.id, other)).collect());
        known.seen = Some(heard.newest);
        let before = known.reloads.replace(heard.reloads);
        Beat {
            reload: before
                .is_some_and(|before| before < heard.reloads)
                .then_some(heard.reloads),
            news: heard.news,
        }
    }

    fn tell_rival(&self, rival: bool) {
        let name = &*self.own.name;
        match rival {
            true => tracing::error!(
                replica = name,
                "another process runs as replica {name}: set REPLICA_ID (replicas.id) to another name; until then other \
                 replicas do not reach this one"
            ),
            false => tracing::info!(replica = name, "this replica has its name for itself again"),
        }
    }

    fn tell_changes(&self, known: &Known, heard: &Heard) {
        for other in &heard.others {
            if known.others.contains_key(&other.id) {
                continue;
            }
            let (name, address) = (&*other.name, other.address.as_deref());
            match self.obstacle(other) {
                None => tracing::info!(replica = name, address, "a replica is up"),
                // Each keeps its sessions for itself: alone on its data directory, in an upgrade, a gateway forwards nothing.
                Some(_) if self.is_local() && self.own.address.is_none() => {
                    tracing::info!(
                        replica = name,
                        "a replica is up, and nothing is forwarded to it"
                    );
                }
                Some(why) => tracing::error!(replica = name, address, "replica {name}: {why}"),
            }
        }
        // A directory that has lost its data lacks replicas that are up, until their next beat.
        for (id, other) in known.others.iter().filter(|_| heard.settled) {
            if heard.others.iter().any(|it| it.id == *id) {
                continue;
            }
            let name = &*other.name;
            match other.leaving {
                true => tracing::info!(replica = name, "a replica has ended"),
                false => tracing::warn!(
                    replica = name,
                    "a replica is gone: its sessions may be claimed"
                ),
            }
        }
    }

    /// Forwards requests to these addresses alone, as other replicas announce them. Answers if they are others than before.
    pub fn forward_only_to(&self, addresses: BTreeSet<String>) -> bool {
        self.peers.trust(addresses)
    }

    /// Why requests cannot be forwarded to a replica that is up.
    pub fn obstacle(&self, other: &Announcement) -> Option<&'static str> {
        if other.key != self.own.key {
            return Some(
                "its session key is another one: give all replicas the same SESSION_KEY, or share session.key",
            );
        }
        if !self.own.listeners.is_subset(&other.listeners) {
            return Some(
                "it lacks a listener of this replica: give all replicas listeners of the same names",
            );
        }
        let Some(address) = &other.address else {
            return Some(
                "it cannot be reached: set its replicas.address, or REPLICA_ID and SESSION_KEY for all replicas where they share a data directory",
            );
        };
        if !self.peers.are_trusted(address) {
            return Some(
                "its replicas.address is none of replicas.peers: no request is forwarded to it",
            );
        }
        None
    }

    /// The state of the replicas; `None` for a gateway without.
    pub fn state(&self) -> Option<Replication> {
        self.directory.as_ref()?;
        let known = self.known.borrow();
        let others = known.others.values();
        let mut others: Vec<_> = others
            .map(|other| OtherReplica {
                name: Arc::clone(&other.name),
                problem: self.obstacle(other),
                sources: (known.sources.is_some()
                    && other.sources.is_some()
                    && known.sources != other.sources)
                    .then_some("differ"),
            })
            .collect();
        others.sort();
        Some(Replication {
            name: Arc::clone(&self.own.name),
            store: if self.is_stale(&known) { "away" } else { "up" },
            rival: known.rival,
            others,
        })
    }

    /// Removes this replica from the directory, at the end of the process.
    pub async fn farewell(&self) {
        if let Some(directory) = &self.directory {
            // Without it the others wait for the last beat's end of life.
            let _ = directory.leave(&self.own).await;
        }
    }
}

/// This machine's clock, in milliseconds of Unix time.
pub(crate) fn local_millis() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests;
