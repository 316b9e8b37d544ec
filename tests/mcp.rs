//! MCP over `POST` and `DELETE` (EXAMPLES EX-01 … EX-09): handshake, versions, sessions, ids, batches, single faults.

use reqwest::Response;
use serde_json::{Value, json};

use crate::support::raw::exchange;
use crate::support::{Gateway, TOKEN, tools};

const BOTH: &str = "application/json, text/event-stream";

/// A client that has initialized, or is about to.
struct Client<'a> {
    gateway: &'a Gateway,
    namespace: &'a str,
    session: Option<String>,
}

impl<'a> Client<'a> {
    fn new(gateway: &'a Gateway, namespace: &'a str) -> Self {
        Self {
            gateway,
            namespace,
            session: None,
        }
    }

    async fn send(&self, message: &Value, headers: &[(&str, &str)]) -> Response {
        self.send_text(&message.to_string(), headers).await
    }

    async fn send_text(&self, body: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = self
            .gateway
            .request("POST", "/mcp")
            .header("X-Namespace", self.namespace)
            .header("Content-Type", "application/json")
            .body(body.to_owned());
        if !headers.iter().any(|(name, _)| *name == "Accept") {
            request = request.header("Accept", BOTH);
        }
        if let Some(session) = &self.session {
            request = request.header("Mcp-Session-Id", session);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.expect("answered")
    }

    async fn initialize(&mut self, version: &str) -> Value {
        let message = initialize(version);
        let response = self.send(&message, &[]).await;
        assert_eq!(response.status(), 200);
        self.session = Some(
            response.headers()["mcp-session-id"]
                .to_str()
                .unwrap()
                .to_owned(),
        );
        response.json().await.unwrap()
    }

    async fn initialized(&self) {
        let response = self
            .send(
                &json!({"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}}),
                &[],
            )
            .await;
        assert_eq!(response.status(), 202);
        assert!(response.bytes().await.unwrap().is_empty());
    }

    async fn ready(gateway: &'a Gateway, namespace: &'a str, version: &str) -> Self {
        let mut client = Self::new(gateway, namespace);
        client.initialize(version).await;
        client.initialized().await;
        client
    }
}

fn initialize(version: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": "init-1", "method": "initialize", "params":
        {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "curl", "version": "1.0"}}})
}

fn request(id: Value, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

async fn gateway() -> Gateway {
    Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
    ])
    .start()
    .await
}

#[tokio::test]
async fn initialize_is_judged_by_its_body_alone() {
    let gateway = gateway().await;
    let theirs = Client::ready(&gateway, "shared", "2025-11-25").await;
    let theirs = theirs.session.as_deref().unwrap();
    let client = Client::new(&gateway, "calc");
    let gone = "00000000-0000-0000-0000-000000000000";
    for (headers, asked, answered) in [
        (&[("Mcp-Session-Id", gone)][..], "2025-11-25", "2025-11-25"),
        (&[("Mcp-Session-Id", theirs)], "2025-06-18", "2025-06-18"),
        (
            &[("MCP-Protocol-Version", "2027-03-01")],
            "2027-03-01",
            "2025-11-25",
        ),
        (
            &[("MCP-Protocol-Version", "latest"), ("Mcp-Session-Id", gone)],
            "2025-11-25",
            "2025-11-25",
        ),
        // The version header does not decide which `Accept` is required either.
        (
            &[
                ("MCP-Protocol-Version", "2027-03-01"),
                ("Accept", "application/json"),
            ],
            "2025-03-26",
            "2025-03-26",
        ),
    ] {
        let response = client.send(&initialize(asked), headers).await;
        assert_eq!(response.status(), 200, "{headers:?}");
        let session = response.headers()["mcp-session-id"].clone();
        assert_ne!(session, gone);
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["result"]["protocolVersion"], answered, "{headers:?}");
    }
}

#[tokio::test]
async fn a_lenient_listener_answers_in_a_form_that_the_client_accepts() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .core(json!({"accept": "lenient"}))
        .start()
        .await;
    let client = Client::new(&gateway, "calc");
    let null = json!({"name": "add", "arguments": null});
    for message in [
        initialize("2025-11-25"),
        request(json!(1), "tools/list", json!({})),
        request(json!(2), "tools/call", null),
    ] {
        for (accept, kind) in [
            ("text/event-stream", "text/event-stream"),
            ("text/*", "text/event-stream"),
            ("application/json", "application/json"),
            ("*/*", "application/json"),
            ("application/*, text/*", "application/json"),
            ("text/event-stream, */*;q=0.1", "application/json"),
        ] {
            let response = client.send(&message, &[("Accept", accept)]).await;
            assert_eq!(response.status(), 200, "{accept}");
            assert_eq!(response.headers()["content-type"], kind, "{accept}");
            let text = response.text().await.unwrap();
            let json = match kind {
                "application/json" => &text,
                _ => text
                    .lines()
                    .find_map(|line| line.strip_prefix("data: "))
                    .unwrap(),
            };
            let answer: Value = serde_json::from_str(json).unwrap();
            assert!(answer["result"].is_object(), "{answer}");
        }
    }
    let response = client
        .send(&initialize("2025-11-25"), &[("Accept", "text/html")])
        .await;
    assert_eq!(response.status(), 406);
}

