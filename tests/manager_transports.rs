//! The manager listener has the transports of the core (MCP-41, LEG-06): EX-01 … EX-08 without `X-Namespace`, HTTP+SSE
//! of 2024-11-05, and 2026-07-28. One gateway for all of them.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::manager::with_manager;
use crate::support::sse::{Answering, End};
use crate::support::{Gateway, TOKEN};

const BOTH: &str = "application/json, text/event-stream";
const ORIGIN: &str = "https://ok.example";
const MODERN: &str = "2026-07-28";

/// The names of MGR-21.
const TOOLS: [&str; 33] = [
    "list_namespaces",
    "create_namespace",
    "delete_namespace",
    "reload_core",
    "list_tools",
    "get_tool_source",
    "write_tool",
    "delete_tool",
    "install_requirements",
    "add_requirement",
    "list_requirements",
    "prepare_secret",
    "list_secrets",
    "remove_secret",
    "check_secrets",
    "analyze_repo",
    "read_repo_file",
    "generate_tool",
    "test_tool",
    "install_pip_packages",
    "search_registry",
    "install_from_registry",
    "install_from_repo",
    "token_create",
    "token_list",
    "token_revoke",
    "explain",
    "read_output",
    "list_servers",
    "add_server",
    "remove_server",
    "health",
    "server_config",
];

/// A client of one listener, with the headers that all its requests have.
#[derive(Clone)]
struct Client {
    address: SocketAddr,
    headers: Vec<(String, String)>,
}

impl Client {
    fn new(address: SocketAddr) -> Self {
        let bearer = format!("Bearer {TOKEN}");
        Self {
            address,
            headers: Vec::new(),
        }
        .with("Authorization", &bearer)
        .with("Content-Type", "application/json")
        .with("Accept", BOTH)
    }

    /// This client with one more header, or with another value of it; an empty value removes the header.
    fn with(&self, name: &str, value: &str) -> Self {
        let mut client = self.clone();
        client.headers.retain(|(have, _)| have != name);
        if !value.is_empty() {
            client.headers.push((name.to_owned(), value.to_owned()));
        }
        client
    }

    async fn send(&self, method: &str, path: &str, body: &str) -> Answering {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "POST" {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        text += "\r\n";
        Answering::open(self.address, &(text + body)).await
    }

    async fn post(&self, message: &Value) -> Answering {
        self.send("POST", "/mcp", &message.to_string()).await
    }

    /// A request that is answered as JSON.
    async fn ask(&self, id: impl Into<Value>, method: &str, params: Value) -> Value {
        let mut answer = self.post(&request(id.into(), method, params)).await;
        assert_eq!(answer.status, 200, "{method}");
        answer.json().await
    }

    /// Opens a session (EX-01, EX-02).
    async fn open(&self, version: &str, answered: &str) -> Self {
        let mut answer = self.post(&initialize(version)).await;
        assert_eq!(answer.status, 200);
        let id = answer
            .header("mcp-session-id")
            .expect("a session")
            .to_owned();
        let body = answer.json().await;
        assert_eq!(body["id"], "init-1");
        let result = &body["result"];
        assert_eq!(result["protocolVersion"], answered);
        assert_eq!(result["capabilities"]["tools"]["listChanged"], true);
        assert_eq!(result["serverInfo"]["name"], "tooldock/_system");
        assert!(result["instructions"].is_string());
        let session = self.with("Mcp-Session-Id", &id);
        let session = match answered {
            "2025-03-26" => session,
            version => session.with("MCP-Protocol-Version", version),
        };
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}});
        let mut noted = session.post(&ready).await;
        assert_eq!((noted.status, noted.json().await), (202, Value::Null));
        session
    }
}

fn request(id: Value, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

fn initialize(version: &str) -> Value {
    let client = json!({"name": "curl", "version": "1.0"});
    let params = json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client});
    request(json!("init-1"), "initialize", params)
}

/// A call that reports progress.
fn reload(id: u64) -> Value {
    let params =
        json!({"name": "reload_core", "arguments": {}, "_meta": {"progressToken": "steps"}});
    request(json!(id), "tools/call", params)
}

fn names(listed: &Value) -> Vec<&str> {
    let tools = listed["result"]["tools"].as_array().expect("tools");
    tools
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect()
}

/// The value of a successful call.
fn value(answer: &Value) -> Value {
    let result = &answer["result"];
    assert_eq!(result["isError"], false, "{answer}");
    serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap()
}

