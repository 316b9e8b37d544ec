//! Review of direct dependencies (`docs/dependencies.md`): it has a row for each dependency, and no other rows.

use std::collections::BTreeSet;
use std::fs;

use super::metadata;
use crate::support::programs::root;

#[test]
fn each_direct_dependency_has_a_row_in_its_review_and_each_row_is_one() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let named: BTreeSet<&str> = packages
        .iter()
        .flat_map(|package| package["dependencies"].as_array().unwrap())
        .filter(|dependency| dependency["path"].is_null())
        .map(|dependency| dependency["name"].as_str().unwrap())
        .collect();
    let page = fs::read_to_string(root().join("docs/dependencies.md")).unwrap();
    let rows: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let missing: Vec<_> = named.difference(&rows).collect();
    let surplus: Vec<_> = rows.difference(&named).collect();
    assert!(missing.is_empty(), "without a row: {missing:?}");
    assert!(surplus.is_empty(), "no dependency: {surplus:?}");
}
