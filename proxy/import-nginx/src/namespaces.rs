//! The key `upstreams.remote`: each proxied location becomes a namespace, named after the location's path.

use std::collections::BTreeSet;
use std::time::Duration;

use tooldock_base::config::Limits;
use tooldock_base::names::NamespaceName;
use tooldock_workers::remote::{Backend, RemoteRetry, RemoteTimeouts};

use crate::aliases::NginxPaths;
use crate::gateway_rules::GatewayRules;
use crate::headers;
use crate::pools;
use crate::report::Report;
use crate::scope::Scope;
use crate::sites::{ProxiedLocation, Sites};
use crate::sizes::duration;
use crate::targets::{Servers, Target, target};
use crate::values::{is_file, number, time};
use crate::variables::Variables;
use crate::yaml_text::Map;

/// Comment in the written configuration on the key `isolation`.
const OWN_SESSIONS: &str = "each client has a session of its own at the server, as with nginx: take this out only if the server keeps nothing in its sessions";

/// Report line for a location to which clients of HTTP+SSE send messages, if no location serves the stream of the same server.
const NO_STREAM: &str = "is taken for the path to which clients of HTTP+SSE send messages, and no location leads to a stream of this server: it is no namespace. Write the server into upstreams.remote, if its endpoint has this path";

/// Minimum time limit of a whole call that is written for a `proxy_read_timeout`, which in nginx limits only the time between two
/// reads.
const CALL: Duration = Duration::from_secs(3600);

/// Maximum value of `retry.max`.
const RETRIES_MAX: u64 = 10;

/// The namespaces that an nginx configuration becomes.
pub(crate) struct Namespaces {
    /// The namespace of each proxied location, in the order of the locations.
    pub(crate) names: Vec<Option<NamespaceName>>,
    /// Content of the key `upstreams.remote`.
    pub(crate) servers: Map,
    /// Content of the key `namespaces.overrides`.
    pub(crate) overrides: Map,
}

/// A namespace that is being built, with its target and the index of its proxied location.
struct NamespaceDraft<'a> {
    name: NamespaceName,
    target: Target<'a>,
    index: usize,
    server: Map,
}

/// Builds the namespaces of all proxied locations.
pub(crate) fn namespaces<'a>(
    sites: &Sites<'a>,
    variables: &Variables<'a>,
    gateway: &GatewayRules,
    report: &mut Report,
) -> Namespaces {
    let targets = sites.locations.iter().map(|location| {
        let pass = location.pass?;
        let target = target(location, pass, sites, report);
        target.map_err(|why| report.plain(pass, why)).ok()
    });
    let mut targets: Vec<_> = targets.collect();
    let mut names: Vec<Option<NamespaceName>> = vec![None; targets.len()];
    let mut made: Vec<NamespaceDraft<'_>> = Vec::new();
    let mut old_paths = NginxPaths::default();
    // Locations are processed in this order: locations of Streamable HTTP become namespaces, then streams of HTTP+SSE are added
    // to the namespaces of their servers, then the paths to which clients of these streams send messages.
    let kind = |index: &usize| {
        let target = targets[*index].as_ref();
        target.map(|it| (it.is_of_sse(), it.is_of_messages()))
    };
    let mut order: Vec<usize> = (0..targets.len()).collect();
    order.sort_by_key(kind);
    for index in order {
        let location = &sites.locations[index];
        let Some(target) = targets[index].take() else {
            continue;
        };
        let wanted = name(&target);
        let is_named =
            |it: &&NamespaceDraft<'_>| it.wanted_by(&wanted) && it.target.is_same(&target);
        let mut streams = made.iter().filter(|_| target.is_of_messages());
        let stream = || streams.find(|it| it.target.is_at_same_servers(&target));
        let known = made.iter().find(is_named).or_else(stream);
        if target.is_of_messages() {
            let Some(known) = known else {
                report.plain(location.at, NO_STREAM);
                continue;
            };
            if target.endpoint != "/messages" {
                let name = &known.name;
                report.differs(location.at, format!("clients of HTTP+SSE send their messages to the path that the stream of {name} names, which is /messages: this path is not served"));
            }
        }
        if let Some(known) = known {
            names[index] = Some(known.name.clone());
            old_paths.note(&target, location.at, &known.name);
            let settings = |report| server(location, &target, &known.name, variables, report);
            let of_known = &sites.locations[known.index];
            if judged_headers(location) != judged_headers(of_known) {
                let place = &of_known.at.place;
                report.security(location.at, format!("leads to the same server as {place}, with other headers: those of {place} are sent, and a server may judge clients by them. Give this one a namespace of its own in upstreams.remote"));
            } else if !target.is_of_sse()
                && settings(&mut Report::default())
                    .is_some_and(|it| it.value() != known.server.value())
            {
                let place = &sites.locations[known.index].at.place;
                report.plain(location.at, format!("leads to the same server as {place}, by other settings: those of {place} are taken"));
            }
            continue;
        }
        let name = free_name(&wanted, &made);
        if name.as_str() != wanted && !made.is_empty() {
            let why = format!("another location has the same name: its namespace is {name}");
            report.plain(location.at, why);
        }
        let Some(server) = server(location, &target, &name, variables, report) else {
            continue;
        };
        names[index] = Some(name.clone());
        old_paths.note(&target, location.at, &name);
        made.push(NamespaceDraft {
            name,
            target,
            index,
            server,
        });
    }
    report_guessed(&made, report);
    made.sort_by_key(|it| it.index);
    let mut servers = Map::default();
    for NamespaceDraft {
        name,
        target,
        index,
        server,
    } in made
    {
        let place = &sites.locations[index].at.place;
        let client = if target.endpoint.is_empty() {
            "/"
        } else {
            &target.endpoint
        };
        let comment = format!("{place}: {client} in nginx, /mcp/{name} here");
        servers.add_with(name.as_str(), server, comment);
    }
    Namespaces {
        names,
        servers,
        overrides: old_paths.overrides(gateway, report),
    }
}

