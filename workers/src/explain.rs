//! Explanation of access, in words: each rule that a request of a credential for a tool passes, and the rule's decision.
//!
//! The rules are those that real requests pass, evaluated one by one with the same compiled patterns. This module makes no
//! decision of its own and admits no request.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};
use tooldock_base::config::{AccessLists, Limits};
use tooldock_base::effect::Missing;
use tooldock_base::grant::Grant;
use tooldock_base::names::NamespaceName;
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_base::policy::ToolPolicy;

use crate::registry::{Namespace, UpstreamKind};

/// A question about the access of a principal to a namespace or a tool.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The id of an API key, or the name of a principal.
    #[serde(rename = "as")]
    pub who: String,
    /// The namespace of the question; `_system` for the management tools.
    #[serde(deserialize_with = "served_name")]
    pub namespace: NamespaceName,
    /// A tool of the namespace; without it the question is about all tools of the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

/// A question about the access of a principal to all namespaces.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReachQuestion {
    /// The id of an API key, or the name of a principal.
    #[serde(rename = "as")]
    pub who: String,
}

/// Number of tools that a principal may call, for each namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reach {
    /// The principal that the answer is about.
    pub principal: String,
    /// The kind and name of the credential, such as `API key 4e6f4m62lonp`.
    pub credential: String,
    /// The namespaces that the principal may access and whose tools are known.
    pub namespaces: Vec<NamespaceReach>,
    /// The reason why no tool can be called, and a change that would allow it. Empty if a tool can be called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Number of tools of one namespace that a principal may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamespaceReach {
    /// Name of the namespace.
    pub namespace: String,
    /// The number of the namespace's tools that the principal may call.
    pub open: usize,
    /// The number of all tools of the namespace.
    pub tools: usize,
}

/// Returns at most five patterns that match the given tool names, as an example for the patterns of a scope.
pub fn example_patterns<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    const PATTERNS_MAX: usize = 5;
    let mut words: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        let end = name.find(['_', '-', '.', '/']).unwrap_or(name.len());
        words.entry(&name[..end]).or_default().push(name);
    }
    let patterns = words.into_iter().map(|(word, names)| match *names {
        [name] => name.to_owned(),
        _ => format!("{word}*"),
    });
    patterns.take(PATTERNS_MAX).collect()
}

/// Deserializes the name of a namespace in a question.
///
/// # Errors
///
/// As [`NamespaceName::parse_served`].
pub fn served_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NamespaceName, D::Error> {
    let text = String::deserialize(deserializer)?;
    NamespaceName::parse_served(&text).map_err(de::Error::custom)
}

/// The credential that a question is about, with its rights as requests are checked against them.
#[derive(Debug, Clone)]
pub struct Credential {
    /// Principal of the requests that use the credential.
    pub principal: Arc<str>,
    /// Kind and name of the credential, such as `API key 4e6f4m62lonp`.
    pub named: String,
    /// Reason why the credential is not valid; `None` if it is valid.
    pub ended: Option<String>,
    /// Patterns of the namespaces that the credential allows, as text.
    pub patterns: Vec<String>,
    /// Compiled patterns of the namespaces that the credential allows.
    pub namespaces: Arc<NamespaceScope>,
    /// The tools that the credential's scopes allow; `None` if it has no scopes.
    pub grant: Option<Arc<Grant>>,
    /// Further conditions that can only be checked with a real request: the key's networks and limits.
    pub notes: Vec<String>,
}

/// A principal that a question may name, without its credential's secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KnownPrincipal {
    /// The principal's name, as it appears in logs.
    pub name: String,
    /// The kind of the principal's credential: token, certificate, API key, or none.
    pub credential: String,
    /// The id of the API key, which distinguishes keys with the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<String>,
    /// State of the credential: active, or the reason why it is not valid. Reasons are expired, revoked, or, for requests without
    /// a credential, not admitted by any listener.
    pub state: String,
}

/// The principals that the configuration and the API keys name. Subjects of access tokens are not included.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Principals {
    /// The principals, sorted by name.
    pub principals: Vec<KnownPrincipal>,
    /// The number of further principals that are not listed.
    #[serde(default)]
    pub left_out: usize,
}

impl Principals {
    /// Maximum number of principals in a list; further ones are only counted.
    const LISTED_MAX: usize = 1000;

