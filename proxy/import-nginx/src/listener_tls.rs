//! The key `tls` of a listener: certificates, minimum TLS version, and client certificates, from all nginx servers on the
//! listener's address.

use crate::listeners::Listen;
use crate::report::Report;
use crate::scope::Scope;
use crate::tree::Directive;
use crate::values::{is_file, number};
use crate::view::View;
use crate::yaml_text::{Item, Map, Node};

/// The rule of nginx for client certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ClientAuth {
    None,
    Optional,
    Required,
}

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
    let mut strict_version: Option<bool> = None;
    let mut asked: Vec<(ClientAuth, Option<&str>, &Directive)> = Vec::new();
    let mut sorted: Vec<_> = here.iter().filter(|it| it.encrypted).collect();
    sorted.sort_by_key(|it| !(it.at.has("default_server") || it.at.has("default")));
    for listen in sorted {
        let scope = &view.sites.sites[listen.site].scope;
        let keys = scope.all("ssl_certificate_key");
        for (index, certificate) in scope.all("ssl_certificate").iter().enumerate() {
            let Some(key) = keys.get(index) else { continue };
            let inline = [certificate, key].iter().any(|it| !is_file(it.first()));
            if inline {
                report.security(
                    certificate,
                    "certificates are PEM files: write their paths into tls.cert and tls.key",
                );
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
            let newest_only = !["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2"]
                .iter()
                .any(|it| protocols.has(it));
            strict_version = Some(strict_version.unwrap_or_default() || newest_only);
            if ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1"]
                .iter()
                .any(|it| protocols.has(it))
            {
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
                let mut pair = Map::default();
                pair.add("cert", cert.as_str());
                pair.add("key", key.as_str());
                Item::new("", pair)
            });
            tls.add("certificates", Node::List(several.collect()));
        }
    }
    if strict_version == Some(true) {
        tls.add("min_version", "1.3");
    }
    let authority = write_client_auth(&asked, &mut tls, report);
    (tls, authority)
}

fn client_auth<'a>(
    view: &View<'a>,
    listen: &Listen<'a>,
    report: &mut Report,
) -> (ClientAuth, Option<&'a str>, &'a Directive) {
    let scope = &view.sites.sites[listen.site].scope;
    let authority = scope
        .last("ssl_client_certificate")
        .or_else(|| scope.last("ssl_trusted_certificate"))
        .filter(|it| is_file(it.first()));
    let needs = |site: usize| {
        let mut rules = view
            .proxied_locations()
            .filter(|(it, _)| it.site == site)
            .map(|(_, rules)| rules);
        rules.all(|rules| rules.certificate.is_some())
    };
    let verify = scope.last("ssl_verify_client");
    let strictness = match verify.map(|it| it.first()) {
        Some("on") => ClientAuth::Required,
        Some("optional" | "optional_no_ca") if needs(listen.site) => ClientAuth::Required,
        Some("optional") => ClientAuth::Optional,
        Some("optional_no_ca") => {
            if let Some(verify) = verify {
                report.plain(
                    verify,
                    "a certificate of an unknown authority ends the connection here",
                );
            }
            ClientAuth::Optional
        }
        _ => ClientAuth::None,
    };
    let at = verify.unwrap_or(listen.at);
    if strictness != ClientAuth::None && authority.is_none() {
        report.security(
            at,
            "there is no file of authorities: write tls.client_ca and tls.client_auth",
        );
        return (ClientAuth::None, None, at);
    }
    if strictness != ClientAuth::None {
        report_depth(scope, at, report);
        if let Some(authority) = authority {
            report.path(authority);
        }
        report.differs(at, "client certificates of X.509 version 1, which nginx takes, are refused in the handshake: issue them as version 3");
    }
    if strictness != ClientAuth::Required {
        let mut rules = view
            .proxied_locations()
            .filter(|(it, _)| it.site == listen.site)
            .map(|(_, rules)| rules);
        if let Some(condition) = rules.find_map(|rules| rules.certificate) {
            report.security(condition, "a listener asks for certificates or it does not: write tls.client_auth: required, if all clients have one");
        }
    }
    if strictness == ClientAuth::Required
        && !view
            .rules
            .iter()
            .any(|rules| rules.subjects.is_some() || rules.tokens.is_some())
    {
        report.plain(at, "a certificate alone lets nobody in: say whom each stands for in admission.certificates, or give the clients tokens");
    }
    (
        strictness,
        authority
            .filter(|_| strictness != ClientAuth::None)
            .map(|it| it.first()),
        at,
    )
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
    asked: &[(ClientAuth, Option<&str>, &Directive)],
    tls: &mut Map,
    report: &mut Report,
) -> Option<String> {
    let strictest = asked.iter().max_by_key(|(strictness, ..)| *strictness);
    let (strictness, authority, at) = strictest?;
    for (other, of_other, directive) in asked {
        if other != strictness || of_other != authority {
            let place = &at.place;
            report.security(
                directive,
                format!("a listener asks all clients for certificates in one way: that of {place} is taken"),
            );
        }
    }
    let strictness = match strictness {
        ClientAuth::None => return None,
        ClientAuth::Optional => "optional",
        ClientAuth::Required => "required",
    };
    let authority = (*authority)?;
    tls.add_with("client_ca", authority, at.place.to_string());
    tls.add("client_auth", strictness);
    Some(authority.to_owned())
}
