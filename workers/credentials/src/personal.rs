//! Personal values: secrets of single principals, and the settings of a server that are derived from them.
//!
//! ```text
//! secrets store, scope principal:NAME ──reload──▶ PersonalSecrets ──┐
//! a server's keys, `personal: [TOKEN]` ──reload──▶ Personal ────────┴──for a caller──▶ PersonalValues
//! ```
//!
//! A name that a server lists under `personal` is looked up only among the values of the calling principal: a shared value
//! never replaces a personal one. Personal values are not part of a snapshot, so that a new value affects only its principal.
//!
//! At a reload, the `personal` names of a server become [`Personal`]. `mcp-upstream/engine/upstream/client.rs` refuses a caller
//! without a value, `mcp-upstream/servers/launch.rs` starts a principal's process with its values, and
//! `proxy/remote/credentials.rs` adds them to requests. Headers with the gateway's own credentials are never forwarded to a
//! server (`headers_for_servers`, `proxy/gateway/hand_over.rs`).

use std::collections::BTreeSet;

use serde_json::json;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::names::{NamespaceName, PrincipalName};
use tooldock_base::secret::Secret;
use tooldock_base::server_failure::InvalidServer;
use tooldock_base::template::{NoValue, Parts, Sources, Template, is_variable_name};

use crate::secrets::{Authorizer, PersonalSecrets, Scope};

/// Maximum number of personal values of one server; a longer list is refused as a mistake.
const SLOTS_MAX: usize = 64;

/// The settings of a server that depend on the caller: variables of a stdio server, headers of a remote server. Also the kind of
/// authorization without which a remote server cannot be used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Personal {
    slots: BTreeSet<String>,
    /// Templates of the settings, by the name of the variable or header.
    entries: Vec<(String, Parts)>,
    authorized_by: Option<AuthorizedBy>,
}

/// Kind of authorizer: the operator or each principal authorizes the gateway at a remote server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorizedBy {
    /// The operator authorizes the gateway, for all principals.
    Operator,
    /// Each principal authorizes the gateway for its own calls.
    Principal,
}

/// The personal settings of a server for one principal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PersonalValues {
    /// Values of the settings, by the name of the variable or header.
    pub entries: Vec<(String, Secret)>,
    /// Secret values that must be hidden in logs and errors.
    pub hidden: Vec<Secret>,
    /// Time when the principal authorized the gateway, in seconds since 1970; `None` if no authorization is needed. If it
    /// changes, the gateway may act for a different user at the server.
    pub authorized_since: Option<u64>,
}

/// Personal credentials that a principal has not given yet for a server. At least one is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingCredentials {
    /// Names of the personal values that the principal lacks.
    pub slots: Vec<String>,
    /// The authorization that the principal has not given; `None` if none is needed.
    pub authorizer: Option<Authorizer>,
}

impl Personal {
    /// Creates the settings of a server that has these personal names. Settings are added by [`Personal::take`].
    pub fn new(slots: &[String]) -> Self {
        Self {
            slots: slots.iter().cloned().collect(),
            ..Self::default()
        }
    }

    /// Requires that the operator or the calling principal has authorized the gateway at the server.
    pub fn authorize(&mut self, by: AuthorizedBy) {
        self.authorized_by = Some(by);
    }

    /// Adds a setting if its template refers to a personal name; other references in the template are resolved now. Returns false
    /// if it refers to no personal name: the setting is then the same for all principals and is not added.
    pub fn take(
        &mut self,
        name: &str,
        template: &Template,
        sources: &Sources<'_>,
    ) -> Result<bool, NoValue> {
        if !template.names().iter().any(|it| self.slots.contains(*it)) {
            return Ok(false);
        }
        let parts = template.parts(sources, &|name| self.slots.contains(name))?;
        self.entries.push((name.to_owned(), parts));
        Ok(true)
    }

    /// Returns true if any setting, or the authorization, depends on the caller.
    pub fn is_needed(&self) -> bool {
        !self.entries.is_empty() || self.authorized_by == Some(AuthorizedBy::Principal)
    }

