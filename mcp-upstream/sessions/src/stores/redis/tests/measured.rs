//! Measures the work of a real server for each operation, and its memory for each session: the figures that the simulated
//! server (`simulated`) and docs/scaling.md use. `make simulate-redis` prints them.

use futures_util::{StreamExt, stream};
use tooldock_base::budget::BudgetUse;

use super::*;
use crate::replicas::tests::announcement;
use crate::replicas::{Announcement, ReplicaDirectory};
use crate::session::{Home, SessionPatch, SessionRecord};
use crate::simulation::{MESSAGE, binding, client};
use crate::stream::StreamCounts;

/// Number of recorded sessions.
const SESSIONS: usize = 20_000;
/// Number of concurrent operations, as many as a replica has requests.
const AT_ONCE: usize = 64;

const FIRST: Home = Home {
    replica: ReplicaId(1_234_567_890),
    epoch: 0,
};

/// The Redis server whose processor time and memory are measured.
struct Measured {
    server: RedisServer,
}

impl Measured {
    /// Reads a figure of `INFO`.
    fn figure(&self, section: &str, name: &str) -> f64 {
        let info = self.server.command(&["INFO", section]);
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        let value = line.and_then(|rest| rest.strip_prefix(':'));
        value.and_then(|it| it.trim().parse().ok()).expect(name)
    }

    fn micros(&self) -> f64 {
        let cpu = |name| self.figure("cpu", name);
        (cpu("used_cpu_user") + cpu("used_cpu_sys")) * 1e6
    }

    fn memory(&self) -> f64 {
        self.figure("memory", "used_memory")
    }

    /// Runs an operation `times` times, and prints its cost.
    async fn cost(&self, name: &str, times: usize, operation: impl AsyncFn(usize)) {
        let (micros, memory) = (self.micros(), self.memory());
        let all = stream::iter(0..times).map(|at| operation(at));
        all.buffer_unordered(AT_ONCE).collect::<()>().await;
        let each = |all: f64| all / times as f64;
        println!(
            "{name:<28} {:>8.1} µs {:>8.0} bytes",
            each(self.micros() - micros),
            each(self.memory() - memory)
        );
    }
}

fn record(key: &tooldock_protocol::seal::SessionKey) -> SessionRecord {
    let binding = binding(0, 0);
    let now = std::time::SystemTime::now();
    SessionRecord {
        id: binding
            .mint_id(key, FIRST.replica, now)
            .expect("randomness"),
        binding,
        home: FIRST,
        confirmed: false,
        negotiated: None,
        client: Some(client()),
        log_level: tooldock_process::worker::LogLevel::Info,
        affinity: None,
        subscriptions: Default::default(),
        toolset: Default::default(),
        streams: StreamCounts::default(),
    }
}

fn event(sequence: u64) -> StoredEvent {
    message(sequence, MESSAGE)
}

#[tokio::test]
#[ignore = "measures for half a minute: make simulate-redis"]
async fn work_and_memory_of_a_real_server() {
    let measured = Measured {
        server: RedisServer::start(),
    };
    let version = measured.server.command(&["INFO", "server"]);
    let version = version
        .lines()
        .find(|line| line.starts_with("redis_version"));
    println!("{}", version.expect("a version"));
    let store = store_of(&measured.server);
    let own = store.clone().of_replica(FIRST.replica);
    let key = tooldock_protocol::seal::SessionKey::from_text("a key");
    let records: Vec<_> = (0..SESSIONS).map(|_| record(&key)).collect();
    let id = |at: usize| &records[at % SESSIONS].id;
    let general = |at: usize| StreamRef {
        session: id(at),
        number: 2,
    };
    let (store, own, records) = (&store, &own, &records);
    let works = "works";

    let insert = async |at: usize| _ = store.insert(&records[at]).await.expect(works);
    measured.cost("insert", SESSIONS, insert).await;
    let confirm = async |at| {
        own.patch(id(at), &SessionPatch::Confirm)
            .await
            .expect(works);
    };
    measured.cost("patch (confirm)", SESSIONS, confirm).await;
    let opened = StoredEvent {
        sequence: 1,
        kind: EventKind::Opened { owes: Vec::new() },
    };
    let open = async |at| _ = own.append(general(at), &opened).await.expect(works);
    measured.cost("open", SESSIONS, open).await;
    let number = SessionPatch::OpenStream(2);
    let raise = async |at| own.patch(id(at), &number).await.expect(works);
    measured.cost("patch (stream)", SESSIONS, raise).await;
    let first = event(2);
    let append = async |at| _ = own.append(general(at), &first).await.expect(works);
    measured.cost("append (first)", SESSIONS, append).await;
    for sequence in 3..5 {
        let next = event(sequence);
        let append = async |at| _ = own.append(general(at), &next).await.expect(works);
        measured.cost("append (next)", SESSIONS, append).await;
    }
    let load = async |at| _ = store.load(id(at).as_str()).await.expect(works);
    measured.cost("load", SESSIONS, load).await;
    let read = async |at| _ = store.read(general(at), 256).await.expect(works);
    measured.cost("read", SESSIONS, read).await;
    let by = Home {
        replica: ReplicaId(1),
        epoch: 1,
    };
    let claim = async |at| _ = store.claim(id(at), by, FIRST).await.expect(works);
    measured.cost("claim", SESSIONS, claim).await;
    let some: Vec<_> = (0..TOUCHED_AT_ONCE).map(|at| id(at).clone()).collect();
    let touch = async |_| _ = store.touch(&some).await.expect(works);
    measured.cost("touch (of 512 sessions)", 400, touch).await;
    for replicas in [2, 10, 50, 200] {
        beats(&measured, store, replicas).await;
    }
    for budgets in [1, 32, 512] {
        exchanges(&measured, store, budgets).await;
    }
    let remove = async |at| _ = store.remove(id(at)).await.expect(works);
    measured.cost("remove", SESSIONS, remove).await;
    let forget = async |at| store.forget(id(at)).await.expect(works);
    measured.cost("forget", SESSIONS, forget).await;
}

/// Measures beats of that many replicas.
async fn beats(measured: &Measured, store: &RedisStore, replicas: usize) {
    measured.server.command(&["DEL", "tooldock:replicas"]);
    let all: Vec<Announcement> = (0..replicas)
        .map(|at| announcement(&format!("gateway-{at}")))
        .collect();
    let beat = async |at: usize| {
        let heard = store.beat(&all[at % replicas], Some(0)).await;
        heard.expect("works");
    };
    let name = format!("beat of {replicas} replicas");
    measured.cost(&name, 4000, beat).await;
}

/// Measures exchanges about limits, with that many budgets each.
async fn exchanges(measured: &Measured, store: &RedisStore, budgets: usize) {
    let used: Vec<_> = (0..budgets)
        .map(|at| BudgetUse {
            name: (at as u128).to_be_bytes(),
            taken: Duration::from_millis(100),
            whole_in: Duration::from_millis(100),
            window: Duration::from_secs(60),
        })
        .collect();
    let take = async |_| {
        let taken = store.take_budgets(&used, 50).await;
        taken.expect("works");
    };
    let name = format!("limits, {budgets} budgets");
    measured.cost(&name, 40_000 / (budgets + 19), take).await;
}
