//! `tooldock check`: prints the configuration in force, with secrets masked, and every listener with its paths.
//!
//! The output is YAML. Everything but the configuration keys is a comment. Sizes are rounded to one decimal place.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use tooldock_base::data_dir::STARTER;
use tooldock_base::mask::{self, MASK};
use tooldock_base::names::NamespaceName;
use tooldock_base::template::Template;
use tooldock_base::yaml::{self, Value};
use tooldock_credentials::secrets::{Protection, SecretSource as _, SecretStore, Secrets};
use tooldock_workers::aggregate;
use tooldock_workers::folder_check::{self, PythonCheck};
use tooldock_workers::remote::RemoteServerConfig;
use tooldock_workers::scan;
use tooldock_workers::servers::{self, Finding, ServerCheck};

use crate::config::{Config, ConfigError, Effective, ListenerConfig, NamespaceRule, SECRETS_KEY};
use crate::descriptors::Connections;
use crate::session_store;

pub(crate) mod addresses;
mod client_keys;
mod hooks;
mod issuers;
mod namespaces;
mod target;

pub(crate) use target::Target;

/// Returns the complete output of `tooldock check`.
///
/// # Errors
///
/// If the configuration cannot be written as YAML.
pub(crate) fn report(effective: &Effective, servers: &ServerCheck) -> Result<String, yaml::Error> {
    let mut report = String::new();
    let source = effective
        .source
        .as_ref()
        .map(|file| file.display().to_string());
    // Writing to a string cannot fail.
    let _ = writeln!(
        report,
        "# configuration: {}",
        source.as_deref().unwrap_or("defaults")
    );
    let _ = writeln!(report, "# data directory: {}", effective.data_dir.display());
    let _ = writeln!(
        report,
        "# BEARER_TOKEN: {}",
        if effective.bearer.is_some() {
            MASK
        } else {
            "not set"
        }
    );
    let manager = if effective.generated.manager {
        "not set, made at start"
    } else {
        MASK
    };
    let _ = writeln!(report, "# MANAGER_INTERNAL_TOKEN: {manager}");
    let session_key = if effective.session_key.is_some() {
        MASK
    } else {
        "not set, kept in session.key of the data directory"
    };
    let _ = writeln!(report, "# SESSION_KEY: {session_key}");
    let secrets_key = match (&effective.secrets.key, effective.secrets.allow_insecure) {
        (Some(_), _) => MASK,
        (None, true) => "not set, and secrets may be stored unencrypted",
        (None, false) => "not set",
    };
    let _ = writeln!(report, "# SECRETS_KEY: {secrets_key}");
    report.push_str(&masked(&effective.config)?);
    report.push_str("# listeners\n");
    for listener in &effective.config.listeners {
        let _ = writeln!(report, "#   {}", describe(listener, effective.legacy_sse));
    }
    if let Some(host) = effective.config.admission.public_url.host() {
        let _ = writeln!(
            report,
            "# host of admission.public_url: {host}, which every listener answers for beside admission.hosts"
        );
    }
    issuers::list(&mut report, &effective.config.admission);
    let connections = Connections::expected(effective.config.admission.limits.connections);
    let _ = writeln!(report, "# connections: {connections}");
    list_servers(&mut report, servers);
    for warning in &effective.warnings {
        let _ = writeln!(report, "# warning: {warning}");
    }
    list_warnings(&mut report, servers);
    Ok(report)
}

/// Returns the number of warnings. `whole` is true for a check of the whole configuration, and false for `check PATH`, which does
/// not count the warnings about the configuration.
pub(crate) fn warnings(effective: &Effective, checked: &ServerCheck, whole: bool) -> usize {
    let of_configuration = if whole { effective.warnings.len() } else { 0 };
    of_configuration + checked.findings.iter().filter(|it| !it.is_error).count()
}

/// Returns the output of `tooldock check PATH`.
pub(crate) fn report_on(path: &Path, checked: &ServerCheck) -> String {
    let mut report = String::new();
    let errors = checked.findings.iter().filter(|it| it.is_error).count();
    let verdict = match errors {
        0 => "no errors".to_owned(),
        1 => "1 error".to_owned(),
        more => format!("{more} errors"),
    };
    let line = format!("{}: {verdict}", path.display());
    let _ = writeln!(report, "# {}", one_line(&line));
    list_servers(&mut report, checked);
    list_warnings(&mut report, checked);
    report
}

