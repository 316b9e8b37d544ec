//! Scopes of credentials: names for lists of tool patterns, such as `read` for tools that change nothing (REL-08, K-24).
//!
//! `admin` allows every tool. `write` and `read` have the patterns of [`ScopeTable::default`], which the configuration key
//! `relay.scopes` replaces or extends. Patterns are matched against the name that a tool has in its own namespace. A credential
//! with several scopes may call all tools that any of them allows.
//!
//! The tools that create, list and revoke API keys require `admin` (REL-09), even if a pattern matches: a caller that creates
//! keys could create a key that allows everything.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::pattern::{InvalidPattern, Patterns};

/// Name of the scope that allows every tool.
pub const ADMIN: &str = "admin";

const WRITE: &[&str] = &[
    "project_*",
    "container_*",
    "session_*",
    "workspace_*",
    "image_rebuild",
];

const READ: &[&str] = &[
    "project_list",
    "project_get",
    "session_list",
    "session_get",
    "session_events",
    "workspace_list",
    "config_limits",
];

/// The tools that manage API keys; only the scope `admin` allows them.
const KEY_TOOLS: &[&str] = &["token_create", "token_list", "token_revoke"];

/// The configuration key with the scopes and their patterns.
const KEY: &str = "relay.scopes";

/// All existing scopes with their patterns, except `admin`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScopeTable(BTreeMap<String, Vec<String>>);

/// The tools that a credential's scopes allow.
#[derive(Debug)]
pub struct ToolScope {
    names: Box<[Box<str>]>,
    /// True if one of the scopes is [`ADMIN`].
    admin: bool,
    tools: Patterns,
    fingerprint: [u8; 32],
}

/// Error for a scope name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown scope {name:?}: known are {known}")]
pub struct UnknownScope {
    name: String,
    known: String,
}

/// Reason why a scope of the configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidScope {
    /// A pattern of the scope is not a valid glob.
    #[error("{scope}: invalid pattern {:?}: {}", .error.pattern, .error.reason)]
    Pattern {
        /// Name of the scope.
        scope: String,
        /// Error of the glob parser.
        error: InvalidPattern,
    },
    /// The configuration gives patterns to `admin`, which always allows every tool.
    #[error("{ADMIN} opens every tool and cannot be given patterns; choose another name")]
    Admin,
    /// The name contains characters that are not allowed, such as the commas and spaces that separate scopes in lists.
    #[error("invalid name {0:?}: 1 to 64 letters, digits, `_`, `-`, `.` and `:` are allowed")]
    Name(String),
}

impl Default for ScopeTable {
    fn default() -> Self {
        let patterns = |of: &[&str]| of.iter().map(|&it| it.to_owned()).collect();
        Self(BTreeMap::from([
            ("read".to_owned(), patterns(READ)),
            ("write".to_owned(), patterns(WRITE)),
        ]))
    }
}

impl ScopeTable {
    /// Merges the built-in scopes with those of `relay.scopes`, which take precedence.
    ///
    /// # Errors
    ///
    /// [`InvalidScope`] names the scope or the pattern.
    pub fn new(configured: &BTreeMap<String, Vec<String>>) -> Result<Self, InvalidScope> {
        let mut table = Self::default();
        for (name, patterns) in configured {
            if name == ADMIN {
                return Err(InvalidScope::Admin);
            }
            if !is_name(name) {
                return Err(InvalidScope::Name(name.clone()));
            }
            Patterns::new(KEY, patterns).map_err(|error| InvalidScope::Pattern {
                scope: name.clone(),
                error,
            })?;
            table.0.insert(name.clone(), patterns.clone());
        }
        Ok(table)
    }

    /// The names of all scopes, [`ADMIN`] first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(ADMIN).chain(self.0.keys().map(String::as_str))
    }

    /// All scopes except [`ADMIN`], each with its name and its patterns.
    pub fn patterns(&self) -> impl Iterator<Item = (&str, &[String])> {
        self.0.iter().map(|(name, all)| (&**name, &**all))
    }

    /// Compiles the patterns of the scopes with these names. An empty list of names allows no tool.
    ///
    /// # Errors
    ///
    /// [`UnknownScope`] for a name without a scope.
    pub fn compile<N: AsRef<str>>(&self, names: &[N]) -> Result<ToolScope, UnknownScope> {
        let mut patterns = Vec::new();
        let mut admin = false;
        for name in names.iter().map(N::as_ref) {
            match (name, self.0.get(name)) {
                (ADMIN, _) => admin = true,
                (_, Some(more)) => patterns.extend_from_slice(more),
                (_, None) => return Err(self.unknown(name)),
            }
        }
        let tools = Patterns::new(KEY, &patterns);
        Ok(ToolScope {
            names: names.iter().map(|it| it.as_ref().into()).collect(),
            admin,
            // Cannot fail: each pattern of the table was already compiled when the table was created.
            tools: tools.map_err(|_| self.unknown(""))?,
            fingerprint: fingerprint(admin, &patterns),
        })
    }

    fn unknown(&self, name: &str) -> UnknownScope {
        let known: Vec<_> = self.names().collect();
        UnknownScope {
            name: name.to_owned(),
            known: known.join(", "),
        }
    }
}

impl ToolScope {
    /// The names of the scopes, in the order in which they were given.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }

