//! Tests of whole documents.

use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

use crate::{Api, ApiResponse, ApiSettings, Document, NameSource};

fn settings() -> ApiSettings {
    ApiSettings {
        include: vec!["*".to_owned()],
        exclude: Vec::new(),
        names: NameSource::OperationId,
        headers: vec!["x-key".to_owned()],
    }
}

fn api(paths: Value) -> Api {
    let node = json!({ "type": "object", "properties": { "next": { "$ref": "#/components/schemas/Node" } } });
    let document = json!({
        "openapi": "3.1.0", "paths": paths, "components": { "schemas": { "Node": node } },
    });
    let document = Document::parse(document.to_string().as_bytes()).expect("a document");
    Api::read(document, &settings()).expect("an operation")
}

fn only(method: &str, path: &str, operation: Value) -> Api {
    api(json!({ path: { method: operation } }))
}

fn request(api: &Api, arguments: Value) -> Result<crate::ApiRequest, String> {
    let arguments = arguments.as_object().expect("an object");
    let built = api.operations()[0].request("/v1", arguments);
    built.map_err(|it| it.to_string())
}

#[test]
fn parameters_of_every_place_are_sent() {
    let api = only(
        "get",
        "/pets/{id}",
        json!({ "operationId": "getPet", "parameters": [
        { "name": "id", "in": "path", "required": true, "schema": { "type": "integer" } },
        { "name": "filter[tag]", "in": "query", "schema": { "type": "string" } },
        { "name": "id", "in": "query", "schema": { "type": "string" } },
        { "name": "X-Trace", "in": "header", "schema": { "type": "string" } },
        { "name": "X-Key", "in": "header", "required": true, "schema": { "type": "string" } },
        { "name": "session", "in": "cookie", "schema": { "type": "string" } },
    ] }),
    );
    let built = request(
        &api,
        json!({
            "id": 7, "filter_tag": "a b", "id_2": "x", "X-Trace": "t", "session": "a;b",
        }),
    );
    let built = built.expect("a request");
    assert_eq!(built.target, "/v1/pets/7?filter%5Btag%5D=a%20b&id=x");
    assert_eq!(built.headers["x-trace"], "t");
    assert_eq!(built.headers["cookie"], "session=a%3Bb");
    assert!(built.body.is_empty());
    let schema = &api.operations()[0].tool()["inputSchema"];
    assert_eq!(schema["required"], json!(["id"]));
    assert!(schema["properties"].get("X-Key").is_none());
}

#[test]
fn parameters_of_a_path_need_no_description() {
    let api = only(
        "get",
        "/a b/{id}/{more}",
        json!({ "parameters": [
        { "name": "id", "in": "path", "schema": { "type": "integer" } },
    ] }),
    );
    let built = request(&api, json!({ "id": 1, "more": "x{id}" })).expect("a request");
    assert_eq!(built.target, "/v1/a%20b/1/x%7Bid%7D");
    let input = &api.operations()[0].tool()["inputSchema"];
    assert_eq!(input["properties"]["more"], json!({ "type": "string" }));
}

#[test]
fn arguments_that_make_no_request_are_named() {
    let api = only(
        "get",
        "/pets/{id}",
        json!({ "parameters": [
        { "name": "id", "in": "path", "required": true, "schema": { "type": "string" } },
        { "name": "X-A", "in": "header", "schema": { "type": "string" } },
    ] }),
    );
    for (arguments, said) in [
        (json!({}), "argument \"id\" is required"),
        (
            json!({ "id": "1", "more": 1 }),
            "there is no argument \"more\"",
        ),
        (
            json!({ "id": "" }),
            "argument \"id\" must not be empty, since it is a part of the path",
        ),
        (
            json!({ "id": ".." }),
            "argument \"id\" must not have \".\" or \"..\" between slashes, which would lead to another path",
        ),
        (
            json!({ "id": "a/../b" }),
            "argument \"id\" must not have \".\" or \"..\" between slashes, which would lead to another path",
        ),
        (
            json!({ "id": "1", "X-A": "a\r\nb: c" }),
            "argument \"X-A\" has a character that headers do not have",
        ),
    ] {
        assert_eq!(request(&api, arguments).expect_err("no request"), said);
    }
    let built = request(&api, json!({ "id": "a/b..c" })).expect("a request");
    assert_eq!(built.target, "/v1/pets/a%2Fb..c");
}