fn list_servers(report: &mut String, servers: &ServerCheck) {
    if !servers.servers.is_empty() {
        report.push_str("# external servers\n");
    }
    for server in &servers.servers {
        let line = format!(
            "{}: {}, isolation {}, from {}",
            server.name,
            server.command,
            server.isolation.as_str(),
            server.place
        );
        let _ = writeln!(report, "#   {}", one_line(&line));
    }
}

fn list_warnings(report: &mut String, servers: &ServerCheck) {
    for finding in servers.findings.iter().filter(|it| !it.is_error) {
        let _ = writeln!(report, "# warning: {}", finding_text(finding));
    }
}

/// Checks the whole configuration. The findings concern external servers, missing variables and files of the namespaces in the
/// data directory, addresses used by another program, rules for missing namespaces, and members of aggregates.
pub(crate) fn whole(effective: &Effective) -> ServerCheck {
    let mut checked = servers(effective);
    let namespaces = &effective.config.namespaces;
    let tools = effective.data_dir.join("tools");
    let lacking = folder_check::lacking(&tools, namespaces, &secrets(effective, None).0);
    checked.findings.extend(lacking);
    checked.findings.extend(addresses::findings(effective));
    let known = known_namespaces(effective, std::mem::take(&mut checked.names));
    let unknown = namespaces::findings(&effective.config, &known);
    checked.findings.extend(unknown);
    let members = namespaces::members(&effective.config, &known);
    checked.findings.extend(members);
    // A missing session key is only a warning, since a configuration may be checked on a machine that does not have the key.
    let key = session_store::missing_key(effective).map(|message| Finding {
        place: "SESSION_KEY".to_owned(),
        message,
        is_error: false,
    });
    checked.findings.extend(key);
    checked
}

/// Logs findings about rules for missing namespaces. They do not prevent a start, since the namespace may be created while the
/// gateway runs.
pub(crate) fn log_unknown_namespaces(effective: &Effective) {
    let known = known_namespaces(effective, servers(effective).names);
    for finding in namespaces::findings(&effective.config, &known) {
        match finding.is_error {
            true => tracing::error!("{}", finding_text(&finding)),
            false => tracing::warn!("{}", finding_text(&finding)),
        }
    }
}

/// Adds the starter namespace to `names` if the first start will create it.
fn known_namespaces(
    effective: &Effective,
    mut names: BTreeSet<NamespaceName>,
) -> BTreeSet<NamespaceName> {
    let places_starter = effective.config.namespaces.starter;
    if places_starter && !effective.data_dir.join("version").exists() {
        names.extend(STARTER.parse());
    }
    names
}

/// Checks the file or folder that `check PATH` names.
pub(crate) fn part(effective: &Effective, target: &Target) -> ServerCheck {
    let namespaces = &effective.config.namespaces;
    match target {
        Target::Servers(file) => {
            // A file `DATA/external/config.yaml` belongs to the data directory `DATA`, so that its secrets are used.
            let data = folder_in(file.parent().unwrap_or(file), "external");
            servers::check_file(file, namespaces, &secrets(effective, data).0)
        }
        Target::Namespace(folder) => folder_part(effective, folder, None),
        Target::Python(folder, file) => folder_part(effective, folder, Some(file)),
        Target::DataDir(data) => {
            let mut checked = servers(effective);
            let secrets = secrets(effective, Some(data)).0;
            let folders = folder_check::check(&data.join("tools"), namespaces, &secrets);
            checked.findings.extend(folders);
            checked
        }
    }
}

