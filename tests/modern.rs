//! 2026-07-28: no sessions, every request carries its own facts; beside the older revisions on the same URL.

use std::path::PathBuf;

use reqwest::RequestBuilder;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::session::Session;
use crate::support::sse::{Answering, End};
use crate::support::{Gateway, TOKEN, eventually, sha256, tools};

const VERSION: &str = "2026-07-28";
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

async fn talking() -> Gateway {
    talking_with(json!({})).await
}

async fn talking_with(config: Value) -> Gateway {
    Gateway::with_tools([
        ("talk", "talking.py", tools::TALKING),
        ("talk", "offering.py", tools::OFFERING),
        ("calc", "math_tools.py", tools::MATH),
    ])
    .config(config)
    .start()
    .await
}

fn meta(capabilities: &Value) -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    })
}

/// A request of a client that can be asked everything.
pub fn message(id: Value, method: &str, params: Value) -> Value {
    let mut params = params;
    let mut own = meta(&json!({"elicitation": {}, "sampling": {}, "roots": {}}));
    if let Some(given) = params["_meta"].as_object() {
        for (key, value) in given {
            own[key] = value.clone();
        }
    }
    params["_meta"] = own;
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// The header lines that mirror a message.
fn mirrored(message: &Value) -> Vec<(&'static str, String)> {
    let params = &message["params"];
    let mut headers = vec![
        ("MCP-Protocol-Version", VERSION.to_owned()),
        ("Mcp-Method", message["method"].as_str().unwrap().to_owned()),
    ];
    let named = ["name", "uri", "taskId"].into_iter();
    if let Some(name) = named.filter_map(|key| params[key].as_str()).next() {
        headers.push(("Mcp-Name", name.to_owned()));
    }
    headers
}

fn request(gateway: &Gateway, namespace: &str, message: &Value) -> RequestBuilder {
    let mut request = gateway
        .request("POST", "/mcp")
        .header("X-Namespace", namespace)
        .header("Accept", "application/json, text/event-stream")
        .json(message);
    for (name, value) in mirrored(message) {
        request = request.header(name, value);
    }
    request
}

/// Status and body of a request that is answered as JSON.
pub async fn ask(gateway: &Gateway, namespace: &str, message: &Value) -> (u16, Value) {
    let response = request(gateway, namespace, message).send().await.unwrap();
    let status = response.status().as_u16();
    assert!(
        response.headers().get("mcp-session-id").is_none(),
        "there are no sessions"
    );
    (status, response.json().await.unwrap())
}

/// The bytes of a request, for streams.
fn text(namespace: &str, token: &str, message: &Value) -> String {
    let body = message.to_string();
    let headers: String = mirrored(message)
        .into_iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    format!(
        "POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nX-Namespace: {namespace}\r\n\
         Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

async fn stream(gateway: &Gateway, namespace: &str, message: &Value) -> Answering {
    Answering::open(gateway.address, &text(namespace, TOKEN, message)).await
}

pub fn call(id: Value, tool: &str, arguments: Value) -> Value {
    message(
        id,
        "tools/call",
        json!({"name": tool, "arguments": arguments}),
    )
}

/// The call again, with answers to its questions.
pub fn again(id: Value, call: &Value, state: &Value, responses: Value) -> Value {
    let mut again = call.clone();
    again["id"] = id;
    again["params"]["requestState"] = state.clone();
    again["params"]["inputResponses"] = responses;
    again
}

fn accept(value: &str) -> Value {
    json!({"action": "accept", "content": {"value": value}})
}

#[tokio::test]
async fn discover_says_what_is_there() {
    let gateway = talking().await;
    let (status, answer) = ask(
        &gateway,
        "talk",
        &message(json!(1), "server/discover", json!({})),
    )
    .await;
    assert_eq!(status, 200, "{answer}");
    let result = &answer["result"];
    assert_eq!(result["resultType"], "complete");
    let versions: Vec<_> = result["supportedVersions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(
        versions.contains(&VERSION) && versions.contains(&"2025-11-25"),
        "{versions:?}"
    );
    let capabilities = &result["capabilities"];
    for kind in ["tools", "resources", "prompts"] {
        assert_eq!(capabilities[kind]["listChanged"], true, "{capabilities}");
    }
    assert!(
        capabilities["completions"].is_null(),
        "nothing completes: {capabilities}"
    );
    assert!(result["ttlMs"].as_u64().is_some());
    assert!(matches!(
        result["cacheScope"].as_str(),
        Some("public" | "private")
    ));
    assert_eq!(
        result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"],
        "tooldock/talk"
    );
    let (_, answer) = ask(
        &gateway,
        "calc",
        &message(json!(2), "server/discover", json!({})),
    )
    .await;
    let capabilities = &answer["result"]["capabilities"];
    assert!(capabilities["tools"].is_object());
    assert!(
        capabilities["prompts"].is_null() && capabilities["resources"].is_null(),
        "{capabilities}"
    );
}

#[tokio::test]
async fn both_eras_are_served_on_one_url() {
    let gateway = talking().await;
    let session = Session::start(&gateway, "calc", "2025-11-25").await;
    let add = json!({"a": 2, "b": 3});
    for round in 0..3 {
        let (status, modern) = ask(&gateway, "calc", &call(json!("m"), "add", add.clone())).await;
        assert_eq!(status, 200, "{modern}");
        assert_eq!(modern["result"]["resultType"], "complete");
        assert_eq!(modern["result"]["structuredContent"]["result"], 5.0);
        let legacy = session
            .request(
                round,
                "tools/call",
                json!({"name": "add", "arguments": add}),
            )
            .await;
        assert!(legacy["result"].get("resultType").is_none(), "{legacy}");
        assert_eq!(legacy["result"]["structuredContent"]["result"], 5.0);
        let (_, sessionless) = gateway
            .mcp("calc", json!({"jsonrpc": "2.0", "id": 1, "method": "ping"}))
            .await;
        assert_eq!(sessionless["result"], json!({}));
    }
}

#[tokio::test]
async fn ids_keep_their_spelling() {
    let gateway = talking().await;
    for id in ["9007199254740993", "1.5", r#""""#, r#""🦀""#, "0"] {
        let body = call(json!("ID"), "add", json!({"a": 1, "b": 2}))
            .to_string()
            .replace(r#""id":"ID""#, &format!(r#""id":{id}"#));
        let response = gateway
            .request("POST", "/mcp")
            .header("X-Namespace", "calc")
            .header("Accept", "application/json, text/event-stream")
            .header("Content-Type", "application/json")
            .header("MCP-Protocol-Version", VERSION)
            .header("Mcp-Method", "tools/call")
            .header("Mcp-Name", "add")
            .body(body)
            .send()
            .await
            .unwrap();
        let text = response.text().await.unwrap();
        assert!(text.contains(&format!(r#""id":{id},"#)), "{id} in {text}");
    }
}

#[tokio::test]
async fn single_faults_get_their_status_and_code() {
    let gateway = talking().await;
    let good = call(json!(1), "add", json!({"a": 1, "b": 2}));
    let without = |key: &str| {
        let mut message = good.clone();
        message["params"]["_meta"]
            .as_object_mut()
            .unwrap()
            .remove(&format!("io.modelcontextprotocol/{key}"));
        message
    };
    let mut future = good.clone();
    future["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2030-01-01");
    type Change = fn(RequestBuilder) -> RequestBuilder;
    let same: Change = |request| request;
    let cases: [(&str, Value, Change, u16, i64); 8] = [
        (
            "no capabilities",
            without("clientCapabilities"),
            same,
            400,
            -32602,
        ),
        (
            "an unknown method",
            message(json!(1), "nope/x", json!({})),
            same,
            404,
            -32601,
        ),
        (
            "a method of the older revisions",
            message(json!(1), "ping", json!({})),
            same,
            404,
            -32601,
        ),
        (
            "another",
            message(json!(1), "logging/setLevel", json!({"level": "info"})),
            same,
            404,
            -32601,
        ),
        (
            "another method in the header",
            good.clone(),
            |request| request.header("Mcp-Method", "tools/list"),
            400,
            -32020,
        ),
        (
            "a second name in the header",
            good.clone(),
            |request| request.header("Mcp-Name", "multiply"),
            400,
            -32020,
        ),
        (
            "an unknown tool's parameters",
            message(json!(1), "tools/call", json!({})),
            same,
            400,
            -32602,
        ),
        (
            "a resource that is not there",
            message(json!(1), "resources/read", json!({"uri": "test://nope"})),
            same,
            200,
            -32602,
        ),
    ];
    for (fault, message, change, status, code) in cases {
        let response = change(request(&gateway, "talk", &message))
            .send()
            .await
            .unwrap();
        let seen = response.status().as_u16();
        let body: Value = response.json().await.unwrap();
        assert_eq!(body["error"]["code"], code, "{fault}: {body}");
        if code != -32602 {
            assert_eq!(seen, status, "{fault}: {body}");
        }
    }
    let response = gateway
        .request("POST", "/mcp")
        .header("X-Namespace", "talk")
        .header("Accept", "application/json, text/event-stream")
        .header("MCP-Protocol-Version", "2030-01-01")
        .header("Mcp-Method", "tools/call")
        .header("Mcp-Name", "add")
        .json(&future)
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 400);
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["error"]["code"], -32022, "{body}");
    assert_eq!(body["error"]["data"]["requested"], "2030-01-01");
    let supported = body["error"]["data"]["supported"].as_array().unwrap();
    assert!(supported.contains(&json!(VERSION)), "{body}");
}

#[tokio::test]
async fn a_mirrored_header_that_is_missing_or_differs_is_refused() {
    let gateway = talking().await;
    let good = call(json!(1), "add", json!({"a": 1, "b": 2}));
    let all = mirrored(&good);
    for left_out in 0..all.len() {
        let mut request = gateway
            .request("POST", "/mcp")
            .header("X-Namespace", "calc")
            .header("Accept", "application/json, text/event-stream")
            .json(&good);
        for (index, (name, value)) in all.iter().enumerate() {
            if index != left_out {
                request = request.header(*name, value);
            }
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 400, "without {}", all[left_out].0);
        let body: Value = response.json().await.unwrap();
        assert_eq!(
            body["error"]["code"], -32020,
            "without {}: {body}",
            all[left_out].0
        );
    }
}

#[tokio::test]
async fn the_listener_switch_takes_the_revision_away() {
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .core(json!({"modern": false}))
        .start()
        .await;
    let (status, body) = ask(
        &gateway,
        "calc",
        &message(json!(1), "server/discover", json!({})),
    )
    .await;
    assert!((400..500).contains(&status), "{status}: {body}");
    assert!(body["error"]["code"].is_i64(), "{body}");
    Session::start(&gateway, "calc", "2025-11-25").await;
}

#[tokio::test]
async fn progress_and_logs_come_on_the_requests_own_stream_and_only_when_asked_for() {
    let gateway = talking().await;
    let gate = gateway.scratch().join("gate");
    std::fs::write(&gate, "go").unwrap();
    let mut talk = call(
        json!(1),
        "talk",
        json!({"gate": gate.display().to_string()}),
    );
    let (_, quiet) = ask(&gateway, "talk", &talk).await;
    assert_eq!(
        quiet["result"]["content"][0]["text"], "done",
        "no token, no stream"
    );
    talk["params"]["_meta"]["progressToken"] = json!("tok");
    let mut answer = stream(&gateway, "talk", &talk).await;
    assert!(answer.is_events());
    let messages = answer.messages().await;
    assert_eq!(messages.len(), 5);
    assert!(
        messages[..4]
            .iter()
            .all(|message| message["params"]["progressToken"] == "tok")
    );
    assert_eq!(messages[4]["result"]["resultType"], "complete");
    assert_eq!(answer.end().await, End::Whole);
    let mut logs = call(json!(2), "logs", json!({}));
    let (_, silent) = ask(&gateway, "talk", &logs).await;
    assert_eq!(
        silent["result"]["content"][0]["text"], "done",
        "no level, no logs"
    );
    logs["params"]["_meta"]["io.modelcontextprotocol/logLevel"] = json!("warning");
    let heard = stream(&gateway, "talk", &logs).await.messages().await;
    assert_eq!(heard.len(), 2, "{heard:?}");
    assert_eq!(heard[0]["params"]["level"], "error");
}

#[tokio::test]
async fn closing_the_stream_cancels_in_the_worker() {
    let gateway = talking().await;
    let gate = gateway.scratch().join("gate");
    let mut talk = call(
        json!(1),
        "talk",
        json!({"gate": gate.display().to_string()}),
    );
    talk["params"]["_meta"]["progressToken"] = json!(1);
    let mut answer = stream(&gateway, "talk", &talk).await;
    answer.message().await;
    drop(answer);
    let cancelled = PathBuf::from(format!("{}.cancelled", gate.display()));
    eventually("the tool was cancelled", || async {
        cancelled.exists().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_question_suspends_the_call_and_the_retry_goes_on_with_it() {
    let gateway = talking().await;
    let marks = gateway.scratch().join("marks");
    let first = call(
        json!(1),
        "runs",
        json!({"file": marks.display().to_string()}),
    );
    let (status, parked) = ask(&gateway, "talk", &first).await;
    assert_eq!(status, 200);
    let result = &parked["result"];
    assert_eq!(result["resultType"], "input_required", "{parked}");
    let (key, question) = result["inputRequests"]
        .as_object()
        .unwrap()
        .iter()
        .next()
        .unwrap();
    assert_eq!(question["method"], "elicitation/create");
    let state = &result["requestState"];
    assert!(state.is_string());
    // Without an answer the same question comes again.
    let (_, still) = ask(&gateway, "talk", &again(json!(2), &first, state, json!({}))).await;
    assert_eq!(still["result"]["resultType"], "input_required", "{still}");
    assert_eq!(still["result"]["inputRequests"], result["inputRequests"]);
    let state = &still["result"]["requestState"];
    let answers = json!({key: {"action": "decline"}});
    let (_, done) = ask(
        &gateway,
        "talk",
        &again(json!("retry"), &first, state, answers.clone()),
    )
    .await;
    assert_eq!(done["id"], "retry");
    assert_eq!(done["result"]["content"][0]["text"], "decline", "{done}");
    assert_eq!(
        std::fs::read_to_string(&marks).unwrap(),
        "run\n",
        "it ran once"
    );
    // The state is spent: a typed error, never a second run.
    let (_, over) = ask(&gateway, "talk", &again(json!(4), &first, state, answers)).await;
    assert!(
        over["error"]["code"].is_i64() || over["result"]["isError"] == true,
        "{over}"
    );
    assert_eq!(std::fs::read_to_string(&marks).unwrap(), "run\n");
}

#[tokio::test]
async fn several_questions_come_together_and_rounds_follow_each_other() {
    let gateway = talking().await;
    let three = call(json!(1), "ask_three", json!({}));
    let (_, parked) = ask(&gateway, "talk", &three).await;
    let asked = parked["result"]["inputRequests"].as_object().unwrap();
    let mut keys: Vec<_> = asked.keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["name", "roots", "text"]);
    let responses = json!({
        "name": accept("Ada"),
        "text": {"role": "assistant", "model": "none", "content": {"type": "text", "text": "hi"}},
        "roots": {"roots": [{"uri": "file:///workspace"}]},
    });
    let state = &parked["result"]["requestState"];
    let (_, done) = ask(&gateway, "talk", &again(json!(2), &three, state, responses)).await;
    assert_eq!(
        done["result"]["content"][0]["text"], "Ada hi file:///workspace",
        "{done}"
    );
    let twice = call(json!(3), "ask_twice", json!({}));
    let (_, first) = ask(&gateway, "talk", &twice).await;
    let state = &first["result"]["requestState"];
    let (_, second) = ask(
        &gateway,
        "talk",
        &again(json!(4), &twice, state, json!({"first": accept("a")})),
    )
    .await;
    assert_eq!(second["result"]["resultType"], "input_required", "{second}");
    let state = &second["result"]["requestState"];
    let (_, done) = ask(
        &gateway,
        "talk",
        &again(json!(5), &twice, state, json!({"second": accept("b")})),
    )
    .await;
    assert_eq!(done["result"]["content"][0]["text"], "a b", "{done}");
}

#[tokio::test]
async fn answers_sent_along_with_the_first_call_are_taken() {
    let gateway = talking().await;
    let mut twice = call(json!(1), "ask_twice", json!({}));
    twice["params"]["inputResponses"] = json!({"first": accept("a"), "second": accept("b")});
    let (_, done) = ask(&gateway, "talk", &twice).await;
    assert_eq!(done["result"]["content"][0]["text"], "a b", "{done}");
}

#[tokio::test]
async fn a_state_that_is_not_ones_own_is_refused() {
    let other = "other-token-0123456789abcdef";
    let gateway = talking_with(json!({"admission": {"tokens": [
        {"name": "other", "sha256": sha256(other), "namespaces": ["*"]}]}}))
    .await;
    let first = call(json!(1), "ask", json!({}));
    let (_, parked) = ask(&gateway, "talk", &first).await;
    let state = parked["result"]["requestState"]
        .as_str()
        .unwrap()
        .to_owned();
    let key = parked["result"]["inputRequests"]
        .as_object()
        .unwrap()
        .keys()
        .next()
        .unwrap()
        .clone();
    let answers = json!({key: accept("Ada")});
    let mut flipped = state.clone().into_bytes();
    let middle = flipped.len() / 2;
    flipped[middle] = if flipped[middle] == b'A' { b'B' } else { b'A' };
    let flipped = String::from_utf8(flipped).unwrap();
    for bad in [
        json!(flipped),
        json!(""),
        json!("nonsense"),
        json!(7),
        json!({}),
    ] {
        let (status, answer) = ask(
            &gateway,
            "talk",
            &again(json!(2), &first, &bad, answers.clone()),
        )
        .await;
        assert_eq!(answer["error"]["code"], -32602, "{bad}: {status} {answer}");
    }
    for bad in [json!([]), json!("x"), json!({"a": 1}), json!({"a": []})] {
        let (_, answer) = ask(
            &gateway,
            "talk",
            &again(json!(3), &first, &json!(state), bad.clone()),
        )
        .await;
        assert_eq!(answer["error"]["code"], -32602, "{bad}: {answer}");
    }
    let foreign = again(json!(4), &first, &json!(state), answers.clone());
    let mut stolen = Answering::open(gateway.address, &text("talk", other, &foreign)).await;
    assert_eq!(stolen.json().await["error"]["code"], -32602);
    let other_tool = again(
        json!(5),
        &call(json!(5), "ask_twice", json!({})),
        &json!(state),
        answers.clone(),
    );
    assert_eq!(
        ask(&gateway, "talk", &other_tool).await.1["error"]["code"],
        -32602
    );
    // And its owner still can.
    let (_, done) = ask(
        &gateway,
        "talk",
        &again(json!(6), &first, &json!(state), answers),
    )
    .await;
    assert_eq!(done["result"]["content"][0]["text"], "accept Ada", "{done}");
}

#[tokio::test]
async fn a_client_without_the_capability_is_told_which_one() {
    let gateway = talking().await;
    let mut asking = call(json!(1), "ask", json!({}));
    asking["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    let (status, answer) = ask(&gateway, "talk", &asking).await;
    assert_eq!(status, 400, "{answer}");
    assert_eq!(answer["error"]["code"], -32021, "{answer}");
    assert!(answer["error"]["data"]["requiredCapabilities"]["elicitation"].is_object());
}

#[tokio::test]
async fn a_listener_hears_what_it_asked_for_with_its_own_id() {
    let gateway = talking_with(json!({"sessions": {"keepalive": "200ms"}})).await;
    for id in [json!("sub 🦀"), json!(9_007_199_254_740_993_u64)] {
        let listen = message(
            id.clone(),
            "subscriptions/listen",
            json!({"notifications":
            {"toolsListChanged": true, "resourceSubscriptions": ["test://watched"]}}),
        );
        let mut listener = stream(&gateway, "talk", &listen).await;
        assert_eq!(listener.status, 200);
        assert!(listener.is_events());
        let acknowledged = listener.message().await;
        assert_eq!(
            acknowledged["method"],
            "notifications/subscriptions/acknowledged"
        );
        assert_eq!(acknowledged["params"]["_meta"][SUBSCRIPTION], id);
        assert_eq!(
            acknowledged["params"]["notifications"]["toolsListChanged"],
            true
        );
        for (tool, arguments, method) in [
            ("touch", json!({"uri": "test://other"}), None),
            (
                "touch",
                json!({"uri": "test://watched"}),
                Some("notifications/resources/updated"),
            ),
            (
                "announce",
                json!({}),
                Some("notifications/tools/list_changed"),
            ),
        ] {
            ask(&gateway, "talk", &call(json!(1), tool, arguments)).await;
            if let Some(method) = method {
                let heard = listener.message().await;
                assert_eq!(heard["method"], method);
                assert_eq!(heard["params"]["_meta"][SUBSCRIPTION], id);
            }
        }
        assert!(
            listener.next().await.unwrap().comment,
            "keepalives come, too"
        );
    }
}

#[tokio::test]
async fn a_reload_reaches_the_listeners_of_its_namespace_alone() {
    let gateway = talking_with(json!({"sessions": {"keepalive": "200ms"}})).await;
    let listen = message(
        json!("l"),
        "subscriptions/listen",
        json!({"notifications": {"toolsListChanged": true}}),
    );
    let mut changed = stream(&gateway, "calc", &listen).await;
    let mut other = stream(&gateway, "talk", &listen).await;
    changed.message().await;
    other.message().await;
    gateway.drop_tool("calc", "more.py", tools::HELLO);
    gateway.reload().await;
    assert_eq!(
        changed.message().await["method"],
        "notifications/tools/list_changed"
    );
    for _ in 0..3 {
        assert!(other.next().await.unwrap().comment);
    }
}

#[tokio::test]
async fn a_stop_answers_every_listener() {
    let gateway = talking().await;
    let listen = message(
        json!("l"),
        "subscriptions/listen",
        json!({"notifications": {"toolsListChanged": true}}),
    );
    let mut listener = stream(&gateway, "calc", &listen).await;
    listener.message().await;
    gateway.signal(Signal::TERM);
    let last = listener.messages().await.pop().expect("the answer");
    assert_eq!(last["id"], "l", "{last}");
    assert!(last["result"].is_object());
    assert_eq!(listener.end().await, End::Whole);
    assert_eq!(gateway.ended().await.code(), Some(0));
}

#[tokio::test]
async fn sessions_and_event_ids_mean_nothing_here() {
    let gateway = talking().await;
    let list = message(json!(1), "tools/list", json!({}));
    let response = request(&gateway, "calc", &list)
        .header("Mcp-Session-Id", "no-such-session")
        .header("Last-Event-ID", "nonsense")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.headers().get("mcp-session-id").is_none());
    for method in ["GET", "DELETE"] {
        let response = gateway
            .request(method, "/mcp")
            .header("X-Namespace", "calc")
            .header("Accept", "text/event-stream")
            .header("MCP-Protocol-Version", VERSION)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 405, "{method}");
    }
}
