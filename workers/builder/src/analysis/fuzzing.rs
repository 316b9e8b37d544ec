//! Fuzzing of the readers of source code and of lists of dependencies. Compiled only for `make fuzz` and for tests.

use std::collections::BTreeMap;

use super::dependencies::Dependencies;
use super::{Language, SourceFacts, look_into, names, syntax};

/// Names of files, each of which chooses a language or a format.
const FILES: [&str; 12] = [
    "a.py",
    "a.ts",
    "a.tsx",
    "a.js",
    "a.go",
    "a.rs",
    "package.json",
    "pyproject.toml",
    "setup.cfg",
    "requirements.txt",
    "go.mod",
    "Cargo.toml",
];

/// Reads a file of a repository. The first byte of the input chooses the file's name.
pub fn source_file(input: &[u8]) {
    let Some((&name, bytes)) = input.split_first() else {
        return;
    };
    let path = FILES[usize::from(name) % FILES.len()];
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Some(language) = Language::of(path) else {
        let mut found = Dependencies::default();
        found.read(path, text);
        let found: BTreeMap<_, _> = found.into_map();
        assert!(found.keys().all(|name| (1..=256).contains(&name.len())));
        return;
    };
    let mut facts = SourceFacts::default();
    assert!(look_into(path, language, text, &mut facts), "not in time");
    for tool in &facts.tools {
        assert!(syntax::is_tool_name(&tool.name), "{:?}", tool.name);
    }
    assert!(facts.secrets.iter().all(|name| names::is_credential(name)));
}
