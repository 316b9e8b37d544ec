//! Tools for Python packages: `install_requirements`, `add_requirement`, `list_requirements`, `install_pip_packages`.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tooldock_base::effect::Effect;
use tooldock_base::error::CallError;
use tooldock_workers::manage::NotInstalled;

use super::super::Management;
use super::super::parameters::{InNamespace, Namespace, Package};
use super::super::tool::{Hints, ManagementTool, Progress, Time, invalid};

/// Maximum number of packages in one call.
const PACKAGES_MAX: usize = 50;
/// The error text of a failed installation.
const FAILED: &str = "pip install failed";

/// The tool `install_requirements`: installs the requirements of a namespace.
pub(in super::super) struct InstallRequirements;

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(in super::super) struct InstallReport {
    installed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packages: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The output of the installer.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<String>,
}

impl InstallReport {
    fn failed(not: NotInstalled) -> Self {
        Self {
            error: Some(FAILED.to_owned()),
            details: Some(not.details),
            ..Self::default()
        }
    }
}

impl ManagementTool for InstallRequirements {
    const NAME: &'static str = "install_requirements";
    const DESCRIPTION: &'static str = "Install all packages of a namespace's requirements.txt. If installed is false: read details, correct \
        the package with add_requirement, call again. After calling: reload_core.";
    const HINTS: Hints = Hints::ADDS.open_world();
    // Installing a package may run code of the package.
    const EFFECTS: &'static [Effect] = &[Effect::RunsCode];
    const TIME: Time = Time::Long;
    type Parameters = InNamespace;
    type Outcome = InstallReport;

    async fn run(
        management: Arc<Management>,
        InNamespace {
            namespace: Namespace(namespace),
        }: InNamespace,
        progress: Progress,
    ) -> Result<InstallReport, CallError> {
        let packages = management.workspace.requirements(&namespace).await?;
        progress.report(0, 1, "installing packages");
        let outcome = management.workspace.install(&namespace).await?;
        progress.report(1, 1, "done");
        Ok(match outcome {
            Ok(()) => InstallReport {
                installed: true,
                namespace: Some(namespace.to_string()),
                packages: Some(packages),
                ..InstallReport::default()
            },
            Err(not) => InstallReport::failed(not),
        })
    }
}

/// The tool `add_requirement`, which adds a package to a namespace.
pub(in super::super) struct AddRequirement;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Addition {
    namespace: Namespace,
    /// Such as httpx, httpx>=0.28.0 or beautifulsoup4==4.12.0.
    package: Package,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct AddedPackage {
    added: bool,
    package: String,
    namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// The output of the installer.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<String>,
}

impl ManagementTool for AddRequirement {
    const NAME: &'static str = "add_requirement";
    const DESCRIPTION: &'static str = "Add a Python package to a namespace's requirements.txt, or change its version there, and install it. \
        If added is false, nothing was changed: read details, correct name or version, call again. After \
        calling: the next package, or reload_core when all are there.";
    const HINTS: Hints = Hints::ADDS.open_world();
    // Installing a package may run code of the package.
    const EFFECTS: &'static [Effect] = &[Effect::RunsCode];
    const TIME: Time = Time::Long;
    type Parameters = Addition;
    type Outcome = AddedPackage;

    async fn run(
        management: Arc<Management>,
        Addition {
            namespace: Namespace(namespace),
            package: Package(package),
        }: Addition,
        progress: Progress,
    ) -> Result<AddedPackage, CallError> {
        progress.report(0, 1, "installing the package");
        let outcome = management.workspace.add_requirement(&namespace, &package);
        let outcome = outcome.await?;
        progress.report(1, 1, "done");
        let (package, namespace) = (package.to_string(), namespace.to_string());
        let not = outcome.err();
        Ok(AddedPackage {
            added: not.is_none(),
            package,
            namespace,
            error: not.is_some().then(|| FAILED.to_owned()),
            details: not.map(|not| not.details),
        })
    }
}

/// The tool `list_requirements`: the requirements of a namespace.
pub(in super::super) struct ListRequirements;

#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct Requirements {
    namespace: String,
    packages: Vec<String>,
}

impl ManagementTool for ListRequirements {
    const NAME: &'static str = "list_requirements";
    const DESCRIPTION: &'static str = "List the packages in a namespace's requirements.txt. After calling: add_requirement(namespace, \
        package) for a missing package.";
    const HINTS: Hints = Hints::READS;
    const EFFECTS: &'static [Effect] = &[Effect::ReadsState];
    type Parameters = InNamespace;
    type Outcome = Requirements;

    async fn run(
        management: Arc<Management>,
        InNamespace {
            namespace: Namespace(namespace),
        }: InNamespace,
        _: Progress,
    ) -> Result<Requirements, CallError> {
        Ok(Requirements {
            packages: management.workspace.requirements(&namespace).await?,
            namespace: namespace.to_string(),
        })
    }
}

/// The tool `install_pip_packages`. It installs packages into the environment of the management tools, which workers do not see.
pub(in super::super) struct InstallPipPackages;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Packages {
    /// Such as tree-sitter. At most 50.
    packages: Vec<Package>,
}

impl ManagementTool for InstallPipPackages {
    const NAME: &'static str = "install_pip_packages";
    const DESCRIPTION: &'static str = "Install Python packages into the manager's own environment, for analysing code; tools do not see \
        them, use add_requirement for theirs. If installed is false: read details, correct the names, call \
        again.";
    const HINTS: Hints = Hints::ADDS.open_world();
    // Installing a package may run code of the package.
    const EFFECTS: &'static [Effect] = &[Effect::RunsCode];
    const TIME: Time = Time::Long;
    type Parameters = Packages;
    type Outcome = InstallReport;

    async fn run(
        management: Arc<Management>,
        Packages { packages }: Packages,
        progress: Progress,
    ) -> Result<InstallReport, CallError> {
        if packages.is_empty() || packages.len() > PACKAGES_MAX {
            return Err(invalid(format!(
                "packages: name 1 to {PACKAGES_MAX} packages. Nothing was changed"
            )));
        }
        let packages: Vec<_> = packages.into_iter().map(|it| it.0).collect();
        progress.report(0, 1, "installing packages");
        let outcome = management.workspace.install_own(&packages).await;
        progress.report(1, 1, "done");
        Ok(match outcome {
            Ok(()) => InstallReport {
                installed: true,
                packages: Some(packages.iter().map(ToString::to_string).collect()),
                ..InstallReport::default()
            },
            Err(not) => InstallReport::failed(not),
        })
    }
}
