//! Edits of one entry in a YAML file with comments. The first line of the input is the name of the entry.

#![no_main]

use tooldock_base::yaml::{self, Mapping, Value};
use tooldock_workers::yaml_edit::{put, remove};

fn entry(text: &str, name: &str) -> Option<Value> {
    let tree: Value = yaml::from_str(text).expect("a changed file is YAML");
    tree.get("servers")?.get(name).cloned()
}

libfuzzer_sys::fuzz_target!(|input: &str| {
    let (name, text) = input.split_once('\n').unwrap_or((input, ""));
    if !yaml::readable_in_time(text.as_bytes()) {
        return;
    }
    let server = Mapping::from_iter([("command".into(), "npx".into())]);
    if let Ok(changed) = put(text, &["servers"], name, &server, "a comment") {
        assert_eq!(entry(&changed, name), Some(Value::Mapping(server)));
        if let Ok(removed) = remove(&changed, &["servers"], name) {
            assert_eq!(entry(&removed, name), None);
        }
    }
});
