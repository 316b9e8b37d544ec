//! The listeners of ToolDock v1 and of Tool Vault, asked as their original clients ask (EX-25 to EX-32).

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::support::gateway::{Builder, TOKEN};
use crate::support::ports::free_address;
use crate::support::{Gateway, tools};

const TAX: &str = "from fastmcp.tools import tool\n\n@tool\ndef add(a: float, b: float) -> float:\n    \"\"\"Adds tax, too.\"\"\"\n    return a + b + 1\n";
const WORD_COUNT: &str = "def word_count(text: str) -> int:\n    \"\"\"Count words in a text.\"\"\"\n    return len(text.split())\n";
const SET_STATE: &str = "def set_state(k: int) -> dict:\n    \"\"\"A command for the page.\"\"\"\n    return {\"command\": \"setState\", \"payload\": {\"k\": k}}\n";
const V1: &str = r#"
from pydantic import BaseModel, ConfigDict, Field
from app.registry import ToolDefinition, ToolRegistry

class AddInput(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = Field(description="First number")
    b: int = Field(description="Second number")

async def handle(payload: AddInput) -> int:
    return payload.a + payload.b

def register_tools(registry: ToolRegistry) -> None:
    registry.register(ToolDefinition(name="add_numbers", description="Adds two numbers.", input_model=AddInput, handler=handle))
"#;

/// A listener of a gateway, and the headers of its clients.
struct Client {
    base: String,
    http: reqwest::Client,
    token: bool,
}

impl Client {
    fn of(address: SocketAddr) -> Self {
        Self {
            base: format!("http://{address}"),
            http: reqwest::Client::new(),
            token: true,
        }
    }

    fn without_token(address: SocketAddr) -> Self {
        Self {
            token: false,
            ..Self::of(address)
        }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> (u16, String) {
        let method = method.parse().unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if self.token {
            request = request.bearer_auth(TOKEN);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (status, text) = self.send("GET", path, &[], None).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, text) = self.send("POST", path, &[], Some(body)).await;
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// A message of MCP, with the headers of a plain HTTP library.
    async fn rpc(&self, path: &str, method: &str, params: Value) -> (u16, Value) {
        self.post(
            path,
            json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}),
        )
        .await
    }
}

fn names(tools: &Value) -> Vec<&str> {
    tools
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect()
}

/// A gateway with the listeners of all profiles but the web's, and their addresses.
fn everything() -> (Builder, [SocketAddr; 3]) {
    let addresses = [free_address(), free_address(), free_address()];
    let [rest, mcp, vault] = addresses;
    let (core, manager, metrics) = (free_address(), free_address(), free_address());
    let listener = |name: &str, address: SocketAddr| json!({"name": name, "address": address.to_string(), "profile": name});
    let builder = Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
        ("tax", "tax.py", TAX),
        ("contracts", "numbers.py", V1),
        ("vault", "word_count.py", WORD_COUNT),
        ("vault", "set_state.py", SET_STATE),
        ("vault", "bare.py", "def bare(text):\n    return text\n"),
    ])
    .listening(core, metrics)
    .config(json!({"listeners": [
        listener("core", core),
        listener("manager", manager),
        listener("metrics", metrics),
        listener("v1-rest", rest),
        listener("v1-mcp", mcp),
        listener("vault", vault),
    ]}));
    (builder, addresses)
}

#[tokio::test]
async fn all_profiles_are_served_by_one_process() {
    let (builder, [rest, mcp, vault]) = everything();
    let app = tempfile::tempdir().unwrap();
    fs::write(app.path().join("index.html"), "<p>vault").unwrap();
    fs::write(app.path().join("app.js"), "let a").unwrap();
    let builder = builder.env("VAULT_UI_DIR", app.path().to_str().unwrap());
    let gateway = builder.start().await;

    v1_rest(&gateway, &Client::of(rest)).await;
    v1_mcp(&Client::of(mcp)).await;
    vault_as_before(&gateway, &Client::of(vault)).await;
    single_page_app(&Client::without_token(vault)).await;

    for address in [rest, mcp, vault] {
        let stranger = Client::without_token(address);
        assert_eq!(
            stranger.get("/health").await,
            (200, json!({"status": "healthy"}))
        );
        for path in ["/tools", "/tools/list", "/mcp/info", "/openapi.json"] {
            assert_eq!(stranger.get(path).await.0, 401, "{path}");
        }
    }
    // The core is unchanged, and knows the other shapes for clients that ask for them.
    let listed = gateway
        .request("GET", "/tools")
        .header("X-Namespace", "calc");
    let accept = "application/vnd.tooldock.v1+json";
    let listed: Value = listed
        .header("Accept", accept)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(listed["namespace"], "calc");
    let refused = gateway.request("GET", "/tools").send().await.unwrap();
    assert_eq!(refused.status().as_u16(), 400);

    let reloaded = gateway.reload().await;
    let file = |name: &str| {
        let mut files = reloaded["files"].as_array().unwrap().iter();
        files.find(|file| file["file"] == name).unwrap().clone()
    };
    assert_eq!(
        file("numbers.py"),
        json!({"namespace": "contracts", "file": "numbers.py", "taken_for": "register_tools", "tools": 1})
    );
    assert_eq!(file("word_count.py")["taken_for"], "function");
    assert_eq!(file("math_tools.py")["taken_for"], "decorators");
    let bare = file("bare.py");
    assert_eq!(bare["taken_for"], "skipped");
    assert!(
        bare["reason"]
            .as_str()
            .unwrap()
            .contains("no annotation for text"),
        "{bare}"
    );
}

