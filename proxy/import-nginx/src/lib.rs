//! Imports an nginx that is a proxy for MCP servers: reads its configuration, writes one for the gateway, and reports each
//! directive that is not imported.
//!
//! ```text
//! FILE ── include ── tree ── sites ──▶ exposures: locations that proxy requests, with the directives in force there (scope)
//!         (files)  (lexer)    │
//!                             ▼
//!     rules, namespaces, refusals and detours of each exposure; view: all of them
//!                             │
//!                             ▼
//!     a file for each part of the configuration ──▶ YAML with comments (yaml_text)
//!                             └──▶ report: directives that are not imported
//! ```
//!
//! | files | content |
//! |---|---|
//! | `include`, `lexer`, `tree` | files, words, and a tree of directives that prints none of its words |
//! | `sites`, `scope` | the locations that proxy requests, and the directives in force there |
//! | `variables`, `values` | `map` and `set`; the spelling of times, sizes, rates and variables |
//! | `conditions`, `guards`, `principals`, `rules` | `if`: the condition, the requests it refuses, and the clients it admits |
//! | `refusals`, `shadows`, `detours` | locations that are closed or hidden by others; requests that nginx answers elsewhere |
//! | `namespaces`, `targets`, `pools`, `headers`, `aliases` | remote servers: `proxy_pass`, `upstream`, headers, aliases |
//! | `listeners`, `bound`, `listener_tls`, `answers` | listeners: addresses, TLS, headers of responses |
//! | `hosts`, `network`, `origins`, `credentials`, `rates`, `at_once`, `zone_keys`, `sizes` | admission |
//! | `passed_on` | headers of clients that no longer reach servers, and requests that are refused |
//! | `logs` | the access log |
//! | `known`, `report` | every directive by name, with its treatment; the report lines about those that are not imported |
//!
//! Three rules apply everywhere. No secret of FILE is revealed: tokens become digests, values of headers become `${NAME}`, and
//! reports quote no argument. If the gateway without a directive of FILE would admit more requests than nginx, the directive gets
//! a report line that is marked `security`; defaults of nginx are not part of FILE. Every directive that is in force for proxied
//! requests is imported, known to need no report (`known`), or reported. The importer interprets few forms of `if` and `map`, and
//! reports all others: `docs/from-nginx.md` lists them.
//!
//! This crate uses the keys of admission (`tooldock_filters`), and of namespaces and remote servers (`tooldock_workers`), but not
//! the rest of the gateway's configuration: the caller passes its checks of single values ([`GatewayRules`], in
//! `gateway_rules.rs`), and reads the result back by the gateway's own loader. The command line and the output file are handled
//! by the caller, too.
//!
//! Start with `imported` below, which calls the steps in their order. `known.rs` lists each directive by name and states whether
//! it needs no report, is not imported, or is read by another file. Tests of single files are at their end;
//! `proxy/src/import_nginx/tests.rs` imports complete configurations and reads them back.

mod aliases;
mod answers;
mod at_once;
mod bound;
mod conditions;
mod credentials;
mod detours;
/// Function that a fuzz target calls. Compiled only for `make fuzz` and for tests.
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
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
mod origins;
mod passed_on;
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

use std::path::Path;

pub use self::gateway_rules::GatewayRules;
pub use self::report::{Report, Weight};
pub use self::tree::Failure;

use self::rules::Rules;
use self::sites::Sites;
use self::tree::Directive;
use self::variables::Variables;
use self::view::View;
use self::yaml_text::Map;

/// The result of an import from nginx.
#[derive(Debug)]
pub struct Import {
    /// The configuration for the gateway, as YAML.
    pub yaml: String,
    /// The report about directives that are not imported.
    pub report: Report,
}

/// Imports the nginx configuration in FILE; `-` is standard input.
///
/// # Errors
///
/// When a file cannot be read or is not a configuration of nginx, or when a bound is exceeded.
pub fn import(file: &Path, gateway: &GatewayRules) -> Result<Import, Failure> {
    let mut report = Report::default();
    let tree = include::read(file, &mut report)?;
    let yaml = imported(&tree, gateway, &mut report)?;
    Ok(Import { yaml, report })
}

/// Builds the gateway's configuration from a tree of nginx directives.
fn imported(
    tree: &[Directive],
    gateway: &GatewayRules,
    report: &mut Report,
) -> Result<String, Failure> {
    let variables = Variables::of(tree);
    let mut sites = Sites::of(tree, report)?;
    shadows::drop_shadowed(&mut sites, &variables, report);
    detours::list(&sites, report);
    let rules = sites.locations.iter();
    let rules = rules.map(|it| Rules::of(it, &variables, report)).collect();
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
    origins::write(&view, &listeners.ports, &mut admission, report);
    credentials::write(&view, &listeners.authorities, &mut admission, report);
    network::write(&view, &mut admission, report);
    network::write_trusted_proxies(&view, listeners.proxy_protocol, &mut admission, report);
    rates::write(&view, &mut admission, report);
    let mut limits = Map::default();
    at_once::write(&view, &mut limits, report);
    sizes::write_limits(&view, &mut limits, report);
    admission.add("limits", limits);
    sizes::write_timeouts(&view, &mut admission, report);
    passed_on::list(&view, report);
    let mut of_namespaces = Map::default();
    if !namespaces.servers.is_empty() {
        let why = "the servers of nginx alone are served, and no example";
        of_namespaces.add_with("starter", false, why);
    }
    of_namespaces.add("overrides", namespaces.overrides);
    let mut upstreams = Map::default();
    upstreams.add("remote", namespaces.servers);

    let mut top = Map::default();
    top.add_list("listeners", listeners.items);
    sizes::write_process(&view, &mut top, report);
    let without_tokens = !admission.has("tokens") && !admission.has("certificates");
    top.add("admission", admission);
    top.add("namespaces", of_namespaces);
    top.add("upstreams", upstreams);
    logs::write(&view, &mut top, report);
    Ok(format!("{}{}", head(without_tokens), top.to_yaml()))
}

/// The comment at the beginning of the written configuration.
fn head(without_tokens: bool) -> String {
    let mut head = String::from(
        "# Imported from nginx. Check it with `tooldock check -c FILE`; docs/from-nginx.md says what is different.\n",
    );
    if without_tokens {
        head.push_str("# Every client needs a token here: set BEARER_TOKEN, or list tokens in admission.tokens.\n");
    }
    head
}
