//! The shape of the house: which crates and modules may know each other, and what may not stand in the source.

mod dependencies;
mod fuzzing;
mod language;
mod layers;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::programs;

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn crates_depend_in_one_direction() {
    let allowed: BTreeMap<&str, &[&str]> = BTreeMap::from([
        (
            "tooldock",
            &[
                "tooldock-base",
                "tooldock-builder",
                "tooldock-credentials",
                "tooldock-filters",
                "tooldock-import-clients",
                "tooldock-import-nginx",
                "tooldock-otlp",
                "tooldock-process",
                "tooldock-sessions",
                "tooldock-upstream",
                "tooldock-workers",
            ][..],
        ),
        ("tooldock-base", &[]),
        ("tooldock-builder", &["tooldock-base", "tooldock-process"]),
        ("tooldock-credentials", &["tooldock-base"]),
        (
            "tooldock-engine",
            &[
                "tooldock-base",
                "tooldock-credentials",
                "tooldock-process",
                "tooldock-protocol",
                "tooldock-servers",
                "tooldock-sessions",
                "tooldock-workers",
            ],
        ),
        (
            "tooldock-filters",
            &["tooldock-base", "tooldock-credentials", "tooldock-workers"],
        ),
        (
            "tooldock-import-clients",
            &["tooldock-base", "tooldock-credentials"],
        ),
        (
            "tooldock-import-nginx",
            &["tooldock-base", "tooldock-filters", "tooldock-workers"],
        ),
        (
            "tooldock-upstream",
            &[
                "tooldock-base",
                "tooldock-credentials",
                "tooldock-engine",
                "tooldock-process",
                "tooldock-protocol",
                "tooldock-servers",
                "tooldock-sessions",
                "tooldock-workers",
            ],
        ),
        ("tooldock-openapi", &["tooldock-base"]),
        ("tooldock-otlp", &["tooldock-base"]),
        ("tooldock-process", &["tooldock-base"]),
        ("tooldock-protocol", &["tooldock-base", "tooldock-process"]),
        (
            "tooldock-servers",
            &[
                "tooldock-base",
                "tooldock-credentials",
                "tooldock-openapi",
                "tooldock-process",
                "tooldock-protocol",
                "tooldock-sessions",
                "tooldock-workers",
            ],
        ),
        (
            "tooldock-sessions",
            &[
                "tooldock-base",
                "tooldock-credentials",
                "tooldock-process",
                "tooldock-protocol",
                "tooldock-workers",
            ],
        ),
        (
            "tooldock-workers",
            &[
                "tooldock-base",
                "tooldock-credentials",
                "tooldock-openapi",
                "tooldock-process",
            ],
        ),
        ("tooldock-load-tests", &[]),
        ("oubliette-client", &[]),
    ]);
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let names: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, allowed.keys().copied().collect());
    for package in packages {
        let name = package["name"].as_str().unwrap();
        for dependency in package["dependencies"].as_array().unwrap() {
            let dependency = dependency["name"].as_str().unwrap();
            assert!(
                !names.contains(dependency) || allowed[name].contains(&dependency),
                "{name} must not know {dependency}"
            );
            assert!(
                ["tooldock-base", "tooldock-load-tests"].contains(&name)
                    || dependency != "serde_yaml",
                "YAML is read through tooldock_base::yaml, {name} has serde_yaml"
            );
            assert!(
                name == "tooldock-builder" || !dependency.starts_with("tree-sitter"),
                "source of other authors is parsed by the builder alone, {name} has {dependency}"
            );
            assert!(
                name == "tooldock" || !dependency.starts_with("pingora"),
                "only the binary knows Pingora, {name} has {dependency}"
            );
        }
    }
}

/// Maximum number of methods of each trait of an upstream, so that a reader can survey the trait.
const UPSTREAM_METHODS_MAX: usize = 12;

#[test]
fn an_upstream_has_few_methods_for_calls_and_others_for_operators() {
    let file = "mcp-upstream/engine/src/upstream.rs";
    let text = fs::read_to_string(programs::root().join(file));
    let text = text.unwrap();
    let traits: BTreeMap<&str, &str> = text
        .split("\npub trait ")
        .skip(1)
        .map(|rest| rest.split_once("\n}").unwrap().0)
        .map(|body| (body.split_once(':').unwrap().0, body))
        .collect();
    for name in ["Upstream", "ToolLists", "ServerFacts", "ServerOperations"] {
        let methods = traits[name].matches("\n    fn ").count();
        assert!(
            (1..=UPSTREAM_METHODS_MAX).contains(&methods),
            "{name} in {file} has {methods} methods, at most {UPSTREAM_METHODS_MAX} are allowed"
        );
    }
    // A supertrait would add methods that are not counted.
    let head = traits["Upstream"].lines().next().unwrap();
    assert_eq!(head, "Upstream: Send + Sync + 'static {");
}
