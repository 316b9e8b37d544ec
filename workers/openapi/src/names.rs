//! Names of tools and arguments that models accept: ASCII letters, digits, `_` and `-`, at most 64 bytes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Maximum length of a name, in bytes.
const NAME_MAX: usize = 64;
/// Space for `_` and a number at the end of a name that would be used twice, in bytes.
const NUMBER_MAX: usize = 8;

/// Source of the names of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NameSource {
    /// The `operationId`; method and path for operations without one.
    #[default]
    OperationId,
    /// Method and path, such as `get_pets_by_id`.
    Path,
}

/// Returns the name for an operation's tool. Another tool may already have the name: see [`TakenNames::unique`].
pub(crate) fn tool(source: NameSource, id: Option<&str>, method: &str, path: &str) -> String {
    let id = id.filter(|_| source == NameSource::OperationId).map(safe);
    if let Some(id) = id.filter(|it| !it.is_empty()) {
        return id;
    }
    let mut name = method.to_ascii_lowercase();
    for segment in path.split('/').filter(|it| !it.is_empty()) {
        name.push('_');
        match segment
            .strip_prefix('{')
            .and_then(|it| it.strip_suffix('}'))
        {
            Some(parameter) => {
                name.push_str("by_");
                name.push_str(parameter);
            }
            None => name.push_str(segment),
        }
    }
    safe(&name)
}

/// Replaces each run of characters that a name may not have by `_`, removes it at both ends, and shortens the name to 64 bytes.
pub(crate) fn safe(text: &str) -> String {
    let mut name = String::new();
    for c in text.chars() {
        match c {
            c if c.is_ascii_alphanumeric() || c == '-' || c == '_' => name.push(c),
            _ if !name.is_empty() && !name.ends_with('_') => name.push('_'),
            _ => {}
        }
    }
    name.truncate(NAME_MAX);
    name.trim_end_matches('_').to_owned()
}

/// Names that tools of a document, or arguments of a tool, already have.
#[derive(Debug, Clone, Default)]
pub(crate) struct TakenNames {
    names: BTreeSet<String>,
    /// Next number to try, by the first 56 bytes of a name. Trying all numbers again for each equal name would take quadratic
    /// time.
    next: BTreeMap<String, usize>,
}

impl TakenNames {
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// Returns `name`, with a number at its end if the name is taken, and marks the result as taken. An empty name becomes
    /// `argument`.
    pub(crate) fn unique(&mut self, name: &str) -> String {
        let name = if name.is_empty() { "argument" } else { name };
        if self.names.insert(name.to_owned()) {
            return name.to_owned();
        }
        let start = &name[..name.len().min(NAME_MAX - NUMBER_MAX)];
        let next = self.next.entry(start.to_owned()).or_insert(2);
        loop {
            let end = format!("_{next}");
            *next += 1;
            let kept = name.len().min(NAME_MAX - end.len());
            let result = format!("{}{end}", &name[..kept]);
            if self.names.insert(result.clone()) {
                return result;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_named_by_its_operation_or_by_method_and_path() {
        let by = |source, id| tool(source, id, "GET", "/pets/{petId}/photos");
        assert_eq!(
            by(NameSource::OperationId, Some("listPhotos")),
            "listPhotos"
        );
        assert_eq!(
            by(NameSource::Path, Some("listPhotos")),
            "get_pets_by_petId_photos"
        );
        assert_eq!(
            by(NameSource::OperationId, Some("…")),
            "get_pets_by_petId_photos"
        );
        assert_eq!(tool(NameSource::OperationId, None, "GET", "/"), "get");
    }

    #[test]
    fn characters_that_models_refuse_become_underscores() {
        for (text, expected) in [
            ("repos/list-for.org", "repos_list-for_org"),
            ("filter[status]", "filter_status"),
            ("größe", "gr_e"),
            ("$expand", "expand"),
        ] {
            assert_eq!(safe(text), expected);
        }
        assert_eq!(safe(&"a".repeat(100)).len(), NAME_MAX);
    }

    #[test]
    fn equal_names_are_numbered_and_stay_short() {
        let mut taken = TakenNames::default();
        let long = "a".repeat(64);
        assert_eq!(taken.unique(&long), long);
        assert_eq!(taken.unique(&long), format!("{}_2", "a".repeat(62)));
        assert_eq!(taken.unique("b"), "b");
    }

    #[test]
    fn many_equal_names_are_numbered_in_turn() {
        let mut taken = TakenNames::default();
        taken.unique("list_3");
        let names: Vec<_> = (0..200_000).map(|_| taken.unique("list")).collect();
        assert_eq!(names[..3], ["list", "list_2", "list_4"]);
        assert_eq!(names[199_999], "list_200001");
    }
}
