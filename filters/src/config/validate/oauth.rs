//! Checks on `admission.oauth` that parsing does not make, such as bounds and duplicates.

use std::collections::HashSet;
use std::time::Duration;

use tooldock_base::bounds::within;
use tooldock_base::namespace_scope::NamespaceScope;

use super::{AdmissionConfig, ConfigError};
use crate::config::{Introspection, JwksSource, OauthConfig, TokenNamespaces};

/// Maximum number of issuers in the configuration.
const ISSUERS_MAX: usize = 16;
/// Maximum number of scopes of one issuer in the configuration, and also of audiences of one issuer.
const LISTED_MAX: usize = 100;
/// Maximum length of a configured value that is compared with a value in a token, in bytes.
const TEXT_MAX: usize = 1_024;
/// Highest tolerance for clock differences that can be configured. A larger value is assumed to be a mistake.
const LEEWAY_MAX: Duration = Duration::from_secs(600);

impl AdmissionConfig {
    /// Checks the issuers of access tokens.
    pub(super) fn validate_oauth(&self) -> Result<(), ConfigError> {
        if self.oauth.len() > ISSUERS_MAX {
            let message = format!("at most {ISSUERS_MAX} issuers can be configured");
            return Err(ConfigError::new("admission.oauth", message));
        }
        if !self.oauth.is_empty() && self.public_url.origin().is_none() {
            return Err(ConfigError::new(
                "admission.public_url",
                "admission.oauth needs the address by which clients reach the gateway, such as https://gw.example",
            ));
        }
        let mut issuers = HashSet::new();
        for (index, issuer) in self.oauth.iter().enumerate() {
            let at = format!("admission.oauth[{index}]");
            issuer
                .validate()
                .map_err(|(key, message)| ConfigError::new(format!("{at}.{key}"), message))?;
            if !issuers.insert(&issuer.issuer) {
                let message = "the same issuer is listed twice";
                return Err(ConfigError::new(format!("{at}.issuer"), message));
            }
        }
        Ok(())
    }
}

