//! Simulation of many replicas with many sessions in one process, with the paused clock of the test: shows how memory,
//! operations of the store and hops grow with the replicas, and which component fails first. docs/scaling.md has the figures.
//!
//! Real: the session tables with their claims and doubts, the event logs, the audience, the replicas with their beats, and the
//! routing of requests between them ([`RoutedRequest`](crate::replicas::RoutedRequest)). Simulated: Redis
//! (`stores/redis/tests/simulated.rs`, which takes as long for each operation as a real one), the network, the load balancer
//! and the clients. Faults and traffic come from a seed.
//!
//! ```text
//!   clients ─▶ balancer ─▶ replica ─ route ─▶ replica of the session ─▶ SessionTable, EventLog ─▶ SimulatedRedis
//! ```

use std::time::Duration;

use serde_json::value::RawValue;
use tooldock_protocol::version::ProtocolVersion;

use crate::session::{Binding, ClientFacts, SessionTransport};

mod clients;
mod figures;
mod gateway;
mod model;
mod run;
mod world;

use figures::Figures;
use model::Model;
use run::{Fault, run};

/// Number of principals, each with an equal share of the sessions.
const PRINCIPALS: usize = 1000;

/// Message of a server, in the form in which it is stored on streams.
pub(crate) const MESSAGE: &str = r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","logger":"tools","data":"one of the things that servers say on their own"}}"#;

/// The binding of the session of a principal in a namespace.
pub(crate) fn binding(namespace: usize, principal: usize) -> Binding {
    let namespace = format!("namespace-{namespace}");
    Binding {
        namespace: namespace.parse().expect("a name"),
        principal: Some(format!("principal-{principal}@example.com").into()),
        version: ProtocolVersion::V2025_11_25,
        transport: SessionTransport::Streamable,
    }
}

/// Description of each simulated client.
pub(crate) fn client() -> ClientFacts {
    let json = |text: &str| RawValue::from_string(text.to_owned()).expect("JSON").into();
    ClientFacts {
        capabilities: json(
            r#"{"roots":{"listChanged":true},"sampling":{},"elicitation":{"form":{},"url":{}}}"#,
        ),
        info: Some(json(
            r#"{"name":"some-client","title":"Some Client","version":"1.24.3"}"#,
        )),
    }
}

/// Rule by which the load balancer chooses the replica of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Balancer {
    /// A random replica.
    Random,
    /// The replica that a digest of the session's id selects. The first request of a session has no id yet.
    HashOfId,
    /// The replica of the client's previous request.
    Sticky,
}

/// Options of a run.
#[derive(Debug, Clone)]
struct Options {
    replicas: usize,
    sessions: usize,
    seed: u64,
    balancer: Balancer,
    /// Number of requests per session and minute.
    rate: f64,
    /// Percentage of sessions that listen to a general stream (opened by `GET`, not for a request).
    listening: u32,
    /// Percentage of requests that are answered by a stream: progress, then the answer.
    streamed: u32,
    /// Number of primaries of Redis.
    shards: usize,
    /// Number of namespaces, each with an equal share of the sessions.
    namespaces: usize,
    /// Faults to simulate, one after the other.
    faults: Vec<Fault>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            replicas: 5,
            sessions: 2000,
            seed: 1,
            balancer: Balancer::Random,
            rate: 1.0,
            listening: 50,
            streamed: 10,
            shards: 1,
            namespaces: 10,
            faults: Fault::ALL.to_vec(),
        }
    }
}

