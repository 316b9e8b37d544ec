//! Maps the claims of an access token to a principal: checks the token's audience and times, and determines its principal's
//! name and rights. The rules are the same for the claims of a JWT and for the answer of an introspection endpoint.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tooldock_base::grant::{Grant, GrantSource, OfferedScope, TokenScopes};
use tooldock_base::key_maker::{EntryHash, KeyMaker};
use tooldock_base::names::NamespaceName;
use tooldock_base::namespace_scope::NamespaceScope;
use tooldock_base::scope::ScopeTable;

use super::jwt::Claims;
use crate::config::{OauthConfig, TokenNamespaces};
use crate::makers;
use crate::principal::Principal;

/// Maximum length of the claim that names the principal, in bytes. Tokens with a longer one are refused.
const SUBJECT_MAX: usize = 255;

/// Maximum number of namespaces that a token's claim may list. Tokens with more are refused.
const NAMESPACES_MAX: usize = 256;

/// Refusal of tokens whose namespace claim is not a valid list of namespaces.
const NO_NAMESPACES: RefusalReason =
    "the claim of admission.oauth[].namespaces is no list of namespaces";

/// The rules for claims in the tokens of one issuer, compiled from its configuration entry.
#[derive(Debug)]
pub(super) struct ClaimRules {
    config: OauthConfig,
    table: ScopeTable,
    /// The scopes of tokens that the configuration maps to scopes of the gateway. Challenges list them.
    pub(super) offered: Arc<[OfferedScope]>,
    /// Hash over the issuer's configuration entry. API keys that are created with its tokens store the hash to find the entry
    /// again.
    entry: EntryHash,
}

/// The reason why a token's claims were refused, as a text for the log.
pub(super) type RefusalReason = &'static str;

impl ClaimRules {
    /// Compiles the rules from an issuer's configuration entry. The error names a gateway scope that does not exist.
    pub(super) fn new(config: &OauthConfig, table: &ScopeTable) -> Result<Self, String> {
        let offered = config.scopes.iter().map(|(name, permission)| {
            let tools = table.compile(&[permission]).map_err(|it| it.to_string())?;
            Ok(OfferedScope {
                name: name.as_str().into(),
                tools: Arc::new(tools),
            })
        });
        Ok(Self {
            offered: offered.collect::<Result<Vec<_>, String>>()?.into(),
            entry: makers::hash_of_issuer(config),
            config: config.clone(),
            table: table.clone(),
        })
    }

    /// Returns true if both values contain the same rules, so that stored verdicts stay valid.
    pub(super) fn are_same_rules(&self, other: &Self) -> bool {
        self.config == other.config && self.table == other.table
    }

    /// Finds the principal of a JWT with these claims, as of the time `now`.
    pub(super) fn principal(
        &self,
        claims: &Claims,
        now: SystemTime,
    ) -> Result<Arc<Principal>, RefusalReason> {
        if claims.get("iss").and_then(Value::as_str) != Some(&self.config.issuer) {
            return Err("the token is another issuer's");
        }
        self.judge(claims, now, true)
    }

    /// Finds the principal of a token from the answer of an introspection endpoint. The endpoint belongs to the issuer, so the
    /// answer may omit the issuer and the expiry, which a JWT must contain.
    pub(super) fn introspected(
        &self,
        claims: &Claims,
        now: SystemTime,
    ) -> Result<Arc<Principal>, RefusalReason> {
        if claims.get("active") != Some(&Value::Bool(true)) {
            return Err("the issuer says that the token is not active");
        }
        let named = claims.get("iss").filter(|it| !it.is_null());
        if named.is_some_and(|it| it.as_str() != Some(&self.config.issuer)) {
            return Err("the token is another issuer's");
        }
        self.judge(claims, now, false)
    }

