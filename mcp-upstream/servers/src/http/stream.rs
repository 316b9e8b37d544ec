//! The event stream that answers a request. Its messages are passed to the link as they arrive, up to the response.
//!
//! A stream that ends before the response is resumed if an event had an id (version 2025-11-25 permits servers to close the
//! connection and let the client poll). Without an id it cannot be resumed: the call fails, although the server may have run it.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::answer::{RequestFailure, error_of_request};
use super::events::{Data, EventReader, EventsEnd, SseEvent};
use super::media::{MediaKind, media_kind};
use super::port::{BodyError, ResponseBody};
use super::session::{ClientHeaders, Session};

/// Pause before a stream is resumed, unless the server sends another value.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum pause before a resumption that is accepted from a server.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Maximum number of resumptions in a row without a new event.
const TRIES: usize = 5;
/// Time limit for reading the remainder of a stream after the response, which is done so that the connection can be reused.
const AFTER_RESPONSE: Duration = Duration::from_secs(1);

/// Position from which a stream is resumed, with the pause in milliseconds that the server has set.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    pub(super) last_id: Option<String>,
    pub(super) retry: Option<u64>,
}

impl Cursor {
    pub(super) fn note(&mut self, event: &SseEvent) {
        if let Some(id) = &event.id {
            self.last_id = (!id.is_empty()).then(|| id.clone());
        }
        self.retry = event.retry.or(self.retry);
    }

    pub(super) fn pause(&self) -> Duration {
        self.retry
            .map_or(RETRY, |retry| Duration::from_millis(retry).min(RETRY_MAX))
    }
}

/// Reads the stream of a request to its response.
pub(super) async fn read(
    session: &Session,
    id: u64,
    mut events: EventReader,
    of_client: &ClientHeaders,
) -> Result<(), RequestFailure> {
    let mut cursor = Cursor::default();
    let mut tries = 0;
    loop {
        let end = match events.next().await {
            Ok(event) => {
                tries = 0;
                cursor.note(&event);
                take(session, Some(id), event);
                if !session.incoming.is_awaited(id) {
                    let _ = timeout(AFTER_RESPONSE, rest(session, &mut events)).await;
                    return Ok(());
                }
                continue;
            }
            Err(end) => end,
        };
        match end {
            EventsEnd::Endless => return Err(session.broken("sent an event without an end")),
            EventsEnd::Undecodable(error) => return Err(session.cut(error)),
            EventsEnd::Complete | EventsEnd::Cut => {}
        }
        let resumable = session
            .is_legacy()
            .then_some(cursor.last_id.as_deref())
            .flatten();
        let Some(last) = resumable else {
            return Err(match end {
                EventsEnd::Complete => {
                    session.broken("ended the stream of a request without answering it")
                }
                EventsEnd::Cut | EventsEnd::Endless | EventsEnd::Undecodable(_) => {
                    session.cut(BodyError::Cut)
                }
            });
        };
        tries += 1;
        if tries > TRIES {
            return Err(session.broken("ended the stream of a request again and again"));
        }
        sleep(cursor.pause()).await;
        match session.get(Some(last), false, of_client).await {
            Ok(response)
                if response.status.is_success()
                    && media_kind(&response.headers) == MediaKind::Events =>
            {
                events = session.events(response);
            }
            Ok(response) if response.status.is_success() => {
                return Err(session.broken("does not resume the stream of a request"));
            }
            Ok(response) => {
                // The server may have run the request, so this failure is not marked as an unsent request.
                let refused = session.refused(response.status, &response.headers);
                return Err(refused);
            }
            Err(_) if tries < TRIES => events = EventReader::new(Box::new(EmptyBody), |_| true),
            Err(error) => {
                let failed = session.not_sent(&error);
                // The request itself was sent; only its resumption failed.
                return Err(RequestFailure {
                    is_unsent: false,
                    ..failed
                });
            }
        }
    }
}

/// Reads the remainder of a stream after the response.
async fn rest(session: &Session, events: &mut EventReader) {
    while let Ok(event) = events.next().await {
        take(session, None, event);
    }
}

/// Passes the message of an event to the link. If the event is too long to be read, request `id` fails, since the event may be
/// its response.
pub(super) fn take(session: &Session, id: Option<u64>, event: SseEvent) {
    // Messages have the event name "message" or none. No known protocol version uses other names.
    let is_message = event.name.as_deref().is_none_or(|name| name == "message");
    match event.data {
        Data::Whole(data) if is_message && !data.is_empty() => {
            let error = id.and_then(|id| error_of_request(&data, id));
            session.incoming.message(error.unwrap_or(data));
        }
        Data::Whole(_) => {}
        Data::TooLong(size) => match id {
            Some(id) => session.incoming.too_large(id, size),
            None => {
                tracing::warn!(
                    namespace = %session.server.name,
                    size,
                    "the server of namespace {} sent an event that is too large",
                    session.server.name
                );
            }
        },
    }
}

/// Empty body in place of a resumed stream whose request failed. Its end leads to the next attempt.
struct EmptyBody;

#[async_trait::async_trait]
impl ResponseBody for EmptyBody {
    async fn chunk(&mut self) -> Result<Option<bytes::Bytes>, BodyError> {
        Err(BodyError::Cut)
    }
}
