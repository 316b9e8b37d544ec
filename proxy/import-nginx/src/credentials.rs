//! `admission.tokens` and `admission.certificates`: the credentials with which nginx admits clients.

use std::collections::{BTreeMap, BTreeSet};

use tooldock_base::names::NamespaceName;
use tooldock_filters::config::CertificateConfig;

use crate::guards::Token;
use crate::listeners::Asking;
use crate::principals::{Client, Principals};
use crate::report::Report;
use crate::tree::Directive;
use crate::view::View;
use crate::yaml_text::{Item, Map, Node};

/// Adds the admitted credentials to the configuration. Certificates count only at the listeners in `asking`, which request them.
pub(crate) fn write(view: &View<'_>, asking: &[Asking], admission: &mut Map, report: &mut Report) {
    write_tokens(view, admission, report);
    write_certificates(view, asking, admission, report);
}

/// For each namespace, the digests of tokens or the subjects of certificates that open it. The key is `None` for a file that
/// proxies no requests.
type OpenedNamespaces = BTreeMap<Option<NamespaceName>, BTreeSet<String>>;

/// Collects the credentials that open each namespace, and the namespaces that need no credential in nginx.
fn opened<'a>(
    view: &View<'a>,
    report: &mut Report,
    credentials: impl Fn(usize) -> Option<(BTreeSet<String>, &'a Directive)>,
) -> (OpenedNamespaces, BTreeSet<Option<NamespaceName>>) {
    let mut opened = OpenedNamespaces::new();
    let mut first: BTreeMap<_, &Directive> = BTreeMap::new();
    let (mut open, mut closed) = (BTreeSet::new(), BTreeSet::new());
    for (index, proxied_location) in view.sites.proxied_locations.iter().enumerate() {
        let name = view.names[index].clone();
        if name.is_none() && proxied_location.pass.is_some() {
            continue;
        }
        let Some((accepted, at)) = credentials(index) else {
            if view.rules[index].is_open() {
                open.insert(name);
            } else {
                closed.insert(name);
            }
            continue;
        };
        match opened.get_mut(&name) {
            None => {
                first.insert(name.clone(), at);
                opened.insert(name, accepted);
            }
            Some(before) => {
                if *before != accepted {
                    let place = &first[&name].place;
                    report.security(at, format!("lets in other clients than {place} does, to the same server: only those that both let in are let in"));
                    before.retain(|it| accepted.contains(it));
                }
            }
        }
    }
    open.retain(|name| !opened.contains_key(name) && !closed.contains(name));
    (opened, open)
}

/// The namespaces that a credential opens: those that require it, and those that require none.
fn namespaces_of(
    credential: &str,
    opened: &OpenedNamespaces,
    open: &BTreeSet<Option<NamespaceName>>,
) -> Vec<String> {
    let asking = opened
        .iter()
        .filter(|(_, accepted)| accepted.contains(credential))
        .map(|(name, _)| name);
    let names: BTreeSet<_> = asking.chain(open).collect();
    if names.contains(&None) {
        return vec!["*".to_owned()];
    }
    names
        .into_iter()
        .flatten()
        .map(|name| name.as_str().to_owned())
        .collect()
}

/// Reports locations that need no credential in nginx, if other locations need one.
fn report_open(view: &View<'_>, open: &BTreeSet<Option<NamespaceName>>, report: &mut Report) {
    for (proxied_location, name) in view.sites.proxied_locations.iter().zip(&view.names) {
        let Some(name) = name.as_ref().filter(|_| open.contains(name)) else {
            continue;
        };
        report.plain(proxied_location.at, format!("asks clients for nothing in nginx, and clients without a token get 401 here: give them tokens, or write a listener with namespace: {name} and auth: [bearer, none], on loopback or with admission.cidrs.allow"));
    }
}