    /// Returns true if the tool may be listed and called. `tool` is its name in its own namespace.
    pub fn allows(&self, tool: &str) -> bool {
        self.admin || self.tools.is_match(tool) && !KEY_TOOLS.contains(&tool)
    }

    /// Returns true if every tool may be called, whatever its name: one of the scopes is [`ADMIN`].
    pub fn is_admin(&self) -> bool {
        self.admin
    }

    /// A hash over the scopes. Scopes with equal hashes allow the same tools.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |it: char| it.is_ascii_alphanumeric() || "_-.:".contains(it);
    (1..=64).contains(&name.len()) && name.chars().all(allowed)
}

fn fingerprint(admin: bool, patterns: &[String]) -> [u8; 32] {
    if admin {
        return Sha256::digest(ADMIN).into();
    }
    let mut sorted: Vec<&String> = patterns.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut hash = Sha256::new();
    for pattern in sorted {
        hash.update((pattern.len() as u64).to_le_bytes());
        hash.update(pattern);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(names: &[&str]) -> ToolScope {
        ScopeTable::default().compile(names).expect("known")
    }

    fn configured(name: &str, patterns: &[&str]) -> Result<ScopeTable, InvalidScope> {
        let patterns = patterns.iter().map(|&it| it.to_owned()).collect();
        ScopeTable::new(&BTreeMap::from([(name.to_owned(), patterns)]))
    }

    #[test]
    fn a_scope_of_every_pattern_is_not_admin() {
        let table = configured("all", &["*"]).expect("a table");
        let all = table.compile(&["all"]).expect("known");
        assert!(all.allows("anything") && !all.allows("token_create") && !all.is_admin());
        let admin = table.compile(&["admin", "all"]).expect("known");
        assert!(admin.allows("token_create") && admin.is_admin());
        assert_ne!(all.fingerprint(), admin.fingerprint());
        assert_eq!(admin.fingerprint(), scope(&["admin"]).fingerprint());
    }

    #[test]
    fn the_built_in_scopes_open_what_their_table_says() {
        // EX-115: tool, write, read. `admin` opens all of them.
        for (tool, write, read) in [
            ("project_create", true, false),
            ("project_list", true, true),
            ("project_get", true, true),
            ("session_list", true, true),
            ("session_get", true, true),
            ("session_events", true, true),
            ("workspace_list", true, true),
            ("container_start", true, false),
            ("session_message", true, false),
            ("workspace_delete", true, false),
            ("image_rebuild", true, false),
            ("config_limits", false, true),
            ("token_create", false, false),
            ("token_list", false, false),
            ("token_revoke", false, false),
        ] {
            assert!(scope(&["admin"]).allows(tool), "{tool}");
            assert_eq!(scope(&["write"]).allows(tool), write, "{tool}");
            assert_eq!(scope(&["read"]).allows(tool), read, "{tool}");
            let both = scope(&["read", "write"]);
            assert_eq!(both.allows(tool), write || read, "{tool}");
        }
        assert!(!scope(&[]).allows("project_list"));
        assert!(scope(&["read", "admin"]).is_admin());
        assert!(!scope(&["write"]).is_admin());
    }

    #[test]
    fn the_configuration_replaces_scopes_and_adds_others() {
        let read = configured("read", &["get_*"]).expect("usable");
        let read = read.compile(&["read"]).expect("known");
        assert!(read.allows("get_issue") && !read.allows("project_list"));
        let ci = configured("ci:deploy", &["deploy"]).expect("usable");
        assert!(ci.compile(&["ci:deploy"]).expect("known").allows("deploy"));
        assert!(ci.compile(&["read"]).expect("known").allows("project_list"));
    }

    #[test]
    fn no_pattern_opens_the_tools_that_handle_keys_and_admin_does() {
        let patterns = ["token_*", "token_create", "{token_list,token_revoke}"];
        let keys = configured("keys", &patterns).expect("usable");
        let keys = keys.compile(&["keys", "read"]).expect("known");
        for tool in KEY_TOOLS {
            assert!(!keys.allows(tool), "{tool}");
            assert!(scope(&["read", "admin"]).allows(tool), "{tool}");
        }
        assert!(keys.allows("token_count"));
    }

    #[test]
    fn a_scope_that_cannot_be_is_refused_by_name() {
        let refused = |name: &str, pattern: &str| {
            let refused = configured(name, &[pattern]).err();
            refused.map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(refused("admin", "x").contains("admin opens every tool"));
        for name in ["", "a b", "a,b", "a\"b", &"a".repeat(65)] {
            assert!(refused(name, "x").contains("invalid name"), "{name:?}");
        }
        assert!(refused("ci", "[").contains("ci: invalid pattern \"[\""));
        let unknown = ScopeTable::default().compile(&["rad"]).err();
        assert_eq!(
            unknown.map(|it| it.to_string()).as_deref(),
            Some("unknown scope \"rad\": known are admin, read, write")
        );
    }

    #[test]
    fn equal_fingerprints_mean_equal_tools() {
        let of = |names: &[&str]| scope(names).fingerprint();
        assert_eq!(of(&["read", "write"]), of(&["write", "read"]));
        assert_ne!(of(&["read"]), of(&["write"]));
        assert_ne!(of(&["read"]), of(&[]));
    }
}
