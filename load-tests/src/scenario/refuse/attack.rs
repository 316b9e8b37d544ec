//! A load at full speed beside another, from a thread of its own.
//!
//! On the thread of the good calls its answers would stand in line with theirs, and the client would measure itself.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::oneshot;

use super::Kind;
use crate::load::{self, Faults, Load, Sample};
use crate::message::{Envelope, Expect};
use crate::options::Options;
use crate::servers::gateway::{NAMESPACE, TOKEN};
use crate::wire::Target;

type Outcome = anyhow::Result<(anyhow::Result<Sample>, Faults)>;

/// A load that runs until its time is over. Its thread ends with the process at the latest.
pub(super) struct Attack(oneshot::Receiver<Outcome>);

impl Attack {
    pub(super) fn start(load: Load, warm_up: Duration, measured: Duration) -> anyhow::Result<Self> {
        let (tell, told) = oneshot::channel();
        let load = Load {
            warm_up,
            measured,
            ..load
        };
        std::thread::Builder::new()
            .name("attack".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let outcome = runtime
                    .context("the attacker's runtime")
                    .and_then(|runtime| runtime.block_on(load::tolerant(load)));
                // Nobody wants to know where the run was given up.
                let _ = tell.send(outcome);
            })
            .context("a thread for the attack")?;
        Ok(Self(told))
    }

    /// When its time is over.
    pub(super) async fn end(self) -> Outcome {
        self.0.await.context("the attack's thread ended early")?
    }
}

/// Nothing but one kind of refusal on all connections.
pub(super) fn load(options: &Options, to: SocketAddr, gateway: u32, kind: Kind) -> Load {
    Load {
        target: Target::Http(to),
        requests: vec![kind.request(to); options.connections],
        expect: kind.expect(),
        warm_up: Duration::ZERO,
        measured: Duration::ZERO,
        front: vec![gateway],
        workers: Vec::new(),
    }
}

/// As much, at a server that has nothing to do with the good calls.
pub(super) fn at_nginx(options: &Options, to: SocketAddr, processes: Vec<u32>) -> Load {
    let envelope = Envelope {
        to,
        token: TOKEN,
        path: Envelope::PATH,
        namespace: NAMESPACE,
        session: None,
    };
    Load {
        target: Target::Http(to),
        requests: vec![envelope.ping(); options.connections],
        expect: Expect::FIXED,
        warm_up: Duration::ZERO,
        measured: Duration::ZERO,
        front: processes,
        workers: Vec::new(),
    }
}