async fn v1_rest(gateway: &Gateway, client: &Client) {
    let (status, listed) = client.get("/tools").await;
    assert_eq!((status, &listed["namespace"]), (200, &json!("default")));
    let all = names(&listed["tools"]);
    assert_eq!(
        all,
        [
            "say_hello",
            "add",
            "multiply",
            "add_numbers",
            "tax_add",
            "set_state",
            "word_count"
        ]
    );
    let tool = &listed["tools"][1];
    assert_eq!(
        (&tool["namespace"], &tool["type"]),
        (&json!("calc"), &json!("native"))
    );
    assert_eq!(tool["input_schema"], tool["inputSchema"]);

    let sum = json!({"a": 2, "b": 3});
    assert_eq!(
        client.post("/tools/add", sum.clone()).await,
        (200, json!({"tool": "add", "result": 5.0}))
    );
    assert_eq!(
        client.post("/tools/tax_add", sum.clone()).await.1["result"],
        6.0
    );
    assert_eq!(
        client.post("/tools/calc_add", sum.clone()).await.1["result"],
        5.0
    );
    assert_eq!(client.post("/tools/add_numbers", sum).await.1["result"], 5);
    let surplus = json!({"a": 1, "b": 2, "c": 3});
    let (status, refused) = client.post("/tools/add_numbers", surplus).await;
    assert_eq!(
        (status, &refused["error"]["code"]),
        (422, &json!("invalid_arguments"))
    );
    assert!(refused["detail"].is_string());
    assert_eq!(client.post("/tools/nope", json!({})).await.0, 404);
    let narrowed = client
        .send("GET", "/tools", &[("X-Namespace", "tax")], None)
        .await;
    let narrowed: Value = serde_json::from_str(&narrowed.1).unwrap();
    assert_eq!(
        (&narrowed["namespace"], names(&narrowed["tools"])),
        (&json!("tax"), vec!["add"])
    );
    // A call in all namespaces is recorded as one of the namespace that has the tool.
    let counted = gateway.metrics_text().await;
    assert!(counted.contains("namespace=\"calc\""), "{counted}");

    let (status, document) = client.get("/openapi.json").await;
    assert_eq!(status, 200);
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), all.len());
    let add = &document["paths"]["/tools/add"]["post"];
    assert!(
        add["requestBody"]["content"]["application/json"]["schema"]["properties"]["a"].is_object()
    );
    assert_eq!(add["operationId"], "add");
    assert_eq!(
        document["components"]["securitySchemes"]["BearerAuth"],
        json!({"type": "http", "scheme": "bearer"})
    );
    let answer = &add["responses"]["200"]["content"]["application/json"]["schema"];
    assert_eq!(answer["required"], json!(["tool", "result"]));
}

