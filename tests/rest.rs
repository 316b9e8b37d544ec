//! REST v2 (EXAMPLES EX-20 … EX-24): shapes, statuses, one error form, the OpenAPI document.

use serde_json::{Value, json};

use crate::support::gateway::MANAGER_TOKEN;
use crate::support::{Gateway, TOKEN, sha256, tools};

async fn gateway() -> Gateway {
    Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
        ("faulty", "faulty.py", tools::FAULTY),
    ])
    .config(json!({"namespaces": {"overrides": {"faulty": {"timeout": "3s"}}}}))
    .start()
    .await
}

async fn get(gateway: &Gateway, path: &str, namespace: Option<&str>) -> (u16, Value) {
    let mut request = gateway.request("GET", path);
    if let Some(namespace) = namespace {
        request = request.header("X-Namespace", namespace);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn tools_are_listed_with_schema_and_file() {
    let gateway = gateway().await;
    let (status, list) = get(&gateway, "/tools", Some("calc")).await;
    assert_eq!(status, 200);
    let names: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].clone())
        .collect();
    assert_eq!(names, ["add", "multiply"]);
    assert_eq!(list[0]["filename"], "math_tools.py");
    assert_eq!(list[0]["title"], "Add");
    assert_eq!(list[0]["inputSchema"]["required"], json!(["a", "b"]));
    let (status, schema) = get(&gateway, "/tools/add/schema", Some("calc")).await;
    assert_eq!(status, 200);
    assert_eq!(schema["type"], "object");
    assert_eq!(schema["properties"]["a"]["type"], "number");
}

#[tokio::test]
async fn a_call_answers_with_the_bare_value() {
    let gateway = gateway().await;
    assert_eq!(
        gateway
            .call("shared", "say_hello", json!({"name": "Ada"}))
            .await,
        (200, json!("Hello, Ada!"))
    );
    assert_eq!(
        gateway.call("calc", "add", json!({"a": 2, "b": 3})).await,
        (200, json!(5.0))
    );
    let empty = gateway
        .request("POST", "/tools/say_hello")
        .header("X-Namespace", "shared")
        .send()
        .await
        .unwrap();
    assert_eq!(empty.json::<Value>().await.unwrap(), "Hello, World!");
}

#[tokio::test]
async fn namespaces_are_listed_without_a_header() {
    let gateway = gateway().await;
    let (status, list) = get(&gateway, "/namespaces", None).await;
    assert_eq!(status, 200);
    assert_eq!(
        list[0],
        json!({"name": "calc", "tool_count": 2, "has_requirements": false,
            "secrets_status": "no_secrets_needed", "description": ""})
    );
    assert_eq!(list.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn every_failure_has_its_status_and_the_one_error_form() {
    let gateway = gateway().await;
    let post = |namespace: Option<&'static str>, tool: &'static str, body: &'static str| {
        let mut request = gateway
            .request("POST", &format!("/tools/{tool}"))
            .header("Content-Type", "application/json")
            .body(body);
        if let Some(namespace) = namespace {
            request = request.header("X-Namespace", namespace);
        }
        request.send()
    };
    for (namespace, tool, body, status, code) in [
        (None, "add", "{}", 400, "namespace_required"),
        (Some("nope"), "add", "{}", 404, "namespace_not_found"),
        (Some("calc"), "nope", "{}", 404, "tool_not_found"),
        (Some("calc"), "add", "{", 400, "invalid_json"),
        (Some("calc"), "add", "[1]", 422, "invalid_arguments"),
        (
            Some("calc"),
            "add",
            r#"{"a":"x","b":1}"#,
            422,
            "invalid_arguments",
        ),
        (
            Some("faulty"),
            "slow",
            r#"{"seconds":20}"#,
            504,
            "execution_timeout",
        ),
        (Some("faulty"), "boom", "{}", 500, "internal_error"),
        (
            Some("faulty"),
            "needs_package",
            "{}",
            500,
            "dependency_error",
        ),
    ] {
        let response = post(namespace, tool, body).await.unwrap();
        assert_eq!(response.status(), status, "{tool} {body}");
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(answer["error"]["message"].is_string(), "{answer}");
        assert!(answer["error"]["details"].is_object(), "{answer}");
        assert!(answer["detail"].is_string(), "{answer}");
    }
    let unauthorized = gateway
        .client
        .get(gateway.url("/tools"))
        .send()
        .await
        .unwrap();
    assert_eq!(unauthorized.status(), 401);
    assert_eq!(unauthorized.headers()["www-authenticate"], "Bearer");
    let answer: Value = unauthorized.json().await.unwrap();
    assert_eq!(answer["error"]["code"], "unauthorized");
    let (status, answer) = get(&gateway, "/no/such/path", None).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("not_found"))
    );
}

