//! The environment variables of child processes, which start from an empty environment (WRK-18). Of the gateway's own variables,
//! which include its tokens, a child gets only those that this module lists.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use tooldock_base::issue::Issue;
use tooldock_base::secret::Secret;

/// Variables that every child inherits unchanged: home, language, time zone, temporary folder, HTTP proxies, and certificates.
const COMMON: [&str; 14] = [
    "HOME",
    "LANG",
    "TZ",
    "TMPDIR",
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];

/// `PATH` of children if the gateway has no `PATH` itself.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables of an installer: the common ones, the locale, and the installer's settings, including credentials of package
/// indexes.
pub fn installer_variables() -> Vec<(OsString, Secret)> {
    let mut variables = from_gateway(|name| {
        name == "PATH"
            || ["PIP_", "UV_"]
                .iter()
                .any(|prefix| name.starts_with(prefix))
    });
    variables
        .entry("PATH".into())
        .or_insert_with(|| Secret::new(DEFAULT_PATH));
    variables.into_iter().collect()
}

/// Variables of a stdio server, before the configured ones are added: the common ones, the locale, `PATH`, and the sources of
/// packages, because many servers are started by an installer (`npx`, `uvx`).
pub fn server_variables() -> BTreeMap<OsString, Secret> {
    let mut variables = from_gateway(|name| {
        let lower = name.to_ascii_lowercase();
        name == "PATH"
            || name == "NODE_EXTRA_CA_CERTS"
            || ["pip_", "uv_", "npm_config_"]
                .iter()
                .any(|prefix| lower.starts_with(prefix))
    });
    variables
        .entry("PATH".into())
        .or_insert_with(|| Secret::new(DEFAULT_PATH));
    variables
}

/// Variables of a builder process: the common variables, the locale, `PATH`, and the settings of package registries, including
/// their credentials.
pub(crate) fn builder_variables() -> Vec<(OsString, Secret)> {
    let registries = [
        "npm_config_registry",
        "pip_index_url",
        "uv_default_index",
        "uv_index_url",
    ];
    let mut variables = from_gateway(|name| {
        name == "PATH" || registries.contains(&name.to_ascii_lowercase().as_str())
    });
    variables
        .entry("PATH".into())
        .or_insert_with(|| Secret::new(DEFAULT_PATH));
    variables.into_iter().collect()
}

/// The gateway's common variables, the locale, and variables for which `wanted` returns true. Values that are not UTF-8 are
/// omitted.
fn from_gateway(wanted: impl Fn(&str) -> bool) -> BTreeMap<OsString, Secret> {
    let mut variables: BTreeMap<OsString, Secret> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| {
            COMMON.contains(&name.as_str()) || name.starts_with("LC_") || wanted(name)
        })
        .map(|(name, value)| (name.into(), Secret::new(value)))
        .collect();
    variables
        .entry("LANG".into())
        .or_insert_with(|| Secret::new("C.UTF-8"));
    variables
}

/// Returns all environment variables of a worker, or of an MCP server whose program is in a namespace folder. `build`: the folder
/// of the Python environment; `None` if the process does not run Python. `defaults`: the variables of the namespace's manifest.
/// They override the gateway's variables, and `secrets` override both.
///
/// A secret that cannot be an environment variable is omitted, and its name is logged.
pub fn worker_variables(
    build: Option<&Path>,
    defaults: &BTreeMap<String, Secret>,
    secrets: BTreeMap<String, Secret>,
) -> (Vec<(OsString, Secret)>, Vec<Issue>) {
    let mut variables = from_gateway(|_| false);
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    if let Some(build) = build {
        path = [build.join("bin").as_os_str(), &path].join(OsStr::new(":"));
        let build = build.to_string_lossy().into_owned();
        variables.insert("VIRTUAL_ENV".into(), Secret::new(build));
    }
    for (name, value) in [
        ("PATH", path.to_string_lossy().into_owned()),
        // A file such as `json.py` among the tools must not replace a module of the standard library.
        ("PYTHONSAFEPATH", "1".into()),
        // Output of a tool must appear as soon as it is printed.
        ("PYTHONUNBUFFERED", "1".into()),
        // No `__pycache__` in people's folders. Also, if a file is edited twice within a second, a compiled file could be
        // outdated.
        ("PYTHONDONTWRITEBYTECODE", "1".into()),
    ] {
        variables.insert(name.into(), Secret::new(value));
    }
    for (name, value) in defaults {
        variables.insert(name.into(), value.clone());
    }
    let mut issues = Vec::new();
    for (name, value) in secrets {
        if name.is_empty() || name.contains(['=', '\0']) || value.expose().contains('\0') {
            issues.push(Issue {
                code: "invalid_secret",
                subject: name.replace('\0', "\u{fffd}"),
                message: "a secret with this name or value cannot be an environment variable; it is left out".into(),
            });
            continue;
        }
        variables.insert(name.into(), value);
    }
    (variables.into_iter().collect(), issues)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value<'a>(variables: &'a [(OsString, Secret)], name: &str) -> Option<&'a str> {
        variables
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.expose())
    }

    #[test]
    fn secrets_win_over_defaults_and_the_gateways_variables_stay_here() {
        let defaults = BTreeMap::from([
            ("A".into(), Secret::new("default")),
            ("B".into(), Secret::new("default")),
        ]);
        let secrets = BTreeMap::from([
            ("B".into(), Secret::new("secret")),
            ("C\0".into(), Secret::new("x")),
        ]);
        let (variables, issues) = worker_variables(Some(Path::new("/v")), &defaults, secrets);
        assert_eq!(value(&variables, "A"), Some("default"));
        assert_eq!(value(&variables, "B"), Some("secret"));
        assert!(value(&variables, "PATH").is_some_and(|path| path.starts_with("/v/bin:")));
        assert_eq!(value(&variables, "VIRTUAL_ENV"), Some("/v"));
        // Set by the test runner: stands for any variable of the gateway.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        assert_eq!(value(&variables, "CARGO_MANIFEST_DIR"), None);
        assert_eq!(issues.len(), 1);
        assert_eq!(issues[0].code, "invalid_secret");
    }

    #[test]
    fn values_do_not_show_in_debug_output() {
        let secrets = BTreeMap::from([("TOKEN".into(), Secret::new("hunter2"))]);
        let (variables, _) = worker_variables(Some(Path::new("/v")), &BTreeMap::new(), secrets);
        assert!(!format!("{variables:?}").contains("hunter2"));
    }
}
