//! The open connections of clients: counts them, and chooses a connection to close when their maximum number is reached.
//!
//! A connection counts from the moment it is accepted, including the TLS handshake, until its socket is closed. A connection that
//! waits for a request costs its client nothing. So that a client which only opens connections cannot lock out others, a waiting
//! connection is closed for each new one at the maximum. The new one is refused only if no connection waits.
//!
//! Connections without an admitted request are closed first: those whose last request was refused, and those that have sent none.
//! Among these, those of the client address with the most such connections are closed first; and of that address, a connection
//! whose request was refused before one that has sent none.

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

/// Maximum number of table entries that are examined to find a connection to close.
const LOOKS: usize = 256;

/// Number of connections by which the maximum may be exceeded while older connections are being closed to make room.
const LEAVING_MAX: usize = 32;

/// Maximum time for which a new connection waits for others to close before it is refused.
const LEAVING_TIME: Duration = Duration::from_millis(20);

/// The open connections of all listeners that share a maximum number.
pub(crate) struct Connections {
    max: usize,
    gauge: IntGauge,
    table: Mutex<ConnectionTable>,
    /// Wakes waiting tasks when a connection has been closed.
    left: Notify,
}

#[derive(Default)]
struct ConnectionTable {
    open: Slab<Arc<ClientWait>>,
    /// Number of connections without an admitted request, by client address.
    strangers: HashMap<ClientNetwork, usize>,
    /// Table index at which the last search ended. The next search begins after it, so that all connections are examined in turn.
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

/// An open connection, which counts towards the maximum. Dropping it ends the count.
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

    /// Counts a new connection of a client address, and starts its time limit for sending a request. Returns `None` if there are
    /// too many connections.
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

    /// Waits for other connections to close, for at most [`LEAVING_TIME`], if there are so many that the next one would be
    /// refused.
    pub(crate) async fn room_for_next(&self) {
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
    pub(crate) async fn all_closed(&self) {
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            left.as_mut().enable();
            if self.table().open.is_empty() {
                return;
            }
            left.await;
        }
    }

    /// Returns true if the maximum is reached, so that another connection must be closed to admit the next one.
    pub(crate) fn is_full(&self) -> bool {
        self.table().open.len() >= self.max
    }

    /// Requests the closing of a connection that waits for a request. Returns false if none was found.
    pub(crate) fn make_room(&self) -> bool {
        self.table().make_room()
    }

    /// Closes all connections that wait for a request, except HTTP/2 connections that have had requests: Pingora closes those in
    /// the orderly way of HTTP/2.
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
    /// Requests the closing of a waiting connection among the next [`LOOKS`] table entries: preferably one without an admitted
    /// request; among these, one of the client address that has the most of them; of that address, preferably one whose request
    /// was refused.
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
            // If several candidates are equal, the first is chosen, so that connections are closed in turn.
            if found.is_none_or(|(best, _)| rank > best) {
                found = Some((rank, at));
            }
        }
        let Some((_, at)) = found else { return false };
        self.hand = at;
        self.open.get(at).is_some_and(|it| it.dismiss())
    }

    /// Adds a connection without an admitted request to the count of its client address if `more` is true; removes it if false.
    fn count(&mut self, client: ClientNetwork, more: bool) {
        let count = self.strangers.entry(client).or_default();
        *count = if more { *count + 1 } else { *count - 1 };
        if *count == 0 {
            self.strangers.remove(&client);
        }
    }
}

impl OpenConnection {
    /// Records whether the connection's last request was admitted by a credential.
    pub(crate) fn admitted(&self, admitted: bool) {
        if self.waiting.admitted.load(Ordering::Relaxed) != admitted {
            let mut table = self.connections.table();
            if self.waiting.admitted.swap(admitted, Ordering::Relaxed) != admitted {
                table.count(self.waiting.client(), !admitted);
            }
        }
    }

    /// Sets the client's address, after a proxy has named it in the PROXY protocol header.
    pub(crate) fn comes_from(&self, address: IpAddr) {
        let client = ClientNetwork::from(address);
        let mut table = self.connections.table();
        let before = self.waiting.client.swap(client.0, Ordering::Relaxed);
        if !self.waiting.admitted.load(Ordering::Relaxed) {
            table.count(ClientNetwork(before), false);
            table.count(client, true);
        }
    }

    /// Registers the begin of an HTTP/2 request. Dropping the returned guard registers its end; after the last request the
    /// connection waits for requests again.
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

/// Guard of an HTTP/2 request that is being answered. Dropping it registers the end of the request.
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
            // The deadline is set later than Pingora's idle time, since Pingora closes an idle connection in the orderly way of
            // HTTP/2.
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

/// State of a connection's wait for its client, with the deadline. Only the connection's task and the tasks of its requests
/// change it; other tasks read it.
pub(crate) struct ClientWait {
    opened: Instant,
    /// Deadline for the client's next bytes, in milliseconds after `opened`; [`ClientWait::NOTHING`] while a request is answered.
    due: AtomicU64,
    /// The client's address as a [`ClientNetwork`].
    client: AtomicU64,
    /// True if the last request was admitted by a credential; false if it was refused, or there was none.
    admitted: AtomicBool,
    /// True until the head of the first request has been read.
    first: AtomicBool,
    /// True while no byte of the next request's head has arrived.
    idle: AtomicBool,
    dismissed: AtomicBool,
    /// True once the connection has had an HTTP/2 request.
    multiplexed: AtomicBool,
    /// Number of HTTP/2 requests in progress. The lock is held while a request begins or ends, so that the deadline is changed in
    /// the right order.
    running: Mutex<usize>,
    task: AtomicWaker,
}

impl ClientWait {
    /// Value of `due` while a request is being answered and no deadline applies.
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

    /// Sets the deadline for the next request: a short time for the connection's first request, the maximum idle time for later
    /// ones.
    pub(crate) fn awaited(&self, limits: &ConnectionLimits, now: Instant) {
        self.idle.store(true, Ordering::Relaxed);
        self.until(if self.is_first() {
            now + limits.header
        } else {
            now + limits.keepalive
        });
    }

    /// Records that the first bytes of a request's head have arrived, and sets the head's deadline. The deadline of the first
    /// head has been running since the connection was opened.
    pub(crate) fn begun(&self, limits: &ConnectionLimits, now: Instant) {
        self.idle.store(false, Ordering::Relaxed);
        if !self.is_first() {
            self.until(now + limits.header);
        }
    }

    /// Records that the request's head has been read, so that no deadline applies while the request is answered.
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

    /// Returns true if no request's head has been read on this connection yet.
    pub(crate) fn is_first(&self) -> bool {
        self.first.load(Ordering::Relaxed)
    }

    /// Returns true if a client that missed its deadline has sent an incomplete request or no request at all; false if the
    /// connection was idle after a request.
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

    /// Requests the closing of the connection, if it waits for a request. Returns true if this call requested it.
    fn dismiss(&self) -> bool {
        let asked = self.can_be_dismissed() && !self.dismissed.swap(true, Ordering::AcqRel);
        if asked {
            self.task.wake();
        }
        asked
    }

    /// Waits until the closing of the connection was requested while it waits for a request.
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