async fn v1_mcp(client: &Client) {
    let json_only = [("Accept", "application/json")];
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (status, text) = client
        .send("POST", "/mcp/shared", &json_only, Some(list.clone()))
        .await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (status, names(&answer["result"]["tools"])),
        (200, vec!["say_hello"])
    );
    let call = |name: &str| json!({"name": name, "arguments": {"a": 2, "b": 3}});
    let (_, foreign) = client.rpc("/mcp/shared", "tools/call", call("add")).await;
    assert_eq!(foreign["result"]["isError"], true, "{foreign}");
    let (status, unknown) = client.rpc("/mcp/nope", "tools/list", json!({})).await;
    let message = unknown["error"]["message"].as_str().unwrap();
    assert_eq!(status, 404);
    assert!(message.contains(" GET /mcp/namespaces lists"), "{message}");

    let (_, all) = client.rpc("/mcp", "tools/list", json!({})).await;
    let all = names(&all["result"]["tools"]);
    assert_eq!(
        all,
        [
            "say_hello",
            "add",
            "multiply",
            "add_numbers",
            "tax_add",
            "set_state",
            "word_count"
        ]
    );
    let (_, sum) = client.rpc("/mcp", "tools/call", call("tax_add")).await;
    assert_eq!(
        sum["result"]["structuredContent"],
        json!({"result": 6.0}),
        "{sum}"
    );
    let (_, unknown) = client.rpc("/mcp", "tools/call", call("nope")).await;
    assert_eq!(unknown["result"]["isError"], true);

    // The lenient rules of this port, and the optional session.
    let html = client
        .send(
            "POST",
            "/mcp/shared",
            &[("Accept", "text/html")],
            Some(list.clone()),
        )
        .await;
    assert_eq!(html.0, 406);
    let old = client
        .send(
            "POST",
            "/mcp/shared",
            &[("MCP-Protocol-Version", "2024-01-01")],
            Some(list.clone()),
        )
        .await;
    assert_eq!(old.0, 400);
    let (status, batch) = client.post("/mcp/shared", json!([list])).await;
    assert_eq!((status, &batch["error"]["code"]), (400, &json!(-32600)));
    let opening = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let (_, opened) = client.rpc("/mcp", "initialize", opening).await;
    assert_eq!(opened["result"]["protocolVersion"], "2025-11-25");
    for (path, accept, status) in [
        ("/mcp", "text/event-stream", 200),
        ("/mcp/calc", "application/json", 406),
    ] {
        let url = format!("{}{path}", client.base);
        let stream = client
            .http
            .get(url)
            .bearer_auth(TOKEN)
            .header("Accept", accept);
        assert_eq!(
            stream.send().await.unwrap().status().as_u16(),
            status,
            "{path}"
        );
    }

    let (_, told) = client.get("/mcp/namespaces").await;
    assert_eq!(
        told["namespaces"],
        json!(["shared", "calc", "contracts", "tax", "vault"])
    );
    assert_eq!(
        (&told["breakdown"]["calc"], &told["total"]),
        (&json!(2), &json!(5))
    );
    let (_, info) = client.get("/mcp/info").await;
    assert_eq!(
        info["supportedProtocolVersions"],
        json!(["2025-11-25", "2025-03-26"])
    );
    assert_eq!(info["endpoint"], "/mcp");
    assert_eq!(info["namespace_endpoints"]["calc"], "/mcp/calc");
    let (_, info) = client.get("/mcp/calc/info").await;
    assert_eq!(
        (&info["endpoint"], names(&info["tools"])),
        (&json!("/mcp/calc"), vec!["add", "multiply"])
    );
    assert_eq!(client.get("/mcp/nope/info").await.0, 404);
}

async fn vault_as_before(gateway: &Gateway, client: &Client) {
    let call = json!({"name": "word_count", "arguments": {"text": "Hello world"}});
    let (status, answer) = client.rpc("/mcp", "tools/call", call.clone()).await;
    let result = json!({"content": [{"type": "text", "text": "2"}], "structuredContent": {"result": 2}, "isError": false});
    assert_eq!(
        (status, answer),
        (200, json!({"jsonrpc": "2.0", "id": 1, "result": result}))
    );
    let (status, unknown) = client.rpc("/mcp", "nope", json!({})).await;
    assert_eq!((status, &unknown["error"]["code"]), (200, &json!(-32601)));

    let (_, index) = client.get("/tools/list").await;
    assert_eq!(names(&index["tools"]), ["set_state", "word_count"]);
    let tool = &index["tools"][1];
    assert_eq!(tool["description"], "Count words in a text.");
    assert_eq!(tool["inputSchema"]["required"], json!(["text"]));
    assert_eq!(
        tool["inputSchema"]["properties"]["text"],
        json!({"type": "string"})
    );

    let expected = json!({"result": 2, "isError": false});
    assert_eq!(
        client.post("/tools/call", call).await,
        (200, expected.clone())
    );
    let listed =
        json!({"name": "word_count", "arguments": [{"name": "text", "value": "Hello world"}]});
    assert_eq!(
        client.post("/tools/call", listed.clone()).await,
        (200, expected.clone())
    );
    let state = client
        .post(
            "/tools/call",
            json!({"name": "set_state", "arguments": {"k": 1}}),
        )
        .await;
    assert_eq!(
        state.1,
        json!({"result": {"command": "setState", "payload": {"k": 1}}, "isError": false})
    );
    assert_eq!(
        client
            .post("/tools/call", json!({"name": "nope", "arguments": {}}))
            .await
            .0,
        404
    );
    let wrong = json!({"name": "word_count", "arguments": {"text": 5}});
    assert_eq!(client.post("/tools/call", wrong).await.0, 422);
    // The core answers the same way where no tool is called so.
    let core = gateway
        .request("POST", "/tools/call")
        .header("X-Namespace", "vault")
        .json(&listed);
    assert_eq!(
        core.send().await.unwrap().json::<Value>().await.unwrap(),
        expected
    );
    assert!(
        gateway.log().contains("MCP endpoint available: http://"),
        "{}",
        gateway.log()
    );
}

