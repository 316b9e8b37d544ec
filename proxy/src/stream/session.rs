//! Writes a long stream to a session of Pingora. Used for HTTP/2, whose connection also transports other streams.

use std::pin::pin;

use bytes::Bytes;
use pingora_core::protocols::http::ServerSession;

use super::writer::Events;
use crate::metrics::Ending;
use crate::respond::WRITE_STEP;
use crate::unread::{WriteAborted, WriteLimits};

/// Writes events until the service or the client ends the stream.
///
/// Waits for one of two events:
/// - the next event of the stream, or its end
/// - the client's reset of the stream, or the end of its connection
pub(super) async fn run<E: Events>(
    session: &mut ServerSession,
    events: &mut E,
    limits: &WriteLimits,
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
            Some(event) => write(session, event, limits).await,
            None if events.are_broken() => return Ending::ServerLeft,
            None => {
                return match limits.write(0, pin!(session.finish_body())).await {
                    Ok(Ok(_)) => Ending::Complete,
                    Ok(Err(_)) => Ending::ClientLeft,
                    Err(WriteAborted) => Ending::SlowReader,
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
    mut event: Bytes,
    limits: &WriteLimits,
) -> Result<(), Ending> {
    while !event.is_empty() {
        let step = event.split_to(event.len().min(WRITE_STEP));
        let left = step.len() + event.len();
        match limits
            .write(left, pin!(session.write_response_body(step, false)))
            .await
        {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(Ending::ClientLeft),
            Err(WriteAborted) => return Err(Ending::SlowReader),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    struct One(Option<Bytes>);

    impl Events for One {
        fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send {
            std::future::ready(self.0.take())
        }
    }

    #[tokio::test]
    async fn a_reader_that_takes_longer_for_one_event_than_a_write_may_gets_it_whole() {
        const LIMIT: Duration = Duration::from_secs(1);
        const PAUSE: Duration = Duration::from_millis(100);
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        client
            .write_all(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
            .await
            .expect("sent");
        let mut session = ServerSession::new_http1(Box::new(server));
        assert!(session.read_request().await.expect("a request"));
        let head = pingora_http::ResponseHeader::build(200, None).expect("a head");
        session
            .write_response_header(Box::new(head))
            .await
            .expect("written");
        let event = Bytes::from(vec![b'x'; 16 * 64 * 1024]);
        let mut events = One(Some(event.clone()));
        let limits = WriteLimits {
            timeout: LIMIT,
            answers: None,
        };
        let writing = async {
            let ending = run(&mut session, &mut events, &limits).await;
            drop(session);
            ending
        };
        let reading = async {
            let mut taken = 0;
            let mut buffer = vec![0; 64 * 1024];
            while let Ok(read @ 1..) = client.read(&mut buffer).await {
                taken += buffer[..read].iter().filter(|byte| **byte == b'x').count();
                tokio::time::sleep(PAUSE).await;
            }
            taken
        };
        let (ending, taken) = tokio::join!(writing, reading);
        assert_eq!((ending, taken), (Ending::Complete, event.len()));
    }
}