    fn judge(
        &self,
        claims: &Claims,
        now: SystemTime,
        ends: bool,
    ) -> Result<Arc<Principal>, RefusalReason> {
        let audience = texts(claims.get("aud"));
        if !audience
            .iter()
            .any(|it| self.config.audience.names().iter().any(|own| own == it))
        {
            return Err("the token's aud names none of admission.oauth[].audience");
        }
        let expires_at = match time(claims, "exp")? {
            Some(at) => Some(at + self.config.leeway),
            None if ends => return Err("the token has no exp"),
            None => None,
        };
        if expires_at.is_some_and(|at| at <= now) {
            return Err("the token has expired");
        }
        if time(claims, "nbf")?.is_some_and(|at| at > now + self.config.leeway) {
            return Err("the token does not count yet (nbf)");
        }
        let name = self.name(claims)?;
        let patterns = self.patterns(claims)?;
        let namespaces = NamespaceScope::new(&patterns).map_err(|_| NO_NAMESPACES)?;
        let grant = self.grant(claims)?;
        let makes_keys = grant.tools.is_admin() && namespaces.opens(&NamespaceName::system());
        let maker = match makes_keys {
            true => {
                let issuer = &self.config.issuer;
                let own = patterns.as_ref().into();
                makers::of_access_token(issuer, self.entry, &name, own, expires_at)
            }
            false => KeyMaker::default(),
        };
        let principal = Principal::of_access_token(&name, namespaces, grant, expires_at);
        Ok(Arc::new(principal.making(maker)))
    }

    /// The principal's name: `oauth:ISSUER#SUBJECT`. An issuer's URL contains no `#` and the name of a configured principal no
    /// `:`. So different subjects have different names, and none has the name of a configured token.
    fn name(&self, claims: &Claims) -> Result<String, RefusalReason> {
        let subject = claims.get(&self.config.principal).and_then(Value::as_str);
        let fits =
            |it: &&str| (1..=SUBJECT_MAX).contains(&it.len()) && !it.chars().any(char::is_control);
        match subject.filter(fits) {
            Some(subject) => Ok(format!("oauth:{}#{subject}", self.config.issuer)),
            None => Err("the claim of admission.oauth[].principal is no text of 1 to 255 bytes"),
        }
    }

    /// The names and patterns of the namespaces that a token gives access to.
    fn patterns(&self, claims: &Claims) -> Result<Cow<'_, [String]>, RefusalReason> {
        let patterns = match &self.config.namespaces {
            TokenNamespaces::Listed(patterns) => Cow::Borrowed(patterns.as_slice()),
            TokenNamespaces::Claimed(it) => Cow::Owned(texts(claims.get(&it.claim))),
        };
        match patterns.len() > NAMESPACES_MAX {
            true => Err(NO_NAMESPACES),
            false => Ok(patterns),
        }
    }

    /// The rights that the scopes of the token grant. Scopes that the configuration does not map grant nothing.
    fn grant(&self, claims: &Claims) -> Result<Grant, RefusalReason> {
        let scopes = match claims.get("scope") {
            Some(scope) => words(Some(scope)),
            None => words(claims.get("scp")),
        };
        let mapping: &BTreeMap<_, _> = &self.config.scopes;
        let held: Vec<_> = mapping.keys().filter(|it| scopes.contains(it)).collect();
        let permissions: Vec<_> = held.iter().map(|it| mapping[*it].as_str()).collect();
        let tools = self.table.compile(&permissions);
        let tools = tools.map_err(|_| "a scope of the configuration is gone")?;
        Ok(Grant {
            tools: Arc::new(tools),
            source: GrantSource::Token(Arc::new(TokenScopes {
                held: held.iter().map(|it| it.as_str().into()).collect(),
                offered: Arc::clone(&self.offered),
            })),
        })
    }
}

/// Returns the strings of a claim that is a string or a list of strings; empty for any other claim.
fn texts(claim: Option<&Value>) -> Vec<String> {
    match claim {
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(list)) => {
            let texts = list.iter().filter_map(Value::as_str);
            texts.map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

/// Splits a claim into words. The claim is a string with spaces, or a list of strings.
fn words(claim: Option<&Value>) -> Vec<String> {
    let texts = texts(claim);
    let words = texts.iter().flat_map(|text| text.split(' '));
    words
        .filter(|it| !it.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Parses a claim that is a time in seconds since 1970; `Ok(None)` if the claim is missing.
fn time(claims: &Claims, name: &str) -> Result<Option<SystemTime>, RefusalReason> {
    /// The end of the year 9999, in seconds since 1970. Later times are refused: they are mistakes and would overflow.
    const LAST: f64 = 253_402_300_799.0;
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64().filter(|it| (0.0..=LAST).contains(it)) {
            Some(seconds) => Ok(Some(UNIX_EPOCH + Duration::from_secs_f64(seconds))),
            None => Err("a time of the token is no number of seconds since 1970"),
        },
    }
}
