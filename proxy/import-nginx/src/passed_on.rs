//! Report lines about requests and headers that nginx forwards to servers and the gateway does not: request headers such as
//! `Authorization`, and requests that nginx forwards without parsing them. These differences affect servers, and open no access.

use std::collections::BTreeSet;

use crate::report::Report;
use crate::scope::Scope;
use crate::tree::Directive;
use crate::values::is_literal;
use crate::view::View;

/// Report line for a backend to which nginx forwards `Authorization`, while no condition of nginx tests the header.
const UNCHECKED: &str = "nginx passes Authorization on without judging it, so that the server may judge it: here it opens the gateway and does \
     not go up, and a server that asks for it answers 401";

/// Report line for a backend to which nginx forwards `Authorization`, while a condition of nginx tests the header, too.
const CHECKED: &str = "nginx judges Authorization and passes it on: here it does not go up, and a server that reads it, too, answers 401";

/// Report line about requests without a session id, which the gateway refuses and nginx forwards.
const STATELESS: &str = "a request after initialize that names no session gets 400 session_required, where nginx passes it on: for servers \
     without sessions, write session: optional into the listener";

/// Report line about requests whose `Accept` header lacks a media type that the gateway requires.
const ACCEPT: &str = "a request whose Accept does not name application/json and text/event-stream gets 406, where nginx passes it on: for \
     such clients, write accept: lenient into the listener";

/// Reports the headers that nginx forwards to servers and the gateway does not.
pub(crate) fn list(view: &View<'_>, report: &mut Report) {
    let mut told = BTreeSet::new();
    let mut host = None;
    for ((location, rules), name) in view.locations().zip(&view.names) {
        let Some(name) = name else { continue };
        host = host.or_else(|| host_of_client(&location.scope));
        if !passes_authorization(&location.scope) || !told.insert(name) {
            continue;
        }
        if rules.compares_authorization || location.scope.asks_for_credential() {
            report.differs(location.at, format!("{CHECKED}. If it does, write upstreams.remote.{name}.credentials, with personal: for a value of each principal"));
        } else {
            report.differs(location.at, format!("{UNCHECKED}. If it does, write upstreams.remote.{name}.credentials, with personal: for a value of each principal, and give clients tokens of the gateway (tooldock keys create, admission.tokens); access tokens of an issuer in admission.oauth go up by credentials: pass"));
        }
    }
    if view.namespaces().is_empty() {
        return;
    }
    let mut headers = view
        .locations()
        .flat_map(|(it, _)| it.scope.all("proxy_set_header"));
    if let Some(upgrade) = headers.find(|it| it.first().eq_ignore_ascii_case("upgrade")) {
        report.differs(upgrade, "WebSockets are not carried over: leave a server that speaks them and not MCP with nginx, and take it out of upstreams.remote");
    }
    if let Some(host) = host {
        report.differs(host, "servers get the host of their URL in backends as Host, and not the client's: a server that judges it, or makes URLs of it, needs headers: { set: { Host: NAME } }");
    }
    report.differs_in("upstreams.remote", "headers of clients stay at the gateway, where nginx passes them on: headers.pass of a server names those that it reads and that clients may write as they like");
    report.differs_in("listeners", STATELESS);
    report.differs_in("listeners", ACCEPT);
}

/// Returns true if nginx forwards the client's `Authorization` header, and no `proxy_set_header` replaces it.
fn passes_authorization(scope: &Scope<'_>) -> bool {
    let passes = scope.last("proxy_pass_request_headers");
    let mut set = scope.all("proxy_set_header").iter();
    passes.is_none_or(|it| it.first() != "off")
        && !set.any(|it| it.first().eq_ignore_ascii_case("authorization"))
}

/// Returns the `proxy_set_header` that sends the client's `Host` header to the server.
fn host_of_client<'a>(scope: &Scope<'a>) -> Option<&'a Directive> {
    let mut set = scope.all("proxy_set_header").iter().copied();
    set.find(|it| {
        let value = it.arg(1).unwrap_or_default();
        it.first().eq_ignore_ascii_case("host") && !is_literal(value) && value != "$proxy_host"
    })
}
