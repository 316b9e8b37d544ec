use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tooldock_base::route::RouteId;
use tooldock_sessions::caller::{Caller, Visibility};
use tooldock_sessions::testing::{broken, caller, namespace, tool};
use tooldock_workers::reload::ReloadReport;

use crate::reload::ReloadControl;
use crate::service::AdmittedRequest;
use crate::testing::{Harness, Refuses, Wanted, asked, harness, parts};

async fn request(
    harness: &Harness,
    caller: Caller,
    path: &str,
    body: &'static str,
) -> crate::reply::Reply {
    let request = asked(path, body.as_bytes());
    harness.service.handle(caller, request).await
}

async fn get(harness: &Harness, path: &str) -> (StatusCode, Value) {
    parts(&request(harness, caller(), path, "").await)
}

async fn post(harness: &Harness, path: &str, body: &'static str) -> (StatusCode, Value) {
    parts(&request(harness, caller(), path, body).await)
}

#[tokio::test]
async fn lists_tools_and_their_schemas() {
    let harness = harness();
    let (status, tools) = get(&harness, "/tools").await;
    assert_eq!(status, StatusCode::OK);
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string", "default": "World" } } });
    assert_eq!(
        tools[0],
        json!({
            "name": "say_hello", "title": "Say Hello", "description": "Greet \"someone\".", "inputSchema": schema,
            "outputSchema": { "type": "object" }, "annotations": { "readOnlyHint": true }, "filename": "hello.py",
        })
    );
    assert_eq!(
        get(&harness, "/tools/say_hello/schema").await,
        (StatusCode::OK, schema)
    );
    let (status, body) = get(&harness, "/tools/secret_tool/schema").await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("tool_not_found"))
    );
}

#[tokio::test]
async fn a_call_answers_with_the_bare_value() {
    let harness = harness();
    assert_eq!(
        post(&harness, "/tools/say_hello", r#"{"name":"Ada"}"#).await,
        (StatusCode::OK, json!("Hello, Ada!"))
    );
    assert_eq!(
        post(&harness, "/tools/echo", " {\"a\": 1}\n").await,
        (StatusCode::OK, json!({"a":1}))
    );
    assert_eq!(
        post(&harness, "/tools/value", r#"{"value":[1,2]}"#).await,
        (StatusCode::OK, json!([1, 2]))
    );
    assert_eq!(
        post(&harness, "/tools/echo", "").await,
        (StatusCode::OK, json!({}))
    );
    let (_, image) = post(&harness, "/tools/image", "{}").await;
    assert_eq!(image["content"][0]["type"], "image");
}

#[tokio::test]
async fn failures_have_their_status_and_one_shape() {
    let harness = Wanted {
        limiter: Arc::new(Refuses("value", Mutex::default())),
        ..Wanted::default()
    }
    .build();
    for (path, body, status, code) in [
        ("/tools/nope", "{}", 404, "tool_not_found"),
        ("/tools/secret_tool", "{}", 404, "tool_not_found"),
        ("/tools/invalid_arguments", "{}", 422, "invalid_arguments"),
        ("/tools/execution_timeout", "{}", 504, "execution_timeout"),
        ("/tools/dependency_error", "{}", 500, "dependency_error"),
        ("/tools/internal_error", "{}", 500, "internal_error"),
        ("/tools/worker_unavailable", "{}", 503, "worker_unavailable"),
        ("/tools/overloaded", "{}", 503, "overloaded"),
        ("/tools/value", "{}", 429, "rate_limited"),
        ("/tools/echo", "{", 400, "invalid_json"),
        ("/tools/echo", "[1]", 422, "invalid_arguments"),
        ("/tools/echo", "\"x\"", 422, "invalid_arguments"),
        ("/tools/echo", "{} {}", 400, "invalid_json"),
        ("/reload", "", 503, "reload_unavailable"),
    ] {
        let reply = request(&harness, caller(), path, body).await;
        let (got, answer) = parts(&reply);
        assert_eq!(got.as_u16(), status, "{path}: {answer}");
        assert_eq!(answer["error"]["code"], code, "{path}");
        assert_eq!(answer["detail"], answer["error"]["message"], "{path}");
        assert!(answer["error"]["details"].is_object(), "{path}");
        assert!(!answer.to_string().contains("Traceback"), "{path}");
        let retry = reply
            .head()
            .headers
            .iter()
            .find(|(name, _)| name == RETRY_AFTER);
        let waits = matches!(code, "worker_unavailable" | "overloaded" | "rate_limited");
        assert_eq!(retry.is_some(), waits, "{path}");
        let json = reply
            .head()
            .headers
            .iter()
            .any(|(name, value)| name == CONTENT_TYPE && value == "application/json");
        assert!(json, "{path}");
    }
    let mut manager = caller();
    manager.manager = true;
    let (_, answer) = parts(&request(&harness, manager, "/tools/internal_error", "").await);
    assert_eq!(answer["error"]["details"]["traceback"], "Traceback …");
}

#[tokio::test]
async fn a_namespace_is_needed_and_must_exist() {
    let harness = harness();
    let mut other = caller();
    other.namespace = None;
    let (status, answer) = parts(&request(&harness, other.clone(), "/tools", "").await);
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("namespace_required"))
    );
    other.namespace = Some("gone".parse().expect("a name"));
    let (status, answer) = parts(&request(&harness, other.clone(), "/tools", "").await);
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("namespace_not_found"))
    );
    other.namespace = Some("broken".parse().expect("a name"));
    let (status, answer) = parts(&request(&harness, other, "/tools", "").await);
    assert_eq!(
        (status, &answer["error"]["code"]),
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            &json!("dependency_error")
        )
    );
}

