//! A load at full speed, concurrent to another load, on a separate thread.
//!
//! On the thread of the good calls, responses to the attack would delay theirs, and the client would measure itself.

use std::net::SocketAddr;

use anyhow::Context;
use tokio::sync::oneshot;

use super::Kind;
use crate::load::{self, Faults, Load, Sample, Window};
use crate::options::Options;
use crate::wire::Target;

type Outcome = anyhow::Result<(anyhow::Result<Sample>, Faults)>;

/// A load that runs until its time is over. Its thread ends with the process at the latest.
pub(super) struct Attack(oneshot::Receiver<Outcome>);

impl Attack {
    pub(super) fn start(load: Load) -> anyhow::Result<Self> {
        let (tell, told) = oneshot::channel();
        std::thread::Builder::new()
            .name("attack".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build();
                let outcome = runtime
                    .context("the attacker's runtime")
                    .and_then(|runtime| runtime.block_on(load::tolerant(load)));
                // An error means that the run was aborted.
                let _ = tell.send(outcome);
            })
            .context("a thread for the attack")?;
        Ok(Self(told))
    }

    /// Waits until the time of the load is over; returns its outcome.
    pub(super) async fn end(self) -> Outcome {
        self.0.await.context("the attack's thread ended early")?
    }
}

/// A load of one kind of refusal on all connections.
pub(super) fn load(options: &Options, to: SocketAddr, gateway: u32, kind: Kind) -> Load {
    Load {
        target: Target::Http(to),
        requests: vec![kind.request(to); options.connections],
        expect: kind.expect(),
        window: Window::by(options, vec![gateway]),
    }
}
