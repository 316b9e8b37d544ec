//! The access log of a running gateway.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::backend::Backend;
use crate::support::ports::free_address;
use crate::support::raw::exchange;
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually, sha256, tools};
use crate::tls::{connect, secure_with};

struct Logged {
    gateway: Gateway,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

/// A gateway with an access log in this format, and with further keys.
async fn logged(format: &str, keys: Value) -> Logged {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("access.log");
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(json!({"observability": {"access_log": {"path": path, "format": format}}}))
        .config(keys)
        .start()
        .await;
    Logged {
        gateway,
        path,
        _folder: folder,
    }
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The first line that has this in it.
async fn line_with(path: &Path, part: &str) -> String {
    eventually(part, || async {
        let text = text(path);
        let found = text.lines().find(|line| line.contains(part));
        found.map(str::to_owned)
    })
    .await
}

#[tokio::test]
async fn a_refusal_has_a_line_with_address_principal_and_reason() {
    let other = "other-token-0123456789abcdef";
    let Logged { gateway, path, .. } = logged(
        "combined",
        json!({"admission": {"trusted_proxies": ["127.0.0.1/32"],
            "tokens": [{"name": "ci", "sha256": sha256(other), "namespaces": ["elsewhere"]}]}}),
    )
    .await;
    let ask = |token: &'static str| {
        gateway
            .client
            .get(gateway.url("/tools?access_token=hush"))
            .header("X-Namespace", "calc")
            .header("X-Forwarded-For", "192.0.2.66")
            .header("User-Agent", "evil\" 200 ")
            .bearer_auth(token)
            .send()
    };
    assert_eq!(ask("wrong-token-canary").await.unwrap().status(), 401);
    assert_eq!(ask(other).await.unwrap().status(), 403);
    let line = line_with(&path, " 401 ").await;
    assert!(line.starts_with("192.0.2.66 - - ["), "{line}");
    assert!(
        line.contains("\"GET /tools?***MASKED*** HTTP/1.1\" 401 ")
            && line.ends_with("\"-\" \"evil\\x22 200\" \"unauthorized\""),
        "{line}"
    );
    let line = line_with(&path, " 403 ").await;
    assert!(line.starts_with("192.0.2.66 - ci ["), "{line}");
    assert!(line.ends_with("\"namespace_forbidden\""), "{line}");
    let text = text(&path);
    for secret in ["hush", "canary", other] {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn a_request_that_is_refused_before_it_is_a_call_has_a_line_with_the_reason() {
    let Logged { gateway, path, .. } = logged("combined", json!({})).await;
    for (at, body, status, reason) in [
        ("/tools/add", "{\"a\": 1,", 400, "invalid_json"),
        ("/tools/multiply", "[1, 2]", 422, "invalid_arguments"),
        ("/mcp", "{\"jsonrpc\":", 400, "parse_error"),
    ] {
        let request = gateway.request("POST", at).header("X-Namespace", "calc");
        let request = request
            .header("Content-Type", "application/json")
            .body(body);
        assert_eq!(request.send().await.unwrap().status(), status, "{at}");
        let line = line_with(&path, &format!("POST {at} ")).await;
        assert!(line.ends_with(&format!("\"{reason}\"")), "{line}");
    }
}

#[tokio::test]
async fn a_head_that_is_refused_while_it_arrives_has_a_line_too() {
    let Logged { gateway, path, .. } = logged("combined", json!({})).await;
    for request in ["POST /mcp?x HTTP/1.1\nHost: localhost\n\n", "\u{16}\u{3}"] {
        let text = exchange(gateway.address, request.as_bytes()).await;
        assert!(text.starts_with("HTTP/1.1 400"), "{text:?}");
    }
    let line = line_with(&path, "POST").await;
    assert!(line.starts_with("127.0.0.1 - - ["), "{line}");
    assert!(
        line.contains(" HTTP/1.1\" 400 ") && line.ends_with("\"bad_request\""),
        "{line}"
    );
    line_with(&path, "\"- * HTTP/1.1\" 400 ").await;
}

#[tokio::test]
async fn a_line_of_json_says_what_was_called_in_which_session() {
    let Logged { gateway, path, .. } = logged("json", json!({})).await;
    let session = Session::start(&gateway, "calc", "2025-11-25").await;
    session
        .request(
            7,
            "tools/call",
            json!({"name": "add", "arguments": {"a": 1, "b": 2}}),
        )
        .await;
    gateway
        .call("calc", "multiply", json!({"a": 2, "b": 3}))
        .await;
    let of = |part: &'static str| async {
        serde_json::from_str::<Value>(&line_with(&path, part).await).unwrap()
    };
    let called = of("\"tool\":\"add\"").await;
    assert_eq!(called["mcp_method"], "tools/call");
    assert_eq!(called["status"], 200);
    assert_eq!(called["namespace"], "calc");
    assert_eq!(called["address"], "127.0.0.1");
    assert!(called["bytes"].as_u64().unwrap() > 20, "{called}");
    assert!(called["duration"].as_f64().unwrap() > 0.0, "{called}");
    assert!(
        called["principal"].is_string() && called.get("reason").is_none(),
        "{called}"
    );
    let tag = called["session"].as_str().unwrap();
    let audited = eventually("the audit line", || async {
        crate::observability::audit(&gateway)
            .into_iter()
            .find(|line| line["tool"] == "add")
    })
    .await;
    assert_eq!(audited["session"], tag);
    assert_eq!(audited["request_id"], called["request_id"]);
    let rest = of("\"tool\":\"multiply\"").await;
    assert_eq!(rest["path"], "/tools/multiply");
    assert!(!text(&path).contains(TOKEN));
}

#[tokio::test]
async fn sigusr1_opens_the_access_log_anew_before_the_next_request() {
    let Logged { gateway, path, .. } = logged("{status} {path} {duration}", json!({})).await;
    gateway
        .client
        .get(gateway.url("/health"))
        .send()
        .await
        .unwrap();
    line_with(&path, "200 /health 0.").await;
    let moved = path.with_extension("1");
    fs::rename(&path, &moved).unwrap();
    gateway.signal(Signal::USR1);
    eventually("a new file", || async { path.exists().then_some(()) }).await;
    gateway
        .client
        .get(gateway.url("/nowhere"))
        .send()
        .await
        .unwrap();
    line_with(&path, "401 /nowhere ").await;
    assert!(!text(&moved).contains("/nowhere"));
}

#[tokio::test]
async fn standard_output_takes_the_access_log_too() {
    let gateway = Gateway::empty()
        .config(
            json!({"observability": {"access_log": {"path": "stdout", "format": "seen {path}"}}}),
        )
        .start()
        .await;
    gateway
        .client
        .get(gateway.url("/health"))
        .send()
        .await
        .unwrap();
    eventually("the line", || async {
        gateway
            .log()
            .lines()
            .any(|line| line == "seen /health")
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_access_log_that_cannot_be_is_an_error_that_names_the_key() {
    for (setting, told) in [
        (
            json!({"path": "/nowhere/at/all/access.log"}),
            "observability.access_log.path: there is no folder /nowhere/at/all",
        ),
        (
            json!({"path": "/"}),
            "observability.access_log.path: / is a folder",
        ),
        (
            json!({"path": "a", "format": "{adress}"}),
            "there is no field {adress}",
        ),
    ] {
        let gateway = Gateway::empty()
            .config(json!({"observability": {"access_log": setting}}))
            .spawn();
        assert_eq!(gateway.ended().await.code(), Some(2));
        assert!(gateway.log().contains(told), "{}", gateway.log());
    }
}

#[tokio::test]
async fn a_client_that_breaks_off_is_no_error_of_the_gateway() {
    let secure = secure_with(json!({})).await;
    let gateway = &secure.gateway;
    gateway.reconfigure(json!({"observability": {"log": {"level": "debug"}}}));
    gateway.signal(Signal::HUP);
    eventually("the level has changed", || async {
        gateway.call("shared", "say_hello", json!({})).await;
        gateway.log().contains("DEBUG").then_some(())
    })
    .await;
    // A look whether the port is open, something that is not TLS, half a request in the clear and half of one over TLS.
    drop(
        TcpStream::connect(("127.0.0.1", secure.port))
            .await
            .unwrap(),
    );
    let mut plain = TcpStream::connect(("127.0.0.1", secure.port))
        .await
        .unwrap();
    plain
        .write_all(b"\x01 neither TLS nor HTTP\r\n\r\n")
        .await
        .unwrap();
    drop(plain);
    let mut half = TcpStream::connect(gateway.address).await.unwrap();
    half.write_all(b"GET / HT").await.unwrap();
    drop(half);
    let trusted = [secure.certificate.clone()];
    let mut half = connect(secure.port, &trusted).await.unwrap();
    half.write_all(b"GET / HT").await.unwrap();
    half.flush().await.unwrap();
    drop(half);
    eventually("all of them are told", || async {
        let log = gateway.log();
        let told = |part: &str| log.matches(part).count();
        (told("a TLS handshake failed") >= 2 && told("in the middle of a request head") >= 2)
            .then_some(())
    })
    .await;
    for line in gateway.log().lines() {
        assert!(
            !line.contains("ERROR") && !line.contains("WARN pingora"),
            "{line}"
        );
    }
}

#[tokio::test]
async fn a_long_stream_has_its_line_at_its_end() {
    let Logged { gateway, path, .. } = logged("json", json!({})).await;
    let session = Session::start(&gateway, "calc", "2025-11-25").await;
    let of = |reason: Option<&'static str>| {
        let streams = |text: String| {
            let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
            let streams =
                lines.filter(|line: &Value| line["method"] == "GET" && line["path"] != "/ready");
            streams.collect::<Vec<_>>()
        };
        let path = &path;
        eventually("the line of the stream", move || async move {
            let found = streams(text(path));
            found
                .into_iter()
                .find(|line| line.get("reason").and_then(Value::as_str) == reason)
        })
    };
    let left = session.get(None).await;
    assert!(!text(&path).contains("client_left"));
    drop(left);
    let line = of(Some("client_left")).await;
    assert_eq!(
        (&line["status"], &line["namespace"]),
        (&json!(200), &json!("calc"))
    );
    assert!(line["session"].is_string(), "{line}");

    let mut ended = session.get(None).await;
    assert_eq!(session.delete().await, 204);
    ended.end().await;
    let line = of(None).await;
    assert!(line["duration"].as_f64().unwrap() > 0.0, "{line}");
}

#[tokio::test]
async fn a_format_of_nginx_with_the_fields_of_mcp_says_what_became_of_each_call() {
    let format = "$remote_addr $remote_user [$time_local] \"$request\" $status $mcp_tool $mcp_outcome \
                  $upstream_response_time {$request_id}";
    let Logged { gateway, path, .. } = logged(format, json!({})).await;
    let id = |id: &'static str| move |it: reqwest::RequestBuilder| it.header("X-Request-Id", id);
    for (request_id, tool, arguments) in [
        ("r-fine", "add", json!({"a": 1, "b": 2})),
        ("r-wrong", "add", json!({"a": "one"})),
        ("r-none", "no tool\n\" 200", json!({})),
    ] {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": tool, "arguments": arguments}});
        let request = gateway
            .request("POST", "/mcp")
            .header("X-Namespace", "calc")
            .json(&message);
        id(request_id)(request).send().await.unwrap();
    }
    let fine = line_with(&path, "{r-fine}").await;
    assert!(fine.starts_with("127.0.0.1 bearer ["), "{fine}");
    assert!(
        fine.contains("\"POST /mcp HTTP/1.1\" 200 add ok 0."),
        "{fine}"
    );
    let wrong = line_with(&path, "{r-wrong}").await;
    assert!(wrong.contains(" 200 add invalid_arguments 0."), "{wrong}");
    let none = line_with(&path, "{r-none}").await;
    assert!(
        none.contains(" 200 no\\x20tool\\x0A\\x22\\x20200 tool_not_found 0."),
        "{none}"
    );
    // A request that is no call has no outcome.
    let list = gateway
        .request("GET", "/tools")
        .header("X-Namespace", "calc");
    id("r-list")(list).send().await.unwrap();
    let list = line_with(&path, "{r-list}").await;
    assert!(
        list.ends_with("\"GET /tools HTTP/1.1\" 200 - - - {r-list}"),
        "{list}"
    );
}

#[tokio::test]
async fn a_line_names_the_backends_that_a_request_went_to() {
    let format = "$request_id $status $upstream_addr $upstream_response_time";
    let (far, nobody) = (Backend::start("far").await, free_address());
    let remote = |mode: &str| {
        let away = json!({"url": format!("http://{nobody}/mcp"), "weight": 100});
        json!({"backends": [away, far.url()], "mode": mode})
    };
    let keys = json!({"upstreams": {"remote": {
        "client": remote("client"), "passed": remote("pass_through")}}});
    let Logged { gateway, path, .. } = logged(format, keys).await;
    for namespace in ["client", "passed", "calc"] {
        let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "add", "arguments": {"a": 1, "b": 2}}});
        let request = gateway
            .request("POST", &format!("/mcp/{namespace}"))
            .header("X-Request-Id", format!("r-{namespace}"))
            .json(&message);
        request.send().await.unwrap();
        let line = line_with(&path, &format!("r-{namespace} ")).await;
        let local = namespace == "calc";
        assert_eq!(line.contains(&far.address.to_string()), !local, "{line}");
        assert_eq!(line.contains(" 200 - 0."), local, "{line}");
    }
}