#[tokio::test]
async fn namespaces_are_those_open_to_the_caller() {
    let harness = harness();
    let (_, all) = get(&harness, "/namespaces").await;
    assert_eq!(all.as_array().map(Vec::len), Some(3));
    assert_eq!(
        all[2],
        json!({ "name": "shared", "tool_count": 13, "has_requirements": false,
                "secrets_status": "no_secrets_needed", "description": "Tools of shared" })
    );
    let mut limited = caller();
    limited.namespace = None;
    limited.visibility = Visibility::Only(Arc::new(|name| name.as_str() == "other"));
    let (_, some) = parts(&request(&harness, limited, "/namespaces", "").await);
    assert_eq!(some.as_array().map(Vec::len), Some(1));
    assert_eq!(some[0]["name"], "other");
}

#[tokio::test]
async fn health_names_what_fails_and_ready_follows_the_process() {
    let harness = harness();
    let (status, health) = get(&harness, "/health").await;
    assert_eq!((status, &health["status"]), (StatusCode::OK, &json!("ok")));
    assert_eq!(
        (&health["namespaces"], &health["tools"]),
        (&json!(3), &json!(26))
    );
    assert_eq!(
        health["failing"],
        json!([{ "name": "broken", "code": "dependency_error" }])
    );
    assert_eq!(
        get(&harness, "/ready").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    harness.health.set_ready();
    let (status, ready) = get(&harness, "/ready").await;
    assert_eq!(
        (status, &ready["status"]),
        (StatusCode::OK, &json!("ready"))
    );
    assert_eq!(
        ready["namespaces"][0],
        json!({ "name": "broken", "state": "failed", "code": "dependency_error" })
    );
    harness.health.set_draining();
    let (status, ready) = get(&harness, "/ready").await;
    assert_eq!(
        (status, &ready["status"]),
        (StatusCode::SERVICE_UNAVAILABLE, &json!("draining"))
    );
    assert_eq!(get(&harness, "/health").await.0, StatusCode::OK);
}

#[tokio::test]
async fn a_stranger_is_told_the_status_and_a_caller_what_it_may_use() {
    let harness = harness();
    harness.health.set_ready();
    let mut stranger = caller();
    stranger.principal = None;
    let mut manager = stranger.clone();
    manager.manager = true;
    let mut on_metrics = stranger.clone();
    let profile = Arc::make_mut(&mut on_metrics.profile);
    profile.open_probes = true;
    let of_a_page = [&manager, &on_metrics, &caller()].map(|it| Caller {
        status_only: true,
        ..it.clone()
    });
    let mut limited = caller();
    limited.visibility = Visibility::Only(Arc::new(|name| name.as_str() == "shared"));
    for (path, word) in [("/health", "ok"), ("/ready", "ready")] {
        let told = async |caller: &Caller| {
            let reply = request(&harness, caller.clone(), path, "").await;
            parts(&reply).1
        };
        for stranger in of_a_page.iter().chain([&stranger]) {
            assert_eq!(told(stranger).await, json!({ "status": word }));
        }
        let all = told(&caller()).await;
        let counted = |told: &Value| match &told["namespaces"] {
            Value::Array(all) => all.len(),
            number => number.as_u64().map_or(0, |number| number as usize),
        };
        assert_eq!(counted(&all), 3, "{all}");
        for whole in [&manager, &on_metrics] {
            assert_eq!(counted(&told(whole).await), 3);
        }
        let some = told(&limited).await;
        assert_eq!(counted(&some), 1, "{some}");
        assert!(!some.to_string().contains("broken"), "{some}");
    }
}

#[tokio::test]
async fn oauth_discovery_is_told_that_there_is_none() {
    let harness = harness();
    let (status, answer) = get(&harness, "/.well-known/oauth-protected-resource").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("not_found"))
    );
}

