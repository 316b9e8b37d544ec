//! A member of an aggregate and the task that observes it. The task reads the member's offer, again whenever it changes, and
//! removes the offer as soon as the member ends.
//!
//! ```text
//!   Starting ──▶ Ready ◀──▶ Gone
//!       └─▶ Late ──▲          ▲
//!             └───────────────┘
//! ```

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Duration, Instant, sleep_until, timeout};
use tooldock_base::names::NamespaceName;
use tooldock_servers::pool::Presence;
use tooldock_sessions::broadcast::{Audience, Change};
use tooldock_workers::aggregate::{Member, Pin};
use tooldock_workers::registry::{AggregateMember, Namespace, Registry, Snapshot};

use super::offer::Offer;
use super::pace::{Pace, again_after, retry_after};
use super::reading::{self, MemberReading};
use super::state::{CatalogueOffer, MemberReadiness, NoOfferReason};
use super::{AggregatesState, Kinds, is_aggregate, nested};
use crate::supervise::supervise;

/// The objects that members use: the registry of namespaces, the namespaces' upstreams, the audience that is notified of changed
/// lists, and the runtime of background tasks.
#[derive(Clone)]
pub(super) struct Home {
    pub(super) registry: Arc<Registry>,
    pub(super) kinds: Arc<Kinds>,
    /// The upstream of aggregates, for members that are aggregates themselves.
    pub(super) aggregates: Weak<AggregatesState>,
    pub(super) audience: Arc<Audience>,
    pub(super) control: Handle,
}

/// A running member, for as long as its configuration is unchanged.
pub(super) struct MemberSlot {
    about: MemberConfig,
    state: watch::Sender<MemberReadiness>,
    task: AbortHandle,
}

/// A member as the aggregate's file describes it.
#[derive(Clone)]
struct MemberConfig {
    aggregate: NamespaceName,
    prefix: Arc<str>,
    label: Arc<str>,
    target: AggregateMember,
    connect_timeout: Duration,
    pin: Option<Pin>,
}

impl MemberSlot {
    /// Starts the task that follows a member.
    pub(super) fn start(
        home: &Home,
        aggregate: &NamespaceName,
        target: AggregateMember,
        spec: &Member,
    ) -> Arc<Self> {
        let label = match &target {
            AggregateMember::Own(own) if spec.prefix.is_empty() => own.name.as_str(),
            // Members may share a prefix, so a prefix is no unique label.
            AggregateMember::Own(own) => {
                let (_, label) = own.name.as_str().split_once('.').unwrap_or_default();
                label
            }
            AggregateMember::Served(name) => name.as_str(),
        };
        let about = MemberConfig {
            aggregate: aggregate.clone(),
            prefix: spec.prefix.as_str().into(),
            label: label.into(),
            target,
            connect_timeout: spec.connect_timeout,
            pin: spec.pin,
        };
        let state = watch::Sender::new(MemberReadiness::Starting);
        let keeper = MemberTask {
            home: home.clone(),
            about: about.clone(),
            state: state.clone(),
        };
        let task = home.control.spawn(keep(keeper)).abort_handle();
        Arc::new(Self { about, state, task })
    }

    /// Returns true if this slot runs the member `target` with the configuration `spec`.
    pub(super) fn is_of(&self, target: &AggregateMember, spec: &Member) -> bool {
        let same = match (&self.about.target, target) {
            (AggregateMember::Own(one), AggregateMember::Own(other)) => Arc::ptr_eq(one, other),
            (AggregateMember::Served(one), AggregateMember::Served(other)) => one == other,
            _ => false,
        };
        same && *self.about.prefix == *spec.prefix
            && self.about.connect_timeout == spec.connect_timeout
            && self.about.pin == spec.pin
    }

    /// The prefix of the member's published names.
    pub(super) fn prefix(&self) -> &Arc<str> {
        &self.about.prefix
    }

    /// The member's name in messages and in the audit log.
    pub(super) fn label(&self) -> &Arc<str> {
        &self.about.label
    }

    /// The member's current state.
    pub(super) fn state(&self) -> MemberReadiness {
        self.state.borrow().clone()
    }

    /// The member's current offer, or its last one if the member is unavailable.
    pub(super) fn offered(&self) -> CatalogueOffer {
        let state = self.state.borrow();
        CatalogueOffer {
            prefix: Arc::clone(self.prefix()),
            offer: state.last(),
            now: matches!(*state, MemberReadiness::Ready(_)),
        }
    }

