//! Opening a process: from the connected pipes until it accepts its first call.

use std::time::Duration;

use tokio::time::Instant;
use tooldock_base::error::CallError;
use tooldock_protocol::version::{ClientIdentity, Era, EraSupport, MODERN, ServerInfo};

use crate::handshake::{self, InitializeReply, ProbeOutcome, ProbedEra};
use crate::link::Link;

/// Outcome of an attempt to open a process.
pub(super) enum OpenOutcome {
    /// The process was opened and accepts calls.
    Opened {
        opened: ServerInfo,
        /// The protocol version with which the process was opened, for the log.
        version: &'static str,
        server: EraSupport,
    },
    /// The process cannot be used in the wanted era any more, but a new process may be. Some servers bind a process to the era of
    /// its first request, and some end when they get an unknown request.
    TryAnother { server: EraSupport },
}

/// Time limits of the probe and of the complete opening.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpeningLimits {
    pub(super) probe: Duration,
    pub(super) until: Instant,
}

/// Opens a process. If the server's eras are not known, they are probed; `heard` is then called as by [`handshake::probe`].
pub(super) async fn open(
    link: &Link,
    identity: &ClientIdentity,
    server: Option<EraSupport>,
    wanted: Era,
    limits: OpeningLimits,
    heard: &(dyn Fn(bool) + Send + Sync),
) -> Result<OpenOutcome, CallError> {
    let left = limits.until.saturating_duration_since(Instant::now());
    let Some(server) = server else {
        return match handshake::probe(link, identity, limits.probe, left, heard).await {
            Ok(probed) => Ok(judge(probed, wanted)),
            Err(failed) if failed.ended_by_probe => Ok(OpenOutcome::TryAnother {
                server: EraSupport::Legacy,
            }),
            Err(failed) => Err(failed.error),
        };
    };
    let (server, left) = match is_trial(server, wanted) {
        true => (EraSupport::Dual, left.min(limits.probe)),
        false => (server, left),
    };
    let (opened, version) = match server.opened_for(wanted) {
        Era::Legacy => {
            let params = identity.initialize_params();
            legacy(handshake::initialize(link, &params, left).await?)
        }
        Era::Modern => {
            let discover = handshake::discover(link, identity, left).await?;
            (ServerInfo::Modern(discover), MODERN)
        }
    };
    Ok(OpenOutcome::Opened {
        opened,
        version,
        server,
    })
}

/// Returns true if opening a process in this era tests whether the server accepts `initialize`.
pub(super) fn is_trial(server: EraSupport, wanted: Era) -> bool {
    server == EraSupport::ModernAtLeast && wanted == Era::Legacy
}

fn judge(probed: ProbeOutcome, wanted: Era) -> OpenOutcome {
    let server = EraSupport::from(&probed.facts.era);
    let (opened, version) = match (probed.initialized, probed.facts.era) {
        (Some(initialized), _) => legacy(initialized),
        (None, ProbedEra::Modern { discover } | ProbedEra::Dual { discover }) => {
            (ServerInfo::Modern(discover), MODERN)
        }
        (None, ProbedEra::Legacy { version, result }) => {
            legacy(InitializeReply { version, result })
        }
    };
    if opened.era() == server.opened_for(wanted) {
        OpenOutcome::Opened {
            opened,
            version,
            server,
        }
    } else {
        OpenOutcome::TryAnother { server }
    }
}

/// The server's description of itself, and the protocol version, from its response to `initialize`.
fn legacy(initialized: InitializeReply) -> (ServerInfo, &'static str) {
    let version = initialized.version.as_str();
    (ServerInfo::Legacy(initialized.result), version)
}
