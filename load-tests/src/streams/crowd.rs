//! Thousands of clients, each with a session and one stream, on a separate thread.
//!
//! ```text
//! sign_up ── open_up_to ──┬── all_have(events) … ── leave ── return_at_once ──┐
//!                         │                         (sockets closed)          │
//!                         └────────────── return_at_once ─────────────────────┤
//!                                    (old sockets left open)                  └── all_back, all_have(events) …
//! ```

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::aside::Aside;
use super::client::{Client, Had};
use super::socket::{Opened, Socket};
use super::tally::{Counts, Tally};
use crate::message::Envelope;
use crate::session;

/// Number of connections on which sessions are opened, and of streams opened at a time when their opening is not
/// measured.
const OPENERS: usize = 16;
/// Time limit for opening all sessions, or all streams.
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// Interval of checking the progress of the clients. Their own clocks record the times of events.
const LOOK: Duration = Duration::from_millis(5);
/// Pause before a client that was refused tries again.
const AGAIN: Duration = Duration::from_millis(100);

/// Thousands of clients. Dropping it closes their sockets.
pub(crate) struct Crowd {
    envelope: Envelope<'static>,
    clients: Vec<Arc<Client>>,
    /// Number of clients with a stream; these are the first in `clients`.
    open: usize,
    tally: Arc<Tally>,
    readers: JoinSet<()>,
    /// Readers of old streams that were replaced by new ones, and their tally.
    left_open: Option<(JoinSet<()>, Arc<Tally>)>,
    // The last field, so that the tasks end before their thread.
    aside: Aside,
}

impl Crowd {
    /// A crowd without clients.
    pub(crate) fn new(envelope: Envelope<'static>) -> anyhow::Result<Self> {
        Ok(Self {
            envelope,
            clients: Vec::new(),
            open: 0,
            tally: Arc::default(),
            readers: JoinSet::new(),
            left_open: None,
            aside: Aside::start("streams")?,
        })
    }

    pub(crate) fn clients(&self) -> &[Arc<Client>] {
        &self.clients
    }

    /// Number of clients that have a stream, or are reconnecting.
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// Removes the events received so far, but not the ids from which streams are resumed.
    pub(crate) fn forget_events(&self) {
        for client in &self.clients {
            client.forget_events();
        }
    }

