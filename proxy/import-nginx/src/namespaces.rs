//! The key `upstreams.remote`: each proxied location becomes a namespace, named after the location's path.

use std::time::Duration;

use tooldock_base::config::Limits;
use tooldock_base::names::NamespaceName;
use tooldock_workers::remote::{Backend, RemoteRetry, RemoteTimeouts};

use crate::aliases::NginxPaths;
use crate::gateway_rules::GatewayRules;
use crate::headers;
use crate::pools;
use crate::report::Report;
use crate::sites::{ProxiedLocation, Sites};
use crate::sizes::duration;
use crate::targets::{Rewritten, Servers, Target, target};
use crate::tree::Directive;
use crate::values::{is_file, number, time};
use crate::variables::Variables;
use crate::yaml_text::Map;

/// Comment in the written configuration on the key `isolation`.
const OWN_SESSIONS: &str = "each client has a session of its own at the server, as with nginx: take this out only if the server keeps nothing in its sessions";

/// Report line for a location to which clients of HTTP+SSE send messages, if no location serves the stream of the same server.
const NO_STREAM: &str = "is taken for the path to which clients of HTTP+SSE send messages, and no location leads to a stream of this server: it is no namespace. Write the server into upstreams.remote, if its endpoint has this path";

/// Words in paths at which WebSockets are usual. The headers of WebSockets alone are no sign, since locations for MCP often have
/// them without a use.
const WEBSOCKET_WORDS: [&str; 6] = ["ws", "wss", "websocket", "websockets", "socket.io", "cable"];

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
    proxied_location: usize,
    server: Map,
    comment: String,
}

/// Builds the namespaces of all proxied locations.
pub(crate) fn namespaces<'a>(
    sites: &Sites<'a>,
    variables: &Variables<'a>,
    gateway: &GatewayRules,
    report: &mut Report,
) -> Namespaces {
    let mut targets: Vec<_> = sites
        .proxied_locations
        .iter()
        .map(|proxied_location| reached(proxied_location, sites, variables, report))
        .collect();
    let mut names: Vec<Option<NamespaceName>> = vec![None; targets.len()];
    let mut made: Vec<NamespaceDraft<'_>> = Vec::new();
    let mut old_paths = NginxPaths::default();
    let mut guessed: Vec<NamespaceName> = Vec::new();
    // Locations are processed in this order: locations of Streamable HTTP become namespaces, then streams of HTTP+SSE are added
    // to the namespaces of their servers, then the paths to which clients of these streams send messages.
    let kind = |index: &usize| {
        let target = targets[*index].as_ref();
        target.map(|it| (it.is_of_sse(), it.is_of_messages()))
    };
    let mut order: Vec<usize> = (0..targets.len()).collect();
    order.sort_by_key(kind);
    for index in order {
        let proxied_location = &sites.proxied_locations[index];
        let (Some(target), Some(pass)) = (targets[index].take(), proxied_location.pass) else {
            continue;
        };
        let wanted = name(&target);
        let mut known = made
            .iter()
            .find(|it| it.wanted_by(&wanted) && it.target.is_same(&target));
        if target.is_of_messages() {
            let at_same_servers = |it: &&NamespaceDraft<'_>| it.target.is_at_same_servers(&target);
            known = known.or_else(|| made.iter().find(at_same_servers));
            let Some(known) = known else {
                report.plain(proxied_location.at, NO_STREAM);
                continue;
            };
            if target.endpoint != "/messages" {
                let name = &known.name;
                report.differs(proxied_location.at, format!("clients of HTTP+SSE send their messages to the path that the stream of {name} names, which is /messages: this path is not served"));
            }
        }
        let mut server = Map::default();
        if let Some(known) = known {
            names[index] = Some(known.name.clone());
            old_paths.note(&target, proxied_location.at, &known.name);
            if !target.is_of_sse()
                && write(
                    proxied_location,
                    &target,
                    &known.name,
                    pass,
                    variables,
                    &mut server,
                    &mut Report::default(),
                )
                && server.bare() != known.server.bare()
            {
                let place = &sites.proxied_locations[known.proxied_location].at.place;
                report.plain(proxied_location.at, format!("leads to the same server as {place}, by other settings: those of {place} are taken"));
            }
            continue;
        }
        let name = free_name(&wanted, &made);
        if name.as_str() != wanted && !made.is_empty() {
            report.plain(
                proxied_location.at,
                format!("another location has the same name: its namespace is {name}"),
            );
        }
        if !write(
            proxied_location,
            &target,
            &name,
            pass,
            variables,
            &mut server,
            report,
        ) {
            continue;
        }
        let comment = comment(proxied_location, &target, &name);
        names[index] = Some(name.clone());
        old_paths.note(&target, proxied_location.at, &name);
        if target.is_guessed {
            guessed.push(name.clone());
        }
        made.push(NamespaceDraft {
            name,
            target,
            proxied_location: index,
            server,
            comment,
        });
    }
    report_guessed(&guessed, report);
    made.sort_by_key(|it| it.proxied_location);
    let mut servers = Map::default();
    for it in made {
        servers.add_with(it.name.as_str(), it.server, it.comment);
    }
    Namespaces {
        names,
        servers,
        overrides: old_paths.overrides(gateway, report),
    }
}