    /// Checks that a principal has all values that calls of the server need.
    ///
    /// # Errors
    ///
    /// As [`Personal::values`].
    pub fn check(
        &self,
        namespace: &NamespaceName,
        secrets: &PersonalSecrets,
        principal: Option<&str>,
    ) -> Result<(), CallError> {
        match self.is_needed() || self.authorized_by.is_some() {
            true => self.values(namespace, secrets, principal).map(drop),
            false => Ok(()),
        }
    }

    /// The principal, or the operator, whose authorization of the gateway the calls of a principal need; `None` if no
    /// authorization is needed.
    pub fn authorizer(
        &self,
        namespace: &NamespaceName,
        principal: Option<&str>,
    ) -> Option<Authorizer> {
        let principal = match self.authorized_by? {
            AuthorizedBy::Operator => None,
            AuthorizedBy::Principal => Some(principal?.parse().ok()?),
        };
        Some(Authorizer {
            namespace: namespace.clone(),
            principal,
        })
    }

    /// The names of the variables or headers that depend on the caller.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// Computes the settings of the server for a principal.
    ///
    /// # Errors
    ///
    /// `missing_credential`: names the personal values that the principal lacks, and the command that sets the first of them; or
    /// the command that authorizes the gateway.
    pub fn values(
        &self,
        namespace: &NamespaceName,
        secrets: &PersonalSecrets,
        principal: Option<&str>,
    ) -> Result<PersonalValues, CallError> {
        let mut values = PersonalValues::default();
        if let Some(authorizer) = self.authorizer(namespace, principal) {
            let since = secrets.authorized_since(&authorizer);
            values.authorized_since = Some(since.ok_or_else(|| not_authorized(authorizer))?);
        }
        if !self.is_needed() {
            return Ok(values);
        }
        let name = principal.and_then(|name| name.parse::<PrincipalName>().ok());
        let Some(name) = name else {
            return Err(self.for_nobody(namespace));
        };
        let own = secrets.of(name.as_str()).unwrap_or_default();
        let missing: Vec<_> = self
            .slots
            .iter()
            .filter(|it| !own.contains_key(*it))
            .collect();
        if !missing.is_empty() {
            return Err(missing_values(namespace, name, &missing));
        }
        for (entry, parts) in &self.entries {
            let Some(value) = parts.fill(&own) else {
                continue;
            };
            values.hidden.push(value.clone());
            values.entries.push((entry.clone(), value));
        }
        let slots = self.slots.iter().filter_map(|slot| own.get(slot).cloned());
        values.hidden.extend(slots);
        Ok(values)
    }

    /// Returns the credentials that a principal has not given yet; `None` if none is missing. An authorization that counts for
    /// all principals is left out, since the operator gives it.
    pub fn missing(
        &self,
        namespace: &NamespaceName,
        secrets: &PersonalSecrets,
        principal: &str,
    ) -> Option<MissingCredentials> {
        let name = principal.parse::<PrincipalName>().ok()?;
        let is_own = self.authorized_by == Some(AuthorizedBy::Principal);
        let authorizer = self.authorizer(namespace, Some(principal));
        let authorizer = authorizer.filter(|it| is_own && secrets.authorized_since(it).is_none());
        let own = secrets.of(name.as_str()).unwrap_or_default();
        let slots = self.slots.iter().filter(|it| !own.contains_key(*it));
        let slots: Vec<_> = slots.cloned().collect();
        let is_complete = slots.is_empty() && authorizer.is_none();
        (!is_complete).then_some(MissingCredentials { slots, authorizer })
    }

    /// Hides the personal values of all principals in a text that quotes the server.
    pub fn hide(&self, secrets: &PersonalSecrets, text: String) -> String {
        match self.is_needed() {
            true => secrets.hide(&self.slots, &text),
            false => text,
        }
    }

    /// The personal values of all principals under the names that the server uses.
    pub fn of_all(&self, secrets: &PersonalSecrets) -> Vec<Secret> {
        let all = secrets.current.load();
        let own = all.values().flat_map(|own| &**own);
        let own = own.filter(|(key, _)| self.slots.contains(*key));
        own.map(|(_, value)| value.clone()).collect()
    }

