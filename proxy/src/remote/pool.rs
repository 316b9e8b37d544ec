//! The backends of one server, and the choice of a backend for a request.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use http::StatusCode;
use tokio::time::Instant;
use tooldock_credentials::secrets::PersonalSecrets;
use tooldock_upstream::http_client::{
    Backend, BackendRequest, BackendResponse, BackendState, Backends, SendError, SendErrorKind,
};
use tooldock_workers::remote::{BackendId, BackendSpec, RemoteServer};

use super::balance::{Candidate, CandidateFacts, PoolBalancer};
use super::connect::Connector;
use super::credentials::{self, Credentials};
use super::exchange::{self, Outcome};
use super::headers::Headers;
use super::health::{Change, Health, HealthEvent};
use super::idle::Idle;
use super::lock;
use super::metrics::Series;
use super::names::Addresses;
use super::oauth::RemoteTokens;
use super::redirect;
use super::tls::Material;

/// The state of a backend that is not affected by changes of its server's configuration.
pub(super) struct Core {
    /// The backend's health, from its requests and checks.
    pub(super) health: Mutex<Health>,
    pub(super) idle: Idle,
    pub(super) addresses: Addresses,
    pub(super) material: Material,
    pub(super) connector: Arc<Connector>,
    pub(super) personal: Arc<PersonalSecrets>,
    pub(super) tokens: Arc<RemoteTokens>,
    pub(super) in_flight: AtomicUsize,
    pub(super) series: Arc<Series>,
    /// The pool to which the backend belongs in the served version of the configuration. Empty if the served version does not
    /// contain the backend.
    pub(super) served_in: Mutex<Weak<Pool>>,
}

/// A backend as described by one version of its server's configuration.
pub(super) struct PoolMember {
    pub(super) spec: BackendSpec,
    pub(super) server: Arc<RemoteServer>,
    pub(super) headers: Headers,
    pub(super) authority: String,
    pub(super) core: Arc<Core>,
    /// True if a reload has removed the backend from the configuration. It then gets no new requests.
    pub(super) removed: bool,
    /// Path and query from a redirect that was followed. They replace the configured ones; `None` if there was no redirect.
    pub(super) moved: ArcSwapOption<String>,
    /// True if a redirect that was not followed has been logged. Further ones are not logged.
    pub(super) told_redirect: AtomicBool,
}

/// The pool of backends of one version of a server's configuration.
pub(super) struct Pool {
    pub(super) server: Arc<RemoteServer>,
    pub(super) members: Vec<Arc<PoolMember>>,
    /// Backends that a reload removed from the configuration and that still have running requests.
    pub(super) leaving: Mutex<Vec<Arc<PoolMember>>>,
    /// State of the balancing among usable primaries (first) and among usable backups (second). It is rebuilt when the set of
    /// usable backends changes.
    choices: [ArcSwapOption<PoolBalancer>; 2],
    /// Held while a slow backend is evaluated. Otherwise two slow backends could each be counted as the other's replacement.
    slow: Mutex<()>,
    /// True when the first checks of all backends have ended.
    #[cfg(test)]
    pub(super) checked: std::sync::atomic::AtomicBool,
}

impl Pool {
    pub(super) fn new(server: Arc<RemoteServer>, members: Vec<Arc<PoolMember>>) -> Self {
        Self {
            server,
            members,
            leaving: Mutex::default(),
            choices: Default::default(),
            slow: Mutex::default(),
            #[cfg(test)]
            checked: Default::default(),
        }
    }

    /// The usable backends: only the backups if `backup` is true, only the primaries otherwise.
    fn usable(
        &self,
        backup: bool,
        now: Instant,
    ) -> impl Iterator<Item = (usize, &Arc<PoolMember>)> {
        let members = self.members.iter().enumerate();
        members.filter(move |(_, member)| member.spec.backup == backup && member.takes_new(now))
    }

    /// Returns true if a usable backend is not in `avoid`. Looks only at the backups if `backup` is true, only at the primaries
    /// otherwise.
    fn is_left(&self, backup: bool, avoid: &[BackendId], now: Instant) -> bool {
        let mut usable = self.usable(backup, now);
        usable.any(|(_, member)| !avoid.contains(&member.spec.id))
    }

    fn has_usable(&self, now: Instant) -> bool {
        self.members.iter().any(|member| member.takes_new(now))
    }

