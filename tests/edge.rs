//! Admission at the edge: who is let in, from where, how often, into which namespace.

use serde_json::{Value, json};

use crate::support::gateway::MANAGER_TOKEN;
use crate::support::raw::exchange;
use crate::support::{Gateway, TOKEN, sha256, tools};

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

async fn status(gateway: &Gateway, headers: &[(&str, &str)]) -> u16 {
    let mut request = gateway
        .client
        .post(gateway.url("/mcp"))
        .header("Content-Type", "application/json")
        .body(PING);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap().status().as_u16()
}

fn bearer() -> String {
    format!("Bearer {TOKEN}")
}

#[tokio::test]
async fn only_the_exact_bearer_token_opens() {
    let gateway = Gateway::empty().start().await;
    let namespace = ("X-Namespace", "shared");
    for (authorization, expected) in [
        (bearer(), 200),
        (format!("bearer {TOKEN}"), 200),
        (format!("Bearer {TOKEN}2"), 401),
        (format!("Bearer {}", &TOKEN[..TOKEN.len() - 1]), 401),
        ("Bearer".to_owned(), 401),
        ("Bearer ".to_owned(), 401),
        (format!("Basic {TOKEN}"), 401),
        (TOKEN.to_owned(), 401),
    ] {
        let got = status(&gateway, &[("Authorization", &authorization), namespace]).await;
        assert_eq!(got, expected, "{authorization}");
    }
    assert_eq!(status(&gateway, &[namespace]).await, 401);
    for path in [
        "/tools",
        "/namespaces",
        "/openapi.json",
        "/mcp",
        "/reload",
        "/no/such",
    ] {
        let response = gateway.client.get(gateway.url(path)).send().await.unwrap();
        assert_eq!(response.status(), 401, "{path}");
        assert_eq!(response.headers()["www-authenticate"], "Bearer", "{path}");
    }
}

#[tokio::test]
async fn named_tokens_open_their_namespaces_only() {
    let token = "ci-token-0123456789abcdef";
    let gateway = Gateway::with_tools([
        ("shared", "hello.py", tools::HELLO),
        ("dev-one", "hello.py", tools::HELLO),
    ])
    .config(json!({"admission": {"tokens": [
        {"name": "ci", "sha256": sha256(token), "namespaces": ["dev-*"]}]}}))
    .start()
    .await;
    let authorization = format!("Bearer {token}");
    let with = |namespace| {
        [
            ("Authorization", authorization.as_str()),
            ("X-Namespace", namespace),
        ]
    };
    assert_eq!(status(&gateway, &with("dev-one")).await, 200);
    assert_eq!(status(&gateway, &with("shared")).await, 403);
    assert_eq!(status(&gateway, &with("nope")).await, 404);
    let visible: Value = gateway
        .client
        .get(gateway.url("/namespaces"))
        .bearer_auth(token)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(visible.as_array().unwrap().len(), 1, "{visible}");
}

#[tokio::test]
async fn the_namespace_is_named_once_and_without_contradiction() {
    let gateway = Gateway::empty().start().await;
    let authorization = bearer();
    let auth = ("Authorization", authorization.as_str());
    for (headers, expected) in [
        (&[auth][..], 400),
        (&[auth, ("X-Namespace", "shared")], 200),
        (&[auth, ("X-Namespace", "nope")], 404),
        (&[auth, ("X-Namespace", "_system")], 404),
        (&[auth, ("X-Namespace", "../shared")], 404),
        (
            &[auth, ("X-Namespace", "shared"), ("X-Namespace", "shared")],
            400,
        ),
    ] {
        assert_eq!(status(&gateway, headers).await, expected, "{headers:?}");
    }
}

#[tokio::test]
async fn traversal_in_paths_leads_nowhere() {
    let gateway = Gateway::empty().start().await;
    for path in [
        "/mcp/%2e%2e",
        "/mcp/..%2f..%2fetc",
        "/mcp/a%00b",
        "/tools/%2e%2e%2f%2e%2e",
        "/tools/..",
        "/mcp//shared",
        "/%2e%2e/mcp",
    ] {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\
             X-Namespace: shared\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{PING}",
            PING.len()
        );
        let text = exchange(gateway.address, request.as_bytes()).await;
        let status: u16 = text.split(' ').nth(1).unwrap().parse().unwrap();
        assert!([400, 404].contains(&status), "{path}: {text}");
        assert!(!text.contains("root:"), "{path}");
    }
}