    /// The personal values of one principal under the names that the server uses.
    pub fn of_principal(&self, secrets: &PersonalSecrets, principal: Option<&str>) -> Vec<Secret> {
        let own = principal.and_then(|principal| secrets.of(principal));
        let own = own.iter().flat_map(|own| &**own);
        let own = own.filter(|(key, _)| self.slots.contains(*key));
        own.map(|(_, value)| value.clone()).collect()
    }

    fn for_nobody(&self, namespace: &NamespaceName) -> CallError {
        let message = format!(
            "namespace {namespace} needs credentials of whoever calls, and this call has no principal of its own: use a listener \
             that asks for a token, and call with one"
        );
        let error = CallError::new(CallErrorCode::MissingCredential, message);
        with_details(error, &json!({ "slots": self.slots }))
    }
}

fn missing_values(
    namespace: &NamespaceName,
    name: PrincipalName,
    missing: &[&String],
) -> CallError {
    let scope = Scope::Principal(name);
    let first = missing.first().map_or("", |it| it.as_str());
    let command = format!(
        "tooldock secrets set --key {first} --scope {}",
        scope.shell_word()
    );
    let keys: Vec<_> = missing.iter().map(|it| it.as_str()).collect();
    let message = format!(
        "namespace {namespace} needs a personal value of {} for this caller, and none is set. Ask whoever operates the gateway \
         to run: {command}",
        keys.join(", ")
    );
    let details = json!({ "slots": missing, "scope": scope, "command": command });
    with_details(
        CallError::new(CallErrorCode::MissingCredential, message),
        &details,
    )
}

/// Creates the error for callers while the gateway is not authorized, or is no longer authorized.
pub fn not_authorized(authorizer: Authorizer) -> CallError {
    let Authorizer {
        namespace,
        principal,
    } = authorizer;
    let scope = principal.map(Scope::Principal);
    let option = scope.as_ref().map(Scope::shell_word);
    let option = option.map_or_else(String::new, |scope| format!(" --scope {scope}"));
    let command = format!("tooldock secrets authorize --namespace {namespace}{option}");
    let whose = match scope {
        Some(_) => "in this caller's name",
        None => "for everybody",
    };
    let message = format!(
        "namespace {namespace} is not authorized at its server {whose}. Ask whoever operates the gateway to run: {command}"
    );
    let details = json!({ "scope": scope, "command": command });
    with_details(
        CallError::new(CallErrorCode::MissingCredential, message),
        &details,
    )
}

fn with_details(mut error: CallError, details: &serde_json::Value) -> CallError {
    error.details = serde_json::value::to_raw_value(details).ok();
    error
}

