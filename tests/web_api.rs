//! The listener of the web UI: who gets in, what its API does, and what never gets out.

mod operations;
mod rights;

use std::fs;
use std::net::SocketAddr;

use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::support::compiled;
use crate::support::gateway::Builder;
use crate::support::ports::free_address;
use crate::support::programs::python;
use crate::support::registry::registry;
use crate::support::sse::Answering;
use crate::support::tools::write_wheel;
use crate::support::{Gateway, TOKEN, eventually};

/// A value that must stand in no answer, stream or log.
const CANARY: &str = "canary-5d1e8c-value";

const ADD: &str = r#"
from fastmcp.tools import tool

@tool
def add(b: int, a: int) -> int:
    """Adds."""
    return a + b
"#;

const SUBTRACT: &str = r#"
from fastmcp.tools import tool

@tool
def subtract(a: int, b: int) -> int:
    """Subtracts."""
    return a - b
"#;

/// Adds the web UI's listener to a gateway that is about to start.
fn with_web(builder: Builder) -> (Builder, SocketAddr) {
    let (core, web, metrics) = (free_address(), free_address(), free_address());
    let builder = builder
        .listening(core, metrics)
        .env("ALLOW_INSECURE_SECRETS", "true")
        .env("HOST_DATA_DIR", "/srv/tools")
        .config(json!({"listeners": [
            {"name": "core", "address": core.to_string(), "profile": "core"},
            {"name": "web", "address": web.to_string(), "profile": "v1-web"},
            {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
        ]}));
    (builder, web)
}

/// A client at the web UI's listener, with the bearer token.
struct Web {
    address: SocketAddr,
    client: Client,
}

impl Web {
    fn at(address: SocketAddr) -> Self {
        let client = Client::new();
        Self { address, client }
    }

    fn bare(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().expect("a method");
        self.client
            .request(method, format!("http://{}{path}", self.address))
    }

    fn request(&self, method: &str, path: &str) -> RequestBuilder {
        self.bare(method, path).bearer_auth(TOKEN)
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        answer(self.request("GET", path)).await
    }

    async fn delete(&self, path: &str) -> (u16, Value) {
        answer(self.request("DELETE", path)).await
    }

    async fn send(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        answer(self.request(method, path).json(&body)).await
    }

    async fn events(&self, path: &str) -> Answering {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nAccept: text/event-stream\r\n\r\n"
        );
        Answering::open(self.address, &request).await
    }
}

async fn sent(request: RequestBuilder) -> Response {
    request.send().await.expect("answered")
}

async fn answer(request: RequestBuilder) -> (u16, Value) {
    let answer = sent(request).await;
    let status = answer.status().as_u16();
    let cache = answer.headers()["cache-control"].to_str().expect("text");
    assert!(cache.starts_with("no-store"), "{cache}");
    let text = answer.text().await.expect("text");
    assert!(!text.contains(CANARY), "{text}");
    let body: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("no JSON: {text}"));
    if status >= 400 {
        assert_eq!(body["detail"], body["error"]["message"], "{body}");
        assert!(body["error"]["code"].is_string(), "{body}");
    }
    (status, body)
}

fn code(answer: &(u16, Value)) -> (u16, &str) {
    (
        answer.0,
        answer.1["error"]["code"].as_str().unwrap_or_default(),
    )
}

