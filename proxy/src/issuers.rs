//! The issuers of access tokens, as seen over the network: fetches their keys in the background, and asks them about opaque
//! tokens. The filters judge tokens ([`tooldock_filters::oauth`]), with the keys and answers that this module gives them.
//!
//! ```text
//! run ── every second: whose keys are due? ──────┐
//! settle ── a token waits for newer keys ────────┴─▶ one flight per issuer ─▶ keys.rs ─▶ IssuerKeys::replace
//! run ── every second: whose answers end soon? ──┐
//! settle ── a token waits for an answer ─────────┴─▶ one flight per token (places.rs) ─▶ introspection.rs ─▶ Issuer::answered
//! ```
//!
//! A failure leaves the keys that were there: an issuer that is down stops no client with a token by a known key, and lets
//! no other client in. A token that cannot be judged is answered with 503, and ends no stream.

pub(crate) mod introspection;
mod keys;
pub(crate) mod login;
mod metadata;
mod metrics;
mod places;
mod schedule;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep_until, timeout};
use tooldock_base::secret::Secret;
use tooldock_filters::AdmissionAttempt;
use tooldock_filters::network::UNIX;
use tooldock_filters::oauth::{Issuer, KeySetChange, Needs, Pending, Renewal, TokenVerdict};
use tooldock_filters::token::TokenDigest;

use self::introspection::ask;
use self::login::{EXCHANGES_MAX, FetchedMetadata};
pub(crate) use self::metrics::IssuerMetrics;
use self::places::{Claim, Patience, Places};
use self::schedule::Schedule;
use crate::remote::{Fetcher, SystemNames};
use crate::rules::Rules;

/// Interval of looking for keys that are due.
const TICK: Duration = Duration::from_secs(1);

/// Maximum time for which a request waits for newer keys, or for an answer about its token.
const WAIT: Duration = Duration::from_secs(3);

/// Maximum number of opaque tokens, of all issuers, about which an issuer is being asked or is to be asked. Each
/// belongs to a waiting request, or has admitted one before.
const QUESTIONS_MAX: usize = 16_384;

/// Maximum number of times that one request may wait: once for each issuer that could know its token, and once more.
const WAITS_MAX: usize = 17;

/// The issuers of the configuration in force.
pub(crate) struct Issuers {
    rules: Arc<ArcSwap<Rules>>,
    fetcher: Fetcher,
    metrics: IssuerMetrics,
    /// The runtime of fetches.
    control: Handle,
    /// Plain data. Schedules by issuer; removed issuers are dropped.
    schedules: Mutex<HashMap<String, Schedule>>,
    /// The number of key sets that lacked a key of the set before, over all issuers.
    losses: watch::Sender<u64>,
    /// Plain data. Running questions, by issuer and token.
    questions: Mutex<HashMap<(String, TokenDigest), Flight>>,
    /// Plain data. Places by issuer; removed issuers are dropped.
    places: Mutex<HashMap<String, Arc<Places>>>,
    patience: Patience,
    /// Plain data. Metadata for logins, by issuer; removed issuers are dropped.
    metadata: Mutex<HashMap<String, FetchedMetadata>>,
    /// Permits of the exchanges for logins.
    exchanges: Semaphore,
}

/// Receiver that ends when a running fetch or question is over.
type Flight = watch::Receiver<()>;

/// The state of an issuer's keys, for a token by an unknown key.
enum NewerKeys {
    /// The keys are being fetched.
    Flight(Flight),
    /// The keys can be fetched again at this time.
    From(Instant),
    /// The known keys are the newest.
    AreThere,
    /// The keys could not be fetched a moment ago.
    Unreachable,
}

