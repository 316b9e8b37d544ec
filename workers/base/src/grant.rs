//! Rights of a credential in addition to its namespaces. Static tokens have no grant: they open all tools of their namespaces.

use std::fmt;
use std::sync::Arc;

use crate::scope::ToolScope;

/// The rights of a credential with scopes. The edge creates the grant when it admits a request. The service uses it to restrict
/// lists and calls.
#[derive(Clone)]
pub struct Grant {
    /// The tools that the credential may list and call.
    pub tools: Arc<ToolScope>,
    /// The credential from which the grant was created.
    pub source: GrantSource,
}

/// The kind of a credential, with data that may be written to records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantSource {
    /// The credential is an API key.
    Key {
        /// The key's public id. Audit lines contain it as `token_id`.
        id: Arc<str>,
    },
    /// The credential is an access token of an OAuth issuer.
    Token(Arc<TokenScopes>),
}

/// The scopes of an access token, and all scopes that its issuer can give.
#[derive(Debug)]
pub struct TokenScopes {
    /// Scopes of the token for which the configuration defines scopes of the gateway.
    pub held: Vec<Box<str>>,
    /// All scopes of the issuer for which the configuration defines scopes of the gateway.
    pub offered: Arc<[OfferedScope]>,
}

/// A scope that an issuer can give to tokens.
#[derive(Debug)]
pub struct OfferedScope {
    /// The scope's name at the issuer.
    pub name: Box<str>,
    /// Tools that the scope opens.
    pub tools: Arc<ToolScope>,
}

impl TokenScopes {
    /// The scopes that a new token needs to open a tool, separated by spaces: the scopes of this token, and the narrowest scope
    /// that opens the tool. `None` if no scope opens it.
    pub fn wanted_for(&self, tool: &str) -> Option<String> {
        let opens = |scope: &&OfferedScope| scope.tools.allows(tool);
        let opening = || self.offered.iter().filter(opens);
        let narrow = opening().find(|scope| !scope.tools.is_admin());
        let added = narrow.or_else(|| opening().next())?;
        let mut names: Vec<&str> = self.held.iter().map(|name| &**name).collect();
        if !names.contains(&&*added.name) {
            names.push(&added.name);
        }
        Some(names.join(" "))
    }
}

impl PartialEq for TokenScopes {
    fn eq(&self, other: &Self) -> bool {
        self.held == other.held
    }
}

impl Eq for TokenScopes {}

impl Grant {
    /// The id of the API key; `None` if the grant was created from an access token.
    pub fn key_id(&self) -> Option<&Arc<str>> {
        match &self.source {
            GrantSource::Key { id } => Some(id),
            GrantSource::Token(_) => None,
        }
    }

    /// The scopes of the access token; `None` if the grant was created from an API key.
    pub fn token_scopes(&self) -> Option<&TokenScopes> {
        match &self.source {
            GrantSource::Key { .. } => None,
            GrantSource::Token(scopes) => Some(scopes),
        }
    }
}

impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scopes: Vec<_> = self.tools.names().collect();
        f.debug_struct("Grant")
            .field("scopes", &scopes)
            .field("source", &self.source)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::scope::ScopeTable;

    use super::*;

    #[test]
    fn a_token_is_told_the_narrowest_scope_that_a_tool_needs_beside_its_own() {
        let offered = |(name, permission): (&str, &str)| OfferedScope {
            name: name.into(),
            tools: Arc::new(ScopeTable::default().compile(&[permission]).expect("known")),
        };
        let offered = [("a:admin", "admin"), ("r", "read"), ("w", "write")].map(offered);
        let scopes = TokenScopes {
            held: vec!["r".into()],
            offered: Arc::new(offered),
        };
        let wanted = |tool: &str| scopes.wanted_for(tool);
        assert_eq!(wanted("project_create").as_deref(), Some("r w"));
        assert_eq!(wanted("token_list").as_deref(), Some("r a:admin"));
        assert_eq!(wanted("project_list").as_deref(), Some("r"));
    }
}
