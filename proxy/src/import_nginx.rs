//! `tooldock import-nginx`: an nginx front of MCP servers as a configuration of the gateway.
//!
//! ```text
//! FILE ── include ── tree ── sites ──▶ exposures: places that pass requests on, with the directives in force there (scope)
//!         (files)  (lexer)    │
//!                             ▼
//!     rules (conditions, guards), namespaces (targets, pools, headers), detours
//!                             │
//!                             ▼
//!     listeners, hosts, network, origins, credentials, rates, at_once, sizes, logs ──▶ YAML, read back by the gateway's own loader
//!                             └──▶ report: directives that are not carried over
//! ```
//!
//! Three rules hold throughout. No secret of FILE gets out: tokens become digests, values of headers become `${NAME}`, and
//! reports quote no argument. No directive of FILE is lost without a line marked `security` where more would be open than with
//! nginx; defaults of nginx are no part of FILE. And every directive that is in force where requests are passed on is carried
//! over, known to need no word (`known.rs`), or reported.

mod aliases;
mod answers;
mod at_once;
mod bound;
mod conditions;
mod credentials;
mod detours;
mod gateway_rules;
mod guards;
mod headers;
mod hosts;
mod include;
mod known;
mod lexer;
mod listener_tls;
mod listeners;
mod logs;
mod namespaces;
mod network;
mod new_limits;
mod origins;
mod pools;
mod principals;
mod rates;
mod refusals;
mod report;
mod rules;
mod scope;
mod shadows;
mod sites;
mod sizes;
mod targets;
mod tree;
mod values;
mod variables;
mod view;
mod yaml_text;
mod zone_keys;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tooldock_workers::yaml;

use crate::access_log::Pattern;
use crate::cli::ImportNginxArgs;
use crate::config::{
    self, ConfigError, GRACE_MAX, HeaderEditsConfig, HeadersConfig, ListenAddress, ProfileName,
    refusal_of_alias,
};
use crate::header_edits::HeaderEdits;
use crate::{EXIT_USAGE, print, refuse};

use self::gateway_rules::GatewayRules;
use self::report::{Report, Weight};
use self::rules::Rules;
use self::sites::Sites;
use self::tree::{Directive, Failure};
use self::variables::Variables;
use self::view::View;
use self::yaml_text::Map;

/// The gateway's rules for values that the importer writes.
const GATEWAY: GatewayRules = GatewayRules {
    grace_max: GRACE_MAX,
    allows_address: |text| text.parse::<ListenAddress>().is_ok(),
    allows_alias: |path| refusal_of_alias(path, ProfileName::Core.spec().routes).is_none(),
    allows_response_header,
    allows_log_format: |text| text.parse::<Pattern>().is_ok(),
};

fn allows_response_header(name: &str, value: &str) -> bool {
    let config = HeadersConfig {
        response: HeaderEditsConfig {
            set: [(name.to_owned(), value.to_owned())].into(),
            remove: Vec::new(),
        },
        ..HeadersConfig::default()
    };
    HeaderEdits::of(&config).is_ok()
}

/// An imported configuration.
struct Import {
    /// The configuration of the gateway.
    yaml: String,
    /// The directives that are not carried over.
    report: Report,
}

/// Imports FILE; `-` is standard input.
///
/// # Errors
///
/// A file that cannot be read or is no configuration of nginx, or more than the bounds.
fn import(file: &Path, gateway: &GatewayRules) -> Result<Import, Failure> {
    let mut report = Report::default();
    let tree = include::read(file, &mut report)?;
    let yaml = imported(&tree, gateway, &mut report)?;
    Ok(Import { yaml, report })
}

/// Imports FILE, and writes the configuration and the report.
pub(crate) fn run(arguments: &ImportNginxArgs) -> ExitCode {
    if let Some(output) = arguments
        .output
        .as_deref()
        .filter(|it| it.exists() && !arguments.force)
    {
        return refuse(format_args!(
            "{}: is there already; --force writes over it",
            output.display()
        ));
    }
    let Import { yaml, report } = match import(&arguments.file, &GATEWAY) {
        Ok(import) => import,
        Err(failure) => return refuse(failure),
    };
    if let Err(error) = checked(&yaml) {
        eprintln!(
            "tooldock: the configuration that would be written is not valid, which is a mistake of the importer: {error}"
        );
        return ExitCode::FAILURE;
    }
    for line in report.lines() {
        eprintln!("{line}");
    }
    // The text passed the check, so it is YAML.
    let tree = yaml::from_slice(yaml.as_bytes()).unwrap_or_default();
    eprintln!("tooldock: differs from now on, limits that nginx did not have:");
    for line in new_limits::lines(&tree) {
        eprintln!("  {line}");
    }
    let (plain, security) = (report.count(Weight::Plain), report.count(Weight::Security));
    if plain + security > 0 {
        eprintln!(
            "tooldock: {} not carried over, {security} of them about security",
            counted(plain + security)
        );
    }
    let incomplete = report.has_security();
    let written = match &arguments.output {
        None => print(&yaml),
        Some(output) if incomplete => {
            eprintln!(
                "tooldock: {} is not written; without --output, the configuration goes to standard output to be completed",
                output.display()
            );
            ExitCode::SUCCESS
        }
        Some(output) => match write(output, &yaml, arguments.force) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("tooldock: {}: {error}", output.display());
                ExitCode::FAILURE
            }
        },
    };
    if written == ExitCode::SUCCESS && incomplete {
        return ExitCode::from(EXIT_USAGE);
    }
    written
}

