//! Imports an nginx `upstream` as settings of a remote server: `backends`, `balance`, `keepalive` and `health.passive`.

use std::collections::BTreeSet;
use std::time::Duration;

use tooldock_workers::remote::{Backend, Host, PassiveHealth, RemoteServerConfig};

use crate::report::Report;
use crate::sizes::duration;
use crate::targets::{Servers, Target};
use crate::tree::Directive;
use crate::values::{number, time};
use crate::yaml_text::{Item, Map, Node};

/// Maximum number of backends of one remote server in the gateway's configuration.
const BACKENDS_MAX: usize = 1_000;

/// Report line for an imported `hash` or `ip_hash`: nginx chooses the backend of each request by the hash, the gateway chooses
/// one per session.
const HASHED: &str = "a session stays at one backend, and a new session of the same client may get another: without a session, the backend is chosen by principal and address (balance: hash)";

/// Default of nginx's `max_fails`: the number of failures after which a server is not used for a while.
const MAX_FAILS: u64 = 1;

/// A `server` line of an nginx `upstream`: its URL and its settings.
struct BackendEntry {
    url: String,
    weight: u64,
    backup: bool,
    comment: String,
}

/// Adds the backends of a target. Returns false if there is no usable backend; the caller then omits the remote server.
pub(crate) fn write(
    target: &Target<'_>,
    pass: &Directive,
    server: &mut Map,
    report: &mut Report,
) -> bool {
    let mut entries: Vec<BackendEntry> = Vec::new();
    let mut ids = BTreeSet::new();
    let pool = match &target.servers {
        Servers::One(authority) => {
            entries.extend(entry(target, authority, pass, report));
            None
        }
        Servers::Pool(pool) => {
            let servers = pool.block().iter().filter(|it| it.is("server"));
            for at in servers {
                let Some(mut entry) = entry(target, at.first(), at, report) else {
                    continue;
                };
                entry.weight = at.option("weight").and_then(number).unwrap_or(1).min(1_000);
                entry.backup = at.has("backup");
                if at.has("down") || at.has("drain") {
                    entry.weight = 0;
                }
                entry.comment = at.place.to_string();
                if at.option("max_conns").is_some() {
                    report.plain(at, "max_conns: requests of one backend are not limited; namespaces.overrides.NAME.max_concurrency limits the calls of all");
                }
                let id = Backend::parse(&entry.url).ok().map(|it| it.id());
                if !ids.insert(id) {
                    report.plain(at, "is listed twice: give it a weight instead");
                } else if entries.len() == BACKENDS_MAX {
                    report.plain(at, format!("a server has at most {BACKENDS_MAX} backends"));
                } else {
                    entries.push(entry);
                }
            }
            Some(*pool)
        }
    };
    if entries.iter().all(|it| it.backup) {
        entries.iter_mut().for_each(|it| it.backup = false);
    }
    if entries.iter().all(|it| it.weight == 0) {
        let at = pool.unwrap_or(pass);
        report.plain(
            at,
            "has no server that is up and can be reached: the namespace is left out",
        );
        return false;
    }
    let private = entries.iter().any(|it| leads_inside(&it.url));
    let backends = entries.into_iter().map(|it| {
        if it.weight == 1 && !it.backup {
            return Item::new(it.comment, it.url.as_str());
        }
        let mut backend = Map::default();
        backend.add("url", it.url);
        if it.weight != 1 {
            backend.add("weight", it.weight);
        }
        if it.backup {
            backend.add("backup", true);
        }
        Item::new(it.comment, backend)
    });
    server.add("backends", Node::List(backends.collect()));
    if private {
        server.add_with(
            "allow_private",
            true,
            "the name leads into the operator's own network",
        );
    }
    if let Some(pool) = pool {
        write_pool(pool, server, report);
    }
    true
}

fn entry(
    target: &Target<'_>,
    authority: &str,
    at: &Directive,
    report: &mut Report,
) -> Option<BackendEntry> {
    let url = match authority.strip_prefix("unix:") {
        Some(socket) => format!("unix:{socket}:{}", target.path),
        None => {
            let scheme = if target.encrypted { "https" } else { "http" };
            // In an nginx `upstream`, a server without a port has port 80, even for https.
            let port = match at.is("server") && target.encrypted && !has_port(authority) {
                true => ":80",
                false => "",
            };
            format!("{scheme}://{authority}{port}{}", target.path)
        }
    };
    if Backend::parse(&url).is_err() {
        report.plain(
            at,
            "is no address of a server: write it into backends as https://host/path",
        );
        return None;
    }
    Some(BackendEntry {
        url,
        weight: 1,
        backup: false,
        comment: String::new(),
    })
}

