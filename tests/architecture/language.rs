//! The language of comments and types in production code: figures that may only fall.
//!
//! A comment begins with the thing it is about, not with "What", "Which" or "One of those"; a type is a noun of the field, not
//! a state alone; and a type's name stands for one thing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::programs;

/// Comment lines, of 1,000, that begin with a word that names nothing.
const OPENERS_MAX: usize = 2;
/// Comment lines, of 1,000, that paraphrase a thing instead of naming it.
const PARAPHRASES_MAX: usize = 2;
/// Comment lines, of 1,000, that speak of people where clients, callers or operators are meant.
const PEOPLE_MAX: usize = 1;
/// Types, of 1,000, that are named by a state alone.
const STATES_MAX: usize = 8;
/// Names that types have in five or more places.
const REPEATED_MAX: usize = 2;

const OPENERS: &[&str] = &[
    "What",
    "Who",
    "Whose",
    "Which",
    "One",
    "Of",
    "Those",
    "Nobody",
    "Everybody",
    "Somebody",
];
const PARAPHRASES: &[&str] = &["is", "it", "they", "has", "was", "a", "the"];
const PEOPLE: &[&str] = &["everybody", "somebody", "nobody", "anybody"];
const STATES: &[&str] = &[
    "Told", "Said", "Shown", "Held", "Kept", "Left", "Sent", "Found", "Known", "Lost", "Given",
    "Taken", "Written", "Read", "Built", "Made", "Gone", "Chosen",
];
/// Folders and files of tests.
const TESTS: &[&str] = &[
    "tests",
    "test",
    "benches",
    "fixtures",
    "testing",
    "transcripts",
    "cost",
];

/// The production files below a folder.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        if TESTS.contains(&&*stem) || stem.ends_with("_tests") {
            continue;
        }
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|it| it == "rs") {
            found.push(path);
        }
    }
}

/// The words of a comment line; `None` for a line of code.
fn comment(line: &str) -> Option<Vec<&str>> {
    let text = line.trim().strip_prefix("//")?;
    let text = text.trim_start_matches(['/', '!']);
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    Some(words.filter(|word| !word.is_empty()).collect())
}

/// The name of the type that a line defines.
fn defined(line: &str) -> Option<&str> {
    let words: Vec<_> = line.split_whitespace().collect();
    let keyword = |word: &&str| ["struct", "enum", "trait", "union"].contains(word);
    let at = words.iter().position(keyword)?;
    let visible = |word: &&str| word.starts_with("pub") || word.ends_with(')') || *word == "unsafe";
    let name = words
        .get(at + 1)
        .filter(|_| words[..at].iter().all(visible))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(&name[..end.unwrap_or(name.len())])
}

/// True for a single word that is a state, such as `Held` or `Parsed`.
fn is_state(name: &str) -> bool {
    let is_word = name.chars().skip(1).all(|c| c.is_ascii_lowercase());
    is_word && (name.ends_with("ed") || STATES.contains(&name))
}

fn assert_within(what: &str, max: usize, of: usize, found: &[String]) {
    assert!(
        found.len() * 1000 <= max * of,
        "{what}: {} of {of}, at most {max} of 1,000 may be:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn comments_and_types_name_the_thing_they_are_about() {
    let mut paths = Vec::new();
    let folders = [
        "filters/src",
        "mcp-upstream/engine/src",
        "mcp-upstream/protocol/src",
        "mcp-upstream/servers/src",
        "mcp-upstream/sessions/src",
        "mcp-upstream/src",
        "proxy/bin",
        "proxy/import-clients/src",
        "proxy/import-nginx/src",
        "proxy/otlp/src",
        "proxy/oubliette-client/src",
        "proxy/src",
        "workers/base/src",
        "workers/builder/src",
        "workers/credentials/src",
        "workers/openapi/src",
        "workers/process/src",
        "workers/src",
    ];
    for folder in folders {
        files(&programs::root().join(folder), &mut paths);
    }
    let (mut lines, mut types) = (0, BTreeMap::<String, Vec<String>>::new());
    let (mut openers, mut paraphrases, mut people) = (Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        let production = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (number, line) in production.lines().enumerate() {
            let place = || format!("{}:{}: {}", path.display(), number + 1, line.trim());
            if let Some(name) = defined(line) {
                types.entry(name.to_owned()).or_default().push(place());
            }
            let Some(words) = comment(line) else {
                continue;
            };
            lines += 1;
            let opens = |two: &[&str]| words.starts_with(two);
            let first = words.first();
            if first.is_some_and(|word| OPENERS.contains(word))
                || opens(&["The", "one"])
                || opens(&["The", "same"])
            {
                openers.push(place());
            }
            let lower: Vec<_> = words.iter().map(|word| word.to_lowercase()).collect();
            if lower
                .windows(2)
                .any(|two| two[0] == "what" && PARAPHRASES.contains(&&*two[1]))
            {
                paraphrases.push(place());
            }
            if lower.iter().any(|word| PEOPLE.contains(&&**word)) {
                people.push(place());
            }
        }
    }
    assert!(
        lines > 15_000,
        "{lines} comment lines: the files are elsewhere"
    );
    assert_within("openers", OPENERS_MAX, lines, &openers);
    assert_within("paraphrases", PARAPHRASES_MAX, lines, &paraphrases);
    assert_within("people", PEOPLE_MAX, lines, &people);
    let states = types.iter().filter(|(name, _)| is_state(name));
    let states: Vec<_> = states.flat_map(|(_, places)| places.clone()).collect();
    let all = types.values().map(Vec::len).sum();
    assert_within("types named by a state", STATES_MAX, all, &states);
    let repeated = types.iter().filter(|(_, places)| places.len() >= 5);
    let repeated: Vec<_> = repeated.map(|(name, _)| name).collect();
    assert!(
        repeated.len() <= REPEATED_MAX,
        "in five or more places: {repeated:?}"
    );
}
