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
//! A replica that did not beat for [`BEAT_LIFE`] counts as gone, and another replica that receives a request for one of its
//! sessions claims the session. A process that was suspended for longer (SIGSTOP, a suspended machine) detects that by its own
//! clock, and checks each session against its record before the next use ([`Replicas::lapses`]).
//!
//! | file | holds |
//! |---|---|
//! | `routing.rs` | the route of a request: here, forwarded (`Reply::Elsewhere`), or claimed |
//! | `peers.rs` | addresses that are trusted with requests; `proxy/replicas/peers.rs` resolves them |
//! | `silent.rs` | replicas that stopped beating without an announced shutdown; `proxy/replicas/reach.rs` sends them requests |
//! | `unreachable.rs` | replicas that beat, but do not respond |
//! | `news.rs`, `reloads.rs` | announcements of functions; reloads that one replica requested of all |
//!
//! `session/table/adopt.rs` claims sessions of replicas that are gone, `session/table/record_checks.rs` checks sessions after a
//! time without beats of this process, and `session/table/resume.rs` does so before an event counts as unknown. Replicas of one
//! machine find each other by `stores/disk/directory.rs`, the others by `stores/redis/directory.rs`.

use std::borrow::Cow;
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
use tooldock_base::budget::BudgetUse;

use self::news::Outbox;
use self::peers::Peers;
pub use self::reloads::{AnnouncedReload, OtherReload, OtherReloadOutcome};
pub use self::routing::{ForwardError, RoutedRequest, RoutingError};
use self::silent::SilentReplicas;
use self::unreachable::UnreachableReplicas;
use crate::stream::StoreError;

mod news;
mod peers;
mod reloads;
mod routing;
mod silent;
mod unreachable;

/// Interval of the beats by which a replica reports to the directory that it is up.
pub const BEAT_EVERY: Duration = Duration::from_millis(500);
/// Time after its last beat for which a replica counts as up.
pub const BEAT_LIFE: Duration = Duration::from_secs(2);
/// Maximum time that a request waits for the next beats: `BEAT_LIFE`, `BEAT_EVERY` and a margin.
const WAIT_MAX: Duration = Duration::from_millis(3000);

/// Number of a replica, used in sealed session ids and in records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ReplicaId(pub u32);

impl ReplicaId {
    /// Number of the only process of a gateway without replicas.
    pub const ALONE: Self = Self(0);

    /// Derives the number from the name of the replica (`replicas.id`).
    pub fn named(name: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
        let first = digest.first_chunk().expect("4 of 32 bytes");
        Self(u32::from_be_bytes(*first).max(1))
    }
}

/// A replica as it announces itself to the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Number of the replica.
    pub id: ReplicaId,
    /// Name of the replica, for logs and `/ready`.
    pub name: Arc<str>,
    /// Random number of the process, which distinguishes two processes of the same replica name.
    pub incarnation: u64,
    /// `host:port`, or `unix:PATH` on one machine, at which other replicas reach this replica; `None` if they cannot reach it.
    pub address: Option<Arc<str>>,
    /// Identity of the process that listens at a `unix:` address; after its end, another process may listen there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Arc<str>>,
    /// Digest of the session key. Replicas with different keys cannot decrypt each other's session ids.
    pub key: Arc<str>,
    /// Names of the replica's listeners for clients. A forwarded request obeys the rules of the listener that received it, so the
    /// replica that answers it needs a listener of the same name.
    #[serde(default)]
    pub listeners: BTreeSet<Arc<str>>,
    /// True if the replica is about to end: its sessions may be claimed.
    pub leaving: bool,
    /// Digest of the namespaces that the replica serves.
    #[serde(default)]
    pub sources: Option<Arc<str>>,
    /// Most recent reload that the replica made because another replica requested it.
    #[serde(default)]
    pub reloaded: Option<AnnouncedReload>,
    /// True if the store lacks records of the replica's sessions, or changes to these records.
    #[serde(default)]
    pub behind: bool,
}