#[tokio::test]
async fn the_manager_speaks_every_transport_and_version_of_the_core() {
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder.env("CORS_ORIGINS", ORIGIN).start().await;
    let client = Client::new(address);
    let session = sessions_of_every_version(&client).await;
    faults(&client, &session).await;
    streams(&session).await;
    ended(&session).await;
    http_and_sse(&client).await;
    without_sessions(&client).await;
    // Paths of the core are not served here.
    for path in [
        "/tools",
        "/namespaces",
        "/openapi.json",
        "/reload",
        "/mcp/shared",
    ] {
        let answer = client.send("GET", path, "").await;
        assert_eq!(answer.status, 404, "{path}");
    }
    let health = client.with("Authorization", "");
    assert_eq!(health.send("GET", "/health", "").await.status, 200);
    assert_eq!(gateway.exited(), None);
}

/// EX-01 … EX-04b and EX-06; a session of 2025-11-25.
async fn sessions_of_every_version(client: &Client) -> Client {
    for (asked, answered) in [
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2099-01-01", "2025-11-25"),
    ] {
        let json_alone = client.with("Accept", "application/json");
        let opening = match asked {
            "2025-03-26" => &json_alone,
            _ => client,
        };
        let session = opening.open(asked, answered).await;
        let listed = session.ask("tools-1", "tools/list", json!({})).await;
        assert_eq!(names(&listed), TOOLS, "{asked}");
        let call = json!({"name": "health", "arguments": {}});
        let called = session.ask(7, "tools/call", call).await;
        assert_eq!(value(&called)["core_reachable"], true);
        let structured = called["result"].get("structuredContent");
        assert_eq!(structured.is_some(), answered >= "2025-06-18", "{called}");
        let wrong = json!({"name": "create_namespace", "arguments": {"name": "Bad.Name"}});
        let failed = session.ask(8, "tools/call", wrong).await;
        let result = &failed["result"];
        assert_eq!(result["isError"], true, "{failed}");
        assert_eq!(
            result["_meta"]["tooldock/error"]["code"],
            "invalid_arguments"
        );
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(text.starts_with("invalid_arguments: "), "{text}");
        assert!(result.get("structuredContent").is_none(), "{failed}");
        let unknown = json!({"name": "no_such_tool", "arguments": {}});
        let unknown = session.ask(9, "tools/call", unknown).await;
        let code = &unknown["result"]["_meta"]["tooldock/error"]["code"];
        assert_eq!(code, "tool_not_found", "{unknown}");
        let pong = session.ask(3, "ping", json!({})).await;
        assert_eq!(pong, json!({"jsonrpc": "2.0", "id": 3, "result": {}}));
    }
    let session = client.open("2025-11-25", "2025-11-25").await;
    let listed = session.ask(1, "tools/list", json!({})).await;
    for tool in listed["result"]["tools"].as_array().unwrap() {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        assert_eq!(tool["outputSchema"]["type"], "object", "{tool}");
        assert!(tool["annotations"]["readOnlyHint"].is_boolean(), "{tool}");
    }
    session
}

