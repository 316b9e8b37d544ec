use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;
use tooldock_base::config::Limits;
use tooldock_engine::engine::{CallMessages, CallOutcome, UpstreamCall};
use tooldock_engine::upstream::{Client, IncomingRequest, PreparedRequest, RequestMeta};
use tooldock_process::worker::LogLevel;
use tooldock_sessions::caller::Caller;
use tooldock_sessions::session::{Binding, ClientFacts, Session, SessionPatch, SessionTransport};
use tooldock_sessions::testing::{broken, caller, full, namespace};
use tooldock_workers::registry::Namespace;

use crate::format::{ModernFormat, ResultFormat};
use crate::jsonrpc::{self, Members, Message, RequestError};
use crate::mcp;
use crate::protocol::ProtocolVersion;
use crate::testing::{Harness, harness};

/// A conversation with a namespace that has all kinds of entries, over the harness's backend.
struct Fixture {
    harness: Harness,
    caller: Caller,
    namespace: Arc<Namespace>,
}

fn fixture() -> Fixture {
    fixture_of(full("shared"))
}

fn fixture_of(namespace: Namespace) -> Fixture {
    Fixture {
        harness: harness(),
        caller: caller(),
        namespace: Arc::new(namespace),
    }
}

fn legacy(session: Option<Arc<Session>>) -> Client {
    match session {
        Some(session) => Client::Session(session),
        None => Client::Legacy(ProtocolVersion::V2025_11_25),
    }
}

fn modern() -> Client {
    Client::Modern(meta())
}

