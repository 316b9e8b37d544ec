//! One client's conversation with one namespace.
//!
//! ```text
//!   initialize ──▶ New ── notifications/initialized ──▶ Ready
//!    GET /sse       │                                     │
//!                   └───── DELETE, expiry, eviction, ─────┴──▶ Closed
//!                          the end of an /sse stream
//! ```
//!
//! A session belongs to one namespace and one principal; for everyone else it does not exist (Q-07). Calls made in it
//! outlive the request that brought them: they end with their answer, by `notifications/cancelled`, or with the session.
//!
//! Closing is one step for everything a session has: its calls are cancelled, its streams end and forget their events,
//! the questions it has open fail, and nothing is announced to it any more. A session with a call or with a stream
//! somebody reads is in use, however long nothing is heard of its client.
//!
//! A session is live in one process. What outlives the process is its [`SessionRecord`]: the table writes it when the
//! session begins, a [`SessionPatch`] changes it, and a process that takes the session up makes itself its home. Calls,
//! readers and open questions end with the process.
//!
//! What a client can make a session hold is weighed ([`Session::weight`]), so that the table can bound it in bytes.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tooldock_workers::names::NamespaceName;
use tooldock_workers::worker::LogLevel;

use crate::interaction::{AnswerFate, Interaction, SessionInteractions};
use crate::jsonrpc::Response;
use crate::protocol::ProtocolVersion;
use crate::seal::NoRandomness;

pub mod client;
pub mod config;
pub(crate) mod in_flight;
mod last_use;
pub mod patch;
pub mod record;
mod released;
pub mod store;
pub(crate) mod subscriptions;
pub mod table;
mod unclaimed;
mod weight;

pub use crate::seal::{SessionId, SessionKey};
use crate::stream::{OwnedStreams, StreamOwner, StreamReaders};
pub use client::ClientFacts;
pub(crate) use in_flight::{CancelNotice, InFlight};
use last_use::LastUse;
pub use patch::{PatchRefused, SessionPatch};
pub use record::{Home, SessionRecord};
use released::Released;
use subscriptions::Subscriptions;
pub use table::SessionTable;
pub(crate) use unclaimed::EndSession;
pub use unclaimed::Unclaimed;

/// Where a session is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SessionState {
    /// Initialized by us, not yet confirmed by the client.
    New = 0,
    /// In use.
    Ready = 1,
    /// Over; nothing brings it back.
    Closed = 2,
}

/// How the client of a session talks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionTransport {
    /// One endpoint for everything, streams that can be resumed.
    Streamable,
    /// `GET /sse` and `POST /messages` (2024-11-05). The session ends with its stream.
    Sse,
}

/// What a session is bound to, fixed when it is opened.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Binding {
    /// The namespace it talks to.
    pub namespace: NamespaceName,
    /// Whose token opened it.
    pub principal: Option<Arc<str>>,
    /// The version it is opened with. One over HTTP+SSE negotiates later: [`Session::version`] is what holds.
    pub version: ProtocolVersion,
    /// How its client talks.
    pub transport: SessionTransport,
}

impl SessionKey {
    /// A new id for a session.
    ///
    /// # Errors
    ///
    /// [`NoRandomness`] when the operating system's source fails.
    pub fn mint(
        &self,
        replica: u32,
        binding: &Binding,
        now: SystemTime,
    ) -> Result<SessionId, NoRandomness> {
        let principal = binding.principal.as_deref();
        self.seal_id(replica, &binding.namespace, principal, binding.version, now)
    }
}

/// A live session, shared by the table and the requests in it.
pub struct Session {
    id: SessionId,
    binding: Binding,
    /// Stands for the id in logs: an id is a credential.
    tag: Arc<str>,
    state: AtomicU8,
    became_ready: Notify,
    last_use: LastUse,
    in_flight: InFlight,
    negotiated: OnceLock<ProtocolVersion>,
    client: OnceLock<Box<ClientFacts>>,
    log_level: AtomicU8,
    subscriptions: Subscriptions,
    streams: OwnedStreams,
    questions: SessionInteractions,
    /// Its place in the audience, from its first general stream on; dropping the place gives it back.
    seat: Mutex<Option<Seat>>,
    /// What the server of its namespace keeps for it; ends with the session.
    upstream_binding: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
    /// The table has set it aside because of its streams and wants to hear when the last reader leaves.
    set_aside: AtomicBool,
    released: OnceLock<Arc<Released>>,
    /// The weight the table has on its books.
    booked: AtomicUsize,
}

