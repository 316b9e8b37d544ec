//! How many connections there are, which of them wait, and which gives way when there may be no more.
//!
//! A connection counts from the moment it is accepted, TLS handshake included, until its socket is closed. One that
//! waits for a request costs its client nothing, so somebody who only opens connections must not keep out those who
//! have something to ask: where the cap is reached, a connection without a request is closed for the new one, and the
//! new one is refused only where none is found.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use prometheus::IntGauge;
use slab::Slab;
use tokio::time::Instant;

use super::Limits;

/// How many connections are looked at, at most, to find one that gives way.
const LOOKS: usize = 256;

/// So many above the cap may be on their way out.
const LEAVING_MAX: usize = 32;

/// The open connections of some listeners, under one cap.
pub(crate) struct Connections {
    max: usize,
    gauge: IntGauge,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    open: Slab<Arc<Waiting>>,
    /// Where the next search begins, so that all take their turn.
    hand: usize,
}

/// A connection, counted while this lives.
pub(crate) struct OpenConnection {
    pub(super) waiting: Arc<Waiting>,
    connections: Arc<Connections>,
    key: usize,
}

impl Connections {
    pub(crate) fn new(max: usize, gauge: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            max,
            gauge,
            table: Mutex::default(),
        })
    }

    /// Counts a new connection, unless there are too many. From now on its client is waited for.
    pub(super) fn admit(self: &Arc<Self>, limits: &Limits) -> Option<OpenConnection> {
        let now = Instant::now();
        let waiting = Arc::new(Waiting::new(now));
        waiting.awaited(limits, now);
        let key = {
            let mut table = self.table();
            let open = table.open.len();
            if open >= self.max && (open >= self.max + LEAVING_MAX || !table.make_room()) {
                return None;
            }
            table.open.insert(Arc::clone(&waiting))
        };
        self.gauge.inc();
        Some(OpenConnection {
            waiting,
            connections: Arc::clone(self),
            key,
        })
    }

    /// Whether the next connection is admitted only if another gives way.
    pub(super) fn is_full(&self) -> bool {
        self.table().open.len() >= self.max
    }

    /// Closes a connection that waits for a request. False where there is none.
    pub(super) fn make_room(&self) -> bool {
        self.table().make_room()
    }

    /// Closes all connections that wait for a request, but for those of HTTP/2 that were used: Pingora takes leave of
    /// them.
    pub(super) fn dismiss_waiting(&self) {
        for (_, connection) in &self.table().open {
            if !connection.multiplexed.load(Ordering::Relaxed) {
                connection.dismiss();
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Dismisses one of the next connections that wait: rather one that never asked for anything.
    fn make_room(&mut self) -> bool {
        let places = self.open.capacity();
        let mut used = None;
        for _ in 0..LOOKS.min(places) {
            self.hand = (self.hand + 1) % places;
            let Some(connection) = self.open.get(self.hand) else {
                continue;
            };
            if connection.is_first() {
                if connection.dismiss() {
                    return true;
                }
            } else if used.is_none() && connection.can_be_dismissed() {
                used = Some(connection);
            }
        }
        used.is_some_and(|connection| connection.dismiss())
    }
}

impl OpenConnection {
    /// A request of HTTP/2 has arrived. The connection waits again when the last of its requests has ended.
    pub(crate) fn request_arrived(self: &Arc<Self>, limits: &Limits) -> MultiplexedRequest {
        let waiting = &self.waiting;
        let mut running = waiting.running();
        *running += 1;
        waiting.multiplexed.store(true, Ordering::Relaxed);
        waiting.seen();
        drop(running);
        MultiplexedRequest {
            open: Arc::clone(self),
            limits: *limits,
        }
    }
}

/// A request of HTTP/2 while it is answered.
pub(crate) struct MultiplexedRequest {
    open: Arc<OpenConnection>,
    limits: Limits,
}

impl Drop for MultiplexedRequest {
    fn drop(&mut self) {
        let waiting = &self.open.waiting;
        let mut running = waiting.running();
        *running -= 1;
        if *running == 0 {
            // Pingora closes an idle connection in order, and before this is due.
            waiting.awaited(&self.limits, Instant::now() + self.limits.header);
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.connections.table().open.try_remove(self.key);
        self.connections.gauge.dec();
    }
}

/// What a connection waits for, and by when it has to be there. Its own task writes this, and those of its requests;
/// all others read.
pub(super) struct Waiting {
    opened: Instant,
    /// By when the client has to have sent what is awaited, in milliseconds after `opened`; [`Waiting::NOTHING`] while a
    /// request is answered.
    due: AtomicU64,
    /// No head has been seen yet.
    first: AtomicBool,
    /// Nothing of the next head is there.
    idle: AtomicBool,
    dismissed: AtomicBool,
    /// There were requests of HTTP/2.
    multiplexed: AtomicBool,
    /// Those that are being answered. Held while one begins or ends, so that the others agree on what is awaited.
    running: Mutex<usize>,
    task: AtomicWaker,
}

impl Waiting {
    /// A request is being answered.
    const NOTHING: u64 = u64::MAX;

    fn new(now: Instant) -> Self {
        Self {
            opened: now,
            due: AtomicU64::new(Self::NOTHING),
            first: AtomicBool::new(true),
            idle: AtomicBool::new(true),
            dismissed: AtomicBool::new(false),
            multiplexed: AtomicBool::new(false),
            running: Mutex::new(0),
            task: AtomicWaker::new(),
        }
    }

    /// The head of a request is awaited from now on: the first one right away, a later one after idle time.
    pub(super) fn awaited(&self, limits: &Limits, now: Instant) {
        self.idle.store(true, Ordering::Relaxed);
        self.until(if self.is_first() {
            now + limits.header
        } else {
            now + limits.keepalive
        });
    }

    /// A part of the head is there. The rest has its own time, which for the first one runs already.
    pub(super) fn begun(&self, limits: &Limits, now: Instant) {
        self.idle.store(false, Ordering::Relaxed);
        if !self.is_first() {
            self.until(now + limits.header);
        }
    }

    /// The head is complete: a request is answered from now on.
    pub(super) fn seen(&self) {
        self.due.store(Self::NOTHING, Ordering::Relaxed);
        self.first.store(false, Ordering::Relaxed);
    }

    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, due: Instant) {
        let due = due.saturating_duration_since(self.opened).as_millis();
        let due = u64::try_from(due).unwrap_or(Self::NOTHING);
        self.due.store(due, Ordering::Relaxed);
    }

    /// Nothing was ever asked on this connection.
    pub(super) fn is_first(&self) -> bool {
        self.first.load(Ordering::Relaxed)
    }

    /// A client that is late has left a request unfinished, or sent none at all.
    pub(super) fn is_overdue_request(&self) -> bool {
        self.is_first() || !self.idle.load(Ordering::Relaxed)
    }

    pub(super) fn due(&self) -> Option<Instant> {
        let due = self.due.load(Ordering::Relaxed);
        (due != Self::NOTHING).then(|| self.opened + Duration::from_millis(due))
    }

    fn can_be_dismissed(&self) -> bool {
        self.due().is_some() && !self.dismissed.load(Ordering::Acquire)
    }

    /// Asks the connection to end, if it waits for a request. Says whether it was asked now.
    fn dismiss(&self) -> bool {
        let asked = self.can_be_dismissed() && !self.dismissed.swap(true, Ordering::AcqRel);
        if asked {
            self.task.wake();
        }
        asked
    }

    /// Resolves when the connection was asked to end and waits for a request.
    pub(super) async fn dismissal(&self) {
        poll_fn(|context| {
            self.task.register(context.waker());
            let leaves = self.dismissed.load(Ordering::Acquire) && self.due().is_some();
            if leaves {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        header: Duration::from_secs(15),
        keepalive: Duration::from_secs(75),
        write: Duration::from_secs(30),
        header_bytes: 32 * 1024,
    };

    fn connections(max: usize) -> Arc<Connections> {
        Connections::new(max, IntGauge::new("open", "open").expect("a gauge"))
    }

    #[test]
    fn a_head_has_its_own_time_and_a_later_one_idle_time_before() {
        let opened = Instant::now();
        let at = |seconds| opened + Duration::from_secs(seconds);
        let waiting = Waiting::new(opened);
        waiting.awaited(&LIMITS, opened);
        assert_eq!(waiting.due(), Some(at(15)));
        waiting.begun(&LIMITS, at(10));
        assert_eq!(waiting.due(), Some(at(15)));
        assert!(waiting.is_overdue_request());

        waiting.seen();
        assert_eq!(waiting.due(), None);

        waiting.awaited(&LIMITS, at(300));
        assert_eq!(waiting.due(), Some(at(375)));
        assert!(!waiting.is_overdue_request());
        waiting.begun(&LIMITS, at(310));
        assert_eq!(waiting.due(), Some(at(325)));
        assert!(waiting.is_overdue_request());
    }

    #[tokio::test]
    async fn an_idle_connection_of_http_2_gives_way_and_one_with_a_request_does_not() {
        let connections = connections(1);
        let open = Arc::new(connections.admit(&LIMITS).expect("room"));
        let [first, second] = [(); 2].map(|()| open.request_arrived(&LIMITS));
        drop(first);
        assert!(connections.admit(&LIMITS).is_none(), "a request runs");
        drop(second);
        connections.dismiss_waiting();
        assert!(open.waiting.can_be_dismissed(), "Pingora takes leave");
        drop(open.request_arrived(&LIMITS));
        assert!(
            connections.admit(&LIMITS).is_some(),
            "an idle one gives way"
        );
        open.waiting.dismissal().await;
    }

    #[tokio::test]
    async fn at_the_cap_a_connection_without_a_request_gives_way_and_no_other() {
        let connections = connections(3);
        let now = Instant::now();
        let admit = || connections.admit(&LIMITS);
        let [busy, kept, stranger] = [(); 3].map(|()| admit().expect("room"));
        kept.waiting.seen();
        kept.waiting.awaited(&LIMITS, now);
        busy.waiting.seen();
        let dismissed =
            |connection: &OpenConnection| connection.waiting.dismissed.load(Ordering::Acquire);

        let fourth = admit().expect("a stranger gives way");
        assert_eq!(
            [&busy, &kept, &stranger].map(dismissed),
            [false, false, true]
        );
        stranger.waiting.dismissal().await;
        fourth.waiting.seen();
        let fifth = admit().expect("one that is kept gives way");
        fifth.waiting.seen();
        assert_eq!([&busy, &kept].map(dismissed), [false, true]);
        assert!(admit().is_none(), "nobody else can be asked");

        drop((stranger, kept));
        assert!(admit().is_none(), "three are busy");
        drop(busy);
        assert!(admit().is_some());
        assert_eq!(connections.gauge.get(), 2);
    }

    #[tokio::test]
    async fn one_that_is_dismissed_while_it_is_asked_something_answers_first() {
        let connections = connections(1);
        let only = connections.admit(&LIMITS).expect("room");
        connections.dismiss_waiting();
        only.waiting.seen();
        let mut dismissal = std::pin::pin!(only.waiting.dismissal());
        assert!(futures_util::poll!(dismissal.as_mut()).is_pending());
        only.waiting.awaited(&LIMITS, Instant::now());
        dismissal.await;
    }
}
