//! One connection of an open loop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::time::timeout;

use super::Shared;
use crate::message::{Expect, Request};
use crate::wire::{Connection, Target};

/// Time limit of one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A client that sends due requests, one at a time, and connects again when necessary.
pub(super) struct Client {
    connection: Option<Connection>,
    target: Target,
    request: Request,
    expect: Expect,
}

impl Client {
    /// Opens the connection.
    ///
    /// # Errors
    ///
    /// When the connection cannot be opened.
    pub(super) async fn open(
        target: Target,
        request: Request,
        expect: Expect,
    ) -> anyhow::Result<Self> {
        let connection = Connection::open(&target).await.context("connecting")?;
        Ok(Self {
            connection: Some(connection),
            target,
            request,
            expect,
        })
    }

    /// Sends due requests until the future is dropped.
    pub(super) async fn drive(mut self, shared: Arc<Shared>) {
        loop {
            let due = shared.take().await;
            let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
            let sent = Instant::now();
            let outcome = timeout(ANSWER_LIMIT, self.ask(id))
                .await
                .with_context(|| format!("no answer within {ANSWER_LIMIT:?}"))
                .flatten();
            if outcome.is_err() {
                self.connection = None;
            }
            if let Some(tally) = due.tally {
                tally.answered(due.at, sent, outcome);
            }
        }
    }

    /// Sends a request and checks the answer; the error describes a wrong or missing answer.
    async fn ask(&mut self, id: u64) -> anyhow::Result<()> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::open(&self.target).await.context("connecting")?,
        };
        let answer = connection.ask(self.request.with_id(id)).await?;
        let fault = self.expect.mismatch(&answer, id);
        if !answer.closes {
            self.connection = Some(connection);
        }
        match fault {
            Some(fault) => Err(anyhow::Error::msg(fault)),
            None => Ok(()),
        }
    }
}