struct Reloads(Result<Arc<ReloadReport>, String>);

#[async_trait]
impl ReloadControl for Reloads {
    async fn reload(&self) -> Result<Arc<ReloadReport>, String> {
        self.0.clone()
    }
}

#[tokio::test]
async fn reload_reports_what_it_did() {
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| name.parse().expect("a name"))
            .collect()
    };
    let report = ReloadReport {
        namespaces: names(&["shared", "github"]),
        workers_restarted: names(&["github"]),
        deps_synced: names(&["github"]),
        coalesced: true,
        ..ReloadReport::default()
    };
    let service = |outcome| {
        Wanted {
            reloader: Some(Arc::new(Reloads(outcome))),
            ..Wanted::default()
        }
        .build()
    };
    assert_eq!(
        post(&service(Ok(Arc::new(report))), "/reload", "").await,
        (
            StatusCode::OK,
            json!({ "reloaded": true, "namespaces": ["shared", "github"], "workers_restarted": ["github"],
                    "deps_synced": ["github"], "removed": [], "failed": [], "files": [], "issues": [], "coalesced": true })
        )
    );
    let (status, answer) = post(&service(Err("the folder is gone".into())), "/reload", "").await;
    assert_eq!(
        (status, &answer["detail"]),
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            &json!("the folder is gone")
        )
    );
}

