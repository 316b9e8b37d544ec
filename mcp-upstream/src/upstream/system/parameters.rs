//! Names in the parameters of management tools, read as the types that check them, so that no tool sees an unchecked name.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use tooldock_workers::manage::{PackageSpec, ToolFileName, ToolFileVersion};
use tooldock_workers::names::NamespaceName;

/// A namespace's name.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct Namespace(pub(super) NamespaceName);

impl JsonSchema for Namespace {
    fn schema_name() -> Cow<'static, str> {
        "Namespace".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "pattern": "^[a-z0-9][a-z0-9_-]{0,62}$",
            "description": "Name of a namespace.",
        })
    }
}

/// The name of a namespace in a question about it: may also be `_system`.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct ServedNamespace(
    #[serde(deserialize_with = "tooldock_workers::explain::served_name")] pub(super) NamespaceName,
);

impl JsonSchema for ServedNamespace {
    fn schema_name() -> Cow<'static, str> {
        "ServedNamespace".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^([a-z0-9][a-z0-9_-]{0,62}|_system)$" })
    }
}

/// The name of a tool file or of a helper module.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct File(pub(super) ToolFileName);

impl JsonSchema for File {
    fn schema_name() -> Cow<'static, str> {
        "File".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": ToolFileName::PATTERN })
    }
}

/// A tool file as it is now, or an earlier version of it.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct FileVersion(pub(super) ToolFileVersion);

impl JsonSchema for FileVersion {
    fn schema_name() -> Cow<'static, str> {
        "FileVersion".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": ToolFileVersion::PATTERN })
    }
}

/// A requirement of a package.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub(super) struct Package(pub(super) PackageSpec);

impl JsonSchema for Package {
    fn schema_name() -> Cow<'static, str> {
        "Package".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": 1, "maxLength": 256 })
    }
}

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