impl Options {
    /// Parses the text of `TOOLDOCK_SIMULATE`: `replicas=50 sessions=1000000 seed=7`.
    fn parse(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for word in text.split_whitespace() {
            let (name, value) = word
                .split_once('=')
                .ok_or(format!("TOOLDOCK_SIMULATE: `{word}` is not NAME=VALUE"))?;
            let wrong = || format!("TOOLDOCK_SIMULATE: `{value}` is no value of {name}");
            let number = || value.parse::<u64>().map_err(|_| wrong());
            let count = || {
                value
                    .parse::<usize>()
                    .ok()
                    .filter(|it| *it > 0)
                    .ok_or_else(wrong)
            };
            let percent = || {
                value
                    .parse::<u32>()
                    .ok()
                    .filter(|it| *it <= 100)
                    .ok_or_else(wrong)
            };
            match name {
                "replicas" => options.replicas = count()?,
                "sessions" => options.sessions = count()?,
                "shards" => options.shards = count()?,
                "seed" => options.seed = number()?,
                "listening" => options.listening = percent()?,
                "streamed" => options.streamed = percent()?,
                "rate" => options.rate = value.parse().map_err(|_| wrong())?,
                "namespaces" => options.namespaces = count()?,
                "faults" => options.faults = Fault::parse(value).ok_or_else(wrong)?,
                "balancer" => {
                    options.balancer = match value {
                        "random" => Balancer::Random,
                        "hash" => Balancer::HashOfId,
                        "sticky" => Balancer::Sticky,
                        _ => return Err(wrong()),
                    }
                }
                _ => {
                    return Err(format!(
                        "TOOLDOCK_SIMULATE: no option {name}; there are replicas, sessions, seed, balancer \
                         (random, hash, sticky), rate, listening, streamed, shards, namespaces and faults (all, \
                         none, or words with commas between them)"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// Runs a simulation to its end.
fn simulate(options: Options) -> Figures {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let runtime = runtime.expect("a runtime");
    let figures = runtime.block_on(run(options));
    // The timeout is zero because tasks of killed processes never end.
    runtime.shutdown_timeout(Duration::ZERO);
    figures
}

#[test]
fn faults_of_replicas_and_store_lose_no_session_and_no_event_and_double_none() {
    let figures = simulate(Options {
        seed: 1,
        ..Options::default()
    });
    figures.check();
}

#[test]
fn requests_cost_the_store_and_the_network_as_the_model_says() {
    for balancer in [Balancer::Random, Balancer::HashOfId, Balancer::Sticky] {
        let options = Options {
            balancer,
            rate: 3.0,
            faults: Vec::new(),
            ..Options::default()
        };
        let figures = simulate(options.clone());
        figures.check();
        Model::of(&options).check(&figures);
    }
}

#[test]
fn a_change_that_all_replicas_tell_of_at_once_keeps_no_operation_of_the_store_waiting() {
    let figures = simulate(Options {
        replicas: 20,
        sessions: 20 * 280,
        listening: 100,
        namespaces: 1,
        faults: vec![Fault::Change],
        ..Options::default()
    });
    figures.check();
    assert_eq!(
        figures.part("change").work.timeouts,
        0,
        "{}",
        figures.table()
    );
}

#[test]
fn a_seed_decides_the_faults_and_the_traffic() {
    let plan = |seed| {
        let options = Options {
            seed,
            sessions: 200,
            ..Options::default()
        };
        simulate(options).plan
    };
    let (one, again, two) = (plan(1), plan(1), plan(2));
    assert_eq!(one, again);
    assert_ne!(one, two);
}

#[test]
fn options_that_are_not_understood_are_named() {
    let options = Options::parse("replicas=50 sessions=1000000 seed=7 balancer=sticky");
    let options = options.expect("options");
    assert_eq!((options.replicas, options.sessions), (50, 1_000_000));
    assert_eq!((options.seed, options.balancer), (7, Balancer::Sticky));
    for (text, word) in [
        ("replica=5", "no option replica"),
        ("replicas=0", "`0` is no value of replicas"),
        ("seed", "`seed` is not NAME=VALUE"),
        ("listening=101", "`101` is no value of listening"),
        ("balancer=dns", "`dns` is no value of balancer"),
    ] {
        let refused = Options::parse(text).expect_err(text);
        assert!(refused.contains(word), "{refused}");
    }
}

#[test]
#[ignore = "a run of minutes: make simulate"]
fn a_run_with_the_options_of_the_environment() {
    let text = std::env::var("TOOLDOCK_SIMULATE").unwrap_or_default();
    let options = Options::parse(&text).unwrap_or_else(|why| panic!("{why}"));
    let began = std::time::Instant::now();
    let figures = simulate(options.clone());
    println!("{}", figures.table());
    println!("{}", Model::of(&options).table(&figures));
    println!("took {:.0} s", began.elapsed().as_secs_f64());
    figures.check();
}

/// Memory of a live session in its process, as measured by the allocator.
#[test]
#[ignore = "prints figures: make simulate-redis"]
fn memory_of_a_live_session() {
    const SESSIONS: usize = 20_000;
    let runtime = crate::cost::runtime();
    for listens in [false, true] {
        let mut all = None;
        let held = allocation_counter::measure(|| {
            all = Some(runtime.block_on(gateway::sessions_without_store(SESSIONS, listens)));
        });
        let each = held.bytes_current / SESSIONS as i64;
        println!("a session, with a stream that is read: {listens}: {each} bytes");
        drop(all);
    }
}