    /// Waits until the member has an offer, has failed, or has exceeded its time limit.
    pub(super) async fn settled(&self) {
        let mut state = self.state.subscribe();
        let settled = state.wait_for(|state| !matches!(state, MemberReadiness::Starting));
        let _ = settled.await;
    }

    /// The member's namespace as it is served now.
    pub(super) fn namespace(&self, registry: &Registry) -> Option<Arc<Namespace>> {
        found(&self.about.target, registry)
    }

    /// Returns true if clients can also call the member's namespace directly, so that they need access to it.
    pub(super) fn is_served(&self) -> bool {
        matches!(self.about.target, AggregateMember::Served(_))
    }
}

impl Drop for MemberSlot {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn found(target: &AggregateMember, registry: &Registry) -> Option<Arc<Namespace>> {
    match target {
        AggregateMember::Own(own) => Some(Arc::clone(own)),
        AggregateMember::Served(name) => registry.namespace(name.as_str()),
    }
}

/// Follows a member until the task is aborted. After a panic, the task is restarted.
async fn keep(keeper: MemberTask) {
    supervise("the task of an aggregate's member", || {
        // Also dropped if the task panics: requests then stop waiting for this member.
        let broken = GoneByPanic(&keeper);
        let round = keeper.run();
        async move {
            let _broken = broken;
            round.await;
        }
    })
    .await;
}

/// Guard that removes the member's offer when it is dropped by a panic.
struct GoneByPanic<'a>(&'a MemberTask);

impl Drop for GoneByPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.gone(NoOfferReason::Unread("its task failed".into()));
        }
    }
}

/// The task that follows one member.
struct MemberTask {
    home: Home,
    about: MemberConfig,
    state: watch::Sender<MemberReadiness>,
}

/// Reason why a reading of the member gave no offer.
enum ReadingFailure {
    /// The server runs, but refused a request for a list. The former offer may be kept.
    Refused(String),
    /// The member has no offer that can be published.
    Unfit(NoOfferReason),
}

impl MemberTask {
    async fn run(&self) {
        let mut published = self.home.registry.subscribe();
        let mut failures = 0;
        let mut pace = Pace::default();
        // The namespace of the published offer, if there is one.
        let mut offered_by: Option<Arc<Namespace>> = None;
        // Reasons for missing lists that were logged after the previous reading, so that they are not logged again.
        let mut unlisted = Vec::new();
        loop {
            published.mark_unchanged();
            let Some(namespace) = found(&self.about.target, &self.home.registry) else {
                if self.until_up(&mut published).await {
                    continue;
                }
                self.gone(NoOfferReason::Missing);
                let _ = published.changed().await;
                continue;
            };
            // Subscribed before the lists are read: a change during the reading causes another reading.
            let mut overheard = self.home.audience.list_changes(&namespace.name);
            overheard.mark_unchanged();
            let same = offered_by.is_some_and(|by| Arc::ptr_eq(&by, &namespace));
            let before = self.offer().filter(|_| same);
            let again = match self.read(&namespace, before.as_deref()).await {
                Ok(MemberReading { offer, failed, .. }) => {
                    failures = match failed.first() {
                        Some(_) => failures + 1,
                        None => 0,
                    };
                    self.ready(offer, before.as_deref());
                    self.unlisted(failed, &mut unlisted);
                    again_after(failures)
                }
                Err(ReadingFailure::Refused(reason)) if before.is_some() => {
                    failures += 1;
                    self.unlisted(vec![reason], &mut unlisted);
                    again_after(failures)
                }
                Err(unread) => {
                    failures += 1;
                    self.gone(match unread {
                        ReadingFailure::Refused(reason) => NoOfferReason::Unread(reason),
                        ReadingFailure::Unfit(why) => why,
                    });
                    Some(retry_after(failures))
                }
            };
            offered_by = Some(Arc::clone(&namespace));
            let heard = (overheard, &mut pace);
            self.until_worth_a_reading(&namespace, heard, &mut published, again)
                .await;
        }
    }