#[tokio::test]
async fn a_traceback_is_for_the_manager_only() {
    let gateway = gateway().await;
    let (_, answer) = gateway.call("faulty", "boom", json!({})).await;
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("KeyError: 'GITHUB_TOKEN'")
    );
    assert!(
        answer["error"]["details"].get("traceback").is_none(),
        "{answer}"
    );
    let trusted: Value = gateway
        .request("POST", "/tools/boom")
        .header("X-Namespace", "faulty")
        .header("X-Manager-Token", crate::support::gateway::MANAGER_TOKEN)
        .json(&json!({}))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert!(
        trusted["error"]["details"]["traceback"]
            .as_str()
            .unwrap()
            .contains("faulty.py")
    );
}

#[tokio::test]
async fn mcp_and_rest_give_the_same_value() {
    let gateway = gateway().await;
    let (_, rest) = gateway
        .call("calc", "add", json!({"a": 0.1, "b": 0.2}))
        .await;
    let (_, mcp) = gateway
        .mcp(
            "calc",
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "add", "arguments": {"a": 0.1, "b": 0.2}}}),
        )
        .await;
    assert_eq!(mcp["result"]["content"][0]["text"], rest.to_string());
}

#[tokio::test]
async fn the_openapi_document_describes_the_namespace_and_validates() {
    let gateway = gateway().await;
    let (status, document) = get(&gateway, "/openapi.json", Some("calc")).await;
    assert_eq!(status, 200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3."));
    let add = &document["paths"]["/tools/add"]["post"];
    assert!(
        add["requestBody"]["content"]["application/json"]["schema"]["properties"]["a"].is_object()
    );
    assert_eq!(
        document["components"]["securitySchemes"]["BearerAuth"]["scheme"],
        "bearer"
    );
    let (_, by_query) = get(&gateway, "/openapi.json?namespace=calc", None).await;
    assert_eq!(by_query["paths"], document["paths"]);
    crate::sdk::validate_openapi(&document).await;
}

/// The answer at a path, on either listener, with any headers.
async fn probed(gateway: &Gateway, url: String, headers: &[(&str, &str)]) -> Value {
    let mut request = gateway.client.get(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

#[tokio::test]
async fn health_checks_tell_strangers_the_status_and_nothing_else() {
    let token = "ci-token-0123456789abcdef";
    let gateway = Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("secret", "hello.py", tools::HELLO),
    ])
    .config(json!({"admission": {"tokens": [
        {"name": "ci", "sha256": sha256(token), "namespaces": ["shared"]}]}}))
    .start()
    .await;
    let metrics = |path: &str| format!("http://{}{path}", gateway.metrics);
    for (path, word) in [("/health", "ok"), ("/ready", "ready")] {
        let url = gateway.url(path);
        for stranger in [
            &[][..],
            &[("Authorization", "Bearer wrong")],
            &[("X-Manager-Token", "wrong")],
        ] {
            let told = probed(&gateway, url.clone(), stranger).await;
            assert_eq!(told, json!({"status": word}), "{path} {stranger:?}");
        }
        let bearer = format!("Bearer {TOKEN}");
        let named = format!("Bearer {token}");
        let number = |told: Value| match &told["namespaces"] {
            Value::Array(all) => all.len() as u64,
            number => number.as_u64().unwrap(),
        };
        for (header, value, visible) in [
            ("Authorization", &*bearer, 2),
            ("Authorization", &named, 1),
            ("X-Manager-Token", MANAGER_TOKEN, 2),
        ] {
            let told = probed(&gateway, url.clone(), &[(header, value)]).await;
            assert_eq!(number(told), visible, "{path} {value}");
        }
        assert_eq!(number(probed(&gateway, metrics(path), &[]).await), 2);
    }
}

#[tokio::test]
async fn health_needs_no_credentials_and_ready_tells_about_namespaces() {
    let gateway = gateway().await;
    let health = probed(
        &gateway,
        gateway.url("/health"),
        &[("Authorization", &format!("Bearer {TOKEN}"))],
    )
    .await;
    assert_eq!(health["status"], "ok");
    assert_eq!(health["namespaces"], 3);
    assert!(health["version"].is_string() && health["uptime_seconds"].is_u64());
    assert!(health["tools"].as_u64().unwrap() > 3);
    let head = gateway
        .client
        .head(gateway.url("/health"))
        .send()
        .await
        .unwrap();
    assert_eq!(head.status(), 200);
    let well_known = gateway
        .client
        .get(gateway.url("/.well-known/oauth-protected-resource"))
        .send()
        .await
        .unwrap();
    assert_eq!(well_known.status(), 404);
    assert!(well_known.json::<Value>().await.is_ok());
}

/// The answer to a REST request: status, `Allow`, body without the id of the request.
async fn answered(
    gateway: &Gateway,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &'static str,
) -> (u16, Option<String>, Value) {
    let mut request = gateway.request(method, path).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    let allow = response.headers().get("allow");
    let allow = allow.map(|value| value.to_str().unwrap().to_owned());
    let status = response.status().as_u16();
    let text = response.text().await.unwrap();
    let mut body = serde_json::from_str(&text).unwrap_or(Value::String(text));
    if let Some(details) = body.pointer_mut("/error/details") {
        details.as_object_mut().unwrap().remove("request_id");
    }
    (status, allow, body)
}

#[tokio::test]
async fn rest_by_path_answers_as_rest_by_header() {
    let gateway = gateway().await;
    const JSON: (&str, &str) = ("Content-Type", "application/json");
    for (method, below, headers, body, status) in [
        ("GET", "/tools", &[][..], "", 200),
        ("GET", "/tools/add/schema", &[], "", 200),
        ("POST", "/tools/add", &[JSON], r#"{"a":2,"b":3}"#, 200),
        ("POST", "/tools/a%64d", &[JSON], r#"{"a":2,"b":3}"#, 200),
        ("POST", "/tools/add", &[JSON], r#"{"a":"x"}"#, 422),
        ("POST", "/tools/add", &[JSON], "{", 400),
        (
            "POST",
            "/tools/add",
            &[("Content-Type", "text/plain")],
            "{}",
            415,
        ),
        ("POST", "/tools/nope", &[JSON], "{}", 404),
        ("GET", "/tools/nope/schema", &[], "", 404),
        ("GET", "/tools/add", &[], "", 405),
        ("DELETE", "/tools", &[], "", 405),
        ("POST", "/openapi.json", &[JSON], "{}", 405),
        ("OPTIONS", "/tools/add", &[], "", 204),
        ("GET", "/tools/", &[], "", 404),
        ("GET", "/tools/add/schema/", &[], "", 404),
        ("GET", "/tools/%ff", &[], "", 400),
    ] {
        let by_path = format!("/namespaces/calc{below}");
        let by_path = answered(&gateway, method, &by_path, headers, body).await;
        let headers = [headers, &[("X-Namespace", "calc")]].concat();
        let by_header = answered(&gateway, method, below, &headers, body).await;
        assert_eq!(by_path.0, status, "{method} {below}: {}", by_path.2);
        if by_path.2["error"]["code"] == "not_found" {
            // The messages differ by the path.
            assert_eq!(by_header.2["error"]["code"], "not_found", "{below}");
        } else {
            assert_eq!(by_path, by_header, "{method} {below}");
        }
    }
    let (_, _, encoded) = answered(&gateway, "GET", "/namespaces/c%61lc/tools", &[], "").await;
    assert_eq!(encoded[0]["name"], "add");
}

#[tokio::test]
async fn a_path_and_a_header_that_differ_are_refused_and_refusals_name_the_ways_of_rest() {
    let gateway = gateway().await;
    for (path, header, status, code) in [
        ("/namespaces/calc/tools", Some("calc"), 200, None),
        (
            "/namespaces/calc/tools",
            Some("shared"),
            400,
            Some("namespace_ambiguous"),
        ),
        (
            "/namespaces/calc/openapi.json?namespace=calc",
            None,
            200,
            None,
        ),
        (
            "/namespaces/calc/openapi.json?namespace=shared",
            None,
            400,
            Some("namespace_ambiguous"),
        ),
        (
            "/namespaces/nope/tools",
            None,
            404,
            Some("namespace_not_found"),
        ),
        (
            "/namespaces/_system/tools",
            None,
            404,
            Some("namespace_not_found"),
        ),
        ("/tools", Some("nope"), 404, Some("namespace_not_found")),
        ("/tools", None, 400, Some("namespace_required")),
        ("/openapi.json", None, 400, Some("namespace_required")),
    ] {
        let (got, answer) = get(&gateway, path, header).await;
        assert_eq!(got, status, "{path} {header:?}: {answer}");
        let told = answer["error"]["code"].as_str();
        assert_eq!(told, code, "{path} {header:?}");
        if matches!(told, Some("namespace_not_found" | "namespace_required")) {
            let message = answer["detail"].as_str().unwrap();
            assert!(message.contains("X-Namespace"), "{message}");
            assert!(message.contains("/namespaces/<name>/"), "{message}");
            assert!(!message.contains("/mcp"), "{message}");
        }
    }
}

#[tokio::test]
async fn rest_by_path_goes_through_the_same_admission_as_rest_by_header() {
    let token = "ci-token-0123456789abcdef";
    let gateway = Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
        ("few", "hello.py", tools::HELLO),
    ])
    .config(json!({
        "admission": {
            "origins": ["https://ok.example"],
            "tokens": [{"name": "ci", "sha256": sha256(token), "namespaces": ["shared"]}],
            "rate_limits": [{"key": "namespace", "rate": 1, "burst": 1, "namespace": "few"}],
            "limits": {"body": "1KiB"},
        },
        "namespaces": {"overrides": {"calc": {"tools_deny": ["multiply"]}}},
    }))
    .start()
    .await;
    let listed = async |path: &str, token: Option<&str>, headers: &[(&str, &str)]| {
        let mut request = gateway.client.get(gateway.url(path));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    };
    let path = "/namespaces/calc/tools";
    assert_eq!(listed(path, None, &[]).await.status(), 401);
    assert_eq!(listed(path, Some("wrong"), &[]).await.status(), 401);
    assert_eq!(listed(path, Some(token), &[]).await.status(), 403);
    let shared = listed("/namespaces/shared/tools", Some(token), &[]).await;
    assert_eq!(shared.status(), 200);
    let page = [("Origin", "https://evil.example")];
    assert_eq!(listed(path, Some(TOKEN), &page).await.status(), 403);
    let host = [("Host", "gw.example")];
    assert_eq!(listed(path, Some(TOKEN), &host).await.status(), 403);
    let page = [("Origin", "https://ok.example")];
    let allowed = listed(path, Some(TOKEN), &page).await;
    assert_eq!(
        allowed.headers()["access-control-allow-origin"],
        "https://ok.example"
    );
    let tools: Value = allowed.json().await.unwrap();
    let names: Vec<_> = tools
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["name"])
        .collect();
    assert_eq!(names, ["add"]);
    let denied = gateway
        .request("POST", "/namespaces/calc/tools/multiply")
        .json(&json!({"a": 1, "b": 2}))
        .send()
        .await
        .unwrap();
    assert_eq!(denied.status(), 404);
    let large = gateway
        .request("POST", "/namespaces/calc/tools/add")
        .json(&json!({"a": "x".repeat(2000)}))
        .send()
        .await
        .unwrap();
    assert_eq!(large.status(), 413);
    // The limit is the namespace's, whichever way it is named.
    let first = listed("/namespaces/few/tools", Some(TOKEN), &[]).await;
    assert_eq!(first.status(), 200);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let limited = listed("/tools", Some(TOKEN), &[("X-Namespace", "few")]).await;
        statuses.push(limited.status().as_u16());
    }
    assert!(statuses.contains(&429), "{statuses:?}");
}