/// EX-90, SEC-17, and the rights of a browser and of other pages in it.
#[tokio::test]
async fn only_the_own_page_and_holders_of_a_token_get_in() {
    let (builder, address) = with_web(Gateway::empty());
    let _gateway = builder.start().await;
    let web = Web::at(address);
    let challenge = |answer: &Response| {
        answer.headers()["www-authenticate"]
            .to_str()
            .expect("text")
            .to_owned()
    };

    // The page asks a browser for a name and a password; requests of a page's script are refused plainly.
    let refused = sent(web.bare("GET", "/")).await;
    assert_eq!(refused.status(), 401);
    assert!(challenge(&refused).starts_with("Basic realm="));
    for (path, mode, scheme) in [
        ("/", "cors", "Bearer"),
        ("/api/folders", "same-origin", "Bearer"),
        ("/api/folders", "navigate", "Basic"),
        ("/mcp", "cors", "Bearer"),
    ] {
        let refused = sent(web.bare("GET", path).header("Sec-Fetch-Mode", mode)).await;
        assert_eq!(refused.status(), 401, "{path}");
        assert!(challenge(&refused).starts_with(scheme), "{path} {mode}");
    }
    assert!(challenge(&sent(web.bare("GET", "/api/folders")).await).starts_with("Bearer"));
    for (user, password) in [
        ("admin", "wrong"),
        ("root", TOKEN),
        ("", TOKEN),
        (TOKEN, ""),
    ] {
        let refused = sent(web.bare("GET", "/").basic_auth(user, Some(password))).await;
        assert_eq!(refused.status(), 401, "{user}");
    }

    let page = sent(web.bare("GET", "/").basic_auth("admin", Some(TOKEN))).await;
    assert_eq!(page.status(), 200);
    assert!(
        page.headers()["content-type"]
            .to_str()
            .expect("text")
            .starts_with("text/html")
    );
    let policy = page.headers()["content-security-policy"]
        .to_str()
        .expect("text");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    assert!(!policy.contains("unsafe"));
    assert_eq!(page.headers()["x-content-type-options"], "nosniff");
    assert_eq!(page.headers()["referrer-policy"], "no-referrer");
    assert_eq!(page.headers()["cache-control"], "no-store");
    // The page's files and the health check need no credential.
    let script = sent(
        web.bare("GET", "/assets/app.js?v=1")
            .header("Accept-Encoding", "gzip"),
    )
    .await;
    assert_eq!(
        (
            script.status().as_u16(),
            &script.headers()["content-encoding"]
        ),
        (200, &"gzip".parse().expect("a value"))
    );
    assert!(
        script.headers()["cache-control"]
            .to_str()
            .expect("text")
            .contains("immutable")
    );
    assert_eq!(
        sent(web.bare("GET", "/assets/index.html")).await.status(),
        404
    );
    assert_eq!(sent(web.bare("GET", "/health")).await.status(), 200);
    assert_eq!(sent(web.request("GET", "/tools")).await.status(), 404);

    // Both ways to say who it is.
    let basic = || {
        web.bare("GET", "/api/folders")
            .basic_auth("admin", Some(TOKEN))
    };
    assert_eq!(answer(basic()).await.0, 200);
    assert_eq!(web.get("/api/folders").await.0, 200);

    // A browser adds Basic by itself, so a change needs the own page's proof; a bearer token is one.
    let create = |name: &str| {
        let create = web
            .bare("POST", "/api/folders")
            .basic_auth("admin", Some(TOKEN));
        create.json(&json!({ "name": name }))
    };
    let own = format!("http://{address}");
    let refused = answer(create("a").header("Origin", &own)).await;
    assert_eq!(code(&refused), (403, "csrf"));
    let refused = answer(create("a").header("Sec-Fetch-Site", "same-origin")).await;
    assert_eq!(code(&refused), (403, "csrf"));
    // A script is not a browser, so no credentials are added automatically.
    assert_eq!(answer(create("script")).await.0, 201);
    let forged = answer(
        create("a")
            .header("X-ToolDock-Request", "1")
            .header("Sec-Fetch-Site", "cross-site"),
    )
    .await;
    assert_eq!(code(&forged), (403, "csrf"));
    for origin in [
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "https://localhost",
    ] {
        let stranger = create("a")
            .header("X-ToolDock-Request", "1")
            .header("Origin", origin);
        assert_eq!(
            code(&answer(stranger).await),
            (403, "origin_not_allowed"),
            "{origin}"
        );
        let call = web
            .bare("POST", "/mcp/shared")
            .basic_auth("admin", Some(TOKEN));
        let call = sent(
            call.header("Origin", origin)
                .json(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})),
        )
        .await;
        assert_eq!(call.status(), 403, "{origin}");
    }
    let proven = create("a")
        .header("X-ToolDock-Request", "1")
        .header("Origin", &own);
    assert_eq!(
        answer(proven.header("Sec-Fetch-Site", "same-origin"))
            .await
            .0,
        201
    );
    assert_eq!(
        web.send("POST", "/api/folders", json!({"name": "b"}))
            .await
            .0,
        201
    );
    // A form of another page can carry neither.
    let form = web
        .bare("POST", "/api/folders/a/tools")
        .basic_auth("admin", Some(TOKEN));
    let form = form
        .header("Content-Type", "multipart/form-data; boundary=x")
        .header("Sec-Fetch-Site", "cross-site")
        .body("--x--");
    assert_eq!(code(&answer(form).await), (403, "csrf"));
    // A preflight of another page is not answered.
    let preflight = web
        .bare("OPTIONS", "/api/folders")
        .header("Origin", "http://evil.example");
    let preflight = sent(preflight.header("Access-Control-Request-Method", "POST")).await;
    assert_eq!(preflight.status(), 403);
}

/// A token that opens namespaces opens no management.
#[tokio::test]
async fn a_token_without_management_may_call_and_not_manage() {
    let (builder, address) = with_web(Gateway::empty());
    let token = crate::support::sha256("limited-token-0123456789");
    let builder = builder.config(json!({"admission": {"tokens": [
        {"name": "ci", "sha256": token, "namespaces": ["*"]}]}}));
    let _gateway = builder.start().await;
    let web = Web::at(address);
    let refused = answer(
        web.bare("GET", "/api/dashboard")
            .bearer_auth("limited-token-0123456789"),
    )
    .await;
    assert_eq!(code(&refused), (403, "namespace_forbidden"));
    let ping = web
        .bare("POST", "/mcp/shared")
        .bearer_auth("limited-token-0123456789");
    let ping = ping.json(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}));
    assert_eq!(sent(ping).await.status(), 200);
}

