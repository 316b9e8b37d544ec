//! Fuzzing of the input schemas of tools. Compiled only for `make fuzz` and for tests.

use serde_json::value::RawValue;

use super::{InputSchema, are_required};
use crate::catalogue::coerce::coerced;

/// Checks and converts arguments by a schema. The input has two lines: the schema and the arguments.
pub fn schema(input: &str) {
    let (schema, arguments) = input.split_once('\n').unwrap_or((input, "{}"));
    let Ok(schema) = serde_json::from_str::<&RawValue>(schema) else {
        return;
    };
    let _ = are_required(schema, || true);
    if let Ok(compiled) = InputSchema::compile(schema) {
        let checked = compiled.check(arguments.as_bytes());
        if let Some(light) = compiled.check_lightly(arguments.as_bytes()) {
            assert_eq!(light.is_ok(), checked.is_ok());
        }
    }
    if let Some(converted) = coerced(schema, arguments.as_bytes()) {
        serde_json::from_slice::<&RawValue>(&converted).expect("converted arguments are JSON");
        assert_eq!(coerced(schema, &converted), None, "converted twice");
    }
}