#[test]
fn members_of_a_body_are_arguments_unless_a_name_collides() {
    let body = |name: &str| {
        json!({
            "operationId": "add",
            "parameters": [{ "name": "id", "in": "query", "schema": { "type": "string" } }],
            "requestBody": { "required": true, "content": { "application/json": { "schema": {
                "type": "object", "properties": { name: { "type": "string" } }, "required": [name],
            } } } },
        })
    };
    let flat = only("post", "/pets", body("name"));
    let built = request(&flat, json!({ "name": "a", "id": "1" })).expect("a request");
    assert_eq!(
        (&*built.target, &*built.body),
        ("/v1/pets?id=1", &br#"{"name":"a"}"#[..])
    );
    assert_eq!(built.headers["content-type"], "application/json");
    let whole = only("post", "/pets", body("id"));
    let built = request(&whole, json!({ "body": { "id": "a" } })).expect("a request");
    assert_eq!(&*built.body, br#"{"id":"a"}"#);
    assert_eq!(
        request(&whole, json!({})).expect_err("no body"),
        "argument \"body\" is required"
    );
}

#[test]
fn forms_files_and_texts_are_written_by_their_media_type() {
    let of = |media_type: &str, schema: Value, arguments: Value| {
        let media = json!({ "schema": schema, "encoding": { "meta": { "style": "deepObject", "explode": true } } });
        let content = json!({ media_type: media });
        let api = only(
            "post",
            "/a",
            json!({ "requestBody": { "required": true, "content": content } }),
        );
        let built = request(&api, arguments).expect(media_type);
        String::from_utf8(built.body).expect("text")
    };
    let form = json!({ "type": "object", "properties": { "meta": { "type": "object" }, "items": { "type": "array" }, "x": {} } });
    let arguments = json!({ "meta": { "a": 1 }, "items": ["b", "c"], "x": "1 2" });
    assert_eq!(
        of("application/x-www-form-urlencoded", form, arguments),
        "items=b&items=c&meta[a]=1&x=1%202"
    );
    let parts = json!({ "type": "object", "properties": { "file": { "type": "string", "format": "binary" }, "note": {} } });
    let written = of(
        "multipart/form-data",
        parts,
        json!({ "file": "aGk=", "note": "n" }),
    );
    assert!(
        written
            .contains("filename=\"file\"\r\nContent-Type: application/octet-stream\r\n\r\nhi\r\n"),
        "{written}"
    );
    assert!(written.contains("name=\"note\"\r\n\r\nn\r\n"), "{written}");
    assert_eq!(
        of(
            "text/csv",
            json!({ "type": "string" }),
            json!({ "body": "a,b" })
        ),
        "a,b"
    );
    assert_eq!(
        of("application/pdf", json!({}), json!({ "body": "aGk=" })),
        "hi"
    );
}

#[test]
fn hints_follow_the_method() {
    for (method, reads, destroys, repeats) in [
        ("get", true, false, true),
        ("put", false, true, true),
        ("delete", false, true, true),
        ("post", false, true, false),
        ("patch", false, true, false),
    ] {
        let api = only(method, "/a", json!({}));
        let expected = json!({
            "readOnlyHint": reads, "destructiveHint": destroys, "idempotentHint": repeats, "openWorldHint": true,
        });
        assert_eq!(
            api.operations()[0].tool()["annotations"],
            expected,
            "{method}"
        );
    }
}

#[test]
fn a_description_has_examples_and_pages() {
    let api = only(
        "get",
        "/a",
        json!({ "summary": "List", "description": "All of them.", "deprecated": true, "parameters": [
        { "name": "page", "in": "query", "schema": { "type": "integer" }, "example": 2 },
        { "name": "q", "in": "query", "schema": {}, "examples": { "one": { "value": "cat" } } },
    ] }),
    );
    let expected = "Deprecated.\nList.\nAll of them.\nReturns a page of the results, selected by `page`.\n\
        Example arguments: {\"page\":2,\"q\":\"cat\"}";
    assert_eq!(api.operations()[0].tool()["description"], expected);
}

fn result(api: &Api, status: u16, headers: &[(&'static str, &'static str)], body: &[u8]) -> Value {
    let headers = headers.iter().map(|(name, value)| {
        (
            name.parse().expect("a name"),
            HeaderValue::from_static(value),
        )
    });
    let headers: HeaderMap = headers.collect();
    let status = StatusCode::from_u16(status).expect("a status");
    api.operations()[0].result(&ApiResponse {
        status,
        headers: &headers,
        body,
    })
}

#[test]
fn a_response_is_structured_content_that_fits_the_output_schema() {
    let schema = json!({ "type": "array", "items": { "$ref": "#/components/schemas/Node" } });
    let api = only(
        "get",
        "/a",
        json!({
            "parameters": [{ "name": "page", "in": "query", "schema": {} }],
            "responses": { "200": { "content": { "application/json": { "schema": schema } } } },
        }),
    );
    assert_eq!(api.operations()[0].tool()["outputSchema"]["type"], "object");
    let link = "<https://a.example/a?page=1>; rel=\"prev\", <https://a.example/a?page=3&q=1>; rel=\"next\"";
    let found = result(
        &api,
        200,
        &[("content-type", "application/json"), ("link", link)],
        b"[{\"next\":null}]",
    );
    let expected = json!({
        "content": [
            { "type": "text", "text": "[{\"next\":null}]" },
            { "type": "text", "text": "There are more results: call this tool again with page=\"3\"." },
        ],
        "isError": false,
        "structuredContent": { "result": [{ "next": null }] },
    });
    assert_eq!(found, expected);
    let empty = result(&api, 204, &[], b"");
    assert_eq!(empty["structuredContent"], json!({}));
    assert_eq!(empty["content"][0]["text"], "HTTP 204 No Content");
}

#[test]
fn a_cursor_in_the_body_names_the_next_call() {
    let api = only(
        "get",
        "/a",
        json!({ "parameters": [{ "name": "starting_after", "in": "query", "schema": {} }, { "name": "cursor", "in": "query" }] }),
    );
    let body = br#"{"data":[],"response_metadata":{"next_cursor":"abc"}}"#;
    let found = result(&api, 200, &[("content-type", "application/json")], body);
    assert_eq!(
        found["content"][1]["text"],
        "There are more results: call this tool again with cursor=\"abc\"."
    );
}

#[test]
fn errors_and_redirects_of_the_api_are_failures_with_status_and_body() {
    let api = only("get", "/a", json!({}));
    let found = result(
        &api,
        429,
        &[("retry-after", "5")],
        b" {\"error\":\"slow down\"} ",
    );
    let text = "HTTP 429 Too Many Requests\nretry-after: 5\n{\"error\":\"slow down\"}";
    assert_eq!(
        found,
        json!({ "content": [{ "type": "text", "text": text }], "isError": true })
    );
    let found = result(&api, 302, &[("location", "https://b.example/")], b"");
    assert_eq!(
        found["content"][0]["text"],
        "HTTP 302 Found\nlocation: https://b.example/"
    );
    let long = result(&api, 500, &[], &vec![b'x'; 100_000]);
    assert!(
        long["content"][0]["text"]
            .as_str()
            .is_some_and(|it| it.len() < 10_000)
    );
}

#[test]
fn images_and_bytes_keep_their_type() {
    let api = only("get", "/a", json!({ "operationId": "pic" }));
    let found = result(&api, 200, &[("content-type", "image/png")], b"hi");
    assert_eq!(
        found["content"][0],
        json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" })
    );
    let found = result(&api, 200, &[("content-type", "application/zip")], &[0xff]);
    let blob = json!({ "uri": "response:pic", "mimeType": "application/zip", "blob": "/w==" });
    assert_eq!(
        found["content"][0],
        json!({ "type": "resource", "resource": blob })
    );
}

#[test]
fn an_operation_that_cannot_be_read_leaves_the_others() {
    let api = api(json!({
        "/a": { "get": { "operationId": "a", "parameters": [
            { "name": "x", "in": "query", "schema": { "$ref": "other.json" } },
        ] } },
        "/b": { "get": { "operationId": "b" } },
    }));
    let names: Vec<_> = api
        .operations()
        .iter()
        .map(crate::Operation::name)
        .collect();
    assert_eq!(names, ["b"]);
    assert_eq!(
        api.issues(),
        ["GET /a refers to another document (\"other.json\"); it is no tool"]
    );
}

#[test]
fn a_document_of_version_2_is_converted() {
    let document = json!({
        "swagger": "2.0", "host": "api.example", "basePath": "/v2", "schemes": ["https"],
        "consumes": ["application/json"], "produces": ["application/json"],
        "parameters": { "page": { "name": "page", "in": "query", "type": "integer" } },
        "definitions": { "Pet": { "type": "object", "properties": { "name": { "type": "string" } } } },
        "paths": { "/pets/{id}": {
            "parameters": [{ "name": "id", "in": "path", "required": true, "type": "string" }],
            "put": {
                "operationId": "putPet",
                "parameters": [
                    { "$ref": "#/parameters/page" },
                    { "name": "tags", "in": "query", "type": "array", "items": { "type": "string" }, "collectionFormat": "csv" },
                    { "name": "pet", "in": "body", "required": true, "schema": { "$ref": "#/definitions/Pet" } },
                ],
                "responses": { "200": { "description": "", "schema": { "$ref": "#/definitions/Pet" } } },
            },
            "post": { "operationId": "upload", "parameters": [
                { "name": "file", "in": "formData", "type": "file", "required": true },
            ] },
        } },
    });
    let document = Document::parse(document.to_string().as_bytes()).expect("a document");
    assert_eq!(
        document.server_url().as_deref(),
        Some("https://api.example/v2")
    );
    let api = Api::read(document, &settings()).expect("operations");
    let put = api.operation("putPet").expect("an operation");
    let arguments = json!({ "id": "1", "page": 2, "tags": ["a", "b"], "name": "Rex" });
    let built = put
        .request("/v2", arguments.as_object().expect("an object"))
        .expect("a request");
    assert_eq!(built.target, "/v2/pets/1?page=2&tags=a,b");
    assert_eq!(built.body, br#"{"name":"Rex"}"#);
    assert!(put.tool().get("outputSchema").is_some());
    let upload = api.operation("upload").expect("an operation");
    let arguments = json!({ "id": "1", "file": "aGk=" });
    let built = upload
        .request("", arguments.as_object().expect("an object"))
        .expect("a request");
    assert!(
        built.headers["content-type"]
            .to_str()
            .is_ok_and(|it| it.starts_with("multipart/form-data"))
    );
}

#[test]
fn an_object_is_spread_only_where_the_document_has_an_object() {
    let with = |schema: Value| {
        let parameter = json!({ "name": "q", "in": "query", "schema": schema });
        only("get", "/a", json!({ "parameters": [parameter] }))
    };
    let injected = json!({ "q": { "admin": "true" } });
    for schema in [json!({ "type": "string" }), json!({})] {
        let error = request(&with(schema), injected.clone()).expect_err("no request");
        assert_eq!(error, "argument \"q\" must not be an object");
    }
    let node = json!({ "$ref": "#/components/schemas/Node" });
    for schema in [
        json!({ "type": ["object", "null"] }),
        json!({ "allOf": [node] }),
    ] {
        let built = request(&with(schema), injected.clone()).expect("a request");
        assert_eq!(built.target, "/v1/a?admin=true");
    }
    let media = json!({
        "schema": { "type": "object", "properties": { "x": { "type": "string" } } },
        "encoding": { "x": { "style": "form", "explode": true } },
    });
    let content = json!({ "application/x-www-form-urlencoded": media });
    let form = only(
        "post",
        "/a",
        json!({ "requestBody": { "content": content } }),
    );
    let error = request(&form, json!({ "x": { "admin": "true" } })).expect_err("no request");
    assert_eq!(error, "the field \"x\" must not be an object");
}

#[test]
fn arguments_that_grow_while_they_are_written_are_refused() {
    let deep = json!({ "name": "f", "in": "query", "style": "deepObject", "schema": { "type": "object" } });
    let api = only("get", "/a", json!({ "parameters": [deep] }));
    let filter = json!({ "k".repeat(2_000_000): vec![1; 200_000] });
    let error = request(&api, json!({ "f": filter })).expect_err("no request");
    assert_eq!(error, "argument \"f\" is too large");
    let content = json!({ "multipart/form-data": { "schema": { "type": "object", "additionalProperties": true } } });
    let api = only(
        "post",
        "/a",
        json!({ "requestBody": { "content": content } }),
    );
    let body = json!({ "k".repeat(1_000_000): vec![1; 200_000] });
    let error = request(&api, json!({ "body": body })).expect_err("no request");
    assert_eq!(error, "the body is too large");
    let path = "/{a}".repeat(400);
    let error = request(
        &only("get", &path, json!({})),
        json!({ "a": "x".repeat(60_000) }),
    );
    assert_eq!(error.expect_err("no request"), "the path is too large");
}

#[test]
fn a_finished_path_with_a_dot_segment_is_refused() {
    let api = only("get", "/x/{a}{b}/y", json!({}));
    let dot = request(&api, json!({ "a": ".", "b": "z" })).expect_err("no request");
    assert!(dot.starts_with("argument \"a\" must not have"), "{dot}");
    let error = request(&only("get", "/x/.{a}", json!({})), json!({ "a": ";b" }));
    let error = error.expect_err("no request");
    assert!(error.starts_with("the path must not have"), "{error}");
}

#[test]
fn headers_and_cookies_that_the_request_has_otherwise_are_no_arguments() {
    let operation = json!({ "parameters": [
        { "name": "X-KEY", "in": "header" },
        { "name": "traceparent", "in": "header" },
        { "name": "Host", "in": "header" },
        { "name": "X-Free", "in": "header" },
        { "name": "session", "in": "cookie" },
    ] });
    let document =
        json!({ "openapi": "3.1.0", "paths": { "/a": { "get": operation } } }).to_string();
    let arguments = |headers: &[&str]| {
        let document = Document::parse(document.as_bytes()).expect("a document");
        let headers = headers.iter().map(|it| (*it).to_owned()).collect();
        let api = Api::read(
            document,
            &ApiSettings {
                headers,
                ..settings()
            },
        )
        .expect("an operation");
        let properties = api.operations()[0].tool()["inputSchema"]["properties"].clone();
        let names = properties.as_object().expect("properties").keys().cloned();
        names.collect::<Vec<_>>()
    };
    assert_eq!(arguments(&["x-key"]), ["X-Free", "session"]);
    assert_eq!(arguments(&["cookie"]), ["X-Free", "X-KEY"]);
}

#[test]
fn many_operations_of_a_name_are_read_up_to_the_limits() {
    let mut paths = Map::new();
    for number in 0..6_000 {
        paths.insert(
            format!("/p{number:05}"),
            json!({ "get": { "operationId": "same" } }),
        );
    }
    let api = api(paths.into());
    assert_eq!(api.operations().len(), 1_000);
    assert_eq!(api.operations()[999].name(), "same_1000");
    let issues = api.issues();
    assert!(
        issues[0].starts_with("operations from GET /p05000 on are not read"),
        "{issues:?}"
    );
    assert!(
        issues[1].starts_with("4000 operations beyond the first 1000"),
        "{issues:?}"
    );
}

#[test]
fn values_that_many_operations_refer_to_stay_within_the_budget() {
    let values: Vec<_> = (0..5_000).map(|it| format!("value-{it:0100}")).collect();
    let mut paths = Map::new();
    for number in 0..3_000 {
        let parameter = json!({ "name": "x", "in": "query", "schema": { "$ref": "#/components/schemas/Large" } });
        paths.insert(
            format!("/p{number}"),
            json!({ "get": { "parameters": [parameter] } }),
        );
    }
    paths.insert(
        "/small".into(),
        json!({ "get": { "operationId": "small" } }),
    );
    let schemas = json!({ "Large": { "enum": values } });
    let document =
        json!({ "openapi": "3.1.0", "paths": paths, "components": { "schemas": schemas } });
    let document = Document::parse(document.to_string().as_bytes()).expect("a document");
    let found = Api::read(document, &settings());
    let left_out = match &found {
        Ok(api) => api.issues().len(),
        Err(_) => 3_001,
    };
    assert!(left_out >= 3_000, "{left_out}");
}

#[test]
fn paths_that_may_leave_the_base_path_are_no_tools() {
    let api = api(json!({
        "/a/../admin": { "get": {} }, "/a/%2E%2e/admin": { "get": {} }, "//b": { "get": {} },
        "/c/": { "get": { "operationId": "c" } },
    }));
    assert_eq!(api.operations().len(), 1);
    assert_eq!(
        api.issues(),
        [
            "//b has an empty segment; it is no tool",
            "/a/%2E%2e/admin has a segment \".\" or \"..\"; it is no tool",
            "/a/../admin has a segment \".\" or \"..\"; it is no tool",
        ]
    );
}

#[test]
fn invalid_keywords_of_schemas_are_left_out() {
    let schema = json!({
        "type": ["any", "string", 5], "properties": null, "required": "x", "$ref": {}, "enum": "a", "minLength": -1,
        "pattern": 1, "allOf": [], "items": null, "description": 7, "maximum": "9", "default": 1, "unknown": [1],
    });
    let parameter = json!({ "name": "x", "in": "query", "schema": schema });
    let api = only("get", "/a", json!({ "parameters": [parameter] }));
    let found = &api.operations()[0].tool()["inputSchema"]["properties"]["x"];
    assert_eq!(
        *found,
        json!({ "type": ["string"], "default": 1, "unknown": [1] })
    );
}

#[test]
fn null_stands_for_an_argument_that_is_not_there() {
    let schema = json!({ "type": "object", "required": ["name"], "properties": {
        "name": { "type": "string" }, "tag": { "type": "string" }, "owner": { "type": ["string", "null"] },
    } });
    let content = json!({ "application/json": { "schema": schema } });
    let api = only(
        "post",
        "/a",
        json!({ "requestBody": { "required": true, "content": content } }),
    );
    let built =
        request(&api, json!({ "name": "a", "tag": null, "owner": null })).expect("a request");
    assert_eq!(built.body, br#"{"name":"a","owner":null}"#);
    for arguments in [json!({}), json!({ "name": null })] {
        let error = request(&api, arguments).expect_err("no request");
        assert_eq!(error, "argument \"name\" is required");
    }
    let content = json!({ "application/json": { "schema": { "type": "array" } } });
    let api = only(
        "post",
        "/a",
        json!({ "requestBody": { "content": content } }),
    );
    let built = request(&api, json!({ "body": null })).expect("a request");
    assert!(built.body.is_empty() && !built.headers.contains_key("content-type"));
}

#[test]
fn files_and_lists_of_version_2_keep_their_form() {
    let document = json!({ "swagger": "2.0", "paths": { "/a": {
        "post": { "operationId": "upload", "parameters": [
            { "name": "file", "in": "formData", "type": "file" },
        ] },
        "put": { "operationId": "tags", "consumes": ["application/x-www-form-urlencoded"], "parameters": [
            { "name": "csv", "in": "formData", "type": "array", "items": { "type": "string" } },
            { "name": "multi", "in": "formData", "type": "array", "items": {}, "collectionFormat": "multi" },
        ] },
    } } });
    let document = Document::parse(document.to_string().as_bytes()).expect("a document");
    let api = Api::read(document, &settings()).expect("operations");
    let body = |name: &str, arguments: Value| {
        let operation = api.operation(name).expect("an operation");
        let built = operation.request("", arguments.as_object().expect("an object"));
        String::from_utf8(built.expect("a request").body).expect("text")
    };
    let list = json!(["a", "b"]);
    assert_eq!(
        body("tags", json!({ "csv": list, "multi": list })),
        "csv=a,b&multi=a&multi=b"
    );
    let file =
        &api.operation("upload").expect("an operation").tool()["inputSchema"]["properties"]["file"];
    assert_eq!(file["contentEncoding"], "base64");
    assert!(body("upload", json!({ "file": "aGk=" })).contains("\r\n\r\nhi\r\n"));
}

#[test]
fn files_are_base64_also_where_a_schema_is_elsewhere() {
    let schema = json!({ "type": "object", "additionalProperties": true, "properties": {
        "id": { "$ref": "#/components/schemas/File" },
    } });
    let document = json!({ "openapi": "3.1.0",
        "paths": { "/a": { "post": { "requestBody": { "content": { "multipart/form-data": { "schema": schema } } } } } },
        "components": { "schemas": { "File": { "type": "string", "format": "binary" } } },
    });
    let document = Document::parse(document.to_string().as_bytes()).expect("a document");
    let api = Api::read(document, &settings()).expect("an operation");
    let input = &api.operations()[0].tool()["inputSchema"]["properties"]["body"];
    assert_eq!(input["properties"]["id"]["contentEncoding"], "base64");
}

#[test]
fn the_url_of_a_server_stays_short_whatever_its_variables_are() {
    let variable = |default: &str| json!({ "default": default });
    let url = |url: &str, variables: Value| {
        let document =
            json!({ "openapi": "3.1.0", "servers": [{ "url": url, "variables": variables }] });
        let document = Document::parse(document.to_string().as_bytes()).expect("a document");
        document.server_url().expect("a server")
    };
    let plain = url(
        "https://{host}/v1",
        json!({ "host": variable("a.example") }),
    );
    assert_eq!(plain, "https://a.example/v1");
    let many = url(
        &"{a}".repeat(100_000),
        json!({ "a": variable(&"x".repeat(1_000_000)) }),
    );
    assert_eq!(many.chars().count(), 2_000);
    let names: Vec<String> = (0..60).map(|number| format!("v{number:02}")).collect();
    let doubling = names.windows(2).map(|pair| {
        let next = format!("{{{}}}", pair[1]);
        (pair[0].clone(), variable(&next.repeat(2)))
    });
    let doubled = url("{v00}", Value::Object(doubling.collect()));
    assert!(doubled.chars().count() <= 2_000, "{}", doubled.len());
}

#[test]
fn an_operation_whose_parameter_is_in_another_file_is_left_out_with_a_sentence() {
    let document = json!({ "openapi": "3.1.0", "paths": { "/a": {
        "get": { "operationId": "known" },
        "post": { "operationId": "unknown", "parameters": [{ "$ref": "other.yaml#/p" }] },
    } } });
    let document = Document::parse(document.to_string().as_bytes()).expect("a document");
    let api = Api::read(document, &settings()).expect("an operation");
    assert!(api.operation("known").is_some() && api.operation("unknown").is_none());
    let issues = api.issues();
    assert!(issues[0].contains("outside of the document"), "{issues:?}");
}
