//! Sessions that are opened, used and closed, and some that are abandoned.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::scene::{ECHO, Scene};
use crate::message::{Envelope, Expect};
use crate::servers::gateway::NAMESPACE;
use crate::session;
use crate::wire::{Connection, Target, exchange};

const PAUSE: Duration = Duration::from_millis(50);
const LIMIT: Duration = Duration::from_secs(20);
const NAME: &str = "sessions";
/// One in this many sessions is abandoned, and has to expire.
const ABANDONED: u64 = 10;

pub(super) fn spawn(clients: &mut JoinSet<()>, scene: &Arc<Scene>) {
    for namespace in [NAMESPACE, ECHO] {
        clients.spawn(come_and_go(Arc::clone(scene), namespace));
    }
}

async fn come_and_go(scene: Arc<Scene>, namespace: &'static str) {
    while scene.goes_on_after(PAUSE).await {
        let id = scene.next_id();
        let abandoned = id.is_multiple_of(ABANDONED);
        let visit = timeout(LIMIT, visit(scene.envelope(namespace), id, abandoned));
        match visit.await.context("no answer in time").flatten() {
            Ok(()) if abandoned => scene.books().left(NAME),
            outcome => scene.books().outcome(NAME, outcome.context(namespace)),
        }
    }
}

/// Opens a session, uses it and closes it. The gateway answers all of these requests itself, whatever happens to a
/// worker.
async fn visit(envelope: Envelope<'static>, id: u64, abandoned: bool) -> anyhow::Result<()> {
    let mut connection = Connection::open(&Target::Http(envelope.to)).await?;
    let session = session::open_on(envelope, &mut connection).await?;
    let envelope = envelope.in_session(Some(&session));
    let mut ping = envelope.ping();
    let answer = connection.ask(ping.with_id(id)).await?;
    let fault = Expect::PONG.mismatch(&answer, id);
    ensure!(fault.is_none(), "ping: {}", fault.unwrap_or_default());
    if !abandoned {
        let answer = connection.ask(&envelope.delete()).await?;
        answer.has_status(204, "DELETE")?;
        let answer = connection.ask(ping.with_id(id)).await?;
        answer.has_status(404, "ping in a closed session")?;
    }
    Ok(())
}

/// Closes the session of a client that ends.
pub(super) async fn close(scene: &Scene, namespace: &'static str, session: &str) {
    let envelope = scene.envelope(namespace).in_session(Some(session));
    let wrong = match exchange(envelope.to, &envelope.delete(), LIMIT).await {
        Ok((204, ..)) => return,
        Ok((status, ..)) => format!("DELETE answered {status}"),
        Err(error) => format!("DELETE: {error:#}"),
    };
    scene.books().wrong(NAME, wrong);
}
