//! Finds the package of a server that is added by its name in the MCP registry (K-18).
//!
//! For most packages the name alone suffices, so a server is added even if the registry does not respond or does not know the
//! name. The registry is asked because it may list a different package for the name, or none that can run here.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use super::Management;

/// Time limit for the registry's response. If it is exceeded, the server is added by its name alone.
const PATIENCE: Duration = Duration::from_secs(10);

/// The registry's answer about a name.
#[derive(Debug, PartialEq, Eq)]
enum RegistryAnswer {
    /// The registry does not know the name.
    Unknown,
    /// The name has a package that npx or uvx runs.
    Package { package: String, kind: String },
    /// The name has no such package, but a server with an HTTP address.
    Remote,
    /// The name has only packages of other kinds (`Some` contains a kind), or no package.
    Other(Option<String>),
}

/// The entry of a new server, with the package that the registry lists for its name.
///
/// # Errors
///
/// A sentence about `name`, if the registry knows the server but has no package that can be started here.
pub async fn with_package(
    management: &Arc<Management>,
    mut config: Value,
) -> Result<Value, String> {
    let Some(name) = searched_name(&config).map(str::to_owned) else {
        return Ok(config);
    };
    if management.workspace.registry_is_cached(&name).await {
        return Ok(config);
    }
    let word = name.rsplit('/').next().unwrap_or(&name).to_owned();
    let asks = Arc::clone(management);
    let search =
        management.on_control_runtime(async move { asks.builder.search_registry(&word).await });
    let Ok(Some(Ok(found))) = timeout(PATIENCE, search).await else {
        return Ok(config);
    };
    let found = serde_json::to_value(found).unwrap_or_default();
    let entries = found.as_array().map(Vec::as_slice).unwrap_or_default();
    let why = match registry_answer(entries, &name) {
        RegistryAnswer::Unknown => return Ok(config),
        RegistryAnswer::Package { package, kind } => {
            config["name"] = package.into();
            config["package_type"] = kind.into();
            return Ok(config);
        }
        RegistryAnswer::Remote => {
            "runs elsewhere and is reached over HTTP: the registry has no package of the server that could be started here. \
             Add the server's URL as a remote server instead: upstreams.remote in the gateway's own configuration"
                .to_owned()
        }
        RegistryAnswer::Other(Some(kind)) => format!(
            "is published as {kind} only, which the gateway does not start by itself. Add the server by its command instead"
        ),
        RegistryAnswer::Other(None) => {
            "has no package in the registry. Add the server by its command instead".to_owned()
        }
    };
    Err(format!("{name} {why}"))
}

/// The name to look up in the registry; `None` for an entry that already specifies the kind of package or the package itself.
fn searched_name(config: &Value) -> Option<&str> {
    let said = |key: &str| config.get(key).filter(|value| !value.is_null());
    let source = said("source").map_or("registry", |it| it.as_str().unwrap_or_default());
    let name = said("name")?.as_str()?;
    let is_open = source == "registry" && said("package_type").is_none();
    (is_open && !name.starts_with('@')).then_some(name)
}

fn registry_answer(entries: &[Value], name: &str) -> RegistryAnswer {
    let is_it = |entry: &&Value| {
        let package = entry["package"].as_str();
        entry["name"] == name
            || package.is_some_and(|it| it == name || it.strip_prefix('@') == Some(name))
    };
    let mut found = entries.iter().filter(is_it).peekable();
    if found.peek().is_none() {
        return RegistryAnswer::Unknown;
    }
    let mut other = RegistryAnswer::Other(None);
    for entry in found {
        match (entry["package"].as_str(), entry["package_type"].as_str()) {
            (Some(package), Some(kind @ ("npm" | "pypi"))) => {
                return RegistryAnswer::Package {
                    package: package.to_owned(),
                    kind: kind.to_owned(),
                };
            }
            // If the registry lists a package without its kind, the name alone is used.
            (Some(_), None) => return RegistryAnswer::Unknown,
            (_, Some("remote")) => other = RegistryAnswer::Remote,
            (_, Some(kind)) => other = RegistryAnswer::Other(Some(kind.to_owned())),
            (None, None) => {}
        }
    }
    other
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_registry_is_asked_for_names_that_say_no_kind_of_package() {
        for (config, name) in [
            (json!({"name": "a/b"}), Some("a/b")),
            (json!({"source": "registry", "name": "a"}), Some("a")),
            (json!({"source": "registry", "name": "@a/b"}), None),
            (
                json!({"source": "registry", "name": "a", "package_type": "pypi"}),
                None,
            ),
            (json!({"source": "custom", "name": "a"}), None),
            (json!({"command": "a"}), None),
        ] {
            assert_eq!(searched_name(&config), name, "{config}");
        }
    }

    #[test]
    fn a_package_that_runs_here_goes_before_what_does_not() {
        let entry = |name: &str, package: Option<&str>, kind: Option<&str>| json!({"name": name, "package": package, "package_type": kind});
        let entries = [
            entry("a/remote", None, Some("remote")),
            entry("a/image", Some("a/image:1"), Some("oci")),
            entry("a/nothing", None, None),
            entry("a/both", None, Some("remote")),
            entry("a/both", Some("both-mcp"), Some("pypi")),
            entry("io.b/server", Some("@b/server"), Some("npm")),
            entry("a/plain", Some("plain"), None),
        ];
        let package = |package: &str, kind: &str| RegistryAnswer::Package {
            package: package.into(),
            kind: kind.into(),
        };
        for (name, expected) in [
            ("a/remote", RegistryAnswer::Remote),
            ("a/image", RegistryAnswer::Other(Some("oci".into()))),
            ("a/nothing", RegistryAnswer::Other(None)),
            ("a/both", package("both-mcp", "pypi")),
            ("b/server", package("@b/server", "npm")),
            ("a/plain", RegistryAnswer::Unknown),
            ("remote", RegistryAnswer::Unknown),
        ] {
            assert_eq!(registry_answer(&entries, name), expected, "{name}");
        }
    }
}