/// A place among those who hear of a namespace's changes. Whoever gives places out knows what they are; dropping one gives
/// it back.
pub(crate) type Seat = Box<dyn Any + Send + Sync>;

/// What stands for a session in logs: part of a digest of its id, which is as good as a credential.
pub fn tag(id: &str) -> String {
    hex::encode(&Sha256::digest(id.as_bytes())[..8])
}

impl Session {
    /// A new session.
    pub fn new(id: SessionId, binding: Binding, now: Instant) -> Self {
        Self {
            tag: tag(id.as_str()).into(),
            id,
            binding,
            state: AtomicU8::new(SessionState::New as u8),
            became_ready: Notify::new(),
            last_use: LastUse::new(now),
            in_flight: InFlight::default(),
            negotiated: OnceLock::new(),
            client: OnceLock::new(),
            log_level: AtomicU8::new(LogLevel::Info as u8),
            subscriptions: Subscriptions::default(),
            streams: OwnedStreams::default(),
            questions: SessionInteractions::default(),
            seat: Mutex::default(),
            upstream_binding: Mutex::default(),
            set_aside: AtomicBool::new(false),
            released: OnceLock::new(),
            booked: AtomicUsize::new(0),
        }
    }

    /// The session of a record, in the process that takes it up: confirmed or not, as its client left it, and used just
    /// now.
    fn adopted(record: SessionRecord, now: Instant) -> Self {
        let mut session = Self::new(record.id, record.binding, now);
        if record.confirmed {
            *session.state.get_mut() = SessionState::Ready as u8;
        }
        session.negotiated = record.negotiated.map_or_else(OnceLock::new, OnceLock::from);
        session.client = record
            .client
            .map_or_else(OnceLock::new, |facts| Box::new(facts).into());
        *session.log_level.get_mut() = record.log_level as u8;
        session.subscriptions = Subscriptions::recorded(record.subscriptions);
        session.streams = OwnedStreams::after(record.streams);
        session.questions = SessionInteractions::of_epoch(record.home.epoch);
        session.touch(now);
        session
    }

    /// The session in another process, which has its record.
    #[cfg(test)]
    pub(crate) fn taken_up(&self) -> Self {
        let home = Home {
            replica: 0,
            epoch: 1,
        };
        let record = serde_json::to_string(&self.record(home)).expect("plain data");
        let record = serde_json::from_str(&record).expect("as written");
        Self::adopted(record, Instant::now())
    }

    /// What is recorded of the session.
    fn record(&self, home: Home) -> SessionRecord {
        SessionRecord {
            id: self.id.clone(),
            binding: self.binding.clone(),
            home,
            confirmed: self.state() == SessionState::Ready,
            negotiated: self.negotiated.get().copied(),
            client: self.client.get().map(|facts| (**facts).clone()),
            log_level: self.log_level(),
            subscriptions: self.subscriptions.all(),
            streams: self.streams.counts(),
        }
    }

    /// Its id.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// What it is bound to.
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// The version in force: the one that was negotiated in the session, else the one it was opened with.
    pub fn version(&self) -> ProtocolVersion {
        self.negotiated
            .get()
            .copied()
            .unwrap_or(self.binding.version)
    }

    /// Whether the version was settled in the open session.
    pub(crate) fn is_negotiated(&self) -> bool {
        self.negotiated.get().is_some()
    }

    /// What the client said about itself. Before it has, and for ever if it does not: nothing.
    pub fn client(&self) -> &ClientFacts {
        match self.client.get() {
            Some(facts) => facts,
            None => ClientFacts::none(),
        }
    }

    /// Remembers what the client says about itself at `initialize`. Later words change nothing.
    fn set_client(&self, facts: ClientFacts) -> Result<(), client::TooMuch> {
        client::check(Some(&facts.capabilities), facts.info.as_deref())?;
        let _ = self.client.set(Box::new(facts));
        Ok(())
    }

