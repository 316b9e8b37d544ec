//! Writing a long stream to a session of Pingora's: HTTP/2, where a connection carries other streams beside it.

use std::time::Duration;

use bytes::Bytes;
use pingora_core::protocols::http::ServerSession;
use pingora_timeout::fast_timeout::fast_timeout;

use super::writer::{Ending, Events};

/// Writes events until one side ends the stream.
///
/// Two things wake it: an event, or its end; and the client's reset of this stream or the end of its connection.
pub(super) async fn run<E: Events>(
    session: &mut ServerSession,
    events: &mut E,
    write_timeout: Duration,
) -> Ending {
    loop {
        let event = tokio::select! {
            biased;
            event = events.next() => event,
            idle = session.read_body_or_idle(true) => match idle {
                Ok(_) => continue,
                Err(_) => return Ending::ClientLeft,
            },
        };
        let written = match event {
            Some(event) => write(session, event, write_timeout).await,
            None => {
                return match fast_timeout(write_timeout, session.finish_body()).await {
                    Ok(Ok(())) => Ending::Complete,
                    Ok(Err(_)) => Ending::ClientLeft,
                    Err(_) => Ending::SlowReader,
                };
            }
        };
        if let Err(ending) = written {
            return ending;
        }
    }
}

async fn write(
    session: &mut ServerSession,
    event: Bytes,
    write_timeout: Duration,
) -> Result<(), Ending> {
    match fast_timeout(write_timeout, session.write_response_body(event, false)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Ending::ClientLeft),
        Err(_) => Err(Ending::SlowReader),
    }
}
