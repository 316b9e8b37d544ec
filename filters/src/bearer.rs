//! Credentials: a bearer token, looked up by its digest.
//!
//! The presented token is hashed first, whatever it is, so that neither its length nor how much of it is right takes a
//! different path (SEC-03). The digest leads to its entry in one step, however many tokens there are; since nobody can
//! choose a digest, what that step reveals about stored digests is of no use. The last word has a constant-time compare.

use std::collections::HashMap;
use std::sync::Arc;

use globset::{Glob, GlobSet, GlobSetBuilder};
use tooldock_workers::names::NamespaceName;

use crate::basic;
use crate::config::TokenConfig;
use crate::fields::{Field, Fields};
use crate::fingerprint::Fingerprints;
use crate::rejection::Rejection;
use crate::token::{SecretToken, TokenDigest};

/// The principal that `BEARER_TOKEN` stands for. It may use every namespace.
pub const BEARER: &str = "bearer";

/// The principal of every request on a listener without credentials.
pub const ANONYMOUS: &str = "anonymous";

/// Who a token stands for, and which namespaces it opens.
#[derive(Debug)]
pub struct Principal {
    pub(crate) name: Arc<str>,
    pub(crate) namespaces: NamespaceScope,
}

impl Principal {
    /// The token's name, [`BEARER`] or [`ANONYMOUS`].
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Whether the token opens a namespace. The namespace's own list of principals comes on top.
    pub fn opens(&self, namespace: &NamespaceName) -> bool {
        match namespace.is_system() {
            true => self.namespaces.management,
            false => self.namespaces.contains(namespace.as_str()),
        }
    }
}

/// The namespaces a token opens, compiled once.
#[derive(Debug)]
pub(crate) struct NamespaceScope {
    names: Names,
    /// Whether the management tools are open, too. They write code that reads every namespace's secrets, so no pattern
    /// opens them by chance: `_system` has to be listed by its name.
    management: bool,
}

#[derive(Debug)]
enum Names {
    All,
    Matching(GlobSet),
}

impl NamespaceScope {
    /// Everything, the management tools included.
    const UNRESTRICTED: Self = Self {
        names: Names::All,
        management: true,
    };
    /// Every namespace. The management tools are for somebody who is known.
    const ANYBODY: Self = Self {
        names: Names::All,
        management: false,
    };

    /// Compiles names and globs; the error says which one is none.
    pub(crate) fn new(patterns: &[String]) -> Result<Self, String> {
        let system = NamespaceName::system();
        let management = patterns.iter().any(|pattern| pattern == system.as_str());
        Ok(Self {
            names: Names::new(patterns)?,
            management,
        })
    }

