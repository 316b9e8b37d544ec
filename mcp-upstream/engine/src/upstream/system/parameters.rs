//! Names in the parameters of management tools. They are parsed into types that check them, so that no tool gets an unchecked
//! name. The schemas declare only `string`; the error for an invalid name states which characters are permitted.

use schemars::JsonSchema;
use serde::Deserialize;
use tooldock_base::names::NamespaceName;
use tooldock_workers::manage::{PackageSpec, ToolFileName, ToolFileVersion};

/// A namespace's name.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(description = "Namespace.")]
pub(super) struct Namespace(#[schemars(with = "String")] pub(super) NamespaceName);

/// The name of a namespace in a question about it: may also be `_system`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct ServedNamespace(
    #[serde(deserialize_with = "tooldock_workers::explain::served_name")]
    #[schemars(with = "String")]
    pub(super) NamespaceName,
);

/// The name of a tool file or of a helper module.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct File(#[schemars(with = "String")] pub(super) ToolFileName);

/// A tool file as it is now, or an earlier version of it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct FileVersion(#[schemars(with = "String")] pub(super) ToolFileVersion);

/// A requirement of a package.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct Package(#[schemars(with = "String")] pub(super) PackageSpec);

/// The namespace as the only parameter.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct InNamespace {
    pub(super) namespace: Namespace,
}

/// No parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}
