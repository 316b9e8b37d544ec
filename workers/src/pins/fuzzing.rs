//! Fuzzing of `pins.json` and of the search for hidden text. Compiled only for `make fuzz` and for tests.

use std::sync::Arc;

use tooldock_base::config::PinMode;

use super::record::{PinFile, Seen, Sighting, Version};
use super::{PinKind, definition, difference, findings, server_name};

/// Reads a `pins.json` and changes its records. The file must stay readable.
pub fn pins_file(text: &[u8]) {
    let Ok(mut file) = serde_json::from_slice::<PinFile>(text) else {
        return;
    };
    same_again(&file);
    let namespaces: Vec<_> = file.namespaces.keys().cloned().collect();
    for namespace in &namespaces {
        for list in file.namespaces[namespace].lists.values() {
            for entry in list.entries.values() {
                let _ = (entry.state(), entry.is_varying(), entry.differences());
            }
        }
        for name in ["a", "b"] {
            let definition = format!("{{\"name\":\"{name}\"}}");
            let digest = definition::digest(&definition);
            let version = Version {
                digest: digest.clone(),
                seen: 1,
                definition: Some(definition.into()),
                findings: Vec::new(),
            };
            let outcome = file.see(&Sighting {
                namespace: namespace.clone(),
                kind: PinKind::Tool,
                mode: PinMode::Enforce,
                what: Seen::Definition {
                    name: Arc::from(name),
                    version,
                },
            });
            if outcome.is_recorded() {
                let entry = file.entry(namespace, PinKind::Tool, name);
                assert!(
                    entry.is_some_and(|it| it.knows(&digest)),
                    "a record is lost"
                );
            }
        }
        let before = file.clone();
        let approval = file.approve(namespace, Some("a"), None);
        for (kind, name, digest) in &approval.approved {
            let entry = file.entry(namespace, *kind, name).expect("it stays");
            assert!(entry.is_approved(digest), "an approval is lost");
        }
        if approval.approved.is_empty() {
            assert_eq!(before, file, "nothing was approved");
        }
        file.forget(namespace, Some("b"));
        assert!(file.entry(namespace, PinKind::Tool, "b").is_none());
    }
    same_again(&file);
}

fn same_again(file: &PinFile) {
    let written = serde_json::to_vec_pretty(file).expect("written");
    let read: PinFile = serde_json::from_slice(&written).expect("read again");
    assert_eq!(read, *file);
}

/// Searches a definition for hidden text, and compares it with another definition. The input has two lines, a definition on each.
pub fn definitions(input: &str) {
    let (one, other) = input.split_once('\n').unwrap_or((input, ""));
    let (canonical, other) = (definition::canonical(one), definition::canonical(other));
    assert_eq!(definition::canonical(&canonical), canonical);
    let found = findings::of_definition(one, &canonical);
    for finding in &found {
        let all = [&finding.code, &finding.place, &finding.detail];
        let hidden = |text: &&String| text.chars().any(findings::is_hidden);
        assert!(!all.iter().any(hidden), "a finding shows hidden text");
    }
    let differences = difference::between(&canonical, &other);
    assert_eq!(differences.is_empty(), canonical == other);
    for difference in differences {
        let all = [Some(difference.path), difference.before, difference.after];
        let mut all = all.into_iter().flatten();
        let hidden = |it: char| findings::is_hidden(it) && !matches!(it, '\n' | '\t');
        assert!(!all.any(|text| text.chars().any(hidden)));
    }
    let _ = (findings::shape(one), server_name(one));
}