/// Checks the folder of a namespace, or only the Python file `file` in it.
fn folder_part(effective: &Effective, folder: &Path, file: Option<&str>) -> ServerCheck {
    // A folder `DATA/tools/NAME` belongs to the data directory `DATA`, even if another one is configured.
    let data = folder.parent().and_then(|tools| folder_in(tools, "tools"));
    let python = PythonCheck {
        workers: &effective.config.workers,
        data_dir: data.unwrap_or(&effective.data_dir),
        only: file,
    };
    let namespaces = &effective.config.namespaces;
    let secrets = secrets(effective, data).0;
    let mut findings = folder_check::check_folder(folder, namespaces, &secrets, &python);
    if let Some(file) = file {
        let file = folder.join(file).display().to_string();
        findings.retain(|it| it.place.starts_with(&file));
    }
    ServerCheck {
        findings,
        ..ServerCheck::default()
    }
}

/// Returns the parent of `folder` as the data directory, if `folder` is called `name`; otherwise `None`.
fn folder_in<'a>(folder: &'a Path, name: &str) -> Option<&'a Path> {
    let is_it = folder.file_name().is_some_and(|it| it == name);
    folder.parent().filter(|_| is_it)
}

/// Formats findings as annotations of GitHub Actions, one per line.
pub(crate) fn annotations(checked: &ServerCheck) -> String {
    let each = checked.findings.iter().map(|finding| {
        let (file, line) = match finding.place.rsplit_once(':') {
            Some((file, line)) if line.parse::<u32>().is_ok() => (file, Some(line)),
            _ => (&*finding.place, None),
        };
        let kind = match finding.is_error {
            true => "error",
            false => "warning",
        };
        annotation(kind, Path::new(file), line, &finding.message)
    });
    each.collect()
}

/// Formats errors of a configuration as annotations of GitHub Actions. Errors that concern no file are omitted.
pub(crate) fn fault_annotations(faults: &[ConfigError]) -> String {
    let each = faults.iter().filter_map(|fault| {
        let message = fault.to_string();
        let place = message.rsplit_once(" at line ").map(|(_, place)| place);
        let line = place.and_then(|place| place.split(' ').next());
        Some(annotation("error", fault.file()?, line, &message))
    });
    each.collect()
}

/// Formats an annotation of GitHub Actions: one line, with the file's path relative to the working directory.
fn annotation(kind: &str, file: &Path, line: Option<&str>, message: &str) -> String {
    let escaped = |text: &str| {
        let text = text.replace('%', "%25");
        text.replace('\r', "%0D").replace('\n', "%0A")
    };
    let property = |text: &str| escaped(text).replace(':', "%3A").replace(',', "%2C");
    let here = std::env::current_dir().unwrap_or_default();
    let file = file.strip_prefix(&here).unwrap_or(file);
    let file = property(&file.display().to_string());
    let line = line.map(|line| format!(",line={line}")).unwrap_or_default();
    format!("::{kind} file={file}{line}::{}\n", escaped(message))
}

/// Checks the external servers of the configuration and of the data directory.
pub(crate) fn servers(effective: &Effective) -> ServerCheck {
    let (secrets, unreadable) = secrets(effective, None);
    let config = &effective.config;
    let mut claims = servers::configured(&config.upstreams, &config.toolman);
    claims.extend(scan::claims(&effective.data_dir.join("tools")));
    let mut checked = servers::check(
        &effective.data_dir,
        &effective.config.upstreams,
        claims,
        &effective.config.namespaces,
        &secrets,
    );
    checked.findings.extend(unreadable);
    checked.findings.extend(aggregates(&effective.config));
    checked
        .findings
        .extend(client_keys::findings(config, &secrets));
    checked.findings.extend(hooks::findings(config, &secrets));
    checked
}

/// Returns the faults in files of aggregates, and a finding for aggregates that are members of each other.
fn aggregates(config: &Config) -> Vec<Finding> {
    let found = |name: &NamespaceName, message| Finding {
        place: format!("toolman.{name}"),
        message,
        is_error: true,
    };
    let read = config.toolman.iter();
    let read: Vec<_> = read.map(|(name, it)| (name, it.read())).collect();
    let specs = read.iter();
    let specs = specs.filter_map(|(name, spec)| Some((*name, spec.as_ref().ok()?)));
    let refused = aggregate::refused_nesting(&specs.collect());
    let refused = refused.into_iter();
    let mut findings: Vec<_> = refused.map(|(name, why)| found(&name, why)).collect();
    findings.extend(
        read.into_iter()
            .filter_map(|(name, spec)| Some(found(name, spec.err()?))),
    );
    findings
}