/// EX-91, GUI-03 to GUI-05: from an empty folder to a call that the log knows.
#[tokio::test]
async fn a_namespace_is_made_written_called_rolled_back_and_found_in_the_log() {
    let (builder, address) = with_web(Gateway::empty());
    let gateway = builder.start().await;
    let web = Web::at(address);
    let mut overview = web.events("/api/events").await;
    let first = overview.event().await.expect("an event");
    assert_eq!(first.name.as_deref(), Some("overview"));
    assert_eq!(first.json()["dashboard"]["host_data_dir"], "/srv/tools");
    let mut live = web.events("/api/activity/events?tool=add").await;

    assert_eq!(
        web.send("POST", "/api/folders", json!({"name": "team1"}))
            .await,
        (
            201,
            json!({"name": "team1", "endpoint": "/mcp/team1", "tool_count": 0, "tools": []})
        )
    );
    assert_eq!(
        code(
            &web.send("POST", "/api/folders", json!({"name": "team1"}))
                .await
        ),
        (409, "exists")
    );
    assert_eq!(
        code(
            &web.send("POST", "/api/folders", json!({"name": "Team"}))
                .await
        ),
        (400, "invalid_request")
    );

    // Wrong code is not written, and the answer names the line.
    let wrong = json!({"filename": "x.py", "content": "def add(:\n"});
    let checked = web
        .send("POST", "/api/folders/team1/validate", wrong.clone())
        .await;
    assert_eq!(
        (checked.0, &checked.1["valid"], &checked.1["line"]),
        (200, &json!(false), &json!(1)),
        "{}",
        checked.1
    );
    let refused = web.send("POST", "/api/folders/team1/tools", wrong).await;
    assert_eq!(code(&refused), (400, "invalid_tool"));
    let error = &refused.1["error"];
    assert_eq!(error["details"]["line"], 1);
    // The words are for a person who uploads a file, and stand in the message as a whole.
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("Invalid Python syntax: line 1: ")
            && message.ends_with(". Nothing was written: mend the file and send it again."),
        "{message}"
    );
    for text in [message, checked.1["details"].as_str().unwrap()] {
        assert!(!text.contains("write_tool"), "{text}");
    }
    assert!(!gateway.tools_dir().join("team1/x.py").exists());

    let right = json!({"filename": "x.py", "content": ADD});
    assert_eq!(
        web.send("POST", "/api/folders/team1/validate", right.clone())
            .await
            .1["tools"][0]["name"],
        "add"
    );
    let written = web.send("POST", "/api/folders/team1/tools", right).await;
    assert_eq!(
        (written.0, &written.1["tools_found"]),
        (201, &json!(["add"])),
        "{}",
        written.1
    );
    // As a browser's form, over it.
    let form = format!(
        "--xx\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x.py\"\r\nContent-Type: text/x-python\r\n\r\n{SUBTRACT}\r\n--xx--\r\n"
    );
    let replaced = web.request("POST", "/api/folders/team1/tools");
    let replaced = replaced
        .header("Content-Type", "multipart/form-data; boundary=xx")
        .body(form);
    let replaced = answer(replaced).await;
    assert_eq!(
        (replaced.0, &replaced.1["previous_version"]),
        (200, &json!(".history/x.py.1"))
    );

    // Its history, the difference, and back.
    let file = "/api/folders/team1/tools/x.py";
    assert_eq!(
        web.get(file).await.1["content"].as_str().map(str::trim),
        Some(SUBTRACT.trim())
    );
    let history = web.get(&format!("{file}/history")).await.1;
    assert_eq!(
        (&history["total"], &history["versions"][0]["version"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        web.get(&format!("{file}/history/1")).await.1["content"],
        ADD
    );
    assert_eq!(
        code(&web.get(&format!("{file}/history/7")).await),
        (404, "version_not_found")
    );
    let diff = web.get(&format!("{file}/diff?from=1&to=current")).await.1;
    assert!(
        diff["diff"]
            .as_str()
            .is_some_and(|it| it.contains("-def add") && it.contains("+def subtract")),
        "{diff}"
    );
    let back = web
        .send("POST", &format!("{file}/rollback"), json!({"version": 1}))
        .await;
    assert_eq!(
        (back.0, &back.1["tools_found"]),
        (200, &json!(["add"])),
        "{}",
        back.1
    );

    let reloaded = web
        .request("POST", "/api/reload")
        .send()
        .await
        .expect("answered");
    assert_eq!(reloaded.status(), 200);
    let tools = web.get("/api/folders/team1/tools").await.1;
    assert_eq!(
        (
            &tools["total"],
            &tools["tools"][0]["tools"],
            &tools["tools"][0]["versions"]
        ),
        (&json!(1), &json!(["add"]), &json!(2))
    );
    let served = web.get("/api/namespaces/team1/tools?q=ADD").await.1;
    assert_eq!(
        (&served["total"], &served["tools"][0]["inputSchema"]),
        (&json!(1), &Value::Null)
    );
    let tool = web.get("/api/namespaces/team1/tool?name=add").await.1;
    assert_eq!(tool["inputSchema"]["properties"]["a"]["type"], "integer");
    let written = web.request("GET", "/api/namespaces/team1/tool?name=add");
    let written = sent(written).await.text().await.expect("a text");
    let place = |name: &str| written.find(&format!("\"{name}\":{{")).expect(name);
    assert!(place("b") < place("a"), "the author's order: {written}");
    assert_eq!(
        code(&web.get("/api/namespaces/team1/tool?name=no").await),
        (404, "tool_not_found")
    );

    // Called by MCP on the same listener, without a session.
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {
        "name": "add", "arguments": {"a": 1, "b": 2}, "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "web", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}}}});
    let called = web
        .request("POST", "/mcp/team1")
        .json(&call)
        .header("Accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", "2026-07-28")
        .header("Mcp-Method", "tools/call")
        .header("Mcp-Name", "add");
    let called = sent(called).await;
    let id = called.headers()["x-request-id"]
        .to_str()
        .expect("text")
        .to_owned();
    let called: Value = called.json().await.expect("JSON");
    assert_eq!(
        called["result"]["structuredContent"]["result"], 3,
        "{called}"
    );

    // The log has it, live and by its id; so has every change, under the caller's name.
    let record = live.event().await.expect("a record").json();
    assert_eq!(
        (&record["request_id"], &record["tool"]),
        (&json!(id), &json!("add"))
    );
    let found = web.get(&format!("/api/activity?request_id={id}")).await.1;
    assert_eq!(found["records"], json!([record]));
    let one = web
        .get(&format!(
            "/api/activity/{}",
            record["id"].as_str().expect("text")
        ))
        .await
        .1;
    assert_eq!(one, record);
    let changes = web
        .get("/api/activity?namespace=_system&tool=write_tool&principal=bearer&limit=1")
        .await
        .1;
    assert_eq!(changes["records"][0]["status"], "ok", "{changes}");
    let next = changes["next_cursor"].as_str().expect("a cursor");
    assert_eq!(
        web.get(&format!(
            "/api/activity?tool=write_tool&cursor={next}&limit=1"
        ))
        .await
        .1["records"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );

    let figures = web.get("/api/namespaces/team1").await.1;
    assert_eq!(figures["sandbox"]["mode"], "basic", "{figures}");
    assert_eq!(
        (&figures["kind"], &figures["calls_per_minute"]),
        (&json!("python"), &json!(1)),
        "{figures}"
    );
    let dashboard = web.get("/api/dashboard").await.1;
    assert_eq!(
        (&dashboard["namespaces"], &dashboard["servers"]),
        (&json!(2), &json!({"total": 0, "running": 0}))
    );
    loop {
        let event = overview.event().await.expect("an event").json();
        let told = event["namespaces"].as_array().expect("a list");
        if told
            .iter()
            .any(|it| it["name"] == "team1" && it["calls_per_minute"] == 1)
        {
            break;
        }
    }

    let refused = web.delete("/api/folders/team1").await;
    assert_eq!(code(&refused), (400, "not_empty"));
    assert_eq!(web.delete(file).await.1["success"], true);
    assert_eq!(code(&web.delete(file).await), (404, "file_not_found"));
    assert_eq!(
        web.get("/api/folders/team1/tools").await.1["deleted"],
        json!([{"filename": "x.py", "versions": 3}])
    );
    assert_eq!(
        web.delete("/api/folders/team1?force=true").await.1["deleted_tools"],
        0
    );
    assert_eq!(
        code(&web.delete("/api/folders/team1").await),
        (404, "namespace_not_found")
    );
}

/// External names are unique across the configuration, servers and folders.
#[tokio::test]
async fn names_of_the_configuration_are_taken_for_servers_and_folders() {
    let (builder, address) = with_web(Gateway::empty());
    let operators = json!({
        "ops": {"command": compiled::stray()}, "off": {"command": "false", "enabled": false},
    });
    let builder = builder.config(json!({"upstreams": {"stdio": operators}}));
    let gateway = builder.start().await;
    let web = Web::at(address);
    // Written by a tool: the operator's server stays, and is not shown with this configuration.
    let external = gateway.data_dir().join("external");
    fs::create_dir_all(&external).expect("a folder");
    let planted = json!({"servers": {"ops": {"command": "false"}, "off": {"command": "false"}}});
    fs::write(external.join("config.yaml"), planted.to_string()).expect("written");
    gateway.reload().await;
    let listed = web.get("/api/servers").await.1;
    assert_eq!(listed["total"], 1, "{listed}");
    let server = &listed["servers"][0];
    assert_eq!(
        (&server["server_id"], &server["managed"], &server["config"]),
        (&json!("ops"), &json!(false), &Value::Null)
    );
    for name in ["ops", "off"] {
        let server = json!({"server_id": name, "config": {"command": "true"}});
        let folder = json!({"name": name});
        for (path, body) in [("/api/servers", server), ("/api/folders", folder)] {
            let (status, refused) = web.send("POST", path, body).await;
            assert!((400..500).contains(&status), "{path} {name}: {refused}");
            assert!(!gateway.tools_dir().join(name).exists());
        }
        let on = json!({"enabled": true});
        let (status, refused) = web.send("PUT", &format!("/api/servers/{name}"), on).await;
        assert!((400..500).contains(&status), "{name}: {refused}");
    }
}

/// EX-92, GUI-06, SEC-12, and secrets: values that are written never come out.
#[tokio::test]
async fn servers_and_secrets_are_managed_without_their_values() {
    let (builder, address) = with_web(Gateway::empty());
    let gateway = builder.start().await;
    let web = Web::at(address);
    let entry = json!({"server_id": "mssql", "config": {
        "source": "custom", "command": "/bin/false", "args": ["--token", CANARY, "-y"],
        "env": {"MSSQL_CONNECTION_STRING": format!("Server=db;Password={CANARY}"), "GITHUB_TOKEN": "${GITHUB_TOKEN}"}}});
    let added = web.send("POST", "/api/servers", entry.clone()).await;
    assert_eq!(added.0, 201, "{}", added.1);
    assert_eq!(
        code(&web.send("POST", "/api/servers", entry).await),
        (409, "exists")
    );
    let file =
        fs::read_to_string(gateway.data_dir().join("external/config.yaml")).expect("the file");
    assert!(file.contains("mssql") && file.contains(CANARY));
    let listed = web.get("/api/servers").await.1;
    let server = &listed["servers"][0];
    assert_eq!(
        (&listed["total"], &server["server_id"], &server["managed"]),
        (&json!(1), &json!("mssql"), &json!(true))
    );
    assert_eq!(
        server["config"]["env"],
        json!({"MSSQL_CONNECTION_STRING": "***MASKED***", "GITHUB_TOKEN": "${GITHUB_TOKEN}"})
    );
    assert_eq!(
        server["config"]["args"],
        json!(["--token", "***MASKED***", "-y"])
    );
    let wrong = json!({"server_id": "x", "config": {"source": "custom", "command": "a", "isolation": "never"}});
    let refused = web.send("POST", "/api/servers", wrong).await;
    assert_eq!(
        (code(&refused), &refused.1["error"]["details"]["field"]),
        ((400, "invalid_request"), &json!("config.isolation"))
    );
    let off = web
        .send("PUT", "/api/servers/mssql", json!({"enabled": false}))
        .await;
    assert_eq!(
        (&off.1["enabled"], &off.1["status"]),
        (&json!(false), &json!("disabled"))
    );
    assert_eq!(
        web.delete("/api/servers/mssql").await,
        (200, json!({"success": true, "server_id": "mssql"}))
    );
    assert_eq!(
        code(&web.delete("/api/servers/mssql").await),
        (404, "server_not_found")
    );

    fs::create_dir_all(gateway.tools_dir().join("team1")).expect("a folder");
    fs::write(
        gateway.tools_dir().join("team1/tooldock.yaml"),
        "secrets: [API_KEY]\n",
    )
    .expect("written");
    assert_eq!(
        web.get("/api/secrets").await.1["secrets"],
        json!([{"key": "API_KEY", "scope": "team1", "status": "missing", "used_by": ["team1"]}])
    );
    let set = web
        .send(
            "PUT",
            "/api/secrets",
            json!({"key": "API_KEY", "scope": "global", "value": CANARY}),
        )
        .await;
    assert_eq!(
        set,
        (
            200,
            json!({"set": true, "key": "API_KEY", "scope": "global"})
        )
    );
    assert_eq!(
        web.get("/api/secrets").await.1["secrets"],
        json!([{"key": "API_KEY", "scope": "global", "status": "set", "used_by": ["team1"]}])
    );
    // A body that cannot be read is not quoted.
    for body in [
        json!({"key": "K", "scope": "global", "value": [CANARY]}),
        json!({"key": CANARY, "scope": CANARY, "value": CANARY, "x": CANARY}),
    ] {
        assert_eq!(web.send("PUT", "/api/secrets", body).await.0, 400);
    }
    assert_eq!(
        web.delete("/api/secrets/global/API_KEY").await.1["removed"],
        true
    );
    assert_eq!(
        code(&web.delete("/api/secrets/global/API_KEY").await),
        (404, "secret_not_found")
    );
    let known = web.get("/api/activity?tool=set_secret&status=ok").await.1;
    assert_eq!(known["records"][0]["principal"], "bearer");
    let everything = [
        gateway.log(),
        web.get("/api/activity?limit=500").await.1.to_string(),
        gateway.metrics_text().await,
    ];
    assert!(everything.iter().all(|text| !text.contains(CANARY)));
}

/// SEC-11: no parameter of a path leads anywhere else.
#[tokio::test]
async fn no_part_of_a_path_leads_out_of_its_place() {
    let (builder, address) = with_web(Gateway::with_tools([("shared", "x.py", ADD)]));
    let gateway = builder.start().await;
    let web = Web::at(address);
    let outside = gateway.data_dir().join("outside.py");
    fs::write(&outside, CANARY).expect("written");
    std::os::unix::fs::symlink(&outside, gateway.tools_dir().join("shared/link.py"))
        .expect("a link");
    std::os::unix::fs::symlink(
        gateway.data_dir(),
        gateway.tools_dir().join("shared/.history"),
    )
    .expect("a link");
    let parts = [
        "..",
        "%2e%2e",
        "..%2f..",
        "%2fetc%2fpasswd",
        "a%00b",
        "a%5cb",
        "link.py",
        "_system",
        ".history",
        "x.py%2f..",
        "%252e%252e",
    ];
    let paths = [
        "/api/namespaces/*",
        "/api/namespaces/*/tools",
        "/api/folders/*/tools",
        "/api/folders/*/requirements",
        "/api/folders/shared/tools/*",
        "/api/folders/*/tools/x.py",
        "/api/folders/shared/tools/*/history",
        "/api/folders/shared/tools/x.py/history/*",
        "/api/folders/shared/tools/*/diff",
        "/api/activity/*",
        "/assets/*",
    ];
    for path in paths {
        for part in parts {
            // As it is: a client library would resolve it.
            let path = path.replace('*', part);
            let request = format!(
                "GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
            );
            let mut answer = Answering::open(address, &request).await;
            assert!(
                (400..500).contains(&answer.status),
                "{path}: {}",
                answer.status
            );
            assert!(!answer.json().await.to_string().contains(CANARY), "{path}");
        }
    }
    for (method, path) in [
        ("DELETE", "/api/folders/shared/tools/link.py"),
        ("DELETE", "/api/folders/_system"),
        ("PUT", "/api/servers/a%2fb"),
        ("DELETE", "/api/sessions/x"),
        ("DELETE", "/api/secrets/_system/K"),
    ] {
        let refused = web.send(method, path, json!({"enabled": true})).await;
        assert!((400..500).contains(&refused.0), "{path}: {refused:?}");
    }
    assert_eq!(
        code(&web.send("PUT", "/api/folders", json!({})).await),
        (405, "method_not_allowed")
    );
    assert_eq!(
        code(&web.get("/api/nothing/here").await),
        (404, "not_found")
    );
    assert_eq!(fs::read_to_string(&outside).expect("there"), CANARY);
}

/// Lists that have pages, and sessions that can be ended.
#[tokio::test]
async fn lists_page_and_sessions_can_be_ended() {
    let (builder, address) = with_web(Gateway::empty());
    let gateway = builder.start().await;
    let web = Web::at(address);
    for name in ["a", "b", "c"] {
        fs::create_dir_all(gateway.tools_dir().join(name)).expect("a folder");
    }
    let first = web.get("/api/folders?limit=3").await.1;
    assert_eq!(
        (&first["total"], &first["folders"][2]["name"]),
        (&json!(4), &json!("c"))
    );
    let next = first["next_cursor"].as_str().expect("a cursor");
    let second = web
        .get(&format!("/api/folders?limit=3&cursor={next}"))
        .await
        .1;
    assert_eq!(
        (&second["folders"][0]["name"], &second["next_cursor"]),
        (&json!("shared"), &Value::Null)
    );
    assert_eq!(web.get("/api/folders?q=SHAR").await.1["total"], 1);
    for wrong in ["limit=0", "limit=501", "limit=x", "cursor=x"] {
        assert_eq!(
            code(&web.get(&format!("/api/folders?{wrong}")).await),
            (400, "invalid_request"),
            "{wrong}"
        );
    }
    let open = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "tester", "version": "9"}}});
    // The namespace that the gateway places starts beside it: until then it answers 503.
    let session = eventually("a session", || async {
        let opened = gateway
            .request("POST", "/mcp/shared")
            .header("Accept", "application/json, text/event-stream")
            .json(&open);
        let opened = sent(opened).await;
        let id = opened.headers().get("mcp-session-id")?;
        Some(id.to_str().expect("text").to_owned())
    })
    .await;
    let listed = web.get("/api/sessions").await.1;
    assert_eq!(
        (&listed["total"], &listed["sessions"][0]["client"]),
        (&json!(1), &json!({"name": "tester", "version": "9"}))
    );
    let id = listed["sessions"][0]["id"].as_str().expect("text");
    assert!(!listed.to_string().contains(&session));
    assert_eq!(
        web.delete(&format!("/api/sessions/{id}")).await,
        (200, json!({"success": true}))
    );
    assert_eq!(
        code(&web.delete(&format!("/api/sessions/{id}")).await),
        (404, "session_not_found")
    );
    eventually("the session is gone", || async {
        (web.get("/api/dashboard").await.1["sessions"] == 0).then_some(())
    })
    .await;

    // A client of 2026-07-28 has no session; its subscription is found and ended all the same.
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}});
    let listen = json!({"jsonrpc": "2.0", "id": 7, "method": "subscriptions/listen",
        "params": {"_meta": meta, "notifications": {"toolsListChanged": true}}})
    .to_string();
    let request = format!(
        "POST /mcp/shared HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: subscriptions/listen\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n\
         Content-Length: {}\r\n\r\n{listen}",
        listen.len()
    );
    let mut stream = Answering::open(address, &request).await;
    assert_eq!(stream.status, 200);
    stream.event().await.expect("what is granted");
    let listed = web.get("/api/streams").await.1;
    let open = &listed["streams"][0];
    assert_eq!(
        (
            &listed["total"],
            &open["kind"],
            &open["namespace"],
            &open["principal"]
        ),
        (
            &json!(1),
            &json!("listen"),
            &json!("shared"),
            &json!("bearer")
        )
    );
    let path = format!("/api/streams/{}", open["id"].as_str().expect("text"));
    assert_eq!(web.delete(&path).await, (200, json!({"success": true})));
    let last = stream
        .event()
        .await
        .expect("the result of listening")
        .json();
    assert_eq!(
        (&last["id"], &last["result"]["resultType"]),
        (&json!(7), &json!("complete"))
    );
    assert!(stream.event().await.is_none());
    eventually("the stream is gone", || async {
        (web.get("/api/streams").await.1["total"] == 0).then_some(())
    })
    .await;
    for path in [&*path, "/api/streams/x"] {
        assert_eq!(code(&web.delete(path).await), (404, "stream_not_found"));
    }
}