/// Reports namespaces whose endpoint path is a guess, because the location's path names no endpoint. Nothing in nginx shows which
/// transport the server uses.
fn report_guessed(made: &[NamespaceDraft<'_>], report: &mut Report) {
    let guessed = made.iter().filter(|it| it.target.is_guessed);
    let names: Vec<_> = guessed.map(|it| it.name.as_str()).collect();
    if !names.is_empty() {
        report.differs_in("upstreams.remote", format!("the endpoint of {} is taken to be /mcp below its location. For a server of HTTP+SSE (2024-11-05), end the path in backends and the alias with the path of its stream, /sse, and write transport: sse", names.join(", ")));
    }
}

/// The headers of a location by which a server may judge its clients, such as credentials, each with its value.
fn judged_headers<'a>(location: &ProxiedLocation<'a>) -> BTreeSet<(String, &'a str)> {
    let headers = location.scope.all("proxy_set_header");
    let headers = headers.iter().map(|at| {
        (
            at.first().to_ascii_lowercase(),
            at.arg(1).unwrap_or_default(),
        )
    });
    headers
        .filter(|(header, value)| !value.is_empty() && headers::may_judge(header))
        .collect()
}

impl NamespaceDraft<'_> {
    /// Returns true if the name is `wanted`, or `wanted` with a number.
    fn wanted_by(&self, wanted: &str) -> bool {
        let rest = self.name.as_str().strip_prefix(wanted);
        rest.is_some_and(|it| it.is_empty() || it.strip_prefix('-').and_then(number).is_some())
    }
}

/// The name of a namespace from its location's path: the path's words, without those that only denote MCP.
fn name(target: &Target<'_>) -> String {
    let words = target.endpoint.split('/');
    let said = words.filter(|it| !matches!(*it, "" | "mcp" | "sse" | "message" | "messages"));
    let from_path = usable(&said.collect::<Vec<_>>().join("-"));
    let from_pool = || match &target.servers {
        Servers::Pool(pool) => usable(pool.first()),
        Servers::One(_) => None,
    };
    let name = from_path.or_else(from_pool);
    name.unwrap_or_else(|| "default".to_owned())
}

/// Converts a text to the name of a namespace; `None` if no usable characters remain.
fn usable(text: &str) -> Option<String> {
    let plain = |c: char| match c.is_ascii_alphanumeric() || c == '_' {
        true => c.to_ascii_lowercase(),
        false => '-',
    };
    let name: String = text.chars().map(plain).collect();
    let name: String = name.trim_matches(['-', '_']).chars().take(50).collect();
    let valid = name.parse::<NamespaceName>().ok()?;
    // These names are avoided, since ToolDock v1 has other routes at paths with these names.
    Some(match valid.is_path_of_v1() {
        true => format!("{name}-mcp"),
        false => name,
    })
}

fn free_name(wanted: &str, made: &[NamespaceDraft<'_>]) -> NamespaceName {
    let names = std::iter::once(wanted.to_owned()).chain((2..).map(|n| format!("{wanted}-{n}")));
    let mut free = names.filter_map(|name| name.parse::<NamespaceName>().ok());
    let free = free.find(|name| !made.iter().any(|it| it.name == *name));
    free.expect("there are fewer namespaces than numbers, and each name is valid")
}

/// Creates the keys of a remote server; `None` if the gateway cannot reach the server.
fn server<'a>(
    location: &ProxiedLocation<'a>,
    target: &Target<'_>,
    name: &NamespaceName,
    variables: &Variables<'a>,
    report: &mut Report,
) -> Option<Map> {
    let mut server = Map::default();
    if !pools::write(target, location.pass?, &mut server, report) {
        return None;
    }
    if target.is_of_sse() {
        server.add("transport", "sse");
    }
    server.add_with("isolation", "session", OWN_SESSIONS);
    headers::write_requests(location, name, variables, &mut server, report);
    if target.encrypted {
        write_tls(location, target, &mut server, report);
    }
    write_timeouts(&location.scope, &mut server, report);
    write_retry(&location.scope, target, &mut server, report);
    Some(server)
}

