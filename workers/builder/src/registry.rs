//! Client of the MCP registry, which lists MCP servers and their packages.
//!
//! Both response formats are supported: the current one, where each entry is wrapped in `server`, and the older one without the
//! wrapper.

use serde_json::Value;
use tooldock_process::repositories::{
    BuilderConfig, BuilderError, BuilderErrorCode, RegistryEntry,
};
use url::Url;

use crate::http::Client;

/// Maximum size of a response of the MCP registry, in bytes.
const ANSWER_MAX: u64 = 8 * 1024 * 1024;
/// Maximum number of entries in the result of a search; further ones are dropped.
const ENTRIES_MAX: usize = 100;
/// Maximum length of a server's description in the result, in characters.
const DESCRIPTION_MAX: usize = 1000;

/// Searches the MCP registry for servers whose names contain the query.
pub(crate) fn search(
    client: &Client,
    config: &BuilderConfig,
    query: &str,
) -> Result<Vec<RegistryEntry>, BuilderError> {
    let url = address(config, query)?;
    let host = url.host_str().unwrap_or_default();
    let text = client
        .get(url.as_str(), "application/json", ANSWER_MAX)
        .map_err(|error| match error.code {
            BuilderErrorCode::NotFound => not_a_registry(host),
            _ => BuilderError {
                message: format!(
                    "the MCP registry cannot be searched: {} The operator names another one with MCP_REGISTRY_URL. Without a \
                     registry, call install_from_repo with the URL of a repository.",
                    error.message
                ),
                ..error
            },
        })?;
    let answer: Value = serde_json::from_slice(&text).map_err(|_| not_a_registry(host))?;
    entries(&answer).ok_or_else(|| not_a_registry(host))
}

/// The kind of package registry in which a package is published, such as `npm`, as listed by the MCP registry. `None` if the
/// MCP registry does not list the package or cannot be reached.
pub(crate) fn kind_of(client: &Client, config: &BuilderConfig, package: &str) -> Option<String> {
    let word = package.rsplit('/').next()?;
    let entries = search(client, config, word).ok()?;
    let entry = entries
        .into_iter()
        .find(|it| it.package.as_deref() == Some(package))?;
    entry.package_type
}

fn address(config: &BuilderConfig, query: &str) -> Result<Url, BuilderError> {
    let base = config.registry.trim_end_matches('/');
    let last = base.rsplit('/').next().unwrap_or_default();
    let is_version = last.strip_prefix('v').is_some_and(|it| {
        it.starts_with(|c: char| c.is_ascii_digit())
            && it.chars().all(|c| c.is_ascii_digit() || c == '.')
    });
    let full = match last {
        "servers" => base.to_owned(),
        _ if is_version => format!("{base}/servers"),
        _ => format!("{base}/v0/servers"),
    };
    let mut url = Url::parse(&full).map_err(|_| {
        BuilderError::failed(
            "the operator's MCP_REGISTRY_URL is not a URL, so no registry can be searched.",
        )
    })?;
    url.query_pairs_mut()
        .append_pair("search", query)
        .append_pair("version", "latest")
        .append_pair("limit", &ENTRIES_MAX.to_string());
    Ok(url)
}

fn not_a_registry(host: &str) -> BuilderError {
    BuilderError::unavailable(format!(
        "{host} does not answer as an MCP registry. The operator checks MCP_REGISTRY_URL. Without a registry, call \
         install_from_repo with the URL of a repository."
    ))
}

