//! Transcripts: the messages between each kind of client and each kind of server through the gateway, byte by byte.
//!
//! There is a file for each pair of a client's and a server's era, and one for each kind of client of a Python worker, in the
//! folder `transcripts/` beside this file. Each block contains a client's request, the messages to the server, the server's
//! answers, and the messages that the client gets. The code in between may change, but not a byte of these messages.
//!
//! ```text
//! client>  a request of the client, its headers first; `Accept` names both media types and is left out
//! opens>   a process of the server is opened: its key, its protocol version, and the client's description
//! up>      a line to the server; for a worker the call
//! down>    a line of the server; for a worker its answer
//! answer>  to the client: status and headers, then the body or the next event
//! ```
//!
//! `TRANSCRIPTS=write cargo nextest run --workspace --lib -E 'test(transcripts)'` writes the files anew. Review the difference
//! before you commit it. Text that differs from run to run is replaced by a name (`<session-1>`), which `mask.rs` assigns.
//!
//! The code here calls only `Service::handle` on the client's side; on the other side it plays a server behind the real pools
//! (`server.rs`), and implements the worker's backend (`worker.rs`).

use std::path::Path;

mod diff;
mod mask;
mod mcp;
mod rest;
mod scene;
mod server;
mod worker;

use scene::{Answerer, Asker, Cell};

#[tokio::test]
async fn a_legacy_client_of_a_legacy_server() {
    check(Asker::Legacy, Answerer::Legacy).await;
}

#[tokio::test]
async fn a_legacy_client_of_a_modern_server() {
    check(Asker::Legacy, Answerer::Modern).await;
}

#[tokio::test]
async fn a_legacy_client_of_a_worker() {
    check(Asker::Legacy, Answerer::Worker).await;
}

#[tokio::test]
async fn a_modern_client_of_a_legacy_server() {
    check(Asker::Modern, Answerer::Legacy).await;
}

#[tokio::test]
async fn a_modern_client_of_a_modern_server() {
    check(Asker::Modern, Answerer::Modern).await;
}

#[tokio::test]
async fn a_modern_client_of_a_worker() {
    check(Asker::Modern, Answerer::Worker).await;
}

#[tokio::test]
async fn rest_to_a_legacy_server() {
    check(Asker::Rest, Answerer::Legacy).await;
}

#[tokio::test]
async fn rest_to_a_modern_server() {
    check(Asker::Rest, Answerer::Modern).await;
}

#[tokio::test]
async fn rest_to_a_worker() {
    check(Asker::Rest, Answerer::Worker).await;
}

/// Runs all scenes for a pair of client and server, and compares them with the pair's file, or writes the file.
async fn check(client: Asker, server: Answerer) {
    let cell = Cell { client, server };
    let played = match (client, server) {
        (Asker::Rest, Answerer::Worker) => rest::with_a_worker(cell).await,
        (Asker::Rest, _) => rest::with_a_server(cell).await,
        (_, Answerer::Worker) => mcp::with_a_worker(cell).await,
        _ => mcp::with_a_server(cell).await,
    };
    let name = format!("{}.txt", cell.name());
    let played = format!("What passes: {}\n{played}", cell.name());
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/transcripts");
    let file = file.join(&name);
    if std::env::var("TRANSCRIPTS").is_ok_and(|what| what == "write") {
        std::fs::write(&file, played).expect("written");
        return;
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        kept == played,
        "{name} is not what passes now; the transcript is `-`, what passed `+`:\n{}",
        diff::lines(&kept, &played)
    );
}
