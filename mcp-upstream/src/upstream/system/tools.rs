//! The management tools: one file per group, one line per tool (MGR-21).

mod core;
mod explain;
mod files;
mod namespaces;
mod packages;
mod repositories;
mod secrets;
mod test_tool;
mod tokens;

pub use self::core::ServerFacts;
pub(crate) use self::files::CALL_AGAIN;
pub use self::tokens::KeyTools;
use super::tool::Entry;

/// All of them, in the order of lists.
pub(super) fn all() -> Vec<Entry> {
    vec![
        Entry::of::<namespaces::ListNamespaces>(),
        Entry::of::<namespaces::CreateNamespace>(),
        Entry::of::<namespaces::DeleteNamespace>(),
        Entry::of::<core::ReloadCore>(),
        Entry::of::<files::ListTools>(),
        Entry::of::<files::GetToolSource>(),
        Entry::of::<files::WriteTool>(),
        Entry::of::<files::DeleteTool>(),
        Entry::of::<packages::InstallRequirements>(),
        Entry::of::<packages::AddRequirement>(),
        Entry::of::<packages::ListRequirements>(),
        Entry::of::<secrets::PrepareSecret>(),
        Entry::of::<secrets::ListSecrets>(),
        Entry::of::<secrets::RemoveSecret>(),
        Entry::of::<secrets::CheckSecrets>(),
        Entry::of::<repositories::AnalyzeRepo>(),
        Entry::of::<repositories::ReadRepoFile>(),
        Entry::of::<files::GenerateTool>(),
        Entry::of::<test_tool::TestTool>(),
        Entry::of::<packages::InstallPipPackages>(),
        Entry::of::<repositories::SearchRegistry>(),
        Entry::of::<repositories::InstallFromRegistry>(),
        Entry::of::<repositories::InstallFromRepo>(),
        Entry::of::<tokens::TokenCreate>(),
        Entry::of::<tokens::TokenList>(),
        Entry::of::<tokens::TokenRevoke>(),
        Entry::of::<explain::Explain>(),
        Entry::of::<core::Health>(),
        Entry::of::<core::ServerConfig>(),
    ]
}