    /// Makes a change. Answers whether anything is different now.
    fn apply(&self, patch: &SessionPatch) -> Result<bool, PatchRefused> {
        match patch {
            SessionPatch::Confirm => Ok(self.confirm()),
            SessionPatch::Initialize { version, client } => {
                client::check(Some(&client.capabilities), client.info.as_deref())?;
                if self.negotiated.set(*version).is_err() {
                    return Err(PatchRefused::Initialized);
                }
                self.set_client(client.clone())?;
                Ok(true)
            }
            SessionPatch::LogLevel(level) => {
                let before = self.log_level.swap(*level as u8, Ordering::Relaxed);
                Ok(before != *level as u8)
            }
            SessionPatch::Subscribe(uri) => Ok(self.subscriptions.add(uri)?),
            SessionPatch::Unsubscribe(uri) => Ok(self.subscriptions.remove(uri)),
            // The number was taken when the stream was made.
            SessionPatch::OpenStream(_) => Ok(true),
        }
    }

    /// Makes a change of a session that is in no table.
    #[cfg(test)]
    pub(crate) fn change(&self, patch: SessionPatch) -> bool {
        self.apply(&patch).expect("within the bounds")
    }

    /// The least severe log messages the client wants.
    pub fn log_level(&self) -> LogLevel {
        let level = usize::from(self.log_level.load(Ordering::Relaxed));
        LogLevel::ALL.get(level).copied().unwrap_or(LogLevel::Info)
    }

    /// A short digest of the id, for logs.
    pub fn tag(&self) -> &Arc<str> {
        &self.tag
    }

    /// Where it is in its life.
    pub fn state(&self) -> SessionState {
        match self.state.load(Ordering::Acquire) {
            0 => SessionState::New,
            1 => SessionState::Ready,
            _ => SessionState::Closed,
        }
    }

    /// Whether the session is this namespace's and this principal's.
    pub fn belongs_to(&self, namespace: &NamespaceName, principal: Option<&str>) -> bool {
        self.binding.namespace == *namespace && self.binding.principal.as_deref() == principal
    }

    /// The client confirmed the handshake. Says nothing to a closed session.
    fn confirm(&self) -> bool {
        let (new, ready) = (SessionState::New as u8, SessionState::Ready as u8);
        let (acquired, kept) = (Ordering::AcqRel, Ordering::Acquire);
        let confirmed = self.state.compare_exchange(new, ready, acquired, kept);
        self.became_ready.notify_waiters();
        confirmed.is_ok()
    }

    /// Waits until the session is confirmed, at most so long: a request may overtake the confirmation on another
    /// connection (K-15). Answers whether it is.
    pub async fn confirmed_within(&self, patience: Duration) -> bool {
        if self.state() != SessionState::New {
            return self.state() == SessionState::Ready;
        }
        // Registered before the state is read again, so that a confirmation in between is not missed.
        let changed = self.became_ready.notified();
        tokio::pin!(changed);
        changed.as_mut().enable();
        if self.state() == SessionState::New {
            let _ = timeout(patience, changed).await;
        }
        self.state() == SessionState::Ready
    }

    /// Ends the session and everything in it.
    pub fn close(&self) {
        self.state
            .store(SessionState::Closed as u8, Ordering::SeqCst);
        self.became_ready.notify_waiters();
        self.in_flight.cancel_all();
        self.questions.close();
        self.streams.close();
        self.subscriptions.clear();
        self.take_seat(None);
        let upstream_binding = {
            let own = self.upstream_binding.lock();
            own.unwrap_or_else(PoisonError::into_inner).take()
        };
        drop(upstream_binding);
    }

    /// What the server of its namespace keeps for it, made when there is none. In a closed session it is not kept.
    pub(crate) fn upstream_binding<T: Any + Send + Sync>(
        &self,
        make: impl FnOnce() -> Arc<T>,
    ) -> Arc<T> {
        let mut own = self
            .upstream_binding
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let known = own.clone().and_then(|it| it.downcast::<T>().ok());
        let upstream_binding = known.unwrap_or_else(make);
        if self.state() != SessionState::Closed {
            *own = Some(Arc::clone(&upstream_binding) as Arc<dyn Any + Send + Sync>);
        }
        upstream_binding
    }

    /// The session was used.
    pub fn touch(&self, now: Instant) {
        self.last_use.touch(now);
    }