/// Reads the secrets that the gateway would use; if they cannot be read, a finding is returned. `beside` is the data directory of
/// the checked folder. If it contains secrets, they are used in place of those of the configured data directory, and are
/// decrypted with the key that `--dev` stored there, if any.
pub(crate) fn secrets(effective: &Effective, beside: Option<&Path>) -> (Secrets, Option<Finding>) {
    let holds = |data: &&Path| SecretStore::new(data, Protection::Unset).has_values();
    let data = beside.filter(holds).unwrap_or(&effective.data_dir);
    let mut settings = effective.secrets.clone();
    let found = |message, is_error| {
        let place = "secrets".to_owned();
        let finding = Finding {
            place,
            message,
            is_error,
        };
        (Secrets::default(), Some(finding))
    };
    if let Err(error) = settings.find_dev_key(data) {
        return found(error.to_string(), true);
    }
    if let Some(message) = settings.missing_for(data) {
        let found = Finding {
            place: SECRETS_KEY.to_owned(),
            message,
            is_error: true,
        };
        return (Secrets::default(), Some(found));
    }
    match SecretStore::new(data, settings.protection()).read() {
        Ok(secrets) => (secrets, None),
        Err(error) => found(error.to_string(), true),
    }
}

/// Returns the findings that are errors, each as one line.
pub(crate) fn errors(servers: &ServerCheck) -> impl Iterator<Item = String> {
    let errors = servers.findings.iter().filter(|it| it.is_error);
    errors.map(finding_text)
}

fn finding_text(finding: &Finding) -> String {
    one_line(&format!("{}: {}", finding.place, finding.message))
}

/// Replaces control characters by blanks, since names and commands come from files that other programs may have written.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// Formats the configuration as YAML with secrets masked. Also masked are digests of tokens, from which a weak token could be
/// guessed, and values of servers' environment variables, except references to other variables.
fn masked(config: &Config) -> Result<String, yaml::Error> {
    yaml::to_string(&masked_tree(config)?)
}

/// Returns the configuration as a tree of YAML values, with secrets masked.
pub(crate) fn masked_tree(config: &Config) -> Result<Value, yaml::Error> {
    let mut tree = yaml::to_value(config)?;
    let tokens = tree
        .get_mut("admission")
        .and_then(|admission| admission.get_mut("tokens"));
    if let Some(Value::Sequence(tokens)) = tokens {
        for token in tokens {
            if let Some(digest) = token.get_mut("sha256") {
                *digest = MASK.into();
            }
        }
    }
    if let Some(Value::Sequence(listeners)) = tree.get_mut("listeners") {
        listeners.iter_mut().for_each(mask_headers);
    }
    let servers = tree
        .get_mut("upstreams")
        .and_then(|upstreams| upstreams.get_mut("stdio"));
    if let Some(servers) = servers {
        for (name, server) in &config.upstreams.stdio {
            let args = mask::arguments(server.args.iter().map(String::as_str));
            let args = args.into_iter().map(Value::from).collect();
            servers[name.as_str()]["args"] = Value::Sequence(args);
            for (variable, template) in &server.env {
                servers[name.as_str()]["env"][variable.as_str()] = template.masked().into();
            }
        }
    }
    let servers = tree
        .get_mut("upstreams")
        .and_then(|upstreams| upstreams.get_mut("remote"));
    if let Some(servers) = servers {
        for (name, server) in &config.upstreams.remote {
            mask_remote(&mut servers[name.as_str()], server);
            for (index, backend) in server.backends.iter().enumerate() {
                servers[name.as_str()]["backends"][index]["url"] = mask::url(&backend.url).into();
            }
        }
    }
    let apis = tree
        .get_mut("upstreams")
        .and_then(|upstreams| upstreams.get_mut("openapi"));
    if let Some(apis) = apis {
        for (name, api) in &config.upstreams.openapi {
            let shown = &mut apis[name.as_str()];
            mask_remote(shown, &api.as_remote());
            for (key, url) in [("spec", &api.spec), ("base_url", &api.base_url)] {
                shown[key] = mask::url(url).into();
            }
        }
    }
    if let Some(shown) = tree.get_mut("hooks") {
        hooks::mask(shown, &config.hooks);
    }
    Ok(tree)
}