fn meta() -> RequestMeta {
    RequestMeta {
        capabilities: Bytes::from_static(br#"{"sampling":{}}"#),
        client_info: None,
        log_level: Some(LogLevel::Debug),
        progress_token: None,
        inputs: Some(Bytes::from_static(br#"{"k":{"action":"accept"}}"#)),
    }
}

fn session() -> Arc<Session> {
    let binding = Binding {
        namespace: "shared".parse().expect("a name"),
        principal: None,
        version: ProtocolVersion::V2025_11_25,
        transport: SessionTransport::Streamable,
    };
    let id = tooldock_sessions::session::SessionId::random();
    let session = Session::new(id, binding, Instant::now());
    session.change(SessionPatch::Confirm);
    let raw = |text: &str| serde_json::from_str(text).expect("JSON");
    let facts = ClientFacts {
        capabilities: raw(r#"{"elicitation":{}}"#),
        info: Some(raw(r#"{"name":"t","version":"1"}"#)),
    };
    session.change(SessionPatch::Initialize {
        version: ProtocolVersion::V2025_11_25,
        client: facts,
    });
    Arc::new(session)
}

impl Fixture {
    async fn prepare(
        &self,
        client: Client,
        streams: bool,
        method: &str,
        params: &Value,
    ) -> Result<PreparedRequest, RequestError> {
        let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}","params":{params}}}"#);
        let body = Bytes::from(text);
        let text = std::str::from_utf8(&body).expect("text");
        let Ok(Message::Request { members, .. }) = jsonrpc::message(text) else {
            panic!("no request: {text}");
        };
        self.prepare_members(client, streams, method, &body, &members)
            .await
    }

    async fn prepare_members(
        &self,
        client: Client,
        streams: bool,
        method: &str,
        body: &Bytes,
        members: &Members<'_>,
    ) -> Result<PreparedRequest, RequestError> {
        let core = self.harness.service.core();
        let namespace = Arc::clone(&self.namespace);
        let cx = mcp::context(core, &self.caller, body, namespace, client, streams);
        let request = IncomingRequest {
            id: "7",
            method,
            members,
        };
        mcp::prepare(core, &cx, request).await
    }

    /// The result of a method that is answered at once.
    async fn answer(
        &self,
        client: Client,
        method: &str,
        params: Value,
    ) -> Result<Value, RequestError> {
        match self.prepare(client, true, method, &params).await? {
            PreparedRequest::Response(answer) => Ok(parsed(&answer)),
            PreparedRequest::Call(_) => panic!("{method} is a call"),
        }
    }

    async fn upstream(
        &self,
        client: Client,
        method: &str,
        params: Value,
    ) -> Result<Arc<dyn UpstreamCall>, RequestError> {
        match self.prepare(client, true, method, &params).await? {
            PreparedRequest::Call(call) => Ok(call),
            PreparedRequest::Response(_) => panic!("{method} is no call"),
        }
    }

    /// Makes a call and returns the response, or the error object in the era's form.
    async fn call(&self, client: Client, method: &str, params: Value) -> Value {
        let format = match client.version() {
            Some(version) => ResultFormat::Legacy(version),
            None => ResultFormat::Modern(ModernFormat::new(self.namespace.name.clone())),
        };
        let call = match self.upstream(client, method, params).await {
            Ok(call) => call,
            Err(failure) => return parsed(&format.error(Some("7"), &failure)),
        };
        let outcome = self.run(&call).await;
        let response = mcp::call::response(call.facts(), "7", &self.caller, &format, outcome);
        parsed(&response.unwrap_or_else(|failure| format.error(Some("7"), &failure)))
    }

    async fn run(&self, call: &Arc<dyn UpstreamCall>) -> CallOutcome {
        let engine = &self.harness.service.core().engine;
        engine.run(&self.caller, call, None).await
    }

    /// Runs a call and returns the facts about the caller that its function got; `null` for none.
    async fn told(&self, call: &Arc<dyn UpstreamCall>) -> Value {
        let before = self.callers().len();
        self.run(call).await.expect("it runs");
        self.callers().get(before).cloned().unwrap_or(Value::Null)
    }

    fn callers(&self) -> Vec<Value> {
        let callers = self.harness.backend.callers.lock();
        callers.expect("not poisoned").clone()
    }
}

fn parsed(response: &[u8]) -> Value {
    let response: Value = serde_json::from_slice(response).expect("JSON");
    assert_eq!(
        (&response["jsonrpc"], &response["id"]),
        (&json!("2.0"), &json!(7))
    );
    response
}

#[tokio::test]
async fn lists_are_the_definitions_as_they_were_written() {
    let fixture = fixture();
    for (method, key, count) in [
        ("resources/list", "resources", 2),
        ("resources/templates/list", "resourceTemplates", 1),
        ("prompts/list", "prompts", 3),
    ] {
        let answer = fixture.answer(legacy(None), method, json!({})).await;
        let result = &answer.expect(method)["result"];
        let list = result[key].as_array().expect("a list");
        assert_eq!(list.len(), count, "{method}");
        assert_eq!(result.as_object().map(serde_json::Map::len), Some(1));
    }
    let prompts = fixture
        .answer(legacy(None), "prompts/list", json!({}))
        .await;
    let prompts = prompts.expect("a list");
    assert_eq!(
        prompts["result"]["prompts"][0],
        json!({ "name": "greet", "x": 1 })
    );
}

#[tokio::test]
async fn a_tool_shows_its_icons_and_not_how_it_is_run() {
    let answer = fixture()
        .answer(legacy(None), "tools/list", json!({}))
        .await;
    let tools = &answer.expect("a list")["result"]["tools"];
    let tools = tools.as_array().expect("a list");
    let talk = tools.iter().find(|tool| tool["name"] == "talk");
    let talk = talk.expect("listed");
    assert_eq!(talk["icons"], json!([{ "src": "data:," }]));
    assert!(talk.get("context").is_none() && talk.get("filename").is_none());
    assert!(tools.iter().all(|tool| tool["name"] != "secret_tool"));
}

#[tokio::test]
async fn a_list_has_one_page() {
    let fixture = fixture();
    for method in [
        "tools/list",
        "resources/list",
        "resources/templates/list",
        "prompts/list",
    ] {
        let refused = fixture
            .answer(legacy(None), method, json!({ "cursor": "x" }))
            .await;
        assert!(
            matches!(refused, Err(RequestError::InvalidParams(_))),
            "{method}"
        );
        let null = fixture
            .answer(legacy(None), method, json!({ "cursor": null }))
            .await;
        assert!(null.is_ok(), "{method}");
    }
}

#[tokio::test]
async fn modern_lists_say_how_long_and_for_whom_they_hold() {
    let mut open = full("shared");
    open.limits = Limits::default();
    for (namespace, scope) in [(open, "public"), (full("shared"), "private")] {
        let answer = fixture_of(namespace)
            .answer(modern(), "prompts/list", json!({}))
            .await;
        let result = &answer.expect("a list")["result"];
        assert_eq!(result["resultType"], "complete");
        assert_eq!(
            (&result["ttlMs"], &result["cacheScope"]),
            (&json!(300_000), &json!(scope))
        );
        let server = &result["_meta"]["io.modelcontextprotocol/serverInfo"];
        assert_eq!(server["name"], "tooldock/shared");
    }
}

#[tokio::test]
async fn what_a_namespace_does_not_declare_is_not_there() {
    let plain = {
        let mut plain = namespace("shared");
        plain.tools.retain(|tool| !tool.context);
        fixture_of(plain)
    };
    let broken = fixture_of(broken("shared"));
    for method in [
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "resources/subscribe",
        "prompts/list",
        "prompts/get",
        "completion/complete",
        "logging/setLevel",
    ] {
        let refused = plain.prepare(legacy(None), true, method, &json!({})).await;
        assert!(
            matches!(refused, Err(RequestError::MethodNotFound(_))),
            "{method}"
        );
        let down = broken.prepare(legacy(None), true, method, &json!({})).await;
        assert!(matches!(down, Err(RequestError::Upstream(_))), "{method}");
    }
}

#[tokio::test]
async fn the_modern_era_has_no_methods_of_sessions() {
    let fixture = fixture();
    for method in [
        "ping",
        "logging/setLevel",
        "resources/subscribe",
        "resources/unsubscribe",
        "initialize",
        "nope/x",
    ] {
        let refused = fixture.prepare(modern(), true, method, &json!({})).await;
        assert!(
            matches!(refused, Err(RequestError::MethodNotFound(_))),
            "{method}"
        );
    }
}

#[tokio::test]
async fn a_resource_is_read_and_an_unknown_one_is_an_error_of_the_era() {
    let fixture = fixture();
    let read = |uri: &str| json!({ "uri": uri });
    let found = fixture
        .call(legacy(None), "resources/read", read("test://item/7"))
        .await;
    assert_eq!(
        found["result"],
        json!({ "contents": [{ "uri": "test://item/7", "text": "text" }] })
    );
    let found = fixture
        .call(modern(), "resources/read", read("test://static"))
        .await;
    assert_eq!(found["result"]["cacheScope"], "private");
    assert_eq!(found["result"]["resultType"], "complete");
    assert_eq!(
        found["result"]["ttlMs"], 0,
        "unless its author says otherwise"
    );
    let kept = fixture
        .call(modern(), "resources/read", read("test://item/7"))
        .await;
    assert_eq!(kept["result"]["ttlMs"], 1500);
    assert_eq!(kept["result"]["contents"][0]["text"], "text");
    for (era, code) in [(legacy(None), -32002), (modern(), -32602)] {
        let missing = fixture
            .call(era, "resources/read", read("test://none"))
            .await;
        assert_eq!(missing["error"]["code"], code);
        assert_eq!(
            missing["error"]["data"],
            json!({ "code": "resource_not_found", "uri": "test://none" })
        );
    }
}

#[tokio::test]
async fn a_prompt_is_got_and_what_is_wrong_with_it_are_its_parameters() {
    let fixture = fixture();
    let get = |name: &str| json!({ "name": name, "arguments": { "who": "Ada" } });
    let got = fixture
        .call(legacy(None), "prompts/get", get("greet"))
        .await;
    let text = &got["result"]["messages"][0]["content"]["text"];
    assert_eq!(text, r#"{"who":"Ada"}"#);
    for (name, message) in [("none", "Unknown prompt: none"), ("strict", "who?")] {
        let failed = fixture.call(legacy(None), "prompts/get", get(name)).await;
        assert_eq!(failed["error"]["code"], -32602, "{name}");
        assert_eq!(failed["error"]["message"], message);
    }
}

#[tokio::test]
async fn an_argument_is_completed() {
    let params = json!({
        "ref": { "type": "ref/prompt", "name": "greet" },
        "argument": { "name": "who", "value": "p" },
    });
    let completed = fixture()
        .call(legacy(None), "completion/complete", params)
        .await;
    assert_eq!(
        completed["result"],
        json!({ "completion": { "values": ["paris"] } })
    );
}

#[tokio::test]
async fn wrong_parameters_are_told_before_anything_runs() {
    let fixture = fixture();
    let reference = json!({ "type": "ref/prompt", "name": "greet" });
    for (method, params) in [
        ("tools/call", json!({})),
        ("tools/call", json!({ "name": 1 })),
        ("tools/call", json!({ "name": "echo", "arguments": [] })),
        ("tools/call", json!({ "name": "echo", "_meta": 1 })),
        ("resources/read", json!({ "uri": null })),
        ("prompts/get", json!({ "name": "greet", "arguments": "x" })),
        (
            "completion/complete",
            json!({ "argument": { "name": "a", "value": "" } }),
        ),
        (
            "completion/complete",
            json!({ "ref": reference, "argument": { "name": "a" } }),
        ),
        ("completion/complete", json!({ "ref": reference })),
        ("logging/setLevel", json!({ "level": "loud" })),
        ("logging/setLevel", json!({})),
        ("resources/subscribe", json!({})),
        ("ping", json!([])),
    ] {
        let refused = fixture.prepare(legacy(None), true, method, &params).await;
        assert!(
            matches!(refused, Err(RequestError::InvalidParams(_))),
            "{method} {params}: {refused:?}"
        );
    }
    assert_eq!(fixture.harness.backend.counts(), (0, 0, 0));
}

#[tokio::test]
async fn a_session_subscribes_to_what_could_be_there() {
    let fixture = fixture();
    let session = session();
    let ask = |method: &'static str, uri: &'static str| {
        let era = legacy(Some(Arc::clone(&session)));
        fixture.answer(era, method, json!({ "uri": uri }))
    };
    for uri in ["test://static", "test://item/9"] {
        let answer = ask("resources/subscribe", uri).await.expect(uri);
        assert_eq!(answer["result"], json!({}));
        assert!(session.subscriptions().contains(uri));
    }
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        let unknown = ask(method, "test://none").await;
        assert!(
            matches!(unknown, Err(RequestError::ResourceNotFound(_))),
            "{method}"
        );
    }
    assert!(ask("resources/unsubscribe", "test://static").await.is_ok());
    assert!(!session.subscriptions().contains("test://static"));
    let nowhere = fixture.answer(
        legacy(None),
        "resources/subscribe",
        json!({ "uri": "test://static" }),
    );
    assert!(matches!(nowhere.await, Err(RequestError::SessionRequired)));
}

#[tokio::test]
async fn a_session_keeps_its_log_level() {
    let fixture = fixture();
    let session = session();
    let era = legacy(Some(Arc::clone(&session)));
    let answer = fixture
        .answer(era, "logging/setLevel", json!({ "level": "critical" }))
        .await;
    assert_eq!(answer.expect("taken")["result"], json!({}));
    assert_eq!(session.log_level(), LogLevel::Critical);
}

#[test]
fn a_progress_token_beyond_its_bound_is_refused() {
    let read = |length: usize| {
        let token = "p".repeat(length - 2);
        let params = json!({ "_meta": { "progressToken": token } }).to_string();
        let members = Members::of_params(&params).expect("an object");
        let token = members.progress_token()?;
        Ok::<_, RequestError>(token.map(str::to_owned))
    };
    let longest = read(jsonrpc::ID_MAX).expect("within");
    assert_eq!(longest.map(|token| token.len()), Some(jsonrpc::ID_MAX));
    let refused = read(jsonrpc::ID_MAX + 1);
    assert!(matches!(refused, Err(RequestError::InvalidParams(_))));
}

#[tokio::test]
async fn only_functions_with_a_context_are_told_who_calls() {
    let fixture = fixture();
    let session = session();
    session.change(SessionPatch::LogLevel(LogLevel::Error));
    let facts = |client, streams| {
        let params = json!({ "name": "talk", "_meta": { "progressToken": 1e3 } });
        let fixture = &fixture;
        async move {
            let prepared = fixture
                .prepare(client, streams, "tools/call", &params)
                .await;
            let Ok(PreparedRequest::Call(call)) = prepared else {
                panic!("a call");
            };
            let facts = call.facts();
            assert_eq!(facts.talks, CallMessages::Asks);
            assert_eq!(facts.progress_token.as_deref(), Some("1000.0"));
            fixture.told(&call).await
        }
    };
    assert_eq!(
        facts(legacy(Some(Arc::clone(&session))), true).await,
        json!({
            "era": "legacy", "capabilities": { "elicitation": {} },
            "clientInfo": { "name": "t", "version": "1" }, "logLevel": "error", "progress": true,
        })
    );
    // The session declared capabilities, but there is no way to reach its client.
    assert_eq!(
        facts(legacy(Some(session)), false).await,
        json!({ "era": "legacy", "capabilities": {}, "progress": false })
    );
    assert_eq!(
        facts(legacy(None), true).await,
        json!({ "era": "legacy", "capabilities": {}, "logLevel": "info", "progress": true })
    );
    assert_eq!(
        facts(modern(), true).await,
        json!({
            "era": "modern", "capabilities": { "sampling": {} }, "logLevel": "debug",
            "inputs": { "k": { "action": "accept" } }, "progress": true,
        })
    );
    let call = fixture
        .upstream(modern(), "tools/call", json!({ "name": "echo" }))
        .await;
    let call = call.expect("a call");
    assert_eq!(call.facts().talks, CallMessages::No);
    assert_eq!(fixture.told(&call).await, Value::Null);
    assert_eq!(call.facts().version, Some("2026-07-28"));
}

#[tokio::test]
async fn a_missing_capability_is_an_error_of_its_own_in_the_modern_era() {
    let fixture = fixture();
    let call = |era| fixture.call(era, "tools/call", json!({ "name": "missing_capability" }));
    let legacy = call(legacy(None)).await;
    assert_eq!(legacy["result"]["isError"], true);
    let modern = call(modern()).await;
    assert_eq!(modern["error"]["code"], -32021);
    assert_eq!(
        modern["error"]["data"],
        json!({ "code": "missing_capability", "requiredCapabilities": { "sampling": {} } })
    );
}

#[tokio::test]
async fn an_unknown_tool_is_a_result_in_either_era() {
    let fixture = fixture();
    for era in [legacy(None), modern()] {
        let failed = fixture
            .call(era, "tools/call", json!({ "name": "nope" }))
            .await;
        assert_eq!(failed["result"]["isError"], true);
        let text = &failed["result"]["content"][0]["text"];
        assert_eq!(text, "tool_not_found: Unknown tool: nope");
    }
}

#[tokio::test]
async fn arguments_keep_their_spelling_and_a_small_part_of_a_large_body_is_copied() {
    let fixture = fixture();
    let body = Bytes::from(
        r#"{"name":"echo","arguments":{"n":9007199254740993,"m":1e400},"_meta":{"pad":"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}}"#,
    );
    let params = std::str::from_utf8(&body).expect("text");
    let members = Members::of_params(params).expect("an object");
    let prepared = fixture
        .prepare_members(legacy(None), true, "tools/call", &body, &members)
        .await;
    let Ok(PreparedRequest::Call(call)) = prepared else {
        panic!("a call");
    };
    let arguments = &call.facts().arguments;
    assert_eq!(arguments, r#"{"n":9007199254740993,"m":1e400}"#);
    assert!(!body.as_ptr_range().contains(&arguments.as_ptr()));
}
