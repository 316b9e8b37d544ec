//! Writes a long stream to an HTTP/1 connection that carries only this stream, with or without TLS.
//!
//! Tens of thousands of streams may be idle, so each must use little memory: there is no buffer, no timer while nothing is
//! written, and one vectored write per event. Events are already framed as SSE; only HTTP's own framing is added here.

use std::future::poll_fn;
use std::io::{self, IoSlice, Write};
use std::pin::{Pin, pin};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::metrics::Ending;
use crate::unread::{WriteAborted, WriteLimits};

/// The empty chunk that ends a body in HTTP's chunked coding.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

/// The source of a stream's events.
pub(super) trait Events: Send {
    /// Waits for the next event; `None` at the end. The future can be dropped without losing an event.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;

    /// Returns true if the events ended with a failure. The client's connection must then be closed without a regular end.
    fn are_broken(&self) -> bool {
        false
    }
}

/// The way in which the end of a body is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Each event is sent as a chunk, and an empty chunk ends the body.
    Chunked,
    /// The body ends where the connection ends. Used for HTTP/1.0.
    UntilClose,
}

impl From<io::Error> for Ending {
    /// Converts the error of a write. Every such error means that the client has disconnected.
    fn from(_: io::Error) -> Self {
        Self::ClientLeft
    }
}

/// Writes events until the service or the client ends the stream.
///
/// Waits for one of two events:
/// - the next event of the stream, or its end
/// - incoming bytes or the end of the connection: both mean that the client has ended the stream
pub(super) async fn run<C, E>(
    connection: &mut C,
    events: &mut E,
    framing: Framing,
    limits: &WriteLimits,
) -> Ending
where
    C: AsyncRead + AsyncWrite + Unpin,
    E: Events,
{
    loop {
        let event = tokio::select! {
            biased;
            event = events.next() => event,
            () = readable(connection) => return Ending::ClientLeft,
        };
        let written = match event {
            // Nothing is written for an empty event, because an empty chunk would end the body.
            Some(event) if event.is_empty() => Ok(()),
            Some(event) => write(connection, &event, framing, limits).await,
            None if events.are_broken() => return Ending::ServerLeft,
            None => return end(connection, framing, limits).await,
        };
        if let Err(ending) = written {
            return ending;
        }
    }
}

/// Resolves when the client closes its sending direction or sends a byte.
async fn readable<C: AsyncRead + Unpin>(connection: &mut C) {
    poll_fn(|context| {
        let mut bytes = [0; 16];
        let mut buffer = ReadBuf::new(&mut bytes);
        Pin::new(&mut *connection)
            .poll_read(context, &mut buffer)
            .map(drop)
    })
    .await;
}

async fn write<C: AsyncWrite + Unpin>(
    connection: &mut C,
    event: &[u8],
    framing: Framing,
    limits: &WriteLimits,
) -> Result<(), Ending> {
    if framing == Framing::UntilClose {
        return write_all(connection, &mut [IoSlice::new(event)], event.len(), limits).await;
    }
    // The buffer is large enough for the digits of the largest length and the line end.
    let mut line = [0; 2 * size_of::<usize>() + 2];
    let mut free = &mut line[..];
    write!(free, "{:x}\r\n", event.len())?;
    let unused = free.len();
    let line = &line[..line.len() - unused];
    // All three slices are written in one system call, and with TLS in one record.
    let mut parts = [line, event, b"\r\n"].map(IoSlice::new);
    write_all(connection, &mut parts, event.len(), limits).await
}

/// Writes all slices of an event of `size` bytes. Each write has the full time limit, so that the limit ends streams of clients
/// that do not read, but not of clients that read slowly.
async fn write_all<C: AsyncWrite + Unpin>(
    connection: &mut C,
    mut parts: &mut [IoSlice<'_>],
    size: usize,
    limits: &WriteLimits,
) -> Result<(), Ending> {
    while !parts.is_empty() {
        let written = within(limits, size, connection.write_vectored(parts)).await?;
        if written == 0 {
            return Err(Ending::ClientLeft);
        }
        IoSlice::advance_slices(&mut parts, written);
    }
    within(limits, size, connection.flush()).await
}

async fn within<T>(
    limits: &WriteLimits,
    size: usize,
    step: impl Future<Output = io::Result<T>>,
) -> Result<T, Ending> {
    match limits.write(size, pin!(step)).await {
        Ok(done) => Ok(done?),
        Err(WriteAborted) => Err(Ending::SlowReader),
    }
}

/// Writes the end of the body and closes the sending direction of the connection.
async fn end<C: AsyncWrite + Unpin>(
    connection: &mut C,
    framing: Framing,
    limits: &WriteLimits,
) -> Ending {
    let ended = async {
        if framing == Framing::Chunked {
            write_all(connection, &mut [IoSlice::new(LAST_CHUNK)], 0, limits).await?;
        }
        within(limits, 0, connection.shutdown()).await
    };
    match ended.await {
        Ok(()) => Ending::Complete,
        Err(ending) => ending,
    }
}

#[cfg(test)]
mod tests;
