//! Imports an nginx `upstream` as settings of a remote server: `backends`, `balance`, `keepalive` and `health.passive`.

use std::collections::BTreeSet;

use tooldock_workers::remote::{Backend, Host, PassiveHealth, RemoteServerConfig};

use crate::report::Report;
use crate::sizes::duration;
use crate::targets::{Servers, Target};
use crate::tree::Directive;
use crate::values::{number, time};
use crate::yaml_text::{Item, Map};

/// Maximum number of backends of one remote server in the gateway's configuration.
const BACKENDS_MAX: usize = 1_000;

/// Report line for an imported `hash` or `ip_hash`: nginx chooses the backend of each request by the hash, the gateway chooses
/// one per session.
const HASHED: &str = "a session stays at one backend, and a new session of the same client may get another: without a session, the backend is chosen by principal and address (balance: hash)";

/// Adds the backends of a target. Returns false if there is no usable backend; the caller then omits the remote server.
pub(crate) fn write(
    target: &Target<'_>,
    pass: &Directive,
    server: &mut Map,
    report: &mut Report,
) -> bool {
    let (pool, lines) = match &target.servers {
        Servers::One(authority) => (None, vec![(authority.as_str(), pass)]),
        Servers::Pool(pool) => {
            let lines = pool.block().iter().filter(|it| it.is("server"));
            (Some(*pool), lines.map(|it| (it.first(), it)).collect())
        }
    };
    let mut parsed = Vec::new();
    for (authority, at) in lines {
        let url = url(target, authority, at);
        match Backend::parse(&url) {
            Ok(backend) => parsed.push((url, backend, at)),
            Err(_) => report.plain(
                at,
                "is no address of a server: write it into backends as https://host/path",
            ),
        }
    }
    let all_backup = parsed.iter().all(|(.., at)| at.has("backup"));
    let (mut is_up, mut is_private) = (false, false);
    let mut ids = BTreeSet::new();
    let mut backends = Vec::new();
    for (url, parsed, at) in parsed {
        let (weight, is_backup) = match pool {
            None => (1, false),
            Some(_) if at.has("down") || at.has("drain") => (0, false),
            Some(_) => {
                let weight = at.option("weight").and_then(number).unwrap_or(1);
                (weight.min(1_000), at.has("backup") && !all_backup)
            }
        };
        if at.option("max_conns").is_some() {
            report.plain(at, "max_conns: requests of one backend are not limited; namespaces.overrides.NAME.max_concurrency limits the calls of all");
        }
        if backends.len() == BACKENDS_MAX || !ids.insert(parsed.id()) {
            report.plain(at, format!("a server has at most {BACKENDS_MAX} backends, each once: give one that is listed twice a weight"));
            continue;
        }
        is_up |= weight > 0;
        is_private |= leads_inside(&parsed);
        let comment = pool.map_or(String::new(), |_| at.place.to_string());
        if weight == 1 && !is_backup {
            backends.push(Item::new(comment, url));
            continue;
        }
        let mut backend = Map::default();
        backend.add("url", url);
        if weight != 1 {
            backend.add("weight", weight);
        }
        if is_backup {
            backend.add("backup", true);
        }
        backends.push(Item::new(comment, backend));
    }
    if !is_up {
        report.plain(
            pool.unwrap_or(pass),
            "has no server that is up and can be reached: the namespace is left out",
        );
        return false;
    }
    server.add_list("backends", backends);
    if is_private {
        server.add_with(
            "allow_private",
            true,
            "the name leads into the operator's own network",
        );
    }
    if let Some(pool) = pool {
        write_pool(pool, server, report);
        write_failures(pool, server, report);
    }
    true
}

/// The URL of the endpoint at a server of `proxy_pass` or of an `upstream`.
fn url(target: &Target<'_>, authority: &str, at: &Directive) -> String {
    if let Some(socket) = authority.strip_prefix("unix:") {
        return format!("unix:{socket}:{}", target.path);
    }
    let scheme = if target.encrypted { "https" } else { "http" };
    // In an nginx `upstream`, a server without a port has port 80, even for https.
    let has_port = authority
        .rsplit(']')
        .next()
        .unwrap_or_default()
        .contains(':');
    let is_default = at.is("server") && target.encrypted && !has_port;
    let port = if is_default { ":80" } else { "" };
    format!("{scheme}://{authority}{port}{}", target.path)
}