/// Response of the replica directory to a beat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryReply {
    /// The other replicas that beat within [`BEAT_LIFE`].
    pub others: Vec<Announcement>,
    /// True if every replica that is missing from `others` is gone. A directory that identifies replicas only by their beats
    /// must have received beats without a pause for [`BEAT_LIFE`] to decide this; until then false.
    pub settled: bool,
    /// True if another process beats under this replica's number. The directory has then refused this beat.
    pub rival: bool,
    /// True if the directory contains an earlier beat of this process. If this becomes false, the store has lost its data,
    /// including the session records.
    pub known: bool,
    /// Number of reloads requested of all replicas so far ([`ReplicaDirectory::ask_reload`]).
    pub reloads: u64,
    /// Number of the newest news item from any replica.
    pub newest: u64,
    /// News items of other replicas that this replica has not received yet, in order.
    pub news: Vec<String>,
    /// Time of the directory's clock, in milliseconds of Unix time. All replicas share this clock.
    pub now: u64,
}

/// Interface to the directory of replicas. Stores implement it.
#[async_trait]
pub trait ReplicaDirectory: Send + Sync {
    /// True for a directory on this machine: it loses no data, and a beat made now detects at once that another process has
    /// ended. False for a directory that is reached over the network.
    fn is_local(&self) -> bool {
        false
    }

    /// Reports that a replica is up. Returns the other replicas that are up, and their news items with numbers above `seen`; no
    /// items if `seen` is `None`.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not respond.
    async fn beat(
        &self,
        own: &Announcement,
        seen: Option<u64>,
    ) -> Result<DirectoryReply, StoreError>;

    /// Sends news to the other replicas. The directory keeps them for a few beats.
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

    /// Requests a reload of all replicas. Returns the number of reloads requested so far, including this one.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not respond.
    async fn ask_reload(&self) -> Result<u64, StoreError>;

    /// Records the use of limit budgets by one of `replicas` replicas. Returns for each budget the time until it is full again,
    /// including the use of all replicas.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the store does not respond. The store may have recorded the use nevertheless.
    async fn take_budgets(
        &self,
        used: &[BudgetUse],
        replicas: usize,
    ) -> Result<Vec<Duration>, StoreError>;
}

/// State of a replica according to the most recent beats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaStatus {
    /// The replica is this process.
    Own,
    /// The replica is up.
    Up(Announcement),
    /// The replica has announced that it ends.
    Leaving,
    /// The replica did not beat for [`BEAT_LIFE`].
    Gone,
    /// The beats do not show yet whether the replica is up or gone.
    Unclear,
}

/// This replica, and the state of the other replicas as known from their beats. A gateway without replicas has no directory:
/// any other replica number then belongs to an earlier process, which is gone.
pub struct Replicas {
    own: Announcement,
    directory: Option<Arc<dyn ReplicaDirectory>>,
    leaving: AtomicBool,
    known: watch::Sender<ReplicaStates>,
    /// Number of pauses between accepted beats of this process that were longer than [`BEAT_LIFE`]; the time before the first
    /// accepted beat counts as one.
    lapses: AtomicU64,
    /// Number of times that a beat of this replica found that the store had lost its data.
    losses: AtomicU64,
    behind: AtomicBool,
    outbox: Outbox,
    peers: Peers,
    unreachable: UnreachableReplicas,
    silent: SilentReplicas,
    /// Most recent reload that another replica requested and this replica has made.
    reloaded: Mutex<Option<AnnouncedReload>>,
    /// Number of the most recent reload that this replica requested of all replicas; `None` if the store did not accept the
    /// request.
    asked: Mutex<Option<u64>>,
    /// Notified to make the next beat at once, before its interval is over.
    due: Notify,
    /// Replica that this process replaces at the same address, if any.
    predecessor: OnceLock<ReplicaId>,
}

/// State of the replicas, as the most recent beats have shown it.
#[derive(Debug, Clone)]
struct ReplicaStates {
    others: Arc<HashMap<ReplicaId, Announcement>>,
    settled: bool,
    /// Start of the first of the beats that have found another process with this replica's name; `None` if the most recent beat
    /// found none.
    rival: Option<Instant>,
    /// True if the gateway has logged that another process has this replica's name, and not yet that this has ended.
    rival_told: bool,
    reloads: Option<u64>,
    /// Number of the newest news item received.
    seen: Option<u64>,
    /// The digest of this replica's namespaces, as the most recent beat announced it.
    sources: Option<Arc<str>>,
    /// The directory's clock minus this machine's, in milliseconds.
    clock_ahead: i64,
    /// Most recent time at which a beat found that the store had lost its data; `None` if that never happened.
    lost: Option<Instant>,
    /// True if the most recent beat failed.
    fails: bool,
    /// Start of the most recent attempt to beat.
    tried: Instant,
    /// Start of the most recent beat that the directory answered.
    answered: Option<Instant>,
    /// Start of the most recent beat that the directory accepted. Beats of a rival process are refused.
    accepted: Option<Instant>,
}

