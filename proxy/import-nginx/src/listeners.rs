//! The key `listeners`: the addresses on which the nginx servers listen, with the settings of each listener.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use tooldock_base::names::NamespaceName;

use crate::answers;
use crate::bound;
use crate::listener_tls::tls;
use crate::report::Report;
use crate::scope::Paths;
use crate::sites::Site;
use crate::tree::Directive;
use crate::view::View;
use crate::yaml_text::{Item, Map};

/// Comment in the written configuration on the key `namespace` of a listener.
const ALONE: &str = "served alone here: clients may also use /mcp itself";

/// A `listen` directive.
pub(crate) struct Listen<'a> {
    pub(crate) at: &'a Directive,
    /// Index of the nginx server that contains the directive.
    pub(crate) site: usize,
    /// The address as the gateway spells it: `IP:PORT` or `unix:/PATH`.
    pub(crate) address: String,
    pub(crate) encrypted: bool,
    proxy_protocol: bool,
}

/// The listeners of the written configuration, and the first `listen` of nginx with the PROXY protocol.
pub(crate) struct Listeners<'a> {
    pub(crate) items: Vec<Item>,
    pub(crate) proxy_protocol: Option<&'a Directive>,
    /// The files of authorities of the listeners that request certificates from clients.
    pub(crate) authorities: BTreeSet<String>,
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

/// Creates the listeners of the written configuration; the list is empty if the gateway's default suffices.
pub(crate) fn listeners<'a>(view: &View<'a>, report: &mut Report) -> Listeners<'a> {
    let mut listens: Vec<Listen<'a>> = Vec::new();
    for (index, site) in view.sites.sites.iter().enumerate() {
        listens.extend(listens_of(view, site, index, report));
    }
    let port = |it: &Listen<'_>| {
        let (site, encrypted) = (it.site, it.encrypted);
        let port = it.address.parse::<SocketAddr>().ok()?.port();
        Some(ServedPort {
            site,
            port,
            encrypted,
        })
    };
    let ports = listens.iter().filter_map(port).collect();
    bound::as_bound(&mut listens, report);
    let mut addresses: Vec<&str> = Vec::new();
    for listen in &listens {
        if !addresses.contains(&&*listen.address) {
            addresses.push(&listen.address);
        }
    }
    let mut items = Vec::new();
    let mut authorities = BTreeSet::new();
    for address in addresses {
        let here: Vec<_> = listens.iter().filter(|it| it.address == address).collect();
        let name = match items.len() {
            0 => "core".to_owned(),
            others => format!("core-{}", others + 1),
        };
        let places: BTreeSet<_> = here.iter().map(|it| it.at.place.to_string()).collect();
        let comment = places.into_iter().collect::<Vec<_>>().join(", ");
        let (listener, authority) = listener(view, &name, &here, report);
        items.push(Item::new(comment, listener));
        authorities.extend(authority);
    }
    if items.is_empty() {
        // The file has no `listen`, but may contain settings of listeners.
        let (default, _) = listener(view, "core", &[], report);
        let mut settings = ["namespace", "headers", "accept"].iter();
        if settings.any(|it| default.has(it)) || !view.sites.status.is_empty() {
            items.push(Item::new("the default address", default));
        }
    }
    if !items.is_empty() {
        items.push(metrics_listener(view, report));
    }
    Listeners {
        items,
        proxy_protocol: listens.iter().find(|it| it.proxy_protocol).map(|it| it.at),
        authorities,
        ports,
    }
}