fn write_tls(
    location: &ProxiedLocation<'_>,
    target: &Target<'_>,
    server: &mut Map,
    report: &mut Report,
) {
    let scope = &location.scope;
    let mut tls = Map::default();
    let is_verified = scope.is_on("proxy_ssl_verify");
    if !is_verified {
        let at = scope.last("proxy_ssl_verify").or(location.pass);
        let at = at.unwrap_or(location.at);
        let why =
            "certificates of servers are verified here: tls.ca names an authority of your own";
        report.plain(at, why);
    }
    let file = |name: &str| scope.last(name).filter(|it| is_file(it.first()));
    if let Some(authority) = file("proxy_ssl_trusted_certificate") {
        report.path(authority);
        tls.add_at("ca", authority.first(), authority);
    }
    match (
        file("proxy_ssl_certificate"),
        file("proxy_ssl_certificate_key"),
    ) {
        (Some(cert), Some(key)) => {
            report.path(cert);
            report.path(key);
            tls.add_at("cert", cert.first(), cert);
            tls.add("key", key.first());
        }
        _ => {
            if let Some(at) = scope.last("proxy_ssl_certificate") {
                let why = "certificates are PEM files: write their paths into tls.cert and tls.key";
                report.plain(at, why);
            }
        }
    }
    let is_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !name.is_empty()
            && name.bytes().all(plain)
            && Backend::parse(&format!("https://{name}/")).is_ok()
    };
    match (scope.last("proxy_ssl_name"), &target.servers) {
        // nginx verifies the server's certificate by the name of the `upstream`, so the gateway must verify the same name.
        (None, Servers::Pool(name)) if is_verified && is_name(name.first()) => {
            tls.add_at("server_name", name.first(), name);
        }
        (Some(name), _) if is_name(name.first()) => tls.add_at("server_name", name.first(), name),
        (Some(name), _) => report.plain(
            name,
            "the name in certificates is that of the URL, or a fixed one in tls.server_name",
        ),
        _ => {}
    }
    server.add("tls", tls);
}

fn write_timeouts(scope: &Scope<'_>, server: &mut Map, report: &mut Report) {
    let defaults = RemoteTimeouts::default();
    let said = |name: &str| {
        let at = scope.last(name)?;
        Some((time(at.first()).filter(|it| !it.is_zero())?, at))
    };
    let mut timeouts = Map::default();
    let connect = said("proxy_connect_timeout").filter(|(connect, _)| *connect != defaults.connect);
    if let Some((connect, at)) = connect {
        timeouts.add_at("connect", duration(connect), at);
    }
    let read = said("proxy_read_timeout");
    if let Some((read, at)) = read {
        // The first two keys limit the time without data from the server: before its response (`head`) and within it (`idle`).
        let mut comment = at.place.to_string();
        let call = read.max(defaults.call);
        for (key, value, default) in [
            ("head", read, defaults.head),
            ("idle", read, defaults.idle),
            ("call", call, defaults.call),
        ] {
            if value != default {
                timeouts.add_with(key, duration(value), std::mem::take(&mut comment));
            }
        }
    }
    server.add("timeouts", timeouts);
    if let Some((read, at)) = read {
        // The limits above apply to silence. In nginx, a call that sends progress may continue without end; here it may until
        // this limit.
        let most = duration(read.max(Limits::default().timeout).max(CALL));
        report.differs(at, format!("a call takes at most {most} in all (limits.timeout), and progress does not extend it; nginx limits the time between two reads, and no call as a whole"));
        let place = &at.place;
        let comment = format!("{place}: here the time of a whole call, where nginx has none");
        let mut limits = Map::default();
        limits.add_with("timeout", most, comment);
        server.add("limits", limits);
    }
    if let Some(at) = scope.last("proxy_send_timeout") {
        report.differs(at, "the time between two writes to a server is not limited by itself; timeouts.head and limits.timeout of the remote server bound a request");
    }
}

fn write_retry(scope: &Scope<'_>, target: &Target<'_>, server: &mut Map, report: &mut Report) {
    let when = scope.last("proxy_next_upstream");
    let tries = scope.last("proxy_next_upstream_tries");
    if let Some(when) = when.filter(|it| it.has("non_idempotent")) {
        report.plain(when, "a tool call that may have run is never sent again");
    }
    let tries = tries.filter(|it| number(it.first()) != Some(0));
    let (max, at) = match (when, tries, &target.servers) {
        (Some(when), ..) if when.has("off") => (0, when),
        (_, Some(tries), _) => (number(tries.first()).unwrap_or(2) - 1, tries),
        // Without `proxy_next_upstream_tries`, nginx tries each server of the `upstream`.
        (_, None, Servers::Pool(pool)) => {
            let servers = pool.block().iter().filter(|it| it.is("server"));
            (servers.count().saturating_sub(1).max(1) as u64, *pool)
        }
        (_, None, Servers::One(_)) => return,
    };
    if max > RETRIES_MAX {
        report.differs(at, format!("a request is sent to at most {RETRIES_MAX} further backends (retry.max), and nginx tries {max}"));
    }
    let max = max.min(RETRIES_MAX);
    if max != u64::from(RemoteRetry::default().max) {
        let mut retry = Map::default();
        retry.add_at("max", max, at);
        server.add("retry", retry);
    }
}