    pub(crate) fn contains(&self, namespace: &str) -> bool {
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

/// All tokens, by digest.
#[derive(Debug)]
pub(crate) struct Tokens {
    by_digest: HashMap<TokenDigest, Arc<Principal>, Fingerprints>,
    anonymous: Arc<Principal>,
}

impl Tokens {
    /// The error says which pattern of which token is none; see [`AdmissionConfig::validate`] for the rest.
    ///
    /// [`AdmissionConfig::validate`]: crate::config::AdmissionConfig::validate
    pub(crate) fn new(
        tokens: &[TokenConfig],
        bearer: Option<&SecretToken>,
    ) -> Result<Self, String> {
        let principal = |name: &str, namespaces| {
            Arc::new(Principal {
                name: name.into(),
                namespaces,
            })
        };
        let mut by_digest =
            HashMap::with_capacity_and_hasher(tokens.len() + 1, Fingerprints::default());
        for token in tokens {
            let principal = Principal {
                name: token.name.as_str().into(),
                namespaces: NamespaceScope::new(&token.namespaces)?,
            };
            by_digest.insert(token.sha256, Arc::new(principal));
        }
        // Last, so that the unrestricted token stays that even where it is listed too.
        if let Some(bearer) = bearer {
            let unrestricted = principal(BEARER, NamespaceScope::UNRESTRICTED);
            by_digest.insert(bearer.digest(), unrestricted);
        }
        Ok(Self {
            by_digest,
            anonymous: principal(ANONYMOUS, NamespaceScope::ANYBODY),
        })
    }

    /// Who a listener without credentials serves.
    pub(crate) fn anonymous(&self) -> &Arc<Principal> {
        &self.anonymous
    }

    /// Who sends the request, or 401 with the challenge.
    pub(crate) fn authenticate(&self, fields: &Fields<'_>) -> Result<&Arc<Principal>, Rejection> {
        let value = match fields.authorization {
            Field::Once(value) => value.as_bytes(),
            Field::Absent => {
                return Err(Rejection::unauthorized(
                    "No credentials: send `Authorization: Bearer <token>`.",
                ));
            }
            Field::Several => {
                return Err(Rejection::unauthorized(
                    "Several Authorization headers: send exactly one.",
                ));
            }
        };
        let Some(token) = bearer_token(value) else {
            return Err(Rejection::unauthorized(
                "Unsupported credentials: send `Authorization: Bearer <token>`.",
            ));
        };
        self.owner(token)
            .ok_or_else(|| Rejection::unauthorized("The bearer token is not valid."))
    }

    /// The same where a browser may say it by `Basic`, too: this user, and a token in place of a password.
    pub(crate) fn authenticate_browser(
        &self,
        user: &str,
        fields: &Fields<'_>,
    ) -> Result<&Arc<Principal>, Rejection> {
        let Field::Once(value) = fields.authorization else {
            return self.authenticate(fields);
        };
        let Some(credentials) = basic::credentials(value.as_bytes()) else {
            return self.authenticate(fields);
        };
        let found = credentials.and_then(|it| self.owner(&it.token).filter(|_| it.user == user));
        found.ok_or_else(|| {
            Rejection::unauthorized(
                "The user name or the token is not valid: send ADMIN_USERNAME and, as the password, a token.",
            )
        })
    }

    /// Whose token it is.
    fn owner(&self, token: &[u8]) -> Option<&Arc<Principal>> {
        let digest = TokenDigest::of(token);
        match self.by_digest.get_key_value(&digest) {
            Some((stored, principal)) if stored.matches(&digest) => Some(principal),
            _ => None,
        }
    }
}

/// The token of `Bearer <token>`; the scheme's case does not matter.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.trim_ascii().split_at_checked(6)?;
    let token = rest.trim_ascii_start();
    let separated = token.len() < rest.len();
    (scheme.eq_ignore_ascii_case(b"bearer") && separated && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::rejection::Reason;

    fn tokens() -> Tokens {
        let token = |name: &str, text: &str, namespaces: &[&str]| TokenConfig {
            name: name.into(),
            sha256: TokenDigest::of(text.as_bytes()),
            namespaces: namespaces.iter().map(|&name| name.into()).collect(),
        };
        Tokens::new(
            &[
                token("ci", "ci-old", &["github", "dev-*"]),
                token("ci", "ci-new", &["github", "dev-*"]),
                token("ops", "change_me_ops", &["*"]),
            ],
            Some(&SecretToken::new("change_me").unwrap()),
        )
        .unwrap()
    }

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    fn who(value: &str) -> Option<String> {
        let tokens = tokens();
        let principal = tokens
            .authenticate(&Fields::of(&headers(&[value.as_bytes()])))
            .ok()?;
        Some(principal.name.to_string())
    }

    #[test]
    fn only_the_unrestricted_token_opens_the_management_tools_without_a_word_about_them() {
        let tokens = tokens();
        let opens = |value: &str| {
            let headers = headers(&[value.as_bytes()]);
            let principal = tokens.authenticate(&Fields::of(&headers)).unwrap();
            principal.opens(&NamespaceName::system())
        };
        assert!(opens("Bearer change_me"));
        assert!(!opens("Bearer change_me_ops") && !opens("Bearer ci-old"));
        assert!(!tokens.anonymous().opens(&NamespaceName::system()));
    }

    #[test]
    fn tokens_stand_for_their_principals() {
        for (value, principal) in [
            ("Bearer change_me", BEARER),
            ("bearer change_me", BEARER),
            ("BEARER   change_me  ", BEARER),
            ("Bearer ci-old", "ci"),
            ("Bearer ci-new", "ci"),
            ("Bearer change_me_ops", "ops"),
        ] {
            assert_eq!(who(value).as_deref(), Some(principal), "{value}");
        }
    }

    #[test]
    fn everything_else_is_401_with_a_challenge() {
        let tokens = tokens();
        for (value, challenge) in [
            (&b"Bearer change_me2"[..], "Bearer"),
            (b"Bearer change_m", "Bearer"),
            (b"Bearer change_me change_me", "Bearer"),
            (b"Bearer \xff\xfe", "Bearer"),
            (b"Bearer", "Bearer"),
            (b"Bearer ", "Bearer"),
            (b"Bearerchange_me", "Bearer"),
            (b"Basic Y2hhbmdlX21l", "Bearer"),
            (b"change_me", "Bearer"),
            (b"", "Bearer"),
        ] {
            let refused = tokens
                .authenticate(&Fields::of(&headers(&[value])))
                .unwrap_err();
            assert_eq!(refused.reason, Reason::Unauthorized);
            let expected = (WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
            assert_eq!(refused.headers, [expected], "{value:?}");
        }
        let none = tokens
            .authenticate(&Fields::of(&HeaderMap::new()))
            .unwrap_err();
        assert_eq!(none.headers[0].1, "Bearer");
    }

    #[test]
    fn two_authorization_headers_are_refused_even_when_both_are_right() {
        let both = headers(&[b"Bearer change_me", b"Bearer change_me"]);
        let refused = tokens().authenticate(&Fields::of(&both)).unwrap_err();
        assert_eq!(refused.reason, Reason::Unauthorized);
    }

    #[test]
    fn a_refusal_never_repeats_the_token() {
        let refused = tokens()
            .authenticate(&Fields::of(&headers(&[b"Bearer canary-4711"])))
            .unwrap_err();
        assert!(!format!("{refused:?}").contains("canary"));
    }

    #[test]
    fn a_token_opens_its_namespaces_only() {
        let tokens = tokens();
        let principal = tokens
            .authenticate(&Fields::of(&headers(&[b"Bearer ci-new"])))
            .unwrap();
        for (namespace, open) in [
            ("github", true),
            ("dev-2", true),
            ("github2", false),
            ("dev", false),
        ] {
            assert_eq!(
                principal.namespaces.contains(namespace),
                open,
                "{namespace}"
            );
        }
    }

    #[test]
    fn the_unrestricted_token_stays_unrestricted_when_it_is_listed_too() {
        let listed = TokenConfig {
            name: "ci".into(),
            sha256: TokenDigest::of(b"change_me"),
            namespaces: vec!["github".into()],
        };
        let bearer = SecretToken::new("change_me").unwrap();
        let tokens = Tokens::new(&[listed], Some(&bearer)).unwrap();
        let principal = tokens
            .authenticate(&Fields::of(&headers(&[b"Bearer change_me"])))
            .unwrap();
        assert!(principal.namespaces.contains("anything"));
    }
}
