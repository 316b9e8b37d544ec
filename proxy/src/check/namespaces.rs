//! Finds rules of the configuration for namespaces that do not exist. Most such names are misspelled.

use std::collections::BTreeSet;

use tooldock_base::names::NamespaceName;
use tooldock_workers::aggregate::MemberKind;
use tooldock_workers::servers::Finding;

use crate::config::{Config, NamespaceRule, ProfileName};

/// Finds rules for namespaces that are not in `known`. A limit or listener for a missing namespace is an error. A credential that
/// opens a missing namespace is a warning, since the namespace may be created later.
pub(super) fn findings(config: &Config, known: &BTreeSet<NamespaceName>) -> Vec<Finding> {
    let rules = rules(config).into_iter();
    let rules = rules.filter(|(_, name)| !known.contains(name));
    let rules = rules.map(|(place, name)| found(place, name.as_str(), known, true));
    let opened = opened(config).into_iter();
    let opened = opened.filter(|(_, name)| {
        // Patterns and the management tools cannot be parsed as names of namespaces, and are skipped.
        name.parse()
            .is_ok_and(|name: NamespaceName| !known.contains(&name))
    });
    let opened = opened.map(|(place, name)| found(place, name, known, false));
    rules.chain(opened).collect()
}

/// Finds members of aggregates whose namespace is not in `known`. The aggregate is served without such members. Files that cannot
/// be read are reported by another check.
pub(super) fn members(config: &Config, known: &BTreeSet<NamespaceName>) -> Vec<Finding> {
    let aggregates = config.toolman.iter();
    let members = aggregates.flat_map(|(aggregate, config)| {
        let members = config.read().map_or_else(|_| Vec::new(), |it| it.members);
        let names = members.into_iter().filter_map(|member| match member.kind {
            MemberKind::Namespace(name) => Some(name),
            _ => None,
        });
        let file = config.config.display().to_string();
        names.map(move |name| (format!("toolman.{aggregate}: {file}: from"), name))
    });
    let unknown = members.filter(|(_, name)| !known.contains(name));
    unknown
        .map(|(place, name)| found(place, name.as_str(), known, false))
        .collect()
}

fn found(place: String, name: &str, known: &BTreeSet<NamespaceName>, is_error: bool) -> Finding {
    let known = known.iter().take(LISTED_MAX).map(NamespaceName::as_str);
    let known: Vec<_> = known.collect();
    let there_are = match known.is_empty() {
        true => "there is none at all".to_owned(),
        false => format!("there are {}", known.join(", ")),
    };
    Finding {
        place,
        message: format!("there is no namespace {name:?}; {there_are}"),
        is_error,
    }
}

/// Maximum number of existing namespaces that a finding lists.
const LISTED_MAX: usize = 20;

/// Returns the rules that name a single namespace: the configuration key of each, and the namespace.
fn rules(config: &Config) -> Vec<(String, NamespaceName)> {
    let mut rules = Vec::new();
    for (index, limit) in config.admission.rate_limits.iter().enumerate() {
        let key = format!("admission.rate_limits[{index}].namespace");
        rules.extend(limit.namespace.clone().map(|name| (key, name)));
    }
    for name in config.namespaces.overrides.keys() {
        rules.push((format!("namespaces.overrides.{name}"), name.clone()));
    }
    for (index, listener) in config.listeners.iter().enumerate() {
        match &listener.namespace {
            Some(NamespaceRule::Fixed(name)) => {
                rules.push((format!("listeners[{index}].namespace"), name.clone()));
            }
            _ if listener.profile == ProfileName::Vault => {
                rules.push(("vault.namespace".to_owned(), config.vault.namespace.clone()));
            }
            _ => {}
        }
    }
    for (index, hook) in config.hooks.iter().enumerate() {
        let key = format!("hooks[{index}].tool");
        rules.extend(hook.tool_namespace().map(|name| (key, name)));
    }
    if config.relay.socket().is_some() {
        rules.push(("relay.namespace".to_owned(), config.relay.namespace.clone()));
    }
    rules
}

/// Returns the names and patterns of namespaces that credentials open and hooks see, each with its configuration key.
fn opened(config: &Config) -> Vec<(String, &str)> {
    let admission = &config.admission;
    let tokens = admission.tokens.iter().enumerate();
    let tokens = tokens.map(|(index, it)| (format!("admission.tokens[{index}]"), &it.namespaces));
    let certificates = admission.certificates.iter().enumerate();
    let certificates = certificates
        .map(|(index, it)| (format!("admission.certificates[{index}]"), &it.namespaces));
    let hooks = config.hooks.iter().enumerate();
    let hooks = hooks.map(|(index, it)| (format!("hooks[{index}]"), &it.namespaces));
    let lists = tokens.chain(certificates).chain(hooks);
    lists
        .flat_map(|(place, names)| {
            let key = format!("{place}.namespaces");
            names.iter().map(move |name| (key.clone(), name.as_str()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn a_rule_for_a_namespace_that_is_not_there_is_named_by_its_key() {
        let known: BTreeSet<NamespaceName> = ["files", "search"]
            .map(|it| it.parse().expect("a name"))
            .into();
        let digest = "ab".repeat(32);
        let tokens = format!(
            "[{{ name: ci, sha256: {digest}, namespaces: [files, serach, 'dev-*', '*', _system] }}]"
        );
        for (config, place, is_error) in [
            (
                "admission: { rate_limits: [{ key: principal, rate: 1, burst: 1 }, { key: tool, rate: 1, burst: 1, unit: tool_call, namespace: serach }] }",
                "admission.rate_limits[1].namespace",
                true,
            ),
            (
                "namespaces: { overrides: { files: { queue: 1 }, serach: { queue: 1 } } }",
                "namespaces.overrides.serach",
                true,
            ),
            (
                "listeners: [{ name: a, address: '[::1]:1', profile: core, namespace: serach }]",
                "listeners[0].namespace",
                true,
            ),
            (
                "{ listeners: [{ name: a, address: '[::1]:1', profile: vault }], vault: { namespace: serach } }",
                "vault.namespace",
                true,
            ),
            (
                "relay: { socket: /run/relay.sock, namespace: serach }",
                "relay.namespace",
                true,
            ),
            (
                "hooks: [{ on: call, tool: files.check }, { on: call, tool: serach.check }]",
                "hooks[1].tool",
                true,
            ),
            (
                &format!("admission: {{ tokens: {tokens} }}"),
                "admission.tokens[0].namespaces",
                false,
            ),
            (
                "admission: { certificates: [{ name: ci, san: ci.example, namespaces: [serach] }] }",
                "admission.certificates[0].namespaces",
                false,
            ),
        ] {
            let config: Config = yaml::from_str(config).expect(config);
            let expected = Finding {
                place: place.to_owned(),
                message: "there is no namespace \"serach\"; there are files, search".to_owned(),
                is_error,
            };
            assert_eq!(findings(&config, &known), [expected], "{place}");
        }
        for fine in [
            "{}",
            "namespaces: { overrides: { files: { queue: 1 } } }",
            "relay: { namespace: serach }",
            "listeners: [{ name: a, address: '[::1]:1', profile: core, namespace: header }]",
            "vault: { namespace: serach }",
        ] {
            let config: Config = yaml::from_str(fine).expect(fine);
            assert_eq!(findings(&config, &known), [], "{fine}");
        }
    }
}
