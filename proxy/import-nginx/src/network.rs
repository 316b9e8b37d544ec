//! Imports the `allow` and `deny` rules of nginx as `admission.cidrs`, and its trusted proxies as `admission.trusted_proxies`.
//!
//! In nginx the first rule that matches an address decides; in the gateway `deny` takes precedence. If the results differ, the
//! stricter reading is used and the rule is reported.

use std::collections::BTreeSet;

use tooldock_base::network::{Cidr, UNIX_NAME};

use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::view::View;
use crate::yaml_text::{Item, Map, Node};

/// Admitted and refused networks, in the form of `admission.cidrs`.
#[derive(Clone, Default, PartialEq, Eq)]
struct Networks {
    /// Networks whose clients are admitted; if empty, all networks are.
    allow: Vec<Cidr>,
    deny: Vec<Cidr>,
}

/// Parses an address or a network as nginx's `allow` and `deny` spell it.
fn network(text: &str) -> Option<Cidr> {
    let text = if text == "unix:" { UNIX_NAME } else { text };
    text.parse().ok()
}

/// Returns true if a network is a single address.
fn is_one_address(network: Cidr) -> bool {
    let text = network.to_string();
    !text.contains('/') || text.ends_with(if text.contains(':') { "/128" } else { "/32" })
}

/// Returns the intersection of two networks, which is the smaller one; `None` if neither contains the other.
fn common(one: Cidr, other: Cidr) -> Option<Cidr> {
    match other.covers(&one) {
        true => Some(one),
        false => one.covers(&other).then_some(other),
    }
}

/// Adds `admission.cidrs`: the networks that all locations of nginx admit.
pub(crate) fn write(view: &View<'_>, admission: &mut Map, report: &mut Report) {
    let mut all: Option<(Networks, &Directive)> = None;
    for (location, _) in view.locations() {
        let rules = location.scope.in_order(&["allow", "deny"]);
        let at = rules.first().copied().unwrap_or(location.at);
        let networks = Networks::of(&rules, report);
        let Some((before, first)) = &mut all else {
            all = Some((networks, at));
            continue;
        };
        if *before != networks {
            let place = &first.place;
            report.security(at, format!("lets in other networks than {place} does, and admission.cidrs is one for all: only what both let in is let in"));
        }
        // A location without rules admits all networks; the report then cites the location that has rules.
        if *before == Networks::default() {
            *first = at;
        }
        *before = std::mem::take(before).and(&networks);
    }
    let Some((networks, at)) = all else { return };
    let mut cidrs = Map::default();
    cidrs.add_list("allow", items(&networks.allow));
    cidrs.add_list("deny", items(&networks.deny));
    admission.add_at("cidrs", cidrs, at);
}

fn items(networks: &[Cidr]) -> Vec<Item> {
    let networks = networks.iter();
    networks.map(|it| Item::new("", it.to_string())).collect()
}

impl Networks {
    fn of(rules: &[&Directive], report: &mut Report) -> Self {
        let mut networks = Self::default();
        let mut closed = false;
        for (index, rule) in rules.iter().enumerate() {
            let allows = rule.is("allow");
            if rule.first() == "all" {
                closed = !allows;
                if allows && let Some(after) = rules[index + 1..].iter().find(|it| it.is("deny")) {
                    let place = &rule.place;
                    report.security(after, format!("has no effect in nginx, as {place} lets everybody in before: if it is meant, write admission.cidrs.deny"));
                }
                break;
            }
            let Some(parsed) = network(rule.first()) else {
                report.security(rule, "is no network as 10.0.0.0/8");
                // A rejected `allow` rule may have been the only rule that admits some clients. So clients that no remaining rule
                // admits are refused.
                closed |= allows;
                continue;
            };
            if allows {
                networks.allow.push(parsed);
                continue;
            }
            let overlaps = |it: &&Cidr| common(**it, parsed).is_some();
            if let Some(before) = networks.allow.iter().find(overlaps) {
                report.security(rule, format!("in nginx the rule before lets {before} in first; here deny wins, and refuses what both name"));
            }
            networks.deny.push(parsed);
        }
        if !closed {
            networks.allow.clear();
        } else if networks.allow.is_empty() {
            networks = Self::nobody();
        }
        networks
    }

