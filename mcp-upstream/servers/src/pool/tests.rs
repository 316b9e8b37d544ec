//! Pools over real processes, under the real guard.

use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::FutureExt as _;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::runtimes::Runtimes;
use tooldock_process::metrics::WorkerMetrics;
use tooldock_process::worker::LogLevel;
use tooldock_protocol::jsonrpc::{Notification, ResponseOutcome, ServerRequest};
use tooldock_protocol::version::ClientIdentity;
use tooldock_sessions::catalogue::PageKey;
use tooldock_sessions::session::config::EventLogConfig;
use tooldock_sessions::stream::{EventLog, KeepAlive, StreamMetrics};
use tooldock_workers::external::{ExternalServer, ProcessHost, Restart, StdioSpec};
use tooldock_workers::registry::{Snapshot, UpstreamKind};
use tooldock_workers::server_settings::Isolation;

use super::state::PoolCounts;
use super::*;
use crate::breaker::BreakerState;
use crate::launch::ProcessLaunchers;
use crate::link::{CallOwner, Inbound};
use crate::metrics::StdioMetrics;
use crate::pool::process::ProcessListener;
use crate::testing::{SCRIPT, guard, within};

mod healing;
mod installing;
mod life;

/// The pools of a gateway with one namespace, `ns`.
struct House {
    registry: Arc<Registry>,
    pools: Arc<Pools>,
    exported: prometheus::Registry,
    generation: u64,
}

impl House {
    fn new() -> Self {
        Self::with_patience(HangThresholds::default())
    }

    fn with_patience(patience: HangThresholds) -> Self {
        let exported = prometheus::Registry::new();
        let runtimes = Arc::new(Runtimes::new());
        runtimes.provide(vec![Handle::current()]);
        let host = ProcessHost {
            sandbox: Default::default(),
            guard: guard(),
            control: Handle::current(),
            runtimes,
            metrics: Arc::new(WorkerMetrics::new(&exported).expect("fresh")),
            output: Default::default(),
        };
        let log = EventLog::new(
            EventLogConfig::default(),
            KeepAlive::new(Duration::from_secs(15)),
            StreamMetrics::unregistered(),
        );
        let registry = Arc::new(Registry::default());
        let metrics = StdioMetrics::new(&exported).expect("fresh");
        let audience = Audience::new(Arc::new(log));
        let (host, of) = (Arc::new(host), Arc::clone(&registry));
        Self {
            pools: Pools::with_patience(
                Arc::new(ProcessLaunchers {
                    host,
                    personal: Arc::clone(registry.personal()),
                }),
                Handle::current(),
                of,
                audience,
                metrics,
                patience,
            ),
            registry,
            exported,
            generation: 0,
        }
    }

    fn server(&self, era: &str, settings: StdioSettings) -> Arc<ExternalServer> {
        let args = ["-S", "-E", SCRIPT, era].map(Into::into);
        self.spec("python3", args.into(), settings)
    }

    /// A server with `folder` for the files of its test.
    fn server_with(
        &self,
        era: &str,
        folder: &std::path::Path,
        settings: StdioSettings,
    ) -> Arc<ExternalServer> {
        let args = ["-S", "-E", SCRIPT, era].map(Into::into);
        let args = args.into_iter().chain([folder.into()]).collect();
        self.spec("python3", args, settings)
    }

    fn spec(
        &self,
        program: &str,
        args: Vec<std::ffi::OsString>,
        settings: StdioSettings,
    ) -> Arc<ExternalServer> {
        let path = std::env::var_os("PATH").expect("set");
        let path = path.to_str().expect("text").to_owned();
        let spec = StdioSpec {
            sandbox: Default::default(),
            program: program.into(),
            args,
            personal: Default::default(),
            env: vec![("PATH".into(), tooldock_base::secret::Secret::new(path))],
            secrets: Vec::new(),
            cwd: "/".into(),
            settings,
        };
        Arc::new(ExternalServer::new("ns".parse().expect("a name"), spec))
    }

