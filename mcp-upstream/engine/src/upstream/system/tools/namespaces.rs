//! Tools for namespaces: `list_namespaces`, `create_namespace`, `delete_namespace`.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;
use tooldock_credentials::secrets::Scope;
use tooldock_workers::manage::NamespaceFolder;

use super::super::Management;
use super::super::core::{CoreNamespace, CoreRequest};
use super::super::parameters::{Namespace, Nothing};
use super::super::tool::{Hints, ManagementTool, Progress, invalid};
use super::secrets::with_names;

/// Maximum number of folders that are not served yet and whose files are read for one list.
const LOOKS_MAX: usize = 50;

/// The tool `list_namespaces`, which lists the namespaces.
pub(in super::super) struct ListNamespaces;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct NamespaceSummary {
    name: String,
    /// Number of tools that the core serves in the namespace. If it is not served yet, number of tools that its files declare.
    tool_count: usize,
    /// True if the namespace has a requirements.txt.
    has_requirements: bool,
    /// Status of the namespace's secrets: `ok`, `missing`, `placeholders`, `no_secrets_needed`, or `unreadable` if the list of
    /// needed secrets cannot be read.
    secrets_status: String,
    /// The file that cannot be read and the reason, if the status of the secrets is `unreadable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl ManagementTool for ListNamespaces {
    const NAME: &'static str = "list_namespaces";
    const DESCRIPTION: &'static str = "List namespaces: number of tools, requirements.txt, and the declared secrets (ok, missing, \
        placeholders, no_secrets_needed; unreadable: the user has to mend tooldock.yaml as `problem` says). \
        After calling: list_tools(namespace), check_secrets where secrets are missing, or create_namespace.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsState];
    type Parameters = Nothing;
    type Outcome = Vec<NamespaceSummary>;

    async fn run(
        management: Arc<Management>,
        _: Nothing,
        _: Progress,
    ) -> Result<Vec<NamespaceSummary>, CallError> {
        let folders = management.workspace.namespaces().await?;
        // If the core cannot be reached, only the folders on disk are listed.
        let served = management.ask_core::<Vec<CoreNamespace>>(CoreRequest::Namespaces);
        let served = served.await.unwrap_or_default().into_iter();
        let mut listed: BTreeMap<_, _> = served
            .map(|it| {
                let listed = NamespaceSummary {
                    name: it.name.clone(),
                    tool_count: it.tool_count,
                    has_requirements: it.has_requirements,
                    secrets_status: it.secrets_status,
                    problem: None,
                };
                (it.name, listed)
            })
            .collect();
        let mut looks = 0;
        for folder in folders {
            let name = folder.name.to_string();
            let tool_count = match listed.get(&name) {
                Some(served) => served.tool_count,
                None if looks < LOOKS_MAX => {
                    looks += 1;
                    let files = management.workspace.declared(&folder.name).await;
                    files.map_or(0, |files| {
                        files.iter().map(|it| it.servable().count()).sum()
                    })
                }
                None => 0,
            };
            let secrets_status = status(&management, &folder).await?.to_owned();
            let entry = NamespaceSummary {
                name: name.clone(),
                tool_count,
                has_requirements: folder.has_requirements,
                secrets_status,
                problem: folder.unreadable,
            };
            listed.insert(name, entry);
        }
        Ok(listed.into_values().collect())
    }
}

/// The status of the secrets that a namespace's folder declares.
async fn status(
    management: &Management,
    folder: &NamespaceFolder,
) -> Result<&'static str, CallError> {
    if folder.unreadable.is_some() {
        return Ok("unreadable");
    }
    let (name, declared) = (folder.name.clone(), folder.secrets.clone());
    let check = with_names(management, move |names| names.check(&name, &declared)).await?;
    Ok(
        match (&*check.missing, &*check.placeholders, &*check.satisfied) {
            ([], [], []) => "no_secrets_needed",
            ([], [], _) => "ok",
            ([], ..) => "placeholders",
            _ => "missing",
        },
    )
}

/// The name of a namespace as the only parameter.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct NamespaceParameter {
    name: Namespace,
}

/// The tool `create_namespace`, which creates a namespace.
pub(in super::super) struct CreateNamespace;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct CreatedNamespace {
    created: bool,
    /// The path of the namespace's folder.
    path: String,
}

impl ManagementTool for CreateNamespace {
    const NAME: &'static str = "create_namespace";
    const DESCRIPTION: &'static str = "Make a new, empty namespace: a folder for tool files with packages and secrets of its own. After \
        calling: write_tool, add_requirement for each package that the code imports, then reload_core.";
    const HINTS: Hints = Hints::ADDS.not_idempotent();
    const EFFECTS: &'static [Effect] = &[Effect::CreatesNamespaces];
    type Parameters = NamespaceParameter;
    type Outcome = CreatedNamespace;

    async fn run(
        management: Arc<Management>,
        NamespaceParameter {
            name: Namespace(name),
        }: NamespaceParameter,
        _: Progress,
    ) -> Result<CreatedNamespace, CallError> {
        // Refuses the name `global`, which is the scope of secrets for all namespaces.
        if Scope::of(&name).is_none() {
            return Err(invalid(format!(
                "{name} is the scope of secrets that all namespaces get; choose another name"
            )));
        }
        let path = management.workspace.create_namespace(&name).await?;
        Ok(CreatedNamespace {
            created: true,
            path: path.display().to_string(),
        })
    }
}

/// The tool `delete_namespace`, which deletes a namespace.
pub(in super::super) struct DeleteNamespace;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct DeletedNamespace {
    deleted: bool,
    name: String,
}

impl ManagementTool for DeleteNamespace {
    const NAME: &'static str = "delete_namespace";
    const DESCRIPTION: &'static str = "Remove a namespace with its files, their earlier versions and packages; its secrets stay. Cannot be \
        undone: ask the user first. After calling: reload_core; until then its tools are served.";
    const HINTS: Hints = Hints::REPLACES.not_idempotent();
    const EFFECTS: &'static [Effect] = &[Effect::DeletesNamespaces];
    type Parameters = NamespaceParameter;
    type Outcome = DeletedNamespace;

    async fn run(
        management: Arc<Management>,
        NamespaceParameter {
            name: Namespace(name),
        }: NamespaceParameter,
        _: Progress,
    ) -> Result<DeletedNamespace, CallError> {
        management.workspace.delete_namespace(&name).await?;
        Ok(DeletedNamespace {
            deleted: true,
            name: name.to_string(),
        })
    }
}