/// EX-08. `X-Namespace` is not needed here and not read.
async fn faults(client: &Client, session: &Client) {
    let list = request(json!(1), "tools/list", json!({})).to_string();
    let latest = client.with("MCP-Protocol-Version", "2025-11-25");
    for (fault, client, body, status) in [
        (
            "no credentials",
            client.with("Authorization", ""),
            &*list,
            401,
        ),
        (
            "a wrong token",
            client.with("Authorization", "Bearer nobody"),
            &list,
            401,
        ),
        (
            "Basic",
            client.with("Authorization", "Basic YTpi"),
            &list,
            401,
        ),
        (
            "a foreign origin",
            client.with("Origin", "https://evil.example"),
            &list,
            403,
        ),
        ("a known origin", client.with("Origin", ORIGIN), &list, 200),
        (
            "an unknown namespace",
            client.with("X-Namespace", "nope"),
            &list,
            200,
        ),
        (
            "text",
            client.with("Content-Type", "text/plain"),
            &list,
            415,
        ),
        (
            "JSON alone",
            session.with("Accept", "application/json"),
            &list,
            406,
        ),
        ("anything", session.with("Accept", "*/*"), &list, 406),
        ("no Accept", session.with("Accept", ""), &list, 406),
        (
            "JSON alone for 2025-06-18",
            client.with("Accept", "application/json"),
            &initialize("2025-06-18").to_string(),
            406,
        ),
        (
            "no version context",
            client.with("Accept", "*/*"),
            &list,
            200,
        ),
        (
            "an unknown version",
            client.with("MCP-Protocol-Version", "1999-01-01"),
            &list,
            400,
        ),
        (
            "another version than the session's",
            session.with("MCP-Protocol-Version", "2025-06-18"),
            &list,
            400,
        ),
        ("no session", latest.clone(), &list, 400),
        (
            "an unknown session",
            client.with("Mcp-Session-Id", "nobody"),
            &list,
            404,
        ),
        ("half a message", client.clone(), "{", 400),
        (
            "no method",
            client.clone(),
            r#"{"jsonrpc":"2.0","id":1}"#,
            400,
        ),
    ] {
        let mut answer = client.send("POST", "/mcp", body).await;
        assert_eq!(answer.status, status, "{fault}");
        if status == 401 {
            let challenge = answer.header("www-authenticate").unwrap_or_default();
            assert!(challenge.starts_with("Bearer"), "{fault}: {challenge}");
        }
        let answer = answer.json().await;
        if status >= 400 {
            let error = &answer["error"];
            assert!(error["code"].is_i64(), "{fault}: {answer}");
            assert!(error["data"]["code"].is_string(), "{fault}: {answer}");
        }
    }
    let mut broken = client.send("POST", "/mcp", "{").await;
    assert_eq!(broken.json().await["error"]["code"], -32700);
    let unknown = client.ask(5, "nope/x", json!({})).await;
    assert_eq!(unknown["id"], 5);
    assert_eq!(unknown["error"]["code"], -32601);
    assert_eq!(unknown["error"]["message"], "Method not found: nope/x");
    let put = client.send("PUT", "/mcp", "").await;
    assert_eq!(put.status, 405);
    let allowed = put.header("allow").unwrap_or_default();
    for method in ["GET", "POST", "DELETE"] {
        assert!(allowed.contains(method), "{allowed}");
    }
}

/// EX-05: a stream of the session. EX-05b: a stream that was lost is taken up after its last event.
async fn streams(session: &Client) {
    for accept in ["", "*/*", "application/json"] {
        let answer = session.with("Accept", accept).send("GET", "/mcp", "").await;
        assert_eq!(answer.status, 406, "{accept:?}");
    }
    let events = session.with("Accept", "text/event-stream");
    let stream = events.send("GET", "/mcp", "").await;
    assert_eq!(stream.status, 200);
    assert!(stream.is_events());
    let caching = stream.header("cache-control").unwrap_or_default();
    assert!(caching.starts_with("no-cache"), "{caching}");
    assert_eq!(stream.header("x-accel-buffering"), Some("no"));

    let mut answer = session.post(&reload(4)).await;
    assert!(answer.is_events(), "progress comes before the answer");
    let mut seen = Vec::new();
    while let Some(event) = answer.event().await {
        seen.push(event);
    }
    assert_eq!(answer.end().await, End::Whole);
    let (last, progress) = seen.split_last().expect("an answer");
    assert_eq!(value(&last.json())["reloaded"], true);
    assert!(progress.len() >= 2, "{progress:?}");
    for event in progress {
        let message = event.json();
        assert_eq!(message["method"], "notifications/progress");
        assert_eq!(message["params"]["progressToken"], "steps");
    }
    let first = progress[0].id.as_deref().expect("events have ids");
    let mut again = events
        .with("Last-Event-ID", first)
        .send("GET", "/mcp", "")
        .await;
    assert_eq!(again.status, 200);
    for expected in &seen[1..] {
        let event = again.event().await.expect("what came after it");
        assert_eq!((&event.id, &event.data), (&expected.id, &expected.data));
    }
    let foreign = events.with("Last-Event-ID", "nonsense");
    assert_eq!(foreign.send("GET", "/mcp", "").await.status, 400);
}

/// EX-07.
async fn ended(session: &Client) {
    let deleted = session.send("DELETE", "/mcp", "").await.status;
    assert!([200, 204].contains(&deleted), "{deleted}");
    let list = request(json!(1), "tools/list", json!({}));
    assert_eq!(session.post(&list).await.status, 404);
    assert_eq!(session.send("DELETE", "/mcp", "").await.status, 404);
    let events = session.with("Accept", "text/event-stream");
    assert_eq!(events.send("GET", "/mcp", "").await.status, 404);
}