/// A fault of the configuration: the key, and a description of its wrong value.
type Wrong = (&'static str, String);

impl OauthConfig {
    fn validate(&self) -> Result<(), Wrong> {
        self.endpoint(&self.issuer)
            .map_err(|message| ("issuer", message))?;
        if self.issuer.contains(['?', '#']) {
            let message = "an issuer is a URL without query and fragment";
            return Err(("issuer", message.into()));
        }
        if let JwksSource::Url(url) = &self.jwks {
            self.endpoint(url).map_err(|message| ("jwks", message))?;
        }
        if let Introspection::At(at) = &self.introspection {
            self.endpoint(&at.url)
                .map_err(|message| ("introspection.url", message))?;
            if at.client_id.is_empty() || at.client_secret.written().expose().is_empty() {
                let message = "client_id and client_secret must not be empty: the issuer has to know who asks";
                return Err(("introspection", message.into()));
            }
        }
        self.validate_web()?;
        self.validate_audience()?;
        self.validate_scopes()?;
        if self.algorithms.is_empty() {
            let message = "no algorithm is listed; write [RS256, ES256]";
            return Err(("algorithms", message.into()));
        }
        within(self.leeway, &(Duration::ZERO..=LEEWAY_MAX))
            .map_err(|message| ("leeway", message))?;
        if self.principal.is_empty() {
            let message = "the claim's name is empty; write sub";
            return Err(("principal", message.into()));
        }
        match &self.namespaces {
            TokenNamespaces::Listed(patterns) if patterns.is_empty() => {
                let message = "no namespace is listed; write [\"*\"] for all";
                Err(("namespaces", message.into()))
            }
            TokenNamespaces::Listed(patterns) => {
                let compiled = NamespaceScope::new(patterns);
                compiled
                    .map(drop)
                    .map_err(|message| ("namespaces", message))
            }
            TokenNamespaces::Claimed(it) if it.claim.is_empty() => {
                let message = "the claim's name is empty".to_owned();
                Err(("namespaces.claim", message))
            }
            TokenNamespaces::Claimed(_) => Ok(()),
        }
    }

    fn validate_web(&self) -> Result<(), Wrong> {
        let Some(client) = self.web_login() else {
            return Ok(());
        };
        if client.client_id.is_empty() || client.client_id.len() > TEXT_MAX {
            let message = "name the client that is registered at the issuer for the web UI";
            return Err(("web.client_id", message.into()));
        }
        let secret = client.client_secret.as_ref();
        if secret.is_some_and(|it| it.written().expose().is_empty()) {
            let message = "is empty; leave it out for a public client";
            return Err(("web.client_secret", message.into()));
        }
        if client.scopes.len() > LISTED_MAX {
            let message = format!("at most {LISTED_MAX} scopes can be requested");
            return Err(("web.scopes", message));
        }
        if let Some(name) = client.scopes.iter().find(|it| !is_scope(it)) {
            let message = format!("{name:?} is no name of an OAuth scope");
            return Err(("web.scopes", message));
        }
        let resource = self.login_resource();
        if resource.is_some_and(|it| !it.contains("://") || it.contains('#')) {
            let message = "is auto, off, or a URL without a fragment";
            return Err(("web.resource", message.into()));
        }
        Ok(())
    }

    fn validate_audience(&self) -> Result<(), Wrong> {
        let names = self.audience.names();
        let fits = |it: &String| (1..=TEXT_MAX).contains(&it.len());
        match (1..=LISTED_MAX).contains(&names.len()) && names.iter().all(fits) {
            true => Ok(()),
            false => Err((
                "audience",
                "name what the aud of tokens for this gateway is, as in https://gw.example/mcp"
                    .into(),
            )),
        }
    }

    fn validate_scopes(&self) -> Result<(), Wrong> {
        if self.scopes.is_empty() || self.scopes.len() > LISTED_MAX {
            let message = format!(
                "map 1 to {LISTED_MAX} scopes of tokens to scopes of the gateway, as in {{ \"mcp:read\": read }}; without one, tokens allow nothing"
            );
            return Err(("scopes", message));
        }
        match self.scopes.keys().find(|it| !is_scope(it)) {
            Some(name) => Err(("scopes", format!("{name:?} is no name of an OAuth scope"))),
            None => Ok(()),
        }
    }
}

/// Returns true if the text is a valid scope name (RFC 6749, 3.3). Quotes and backslashes are not allowed, since challenges
/// contain scopes within quotes.
fn is_scope(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
    (1..=TEXT_MAX).contains(&name.len()) && name.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn wrong(change: &str) -> String {
        let (key, value) = change.split_once(": ").unwrap();
        let mut keys = vec![
            ("issuer", "'https://idp.example'"),
            ("audience", "a"),
            ("scopes", "{ r: read }"),
        ];
        match keys.iter_mut().find(|(name, _)| *name == key) {
            Some(found) => found.1 = value,
            None => keys.push((key, value)),
        }
        let entry: Vec<_> = keys
            .iter()
            .map(|(key, value)| format!("{key}: {value}"))
            .collect();
        let entry = format!("{{ {} }}", entry.join(", "));
        let text = format!("public_url: 'https://gw'\noauth: [ {entry} ]");
        let config: AdmissionConfig = yaml::from_str(&text).expect(&text);
        config
            .validate()
            .map_or_else(|error| error.key, |()| "fine".into())
    }

    #[test]
    fn validation_names_the_key() {
        for (change, key) in [
            ("leeway: 30s", "fine"),
            ("issuer: 'http://127.0.0.1:9'", "fine"),
            ("issuer: 'http://idp.example'", "admission.oauth[0].issuer"),
            (
                "issuer: 'https://idp.example?x'",
                "admission.oauth[0].issuer",
            ),
            ("issuer: idp", "admission.oauth[0].issuer"),
            ("audience: ''", "admission.oauth[0].audience"),
            ("audience: []", "admission.oauth[0].audience"),
            ("jwks: 'ftp://x/'", "admission.oauth[0].jwks"),
            ("algorithms: []", "admission.oauth[0].algorithms"),
            ("leeway: 1h", "admission.oauth[0].leeway"),
            ("principal: ''", "admission.oauth[0].principal"),
            ("scopes: {}", "admission.oauth[0].scopes"),
            ("scopes: { 'a b': read }", "admission.oauth[0].scopes"),
            ("scopes: { 'a\"': read }", "admission.oauth[0].scopes"),
            ("namespaces: []", "admission.oauth[0].namespaces"),
            ("namespaces: ['[']", "admission.oauth[0].namespaces"),
            (
                "namespaces: { claim: '' }",
                "admission.oauth[0].namespaces.claim",
            ),
            ("web: { client_id: ui }", "fine"),
            ("web: { client_id: '' }", "admission.oauth[0].web.client_id"),
            (
                "web: { client_id: ui, client_secret: '' }",
                "admission.oauth[0].web.client_secret",
            ),
            (
                "web: { client_id: ui, scopes: ['a b'] }",
                "admission.oauth[0].web.scopes",
            ),
            (
                "web: { client_id: ui, resource: here }",
                "admission.oauth[0].web.resource",
            ),
            (
                "introspection: { url: 'http://idp/x', client_id: a, client_secret: b }",
                "admission.oauth[0].introspection.url",
            ),
            (
                "introspection: { url: 'https://idp/x', client_id: a, client_secret: '' }",
                "admission.oauth[0].introspection",
            ),
        ] {
            assert_eq!(wrong(change), key, "{change}");
        }
    }

    #[test]
    fn tokens_need_the_public_address_and_one_entry_for_each_issuer() {
        let entry = "{ issuer: 'https://idp.example', audience: a, scopes: { r: read } }";
        let key = |text: String| {
            let config: AdmissionConfig = yaml::from_str(&text).unwrap();
            config.validate().unwrap_err().key
        };
        assert_eq!(key(format!("oauth: [ {entry} ]")), "admission.public_url");
        let twice = format!("public_url: 'https://gw'\noauth: [ {entry}, {entry} ]");
        assert_eq!(key(twice), "admission.oauth[1].issuer");
    }
}