    /// The balancing among the usable backups or the usable primaries.
    fn choice(&self, backup: bool, now: Instant) -> Arc<PoolBalancer> {
        let cached = &self.choices[usize::from(backup)];
        let is_current = |choice: &Arc<PoolBalancer>| {
            let among = choice.among.iter().map(|it| it.index);
            among.eq(self.usable(backup, now).map(|(index, _)| index))
        };
        if let Some(current) = cached.load_full().filter(is_current) {
            return current;
        }
        let among = self.usable(backup, now).map(|(index, member)| Candidate {
            index,
            id: member.spec.id.clone(),
            weight: member.spec.weight,
        });
        let choice = PoolBalancer::new(self.server.spec.balance, among.collect());
        let choice = Arc::new(choice);
        cached.store(Some(Arc::clone(&choice)));
        choice
    }

    /// Returns true if another backend could take over the requests of `member`. For a primary, backups do not count: using them
    /// because a few tools are slow would be worse than waiting for these tools.
    fn stands_in_for(&self, member: &PoolMember, now: Instant) -> bool {
        let mut others = self.members.iter();
        others.any(|it| {
            let serves = member.spec.backup || !it.spec.backup;
            it.spec.id != member.spec.id && serves && it.takes_new(now)
        })
    }

    /// The backends that should get requests (their weight is not 0) but are not healthy, except those in `avoid`.
    fn ailing(&self, avoid: &[BackendId], now: Instant) -> impl Iterator<Item = &Arc<PoolMember>> {
        self.members.iter().filter(move |member| {
            member.spec.weight > 0 && !member.is_healthy_at(now) && !avoid.contains(&member.spec.id)
        })
    }

    /// A backend that gets a request as a trial while no backend is healthy. Each backend is tried at most once a second. So the
    /// next request detects a server that has recovered, and a server that is down delays few requests. Exception: if a pool has
    /// only one backend and its checks time out, each request is sent to it, because a long-running tool may keep it busy.
    /// Backends in `avoid` are not tried.
    fn trial(&self, avoid: &[BackendId], now: Instant) -> Option<&Arc<PoolMember>> {
        let mut left = self.ailing(avoid, now);
        left.find(|member| {
            let mut health = lock(&member.core.health);
            (health.is_silent() && self.is_only(member)) || health.may_be_tried(now)
        })
    }

    /// Returns true if all backends of the pool other than `member` have the weight 0, so that only `member` gets requests.
    fn is_only(&self, member: &PoolMember) -> bool {
        let mut others = self.members.iter();
        !others.any(|it| it.spec.id != member.spec.id && it.spec.weight > 0)
    }
}

impl Backends for Pool {
    fn pick(&self, avoid: &[BackendId], hash: u64) -> Option<Arc<dyn Backend>> {
        let now = Instant::now();
        let facts = PoolMoment {
            members: &self.members,
            now,
        };
        // If this request has been tried at all primaries, backups are used even if the primaries still count as healthy.
        let backup = if self.is_left(false, avoid, now) {
            false
        } else if self.is_left(true, avoid, now) {
            true
        } else if self.has_usable(now) {
            return None;
        } else {
            return self.trial(avoid, now).map(MemberBackend::backend);
        };
        let index = self.choice(backup, now).pick(avoid, hash, &facts)?;
        self.members.get(index).map(MemberBackend::backend)
    }

    fn can_pick(&self, avoid: &[BackendId]) -> bool {
        let now = Instant::now();
        let is_due = |member: &Arc<PoolMember>| {
            let health = lock(&member.core.health);
            (health.is_silent() && self.is_only(member)) || health.is_trial_due(now)
        };
        [false, true]
            .into_iter()
            .any(|backup| self.is_left(backup, avoid, now))
            || (!self.has_usable(now) && self.ailing(avoid, now).any(is_due))
    }

    fn get(&self, id: &BackendId) -> Option<Arc<dyn Backend>> {
        let found = self.members.iter().find(|member| member.spec.id == *id);
        if let Some(found) = found {
            return Some(MemberBackend::backend(found));
        }
        let leaving = lock(&self.leaving);
        let found = leaving
            .iter()
            .find(|member| member.spec.id == *id && member.is_busy());
        found.map(MemberBackend::backend)
    }

