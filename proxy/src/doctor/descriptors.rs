//! Checks the limit on open files of the running gateway, or of a gateway started from this shell, and the number of connections
//! that it allows.

use std::fs;

use tooldock_base::listening;

use super::Finding;
use crate::config::Effective;
use crate::descriptors::{Connections, LIMIT_MIN};

const CHECK: &str = "descriptors";

/// Compares the limit on open files with the configured number of connections.
pub(super) fn check(effective: &Effective) -> Vec<Finding> {
    let configured = effective.config.admission.limits.connections;
    let running = listening::process(&effective.data_dir);
    let connections = match running.and_then(|it| limit_of(it.pid())) {
        Some(limit) => Connections::under(configured, Some(limit)),
        None => Connections::expected(configured),
    };
    vec![said(&connections, configured)]
}

/// Returns the limit on open files of a running process; `None` if it cannot be read, or there is no limit.
fn limit_of(pid: i32) -> Option<u64> {
    open_files(&fs::read_to_string(format!("/proc/{pid}/limits")).ok()?)
}

fn open_files(limits: &str) -> Option<u64> {
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn said(connections: &Connections, configured: usize) -> Finding {
    let limit = connections.limit();
    // The recommended limit also has room for the reserved part (a 32nd of the limit) and for files of workers.
    let needed = (configured + configured / 16 + 1024).next_multiple_of(1024);
    let remedy = format!(
        "LimitNOFILE={needed}   # in a unit: sudo systemctl edit tooldock; in a shell: ulimit -n {needed}"
    );
    match limit {
        Some(limit) if limit < LIMIT_MIN => Finding::problem(
            CHECK,
            format!(
                "the limit on open files is {limit}, and a gateway does not start with less than {LIMIT_MIN}"
            ),
            remedy,
        ),
        Some(_) if connections.clients < configured => {
            Finding::warning(CHECK, format!("connections: {connections}"), remedy)
        }
        _ => Finding::ok(CHECK, format!("connections: {connections}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;

    #[test]
    fn the_limit_of_a_process_is_read_from_its_limits() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
            Max processes             10                   10                   processes\n\
            Max open files            1024                 1048576              files\n";
        assert_eq!(open_files(limits), Some(1024));
        assert_eq!(
            open_files("Max open files            unlimited unlimited files"),
            None
        );
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(limit_of(own).is_some());
    }

    #[test]
    fn a_limit_below_the_configured_connections_names_the_limit_that_is_needed() {
        let of = |limit| said(&Connections::under(100_000, limit), 100_000);
        assert_eq!(of(None).severity, Severity::Ok);
        assert_eq!(of(Some(1 << 20)).severity, Severity::Ok);
        let few = of(Some(1024));
        assert_eq!(few.severity, Severity::Warning);
        assert!(few.said.contains("up to 768"), "{few:?}");
        assert!(
            few.remedy
                .is_some_and(|it| it.contains("LimitNOFILE=107520"))
        );
        assert_eq!(of(Some(100)).severity, Severity::Problem);
        // The named limit is enough.
        assert_eq!(of(Some(107_520)).severity, Severity::Ok);
    }
}