#[tokio::test]
async fn the_openapi_document_describes_the_namespace() {
    let mut shared = namespace("shared");
    shared.tools.push(tool(json!({
        "name": "make.item", "description": "", "filename": "x.py",
        "inputSchema": {
            "type": "object", "required": ["item"],
            "properties": { "item": { "$ref": "#/$defs/Item" }, "same": { "$ref": "#/properties/item" } },
            "$defs": { "Item": { "type": "object", "properties": { "next": { "$ref": "#/$defs/Item" } } } },
        },
    })));
    shared.tools.push(tool(json!({
        "name": "make_item", "description": "", "filename": "x.py", "inputSchema": { "type": "object" },
    })));
    let harness = Wanted {
        namespaces: vec![shared, broken("broken")],
        ..Wanted::default()
    }
    .build();
    let (status, document) = get(&harness, "/openapi.json").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(
        document["components"]["securitySchemes"]["BearerAuth"],
        json!({ "type": "http", "scheme": "bearer" })
    );
    let post = &document["paths"]["/tools/make.item"]["post"];
    assert_eq!(post["operationId"], "make_item_49a33e84");
    assert_eq!(
        document["paths"]["/tools/make_item"]["post"]["operationId"],
        "make_item"
    );
    assert_eq!(post["requestBody"]["required"], true);
    let schema = &post["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(
        schema["properties"]["item"]["$ref"],
        "#/components/schemas/make_item_49a33e84_input_Item"
    );
    assert!(document["paths"].get("/tools/secret_tool").is_none());
    // Every local reference has a target, and every operation has a unique name.
    let mut references = Vec::new();
    let mut operations = Vec::new();
    collect(&document, &mut references, &mut operations);
    assert!(references.len() > 20);
    for reference in references {
        let pointer = reference.strip_prefix('#').expect("local");
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let all = operations.len();
    operations.sort();
    operations.dedup();
    assert_eq!((operations.len(), all), (20, 20));
    assert!(operations.iter().all(|name| {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    }));
}

fn collect(value: &Value, references: &mut Vec<String>, operations: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match (key.as_str(), value) {
                    ("$ref", Value::String(reference)) => references.push(reference.clone()),
                    ("operationId", Value::String(name)) => operations.push(name.clone()),
                    _ => collect(value, references, operations),
                }
            }
        }
        Value::Array(items) => items
            .iter()
            .for_each(|item| collect(item, references, operations)),
        _ => {}
    }
}

#[tokio::test]
async fn a_blank_body_is_refused_where_arguments_are_needed_and_no_body_is_an_empty_object() {
    let mut shared = namespace("shared");
    shared.tools = vec![
        tool(json!({
            "name": "echo", "description": "", "filename": "x.py",
            "inputSchema": { "type": "object", "required": ["a"], "properties": { "a": {} } },
        })),
        tool(json!({
            "name": "hello", "description": "", "filename": "x.py",
            "inputSchema": { "type": "object", "required": [] },
        })),
    ];
    let harness = Wanted {
        namespaces: vec![shared],
        ..Wanted::default()
    }
    .build();
    for blank in [" ", "\n", " \r\n\t"] {
        let (status, body) = post(&harness, "/tools/echo", blank).await;
        let code = &body["error"]["code"];
        assert_eq!(
            (status, code),
            (StatusCode::BAD_REQUEST, &json!("invalid_json"))
        );
        let message = body["detail"].as_str().expect("a sentence");
        assert!(message.contains("white space alone"), "{message}");
        let (status, _) = post(&harness, "/tools/hello", blank).await;
        assert_ne!(status, StatusCode::BAD_REQUEST);
        let (_, missing) = post(&harness, "/tools/missing", blank).await;
        assert_eq!(missing["error"]["code"], "tool_not_found");
    }
    // The worker decides if the empty object suffices.
    assert_eq!(
        post(&harness, "/tools/echo", "").await,
        (StatusCode::OK, json!({}))
    );
}

#[tokio::test]
async fn the_document_says_what_a_call_answers_and_how_it_can_fail() {
    let mut shared = namespace("shared");
    shared.tools = vec![tool(json!({
        "name": "count", "description": "", "filename": "x.py", "inputSchema": { "type": "object" },
        "outputSchema": {
            "type": "object", "properties": { "result": { "$ref": "#/$defs/Tree" } }, "required": ["result"],
            "$defs": { "Tree": { "items": { "$ref": "#/$defs/Tree" } } }, "x-fastmcp-wrap-result": true,
        },
    }))];
    let harness = Wanted {
        namespaces: vec![shared],
        ..Wanted::default()
    }
    .build();
    let (_, document) = get(&harness, "/openapi.json").await;
    let responses = &document["paths"]["/tools/count"]["post"]["responses"];
    assert_eq!(
        responses["200"]["content"]["application/json"]["schema"],
        json!({ "$ref": "#/components/schemas/count_output_Tree" })
    );
    assert!(document["components"]["schemas"]["count_output_Tree"].is_object());
    let statuses: Vec<_> = responses.as_object().expect("responses").keys().collect();
    assert_eq!(
        statuses,
        [
            "200", "400", "401", "403", "404", "408", "413", "414", "415", "422", "429", "431",
            "500", "502", "503", "504",
        ]
    );
    let namespaces = &document["paths"]["/namespaces"]["get"]["responses"];
    assert!(namespaces["401"].is_object() && namespaces["422"].is_null());
}

