//! Tools for names and statuses of secrets: `prepare_secret`, `list_secrets`, `remove_secret`, `check_secrets`.
//!
//! These tools use `SecretNames`, which has no method that takes or returns a value: operators type values into `tooldock
//! secrets set`, and no tool sees them.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::time::timeout;
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;
use tooldock_base::names::{NamespaceName, PrincipalName};
use tooldock_credentials::secrets::{
    DeclaredSecret, Scope, SecretNames, SecretsError, Status, check_key,
};

use super::super::Management;
use super::super::core::CoreRequest;
use super::super::parameters::{InNamespace, Namespace};
use super::super::tool::{Hints, ManagementTool, Progress, invalid, refused};
use super::core::ReloadResult;

/// Maximum time that the response to a removal waits for the reload. Most reloads take a second, but a reload that installs
/// packages may take minutes; it continues after the response.
const RELOAD_WAIT: Duration = Duration::from_secs(20);

/// A secret's name, checked.
#[derive(Debug, JsonSchema)]
struct SecretKey(String);

impl<'de> Deserialize<'de> for SecretKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        check_key(&key).map_err(D::Error::custom)?;
        Ok(Self(key))
    }
}

/// Parameters that name a secret.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct SecretParameters {
    /// The environment variable that tools read, such as GITHUB_TOKEN. Never a value.
    key: SecretKey,
    /// Gets the secret alone; leave it out for all namespaces.
    #[serde(default)]
    namespace: Option<Namespace>,
    /// Principal of the personal value: a token's name, or key:NAME. Not with namespace.
    #[serde(default)]
    principal: Option<PrincipalParameter>,
}

/// A principal's name, checked.
#[derive(Debug, JsonSchema)]
struct PrincipalParameter(#[schemars(with = "String")] PrincipalName);

impl<'de> Deserialize<'de> for PrincipalParameter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map(Self).map_err(D::Error::custom)
    }
}

impl SecretParameters {
    fn scope(&self) -> Result<Scope, CallError> {
        let Some(Namespace(name)) = &self.namespace else {
            let personal = self.principal.as_ref();
            return Ok(personal.map_or(Scope::Global, |PrincipalParameter(name)| {
                Scope::Principal(name.clone())
            }));
        };
        if self.principal.is_some() {
            return Err(invalid(
                "A secret is a namespace's or a principal's: leave out `namespace` or `principal`",
            ));
        }
        Scope::of(name).ok_or_else(|| {
            invalid(format!(
                "A namespace called {name} has no secrets of its own. For a secret of all namespaces, leave `namespace` out"
            ))
        })
    }
}

/// The tool `prepare_secret`, which registers a secret whose value a person then sets.
pub(in super::super) struct PrepareSecret;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct PreparedSecret {
    key: String,
    /// Scope of the secret: `global`, the name of a namespace, or `principal:NAME`.
    scope: String,
    /// The file that contains the names and statuses of secrets.
    meta_file: String,
    /// The command that a person must run to set the value. Models must show it to the user unchanged.
    instructions: String,
    /// The command for a shell on the gateway's own machine, without docker.
    command: String,
}

impl ManagementTool for PrepareSecret {
    const NAME: &'static str = "prepare_secret";
    const DESCRIPTION: &'static str = "Ask for a secret: makes a placeholder that a person fills in. Never ask the user for the value, \
        never pass a value to any tool. 1. Call this with the key. 2. Show `instructions` to the user, who \
        types the value in a terminal (without docker: `command`). 3. After calling: when the user says it \
        is done, reload_core, then check_secrets(namespace). A secret that is set stays set.";
    const HINTS: Hints = Hints::ADDS;
    const EFFECTS: &'static [Effect] = &[Effect::AsksForSecrets];
    type Parameters = SecretParameters;
    type Outcome = PreparedSecret;

    async fn run(
        management: Arc<Management>,
        named: SecretParameters,
        _: Progress,
    ) -> Result<PreparedSecret, CallError> {
        let (scope, key) = (named.scope()?, named.key.0);
        let (wanted, place) = (key.clone(), scope.clone());
        with_names(&management, move |names| names.prepare(&wanted, &place)).await?;
        let secrets = &management.secrets;
        let container = &secrets.container;
        Ok(PreparedSecret {
            command: format!(
                "tooldock secrets set --key {key} --scope {}",
                scope.shell_word()
            ),
            instructions: format!(
                "Run: docker exec -it {container} python -m app.cli.secrets set --key {key} --scope {}",
                scope.shell_word()
            ),
            key,
            scope: scope.to_string(),
            meta_file: secrets.names.meta_file().display().to_string(),
        })
    }
}

