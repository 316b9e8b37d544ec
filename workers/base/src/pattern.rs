//! Lists of glob patterns for the names of tools and principals.

use globset::{Glob, GlobSet, GlobSetBuilder};

/// A list of glob patterns. For the most common list, `*`, no automaton is built, because a list is matched on every call.
#[derive(Debug, Clone)]
pub(crate) struct Patterns {
    everything: bool,
    globs: GlobSet,
}

impl Patterns {
    /// Compiles a list of patterns; `key` is the configuration key that errors name.
    pub(crate) fn new(key: &'static str, patterns: &[String]) -> Result<Self, InvalidPattern> {
        let invalid = |pattern: &str, error: globset::Error| InvalidPattern {
            key,
            pattern: pattern.to_owned(),
            reason: error.kind().to_string(),
        };
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            set.add(Glob::new(pattern).map_err(|error| invalid(pattern, error))?);
        }
        Ok(Self {
            everything: patterns.iter().any(|pattern| pattern == "*"),
            globs: set.build().map_err(|error| invalid("", error))?,
        })
    }

    /// Returns true if one of the patterns matches the name.
    pub(crate) fn is_match(&self, name: &str) -> bool {
        // An empty `GlobSet` is not asked: it would parse the name before it finds that it has no patterns.
        self.everything || (!self.globs.is_empty() && self.globs.is_match(name))
    }

    /// Returns true if one of the patterns matches every name.
    pub(crate) fn is_everything(&self) -> bool {
        self.everything
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.everything && self.globs.is_empty()
    }
}

/// A pattern that is not a valid glob.
#[derive(Debug, thiserror::Error)]
#[error("{key}: invalid pattern {pattern:?}: {reason}")]
pub struct InvalidPattern {
    /// The configuration key of the pattern.
    pub key: &'static str,
    /// The invalid pattern.
    pub pattern: String,
    /// Error message of the glob parser.
    pub reason: String,
}