#[tokio::test]
async fn the_host_of_the_public_url_is_answered_for() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"public_url": "https://gw.example"}}))
        .start()
        .await;
    for (host, expected) in [
        ("gw.example", 200),
        ("gw.example:443", 200),
        ("localhost", 200),
        ("evil.example", 403),
    ] {
        let request = format!(
            "GET /namespaces HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n\r\n"
        );
        let text = exchange(gateway.address, request.as_bytes()).await;
        let status: u16 = text.split(' ').nth(1).unwrap().parse().unwrap();
        assert_eq!(status, expected, "{host}");
    }
}

#[tokio::test]
async fn a_page_may_send_what_servers_are_sent_of_their_clients() {
    let gateway = Gateway::empty()
        .config(json!({
            "admission": {"origins": ["https://app.example"]},
            "upstreams": {"remote": {"search": {
                "backends": ["http://127.0.0.1:9/mcp"], "headers": {"pass": ["X-Api-Key"]},
            }}},
        }))
        .start()
        .await;
    let preflight = gateway
        .client
        .request(reqwest::Method::OPTIONS, gateway.url("/mcp/search"))
        .header("Origin", "https://app.example")
        .header("Access-Control-Request-Method", "POST")
        .header(
            "Access-Control-Request-Headers",
            "mcp-param-region, x-api-key, traceparent, x-manager-token, x-other",
        )
        .send()
        .await
        .unwrap();
    let allowed = preflight.headers()["access-control-allow-headers"]
        .to_str()
        .unwrap()
        .to_owned();
    let names: Vec<_> = allowed.split(", ").map(str::to_ascii_lowercase).collect();
    for (name, allowed) in [
        ("mcp-param-region", true),
        ("x-api-key", true),
        ("traceparent", true),
        ("x-manager-token", false),
        ("x-other", false),
    ] {
        assert_eq!(
            names.iter().any(|it| it == name),
            allowed,
            "{name}: {names:?}"
        );
    }
    let exposed = preflight.headers()["access-control-expose-headers"]
        .to_str()
        .unwrap();
    assert!(exposed.contains("RateLimit, RateLimit-Policy"), "{exposed}");
}