    /// When the session was last used; a session with a call in flight or a stream that is read is in use.
    pub fn used_at(&self, now: Instant) -> Instant {
        if self.is_busy() {
            now
        } else {
            self.last_use.at()
        }
    }

    /// Whether it was used since it was opened, or is in use.
    fn is_used(&self) -> bool {
        self.last_use.is_touched() || self.is_busy()
    }

    fn is_busy(&self) -> bool {
        !self.in_flight.is_empty() || self.streams.any_read()
    }

    /// Whether it was not used for so long.
    pub(crate) fn idle_for(&self, patience: Duration, now: Instant) -> bool {
        // The time alone is enough for nearly all who ask, and costs no lock.
        now.saturating_duration_since(self.last_use.at()) >= patience
            && now.saturating_duration_since(self.used_at(now)) >= patience
    }

    /// The calls running in it.
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.in_flight
    }

    /// Its streams.
    pub(crate) fn streams(&self) -> &OwnedStreams {
        &self.streams
    }

    /// The resources it wants to hear of.
    pub(crate) fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// Notes a question to the client, and gives the request that asks it. `None`: nobody wants an answer any more, or the
    /// question has failed, because the session ended or a thousand questions are open.
    pub(crate) fn ask(&self, question: &Arc<Interaction>) -> Option<Vec<u8>> {
        self.questions.ask(question)
    }

    /// Takes the client's answer to a question; `id` is raw JSON.
    pub(crate) fn answer(&self, id: &str, answer: Response) -> AnswerFate {
        self.questions.answer(id, answer)
    }

    /// Whether it has a place in the audience.
    pub(crate) fn is_seated(&self) -> bool {
        self.seat().is_some()
    }

    /// Takes a place in the audience, or leaves it. A place taken after the end of the session is given back.
    pub(crate) fn take_seat(&self, seat: Option<Seat>) {
        let before = {
            let mut own = self.seat();
            let seat = seat.filter(|_| self.state() != SessionState::Closed);
            std::mem::replace(&mut *own, seat)
        };
        drop(before);
    }

    /// The table sets the session aside while one of its streams is read. `false`: none is.
    fn set_aside(&self, released: &Arc<Released>) -> bool {
        let _ = self.released.set(Arc::clone(released));
        self.set_aside.store(true, Ordering::SeqCst);
        // A reader that leaves now either sees the mark or was counted out before this.
        self.streams.any_read() || !self.set_aside.swap(false, Ordering::SeqCst)
    }

    fn seat(&self) -> std::sync::MutexGuard<'_, Option<Seat>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StreamReaders for Session {
    fn streams(&self) -> &OwnedStreams {
        &self.streams
    }

    fn reader_came(&self) {
        self.streams.reader_came();
    }

    fn reader_left(&self, now: Instant) {
        self.touch(now);
        if self.streams.reader_left()
            && self.set_aside.swap(false, Ordering::SeqCst)
            && let Some(released) = self.released.get()
        {
            released.put(self.id.clone());
        }
    }
}

impl StreamOwner for Arc<Session> {
    fn id(&self) -> &SessionId {
        &self.id
    }

    fn streams(&self) -> &OwnedStreams {
        &self.streams
    }

    fn principal(&self) -> Option<&Arc<str>> {
        self.binding.principal.as_ref()
    }

