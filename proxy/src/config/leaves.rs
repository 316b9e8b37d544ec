//! Lists the single values of a configuration tree with their keys, such as `namespaces.defaults.timeout` and
//! `listeners[0].address`.

use tooldock_base::yaml::Value;

/// Returns the values of a tree with their keys, in the order of the tree. A list without maps or lists in it counts as one
/// value. The result is empty if the tree is not a map.
pub(crate) fn leaves(tree: &Value) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    if matches!(tree, Value::Mapping(_)) {
        gather(String::new(), tree, &mut all);
    }
    all
}

fn gather<'a>(key: String, value: &'a Value, all: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Mapping(entries) if !entries.is_empty() || key.is_empty() => {
            for (name, value) in entries {
                let name = name.as_str().unwrap_or_default();
                let key = match key.is_empty() {
                    true => name.to_owned(),
                    false => format!("{key}.{name}"),
                };
                gather(key, value, all);
            }
        }
        Value::Sequence(values) if values.iter().any(has_keys) => {
            for (index, value) in values.iter().enumerate() {
                gather(format!("{key}[{index}]"), value, all);
            }
        }
        _ => all.push((key, value)),
    }
}

fn has_keys(value: &Value) -> bool {
    matches!(value, Value::Mapping(_) | Value::Sequence(_))
}

/// Returns true if the path `key` equals `other` or is below it.
pub(super) fn is_within(key: &str, other: &str) -> bool {
    let rest = key.strip_prefix(other);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn keys_lead_to_plain_values_and_lists_of_these_are_one() {
        let tree = "a: {b: 1, c: [x, y]}\nd: [{e: 2}, {}]\nf: {}\n";
        let tree: Value = yaml::from_str(tree).expect("yaml");
        let keys: Vec<_> = leaves(&tree).into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, ["a.b", "a.c", "d[0].e", "d[1]", "f"]);
        assert!(leaves(&Value::Null).is_empty());
        assert!(is_within("a.b", "a") && is_within("d[0]", "d") && is_within("a", "a"));
        assert!(!is_within("ab", "a"));
    }
}
