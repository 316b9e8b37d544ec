//! `/api/secrets`: lists secrets with the namespaces that use them, and stores values. Values are never shown.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use tooldock_base::secret::Secret;
use tooldock_credentials::secrets::{Scope, SecretNames, SecretsError, Status};
use tooldock_sessions::caller::Caller;

use super::answer::{Answer, WebFailure, capitalised, json_of};
use super::request::ApiRequest;
use super::tools::{call, management, reload_soon};
use super::trail;
use crate::mcp::Core;

/// Runs `ask` on the secrets store, on a thread for blocking work.
async fn ask<T: Send + 'static>(
    core: &Core,
    ask: impl FnOnce(&SecretNames) -> Result<T, SecretsError> + Send + 'static,
) -> Result<T, WebFailure> {
    let names = management(core)?.secret_names();
    let asked = tokio::task::spawn_blocking(move || ask(&names)).await;
    let asked =
        asked.map_err(|_| WebFailure::refused("The secrets store was interrupted; try again"))?;
    asked.map_err(|error| WebFailure::refused(capitalised(error.to_string())))
}

pub(super) async fn list(core: &Arc<Core>, request: &ApiRequest) -> Answer {
    let wanted = request.wanted();
    let folders = management(core)?.workspace.namespaces().await?;
    let entries = ask(core, |names| names.list(None)).await?;
    let word = |status| match status {
        Status::Set => "set",
        Status::Placeholder => "placeholder",
    };
    // Entries by scope and key of a secret: its status, and the namespaces that use it.
    let mut all: BTreeMap<(String, String), (&str, Vec<String>)> = entries
        .into_iter()
        .map(|it| ((it.scope, it.key), (word(it.status), Vec::new())))
        .collect();
    let global = Scope::Global.to_string();
    for folder in folders {
        for secret in folder.secrets {
            let own = (folder.name.to_string(), secret.key.clone());
            let shared = (global.clone(), secret.key);
            let place = match all.contains_key(&own) || !all.contains_key(&shared) {
                true => own,
                false => shared,
            };
            let entry = all.entry(place).or_insert_with(|| ("missing", Vec::new()));
            entry.1.push(folder.name.to_string());
        }
    }
    // Configured servers refer to secrets by `${NAME}` in their environment variables.
    for server in management(core)?.workspace.servers().await? {
        let env = server.config["env"]
            .as_object()
            .cloned()
            .unwrap_or_default();
        for text in env.values().filter_map(|it| it.as_str()) {
            let name = text.strip_prefix("${").and_then(|it| it.strip_suffix('}'));
            let Some(name) = name else { continue };
            let own = (server.name.to_string(), name.to_owned());
            let shared = (global.clone(), name.to_owned());
            // A name that is a secret neither of the server nor of all namespaces may be an environment variable of the gateway.
            let place = [own, shared].into_iter().find(|it| all.contains_key(it));
            if let Some(entry) = place.and_then(|place| all.get_mut(&place)) {
                entry.1.push(server.name.to_string());
            }
        }
    }
    let shown = all
        .into_iter()
        .filter(|((_, key), _)| key.to_lowercase().contains(&wanted));
    let shown = shown.map(|((scope, key), (status, used_by))| {
        json!({"key": key, "scope": scope, "status": status, "used_by": used_by})
    });
    request.page("secrets", shown.collect(), json!({}))
}

/// A request to store a secret's value. Its `Debug` output does not contain the value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct New {
    key: String,
    scope: String,
    value: String,
}

impl fmt::Debug for New {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("New").finish_non_exhaustive()
    }
}

fn scope(text: &str) -> Result<Scope, WebFailure> {
    text.parse().map_err(|error| {
        WebFailure::invalid(
            "scope",
            format!("scope is global, a namespace or principal:NAME: {error}"),
        )
    })
}

pub(super) async fn set(core: &Arc<Core>, caller: &Caller, request: &ApiRequest) -> Answer {
    if !request.is_private {
        return Err(WebFailure::new(
            http::StatusCode::FORBIDDEN,
            "insecure_connection",
            "A value may be sent over TLS or from this machine only: use https, or `tooldock secrets set` on the server.",
        ));
    }
    // The parser's error is not returned to the client, since it would quote the body and with it the value.
    let New { key, scope: whose, value } = serde_json::from_slice(&request.body).map_err(|_| {
        WebFailure::invalid("body", r#"The body has to be JSON with the texts "key", "scope" and "value", and nothing else"#)
    })?;
    let whose = scope(&whose)?;
    let value = Secret::new(value);
    let (name, place) = (key.clone(), whose.clone());
    let set = ask(core, move |names| names.set(&name, &place, value)).await;
    trail::note(core, caller, "set_secret", &set);
    set?;
    reload_soon(core);
    json_of(&json!({"set": true, "key": key, "scope": whose}))
}

pub(super) async fn remove(
    core: &Arc<Core>,
    caller: &Caller,
    scope_text: &str,
    key: &str,
) -> Answer {
    let whose = scope(scope_text)?;
    let listed = whose.clone();
    let known = ask(core, move |names| names.list(Some(&listed))).await?;
    if !known.iter().any(|it| it.key == key) {
        return Err(WebFailure::not_found(
            "secret_not_found",
            "There is no such secret; the list shows those there are",
        ));
    }
    let arguments = match &whose {
        Scope::Global => json!({ "key": key }),
        Scope::Namespace(name) => json!({"key": key, "namespace": name}),
        Scope::Principal(name) => json!({"key": key, "principal": name}),
    };
    call(core, caller, "remove_secret", &arguments).await?;
    json_of(&json!({"removed": true, "key": key, "scope": whose}))
}