/// A stdio server that says on standard error who it is, and has a tool that never answers.
const TALKER: &str = r#"
import json, os, sys

print(f"process {os.getpid()} has {os.environ['TOKEN']}", file=sys.stderr, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params", {})
    if method == "initialize":
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "talker", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("hang", "say")]}
    elif method == "tools/call":
        print(f"called {params['name']}\x1b[31m", file=sys.stderr, flush=True)
        if params["name"] == "hang":
            continue
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

/// The next line of standard error that a stream tells.
async fn line_of(stream: &mut Answering) -> Value {
    let event = stream.event().await.expect("a line");
    assert_eq!(event.name.as_deref(), Some("line"));
    event.json()
}

/// Issue 15: standard error as it comes, and a restart that ends even what hangs.
#[tokio::test]
async fn standard_error_of_a_server_is_shown_and_a_restart_ends_what_hangs() {
    let (builder, address) = with_web(Gateway::empty());
    let gateway = builder.start().await;
    let web = Web::at(address);
    let secret = json!({"key": "DEMO_TOKEN", "scope": "global", "value": CANARY});
    assert_eq!(web.send("PUT", "/api/secrets", secret).await.0, 200);
    let python = std::path::absolute(python("base").get_program()).expect("a path");
    let entry = json!({"server_id": "talker", "config": {"source": "custom", "command": python,
        "args": ["-c", TALKER], "env": {"TOKEN": "${DEMO_TOKEN}"}}});
    assert_eq!(web.send("POST", "/api/servers", entry).await.0, 201);
    eventually("the server runs", || async {
        (web.get("/api/namespaces/talker/tools").await.1["total"] == 2).then_some(())
    })
    .await;

    // Answers and standard error are two pipes: a line may be read after the answer that was written behind it.
    let shown = eventually("its first line was read", || async {
        let shown = web.get("/api/servers/talker/stderr").await.1;
        (shown["total"] != 0).then_some(shown)
    })
    .await;
    let first = &shown["lines"][0];
    let pid = first["pid"].as_u64().expect("a pid");
    assert_eq!(first["text"], format!("process {pid} has [redacted]"));
    assert_eq!(
        (&first["stream"], &shown["total"]),
        (&json!("stderr"), &json!(1))
    );

    // A stream goes on behind the line that was seen, and ends with no process.
    let mut stream = web
        .events("/api/servers/talker/stderr/events?after=1")
        .await;
    assert_eq!(stream.status, 200);
    let hanging = gateway.call("talker", "hang", json!({}));
    let restart = async {
        assert_eq!(line_of(&mut stream).await["text"], "called hang\\u{1b}[31m");
        let restarted = web
            .send("POST", "/api/servers/talker/restart", json!({}))
            .await;
        assert_eq!(
            (restarted.0, &restarted.1["server_id"]),
            (200, &json!("talker"))
        );
    };
    let ((status, ended), ()) = tokio::join!(hanging, restart);
    assert_eq!(
        (status, &ended["error"]["code"]),
        (503, &json!("worker_unavailable")),
        "{ended}"
    );
    let second = line_of(&mut stream).await;
    assert_ne!(second["pid"], pid);
    assert_eq!(second["number"], 3);
    let (status, answered) = gateway.call("talker", "say", json!({})).await;
    assert_eq!((status, answered), (200, json!(second["pid"].to_string())));
    assert_eq!(line_of(&mut stream).await["number"], 4);
    let last = web.get("/api/servers/talker/stderr?limit=1").await.1;
    assert_eq!(
        (&last["lines"][0]["text"], &last["total"]),
        (&json!("called say\\u{1b}[31m"), &json!(4))
    );
    let known = web.get("/api/activity?tool=restart_server").await.1;
    assert_eq!(known["records"][0]["status"], "ok");

    for (method, path) in [
        ("GET", "stderr"),
        ("GET", "stderr/events"),
        ("POST", "restart"),
    ] {
        let path = format!("/api/servers/nobody/{path}");
        let refused = answer(web.request(method, &path)).await;
        assert_eq!(code(&refused), (404, "server_not_found"), "{path}");
    }
    assert!(!gateway.log().contains(CANARY));
}

