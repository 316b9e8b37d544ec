//! `tooldock.yaml`: metadata and settings of a namespace, and the limits that follow from it.
//!
//! The authors of the tools write this file, so it cannot exceed the operator's rules: limits are clamped to
//! `namespaces.ceilings`, and variables that decide which code the interpreter loads cannot be set.

use std::collections::BTreeMap;
use std::path::Path;

use serde::de::DeserializeOwned;
use tooldock_base::config::{GlobalSecrets, Limits, LimitsPatch, NamespacesConfig, ToolLimits};
use tooldock_base::issue::Issue;
use tooldock_base::names::NamespaceName;
use tooldock_base::template::Template;
use tooldock_base::tree_file;
use tooldock_base::yaml;
use tooldock_base::yaml::{Mapping, Value};
use tooldock_credentials::secrets::DeclaredSecret;

mod variables;

pub(crate) use variables::{INVALID_VARIABLE, MISSING_SECRET, Variables};

/// Name of the manifest file in a namespace's folder.
pub const MANIFEST_FILE: &str = "tooldock.yaml";

/// Code of the [`Issue`] that a limit of a manifest is above the operator's ceiling.
pub(crate) const CLAMPED: &str = "limit_clamped";

/// Maximum size of a manifest, in bytes.
const MANIFEST_BYTES_MAX: u64 = 64 * 1024;

/// A parsed manifest. `Default` is the manifest of a folder without the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Manifest {
    /// Description of the namespace, as one line.
    pub description: String,
    /// Version of the namespace, as its author writes it.
    pub version: String,
    /// Author of the namespace.
    pub author: String,
    /// The secrets that the namespace's tools need, by name.
    pub secrets: Vec<String>,
    /// Defaults of environment variables. A value may refer to a secret or to a variable of the gateway as `${NAME}`.
    pub env: BTreeMap<String, Template>,
    /// Limits that the manifest requests; the operator's ceilings bound them.
    pub limits: LimitsPatch,
    /// True if a function with the name of its file is a tool (`style: vault`); false if tools are declared in other ways.
    pub vault_style: bool,
    /// Value of the key `server`: the choice between the gateway's worker and an MCP server that the folder contains.
    pub server: ServerKey,
    /// Issues found in the manifest: unknown keys, and variables that may not be set.
    pub issues: Vec<Issue>,
}

/// Choice of the program that serves a namespace folder, as written in the manifest's key `server`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ServerKey {
    /// The key is not set: the files of the folder decide.
    #[default]
    Found,
    /// `false`: the worker serves the folder.
    Never,
    /// `FILE[:OBJECT]`: this file, relative to the folder, makes the server; `OBJECT` is the name of the server object in it.
    Program(String),
}

/// Reason why a manifest cannot be used, with the file and the key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{MANIFEST_FILE}: {0}")]
pub struct InvalidManifest(String);

impl Manifest {
    /// Reads the manifest of a namespace folder; returns the default if the folder has none. `tree` is the resolved path of a
    /// directory: if the manifest is a symlink, its target must be inside `tree`.
    ///
    /// # Errors
    ///
    /// [`InvalidManifest`] for a file that cannot be read, is not a regular file, is too large, is not YAML, or has a wrong type
    /// under a known key.
    pub fn read(namespace_dir: &Path, tree: &Path) -> Result<Self, InvalidManifest> {
        let path = namespace_dir.join(MANIFEST_FILE);
        match tree_file::read(&path, tree, MANIFEST_BYTES_MAX) {
            Ok(Some(text)) => Self::parse(&text),
            Ok(None) => Ok(Self::default()),
            Err(refused) => Err(InvalidManifest(refused.to_string())),
        }
    }