#[tokio::test]
async fn initialize_answers_version_capabilities_server_info_and_a_session() {
    let gateway = gateway().await;
    let mut client = Client::new(&gateway, "calc");
    let answer = client.initialize("2025-11-25").await;
    assert_eq!(answer["id"], "init-1");
    let result = &answer["result"];
    assert_eq!(result["protocolVersion"], "2025-11-25");
    assert_eq!(result["capabilities"]["tools"]["listChanged"], true);
    assert_eq!(result["serverInfo"]["name"], "tooldock/calc");
    let session = client.session.unwrap();
    assert!(session.len() >= 22, "at least 128 bits: {session}");
    assert!(session.bytes().all(|byte| (0x21..=0x7e).contains(&byte)));
}

#[tokio::test]
async fn every_supported_version_is_echoed_and_an_unknown_one_gets_the_default() {
    let gateway = gateway().await;
    for (asked, answered) in [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2099-01-01", "2025-11-25"),
    ] {
        let answer = Client::new(&gateway, "calc").initialize(asked).await;
        assert_eq!(answer["result"]["protocolVersion"], answered);
    }
}

#[tokio::test]
async fn the_handshake_then_list_call_ping_and_delete() {
    let gateway = gateway().await;
    let client = Client::ready(&gateway, "shared", "2025-11-25").await;
    let list: Value = client
        .send(&request(json!("tools-1"), "tools/list", json!({})), &[])
        .await
        .json()
        .await
        .unwrap();
    let tool = &list["result"]["tools"][0];
    assert_eq!(tool["name"], "say_hello");
    assert!(tool["description"].as_str().unwrap().contains("Greet"));
    assert_eq!(tool["inputSchema"]["type"], "object");
    assert_eq!(
        tool["inputSchema"]["properties"]["name"]["default"],
        "World"
    );
    assert!(tool.get("filename").is_none(), "MCP tools have no filename");
    let call: Value = client
        .send(
            &request(
                json!(7),
                "tools/call",
                json!({"name": "say_hello", "arguments": {"name": "Ada"}}),
            ),
            &[],
        )
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        call,
        json!({"jsonrpc": "2.0", "id": 7, "result": {
            "content": [{"type": "text", "text": "Hello, Ada!"}],
            "structuredContent": {"result": "Hello, Ada!"}, "isError": false}})
    );
    let ping: Value = client
        .send(&json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}), &[])
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(ping, json!({"jsonrpc": "2.0", "id": 3, "result": {}}));
    let delete = |client: &Client<'_>| {
        gateway
            .request("DELETE", "/mcp")
            .header("X-Namespace", "shared")
            .header("Mcp-Session-Id", client.session.clone().unwrap())
            .send()
    };
    assert!(delete(&client).await.unwrap().status().is_success());
    assert_eq!(delete(&client).await.unwrap().status(), 404);
    let after = client
        .send(&json!({"jsonrpc": "2.0", "id": 4, "method": "ping"}), &[])
        .await;
    assert_eq!(after.status(), 404);
}