fn write_tokens(view: &View<'_>, admission: &mut Map, report: &mut Report) {
    let (opened, open) = opened(view, report, |index| {
        let (tokens, at) = view.rules[index].tokens.as_ref()?;
        Some((tokens.iter().map(|it| it.digest.clone()).collect(), *at))
    });
    let rules = view.rules.iter().filter_map(|it| it.tokens.as_ref());
    let mut seen = BTreeSet::new();
    let tokens: Vec<&Token<'_>> = rules
        .flat_map(|(tokens, _)| tokens)
        .filter(|token| seen.insert(&token.digest))
        .collect();
    let mut names = Principals::default();
    let mut items = Vec::new();
    for token in tokens {
        if !opened
            .values()
            .any(|accepted| accepted.contains(&token.digest))
        {
            continue;
        }
        let namespaces = namespaces_of(&token.digest, &opened, &open);
        let mut entry = Map::default();
        let client = Client {
            name: token.name,
            is_hidden: token.is_hidden,
            at: token.at,
        };
        entry.add("name", names.name(&client, "token", &namespaces, report));
        entry.add("sha256", token.digest.as_str());
        entry.add("namespaces", Node::list(namespaces));
        items.push(Item::new(
            format!("{}: the token of this line, as a digest", token.at.place),
            entry,
        ));
    }
    if !items.is_empty() {
        report_open(view, &open, report);
        admission.add("tokens", Node::List(items));
    }
}

fn write_certificates(
    view: &View<'_>,
    asking: &[Asking],
    admission: &mut Map,
    report: &mut Report,
) {
    let (opened, open) = opened(view, report, |index| {
        let (subjects, at) = view.rules[index].subjects.as_ref()?;
        Some((
            subjects
                .iter()
                .map(|(_, subject)| (*subject).to_owned())
                .collect(),
            *at,
        ))
    });
    let mut names = Principals::default();
    let mut items: BTreeMap<&str, Item> = BTreeMap::new();
    // Each authority can issue certificates with any name. So a name identifies a client only if all listeners accept the same
    // authority.
    let several = asking.iter().any(|it| it.authority != asking[0].authority);
    for (subjects, at) in view.rules.iter().filter_map(|it| it.subjects.as_ref()) {
        for (name, subject) in subjects {
            let namespaces = namespaces_of(subject, &opened, &open);
            if items.contains_key(subject)
                || !opened.values().any(|accepted| accepted.contains(*subject))
            {
                continue;
            }
            let client = Client {
                name: Some(*name),
                is_hidden: false,
                at,
            };
            let name = names.name(&client, "certificate", &namespaces, report);
            let certificate = CertificateConfig {
                name: name.clone(),
                san: None,
                subject: Some((*subject).to_owned()),
                namespaces: namespaces.clone(),
                listeners: Vec::new(),
            };
            if certificate.check().is_err() {
                report.plain(
                    at,
                    "a subject that is not written as CN=ci,O=Example is not let in",
                );
                continue;
            }
            let mut entry = Map::default();
            entry.add("name", name);
            entry.add("subject", *subject);
            entry.add("namespaces", Node::list(namespaces));
            if several {
                let listeners = listeners_of(subject, view, asking);
                if listeners.is_empty() {
                    report.plain(
                        at,
                        "no listener asks for these certificates: they let nobody in",
                    );
                    continue;
                }
                entry.add("listeners", Node::list(listeners));
            }
            items.insert(subject, Item::new(at.place.to_string(), entry));
        }
    }
    if !items.is_empty() {
        report_open(view, &open, report);
        admission.add("certificates", Node::List(items.into_values().collect()));
    }
}

/// The names of the listeners at which clients with this certificate subject are admitted.
fn listeners_of<'n>(subject: &str, view: &View<'_>, asking: &'n [Asking]) -> Vec<&'n str> {
    let lets_in = |site: &usize| {
        let mut rules = view.proxied_locations().filter(|(it, _)| it.site == *site);
        rules.any(|(_, rules)| {
            let subjects = rules.subjects.as_ref();
            subjects.is_some_and(|(subjects, _)| subjects.iter().any(|(_, it)| *it == subject))
        })
    };
    let listeners = asking.iter().filter(|it| it.sites.iter().any(lets_in));
    listeners.map(|it| it.name.as_str()).collect()
}
