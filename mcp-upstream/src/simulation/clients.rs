//! Clients: they open a session each, call, listen, come back where a stream breaks, and keep books of what they hear.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::gateway::{Answer, Ask, Gateway, HOP};
use super::world::{World, millis_since};
use crate::replicas::{Standing, Unrouted};
use crate::seal::SessionId;
use crate::stores::redis::tests::simulated::ProcessState;
use crate::stream::Subscription;
use crate::stream::frame::{self, EventId, RETRY};

/// The longest wait of a client or its balancer for a replica.
const PATIENCE: Duration = Duration::from_secs(10);
/// The wait after 503 (`Retry-After`).
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Tries of a request that may be repeated.
const TRIES: usize = 120;

/// A client with its session.
#[derive(Default)]
pub(super) struct Client {
    pub(super) id: Option<SessionId>,
    /// The replica of its last request.
    pub(super) at: Option<usize>,
    pub(super) listens: bool,
    /// True once its session was not found: it would begin a new one.
    pub(super) lost: bool,
    /// True while its stream is being opened.
    pub(super) opening: bool,
    pub(super) stream: Option<OpenStream>,
    /// The last event that it has heard.
    pub(super) seen: Option<EventId>,
    /// The changes of lists that it has heard of.
    pub(super) changes: u32,
}

/// A general stream: by the replica that was asked, and the one that writes it.
pub(super) struct OpenStream {
    subscription: Subscription,
    entry: Arc<Gateway>,
    home: Arc<Gateway>,
}

/// Numbered messages of a server on one general stream.
#[derive(Default)]
pub(super) struct Pings {
    /// Each with whether it must arrive.
    told: Vec<(u32, bool)>,
    heard: Vec<u32>,
}

impl Pings {
    /// Messages that were lost, and those that came twice.
    pub(super) fn faults(&self) -> (usize, usize) {
        let lost = self
            .told
            .iter()
            .filter(|(number, must_arrive)| *must_arrive && !self.heard.contains(number));
        let heard: std::collections::HashSet<_> = self.heard.iter().collect();
        (lost.count(), self.heard.len() - heard.len())
    }

    /// The store has lost what it kept: what was not heard yet need not arrive.
    pub(super) fn excuse(&mut self) {
        for (number, must_arrive) in &mut self.told {
            *must_arrive &= self.heard.contains(number);
        }
    }
}

impl OpenStream {
    /// True if its connection has ended.
    fn is_broken(&self) -> bool {
        let killed = |it: &Gateway| it.process.state() == ProcessState::Killed;
        killed(&self.entry) || killed(&self.home) || self.is_cut_off()
    }

    /// True if the replica that forwards it takes the other one for gone.
    fn is_cut_off(&self) -> bool {
        !Arc::ptr_eq(&self.entry, &self.home)
            && !self.home.runs()
            && self.entry.runs()
            && self.entry.replicas.standing(self.home.replicas.own()) == Standing::Gone
    }

    fn is_written(&self) -> bool {
        self.entry.runs() && self.home.runs()
    }
}

impl World {
    /// A client's first requests.
    pub(super) async fn come(self: Arc<Self>, client: usize) {
        let mut opened = None;
        for _ in 0..TRIES {
            if let Some(gateway) = self.choose(client) {
                opened = gateway.open(&self, client).await;
            }
            if opened.is_some() {
                break;
            }
            sleep(RETRY_AFTER).await;
        }
        let listens = {
            let own = &mut self.clients()[client];
            own.id = opened;
            own.opening = own.listens;
            own.listens
        };
        sleep(HOP).await;
        self.request(client, Ask::Confirm).await;
        if listens {
            self.listen(client).await;
        }
    }

    /// A request of a client in its session, made again where that does no harm. `None`: the client got no answer.
    pub(super) async fn request(&self, client: usize, ask: Ask) -> Option<Answer> {
        let id = {
            let clients = self.clients();
            let own = &clients[client];
            own.id.clone().filter(|_| !own.lost)?
        };
        let began = Instant::now();
        self.tally().requests += 1;
        for _ in 0..TRIES {
            let Some(gateway) = self.choose(client) else {
                sleep(RETRY_AFTER).await;
                continue;
            };
            let answered = tokio::select! {
                answered = timeout(PATIENCE, gateway.ask(self, &id, &ask, 0)) => answered.ok(),
                () = gateway.process.killed() => None,
            };
            let calls = matches!(ask, Ask::Call | Ask::Streamed);
            match answered {
                Some(Ok(Answer::NotFound)) => {
                    self.tally().not_found += 1;
                    self.clients()[client].lost = true;
                    return None;
                }
                Some(Ok(Answer::Unavailable) | Err(Unrouted::Unreachable)) => {
                    self.tally().unavailable += 1;
                    sleep(RETRY_AFTER).await;
                }
                Some(Ok(answer)) => {
                    let mut tally = self.tally();
                    tally.answered(millis_since(began));
                    // Progress and the answer.
                    tally.odd_calls += usize::from(matches!(answer, Answer::Events(it) if it != 2));
                    drop(tally);
                    if let Answer::Stream(subscription, home) = answer {
                        self.attach(
                            client,
                            OpenStream {
                                subscription,
                                entry: gateway,
                                home,
                            },
                        );
                        return None;
                    }
                    return Some(answer);
                }
                // A call is never made twice.
                Some(Err(Unrouted::Lost)) | None if calls => {
                    self.tally().lost_calls += 1;
                    return None;
                }
                Some(Err(Unrouted::Lost)) | None => self.tally().broken += 1,
            }
        }
        self.tally().given_up += 1;
        None
    }

