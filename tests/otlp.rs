//! Traces, metrics and logs by OTLP, at receivers on sockets that decode what arrives.

use std::fs;
use std::net::SocketAddr;

use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::client_certificates::Authority;
use crate::relay::Host;
use crate::support::backend::{Backend, header};
use crate::support::otlp::{Receiver, texts};
use crate::support::ports::free_address;
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually, tools};
use crate::toolman::SERVERS;
use crate::toolman_stdio::{Client, Project};

const VERSION: &str = "2025-11-25";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";

/// A tool that tells the trace it belongs to.
const TELLS: &str = r#"
from fastmcp import Context
from fastmcp.tools import tool


@tool
def trace(ctx: Context) -> str:
    """Tells its trace."""
    return f"{ctx.traceparent} {ctx.tracestate}"
"#;

/// A stdio server with a tool that tells the metadata of its call.
const STDIO: &str = r#"
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    method, params = message["method"], message.get("params", {})
    result = {}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "trace", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [{"name": "meta", "inputSchema": {"type": "object"}}]}
    elif method == "tools/call":
        result = {"content": [{"type": "text", "text": json.dumps(params.get("_meta"))}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

fn traceparent(flags: &str) -> String {
    format!("00-{TRACE}-{CLIENT_SPAN}-{flags}")
}

fn otlp(address: SocketAddr, more: Value) -> Value {
    let mut otlp = json!({"endpoint": format!("http://{address}")});
    for (key, value) in more.as_object().expect("keys") {
        otlp[key] = value.clone();
    }
    json!({"observability": {"otlp": otlp}})
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of `traceparent` that names a span.
fn named(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}

/// Calls a tool by MCP, with a trace in the header.
async fn call(gateway: &Gateway, namespace: &str, tool: &str, parent: &str) -> Value {
    let message = json!({"jsonrpc": "2.0", "id": "a-1", "method": "tools/call",
        "params": {"name": tool, "arguments": {}}});
    let request = gateway.request("POST", "/mcp");
    let response = request
        .header("X-Namespace", namespace)
        .header("traceparent", parent)
        .header("tracestate", "vendor=1")
        .json(&message)
        .send()
        .await
        .expect("answered");
    assert_eq!(response.status(), 200);
    response.json().await.expect("JSON")
}

/// The text that a tool told.
fn told(answer: &Value) -> String {
    let text = answer["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test]
async fn a_call_is_spans_of_the_clients_trace_with_the_names_of_the_conventions() {
    let receiver = Receiver::http().await;
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(otlp(receiver.address, json!({"signals": ["traces"]})))
        .start()
        .await;
    let session = Session::start(&gateway, "calc", VERSION).await;
    let message = json!({"jsonrpc": "2.0", "id": "a-1", "method": "tools/call", "params":
        {"name": "add", "arguments": {"a": 1, "b": 2, "api_key": "hunter2"},
         "_meta": {"traceparent": traceparent("01"), "tracestate": "vendor=1"}}});
    let _ = session.post(&message).await.json().await;
    let (root, parts) = receiver.request("tools/call add").await;
    assert_eq!(hex(&root.trace_id), TRACE);
    assert_eq!(hex(&root.parent_span_id), CLIENT_SPAN);
    assert_eq!(root.trace_state, "vendor=1");
    assert_eq!(root.kind, SpanKind::Server as i32);
    let names: Vec<_> = parts.keys().map(String::as_str).collect();
    assert_eq!(names, ["admission", "answer", "queue", "upstream"]);
    for part in parts.values() {
        assert_eq!(hex(&part.trace_id), TRACE);
        assert!(part.start_time_unix_nano >= root.start_time_unix_nano);
        assert!(part.end_time_unix_nano <= root.end_time_unix_nano);
    }
    assert_eq!(parts["upstream"].kind, SpanKind::Client as i32);
    assert_eq!(parts["queue"].kind, SpanKind::Internal as i32);
    let attributes = texts(&root.attributes);
    for (name, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.tool.name", "add"),
        ("gen_ai.operation.name", "execute_tool"),
        ("jsonrpc.request.id", "a-1"),
        ("mcp.protocol.version", VERSION),
        ("tooldock.namespace", "calc"),
        ("tooldock.principal", "bearer"),
        ("network.transport", "tcp"),
        ("client.address", "127.0.0.1"),
        ("http.route", "/mcp"),
    ] {
        assert_eq!(
            attributes.get(name).map(String::as_str),
            Some(value),
            "{name}: {attributes:?}"
        );
    }
    // A session's id opens it.
    assert_ne!(attributes["mcp.session.id"], session.id);
    assert_eq!(
        receiver.resource("service.name").as_deref(),
        Some("tooldock")
    );
    let (opened, _) = receiver.request("initialize").await;
    assert!(opened.parent_span_id.is_empty());
    let all = format!("{:?}", receiver.spans());
    for secret in [&*session.id, TOKEN, "hunter2"] {
        assert!(!all.contains(secret), "{secret} is exported: {all}");
    }
}

#[tokio::test]
async fn failures_are_errors_of_their_kind_and_unknown_names_make_no_names_of_spans() {
    let receiver = Receiver::http().await;
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .config(otlp(receiver.address, json!({"signals": ["traces"]})))
        .start()
        .await;
    call(&gateway, "calc", "made-up-by-a-client", &traceparent("01")).await;
    let (root, _) = receiver.request("tools/call").await;
    assert_eq!(texts(&root.attributes)["error.type"], "tool_not_found");
    assert_eq!(root.status.expect("a status").code, 2);
    let refused = gateway
        .client
        .post(gateway.url("/mcp"))
        .header("traceparent", traceparent("01"))
        .json(&json!({}))
        .send();
    assert_eq!(refused.await.expect("answered").status(), 401);
    let (root, parts) = receiver.request("/mcp").await;
    assert_eq!(texts(&root.attributes)["error.type"], "unauthorized");
    assert_ne!(
        hex(&root.trace_id),
        TRACE,
        "chosen by somebody without a credential"
    );
    assert_eq!(parts.keys().collect::<Vec<_>>(), ["admission"]);
}

#[tokio::test]
async fn workers_stdio_servers_and_remote_servers_get_the_span_of_the_gateway_as_parent() {
    let receiver = Receiver::grpc().await;
    let backend = Backend::start("a").await;
    let (client, passed) = (
        json!({"backends": [backend.url()], "mode": "client"}),
        json!({"backends": [backend.url()], "mode": "pass_through"}),
    );
    let config = otlp(
        receiver.address,
        json!({"protocol": "grpc", "signals": ["traces"]}),
    );
    let gateway = Gateway::with_tools([("own", "trace.py", TELLS)])
        .config(config)
        .config(json!({"upstreams": {
            "stdio": {"local": {"command": "python3", "args": ["-c", STDIO]}},
            "remote": {"client": client, "passed": passed}}}))
        .start()
        .await;
    let answer = call(&gateway, "own", "trace", &traceparent("01")).await;
    let (root, parts) = receiver.request("tools/call trace").await;
    assert_eq!(hex(&root.trace_id), TRACE);
    assert_eq!(
        told(&answer),
        format!("{} vendor=1", named(&parts["upstream"]))
    );

    let answer = call(&gateway, "local", "meta", &traceparent("01")).await;
    let (root, parts) = receiver.request("tools/call meta").await;
    assert_eq!(hex(&root.trace_id), TRACE);
    let meta: Value = serde_json::from_str(&told(&answer)).expect("JSON");
    assert_eq!(meta["traceparent"], named(&parts["upstream"]), "{answer}");
    assert_eq!(meta["tracestate"], "vendor=1", "{answer}");

    for namespace in ["client", "passed"] {
        let session = Session::start(&gateway, namespace, VERSION).await;
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params":
            {"name": "echo", "arguments": {}, "_meta": {"traceparent": traceparent("01")}}});
        let mut answer = session.post(&message).await;
        assert_eq!(answer.status, 200);
        match answer.is_events() {
            true => answer.message().await,
            false => answer.json().await,
        };
        let (head, body) = backend.requests("tools/call").pop().expect("a call");
        let of = |span: &Span| {
            texts(&span.attributes)
                .get("tooldock.namespace")
                .map(String::as_str)
                == Some(namespace)
        };
        let sent = header(&head, "traceparent").expect("a parent");
        let span = eventually("the span of the call", || async {
            let mut spans = receiver.spans().into_iter();
            spans.find(|it| it.name == "upstream" && of(it) && named(it) == sent)
        })
        .await;
        assert_eq!(hex(&span.trace_id), TRACE);
        let meta: Value = serde_json::from_str(&body).expect("JSON");
        let meta = meta["params"]["_meta"]["traceparent"].clone();
        let expected = if namespace == "client" {
            sent
        } else {
            traceparent("01")
        };
        assert_eq!(meta, expected, "{namespace}");
    }
}

/// The attributes of a span with these names and values.
fn has(span: &Span, expected: &[(&str, &str)]) {
    let attributes = texts(&span.attributes);
    for (name, value) in expected {
        let found = attributes.get(*name).map(String::as_str);
        assert_eq!(found, Some(*value), "{name}: {attributes:?}");
    }
    for absent in ["http.route", "client.address"] {
        assert!(!attributes.contains_key(absent), "{attributes:?}");
    }
}

#[tokio::test]
async fn frames_over_the_relay_have_the_spans_of_calls() {
    let receiver = Receiver::http().await;
    let config = otlp(receiver.address, json!({"signals": ["traces"]}));
    let host = Host::with(config).await;
    let key = host.key("droid", &["admin"]).await;
    let text = key.text.expose().to_owned();
    let mut connection = host.connect().await;
    let meta =
        json!({"progressToken": 5, "traceparent": traceparent("01"), "tracestate": "vendor=1"});
    let params = json!({"api_key": text, "tool": "session_steps", "arguments": {}, "_meta": meta});
    connection.ask(7, "oubliette_call_tool", params).await;
    while connection.next().await["id"] != 7 {}
    let (root, parts) = receiver.request("tools/call session_steps").await;
    assert_eq!(hex(&root.trace_id), TRACE);
    assert_eq!(hex(&root.parent_span_id), CLIENT_SPAN);
    assert_eq!(root.trace_state, "vendor=1");
    assert_eq!(root.kind, SpanKind::Server as i32);
    let names: Vec<_> = parts.keys().map(String::as_str).collect();
    assert_eq!(names, ["admission", "answer", "queue", "upstream"]);
    has(
        &root,
        &[
            ("mcp.method.name", "tools/call"),
            ("gen_ai.tool.name", "session_steps"),
            ("jsonrpc.request.id", "7"),
            ("tooldock.namespace", "oubliette"),
            ("tooldock.principal", "key:droid"),
            ("network.transport", "unix"),
        ],
    );

    let (listed, _) = receiver.request("tools/list").await;
    has(
        &listed,
        &[
            ("tooldock.namespace", "oubliette"),
            ("tooldock.principal", "key:droid"),
            ("network.transport", "unix"),
        ],
    );

    // A client without a key does not decide about traces.
    let made_up = "td_00000000_none";
    let params = json!({"api_key": made_up, "tool": "session_steps", "_meta": meta});
    connection.ask(8, "oubliette_call_tool", params).await;
    assert!(connection.next().await["error"].is_object());
    let refused = eventually("the span of the refused frame", || async {
        let mut spans = receiver.spans().into_iter();
        spans.find(|it| {
            texts(&it.attributes)
                .get("jsonrpc.request.id")
                .is_some_and(|id| id == "8")
        })
    })
    .await;
    assert_ne!(hex(&refused.trace_id), TRACE);
    assert_eq!(texts(&refused.attributes)["error.type"], "unauthorized");
    for span in receiver.spans() {
        let shown = format!("{span:?}");
        assert!(
            !shown.contains(&text) && !shown.contains(made_up),
            "{shown}"
        );
    }
}

#[tokio::test]
async fn requests_of_toolman_on_standard_input_have_spans_and_none_is_lost_at_the_end() {
    let receiver = Receiver::http().await;
    let project = Project::of(SERVERS);
    let keys = format!(
        "endpoint: http://{}\nsignals: [traces, metrics, logs]\nservice_name: project\n",
        receiver.address
    );
    fs::write(project.path().join("otlp.yaml"), keys).expect("written");
    let mut client = Client::opened_with(&project, &["--otlp", "otlp.yaml"]).await;
    let params = json!({"name": "vec_search", "arguments": {"query": "x"},
        "_meta": {"traceparent": traceparent("01")}});
    client.result("tools/call", params).await;
    client.close();
    assert!(client.ended().await);
    // The process has ended, and has sent all of them.
    let (root, parts) = receiver.request("tools/call vec_search").await;
    assert_eq!(hex(&root.trace_id), TRACE);
    assert_eq!(hex(&root.parent_span_id), CLIENT_SPAN);
    let names: Vec<_> = parts.keys().map(String::as_str).collect();
    assert_eq!(names, ["answer", "queue", "upstream"]);
    has(
        &root,
        &[
            ("mcp.protocol.version", VERSION),
            ("tooldock.namespace", "toolman"),
            ("tooldock.principal", "stdio"),
            ("network.transport", "pipe"),
        ],
    );
    let (opened, _) = receiver.request("initialize").await;
    assert!(opened.parent_span_id.is_empty());
    assert_eq!(
        receiver.resource("service.name").as_deref(),
        Some("project")
    );
    let metrics = receiver.metrics();
    assert!(
        metrics
            .iter()
            .any(|it| it.name == "mcp.server.operation.duration")
    );
    assert!(!receiver.logs().is_empty());
}

#[tokio::test]
async fn toolman_refuses_an_export_that_it_cannot_set_up_and_says_why() {
    let project = Project::of(SERVERS);
    for (keys, part) in [
        ("endpoint: collector", "observability.otlp.endpoint"),
        ("endpoints: x", "endpoints"),
        (
            "endpoint: 'http://c'\nheaders: {a: '${NOT_THERE}'}",
            "NOT_THERE",
        ),
    ] {
        fs::write(project.path().join("otlp.yaml"), keys).expect("written");
        let said = project.refusal(&["--otlp", "otlp.yaml"]);
        assert!(said.contains("--otlp") && said.contains(part), "{said}");
    }
}

#[tokio::test]
async fn with_sample_0_nothing_is_recorded_and_the_clients_trace_goes_on() {
    let receiver = Receiver::http().await;
    let config = otlp(receiver.address, json!({"sample": 0, "interval": "1s"}));
    let gateway = Gateway::with_tools([("own", "trace.py", TELLS)])
        .config(config)
        .start()
        .await;
    let answer = call(&gateway, "own", "trace", &traceparent("01")).await;
    assert_eq!(told(&answer), format!("{} vendor=1", traceparent("01")));
    // Durations are counted all the same, and a stop sends what there is.
    gateway.signal(Signal::TERM);
    gateway.ended().await;
    assert!(receiver.spans().is_empty());
    let metrics = receiver.metrics();
    let durations = metrics
        .iter()
        .rev()
        .find(|it| it.name == "mcp.server.operation.duration");
    let Some(Data::Histogram(histogram)) = durations.and_then(|it| it.data.as_ref()) else {
        panic!("no durations: {metrics:?}");
    };
    let point = &histogram.data_points[0];
    assert_eq!(point.count, 1);
    let attributes = texts(&point.attributes);
    assert_eq!(attributes["mcp.method.name"], "tools/call");
    assert_eq!(attributes["gen_ai.tool.name"], "trace");
}

#[tokio::test]
async fn a_clients_flag_decides_about_its_trace() {
    let receiver = Receiver::http().await;
    let gateway = Gateway::with_tools([("own", "trace.py", TELLS)])
        .config(otlp(receiver.address, json!({"signals": ["traces"]})))
        .start()
        .await;
    let answer = call(&gateway, "own", "trace", &traceparent("00")).await;
    assert_eq!(told(&answer), format!("{} vendor=1", traceparent("00")));
    call(&gateway, "own", "trace", &traceparent("01")).await;
    gateway.signal(Signal::TERM);
    gateway.ended().await;
    let spans = receiver.spans();
    let roots = spans.iter().filter(|it| it.name == "tools/call trace");
    assert_eq!(roots.count(), 1, "{spans:?}");
}

#[tokio::test]
async fn metrics_and_logs_arrive_and_the_receivers_token_stands_in_no_log() {
    for is_grpc in [false, true] {
        let receiver = match is_grpc {
            true => Receiver::grpc().await,
            false => Receiver::http().await,
        };
        let protocol = if is_grpc { "grpc" } else { "http" };
        let more = json!({"protocol": protocol, "service_name": "gateway-a", "interval": "1s",
            "headers": {"authorization": "Bearer ${OTLP_TOKEN}"}});
        let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
            .config(otlp(receiver.address, more))
            .env("OTLP_TOKEN", "hunter2")
            .env("LOG_LEVEL", "debug")
            .start()
            .await;
        gateway.call("calc", "add", json!({"a": 1, "b": 2})).await;
        let counted = eventually("the calls", || async {
            let metrics = receiver.metrics();
            let calls = metrics.iter().rev();
            let mut calls = calls.filter(|it| it.name == "tooldock_tool_calls_total");
            match calls.next()?.data.as_ref()? {
                Data::Sum(sum) => sum.data_points.first().cloned(),
                _ => None,
            }
        })
        .await;
        assert_eq!(texts(&counted.attributes)["namespace"], "calc");
        let record = eventually("a line of the log", || async {
            let logs = receiver.logs();
            let said = |it: &opentelemetry_proto::tonic::logs::v1::LogRecord| {
                format!("{:?}", it.body).contains("namespaces loaded")
            };
            logs.into_iter().find(said)
        })
        .await;
        assert_eq!(record.severity_text, "INFO");
        receiver.request("tools/call add").await;
        assert_eq!(
            receiver.resource("service.name").as_deref(),
            Some("gateway-a")
        );
        let authorizations = receiver.authorizations();
        assert!(
            authorizations.iter().all(|it| it == "Bearer hunter2"),
            "{authorizations:?}"
        );
        assert!(!authorizations.is_empty());
        assert!(!gateway.log().contains("hunter2"));
        assert!(!format!("{:?}", receiver.logs()).contains("hunter2"));
        let text = gateway.metrics_text().await;
        assert!(
            text.contains(r#"tooldock_otlp_exported_total{signal="traces"}"#),
            "{text}"
        );
    }
}

#[tokio::test]
async fn a_receiver_is_trusted_by_its_authority_alone() {
    let (authority, other) = (Authority::new("ours"), Authority::new("other"));
    let folder = tempfile::TempDir::new().unwrap();
    authority.write_for_both_sides(folder.path(), "localhost");
    fs::write(folder.path().join("other.pem"), &other.pem).unwrap();
    for protocol in ["http", "grpc"] {
        let receiver = match protocol {
            "http" => Receiver::https(folder.path()).await,
            _ => Receiver::grpcs(folder.path()).await,
        };
        let endpoint = format!("https://localhost:{}", receiver.address.port());
        let start = async |ca: &str| {
            let more = json!({"signals": ["traces"], "endpoint": endpoint, "protocol": protocol,
                "tls": {"ca": folder.path().join(ca)}});
            Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
                .config(otlp(receiver.address, more))
                .start()
                .await
        };
        let gateway = start("other.pem").await;
        gateway.call("calc", "add", json!({"a": 1, "b": 2})).await;
        eventually("a warning", || async {
            gateway.log().contains("OTLP export fails").then_some(())
        })
        .await;
        assert!(receiver.spans().is_empty());
        let gateway = start("ca.pem").await;
        gateway.call("calc", "add", json!({"a": 1, "b": 2})).await;
        receiver.request("tools/call add").await;
    }
}

#[tokio::test]
async fn a_receiver_that_is_down_costs_no_call_and_losses_are_counted() {
    // One takes no connection, the other takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    for (protocol, address) in [
        ("http", free_address()),
        ("grpc", free_address()),
        ("http", silent.local_addr().expect("bound")),
    ] {
        let more = json!({"protocol": protocol, "signals": ["traces"]});
        let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
            .config(otlp(address, more))
            .start()
            .await;
        for _ in 0..20 {
            let (status, _) = gateway.call("calc", "add", json!({"a": 1, "b": 2})).await;
            assert_eq!(status, 200);
        }
        let counted = |name: &'static str| {
            let gateway = &gateway;
            eventually(name, move || async move {
                let text = gateway.metrics_text().await;
                let begin = format!("{name}{{signal=\"traces\"}} ");
                let line = text.lines().find_map(|it| it.strip_prefix(&begin));
                line.and_then(|it| it.parse::<u64>().ok())
                    .filter(|it| *it > 0)
            })
        };
        counted("tooldock_otlp_failures_total").await;
        if address != silent.local_addr().expect("bound") {
            // Each call has four spans at least.
            assert!(counted("tooldock_otlp_dropped_total").await > 0);
        }
        let (status, _) = gateway.call("calc", "add", json!({"a": 1, "b": 2})).await;
        assert_eq!(status, 200);
        let log = gateway.log();
        assert_eq!(log.matches("OTLP export fails").count(), 1, "{log}");
        gateway.signal(Signal::TERM);
        assert!(gateway.ended().await.success());
    }
}
