//! The addresses of a backend. Its name is resolved again at intervals, and addresses that are not public are refused.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tooldock_base::address::is_public;
use tooldock_workers::remote::Host;

use super::lock;

/// Time for which the addresses of a name are used before the name is resolved again.
pub(crate) const REFRESH: Duration = Duration::from_secs(15);

/// Maximum number of addresses of one name that are tried; further addresses are ignored.
const ADDRESSES_MAX: usize = 16;

/// Future that resolves a name to addresses.
pub(crate) type Lookup<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'a>>;

/// Resolver for host names.
pub(crate) trait Names: Send + Sync {
    /// Resolves a name to all its addresses. Each address gets the given port.
    fn look_up<'a>(&'a self, name: &'a str, port: u16) -> Lookup<'a>;
}

/// The operating system's resolver: `/etc/hosts`, then name servers.
pub(crate) struct SystemNames;

impl Names for SystemNames {
    fn look_up<'a>(&'a self, name: &'a str, port: u16) -> Lookup<'a> {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name, port)).await?;
            Ok(found.collect())
        })
    }
}

/// The reason why a backend has no address to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoAddress {
    /// The name does not exist, or no name server responded. Contains the reason as text.
    NotFound(String),
    /// The name resolves only to addresses that are not public. Contains the name and one of these addresses.
    NotPublic(String, SocketAddr),
    /// The name could not be resolved within the time limit. Contains the name.
    Timeout(String),
}

/// The network addresses of one backend.
pub(crate) struct Addresses {
    host: Host,
    allow_private: bool,
    names: Arc<dyn Names>,
    /// The addresses that the last successful resolution returned.
    known: Mutex<ResolvedAddresses>,
    /// Semaphore with one permit. It is held during a resolution, so that concurrent requests do not resolve the same name.
    looking: Semaphore,
    turn: AtomicUsize,
}

#[derive(Default)]
struct ResolvedAddresses {
    addresses: Arc<[SocketAddr]>,
    at: Option<Instant>,
}

impl Addresses {
    pub(crate) fn new(host: Host, allow_private: bool, names: Arc<dyn Names>) -> Self {
        let literal: Vec<_> = match &host {
            Host::Address(address, port) => vec![SocketAddr::new(*address, *port)],
            Host::Name(..) | Host::Unix(_) => Vec::new(),
        };
        Self {
            host,
            allow_private,
            names,
            known: Mutex::new(ResolvedAddresses {
                addresses: literal.into(),
                at: None,
            }),
            looking: Semaphore::new(1),
            turn: AtomicUsize::new(0),
        }
    }

    /// The addresses to try, in this order. Each address is checked here, and the name is not resolved again before the
    /// connection is opened. So an address that passed the check cannot be replaced by another one.
    pub(crate) async fn addresses_to_try(
        &self,
        limit: Duration,
    ) -> Result<Vec<SocketAddr>, NoAddress> {
        if let Host::Name(name, port) = &self.host
            && self.age().is_none()
        {
            let look_up = self.look_up(name, *port, false);
            match tokio::time::timeout(limit, look_up).await {
                Ok(found) => found?,
                Err(_) => return Err(NoAddress::Timeout(name.clone())),
            }
        }
        let known = Arc::clone(&lock(&self.known).addresses);
        let mut addresses = known.to_vec();
        if let Host::Name(name, _) = &self.host {
            let refused = addresses.iter().find(|it| !self.allows(it)).copied();
            addresses.retain(|it| self.allows(it));
            if let (true, Some(refused)) = (addresses.is_empty(), refused) {
                return Err(NoAddress::NotPublic(name.clone(), refused));
            }
        }
        if !addresses.is_empty() {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % addresses.len();
            addresses.rotate_left(turn);
        }
        Ok(addresses)
    }

    /// Returns true if a connection to the address may be reused, because the backend's name still resolves to that address.
    pub(crate) fn still_resolves_to(&self, address: &SocketAddr) -> bool {
        !matches!(self.host, Host::Name(..)) || lock(&self.known).addresses.contains(address)
    }

