//! Tests of the whole service with real servers: effects on clients when a process dies, hangs or does not come back.

use std::path::Path;

use http::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Handle;
use tooldock_base::answers::AnswerBudget;
use tooldock_base::config::Limits;
use tooldock_base::policy::ToolPolicy;
use tooldock_base::runtimes::Runtimes;
use tooldock_base::secret::Secret;
use tooldock_process::metrics::WorkerMetrics;
use tooldock_servers::testing::{SCRIPT, guard, within};
use tooldock_sessions::audit::Audit;
use tooldock_sessions::testing::{caller, namespace};
use tooldock_workers::external::{ExternalServer, StdioSettings, StdioSpec};
use tooldock_workers::registry::UpstreamKind;
use tooldock_workers::server_settings::Isolation;

use super::*;
use crate::mcp::head::MirroredHeaders;
use crate::mcp::tests::wire::Wire;
use crate::testing::{Unlimited, asked, delivered, head, parts};

mod cost;

/// A gateway with one server, in the namespace `shared`, and the folder that the server reads.
struct House {
    service: Service,
    exported: prometheus::Registry,
    folder: TempDir,
}

fn server(era: &str, folder: &Path, settings: StdioSettings) -> ExternalServer {
    let path = std::env::var("PATH").expect("text");
    let args = ["-S", "-E", SCRIPT, era].map(Into::into).into_iter();
    let spec = StdioSpec {
        program: "python3".into(),
        args: args.chain([folder.into()]).collect(),
        personal: Default::default(),
        env: vec![("PATH".into(), Secret::new(path))],
        secrets: Vec::new(),
        cwd: "/".into(),
        settings,
        sandbox: Default::default(),
    };
    ExternalServer::new("shared".parse().expect("a name"), spec)
}