/// The tool `list_secrets`, which lists the names and statuses of secrets.
pub(in super::super) struct ListSecrets;

/// Parameters of `list_secrets`: the namespace whose secrets are listed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Of {
    /// Leave it out for all secrets.
    #[serde(default)]
    namespace: Option<Namespace>,
}

#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(in super::super) struct ListedSecret {
    key: String,
    /// Scope of the secret: `global`, the name of a namespace, or `principal:NAME`.
    scope: String,
    /// Status of the secret: `set`, `placeholder` (registered without a value), or `missing` (declared by the namespace, but not
    /// registered).
    status: &'static str,
}

impl ManagementTool for ListSecrets {
    const NAME: &'static str = "list_secrets";
    const DESCRIPTION: &'static str = "List secrets by key, scope and status, never values; of a namespace, its own and those it declares \
        (missing: not asked for yet). After calling: prepare_secret for what is missing; for a placeholder, \
        remind the user of its command.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsSecretNames];
    type Parameters = Of;
    type Outcome = Vec<ListedSecret>;

    async fn run(
        management: Arc<Management>,
        of: Of,
        _: Progress,
    ) -> Result<Vec<ListedSecret>, CallError> {
        let all = with_names(&management, |names| names.list(None)).await?;
        let mut listed = all.into_iter().map(|entry| ListedSecret {
            key: entry.key,
            scope: entry.scope,
            status: word(entry.status),
        });
        let Some(Namespace(name)) = &of.namespace else {
            return Ok(listed.collect());
        };
        // The namespace of a configured server has no folder with declarations, but may have secrets.
        let declared = declared(&management, name).await?.unwrap_or_default();
        let scope = name.to_string();
        let global = Scope::Global.to_string();
        let mut own: Vec<ListedSecret> = listed
            .by_ref()
            .filter(|it| {
                let is_declared = || declared.iter().any(|declared| declared.key == it.key);
                it.scope == scope || (it.scope == global && is_declared())
            })
            .collect();
        for DeclaredSecret { key, .. } in declared {
            if !own.iter().any(|it| it.key == key) {
                own.push(ListedSecret {
                    key,
                    scope: scope.clone(),
                    status: "missing",
                });
            }
        }
        Ok(own)
    }
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Set => "set",
        Status::Placeholder => "placeholder",
    }
}

/// The tool `remove_secret`, which removes a secret and its value.
pub(in super::super) struct RemoveSecret;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct RemovedSecret {
    removed: bool,
    key: String,
    /// Scope of the secret: `global`, the name of a namespace, or `principal:NAME`.
    scope: String,
    /// The reason why tools may still have the removed value, and the remedy. Absent if the core has reloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_reloaded: Option<String>,
}

impl ManagementTool for RemoveSecret {
    const NAME: &'static str = "remove_secret";
    const DESCRIPTION: &'static str = "Remove a secret's name and value. Cannot be undone: ask the user first. The core reloads by itself; \
        with not_reloaded in the result tools may still have the value: do what it says. After calling: \
        check_secrets(namespace).";
    const HINTS: Hints = Hints::REPLACES.not_idempotent();
    const EFFECTS: &'static [Effect] = &[Effect::RemovesSecrets];
    type Parameters = SecretParameters;
    type Outcome = RemovedSecret;

    async fn run(
        management: Arc<Management>,
        named: SecretParameters,
        _: Progress,
    ) -> Result<RemovedSecret, CallError> {
        let (scope, key) = (named.scope()?, named.key.0);
        let (wanted, place) = (key.clone(), scope.clone());
        // Runs as a separate task, so that a removal that has begun is finished, and the core is requested to reload, even if the
        // caller disconnects.
        let removing = tokio::spawn(async move {
            with_names(&management, move |names| names.remove(&wanted, &place)).await?;
            let telling = tokio::spawn(tell(management));
            // If the time limit ends the wait, the reload continues.
            Ok::<_, CallError>(match timeout(RELOAD_WAIT, telling).await {
                Ok(told) => told.unwrap_or_else(|_| Some(not_reloaded("the reload was interrupted"))),
                Err(_) => Some(
                    "The core is still reloading, and tools may have the value until it is done. Call reload_core to wait for it"
                        .to_owned(),
                ),
            })
        });
        let removed = removing.await;
        let not_reloaded =
            removed.map_err(|_| refused("The removal was interrupted; call list_secrets"))??;
        Ok(RemovedSecret {
            removed: true,
            key,
            scope: scope.to_string(),
            not_reloaded,
        })
    }
}