    fn states(&self) -> Vec<BackendState> {
        let now = Instant::now();
        let leaving = lock(&self.leaving);
        let leaving = leaving.iter().filter(|member| member.is_busy());
        let all = self.members.iter().chain(leaving);
        all.map(|member| member.state(now)).collect()
    }
}

/// The backends of a pool, with the time at which their state is read.
struct PoolMoment<'a> {
    members: &'a [Arc<PoolMember>],
    now: Instant,
}

impl CandidateFacts for PoolMoment<'_> {
    fn in_flight(&self, index: usize) -> usize {
        self.members[index].core.in_flight.load(Ordering::Relaxed)
    }

    fn share(&self, index: usize) -> f64 {
        lock(&self.members[index].core.health).share(self.now)
    }
}

impl PoolMember {
    fn takes_new(&self, now: Instant) -> bool {
        !self.removed && self.spec.weight > 0 && self.is_healthy_at(now)
    }

    pub(super) fn is_healthy_at(&self, now: Instant) -> bool {
        lock(&self.core.health).is_healthy(now)
    }

    /// Sets the metric for the backend's health. For a backend that gets no new requests the metric is removed: its failure
    /// affects no client, and an alert about it would never end.
    pub(super) fn show_health(&self, now: Instant) {
        let is_shown = !self.removed && self.spec.weight > 0;
        let healthy = is_shown.then(|| self.is_healthy_at(now));
        self.core.series.set_healthy(healthy);
    }

    /// Returns true if the backend has answered a request or passed a check since the gateway's start.
    pub(super) fn has_answered(&self) -> bool {
        lock(&self.core.health).has_answered()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.core.in_flight.load(Ordering::Relaxed) > 0
    }

    fn state(&self, now: Instant) -> BackendState {
        let health = lock(&self.core.health);
        BackendState {
            id: self.spec.id.clone(),
            healthy: health.is_healthy(now),
            draining: self.removed || self.spec.weight == 0,
            backup: self.spec.backup,
            in_flight: self.core.in_flight.load(Ordering::Relaxed),
            problem: health.problem(now).map(str::to_owned),
        }
    }

    /// Applies an event to the backend's health, and logs a change of it. The upkeep task updates the metrics.
    pub(super) fn note(&self, event: HealthEvent) {
        let now = Instant::now();
        let (change, problem) = {
            let mut health = lock(&self.core.health);
            let change = health.on(event, now, &self.server.spec.health.passive);
            let problem = health.problem(now).map(str::to_owned);
            (change, problem.unwrap_or_default())
        };
        let (namespace, backend) = (&self.server.name, &self.spec.id);
        match change {
            Change::None => {}
            Change::Ejected => {
                self.core.series.ejections.inc();
                self.core.addresses.mark_outdated();
                tracing::warn!(%namespace, %backend, "a backend of {namespace} is left out for a while: {problem}");
            }
            Change::Down => {
                self.core.addresses.mark_outdated();
                tracing::warn!(%namespace, %backend, "a backend of {namespace} did not pass its check: {problem}");
            }
            Change::Recovered => {
                tracing::info!(%namespace, %backend, "a backend of {namespace} is used again");
            }
        }
    }

    /// Applies the error of a request to the backend's health.
    fn note_error(&self, error: &SendError) {
        match error.kind {
            SendErrorKind::Request | SendErrorKind::Authorization | SendErrorKind::GivenUp => {}
            SendErrorKind::HeadTimeout => self.note_bad_answer(error.message.clone()),
            _ => self.note(HealthEvent::Failed(error.message.clone())),
        }
    }

    /// Applies a bad or missing response to the health. Such a response may be the fault of a tool, and therefore of a client.
    /// So a backend is not ejected for it if it is the only one that is still usable; the health checks find out whether that
    /// backend answers at all.
    fn note_bad_answer(&self, problem: String) {
        let Some(pool) = lock(&self.core.served_in).upgrade() else {
            return;
        };
        let _alone = lock(&pool.slow);
        if pool.stands_in_for(self, Instant::now()) {
            self.note(HealthEvent::Failed(problem));
        }
    }

    /// Sends a request whose outcome does not change the backend's health. Used for health checks.
    pub(super) async fn ask(
        self: &Arc<Self>,
        request: BackendRequest,
    ) -> Result<BackendResponse, SendError> {
        redirect::send(self, &request, &[], BackendInFlight::uncounted).await
    }