    /// Parses a manifest's text.
    ///
    /// # Errors
    ///
    /// As [`Manifest::read`].
    pub fn parse(text: &[u8]) -> Result<Self, InvalidManifest> {
        let keys = match yaml::from_slice(text) {
            Ok(Value::Null) => return Ok(Self::default()),
            Ok(Value::Mapping(keys)) => keys,
            Ok(_) => {
                return Err(InvalidManifest(
                    "must be a mapping of keys to values".into(),
                ));
            }
            Err(error) => return Err(InvalidManifest(format!("not valid YAML: {error}"))),
        };
        let mut manifest = Self::default();
        let mut limits = Mapping::new();
        for (key, value) in keys {
            let Some(key) = key.as_str().map(str::to_owned) else {
                return Err(InvalidManifest("every key must be text".into()));
            };
            // A key without a value is ignored.
            if value.is_null() {
                continue;
            }
            match key.as_str() {
                "description" => manifest.description = scalar(&key, value)?,
                "version" => manifest.version = scalar(&key, value)?,
                "author" => manifest.author = scalar(&key, value)?,
                "secrets" => manifest.secrets = secrets(value)?,
                "env" => manifest.set_env(value)?,
                "server" => manifest.server = server(value)?,
                "style" => manifest.set_style(&scalar(&key, value)?),
                _ if LimitsPatch::KEYS.contains(&key.as_str()) => {
                    check_limit(&key, &value)?;
                    limits.insert(key.into(), value);
                }
                _ => manifest.issues.push(Issue {
                    code: "unknown_key",
                    subject: format!("{MANIFEST_FILE}: {key}"),
                    message: format!("unknown key {key:?}; it has no effect{}", instead_of(&key)),
                }),
            }
        }
        manifest.limits = yaml::from_value(Value::Mapping(limits))
            .map_err(|error| InvalidManifest(error.to_string()))?;
        Ok(manifest)
    }

    /// The secrets that the namespace's tools need, each with the names that its default value in `env` refers to.
    pub fn declared_secrets(&self) -> Vec<DeclaredSecret> {
        let declared = self.secrets.iter().map(|key| DeclaredSecret {
            key: key.clone(),
            default: self.env.get(key).map(|template| {
                let names = template.names().into_iter();
                names.map(str::to_owned).collect()
            }),
        });
        declared.collect()
    }

    /// Sets the style of tool files. Only `vault` has an effect: other styles are recognized by a file's content.
    fn set_style(&mut self, style: &str) {
        self.vault_style = style == "vault";
        if !matches!(style, "vault" | "v1" | "fastmcp") {
            self.issues.push(Issue {
                code: "unknown_key",
                subject: format!("{MANIFEST_FILE}: style"),
                message: format!("unknown style {style:?}; the only one to say is vault, and this one has no effect"),
            });
        }
    }

    fn set_env(&mut self, value: Value) -> Result<(), InvalidManifest> {
        // The error is created here, because serde's error would quote a value that may be a credential.
        if !value.is_mapping() {
            let message = "env: must be a mapping of names to single values";
            return Err(InvalidManifest(message.into()));
        }
        for (name, value) in typed::<BTreeMap<String, Value>>("env", value)? {
            let key = format!("env.{name}");
            if !is_variable_name(&name) {
                return Err(InvalidManifest(format!("{key}: not a variable name")));
            }
            if is_reserved_variable(&name) {
                self.issues.push(Issue {
                    code: "reserved_variable",
                    subject: format!("{MANIFEST_FILE}: {key}"),
                    message: format!("{name} decides which code a worker loads and cannot be set; it has no effect"),
                });
                continue;
            }
            let value = match value {
                Value::Null => String::new(),
                value => scalar(&key, value)?,
            };
            if value.contains('\0') {
                return Err(InvalidManifest(format!("{key}: must not contain a NUL")));
            }
            self.env.insert(name, Template::new(value));
        }
        Ok(())
    }

    /// Computes the limits in force: the defaults, then the manifest's limits up to the ceilings, then the operator's overrides.
    ///
    /// A manifest's limit above its ceiling is lowered to it and reported as an [`Issue`]. The operator's overrides have no
    /// ceilings.
    pub fn effective_limits(
        &self,
        namespace: &NamespaceName,
        config: &NamespacesConfig,
    ) -> (Limits, BTreeMap<String, ToolLimits>, Vec<Issue>) {
        effective_limits(&self.limits, Some(MANIFEST_FILE), namespace, config)
    }
}