    fn readers(&self) -> Weak<dyn StreamReaders> {
        Arc::<Session>::downgrade(self)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("tag", &self.tag)
            .field("binding", &self.binding)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::value::RawValue;

    use super::*;

    pub(crate) fn session() -> Arc<Session> {
        let binding = Binding {
            namespace: "shared".parse().expect("a name"),
            principal: None,
            version: ProtocolVersion::V2025_11_25,
            transport: SessionTransport::Streamable,
        };
        let id = SessionId::random();
        Arc::new(Session::new(id, binding, Instant::now()))
    }

    /// A client of these capabilities.
    pub(crate) fn facts(capabilities: &str) -> ClientFacts {
        let capabilities = RawValue::from_string(capabilities.to_owned()).expect("JSON");
        ClientFacts {
            capabilities: capabilities.into(),
            info: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_confirmation_that_arrives_while_waiting_is_seen() {
        let session = session();
        let waiting = tokio::spawn({
            let session = Arc::clone(&session);
            async move { session.confirmed_within(Duration::from_secs(1)).await }
        });
        tokio::task::yield_now().await;
        session.confirm();
        assert!(waiting.await.expect("not cancelled"));
        assert_eq!(session.state(), SessionState::Ready);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_after_its_patience_or_with_the_session() {
        let session = session();
        let start = Instant::now();
        assert!(!session.confirmed_within(Duration::from_secs(1)).await);
        assert_eq!(start.elapsed(), Duration::from_secs(1));
        session.close();
        session.confirm();
        assert!(!session.confirmed_within(Duration::from_secs(1)).await);
        assert_eq!(session.state(), SessionState::Closed);
        assert_eq!(start.elapsed(), Duration::from_secs(1));
    }

    #[test]
    fn debug_output_does_not_hold_the_id() {
        let session = session();
        assert!(!format!("{session:?} {:?}", session.id()).contains(session.id().as_str()));
    }

    #[tokio::test]
    async fn closing_ends_everything_a_session_has() {
        let session = session();
        let pulse = crate::stream::Pulse::new(Duration::from_secs(15));
        let log = Arc::new(crate::stream::EventLog::new(
            config::EventLogConfig::default(),
            pulse,
            crate::stream::StreamMetrics::unregistered(),
        ));
        let audience = crate::broadcast::Audience::new(Arc::clone(&log));
        let opened = log
            .open(&session, crate::stream::StreamKind::General, true)
            .await;
        let mut events = opened.expect("memory").read();
        audience.join(&session);
        session.subscriptions().add("test://a").expect("the first");
        let wait = crate::interaction::tests::Wait::new();
        let (question, _told) = crate::interaction::tests::round(&wait);
        session.ask(&question).expect("a request");
        let (call, _registration) = futures_util::future::AbortHandle::new_pair();
        let _entry = InFlight::enter(&session, "1", call.clone(), Arc::new(in_flight::NoNotice));
        session.close();
        assert_eq!(events.next().await, None);
        assert!(!question.is_open());
        assert!(call.is_aborted());
        assert!(!session.is_seated());
        assert!(!session.subscriptions().contains("test://a"));
        assert_eq!(session.streams().len(), 0);
    }

    #[test]
    fn a_session_is_used_while_one_of_its_streams_is_read() {
        let session = session();
        let opened = Instant::now();
        let later = opened + Duration::from_secs(1000);
        let idle = |session: &Session| session.idle_for(Duration::from_secs(100), later);
        assert!(idle(&session));
        session.reader_came();
        session.reader_came();
        assert!(!idle(&session));
        session.reader_left(opened);
        assert!(!idle(&session));
        session.reader_left(later);
        assert_eq!(session.used_at(later + Duration::from_secs(1)), later);
        assert!(!idle(&session));
    }

    #[test]
    fn what_a_client_said_first_about_itself_holds() {
        let session = session();
        assert_eq!(session.client().capabilities.get(), "{}");
        let long = format!("\"{}\"", "x".repeat(client::CLIENT_FACTS_MAX));
        assert_eq!(session.set_client(facts(&long)), Err(client::TooMuch));
        session
            .set_client(facts(r#"{"sampling":{}}"#))
            .expect("short");
        session.set_client(facts("{}")).expect("short");
        assert_eq!(session.client().capabilities.get(), r#"{"sampling":{}}"#);
    }

    #[test]
    fn version_and_log_level_are_those_that_were_settled_last() {
        let session = session();
        assert_eq!(session.version(), ProtocolVersion::V2025_11_25);
        let initialize = |version| SessionPatch::Initialize {
            version,
            client: facts("{}"),
        };
        assert!(session.change(initialize(ProtocolVersion::V2024_11_05)));
        let again = session.apply(&initialize(ProtocolVersion::V2025_06_18));
        assert_eq!(again, Err(PatchRefused::Initialized));
        assert_eq!(session.version(), ProtocolVersion::V2024_11_05);
        assert_eq!(session.log_level(), LogLevel::Info);
        for level in LogLevel::ALL {
            session.change(SessionPatch::LogLevel(level));
            assert_eq!(session.log_level(), level);
        }
    }
}