#[tokio::test]
async fn single_header_faults_get_their_status() {
    let gateway = gateway().await;
    let client = Client::ready(&gateway, "calc", "2025-11-25").await;
    let fresh = Client::new(&gateway, "calc");
    let list = request(json!(1), "tools/list", json!({}));
    type Case<'a> = (
        &'a str,
        &'a Client<'a>,
        Value,
        &'a [(&'a str, &'a str)],
        u16,
    );
    let cases: [Case<'_>; 13] = [
        (
            "JSON alone in a 2025-11-25 session",
            &client,
            list.clone(),
            &[("Accept", "application/json")],
            406,
        ),
        (
            "a wildcard in a 2025-11-25 session",
            &client,
            list.clone(),
            &[("Accept", "*/*")],
            406,
        ),
        (
            "JSON alone with the header version",
            &fresh,
            list.clone(),
            &[
                ("Accept", "application/json"),
                ("MCP-Protocol-Version", "2025-06-18"),
            ],
            406,
        ),
        (
            "JSON alone on initialize for 2025-11-25",
            &fresh,
            initialize("2025-11-25"),
            &[("Accept", "application/json")],
            406,
        ),
        (
            "JSON alone on initialize for 2025-03-26",
            &fresh,
            initialize("2025-03-26"),
            &[("Accept", "application/json")],
            200,
        ),
        (
            "no version context, JSON alone",
            &fresh,
            list.clone(),
            &[("Accept", "application/json")],
            200,
        ),
        (
            "no version context, wildcard",
            &fresh,
            list.clone(),
            &[("Accept", "*/*")],
            200,
        ),
        (
            "JSON excluded by q=0",
            &fresh,
            list.clone(),
            &[("Accept", "application/json;q=0, text/html")],
            406,
        ),
        (
            "an unsupported version header",
            &fresh,
            list.clone(),
            &[("MCP-Protocol-Version", "1999-01-01")],
            400,
        ),
        (
            "another version than the session's",
            &client,
            list.clone(),
            &[("MCP-Protocol-Version", "2025-06-18")],
            400,
        ),
        (
            "the session's own version",
            &client,
            list.clone(),
            &[("MCP-Protocol-Version", "2025-11-25")],
            200,
        ),
        (
            "no session where one is required",
            &fresh,
            list.clone(),
            &[("MCP-Protocol-Version", "2025-11-25")],
            400,
        ),
        (
            "an unknown session",
            &fresh,
            list.clone(),
            &[("Mcp-Session-Id", "no-such-session")],
            404,
        ),
    ];
    for (fault, client, message, headers, status) in cases {
        let response = client.send(&message, headers).await;
        assert_eq!(response.status(), status, "{fault}");
        if status >= 400 {
            let body: Value = response.json().await.unwrap();
            assert_eq!(body["jsonrpc"], "2.0", "{fault}");
            assert!(body["error"]["code"].is_i64(), "{fault}: {body}");
            assert!(body["error"]["data"]["code"].is_string(), "{fault}: {body}");
        }
    }
    let unsupported = fresh
        .send(&list, &[("MCP-Protocol-Version", "1999-01-01")])
        .await
        .text()
        .await
        .unwrap();
    assert!(
        unsupported.contains("2025-06-18"),
        "names what is supported: {unsupported}"
    );
}

#[tokio::test]
async fn body_faults_get_their_codes() {
    let gateway = gateway().await;
    let client = Client::new(&gateway, "calc");
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{{"a":{}{}}}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    let cases = [
        ("{", 400, -32700),
        ("", 400, -32700),
        (r#"{"jsonrpc":"2.0","id":1}"#, 400, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, 400, -32600),
        (
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            400,
            -32600,
        ),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, 400, -32600),
        (
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
            400,
            -32600,
        ),
        (r#"{"jsonrpc":"2.0","id":5,"method":"nope/x"}"#, 200, -32601),
        (
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{}}"#,
            200,
            -32602,
        ),
        (
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{"cursor":"x"}}"#,
            200,
            -32602,
        ),
        ("[]", 400, -32600),
        ("17", 400, -32600),
        (deep.as_str(), 400, -32600),
    ];
    for (body, status, code) in cases {
        let response = client.send_text(body, &[]).await;
        assert_eq!(response.status(), status, "{body}");
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"]["code"], code, "{body}: {answer}");
        assert!(answer["error"]["message"].is_string(), "{body}");
        assert!(answer.get("id").is_some(), "{body}");
    }
    let unknown: Value = client
        .send_text(r#"{"jsonrpc":"2.0","id":5,"method":"nope/x"}"#, &[])
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(unknown["id"], 5);
    assert_eq!(unknown["error"]["message"], "Method not found: nope/x");
    let mut not_text = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".to_vec();
    not_text.extend(format!("Authorization: Bearer {TOKEN}\r\nX-Namespace: calc\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n").bytes());
    not_text.extend([b'"', 0xff, 0xfe, b'"']);
    let answer = exchange(gateway.address, &not_text).await;
    assert!(
        answer.starts_with("HTTP/1.1 400") && answer.contains("-32700"),
        "{answer}"
    );
}