pub(crate) fn entries(answer: &Value) -> Option<Vec<RegistryEntry>> {
    let servers = answer["servers"].as_array().or(answer.as_array())?;
    let mut entries = Vec::new();
    for server in servers {
        let server = server.get("server").unwrap_or(server);
        let Some(name) = text(server, &["name"]) else {
            continue;
        };
        let mut description = text(server, &["description"]).unwrap_or_default();
        if let Some((end, _)) = description.char_indices().nth(DESCRIPTION_MAX) {
            description.truncate(end);
        }
        let source_url = text(&server["repository"], &["url"]).or_else(|| {
            text(
                server,
                &["source_url", "repository", "websiteUrl", "website_url"],
            )
        });
        let entry = |package, package_type| RegistryEntry {
            name: name.clone(),
            description: description.clone(),
            package,
            package_type,
            source_url: source_url.clone(),
        };
        let packages = server["packages"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let before = entries.len();
        entries.extend(packages.iter().filter_map(|package| {
            let kind = text(
                package,
                &[
                    "registryType",
                    "registry_type",
                    "registry_name",
                    "package_type",
                ],
            );
            let identifier = text(package, &["identifier", "name", "package"])?;
            Some(entry(Some(identifier), kind))
        }));
        if entries.len() == before {
            let is_remote = server["remotes"]
                .as_array()
                .is_some_and(|it| !it.is_empty());
            let kind = text(server, &["package_type"]).or(is_remote.then(|| "remote".to_owned()));
            entries.push(entry(text(server, &["package"]), kind));
        }
    }
    // The registry lists every version of a server. Only the first entry of each package of a server is kept.
    let mut seen = std::collections::BTreeSet::new();
    entries
        .retain(|it| seen.insert((it.name.clone(), it.package_type.clone(), it.package.clone())));
    entries.truncate(ENTRIES_MAX);
    Some(entries)
}

/// Looks up the named fields of a JSON object in turn; returns the first value that is a non-empty string.
fn text(value: &Value, names: &[&str]) -> Option<String> {
    let mut found = names.iter().filter_map(|name| value.get(name)?.as_str());
    found.find(|it| !it.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_of_either_form_become_rows() {
        let answer = json!({"servers": [
            {"server": {
                "name": "io.github.modelcontextprotocol/server-github", "description": "GitHub API tools", "version": "1.0.0",
                "repository": {"url": "https://github.com/modelcontextprotocol/server-github", "source": "github"},
                "packages": [{"registryType": "npm", "identifier": "@modelcontextprotocol/server-github", "version": "1.0.0"}]
            }, "_meta": {}},
            {"name": "time", "packages": [
                {"registry_type": "pypi", "identifier": "mcp-server-time"}, {"registry_name": "npm", "name": "mcp-time"}
            ]},
            {"server": {"name": "hosted", "remotes": [{"type": "streamable-http", "url": "https://h/mcp"}]}},
            {"name": "time", "packages": [{"registry_type": "pypi", "identifier": "mcp-server-time"}]},
            {"description": "nameless"},
        ]});
        let rows = entries(&answer).unwrap();
        assert_eq!(
            serde_json::to_value(&rows[0]).unwrap(),
            json!({
                "name": "io.github.modelcontextprotocol/server-github", "description": "GitHub API tools",
                "package": "@modelcontextprotocol/server-github", "package_type": "npm",
                "source_url": "https://github.com/modelcontextprotocol/server-github"
            })
        );
        let short: Vec<_> = rows[1..]
            .iter()
            .map(|it| {
                (
                    it.name.as_str(),
                    it.package.as_deref(),
                    it.package_type.as_deref(),
                )
            })
            .collect();
        assert_eq!(
            short,
            [
                ("time", Some("mcp-server-time"), Some("pypi")),
                ("time", Some("mcp-time"), Some("npm")),
                ("hosted", None, Some("remote")),
            ]
        );
        assert!(entries(&json!({"ok": true})).is_none());
    }

    #[test]
    fn the_address_is_that_of_the_registry_or_of_its_list() {
        for (registry, expected) in [
            (
                "https://r.example",
                "https://r.example/v0/servers?search=a+b%26c&version=latest&limit=100",
            ),
            (
                "https://r.example/mcp/v0.1/",
                "https://r.example/mcp/v0.1/servers?search=a+b%26c&version=latest&limit=100",
            ),
            (
                "https://r.example/v0/servers",
                "https://r.example/v0/servers?search=a+b%26c&version=latest&limit=100",
            ),
        ] {
            let config = BuilderConfig {
                registry: registry.into(),
                ..BuilderConfig::default()
            };
            assert_eq!(address(&config, "a b&c").unwrap().as_str(), expected);
        }
    }
}
