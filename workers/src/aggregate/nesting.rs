//! Aggregates that are members of aggregates: a circle or a too long chain is refused when the files are read, before any of
//! them is served.

use std::collections::{BTreeMap, BTreeSet};

use tooldock_base::names::NamespaceName;

use super::spec::{AggregateSpec, Member, MemberKind};

/// Maximum length of a chain of aggregates that contain each other, including the outermost.
pub const DEPTH_MAX: usize = 4;

/// Returns the aggregates that cannot be served, each with the reason: members lead back to the aggregate itself, or the chain
/// of aggregates is longer than allowed.
pub fn refused_nesting(
    aggregates: &BTreeMap<&NamespaceName, &AggregateSpec>,
) -> BTreeMap<NamespaceName, String> {
    let mut refused = BTreeMap::new();
    for (name, spec) in aggregates {
        let mut path = vec![*name];
        if let Some(reason) = followed(spec, &mut path, aggregates) {
            refused.insert((*name).clone(), reason);
        }
    }
    refused
}

/// Checks the members that are aggregates, recursively. Returns the first reason to refuse the outermost aggregate.
fn followed<'a>(
    spec: &'a AggregateSpec,
    path: &mut Vec<&'a NamespaceName>,
    aggregates: &BTreeMap<&'a NamespaceName, &'a AggregateSpec>,
) -> Option<String> {
    // Collected into a set, so that a namespace that the file names several times is checked only once.
    let served: BTreeSet<_> = spec.members.iter().filter_map(served).collect();
    for served in served {
        let Some((name, inner)) = aggregates.get_key_value(served) else {
            continue;
        };
        let is_circle = path.contains(name);
        path.push(name);
        if is_circle || path.len() > DEPTH_MAX {
            let outermost = aggregates
                .get(path[0])
                .map(|it| it.file.display().to_string());
            let file = outermost.unwrap_or_default();
            let prefix = first_prefix(path, aggregates);
            let way: Vec<&str> = path.iter().map(|it| it.as_str()).collect();
            let way = way.join(" → ");
            return Some(match is_circle {
                true => format!(
                    "{file}: server {prefix:?}: from leads in a circle, {way}: take one of these servers out"
                ),
                false => format!(
                    "{file}: server {prefix:?}: more than {DEPTH_MAX} aggregates stand behind each other, {way}: name the servers of the last one themselves"
                ),
            });
        }
        if let Some(reason) = followed(inner, path, aggregates) {
            return Some(reason);
        }
        path.pop();
    }
    None
}

/// The namespace that a member refers to; `None` for a member that is a server.
fn served(member: &Member) -> Option<&NamespaceName> {
    match &member.kind {
        MemberKind::Namespace(served) => Some(served),
        MemberKind::Stdio(_) | MemberKind::Remote(_) => None,
    }
}

/// The prefix of the member through which the first aggregate of the path contains the second one.
fn first_prefix(
    path: &[&NamespaceName],
    aggregates: &BTreeMap<&NamespaceName, &AggregateSpec>,
) -> String {
    let members = aggregates.get(path[0]).map(|spec| &spec.members);
    let mut members = members.into_iter().flatten();
    let first = members.find(|member| served(member).as_ref() == path.get(1));
    first.map_or_else(String::new, |member| member.prefix.clone())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::aggregate::{ActivePatterns, AggregateOptions};

    fn spec(members: &[&str]) -> AggregateSpec {
        let member = |name: &&str| Member {
            prefix: format!("p{name}"),
            kind: MemberKind::Namespace(name.parse().unwrap()),
            connect_timeout: Duration::from_secs(1),
            pin: None,
        };
        AggregateSpec {
            file: "tools.toml".into(),
            members: members.iter().map(member).collect(),
            active: ActivePatterns::default(),
            options: AggregateOptions::default(),
        }
    }

    fn refused(aggregates: &[(&str, &[&str])]) -> BTreeMap<String, String> {
        let specs: Vec<(NamespaceName, AggregateSpec)> = aggregates
            .iter()
            .map(|(name, members)| (name.parse().unwrap(), spec(members)))
            .collect();
        let specs = specs.iter().map(|(name, spec)| (name, spec)).collect();
        let refused = refused_nesting(&specs).into_iter();
        refused.map(|(name, why)| (name.to_string(), why)).collect()
    }

    #[test]
    fn a_circle_is_refused_wherever_it_is_entered_and_others_are_served() {
        let found = refused(&[
            ("a", &["b"]),
            ("b", &["calc", "c"]),
            ("c", &["b"]),
            ("d", &["calc", "calc"]),
            ("e", &["e"]),
        ]);
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["a", "b", "c", "e"]);
        assert_eq!(
            found["a"],
            "tools.toml: server \"pb\": from leads in a circle, a → b → c → b: take one of these servers out"
        );
    }

    #[test]
    fn four_may_stand_behind_each_other_and_one_may_be_a_member_of_several() {
        let four: [(&str, &[&str]); 5] = [
            ("a", &["b", "c"]),
            ("b", &["c"]),
            ("c", &["d"]),
            ("d", &["calc"]),
            ("z", &["a"]),
        ];
        assert_eq!(refused(&four[..4]).len(), 0);
        let found = refused(&four);
        assert_eq!(found.len(), 1);
        assert!(
            found["z"].contains("more than 4 aggregates"),
            "{}",
            found["z"]
        );
    }
}