#[tokio::test]
async fn ids_keep_their_spelling() {
    let gateway = gateway().await;
    let client = Client::new(&gateway, "calc");
    for id in [
        "0",
        "7",
        "-1",
        "1.5",
        "9007199254740993",
        "1e3",
        r#""""#,
        r#""init-1""#,
        r#""🦀""#,
        r#""\u00e4\n""#,
    ] {
        for (method, params) in [
            ("ping", "{}"),
            ("tools/call", r#"{"name":"add","arguments":{"a":1,"b":2}}"#),
            ("nope", "{}"),
        ] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}","params":{params}}}"#);
            let text = client.send_text(&body, &[]).await.text().await.unwrap();
            assert!(text.contains(&format!(r#""id":{id},"#)), "{id} in {text}");
        }
    }
}

#[tokio::test]
async fn before_initialized_only_ping_is_served() {
    let gateway = gateway().await;
    let mut client = Client::new(&gateway, "calc");
    client.initialize("2025-11-25").await;
    let ping = client
        .send(&json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}), &[])
        .await;
    assert_eq!(ping.status(), 200);
    let list = client
        .send(&request(json!(2), "tools/list", json!({})), &[])
        .await;
    assert_eq!(list.status(), 200);
    let answer: Value = list.json().await.unwrap();
    assert_eq!(answer["error"]["code"], -32600);
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("notifications/initialized")
    );
    // The synonym of old clients counts, too.
    let old = client
        .send(&json!({"jsonrpc": "2.0", "method": "initialized"}), &[])
        .await;
    assert_eq!(old.status(), 202);
    let list: Value = client
        .send(&request(json!(2), "tools/list", json!({})), &[])
        .await
        .json()
        .await
        .unwrap();
    assert!(list["result"]["tools"].is_array(), "{list}");
}

#[tokio::test]
async fn a_request_that_overtakes_initialized_waits_for_it() {
    let gateway = gateway().await;
    let mut client = Client::new(&gateway, "calc");
    client.initialize("2025-11-25").await;
    let list = request(json!(2), "tools/list", json!({}));
    let overtaking = client.send(&list, &[]);
    let notification = async {
        tokio::task::yield_now().await;
        client.initialized().await;
    };
    let (answer, ()) = tokio::join!(overtaking, notification);
    let answer: Value = answer.json().await.unwrap();
    assert!(answer["result"]["tools"].is_array(), "{answer}");
}

#[tokio::test]
async fn batches_are_for_2025_03_26_alone() {
    let gateway = gateway().await;
    let batch = json!([
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    ]);
    let fresh = Client::new(&gateway, "calc");
    for headers in [&[][..], &[("MCP-Protocol-Version", "2025-03-26")]] {
        let response = fresh.send(&batch, headers).await;
        assert_eq!(response.status(), 200);
        let answers: Vec<Value> = response.json().await.unwrap();
        let mut ids: Vec<_> = answers
            .iter()
            .map(|answer| answer["id"].as_i64().unwrap())
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, [1, 2]);
    }
    let notifications = json!([{"jsonrpc": "2.0", "method": "notifications/initialized"}]);
    assert_eq!(fresh.send(&notifications, &[]).await.status(), 202);
    let with_initialize = json!([initialize("2025-03-26")]);
    assert_eq!(fresh.send(&with_initialize, &[]).await.status(), 400);
    for version in ["2025-06-18", "2025-11-25"] {
        let client = Client::ready(&gateway, "calc", version).await;
        let response = client.send(&batch, &[]).await;
        assert_eq!(response.status(), 400);
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], -32600);
    }
}

#[tokio::test]
async fn a_session_belongs_to_its_namespace_and_its_principal() {
    let other = "other-token-0123456789abcdef";
    let gateway = Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("calc", "math_tools.py", tools::MATH),
    ])
    .config(json!({"admission": {"tokens": [
        {"name": "other", "sha256": crate::support::sha256(other), "namespaces": ["*"]}]}}))
    .start()
    .await;
    let mut client = Client::ready(&gateway, "calc", "2025-11-25").await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(client.send(&ping, &[]).await.status(), 200);
    let foreign = gateway
        .client
        .post(gateway.url("/mcp"))
        .bearer_auth(other)
        .header("X-Namespace", "calc")
        .header("Accept", BOTH)
        .header("Mcp-Session-Id", client.session.clone().unwrap())
        .json(&ping)
        .send()
        .await
        .unwrap();
    assert_eq!(foreign.status(), 404, "another principal");
    client.namespace = "shared";
    assert_eq!(
        client.send(&ping, &[]).await.status(),
        404,
        "another namespace"
    );
}

#[tokio::test]
async fn an_expired_session_is_gone_and_counted_out() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(json!({"sessions": {"ttl": "300ms"}}))
        .start()
        .await;
    let client = Client::ready(&gateway, "calc", "2025-11-25").await;
    crate::support::eventually("the session gauge falls", || async {
        gateway
            .metrics_text()
            .await
            .lines()
            .any(|line| line == "tooldock_sessions 0")
            .then_some(())
    })
    .await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(client.send(&ping, &[]).await.status(), 404);
}