    /// Sorts the principals, and keeps the first 1000.
    pub fn new(mut principals: Vec<KnownPrincipal>) -> Self {
        let key = |it: &KnownPrincipal| (it.name.clone(), it.key_id.clone());
        principals.sort_by_cached_key(key);
        let left_out = principals.len().saturating_sub(Self::LISTED_MAX);
        principals.truncate(Self::LISTED_MAX);
        Self {
            principals,
            left_out,
        }
    }

    /// Returns a list of the first 1000 entries, in the order of `entries`: by name, then by the id of the key. `describe` is
    /// called only for listed entries, because there may be many more.
    pub fn first_of<E: Ord>(
        entries: impl IntoIterator<Item = E>,
        describe: impl FnMut(E) -> KnownPrincipal,
    ) -> Self {
        let mut first = BinaryHeap::new();
        let mut left_out = 0;
        for entry in entries {
            if first.len() < Self::LISTED_MAX {
                first.push(entry);
                continue;
            }
            left_out += 1;
            if let Some(mut last) = first.peek_mut()
                && entry < *last
            {
                *last = entry;
            }
        }
        let listed = first.into_sorted_vec().into_iter().map(describe);
        Self {
            left_out,
            ..Self::new(listed.collect())
        }
    }

    /// Returns the first 20 names of principals without repetitions, as text for a message. Further names are only counted, and
    /// no more than 20 names are in memory at once.
    pub fn in_words<N: Ord + AsRef<str>>(names: impl IntoIterator<Item = N>) -> String {
        const NAMED_MAX: usize = 20;
        let mut first: BTreeMap<N, usize> = BTreeMap::new();
        let mut more = 0;
        for name in names {
            if let Some(times) = first.get_mut(&name) {
                *times += 1;
            } else if first.len() < NAMED_MAX {
                first.insert(name, 1);
            } else if first.last_key_value().is_some_and(|(last, _)| name < *last) {
                more += first.pop_last().map_or(0, |(_, times)| times);
                first.insert(name, 1);
            } else {
                more += 1;
            }
        }
        let names: Vec<_> = first.keys().map(AsRef::as_ref).collect();
        let names = names.join(", ");
        match more {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }
}

/// An access rule and its decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rule {
    /// Name of the rule, such as `scopes` or `principals of the namespace`.
    pub rule: String,
    /// True if the rule allows the access; false if it refuses it.
    pub allows: bool,
    /// Content of the rule, in words.
    pub says: String,
}

/// Access of a principal to a tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolAccess {
    /// Name of the tool.
    pub name: String,
    /// True if the tool is listed for the principal and may be called.
    pub allowed: bool,
    /// The first rule that refuses the tool; absent if no rule does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_by: Option<String>,
}

/// Answer to a question about a principal's access.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Explanation {
    /// The principal that the answer is about.
    pub principal: String,
    /// The kind and the name of the principal's credential.
    pub credential: String,
    /// Name of the namespace that the answer is about.
    pub namespace: String,
    /// The state of the namespace, as in `/ready`; absent if the namespace is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Name of the tool that the question names; absent for a question about all tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// True if every rule allows the access.
    pub allowed: bool,
    /// The rules, in the order in which they are checked.
    pub rules: Vec<Rule>,
    /// The tools of the namespace, if the question names no tool and the namespace may be accessed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolAccess>,
    /// The number of further tools that are not listed.
    #[serde(default)]
    pub left_out: usize,
    /// Further conditions that can only be checked with a real request, or the reason why tools are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Name of the rule that checks that the credential is valid.
const CREDENTIAL: &str = "credential";

impl Rule {
    fn new(rule: impl Into<String>, allows: bool, says: impl Into<String>) -> Self {
        Self {
            rule: rule.into(),
            allows,
            says: says.into(),
        }
    }
}

/// The rule that refuses a tool whose definition waits for approval. `held` is the reason as callers are told it.
pub fn of_pins(namespace: &NamespaceName, held: &str) -> Rule {
    let says = format!("{held}: tooldock pins diff {namespace}");
    Rule::new(format!("pins of {namespace}"), false, says)
}

