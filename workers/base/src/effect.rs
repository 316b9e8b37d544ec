//! Effects of the management tools and of the paths of `/api`, and the scopes that cover each effect.
//!
//! A scope is a list of patterns of tool names, and a tool may do more than its name suggests. Therefore a credential with scopes
//! opens a management tool only if the scopes match the tool's name and cover all effects of the tool. A namespace's
//! [`crate::policy::ToolPolicy`] contains the table of its tools' effects, and every surface checks it.

use crate::scope::ToolScope;

/// Name of the tool that writes files. A scope must match this name to open any tool that runs code of the caller's choice.
pub const WRITE_TOOL: &str = "write_tool";

/// The scopes that are required for an effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// No further scope is required beyond the one that opens the tool. A path without a tool is open to each credential for
    /// `_system`.
    Itself,
    /// A scope that matches the name of this tool is required.
    Tool(&'static str),
    /// The scope `admin` is required. Patterns of other scopes do not count, not even `*`.
    Admin,
}

macro_rules! effects {
    ($($(#[$doc:meta])* $effect:ident: $cover:expr, $words:literal;)*) => {
        /// An effect of a management tool or of a path of `/api`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Effect { $($(#[$doc])* $effect,)* }

        impl Effect {
            /// All effects, from the least to the most dangerous.
            pub const ALL: &'static [Self] = &[$(Self::$effect,)*];

            /// The scopes that are required for the effect.
            pub const fn cover(self) -> Cover {
                match self { $(Self::$effect => $cover,)* }
            }

            /// The effect as text that follows "it", such as "runs code".
            pub const fn words(self) -> &'static str {
                match self { $(Self::$effect => $words,)* }
            }
        }
    };
}

effects! {
    /// Reads names, states and numbers of the served namespaces.
    ReadsState: Cover::Itself, "reads names and states of what is served";
    /// Reads the configuration of servers and of the gateway, with credentials masked.
    ReadsConfiguration: Cover::Tool("server_config"), "reads configuration, credentials masked";
    /// Reads code of tools and their earlier versions.
    ReadsCode: Cover::Tool("get_tool_source"), "reads code of tools";
    /// Reads names and states of secrets, but no values.
    ReadsSecretNames: Cover::Itself, "reads names of secrets";
    /// Reads the rules that decide whether a credential may call a tool.
    ReadsRights: Cover::Itself, "reads which credential may do what";
    /// Downloads and reads repositories, packages and registries of other authors. Runs nothing of them.
    FetchesSources: Cover::Itself, "downloads and reads repositories and packages, and runs nothing of them";
    /// Creates an empty namespace.
    CreatesNamespaces: Cover::Itself, "creates empty namespaces";
    /// Creates a placeholder for a secret. A person must set its value.
    AsksForSecrets: Cover::Itself, "asks a person for a secret";
    /// Reloads namespaces, which publishes changed files.
    Reloads: Cover::Tool("reload_core"), "brings what is on disk into service";
    /// Deletes a tool file.
    DeletesTools: Cover::Tool("delete_tool"), "deletes tool files";
    /// Deletes a namespace or a server with all its files.
    DeletesNamespaces: Cover::Tool("delete_namespace"), "deletes namespaces and servers";
    /// Removes a secret and its value.
    RemovesSecrets: Cover::Tool("remove_secret"), "removes secrets";
    /// Reads lines that tools printed, and tracebacks. The tool that writes files is required, because a tool that a caller has
    /// written could send the same lines to that caller anyway.
    ReadsOutput: Cover::Tool(WRITE_TOOL), "reads what tools printed";
    /// Runs code, a package or a command of the caller's choice as the gateway's user: immediately, or after a reload.
    RunsCode: Cover::Tool(WRITE_TOOL), "writes code, or runs code or commands as the gateway's user";
    /// Sets the value of a secret.
    SetsSecrets: Cover::Admin, "sets values of secrets";
    /// Reads calls, arguments, sessions and output of other callers.
    ReadsActivity: Cover::Admin, "reads calls, sessions and output of others";
    /// Ends sessions, streams and processes that other callers use.
    EndsOthersWork: Cover::Admin, "ends sessions, streams and processes of others";
    /// Approves changed definitions of servers, and deletes the records of definitions.
    ApprovesPins: Cover::Admin, "approves changed tools of servers";
    /// Creates, lists and revokes API keys.
    HandlesKeys: Cover::Admin, "makes, lists and revokes API keys";
}

impl Effect {
    /// The scopes that are required for the effect, as text that follows "it needs".
    pub fn needed(self) -> String {
        match self.cover() {
            Cover::Itself => "no further scope".to_owned(),
            Cover::Tool(name) => format!("a scope that opens {name}"),
            Cover::Admin => "the scope admin".to_owned(),
        }
    }

    /// Returns true if the scopes are sufficient for the effect.
    pub fn is_covered_by(self, scope: &ToolScope) -> bool {
        match self.cover() {
            Cover::Itself => true,
            Cover::Tool(name) => scope.allows(name),
            Cover::Admin => scope.is_admin(),
        }
    }
}

/// The effects of a namespace's tools, by the tool's name. Only the namespace of the management tools has rows.
#[derive(Debug, Clone, Copy, Default)]
pub struct ToolEffects(&'static [(&'static str, &'static [Effect])]);

/// The reason why a credential's scopes do not open a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The scopes do not open the tool, because none of their patterns matches its name.
    Name,
    /// The scopes match the tool's name, but are not sufficient for this effect of the tool.
    Effect(Effect),
}

impl ToolEffects {
    /// Creates a table. Each row contains the name of a tool and its effects.
    pub const fn new(rows: &'static [(&'static str, &'static [Effect])]) -> Self {
        Self(rows)
    }

    /// The effects of a tool. Empty if the table has no row for it.
    pub fn of(self, tool: &str) -> &'static [Effect] {
        let row = self.0.iter().find(|(name, _)| *name == tool);
        row.map_or(&[], |(_, effects)| effects)
    }

    /// Checks that the scopes open a tool: that they match its name and are sufficient for all its effects.
    ///
    /// # Errors
    ///
    /// [`Missing`]: the name or the effect for which the scopes are not sufficient.
    pub fn check(self, scope: &ToolScope, tool: &str) -> Result<(), Missing> {
        if !scope.allows(tool) {
            return Err(Missing::Name);
        }
        match uncovered(self.of(tool), scope) {
            Some(effect) => Err(Missing::Effect(effect)),
            None => Ok(()),
        }
    }
}

