//! Names from outside the gateway, parsed once and then passed as types.
//!
//! A namespace name becomes a folder, a socket file and a URL segment, so the rule is narrow enough that no escaping is needed:
//! `^[a-z0-9][a-z0-9_-]{0,62}$` (REQUIREMENTS K-40). A leading `_` or `.` never parses, which keeps `_system` reserved (NSR-05,
//! SEC-16).

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

/// Maximum length of a namespace name, in bytes.
pub const NAMESPACE_NAME_MAX: usize = 63;

/// The principal of every client of a listener without authentication. It does not identify a client, so no credentials can be
/// stored for it.
pub const ANONYMOUS: &str = "anonymous";

/// The principal of the calls that the gateway itself makes for hooks. No credential may have this name.
pub const GATEWAY: &str = "gateway";

/// Maximum length of a principal name, in bytes.
pub const PRINCIPAL_NAME_MAX: usize = 512;

/// The name of the namespace of the management tools. No text parses as this name.
const SYSTEM: &str = "_system";

/// The name that stands for all namespaces in requests to all of them. No text parses as this name.
const GLOBAL: &str = "_global";

/// A valid namespace name. Cheap to clone; equal names compare by value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct NamespaceName(Arc<str>);

/// Reason why a text is not a namespace name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid namespace name: use 1 to 63 lowercase letters, digits, '-' or '_', beginning with a letter or digit"
)]
pub struct InvalidNamespaceName;

impl NamespaceName {
    /// The name of the management tools' namespace, `_system`. No text parses as this name; only this function creates it.
    pub fn system() -> Self {
        static NAME: LazyLock<NamespaceName> = LazyLock::new(|| NamespaceName(Arc::from(SYSTEM)));
        NAME.clone()
    }

    /// Parses the name of a served namespace: a valid namespace name, or `_system`. Used for queries about namespaces, not for
    /// the names of new namespaces, which cannot be `_system`.
    ///
    /// # Errors
    ///
    /// As [`FromStr::from_str`].
    pub fn parse_served(text: &str) -> Result<Self, InvalidNamespaceName> {
        match text {
            SYSTEM => Ok(Self::system()),
            text => text.parse(),
        }
    }

    /// Returns true if the name is `_system`, that of the management tools' namespace.
    #[inline]
    pub fn is_system(&self) -> bool {
        &*self.0 == SYSTEM
    }

    /// The name for requests to all namespaces, `_global`. No text parses as this name; only this function creates it.
    pub fn global() -> Self {
        static NAME: LazyLock<NamespaceName> = LazyLock::new(|| NamespaceName(Arc::from(GLOBAL)));
        NAME.clone()
    }

    /// Returns true if the name is `_global`, which stands for requests to all namespaces.
    #[inline]
    pub fn is_global(&self) -> bool {
        &*self.0 == GLOBAL
    }

    /// The name of a server that belongs to this aggregate only, `AGGREGATE.LABEL`. No text parses as such a name, so requests
    /// reach the server only through the aggregate.
    pub fn member(&self, label: &str) -> Self {
        Self(format!("{}.{label}", self.0).into())
    }

    /// The namespace whose secrets this namespace receives: the aggregate for a member, otherwise the namespace itself.
    pub fn owner(&self) -> Self {
        match self.0.split_once('.') {
            Some((aggregate, _)) => Self(aggregate.into()),
            None => self.clone(),
        }
    }

    /// The namespace's name as text.
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if `/mcp/NAME` is a path of ToolDock v1, `/mcp/namespaces` or `/mcp/info`. A namespace of this name cannot be
    /// reached at its own path (K-38).
    pub fn is_path_of_v1(&self) -> bool {
        matches!(self.as_str(), "namespaces" | "info")
    }
}