    /// The counts of the streams opened last. No client can count as long as they are held.
    pub(crate) fn counts(&self) -> MutexGuard<'_, Counts> {
        self.tally.counts()
    }

    /// Opens sessions until there are `count` clients.
    pub(crate) async fn sign_up(&mut self, count: usize) -> anyhow::Result<()> {
        let missing = count.saturating_sub(self.clients.len());
        let envelope = self.envelope;
        let mut openers = JoinSet::new();
        for opener in 0..OPENERS {
            let share = missing / OPENERS + usize::from(opener < missing % OPENERS);
            openers.spawn_on(session::several(envelope, share), self.aside.handle());
        }
        let opened = timeout(OPEN_LIMIT, openers.join_all()).await;
        for some in opened.context("sessions were not open in time")? {
            let clients = some?.into_iter().map(|id| Arc::new(Client::new(id)));
            self.clients.extend(clients);
        }
        Ok(())
    }

    /// Opens streams at the address `to`, one after another per opener, until `count` clients have one.
    pub(crate) async fn open_up_to(
        &mut self,
        count: usize,
        to: std::net::SocketAddr,
    ) -> anyhow::Result<()> {
        let gate = Arc::new(Semaphore::new(OPENERS));
        let envelope = self.envelope.at(to);
        for client in &self.clients[self.open..count] {
            let follow = follow(
                Arc::clone(client),
                client.generation(),
                envelope,
                Arc::clone(&self.tally),
                Some(Arc::clone(&gate)),
            );
            self.readers.spawn_on(follow, self.aside.handle());
        }
        self.open = count;
        self.all_back().await?;
        let (count, first) = self.counts().turned_away.clone();
        if let Some(first) = first {
            bail!("{count} attempts to open a stream failed, the first one: {first}");
        }
        Ok(())
    }

    /// Closes all sockets as fast as one thread can.
    pub(crate) async fn leave(&mut self) {
        self.next_generation();
        // Each task drops its socket when it is aborted.
        self.readers.shutdown().await;
        self.left_open = None;
    }

    /// Drops streams and their events, so that streams can be opened again without resuming.
    pub(crate) async fn start_over(&mut self) {
        self.leave().await;
        for client in &self.clients {
            client.forget();
        }
        self.open = 0;
        self.tally = Arc::default();
    }

    /// Reconnects all clients concurrently, each with the id of the last event it received. Open sockets stay open, but events
    /// on them no longer count.
    pub(crate) fn return_at_once(&mut self) {
        self.next_generation();
        let readers = std::mem::take(&mut self.readers);
        let tally = std::mem::take(&mut self.tally);
        self.left_open = Some((readers, tally));
        for client in &self.clients[..self.open] {
            let follow = follow(
                Arc::clone(client),
                client.generation(),
                self.envelope,
                Arc::clone(&self.tally),
                None,
            );
            self.readers.spawn_on(follow, self.aside.handle());
        }
    }

    /// Makes a client whose stream ends open it again with the id of the last event it received, after the time that the server
    /// has stated.
    pub(crate) fn resume_what_ends(&self) {
        self.counts().resumes = true;
    }

    /// Waits until `streams` streams have ended and are open again, at most for `limit`; returns their number.
    pub(crate) async fn have_resumed(&self, streams: usize, limit: Duration) -> usize {
        come_true(limit, || self.counts().resumed >= streams).await;
        self.counts().resumed
    }

    fn next_generation(&self) {
        for client in &self.clients {
            client.next_generation();
        }
    }

    /// Waits until all clients have a stream.
    pub(crate) async fn all_back(&self) -> anyhow::Result<()> {
        let all = || self.counts().opened() >= self.open;
        if !come_true(OPEN_LIMIT, all).await {
            let (count, first) = self.counts().turned_away.clone();
            bail!(
                "{} of {} streams were open after {OPEN_LIMIT:?}; {count} attempts failed, the first one: {}",
                self.counts().opened(),
                self.open,
                first.unwrap_or_else(|| "none".to_owned())
            );
        }
        Ok(())
    }

    /// Waits until the clients together have received `events` events since the streams were opened.
    pub(crate) async fn have_together(&self, events: usize, limit: Duration) -> anyhow::Result<()> {
        let all = come_true(limit, || self.counts().events >= events).await;
        ensure!(
            all,
            "{} of {events} events after {limit:?}; {} streams had ended",
            self.counts().events,
            self.counts().ended
        );
        Ok(())
    }

    /// Waits until `last` is the last event of every client, at most for `limit`. The records show the clients that
    /// miss it.
    pub(crate) async fn each_has(&self, last: Option<Had>, limit: Duration) -> bool {
        let clients = &self.clients[..self.open];
        come_true(limit, || clients.iter().all(|client| client.last() == last)).await
    }

    /// Waits until the old streams that were left open have ended; returns the number of those that have not.
    pub(crate) async fn old_ones_ended(&mut self, limit: Duration) -> usize {
        let Some((_, tally)) = &self.left_open else {
            return 0;
        };
        let left = || {
            let counts = tally.counts();
            counts.opened() - counts.ended
        };
        come_true(limit, || left() == 0).await;
        left()
    }
}

/// Waits until the condition is true; returns false after the time limit.
async fn come_true(limit: Duration, condition: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(LOOK).await;
    }
    true
}

/// Follows a client from the opening of its stream to its end. A refused client tries again, and so does a client whose
/// stream has ended, if the crowd resumes ended streams.
async fn follow(
    client: Arc<Client>,
    generation: u32,
    envelope: Envelope<'static>,
    tally: Arc<Tally>,
    gate: Option<Arc<Semaphore>>,
) {
    let mut permit = match gate {
        Some(gate) => gate.acquire_owned().await.ok(),
        None => None,
    };
    let envelope = envelope.in_session(Some(client.session()));
    let mut is_first = true;
    while is_first || tally.counts().resumes {
        let last_event_id = client.last_event_id();
        let mut socket = loop {
            match Socket::open(&envelope, last_event_id.as_deref()).await {
                Ok(Opened::Stream(socket)) => break socket,
                Ok(Opened::Refused(answer)) => tally.turn_away(answer),
                Err(error) => tally.turn_away(format!("{error:#}")),
            }
            sleep(AGAIN).await;
        };
        drop(permit.take());
        match std::mem::take(&mut is_first) {
            true => tally.counts().opened_at.push(Instant::now()),
            false => tally.counts().resumed += 1,
        }
        let mut goes_on = true;
        while goes_on {
            let taken = socket.read(|event| {
                if client.take(generation, event) {
                    let mut counts = tally.counts();
                    counts.events += 1;
                    counts.last_event = Some(Instant::now());
                }
            });
            goes_on = matches!(taken.await, Ok(true));
        }
        tally.counts().ended += 1;
        if tally.counts().resumes {
            sleep(client.retry()).await;
        }
    }
}
