//! Connections to the port that a browser comes back to. Any process of this machine can open some and be silent, so all
//! are read at once, and where there are too many the oldest gives way: a browser sends its request as soon as it connects.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::CALLBACK;
use crate::remote::authorize::RedirectOutcome;

/// Maximum number of connections that are read at once, and of browsers that are turned away at once.
const READ_MAX: usize = 64;
/// How long a browser may take to send its request, and to take the response.
const REQUEST: Duration = Duration::from_secs(10);
/// The longest head of a request, in bytes.
const HEAD_MAX: usize = 32 * 1024;

/// The connections that are open.
#[derive(Default)]
pub(super) struct Visitors {
    read: JoinSet<Option<(String, TcpStream)>>,
    /// Handles of the tasks in `read`, the oldest first; finished tasks are among them.
    handles: VecDeque<AbortHandle>,
    turned_away: JoinSet<()>,
}

impl Visitors {
    /// Reads the request of a connection, in place of the oldest where there are too many.
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

    /// The next address that a returning browser requests. `None` where no connection is open.
    pub(super) async fn next(&mut self) -> Option<(String, TcpStream)> {
        loop {
            if let Ok(Some(came)) = self.read.join_next().await? {
                return Some(came);
            }
        }
    }

    /// Tells a browser that its request is no answer, unless too many are being told that.
    pub(super) fn turn_away(&mut self, browser: TcpStream) {
        while self.turned_away.try_join_next().is_some() {}
        if self.turned_away.len() < READ_MAX {
            let told = async move { tell(browser, &RedirectOutcome::Foreign).await };
            self.turned_away.spawn(told);
        }
    }
}

/// Tells a browser the outcome of its request.
pub(super) async fn tell(browser: TcpStream, answered: &RedirectOutcome) {
    let (status, text) = match answered {
        RedirectOutcome::Given(_) => (
            "200 OK",
            "The gateway is authorized. You may close this page.\n",
        ),
        RedirectOutcome::Refused(_) => (
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

/// The address that a browser requests, if it is the redirect address.
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
        // Browsers request an icon, too.
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
    // A browser that is gone reads nothing.
    let _ = timeout(REQUEST, write).await;
}
