//! The management tools: one file per group, one line per tool (MGR-21).

mod core;
mod explain;
mod files;
mod namespaces;
mod output;
mod packages;
mod repositories;
mod secrets;
mod servers;
mod test_tool;
mod tokens;

use tooldock_base::effect::Effect;

pub use self::core::ServerFacts;
pub use self::files::CALL_AGAIN;
pub use self::tokens::KeySummary;
pub use self::tokens::KeyTools;
use super::tool::{ManagementTool, ManagementToolEntry};

macro_rules! tools {
    ($($tool:ty,)*) => {
        /// All management tools, in the order in which they are listed.
        pub(super) fn all() -> Vec<ManagementToolEntry> {
            vec![$(ManagementToolEntry::of::<$tool>(),)*]
        }

        /// The effects of each tool, by the tool's name.
        pub(crate) const EFFECTS: &[(&str, &[Effect])] = &[
            $((<$tool as ManagementTool>::NAME, <$tool as ManagementTool>::EFFECTS),)*
        ];
    };
}

tools! {
    namespaces::ListNamespaces,
    namespaces::CreateNamespace,
    namespaces::DeleteNamespace,
    core::ReloadCore,
    files::ListTools,
    files::GetToolSource,
    files::WriteTool,
    files::DeleteTool,
    packages::InstallRequirements,
    packages::AddRequirement,
    packages::ListRequirements,
    secrets::PrepareSecret,
    secrets::ListSecrets,
    secrets::RemoveSecret,
    secrets::CheckSecrets,
    repositories::AnalyzeRepo,
    repositories::ReadRepoFile,
    files::GenerateTool,
    test_tool::TestTool,
    packages::InstallPipPackages,
    repositories::SearchRegistry,
    repositories::InstallFromRegistry,
    repositories::InstallFromRepo,
    tokens::TokenCreate,
    tokens::TokenList,
    tokens::TokenRevoke,
    explain::Explain,
    output::ReadOutput,
    servers::ListServers,
    servers::AddServer,
    servers::RemoveServer,
    core::Health,
    core::ServerConfig,
}
