//! The issuers of access tokens, as seen over the network: fetches their keys in the background, and asks them about opaque
//! tokens. The filters judge tokens ([`tooldock_filters::oauth`]); what they need is put there from here.
//!
//! ```text
//! run ── every second: whose keys are due? ──┐
//! settle ── a token waits for newer keys ────┴─▶ one flight per issuer ─▶ keys.rs ─▶ IssuerKeys::replace
//! settle ── a token waits for an answer ───────▶ one flight per token ──▶ introspection.rs ─▶ Issuer::answered
//! ```
//!
//! A failure leaves the keys that were there: an issuer that is down stops nobody who holds a token by a known key, and lets
//! nobody else in.

pub(crate) mod introspection;
mod keys;
mod metrics;
mod schedule;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tooldock_filters::Asked;
use tooldock_filters::oauth::{Issuer, Needs, Pending, Replaced, TokenVerdict};
use tooldock_filters::token::TokenDigest;
use tooldock_workers::secrets::Secret;

use self::introspection::ask;
pub(crate) use self::metrics::IssuerMetrics;
use self::schedule::Schedule;
use crate::gateway::Rules;
use crate::remote::{Fetcher, SystemNames};

/// How often it is looked whose keys are due.
const TICK: Duration = Duration::from_secs(1);

/// How long a request waits for newer keys, or for an answer about its token.
const WAIT: Duration = Duration::from_secs(3);

/// Opaque tokens that are asked about at once.
const QUESTIONS_MAX: usize = 256;

/// Times that one request may wait: once for each issuer that could know its token, and once more.
const WAITS_MAX: usize = 17;

/// The issuers of the configuration in force.
pub(crate) struct Issuers {
    rules: Arc<ArcSwap<Rules>>,
    fetcher: Fetcher,
    metrics: IssuerMetrics,
    /// Where fetches run.
    control: Handle,
    /// Plain data. By issuer; those that are gone are forgotten.
    schedules: Mutex<HashMap<String, Schedule>>,
    /// How often an issuer's keys have lost one.
    losses: watch::Sender<u64>,
    /// Plain data. Questions on their way, by issuer and token.
    questions: Mutex<HashMap<(String, TokenDigest), Flight>>,
}

/// Something on its way; over when its sender is gone.
type Flight = watch::Receiver<()>;

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
        })
    }

    /// Keeps the keys of all issuers fresh. Runs until it is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let rules = self.rules.load_full();
            let issuers = rules.admission.oauth().issuers();
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

    /// Gets what a token needs to be judged, within a short wait. Says how the request is to be judged again.
    pub(crate) async fn settle(self: &Arc<Self>, pending: &Pending, waited: usize) -> Asked {
        let flight = match pending.needs {
            Needs::Keys => self.newer_keys(&pending.issuer),
            Needs::Answer => self.question(pending),
        };
        let Some(mut flight) = flight else {
            return Asked::Last;
        };
        // Ends with an error when the flight is over, which is what is waited for.
        let over = timeout(WAIT, flight.changed()).await.is_ok();
        match over && waited < WAITS_MAX {
            true => Asked::Again,
            false => Asked::Last,
        }
    }

    /// How often the keys of an issuer have lost one.
    pub(crate) fn losses(&self) -> u64 {
        *self.losses.borrow()
    }

    /// Waits until the keys of an issuer have lost one since that count: a token that was verified then may have been by
    /// that key, and its client comes back to be admitted again.
    pub(crate) async fn lose_keys_after(&self, count: u64) {
        let mut losses = self.losses.subscribe();
        // The sender is `self`.
        let _ = losses.wait_for(|now| *now != count).await;
    }

    /// Waits for as long as an opaque token counts for the principal of that name: the issuer is asked again whenever its
    /// answer is old. Ends when the token does not count any more.
    pub(crate) async fn outlive(self: Arc<Self>, token: Secret, principal: Arc<str>) {
        /// How often an open stream's token is looked up again. A stream lasts so much longer than the issuer's answer says.
        const AGAIN: Duration = Duration::from_secs(2);
        loop {
            tokio::time::sleep(AGAIN).await;
            let mut waited = 0;
            loop {
                let rules = self.rules.load_full();
                let oauth = rules.admission.oauth();
                match oauth.judge(token.expose().as_bytes(), SystemTime::now()) {
                    TokenVerdict::Principal(it) if *it.name() == principal => break,
                    TokenVerdict::Principal(_) | TokenVerdict::Refused(_) => return,
                    TokenVerdict::Pending(pending) => {
                        waited += 1;
                        if self.settle(&pending, waited).await == Asked::Last {
                            return;
                        }
                    }
                }
            }
        }
    }

    /// The flight that fetches an issuer's keys: the one there is, or a new one, unless there was one lately.
    fn newer_keys(self: &Arc<Self>, issuer: &Arc<Issuer>) -> Option<Flight> {
        let mut schedules = lock(&self.schedules);
        let schedule = schedule_of(&mut schedules, issuer);
        if let Some(flight) = schedule.flight() {
            return Some(flight);
        }
        schedule
            .is_due(Instant::now())
            .then(|| self.fetch(issuer, schedule))
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

    fn landed(&self, issuer: &Arc<Issuer>, fetched: Result<keys::Fetched, String>) {
        let name = &issuer.config().issuer;
        self.metrics.fetched(name, fetched.is_ok());
        let endpoint = match fetched {
            Ok(fetched) => {
                let count = fetched.keys.len();
                let replaced = issuer.keys().replace(fetched.keys);
                if replaced == Replaced::SomeAreGone {
                    self.losses.send_modify(|count| *count += 1);
                }
                if replaced != Replaced::Nothing {
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

    /// The flight that asks about a token: the one there is, or a new one.
    fn question(self: &Arc<Self>, pending: &Pending) -> Option<Flight> {
        let issuer = &pending.issuer;
        let name = issuer.config().issuer.clone();
        let key = (name, pending.digest);
        let mut questions = lock(&self.questions);
        if let Some(flight) = questions.get(&key) {
            return Some(flight.clone());
        }
        if questions.len() >= QUESTIONS_MAX {
            return None;
        }
        let (sender, flight) = watch::channel(());
        questions.insert(key.clone(), flight.clone());
        let (issuers, pending) = (Arc::clone(self), pending.clone());
        self.control.spawn(async move {
            let issuer = &pending.issuer;
            let answer = ask(&issuers.fetcher, issuer, pending.token.expose()).await;
            let now = SystemTime::now();
            let taken = answer.and_then(|body| {
                let taken = issuer.answered(pending.digest, &body, now);
                let no_answer = || "the answer is not one of RFC 7662".to_owned();
                taken.then_some(()).ok_or_else(no_answer)
            });
            issuers.metrics.asked(&key.0, taken.is_ok());
            if let Err(error) = taken {
                tracing::warn!(issuer = key.0, %error, "an issuer could not be asked about a token");
                issuer.not_answered(pending.digest, now);
            }
            lock(&issuers.questions).remove(&key);
            drop(sender);
        });
        Some(flight)
    }
}

/// The schedule of an issuer's keys, a new one where there is none.
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

/// Plain data: what a thread that panicked left behind can be used.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