/// Reports namespaces whose endpoint path is a guess, because the location's path names no endpoint. Nothing in nginx shows which
/// transport the server uses.
fn report_guessed(names: &[NamespaceName], report: &mut Report) {
    if names.is_empty() {
        return;
    }
    let names: Vec<_> = names.iter().map(NamespaceName::as_str).collect();
    report.differs_in("upstreams.remote", format!("the endpoint of {} is taken to be /mcp below its location. For a server of HTTP+SSE (2024-11-05), end the path in backends and the alias with the path of its stream, /sse, and write transport: sse", names.join(", ")));
}

impl NamespaceDraft<'_> {
    fn wanted_by(&self, wanted: &str) -> bool {
        let numbered = self.name.as_str().strip_prefix(wanted);
        numbered.is_some_and(|rest| {
            rest.is_empty()
                || rest
                    .strip_prefix('-')
                    .is_some_and(|it| number(it).is_some())
        })
    }
}

fn reached<'a>(
    proxied_location: &ProxiedLocation<'a>,
    sites: &Sites<'a>,
    variables: &Variables<'a>,
    report: &mut Report,
) -> Option<Target<'a>> {
    let pass = proxied_location.pass?;
    match target(proxied_location, pass, sites, variables) {
        Ok(target) => {
            if let Some((at, why)) = target.unsure {
                report.plain(at, why);
            }
            let mut words = target.endpoint.split(['/', '-', '_']);
            let is_upgrade = |it: &&&Directive| it.first().eq_ignore_ascii_case("upgrade");
            let mut set = proxied_location.scope.all("proxy_set_header").iter();
            if words.any(|word| WEBSOCKET_WORDS.contains(&word))
                && let Some(upgrade) = set.find(is_upgrade)
            {
                report.plain(upgrade, "WebSockets are not carried over: if this server speaks them and not MCP, leave its location with nginx, and take it out of upstreams.remote");
            }
            let own = proxied_location.scope.own("rewrite");
            for rewrite in proxied_location
                .scope
                .rewrites_before()
                .into_iter()
                .chain(own)
            {
                match target.rewritten {
                    Rewritten::To(_, known) if std::ptr::eq(known, rewrite) => {}
                    Rewritten::Elsewhere(at) if std::ptr::eq(at, rewrite) => report.security(
                        rewrite,
                        "paths are not rewritten, and requests may come to other rules in nginx: see that the path in backends is right, and that clients are asked for no less",
                    ),
                    _ => report.plain(rewrite, "paths are not rewritten: see that the path in backends is that of the MCP endpoint"),
                }
            }
            Some(target)
        }
        Err(why) => {
            report.plain(pass, why);
            None
        }
    }
}

