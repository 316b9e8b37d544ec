//! Imports the `allow` and `deny` rules of nginx as `admission.cidrs`, and its trusted proxies as `admission.trusted_proxies`.
//!
//! In nginx the first rule that matches an address decides; in the gateway `deny` takes precedence. If the results differ, the
//! stricter reading is used and the rule is reported.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tooldock_base::network::{Cidr, UNIX, UNIX_NAME};

use crate::report::Report;
use crate::sites::ProxiedLocation;
use crate::tree::Directive;
use crate::view::View;
use crate::yaml_text::{Map, Node};

/// Admitted and refused networks, in the form of `admission.cidrs`.
#[derive(Clone, Default, PartialEq, Eq)]
struct Networks {
    /// Networks whose clients are admitted; if empty, all networks are.
    allow: Vec<Network>,
    deny: Vec<Network>,
}

/// A network, with its first address and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Network {
    cidr: Cidr,
    first: IpAddr,
    bits: u8,
}

impl Network {
    /// Parses an address or a network as nginx's `allow` and `deny` spell it.
    fn parse(text: &str) -> Option<Self> {
        let text = if text == "unix:" { UNIX_NAME } else { text };
        let cidr: Cidr = text.parse().ok()?;
        let canonical = cidr.to_string();
        let (first, bits) = match canonical.split_once('/') {
            Some((first, bits)) => (first.parse().ok()?, bits.parse().ok()?),
            None => (UNIX, 32),
        };
        Some(Self { cidr, first, bits })
    }

    fn is_one_address(&self) -> bool {
        self.bits == if self.first.is_ipv4() { 32 } else { 128 }
    }

    fn is_within(&self, outer: &Self) -> bool {
        self.bits >= outer.bits && outer.cidr.contains(self.first)
    }

    /// Returns the intersection of two networks, which is the smaller one; `None` if neither contains the other.
    fn common(&self, other: &Self) -> Option<Self> {
        if self.is_within(other) {
            Some(*self)
        } else {
            other.is_within(self).then_some(*other)
        }
    }
}

/// Adds `admission.cidrs`: the networks that all locations of nginx admit.
pub(crate) fn write(view: &View<'_>, admission: &mut Map, report: &mut Report) {
    let mut all: Option<(Networks, &Directive)> = None;
    for proxied_location in &view.sites.proxied_locations {
        let rules = proxied_location.scope.in_order(&["allow", "deny"]);
        let at = rules.first().copied().unwrap_or(proxied_location.at);
        let networks = Networks::of(&rules, report);
        all = Some(match all {
            None => (networks, at),
            Some((before, first)) => {
                if before != networks {
                    let place = &first.place;
                    report.security(at, format!("lets in other networks than {place} does, and admission.cidrs is one for all: only what both let in is let in"));
                }
                // A location without rules admits all networks; the report then cites the location that has rules.
                let first = if before == Networks::default() {
                    at
                } else {
                    first
                };
                (before.and(&networks), first)
            }
        });
        let satisfy = proxied_location.scope.last("satisfy");
        let satisfy = satisfy.filter(|it| it.first() == "any");
        if let Some(satisfy) = satisfy.filter(|_| proxied_location.scope.asks_for_credential()) {
            report.security(satisfy, "here an address that is let in needs a credential all the same: either is not enough");
        }
        write_limits_of_methods(proxied_location, report);
    }
    let Some((networks, at)) = all else { return };
    let mut cidrs = Map::default();
    for (key, list) in [("allow", networks.allow), ("deny", networks.deny)] {
        if !list.is_empty() {
            cidrs.add(key, Node::list(list.iter().map(|it| it.cidr.to_string())));
        }
    }
    admission.add_with("cidrs", cidrs, at.place.to_string());
}