#[tokio::test]
async fn a_loopback_listener_answers_to_loopback_names_only() {
    let gateway = Gateway::empty().start().await;
    for (host, expected) in [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("LOCALHOST.", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("", 400),
        ("a b", 400),
    ] {
        let head = format!("Host: {host}\r\nConnection: close\r\n");
        let request =
            format!("GET /namespaces HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n{head}\r\n");
        let text = exchange(gateway.address, request.as_bytes()).await;
        assert!(
            text.starts_with(&format!("HTTP/1.1 {expected}")),
            "{host:?}: {text}"
        );
        // Load balancers probe under any name or address, or under none.
        let probed = match (expected, host) {
            (403, _) | (_, "") => 200,
            _ => expected,
        };
        for path in ["/health", "/ready"] {
            let request = format!("GET {path} HTTP/1.1\r\nOrigin: http://10.0.0.1\r\n{head}\r\n");
            let text = exchange(gateway.address, request.as_bytes()).await;
            assert!(
                text.starts_with(&format!("HTTP/1.1 {probed}")),
                "{path} {host:?}: {text}"
            );
        }
        let request = format!("GET /readyz HTTP/1.1\r\n{head}\r\n");
        let text = exchange(gateway.address, request.as_bytes()).await;
        let unknown = if expected == 200 { 401 } else { expected };
        assert!(text.starts_with(&format!("HTTP/1.1 {unknown}")), "{text}");
    }
}

#[tokio::test]
async fn a_page_that_rebinds_its_name_reads_the_status_of_health_checks_alone() {
    let gateway = Gateway::empty().start().await;
    let told = async |address, path: &str, fields: &str| {
        let request = format!("GET {path} HTTP/1.1\r\n{fields}Connection: close\r\n\r\n");
        let text = exchange(address, request.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 200"), "{path} {fields}: {text}");
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(body).unwrap()
    };
    let manager = format!("X-Manager-Token: {MANAGER_TOKEN}\r\n");
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    for (path, word) in [("/health", "ok"), ("/ready", "ready")] {
        let status = json!({"status": word});
        let details = told(gateway.metrics, path, "Host: localhost\r\n").await;
        assert!(details.get("namespaces").is_some(), "{path}: {details}");
        for strange in [
            "Host: rebound.example\r\n",
            "Host:\r\n",
            "Host: [fe80::1%eth0]:8000\r\n",
            "Host: localhost\r\nOrigin: https://evil.example\r\n",
        ] {
            for address in [gateway.metrics, gateway.address] {
                assert_eq!(told(address, path, strange).await, status, "{strange}");
                let with = format!("{strange}{manager}");
                let details = told(address, path, &with).await;
                assert!(details.get("namespaces").is_some(), "{with}: {details}");
            }
            let details = told(gateway.address, path, &format!("{strange}{bearer}")).await;
            assert!(details.get("namespaces").is_some(), "{details}");
        }
    }
}

#[tokio::test]
async fn a_health_check_by_another_method_is_405_whatever_its_host() {
    let gateway = Gateway::empty().start().await;
    for host in ["localhost", "rebound.example", "", "[fe80::1%eth0]:8000"] {
        for (method, status) in [("POST", 405), ("PUT", 405), ("OPTIONS", 204), ("HEAD", 200)] {
            let request = format!(
                "{method} /health HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            let text = exchange(gateway.address, request.as_bytes()).await;
            let expected = format!("HTTP/1.1 {status} ");
            assert!(text.starts_with(&expected), "{method} {host}: {text}");
        }
    }
}

#[tokio::test]
async fn origins_are_checked_and_preflight_answered() {
    let gateway = Gateway::empty()
        .env("CORS_ORIGINS", "https://ok.example")
        .start()
        .await;
    let authorization = bearer();
    let base = [
        ("Authorization", authorization.as_str()),
        ("X-Namespace", "shared"),
    ];
    for (origin, expected) in [
        ("https://ok.example", 200),
        ("https://ok.example.evil", 403),
        ("http://ok.example", 403),
        ("null", 403),
    ] {
        let got = status(&gateway, &[base[0], base[1], ("Origin", origin)]).await;
        assert_eq!(got, expected, "{origin}");
    }
    assert_eq!(status(&gateway, &base).await, 200);
    let preflight = gateway
        .client
        .request(reqwest::Method::OPTIONS, gateway.url("/mcp"))
        .header("Origin", "https://ok.example")
        .header("Access-Control-Request-Method", "POST")
        .header(
            "Access-Control-Request-Headers",
            "authorization, mcp-session-id",
        )
        .send()
        .await
        .unwrap();
    assert!(preflight.status().is_success());
    let headers = preflight.headers();
    assert_eq!(headers["access-control-allow-origin"], "https://ok.example");
    let allowed = headers["access-control-allow-headers"]
        .to_str()
        .unwrap()
        .to_ascii_lowercase();
    for header in [
        "authorization",
        "x-namespace",
        "mcp-session-id",
        "mcp-protocol-version",
        "last-event-id",
    ] {
        assert!(allowed.contains(header), "{header} in {allowed}");
    }
    let answer = gateway
        .request("POST", "/mcp")
        .header("X-Namespace", "shared")
        .header("Origin", "https://ok.example")
        .header("Content-Type", "application/json")
        .body(PING)
        .send()
        .await
        .unwrap();
    let exposed = answer.headers()["access-control-expose-headers"]
        .to_str()
        .unwrap()
        .to_ascii_lowercase();
    assert!(exposed.contains("mcp-session-id"), "{exposed}");
}

#[tokio::test]
async fn denied_networks_get_403_and_forwarded_addresses_count_only_through_trusted_proxies() {
    let denied = Gateway::empty()
        .config(json!({"admission": {"cidrs": {"deny": ["203.0.113.0/24"]}}}))
        .start()
        .await;
    let authorization = bearer();
    let headers = [
        ("Authorization", authorization.as_str()),
        ("X-Namespace", "shared"),
        ("X-Forwarded-For", "203.0.113.9"),
    ];
    assert_eq!(status(&denied, &headers).await, 200, "nobody is trusted");
    let behind_a_proxy = Gateway::empty()
        .config(json!({"admission": {"cidrs": {"deny": ["203.0.113.0/24"]}, "trusted_proxies": ["127.0.0.1/32"]}}))
        .start()
        .await;
    assert_eq!(status(&behind_a_proxy, &headers).await, 403);
    let spoofed = [
        headers[0],
        headers[1],
        ("X-Forwarded-For", "198.51.100.1, 203.0.113.9"),
    ];
    assert_eq!(
        status(&behind_a_proxy, &spoofed).await,
        403,
        "the nearest hop counts"
    );
}

#[tokio::test]
async fn limits_answer_429_with_retry_after_and_leave_health_alone() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"rate_limits": [{"key": "principal", "rate": 1, "burst": 5, "unit": "request"}]}}))
        .start()
        .await;
    let mut refused = 0;
    for _ in 0..20 {
        let response = gateway
            .request("POST", "/mcp")
            .header("X-Namespace", "shared")
            .header("Content-Type", "application/json")
            .body(PING)
            .send()
            .await
            .unwrap();
        if response.status() == 429 {
            refused += 1;
            let seconds: u64 = response.headers()["retry-after"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap();
            assert!(seconds >= 1);
        }
        let left = response.headers()["ratelimit"].to_str().unwrap();
        assert!(left.starts_with("\"principal\";r="), "{left}");
        assert_eq!(
            response.headers()["ratelimit-policy"],
            "\"principal\";q=5;w=5"
        );
        let health = gateway
            .client
            .get(gateway.url("/health"))
            .send()
            .await
            .unwrap();
        assert_eq!(health.status(), 200);
    }
    assert!(refused >= 10, "{refused}");
}

