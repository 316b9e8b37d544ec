//! The bytes that arrive at the other end of a socket pair, and the end of a stream.

use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

struct Channel(mpsc::Receiver<Bytes>);

impl Events for Channel {
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send {
        self.0.recv()
    }
}

/// A stream over a real socket: the client's end, where events go in, and how it ended.
async fn over_tcp(
    framing: Framing,
    limit: Duration,
) -> (TcpStream, mpsc::Sender<Bytes>, JoinHandle<Ending>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (mut connection, _) = accepted.expect("accepted");
    let (sender, receiver) = mpsc::channel(16);
    let running = tokio::spawn(async move {
        let limits = WriteLimits {
            timeout: limit,
            answers: None,
        };
        let ending = run(&mut connection, &mut Channel(receiver), framing, &limits).await;
        // As the task of a stream does: the connection goes with it.
        drop(connection);
        ending
    });
    (client.expect("connected"), sender, running)
}

async fn rest(mut client: impl AsyncReadExt + Unpin) -> String {
    let mut text = String::new();
    client.read_to_string(&mut text).await.expect("an end");
    text
}

#[tokio::test]
async fn each_event_is_a_chunk_and_the_end_is_said() {
    let (client, events, running) = over_tcp(Framing::Chunked, LIMIT).await;
    let long = format!("data: {}\n\n", "x".repeat(300));
    for event in ["data: 1\n\n", "", &long] {
        events.send(event.to_owned().into()).await.expect("taken");
    }
    drop(events);
    let expected = format!("9\r\ndata: 1\n\n\r\n134\r\n{long}\r\n0\r\n\r\n");
    assert_eq!(rest(client).await, expected);
    assert_eq!(running.await.expect("no panic"), Ending::Complete);
}

#[tokio::test]
async fn an_event_arrives_before_the_next_is_there() {
    let (mut client, events, _running) = over_tcp(Framing::Chunked, LIMIT).await;
    for (event, expected) in [("a", "1\r\na\r\n"), ("bc", "2\r\nbc\r\n")] {
        events.send(event.into()).await.expect("taken");
        let mut read = vec![0; expected.len()];
        client.read_exact(&mut read).await.expect("the chunk");
        assert_eq!(read, expected.as_bytes());
    }
}

#[tokio::test]
async fn http_1_0_gets_the_bytes_and_the_end_of_the_connection() {
    let (client, events, running) = over_tcp(Framing::UntilClose, LIMIT).await;
    events.send("data: 1\n\n".into()).await.expect("taken");
    drop(events);
    assert_eq!(rest(client).await, "data: 1\n\n");
    assert_eq!(running.await.expect("no panic"), Ending::Complete);
}

#[tokio::test]
async fn an_event_larger_than_any_buffer_arrives_whole() {
    let (client, events, running) = over_tcp(Framing::Chunked, LIMIT).await;
    let large = "y".repeat(8 * 1024 * 1024);
    events.send(large.clone().into()).await.expect("taken");
    drop(events);
    let got = rest(client).await;
    assert!(
        got == format!("800000\r\n{large}\r\n0\r\n\r\n"),
        "{}",
        got.len()
    );
    assert_eq!(running.await.expect("no panic"), Ending::Complete);
}

#[tokio::test]
async fn a_client_that_closes_ends_an_idle_stream() {
    let (client, events, running) = over_tcp(Framing::Chunked, LIMIT).await;
    drop(client);
    assert_eq!(running.await.expect("no panic"), Ending::ClientLeft);
    assert!(events.is_closed());
}

#[tokio::test]
async fn a_byte_of_the_client_ends_the_stream_without_an_answer() {
    let (mut client, _events, running) = over_tcp(Framing::Chunked, LIMIT).await;
    client.write_all(b"G").await.expect("sent");
    assert_eq!(running.await.expect("no panic"), Ending::ClientLeft);
    let mut read = Vec::new();
    // A reset is as good an end here.
    let _ = client.read_to_end(&mut read).await;
    assert_eq!(read, b"");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_let_go() {
    let limit = Duration::from_millis(20);
    let (client, events, running) = over_tcp(Framing::Chunked, limit).await;
    events
        .send(vec![b'z'; 64 * 1024 * 1024].into())
        .await
        .expect("taken");
    assert_eq!(running.await.expect("no panic"), Ending::SlowReader);
    drop(client);
}

#[test]
fn labels_are_all_different() {
    let labels: std::collections::BTreeSet<_> = Ending::ALL.map(Ending::label).into();
    assert_eq!(labels.len(), Ending::ALL.len());
}
