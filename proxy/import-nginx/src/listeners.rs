//! The key `listeners`: the addresses on which the nginx servers listen, with the settings of each listener.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use tooldock_base::names::NamespaceName;

use crate::answers;
use crate::bound;
use crate::listener_tls::tls;
use crate::report::Report;
use crate::scope::Paths;
use crate::sites::Site;
use crate::tree::Directive;
use crate::values::only_variable;
use crate::view::View;
use crate::yaml_text::{Item, Map};

/// Comment in the written configuration on the key `namespace` of a listener.
const ALONE: &str = "served alone here: clients may also use /mcp itself";

/// The address of a `listen` directive.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum ListenOn {
    /// A TCP port, with its IP address.
    Port(SocketAddr),
    /// A Unix socket, written `unix:/PATH`.
    Socket(String),
}

impl fmt::Display for ListenOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(address) => address.fmt(f),
            Self::Socket(address) => f.write_str(address),
        }
    }
}

/// A `listen` directive.
pub(crate) struct Listen<'a> {
    pub(crate) at: &'a Directive,
    /// Index of the nginx server that contains the directive.
    pub(crate) site: usize,
    pub(crate) address: ListenOn,
    pub(crate) encrypted: bool,
    proxy_protocol: bool,
}

/// The listeners of the written configuration, and the first `listen` of nginx with the PROXY protocol.
pub(crate) struct Listeners<'a> {
    pub(crate) items: Vec<Item>,
    pub(crate) proxy_protocol: Option<&'a Directive>,
    /// The listeners that request certificates from clients.
    pub(crate) asking: Vec<Asking>,
    /// The ports on which the nginx servers listen.
    pub(crate) ports: Vec<ServedPort>,
}

/// A port on which an nginx server listens.
pub(crate) struct ServedPort {
    /// Index of the nginx server.
    pub(crate) site: usize,
    pub(crate) port: u16,
    pub(crate) encrypted: bool,
}

/// A listener that requests certificates from clients.
pub(crate) struct Asking {
    pub(crate) name: String,
    /// The file of authorities for client certificates.
    pub(crate) authority: String,
    /// Indexes of the nginx servers that listen on the listener's address.
    pub(crate) sites: Vec<usize>,
}

/// Creates the listeners of the written configuration; the list is empty if the gateway's default suffices.
pub(crate) fn listeners<'a>(view: &View<'a>, report: &mut Report) -> Listeners<'a> {
    let mut listens: Vec<Listen<'a>> = Vec::new();
    for (index, site) in view.sites.sites.iter().enumerate() {
        listens.extend(listens_of(view, site, index, report));
    }
    let ports = listens.iter().filter_map(served_port).collect();
    bound::as_bound(&mut listens, report);
    let mut addresses: Vec<ListenOn> = Vec::new();
    for listen in &listens {
        if !addresses.contains(&listen.address) {
            addresses.push(listen.address.clone());
        }
    }
    let all = view.namespaces();
    let mut items = Vec::new();
    let mut asking = Vec::new();
    for address in &addresses {
        let here: Vec<_> = listens.iter().filter(|it| it.address == *address).collect();
        let name = match items.len() {
            0 => "core".to_owned(),
            others => format!("core-{}", others + 1),
        };
        let places: BTreeSet<_> = here.iter().map(|it| it.at.place.to_string()).collect();
        let comment = places.into_iter().collect::<Vec<_>>().join(", ");
        let (listener, authority) = listener(view, &name, &here, &all, report);
        items.push(Item::new(comment, listener));
        asking.extend(authority.map(|authority| Asking {
            name,
            authority,
            sites: here.iter().map(|it| it.site).collect(),
        }));
    }
    if items.is_empty() {
        items.extend(default_listener(view, &all, report));
    }
    let status = &view.sites.status;
    if !status.is_empty() && items.is_empty() {
        items.push(Item::new("", core_on("127.0.0.1:8000")));
    }
    if !items.is_empty() {
        items.push(metrics_listener(view, report));
    }
    Listeners {
        items,
        proxy_protocol: listens.iter().find(|it| it.proxy_protocol).map(|it| it.at),
        asking,
        ports,
    }
}

