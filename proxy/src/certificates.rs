//! Check of every certificate in the configuration: of listeners, between replicas, and for remote servers.

use crate::config::{ConfigError, Effective, Purpose, TlsConfig};
use crate::remote::Material;
use crate::replicas::ClientTls;
use crate::tls::{self, ExpectedNames, mutual};

/// Checks every certificate in the configuration. `tooldock check` also refuses certificates that clients or other replicas would
/// refuse. A start only reports such certificates, so that the clients of the other certificates are served.
///
/// # Errors
///
/// The configuration key of the first unusable certificate.
pub(crate) fn check(effective: &Effective) -> Result<(), ConfigError> {
    match effective.purpose() {
        Purpose::Serve => check_each(effective, tls::check_usable),
        Purpose::Check | Purpose::Command => {
            check_each(effective, tls::check_good)?;
            let Some(certificate) = effective.replica_certificate() else {
                return Ok(());
            };
            mutual::check(&certificate).map_err(|reason| ConfigError::key("replicas.tls", reason))
        }
    }
}

/// Checks every certificate in the configuration; for those of listeners, it calls `check`.
///
/// # Errors
///
/// The configuration key of the first unusable certificate, with the message of `check`.
fn check_each(
    effective: &Effective,
    check: impl Fn(&TlsConfig, ExpectedNames<'_>) -> Result<(), String>,
) -> Result<(), ConfigError> {
    for (index, listener) in effective.served_listeners() {
        if let Some(tls) = &listener.tls {
            let expected = ExpectedNames {
                hosts: &effective.config.admission.hosts,
                loopback: listener.address.is_loopback(),
            };
            check(tls, expected)
                .map_err(|reason| ConfigError::key(format!("listeners[{index}].tls"), reason))?;
        }
    }
    if let Some(tls) = effective.replica_tls() {
        let checked = check(&tls, ExpectedNames::ANY);
        checked.map_err(|reason| ConfigError::key("replicas.tls", reason))?;
        ClientTls::read(&effective.config.replicas.tls)?;
    }
    for server in effective.config.upstreams.over_http() {
        if !server.config.enabled {
            continue;
        }
        let at = |key: &str| format!("{}.{}.{key}", server.key, server.name);
        let spec = server.config.tls.read();
        let spec = spec.map_err(|error| ConfigError::key(at(&error.key), error.message))?;
        Material::new(&spec).map_err(|(key, what)| ConfigError::key(at(key), what))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::tests_support::{checked, write};

    use super::*;

    #[test]
    fn a_certificate_that_cannot_be_used_names_its_listener() {
        let yaml = "listeners: [{ name: a, address: '127.0.0.1:1', profile: core, tls: { cert: c.pem, key: k.pem } }]";
        let (_dir, file) = write(yaml);
        let effective = checked(&file, &[]).expect("valid so far");
        let error = check_each(&effective, |tls, _| {
            Err(format!(
                "{}: no such file",
                tls.default_certificate().cert.display()
            ))
        });
        assert_eq!(
            error.expect_err("refused").to_string(),
            "listeners[0].tls: c.pem: no such file"
        );
    }
}