/// Issue 15: requirements with the output of the installer as it runs.
#[tokio::test]
async fn what_the_installer_prints_comes_before_the_end() {
    let wheels = tempfile::TempDir::new().unwrap();
    write_wheel(wheels.path(), "local_package", "1.2.3");
    let (builder, address) = with_web(Gateway::with_tools([("team", "x.py", ADD)]));
    let _gateway = builder
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", wheels.path().to_str().unwrap())
        .env("UV_NO_INDEX", "1")
        .env("UV_FIND_LINKS", wheels.path().to_str().unwrap())
        .start()
        .await;
    let body = json!({"package": "local_package"}).to_string();
    let request = format!(
        "POST /api/folders/team/requirements HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Type: application/json\r\nAccept: text/event-stream\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = Answering::open(address, &request).await;
    let mut names = Vec::new();
    let mut lines = Vec::new();
    let done = loop {
        let event = stream.event().await.expect("an event");
        let name = event.name.clone().expect("a name");
        match &*name {
            "output" => lines.push(event.json()["line"].as_str().expect("text").to_owned()),
            "done" => break event.json(),
            _ => {}
        }
        names.push(name);
    };
    assert_eq!(done["added"], true, "{done}");
    assert_eq!(names[0], "progress");
    assert!(lines.iter().any(|line| line.contains("local")), "{lines:?}");
}

/// K-18: a name of the registry is asked for, and what cannot be started here is refused with what to do instead.
#[tokio::test]
async fn a_server_of_the_registry_gets_its_package_or_a_reason() {
    let found = json!({"servers": [
        {"server": {"name": "acme/remote", "description": "", "remotes": [{"type": "streamable-http", "url": "https://a.example/mcp"}]}},
        {"server": {"name": "acme/time", "description": "", "packages": [{"registryType": "pypi", "identifier": "acme-time"}]}},
    ]});
    let (builder, address) = with_web(Gateway::empty());
    let gateway = builder
        .env("MCP_REGISTRY_URL", &format!("http://{}", registry(&found)))
        .start()
        .await;
    let web = Web::at(address);
    let add = async |id: &str, name: &str| {
        let config = json!({"source": "registry", "name": name});
        let body = json!({"server_id": id, "config": config});
        web.send("POST", "/api/servers", body).await
    };
    let refused = add("remote", "acme/remote").await;
    assert_eq!(code(&refused), (400, "invalid_request"));
    let error = &refused.1["error"];
    assert_eq!(error["details"]["field"], "config.name");
    let message = error["message"].as_str().expect("text");
    assert!(message.contains("upstreams.remote"), "{message}");
    assert_eq!(add("time", "acme/time").await.0, 201);
    assert_eq!(add("other", "acme/other").await.0, 201);
    let servers = web.get("/api/servers").await.1;
    let config = |at: usize| {
        let config = &servers["servers"][at]["config"];
        (config["name"].clone(), config["package_type"].clone())
    };
    assert_eq!(servers["total"], 2);
    assert_eq!(config(0), (json!("acme/other"), Value::Null));
    assert_eq!(config(1), (json!("acme-time"), json!("pypi")));
    drop(gateway);
}

/// K-22, K-38: names that older surfaces have as paths are served, with a warning.
#[tokio::test]
async fn names_that_are_paths_are_warned_of() {
    let call = ADD.replace("add", "call");
    let (builder, address) = with_web(Gateway::with_tools([
        ("namespaces", "x.py", ADD),
        ("shared", "call.py", &*call),
    ]));
    let gateway = builder.start().await;
    let web = Web::at(address);
    let (_, reloaded) = web.send("POST", "/api/reload", json!({})).await;
    let issues = reloaded["issues"].as_array().expect("a list");
    let warned: Vec<_> = issues
        .iter()
        .filter(|it| it["code"] == "reserved_name")
        .map(|it| (it["namespace"].clone(), it["subject"].clone()))
        .collect();
    assert_eq!(
        warned,
        [
            (json!("namespaces"), json!("namespaces")),
            (json!("shared"), json!("call.py: call"))
        ]
    );
    assert!(gateway.log().contains("reserved_name"));
    let (status, sum) = gateway
        .call("namespaces", "add", json!({"a": 1, "b": 2}))
        .await;
    assert_eq!((status, sum), (200, json!(3)));
}