fn write_limits_of_methods(proxied_location: &ProxiedLocation<'_>, report: &mut Report) {
    let Some(limit) = proxied_location.scope.own("limit_except") else {
        return;
    };
    let all_served = ["GET", "POST", "DELETE"]
        .iter()
        .all(|method| limit.has(method));
    let denies = |it: &Directive| it.is("deny") && it.first() == "all";
    if !all_served || !limit.block().iter().all(denies) {
        report.security(
            limit,
            "GET, POST and DELETE are served on the paths of MCP, by one rule for all",
        );
    }
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
                    let why = format!(
                        "has no effect in nginx, as {} lets everybody in before: if it is meant, write admission.cidrs.deny",
                        rule.place
                    );
                    report.security(after, why);
                }
                break;
            }
            let Some(network) = Network::parse(rule.first()) else {
                report.security(rule, "is no network as 10.0.0.0/8");
                // A rejected `allow` rule may have been the only rule that admits some clients. So clients that no remaining rule
                // admits are refused.
                closed |= allows;
                continue;
            };
            if allows {
                networks.allow.push(network);
                continue;
            }
            let overlaps = |it: &&Network| it.common(&network).is_some();
            if let Some(before) = networks.allow.iter().find(overlaps) {
                let allowed = before.cidr;
                report.security(rule, format!("in nginx the rule before lets {allowed} in first; here deny wins, and refuses what both name"));
            }
            networks.deny.push(network);
        }
        if !closed {
            networks.allow.clear();
        } else if networks.allow.is_empty() {
            networks = Self::nobody();
        }
        networks
    }

    fn nobody() -> Self {
        let everything = ["0.0.0.0/0", "::/0"];
        Self {
            allow: Vec::new(),
            deny: everything
                .iter()
                .filter_map(|it| Network::parse(it))
                .collect(),
        }
    }

    /// Returns the networks that both sets admit.
    fn and(self, other: &Self) -> Self {
        if self == *other {
            return self;
        }
        let mut deny = self.deny;
        let known: BTreeSet<_> = deny.iter().map(|it| it.cidr.to_string()).collect();
        let further = other.deny.iter();
        deny.extend(further.filter(|it| !known.contains(&it.cidr.to_string())));
        let allow = match (self.allow.is_empty(), other.allow.is_empty()) {
            (true, _) => other.allow.clone(),
            (_, true) => self.allow,
            _ => {
                let mut both: Vec<Network> = Vec::new();
                for one in &self.allow {
                    let common = other.allow.iter().filter_map(|other| one.common(other));
                    both.extend(common);
                }
                if both.is_empty() {
                    return Self::nobody();
                }
                both.dedup();
                both
            }
        };
        Self { allow, deny }
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
    let mut all: Option<(Vec<Network>, &Directive)> = None;
    for proxied_location in &view.sites.proxied_locations {
        let (trusted, at) = trusted(proxied_location, behind_proxy_protocol.is_some(), report);
        all = Some(match all {
            None => (trusted, at),
            Some((before, first)) if before == trusted => (before, first),
            Some((before, first)) => {
                let place = &first.place;
                report.security(at, format!("trusts other proxies than {place} does: only those that both trust are trusted"));
                (
                    before
                        .into_iter()
                        .filter(|it| trusted.contains(it))
                        .collect(),
                    first,
                )
            }
        });
    }
    let mut all = all.filter(|(trusted, _)| !trusted.is_empty());
    if let (None, Some(listen)) = (&all, behind_proxy_protocol) {
        report.plain(listen, "list the load balancers in admission.trusted_proxies: until then, only this machine may send PROXY protocol headers");
        let by_address = ["allow", "deny", "limit_req", "limit_conn"];
        let rules = view
            .sites
            .proxied_locations
            .iter()
            .flat_map(|proxied_location| by_address.map(|name| proxied_location.scope.last(name)));
        for rule in rules.flatten() {
            report.security(rule, "without set_real_ip_from, the addresses of this rule are those of load balancers in nginx, and those of clients here");
        }
        all = Network::parse("127.0.0.1").map(|local| (vec![local], listen));
    }
    if let Some((trusted, at)) = all {
        admission.add_with(
            "trusted_proxies",
            Node::list(trusted.iter().map(|it| it.cidr.to_string())),
            at.place.to_string(),
        );
    }
}

fn trusted<'a>(
    proxied_location: &ProxiedLocation<'a>,
    behind_proxy_protocol: bool,
    report: &mut Report,
) -> (Vec<Network>, &'a Directive) {
    let from = proxied_location.scope.all("set_real_ip_from");
    let Some(first) = from.first() else {
        return (Vec::new(), proxied_location.at);
    };
    let header = proxied_location.scope.last("real_ip_header");
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
    let recursive = proxied_location.scope.is_on("real_ip_recursive");
    let mut trusted = Vec::new();
    for directive in from {
        let Some(network) = Network::parse(directive.first()) else {
            report.security(
                directive,
                "is no network as 10.0.0.0/8: write the address of the proxy",
            );
            continue;
        };
        if by_header && !recursive && !network.is_one_address() {
            report.security(
                directive,
                "without real_ip_recursive, nginx believes the last address alone; here X-Forwarded-For is read back through all listed proxies, so that a client inside this network could choose its address: list the proxies one by one",
            );
        }
        trusted.push(network);
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
        let list = |list: &[Network]| {
            list.iter()
                .map(|it| it.cidr.to_string())
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
            let list = |list: &[&str]| list.iter().filter_map(|it| Network::parse(it)).collect();
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
