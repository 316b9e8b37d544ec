//! The open connections: counts them, tracks those that wait for a request, and chooses the connection to close when the cap is
//! reached.
//!
//! A connection counts from the moment it is accepted, including the TLS handshake, until its socket is closed. A connection
//! that waits for a request costs its client nothing, so a client that only opens connections must not keep out clients with
//! requests: at the cap, a connection without a request is closed for the new one, and the new one is refused only if there is
//! none.
//!
//! A connection is closed before others if its last request was not admitted, or it has sent none; among these, those of the
//! address with the most such connections are closed first, and of that address one whose request was refused before one that
//! has sent none.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use prometheus::IntGauge;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::ConnectionLimits;

/// Maximum number of connections that are examined to find one to close.
const LOOKS: usize = 256;

/// Maximum number of connections above the cap, whose closing has been requested.
const LEAVING_MAX: usize = 32;

/// Maximum time for which the next connection waits for others to close, before it is refused.
const LEAVING_TIME: Duration = Duration::from_millis(20);

/// The open connections of the listeners that share a cap.
pub(crate) struct Connections {
    max: usize,
    gauge: IntGauge,
    table: Mutex<ConnectionTable>,
    /// Woken when a connection has ended.
    left: Notify,
}

#[derive(Default)]
struct ConnectionTable {
    open: Slab<Arc<ClientWait>>,
    /// The number of connections without an admitted request, by address.
    strangers: HashMap<ClientNetwork, usize>,
    /// The table index at which the next search begins, so that every connection is examined in turn.
    hand: usize,
}

/// Client address by which connections are counted: an IPv4 address, or the first 64 bits of an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ClientNetwork(u64);

impl From<IpAddr> for ClientNetwork {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(u32::from(address).into()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments().map(u64::from);
                Self((a << 48) | (b << 32) | (c << 16) | d)
            }
        }
    }
}

/// A counted connection. Dropping it ends the count.
pub(crate) struct OpenConnection {
    pub(crate) waiting: Arc<ClientWait>,
    connections: Arc<Connections>,
    key: usize,
}

impl Connections {
    pub(crate) fn new(max: usize, gauge: IntGauge) -> Arc<Self> {
        Arc::new(Self {
            max,
            gauge,
            table: Mutex::default(),
            left: Notify::new(),
        })
    }

    /// Counts a new connection from an address, unless there are too many. Its time to send a request begins now.
    pub(crate) fn admit(
        self: &Arc<Self>,
        limits: &ConnectionLimits,
        address: IpAddr,
    ) -> Option<OpenConnection> {
        let now = Instant::now();
        let client = ClientNetwork::from(address);
        let waiting = Arc::new(ClientWait::new(now, client));
        waiting.awaited(limits, now);
        let key = {
            let mut table = self.table();
            let open = table.open.len();
            if open >= self.max && (open >= self.max + LEAVING_MAX || !table.make_room()) {
                return None;
            }
            table.count(client, true);
            table.open.insert(Arc::clone(&waiting))
        };
        self.gauge.inc();
        Some(OpenConnection {
            waiting,
            connections: Arc::clone(self),
            key,
        })
    }

    /// Waits at most [`LEAVING_TIME`] while so many connections are closing that the next one would be refused.
    pub(crate) async fn way_out(&self) {
        let most = self.max + LEAVING_MAX;
        let leaving = async {
            loop {
                let mut left = std::pin::pin!(self.left.notified());
                left.as_mut().enable();
                if self.table().open.len() < most {
                    return;
                }
                left.await;
            }
        };
        let _ = timeout(LEAVING_TIME, leaving).await;
    }