    /// Puts the server into the registry, in place of the former one.
    fn publish(&mut self, server: Option<&Arc<ExternalServer>>) {
        self.generation += 1;
        let mut snapshot = Snapshot {
            generation: self.generation,
            ..Snapshot::default()
        };
        if let Some(server) = server {
            let mut namespace = tooldock_sessions::testing::namespace("ns");
            namespace.upstream = UpstreamKind::External(Arc::clone(server));
            // Shorter than any of the thresholds, which are at least as long as calls may take.
            namespace.limits.timeout = Duration::from_millis(100);
            snapshot
                .namespaces
                .insert(namespace.name.clone(), Arc::new(namespace));
        }
        self.registry.swap(snapshot);
    }

    fn with(era: &str, settings: StdioSettings) -> (Self, Arc<ExternalServer>) {
        let mut house = Self::new();
        let server = house.server(era, settings);
        house.publish(Some(&server));
        (house, server)
    }

    async fn lease(
        &self,
        server: &Arc<ExternalServer>,
        key: ConnectionKey,
        open: OpenAs,
    ) -> ProcessLease {
        within(self.pools.lease(server, key, open))
            .await
            .expect("leased")
    }

    fn metric(&self, name: &str) -> f64 {
        let families = self.exported.gather();
        let families = families.iter().filter(|it| it.name() == name);
        families
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .map(|it| it.get_gauge().value() + it.get_counter().value())
            .sum()
    }