    fn attach(&self, client: usize, stream: OpenStream) {
        let own = &mut self.clients()[client];
        own.stream = Some(stream);
        own.opening = false;
    }

    async fn listen(&self, client: usize) {
        let last = self.clients()[client].seen;
        self.request(client, Ask::Listen(last)).await;
        self.clients()[client].opening = false;
    }

    /// Lets all clients read what is on their streams, and come back where they have ended.
    pub(super) fn read_streams(self: &Arc<Self>) {
        let mut left = Vec::new();
        {
            let mut clients = self.clients();
            for (number, client) in clients.iter_mut().enumerate() {
                if client.read() {
                    continue;
                }
                client.stream = None;
                if client.listens && !client.opening && !client.lost && client.id.is_some() {
                    client.opening = true;
                    left.push(number);
                }
            }
        }
        self.note_heard();
        for client in left {
            let retry = RETRY + Duration::from_millis(self.random().u64(0..500));
            let world = Arc::clone(self);
            world.tally().streams_broken += 1;
            tokio::spawn(async move {
                sleep(retry).await;
                world.listen(client).await;
            });
        }
    }

    fn note_heard(&self) {
        let heard = HEARD.take();
        let mut pings = self.pings();
        for (client, number) in heard.pings {
            pings.entry(client).or_default().heard.push(number);
        }
        self.tally().doubled_events += heard.doubled;
    }

    /// Says something on the general stream of a client that listens, where it lives.
    pub(super) fn ping(self: &Arc<Self>, number: u32) {
        let client = self.random().usize(0..self.options.sessions);
        let (id, home) = {
            let clients = self.clients();
            let own = &clients[client];
            let (Some(id), Some(stream)) = (&own.id, &own.stream) else {
                return;
            };
            (id.clone(), Arc::clone(&stream.home))
        };
        let Some(session) = home.table.live(id.as_str()).filter(|_| home.runs()) else {
            return;
        };
        let world = Arc::clone(self);
        tokio::spawn(async move {
            let failures = || {
                let work = world.redis.work_failed();
                (work, home.replicas.losses())
            };
            let before = failures();
            let message = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{{"level":"info","data":"ping {client} {number}"}}}}"#
            );
            let reached = home
                .events
                .append_general(&session, message.as_bytes())
                .await;
            let is_sure = home.runs()
                && !home.in_doubt.load(std::sync::atomic::Ordering::Relaxed)
                && failures() == before;
            if reached {
                let mut pings = world.pings();
                let told = &mut pings.entry(client).or_default().told;
                told.push((number, is_sure));
            }
        });
    }
}

thread_local! {
    /// What clients have heard in the reading that goes on.
    static HEARD: std::cell::RefCell<Heard> = std::cell::RefCell::default();
}

#[derive(Default)]
struct Heard {
    /// The client and the number of each message.
    pings: Vec<(usize, u32)>,
    /// Events that came a second time.
    doubled: usize,
}

impl Client {
    /// True if it has a stream.
    pub(super) fn has_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Reads what is on its stream. `false`: it has none, or that has ended.
    fn read(&mut self) -> bool {
        let Some(stream) = &mut self.stream else {
            return false;
        };
        if stream.is_broken() {
            return false;
        }
        if !stream.is_written() {
            return true;
        }
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match stream.subscription.poll_next(&mut context) {
                Poll::Pending => return true,
                Poll::Ready(None) => return false,
                Poll::Ready(Some(chunk)) => hear(&mut self.seen, &mut self.changes, &chunk),
            }
        }
    }
}

fn hear(seen: &mut Option<EventId>, changes: &mut u32, chunk: &Bytes) {
    let (id, message) = frame::read(chunk);
    let id = id.and_then(EventId::parse);
    let again =
        |id: &EventId, last: &EventId| id.stream == last.stream && id.sequence <= last.sequence;
    let doubled = id.zip(*seen).is_some_and(|(id, last)| again(&id, &last));
    *seen = id.or(*seen);
    let message = message.unwrap_or_default();
    let text = std::str::from_utf8(&message).expect("UTF-8");
    *changes += u32::from(text.contains("list_changed"));
    let ping = text.split_once("ping ").map(|(_, rest)| {
        let mut words = rest.split([' ', '"']);
        let mut number = || words.next().and_then(|it| it.parse::<usize>().ok());
        let (client, number) = (number(), number());
        (client.expect("a client"), number.expect("a number") as u32)
    });
    HEARD.with_borrow_mut(|heard| {
        heard.doubled += usize::from(doubled);
        heard.pings.extend(ping);
    });
}