    /// Waits until no connection is open.
    pub(crate) async fn emptied(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.table().open.is_empty() {
                return;
            }
            left.await;
        }
    }

    /// Returns true if another connection must be closed to admit the next one.
    pub(crate) fn is_full(&self) -> bool {
        self.table().open.len() >= self.max
    }

    /// Closes a connection that waits for a request. Returns false if none was found.
    pub(crate) fn make_room(&self) -> bool {
        self.table().make_room()
    }

    /// Closes all connections that wait for a request, except those of HTTP/2 that have had requests, which Pingora closes in
    /// an orderly way.
    pub(crate) fn dismiss_waiting(&self) {
        for (_, connection) in &self.table().open {
            if !connection.multiplexed.load(Ordering::Relaxed) {
                connection.dismiss();
            }
        }
    }

    fn table(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionTable {
    /// Closes a waiting connection among the next [`LOOKS`] table entries: preferably one without an admitted request, of the
    /// address with the most such connections, and whose request was refused.
    fn make_room(&mut self) -> bool {
        let places = self.open.capacity();
        let mut found: Option<(_, usize)> = None;
        for step in 1..=LOOKS.min(places) {
            let at = (self.hand + step) % places;
            let Some(connection) = self.open.get(at) else {
                continue;
            };
            if !connection.can_be_dismissed() {
                continue;
            }
            let stranger = !connection.admitted.load(Ordering::Relaxed);
            let of_client = self.strangers.get(&connection.client());
            let rank = (
                stranger,
                of_client.filter(|_| stranger).copied(),
                !connection.is_first(),
            );
            // The first of equals, so that connections are chosen in turn.
            if found.is_none_or(|(best, _)| rank > best) {
                found = Some((rank, at));
            }
        }
        let Some((_, at)) = found else { return false };
        self.hand = at;
        self.open.get(at).is_some_and(|it| it.dismiss())
    }

    /// Adds or removes a connection that no credential has admitted.
    fn count(&mut self, client: ClientNetwork, more: bool) {
        let count = self.strangers.entry(client).or_default();
        *count = if more { *count + 1 } else { *count - 1 };
        if *count == 0 {
            self.strangers.remove(&client);
        }
    }
}

impl OpenConnection {
    /// Stores whether a credential has admitted the last request.
    pub(crate) fn admitted(&self, admitted: bool) {
        if self.waiting.admitted.load(Ordering::Relaxed) != admitted {
            let mut table = self.connections.table();
            if self.waiting.admitted.swap(admitted, Ordering::Relaxed) != admitted {
                table.count(self.waiting.client(), !admitted);
            }
        }
    }

    /// Sets the client's address, as a proxy has named it.
    pub(crate) fn comes_from(&self, address: IpAddr) {
        let client = ClientNetwork::from(address);
        let mut table = self.connections.table();
        let before = self.waiting.client.swap(client.0, Ordering::Relaxed);
        if !self.waiting.admitted.load(Ordering::Relaxed) {
            table.count(ClientNetwork(before), false);
            table.count(client, true);
        }
    }

    /// Registers a new HTTP/2 request. The connection waits for requests again when the last one has ended.
    pub(crate) fn request_arrived(
        self: &Arc<Self>,
        limits: &ConnectionLimits,
    ) -> MultiplexedRequest {
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

/// An HTTP/2 request that is being answered. Dropping it ends the request.
pub(crate) struct MultiplexedRequest {
    open: Arc<OpenConnection>,
    limits: ConnectionLimits,
}

impl Drop for MultiplexedRequest {
    fn drop(&mut self) {
        let waiting = &self.open.waiting;
        let mut running = waiting.running();
        *running -= 1;
        if *running == 0 {
            // Pingora closes an idle connection in an orderly way, and earlier than this deadline.
            waiting.awaited(&self.limits, Instant::now() + self.limits.header);
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        table.open.try_remove(self.key);
        if !self.waiting.admitted.load(Ordering::Relaxed) {
            table.count(self.waiting.client(), false);
        }
        drop(table);
        self.connections.gauge.dec();
        self.connections.left.notify_waiters();
    }
}

/// The wait of a connection for its client, with its deadline. The connection's own task and the tasks of its requests
/// write it; other tasks only read it.
pub(crate) struct ClientWait {
    opened: Instant,
    /// Deadline for the client's next bytes, in milliseconds after `opened`; [`ClientWait::NOTHING`] while a request is
    /// answered.
    due: AtomicU64,
    /// The client's [`ClientNetwork`], as bits.
    client: AtomicU64,
    /// True when a credential has admitted the last request.
    admitted: AtomicBool,
    /// True until the head of the first request is complete.
    first: AtomicBool,
    /// True while no byte of the next head has arrived.
    idle: AtomicBool,
    dismissed: AtomicBool,
    /// True once there were requests of HTTP/2.
    multiplexed: AtomicBool,
    /// The number of HTTP/2 requests in progress. Locked while a request begins or ends, so that all tasks use the same
    /// deadline.
    running: Mutex<usize>,
    task: AtomicWaker,
}

impl ClientWait {
    /// The value of `due` while a request is being answered.
    const NOTHING: u64 = u64::MAX;

    fn new(now: Instant, client: ClientNetwork) -> Self {
        Self {
            opened: now,
            due: AtomicU64::new(Self::NOTHING),
            client: AtomicU64::new(client.0),
            admitted: AtomicBool::new(false),
            first: AtomicBool::new(true),
            idle: AtomicBool::new(true),
            dismissed: AtomicBool::new(false),
            multiplexed: AtomicBool::new(false),
            running: Mutex::new(0),
            task: AtomicWaker::new(),
        }
    }

    /// Sets the deadline for the next head: a short one for the first head, the idle time for later ones.
    pub(crate) fn awaited(&self, limits: &ConnectionLimits, now: Instant) {
        self.idle.store(true, Ordering::Relaxed);
        self.until(if self.is_first() {
            now + limits.header
        } else {
            now + limits.keepalive
        });
    }

    /// Records that the first bytes of a head have arrived. The head has its own time limit, which for the first head runs
    /// already.
    pub(crate) fn begun(&self, limits: &ConnectionLimits, now: Instant) {
        self.idle.store(false, Ordering::Relaxed);
        if !self.is_first() {
            self.until(now + limits.header);
        }
    }

    /// Records that the head is complete, so that no deadline applies while the request is answered.
    pub(crate) fn seen(&self) {
        self.due.store(Self::NOTHING, Ordering::Relaxed);
        self.first.store(false, Ordering::Relaxed);
    }

    fn client(&self) -> ClientNetwork {
        ClientNetwork(self.client.load(Ordering::Relaxed))
    }

    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn until(&self, due: Instant) {
        let due = due.saturating_duration_since(self.opened).as_millis();
        let due = u64::try_from(due).unwrap_or(Self::NOTHING);
        self.due.store(due, Ordering::Relaxed);
    }

    /// Returns true if the connection has had no request yet.
    pub(crate) fn is_first(&self) -> bool {
        self.first.load(Ordering::Relaxed)
    }

    /// Returns true if a client past its deadline has left a request unfinished, or has sent none at all.
    pub(crate) fn is_overdue_request(&self) -> bool {
        self.is_first() || !self.idle.load(Ordering::Relaxed)
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        let due = self.due.load(Ordering::Relaxed);
        (due != Self::NOTHING).then(|| self.opened + Duration::from_millis(due))
    }

    fn can_be_dismissed(&self) -> bool {
        self.due().is_some() && !self.dismissed.load(Ordering::Acquire)
    }

    /// Requests the end of the connection, if it waits for a request. Returns true if this call requested it.
    fn dismiss(&self) -> bool {
        let asked = self.can_be_dismissed() && !self.dismissed.swap(true, Ordering::AcqRel);
        if asked {
            self.task.wake();
        }
        asked
    }

    /// Resolves when the end of the connection was requested and it waits for a request.
    pub(crate) async fn dismissal(&self) {
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
    use std::net::Ipv4Addr;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    const LIMITS: ConnectionLimits = ConnectionLimits {
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
        let waiting = ClientWait::new(opened, HERE.into());
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
        let open = Arc::new(connections.admit(&LIMITS, HERE).expect("room"));
        let [first, second] = [(); 2].map(|()| open.request_arrived(&LIMITS));
        drop(first);
        assert!(connections.admit(&LIMITS, HERE).is_none(), "a request runs");
        drop(second);
        connections.dismiss_waiting();
        assert!(open.waiting.can_be_dismissed(), "Pingora takes leave");
        drop(open.request_arrived(&LIMITS));
        assert!(
            connections.admit(&LIMITS, HERE).is_some(),
            "an idle one gives way"
        );
        open.waiting.dismissal().await;
    }

    #[tokio::test]
    async fn at_the_cap_a_connection_without_a_request_gives_way_and_no_other() {
        let connections = connections(3);
        let now = Instant::now();
        let admit = || connections.admit(&LIMITS, HERE);
        let [busy, kept, stranger] = [(); 3].map(|()| admit().expect("room"));
        kept.waiting.seen();
        kept.admitted(true);
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

    #[test]
    fn the_address_with_the_most_connections_gives_way_to_those_of_others() {
        let connections = connections(8);
        let of = |address: &str| {
            let address = address.parse().expect("an address");
            connections.admit(&LIMITS, address).expect("room")
        };
        let one = [of("192.0.2.1"), of("2001:db8::1")];
        // Addresses of one network count together.
        let flood: Vec<_> = (0..6).map(|at| of(&format!("2001:db8:1::{at}"))).collect();
        let dismissed = |open: &OpenConnection| open.waiting.dismissed.load(Ordering::Acquire);
        let late: Vec<_> = (0..3).map(|_| of("192.0.2.1")).collect();
        assert!(!one.iter().chain(&late).any(dismissed));
        assert_eq!(flood.iter().filter(|it| dismissed(it)).count(), 3);
        drop((one, late, flood));
        assert!(connections.table().strangers.is_empty());
    }

    #[test]
    fn a_connection_that_a_credential_has_admitted_gives_way_after_all_others() {
        let connections = connections(3);
        let admit = || connections.admit(&LIMITS, HERE).expect("room");
        let [kept, refused, first] = [(); 3].map(|()| admit());
        for used in [&kept, &refused] {
            used.waiting.seen();
            used.admitted(true);
            used.waiting.awaited(&LIMITS, Instant::now());
        }
        // The next request with its key is refused: the key was revoked.
        refused.admitted(false);
        let dismissed = |open: &OpenConnection| open.waiting.dismissed.load(Ordering::Acquire);
        let others = [(); 3].map(|()| admit());
        assert!(dismissed(&refused) && dismissed(&first));
        assert!(!dismissed(&kept));
        assert_eq!(others.iter().filter(|it| dismissed(it)).count(), 1);
        drop((refused, first, others));
        assert_eq!(connections.table().strangers.len(), 0);
    }

    #[tokio::test]
    async fn one_that_is_dismissed_while_it_is_asked_something_answers_first() {
        let connections = connections(1);
        let only = connections.admit(&LIMITS, HERE).expect("room");
        connections.dismiss_waiting();
        only.waiting.seen();
        let mut dismissal = std::pin::pin!(only.waiting.dismissal());
        assert!(futures_util::poll!(dismissal.as_mut()).is_pending());
        only.waiting.awaited(&LIMITS, Instant::now());
        dismissal.await;
    }
}