/// Creates the listener for metrics, which the gateway has by default, but not with an explicit list of listeners. Its port does
/// not occur in FILE, since a server behind nginx may listen on a port that does.
fn metrics_listener(view: &View<'_>, report: &mut Report) -> Item {
    let mut named = BTreeSet::from([8000]);
    named_ports(view.sites.main.block, &mut named);
    let port = (9090..=u16::MAX).find(|port| !named.contains(port));
    let address = format!("127.0.0.1:{}", port.unwrap_or(9090));
    for status in &view.sites.status {
        report.plain(status, format!("the gateway's own counters are at /metrics of the listener metrics, {address}, in the format of Prometheus"));
    }
    let metrics = Map::from([
        ("name", "metrics".into()),
        ("address", address.into()),
        ("profile", "metrics".into()),
    ]);
    Item::new(
        "/metrics in the format of Prometheus, /health and /ready, for this machine",
        metrics,
    )
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

/// The only namespace, if its clients use the path `/mcp`; `None` otherwise. The listener then serves it at `/mcp`, so that these
/// clients still work.
fn only_at_the_root(view: &View<'_>, all: &BTreeSet<NamespaceName>) -> Option<NamespaceName> {
    let mut served = view.sites.locations.iter().zip(&view.names);
    let is_root = served.any(|(it, name)| name.is_some() && is_at_the_root(it.paths));
    all.first().filter(|_| all.len() == 1 && is_root).cloned()
}

/// Returns true for endpoint paths that contain no name of a namespace.
fn is_at_the_root(paths: Option<Paths<'_>>) -> bool {
    paths.is_some_and(|paths| matches!(paths.path(), "" | "/mcp" | "/sse"))
}

/// Reports endpoints whose paths name no namespace, on an address that serves several namespaces.
fn report_unnamed(view: &View<'_>, sites: &[usize], address: &str, report: &mut Report) {
    for ((location, _), name) in view.locations().zip(&view.names) {
        // Only these locations have a path that clients are known to use.
        let Some(paths @ (Paths::Exactly(_) | Paths::Below(_))) = location.paths else {
            continue;
        };
        let Some(name) = name.as_ref().filter(|_| is_at_the_root(location.paths)) else {
            continue;
        };
        if !sites.contains(&location.site) {
            continue;
        }
        let until = match paths.path() {
            "/sse" => format!(
                "namespaces.overrides.{name}.aliases has a path such as /{name}/sse, which is their URL then, or until they send X-Namespace: {name}"
            ),
            _ => format!(
                "they use /mcp/{name}, send X-Namespace: {name}, or have an address of their own, whose listener has namespace: {name}"
            ),
        };
        report.plain(location.at, format!("clients of this path say no namespace, and {address} serves several: they get 400 namespace_required until {until}"));
    }
}

/// Creates a listener for the `listen` directives of one address; without any, on the gateway's default address. Also returns
/// the file of authorities if the listener requests client certificates.
fn listener(
    view: &View<'_>,
    name: &str,
    here: &[&Listen<'_>],
    report: &mut Report,
) -> (Map, Option<String>) {
    let mut listener = Map::default();
    let mut authority = None;
    let first = here.first();
    let address = first.map_or("127.0.0.1:8000".to_owned(), |it| it.address.clone());
    listener.add("name", name);
    listener.add("address", address.as_str());
    listener.add("profile", "core");
    let sites: Vec<usize> = match first {
        Some(_) => here.iter().map(|it| it.site).collect(),
        None => (0..view.sites.sites.len()).collect(),
    };
    let all = view.namespaces();
    let locations = || view.sites.locations.iter().zip(&view.names);
    let here_served = locations().filter(|(it, _)| sites.contains(&it.site));
    let served: BTreeSet<_> = here_served.filter_map(|(_, name)| name.clone()).collect();
    let only = match served.len() {
        1 if all.len() > 1 => served.first().cloned(),
        _ => only_at_the_root(view, &all),
    };
    if let Some(only) = only {
        listener.add_with("namespace", only.as_str(), ALONE);
    } else {
        report_unnamed(view, &sites, &address, report);
        if let (Some(listen), Some(other)) = (first, all.difference(&served).next())
            && let Some((elsewhere, _)) = locations().find(|(_, it)| it.as_ref() == Some(other))
        {
            report.security(listen.at, format!("serves all namespaces here, {other} of {} too, which nginx does not serve on this address", elsewhere.at.place));
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
    if let Some(at) = rewrites_accept(view, &sites) {
        listener.add_at("accept", "lenient", at);
    }
    (listener, authority)
}

/// The directive that replaces the clients' `Accept` header. Such directives are written for clients whose value is refused by
/// servers.
fn rewrites_accept<'a>(view: &View<'a>, sites: &[usize]) -> Option<&'a Directive> {
    let locations = view.sites.locations.iter().zip(&view.names);
    let served = locations.filter(|(it, name)| name.is_some() && sites.contains(&it.site));
    let mut headers = served.flat_map(|(it, _)| it.scope.all("proxy_set_header").iter().copied());
    headers.find(|header| {
        let value = header.arg(1).unwrap_or_default();
        header.first().eq_ignore_ascii_case("accept") && value != "$http_accept"
    })
}

fn listens_of<'a>(
    view: &View<'a>,
    site: &Site<'a>,
    index: usize,
    report: &mut Report,
) -> Vec<Listen<'a>> {
    let listens = site.level.all("listen").iter();
    let mut listens: Vec<_> = listens.map(|at| (at.first(), *at)).collect();
    if listens.is_empty() {
        // An nginx server without `listen` listens on port 80.
        listens.extend(site.block.filter(|it| it.is("server")).map(|at| ("80", at)));
    }
    let mut found = Vec::new();
    for (text, at) in listens {
        if at.has("quic") {
            report.plain(at, "HTTP/3 is not spoken");
            continue;
        }
        let address = address(text);
        let Some(address) = address.filter(|it| (view.gateway.allows_address)(it)) else {
            let why = "the gateway listens on addresses, as 0.0.0.0:443 or [::]:443, not on names";
            report.plain(at, why);
            continue;
        };
        if address.starts_with("unix:") {
            report.plain(at, "the socket is for the gateway's user and group, where nginx lets everybody connect: mode says who else may");
        }
        let is_listen = at.is("listen");
        found.push(Listen {
            at,
            site: index,
            address,
            encrypted: site.level.is_on("ssl") || is_listen && at.has("ssl"),
            proxy_protocol: is_listen && at.has("proxy_protocol"),
        });
    }
    // The file is a snippet that is included in servers with TLS.
    let is_snippet = site.block.is_none_or(|it| !it.is("server"));
    let verify = site
        .scope
        .last("ssl_verify_client")
        .filter(|it| it.first() != "off");
    if let Some(verify) = verify.filter(|_| is_snippet && !found.iter().any(|it| it.encrypted)) {
        report.security(verify, "no listener of this file has TLS: write tls with client_ca and client_auth into listeners");
    }
    found
}

/// Returns the address of a `listen` directive as the gateway spells it.
fn address(text: &str) -> Option<String> {
    if text.starts_with("unix:") {
        return Some(text.to_owned());
    }
    if let Ok(port) = text.parse::<u16>() {
        return Some(format!("0.0.0.0:{port}"));
    }
    let text = match (text.strip_prefix('*'), text.strip_prefix("localhost")) {
        (Some(rest), _) => format!("0.0.0.0{rest}"),
        (_, Some(rest)) => format!("127.0.0.1{rest}"),
        _ => text.to_owned(),
    };
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let bare = || Some(SocketAddr::from((bare.parse::<IpAddr>().ok()?, 80)));
    let address = text.parse().ok().or_else(bare)?;
    Some(address.to_string())
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
            assert_eq!(address(text).as_deref(), expected, "{text}");
        }
    }
}