#[tokio::test]
async fn the_openapi_namespace_may_come_from_the_query_and_must_be_open() {
    let harness = harness();
    let mut other = caller();
    other.namespace = None;
    let document = |caller: Caller, path| request(&harness, caller, path, "");
    assert_eq!(
        document(other.clone(), "/openapi.json").await.head().status,
        StatusCode::BAD_REQUEST
    );
    let (status, body) = parts(&document(other.clone(), "/openapi.json?namespace=other").await);
    assert_eq!(
        (status, &body["info"]["title"]),
        (StatusCode::OK, &json!("ToolDock: other"))
    );
    let twice = document(
        other.clone(),
        "/openapi.json?namespace=other&namespace=shared",
    )
    .await;
    assert_eq!(parts(&twice).1["error"]["code"], "invalid_request");
    other.visibility = Visibility::Only(Arc::new(|_| false));
    assert_eq!(
        document(other, "/openapi.json?namespace=other")
            .await
            .head()
            .status,
        StatusCode::NOT_FOUND
    );
}

#[tokio::test]
async fn the_document_by_path_holds_the_tools_alone_below_the_address_of_the_namespace() {
    let harness = harness();
    let mut caller = caller();
    let profile = Arc::make_mut(&mut caller.profile);
    profile.public_url = "https://gw.example".into();
    profile.path_prefix = "/front".into();
    let document = async |path: &str| parts(&request(&harness, caller.clone(), path, "").await).1;
    let by_path = document("/namespaces/shared/openapi.json").await;
    assert_eq!(
        by_path["servers"],
        json!([{ "url": "https://gw.example/front/namespaces/shared" }])
    );
    let tools_alone = |document: &Value| {
        let paths = document["paths"].as_object().expect("paths");
        paths.values().all(|item| item.get("post").is_some())
    };
    assert!(tools_alone(&by_path));
    assert_eq!(
        by_path["paths"]["/tools/say_hello"]["post"]["parameters"],
        json!([])
    );

    let whole = document("/namespaces/shared/openapi.json?view=all").await;
    assert_eq!(
        whole["paths"]["/health"]["servers"],
        json!([{ "url": "https://gw.example/front" }])
    );
    assert!(whole["paths"]["/tools"].get("servers").is_none());

    let by_header = document("/openapi.json?view=tools").await;
    assert!(tools_alone(&by_header));
    assert_eq!(
        by_header["servers"],
        json!([{ "url": "https://gw.example/front" }])
    );
    let parameter = &by_header["paths"]["/tools/say_hello"]["post"]["parameters"][0];
    assert_eq!(parameter["name"], "X-Namespace");
    assert_eq!(parameter["schema"]["default"], "shared");
    let whole = document("/openapi.json?view=all").await;
    assert_eq!(whole, document("/openapi.json").await);
    assert!(!tools_alone(&whole));
    let unknown = document("/openapi.json?view=some").await;
    assert_eq!(unknown["error"]["code"], "invalid_request");
}

