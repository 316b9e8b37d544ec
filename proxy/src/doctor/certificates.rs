//! Checks the certificates of listeners, of replicas and for remote servers: usable files, matching keys, and expiry.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{Finding, Severity};
use crate::certificates;
use crate::config::Effective;
use crate::tls::{self, CertificateEnd};

const CHECK: &str = "certificates";
const DAY: i64 = 24 * 60 * 60;
/// A certificate that expires in fewer days than this is reported; most are renewed a month before.
const SOON: i64 = 21;

/// Checks the certificates of a configuration.
pub(super) fn check(effective: &Effective) -> Vec<Finding> {
    let mut findings = Vec::new();
    let listeners = effective.served_listeners();
    let named = listeners.filter_map(|(_, it)| Some((it.name.to_string(), it.tls.clone()?)));
    let replicas = effective.replica_tls();
    let replicas = replicas.map(|tls| ("replicas.tls".to_owned(), tls));
    let mut unusable = false;
    for (name, tls) in named.chain(replicas) {
        match tls::ends(&tls) {
            Ok(ends) => findings.extend(
                ends.iter()
                    .map(|(file, end)| ending(CHECK, &format!("{name}: {}", file.display()), end)),
            ),
            Err(reason) => {
                unusable = true;
                findings.push(Finding::problem(
                    CHECK,
                    format!("{name}: {reason}"),
                    "tooldock check",
                ));
            }
        }
    }
    // The general check of the configuration's certificates also covers the host names in them, and the certificates of replicas
    // and for remote servers. It runs only if no problem was found above.
    let is_said = unusable || findings.iter().any(|it| it.severity == Severity::Problem);
    if !is_said && let Err(error) = certificates::check(effective) {
        findings.push(Finding::problem(CHECK, error.to_string(), "tooldock check"));
    }
    if findings.is_empty() {
        findings.push(Finding::skipped(CHECK, "no listener has TLS"));
    }
    findings
}

/// Returns the finding about the expiry of a certificate.
pub(super) fn ending(check: &'static str, subject: &str, end: &CertificateEnd) -> Finding {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |it| it.as_secs().cast_signed());
    at(check, subject, end, now)
}

fn at(check: &'static str, subject: &str, end: &CertificateEnd, now: i64) -> Finding {
    const RENEW: &str =
        "sudo certbot renew   # or as the certificate is made; SIGHUP reads it again";
    let CertificateEnd { seconds, shown } = end;
    let days = (seconds - now).div_euclid(DAY);
    match days {
        ..0 => Finding::problem(check, format!("{subject} ended on {shown}"), RENEW),
        0..SOON => {
            let said = format!("{subject} ends in {days} days, on {shown}");
            Finding::warning(check, said, RENEW)
        }
        _ => Finding::ok(check, format!("{subject} ends on {shown}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_warned_of_three_weeks_before_its_end() {
        let end = CertificateEnd {
            seconds: 100 * DAY,
            shown: "that day".to_owned(),
        };
        for (now, severity) in [
            (50 * DAY, Severity::Ok),
            (90 * DAY, Severity::Warning),
            (100 * DAY + 1, Severity::Problem),
        ] {
            let finding = at(CHECK, "core", &end, now);
            assert_eq!(finding.severity, severity);
            assert!(finding.said.contains("that day"), "{finding:?}");
        }
    }
}
