use serde_json::value::RawValue;
use serde_json::{Value, json};
use tooldock_sessions::catalogue::ToolList;
use tooldock_sessions::testing::tool;

use super::*;
use crate::jsonrpc::Members;

const SCHEMA: &str = r#"{"type":"object","properties":{
    "region":{"type":"string","x-mcp-header":"Region"},
    "count":{"type":"integer","x-mcp-header":"Count"},
    "dry":{"type":"boolean","x-mcp-header":"Dry-Run"},
    "place":{"type":"object","properties":{"city":{"type":"string","x-mcp-header":"City"}}},
    "plain":{"type":"string"}}}"#;

type Fields<'a> = &'a [(&'a str, &'a str)];

/// Headers by their names, as an HTTP request has them.
fn headers(fields: Fields<'_>) -> McpHead {
    let mut map = http::HeaderMap::new();
    map.insert(
        "mcp-protocol-version",
        "2026-07-28".parse().expect("a value"),
    );
    for (name, value) in fields {
        let name: http::HeaderName = name.parse().expect("a name");
        let value = http::HeaderValue::from_bytes(value.as_bytes()).expect("a value");
        map.append(name, value);
    }
    McpHead::from_headers(&map)
}

fn fault_of(fields: Fields<'_>, method: &str, params: &Value) -> Option<String> {
    fault_of_text(fields, method, &params.to_string())
}

fn fault_of_text(fields: Fields<'_>, method: &str, text: &str) -> Option<String> {
    let mirror = tool(json!({
        "name": "mirror", "filename": "m.py",
        "inputSchema": serde_json::from_str::<Value>(SCHEMA).expect("JSON"),
    }));
    let declared = ToolList::declared(&[mirror]);
    let members = Members::of_params(text).expect("an object");
    let name = members.get(Key::Name).and_then(jsonrpc::string);
    let tool = name.and_then(|name| declared.tool(&name));
    fault(&headers(fields), tool, method, &members).map(Cow::into_owned)
}