    /// While the gateway has not yet started the member's namespace, waits for the next step of the gateway's start and returns
    /// true. Returns false at once if no start is pending. Requests wait for the member no longer than its own time limit.
    async fn until_up(&self, published: &mut watch::Receiver<Arc<Snapshot>>) -> bool {
        let (AggregateMember::Served(name), registry) = (&self.about.target, &self.home.registry)
        else {
            return false;
        };
        let mut steps = registry.startup_steps();
        if !registry.awaits(name) {
            return false;
        }
        let limit = self.about.connect_timeout;
        let step = async {
            tokio::select! {
                _ = published.changed() => {}
                () = steps.next() => {}
            }
        };
        tokio::pin!(step);
        if timeout(limit, &mut step).await.is_err() {
            self.late(limit);
            step.await;
        }
        true
    }

    /// Reads the member's offer. If the first reading exceeds its time limit, requests stop waiting for it, but the reading
    /// continues.
    async fn read(
        &self,
        namespace: &Arc<Namespace>,
        before: Option<&Offer>,
    ) -> Result<MemberReading, ReadingFailure> {
        let reading = async {
            if !is_aggregate(namespace) {
                return reading::read(namespace, self.home.kinds.of(namespace), before).await;
            }
            let aggregates = self.home.aggregates.upgrade();
            let aggregates = aggregates.ok_or("the gateway is stopping")?;
            nested::read(&aggregates, namespace).await
        };
        tokio::pin!(reading);
        let limit = self.about.connect_timeout;
        let read = match timeout(limit, &mut reading).await {
            Ok(read) => read,
            Err(_) => {
                self.late(limit);
                reading.await
            }
        };
        // While a server is unavailable, its last good responses may be returned in its place. They do not count as an offer.
        let presence = self.presence(namespace);
        let is_there = presence.is_none_or(|it| *it.borrow() == Presence::There);
        let reading = match read {
            Ok(reading) if is_there => reading,
            Ok(_) => return Err(ReadingFailure::Unfit(NoOfferReason::Ended)),
            Err(reason) if is_there => return Err(ReadingFailure::Refused(reason)),
            Err(reason) => return Err(ReadingFailure::Unfit(NoOfferReason::Unread(reason))),
        };
        // An offer that equals the published one was already compared with the pin (the digest that the configuration expects).
        if before.is_some_and(|before| reading.offer.changes(before).is_empty()) {
            return Ok(reading);
        }
        let digest = reading.offer.digest();
        match (self.about.pin, reading.failed.first()) {
            (Some(_), Some(reason)) => return Err(ReadingFailure::Refused(reason.clone())),
            (Some(pin), None) if pin != digest => {
                return Err(ReadingFailure::Unfit(NoOfferReason::Pin(format!(
                    "what it offers is not what `pin` says: read what it offers now, then write pin = \"{digest}\""
                ))));
            }
            _ => {}
        }
        tracing::info!(
            aggregate = %self.about.aggregate,
            server = &*self.about.label,
            tools = reading.offer.tools.len(),
            pin = %digest,
            "server {} of {} is there",
            self.about.label,
            self.about.aggregate
        );
        for reason in &reading.left_out {
            let (server, aggregate) = (&self.about.label, &self.about.aggregate);
            tracing::warn!(%aggregate, %server, reason, "server {server} of {aggregate}: {reason}");
        }
        Ok(reading)
    }