async fn single_page_app(client: &Client) {
    for path in ["/ui/", "/ui/deep/link", "/ui"] {
        assert_eq!(
            client.send("GET", path, &[], None).await,
            (200, "<p>vault".to_owned()),
            "{path}"
        );
    }
    assert_eq!(client.send("GET", "/ui/app.js", &[], None).await.1, "let a");
    for (path, status) in [
        ("/ui/missing.js", 404),
        ("/ui/..%2fx", 400),
        ("/ui/a%5cb", 400),
        ("/ui/a%00", 400),
    ] {
        assert_eq!(
            client.send("GET", path, &[], None).await.0,
            status,
            "{path}"
        );
    }
}

/// True if a request gets any answer.
async fn is_served(address: SocketAddr) -> bool {
    let health = format!("http://{address}/health");
    reqwest::get(health)
        .await
        .is_ok_and(|answer| answer.status().is_success())
}

#[tokio::test]
async fn a_server_mode_serves_its_profiles_alone() {
    for (mode, served) in [
        ("openapi", [true, false, false]),
        ("mcp-http", [false, true, false]),
        ("both", [true, true, false]),
        ("tool-vault", [false, false, true]),
    ] {
        let (builder, addresses) = everything();
        let mut served_at = addresses.iter().zip(served).filter(|(_, served)| *served);
        let first = *served_at.next().unwrap().0;
        // The harness waits for the listener that it calls the core's.
        let gateway = builder
            .listening(first, first)
            .env("SERVER_MODE", mode)
            .start()
            .await;
        for (address, served) in addresses.iter().zip(served) {
            assert_eq!(is_served(*address).await, served, "{mode} {address}");
        }
        drop(gateway);
    }
}

#[tokio::test]
async fn without_the_global_view_the_info_names_the_endpoints_of_namespaces_alone() {
    let (builder, [_, mcp, _]) = everything();
    let _gateway = builder.env("GLOBAL_VIEW", "off").start().await;
    let client = Client::of(mcp);
    let (_, info) = client.get("/mcp/info").await;
    assert_eq!(info["endpoint"], Value::Null, "{info}");
    assert_eq!(info["namespace_endpoints"]["calc"], "/mcp/calc");
    let (_, told) = client.get("/mcp/calc/info").await;
    assert_eq!(told["endpoint"], "/mcp/calc");
    let (status, refused) = client.rpc("/mcp", "tools/list", json!({})).await;
    assert_eq!(status, 400, "{refused}");
}

#[tokio::test]
async fn tool_vault_without_credentials_and_with_its_own_folder_answers_scripts_as_before() {
    let (builder, [_, _, vault]) = everything();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("word_count.py"), WORD_COUNT).unwrap();
    let gateway = builder
        .listening(vault, vault)
        .env("SERVER_MODE", "tool-vault")
        .env("VAULT_AUTH", "off")
        .env("CORS_ORIGINS", "http://localhost:60124")
        .env("VAULT_RAW_RESULT", "on")
        .env("VAULT_REST", "off")
        .env("VAULT_TOOLS_DIR", folder.path().to_str().unwrap())
        .start()
        .await;
    let script = Client::without_token(vault);
    let call = json!({"name": "word_count", "arguments": {"text": "Hello world"}});
    let (_, answer) = script.rpc("/mcp", "tools/call", call).await;
    assert_eq!(answer, json!({"jsonrpc": "2.0", "id": 1, "result": 2}));
    let (_, listed) = script.rpc("/mcp", "tools/list", json!({})).await;
    assert_eq!(names(&listed["result"]["tools"]), ["word_count"]);
    assert_eq!(script.get("/tools/list").await.0, 404);
    let log = gateway.log();
    assert!(log.contains("asks for no credentials"), "{log}");
    assert!(
        log.contains("shadowed_folder") || log.contains("Tool Vault's tools:"),
        "{log}"
    );
}