fn served_port(listen: &Listen<'_>) -> Option<ServedPort> {
    match listen.address {
        ListenOn::Port(address) => Some(ServedPort {
            site: listen.site,
            port: address.port(),
            encrypted: listen.encrypted,
        }),
        ListenOn::Socket(_) => None,
    }
}

/// Creates the listener for metrics, which the gateway has by default, but not with an explicit list of listeners. Its port does
/// not occur in FILE, since a server behind nginx may listen on a port that does.
fn metrics_listener(view: &View<'_>, report: &mut Report) -> Item {
    let mut named = BTreeSet::from([8000]);
    named_ports(view.sites.main.block, &mut named);
    let port = (9090..=u16::MAX).find(|port| !named.contains(port));
    let mut metrics = Map::default();
    metrics.add("name", "metrics");
    let address = format!("127.0.0.1:{}", port.unwrap_or(9090));
    for status in &view.sites.status {
        report.plain(
            status,
            format!("the gateway's own counters are at /metrics of the listener metrics, {address}, in the format of Prometheus"),
        );
    }
    metrics.add("address", address);
    metrics.add("profile", "metrics");
    let says = "/metrics in the format of Prometheus, /health and /ready, for this machine";
    let comment = match view.sites.status.last() {
        Some(status) => format!("{}: {says}", status.place),
        None => says.to_owned(),
    };
    Item::new(comment, metrics)
}

/// Collects the port numbers in arguments such as `9090`, `127.0.0.1:9090`, `http://[::1]:9090/mcp`.
fn named_ports(block: &[Directive], found: &mut BTreeSet<u16>) {
    for directive in block {
        for arg in directive.args() {
            let numbers = arg.split(|c: char| !c.is_ascii_digit());
            found.extend(numbers.filter_map(|it| it.parse::<u16>().ok()));
        }
        named_ports(directive.block(), found);
    }
}

fn core_on(address: &str) -> Map {
    let mut core = Map::default();
    core.add("name", "core");
    core.add("address", address);
    core.add("profile", "core");
    core
}

/// Creates the default listener if it needs settings: a file without `listen` may still set headers.
fn default_listener(
    view: &View<'_>,
    all: &BTreeSet<NamespaceName>,
    report: &mut Report,
) -> Option<Item> {
    let sites: Vec<_> = (0..view.sites.sites.len()).collect();
    let headers = answers::headers(view, &sites, report);
    let only = only_at_the_root(view, all);
    let rewritten = rewrites_accept(view, &sites);
    if headers.is_empty() && only.is_none() && rewritten.is_none() {
        return None;
    }
    let mut core = core_on("127.0.0.1:8000");
    if let Some(name) = only {
        core.add_with("namespace", name.as_str(), ALONE);
    }
    core.add("headers", headers);
    take_every_accept(&mut core, rewritten);
    Some(Item::new("the default address", core))
}

/// The only namespace, if its clients use the path `/mcp`; `None` otherwise. The listener then serves it at `/mcp`, so that these
/// clients still work.
fn only_at_the_root(view: &View<'_>, all: &BTreeSet<NamespaceName>) -> Option<NamespaceName> {
    let [name] = &all.iter().collect::<Vec<_>>()[..] else {
        return None;
    };
    let proxied_locations = view.sites.proxied_locations.iter().zip(&view.names);
    let mut served = proxied_locations.filter(|(_, of)| of.is_some());
    served
        .any(|(proxied_location, _)| is_at_the_root(proxied_location.paths))
        .then(|| (*name).clone())
}

/// Returns true for endpoint paths that contain no name of a namespace.
fn is_at_the_root(paths: Option<Paths<'_>>) -> bool {
    paths.is_some_and(|paths| matches!(paths.path(), "" | "/mcp" | "/sse"))
}

