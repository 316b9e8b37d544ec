//! Policy of a namespace: the principals that may use it, and the tools that they may call (NSR-15). Both are lists of glob
//! patterns, compiled once per reload.

use sha2::{Digest as _, Sha256};

use crate::config::{AccessLists, Limits};
use crate::effect::{Missing, ToolEffects};
use crate::pattern::{InvalidPattern, Patterns};
use crate::scope::ToolScope;

/// The compiled allow and deny lists of one namespace.
#[derive(Debug, Clone)]
pub struct ToolPolicy {
    own: Lists,
    /// The operator's allow and deny lists, if they differ from the namespace's own; a tool must then be allowed by both sources.
    within: Option<Box<Lists>>,
    /// The effects of the tools, such as running code. A scope must include a tool's effects as well as its name.
    effects: ToolEffects,
    fingerprint: [u8; 32],
}

#[derive(Debug, Clone)]
struct Lists {
    allow: Patterns,
    deny: Patterns,
    principals: Patterns,
}

impl ToolPolicy {
    /// Compiles the lists of a namespace.
    ///
    /// # Errors
    ///
    /// [`InvalidPattern`] names the key and the pattern.
    pub fn new(limits: &Limits) -> Result<Self, InvalidPattern> {
        let within = limits.within.as_deref().map(Lists::new).transpose()?;
        Ok(Self {
            own: Lists::new(&limits.lists())?,
            within: within.map(Box::new),
            effects: ToolEffects::default(),
            fingerprint: fingerprint(limits),
        })
    }

    /// Sets the effects of the namespace's tools, which [`Self::check_scope`] compares with scopes.
    #[must_use]
    pub fn with_effects(self, effects: ToolEffects) -> Self {
        Self { effects, ..self }
    }

    /// Checks that a scope includes a tool of the namespace, by its name and by all of its effects.
    ///
    /// # Errors
    ///
    /// [`Missing`] names the reason.
    pub fn check_scope(&self, scope: &ToolScope, tool: &str) -> Result<(), Missing> {
        self.effects.check(scope, tool)
    }

    /// A hash over the patterns for tools. Policies with equal hashes allow the same tools.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Returns true if the tool may be listed and called.
    pub fn allows_tool(&self, tool: &str) -> bool {
        self.own.allow_tool(tool) && self.within.as_ref().is_none_or(|it| it.allow_tool(tool))
    }

    /// Returns true if every tool may be listed and called, whatever its name.
    pub fn allows_every_tool(&self) -> bool {
        let within = self.within.as_ref();
        self.own.allow_every_tool() && within.is_none_or(|it| it.allow_every_tool())
    }

    /// Returns true if the principal may use the namespace.
    pub fn allows_principal(&self, principal: &str) -> bool {
        let within = self.within.as_ref();
        self.own.principals.is_match(principal)
            && within.is_none_or(|it| it.principals.is_match(principal))
    }
}

impl Lists {
    fn new(lists: &AccessLists) -> Result<Self, InvalidPattern> {
        Ok(Self {
            allow: Patterns::new("tools_allow", &lists.tools_allow)?,
            deny: Patterns::new("tools_deny", &lists.tools_deny)?,
            principals: Patterns::new("principals", &lists.principals)?,
        })
    }

    fn allow_tool(&self, tool: &str) -> bool {
        self.allow.is_match(tool) && !self.deny.is_match(tool)
    }

    fn allow_every_tool(&self) -> bool {
        self.allow.is_everything() && self.deny.is_empty()
    }
}

/// Returns true if every name that `pattern` matches is certainly matched by the list, too. A pattern without wildcards is
/// compared as a name with the list's patterns; for a pattern with wildcards, the list must contain the same pattern or `*`.
pub fn covers(list: &[String], pattern: &str) -> bool {
    let is_name = !pattern.contains(['*', '?', '[', '{', '\\']);
    list.iter().any(|known| known == "*" || known == pattern)
        || (is_name && Patterns::new("", list).is_ok_and(|known| known.is_match(pattern)))
}

fn fingerprint(limits: &Limits) -> [u8; 32] {
    let mut hash = Sha256::new();
    let own = limits.lists();
    for lists in [Some(&own), limits.within.as_deref()] {
        let patterns = lists.map(|it| (&it.tools_allow, &it.tools_deny));
        // Each list is hashed as JSON, so that the boundaries between lists and between patterns are part of the hash.
        let text = serde_json::to_vec(&patterns).expect("strings serialize into memory");
        hash.update(&text);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deny_wins_over_allow() {
        let policy = ToolPolicy::new(&Limits {
            tools_allow: vec!["list_*".into(), "delete_all".into()],
            tools_deny: vec!["delete_*".into()],
            ..Limits::default()
        })
        .expect("valid patterns");
        assert!(policy.allows_tool("list_issues"));
        assert!(!policy.allows_tool("delete_all"));
        assert!(!policy.allows_tool("create_issue"));
    }

    #[test]
    fn a_star_stands_for_every_name_and_an_empty_list_for_none() {
        let policy = |allow: &[&str], deny: &[&str]| {
            let owned = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect();
            ToolPolicy::new(&Limits {
                tools_allow: owned(allow),
                tools_deny: owned(deny),
                ..Limits::default()
            })
            .expect("valid patterns")
        };
        for name in ["a", "a/b", "", "ä\n"] {
            assert!(policy(&["x", "*"], &["x"]).allows_tool(name), "{name:?}");
            assert!(!policy(&[], &[]).allows_tool(name), "{name:?}");
            assert!(!policy(&["*"], &["*"]).allows_tool(name), "{name:?}");
        }
    }

    #[test]
    fn policies_that_allow_other_tools_have_other_fingerprints() {
        let of = |allow: &[&str], deny: &[&str], within: bool| {
            let owned = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect();
            let mut limits = Limits {
                tools_allow: owned(allow),
                tools_deny: owned(deny),
                ..Limits::default()
            };
            limits.within = within.then(|| Box::new(limits.lists()));
            ToolPolicy::new(&limits).expect("valid").fingerprint()
        };
        let all = [
            of(&["a", "b"], &[], false),
            of(&["ab"], &[], false),
            of(&["a"], &["b"], false),
            of(&["a"], &[], false),
            of(&["a"], &[], true),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[..at].contains(one), "{at}");
        }
        assert_eq!(all[0], of(&["a", "b"], &[], false));
    }

    #[test]
    fn a_bad_pattern_names_its_key() {
        let limits = Limits {
            tools_deny: vec!["[".into()],
            ..Limits::default()
        };
        assert_eq!(
            ToolPolicy::new(&limits).map_err(|e| e.key).unwrap_err(),
            "tools_deny"
        );
    }
}
