//! Publishes events, and has a separate stream that is never dropped: the events received on it are the published ones.
//!
//! A gateway may merge the notifications of two changes if the second comes before it has sent the first. So the next
//! event is published after the previous one has arrived on the publisher's own stream: then its position among all
//! events is fixed, even if other clients have not received it yet.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::json;
use tokio::time::timeout;

use super::client::{Had, Kind};
use super::socket::{Opened, Socket};
use crate::message::{Envelope, Expect, FIRST_ID};
use crate::servers::gateway::ANNOUNCING_TOOL;
use crate::session;
use crate::wire::{Connection, Target};

const LIMIT: Duration = Duration::from_secs(20);

pub(crate) struct Publisher {
    envelope: Envelope<'static>,
    connection: Connection,
    own: Socket,
    published: Vec<Had>,
}

impl Publisher {
    pub(crate) async fn open(envelope: Envelope<'static>) -> anyhow::Result<Self> {
        let mut connection = Connection::open(&Target::Http(envelope.to)).await?;
        let session = session::open_on(envelope, &mut connection).await?;
        let with_session = envelope.in_session(Some(&session));
        let own = match timeout(LIMIT, Socket::open(&with_session, None)).await?? {
            Opened::Stream(own) => own,
            Opened::Refused(answer) => bail!("the publisher's own stream: {answer}"),
        };
        Ok(Self {
            envelope,
            connection,
            own,
            published: Vec::new(),
        })
    }

    /// All events published so far.
    pub(crate) fn published(&self) -> &[Had] {
        &self.published
    }

    pub(crate) fn last(&self) -> Option<Had> {
        self.published.last().copied()
    }

    /// Publishes one event and waits until it has arrived on the publisher's own stream. Returns the time of sending.
    pub(crate) async fn publish(&mut self) -> anyhow::Result<Instant> {
        let (start, kind) = timeout(LIMIT, self.send()).await.context("publishing")??;
        let (published, own) = (&mut self.published, &mut self.own);
        let known = published.len();
        let arrives = async {
            while published.len() == known {
                let take = |event| published.extend(Had::of(&event));
                ensure!(own.read(take).await?, "the publisher's own stream ended");
            }
            anyhow::Ok(())
        };
        timeout(LIMIT, arrives)
            .await
            .context("the event never came to the publisher itself")??;
        let came = &published[known..];
        ensure!(
            came.len() == 1 && came[0].kind == kind,
            "published {kind:?}, and {came:?} came"
        );
        Ok(start)
    }

    async fn send(&mut self) -> anyhow::Result<(Instant, Kind)> {
        let place = self.published.len();
        let (id, kind) = (FIRST_ID + place as u64, Kind::in_turn(place));
        let body = json!({
            "jsonrpc": "2.0", "id": id, "method": "tools/call",
            "params": {"name": ANNOUNCING_TOOL, "arguments": {"what": kind.name()}},
        });
        let request = self.envelope.post(&body.to_string());
        let start = Instant::now();
        let answer = self.connection.ask(&request).await?;
        if let Some(fault) = Expect::ANNOUNCED.mismatch(&answer, id) {
            bail!("{ANNOUNCING_TOOL}: {fault}");
        }
        Ok((start, kind))
    }
}