/// Reports endpoints whose paths name no namespace, on an address that serves several namespaces.
fn report_unnamed(view: &View<'_>, sites: &[usize], address: &ListenOn, report: &mut Report) {
    let proxied_locations = view.sites.proxied_locations.iter().zip(&view.names);
    for (proxied_location, name) in proxied_locations.filter(|(it, _)| sites.contains(&it.site)) {
        // Only these locations have a path that clients are known to use.
        let has_path = matches!(
            proxied_location.paths,
            Some(Paths::Exactly(_) | Paths::Below(_))
        );
        if let (Some(name), true) = (name, has_path && is_at_the_root(proxied_location.paths)) {
            if proxied_location.paths.is_some_and(|it| it.path() == "/sse") {
                report.plain(proxied_location.at, format!("clients of this path say no namespace, and {address} serves several: they get 400 namespace_required until namespaces.overrides.{name}.aliases has a path such as /{name}/sse, which is their URL then, or until they send X-Namespace: {name}"));
                continue;
            }
            report.plain(proxied_location.at, format!("clients of this path say no namespace, and {address} serves several: they get 400 namespace_required until they use /mcp/{name}, send X-Namespace: {name}, or have an address of their own, whose listener has namespace: {name}"));
        }
    }
}

/// Creates a listener. Also returns the file of authorities if the listener requests client certificates.
fn listener(
    view: &View<'_>,
    name: &str,
    here: &[&Listen<'_>],
    all: &BTreeSet<NamespaceName>,
    report: &mut Report,
) -> (Map, Option<String>) {
    let mut listener = Map::default();
    let mut authority = None;
    listener.add("name", name);
    listener.add("address", here[0].address.to_string());
    listener.add("profile", "core");
    let sites: Vec<usize> = here.iter().map(|it| it.site).collect();
    let proxied_locations = view.sites.proxied_locations.iter().zip(&view.names);
    let served: BTreeSet<_> = proxied_locations
        .filter(|(it, _)| sites.contains(&it.site))
        .filter_map(|(_, name)| name.clone())
        .collect();
    let only = match served.len() {
        1 if all.len() > 1 => served.first().cloned(),
        _ => only_at_the_root(view, all),
    };
    if only.is_none() {
        report_unnamed(view, &sites, &here[0].address, report);
    }
    if let Some(only) = only {
        listener.add_with("namespace", only.as_str(), ALONE);
    } else if let Some(other) = all.difference(&served).next() {
        let proxied_locations = view.sites.proxied_locations.iter().zip(&view.names);
        let mut elsewhere = proxied_locations
            .filter(|(_, name)| name.as_ref() == Some(other))
            .map(|(it, _)| it);
        if let Some(elsewhere) = elsewhere.next() {
            report.security(here[0].at, format!("serves all namespaces here, {other} of {} too, which nginx does not serve on this address", elsewhere.at.place));
        }
    }
    if here.iter().any(|it| it.proxy_protocol) {
        listener.add("proxy_protocol", true);
    }
    if here.iter().any(|it| it.encrypted) {
        let (tls, of_clients) = tls(view, here, report);
        authority = of_clients;
        listener.add("tls", tls);
    }
    listener.add("headers", answers::headers(view, &sites, report));
    take_every_accept(&mut listener, rewrites_accept(view, &sites));
    (listener, authority)
}

/// The directive that replaces the clients' `Accept` header. Such directives are written for clients whose value is refused by
/// servers.
fn rewrites_accept<'a>(view: &View<'a>, sites: &[usize]) -> Option<&'a Directive> {
    let proxied_locations = view.sites.proxied_locations.iter().zip(&view.names);
    let served = proxied_locations.filter(|(it, name)| name.is_some() && sites.contains(&it.site));
    let mut headers = served.flat_map(|(it, _)| it.scope.all("proxy_set_header").iter().copied());
    headers.find(|header| {
        let value = header.arg(1).unwrap_or_default();
        let is_the_clients = only_variable(value) == Some("http_accept");
        header.first().eq_ignore_ascii_case("accept") && !is_the_clients
    })
}

fn take_every_accept(listener: &mut Map, rewritten: Option<&Directive>) {
    if let Some(at) = rewritten {
        listener.add_with("accept", "lenient", at.place.to_string());
    }
}

