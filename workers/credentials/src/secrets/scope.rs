//! Scopes of secrets, and rules for their names.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use tooldock_base::mask;
use tooldock_base::names::{
    InvalidNamespaceName, InvalidPrincipalName, NamespaceName, PrincipalName,
};
use tooldock_base::template::is_variable_name;

use super::SecretsError;

/// The text of [`Scope::Global`]. A namespace of this name cannot have secrets of its own scope.
const GLOBAL: &str = "global";

/// Prefix of the text of [`Scope::Principal`]. It is unambiguous, since names of namespaces contain no colon.
pub(super) const PRINCIPAL: &str = "principal:";

/// Scope of a secret: the namespaces or callers for which the secret is used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// The secret is for every namespace.
    Global,
    /// The secret is for a single namespace. A value of this scope takes precedence over a global one of the same key.
    Namespace(NamespaceName),
    /// The secret is for a single principal: for all its callers, in every namespace that requires a personal value of this name.
    Principal(PrincipalName),
}

/// Reason why a text is not the scope of a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScope {
    /// The text is not a valid name of a namespace.
    #[error("{0}; or write global, or principal:NAME")]
    Namespace(#[from] InvalidNamespaceName),
    /// The text has the prefix of a principal's scope, but the remainder is not a principal's name.
    #[error(transparent)]
    Principal(#[from] InvalidPrincipalName),
}

impl Scope {
    /// The scope of a namespace; `None` for a namespace named `global`, since in commands its scope could not be distinguished
    /// from that of all namespaces.
    pub fn of(namespace: &NamespaceName) -> Option<Self> {
        (namespace.as_str() != GLOBAL).then(|| Self::Namespace(namespace.clone()))
    }
}

impl Scope {
    /// The scope as a single shell word, quoted if necessary, for commands in messages. Principals may contain spaces and quotes.
    pub fn shell_word(&self) -> String {
        let text = self.to_string();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_:.@/".contains(&byte);
        match text.bytes().all(plain) {
            true => text,
            false => format!("'{}'", text.replace('\'', r"'\''")),
        }
    }
}

impl FromStr for Scope {
    type Err = InvalidScope;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(name) = text.strip_prefix(PRINCIPAL) {
            return Ok(Self::Principal(name.parse()?));
        }
        match text {
            GLOBAL => Ok(Self::Global),
            name => Ok(Self::Namespace(name.parse()?)),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Global => f.write_str(GLOBAL),
            Self::Namespace(name) => name.fmt(f),
            Self::Principal(name) => write!(f, "{PRINCIPAL}{name}"),
        }
    }
}

impl Serialize for Scope {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Checks that a secret's key is a valid name of an environment variable.
///
/// # Errors
///
/// [`SecretsError::InvalidKey`].
pub fn check_key(key: &str) -> Result<(), SecretsError> {
    match is_variable_name(key) {
        true => Ok(()),
        // The key is shown shortened, since a person may have given the value in place of the key.
        false => Err(SecretsError::InvalidKey(shortened(key))),
    }
}

/// Checks that the key of a new secret is a valid name of an environment variable and does not look like the value of a secret.
///
/// # Errors
///
/// [`SecretsError::InvalidKey`], [`SecretsError::ValueAsKey`].
pub fn check_new_key(key: &str) -> Result<(), SecretsError> {
    if mask::looks_like_a_value(key) {
        return Err(SecretsError::ValueAsKey);
    }
    check_key(key)
}

/// Shortens a text for an error: long enough to be recognized, too short to reveal a secret.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 8;
    match text.chars().count() {
        ..=SHOWN => text.to_owned(),
        _ => text.chars().take(4).chain("…".chars()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_in_the_place_of_a_new_key_is_refused_and_not_repeated() {
        for value in [
            "ghp_0123456789abcdefABCD",
            "sk-proj-0123456789abcdef",
            "sk_live_4eC39HqLyjWDarjtT1",
            "AKIAIOSFODNN7EXAMPLE",
            "a3f5c9d2e8b14f7096ad5c3be1",
            "xoxb_12345678901_abcdefghijk",
        ] {
            let error = check_new_key(value).expect_err(value).to_string();
            assert!(
                !error.contains(value) && error.contains("revoke"),
                "{error}"
            );
        }
        for name in [
            "GITHUB_TOKEN",
            "SK_TOKEN",
            "PRODUCTION_DATABASE_PASSWORD_2024_V2",
            "AWS_S3_BUCKET_EU_CENTRAL_1_ACCESS_KEY",
            "myVeryLongVariableNameForTheService",
            "OAUTH2_CLIENT_SECRET",
        ] {
            assert!(check_new_key(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_scope_is_global_a_namespace_or_a_principal() {
        let scope: Scope = "principal:key:ada".parse().unwrap();
        assert_eq!(scope, Scope::Principal("key:ada".parse().unwrap()));
        assert_eq!(scope.to_string(), "principal:key:ada");
        assert_eq!(scope.shell_word(), "principal:key:ada");
        let odd: Scope = "principal:a;'c".parse().unwrap();
        assert_eq!(odd.shell_word(), r"'principal:a;'\''c'");
        for wrong in [
            "principal:",
            "principal: x",
            "principal:a\nb",
            "principal:anonymous",
        ] {
            assert!(wrong.parse::<Scope>().is_err(), "{wrong}");
        }
        assert_eq!("global".parse(), Ok(Scope::Global));
        let scope: Scope = "dev-ops".parse().unwrap();
        assert_eq!(scope.to_string(), "dev-ops");
        assert!(Scope::of(&"global".parse().unwrap()).is_none());
        for wrong in ["_system", "../x", "Global", ""] {
            assert!(wrong.parse::<Scope>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_value_in_place_of_a_key_is_not_shown() {
        assert!(check_key("GITHUB_TOKEN").is_ok() && check_key("_x1").is_ok());
        let error = check_key("ghp-0123456789abcdef").unwrap_err().to_string();
        assert!(
            error.contains("ghp-…") && !error.contains("0123"),
            "{error}"
        );
        for wrong in ["", "1A", "A B", "A=B", "Ä", "A\0"] {
            assert!(check_key(wrong).is_err(), "{wrong:?}");
        }
    }
}