#[tokio::test]
async fn the_path_form_names_the_namespace() {
    let gateway = gateway().await;
    let call = |path: &'static str, header: Option<&'static str>| {
        let mut request =
            gateway
                .request("POST", path)
                .json(&request(json!(1), "tools/list", json!({})));
        if let Some(header) = header {
            request = request.header("X-Namespace", header);
        }
        request.send()
    };
    let list: Value = call("/mcp/calc", None).await.unwrap().json().await.unwrap();
    let names: Vec<_> = list["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["add", "multiply"]);
    assert_eq!(call("/mcp/calc", Some("calc")).await.unwrap().status(), 200);
    assert_eq!(
        call("/mcp/calc", Some("shared")).await.unwrap().status(),
        400
    );
    assert_eq!(call("/mcp/nope", None).await.unwrap().status(), 404);
    assert_eq!(call("/mcp/Bad.Name", None).await.unwrap().status(), 404);
    assert_eq!(call("/mcp", None).await.unwrap().status(), 400);
}

#[tokio::test]
async fn a_method_a_path_does_not_have_gets_405_and_the_ones_it_has() {
    let gateway = gateway().await;
    for (method, path, allowed) in [
        ("PUT", "/mcp", &["GET", "POST", "DELETE"][..]),
        ("PATCH", "/mcp/calc", &["GET", "POST", "DELETE"]),
        ("POST", "/sse", &["GET"]),
        ("GET", "/messages", &["POST"]),
    ] {
        let response = gateway
            .request(method, path)
            .header("X-Namespace", "calc")
            .header("Accept", "text/event-stream")
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 405, "{method} {path}");
        let allow = response.headers()["allow"].to_str().unwrap();
        let listed: Vec<_> = allow.split(',').map(str::trim).collect();
        for method in allowed {
            assert!(listed.contains(method), "{path}: {allow}");
        }
    }
}

#[tokio::test]
async fn failures_of_tools_are_results_a_model_can_read() {
    let gateway = Gateway::with_tools([
        ("faulty", "faulty.py", tools::FAULTY),
        ("calc", "math_tools.py", tools::MATH),
    ])
    .config(json!({"namespaces": {"overrides": {"faulty": {"timeout": "3s"}}}}))
    .start()
    .await;
    for (namespace, tool, arguments, code) in [
        (
            "calc",
            "add",
            json!({"a": "x", "b": 2}),
            "invalid_arguments",
        ),
        ("calc", "add", json!({"a": 1}), "invalid_arguments"),
        (
            "calc",
            "add",
            json!({"a": 1, "b": 2, "zz": 3}),
            "invalid_arguments",
        ),
        ("calc", "boom", json!({}), "tool_not_found"),
        ("faulty", "boom", json!({}), "internal_error"),
        ("faulty", "needs_package", json!({}), "dependency_error"),
        (
            "faulty",
            "slow",
            json!({"seconds": 20}),
            "execution_timeout",
        ),
    ] {
        let client = Client::ready(&gateway, namespace, "2025-11-25").await;
        let message = request(
            json!(8),
            "tools/call",
            json!({"name": tool, "arguments": arguments}),
        );
        let response = client.send(&message, &[]).await;
        assert_eq!(response.status(), 200);
        let answer: Value = response.json().await.unwrap();
        let result = &answer["result"];
        assert_eq!(result["isError"], true, "{tool}: {answer}");
        assert_eq!(
            result["_meta"]["tooldock/error"]["code"], code,
            "{tool}: {answer}"
        );
        assert!(
            result["content"][0]["text"]
                .as_str()
                .unwrap()
                .starts_with(code),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn fifty_clients_at_once_share_one_worker() {
    let gateway = gateway().await;
    let clients = (0..50).map(|number| {
        let gateway = &gateway;
        async move {
            let client = Client::ready(gateway, "calc", "2025-11-25").await;
            let message = request(
                json!(number),
                "tools/call",
                json!({"name": "add", "arguments": {"a": number, "b": 1}}),
            );
            let answer: Value = client.send(&message, &[]).await.json().await.unwrap();
            assert_eq!(answer["id"], number);
            assert_eq!(
                answer["result"]["structuredContent"]["result"],
                f64::from(number) + 1.0
            );
        }
    });
    futures_util::future::join_all(clients).await;
    let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
    assert_eq!(gateway.mcp("calc", ping).await.0, 200);
}
