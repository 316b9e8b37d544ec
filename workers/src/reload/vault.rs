//! Folders of a reload, including the folder of Tool Vault's namespace, which may be outside `tools/`. Also issues about
//! folders and tools whose names are used as paths by the web interfaces of ToolDock v1 and Tool Vault.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::tool::Tool;

use super::{ReloadScope, VaultFolder};
use crate::scan::{NamespaceSource, scan, scan_folder, scan_one};

/// Reads the folders that a reload covers.
pub(super) fn scan_for(
    tools: &Path,
    scope: ReloadScope,
    vault: Option<&VaultFolder>,
) -> io::Result<Vec<NamespaceSource>> {
    match scope {
        ReloadScope::All => {
            let mut sources = scan(tools)?;
            if let Some((name, dir)) = elsewhere(vault) {
                let shadowed = sources.iter().any(|source| source.name == *name);
                sources.retain(|source| source.name != *name);
                if let Some(mut source) = scan_folder(name, dir)? {
                    if shadowed {
                        source.issues.push(shadow(tools, name));
                    }
                    sources.push(source);
                    sources.sort_by(|one, other| one.name.cmp(&other.name));
                }
            }
            Ok(sources)
        }
        // In an automatic reload, a missing or incomplete folder counts as unreadable; only a requested reload removes
        // its namespace.
        ReloadScope::Only(names) => names
            .iter()
            .map(|name| {
                let (dir, found) = match elsewhere(vault).filter(|(own, _)| *own == name) {
                    Some((_, dir)) => (dir.to_owned(), scan_folder(name, dir)?),
                    None => (tools.join(name.as_str()), scan_one(tools, name)?),
                };
                Ok(match found {
                    Some(source) if source.has_code() || source.failure.is_some() => source,
                    _ => NamespaceSource::unreadable(name.clone(), dir),
                })
            })
            .collect(),
    }
}

/// Marks Tool Vault's namespace, in whose files each file contains one function (`style: vault`).
pub(super) fn mark(sources: &mut [NamespaceSource], vault: &VaultFolder) {
    let mut all = sources.iter_mut();
    if let Some(source) = all.find(|source| source.name == vault.name) {
        source.manifest.vault_style = true;
        // No server program: the worker serves the functions in these files, even if the files also make an MCP server.
        source.program = None;
    }
}

/// Adds issues to folders whose names are paths of ToolDock v1 (K-38). `create_namespace` refuses such names, but a folder may
/// have been created by hand.
pub(super) fn warn_of_names(sources: &mut [NamespaceSource]) {
    for source in sources.iter_mut().filter(|it| it.name.is_path_of_v1()) {
        source.issues.push(Issue {
            code: "reserved_name",
            subject: source.name.to_string(),
            message: format!(
                "the path /mcp/{0} has another meaning, so clients reach this namespace by the header X-Namespace alone; \
                 rename the folder",
                source.name
            ),
        });
    }
}

/// Returns issues for tools whose names are paths of Tool Vault's REST API (K-22).
pub(super) fn about_tools(tools: &[Arc<Tool>]) -> Vec<Issue> {
    let told = |tool: &Arc<Tool>| {
        let message = match &*tool.name {
            "call" => {
                "POST /tools/call calls this tool where Tool Vault's clients name a tool in the body, and on listeners with the \
                 profile vault it never calls this tool; rename the tool"
            }
            "list" => {
                "/tools/list lists all tools, so REST clients cannot call this tool; rename the tool"
            }
            _ => return None,
        };
        Some(Issue {
            code: "reserved_name",
            subject: format!("{}: {}", tool.filename, tool.name),
            message: message.to_owned(),
        })
    };
    tools.iter().filter_map(told).collect()
}

fn elsewhere(vault: Option<&VaultFolder>) -> Option<(&NamespaceName, &Path)> {
    let vault = vault?;
    Some((&vault.name, vault.dir.as_deref()?))
}

fn shadow(tools: &Path, name: &NamespaceName) -> Issue {
    Issue {
        code: "shadowed_folder",
        subject: tools.join(name.as_str()).display().to_string(),
        message: "is not served: vault.tools_dir (VAULT_TOOLS_DIR) has this namespace elsewhere"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn tool_vaults_folder_may_be_elsewhere_and_goes_before_one_of_its_name() {
        let root = tempfile::tempdir().unwrap();
        let (tools, own) = (root.path().join("tools"), root.path().join("My Tools"));
        for (folder, file) in [("a", "x.py"), ("vault", "old.py")] {
            fs::create_dir_all(tools.join(folder)).unwrap();
            fs::write(tools.join(folder).join(file), "").unwrap();
        }
        fs::create_dir(&own).unwrap();
        fs::write(own.join("word_count.py"), "").unwrap();
        let vault = VaultFolder {
            name: "vault".parse().unwrap(),
            dir: Some(own.canonicalize().unwrap()),
        };
        let mut sources = scan_for(&tools, ReloadScope::All, Some(&vault)).unwrap();
        mark(&mut sources, &vault);
        let told: Vec<_> = sources
            .iter()
            .map(|it| (it.name.as_str(), it.manifest.vault_style, it.issues.len()))
            .collect();
        assert_eq!(told, [("a", false, 0), ("vault", true, 1)]);
        assert!(sources[1].dir.ends_with("My Tools"));
        let hash = crate::scan::files_hash(&own);
        assert_eq!(hash, Some(sources[1].files_hash));
        let one = scan_for(
            &tools,
            ReloadScope::Only([vault.name.clone()].into()),
            Some(&vault),
        );
        assert_eq!(one.unwrap()[0].files_hash, sources[1].files_hash);
        let without = scan_for(&tools, ReloadScope::All, None).unwrap();
        assert!(without[1].dir.ends_with("vault"));
    }
}