/// The first of the effects for which the scopes are not sufficient; `None` if they are sufficient for all.
pub fn uncovered(effects: &[Effect], scope: &ToolScope) -> Option<Effect> {
    let mut effects = effects.iter().copied();
    effects.find(|effect| !effect.is_covered_by(scope))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::scope::ScopeTable;

    #[test]
    fn an_effect_is_covered_by_its_tool_and_by_admin_and_by_no_other_pattern() {
        let scope = |pattern: &str| {
            let patterns = BTreeMap::from([("s".to_owned(), vec![pattern.to_owned()])]);
            let table = ScopeTable::new(&patterns).expect("a table");
            table.compile(&["s"]).expect("known")
        };
        let admin = ScopeTable::default().compile(&["admin"]).expect("known");
        for &effect in Effect::ALL {
            assert!(effect.is_covered_by(&admin), "{effect:?}");
            let (own, other) = match effect.cover() {
                Cover::Itself => continue,
                Cover::Tool(name) => (name, true),
                Cover::Admin => ("*", false),
            };
            assert_eq!(effect.is_covered_by(&scope(own)), other, "{effect:?}");
            assert!(!effect.is_covered_by(&scope("install_*")), "{effect:?}");
        }
        let effects = [Effect::ReadsState, Effect::RunsCode];
        assert_eq!(uncovered(&effects, &scope("write_*")), None);
        let test = scope("test_*");
        assert_eq!(uncovered(&effects, &test), Some(Effect::RunsCode));
        let table = ToolEffects::new(&[("test_tool", &[Effect::RunsCode])]);
        let missing = Missing::Effect(Effect::RunsCode);
        assert_eq!(table.check(&test, "test_tool"), Err(missing));
        assert_eq!(table.check(&test, "other"), Err(Missing::Name));
        assert_eq!(table.check(&test, "test_other"), Ok(()));
        assert_eq!(table.check(&scope("*_tool"), "test_tool"), Ok(()));
    }
}
