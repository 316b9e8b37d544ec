//! Output of `tooldock check` about the issuers of access tokens.

use std::fmt::Write;

use tooldock_filters::AdmissionConfig;
use tooldock_filters::config::{Introspection, JwksSource, TokenNamespaces};

/// Lists the issuers: the source of their keys, the audience of their tokens, and the scopes and namespaces that the
/// tokens open.
pub(super) fn list(report: &mut String, admission: &AdmissionConfig) {
    if !admission.oauth.is_empty() {
        report.push_str("# issuers of access tokens\n");
    }
    for issuer in &admission.oauth {
        let keys = match &issuer.jwks {
            JwksSource::Auto => "by its metadata".to_owned(),
            JwksSource::Url(url) => format!("at {url}"),
            JwksSource::File(file) => format!("in {}", file.display()),
        };
        let opaque = match &issuer.introspection {
            Introspection::Off => "refused".to_owned(),
            Introspection::At(at) => format!("asked about at {}", at.url),
        };
        let namespaces = match &issuer.namespaces {
            TokenNamespaces::Listed(names) => names.join(", "),
            TokenNamespaces::Claimed(it) => format!("those of the claim {}", it.claim),
        };
        let scopes = issuer.scopes.iter();
        let scopes: Vec<_> = scopes.map(|(name, of)| format!("{name} = {of}")).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(
            report,
            "#   {}: keys {keys}, audience {}, scopes {}, namespaces {namespaces}, tokens that are no JWT {opaque}",
            issuer.issuer,
            issuer.audience.names().join(" or "),
            scopes.join(", "),
        );
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn an_issuer_is_one_line_without_its_password() {
        let admission: AdmissionConfig = yaml::from_str(
            "oauth: [{ issuer: 'https://idp', audience: [a, b], scopes: { r: read }, namespaces: { claim: groups }, \
             introspection: { url: 'https://idp/ask', client_id: gw, client_secret: hunter2 } }]",
        )
        .expect("valid");
        let mut report = String::new();
        list(&mut report, &admission);
        assert_eq!(
            report,
            "# issuers of access tokens\n#   https://idp: keys by its metadata, audience a or b, scopes r = read, \
             namespaces those of the claim groups, tokens that are no JWT asked about at https://idp/ask\n"
        );
    }
}
