//! Random faults of replicas, of Redis and of the network between them, while clients call.
//!
//! `REPLICA_FAULTS` is the seed of the faults. An odd seed has one Redis; an even seed has a Redis that fails over (Sentinel), if
//! the machine allows network namespaces.
//! `REPLICA_FAULTS_SECONDS` is the duration of the faults in seconds; `make replica-faults` sets 600. nextest ends a test after
//! 300 s, so longer runs need `cargo test`.
//!
//! Some clients send each request to a random replica. If `REPLICA_FAULTS_SECONDS` is set, SDK clients call, too: through nginx,
//! and through a gateway whose remote pools consist of the replicas.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::counted::{COUNTING, Client, Outcome, announcements, calls};
use super::sdk_clients::{Steady, steady};
use super::{LATEST, ping, see, stored};
use crate::support::dice::Dice;
use crate::support::gateway::Builder;
use crate::support::link::Link;
use crate::support::network::{self, Network, Place};
use crate::support::nginx::Nginx;
use crate::support::ports::free_address;
use crate::support::redis::{Failover, Redis};
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually};

const REPLICAS: usize = 3;
const CLIENTS: usize = 4;
/// Duration of the faults in seconds, unless `REPLICA_FAULTS_SECONDS` is set. A fault that has begun is still repaired.
const SECONDS: u64 = 60;
const SEED: u64 = 37;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |set| {
        set.parse()
            .unwrap_or_else(|_| panic!("{variable} is a number"))
    })
}

/// Session store of the replicas: one Redis, or a Redis that fails over.
enum Store {
    One(Redis),
    Sentinels(Failover),
}

impl Store {
    /// Kills the Redis process. A single Redis starts again after the pause; otherwise Sentinels promote its replica.
    async fn killed(&mut self, pause: Duration) {
        match self {
            Self::One(redis) => {
                println!("Redis is killed for {pause:?}");
                redis.kill();
                tokio::time::sleep(pause).await;
                redis.killed_and_started_again().await;
            }
            Self::Sentinels(redis) => {
                println!("Redis fails over");
                redis.failed_over().await;
            }
        }
    }
}

/// Connections of the replicas to Redis and to each other, which a test can cut.
enum Ways {
    /// Each replica is in its own network namespace: all connections can be cut.
    Network { network: Network, url: String },
    /// The replicas are in the machine's network: only the connections to Redis can be cut.
    Links(Vec<Link>),
}

/// Starts Redis as the seed demands, and prepares the connections to it.
async fn ground(place: Place, seed: u64) -> (Store, Ways) {
    if let Place::Machine = place {
        println!("without network namespaces: replicas are not cut off from each other");
        let redis = Redis::start_keeping().await;
        return (Store::One(redis), Ways::Links(Vec::new()));
    }
    let (store, url) = if seed.is_multiple_of(2) {
        let redis = Failover::start_at(network::SHARED).await;
        let url = redis.url();
        (Store::Sentinels(redis), url)
    } else {
        let address = SocketAddr::from((network::SHARED, free_address().port()));
        let redis = Redis::start_keeping_at(address).await;
        (Store::One(redis), format!("redis://{address}"))
    };
    let network = Network::of(REPLICAS as u8);
    (store, Ways::Network { network, url })
}

impl Ways {
    fn replica(&mut self, at: usize, store: &Store) -> Builder {
        let gateway = Gateway::with_tools([("count", "counting.py", COUNTING)]);
        let name = ["one", "two", "three"][at];
        match self {
            Self::Network { network, url } => {
                let free = || network.address(at, free_address().port());
                let program = Path::new(env!("CARGO_BIN_EXE_tooldock"));
                stored(gateway, url, name)
                    .config(json!({"replicas": {"address": free().to_string()}}))
                    .listening(free(), free())
                    .binary(&network.program(at, program))
            }
            Self::Links(links) => {
                let Store::One(redis) = store else {
                    unreachable!("Sentinels need a network")
                };
                let (link, url) = redis.link();
                links.push(link);
                stored(gateway, &url, name)
            }
        }
    }

