//! `admission.tokens` and `admission.certificates`: the credentials with which nginx admits clients.

use std::collections::{BTreeMap, BTreeSet};

use tooldock_base::names::NamespaceName;
use tooldock_filters::config::CertificateConfig;

use crate::guards::Credential;
use crate::principals::Principals;
use crate::report::Report;
use crate::rules::Rules;
use crate::tree::Directive;
use crate::view::View;
use crate::yaml_text::{Item, Map, Node};

/// The credentials that a location admits, and the directive that compares them.
type Admitted<'a> = Option<(Vec<Credential<'a>>, &'a Directive)>;

/// Adds the admitted credentials to the configuration. `authorities` are the files of authorities of all listeners that request
/// certificates.
pub(crate) fn write(
    view: &View<'_>,
    authorities: &BTreeSet<String>,
    admission: &mut Map,
    report: &mut Report,
) {
    view.variables.list_unread_names(report);
    let tokens = items(view, "token", "sha256", |rules| &rules.tokens, report);
    admission.add_list("tokens", tokens);
    let subjects = items(
        view,
        "certificate",
        "subject",
        |rules| &rules.subjects,
        report,
    );
    // Each authority can issue certificates with any name. So a name identifies a client only if all listeners accept the same
    // authority.
    if authorities.len() > 1 {
        for (_, at) in view.rules.iter().filter_map(|it| it.subjects.as_ref()) {
            report.plain(at, "listeners take certificates of several authorities, each of which could issue this subject, so that none is let in: write admission.certificates with listeners");
        }
        return;
    }
    admission.add_list("certificates", subjects);
}

/// For each namespace, the credentials that open it. The key is `None` for a file that proxies no requests.
#[derive(Default)]
struct OpenedNamespaces<'a> {
    by: BTreeMap<Option<NamespaceName>, (BTreeSet<String>, &'a Directive)>,
    /// Namespaces that need no credential in nginx.
    open: BTreeSet<Option<NamespaceName>>,
}

impl<'a> OpenedNamespaces<'a> {
    fn of(
        view: &View<'a>,
        of: impl for<'r> Fn(&'r Rules<'a>) -> &'r Admitted<'a>,
        report: &mut Report,
    ) -> Self {
        let mut opened = Self::default();
        let mut closed = BTreeSet::new();
        for ((location, rules), name) in view.locations().zip(&view.names) {
            if name.is_none() && location.pass.is_some() {
                continue;
            }
            let name = name.clone();
            let Some((accepted, at)) = of(rules) else {
                match rules.is_open() {
                    true => opened.open.insert(name),
                    false => closed.insert(name),
                };
                continue;
            };
            let accepted: BTreeSet<_> = accepted.iter().map(|it| it.id.clone()).collect();
            let (before, first) = opened.by.entry(name).or_insert((accepted.clone(), at));
            if *before != accepted {
                let place = &first.place;
                report.security(at, format!("lets in other clients than {place} does, to the same server: only those that both let in are let in"));
                before.retain(|it| accepted.contains(it));
            }
        }
        let by = &opened.by;
        let open = |name: &_| !by.contains_key(name) && !closed.contains(name);
        opened.open.retain(open);
        opened
    }

    /// The namespaces that a credential opens: those that require it, and those that require none. `None` if it opens none of
    /// the first.
    fn by(&self, credential: &str) -> Option<Vec<String>> {
        let by = self.by.iter();
        let asking = by.filter(|(_, (ids, _))| ids.contains(credential));
        let mut names: BTreeSet<_> = asking.map(|(name, _)| name).collect();
        if names.is_empty() {
            return None;
        }
        names.extend(&self.open);
        Some(match names.contains(&None) {
            true => vec!["*".to_owned()],
            false => names
                .into_iter()
                .flatten()
                .map(ToString::to_string)
                .collect(),
        })
    }
}

/// Creates the list entries of all credentials of a kind, and reports locations that need none of them. `key` is the entry's key
/// for the digest or the subject.
fn items<'a>(
    view: &View<'a>,
    kind: &str,
    key: &str,
    of: impl for<'r> Fn(&'r Rules<'a>) -> &'r Admitted<'a>,
    report: &mut Report,
) -> Vec<Item> {
    let opened = OpenedNamespaces::of(view, &of, report);
    let mut names = Principals::default();
    let mut items = Vec::new();
    let mut seen = BTreeSet::new();
    let admitted = view.rules.iter().filter_map(|rules| of(rules).as_ref());
    for (client, at) in admitted.flat_map(|(clients, at)| clients.iter().map(move |it| (it, at))) {
        if !seen.insert(&client.id) {
            continue;
        }
        let Some(namespaces) = opened.by(&client.id) else {
            continue;
        };
        let name = names.name(client, kind, &namespaces, report);
        let subject = CertificateConfig {
            name: name.clone(),
            san: None,
            subject: Some(client.id.clone()),
            namespaces: namespaces.clone(),
            listeners: Vec::new(),
        };
        if key == "subject" && subject.check().is_err() {
            let why = "a subject that is not written as CN=ci,O=Example is not let in";
            report.plain(at, why);
            continue;
        }
        let entry = Map::from([
            ("name", name.into()),
            (key, client.id.as_str().into()),
            ("namespaces", Node::list(namespaces)),
        ]);
        let place = &client.at.place;
        let comment = format!("{place}: the {kind} of this line");
        items.push(Item::new(comment, entry));
    }
    if !items.is_empty() {
        report_open(view, &opened.open, report);
    }
    items
}

/// Reports locations that need no credential in nginx, if other locations need one.
fn report_open(view: &View<'_>, open: &BTreeSet<Option<NamespaceName>>, report: &mut Report) {
    for ((location, _), name) in view.locations().zip(&view.names) {
        if let Some(name) = name.as_ref().filter(|_| open.contains(name)) {
            report.plain(location.at, format!("asks clients for nothing in nginx, and clients without a token get 401 here: give them tokens, or write a listener with namespace: {name} and auth: [bearer, none], on loopback or with admission.cidrs.allow"));
        }
    }
}