/// LEG-06, EX-10 without a namespace.
async fn http_and_sse(client: &Client) {
    let events = client.with("Accept", "text/event-stream");
    let anonymous = events.with("Authorization", "");
    assert_eq!(anonymous.send("GET", "/sse", "").await.status, 401);
    let mut stream = events.send("GET", "/sse", "").await;
    assert_eq!(stream.status, 200);
    let first = stream.next().await.expect("the endpoint");
    assert_eq!(first.name.as_deref(), Some("endpoint"));
    let endpoint = first.data;
    assert!(endpoint.starts_with("/messages?session_id="), "{endpoint}");
    let ping = request(json!(1), "ping", json!({})).to_string();
    let anonymous = client.with("Authorization", "");
    assert_eq!(anonymous.send("POST", &endpoint, &ping).await.status, 401);
    let nobody = "/messages?session_id=nobody";
    assert_eq!(client.send("POST", nobody, &ping).await.status, 404);

    for message in [
        initialize("2024-11-05"),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        request(json!("2"), "tools/list", json!({})),
        reload(3),
    ] {
        let posted = client.send("POST", &endpoint, &message.to_string()).await;
        assert_eq!(posted.status, 202, "{message}");
        match message["id"].as_str() {
            Some("init-1") => {
                let answer = stream.message().await;
                assert_eq!(answer["result"]["protocolVersion"], "2024-11-05");
            }
            Some("2") => assert_eq!(names(&stream.message().await), TOOLS),
            _ => {}
        }
    }
    let progress = stream.message().await;
    assert_eq!(progress["params"]["progressToken"], "steps", "{progress}");
    let answer = loop {
        let message = stream.message().await;
        if message["id"] == 3 {
            break message;
        }
        assert_eq!(message["method"], "notifications/progress", "{message}");
    };
    assert_eq!(value(&answer)["reloaded"], true);
}

/// 2026-07-28: every request carries its own facts.
async fn without_sessions(client: &Client) {
    let modern = |id: Value, method: &str, mut params: Value| {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
        params["_meta"]["io.modelcontextprotocol/clientInfo"] =
            json!({"name": "t", "version": "1"});
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
        let client = client
            .with("MCP-Protocol-Version", MODERN)
            .with("Mcp-Method", method)
            .with("Mcp-Name", params["name"].as_str().unwrap_or_default());
        (client, request(id, method, params))
    };
    let ask = async |id: u64, method: &str, params: Value| {
        let (client, message) = modern(json!(id), method, params);
        let mut answer = client.post(&message).await;
        assert_eq!(answer.status, 200, "{method}");
        assert_eq!(answer.header("mcp-session-id"), None);
        answer.json().await
    };
    let found = ask(1, "server/discover", json!({})).await;
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    for version in [MODERN, "2025-11-25", "2025-06-18", "2025-03-26"] {
        assert!(versions.contains(&json!(version)), "{found}");
    }
    let listed = ask(2, "tools/list", json!({})).await;
    assert_eq!(names(&listed), TOOLS);
    assert!(listed["result"]["ttlMs"].is_u64(), "{listed}");
    let call = json!({"name": "server_config", "arguments": {}});
    let called = ask(3, "tools/call", call).await;
    assert_eq!(value(&called)["manager_port"], client.address.port());
    let wrong = json!({"name": "delete_tool", "arguments": {}});
    let failed = ask(4, "tools/call", wrong).await;
    assert_eq!(failed["result"]["isError"], true, "{failed}");

    let params = reload(0)["params"].clone();
    let (long, message) = modern(json!(5), "tools/call", params);
    let mut messages = long.post(&message).await.messages().await;
    let last = messages.pop().expect("an answer");
    assert_eq!(value(&last)["reloaded"], true);
    assert!(messages.len() >= 2, "{messages:?}");

    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let (listener, message) = modern(json!("l"), "subscriptions/listen", wanted);
    let mut stream = listener.post(&message).await;
    assert_eq!(stream.status, 200);
    let acknowledged = stream.message().await;
    let method = "notifications/subscriptions/acknowledged";
    assert_eq!(acknowledged["method"], method, "{acknowledged}");

    let (mirrored, message) = modern(json!(6), "tools/list", json!({}));
    let other = mirrored
        .with("Mcp-Method", "tools/call")
        .post(&message)
        .await;
    assert_eq!(other.status, 400, "the header says another method");
}