impl House {
    fn new(era: &str, isolation: Isolation) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = StdioSettings {
            isolation,
            warm: 0,
            ..StdioSettings::default()
        };
        let mut external = namespace("shared");
        external.tools = Vec::new();
        // The server has tools that it does not list, so the policy must allow all names.
        external.limits = Limits::default();
        external.policy = ToolPolicy::new(&external.limits).expect("patterns");
        let server = server(era, folder.path(), settings);
        external.upstream = UpstreamKind::External(Arc::new(server));
        let registry = Arc::new(Registry::default());
        registry.swap(Snapshot {
            generation: 1,
            namespaces: [(external.name.clone(), Arc::new(external))].into(),
        });
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
        let metrics = UpstreamMetrics::new(&exported).expect("fresh");
        let parts = ServiceParts {
            stores: crate::testing::shadow::of_this_test().map(|it| it.stores()),
            registry,
            reloader: None,
            sessions: SessionsConfig::default(),
            sessions_per_principal: 100,
            session_bytes_per_principal: bytesize::ByteSize::mib(64),
            replicas: tooldock_sessions::replicas::Replicas::alone(),
            session_key: SessionKey::from_text("a key for tests"),
            streams_per_principal: 10,
            limiter: Arc::new(Unlimited),
            audit: Audit::off(),
            credentials: None,
            management: None,
            web: None,
            links: None,
            http_client: None,
            pages: None,
            answers: AnswerBudget::unbounded(),
            metrics: Arc::new(metrics),
            health: Arc::new(Health::new()),
        };
        Self {
            service: Service::with_servers(parts, Arc::new(host)),
            exported,
            folder,
        }
    }

    async fn post(&self, head: McpHead, body: &Value) -> Reply {
        let body = body.to_string().into();
        within(self.service.post(caller(), head, body)).await
    }

    /// Opens a session; returns its id and the result of `initialize`.
    async fn open(&self, capabilities: Value) -> (String, Value) {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-11-25", "capabilities": capabilities,
            "clientInfo": { "name": "c", "version": "1" } } });
        let reply = self.post(head(None, None), &body).await;
        let headers = &reply.head().headers;
        let id = headers.iter().find(|(name, _)| name == "mcp-session-id");
        let id = id.map(|(_, id)| id.to_str().expect("ASCII").to_owned());
        let (status, answer) = parts(&reply);
        assert_eq!(status, StatusCode::OK, "{answer}");
        delivered(reply);
        let id = id.expect("a session");
        let confirmed = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.post(head(Some(&id), None), &confirmed).await;
        (id, answer["result"].clone())
    }

    async fn in_session(&self, session: &str, method: &str, params: Value) -> Value {
        let body = json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params });
        parts(&self.post(head(Some(session), None), &body).await).1
    }

    async fn call(&self, session: &str, tool: &str) -> Value {
        let params = json!({ "name": tool, "arguments": {} });
        self.in_session(session, "tools/call", params).await
    }

    async fn modern(&self, method: &str, mut params: Value) -> Reply {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let body = json!({ "jsonrpc": "2.0", "id": "m", "method": method, "params": params });
        let mirrored = MirroredHeaders {
            method: Some(method.to_owned()),
            name: params["name"].as_str().map(str::to_owned),
            ..MirroredHeaders::default()
        };
        let head = McpHead {
            version: Some("2026-07-28".to_owned()),
            mirrored: Some(Box::new(mirrored)),
            ..head(None, None)
        };
        self.post(head, &body).await
    }

    async fn rest(&self, path: &str) -> (StatusCode, Value) {
        let request = asked(path, b"");
        parts(&within(self.service.handle(caller(), request)).await)
    }

    /// The names of the tools that ran so far.
    fn ran(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("ran")).unwrap_or_default()
    }

    fn metric(&self, name: &str) -> f64 {
        let families = self.exported.gather();
        let families = families.iter().filter(|it| it.name() == name);
        families
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .map(|it| it.get_gauge().value() + it.get_counter().value())
            .sum()
    }

    async fn until_live(&self, processes: u32) {
        let live = || self.metric("tooldock_server_processes_live");
        within(async {
            while (live() - f64::from(processes)).abs() > 0.1 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await;
    }

    /// Ends the shared process for good.
    async fn take_down(&self, session: &str) {
        std::fs::write(self.folder.path().join("down"), "").expect("written");
        self.call(session, "crash").await;
        within(async { while self.call(session, "look").await["result"]["pid"].is_u64() {} }).await;
    }

    async fn end(self) {
        within(self.service.end_servers(Duration::from_secs(20))).await;
        self.until_live(0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_whose_process_died_is_repeated_only_where_the_tool_allows_it() {
    for (tool, ran) in [
        ("look_once", "look_once\nlook_once\n"),
        ("pay_once", "pay_once\n"),
    ] {
        let house = House::new("legacy", Isolation::Auto);
        let (session, _) = house.open(json!({})).await;
        // From here on the annotations of the tools are known.
        house.in_session(&session, "tools/list", json!({})).await;
        let answer = house.call(&session, tool).await;
        assert_eq!(house.ran(), ran, "{answer}");
        let is_error = &answer["result"]["isError"];
        assert_eq!(is_error == &json!(true), tool == "pay_once", "{answer}");
        // The process is back for further calls.
        let answer = house.call(&session, "look").await;
        assert!(answer["result"]["pid"].is_u64(), "{answer}");
        house.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_does_not_notice_that_its_own_process_was_replaced() {
    let house = House::new("legacy", Isolation::Auto);
    let capabilities = json!({ "elicitation": {}, "roots": { "listChanged": true } });
    let (session, _) = house.open(capabilities.clone()).await;
    for (method, params) in [
        ("resources/subscribe", json!({ "uri": "test://a" })),
        ("logging/setLevel", json!({ "level": "notice" })),
    ] {
        let answer = house.in_session(&session, method, params).await;
        assert!(answer["result"].is_object(), "{answer}");
    }
    let before = house.call(&session, "look").await["result"].clone();
    assert_eq!(before["client"], capabilities);
    let crashed = house.call(&session, "crash").await;
    assert_eq!(crashed["result"]["isError"], true, "{crashed}");
    let after = house.call(&session, "look").await["result"].clone();
    assert_ne!(after["pid"], before["pid"]);
    for what in ["client", "opened_by", "subscribed", "level"] {
        assert_eq!(after[what], before[what], "{what}");
    }
    assert_eq!(after["subscribed"], json!(["test://a"]));
    house.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleting_a_session_ends_its_process_at_once() {
    let house = House::new("legacy", Isolation::Auto);
    let (session, _) = house.open(json!({ "sampling": {} })).await;
    house.call(&session, "look").await;
    house.until_live(2).await;
    let reply = house.service.delete(caller(), head(Some(&session), None));
    assert!(within(reply).await.head().status.is_success());
    house.until_live(1).await;
    house.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_down_is_spoken_for_by_what_it_last_said() {
    let house = House::new("legacy", Isolation::Auto);
    let (session, opened) = house.open(json!({})).await;
    let listed = house.in_session(&session, "tools/list", json!({})).await;
    let (_, rest) = house.rest("/tools").await;
    assert_eq!(rest[0]["name"], "look");
    house.take_down(&session).await;

    let (later, again) = house.open(json!({})).await;
    assert_eq!(again, opened);
    let (own, again) = house.open(json!({ "roots": {} })).await;
    assert_eq!(again["serverInfo"], opened["serverInfo"]);
    let discovered = parts(&house.modern("server/discover", json!({})).await).1;
    assert!(
        discovered["result"]["capabilities"]["tools"].is_object(),
        "{discovered}"
    );
    assert_eq!(
        house.in_session(&later, "tools/list", json!({})).await,
        listed
    );
    assert_eq!(house.rest("/tools").await.1, rest);
    assert!(house.metric("tooldock_server_last_good_total") > 3.5);
    // Calls are never answered on behalf of the server.
    for session in [&later, &own] {
        let answer = house.call(session, "look").await;
        assert_eq!(answer["result"]["isError"], true, "{answer}");
    }
    let (_, ready) = house.rest("/ready").await;
    let server = &ready["namespaces"][0]["server"];
    assert_eq!(ready["namespaces"][0]["state"], "failed");
    assert_eq!(server["last_restart"]["reason"], "crash", "{ready}");
    house.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tools_are_listed_anew_when_the_server_says_that_they_changed() {
    for era in ["legacy", "modern"] {
        let house = House::new(era, Isolation::Auto);
        let (session, _) = house.open(json!({})).await;
        let names = async || {
            let (_, tools) = house.rest("/tools").await;
            let tools = tools.as_array().expect("a list").clone();
            let names = tools.iter().map(|tool| tool["name"].clone());
            names.collect::<Vec<_>>()
        };
        assert!(!names().await.contains(&json!("grown")));
        house.call(&session, "grow").await;
        within(async { while !names().await.contains(&json!("grown")) {} }).await;
        house.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_modern_client_hears_of_resources_where_sessions_have_their_own_processes() {
    for era in ["legacy", "modern"] {
        for isolation in [Isolation::Session, Isolation::Principal, Isolation::Auto] {
            let house = House::new(era, isolation);
            let wanted =
                json!({ "notifications": { "resourceSubscriptions": ["test://ticking"] } });
            let mut wire = Wire::of(house.modern("subscriptions/listen", wanted).await);
            let acknowledged = within(wire.message()).await.expect("a first message");
            assert_eq!(
                acknowledged["params"]["notifications"]["resourceSubscriptions"],
                json!(["test://ticking"])
            );
            let updated = within(wire.message()).await.expect("news");
            assert_eq!(
                updated["params"]["uri"], "test://ticking",
                "{era} {isolation:?}"
            );
            drop(wire);
            house.end().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_a_modern_server_hears_of_its_own_process() {
    let house = House::new("modern", Isolation::Session);
    let (session, _) = house.open(json!({})).await;
    let get = house.service.get(caller(), head(Some(&session), None));
    let mut wire = Wire::of(within(get).await);
    let subscribe = json!({ "uri": "test://ticking" });
    let answer = house
        .in_session(&session, "resources/subscribe", subscribe)
        .await;
    assert!(answer["result"].is_object(), "{answer}");
    let updated = within(wire.message()).await.expect("news");
    assert_eq!(updated["method"], "notifications/resources/updated");
    assert_eq!(updated["params"], json!({ "uri": "test://ticking" }));
    house.end().await;
}