fn comment(
    proxied_location: &ProxiedLocation<'_>,
    target: &Target<'_>,
    name: &NamespaceName,
) -> String {
    let client = match target.endpoint.as_str() {
        "" => "/",
        endpoint => endpoint,
    };
    format!(
        "{}: {client} in nginx, /mcp/{name} here",
        proxied_location.at.place
    )
}

/// The name of a namespace from its location's path: the path's words, without those that only denote MCP.
fn name(target: &Target<'_>) -> String {
    let said = target
        .endpoint
        .split('/')
        .filter(|it| !matches!(*it, "" | "mcp" | "sse" | "message" | "messages"));
    let from_path = usable(&said.collect::<Vec<_>>().join("-"));
    let from_pool = || match &target.servers {
        Servers::Pool(pool) => usable(pool.first()),
        Servers::One(_) => None,
    };
    from_path
        .or_else(from_pool)
        .unwrap_or_else(|| "default".to_owned())
}

/// Converts a text to the name of a namespace; `None` if no usable characters remain.
fn usable(text: &str) -> Option<String> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let name: String = text.chars().map(plain).collect();
    let name = name.trim_matches(['-', '_']);
    let name: String = name.chars().take(50).collect();
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

/// Writes the keys of a remote server. Returns false if the server cannot be reached by the gateway.
fn write<'a>(
    proxied_location: &ProxiedLocation<'a>,
    target: &Target<'_>,
    name: &NamespaceName,
    pass: &Directive,
    variables: &Variables<'a>,
    server: &mut Map,
    report: &mut Report,
) -> bool {
    if !pools::write(target, pass, server, report) {
        return false;
    }
    if target.is_of_sse() {
        server.add("transport", "sse");
    }
    server.add_with("isolation", "session", OWN_SESSIONS);
    headers::write_requests(proxied_location, name, variables, server, report);
    if target.encrypted {
        write_tls(proxied_location, target, server, report);
    }
    write_timeouts(proxied_location, server, report);
    write_retry(proxied_location, target, server, report);
    true
}

fn write_tls(
    proxied_location: &ProxiedLocation<'_>,
    target: &Target<'_>,
    server: &mut Map,
    report: &mut Report,
) {
    let mut tls = Map::default();
    let verify = proxied_location.scope.last("proxy_ssl_verify");
    let verified = proxied_location.scope.is_on("proxy_ssl_verify");
    if !verified {
        let at = verify
            .or(proxied_location.pass)
            .unwrap_or(proxied_location.at);
        report.plain(
            at,
            "certificates of servers are verified here: tls.ca names an authority of your own",
        );
    }
    let file = |name: &str| {
        proxied_location
            .scope
            .last(name)
            .filter(|it| is_file(it.first()))
    };
    if let Some(authority) = file("proxy_ssl_trusted_certificate") {
        report.path(authority);
        tls.add_with("ca", authority.first(), authority.place.to_string());
    }
    if let (Some(cert), Some(key)) = (
        file("proxy_ssl_certificate"),
        file("proxy_ssl_certificate_key"),
    ) {
        report.path(cert);
        report.path(key);
        tls.add_with("cert", cert.first(), cert.place.to_string());
        tls.add("key", key.first());
    } else if let Some(at) = proxied_location.scope.last("proxy_ssl_certificate") {
        report.plain(
            at,
            "certificates are PEM files: write their paths into tls.cert and tls.key",
        );
    }
    let name = proxied_location.scope.last("proxy_ssl_name");
    let is_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !name.is_empty()
            && name.bytes().all(plain)
            && Backend::parse(&format!("https://{name}/")).is_ok()
    };
    match (name, &target.servers) {
        (Some(name), _) if is_name(name.first()) => {
            tls.add_with("server_name", name.first(), name.place.to_string())
        }
        (Some(name), _) => report.plain(
            name,
            "the name in certificates is that of the URL, or a fixed one in tls.server_name",
        ),
        // nginx verifies the server's certificate by the name of the `upstream`, so the gateway must verify the same name.
        (None, Servers::Pool(pool)) if verified && is_name(pool.first()) => {
            tls.add_with("server_name", pool.first(), pool.place.to_string())
        }
        _ => {}
    }
    server.add("tls", tls);
}