    /// Cuts a replica off for some time: from the other replicas if `peers`, and from Redis if `redis`. Without network
    /// namespaces, the replica is always cut off from Redis alone.
    async fn cut(&self, at: usize, peers: bool, redis: bool, pause: Duration) {
        match self {
            Self::Network { network, .. } => {
                println!("replica {at} is cut off for {pause:?}, peers: {peers}, Redis: {redis}");
                network.cut(at, peers, redis);
                tokio::time::sleep(pause).await;
                network.mend(at, peers, redis);
            }
            Self::Links(links) => {
                println!("replica {at} is cut off from Redis for {pause:?}");
                links[at].cut();
                tokio::time::sleep(pause).await;
                links[at].mend();
            }
        }
    }
}

/// Causes a random fault of a replica, of Redis or of the network, and repairs it.
async fn fault(dice: &mut Dice, replicas: &mut [Gateway], ways: &Ways, store: &mut Store) {
    let at = dice.roll(replicas.len());
    let pause = Duration::from_millis(dice.roll(3000) as u64);
    let replica = &mut replicas[at];
    match dice.roll(7) {
        0 => {
            println!("replica {at} is killed for {pause:?}");
            replica.kill();
            tokio::time::sleep(pause).await;
            replica.started_again().await;
        }
        1 => {
            println!("replica {at} is frozen for {pause:?}");
            replica.signal(Signal::STOP);
            tokio::time::sleep(pause).await;
            replica.signal(Signal::CONT);
        }
        2 => {
            println!("replica {at} is stopped and started again");
            replica.signal(Signal::TERM);
            replica.ended().await;
            replica.started_again().await;
        }
        3 => ways.cut(at, false, true, pause).await,
        4 => ways.cut(at, true, false, pause).await,
        5 => ways.cut(at, true, true, pause).await,
        _ => store.killed(pause).await,
    }
}

/// Starts a gateway whose remote pools consist of the replicas: a pool for each mode.
async fn pool(replicas: &[SocketAddr]) -> Gateway {
    let backends: Vec<_> = replicas
        .iter()
        .map(|at| format!("http://{at}/mcp/count"))
        .collect();
    let pool = |mode: &str| {
        json!({"backends": backends, "credentials": "Bearer ${REPLICAS_TOKEN}", "mode": mode,
            "balance": "round_robin", "allow_private": true})
    };
    let pools = json!({"through": pool("pass_through"), "shared-client": pool("client")});
    let gateway = Gateway::empty().config(json!({"upstreams": {"remote": pools}}));
    gateway.env("REPLICAS_TOKEN", TOKEN).start().await
}

/// Starts SDK clients of both eras and all transports, behind nginx and behind the pools.
fn sdk_clients(nginx: SocketAddr, pool: SocketAddr, marks: &Path) -> [Steady; 2] {
    let client = |name: &str, base: SocketAddr, namespace: &str, mode: &str| {
        json!({"name": name, "base": format!("http://{base}"), "namespace": namespace, "mode": mode,
            "marks": marks})
    };
    let old = json!([
        client("one-nginx", nginx, "count", "streamable"),
        client("one-sse-nginx", nginx, "count", "sse"),
        client("one-sse-through", pool, "through", "sse"),
        client("one-client", pool, "shared-client", "streamable"),
    ]);
    let new = json!([
        client("two-nginx", nginx, "count", "legacy"),
        client("two-modern-nginx", nginx, "count", "2026-07-28"),
        client("two-modern-through", pool, "through", "2026-07-28"),
        client("two-modern-client", pool, "shared-client", "2026-07-28"),
    ]);
    [
        steady("steady_mcp1.py", "clients-mcp1", &old),
        steady("steady_mcp2.py", "clients-mcp2", &new),
    ]
}