#[test]
fn method_and_name_must_be_there_once_and_equal() {
    let call = json!({ "name": "echo" });
    let read = json!({ "uri": "test://ä" });
    let good = ("Mcp-Method", "tools/call");
    let rows: &[(Fields<'_>, &str, &Value, Option<&str>)] = &[
        (&[good, ("mcp-name", "echo")], "tools/call", &call, None),
        (&[good, ("Mcp-Name", "  echo\t")], "tools/call", &call, None),
        (
            &[("MCP-METHOD", " tools/list")],
            "tools/list",
            &json!({}),
            None,
        ),
        (
            &[("mcp-name", "echo")],
            "tools/call",
            &call,
            Some("Mcp-Method is missing"),
        ),
        (
            &[("mcp-method", "TOOLS/CALL")],
            "tools/call",
            &call,
            Some("Mcp-Method is not the method of the body"),
        ),
        (&[good], "tools/call", &call, Some("Mcp-Name is missing")),
        (
            &[good, ("mcp-name", "Echo")],
            "tools/call",
            &call,
            Some("Mcp-Name is not the name in the body"),
        ),
        (
            &[good, ("mcp-name", "echo"), ("mcp-name", "echo")],
            "tools/call",
            &call,
            Some("mcp-name is there more than once"),
        ),
        (
            &[good, good, ("mcp-name", "echo")],
            "tools/call",
            &call,
            Some("mcp-method is there more than once"),
        ),
        (
            &[
                ("mcp-method", "resources/read"),
                ("mcp-name", "=?base64?dGVzdDovL8Ok?="),
            ],
            "resources/read",
            &read,
            None,
        ),
        (
            &[("mcp-method", "resources/read"), ("mcp-name", "test://ä")],
            "resources/read",
            &read,
            Some("Mcp-Name is not the name in the body"),
        ),
        (
            &[("mcp-method", "prompts/get"), ("mcp-name", "echo")],
            "prompts/get",
            &call,
            None,
        ),
        // There is nothing to compare with, or the name is not a string: the method reports the fault.
        (
            &[("mcp-method", "prompts/get")],
            "prompts/get",
            &json!({ "name": 5 }),
            None,
        ),
        (
            &[("mcp-method", "tools/list"), ("mcp-name", "x")],
            "tools/list",
            &json!({ "name": "y" }),
            None,
        ),
    ];
    for (fields, method, params, expected) in rows {
        let found = fault_of(fields, method, params);
        assert_eq!(found.as_deref(), *expected, "{fields:?} {params}");
    }
}

#[test]
fn mirrored_parameters_must_equal_the_arguments() {
    let rows: &[(Value, Fields<'_>, Option<&str>)] = &[
        (
            json!({ "region": "eu" }),
            &[("mcp-param-region", "eu")],
            None,
        ),
        (
            json!({ "region": "eu" }),
            &[("MCP-PARAM-REGION", " eu ")],
            None,
        ),
        (
            json!({ "region": "Hello" }),
            &[("mcp-param-region", "=?base64?SGVsbG8=?=")],
            None,
        ),
        (
            json!({ "region": " a " }),
            &[("mcp-param-region", "=?base64?IGEg?=")],
            None,
        ),
        (
            json!({ "region": "" }),
            &[("mcp-param-region", "=?base64??=")],
            None,
        ),
        // An incomplete wrapper is plain text.
        (
            json!({ "region": "=?base64?SGVsbG8=" }),
            &[("mcp-param-region", "=?base64?SGVsbG8=")],
            None,
        ),
        (
            json!({ "region": "SGVsbG8=" }),
            &[("mcp-param-region", "SGVsbG8=")],
            None,
        ),
        (
            json!({ "region": "Hello" }),
            &[("mcp-param-region", "=?base64?SGVsbG8?=")],
            Some("Mcp-Param-Region is not encoded correctly"),
        ),
        (
            json!({ "region": "Hello" }),
            &[("mcp-param-region", "=?base64?SGVs!!!bG8=?=")],
            Some("Mcp-Param-Region is not encoded correctly"),
        ),
        (
            json!({ "region": "ä" }),
            &[("mcp-param-region", "ä")],
            Some("Mcp-Param-Region is not encoded correctly"),
        ),
        (
            json!({ "region": "eu" }),
            &[("mcp-param-region", "us")],
            Some("Mcp-Param-Region is not the value in the body"),
        ),
        (
            json!({ "region": "eu" }),
            &[],
            Some("Mcp-Param-Region is missing"),
        ),
        (
            json!({}),
            &[("mcp-param-region", "eu")],
            Some("Mcp-Param-Region has no value in the body"),
        ),
        (json!({ "region": null }), &[], None),
        (
            json!({ "region": null }),
            &[("mcp-param-region", "null")],
            Some("Mcp-Param-Region has no value in the body"),
        ),
        (
            json!({ "region": "eu" }),
            &[("mcp-param-region", "eu"), ("mcp-param-region", "eu")],
            Some("mcp-param-region is there more than once"),
        ),
        (json!({ "count": 42 }), &[("mcp-param-count", "42.0")], None),
        (
            json!({ "count": 42 }),
            &[("mcp-param-count", "=?base64?NDI=?=")],
            None,
        ),
        (
            json!({ "count": 42 }),
            &[("mcp-param-count", "43")],
            Some("Mcp-Param-Count is not the value in the body"),
        ),
        (
            json!({ "count": 42 }),
            &[("mcp-param-count", "")],
            Some("Mcp-Param-Count is not the value in the body"),
        ),
        (
            json!({ "dry": true }),
            &[("mcp-param-dry-run", "true")],
            None,
        ),
        (
            json!({ "dry": true }),
            &[("mcp-param-dry-run", "True")],
            Some("Mcp-Param-Dry-Run is not the value in the body"),
        ),
        (
            json!({ "dry": [1] }),
            &[("mcp-param-dry-run", "[1]")],
            Some("Mcp-Param-Dry-Run is not the value in the body"),
        ),
        (
            json!({ "place": { "city": "Bonn" } }),
            &[("mcp-param-city", "Bonn")],
            None,
        ),
        (
            json!({ "place": { "city": "Bonn" } }),
            &[("mcp-param-city", "Köln")],
            Some("Mcp-Param-City is not encoded correctly"),
        ),
        (
            json!({ "place": { "city": "Bonn" } }),
            &[],
            Some("Mcp-Param-City is missing"),
        ),
        (json!({ "place": "Bonn" }), &[], None),
        // This tool does not mirror the parameter.
        (
            json!({ "plain": "x" }),
            &[("mcp-param-plain", "y"), ("mcp-param-other", "z")],
            None,
        ),
    ];
    for (arguments, fields, expected) in rows {
        let mut all = vec![("mcp-method", "tools/call"), ("mcp-name", "mirror")];
        all.extend_from_slice(fields);
        let params = json!({ "name": "mirror", "arguments": arguments });
        let found = fault_of(&all, "tools/call", &params);
        assert_eq!(found.as_deref(), *expected, "{arguments} {fields:?}");
    }
    // Another tool mirrors no parameters.
    let params = json!({ "name": "echo", "arguments": { "region": "eu" } });
    let fields = [
        ("mcp-method", "tools/call"),
        ("mcp-name", "echo"),
        ("mcp-param-region", "us"),
    ];
    assert_eq!(fault_of(&fields, "tools/call", &params), None);
}

#[test]
fn a_number_no_double_can_hold_is_told_from_its_neighbour() {
    let params: &RawValue =
        serde_json::from_str(r#"{"name":"mirror","arguments":{"count":9007199254740993}}"#)
            .expect("JSON");
    let params: Value = serde_json::from_str(params.get()).expect("JSON");
    for (sent, fine) in [("9007199254740993", true), ("9007199254740992", false)] {
        let fields = [
            ("mcp-method", "tools/call"),
            ("mcp-name", "mirror"),
            ("mcp-param-count", sent),
        ];
        assert_eq!(
            fault_of(&fields, "tools/call", &params).is_none(),
            fine,
            "{sent}"
        );
    }
}

#[test]
fn the_version_header_is_the_version_of_the_body() {
    let head = headers(&[]);
    assert_eq!(version_fault(&head, "2026-07-28"), None);
    assert!(version_fault(&head, "v999.0.0").is_some());
}

#[test]
fn arguments_that_readers_read_differently_cannot_be_compared() {
    let fields = [
        ("mcp-method", "tools/call"),
        ("mcp-name", "mirror"),
        ("mcp-param-region", "eu"),
    ];
    for (arguments, header) in [
        (r#"{"region":"eu","region":"us"}"#, Some("Count")),
        (r#"{"region":"eu","\ud800":1}"#, Some("Count")),
        (
            r#"{"region":"eu","place":{"city":"a","city":"b"}}"#,
            Some("City"),
        ),
        (r#"{"region":"eu","plain":{"a":1,"a":2}}"#, None),
    ] {
        let params = format!(r#"{{"name":"mirror","arguments":{arguments}}}"#);
        let fault = fault_of_text(&fields, "tools/call", &params);
        let expected = header.map(|header| {
            format!(
                "Mcp-Param-{header} cannot be compared: the arguments have a key twice, or one that is no text"
            )
        });
        assert_eq!(fault, expected, "{arguments}");
    }
    // Without any header the fault is the same: the body has a value.
    let params = r#"{"name":"mirror","arguments":{"x":1,"x":2}}"#;
    assert!(fault_of_text(&fields[..2], "tools/call", params).is_some());
}