#[tokio::test]
async fn a_limit_in_tool_calls_is_an_error_a_model_can_read() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(json!({"admission": {"rate_limits": [
            {"key": "tool", "rate": 1, "burst": 2, "unit": "tool_call", "namespace": "calc"}]}}))
        .start()
        .await;
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "add", "arguments": {"a": 1, "b": 1}}});
    let mut limited = None;
    for _ in 0..6 {
        let (status, answer) = gateway.mcp("calc", message.clone()).await;
        assert_eq!(status, 200);
        if answer["result"]["isError"] == true {
            limited = Some(answer);
        }
    }
    let limited = limited.expect("a limited call").to_string();
    assert!(limited.contains("rate_limited"), "{limited}");
    let (status, answer) = gateway.call("calc", "add", json!({"a": 1, "b": 1})).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (429, &json!("rate_limited"))
    );
    // Another tool has its own count, and listing is no call.
    assert_eq!(
        gateway
            .call("calc", "multiply", json!({"a": 2, "b": 2}))
            .await
            .0,
        200
    );
}

#[tokio::test]
async fn calls_weigh_what_their_limit_says_and_answers_tell_what_is_left() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(json!({"admission": {"rate_limits": [
            {"key": ["principal", "namespace", "tool"], "rate": 1, "burst": 1000, "unit": "tool_call",
             "weights": {"mul*": 400}}]}}))
        .start()
        .await;
    // The rest grows by one each second.
    let call = async |tool: &str| {
        let response = gateway
            .request("POST", &format!("/tools/{tool}"))
            .header("X-Namespace", "calc")
            .json(&json!({"a": 2, "b": 2}))
            .send()
            .await
            .unwrap();
        let left = response.headers()["ratelimit"].to_str().unwrap();
        let left = left
            .strip_prefix("\"principal+namespace+tool\";r=")
            .expect("the limit");
        let left: u32 = left.split(';').next().unwrap().parse().unwrap();
        (response.status().as_u16(), left / 100)
    };
    assert_eq!(call("multiply").await, (200, 6));
    assert_eq!(call("multiply").await, (200, 2));
    assert_eq!(call("multiply").await, (429, 0));
    assert_eq!(call("add").await, (200, 9));
}