/// Checks the configuration key `personal` of a server. `used` are the settings that may refer to the personal names.
pub fn check<'a>(
    personal: &[String],
    used: impl IntoIterator<Item = &'a Template>,
) -> Result<(), InvalidServer> {
    let wrong = |message: String| Err(InvalidServer::new("personal", message));
    if personal.len() > SLOTS_MAX {
        return wrong(format!("has more than {SLOTS_MAX} entries"));
    }
    let used: BTreeSet<_> = used.into_iter().flat_map(Template::names).collect();
    let mut seen = BTreeSet::new();
    for (index, slot) in personal.iter().enumerate() {
        if !is_variable_name(slot) {
            return wrong(format!("entry {index} is no name of a variable"));
        }
        if !seen.insert(slot) {
            return wrong(format!("names {slot} twice"));
        }
        if !used.contains(slot.as_str()) {
            return wrong(format!(
                "names {slot}, which nothing of this server refers to: write ${{{slot}}} where the value belongs"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::secrets::Secrets;

    fn secrets(pairs: &[(&str, &str, &str)]) -> Secrets {
        pairs
            .iter()
            .fold(Secrets::default(), |all, (scope, key, value)| {
                all.with_scope(&scope.parse().unwrap(), key, Secret::new(*value))
            })
    }

    fn personal(text: &str, shared: &Secrets) -> Personal {
        let shared = shared.for_namespace(&"ns".parse().unwrap()).values;
        let sources = Sources {
            secrets: &shared,
            environment: &|_| Some("of the gateway".to_owned()),
            allowed: None,
        };
        let mut personal = Personal::new(&["TOKEN".to_owned()]);
        let taken = personal.take("authorization", &Template::new(text), &sources);
        assert!(taken.unwrap());
        personal
    }

    fn value(
        personal: &Personal,
        own: &PersonalSecrets,
        who: Option<&str>,
    ) -> Result<String, CallError> {
        let values = personal.values(&"ns".parse().unwrap(), own, who)?;
        Ok(values.entries[0].1.expose().to_owned())
    }

    #[test]
    fn each_principal_gets_its_own_value_and_nobody_a_shared_one() {
        let all = secrets(&[
            ("global", "TOKEN", "everybodys"),
            ("ns", "TOKEN", "the-namespaces"),
            ("global", "PREFIX", "Bearer"),
            ("principal:ada", "TOKEN", "adas"),
            ("principal:key:bob", "TOKEN", "bobs"),
            ("principal:carol", "OTHER", "carols"),
        ]);
        let own = PersonalSecrets::default();
        own.install(&all);
        let personal = personal("${PREFIX} ${TOKEN}", &all);
        assert_eq!(value(&personal, &own, Some("ada")).unwrap(), "Bearer adas");
        assert_eq!(
            value(&personal, &own, Some("key:bob")).unwrap(),
            "Bearer bobs"
        );
        let refused = value(&personal, &own, Some("carol")).unwrap_err();
        assert_eq!(refused.code, CallErrorCode::MissingCredential);
        let command = "tooldock secrets set --key TOKEN --scope principal:carol";
        assert!(refused.message.contains(command), "{refused}");
        assert!(refused.details.unwrap().get().contains(command));
        for nobody in [None, Some(""), Some("anonymous")] {
            let refused = value(&personal, &own, nobody).unwrap_err();
            assert_eq!(refused.code, CallErrorCode::MissingCredential, "{nobody:?}");
        }
    }

    #[test]
    fn a_change_is_told_and_what_did_not_change_is_kept() {
        let own = PersonalSecrets::default();
        let mut changes = own.subscribe();
        own.install(&secrets(&[
            ("principal:a", "T", "1"),
            ("principal:b", "T", "2"),
        ]));
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        let kept = own.of("b").unwrap();
        own.install(&secrets(&[
            ("principal:a", "T", "1"),
            ("principal:b", "T", "2"),
        ]));
        assert!(!changes.has_changed().unwrap());
        own.install(&secrets(&[
            ("principal:a", "T", "3"),
            ("principal:b", "T", "2"),
        ]));
        assert!(changes.has_changed().unwrap());
        assert!(Arc::ptr_eq(&kept, &own.of("b").unwrap()));
    }

    #[test]
    fn values_show_neither_in_debug_nor_in_texts_that_quote_a_server() {
        let all = secrets(&[
            ("principal:ada", "TOKEN", "hunter2"),
            ("principal:bob", "TOKEN", "hunter3"),
        ]);
        let own = PersonalSecrets::default();
        own.install(&all);
        let personal = personal("literal-secret ${TOKEN}", &all);
        let values = personal
            .values(&"ns".parse().unwrap(), &own, Some("ada"))
            .unwrap();
        let text = format!("{own:?} {personal:?} {values:?}");
        assert!(
            !text.contains("hunter") && !text.contains("literal"),
            "{text}"
        );
        let told = personal.hide(&own, "no user hunter2 or hunter3".to_owned());
        assert_eq!(told, "no user [redacted] or [redacted]");
    }

    #[test]
    fn a_name_that_nothing_refers_to_is_a_mistake() {
        let used = [Template::new("Bearer ${TOKEN}")];
        let check = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|it| (*it).to_owned()).collect();
            check(&names, &used).map_err(|error| error.to_string())
        };
        assert_eq!(check(&["TOKEN"]), Ok(()));
        for (names, said) in [
            (&["TOKEN", "TOKEN"][..], "TOKEN twice"),
            (&["OTHER"], "refers to"),
            (&["A B"], "no name"),
        ] {
            let error = check(names).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