fn counted(leftovers: usize) -> String {
    match leftovers {
        1 => "1 directive is".to_owned(),
        more => format!("{more} directives are"),
    }
}

/// The configuration of a tree of directives.
fn imported(
    tree: &[Directive],
    gateway: &GatewayRules,
    report: &mut Report,
) -> Result<String, Failure> {
    let variables = Variables::of(tree);
    let mut sites = Sites::of(tree, report)?;
    shadows::drop_shadowed(&mut sites, &variables, report);
    detours::list(&sites, report);
    answers::list_filters(&sites, report);
    let rules = sites
        .exposures
        .iter()
        .map(|it| Rules::of(it, &variables, report))
        .collect();
    let namespaces = namespaces::namespaces(&sites, &variables, gateway, report);
    let view = View {
        gateway,
        sites,
        variables,
        rules,
        names: namespaces.names,
    };
    let listeners = listeners::listeners(&view, report);
    let mut admission = Map::default();
    hosts::write(&view, &mut admission, report);
    origins::write(&view, &mut admission, report);
    credentials::write(&view, &listeners.asking, &mut admission, report);
    network::write(&view, &mut admission, report);
    network::write_trusted_proxies(&view, listeners.proxy_protocol, &mut admission, report);
    rates::write(&view, &mut admission, report);
    let mut limits = Map::default();
    at_once::write(&view, &mut limits, report);
    sizes::write_limits(&view, &mut limits, report);
    admission.add("limits", limits);
    let mut timeouts = Map::default();
    sizes::write_timeouts(&view, &mut timeouts, report);
    admission.add("timeouts", timeouts);
    let mut of_namespaces = Map::default();
    if !namespaces.servers.is_empty() {
        of_namespaces.add_with(
            "starter",
            false,
            "the servers of nginx alone are served, and no example",
        );
    }
    of_namespaces.add("overrides", namespaces.overrides);
    let mut upstreams = Map::default();
    upstreams.add("remote", namespaces.servers);
    let mut observability = Map::default();
    logs::write(&view, &mut observability, report);

    let mut top = Map::default();
    if !listeners.items.is_empty() {
        top.add("listeners", yaml_text::Node::List(listeners.items));
    }
    sizes::write_process(&view, &mut top, report);
    let without_tokens = !admission.has("tokens") && !admission.has("certificates");
    top.add("admission", admission);
    top.add("namespaces", of_namespaces);
    top.add("upstreams", upstreams);
    top.add("observability", observability);
    Ok(format!("{}{}", head(without_tokens), top.to_yaml()))
}

/// The comment above the configuration.
fn head(without_tokens: bool) -> String {
    let mut head = String::from(
        "# Imported from nginx. Check it with `tooldock check -c FILE`; docs/from-nginx.md says what is different.\n",
    );
    if without_tokens {
        head.push_str("# Every client needs a token here: set BEARER_TOKEN, or list tokens in admission.tokens.\n");
    }
    head
}

/// Reads a configuration back as `tooldock check` would, without the files that it names.
fn checked(yaml: &str) -> Result<(), ConfigError> {
    config::check_text(yaml)
}

/// Writes the whole file or nothing. It contains digests of tokens, so only its owner may read it.
fn write(output: &Path, yaml: &str, force: bool) -> io::Result<()> {
    let mut staged = OsString::from(output);
    staged.push(format!(".new.{:016x}", fastrand::u64(..)));
    let staged = PathBuf::from(staged);
    let mut options = OpenOptions::new();
    let open = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged);
    let written = open.and_then(|mut file| {
        file.write_all(yaml.as_bytes())?;
        file.sync_all()?;
        match force {
            true => fs::rename(&staged, output),
            // If another process has made the file meanwhile, the link fails.
            false => fs::hard_link(&staged, output),
        }
    });
    if written.is_err() || !force {
        let _ = fs::remove_file(&staged);
    }
    written
}

#[cfg(test)]
mod tests;
