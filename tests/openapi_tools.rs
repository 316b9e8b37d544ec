//! HTTP APIs whose operations are tools, called through a running gateway. The stub APIs answer from the documents that the
//! gateway reads.

use std::path::Path;

use serde_json::{Value, json};

use crate::credentials::{ADA, BOB, KEY, set};
use crate::support::api::{Api, sample};
use crate::support::backend::header;
use crate::support::gateway::Builder;
use crate::support::session::Session;
use crate::support::{Gateway, eventually, programs, sha256};

/// Files of ten documents, each a short imitation of the style of a well-known API.
const MAKERS: [&str; 10] = [
    "petstore.yaml",
    "forge.json",
    "payments.json",
    "chat.json",
    "telephony.yaml",
    "cluster.json",
    "models.yaml",
    "directory.yaml",
    "tracker.yaml",
    "weather.yaml",
];

fn document(file: &str) -> String {
    let path = programs::root().join("tests/fixtures/openapi").join(file);
    std::fs::read_to_string(path).unwrap()
}

fn with(apis: Value) -> Builder {
    Gateway::empty().config(json!({"upstreams": {"openapi": apis}}))
}

async fn petstore(api: &Api, keys: Value) -> Gateway {
    let url = api.serve("petstore", &document("petstore.yaml"));
    let mut petstore = json!({"spec": url});
    for (key, value) in keys.as_object().unwrap() {
        petstore[key] = value.clone();
    }
    with(json!({"petstore": petstore})).start().await
}

async fn tools(session: &Session) -> Vec<Value> {
    let list = session.request(1, "tools/list", json!({})).await;
    let tools = list["result"]["tools"].as_array();
    tools.unwrap_or_else(|| panic!("{list}")).clone()
}

fn names(tools: &[Value]) -> Vec<&str> {
    tools
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect()
}

async fn call(session: &Session, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    let answer = session.request(2, "tools/call", params).await;
    assert!(answer.get("result").is_some(), "{answer}");
    answer["result"].clone()
}

#[tokio::test]
async fn every_operation_of_ten_documents_is_called_as_its_document_says() {
    let api = Api::start().await;
    let mut apis = json!({});
    for file in MAKERS {
        let name = file.split('.').next().unwrap();
        apis[name] = json!({"spec": api.serve(name, &document(file))});
    }
    let gateway = with(apis.clone()).start().await;
    for name in apis.as_object().unwrap().keys() {
        let session = Session::start(&gateway, name, "2025-11-25").await;
        for tool in tools(&session).await {
            let own = tool["name"].as_str().unwrap();
            let safe = |name: &str| {
                let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
                !name.is_empty() && name.len() <= 64 && name.bytes().all(fits)
            };
            assert!(safe(own), "{name}: {own}");
            let input = &tool["inputSchema"];
            let arguments = sample(input, input, 4);
            for argument in arguments.as_object().unwrap().keys() {
                assert!(safe(argument), "{name}: {own}: {argument}");
            }
            let result = call(&session, own, arguments).await;
            assert_ne!(result["isError"], true, "{name}: {own}: {result}");
            if let Some(schema) = tool.get("outputSchema") {
                let validator = jsonschema::validator_for(schema).unwrap();
                let content = &result["structuredContent"];
                assert!(validator.is_valid(content), "{name}: {own}: {result}");
                assert_ne!(*content, json!({}), "{name}: {own}: {result}");
            }
        }
    }
    // Parameters in headers and cookies reach the API, too.
    for (line, name, value) in [
        ("GET /directory/v1.0/users?", "consistencylevel", "text"),
        ("GET /tracker/rest/api/3/search?", "cookie", "session=text"),
    ] {
        let (head, _) = api.requests(line).pop().unwrap();
        assert_eq!(header(&head, name).as_deref(), Some(value), "{head}");
    }
    let (all, called) = api.operations();
    assert!(all.len() >= 25);
    assert_eq!(all, called);
}