    /// Sends a request to the configured path, without following redirects: a redirect is returned as the response.
    pub(super) async fn ask_here(
        self: &Arc<Self>,
        request: &BackendRequest,
    ) -> Result<BackendResponse, SendError> {
        let target = exchange::target(self, request);
        let sent = exchange::send(self, request, target, &[], BackendInFlight::new(self)).await;
        if let Err(error) = &sent {
            self.core.series.count(error.kind.as_str());
        }
        sent
    }
}

/// A backend of a pool, in the type that implements the trait `Backend` of `tooldock_upstream`.
struct MemberBackend(Arc<PoolMember>);

impl MemberBackend {
    fn backend(member: &Arc<PoolMember>) -> Arc<dyn Backend> {
        Arc::new(Self(Arc::clone(member)))
    }
}

#[async_trait]
impl Backend for MemberBackend {
    fn id(&self) -> &BackendId {
        &self.0.spec.id
    }

    fn accepts_new(&self) -> bool {
        self.0.takes_new(Instant::now())
    }

    fn is_healthy(&self) -> bool {
        self.0.is_healthy_at(Instant::now())
    }

    async fn send(&self, request: BackendRequest) -> Result<BackendResponse, SendError> {
        let member = &self.0;
        let own = credentials::of(member, &request).await?;
        let mut sent = redirect::send(member, &request, &own.headers, || {
            BackendInFlight::new(member)
        })
        .await;
        // A token may have been revoked before its expiry. So a refused request is sent once more with another token.
        let refused = matches!(&sent, Ok(it) if it.status == StatusCode::UNAUTHORIZED);
        if refused && own.may_be_renewed() {
            // The future is boxed, so that futures of ordinary requests stay small.
            let again = Box::pin(send_again(member, &request, own)).await?;
            sent = again.unwrap_or(sent);
        }
        match &sent {
            Ok(response) if response.status.is_server_error() => {
                member.note_bad_answer(format!("it answered {}", response.status));
            }
            Ok(_) => member.note(HealthEvent::Answered),
            Err(error) => {
                member.core.series.count(error.kind.as_str());
                member.note_error(error);
            }
        }
        sent
    }
}

/// Repeats a request with another token after the backend refused the first one. `None` if there is no other token; otherwise the
/// result of the repeated request.
async fn send_again(
    member: &Arc<PoolMember>,
    request: &BackendRequest,
    refused: Credentials,
) -> Result<Option<Result<BackendResponse, SendError>>, SendError> {
    let Some(own) = credentials::renewed(member, request, refused).await? else {
        return Ok(None);
    };
    let sent = redirect::send(member, request, &own.headers, || {
        BackendInFlight::new(member)
    })
    .await;
    Ok(Some(sent))
}

/// Counts a request as running at a backend. Dropping the value decrements the count; `ended` also reports the outcome.
pub(super) struct BackendInFlight(Option<Arc<PoolMember>>);

impl BackendInFlight {
    fn new(member: &Arc<PoolMember>) -> Self {
        member.core.in_flight.fetch_add(1, Ordering::Relaxed);
        member.core.series.in_flight.inc();
        Self(Some(Arc::clone(member)))
    }

    fn uncounted() -> Self {
        Self(None)
    }

    /// Reports the outcome of the response to the metrics and to the backend's health.
    pub(super) fn ended(self, outcome: Outcome) {
        let Some(member) = &self.0 else { return };
        let label = match &outcome {
            Outcome::Status(status) => class(*status),
            Outcome::Cut => "cut",
            Outcome::BodyTimeout => "body_timeout",
        };
        member.core.series.count(label);
        match outcome {
            Outcome::Status(_) => {}
            Outcome::Cut => member.note_bad_answer("it cut a response".into()),
            Outcome::BodyTimeout => {
                member.note_bad_answer("a response did not come in time".into());
            }
        }
    }
}

impl Drop for BackendInFlight {
    fn drop(&mut self) {
        if let Some(member) = &self.0 {
            member.core.in_flight.fetch_sub(1, Ordering::Relaxed);
            member.core.series.in_flight.dec();
        }
    }
}

fn class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        200..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        _ => "5xx",
    }
}
