//! Simulated clients: each opens a session, calls, listens, resumes a stream that breaks, and records the events it receives.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};
use tooldock_protocol::seal::SessionId;

use super::gateway::{Answer, Ask, Gateway, HOP};
use super::world::{World, millis_since};
use crate::replicas::{ReplicaStatus, RoutingError};
use crate::stores::redis::tests::simulated::ProcessState;
use crate::stream::Subscription;
use crate::stream::frame::{self, EventId, RETRY};

/// Maximum time that a client or its balancer waits for a replica.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time that a client waits after status 503 (`Retry-After`) before it tries again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of tries of a request that may be repeated.
const TRIES: usize = 120;

/// A client with its session.
#[derive(Default)]
pub(super) struct Client {
    pub(super) id: Option<SessionId>,
    /// Replica of the client's most recent request.
    pub(super) at: Option<usize>,
    pub(super) listens: bool,
    /// True once the session was not found. A real client would open a new session then.
    pub(super) lost: bool,
    /// True while the client's stream is being opened.
    pub(super) opening: bool,
    pub(super) stream: Option<OpenStream>,
    /// Most recent event that the client has received.
    pub(super) seen: Option<EventId>,
    /// Number of list changes that the client was notified of.
    pub(super) changes: u32,
}

/// General stream of a client (opened by `GET`), with two replicas: the one that received the request for the stream, and the one
/// that writes it.
pub(super) struct OpenStream {
    subscription: Subscription,
    entry: Arc<Gateway>,
    home: Arc<Gateway>,
}

/// Numbered messages of a server on one general stream, as sent and as received.
#[derive(Default)]
pub(super) struct Pings {
    /// Number of each sent message, and true if the message must arrive.
    told: Vec<(u32, bool)>,
    heard: Vec<u32>,
}

impl Pings {
    /// Returns the number of messages that were lost, and the number of messages that arrived twice.
    pub(super) fn faults(&self) -> (usize, usize) {
        let lost = self
            .told
            .iter()
            .filter(|(number, must_arrive)| *must_arrive && !self.heard.contains(number));
        let heard: std::collections::HashSet<_> = self.heard.iter().collect();
        (lost.count(), self.heard.len() - heard.len())
    }

    /// Records that the store has lost its data: messages that were not received yet need not arrive.
    pub(super) fn excuse(&mut self) {
        for (number, must_arrive) in &mut self.told {
            *must_arrive &= self.heard.contains(number);
        }
    }
}

impl OpenStream {
    /// True if the connection of the stream has ended.
    fn is_broken(&self) -> bool {
        let killed = |it: &Gateway| it.process.state() == ProcessState::Killed;
        killed(&self.entry) || killed(&self.home) || self.is_cut_off()
    }

    /// True if the replica that forwards the stream considers the replica that writes it gone.
    fn is_cut_off(&self) -> bool {
        !Arc::ptr_eq(&self.entry, &self.home)
            && !self.home.runs()
            && self.entry.runs()
            && self.entry.replicas.standing(self.home.replicas.own()) == ReplicaStatus::Gone
    }

    fn is_written(&self) -> bool {
        self.entry.runs() && self.home.runs()
    }
}

impl World {
    /// Opens the session of a client, and makes its first requests.
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

    /// Sends a client's request in its session, and repeats it where that is safe. Returns `None` if the client got no response.
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
                Some(Ok(Answer::Unavailable) | Err(RoutingError::Unreachable)) => {
                    self.tally().unavailable += 1;
                    sleep(RETRY_AFTER).await;
                }
                Some(Ok(answer)) => {
                    let mut tally = self.tally();
                    tally.answered(millis_since(began));
                    // Two events are expected: progress and the response.
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
                // A call that may have been carried out is never repeated.
                Some(Err(RoutingError::Lost)) | None if calls => {
                    self.tally().lost_calls += 1;
                    return None;
                }
                Some(Err(RoutingError::Lost)) | None => self.tally().broken += 1,
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

    /// Lets all clients read their streams, and resume the streams that have ended.
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

    /// Sends a message on the general stream of a random client, from the process that has the client's session. Does nothing if
    /// that client has no stream.
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
    /// Events that clients have received since they last read their streams.
    static HEARD: std::cell::RefCell<Heard> = std::cell::RefCell::default();
}

#[derive(Default)]
struct Heard {
    /// Client and number of each received message.
    pings: Vec<(usize, u32)>,
    /// Number of events that arrived a second time.
    doubled: usize,
}

impl Client {
    /// True if the client has a stream.
    pub(super) fn has_stream(&self) -> bool {
        self.stream.is_some()
    }

    /// Reads the events that have arrived on the client's stream. Returns false if there is no stream, or the stream has ended.
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