/// The rules for the access of a credential to a namespace. `served` is `None` if no such namespace is served.
pub fn of_namespace(
    credential: &Credential,
    name: &NamespaceName,
    served: Option<&Namespace>,
) -> Vec<Rule> {
    let named = &credential.named;
    let ended = credential.ended.clone();
    let mut rules = vec![
        Rule::new(
            CREDENTIAL,
            ended.is_none(),
            ended.unwrap_or_else(|| format!("{named} counts")),
        ),
        Rule::new(
            "namespaces of the credential",
            credential.namespaces.opens(name),
            format!(
                "it opens {}{}",
                list(&credential.patterns),
                match name.is_system() {
                    true => "; the management tools only by the name _system",
                    false => "",
                }
            ),
        ),
    ];
    let Some(namespace) = served else {
        let says = format!("no namespace {name} is served");
        rules.push(Rule::new("namespace", false, says));
        return rules;
    };
    let who = &credential.principal;
    for (whose, lists) in lists_of(&namespace.limits) {
        let only = Limits {
            principals: lists.principals.clone(),
            ..Limits::default()
        };
        rules.push(Rule::new(
            format!("principals of the namespace{whose}"),
            policy(&only).is_some_and(|it| it.allows_principal(who)),
            format!("{} for {who}", list(&lists.principals)),
        ));
    }
    rules
}

/// The rules for the access of a credential to a tool, in a namespace that the credential may access.
pub fn of_tool(credential: &Credential, namespace: &Namespace, tool: &str) -> Vec<Rule> {
    let mut rules = Vec::new();
    let is_aggregate = matches!(namespace.upstream, UpstreamKind::Aggregate(_));
    rules.push(match &credential.grant {
        None => Rule::new(
            "scopes",
            true,
            "the credential has none and opens every tool",
        ),
        Some(_) if is_aggregate => Rule::new(
            "scopes",
            true,
            "an aggregate asks for none; where the tool is a member's, the member does, by its own name of the tool",
        ),
        Some(grant) => {
            let names: Vec<_> = grant.tools.names().map(str::to_owned).collect();
            let checked = namespace.policy.check_scope(&grant.tools, tool);
            let names = list(&names);
            let says = match checked {
                Ok(()) => format!("{names} opens {tool}"),
                Err(Missing::Name) => format!("{names} does not open {tool}"),
                Err(Missing::Effect(effect)) => format!(
                    "{names} opens {tool}, but {tool} {}: it needs {}",
                    effect.words(),
                    effect.needed()
                ),
            };
            Rule::new("scopes", checked.is_ok(), says)
        }
    });
    for (whose, lists) in lists_of(&namespace.limits) {
        let allow = Limits {
            tools_allow: lists.tools_allow.clone(),
            ..Limits::default()
        };
        let deny = Limits {
            tools_deny: lists.tools_deny.clone(),
            ..Limits::default()
        };
        for (key, patterns, only) in [
            ("tools_allow", &lists.tools_allow, allow),
            ("tools_deny", &lists.tools_deny, deny),
        ] {
            rules.push(Rule::new(
                format!("{key} of the namespace{whose}"),
                policy(&only).is_some_and(|it| it.allows_tool(tool)),
                format!("{} for {tool}", list(patterns)),
            ));
        }
    }
    rules
}

/// The rules for a tool of an aggregate that one of its members provides. `is_served` is true for a member that is a namespace,
/// which the credential must allow as well, and false for a server that only the aggregate has.
pub fn of_member(
    credential: &Credential,
    member: &Namespace,
    tool: &str,
    is_served: bool,
) -> Vec<Rule> {
    let mut rules = match is_served {
        true => of_namespace(credential, &member.name, Some(member)),
        false => Vec::new(),
    };
    // The rule about the credential's validity was already evaluated for the aggregate.
    rules.retain(|rule| rule.rule != CREDENTIAL);
    rules.extend(of_tool(credential, member, tool));
    for rule in &mut rules {
        rule.rule.push_str(" of the member ");
        rule.rule.push_str(member.name.as_str());
    }
    rules
}

/// The access lists of a namespace, and then the lists of the operator's own file if the namespace has them. Each comes with a
/// suffix for the names of its rules.
fn lists_of(limits: &Limits) -> Vec<(&'static str, AccessLists)> {
    let operators = limits.within.as_deref().cloned();
    let own = ("", limits.lists());
    let operators = operators.map(|lists| (", as the operator has it", lists));
    std::iter::once(own).chain(operators).collect()
}

/// Compiles the access lists of `only`. `None` if a pattern is invalid, which a served namespace cannot have.
fn policy(only: &Limits) -> Option<ToolPolicy> {
    ToolPolicy::new(only).ok()
}

