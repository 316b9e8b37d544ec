//! Checks the addresses of listeners: each is free, in use by the running gateway, or in use by another program.

use tooldock_base::listening;

use super::{Finding, Severity};
use crate::check::addresses;
use crate::config::{Effective, ListenAddress};

const CHECK: &str = "ports";

/// Checks the addresses that a gateway with this configuration binds.
pub(super) fn check(effective: &Effective) -> Vec<Finding> {
    let refused = addresses::findings(effective);
    let own = listening::addresses(&effective.data_dir);
    let bound = effective.config.bound_addresses(effective.role);
    let (held, free): (Vec<_>, Vec<_>) = bound
        .iter()
        .map(|(_, address)| address.to_string())
        .partition(|address| own.contains(address));
    let mut findings: Vec<_> = refused
        .into_iter()
        .map(|found| {
            let severity = match found.is_error {
                true => Severity::Problem,
                false => Severity::Warning,
            };
            let said = format!("{}: {}", found.place, found.message);
            let mut ports = bound.iter().filter_map(|(_, address)| match address {
                ListenAddress::Tcp(address) if said.contains(&address.to_string()) => {
                    Some(address.port())
                }
                _ => None,
            });
            let remedy = match ports.next() {
                Some(port) => format!("sudo ss -ltnp 'sport = :{port}'"),
                None => "sudo ss -lxp".to_owned(),
            };
            Finding::new(CHECK, severity, said).with(remedy)
        })
        .collect();
    if findings.is_empty() {
        if !held.is_empty() {
            let said = format!("the running gateway has {}", held.join(", "));
            findings.push(Finding::ok(CHECK, said));
        }
        if !free.is_empty() {
            let said = format!("free: {}", free.join(", "));
            findings.push(Finding::ok(CHECK, said));
        }
    }
    findings
}