/// Computes the limits in force from limits of any source. `file` is the name of the file that sets them; `None` means that
/// the operator sets them, without ceilings.
///
/// If the configuration was merged from an operator's file and another one, tools and principals must also be allowed by the
/// operator's own lists, and errors are masked if the operator's own file masks them.
pub(crate) fn effective_limits(
    own: &LimitsPatch,
    file: Option<&str>,
    namespace: &NamespaceName,
    config: &NamespacesConfig,
) -> (Limits, BTreeMap<String, ToolLimits>, Vec<Issue>) {
    let mut issues = Vec::new();
    let own = match file {
        Some(file) => clamped(own, file, config, &mut issues),
        None => own.clone(),
    };
    let mut limits = config.defaults.clone();
    let mut tools = BTreeMap::new();
    for patch in [Some(&own), config.overrides.get(namespace)]
        .into_iter()
        .flatten()
    {
        limits.apply(patch);
        for (name, patch) in &patch.tools {
            let tool: &mut ToolLimits = tools.entry(name.clone()).or_default();
            tool.timeout = patch.timeout.or(tool.timeout);
            tool.max_result = patch.max_result.or(tool.max_result);
        }
    }
    if let Some(operator) = &config.operator {
        let said = match file {
            Some(_) => own,
            None => operator.servers.get(namespace).cloned().unwrap_or_default(),
        };
        let (alone, own_tools, _) = effective_limits(&said, None, namespace, &operator.namespaces);
        if file.is_none() && operator.names.contains(namespace) {
            limits.lower_to(&alone);
            for (name, tool) in &mut tools {
                tool.lower_to(own_tools.get(name), &alone);
            }
        }
        limits.within = Some(Box::new(alone.lists())).filter(|it| **it != limits.lists());
        limits.mask_errors |= alone.mask_errors;
        if file.is_none() && !alone.sandbox.covers(&limits.sandbox) {
            limits.sandbox = alone.sandbox.clone();
        }
        limits.pins = limits.pins.max(alone.pins);
        if alone.global_secrets == GlobalSecrets::Declared {
            limits.global_secrets = GlobalSecrets::Declared;
        }
    }
    if file == Some(MANIFEST_FILE) && config.debugged.as_ref() == Some(namespace) {
        limits.lift_for_debugger();
        tools.values_mut().for_each(|it| it.timeout = None);
    }
    (limits, tools, issues)
}

/// End of the error message for an unknown key: the file or key in which the setting belongs.
fn instead_of(key: &str) -> &'static str {
    match key {
        "python" | "python_version" | "requires-python" => {
            ": the operator's workers.python is the interpreter of all namespaces"
        }
        "dependencies" | "requirements" | "packages" => ": write packages into requirements.txt",
        _ => "",
    }
}

