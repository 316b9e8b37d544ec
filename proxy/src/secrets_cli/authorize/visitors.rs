//! Connections to the port to which a browser is redirected. All processes of this machine can connect to it and send nothing.
//! Therefore all connections are read concurrently, and beyond [`READ_MAX`] the oldest is closed. A browser is not affected,
//! because it sends its request as soon as it has connected.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::CALLBACK;
use crate::remote::authorize::RedirectOutcome;

/// Maximum number of connections that are read at the same time, and of refusals that are written at the same time.
const READ_MAX: usize = 64;
/// Time limit for a browser to send its request, and again to read the response.
const REQUEST: Duration = Duration::from_secs(10);
/// Maximum size of a request's head, in bytes.
const HEAD_MAX: usize = 32 * 1024;

/// The open connections, with the tasks that read their requests.
#[derive(Default)]
pub(super) struct Visitors {
    read: JoinSet<Option<(String, TcpStream)>>,
    /// Handles of the tasks in `read`, from the oldest to the newest. Some of these tasks may have finished.
    handles: VecDeque<AbortHandle>,
    turned_away: JoinSet<()>,
}

impl Visitors {
    /// Starts to read the request of a connection. If there are [`READ_MAX`] connections, the oldest is closed.
    pub(super) fn enter(&mut self, connection: TcpStream, origin: &str) {
        self.handles.retain(|it| !it.is_finished());
        if self.handles.len() >= READ_MAX
            && let Some(oldest) = self.handles.pop_front()
        {
            oldest.abort();
        }
        let origin = origin.to_owned();
        let reads = async move { came_back(connection, &origin).await };
        self.handles.push_back(self.read.spawn(reads));
    }

    /// Waits for the next request to the redirect path. Returns its URL and the connection; `None` if no connection is open.
    pub(super) async fn next(&mut self) -> Option<(String, TcpStream)> {
        loop {
            if let Ok(Some(came)) = self.read.join_next().await? {
                return Some(came);
            }
        }
    }

    /// Responds to a browser whose request does not belong to this authorization. If too many such responses are being written,
    /// closes the connection without one.
    pub(super) fn turn_away(&mut self, browser: TcpStream) {
        while self.turned_away.try_join_next().is_some() {}
        if self.turned_away.len() < READ_MAX {
            let told = async move { tell(browser, &RedirectOutcome::Foreign).await };
            self.turned_away.spawn(told);
        }
    }
}

/// Responds to a browser with the outcome of the authorization.
pub(super) async fn tell(browser: TcpStream, answered: &RedirectOutcome) {
    let (status, text) = match answered {
        RedirectOutcome::Given(_) => (
            "200 OK",
            "The gateway is authorized. You may close this page.\n",
        ),
        RedirectOutcome::Refused(_) | RedirectOutcome::Failed(_) => (
            "400 Bad Request",
            "The gateway was not authorized. The command that asked says why.\n",
        ),
        RedirectOutcome::Foreign => (
            "400 Bad Request",
            "This is no answer to the question that is open. Use the address that the command printed last.\n",
        ),
    };
    respond(browser, status, text).await;
}

/// Reads a request. Returns its URL and the connection if the request is for the redirect path.
async fn came_back(mut connection: TcpStream, origin: &str) -> Option<(String, TcpStream)> {
    let mut head = Vec::with_capacity(2048);
    let read = async {
        while !head.windows(4).any(|it| it == b"\r\n\r\n") {
            if head.len() > HEAD_MAX || connection.read_buf(&mut head).await.ok()? == 0 {
                return None;
            }
        }
        Some(())
    };
    timeout(REQUEST, read).await.ok()??;
    let mut headers = [httparse::EMPTY_HEADER; 100];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(&head).ok()?;
    let target = request.path?;
    let path = target.split('?').next()?;
    if request.method? != "GET" || path != CALLBACK {
        // Requests to other paths are expected: browsers also request an icon.
        respond(connection, "404 Not Found", "Not found\n").await;
        return None;
    }
    Some((format!("{origin}{target}"), connection))
}

async fn respond(mut connection: TcpStream, status: &str, text: &str) {
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    );
    let write = async {
        connection.write_all(response.as_bytes()).await?;
        connection.shutdown().await
    };
    // A failure is ignored, because it means that the browser has disconnected.
    let _ = timeout(REQUEST, write).await;
}