/// Masks the values of headers that a listener sets, since any of them may be a secret.
fn mask_headers(listener: &mut Value) {
    for side in ["request", "response"] {
        let set = listener
            .get_mut("headers")
            .and_then(|headers| headers.get_mut(side))
            .and_then(|edits| edits.get_mut("set"));
        if let Some(Value::Mapping(set)) = set {
            for (_, value) in set.iter_mut() {
                *value = MASK.into();
            }
        }
    }
}

/// Masks credentials and header values of a remote server or an API, since any of them may be a secret.
fn mask_remote(tree: &mut Value, server: &RemoteServerConfig) {
    if let Some(credentials) = &server.credentials {
        tree["credentials"] = match server.passes_credentials() {
            true => "pass".into(),
            false => credentials.masked().into(),
        };
    }
    for (header, template) in &server.headers.set {
        tree["headers"]["set"][header.as_str()] = template.masked().into();
    }
    let Some(oauth) = &server.oauth else { return };
    let mask = |tree: &mut Value, key: &str, template: &Option<Template>| {
        if let Some(template) = template {
            tree[key] = template.masked().into();
        }
    };
    mask(&mut tree["oauth"], "client_secret", &oauth.client_secret);
    mask(&mut tree["oauth"], "client_key", &oauth.client_key);
    if let Some(identity) = &oauth.identity {
        let tree = &mut tree["oauth"]["identity"];
        mask(tree, "client_secret", &identity.client_secret);
        mask(tree, "client_key", &identity.client_key);
    }
}

fn describe(listener: &ListenerConfig, legacy_sse: bool) -> String {
    let mut serves = listener.profile.spec().paths.to_owned();
    if !legacy_sse {
        serves = serves.replace("/sse, /messages, ", "");
    }
    let alone = match &listener.namespace {
        Some(NamespaceRule::Fixed(name)) => format!(", the namespace {name} alone"),
        _ => String::new(),
    };
    let open = if listener.is_open() {
        ", no credentials needed"
    } else {
        ""
    };
    format!(
        "{} {}: {serves}{alone}{open}",
        listener.name,
        listener.url()
    )
}

#[cfg(test)]
mod tests {
    use crate::config::tests_support::{checked, write};

    use super::*;

    #[test]
    fn the_report_is_the_configuration_and_shows_no_secret() {
        let digest = "ab".repeat(32);
        let yaml = format!(
            "admission: {{ tokens: [{{ name: ci, sha256: {digest}, namespaces: ['*'] }}] }}"
        );
        let (_dir, file) = write(&yaml);
        let variables = [
            ("BEARER_TOKEN", "hush"),
            ("LOG_LEVEL", "debug"),
            ("SESSION_KEY", "hush hush hush hush hush hush hush"),
        ];
        let effective = checked(&file, &variables).expect("valid");
        let report = report(&effective, &ServerCheck::default()).expect("yaml");
        assert!(
            !report.contains(&digest) && !report.contains("hush"),
            "{report}"
        );
        assert!(report.contains(MASK));
        assert!(report.contains("level: debug"), "{report}");
    }

    #[test]
    fn the_host_of_the_public_url_is_said_to_be_answered_for() {
        let says = |yaml: &str| {
            let (_dir, file) = write(yaml);
            let effective = checked(&file, &[("BEARER_TOKEN", "hush")]).expect("valid");
            let report = report(&effective, &ServerCheck::default()).expect("yaml");
            report.contains("# host of admission.public_url: gw.example, which every listener")
        };
        assert!(says("admission: { public_url: 'https://gw.example:8443' }"));
        assert!(!says("{}"));
    }

    #[test]
    fn values_of_headers_that_a_listener_sets_are_masked() {
        let yaml = "listeners: [{ name: core, address: '127.0.0.1:1', profile: core, headers: { request: { set: { X-Api-Key: hush } } } }]";
        let config: Config = yaml::from_str(yaml).expect("valid");
        let shown = masked(&config).expect("yaml");
        assert!(
            !shown.contains("hush") && shown.contains("X-Api-Key"),
            "{shown}"
        );
    }