    fn nobody() -> Self {
        let everything = ["0.0.0.0/0", "::/0"].into_iter();
        Self {
            allow: Vec::new(),
            deny: everything.filter_map(network).collect(),
        }
    }

    /// Returns the networks that both sets admit.
    fn and(self, other: &Self) -> Self {
        if self == *other {
            return self;
        }
        let mut deny = self.deny;
        deny.extend(other.deny.iter());
        let mut known = BTreeSet::new();
        deny.retain(|it| known.insert(it.to_string()));
        if self.allow.is_empty() || other.allow.is_empty() {
            let mut allow = self.allow;
            allow.extend(&other.allow);
            return Self { allow, deny };
        }
        let others = || other.allow.iter();
        let of_one = |one: &Cidr| {
            others()
                .filter_map(|it| common(*one, *it))
                .collect::<Vec<_>>()
        };
        let mut allow: Vec<Cidr> = self.allow.iter().flat_map(of_one).collect();
        allow.dedup();
        match allow.is_empty() {
            true => Self::nobody(),
            false => Self { allow, deny },
        }
    }
}

/// Adds `admission.trusted_proxies`: the proxies whose statement of the client's address is believed.
/// `behind_proxy_protocol` is the first listener that expects the PROXY protocol.
pub(crate) fn write_trusted_proxies(
    view: &View<'_>,
    behind_proxy_protocol: Option<&Directive>,
    admission: &mut Map,
    report: &mut Report,
) {
    let mut all: Option<(Vec<Cidr>, &Directive)> = None;
    for (location, _) in view.locations() {
        let (trusted, at) = trusted(location, behind_proxy_protocol.is_some(), report);
        let Some((before, first)) = &mut all else {
            all = Some((trusted, at));
            continue;
        };
        if *before != trusted {
            let place = &first.place;
            let why = format!(
                "trusts other proxies than {place} does: only those that both trust are trusted"
            );
            report.security(at, why);
            before.retain(|it| trusted.contains(it));
        }
    }
    let mut all = all.filter(|(trusted, _)| !trusted.is_empty());
    if let (None, Some(listen)) = (&all, behind_proxy_protocol) {
        report.plain(listen, "list the load balancers in admission.trusted_proxies: until then, only this machine may send PROXY protocol headers");
        for name in ["allow", "deny", "limit_req", "limit_conn"] {
            for rule in view.locations().filter_map(|(it, _)| it.scope.last(name)) {
                report.security(rule, "without set_real_ip_from, the addresses of this rule are those of load balancers in nginx, and those of clients here");
            }
        }
        all = network("127.0.0.1").map(|local| (vec![local], listen));
    }
    if let Some((trusted, at)) = all {
        let trusted = Node::List(items(&trusted));
        admission.add_at("trusted_proxies", trusted, at);
    }
}

