//! Lines that wait to be sent to a client. Their number and their size are limited, and one task writes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;

use crate::jsonrpc::splice;

/// Maximum number of lines that wait to be written to a client; further senders wait.
const LINES_MAX: usize = 256;
/// Maximum size of the lines that wait to be written to a client, in bytes. A single line may be larger.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// Sender of lines to a client. Cheap to clone; the writer ends when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Outbox {
    lines: mpsc::Sender<Outgoing>,
    room: Arc<Semaphore>,
}

/// A line with its newline, and its share of the limit on waiting bytes, which is freed when the line has been written.
pub(super) struct Outgoing {
    line: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl Outbox {
    /// Creates an outbox, with the receiver from which the writer takes the lines.
    pub(super) fn new() -> (Self, mpsc::Receiver<Outgoing>) {
        let (lines, receiver) = mpsc::channel(LINES_MAX);
        let room = Arc::new(Semaphore::new(BYTES_MAX));
        (Self { lines, room }, receiver)
    }

    /// Queues a message, and waits until the limits allow it. The message is dropped if the writer has ended.
    pub(super) async fn send(&self, message: Bytes) {
        let mut line = Vec::with_capacity(message.len() + 1);
        line.extend_from_slice(&message);
        drop(message);
        splice::on_one_line(&mut line);
        line.push(b'\n');
        let share = u32::try_from(line.len().min(BYTES_MAX)).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(share).await else {
            return;
        };
        let _ = self.lines.send(Outgoing { line, _room: room }).await;
    }

    /// Waits until the writer has ended.
    pub(super) async fn closed(&self) {
        self.lines.closed().await;
    }
}

/// Writes the lines until the last sender is dropped, the client disconnects, or writing one line took longer than `patience`.
/// Each line is written separately, since some clients lose a progress notification if they read it together with the response
/// that follows.
pub(super) async fn write(
    mut lines: mpsc::Receiver<Outgoing>,
    mut output: impl AsyncWrite + Unpin,
    patience: Option<Duration>,
) {
    while let Some(outgoing) = lines.recv().await {
        let write = async {
            output.write_all(&outgoing.line).await?;
            output.flush().await
        };
        let written = match patience {
            None => write.await,
            Some(patience) => timeout(patience, write)
                .await
                .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())),
        };
        if let Err(error) = written {
            tracing::debug!(%error, "the client reads no more");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[tokio::test]
    async fn what_waits_is_bounded_in_bytes_and_in_lines_and_one_long_line_fits() {
        let (outbox, mut lines) = Outbox::new();
        outbox.send(Bytes::from(vec![b'x'; 2 * BYTES_MAX])).await;
        assert!(
            outbox
                .send(Bytes::from_static(b"{}"))
                .now_or_never()
                .is_none()
        );
        drop(lines.recv().await.expect("the long line"));
        for _ in 0..LINES_MAX {
            outbox.send(Bytes::from_static(b"{}")).await;
        }
        assert!(
            outbox
                .send(Bytes::from_static(b"{}"))
                .now_or_never()
                .is_none()
        );
    }

    #[tokio::test]
    async fn a_message_is_one_line_however_it_is_laid_out() {
        let (outbox, lines) = Outbox::new();
        outbox.send(Bytes::from_static(b"{\n  \"a\": 1\r\n}")).await;
        outbox.send(Bytes::from_static(b"{}")).await;
        drop(outbox);
        let (mut reader, output) = tokio::io::duplex(64);
        write(lines, output, None).await;
        let mut text = String::new();
        reader.read_to_string(&mut text).await.expect("text");
        assert_eq!(text, "{   \"a\": 1  }\n{}\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_a_line_too_slowly_closes_the_outbox() {
        let (outbox, lines) = Outbox::new();
        let (_reader, output) = tokio::io::duplex(1);
        outbox.send(Bytes::from_static(b"{}")).await;
        write(lines, output, Some(Duration::from_secs(30))).await;
        outbox.closed().await;
    }

    #[tokio::test]
    async fn a_client_that_reads_no_more_closes_the_outbox() {
        let (outbox, lines) = Outbox::new();
        let (reader, output) = tokio::io::duplex(1);
        drop(reader);
        outbox.send(Bytes::from_static(b"{}")).await;
        write(lines, output, None).await;
        outbox.closed().await;
    }
}