impl FromStr for NamespaceName {
    type Err = InvalidNamespaceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = text.as_bytes();
        let alphanumeric = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let valid = bytes.len() <= NAMESPACE_NAME_MAX
            && bytes.first().is_some_and(alphanumeric)
            && bytes
                .iter()
                .all(|b| alphanumeric(b) || matches!(b, b'-' | b'_'));
        if valid {
            Ok(Self(Arc::from(text)))
        } else {
            Err(InvalidNamespaceName)
        }
    }
}

/// The name of a principal, as admission assigns it to a token, a client certificate, an API key, or a person at an identity
/// provider. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PrincipalName(Arc<str>);

/// Reason why a text is not a principal's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPrincipalName {
    /// The text is empty, too long, or contains characters that are not allowed in a principal's name.
    #[error(
        "invalid principal name: use 1 to {PRINCIPAL_NAME_MAX} bytes without control characters, and without a space at either end"
    )]
    Malformed,
    /// The text is [`ANONYMOUS`], the name that all clients without a token share.
    #[error(
        "{ANONYMOUS:?} is every client of a listener without authentication, and has no secrets of its own; give the client a token"
    )]
    Anonymous,
}

impl PrincipalName {
    /// The principal's name as text.
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PrincipalName {
    type Err = InvalidPrincipalName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let sized = (1..=PRINCIPAL_NAME_MAX).contains(&text.len());
        if !sized || text.trim() != text || text.chars().any(char::is_control) {
            return Err(InvalidPrincipalName::Malformed);
        }
        if text == ANONYMOUS {
            return Err(InvalidPrincipalName::Anonymous);
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PrincipalName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for NamespaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::borrow::Borrow<str> for NamespaceName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for NamespaceName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_lowercase_digits_hyphen_and_underscore() {
        for name in ["a", "9lives", "my-tools", "dev_2", &"x".repeat(63)] {
            assert!(name.parse::<NamespaceName>().is_ok(), "{name}");
        }
    }

    #[test]
    fn the_systems_own_name_is_made_and_never_parsed() {
        let system = NamespaceName::system();
        assert_eq!(system.as_str(), "_system");
        assert!(system.is_system() && system.as_str().parse::<NamespaceName>().is_err());
        assert!(!"system".parse::<NamespaceName>().unwrap().is_system());
        let global = NamespaceName::global();
        assert!(global.is_global() && global.as_str().parse::<NamespaceName>().is_err());
    }

    #[test]
    fn the_name_of_a_member_never_parses_and_tells_its_aggregate() {
        let aggregate: NamespaceName = "toolman".parse().unwrap();
        let member = aggregate.member("pjpd");
        assert_eq!(member.as_str(), "toolman.pjpd");
        assert!(member.as_str().parse::<NamespaceName>().is_err());
        assert_eq!(member.owner(), aggregate);
        assert_eq!(aggregate.owner(), aggregate);
    }

    #[test]
    fn a_principal_name_is_any_short_text_of_one_line() {
        for name in [
            "ci",
            "key:ada",
            "https://idp.example|ada@example.org",
            "Zoë",
        ] {
            assert_eq!(
                name.parse::<PrincipalName>().map(|it| it.to_string()),
                Ok(name.into())
            );
        }
        for name in [
            "",
            " a",
            "a ",
            "a\nb",
            "a\0",
            &"x".repeat(PRINCIPAL_NAME_MAX + 1),
        ] {
            let refused = name.parse::<PrincipalName>();
            assert_eq!(refused, Err(InvalidPrincipalName::Malformed), "{name:?}");
        }
        let refused = ANONYMOUS.parse::<PrincipalName>();
        assert_eq!(refused, Err(InvalidPrincipalName::Anonymous));
    }

    #[test]
    fn refuses_reserved_traversing_and_malformed_names() {
        for name in [
            "",
            "_system",
            ".git",
            "..",
            "Bad.Name",
            "my tools",
            "a/b",
            "a\0b",
            "-a",
            "ä",
            &"x".repeat(64),
        ] {
            assert!(name.parse::<NamespaceName>().is_err(), "{name}");
        }
    }
}