    /// Marks the addresses as outdated. Called when no connection could be opened; the next request then resolves the name again.
    pub(crate) fn mark_outdated(&self) {
        lock(&self.known).at = None;
    }

    /// Resolves the name again if its addresses are old enough. `limit` is the time limit. Called by the upkeep task, so that
    /// requests need not wait for it.
    pub(crate) async fn refresh(&self, limit: Duration) {
        if let Host::Name(name, port) = &self.host
            && self.age().is_some_and(|age| age >= REFRESH)
        {
            // After a failure the known addresses remain in use. Requests resolve the name again when no connection can be
            // opened.
            let _ = tokio::time::timeout(limit, self.look_up(name, *port, true)).await;
        }
    }

    fn allows(&self, address: &SocketAddr) -> bool {
        self.allow_private || is_public(address.ip())
    }

    fn age(&self) -> Option<Duration> {
        lock(&self.known).at.map(|at| at.elapsed())
    }

    async fn look_up(&self, name: &str, port: u16, again: bool) -> Result<(), NoAddress> {
        // The result needs no check: acquiring fails only if the semaphore is closed, which never happens.
        let _looking = self.looking.acquire().await;
        if !again && self.age().is_some() {
            // Another request has resolved the name while this one waited for the semaphore.
            return Ok(());
        }
        let found = self.names.look_up(name, port).await;
        let mut known = lock(&self.known);
        match found {
            Ok(mut found) if !found.is_empty() => {
                found.truncate(ADDRESSES_MAX);
                known.addresses = found.into();
                known.at = Some(Instant::now());
                Ok(())
            }
            _ if !known.addresses.is_empty() => {
                known.at = Some(Instant::now());
                Ok(())
            }
            Ok(_) => Err(NoAddress::NotFound(format!("{name} has no address"))),
            Err(error) => Err(NoAddress::NotFound(format!("{name}: {error}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers with the last addresses that a test has set, and counts look-ups.
    #[derive(Default)]
    struct Table(Mutex<(Vec<&'static str>, usize)>);

    impl Table {
        fn say(&self, addresses: &[&'static str]) {
            lock(&self.0).0 = addresses.to_vec();
        }

        fn asked(&self) -> usize {
            lock(&self.0).1
        }
    }

    impl Names for Table {
        fn look_up<'a>(&'a self, _: &'a str, port: u16) -> Lookup<'a> {
            Box::pin(async move {
                let mut table = lock(&self.0);
                table.1 += 1;
                let address =
                    |text: &&str| SocketAddr::new(text.parse().expect("an address"), port);
                match table.0.is_empty() {
                    true => Err(io::Error::other("no such name")),
                    false => Ok(table.0.iter().map(address).collect()),
                }
            })
        }
    }

    const LIMIT: Duration = Duration::from_secs(5);

    fn named(table: &Arc<Table>, allow_private: bool) -> Addresses {
        let names = Arc::clone(table) as Arc<dyn Names>;
        Addresses::new(Host::Name("a.example".into(), 80), allow_private, names)
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_once_and_again_when_it_is_old_or_fails() {
        let table = Arc::new(Table::default());
        table.say(&["1.1.1.1", "1.1.1.2"]);
        let addresses = named(&table, false);
        let first = addresses.addresses_to_try(LIMIT).await.expect("addresses");
        let second = addresses.addresses_to_try(LIMIT).await.expect("addresses");
        assert_eq!((first.len(), table.asked()), (2, 1));
        assert_eq!(first[0], second[1], "they take turns");
        addresses.refresh(LIMIT).await;
        assert_eq!(table.asked(), 1, "too young");
        table.say(&["1.1.1.3"]);
        tokio::time::advance(REFRESH).await;
        addresses.refresh(LIMIT).await;
        assert!(!addresses.still_resolves_to(&first[0]), "it has moved");
        table.say(&["1.1.1.4"]);
        addresses.mark_outdated();
        let moved = addresses.addresses_to_try(LIMIT).await.expect("addresses");
        assert_eq!(moved, ["1.1.1.4:80".parse().expect("an address")]);
        table.say(&[]);
        addresses.mark_outdated();
        assert_eq!(
            addresses.addresses_to_try(LIMIT).await.as_ref(),
            Ok(&moved),
            "the last that is known"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_server_that_says_nothing_holds_nobody_up() {
        struct Silent;
        impl Names for Silent {
            fn look_up<'a>(&'a self, _: &'a str, _: u16) -> Lookup<'a> {
                Box::pin(std::future::pending())
            }
        }
        let host = Host::Name("a.example".into(), 80);
        let addresses = Addresses::new(host, false, Arc::new(Silent));
        let address: SocketAddr = "1.1.1.1:80".parse().expect("an address");
        *lock(&addresses.known) = ResolvedAddresses {
            addresses: vec![address].into(),
            at: Some(Instant::now()),
        };
        tokio::time::advance(REFRESH).await;
        let refresh = addresses.refresh(LIMIT);
        let done = tokio::time::timeout(2 * LIMIT, refresh).await;
        assert!(done.is_ok() && addresses.still_resolves_to(&address));
    }

    #[tokio::test]
    async fn a_name_leads_to_public_addresses_only_unless_the_operator_says_otherwise() {
        let table = Arc::new(Table::default());
        table.say(&["10.0.0.1", "1.1.1.1", "::1"]);
        let some = named(&table, false)
            .addresses_to_try(LIMIT)
            .await
            .expect("one");
        assert_eq!(some, ["1.1.1.1:80".parse().expect("an address")]);
        assert_eq!(
            named(&table, true)
                .addresses_to_try(LIMIT)
                .await
                .expect("all")
                .len(),
            3
        );
        table.say(&["169.254.169.254"]);
        let refused = "169.254.169.254:80".parse().expect("an address");
        assert_eq!(
            named(&table, false).addresses_to_try(LIMIT).await,
            Err(NoAddress::NotPublic("a.example".into(), refused))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_turns_private_later_is_refused_then() {
        let table = Arc::new(Table::default());
        table.say(&["1.1.1.1"]);
        let addresses = named(&table, false);
        assert!(addresses.addresses_to_try(LIMIT).await.is_ok());
        table.say(&["127.0.0.1"]);
        tokio::time::advance(REFRESH).await;
        addresses.refresh(LIMIT).await;
        assert!(matches!(
            addresses.addresses_to_try(LIMIT).await,
            Err(NoAddress::NotPublic(..))
        ));
    }

    #[tokio::test]
    async fn an_address_that_is_spelled_as_a_name_is_judged_by_where_it_leads() {
        for spelled in [
            "2130706433",
            "0x7f.1",
            "017700000001",
            "127.1",
            "localhost",
            "localhost.",
            "0",
            "0xa9fea9fe",
        ] {
            let host = Host::Name(spelled.into(), 80);
            let found = Addresses::new(host, false, Arc::new(SystemNames))
                .addresses_to_try(LIMIT)
                .await;
            assert!(
                matches!(
                    found,
                    Err(NoAddress::NotPublic(..) | NoAddress::NotFound(_))
                ),
                "{spelled}: {found:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_literal_address_is_used_as_it_is_and_a_missing_name_is_told() {
        let table = Arc::new(Table::default());
        let names = Arc::clone(&table) as Arc<dyn Names>;
        let literal = "127.0.0.1:80".parse::<SocketAddr>().expect("an address");
        let host = Host::Address(literal.ip(), 80);
        let addresses = Addresses::new(host, false, names);
        assert_eq!(addresses.addresses_to_try(LIMIT).await, Ok(vec![literal]));
        assert_eq!(table.asked(), 0);
        let missing = named(&table, false).addresses_to_try(LIMIT).await;
        assert_eq!(
            missing,
            Err(NoAddress::NotFound("a.example: no such name".into()))
        );
    }
}