fn trusted<'a>(
    location: &ProxiedLocation<'a>,
    behind_proxy_protocol: bool,
    report: &mut Report,
) -> (Vec<Cidr>, &'a Directive) {
    let from = location.scope.all("set_real_ip_from");
    let Some(first) = from.first() else {
        return (Vec::new(), location.at);
    };
    let header = location.scope.last("real_ip_header");
    let name = header.map_or("X-Real-IP", |it| it.first());
    let by_header = name.eq_ignore_ascii_case("x-forwarded-for");
    // Without a listener that expects the PROXY protocol, connections carry no PROXY header, and nginx uses the address of the
    // connection itself.
    if name == "proxy_protocol" && !behind_proxy_protocol {
        return (Vec::new(), first);
    }
    if !by_header && name != "proxy_protocol" {
        report.security(
            header.unwrap_or(first),
            "addresses of clients are read from X-Forwarded-For or the PROXY protocol alone: without them, rules and limits are about the proxy's address",
        );
        return (Vec::new(), first);
    }
    let recursive = location.scope.is_on("real_ip_recursive");
    let mut trusted = Vec::new();
    for at in from {
        let Some(parsed) = network(at.first()) else {
            let why = "is no network as 10.0.0.0/8: write the address of the proxy";
            report.security(at, why);
            continue;
        };
        if by_header && !recursive && !is_one_address(parsed) {
            let why = "without real_ip_recursive, nginx believes the last address alone; here X-Forwarded-For is read back through all listed proxies, so that a client inside this network could choose its address: list the proxies one by one";
            report.security(at, why);
        }
        trusted.push(parsed);
    }
    (trusted, first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tests::parsed;

    /// The networks of some rules, and how many of the rules are reported.
    fn read(rules: &str) -> (String, usize) {
        let tree = parsed(rules).expect(rules);
        let mut report = Report::default();
        let networks = Networks::of(&tree.iter().collect::<Vec<_>>(), &mut report);
        let list = |list: &[Cidr]| {
            list.iter()
                .map(|it| it.to_string())
                .collect::<Vec<_>>()
                .join(" ")
        };
        (
            format!("{} / {}", list(&networks.allow), list(&networks.deny)),
            report.lines().count(),
        )
    }

    #[test]
    fn rules_whose_order_does_not_matter_are_carried_over_as_they_are() {
        for (rules, expected) in [
            (
                "allow 10.0.0.0/8; allow 2001:db8::/32; deny all;",
                "10.0.0.0/8 2001:db8::/32 / ",
            ),
            (
                "deny 10.6.6.6; allow 10.0.0.0/8; deny all;",
                "10.0.0.0/8 / 10.6.6.6/32",
            ),
            ("deny 10.6.6.6; allow all;", " / 10.6.6.6/32"),
            ("deny 10.6.6.6;", " / 10.6.6.6/32"),
            ("allow 10.0.0.0/8;", " / "),
            ("deny all;", " / 0.0.0.0/0 ::/0"),
            ("allow unix:; deny all;", "unix / "),
            (
                "allow 10.0.0.0/8; deny 192.0.2.1; deny all;",
                "10.0.0.0/8 / 192.0.2.1/32",
            ),
            ("", " / "),
        ] {
            assert_eq!(read(rules), (expected.to_owned(), 0), "{rules}");
        }
    }

    #[test]
    fn rules_whose_order_matters_become_stricter_and_are_reported() {
        for (rules, expected) in [
            (
                "allow 10.0.0.0/8; deny 10.6.6.6; deny all;",
                "10.0.0.0/8 / 10.6.6.6/32",
            ),
            (
                "allow 10.1.2.3; deny 10.0.0.0/8; allow all;",
                " / 10.0.0.0/8",
            ),
            ("allow all; deny 10.6.6.6;", " / "),
            ("allow host.example; deny all;", " / 0.0.0.0/0 ::/0"),
            ("allow host.example;", " / 0.0.0.0/0 ::/0"),
        ] {
            assert_eq!(read(rules), (expected.to_owned(), 1), "{rules}");
        }
    }

    #[test]
    fn what_two_lists_let_in_together_is_never_more_than_one_of_them() {
        let networks = |allow: &[&str], deny: &[&str]| {
            let list = |list: &[&str]| list.iter().filter_map(|it| network(it)).collect();
            Networks {
                allow: list(allow),
                deny: list(deny),
            }
        };
        let both = networks(&["10.0.0.0/8"], &[])
            .and(&networks(&["10.1.0.0/16", "192.0.2.1"], &["10.1.1.1"]));
        assert!(both == networks(&["10.1.0.0/16"], &["10.1.1.1"]));
        assert!(
            networks(&["10.0.0.0/8"], &[]).and(&Networks::default())
                == networks(&["10.0.0.0/8"], &[])
        );
        let nobody = networks(&["10.0.0.0/8"], &[]).and(&networks(&["192.0.2.1"], &[]));
        assert!(nobody == Networks::nobody());
    }
}