#[tokio::test]
async fn a_denied_tool_is_not_listed_and_not_called() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(json!({"namespaces": {"overrides": {"calc": {"tools_deny": ["mul*"]}}}}))
        .start()
        .await;
    let (_, list) = gateway
        .mcp(
            "calc",
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}),
        )
        .await;
    assert_eq!(list["result"]["tools"].as_array().unwrap().len(), 1);
    let (status, answer) = gateway
        .call("calc", "multiply", json!({"a": 1, "b": 1}))
        .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("tool_not_found"))
    );
}

#[tokio::test]
async fn reload_needs_bearer_then_source_then_manager_token() {
    let outside = Gateway::empty()
        .config(json!({"admission": {"trusted_proxies": ["127.0.0.1/32"]}}))
        .start()
        .await;
    let ask = |bearer: bool, manager: Option<&'static str>, from: Option<&'static str>| {
        let mut request = outside.client.post(outside.url("/reload"));
        if bearer {
            request = request.bearer_auth(TOKEN);
        }
        if let Some(token) = manager {
            request = request.header("X-Manager-Token", token);
        }
        if let Some(address) = from {
            request = request.header("X-Forwarded-For", address);
        }
        request.send()
    };
    let right = Some(crate::support::gateway::MANAGER_TOKEN);
    assert_eq!(ask(false, right, None).await.unwrap().status(), 401);
    assert_eq!(ask(true, None, None).await.unwrap().status(), 403);
    assert_eq!(ask(true, Some("wrong"), None).await.unwrap().status(), 403);
    assert_eq!(
        ask(true, right, Some("203.0.113.1"))
            .await
            .unwrap()
            .status(),
        403
    );
    assert_eq!(ask(true, right, None).await.unwrap().status(), 200);
    assert_eq!(
        outside
            .request("GET", "/reload")
            .send()
            .await
            .unwrap()
            .status(),
        405
    );
}

#[tokio::test]
async fn wrong_content_types_get_415_and_the_check_comes_after_the_namespace() {
    let gateway = Gateway::empty().start().await;
    let authorization = bearer();
    let post = |content_type: &'static str, namespace: &'static str| {
        gateway
            .client
            .post(gateway.url("/mcp"))
            .header("Authorization", &authorization)
            .header("X-Namespace", namespace)
            .header("Content-Type", content_type)
            .body(PING)
            .send()
    };
    assert_eq!(
        post("application/json; charset=utf-8", "shared")
            .await
            .unwrap()
            .status(),
        200
    );
    assert_eq!(post("text/plain", "shared").await.unwrap().status(), 415);
    assert_eq!(post("text/plain", "nope").await.unwrap().status(), 404);
}

#[tokio::test]
async fn a_listener_without_credentials_serves_no_page_of_a_stranger() {
    let open = Gateway::empty().core(json!({"auth": ["none"]}));
    let refused = open.spawn();
    assert_eq!(refused.ended().await.code(), Some(2));
    let log = refused.log();
    assert!(
        log.contains("listeners[0].auth: none together with"),
        "{log}"
    );

    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .core(json!({"auth": ["none"]}))
        .config(json!({"admission": {"origins": ["https://ok.example"]}}))
        .start()
        .await;
    let call = async |origin: Option<&str>| {
        let mut request = gateway
            .client
            .post(gateway.url("/tools/add"))
            .header("X-Namespace", "calc")
            .json(&json!({"a": 1, "b": 2}));
        if let Some(origin) = origin {
            request = request.header("Origin", origin);
        }
        request.send().await.unwrap().status().as_u16()
    };
    for origin in ["https://evil.example", "null", "http://10.0.0.1"] {
        assert_eq!(call(Some(origin)).await, 403, "{origin}");
    }
    for origin in [
        None,
        Some("https://ok.example"),
        Some("http://localhost:6274"),
    ] {
        assert_eq!(call(origin).await, 200, "{origin:?}");
    }
}