impl Issuers {
    pub(crate) fn new(
        rules: Arc<ArcSwap<Rules>>,
        metrics: IssuerMetrics,
        control: Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            rules,
            fetcher: Fetcher::new(Arc::new(SystemNames)),
            metrics,
            control,
            schedules: Mutex::default(),
            losses: watch::Sender::new(0),
            questions: Mutex::default(),
            places: Mutex::default(),
            patience: Patience::default(),
            metadata: Mutex::default(),
            exchanges: Semaphore::new(EXCHANGES_MAX),
        })
    }

    /// Keeps the keys of all issuers and the answers about tokens in use fresh. Runs until its future is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let rules = self.rules.load_full();
            let issuers = rules.admission.oauth().issuers();
            self.renew_answers(issuers);
            let mut schedules = lock(&self.schedules);
            schedules.retain(|name, schedule| {
                let mut known = issuers.iter();
                let stays = known.any(|it| it.config().issuer == *name && schedule.is_of(it));
                if !stays {
                    self.metrics.forget(name);
                }
                stays
            });
            for issuer in issuers {
                let schedule = schedule_of(&mut schedules, issuer);
                if let Some(age) = schedule.age() {
                    self.metrics.age(&issuer.config().issuer, age);
                }
                if schedule.is_due(Instant::now()) {
                    self.fetch(issuer, schedule);
                }
            }
        }
    }

    /// Gets the keys or the answer by which a client's token can be judged, within a short wait. Returns how the
    /// request is to be judged again.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        pending: &Pending,
        client: IpAddr,
        waited: usize,
    ) -> AdmissionAttempt {
        let flight = match pending.needs {
            Needs::Keys => match self.newer_keys(&pending.issuer, client, waited) {
                NewerKeys::Flight(flight) => Some(flight),
                NewerKeys::From(then) => {
                    sleep_until(then).await;
                    return AdmissionAttempt::Again;
                }
                NewerKeys::AreThere => return AdmissionAttempt::ByNewestKeys,
                NewerKeys::Unreachable => None,
            },
            Needs::Answer => self.question(pending, client),
        };
        let Some(mut flight) = flight else {
            return AdmissionAttempt::Last;
        };
        // The flight is over when its sender is dropped, which `changed` reports as an error.
        let over = timeout(WAIT, flight.changed()).await.is_ok();
        match over && waited < WAITS_MAX {
            true => AdmissionAttempt::Again,
            false => AdmissionAttempt::Last,
        }
    }

    /// The number of key sets that lacked a key of the set before, over all issuers.
    pub(crate) fn losses(&self) -> u64 {
        *self.losses.borrow()
    }

    /// Waits until an issuer's keys have lost one since [`Issuers::losses`] was `count`: a token that was verified then
    /// may have been verified by the lost key, and its client has to be admitted again.
    pub(crate) async fn lose_keys_after(&self, count: u64) {
        let mut losses = self.losses.subscribe();
        // The sender is `self`.
        let _ = losses.wait_for(|now| *now != count).await;
    }

    /// Waits while an opaque token counts for the principal called `principal`: the issuer is asked again whenever its
    /// answer is old. Ends when the token is judged and no longer counts. A token that cannot be judged goes on to
    /// count until its own end, which the caller knows.
    pub(crate) async fn outlive(self: Arc<Self>, token: Secret, principal: Arc<str>) {
        /// Interval of looking up an open stream's token again. A stream may outlast the issuer's answer by this time.
        const AGAIN: Duration = Duration::from_secs(2);
        /// Pause between two attempts while the token cannot be judged.
        const AGAIN_UNJUDGED: Duration = Duration::from_secs(5);
        let mut pause = AGAIN;
        loop {
            tokio::time::sleep(pause).await;
            pause = match self.judged(&token).await {
                TokenVerdict::Principal(it) if *it.name() == principal => AGAIN,
                TokenVerdict::Pending(_) | TokenVerdict::Unjudged => AGAIN_UNJUDGED,
                _ => return,
            };
        }
    }

    /// The verdict on a token that counted before, after asking its issuer where that is needed and possible.
    async fn judged(self: &Arc<Self>, token: &Secret) -> TokenVerdict {
        let mut waited = 0;
        loop {
            let rules = self.rules.load_full();
            let oauth = rules.admission.oauth();
            let mut pending = match oauth.judge(token.expose().as_bytes(), SystemTime::now()) {
                TokenVerdict::Pending(pending) => pending,
                verdict => return verdict,
            };
            pending.counted = true;
            waited += 1;
            // A token that counted before is not counted against any client.
            if self.settle(&pending, UNIX, waited).await != AdmissionAttempt::Again {
                return TokenVerdict::Pending(pending);
            }
        }
    }

    /// Asks again about the tokens in use whose answers end soon.
    fn renew_answers(self: &Arc<Self>, issuers: &[Arc<Issuer>]) {
        let is_known = |name: &String| issuers.iter().any(|it| it.config().issuer == *name);
        lock(&self.places).retain(|name, _| is_known(name));
        lock(&self.metadata).retain(|name, _| is_known(name));
        for issuer in issuers {
            for Renewal { token, digest } in issuer.take_renewals() {
                let pending = Pending {
                    issuer: Arc::clone(issuer),
                    needs: Needs::Answer,
                    token,
                    digest,
                    counted: true,
                };
                self.question(&pending, UNIX);
            }
        }
    }

    /// The state of an issuer's keys, for a token by an unknown key; starts a fetch if one is due. Where the newest
    /// keys are known, the client may now and then wait until newer ones can be fetched.
    fn newer_keys(
        self: &Arc<Self>,
        issuer: &Arc<Issuer>,
        client: IpAddr,
        waited: usize,
    ) -> NewerKeys {
        let now = Instant::now();
        let mut schedules = lock(&self.schedules);
        let schedule = schedule_of(&mut schedules, issuer);
        if let Some(flight) = schedule.flight() {
            return NewerKeys::Flight(flight);
        }
        if schedule.is_due(now) {
            return NewerKeys::Flight(self.fetch(issuer, schedule));
        }
        match schedule.newest_until(now) {
            // Only for a request that has waited at most once.
            Some(until) if waited <= 1 && self.patience.take(client, now) => NewerKeys::From(until),
            Some(_) => NewerKeys::AreThere,
            None => NewerKeys::Unreachable,
        }
    }

    fn fetch(self: &Arc<Self>, issuer: &Arc<Issuer>, schedule: &mut Schedule) -> Flight {
        let (sender, flight) = watch::channel(());
        let endpoint = schedule.take_off(flight.clone(), Instant::now());
        let (issuers, issuer) = (Arc::clone(self), Arc::clone(issuer));
        self.control.spawn(async move {
            let fetched = keys::fetch(&issuers.fetcher, issuer.config(), endpoint).await;
            issuers.landed(&issuer, fetched);
            drop(sender);
        });
        flight
    }

    fn landed(&self, issuer: &Arc<Issuer>, fetched: Result<keys::FetchedKeys, String>) {
        let name = &issuer.config().issuer;
        self.metrics.fetched(name, fetched.is_ok());
        let endpoint = match fetched {
            Ok(fetched) => {
                let count = fetched.keys.len();
                let replaced = issuer.keys().replace(fetched.keys);
                if replaced == KeySetChange::SomeAreGone {
                    self.losses.send_modify(|count| *count += 1);
                }
                if replaced != KeySetChange::Nothing {
                    tracing::info!(
                        issuer = name,
                        keys = count,
                        "new keys of an issuer are in force"
                    );
                }
                Some(fetched.endpoint)
            }
            Err(error) => {
                let kept = issuer.keys().current().map_or(0, |it| it.len());
                tracing::warn!(
                    issuer = name,
                    kept,
                    %error,
                    "the keys of an issuer could not be fetched; those there are stay in force"
                );
                None
            }
        };
        let mut schedules = lock(&self.schedules);
        if let Some(schedule) = schedules.get_mut(name)
            && schedule.is_of(issuer)
        {
            schedule.land(endpoint, issuer.config(), Instant::now());
        }
    }

    /// The flight that asks about a client's token: the running one, or a new one. `None` where too many questions are
    /// running, of the client or of all.
    fn question(self: &Arc<Self>, pending: &Pending, client: IpAddr) -> Option<Flight> {
        let name = pending.issuer.config().issuer.clone();
        let key = (name, pending.digest);
        let mut questions = lock(&self.questions);
        if let Some(flight) = questions.get(&key) {
            return Some(flight.clone());
        }
        if questions.len() >= QUESTIONS_MAX {
            return None;
        }
        let claim = self.claim(&key.0, pending, client)?;
        let (sender, flight) = watch::channel(());
        questions.insert(key.clone(), flight.clone());
        let (issuers, pending) = (Arc::clone(self), pending.clone());
        self.control.spawn(async move {
            if let Some(_place) = claim.place().await {
                issuers.ask_about(&pending, &key.0).await;
            }
            lock(&issuers.questions).remove(&key);
            drop(sender);
        });
        Some(flight)
    }

    /// The claim of a question to a place at its issuer; `None` where the client has too many unknown tokens waiting.
    fn claim(&self, issuer: &str, pending: &Pending, client: IpAddr) -> Option<Claim> {
        let mut all = lock(&self.places);
        let places = all.entry(issuer.to_owned()).or_insert_with(Places::new);
        match pending.counted {
            true => Some(places.of_counted()),
            false => places.of_unknown(client),
        }
    }

    /// Asks an issuer about a token, and notes the answer.
    async fn ask_about(&self, pending: &Pending, name: &str) {
        let issuer = &pending.issuer;
        let answer = ask(&self.fetcher, issuer, pending.token.expose()).await;
        let now = SystemTime::now();
        let taken = answer.and_then(|body| {
            let taken = issuer.answered(pending.digest, &body, now);
            let no_answer = || "the answer is not one of RFC 7662".to_owned();
            taken.then_some(()).ok_or_else(no_answer)
        });
        self.metrics.asked(name, taken.is_ok());
        if let Err(error) = taken {
            tracing::warn!(issuer = name, %error, "an issuer could not be asked about a token");
            issuer.not_answered(pending.digest, now);
        }
    }
}

/// The schedule of an issuer's keys; begins one if there is none.
fn schedule_of<'a>(
    schedules: &'a mut HashMap<String, Schedule>,
    issuer: &Arc<Issuer>,
) -> &'a mut Schedule {
    let name = issuer.config().issuer.clone();
    let schedule = schedules
        .entry(name)
        .or_insert_with(|| Schedule::new(issuer));
    if !schedule.is_of(issuer) {
        *schedule = Schedule::new(issuer);
    }
    schedule
}

/// Locks plain data, which stays usable after a thread panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