/// Requests a reload from the core. The secret is removed even if the core cannot be reached; the returned text then advises what
/// to do.
async fn tell(management: Arc<Management>) -> Option<String> {
    let told = management
        .ask_core::<ReloadResult>(CoreRequest::Reload)
        .await;
    let problem = match told {
        Ok(reloaded) => reloaded.with_old_secrets()?.to_owned(),
        Err(error) => error.message,
    };
    tracing::warn!(error = %problem, "a secret was removed, and the core did not reload");
    Some(not_reloaded(&problem))
}

fn not_reloaded(problem: &str) -> String {
    format!(
        "The secret is removed, but the core did not take it from the tools: {problem}. Tools keep the value until the core \
         reloads: mend this, then call reload_core"
    )
}

/// The tool `check_secrets`: compares the secrets that a namespace declares with the stored ones.
pub(in super::super) struct CheckSecrets;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct SecretsReport {
    namespace: String,
    /// Declared secrets that have a value.
    satisfied: Vec<String>,
    /// Declared secrets that are not registered yet. `prepare_secret` registers them.
    missing: Vec<String>,
    /// Registered secrets whose value a person must still set.
    placeholders: Vec<String>,
}

impl ManagementTool for CheckSecrets {
    const NAME: &'static str = "check_secrets";
    const DESCRIPTION: &'static str = "Check the secrets that a namespace's tooldock.yaml declares under `secrets:` or prepare_secret asked \
        for; a key that `env:` there sets is satisfied. After calling: prepare_secret for each in missing; \
        remind the user of its command for each in placeholders; when all are satisfied, reload_core and \
        test_tool.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsSecretNames];
    type Parameters = InNamespace;
    type Outcome = SecretsReport;

    async fn run(
        management: Arc<Management>,
        InNamespace {
            namespace: Namespace(name),
        }: InNamespace,
        _: Progress,
    ) -> Result<SecretsReport, CallError> {
        let Some(declared) = declared(&management, &name).await? else {
            management.workspace.exists(&name).await?;
            return Err(refused(format!(
                "{name} is not a folder that a reload serves; list_namespaces shows those there are"
            )));
        };
        let whose = name.clone();
        let check = with_names(&management, move |names| names.check(&whose, &declared)).await?;
        Ok(SecretsReport {
            namespace: name.to_string(),
            satisfied: check.satisfied,
            missing: check.missing,
            placeholders: check.placeholders,
        })
    }
}

/// The secrets that the folder of a namespace declares.
///
/// # Errors
///
/// When the file that declares them cannot be read.
async fn declared(
    management: &Management,
    name: &NamespaceName,
) -> Result<Option<Vec<DeclaredSecret>>, CallError> {
    let folders = management.workspace.namespaces().await?;
    let Some(folder) = folders.into_iter().find(|folder| folder.name == *name) else {
        return Ok(None);
    };
    if let Some(problem) = folder.unreadable {
        return Err(refused(format!(
            "What {name} declares is not known, since its file is unreadable: {problem}. No management tool writes that \
             file: tell the user to mend it, then call this again"
        )));
    }
    Ok(Some(folder.secrets))
}

/// Runs `ask` on the secrets store, on a thread for blocking work.
pub(super) async fn with_names<T: Send + 'static>(
    management: &Management,
    ask: impl FnOnce(&SecretNames) -> Result<T, SecretsError> + Send + 'static,
) -> Result<T, CallError> {
    let names = management.secrets.names.clone();
    let asked = tokio::task::spawn_blocking(move || ask(&names)).await;
    let asked = asked.map_err(|_| refused("The secrets store was interrupted; try again"))?;
    asked.map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_everybodys_a_namespaces_or_a_principals() {
        let scope = |json: &str| {
            let named: SecretParameters = serde_json::from_str(json).expect(json);
            named.scope().map(|it| it.to_string())
        };
        let told = |json: &str| scope(json).expect(json);
        assert_eq!(told(r#"{"key":"A"}"#), "global");
        assert_eq!(told(r#"{"key":"A","namespace":"n"}"#), "n");
        let personal = r#"{"key":"A","principal":"key:ada"}"#;
        assert_eq!(told(personal), "principal:key:ada");
        assert!(scope(r#"{"key":"A","namespace":"n","principal":"ada"}"#).is_err());
        let nobody = r#"{"key":"A","principal":"anonymous"}"#;
        assert!(serde_json::from_str::<SecretParameters>(nobody).is_err());
    }
}