/// The outcome of one beat.
#[derive(Default)]
struct HeartbeatOutcome {
    /// Number of a reload that another replica has requested; `None` if there is no new request.
    reload: Option<u64>,
    /// News items of other replicas that arrived with the beat.
    news: Vec<String>,
}

/// The state of the replicas, for `/ready`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Replication {
    /// The name of this replica.
    pub name: Arc<str>,
    /// State of the store by which replicas find each other: `up`, or `away` if it does not respond.
    pub store: &'static str,
    /// True if another process has this replica's name.
    pub rival: bool,
    /// The other replicas that are up, sorted by name.
    pub others: Vec<OtherReplica>,
}

/// Another replica, for `/ready`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OtherReplica {
    /// Name of the replica.
    pub name: Arc<str>,
    /// Reason why requests cannot be forwarded to the replica; `None` if they can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Cow<'static, str>>,
    /// `differ` if the replica's namespaces, or the files in their folders, are not those of this gateway; `None` if they are, or
    /// if that is not known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<&'static str>,
}

impl Replicas {
    /// Creates the state of a gateway without replicas.
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

    /// Creates a replica with a directory. It receives no beats of other replicas before [`Replicas::run`].
    pub fn of(own: Announcement, directory: Arc<dyn ReplicaDirectory>) -> Arc<Self> {
        Self::with(own, Some(directory))
    }

    /// Creates a replica that has its own number but no directory: it claims the sessions of earlier processes.
    pub fn single(own: Announcement) -> Arc<Self> {
        Self::with(own, None)
    }