fn listens_of<'a>(
    view: &View<'a>,
    site: &Site<'a>,
    index: usize,
    report: &mut Report,
) -> Vec<Listen<'a>> {
    let all_encrypted = site.level.is_on("ssl");
    let of_site = || view.proxied_locations().filter(|(it, _)| it.site == index);
    // Without TLS there is no client certificate, so a condition that requires one admits no request.
    let forced: Vec<_> = of_site()
        .filter_map(|(_, rules)| {
            let subjects = rules.subjects.as_ref().map(|(_, at)| *at);
            rules.encrypted.or(rules.certificate).or(subjects)
        })
        .collect();
    let all_forced = !forced.is_empty() && forced.len() == of_site().count();
    let listens = site.level.all("listen");
    let mut found = Vec::new();
    if let (true, Some(block)) = (listens.is_empty(), site.block) {
        // An nginx server without `listen` listens on port 80.
        found.push(Listen {
            at: block,
            site: index,
            address: ListenOn::Port((Ipv4Addr::UNSPECIFIED, 80).into()),
            encrypted: all_encrypted,
            proxy_protocol: false,
        });
    }
    for listen in listens {
        if listen.has("quic") {
            report.plain(listen, "HTTP/3 is not spoken");
            continue;
        }
        let allowed =
            address(listen.first()).filter(|it| (view.gateway.allows_address)(&it.to_string()));
        let Some(address) = allowed else {
            report.plain(
                listen,
                "the gateway listens on addresses, as 0.0.0.0:443 or [::]:443, not on names",
            );
            continue;
        };
        if matches!(address, ListenOn::Socket(_)) {
            report.plain(listen, "the socket is for the gateway's user and group, where nginx lets everybody connect: mode says who else may");
        }
        found.push(Listen {
            at: listen,
            site: index,
            address,
            encrypted: all_encrypted || listen.has("ssl"),
            proxy_protocol: listen.has("proxy_protocol"),
        });
    }
    if !found.iter().any(|it| it.encrypted) {
        // The file is a snippet that is included in servers with TLS, or the condition admits no request.
        let verify = site.scope.last("ssl_verify_client");
        let verify = verify.filter(|it| it.first() != "off" && site.block.is_none());
        let certificates = of_site().filter_map(|(_, rules)| rules.certificate);
        for at in certificates.chain(verify) {
            report.security(at, "no listener of this file has TLS: write tls with client_ca and client_auth into listeners");
        }
        // The condition requires TLS, but neither the remaining listeners nor the default one would have TLS.
        for at in of_site().filter_map(|(_, rules)| rules.encrypted) {
            report.security(
                at,
                "no listener of this server has TLS: write tls into listeners",
            );
        }
    } else if let Some(condition) = forced.first() {
        if all_forced {
            for plain in found.iter().filter(|it| !it.encrypted) {
                report.plain(
                    plain.at,
                    format!(
                        "{} lets nobody in here without TLS: the gateway does not listen here",
                        condition.place
                    ),
                );
            }
            found.retain(|it| it.encrypted);
        } else if found.iter().any(|it| !it.encrypted) {
            report.security(condition, "a listener serves all namespaces without TLS, or none: take the one without out of listeners");
        }
    }
    found
}

/// Parses the address of a `listen` directive.
fn address(text: &str) -> Option<ListenOn> {
    if text.starts_with("unix:") {
        return Some(ListenOn::Socket(text.to_owned()));
    }
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    if let Ok(port) = text.parse::<u16>() {
        return Some(ListenOn::Port((any, port).into()));
    }
    let text = match text.strip_prefix('*') {
        Some(rest) => format!("0.0.0.0{rest}"),
        None => match text.strip_prefix("localhost") {
            Some(rest) => format!("127.0.0.1{rest}"),
            None => text.to_owned(),
        },
    };
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(ListenOn::Port(address));
    }
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>().ok()?;
    Some(ListenOn::Port((address, 80).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_nginx_reads_them() {
        for (text, expected) in [
            ("80", Some("0.0.0.0:80")),
            ("*:8080", Some("0.0.0.0:8080")),
            ("127.0.0.1", Some("127.0.0.1:80")),
            ("127.0.0.1:1", Some("127.0.0.1:1")),
            ("[::]:443", Some("[::]:443")),
            ("[::1]", Some("[::1]:80")),
            ("localhost:81", Some("127.0.0.1:81")),
            ("unix:/run/x.sock", Some("unix:/run/x.sock")),
            ("gw.example.com:80", None),
            ("", None),
        ] {
            assert_eq!(
                address(text).map(|it| it.to_string()).as_deref(),
                expected,
                "{text}"
            );
        }
    }
}