    /// Waits for a metric. There is no signal for values that only operators see.
    async fn until(&self, name: &str, value: f64) {
        within(async {
            while (self.metric(name) - value).abs() > 0.1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Waits until a process has ended.
    async fn until_gone(&self, pid: u32) {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        within(async {
            while proc.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    async fn until_live(&self, processes: u32) {
        self.until("tooldock_server_processes_live", processes.into())
            .await;
    }
}

fn quiet() -> StdioSettings {
    StdioSettings {
        warm: 0,
        ..StdioSettings::default()
    }
}

fn shared(era: Era) -> OpenAs {
    OpenAs::gateway(era)
}

fn client(capabilities: Value, inbound: Option<Arc<dyn Inbound>>) -> OpenAs {
    let capabilities = serde_json::value::to_raw_value(&capabilities).expect("JSON");
    OpenAs {
        identity: Arc::new(ClientIdentity {
            capabilities: capabilities.into(),
            ..ClientIdentity::clone(ClientIdentity::gateway())
        }),
        inbound,
        ..OpenAs::gateway(Era::Legacy)
    }
}

fn params(tool: &str) -> Box<RawValue> {
    let params = json!({ "name": tool, "arguments": {} });
    serde_json::value::to_raw_value(&params).expect("JSON")
}

async fn call(leased: &ProcessLease, tool: &str) -> Result<Value, CallError> {
    let call = leased.request("tools/call", Some(&params(tool)), None)?;
    match within(call).await? {
        ResponseOutcome::Result(result) => Ok(serde_json::from_slice(&result).expect("JSON")),
        ResponseOutcome::Error(error) => panic!("{error:?}"),
    }
}

#[derive(Default)]
struct Client {
    said: AtomicUsize,
    asked: AtomicUsize,
    heard: Notify,
}

impl Inbound for Client {
    fn notification(&self, _: Notification<'_>) {
        self.said.fetch_add(1, Ordering::SeqCst);
        self.heard.notify_one();
    }

    fn request(&self, request: ServerRequest) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let answer = RawValue::from_string(r#"{"action":"accept"}"#.into()).expect("JSON");
        request.answer(Ok(&answer));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_in_the_registry_is_started_and_all_who_want_the_shared_process_get_it() {
    let (house, server) = House::with("legacy", quiet());
    house.until_live(1).await;
    let leases = (0..20).map(|n| {
        let era = [Era::Legacy, Era::Modern][n % 2];
        house.lease(&server, ConnectionKey::Shared, shared(era))
    });
    let leases = futures_util::future::join_all(leases).await;
    assert!(leases.iter().all(|it| it.pid() == leases[0].pid()));
    assert_eq!(
        call(&leases[0], "look").await.expect("answered")["client"],
        json!({})
    );
    let state = house.pools.state(&server.name).expect("a pool");
    assert_eq!((state.processes.serving, state.as_str()), (1, "ready"));
    assert_eq!(state.server, Some(EraSupport::Legacy));
    drop(leases);
    within(house.pools.shutdown(Duration::from_secs(20))).await;
    assert!((house.metric("tooldock_server_processes_live")).abs() < 0.1);
    let late = house
        .pools
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy));
    assert_eq!(
        late.await.expect_err("ended").code,
        CallErrorCode::WorkerUnavailable
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_killed_is_replaced_and_asked_for_what_lasts() {
    let (house, server) = House::with("legacy", quiet());
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    for times in [1, 2] {
        let reply = leased.subscribe("test://a").await.expect("subscribed");
        assert_eq!(reply.is_some(), times == 1);
    }
    leased.set_log_level(LogLevel::Debug).await.expect("set");
    let first = leased.pid();
    assert_eq!(
        call(&leased, "crash").await.expect_err("it ends").code,
        CallErrorCode::WorkerUnavailable
    );
    drop(leased);
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    assert_ne!(leased.pid(), first);
    let state = call(&leased, "look").await.expect("answered");
    assert_eq!(state["subscribed"], json!(["test://a"]));
    assert_eq!(state["level"], "debug");
    assert!(house.metric("tooldock_server_restarts_total") > 0.9);
    // The last of two unsubscriptions ends it.
    let unsubscribe = || {
        let pools = &house.pools;
        pools.unsubscribe(&server, &ConnectionKey::Shared, Era::Legacy, "test://a");
    };
    let subscribed = async || call(&leased, "look").await.expect("answered")["subscribed"].clone();
    unsubscribe();
    assert_eq!(subscribed().await, json!(["test://a"]));
    unsubscribe();
    assert_eq!(subscribed().await, json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tools_of_a_shared_process_say_which_call_may_be_repeated() {
    let (house, server) = House::with("legacy", quiet());
    let catalogue = house.pools.catalogue(&server).expect("a pool");
    within(async {
        while !catalogue.is_repeatable("tools/call", Some("look")) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(!catalogue.is_repeatable("tools/call", Some("pay")));
    let page = PageKey::of(Era::Legacy, "tools/list", None).expect("a list");
    assert!(catalogue.recall(&page).is_some());
    assert!(house.pools.last_opened(&server, Era::Legacy).is_some());
    // Lines that the process was sent stay recorded as sent when it ends.
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let request = leased.request("tools/call", Some(&params("crash")), None);
    let mut request = request.expect("sent");
    let ended = within(request.answer()).await.expect_err("it ends");
    assert_eq!(ended.code, CallErrorCode::WorkerUnavailable);
    assert!(!request.is_unsent());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_complete_server_is_opened_in_the_era_it_has() {
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/servers/everything.mjs"
    );
    let script = std::fs::canonicalize(script).expect("it is there");
    for (era, kind) in [("legacy", Era::Legacy), ("modern", Era::Modern)] {
        let mut house = House::new();
        let args = vec![script.clone().into(), "--era".into(), era.into()];
        let server = house.spec("node", args, quiet());
        house.publish(Some(&server));
        for wanted in [Era::Legacy, Era::Modern] {
            let leased = house
                .lease(&server, ConnectionKey::Shared, shared(wanted))
                .await;
            assert_eq!(leased.opened().era(), kind);
        }
        within(house.pools.shutdown(Duration::from_secs(20))).await;
        house.until_live(0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_has_its_own_process_until_it_is_closed() {
    let (house, server) = House::with("legacy", quiet());
    let ear = Arc::new(Client::default());
    let open = || client(json!({ "elicitation": {} }), Some(Arc::clone(&ear) as _));
    let key = || ConnectionKey::Session("tag".into());
    let leased = house.lease(&server, key(), open()).await;
    let again = house.lease(&server, key(), open()).await;
    assert_eq!(leased.pid(), again.pid());
    let shared = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    assert_ne!(leased.pid(), shared.pid());
    assert_eq!(
        call(&leased, "look").await.expect("answered")["client"],
        json!({ "elicitation": {} })
    );
    let answer = call(&leased, "ask").await.expect("answered");
    assert_eq!(answer["result"]["action"], "accept");
    // Questions on the shared process are refused.
    let refused = call(&shared, "ask").await.expect("answered");
    assert_eq!(refused["error"]["code"], -32601);
    assert_eq!(ear.asked.load(Ordering::SeqCst), 1);
    house.until_live(2).await;
    house.pools.session_closed("tag");
    house.until_live(1).await;
    assert!(call(&leased, "look").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_message_of_the_shared_process_reaches_who_uses_it_alone() {
    let (house, server) = House::with("legacy", quiet());
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let ear = Arc::new(Client::default());
    let hearing = leased.hear(ProcessListener {
        owner: CallOwner {
            principal: None,
            aggregate: None,
        },
        session: None,
        inbound: Arc::clone(&ear) as _,
    });
    call(&leased, "log").await.expect("answered");
    assert_eq!(ear.said.load(Ordering::SeqCst), 1);
    let other = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Modern))
        .await;
    call(&leased, "log").await.expect("answered");
    drop(other);
    assert_eq!(ear.said.load(Ordering::SeqCst), 1);
    drop(hearing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_process_serves_the_next_one_like_it_if_it_was_left_clean() {
    let (house, server) = House::with("legacy", quiet());
    let ears = [(); 4].map(|()| Arc::new(Client::default()));
    let open = |n: usize| {
        client(
            json!({ "elicitation": {} }),
            Some(Arc::clone(&ears[n]) as _),
        )
    };
    let first = house
        .lease(&server, ConnectionKey::Exclusive, open(0))
        .await;
    let pid = first.pid();
    call(&first, "look").await.expect("answered");
    first.answered();
    drop(first);
    let second = house
        .lease(&server, ConnectionKey::Exclusive, open(1))
        .await;
    assert_eq!(second.pid(), pid);
    call(&second, "ask").await.expect("answered");
    second.answered();
    // The process has an answer of its client now.
    drop(second);
    let third = house
        .lease(&server, ConnectionKey::Exclusive, open(2))
        .await;
    let other = third.pid();
    assert_ne!(other, pid);
    call(&third, "look").await.expect("answered");
    // Given back without being answered.
    drop(third);
    let fourth = house
        .lease(&server, ConnectionKey::Exclusive, open(3))
        .await;
    assert!(![pid, other].contains(&fourth.pid()));
    let asked = ears.map(|ear| ear.asked.load(Ordering::SeqCst));
    assert_eq!(asked, [0, 1, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_process_that_still_works_for_its_client_serves_no_other() {
    let (house, server) = House::with("legacy", quiet());
    let lease = || house.lease(&server, ConnectionKey::Exclusive, client(json!({}), None));
    let first = lease().await;
    call(&first, "task").await.expect("answered");
    first.answered();
    let pid = first.pid();
    drop(first);
    let second = lease().await;
    assert_ne!(second.pid(), pid);
    // A call was given up, another was answered.
    drop(
        second
            .request("tools/call", Some(&params("hush")), None)
            .expect("sent"),
    );
    call(&second, "look").await.expect("answered");
    second.answered();
    let pid = second.pid();
    drop(second);
    assert_ne!(lease().await.pid(), pid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_both_eras_is_opened_in_each_even_if_a_process_keeps_to_its_first() {
    for era in ["dual", "pinned"] {
        let (house, server) = House::with(era, quiet());
        let modern = house
            .lease(&server, ConnectionKey::Shared, shared(Era::Modern))
            .await;
        let legacy = house
            .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
            .await;
        assert_ne!(modern.pid(), legacy.pid());
        assert_eq!(modern.opened().era(), Era::Modern);
        assert_eq!(legacy.opened().era(), Era::Legacy);
        assert_eq!(
            call(&legacy, "look").await.expect("answered")["opened_by"],
            "initialize"
        );
        assert_eq!(
            house
                .pools
                .server_era(&server, Era::Modern, Opener::Everybody)
                .await
                .expect("known"),
            EraSupport::Dual
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whether_a_server_that_says_it_is_modern_takes_a_handshake_is_found_out_when_one_is_wanted()
{
    for (era, found) in [
        ("reticent", EraSupport::Dual),
        ("modern", EraSupport::Modern),
    ] {
        let (house, server) = House::with(era, quiet());
        let speaks = |wanted| within(house.pools.server_era(&server, wanted, Opener::Everybody));
        let modern = house
            .lease(&server, ConnectionKey::Shared, shared(Era::Modern))
            .await;
        assert_eq!(
            speaks(Era::Modern).await.expect("known"),
            EraSupport::ModernAtLeast
        );
        house.until_live(1).await;
        let all = (0..20).map(|_| speaks(Era::Legacy));
        for known in futures_util::future::join_all(all).await {
            assert_eq!(known.expect("known"), found, "{era}");
        }
        let legacy = house
            .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
            .await;
        let dual = found == EraSupport::Dual;
        assert_eq!(legacy.pid() != modern.pid(), dual);
        let opened_by = &call(&legacy, "look").await.expect("answered")["opened_by"];
        assert_eq!(opened_by == "initialize", dual, "{opened_by}");
        house.until_live(if dual { 2 } else { 1 }).await;
        let state = house.pools.state(&server.name).expect("a pool");
        assert!(state.error.is_none() && state.server == Some(found));
        assert_eq!(speaks(Era::Modern).await.expect("known"), found);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_as_it_starts_is_said_to_have_and_with_what_status() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("down"), "").expect("written");
    let mut house = House::new();
    let server = house.server_with("legacy", folder.path(), quiet());
    house.publish(Some(&server));
    let lease = house
        .pools
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy));
    let error = within(lease).await.expect_err("it does not start");
    let (what, advice) = error.message.split_once(". ").expect("two sentences");
    assert_eq!(
        what,
        "the server of namespace ns exited with status 1 before it answered initialize"
    );
    assert!(advice.starts_with("Try again later"), "{advice}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_client_that_comes_when_nothing_is_known_finds_out_what_the_server_does_not_say() {
    for (era, found) in [
        ("reticent", EraSupport::Dual),
        ("modern", EraSupport::Modern),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let down = folder.path().join("down");
        let mut house = House::new();
        let server = house.server_with(era, folder.path(), quiet());
        house.publish(Some(&server));
        let lease = |era| {
            house
                .pools
                .lease(&server, ConnectionKey::Shared, shared(era))
        };
        let leased = within(lease(Era::Modern)).await.expect("leased");
        std::fs::write(&down, "").expect("written");
        assert!(call(&leased, "crash").await.is_err());
        drop(leased);
        within(async { while lease(Era::Modern).await.is_ok() {} }).await;
        std::fs::remove_file(&down).expect("removed");
        let leased = within(lease(Era::Legacy)).await.expect("leased");
        assert_eq!(leased.opened().era(), found.opened_for(Era::Legacy));
        let state = house.pools.state(&server.name).expect("a pool");
        assert_eq!(state.server, Some(found));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_comes_first_to_a_server_that_pins_its_era_is_opened_anew() {
    let mut house = House::new();
    let server = house.server("pinned", quiet());
    house.publish(Some(&server));
    let key = ConnectionKey::Session("first".into());
    let leased = house.lease(&server, key, client(json!({}), None)).await;
    assert_eq!(leased.opened().era(), Era::Legacy);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_on_a_question_it_does_not_know_is_opened_by_the_handshake() {
    let (house, server) = House::with("touchy", quiet());
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Modern))
        .await;
    assert_eq!(leased.opened().era(), Era::Legacy);
    assert_eq!(
        house.pools.state(&server.name).expect("a pool").breaker,
        BreakerState::Closed
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_modern_shared_process_is_subscribed_to_for_everybody() {
    let (house, server) = House::with("modern", quiet());
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    assert_eq!(leased.opened().era(), Era::Modern);
    leased.subscribe("test://a").await.expect("subscribed");
    let subscribed = |leased: &ProcessLease| {
        let request = leased.request("tools/call", Some(&params("look")), None);
        async move {
            let ResponseOutcome::Result(result) = request.expect("sent").await.expect("answered")
            else {
                panic!("refused");
            };
            let state: Value = serde_json::from_slice(&result).expect("JSON");
            state["subscribed"] == json!(["test://a"])
        }
    };
    within(async { while !subscribed(&leased).await {} }).await;
    let _ = call(&leased, "crash").await;
    drop(leased);
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Modern))
        .await;
    within(async { while !subscribed(&leased).await {} }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_ends_the_processes_of_a_server_that_changed_and_of_no_other() {
    let (mut house, old) = House::with("legacy", quiet());
    let leased = house
        .lease(&old, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let pid = leased.pid();
    // A later snapshot of the registry has this server unchanged.
    house.publish(Some(&old));
    assert_eq!(
        house
            .lease(&old, ConnectionKey::Shared, shared(Era::Legacy))
            .await
            .pid(),
        pid
    );
    let new = house.server("dual", quiet());
    house.publish(Some(&new));
    // A request from before the reload goes to the current pool; a running call ends where it began.
    let served = within(async {
        loop {
            let leased = house
                .lease(&old, ConnectionKey::Shared, shared(Era::Modern))
                .await;
            if leased.pid() != pid {
                return leased;
            }
            drop(leased);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert_eq!(served.opened().era(), Era::Modern);
    call(&leased, "look")
        .await
        .expect("it lives while it is used");
    drop((leased, served));
    house.until_live(1).await;
    house.publish(None);
    house.until_live(0).await;
    let gone = house
        .pools
        .lease(&new, ConnectionKey::Shared, shared(Era::Legacy));
    assert!(gone.await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_while_its_pool_retires_keeps_its_catalogue() {
    let (mut house, server) = House::with("legacy", quiet());
    // Its pool is not over while a request uses it.
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let before = house.pools.catalogue(&server).expect("served");
    house.publish(None);
    within(async {
        while house
            .pools
            .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
            .now_or_never()
            .is_some_and(|leased| leased.is_ok())
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    house.publish(Some(&server));
    let after = house.pools.catalogue(&server).expect("served again");
    assert!(Arc::ptr_eq(&before, &after));
    drop(leased);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_start_is_an_error_that_says_so() {
    let mut house = House::new();
    let server = house.spec("false", Vec::new(), quiet());
    house.publish(Some(&server));
    let refused = house
        .pools
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy));
    let refused = within(refused).await.expect_err("it ends at once");
    assert_eq!(refused.code, CallErrorCode::WorkerUnavailable);
    let state = house.pools.state(&server.name).expect("a pool");
    assert_eq!(state.as_str(), "failed");
    assert!(state.error.is_some());
    let missing = house.spec("/no/such/program", Vec::new(), quiet());
    house.publish(Some(&missing));
    let refused = house
        .pools
        .lease(&missing, ConnectionKey::Shared, shared(Era::Legacy));
    let refused = within(refused).await.expect_err("there is no such program");
    assert!(
        refused.message.contains("/no/such/program"),
        "{}",
        refused.message
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_answers_is_given_up_after_its_time() {
    let mut house = House::new();
    let settings = StdioSettings {
        connect_timeout: Duration::from_millis(600),
        probe_timeout: Duration::from_millis(200),
        restart: Restart::Never,
        ..quiet()
    };
    let server = house.spec("cat", vec!["/dev/zero".into()], settings);
    house.publish(Some(&server));
    let refused = house
        .pools
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy));
    assert_eq!(
        within(refused).await.expect_err("it talks nonsense").code,
        CallErrorCode::WorkerUnavailable
    );
    house.until_live(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spares_become_the_processes_of_sessions() {
    let settings = StdioSettings {
        isolation: Isolation::Session,
        warm: 1,
        ..StdioSettings::default()
    };
    let (house, server) = House::with("legacy", settings);
    house.until_live(2).await;
    let started = house.metric("tooldock_server_processes_started_total");
    let key = |tag: &str| ConnectionKey::Session(tag.into());
    let open = || client(json!({ "roots": {} }), None);
    let leased = house.lease(&server, key("a"), open()).await;
    assert_eq!(
        call(&leased, "look").await.expect("answered")["client"],
        json!({ "roots": {} })
    );
    // A spare for the next request.
    house
        .until("tooldock_server_processes_started_total", started + 1.0)
        .await;
    house.until_live(3).await;
    drop(leased);
    within(house.pools.shutdown(Duration::from_secs(20))).await;
    house.until_live(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_the_pools_ends_every_process() {
    let (house, server) = House::with("legacy", quiet());
    let leased = house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    drop(leased);
    let House {
        pools, exported, ..
    } = house;
    drop(pools);
    let live = || {
        let families = exported.gather();
        let mut families = families.iter();
        let family = families.find(|it| it.name() == "tooldock_server_processes_live");
        family.map_or(0.0, |it| {
            it.get_metric()
                .iter()
                .map(|it| it.get_gauge().value())
                .sum()
        })
    };
    within(async {
        while live() > 0.5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_come_and_go_in_every_way_leave_no_process() {
    let (house, server) = House::with("legacy", StdioSettings::default());
    house.until_live(1).await;
    let visit = |n: usize| {
        let (house, server) = (&house, &server);
        async move {
            let tag = format!("session-{n}");
            let key = match n % 5 {
                0 => ConnectionKey::Exclusive,
                _ => ConnectionKey::Session(tag.as_str().into()),
            };
            let open = client(json!({ "roots": {} }), None);
            let lease = house.pools.lease(server, key, open);
            if n % 5 == 1 {
                // The client leaves while its process starts.
                let _ = tokio::time::timeout(Duration::from_millis(5), lease).await;
            } else {
                let leased = within(lease).await.expect("leased");
                let tool = ["look", "look", "look", "crash", "exit"][n % 5];
                let _ = call(&leased, tool).await;
            }
            house.pools.session_closed(&tag);
        }
    };
    for round in 0..4 {
        futures_util::future::join_all((0..10).map(|n| visit(round * 10 + n))).await;
    }
    let pool = house.pools.latest(&server.name).expect("a pool");
    {
        let inner = pool.lock();
        assert_eq!((inner.waiters.len(), inner.state.lasting().len()), (0, 0));
        assert!(inner.state.remembers_no_session(), "{:?}", inner.state);
    }
    within(house.pools.shutdown(Duration::from_secs(20))).await;
    house.until_live(0).await;
    {
        let inner = pool.lock();
        assert_eq!(
            (inner.live.len(), inner.state.counts()),
            (0, PoolCounts::default())
        );
    }
    let count = |what: &str| house.metric(&format!("tooldock_server_processes_{what}_total"));
    assert!((count("started") - count("reaped")).abs() < 0.1);
}