    fn with(own: Announcement, directory: Option<Arc<dyn ReplicaDirectory>>) -> Arc<Self> {
        let known = ReplicaStates {
            others: Arc::default(),
            settled: directory.is_none(),
            rival: None,
            rival_told: false,
            reloads: None,
            seen: None,
            sources: None,
            clock_ahead: 0,
            lost: None,
            fails: false,
            tried: Instant::now(),
            answered: None,
            accepted: None,
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
            unreachable: UnreachableReplicas::default(),
            silent: SilentReplicas::default(),
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

    /// True if there may be other replicas; false for a gateway without replicas.
    pub fn are_many(&self) -> bool {
        self.directory.is_some()
    }

    /// True if another replica was up at the most recent beat.
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

    /// State of a replica according to the most recent beats.
    pub fn standing(&self, id: ReplicaId) -> ReplicaStatus {
        let known = self.known.borrow();
        if id == self.own.id {
            // Sessions of the replica with this number may be in use by another process with the same replica name. A claim would
            // take them from that process.
            return match known.rival {
                Some(_) => ReplicaStatus::Unclear,
                None => ReplicaStatus::Own,
            };
        }
        match known.others.get(&id) {
            Some(other) if other.leaving => ReplicaStatus::Leaving,
            Some(other) => ReplicaStatus::Up(other.clone()),
            None if known.settled && !self.is_stale(&known) => ReplicaStatus::Gone,
            None => ReplicaStatus::Unclear,
        }
    }

    /// State of a replica. Waits for the next beats while the state is unclear, for 3 s at most.
    pub async fn settled_status(&self, id: ReplicaId) -> ReplicaStatus {
        self.wait(|| self.standing(id), |it| *it == ReplicaStatus::Unclear)
            .await
    }

    /// Records the replica that this process replaces at the same address.
    pub fn set_predecessor(&self, predecessor: ReplicaId) {
        let _ = self.predecessor.set(predecessor);
    }

    /// True for a replica whose forwarded requests arrive at this process: this replica, its predecessor, and, while this replica
    /// shuts down, a successor at its address. Connections that were opened before a hand-over still lead to the old process. Any
    /// other replica at this address is a mistake in the configuration.
    pub fn answers_for(&self, id: ReplicaId) -> bool {
        let is_the_successor = || {
            let known = self.known.borrow();
            let address = known.others.get(&id).and_then(|it| it.address.as_ref());
            self.is_leaving() && address.is_some() && address == self.own.address.as_ref()
        };
        id == self.own.id || self.predecessor.get() == Some(&id) || is_the_successor()
    }

    /// Waits, for 3 s at most, until the predecessor's beat shows that it is shutting down. Before that, this process would
    /// forward requests to the predecessor at the address that both share.
    pub async fn predecessor_stopping(&self) {
        let Some(predecessor) = self.predecessor.get() else {
            return;
        };
        self.due.notify_one();
        self.wait(
            || self.standing(*predecessor),
            |it| matches!(it, ReplicaStatus::Up(_) | ReplicaStatus::Unclear),
        )
        .await;
    }

    /// Waits until an unreachable replica is no longer up, for 3 s at most.
    pub async fn departure(&self, id: ReplicaId) -> ReplicaStatus {
        if self.is_local() {
            self.due.notify_one();
        }
        self.wait(
            || self.standing(id),
            |it| matches!(it, ReplicaStatus::Up(_) | ReplicaStatus::Unclear),
        )
        .await
    }

    /// Returns true if a beat made now finds that the replica has ended. Always false unless the directory is on this machine.
    pub async fn has_just_ended(&self, id: ReplicaId) -> bool {
        if !self.is_local() {
            return false;
        }
        let mut beats = self.known.subscribe();
        self.due.notify_one();
        let _ = timeout_at(Instant::now() + BEAT_EVERY, beats.changed()).await;
        matches!(
            self.standing(id),
            ReplicaStatus::Gone | ReplicaStatus::Leaving
        )
    }

    /// Waits until a replica is gone, without a time limit.
    pub async fn gone(&self, id: ReplicaId) {
        let mut beats = self.known.subscribe();
        while self.standing(id) != ReplicaStatus::Gone {
            if beats.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn wait(
        &self,
        look: impl Fn() -> ReplicaStatus,
        waits: impl Fn(&ReplicaStatus) -> bool,
    ) -> ReplicaStatus {
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

    fn is_stale(&self, known: &ReplicaStates) -> bool {
        self.directory.is_some() && known.answered.is_none_or(|it| it.elapsed() >= BEAT_LIFE)
    }

    /// Number of pauses between accepted beats that were long enough for other replicas to claim sessions of this process. The
    /// time before the first accepted beat counts as a pause. After a pause (SIGSTOP, a suspended machine) this waits for the
    /// next beat, for 100 ms at most. Time in which the directory is unavailable is no pause, since no session can be claimed
    /// then.
    pub async fn lapses(&self) -> u64 {
        const NEXT_BEAT: Duration = Duration::from_millis(100);
        if self.directory.is_some() && self.known.borrow().tried.elapsed() >= BEAT_LIFE {
            let mut beats = self.known.subscribe();
            let _ = timeout_at(Instant::now() + NEXT_BEAT, beats.changed()).await;
        }
        self.lapses.load(Ordering::Acquire)
    }

    /// True while the directory refuses the beats of this process, because another process used its name until recently, or
    /// still uses it: other replicas may claim sessions of this process at any moment.
    pub fn is_refused(&self) -> bool {
        self.known.borrow().rival.is_some()
    }

    /// True if this replica has announced its shutdown: the others may then claim its sessions at any moment.
    pub fn is_leaving(&self) -> bool {
        self.directory.is_some() && self.leaving.load(Ordering::Acquire)
    }

    /// The number of times the store lost its data, as a Redis without persistence does at each start.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// Sets whether the store lacks records of this replica's sessions. The next beat reports it to the other replicas.
    pub fn set_behind(&self, behind: bool) {
        self.behind.store(behind, Ordering::Release);
    }

    /// Waits for the next beat, for 700 ms at most, and returns true if a session may be live without a record: another replica
    /// reports missing records of its sessions, or the directory has lost its data so recently that some replicas may not have
    /// reported yet. Always false for a directory on this machine.
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

    /// Announces the shutdown of this replica. The other replicas may claim its sessions from then on.
    pub async fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
        if let Some(directory) = &self.directory {
            self.beat(&**directory).await;
        }
    }

    /// Requests a reload of all other replicas, after this replica has reloaded.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the directory does not respond: only this replica has reloaded.
    pub async fn ask_reload(&self) -> Result<(), StoreError> {
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let asked = directory.ask_reload().await;
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = asked.as_ref().ok().copied();
        let reloads = asked?;
        self.known.send_modify(|known| {
            // If another replica has requested a reload meanwhile, the number is not updated, so that the next beat makes that
            // reload.
            if known.reloads.is_none_or(|before| before + 1 == reloads) {
                known.reloads = Some(reloads);
            }
        });
        Ok(())
    }

    /// Reports this replica's use of limit budgets. Returns for each budget the time until it is full again, including the use
    /// of all replicas.
    ///
    /// # Errors
    ///
    /// [`StoreError`] when the directory does not respond.
    pub async fn take_budgets(&self, used: &[BudgetUse]) -> Result<Vec<Duration>, StoreError> {
        let Some(directory) = &self.directory else {
            return Ok(Vec::new());
        };
        let replicas = self.known.borrow().others.len() + 1;
        directory.take_budgets(used, replicas).await
    }

    /// Queues news for the other replicas and returns at once.
    pub fn tell(&self, news: String) {
        if self.directory.is_some() {
            self.outbox.put(news);
        }
    }

    /// Beats until the future is dropped. Calls `reload` with the number of each reload that another replica requests, and
    /// `hear` with each news item of other replicas. `sources` returns the digest of the namespaces that this replica serves.
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

    /// Makes one beat. Returns the news and the requested reload that the directory's response contains.
    async fn beat(&self, directory: &dyn ReplicaDirectory) -> HeartbeatOutcome {
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
        let mut beat = HeartbeatOutcome::default();
        self.known.send_modify(|known| {
            // The start of the beat is recorded, not its end: if the process was suspended during the beat, which then fails,
            // the pause is noticed nevertheless.
            known.tried = began;
            match heard {
                Ok(heard) => beat = self.apply_reply(known, heard, (began, now)),
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

    fn apply_reply(
        &self,
        known: &mut ReplicaStates,
        heard: DirectoryReply,
        (began, now): (Instant, Instant),
    ) -> HeartbeatOutcome {
        if std::mem::replace(&mut known.fails, false) {
            tracing::info!("the replicas can be heard again");
        }
        known.rival = heard.rival.then(|| known.rival.unwrap_or(began));
        // A replica that was killed and restarted finds the last beat of its own former process for a while, not a rival. The
        // error is therefore logged only if the other process is found for longer than a beat is valid.
        let lasts = known
            .rival
            .is_some_and(|since| now - since > BEAT_LIFE + BEAT_EVERY);
        if lasts != known.rival_told {
            known.rival_told = lasts;
            self.tell_rival(lasts);
        }
        self.tell_changes(known, &heard);
        if !heard.rival {
            // The pause is measured from the start of the last accepted beat to the end of this beat. It is therefore never
            // shorter than the pause that the directory saw, no matter when the process was suspended.
            let paused = |accepted: Instant| now - accepted >= BEAT_LIFE;
            if known.accepted.is_none_or(paused) {
                self.lapses.fetch_add(1, Ordering::Release);
            }
            if known.accepted.is_some() && !heard.known {
                self.losses.fetch_add(1, Ordering::Release);
                known.lost = Some(now);
            }
            known.accepted = Some(began);
        }
        self.count_reloads_from(heard.reloads);
        known.settled = heard.settled;
        known.clock_ahead = i64::try_from(heard.now).unwrap_or(i64::MAX)
            - i64::try_from(local_millis()).unwrap_or(i64::MAX);
        known.answered = Some(began);
        // A directory on this machine detects ended processes at once, so that no replica's end is uncertain.
        if !self.is_local() {
            self.silent.note(&known.others, &heard.others);
        }
        let others = heard.others.into_iter();
        known.others = Arc::new(others.map(|other| (other.id, other)).collect());
        self.unreachable.retain(|id| known.others.contains_key(&id));
        known.seen = Some(heard.newest);
        let before = known.reloads.replace(heard.reloads);
        HeartbeatOutcome {
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

    fn tell_changes(&self, known: &ReplicaStates, heard: &DirectoryReply) {
        for other in &heard.others {
            if known.others.contains_key(&other.id) {
                continue;
            }
            let (name, address) = (&*other.name, other.address.as_deref());
            match self.obstacle(other) {
                None => tracing::info!(replica = name, address, "a replica is up"),
                // The only gateway of a data directory has no address. During its upgrade the old and the new process keep their
                // sessions and forward nothing.
                Some(_) if self.is_local() && self.own.address.is_none() => {
                    tracing::info!(
                        replica = name,
                        "a replica is up, and nothing is forwarded to it"
                    );
                }
                Some(why) => tracing::error!(replica = name, address, "replica {name}: {why}"),
            }
        }
        // Changes are logged only if the directory's list is complete: after it has lost its data, replicas that are up are
        // missing until their next beats.
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

    /// Restricts forwarding to these addresses, as other replicas announce them. Returns true if the set has changed.
    pub fn forward_only_to(&self, addresses: BTreeSet<String>) -> bool {
        self.peers.trust(addresses)
    }

    /// Reason why requests cannot be forwarded to a replica that is up; `None` if they can.
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

    /// Replicas that are up and to which this replica forwards the requests of their sessions.
    pub fn forwarded_to(&self) -> Vec<Announcement> {
        let known = self.known.borrow();
        let others = known.others.values().filter(|other| !other.leaving);
        let others = others.filter(|other| self.obstacle(other).is_none());
        others.cloned().collect()
    }

    /// Replicas that stopped beating without an announced shutdown, and may still run without a connection to the directory.
    /// Includes only those with an address.
    pub fn silent(&self) -> Vec<Announcement> {
        let silent = self.silent.all().into_iter();
        silent
            .filter(|other| self.obstacle(other).is_none())
            .collect()
    }

    /// Records that a replica whose beats have stopped does not answer at its address either: it has ended.
    pub fn note_ended(&self, other: &Announcement) {
        if self.silent.remove(other.id) {
            tracing::info!(
                replica = &*other.name,
                "a replica that is gone does not answer requests: sessions that it has not recorded have ended"
            );
        }
    }

    /// True if a replica counts as gone by its beats, but has not been found to have ended: it may have sessions without a
    /// record.
    pub fn may_be_cut_off(&self, id: ReplicaId) -> bool {
        self.silent.contains(id) && self.silent().iter().any(|other| other.id == id)
    }

    /// Names of this replica's listeners for clients.
    pub fn listeners(&self) -> &BTreeSet<Arc<str>> {
        &self.own.listeners
    }

    /// Records the reason why a replica that beats does not respond at its address; `None` once it responds. Logs each change.
    pub fn note_unreachable(&self, other: &Announcement, reason: Option<String>) {
        let reason = reason.map(Arc::from);
        if !self.unreachable.note(other.id, reason.clone()) {
            return;
        }
        let (name, address) = (&*other.name, other.address.as_deref().unwrap_or_default());
        match reason {
            Some(reason) => tracing::error!(
                replica = name,
                address,
                "replica {name} is up and does not answer at {address}: {reason}; until it does, requests that come here for \
                 its sessions get 503 replica_unavailable"
            ),
            None => tracing::info!(
                replica = name,
                address,
                "replica {name} answers at {address} again"
            ),
        }
    }

    fn problem(&self, other: &Announcement) -> Option<Cow<'static, str>> {
        if let Some(obstacle) = self.obstacle(other) {
            return Some(Cow::Borrowed(obstacle));
        }
        let reason = self.unreachable.reason(other.id)?;
        let address = other.address.as_deref().unwrap_or_default();
        Some(format!("it does not answer at {address}: {reason}").into())
    }

    /// Number of replicas that are up and to which this replica cannot forward requests.
    pub fn unreachable(&self) -> usize {
        // The only gateway of a data directory forwards nothing to its predecessor or successor during an upgrade.
        if self.is_local() && self.own.address.is_none() {
            return 0;
        }
        let known = self.known.borrow();
        let others = known.others.values().filter(|other| !other.leaving);
        others.filter(|other| self.problem(other).is_some()).count()
    }

    /// State of the replicas, for `/ready`; `None` for a gateway without replicas.
    pub fn state(&self) -> Option<Replication> {
        self.directory.as_ref()?;
        let known = self.known.borrow();
        let others = known.others.values();
        let mut others: Vec<_> = others
            .map(|other| OtherReplica {
                name: Arc::clone(&other.name),
                problem: self.problem(other),
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
            rival: known.rival.is_some(),
            others,
        })
    }

    /// Removes this replica from the directory. Called at the end of the process.
    pub async fn leave_directory(&self) {
        if let Some(directory) = &self.directory {
            // If this fails, the other replicas find that this one has ended when its last beat is older than `BEAT_LIFE`.
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