fn list(texts: &[String]) -> String {
    match texts {
        [] => "nothing".to_owned(),
        texts => texts.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use tooldock_base::grant::GrantSource;
    use tooldock_base::scope::ScopeTable;

    use super::*;

    fn credential(scopes: &[&str], namespaces: &[&str]) -> Credential {
        let patterns: Vec<_> = namespaces.iter().map(|&it| it.to_owned()).collect();
        Credential {
            principal: "key:ci".into(),
            named: "API key abc".into(),
            ended: None,
            namespaces: Arc::new(NamespaceScope::new(&patterns).unwrap()),
            patterns,
            grant: Some(Arc::new(Grant {
                tools: Arc::new(ScopeTable::default().compile(scopes).unwrap()),
                source: GrantSource::Key { id: "abc".into() },
            })),
            notes: Vec::new(),
        }
    }

    /// A name that counts how many of its kind are there at once.
    struct CountedName<'a> {
        name: String,
        count: &'a Count,
    }

    #[derive(Default)]
    struct Count {
        now: Cell<usize>,
        most: Cell<usize>,
    }

    impl<'a> CountedName<'a> {
        fn new(name: String, count: &'a Count) -> Self {
            count.now.set(count.now.get() + 1);
            count.most.set(count.most.get().max(count.now.get()));
            Self { name, count }
        }
    }

    impl Drop for CountedName<'_> {
        fn drop(&mut self) {
            self.count.now.set(self.count.now.get() - 1);
        }
    }

    impl AsRef<str> for CountedName<'_> {
        fn as_ref(&self) -> &str {
            &self.name
        }
    }

    impl PartialEq for CountedName<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.name == other.name
        }
    }

    impl Eq for CountedName<'_> {}

    impl PartialOrd for CountedName<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    impl Ord for CountedName<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.name.cmp(&other.name)
        }
    }

    /// Every name twice, in no order.
    fn names(count: &Count) -> impl Iterator<Item = CountedName<'_>> {
        let all = (0..10_000).map(|at| at * 7919 % 5000);
        all.map(|at| CountedName::new(format!("key:{at:04}"), count))
    }

    #[test]
    fn a_message_names_the_first_20_principals_and_holds_no_more_of_them() {
        let count = Count::default();
        let told = Principals::in_words(names(&count));
        let first: Vec<_> = (0..20).map(|at| format!("key:{at:04}")).collect();
        assert_eq!(told, format!("{} and 9960 more", first.join(", ")));
        assert!(count.most.get() <= 21, "{}", count.most.get());
        assert_eq!(Principals::in_words(["b", "a", "b"]), "a, b");
        assert_eq!(Principals::in_words([""; 0]), "");
    }

    #[test]
    fn a_list_holds_and_describes_its_own_principals_alone() {
        let count = Count::default();
        let mut described = 0;
        let listed = Principals::first_of(names(&count), |entry| {
            described += 1;
            KnownPrincipal {
                name: entry.name.clone(),
                credential: "API key".into(),
                key_id: None,
                state: "active".into(),
            }
        });
        assert_eq!((listed.principals.len(), listed.left_out), (1000, 9000));
        assert_eq!(described, 1000);
        assert!(count.most.get() <= 1001, "{}", count.most.get());
        let expected = (0..1000).map(|at| format!("key:{:04}", at / 2));
        assert!(
            listed
                .principals
                .iter()
                .map(|it| &it.name)
                .eq(&expected.collect::<Vec<_>>())
        );
    }

    fn refusing(rules: &[Rule]) -> Vec<&str> {
        let refusing = rules.iter().filter(|it| !it.allows);
        refusing.map(|it| it.rule.as_str()).collect()
    }

    #[test]
    fn a_namespace_that_is_not_there_or_not_open_says_which() {
        let who = credential(&["read"], &["dev-*"]);
        let rules = of_namespace(&who, &"github".parse().unwrap(), None);
        assert_eq!(
            refusing(&rules),
            ["namespaces of the credential", "namespace"]
        );
        let ended = Credential {
            ended: Some("revoked".into()),
            ..credential(&["read"], &["*"])
        };
        let rules = of_namespace(&ended, &NamespaceName::system(), None);
        assert_eq!(
            refusing(&rules),
            ["credential", "namespaces of the credential", "namespace"]
        );
    }
}
