//! Opening a process: from pipes to its first possible call.

use std::time::Duration;

use tokio::time::Instant;
use tooldock_workers::error::CallError;

use super::Opened;
use crate::protocol::ClientIdentity;
use crate::protocol::{Era, EraSupport};
use crate::stdio::handshake::{self, Probed, ProbedEra};
use crate::stdio::link::Link;

/// What an attempt to open a process led to.
pub(super) enum Outcome {
    /// It takes calls.
    Opened { opened: Opened, server: EraSupport },
    /// It is spoilt for the era that is wanted, a new one is not: some servers pin a process to what it heard first,
    /// some end on a question they do not know.
    TryAnother { server: EraSupport },
}

/// How long a probe and all of it may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) probe: Duration,
    pub(super) until: Instant,
}

/// Opens a process whose server speaks what is given, or finds that out; `heard` is told of that as by [`handshake::probe`].
pub(super) async fn open(
    link: &Link,
    identity: &ClientIdentity,
    server: Option<EraSupport>,
    wanted: Era,
    limits: Limits,
    heard: &(dyn Fn(bool) + Send + Sync),
) -> Result<Outcome, CallError> {
    let left = limits.until.saturating_duration_since(Instant::now());
    let Some(server) = server else {
        return match handshake::probe(link, identity, limits.probe, left, heard).await {
            Ok(probed) => Ok(judge(probed, wanted)),
            Err(failed) if failed.ended_by_probe => Ok(Outcome::TryAnother {
                server: EraSupport::Legacy,
            }),
            Err(failed) => Err(failed.error),
        };
    };
    let (server, left) = match is_trial(server, wanted) {
        true => (EraSupport::Dual, left.min(limits.probe)),
        false => (server, left),
    };
    let opened = match server.opened_for(wanted) {
        Era::Legacy => {
            let params = identity.initialize_params();
            Opened::Legacy(handshake::initialize(link, &params, left).await?)
        }
        Era::Modern => Opened::Modern(handshake::discover(link, identity, left).await?),
    };
    Ok(Outcome::Opened { opened, server })
}

/// Whether opening finds out that the server takes a handshake, too, or does not.
pub(super) fn is_trial(server: EraSupport, wanted: Era) -> bool {
    server == EraSupport::ModernAtLeast && wanted == Era::Legacy
}

fn judge(probed: Probed, wanted: Era) -> Outcome {
    let server = EraSupport::from(&probed.facts.era);
    let opened = match (probed.initialized, probed.facts.era) {
        (Some(initialized), _) => Opened::Legacy(initialized),
        (None, ProbedEra::Modern { discover } | ProbedEra::Dual { discover }) => {
            Opened::Modern(discover)
        }
        (None, ProbedEra::Legacy { version, result }) => {
            Opened::Legacy(handshake::Initialized { version, result })
        }
    };
    if opened.era() == server.opened_for(wanted) {
        Outcome::Opened { opened, server }
    } else {
        Outcome::TryAnother { server }
    }
}

/// For the log: what a server speaks.
pub(super) fn describe(opened: &Opened) -> &'static str {
    match opened {
        Opened::Legacy(initialized) => initialized.version.as_str(),
        Opened::Modern(_) => crate::protocol::MODERN,
    }
}