#[tokio::test]
async fn the_addresses_in_either_openapi_document_work() {
    for public_url in ["off", "https://gw.example"] {
        let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
            .core(json!({"path_prefix": "/front"}))
            .config(json!({"admission": {"public_url": public_url}}))
            .start()
            .await;
        for (path, namespace) in [
            ("/openapi.json?view=tools", Some("calc")),
            ("/openapi.json", Some("calc")),
            ("/namespaces/calc/openapi.json", None),
            ("/namespaces/calc/openapi.json?view=all", None),
        ] {
            let (status, document) = get(&gateway, path, namespace).await;
            assert_eq!(status, 200, "{path}");
            crate::sdk::validate_openapi(&document).await;
            // The front takes its prefix away.
            let before = match public_url {
                "off" => "/front",
                origin => &format!("{origin}/front"),
            };
            let mut working = 0;
            for (below, item) in document["paths"].as_object().unwrap() {
                let servers = item.get("servers").unwrap_or(&document["servers"]);
                let address = format!("{}{below}", servers[0]["url"].as_str().unwrap());
                let address = address.strip_prefix(before).unwrap();
                let address = address.replace("{name}", "add");
                let (method, body) = match item.get("post") {
                    Some(_) => ("POST", r#"{"a":2,"b":3}"#),
                    None => ("GET", ""),
                };
                let mut headers = vec![("Content-Type", "application/json")];
                headers.extend(namespace.map(|name| ("X-Namespace", name)));
                let (status, _, answer) =
                    answered(&gateway, method, &address, &headers, body).await;
                assert_eq!(status, 200, "{path}: {method} {address}: {answer}");
                working += 1;
            }
            let whole = path.contains("view=all") || path == "/openapi.json";
            assert_eq!(working, if whole { 7 } else { 2 }, "{path}");
        }
    }
}

#[tokio::test]
async fn json_ends_with_a_newline_where_a_terminal_asks() {
    let gateway = gateway().await;
    let ping = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;
    for (method, path, body, status, ends) in [
        ("GET", "/tools", "", 200, true),
        ("POST", "/tools/add", r#"{"a":2,"b":3}"#, 200, true),
        ("GET", "/namespaces/calc/openapi.json", "", 200, true),
        ("GET", "/health", "", 200, true),
        ("GET", "/ready", "", 200, true),
        ("GET", "/no/such/path", "", 404, true),
        ("DELETE", "/tools", "", 405, true),
        ("POST", "/tools/add", "{", 400, true),
        ("POST", "/mcp", ping, 200, false),
        ("POST", "/mcp", "{", 400, false),
        ("PUT", "/mcp", "", 405, false),
        ("GET", "/mcp/nope", "", 404, false),
    ] {
        for (accept, asks) in [
            ("*/*", true),
            ("text/html, */*;q=0.8", true),
            ("application/json", false),
            ("application/json, text/event-stream", false),
        ] {
            let request = gateway.request(method, path);
            let response = request
                .header(
                    "X-Namespace",
                    if path == "/mcp/nope" { "nope" } else { "calc" },
                )
                .header("Content-Type", "application/json")
                .header("Accept", accept)
                .body(body)
                .send()
                .await
                .unwrap();
            assert_eq!(response.status(), status, "{method} {path} {accept}");
            let length = response.content_length();
            let bytes = response.bytes().await.unwrap();
            assert_eq!(length, Some(bytes.len() as u64), "{method} {path} {accept}");
            assert_eq!(
                bytes.ends_with(b"\n"),
                ends && asks,
                "{method} {path} {accept}"
            );
            assert!(!bytes.ends_with(b"\n\n"), "{method} {path}");
            serde_json::from_slice::<Value>(&bytes).unwrap();
        }
    }
    let metrics = format!("http://{}/metrics", gateway.metrics);
    let metrics = gateway.client.get(metrics).send().await.unwrap();
    assert!(!metrics.text().await.unwrap().ends_with("\n\n"));
}

/// More than one write, and a body that is not the edge's own.
#[tokio::test]
async fn a_large_answer_ends_with_one_newline_and_its_length_counts_it() {
    const LARGE: &str = "from fastmcp.tools import tool\n\n@tool\ndef text(length: int) -> str:\n    return 'x' * length\n";
    let gateway = Gateway::with_tools([("large", "large.py", LARGE)])
        .start()
        .await;
    for length in [10, 300_000] {
        let response = gateway
            .request("POST", "/namespaces/large/tools/text")
            .header("Accept", "*/*")
            .json(&json!({"length": length}))
            .send()
            .await
            .unwrap();
        assert_eq!(response.content_length(), Some(length + 3));
        let text = response.text().await.unwrap();
        assert_eq!(text, format!("\"{}\"\n", "x".repeat(length as usize)));
    }
}

#[tokio::test]
async fn a_python_tool_gets_what_was_spelled_in_strings_where_the_operator_says_so() {
    const SOURCE: &str = r#"
from fastmcp.tools import tool


@tool
def kinds(items: list[int], options: dict, on: bool, note: str) -> list[str]:
    """Says what it got."""
    return [type(it).__name__ for it in (items, options, on, note)]
"#;
    let gateway = Gateway::with_tools([("work", "work.py", SOURCE)])
        .config(json!({"namespaces": {"defaults": {"coerce_arguments": true}}}))
        .start()
        .await;
    let arguments = json!({"items": "[1, 2]", "options": "{\"a\": 1}", "on": "true", "note": "5"});
    let (status, answer) = gateway.call("work", "kinds", arguments).await;
    assert_eq!(status, 200, "{answer}");
    let said = answer.to_string();
    for kind in ["list", "dict", "bool", "str"] {
        assert!(said.contains(&format!("\"{kind}\"")), "{answer}");
    }
}

/// A server whose tools have names of every kind.
const NAMES: &str = r#"
import json, sys

names = ["user-profile/update", "a/b/c", "with space", "plain", "a/../b", "/rooted"]
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if "id" not in message:
        continue
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "names", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": message["params"]["name"]}]}
    else:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

#[tokio::test]
async fn every_tool_is_called_by_the_path_that_the_document_has() {
    let server = json!({"command": "python3", "args": ["-c", NAMES]});
    let gateway = Gateway::empty()
        .config(json!({"upstreams": {"stdio": {"names": server}}}))
        .start()
        .await;
    let base = "/namespaces/names";
    let document = gateway.request("GET", &format!("{base}/openapi.json"));
    let document: Value = document.send().await.unwrap().json().await.unwrap();
    let paths = document["paths"].as_object().unwrap();
    let mut called = Vec::new();
    for path in paths.keys() {
        let call = gateway.request("POST", &format!("{base}{path}"));
        let response = call.json(&json!({})).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        called.push(response.json::<Value>().await.unwrap());
    }
    called.sort_by_key(Value::to_string);
    assert_eq!(
        json!(called),
        json!(["a/b/c", "plain", "user-profile/update", "with space"])
    );
    let description = document["info"]["description"].as_str().unwrap();
    assert!(
        description.contains("a/../b") && description.contains("/rooted"),
        "{description}"
    );
    let schema = gateway.request("GET", &format!("{base}/tools/user-profile%2Fupdate/schema"));
    assert_eq!(schema.send().await.unwrap().status(), 200);
    for path in ["..%2Fplain", "a%2F..%2Fplain", "%2Fetc%2Fpasswd"] {
        let call = gateway.request("POST", &format!("{base}/tools/{path}"));
        assert_eq!(
            call.json(&json!({})).send().await.unwrap().status(),
            400,
            "{path}"
        );
    }
}