/// Returns true if the host is a name within the operator's own network, such as the name of a container or service.
fn leads_inside(backend: &Backend) -> bool {
    let Host::Name(name, _) = &backend.host else {
        return false;
    };
    #[rustfmt::skip]
    let inside = [".local", ".internal", ".lan", ".svc", ".localhost", ".home.arpa"];
    !name.contains('.') || inside.iter().any(|end| name.ends_with(end))
}

fn write_pool(pool: &Directive, server: &mut Map, report: &mut Report) {
    let keepalive = RemoteServerConfig::default().keepalive as u64;
    for at in pool.block() {
        match (at.name(), at.first()) {
            ("least_conn", _) => server.add_at("balance", "least_busy", at),
            ("least_time", _) => {
                let why = "the backend with the fewest requests is taken, not the fastest";
                report.plain(at, why);
                server.add_at("balance", "least_busy", at);
            }
            ("random", _) => server.add_at("balance", "random", at),
            // A hash of the session id needs no setting, since the gateway sends all requests of a session to one backend anyway.
            ("hash", "$http_mcp_session_id") => {}
            ("ip_hash", _)
            | ("hash", "$http_authorization" | "$remote_addr" | "$binary_remote_addr") => {
                report.differs(at, HASHED);
                server.add_at("balance", "hash", at);
            }
            ("hash", _) => report.plain(
                at,
                "sessions stay at their backend by themselves; requests without one take turns",
            ),
            ("keepalive", idle) => {
                let idle = number(idle).filter(|idle| *idle <= 10_000 && *idle != keepalive);
                if let Some(idle) = idle {
                    server.add_at("keepalive", idle, at);
                }
            }
            (
                "server" | "zone" | "sticky" | "keepalive_requests" | "keepalive_timeout"
                | "keepalive_time" | "resolver" | "resolver_timeout" | "ntlm",
                _,
            ) => {}
            _ => report.plain(
                at,
                "has no counterpart in a pool: see docs/remote-servers.md",
            ),
        }
    }
}

/// Adds `health.passive`: one rule for all backends of a server, whereas nginx has one per backend.
fn write_failures(pool: &Directive, server: &mut Map, report: &mut Report) {
    let defaults = PassiveHealth::default();
    let servers = || pool.block().iter().filter(|it| it.is("server"));
    // Without the option, nginx counts one failure.
    let fails = |at: &Directive| at.option("max_fails").map_or(Some(1), number);
    let pause = |at: &Directive| at.option("fail_timeout").and_then(time);
    let mut passive = Map::default();
    let count = servers().find_map(|at| {
        let count = at.option("max_fails").and_then(number)?;
        Some((count, at)).filter(|_| (1..=1_000).contains(&count))
    });
    let eject = servers().find_map(|at| Some((pause(at).filter(|it| !it.is_zero())?, at)));
    for at in servers() {
        if fails(at) == Some(0) {
            let why = "max_fails=0: a backend that fails is always left out for a while";
            report.plain(at, why);
        } else if let Some((count, first)) = count.filter(|(count, _)| fails(at) != Some(*count)) {
            let place = &first.place;
            let own = fails(at).unwrap_or(1);
            report.plain(at, format!("max_fails is {own} here in nginx, and one for all backends: the {count} of {place} are taken"));
        }
        if let Some((eject, first)) = eject
            && pause(at).is_some_and(|it| it != eject)
        {
            let place = &first.place;
            let why = format!("fail_timeout is one for all backends: that of {place} is taken");
            report.plain(at, why);
        }
    }
    if let Some((count, at)) = count.filter(|(it, _)| *it != u64::from(defaults.failures)) {
        passive.add_at("failures", count, at);
    }
    if let Some((pause, at)) = eject.filter(|(pause, _)| *pause != defaults.eject) {
        passive.add_at("eject", duration(pause), at);
    }
    let mut health = Map::default();
    health.add("passive", passive);
    server.add("health", health);
}
