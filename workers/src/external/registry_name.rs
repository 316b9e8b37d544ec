//! Converts a name in a registry of MCP servers to a command that installs and runs the server (K-18). No request is sent to a
//! registry: earlier answers are in `external/registry-cache.yaml`, and for most packages the name suffices.

use std::collections::BTreeMap;

use serde::Deserialize;
use tooldock_base::server_failure::InvalidServer;

/// Maximum length of a name in a registry, in bytes.
const NAME_MAX: usize = 256;

/// Registry that a server's package is published in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PackageType {
    #[default]
    Npm,
    Pypi,
}

/// Answer of a registry about a server's name: an entry of `external/registry-cache.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Package {
    #[serde(default)]
    pub(super) package_type: PackageType,
    /// Name of the package, as the installer expects it.
    pub(super) package: String,
}

/// Content of `external/registry-cache.yaml`: packages by the server's name.
pub(super) type RegistryCache = BTreeMap<String, Package>;

/// Returns the command and its first arguments for a server's name. An explicit `package_type` takes precedence over the cache.
pub(super) fn launch(
    name: &str,
    package_type: Option<PackageType>,
    cache: &RegistryCache,
) -> Result<(&'static str, Vec<String>), InvalidServer> {
    let cached = cache
        .get(name)
        .filter(|package| package_type.is_none_or(|wanted| wanted == package.package_type));
    let (package_type, package) = match cached {
        Some(cached) => (cached.package_type, cached.package.clone()),
        None => match package_type.unwrap_or_default() {
            PackageType::Pypi => (PackageType::Pypi, name.to_owned()),
            // In npm, a name with a `/` is valid only if it begins with `@`.
            PackageType::Npm if name.contains('/') && !name.starts_with('@') => {
                (PackageType::Npm, format!("@{name}"))
            }
            PackageType::Npm => (PackageType::Npm, name.to_owned()),
        },
    };
    let (usable, what) = match package_type {
        PackageType::Npm => (is_npm(&package), "npm package (they look like @scope/name)"),
        PackageType::Pypi => (
            is_pypi(&package),
            "PyPI package (they look like mcp-server-time)",
        ),
    };
    if !usable {
        let shown: String = package.chars().take(80).collect();
        let message = format!("{shown:?} is no {what}");
        return Err(InvalidServer::new("name", message));
    }
    Ok(match package_type {
        PackageType::Npm => ("npx", vec!["-y".into(), package]),
        PackageType::Pypi => ("uvx", vec![package]),
    })
}

/// Returns true for the forms of a package name that npx installs from the registry: `name` and `@scope/name`, each with or
/// without `@version`. npx would read other forms as an option, a path, an address, or, for `a/b`, a repository on GitHub.
fn is_npm(text: &str) -> bool {
    let (scope, name) = match text.strip_prefix('@').map(|rest| rest.split_once('/')) {
        Some(Some((scope, name))) => (Some(scope), name),
        Some(None) => return false,
        None => (None, text),
    };
    let (name, version) = match name.split_once('@') {
        Some((name, version)) => (name, Some(version)),
        None => (name, None),
    };
    text.len() <= NAME_MAX
        && scope.is_none_or(is_word)
        && is_word(name)
        && version.is_none_or(is_version)
}

/// Returns true for the forms of a package name that uvx installs from the index: `name` and `name[extra]`, each with or
/// without `@version` or `==version`.
fn is_pypi(text: &str) -> bool {
    let (name, version) = match text.split_once("==").or_else(|| text.split_once('@')) {
        Some((name, version)) => (name, Some(version)),
        None => (text, None),
    };
    let (name, extras) = match name.split_once('[') {
        Some((name, rest)) => (name, rest.strip_suffix(']')),
        None => (name, Some("")),
    };
    let known = extras.is_some_and(|all| all.is_empty() || all.split(',').all(is_word));
    text.len() <= NAME_MAX && is_word(name) && known && version.is_none_or(is_version)
}

fn is_word(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-~".contains(&b);
    text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(plain)
}

fn is_version(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-+~^".contains(&b);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    fn line(name: &str, package_type: Option<PackageType>, cache: &RegistryCache) -> String {
        let (command, args) = launch(name, package_type, cache).unwrap();
        format!("{command} {}", args.join(" "))
    }

    #[test]
    fn a_name_alone_says_how_it_is_started() {
        let none = RegistryCache::new();
        let npm = |name| line(name, None, &none);
        assert_eq!(
            npm("modelcontextprotocol/server-github"),
            "npx -y @modelcontextprotocol/server-github"
        );
        assert_eq!(npm("@scope/server@1.2.3"), "npx -y @scope/server@1.2.3");
        assert_eq!(npm("firecrawl-mcp"), "npx -y firecrawl-mcp");
        let pypi = Some(PackageType::Pypi);
        for name in [
            "mcp-server-time",
            "mcp-server-time@2026.10.19",
            "mcp[cli]==2.3.0",
        ] {
            assert_eq!(line(name, pypi, &none), format!("uvx {name}"));
        }
    }

    #[test]
    fn what_a_registry_said_wins_unless_another_type_is_asked_for() {
        let cache: RegistryCache = yaml::from_str(
            "{ a/time: { package_type: pypi, package: mcp-server-time }, a/b: { package: c } }",
        )
        .unwrap();
        assert_eq!(line("a/time", None, &cache), "uvx mcp-server-time");
        assert_eq!(line("a/b", None, &cache), "npx -y c");
        let npm = Some(PackageType::Npm);
        assert_eq!(line("a/time", npm, &cache), "npx -y @a/time");
    }

    #[test]
    fn what_an_installer_might_misunderstand_is_refused() {
        let none = RegistryCache::new();
        let pypi = Some(PackageType::Pypi);
        for name in [
            "a/b",
            "@a/b",
            "git+https://x.example/y",
            "./a",
            "a[b",
            "a[-b]",
            "a==",
        ] {
            assert!(launch(name, pypi, &none).is_err(), "{name}");
        }
        let forge: RegistryCache = yaml::from_str("{ a: { package: b/c } }").unwrap();
        assert!(launch("a", None, &forge).is_err());
        for name in [
            "",
            "-y",
            "--help",
            "../x",
            "a/../b",
            "/a",
            "a/",
            "a/b/c",
            "a b",
            "https://x.example/y",
            "git+ssh:x",
            "a;b",
            "@",
            "@a",
            "@/a",
            "a@",
            "a@-g",
            "npm:a",
            &"x".repeat(300),
        ] {
            assert!(launch(name, None, &none).is_err(), "{name}");
        }
    }
}
