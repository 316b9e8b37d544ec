//! The key `tls` of a listener: certificates, minimum TLS version, and client certificates, from all nginx servers on the
//! listener's address.

use crate::listeners::Listen;
use crate::report::Report;
use crate::scope::Scope;
use crate::tree::Directive;
use crate::values::{is_file, number};
use crate::view::View;
use crate::yaml_text::{Item, Map};

/// The rule of an nginx server for client certificates, and its directive: whether they are required, and the file of
/// authorities. `None` if the server requests none.
type ClientAuth<'a> = (Option<(bool, &'a str)>, &'a Directive);

/// Maximum number of certificates that the gateway allows between a client's certificate and one in `tls.client_ca`.
const CHAIN_MAX: u64 = 6;

/// Builds the key `tls` of a listener for these nginx servers. Also returns the file of authorities if the listener requests
/// client certificates.
pub(crate) fn tls(
    view: &View<'_>,
    here: &[&Listen<'_>],
    report: &mut Report,
) -> (Map, Option<String>) {
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut strict_version = false;
    let mut asked: Vec<ClientAuth<'_>> = Vec::new();
    let mut sorted: Vec<_> = here.iter().filter(|it| it.encrypted).collect();
    sorted.sort_by_key(|it| !(it.at.has("default_server") || it.at.has("default")));
    for listen in sorted {
        let scope = &view.sites.sites[listen.site].scope;
        let keys = scope.all("ssl_certificate_key").iter();
        for (certificate, key) in scope.all("ssl_certificate").iter().zip(keys) {
            if !is_file(certificate.first()) || !is_file(key.first()) {
                let why = "certificates are PEM files: write their paths into tls.cert and tls.key";
                report.security(certificate, why);
                continue;
            }
            report.path(certificate);
            report.path(key);
            let pair = (certificate.first().to_owned(), key.first().to_owned());
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        if let Some(protocols) = scope.last("ssl_protocols") {
            let has_old = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1"]
                .iter()
                .any(|it| protocols.has(it));
            strict_version |= !has_old && !protocols.has("TLSv1.2");
            if has_old {
                report.plain(protocols, "TLS 1.2 and 1.3 are spoken, and nothing older");
            }
        }
        asked.push(client_auth(view, listen, report));
    }
    let mut tls = Map::default();
    match &pairs[..] {
        [] => {
            report.security(here[0].at, "has no certificate that is a file: write tls.cert and tls.key, without which the gateway does not start");
            tls.add("cert", "certificate.pem");
            tls.add("key", "certificate.key");
        }
        [(cert, key)] => {
            tls.add("cert", cert.as_str());
            tls.add("key", key.as_str());
        }
        several => {
            let several = several.iter().map(|(cert, key)| {
                let pair = [("cert", cert.as_str().into()), ("key", key.as_str().into())];
                Item::new("", Map::from(pair))
            });
            tls.add_list("certificates", several.collect());
        }
    }
    if strict_version {
        tls.add("min_version", "1.3");
    }
    let authority = write_client_auth(&asked, &mut tls, report);
    (tls, authority)
}

fn client_auth<'a>(view: &View<'a>, listen: &Listen<'a>, report: &mut Report) -> ClientAuth<'a> {
    let scope = &view.sites.sites[listen.site].scope;
    let Some(at) = scope
        .last("ssl_verify_client")
        .filter(|it| it.first() != "off")
    else {
        return (None, listen.at);
    };
    if at.first() == "optional_no_ca" {
        let why = "a certificate of an unknown authority ends the connection here";
        report.plain(at, why);
    }
    let authority = scope.last("ssl_client_certificate");
    let authority = authority.or_else(|| scope.last("ssl_trusted_certificate"));
    let Some(authority) = authority.filter(|it| is_file(it.first())) else {
        let why = "there is no file of authorities: write tls.client_ca and tls.client_auth";
        report.security(at, why);
        return (None, at);
    };
    report_depth(scope, at, report);
    report.path(authority);
    report.differs(at, "client certificates of X.509 version 1, which nginx takes, are refused in the handshake: issue them as version 3");
    let is_required = at.first() == "on";
    let mut rules = view.rules.iter();
    if is_required && !rules.any(|it| it.subjects.is_some() || it.tokens.is_some()) {
        report.plain(at, "a certificate alone lets nobody in: say whom each stands for in admission.certificates, or give the clients tokens");
    }
    (Some((is_required, authority.first())), at)
}

/// Reports that the gateway may accept longer certificate chains than nginx. Both count the certificates between the client's and
/// the authority's.
fn report_depth(scope: &Scope<'_>, verify: &Directive, report: &mut Report) {
    let Some(depth) = scope.last("ssl_verify_depth") else {
        report.plain(verify, format!("nginx takes one certificate between a client's and that of the authority, unless ssl_verify_depth says more; here up to {CHAIN_MAX} count"));
        return;
    };
    if number(depth.first()).is_none_or(|most| most < CHAIN_MAX) {
        report.security(depth, format!("up to {CHAIN_MAX} certificates may stand between a client's and that of the authority here: nothing is lost where the authorities in tls.client_ca sign no further authorities"));
    }
}

fn write_client_auth(
    asked: &[ClientAuth<'_>],
    tls: &mut Map,
    report: &mut Report,
) -> Option<String> {
    let strictest = asked
        .iter()
        .max_by_key(|(asked, _)| asked.map(|(is_required, _)| is_required));
    let (strictest, at) = strictest?;
    for (_, other) in asked.iter().filter(|(asked, _)| asked != strictest) {
        let place = &at.place;
        let why = format!(
            "a listener asks all clients for certificates in one way: that of {place} is taken"
        );
        report.security(other, why);
    }
    let (is_required, authority) = (*strictest)?;
    tls.add_at("client_ca", authority, at);
    tls.add(
        "client_auth",
        if is_required { "required" } else { "optional" },
    );
    Some(authority.to_owned())
}