fn has_port(authority: &str) -> bool {
    let behind = authority.rsplit(']').next().unwrap_or_default();
    behind.contains(':')
}

/// Returns true if a URL's host is a name within the operator's own network, such as the name of a container or service.
fn leads_inside(url: &str) -> bool {
    let Ok(Backend {
        host: Host::Name(name, _),
        ..
    }) = Backend::parse(url)
    else {
        return false;
    };
    let inside = [
        ".local",
        ".internal",
        ".lan",
        ".svc",
        ".localhost",
        ".home.arpa",
    ];
    !name.contains('.') || inside.iter().any(|end| name.ends_with(end))
}

fn write_pool(pool: &Directive, server: &mut Map, report: &mut Report) {
    let defaults = RemoteServerConfig::default();
    for directive in pool.block() {
        let place = directive.place.to_string();
        match directive.name() {
            "least_conn" => server.add_with("balance", "least_busy", place),
            "least_time" => {
                report.plain(
                    directive,
                    "the backend with the fewest requests is taken, not the fastest",
                );
                server.add_with("balance", "least_busy", place);
            }
            "random" => server.add_with("balance", "random", place),
            "ip_hash" => {
                report.differs(directive, HASHED);
                server.add_with("balance", "hash", place);
            }
            "hash" => match directive.first() {
                // A hash of the session id needs no setting, since the gateway sends all requests of a session to one backend
                // anyway.
                "$http_mcp_session_id" => {}
                "$http_authorization"
                | "$remote_addr"
                | "$binary_remote_addr"
                | "$http_x_api_key" => {
                    report.differs(directive, HASHED);
                    server.add_with("balance", "hash", place);
                }
                _ => report.plain(
                    directive,
                    "sessions stay at their backend by themselves; requests without one take turns",
                ),
            },
            "keepalive" => {
                if let Some(idle) = number(directive.first())
                    .filter(|idle| *idle <= 10_000 && *idle != defaults.keepalive as u64)
                {
                    server.add_with("keepalive", idle, place);
                }
            }
            "server" | "zone" | "sticky" | "keepalive_requests" | "keepalive_timeout"
            | "keepalive_time" | "resolver" | "resolver_timeout" | "ntlm" => {}
            _ => report.plain(
                directive,
                "has no counterpart in a pool: see docs/remote-servers.md",
            ),
        }
    }
    write_failures(pool, server, report);
}

/// Adds `health.passive`: one rule for all backends of a server, whereas nginx has one per backend.
fn write_failures(pool: &Directive, server: &mut Map, report: &mut Report) {
    let defaults = PassiveHealth::default();
    let mut failures: Option<(u64, &Directive)> = None;
    let mut eject: Option<(Duration, &Directive)> = None;
    for at in pool.block().iter().filter(|it| it.is("server")) {
        match at.option("max_fails").and_then(number) {
            Some(0) => report.plain(
                at,
                "max_fails=0: a backend that fails is always left out for a while",
            ),
            Some(count) if count <= 1_000 => {
                if failures.is_some_and(|(before, _)| before != count) {
                    report.plain(
                        at,
                        "max_fails is one for all backends: the first one is taken",
                    );
                }
                failures = failures.or(Some((count, at)));
            }
            _ => {}
        }
        if let Some(pause) = at
            .option("fail_timeout")
            .and_then(time)
            .filter(|pause| !pause.is_zero())
        {
            if eject.is_some_and(|(before, _)| before != pause) {
                report.plain(
                    at,
                    "fail_timeout is one for all backends: the first one is taken",
                );
            }
            eject = eject.or(Some((pause, at)));
        }
    }
    if let Some((count, first)) = failures.filter(|(count, _)| *count != MAX_FAILS) {
        let servers = pool.block().iter().filter(|it| it.is("server"));
        for at in servers.filter(|it| it.option("max_fails").is_none()) {
            let place = &first.place;
            report.plain(at, format!("max_fails is {MAX_FAILS} here in nginx, and one for all backends: the {count} of {place} are taken"));
        }
    }
    let mut passive = Map::default();
    if let Some((count, at)) = failures.filter(|(count, _)| *count != u64::from(defaults.failures))
    {
        passive.add_with("failures", count, at.place.to_string());
    }
    if let Some((pause, at)) = eject.filter(|(pause, _)| *pause != defaults.eject) {
        passive.add_with("eject", duration(pause), at.place.to_string());
    }
    let mut health = Map::default();
    health.add("passive", passive);
    server.add("health", health);
}
