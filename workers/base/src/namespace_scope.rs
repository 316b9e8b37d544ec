//! The namespaces that a credential may access: names and glob patterns, compiled once.

use globset::{Glob, GlobSet, GlobSetBuilder};

use crate::names::NamespaceName;

/// The namespaces that a credential may access.
#[derive(Debug)]
pub struct NamespaceScope {
    names: Names,
    /// True if the management tools may be accessed, too. They can write code that reads every namespace's secrets, so no glob
    /// pattern includes them: `_system` must be listed by its name.
    management: bool,
}

#[derive(Debug)]
enum Names {
    All,
    Matching(GlobSet),
}

impl NamespaceScope {
    /// Access to all namespaces, including the management tools.
    pub const UNRESTRICTED: Self = Self {
        names: Names::All,
        management: true,
    };
    /// Access to every namespace except the management tools, which require an identified client.
    pub const ANYBODY: Self = Self {
        names: Names::All,
        management: false,
    };

    /// Compiles names and globs.
    ///
    /// # Errors
    ///
    /// The text that is neither a name nor a glob.
    pub fn new(patterns: &[String]) -> Result<Self, String> {
        let system = NamespaceName::system();
        let management = patterns.iter().any(|pattern| pattern == system.as_str());
        Ok(Self {
            names: Names::new(patterns)?,
            management,
        })
    }

    /// Returns true if the scope gives access to the namespace.
    pub fn opens(&self, namespace: &NamespaceName) -> bool {
        match namespace.is_system() {
            true => self.management,
            false => self.contains(namespace.as_str()),
        }
    }

    /// Returns true if a name or a pattern of the scope matches the name. No pattern matches the management tools: see
    /// [`NamespaceScope::opens`].
    pub fn contains(&self, namespace: &str) -> bool {
        match &self.names {
            Names::All => true,
            Names::Matching(set) => set.is_match(namespace),
        }
    }
}

impl Names {
    fn new(patterns: &[String]) -> Result<Self, String> {
        if patterns.iter().any(|pattern| pattern == "*") {
            return Ok(Self::All);
        }
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            let glob = Glob::new(pattern)
                .map_err(|error| format!("invalid pattern {pattern:?}: {}", error.kind()))?;
            set.add(glob);
        }
        let set = set.build().map_err(|error| error.kind().to_string())?;
        Ok(Self::Matching(set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opens(patterns: &[&str], namespace: &NamespaceName) -> bool {
        let patterns: Vec<_> = patterns.iter().map(|&it| it.to_owned()).collect();
        NamespaceScope::new(&patterns).unwrap().opens(namespace)
    }

    #[test]
    fn management_tools_are_open_only_where_their_namespace_is_listed_by_name() {
        let system = NamespaceName::system();
        for patterns in [&["*"][..], &["_*"], &["_syste?"], &["github"]] {
            assert!(!opens(patterns, &system), "{patterns:?}");
        }
        assert!(opens(&["_system"], &system));
        assert!(NamespaceScope::UNRESTRICTED.opens(&system));
        assert!(!NamespaceScope::ANYBODY.opens(&system));
    }

    #[test]
    fn patterns_open_the_namespaces_that_they_match() {
        let name: NamespaceName = "dev-2".parse().unwrap();
        assert!(opens(&["github", "dev-*"], &name) && opens(&["*"], &name));
        assert!(!opens(&["github", "dev"], &name));
        assert!(NamespaceScope::new(&["[".to_owned()]).is_err());
    }
}