/// Returns true if a manifest may not set the variable, because it would change the interpreter, its libraries or the worker's
/// runtime.
pub(crate) fn is_reserved_variable(name: &str) -> bool {
    matches!(name, "PATH" | "VIRTUAL_ENV")
        || ["PYTHON", "LD_", "DYLD_", "TOOLDOCK_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

fn is_variable_name(name: &str) -> bool {
    name.len() <= 256
        && name
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Checks one limit alone, so that the error can name its key. A zero that would prevent every call is an error, too.
fn check_limit(key: &str, value: &Value) -> Result<(), InvalidManifest> {
    let mut alone = Mapping::new();
    alone.insert(key.into(), value.clone());
    let patch: LimitsPatch = typed(key, Value::Mapping(alone))?;
    if patch.check().is_err_and(|refused| refused.too_low) {
        return Err(InvalidManifest(format!("{key}: must be greater than zero")));
    }
    Ok(())
}

fn typed<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, InvalidManifest> {
    yaml::from_value(value).map_err(|error| {
        let text = error.to_string();
        // serde's error begins with the key only in some cases, so the key is removed and then added in all cases.
        let text = text.strip_prefix(&format!("{key}: ")).unwrap_or(&text);
        InvalidManifest(format!("{key}: {text}"))
    })
}

/// Converts a single value to text, so that `version: 1.0` and `PORT: 8080` may be written without quotes.
fn scalar(key: &str, value: Value) -> Result<String, InvalidManifest> {
    match value {
        Value::String(text) => Ok(text),
        Value::Bool(value) => Ok(value.to_string()),
        Value::Number(value) => Ok(value.to_string()),
        _ => Err(InvalidManifest(format!("{key}: must be a single value"))),
    }
}

fn server(value: Value) -> Result<ServerKey, InvalidManifest> {
    match value {
        Value::Bool(false) => Ok(ServerKey::Never),
        Value::String(target) => Ok(ServerKey::Program(target)),
        _ => Err(InvalidManifest(
            "server: must be FILE, FILE:OBJECT or false".into(),
        )),
    }
}

fn secrets(value: Value) -> Result<Vec<String>, InvalidManifest> {
    let names = value.as_sequence();
    if !names.is_some_and(|names| names.iter().all(Value::is_string)) {
        return Err(InvalidManifest("secrets: must be a list of names".into()));
    }
    let names: Vec<String> = typed("secrets", value)?;
    match names.iter().find(|name| !is_variable_name(name)) {
        Some(name) => Err(InvalidManifest(format!(
            "secrets: {name:?} is not a variable name"
        ))),
        None => Ok(names),
    }
}

fn clamped(
    own: &LimitsPatch,
    file: &str,
    config: &NamespacesConfig,
    issues: &mut Vec<Issue>,
) -> LimitsPatch {
    let mut own = own.clone();
    let nothing = LimitsPatch::default();
    own.cap(&nothing, &config.ceilings.patch(), |key, what| {
        issues.push(Issue {
            code: CLAMPED,
            subject: format!("{file}: {key}"),
            message: format!("{key}: {what}"),
        });
    });
    if let Some(sandbox) = &mut own.sandbox {
        sandbox.by_namespace = true;
    }
    let pins = config.defaults.pins;
    if own.pins.is_some_and(|it| it < pins) {
        issues.push(Issue {
            code: CLAMPED,
            subject: format!("{file}: pins"),
            message: format!(
                "pins is {} for all namespaces and can be loosened under namespaces.overrides only",
                pins.as_str()
            ),
        });
        own.pins = None;
    }
    if own.mask_errors == Some(false) && config.defaults.mask_errors {
        issues.push(Issue {
            code: CLAMPED,
            subject: format!("{file}: mask_errors"),
            message: "mask_errors is on for all namespaces and can be turned off under namespaces.overrides only".into(),
        });
        own.mask_errors = None;
    }
    if own.global_secrets == Some(GlobalSecrets::All)
        && config.defaults.global_secrets == GlobalSecrets::Declared
    {
        issues.push(Issue {
            code: CLAMPED,
            subject: format!("{file}: global_secrets"),
            message: "global_secrets is declared for all namespaces and can be all under namespaces.overrides only".into(),
        });
        own.global_secrets = None;
    }
    own
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bytesize::ByteSize;
    use tooldock_base::config::QUEUE_MAX;
    use tooldock_base::secret::Secret;
    use tooldock_credentials::secrets::{Protection, Scope, SecretNames, SecretStore};

    use super::*;

    fn parse(text: &str) -> Manifest {
        Manifest::parse(text.as_bytes()).expect("valid")
    }

    fn refusal(text: &str) -> String {
        Manifest::parse(text.as_bytes())
            .expect_err("invalid")
            .to_string()
    }

    #[test]
    fn a_variable_with_a_value_in_the_manifest_is_not_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let store = SecretStore::new(folder.path(), Protection::new(None, true));
        let store = Arc::new(store);
        let names = SecretNames::of(Arc::clone(&store));
        let manifest =
            "secrets: [PLAIN, FROM_OTHER, BARE]\nenv: { PLAIN: eu, FROM_OTHER: 'x-${OTHER}' }\n";
        let declared = Manifest::parse(manifest.as_bytes())
            .unwrap()
            .declared_secrets();
        let github: NamespaceName = "github".parse().unwrap();
        let check = || {
            let it = names.check(&github, &declared).unwrap();
            let lacking = store.begin("test").unwrap();
            let lacking = lacking.lacking(&github, &declared).join(" ");
            [it.satisfied.join(" "), it.missing.join(" "), lacking]
        };
        assert_eq!(check(), ["PLAIN", "FROM_OTHER BARE", "FROM_OTHER BARE"]);
        store
            .set("OTHER", &Scope::Global, Secret::new("v"))
            .unwrap();
        assert_eq!(check(), ["PLAIN FROM_OTHER", "BARE", "BARE"]);
    }

    #[test]
    fn what_may_be_a_credential_in_the_wrong_place_is_not_quoted() {
        for text in [
            "env: KEY=hunter2",
            "env: [hunter2]",
            "secrets: hunter2",
            "secrets: [{a: hunter2}]",
        ] {
            let refused = refusal(text);
            assert!(refused.contains("must be a "), "{refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn reads_what_a_namespace_says_about_itself() {
        let manifest = parse(
            "description: \"GitHub API tools\"\nversion: 1.0\nauthor: someone\nsecrets:\n  - GITHUB_TOKEN\n\
             env:\n  GITHUB_API_URL: \"https://api.github.com\"\n  PORT: 8080\n  DEBUG: true\nstyle: fastmcp\n",
        );
        assert_eq!(manifest.description, "GitHub API tools");
        assert_eq!(manifest.version, "1.0");
        assert_eq!(manifest.secrets, ["GITHUB_TOKEN"]);
        assert_eq!(manifest.env["PORT"], Template::new("8080"));
        assert_eq!(manifest.env["DEBUG"], Template::new("true"));
        assert!(manifest.issues.is_empty());
    }

    #[test]
    fn an_empty_file_and_empty_keys_say_nothing() {
        assert_eq!(parse(""), Manifest::default());
        assert_eq!(parse("# only a comment\n"), Manifest::default());
        assert_eq!(parse("secrets:\nenv:\ntimeout:\n"), Manifest::default());
    }

    #[test]
    fn unknown_keys_are_issues_and_not_fatal() {
        let manifest = parse("descripton: x\nversion: '2'\n");
        assert_eq!(manifest.version, "2");
        assert_eq!(manifest.issues[0].code, "unknown_key");
        assert!(manifest.issues[0].subject.contains("descripton"));
        for (key, advice) in [
            ("python", "workers.python is the interpreter"),
            ("dependencies", "write packages into requirements.txt"),
        ] {
            let manifest = Manifest::parse(format!("{key}: '3.12'").as_bytes()).unwrap();
            let message = &manifest.issues[0].message;
            assert!(message.contains(advice), "{message}");
        }
    }

    #[test]
    fn wrong_types_name_file_and_key() {
        for (text, key) in [
            ("description: [a]", "description"),
            ("secrets: GITHUB_TOKEN", "secrets"),
            ("secrets: ['A=B']", "secrets"),
            ("env: [A]", "env"),
            ("env: {A: [1]}", "env.A"),
            ("env: {'A B': 1}", "env.A B"),
            ("timeout: soon", "timeout"),
            ("timeout: 30", "timeout"),
            ("timeout: 0s", "timeout"),
            ("max_concurrency: -1", "max_concurrency"),
            ("max_concurrency: 0", "max_concurrency"),
            ("tools: {add: {timout: 3s}}", "tools"),
            ("tools_allow: 5", "tools_allow"),
        ] {
            let message = refusal(text);
            assert!(
                message.starts_with(&format!("tooldock.yaml: {key}: ")),
                "{text}: {message}"
            );
        }
        assert!(refusal("a: [").contains("not valid YAML"));
        assert!(refusal("- a").contains("must be a mapping"));
    }

    #[test]
    fn a_yaml_bomb_is_refused() {
        let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..20 {
            let reference = format!("*a{}", level - 1);
            text += &format!("a{level}: &a{level} [{}]\n", vec![reference; 10].join(","));
        }
        assert!(refusal(&text).contains("not valid YAML"));
        // Few uses of few aliases, which stand for more values than the parser's own limit notices.
        let (list, uses) = (vec!["x"; 130].join(","), vec!["*a"; 150].join(","));
        let text = format!("a: &a [{list}]\nb: &b [{uses}]\nc: [*b,*b,*b,*b,*b,*b]\n");
        let refused = refusal(&text);
        assert!(refused.contains("more than 100000 values"), "{refused}");
        assert!(refused.contains("use fewer aliases"), "{refused}");
    }

    #[test]
    fn variables_that_choose_code_cannot_be_set() {
        let manifest = parse("env: {PATH: /x, LD_PRELOAD: /x.so, PYTHONPATH: /x, OK: fine}");
        assert_eq!(manifest.env.keys().collect::<Vec<_>>(), ["OK"]);
        assert_eq!(manifest.issues.len(), 3);
        assert!(
            manifest
                .issues
                .iter()
                .all(|issue| issue.code == "reserved_variable")
        );
    }

    #[test]
    fn limits_of_questions_have_defaults_and_follow_the_same_order() {
        let name: NamespaceName = "github".parse().expect("valid");
        let mut config = NamespacesConfig::default();
        config.defaults.ask_timeout = Duration::from_secs(60);
        let of = |text: &str, config: &NamespacesConfig| {
            let (limits, _, issues) = parse(text).effective_limits(&name, config);
            (
                limits.ask_timeout.as_secs(),
                limits.max_parked,
                issues.len(),
            )
        };
        assert_eq!(of("", &config), (60, 64, 0));
        assert_eq!(
            of("ask_timeout: 2h\nmax_parked: 500", &config),
            (7200, 500, 0)
        );
        assert_eq!(of("max_parked: 0", &config), (60, 0, 0));
        let (seconds, parked, issues) = of("ask_timeout: 3days\nmax_parked: 100000", &config);
        assert_eq!((seconds, parked, issues), (86_400, QUEUE_MAX, 2));
        let patch = LimitsPatch {
            ask_timeout: Some(Duration::from_secs(5)),
            max_parked: Some(3),
            ..LimitsPatch::default()
        };
        config.overrides.insert(name.clone(), patch);
        assert_eq!(of("ask_timeout: 2h\nmax_parked: 500", &config), (5, 3, 0));
        assert!(refusal("ask_timeout: 0s").contains("ask_timeout: must be greater than zero"));
    }

    #[test]
    fn several_processes_are_the_authors_wish_and_the_operators_word() {
        let name: NamespaceName = "ns".parse().expect("valid");
        let mut config = NamespacesConfig::default();
        let of = |text: &str, config: &NamespacesConfig| {
            let (limits, _, issues) = parse(text).effective_limits(&name, config);
            (limits.processes, issues.len())
        };
        assert_eq!(of("", &config), (1, 0));
        assert_eq!(of("processes: 3", &config), (3, 0));
        assert_eq!(of("processes: 1000", &config), (4, 1));
        config.overrides.insert(
            name.clone(),
            LimitsPatch {
                processes: Some(16),
                ..LimitsPatch::default()
            },
        );
        assert_eq!(of("processes: 3", &config), (16, 0));
        assert!(refusal("processes: 0").contains("processes: must be greater than zero"));
    }

    #[test]
    fn own_limits_stop_at_the_ceilings_and_the_operator_has_the_last_word() {
        let name: NamespaceName = "github".parse().expect("valid");
        let manifest = parse(
            "timeout: 20m\nmax_concurrency: 4\nqueue: 18446744073709551615\n\
             tools: {slow: {timeout: 2h, max_result: 1MiB}, big: {max_result: 1GiB}}",
        );
        let mut config = NamespacesConfig::default();
        let (limits, tools, issues) = manifest.effective_limits(&name, &config);
        assert_eq!(limits.timeout, config.ceilings.timeout);
        assert_eq!(limits.max_concurrency.local(), 4);
        assert_eq!(limits.queue, QUEUE_MAX);
        assert_eq!(limits.sync_concurrency, config.defaults.sync_concurrency);
        assert_eq!(tools["slow"].timeout, Some(config.ceilings.timeout));
        assert_eq!(tools["slow"].max_result, Some(ByteSize::mib(1)));
        let clamped: Vec<_> = issues.iter().map(|issue| issue.subject.as_str()).collect();
        assert_eq!(
            clamped,
            [
                "tooldock.yaml: timeout",
                "tooldock.yaml: queue",
                "tooldock.yaml: tools.big.max_result",
                "tooldock.yaml: tools.slow.timeout",
            ]
        );
        assert!(issues.iter().all(|issue| issue.code == "limit_clamped"));

        let patch = LimitsPatch {
            timeout: Some(Duration::from_secs(3600)),
            ..LimitsPatch::default()
        };
        config.overrides.insert(name.clone(), patch);
        let (limits, ..) = manifest.effective_limits(&name, &config);
        assert_eq!(limits.timeout, Duration::from_secs(3600));
    }
}