#[tokio::test]
async fn a_request_body_is_described_in_place_but_for_types_that_contain_themselves() {
    let mut shared = namespace("shared");
    shared.tools = vec![tool(json!({
        "name": "order", "description": "", "filename": "x.py",
        "inputSchema": {
            "type": "object", "required": ["item"],
            "properties": { "item": { "$ref": "#/$defs/Item" }, "tree": { "$ref": "#/$defs/Tree" } },
            "$defs": {
                "Item": { "type": "object", "properties": { "unit": { "$ref": "#/$defs/Unit" } } },
                "Tree": { "type": "object", "properties": { "next": { "$ref": "#/$defs/Tree" } } },
                "Unit": { "enum": ["kg"] },
            },
        },
    }))];
    let harness = Wanted {
        namespaces: vec![shared],
        ..Wanted::default()
    }
    .build();
    let (_, document) = get(&harness, "/namespaces/shared/openapi.json").await;
    let body = &document["paths"]["/tools/order"]["post"]["requestBody"];
    assert_eq!(
        body["content"]["application/json"]["schema"]["properties"],
        json!({
            "item": { "type": "object", "properties": { "unit": { "enum": ["kg"] } } },
            "tree": { "$ref": "#/components/schemas/order_input_Tree" },
        })
    );
    let schemas = document["components"]["schemas"].as_object();
    let schemas: Vec<_> = schemas.expect("schemas").keys().collect();
    assert_eq!(schemas, ["Error", "order_input_Tree"]);
}

#[tokio::test]
async fn a_listener_with_a_namespace_of_its_own_shows_no_other_and_needs_no_header() {
    let harness = harness();
    let mut caller = caller();
    let profile = Arc::make_mut(&mut caller.profile);
    profile.namespace = Some("shared".parse().expect("a name"));
    let told = async |path: &str| parts(&request(&harness, caller.clone(), path, "").await).1;
    let namespaces = told("/namespaces").await;
    assert_eq!(namespaces.as_array().map(Vec::len), Some(1));
    assert_eq!(namespaces[0]["name"], "shared");
    assert_eq!(told("/health").await["namespaces"], 1);
    let document = told("/openapi.json").await;
    let call = &document["paths"]["/tools/say_hello"]["post"];
    assert_eq!(call["parameters"], json!([]));
}

#[tokio::test]
async fn each_route_of_mcp_has_its_function() {
    let harness = harness();
    let send = async |route, method, body: &'static str| {
        let request = AdmittedRequest {
            route,
            method,
            head: crate::testing::head(None, None),
            session: None,
            tool: None,
            namespace_in_path: false,
            accepts_v1: false,
            rest: None,
            known: None,
            query: None,
            body: Bytes::from_static(body.as_bytes()),
            web: None,
        };
        parts(&harness.service.handle(caller(), request).await)
    };
    let ping = r#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#;
    assert_eq!(
        send(RouteId::Mcp, Method::POST, ping).await,
        (
            StatusCode::OK,
            json!({ "jsonrpc": "2.0", "id": 3, "result": {} })
        )
    );
    for (route, method, status) in [
        (RouteId::Mcp, Method::DELETE, StatusCode::BAD_REQUEST),
        (RouteId::Mcp, Method::GET, StatusCode::BAD_REQUEST),
        (RouteId::Messages, Method::POST, StatusCode::BAD_REQUEST),
        (RouteId::WellKnown, Method::GET, StatusCode::NOT_FOUND),
    ] {
        let (got, _) = send(route, method.clone(), ping).await;
        assert_eq!(got, status, "{route:?} {method}");
    }
}

#[tokio::test]
async fn a_tool_called_over_rest_has_nobody_to_talk_to() {
    let harness = harness();
    let script = r#"{"steps":[{"progress":1},{"ask":[{"key":"k","method":"roots/list"}]}]}"#;
    let (status, answers) = post(&harness, "/tools/talk", script).await;
    assert_eq!(status, StatusCode::OK);
    let failed =
        "missing_capability: The client cannot be asked here: it has no capability \"roots\"";
    assert_eq!(answers, json!({ "k": { "failed": failed } }));
    assert_eq!(
        *harness.backend.callers.lock().expect("not poisoned"),
        [json!({ "era": "none", "capabilities": {}, "progress": false })]
    );
    let (status, missing) = post(&harness, "/tools/missing_capability", "{}").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        missing["error"]["details"]["requiredCapabilities"],
        json!({ "sampling": {} })
    );
}