    /// Waits until the member's offer may have changed, the member ended, or it is available again. A member that is never
    /// restarted becomes available only by a reload. `again`: time until the next reading in any case.
    async fn until_worth_a_reading(
        &self,
        namespace: &Arc<Namespace>,
        (mut overheard, pace): (watch::Receiver<u64>, &mut Pace),
        published: &mut watch::Receiver<Arc<Snapshot>>,
        again: Option<Duration>,
    ) {
        let mut presence = self.presence(namespace);
        let read = Instant::now();
        let mut at = again.map(|pause| read + pause);
        let mut listens = true;
        loop {
            let offers = self.offer().is_some();
            let is_dead = presence
                .as_ref()
                .is_some_and(|it| *it.borrow() == Presence::Dead);
            let due = at.filter(|_| !is_dead);
            // Events that end the wait:
            // - the server ended, or is available again
            // - a list changed
            // - the time for another reading has come
            // - a reload, which counts only if it changed this member
            tokio::select! {
                () = turned(&mut presence, offers) => {
                    if !offers {
                        return;
                    }
                    self.gone(NoOfferReason::Ended);
                    at = Some(Instant::now() + retry_after(1));
                }
                heard = overheard.changed(), if listens => {
                    listens = false;
                    let soon = heard.is_ok().then(|| Instant::now() + pace.after(read.elapsed()));
                    at = at.into_iter().chain(soon).min();
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => return,
                swapped = published.changed() => {
                    let now = found(&self.about.target, &self.home.registry);
                    if swapped.is_err() || !now.is_some_and(|now| Arc::ptr_eq(&now, namespace)) {
                        return;
                    }
                }
            }
        }
    }

    fn presence(&self, namespace: &Namespace) -> Option<watch::Receiver<Presence>> {
        match is_aggregate(namespace) {
            true => None,
            false => self
                .home
                .kinds
                .of(namespace)
                .operations()
                .presence(namespace),
        }
    }

    fn offer(&self) -> Option<Arc<Offer>> {
        self.state.borrow().offer()
    }

    /// Logs the reasons for missing lists that were not logged before (`told`).
    fn unlisted(&self, reasons: Vec<String>, told: &mut Vec<String>) {
        for reason in reasons.iter().filter(|it| !told.contains(it)) {
            tracing::warn!(
                aggregate = %self.about.aggregate,
                server = &*self.about.label,
                reason,
                "server {} of {} did not list all it offers; what it listed before stays: {reason}",
                self.about.label,
                self.about.aggregate
            );
        }
        *told = reasons;
    }

    /// Publishes the offer, unless it equals the published one.
    fn ready(&self, offer: Offer, before: Option<&Offer>) {
        let changes = match before {
            Some(before) => offer.changes(before),
            // After a reload, the clients' access may have changed, too. So all lists count as changed.
            None if self.offer().is_some() => {
                vec![Change::Tools, Change::Resources, Change::Prompts]
            }
            None => offer.changes(&Offer::default()),
        };
        let is_news = !changes.is_empty() || before.is_none();
        if is_news {
            let publish = || {
                self.state
                    .send_replace(MemberReadiness::Ready(Arc::new(offer)));
            };
            let aggregates = self.home.aggregates.upgrade();
            match aggregates.and_then(|all| all.served(&self.about.aggregate)) {
                Some(live) => live.publishing(publish),
                None => publish(),
            }
            self.announce(changes);
        }
    }

    fn late(&self, limit: Duration) {
        let first = self.state.send_if_modified(|state| {
            let first = matches!(state, MemberReadiness::Starting);
            if first {
                *state = MemberReadiness::Late;
            }
            first
        });
        if first {
            tracing::warn!(
                aggregate = %self.about.aggregate,
                server = &*self.about.label,
                "server {} of {} is not there after {} s; what it offers is published when it is",
                self.about.label,
                self.about.aggregate,
                limit.as_secs_f64()
            );
        }
    }

    /// Removes the member's offer, and logs the reason once.
    fn gone(&self, why: NoOfferReason) {
        let mut offered = None;
        let news = self.state.send_if_modified(|state| {
            offered = state.offer();
            let same =
                matches!(state, MemberReadiness::Gone { why: before, .. } if **before == why);
            if !same {
                let (why, last) = (Arc::new(why), state.last());
                *state = MemberReadiness::Gone { why, last };
            }
            !same
        });
        if news && let MemberReadiness::Gone { why: reason, .. } = &*self.state.borrow() {
            tracing::warn!(
                aggregate = %self.about.aggregate,
                server = &*self.about.label,
                %reason,
                "server {} of {} offers nothing: {reason}",
                self.about.label,
                self.about.aggregate
            );
        }
        if let Some(offered) = offered {
            self.announce(Offer::default().changes(&offered));
        }
    }

    fn announce(&self, changes: Vec<Change>) {
        for change in changes {
            self.home.audience.announce(&self.about.aggregate, change);
        }
    }
}

/// Waits for a change of a server's availability: until a server with a published offer ends, or a server without one is
/// available again. A server that was stopped as unused counts as available, since it starts when it is used.
async fn turned(presence: &mut Option<watch::Receiver<Presence>>, offers: bool) {
    let Some(presence) = presence else {
        return std::future::pending().await;
    };
    if offers && *presence.borrow_and_update() != Presence::There {
        return;
    }
    loop {
        // Waits for a change even if the server is running now: the request to it may have failed while it ran, and would fail
        // again.
        if presence.changed().await.is_err() {
            return std::future::pending().await;
        }
        if offers != (*presence.borrow_and_update() == Presence::There) {
            return;
        }
    }
}