fn write_timeouts(proxied_location: &ProxiedLocation<'_>, server: &mut Map, report: &mut Report) {
    let defaults = RemoteTimeouts::default();
    let said = |name: &str| {
        let directive = proxied_location.scope.last(name)?;
        Some((
            time(directive.first()).filter(|it| !it.is_zero())?,
            directive,
        ))
    };
    let mut timeouts = Map::default();
    if let Some((connect, at)) =
        said("proxy_connect_timeout").filter(|(connect, _)| *connect != defaults.connect)
    {
        timeouts.add_with("connect", duration(connect), at.place.to_string());
    }
    let read = said("proxy_read_timeout");
    if let Some((read, at)) = read {
        // Both keys limit the time without data from the server: before its response (`head`) and within it (`idle`).
        let mut comment = at.place.to_string();
        for (key, default) in [("head", defaults.head), ("idle", defaults.idle)] {
            if read != default {
                timeouts.add_with(key, duration(read), std::mem::take(&mut comment));
            }
        }
        if read > defaults.call {
            timeouts.add("call", duration(read));
        }
    }
    server.add("timeouts", timeouts);
    // The limits above apply to silence. In nginx, a call that sends progress may continue without end; here it may until this
    // limit.
    let call = Limits::default().timeout.max(CALL);
    if let Some((read, at)) = read {
        let most = read.max(call);
        let spelled = duration(most);
        report.differs(at, format!("a call takes at most {spelled} in all (limits.timeout), and progress does not extend it; nginx limits the time between two reads, and no call as a whole"));
        let mut limits = Map::default();
        let comment = format!(
            "{}: here the time of a whole call, where nginx has none",
            at.place
        );
        limits.add_with("timeout", spelled, comment);
        server.add("limits", limits);
    }
    if let Some(at) = proxied_location.scope.last("proxy_send_timeout") {
        report.differs(at, "the time between two writes to a server is not limited by itself; timeouts.head and limits.timeout of the remote server bound a request");
    }
}

fn write_retry(
    proxied_location: &ProxiedLocation<'_>,
    target: &Target<'_>,
    server: &mut Map,
    report: &mut Report,
) {
    let when = proxied_location.scope.last("proxy_next_upstream");
    let tries = proxied_location.scope.last("proxy_next_upstream_tries");
    if let Some(when) = when.filter(|it| it.has("non_idempotent")) {
        report.plain(when, "a tool call that may have run is never sent again");
    }
    let tries = tries.filter(|it| number(it.first()) != Some(0));
    let max = match (when, tries, &target.servers) {
        (Some(when), ..) if when.has("off") => Some((0, when)),
        (_, Some(tries), _) => number(tries.first()).map(|it| (it - 1, tries)),
        // Without `proxy_next_upstream_tries`, nginx tries each server of the `upstream`.
        (_, None, Servers::Pool(pool)) => {
            let servers = pool.block().iter().filter(|it| it.is("server"));
            Some((servers.count().saturating_sub(1).max(1) as u64, *pool))
        }
        (_, None, Servers::One(_)) => None,
    };
    let Some((max, at)) = max else { return };
    if max > RETRIES_MAX {
        report.differs(at, format!("a request is sent to at most {RETRIES_MAX} further backends (retry.max), and nginx tries {max}"));
    }
    let max = max.min(RETRIES_MAX);
    if max != u64::from(RemoteRetry::default().max) {
        let mut retry = Map::default();
        retry.add_with("max", max, at.place.to_string());
        server.add("retry", retry);
    }
}
