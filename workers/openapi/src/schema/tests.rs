//! Tests of self-contained schemas.

use super::*;

fn read(schemas: Value, name: &str, direction: Direction) -> Result<Value, SchemaError> {
    let text = json!({ "openapi": "3.0.0", "components": { "schemas": schemas } }).to_string();
    let document = Document::parse(text.as_bytes()).expect("a document");
    let start = json!({ "$ref": format!("#/components/schemas/{name}") });
    let budget = Budget::new(1_000_000_000);
    let read = SchemaReader::with(&document, direction, &budget, |it| it.converted(&start));
    read.map(|(schema, definitions)| json!([schema, definitions]))
}

#[test]
fn a_reference_is_replaced_by_its_schema() {
    let schemas = json!({
        "Pet": { "type": "object", "properties": { "tag": { "$ref": "#/components/schemas/Tag" } } },
        "Tag": { "type": "string", "nullable": true, "example": "cat", "x-order": 1 },
    });
    let tag = json!({ "type": ["string", "null"], "examples": ["cat"] });
    let pet = json!({ "type": "object", "properties": { "tag": tag } });
    assert_eq!(
        read(schemas, "Pet", Direction::Request),
        Ok(json!([pet, {}]))
    );
}

#[test]
fn a_schema_that_contains_itself_moves_to_the_definitions() {
    let schemas = json!({
        "Node": { "type": "object", "properties": { "next": { "$ref": "#/components/schemas/Node" } } },
    });
    let node = json!({ "type": "object", "properties": { "next": { "$ref": "#/$defs/Node" } } });
    let expected = json!([node, { "Node": node }]);
    assert_eq!(read(schemas, "Node", Direction::Request), Ok(expected));
}

#[test]
fn schemas_that_would_grow_without_end_refer_to_definitions() {
    let mut schemas = Map::new();
    for level in 0..20 {
        let next = json!({ "$ref": format!("#/components/schemas/S{}", level + 1) });
        let properties = json!({ "a": next, "b": next, "c": next });
        schemas.insert(
            format!("S{level}"),
            json!({ "type": "object", "properties": properties }),
        );
    }
    schemas.insert("S20".into(), json!({ "type": "string" }));
    let read = read(schemas.into(), "S0", Direction::Response).expect("small enough");
    assert_eq!(read[0], json!({ "$ref": "#/$defs/S0" }));
    assert_eq!(read[1].as_object().map(Map::len), Some(21));
}

#[test]
fn properties_of_the_other_side_are_left_out() {
    let schemas = json!({ "Pet": {
        "properties": { "id": { "type": "integer", "readOnly": true }, "key": { "writeOnly": true }, "name": {} },
        "required": ["id", "name"],
    } });
    let request = json!([{ "properties": { "key": {}, "name": {} }, "required": ["name"] }, {}]);
    assert_eq!(
        read(schemas.clone(), "Pet", Direction::Request),
        Ok(request)
    );
    let response = json!([{
        "properties": { "id": { "type": "integer" }, "name": {} }, "required": ["id", "name"],
    }, {}]);
    assert_eq!(read(schemas, "Pet", Direction::Response), Ok(response));
}

#[test]
fn a_property_that_a_part_leaves_out_is_not_required_by_another() {
    let schemas = json!({
        "Base": { "type": "object", "properties": { "id": { "readOnly": true }, "name": {} } },
        "Pet": { "allOf": [{ "$ref": "#/components/schemas/Base" }, { "required": ["id", "name"] }], "required": ["id"] },
        "Other": { "properties": { "pet": { "$ref": "#/components/schemas/Pet" }, "id": {} }, "required": ["id"] },
    });
    let pet = json!({ "allOf": [{ "type": "object", "properties": { "name": {} } }, { "required": ["name"] }] });
    let other = json!({ "properties": { "id": {}, "pet": pet }, "required": ["id"] });
    assert_eq!(
        read(schemas.clone(), "Pet", Direction::Request),
        Ok(json!([pet, {}]))
    );
    assert_eq!(
        read(schemas, "Other", Direction::Request),
        Ok(json!([other, {}]))
    );
}

#[test]
fn bounds_of_version_3_0_become_those_of_json_schema() {
    let schemas = json!({ "N": { "minimum": 1, "exclusiveMinimum": true, "maximum": 9, "exclusiveMaximum": false } });
    let expected = json!([{ "exclusiveMinimum": 1, "maximum": 9 }, {}]);
    assert_eq!(read(schemas, "N", Direction::Request), Ok(expected));
}

#[test]
fn references_that_lead_nowhere_or_elsewhere_are_named() {
    let of = |target: &str| {
        let error = read(json!({ "A": { "$ref": target } }), "A", Direction::Request);
        error.expect_err("no schema").to_string()
    };
    assert_eq!(of("#/x"), "refers to \"#/x\", which is not in the document");
    assert_eq!(
        of("other.yaml#/x"),
        "refers to another document (\"other.yaml#/x\")"
    );
}

#[test]
fn parts_of_all_of_are_combined() {
    let schema = json!({ "allOf": [
        { "type": "object", "properties": { "a": {} }, "required": ["a"] },
        { "allOf": [{ "properties": { "b": {} } }] },
    ], "description": "both" });
    let expected = json!({
        "type": "object", "properties": { "a": {}, "b": {} }, "required": ["a"], "description": "both",
    });
    assert_eq!(merged(schema), expected);
    for part in [
        json!({ "type": "string" }),
        json!({ "type": ["object", "null"] }),
        json!({}),
    ] {
        let schema = json!({ "allOf": [part], "description": "no plain object" });
        assert_eq!(merged(schema.clone()), schema);
    }
}