#[tokio::test]
async fn faults_of_replicas_lose_no_event_and_run_no_call_twice() {
    const NAME: &str = "replicas::seeded::faults_of_replicas_lose_no_event_and_run_no_call_twice";
    let place = network::place(NAME);
    if let Place::Elsewhere = place {
        return;
    }
    let seed = number("REPLICA_FAULTS", SEED);
    println!("REPLICA_FAULTS={seed} makes the same faults");
    let mut dice = Dice(seed);
    let (mut store, mut ways) = ground(place, seed).await;
    let [one, two, three] = [0, 1, 2].map(|at| ways.replica(at, &store).start());
    let replicas = tokio::join!(one, two, three);
    let mut replicas = [replicas.0, replicas.1, replicas.2];
    for gateway in &replicas {
        see(gateway, REPLICAS).await;
    }
    let addresses = replicas.each_ref().map(|it| it.address);
    let folder = tempfile::TempDir::new().expect("a temporary directory");
    let marks = folder.path().join("marks");
    let mut fronts = None;
    if std::env::var_os("REPLICA_FAULTS_SECONDS").is_some() {
        let (nginx, address) = Nginx::in_front_of(folder.path(), &addresses, "error").await;
        let pool = pool(&addresses).await;
        let clients = sdk_clients(address, pool.address, &marks);
        fronts = Some((nginx, pool, clients));
    }

    let stop = Arc::new(AtomicBool::new(false));
    let (mut running, mut counts, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..CLIENTS {
        let home = &replicas[dice.roll(replicas.len())];
        let session = Session::start(home, "count", LATEST).await;
        let mut client = || Client {
            number,
            replicas: addresses.to_vec(),
            http: reqwest::Client::builder()
                .pool_max_idle_per_host(0)
                .build()
                .expect("a client"),
            id: session.id.clone(),
            dice: Dice(dice.roll(usize::MAX) as u64),
            marks: marks.clone(),
        };
        let (caller, mut listener) = (client(), client());
        sessions.push(session);
        let events = listener.listen().await;
        let count = Arc::new(AtomicUsize::new(0));
        let listening = tokio::spawn(announcements(listener, events, Arc::clone(&count)));
        counts.push((listening, count));
        running.push(tokio::spawn(calls(caller, Arc::clone(&stop))));
    }

    let end = Instant::now() + Duration::from_secs(number("REPLICA_FAULTS_SECONDS", SECONDS));
    while Instant::now() < end {
        fault(&mut dice, &mut replicas, &ways, &mut store).await;
    }
    for gateway in &replicas {
        see(gateway, REPLICAS).await;
    }
    // A replica that was frozen must learn from Redis which of its sessions others have claimed, before Redis is killed again.
    for client in &sessions {
        for gateway in &replicas {
            eventually("each session is where it belongs", || async {
                (ping(&client.at(gateway)).await == 200).then_some(())
            })
            .await;
        }
    }
    store.killed(Duration::ZERO).await;
    stop.store(true, Ordering::Relaxed);
    for gateway in &replicas {
        eventually("the store is heard again", || async {
            let ready = format!("http://{}/ready", gateway.metrics);
            let ready = gateway.client.get(ready).send().await.ok()?;
            let told: Value = ready.json().await.ok()?;
            (told["replicas"]["store"] == "up").then_some(())
        })
        .await;
    }

    let mut outcomes = BTreeMap::new();
    for (client, (listening, count)) in running.into_iter().zip(counts) {
        let (mut client, of_client) = client.await.expect("no fault that is not typed");
        let done = of_client.values().filter(|it| **it == Outcome::Done);
        let before = count.load(Ordering::Relaxed);
        println!("{before} changes announced by {} calls", done.count());
        outcomes.extend(of_client);
        // All faults are repaired: the next call has a result and is announced.
        assert_eq!(client.call(u64::MAX).await, Outcome::Done);
        eventually("the last call is announced", async || {
            assert!(!listening.is_finished(), "the listener failed");
            (count.load(Ordering::Relaxed) > before).then_some(())
        })
        .await;
        listening.abort();
    }
    if let Some((_nginx, _pool, sdk_clients)) = fronts {
        for clients in sdk_clients {
            outcomes.extend(clients.outcomes().await);
        }
    }
    let done = outcomes.values().filter(|it| **it == Outcome::Done).count();
    println!("{done} of {} calls have a result", outcomes.len());
    let marks = std::fs::read_to_string(&marks).expect("calls have run");
    let mut runs = BTreeMap::new();
    for mark in marks.lines() {
        *runs.entry(mark).or_insert(0) += 1;
    }
    for (mark, outcome) in &outcomes {
        let runs = runs.get(mark.as_str()).copied().unwrap_or(0);
        match outcome {
            Outcome::Done => assert_eq!(runs, 1, "{mark}"),
            Outcome::Failed => assert!(runs <= 1, "{mark} ran {runs} times"),
        }
    }
    assert!(done * 2 > outcomes.len(), "most calls meet no fault");
}
