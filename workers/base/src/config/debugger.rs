//! Limits of a namespace whose worker waits for a debugger (`TOOLDOCK_DEBUG`, with `serve --dev`).

use std::time::Duration;

use super::{Limits, SandboxAddress, SandboxNetwork};

/// Time limit of starts and calls while a debugger may hold them.
pub const DEBUGGER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Host at which the debugger's processes reach each other.
const LOOPBACK: &str = "127.0.0.1";

impl Limits {
    /// Lifts the limits that would end a process at a breakpoint, or keep a debugger from it: calls may take
    /// [`DEBUGGER_TIMEOUT`], there is one process, and its sandbox allows connections on loopback. A list of addresses cannot
    /// hold all public ones as well, so a sandbox with these allows loopback alone.
    pub fn lift_for_debugger(&mut self) {
        self.timeout = DEBUGGER_TIMEOUT;
        self.ask_timeout = self.ask_timeout.max(DEBUGGER_TIMEOUT);
        self.processes = 1;
        let Some(network) = self.sandbox.network_in_force() else {
            return;
        };
        let mut allowed = match network {
            SandboxNetwork::Only(addresses) => addresses,
            SandboxNetwork::None | SandboxNetwork::Public => Vec::new(),
        };
        allowed.push(SandboxAddress {
            host: LOOPBACK.to_owned(),
            port: None,
        });
        self.sandbox.network = Some(SandboxNetwork::Only(allowed));
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Sandbox, SandboxMode};
    use super::*;

    fn network_of(mode: SandboxMode, network: Option<SandboxNetwork>) -> Option<SandboxNetwork> {
        let mut limits = Limits {
            sandbox: Sandbox {
                network,
                ..Sandbox::of(mode)
            },
            processes: 4,
            ..Limits::default()
        };
        limits.lift_for_debugger();
        assert_eq!((limits.timeout, limits.processes), (DEBUGGER_TIMEOUT, 1));
        assert_eq!(limits.sandbox.mode, mode);
        limits.sandbox.network
    }

    #[test]
    fn a_sandbox_is_opened_for_loopback_and_nothing_else() {
        let only = |listed: &[&str]| {
            let parsed = listed.iter().map(|it| it.parse().unwrap());
            Some(SandboxNetwork::Only(parsed.collect()))
        };
        for mode in [SandboxMode::Off, SandboxMode::Basic] {
            assert_eq!(network_of(mode, None), None);
        }
        let loopback = only(&["127.0.0.1:*"]);
        assert_eq!(network_of(SandboxMode::Strict, None), loopback);
        for (before, after) in [
            (Some(SandboxNetwork::None), loopback.clone()),
            (Some(SandboxNetwork::Public), loopback),
            (only(&["db:5432"]), only(&["db:5432", "127.0.0.1:*"])),
        ] {
            assert_eq!(network_of(SandboxMode::Basic, before.clone()), after);
            assert_eq!(network_of(SandboxMode::Strict, before), after);
        }
    }
}
