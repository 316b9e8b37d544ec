//! Network access to the issuers of access tokens: fetches their keys in the background, and asks them about opaque tokens
//! (introspection). The crate `filters` decides on tokens ([`tooldock_filters::oauth`]), with the keys and answers that this
//! module provides.
//!
//! ```text
//! run ── every second: which keys are due? ────────┐
//! settle ── a request waits for newer keys ────────┴─▶ one fetch per issuer ─▶ keys.rs ─▶ IssuerKeys::replace
//! run ── every second: which answers expire soon? ─┐
//! settle ── a request waits for an answer ─────────┴─▶ one question per token ─▶ introspection.rs ─▶ Issuer::answered
//! ```
//!
//! After a failure the known keys stay in force: if an issuer is down, tokens signed by a known key are still accepted, and no
//! others. A token that cannot be decided on gets status 503; open streams continue.

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

/// Interval at which the issuers are checked for keys that have to be fetched.
const TICK: Duration = Duration::from_secs(1);

/// Maximum time of one wait of a request for newer keys, or for an issuer's answer about its token.
const WAIT: Duration = Duration::from_secs(3);

/// Maximum number of running and waiting questions about opaque tokens, over all issuers; further ones are refused. Each question
/// belongs to a waiting request or to a token that was accepted before.
const QUESTIONS_MAX: usize = 16_384;

/// Maximum number of waits of a single request: one for each issuer that could know its token, and one more.
const WAITS_MAX: usize = 17;

/// The issuers of the configuration in force, with their schedules and running requests.
pub(crate) struct Issuers {
    rules: Arc<ArcSwap<Rules>>,
    fetcher: Fetcher,
    metrics: IssuerMetrics,
    /// The runtime in which requests to issuers run.
    control: Handle,
    /// Schedules of fetching keys, by issuer. Entries of removed issuers are dropped.
    schedules: Mutex<HashMap<String, Schedule>>,
    /// Number of times that an issuer's new key set lacked a key of its previous set, over all issuers.
    losses: watch::Sender<u64>,
    /// Running questions to issuers about opaque tokens, by issuer and token.
    questions: Mutex<HashMap<(String, TokenDigest), Flight>>,
    /// Limits on concurrent questions about opaque tokens, by issuer. Entries of removed issuers are dropped.
    places: Mutex<HashMap<String, Arc<Places>>>,
    patience: Patience,
    /// Metadata fetched for logins, by issuer. Entries of removed issuers are dropped.
    metadata: Mutex<HashMap<String, FetchedMetadata>>,
    /// Permits that limit the number of concurrent requests for logins.
    exchanges: Semaphore,
}

/// Receiver by which tasks wait for a running fetch of keys or a running question about a token. It is closed when that has
/// ended.
type Flight = watch::Receiver<()>;

/// The prospect of newer keys of an issuer, for a token that no known key has signed.
enum NewerKeys {
    /// The keys are being fetched; the request can wait for the fetch.
    Flight(Flight),
    /// The keys may be fetched again from this time on; the request can wait until then.
    From(Instant),
    /// The keys were fetched just now, so that the token can be refused.
    AreThere,
    /// The last fetch failed, so that nothing can be decided about the token.
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

    /// Fetches the keys of all issuers, and renews answers about tokens in use, whenever they are due. Runs until its future is
    /// dropped.
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

    /// Waits for the keys or the answer that are needed to decide on a client's token, for at most [`WAIT`]. Returns how the
    /// request's admission is to be repeated.
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
        // The end of the fetch or question drops the sender, which `changed` reports as an error.
        let over = timeout(WAIT, flight.changed()).await.is_ok();
        match over && waited < WAITS_MAX {
            true => AdmissionAttempt::Again,
            false => AdmissionAttempt::Last,
        }
    }

    /// Returns the number of times that an issuer's new key set lacked a key of its previous set, over all issuers.
    pub(crate) fn losses(&self) -> u64 {
        *self.losses.borrow()
    }

    /// Waits until the number that [`Issuers::losses`] returns differs from `count`. A token that was verified at that time may
    /// have been signed by a key that is no longer valid, so that its client has to be admitted again.
    pub(crate) async fn lose_keys_after(&self, count: u64) {
        let mut losses = self.losses.subscribe();
        // Waiting cannot fail, since `self` owns the sender.
        let _ = losses.wait_for(|now| *now != count).await;
    }

    /// Waits while an opaque token is valid for the principal called `principal`. The issuer is asked again whenever its last
    /// answer is old. Returns when the token is known to be invalid. While the issuer does not answer, the token stays valid; the
    /// caller knows when the token expires.
    pub(crate) async fn watch_token(self: Arc<Self>, token: Secret, principal: Arc<str>) {
        /// Interval at which the token of an open stream is checked again. A stream may stay open for this time after the token
        /// has become invalid.
        const AGAIN: Duration = Duration::from_secs(2);
        /// Pause before the next check while the issuer does not answer.
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

    /// Decides on a token that was accepted before. The issuer is asked if its last answer is old.
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
            // The question has no client address, since a token that was accepted before does not count towards a client's limit.
            if self.settle(&pending, UNIX, waited).await != AdmissionAttempt::Again {
                return TokenVerdict::Pending(pending);
            }
        }
    }

    /// Asks the issuers again about tokens in use whose answers expire soon.
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

    /// Determines whether newer keys can be expected for a token that no known key has signed, and starts a fetch if one is due.
    /// If the keys were fetched just now, a client may wait until they may be fetched again, but only once in a while
    /// (`Patience`).
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
            // The client only waits if its request has not waited more than once before.
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

    /// Starts a question about a client's token, or returns the running one. `None` if there are too many questions of the client
    /// or in total.
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

    /// Reserves a place for a question in the limits of its issuer; `None` if the client has too many questions about unknown
    /// tokens.
    fn claim(&self, issuer: &str, pending: &Pending, client: IpAddr) -> Option<Claim> {
        let mut all = lock(&self.places);
        let places = all.entry(issuer.to_owned()).or_insert_with(Places::new);
        match pending.counted {
            true => Some(places.of_counted()),
            false => places.of_unknown(client),
        }
    }

    /// Asks an issuer about a token, and stores the answer.
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

/// Returns the schedule of an issuer's keys, which is created if there is none.
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

/// Locks a mutex even if it is poisoned: the data is valid after a panic, too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
