//! Restores streams of a session that was live in another process: their events are read from the store, and the missing
//! responses are replaced by errors.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc::RequestError;

use super::{EventLog, StreamKind};
use crate::stream::owned::{UNSTORED_MAX, begin_of};
use crate::stream::store::{EventKind, Replay, StoreError, StreamRef};
use crate::stream::{Stream, StreamOwner};

/// Text of the error that replaces the response to a call that ended with its process.
const LOST: &str = "the gateway process that ran the call has ended, or was cut off from the session store; the call may \
     have had effects and was not repeated";

impl EventLog {
    /// Adopts a session's newest general stream, for further server notifications, and deletes stored streams that are too old.
    ///
    /// # Errors
    ///
    /// [`StoreError`], if the store cannot be read.
    pub(crate) async fn restore(&self, session: &dyn StreamOwner) -> Result<(), StoreError> {
        let newest = session.streams().counts().newest_general();
        if let Some(number) = newest {
            let general = StreamKind::General;
            self.take_over(session, number, general).await?;
        }
        // In epoch 1 (the first adoption of the session) only the process that opened the session has stored streams, and that
        // process has kept to the maximum number.
        if let Some(store) = self.store.as_ref().filter(|_| session.epoch() > 1)
            && let Err(error) = store.trim(session.id()).await
        {
            tracing::warn!(%error, "old streams of a session stay in the store until it expires");
        }
        Ok(())
    }

    /// Adopts a stream of another process. Returns `None` if the store no longer has any event of it.
    pub(super) async fn take_over(
        &self,
        session: &dyn StreamOwner,
        number: u32,
        kind: StreamKind,
    ) -> Result<Option<Arc<Stream>>, StoreError> {
        let Some(store) = &self.store else {
            return Ok(None);
        };
        let stored = StreamRef {
            session: session.id(),
            number,
        };
        let replay = store.read(stored, self.ledger.bounds().events).await?;
        let newest = replay.events.iter().map(|event| event.sequence).max();
        let Some(newest) = newest else {
            return Ok(None);
        };
        let stored = newest.max(replay.dropped);
        let own = begin_of(session.epoch());
        let unstored = stored.saturating_add(UNSTORED_MAX).max(own);
        let share = self.ledger.share(session.principal());
        let readers = session.readers();
        let stream = Stream::restored(&self.keep_alive, kind, number, readers, share, &replay);
        stream.skip(unstored);
        let (stream, first) = session.streams().restore(kind, stream);
        if first && kind == StreamKind::Request {
            // The process that ran the calls of this stream has ended, so each missing response becomes an error.
            let error = CallError::new(CallErrorCode::WorkerUnavailable, LOST);
            let error = RequestError::Upstream(error);
            for id in unanswered(&replay) {
                let answer = error.body(Some(&id));
                self.append(session, &stream, &answer).await;
            }
            stream.finish();
        }
        session.streams().shrink(self.ledger.session_max(), &stream);
        self.ledger.enforce_total();
        Ok(Some(stream))
    }
}

/// Returns the ids of the requests whose responses are missing from the stream.
fn unanswered(replay: &Replay) -> Vec<String> {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        id: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Request<'a> {
        #[serde(borrow, rename = "method")]
        _method: &'a RawValue,
    }
    let mut owed = Vec::new();
    for event in &replay.events {
        match &event.kind {
            EventKind::Opened { owes } => owed.clone_from(owes),
            EventKind::Message(message) => {
                let asks = serde_json::from_str::<Request<'_>>(message).is_ok();
                let response = serde_json::from_str::<Response<'_>>(message);
                if let Some(response) = response.ok().filter(|_| !asks) {
                    owed.retain(|id| id != response.id.get());
                }
            }
        }
    }
    owed
}
