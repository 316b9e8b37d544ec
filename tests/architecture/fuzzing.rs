//! Fuzz targets, which no test compiles: each has a file, and a rule that makes its seeds.

use std::collections::BTreeSet;
use std::fs;

use crate::support::programs::root;

#[test]
fn each_fuzz_target_has_a_file_and_a_rule_for_its_seeds() {
    let folder = root().join("fuzz");
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let targets: BTreeSet<String> = manifest
        .lines()
        .filter_map(|line| {
            line.strip_prefix("path = \"fuzz_targets/")?
                .strip_suffix(".rs\"")
        })
        .map(str::to_owned)
        .collect();
    assert!(targets.len() >= 25, "{targets:?}");
    let files: BTreeSet<String> = fs::read_dir(folder.join("fuzz_targets"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(targets, files);
    let run = fs::read_to_string(folder.join("run")).unwrap();
    let rules = run.split("\nSEEDS = {\n").nth(1).unwrap();
    let rules = rules.split("\n}\n").next().unwrap();
    let rules: BTreeSet<String> = rules
        .lines()
        .filter_map(|line| line.strip_prefix("    \"")?.split('"').next())
        .map(str::to_owned)
        .collect();
    assert_eq!(targets, rules);
}