    #[test]
    fn credentials_of_remote_servers_are_shown_as_references_only() {
        let yaml = "{ upstreams: { remote: { far: { backends: ['https://a/mcp?key=hush'], credentials: 'Bearer hush', \
             headers: { set: { X-A: '${TOKEN}', X-B: hush } } } } } }";
        let config: Config = yaml::from_str(yaml).expect("valid");
        let shown = masked(&config).expect("yaml");
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("X-A: ${TOKEN}"), "{shown}");
        assert!(shown.contains("https://a/mcp?key=***MASKED***"), "{shown}");
    }

    #[test]
    fn credentials_of_hooks_are_shown_as_references_only() {
        let yaml = "hooks: [{ on: call, tool: a.b }, { on: list, url: 'https://a/x?key=hush', credentials: 'Bearer hush' }]";
        let config: Config = yaml::from_str(yaml).expect("valid");
        let shown = masked(&config).expect("yaml");
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("https://a/x?key=***MASKED***"), "{shown}");
    }

    #[test]
    fn credentials_of_apis_are_shown_as_references_only() {
        let yaml = "{ upstreams: { openapi: { far: { spec: 'https://a/o.json?key=hush', credentials: 'Bearer hush', \
             headers: { set: { X-A: '${TOKEN}', X-B: hush } } } } } }";
        let config: Config = yaml::from_str(yaml).expect("valid");
        let shown = masked(&config).expect("yaml");
        assert!(!shown.contains("hush"), "{shown}");
        assert!(shown.contains("X-A: ${TOKEN}"), "{shown}");
        assert!(
            shown.contains("spec: https://a/o.json?key=***MASKED***"),
            "{shown}"
        );
    }

    #[test]
    fn a_servers_variables_are_shown_as_references_only() {
        let (_dir, file) = write(
            "upstreams: { stdio: { time: { command: x, env: { A: '${TOKEN}', B: hush, C: 'hush${TOKEN}' } } } }",
        );
        let effective = checked(&file, &[]).expect("valid");
        let report = report(&effective, &ServerCheck::default()).expect("yaml");
        assert!(report.contains("A: ${TOKEN}"), "{report}");
        assert_eq!(report.matches(MASK).count(), 2, "{report}");
        assert!(!report.contains("hush"), "{report}");
    }

    #[test]
    fn servers_of_the_data_directory_are_listed_warned_about_and_refused() {
        let (dir, file) = write("upstreams: { stdio: { time: { command: no-such-server } } }");
        let external = dir.path().join("data/external");
        std::fs::create_dir_all(&external).expect("directory");
        std::fs::write(
            external.join("config.yaml"),
            "servers: { good: { command: sh }, bad: { command: sh, warm: -1 }, \"x\\n\": {} }",
        )
        .expect("written");
        let data = dir.path().join("data");
        let data = data.to_str().expect("text");
        let effective = checked(&file, &[("DATA_DIR", data)]).expect("valid");
        let servers = servers(&effective);
        let report = report(&effective, &servers).expect("yaml");
        assert!(
            report.contains("#   good: sh, isolation auto, from "),
            "{report}"
        );
        assert!(
            report.contains("# warning: upstreams.stdio.time.command: no-such-server is not on"),
            "{report}"
        );
        let errors: Vec<_> = errors(&servers).collect();
        assert_eq!(errors.len(), 2, "{errors:?}");
        assert!(errors[0].contains("config.yaml: servers.x :"), "{errors:?}");
        assert!(
            errors[1].contains("config.yaml: servers.bad.warm: "),
            "{errors:?}"
        );
    }

    #[test]
    fn files_of_aggregates_are_read_and_their_circles_found() {
        let (dir, file) = write("");
        let aggregate = |name: &str, text: &str| {
            let file = dir.path().join(name);
            std::fs::write(&file, text).expect("written");
            file.display().to_string()
        };
        let from = |name: &str| format!("[[servers]]\nnamespace = \"x\"\nfrom = \"{name}\"\n");
        let good = aggregate("good.toml", &from("calc"));
        let wrong = aggregate("wrong.toml", "[[servers]]\nnamespace = 7\n");
        let (one, other) = (
            aggregate("one.toml", &from("b")),
            aggregate("b.toml", &from("a")),
        );
        let config = format!(
            "toolman: {{ good: {{ config: {good} }}, wrong: {{ config: {wrong} }}, a: {{ config: {one} }}, b: {{ config: {other} }}, none: {{ config: /no/such.toml }} }}"
        );
        std::fs::write(&file, config).expect("written");
        let effective = checked(&file, &[]).expect("valid");
        let servers = servers(&effective);
        let errors: Vec<_> = errors(&servers).collect();
        assert_eq!(errors.len(), 4, "{errors:#?}");
        for words in [
            "toolman.a: ",
            "toolman.b: ",
            "toolman.wrong: ",
            "wrong.toml:2:13: namespace must be a text in quotes, and is a number",
            "from leads in a circle, a → b → a",
            "toolman.none: /no/such.toml: there is no such file",
        ] {
            assert!(
                errors.iter().any(|it| it.contains(words)),
                "{words}: {errors:#?}"
            );
        }
    }

    #[test]
    fn a_member_that_is_no_namespace_and_a_folder_that_cannot_be_read_are_warned_about() {
        let (dir, file) = write("");
        let tools = dir.path().join("data/tools");
        for (folder, manifest) in [("calc", ""), ("bad", "timeout: banana")] {
            std::fs::create_dir_all(tools.join(folder)).expect("directory");
            let manifest_at = tools.join(folder).join("tooldock.yaml");
            std::fs::write(manifest_at, manifest).expect("written");
        }
        let aggregate = dir.path().join("tools.toml");
        let member =
            |name: &str| format!("[[servers]]\nnamespace = \"{name}\"\nfrom = \"{name}\"\n");
        let members = format!("{}{}", member("calc"), member("clac"));
        std::fs::write(&aggregate, members).expect("written");
        let config = format!("toolman: {{ all: {{ config: {} }} }}", aggregate.display());
        std::fs::write(&file, config).expect("written");
        let data = dir.path().join("data");
        let data = data.to_str().expect("text");
        let effective = checked(&file, &[("DATA_DIR", data)]).expect("valid");
        let checked = whole(&effective);
        let report = report(&effective, &checked).expect("yaml");
        let warned = report.lines().filter(|it| it.starts_with("# warning: "));
        let warned: Vec<_> = warned.collect();
        for words in [
            &[
                "toolman.all: ",
                "tools.toml: from: ",
                "\"clac\"",
                "there are",
                "calc",
            ][..],
            &[
                "tools/bad: ",
                "tooldock.yaml: timeout: ",
                "banana",
                "mend it",
            ],
        ] {
            let is_it = |line: &&&str| words.iter().all(|word| line.contains(word));
            assert_eq!(
                warned.iter().filter(is_it).count(),
                1,
                "{words:?}: {warned:#?}"
            );
        }
        assert!(!report.contains("\"calc\""), "{warned:#?}");
    }

    #[test]
    fn every_listener_and_warning_is_listed() {
        let (_dir, file) = write("");
        let effective = checked(&file, &[]).expect("valid");
        let report = report(&effective, &ServerCheck::default()).expect("yaml");
        for expected in [
            "core http://127.0.0.1:8000: /mcp",
            "manager http://127.0.0.1:8001: /mcp, /sse, /messages, /health",
            "metrics http://127.0.0.1:9090: /metrics",
            "# connections: up to ",
            "warning: BEARER_TOKEN: not set",
        ] {
            assert!(report.contains(expected), "{expected}\n{report}");
        }
    }

    #[test]
    fn paths_that_are_switched_off_are_not_listed() {
        let (_dir, file) = write("");
        let listed = |legacy| {
            let effective = checked(&file, &[("ENABLE_LEGACY_MCP", legacy)]).expect("valid");
            report(&effective, &ServerCheck::default())
                .expect("yaml")
                .contains("/sse, /messages")
        };
        assert_eq!([listed("true"), listed("false")], [true, false]);
    }

    #[test]
    fn the_printed_defaults_are_the_defaults() {
        let printed = masked(&Config::default()).expect("yaml");
        assert_eq!(
            yaml::from_str::<Config>(&printed).expect("valid"),
            Config::default()
        );
    }
}
