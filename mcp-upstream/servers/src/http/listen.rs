//! The general stream of a session at a backend: the server's messages that belong to no request. Opened by GET, and reopened
//! until the session ends. A server without such a stream responds with 405.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::sleep;

use super::media::{MediaKind, media_kind};
use super::session::Session;
use super::stream::{Cursor, take};

/// Maximum pause between two attempts to open the stream. The pause doubles after each attempt, until an event arrives.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Returns true if the response to the first GET means that the server has no such stream for the gateway. The GET is repeated
/// only after a response that reports a busy or failed server.
fn offers_none(status: StatusCode) -> bool {
    let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS];
    !status.is_server_error() && !later.contains(&status)
}

/// Reads the stream until the session ends, or until the server shows that it has no general stream.
pub(super) async fn run(session: Arc<Session>) {
    session.opened().await;
    let mut cursor = Cursor::default();
    let mut failures = 0;
    let mut had_one = false;
    while !session.is_lost() {
        match session.get(cursor.last_id.as_deref(), true, &None).await {
            Ok(response)
                if response.status.is_success()
                    && media_kind(&response.headers) == MediaKind::Events =>
            {
                had_one = true;
                let mut events = session.events(response);
                while let Ok(event) = events.next().await {
                    failures = 0;
                    cursor.note(&event);
                    take(&session, None, event);
                }
            }
            // The server had a stream before, so 404 means that the server does not know the session.
            Ok(response) if had_one && response.status == StatusCode::NOT_FOUND => {
                session.lose();
                return;
            }
            Ok(response) if !had_one && offers_none(response.status) => return,
            Ok(_) => failures += 1,
            Err(_) => {
                failures += 1;
                if !session.backend().is_healthy() {
                    session.lose();
                    return;
                }
            }
        }
        let pause = cursor.pause().saturating_mul(1 << failures.min(6));
        sleep(pause.min(PAUSE_MAX.max(cursor.pause()))).await;
        failures += 1;
    }
}
