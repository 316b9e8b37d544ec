//! The table of tools, and how arguments are read.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;

#[test]
fn every_tool_tells_its_next_step_and_takes_nothing_it_does_not_know() {
    let namespace = Management::namespace_within(Duration::from_secs(600));
    let mut names = BTreeSet::new();
    for tool in &namespace.tools {
        assert!(
            names.insert(Arc::clone(&tool.name)),
            "{} is there twice",
            tool.name
        );
        let input: Value = serde_json::from_str(tool.input_schema.get()).expect("JSON");
        assert_eq!(input["type"], "object", "{}", tool.name);
        assert_eq!(input["additionalProperties"], false, "{}", tool.name);
        assert!(input["properties"].is_object(), "{}: {input}", tool.name);
        for (key, property) in input["properties"].as_object().expect("an object") {
            assert!(
                property["description"].is_string(),
                "{}.{key} has no description",
                tool.name
            );
        }
        let output = tool.output_schema.as_deref().expect("an output schema");
        let output: Value = serde_json::from_str(output.get()).expect("JSON");
        assert_eq!(output["type"], "object", "{}", tool.name);
        let text = tool.input_schema.get().to_owned() + &output.to_string();
        assert!(
            !text.contains("$ref") && !text.contains("$defs"),
            "{}: {text}",
            tool.name
        );
        assert!(tool.annotations.is_some(), "{}", tool.name);
    }
    for tool in &namespace.tools {
        let mut others = names.iter().filter(|name| **name != tool.name);
        assert!(
            others.any(|name| tool.description.contains(&**name)),
            "{} does not say what to do next",
            tool.name
        );
    }
}

#[test]
fn the_definitions_of_all_tools_take_at_most_24_kib_of_an_agents_context() {
    let namespace = Management::namespace_within(Duration::from_secs(600));
    let definitions: Vec<_> = namespace
        .tools
        .iter()
        .map(|tool| {
            json!({
                "name": tool.name,
                "description": tool.description,
                "inputSchema": tool.input_schema,
                "outputSchema": tool.output_schema,
                "annotations": tool.annotations,
            })
        })
        .collect();
    let size = json!({ "tools": definitions }).to_string().len();
    assert!(size <= 24 * 1024, "{size} bytes");
}

#[test]
fn a_member_that_may_be_left_out_is_declared_by_its_type_alone() {
    let namespace = Management::namespace_within(Duration::from_secs(600));
    let create = namespace
        .tools
        .iter()
        .find(|it| &*it.name == "token_create");
    let input = create.expect("a tool").input_schema.get();
    let input: Value = serde_json::from_str(input).expect("JSON");
    let expires = &input["properties"]["expires"];
    assert_eq!(expires["type"], "string", "{expires}");
    assert_eq!(expires["default"], Value::Null, "{expires}");
    assert_eq!(input["properties"]["limits"]["items"]["type"], "string");
    assert_eq!(input["required"], json!(["name", "scopes"]));
}
