//! `listeners[].headers`: on every answer, and on requests before anything looks at them.

use serde_json::{Value, json};

use crate::support::raw::exchange;
use crate::support::{Gateway, TOKEN, tools};

fn builder(headers: Value) -> crate::support::gateway::Builder {
    Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .core(json!({ "headers": headers }))
}

#[tokio::test]
async fn answers_refusals_streams_and_what_is_no_request_carry_the_headers_of_the_listener() {
    let gateway = builder(json!({"response": {
        "set": {"Strict-Transport-Security": "max-age=31536000", "Cache-Control": "private"},
        "remove": ["X-Nothing"]}}))
    .start()
    .await;
    let hsts = |answer: &reqwest::Response| {
        let value = answer.headers().get("strict-transport-security");
        value.map(|value| value.to_str().unwrap().to_owned())
    };
    let expected = Some("max-age=31536000".to_owned());
    let listed = gateway
        .request("GET", "/tools")
        .header("X-Namespace", "calc");
    let refused = gateway.client.get(gateway.url("/tools"));
    let preflight = gateway
        .request("OPTIONS", "/mcp")
        .header("Origin", "http://localhost")
        .header("Access-Control-Request-Method", "POST");
    let stream = gateway.request("GET", "/sse").header("X-Namespace", "calc");
    let health = gateway.client.get(gateway.url("/health"));
    for (request, status) in [
        (listed, 200),
        (refused, 401),
        (preflight, 204),
        (stream, 200),
        (health, 200),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(hsts(&answer), expected, "{status}");
        let cached: Vec<_> = answer.headers().get_all("cache-control").iter().collect();
        assert_eq!(cached, ["private"], "set once");
        assert!(answer.headers().contains_key("x-request-id"));
    }
    let broken = exchange(gateway.address, b"GET / HTTP/1.1\nHost: x\n\n").await;
    assert!(broken.starts_with("HTTP/1.1 400 "), "{broken}");
    let lower = broken.to_ascii_lowercase();
    assert!(
        lower.contains("strict-transport-security: max-age=31536000"),
        "{broken}"
    );

    // The other listener has none.
    let metrics = format!("http://{}/health", gateway.metrics);
    let answer = gateway.client.get(metrics).send().await.unwrap();
    assert_eq!(hsts(&answer), None);
}

#[tokio::test]
async fn requests_are_changed_before_they_are_looked_at() {
    let gateway = builder(json!({"request": {
        "set": {"X-Namespace": "calc"}, "remove": ["X-Request-Id"]}}))
    .start()
    .await;
    for asked in [None, Some("elsewhere")] {
        let mut request = gateway
            .request("GET", "/tools")
            .header("X-Request-Id", "chosen-by-the-client");
        if let Some(asked) = asked {
            request = request.header("X-Namespace", asked);
        }
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_ne!(answer.headers()["x-request-id"], "chosen-by-the-client");
        let tools: Value = answer.json().await.unwrap();
        assert_eq!(tools[0]["name"], "add");
    }
}

#[tokio::test]
async fn a_reload_changes_the_headers() {
    let gateway = builder(json!({})).start().await;
    let mut listeners = gateway.configured()["listeners"].clone();
    listeners[0]["headers"] = json!({"response": {"set": {"X-Site": "second"}}});
    gateway.reconfigure(json!({ "listeners": listeners }));
    gateway.signal(rustix::process::Signal::HUP);
    crate::support::eventually("the new header is there", || async {
        let answer = gateway.client.get(gateway.url("/health")).send().await;
        (answer.unwrap().headers().get("x-site")? == "second").then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_path_prefix_and_header_edits_work_together_behind_the_proxy_protocol() {
    let gateway = builder(json!({"response": {"set": {"X-Site": "a"}}}))
        .core(json!({"path_prefix": "/tools-gateway", "proxy_protocol": true}))
        .config(json!({"admission": {"trusted_proxies": ["127.0.0.1"]}}))
        .spawn();
    crate::support::eventually("the gateway is ready", || async {
        let ready = format!("http://{}/ready", gateway.metrics);
        (gateway.client.get(ready).send().await.ok()?.status() == 200).then_some(())
    })
    .await;
    // The first event names the public path.
    let mut stream = tokio::net::TcpStream::connect(gateway.address)
        .await
        .unwrap();
    let request = format!(
        "PROXY TCP4 192.0.2.7 10.0.0.1 5000 80\r\nGET /sse HTTP/1.1\r\nHost: localhost\r\nX-Namespace: calc\r\n\
         Authorization: Bearer {TOKEN}\r\n\r\n"
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes())
        .await
        .unwrap();
    let mut seen = String::new();
    let mut chunk = [0; 1024];
    while !seen.contains("/messages?") {
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut chunk);
        let read = tokio::time::timeout(crate::support::DEADLINE, read).await;
        let read = read.expect("in time").expect("open");
        assert!(read > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&chunk[..read]));
    }
    assert!(seen.contains("data: /tools-gateway/messages?"), "{seen}");
    assert!(seen.to_ascii_lowercase().contains("x-site: a"), "{seen}");
}

#[tokio::test]
async fn headers_of_the_gateways_own_are_refused_by_name() {
    for (headers, named) in [
        (
            json!({"response": {"set": {"Content-Length": "1"}}}),
            "listeners[0].headers.response.set: content-length is the gateway's own",
        ),
        (
            json!({"request": {"remove": ["Mcp-Session-Id"]}}),
            "listeners[0].headers.request.remove: mcp-session-id is the gateway's own",
        ),
        (json!({"answer": {}}), "listeners[0].headers.answer"),
    ] {
        let gateway = builder(headers).spawn();
        let status = gateway.ended().await;
        let log = gateway.log();
        assert_eq!(status.code(), Some(2), "{log}");
        assert!(log.contains(named), "{named}: {log}");
    }
}