#[tokio::test]
async fn a_tool_of_an_api_is_called_over_mcp_and_rest() {
    let api = Api::start().await;
    let gateway = petstore(
        &api,
        json!({"include": ["tag:pet", "GET /pet/{petId}"], "exclude": ["find*"]}),
    )
    .await;
    let session = Session::start(&gateway, "petstore", "2025-06-18").await;
    let tools = tools(&session).await;
    assert_eq!(names(&tools), ["addPet", "getPetById"]);
    let hints = json!({
        "readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": true,
    });
    assert_eq!(tools[1]["annotations"], hints);
    assert!(
        tools[0]["inputSchema"]["properties"].get("id").is_none(),
        "{}",
        tools[0]
    );
    api.answer(
        "/petstore/v3/pet/7",
        200,
        r#"{"id":7,"name":"Rex","category":{"id":"x"}}"#,
    );
    let result = call(&session, "getPetById", json!({"petId": 7})).await;
    // A member of another type than documented is left out, since clients would refuse the result.
    let expected = json!({"id": 7, "name": "Rex", "category": {}});
    assert_eq!(result["structuredContent"], expected);
    let (status, answer) = gateway
        .call("petstore", "addPet", json!({"name": "Rex"}))
        .await;
    assert_eq!(status, 200, "{answer}");
    let (head, body) = api.requests("POST /petstore/v3/pet ").pop().unwrap();
    assert_eq!(body, r#"{"name":"Rex"}"#);
    assert_eq!(
        header(&head, "content-type").as_deref(),
        Some("application/json")
    );
    assert_eq!(header(&head, "mcp-protocol-version"), None);
}

#[tokio::test]
async fn errors_of_an_api_are_results_with_status_and_body() {
    let api = Api::start().await;
    let gateway = petstore(&api, json!({"limits": {"max_result": "2KiB"}})).await;
    let session = Session::start(&gateway, "petstore", "2025-11-25").await;
    let text = |result: Value| {
        assert_eq!(result["isError"], true, "{result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    };
    for (status, expected) in [
        (404, "HTTP 404 Not Found\n{\"message\":\"no such pet\"}"),
        (401, "HTTP 401 Unauthorized\n{\"message\":\"no such pet\"}"),
        (
            503,
            "HTTP 503 Service Unavailable\n{\"message\":\"no such pet\"}",
        ),
    ] {
        api.answer(
            "/petstore/v3/pet/8",
            status,
            "{\"message\":\"no such pet\"}",
        );
        let result = call(&session, "getPetById", json!({"petId": 8})).await;
        assert_eq!(text(result), expected);
    }
    let result = call(&session, "getPetById", json!({})).await;
    assert_eq!(text(result), "argument \"petId\" is required");
    api.answer(
        "/petstore/v3/pet/9",
        200,
        &format!("{:?}", "x".repeat(5_000)),
    );
    let result = call(&session, "getPetById", json!({"petId": 9})).await;
    assert_eq!(
        text(result),
        "The response is larger than 2048 bytes (limits.max_result): ask for less at once."
    );
    let params = json!({"name": "sellPet", "arguments": {}});
    let answer = session.request(3, "tools/call", params).await;
    assert!(answer.to_string().contains("sellPet"), "{answer}");
}

#[tokio::test]
async fn results_and_lists_are_held_to_the_limits_of_the_namespace() {
    let api = Api::start().await;
    let mut paths = json!({});
    let values: Vec<_> = (0..200).map(|it| format!("{it:0100}")).collect();
    for number in 0..60 {
        let parameter = json!({"name": "q", "in": "query", "schema": {"enum": values}});
        paths[format!("/p{number}")] = json!({"get": {"parameters": [parameter]}});
    }
    let large = json!({"openapi": "3.1.0", "servers": [{"url": "/large"}], "paths": paths});
    let gateway = Gateway::empty()
        .config(json!({
            "namespaces": {"defaults": {"max_result": "600KiB"}},
            "upstreams": {"openapi": {
                "petstore": {"spec": api.serve("petstore", &document("petstore.yaml"))},
                "large": {"spec": api.serve("large", &large.to_string())},
            }},
        }))
        .start()
        .await;
    // The 60 definitions have 1.2 MB together, so the list has several pages.
    let session = Session::start(&gateway, "large", "2025-11-25").await;
    let (mut count, mut params) = (0, json!({}));
    loop {
        let list = session.request(1, "tools/list", params).await;
        count += list["result"]["tools"].as_array().unwrap().len();
        match list["result"].get("nextCursor") {
            Some(cursor) => params = json!({"cursor": cursor}),
            None => break,
        }
    }
    assert_eq!(count, 60);
    let session = Session::start(&gateway, "petstore", "2025-11-25").await;
    for (size, said) in [
        (
            700_000,
            "The response is larger than 614400 bytes (limits.max_result): ask for less at once.",
        ),
        (
            400_000,
            " bytes as text and as structured content, and 614400 are allowed (limits.max_result)",
        ),
    ] {
        let pet = json!({"id": 9, "name": "x".repeat(size)}).to_string();
        api.answer("/petstore/v3/pet/9", 200, &pet);
        let result = call(&session, "getPetById", json!({"petId": 9})).await;
        assert_eq!(result["isError"], true);
        assert!(
            result["content"][0]["text"]
                .as_str()
                .unwrap()
                .contains(said)
        );
    }
}

#[tokio::test]
async fn lists_follow_changes_of_the_document() {
    let api = Api::start().await;
    let gateway = petstore(&api, json!({"refresh": "100ms"})).await;
    let session = Session::start(&gateway, "petstore", "2025-11-25").await;
    let mut stream = session.listen().await;
    let before = tools(&session).await;
    assert!(!names(&before).contains(&"buyPet"));
    eventually("an unchanged document is not sent again", || async {
        let asked = api.requests("GET /petstore/openapi ");
        let mut heads = asked.iter().map(|(head, _)| header(head, "if-none-match"));
        heads.any(|it| it.is_some()).then_some(())
    })
    .await;
    // After a document that cannot be used, the tools stay as before.
    api.serve("petstore", "{ no: document }");
    eventually("the operator reads why", || async {
        gateway
            .log()
            .contains("petstore: the document is no OpenAPI document")
            .then_some(())
    })
    .await;
    assert_eq!(tools(&session).await, before);
    api.serve(
        "petstore",
        &document("petstore.yaml").replace("addPet", "buyPet"),
    );
    let message = stream.message().await;
    assert_eq!(
        message["method"], "notifications/tools/list_changed",
        "{message}"
    );
    eventually("the list has the new tool", || async {
        names(&tools(&session).await)
            .contains(&"buyPet")
            .then_some(())
    })
    .await;
    let result = call(&session, "buyPet", json!({"name": "Rex"})).await;
    assert_ne!(result["isError"], true, "{result}");
}

#[tokio::test]
async fn a_document_that_cannot_be_used_costs_its_namespace_alone() {
    let api = Api::start().await;
    let folder = tempfile::tempdir().unwrap();
    let large = folder.path().join("large.json");
    std::fs::File::create(&large)
        .unwrap()
        .set_len(50_000_000)
        .unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let private = document("petstore.yaml").replace("/petstore/v3", "http://10.0.0.7/v3");
    let foreign = document("petstore.yaml").replace("/petstore/v3", "https://api.example/v3");
    let base = api.url("/petstore/v3");
    let apis = json!({
        "petstore": {"spec": file("petstore.yaml", &document("petstore.yaml")), "base_url": base},
        "large": {"spec": large, "base_url": base},
        "missing": {"spec": api.url("/nowhere")},
        "private": {"spec": file("private.yaml", &private)},
        "foreign": {"spec": api.serve("foreign", &foreign)},
        "hidden": {"spec": "http://localhost:1/openapi.json"},
    });
    let gateway = with(apis).start().await;
    api.serve("petstore", &document("petstore.yaml"));
    let session = Session::start(&gateway, "petstore", "2025-11-25").await;
    let result = call(&session, "addPet", json!({"name": "Rex"})).await;
    assert_ne!(result["isError"], true, "{result}");
    for (name, said) in [
        ("large", "larger than"),
        (
            "missing",
            "the document was not found: its server answered HTTP 404",
        ),
        (
            "private",
            "the document names the private address 10.0.0.7: write base_url, or allow_private: true",
        ),
        (
            "foreign",
            "the document names the server https://api.example/v3, which is not where the document is",
        ),
        ("hidden", "which is not public"),
    ] {
        let (status, answer) = gateway.call(name, "addPet", json!({"name": "Rex"})).await;
        assert!(status >= 400, "{name}: {answer}");
        eventually("the operator reads why", || async {
            let log = gateway.log();
            let line = log
                .lines()
                .find(|it| it.contains(name) && it.contains(said));
            line.map(str::to_owned)
                .or_else(|| answer.to_string().contains(said).then(String::new))
        })
        .await;
    }
}

#[tokio::test]
async fn limits_and_aggregates_apply_to_tools_of_an_api() {
    let api = Api::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tools.toml");
    let members =
        "active_toolsets = [\"*\"]\n\n[[servers]]\nnamespace = \"shop\"\nfrom = \"petstore\"\n";
    std::fs::write(&file, members).unwrap();
    let gateway = Gateway::empty()
        .config(json!({
            "namespaces": {"defaults": {"coerce_arguments": true}},
            "upstreams": {"openapi": {"petstore": {
                "spec": api.serve("petstore", &document("petstore.yaml")), "limits": {"tools_deny": ["delete*"]},
            }}},
            "toolman": {"all": {"config": file}},
        }))
        .start()
        .await;
    let session = Session::start(&gateway, "petstore", "2025-11-25").await;
    assert!(!names(&tools(&session).await).contains(&"deletePet"));
    // The schema requires a number: a string with a number is converted.
    let result = call(&session, "getPetById", json!({"petId": "7"})).await;
    assert_ne!(result["isError"], true, "{result}");
    let all = Session::start(&gateway, "all", "2025-11-25").await;
    let listed = tools(&all).await;
    let listed = names(&listed);
    assert!(
        listed.contains(&"shop_getPetById") && !listed.contains(&"shop_deletePet"),
        "{listed:?}"
    );
    let result = call(&all, "shop_getPetById", json!({"petId": 8})).await;
    assert_eq!(result["structuredContent"]["name"], "doggie", "{result}");
    assert_eq!(api.requests("GET /petstore/v3/pet/8 ").len(), 1);
}

#[tokio::test]
async fn each_principal_calls_an_api_with_its_own_credentials() {
    let (api, elsewhere) = (Api::start().await, Api::start().await);
    api.serve("petstore", &document("petstore.yaml"));
    let token = |name: &str, token: &str| json!({"name": name, "sha256": sha256(token), "namespaces": ["*"]});
    let keys = |spec: String| {
        json!({
            "spec": spec, "base_url": api.url("/petstore/v3"),
            "credentials": "Bearer ${TOKEN}", "personal": ["TOKEN"], "headers": {"set": {"api_key": "shared-canary"}},
        })
    };
    let apis = json!({
        "petstore": keys(elsewhere.serve("petstore", &document("petstore.yaml"))),
        "own": keys(api.url("/petstore/openapi")),
    });
    let tokens = [token("ada", ADA), token("bob", BOB)];
    let builder = Gateway::empty()
        .config(json!({"admission": {"tokens": tokens}, "upstreams": {"openapi": apis}}))
        .env("SECRETS_KEY", KEY);
    let prepare = |data: &Path| {
        set(data, "principal:ada", "canary-of-ada");
        set(data, "principal:bob", "canary-of-bob");
    };
    let gateway = builder.start_with(prepare).await;
    for (token, value) in [
        (ADA, "canary-of-ada"),
        (BOB, "canary-of-bob"),
        (ADA, "canary-of-ada"),
    ] {
        let session = Session::start_as(&gateway, "petstore", "2025-11-25", token, json!({})).await;
        // A header that the configuration sets is no argument.
        let all = tools(&session).await;
        let delete = all.iter().find(|it| it["name"] == "deletePet").unwrap();
        assert!(
            delete["inputSchema"]["properties"].get("api_key").is_none(),
            "{delete}"
        );
        let result = call(&session, "deletePet", json!({"petId": 1})).await;
        assert_ne!(result["isError"], true, "{result}");
        let (head, _) = api.requests("DELETE ").pop().unwrap();
        assert_eq!(
            header(&head, "authorization"),
            Some(format!("Bearer {value}"))
        );
        assert_eq!(header(&head, "api_key").as_deref(), Some("shared-canary"));
    }
    // All principals share a document, so it is requested without the credentials of a principal.
    let session = Session::start_as(&gateway, "own", "2025-11-25", ADA, json!({})).await;
    assert!(!tools(&session).await.is_empty());
    let (documents, own) = (
        elsewhere.requests("GET "),
        api.requests("GET /petstore/openapi "),
    );
    assert!(!documents.is_empty() && !own.is_empty());
    for (head, _) in documents.into_iter().chain(own) {
        assert!(!head.contains("canary"), "{head}");
    }
    assert!(!gateway.log().contains("canary"), "{}", gateway.log());
}
