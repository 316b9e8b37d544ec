//! Transports that carry a link's messages to a server other than over two pipes.
//!
//! ```text
//! Link ── request, notification, answer ──▶ Transport ──▶ the server
//!   ▲                                           │
//!   └──── message, failed, ended ◀── Incoming ◀─┘
//! ```
//!
//! A transport only gets the id of a call. It reports the outcome of a message, and the link decides what that means for the
//! call. Pipes do not implement this trait, for speed: every call of a stdio server uses them, and sending a message costs only
//! a line in a shared buffer.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;
use tooldock_base::answers::AnswerAccount;
use tooldock_base::error::CallError;
use tooldock_protocol::version::ProtocolVersion;

use super::deliver::Batch;
use super::shared::LinkCore;
use super::{LinkEnd, read};

/// Sends complete messages to a server. No method waits, and none is called while a lock of the link is held.
pub(crate) trait Transport: Send + Sync {
    /// Sends a request. Its response, or [`Incoming::failed`], is reported with this `id`, unless the call is abandoned before.
    /// `of_client`: the client's headers, which are sent with this request only.
    ///
    /// # Errors
    ///
    /// [`CallError`], if nothing was sent.
    fn request(
        &self,
        id: u64,
        message: Bytes,
        unsent: TransportFailure,
        of_client: Option<Arc<HeaderMap>>,
    ) -> Result<(), CallError>;

    /// Sends a notification, or the response to a request of the server.
    ///
    /// # Errors
    ///
    /// [`CallError`], when too much data is queued or the connection has ended.
    fn send(&self, message: Bytes) -> Result<(), CallError>;

    /// Abandons a request whose caller has dropped it. `words`: the `notifications/cancelled` to send for it; `None` if the
    /// server gets no cancellation.
    fn give_up(&self, id: u64, words: Option<Bytes>);

    /// Sets the protocol version with which the server was opened; `None` if each request carries its own metadata.
    fn opened(&self, _version: Option<ProtocolVersion>) {}

    /// Sends the queued messages, and accepts no further ones.
    fn finish(&self) {}

    /// Ends the transport. Messages that still arrive from the server are dropped.
    fn end(&self);
}

/// Record of how a request failed at its transport, which decides whether it may be sent again on another connection. A request
/// counts as sent unless the transport records otherwise.
#[derive(Debug, Clone, Default)]
pub(crate) struct TransportFailure(Arc<AtomicU8>);

impl TransportFailure {
    const NOT_WRITTEN: u8 = 1;
    const SESSION_GONE: u8 = 2;
    const SESSION_REFUSED: u8 = 3;

    /// Records that no byte of the request has reached the server, or ever will.
    pub(crate) fn note(&self) {
        self.0.store(Self::NOT_WRITTEN, Ordering::Release);
    }

    /// Records that the server did not process the request, because it does not know the session any more.
    pub(crate) fn note_session_gone(&self) {
        self.0.store(Self::SESSION_GONE, Ordering::Release);
    }

    /// Records that the server refused the request because it does not know the session. The server may have begun to process
    /// the request.
    pub(crate) fn note_session_refused(&self) {
        self.0.store(Self::SESSION_REFUSED, Ordering::Release);
    }

    pub(super) fn is_noted(&self) -> bool {
        let noted = self.0.load(Ordering::Acquire);
        noted == Self::NOT_WRITTEN || noted == Self::SESSION_GONE
    }

    pub(super) fn is_session_refused(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::SESSION_REFUSED
    }

    pub(super) fn is_session_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::SESSION_GONE
    }
}

/// Handle by which a transport passes the server's messages to the link. It does not keep the link alive.
#[derive(Clone)]
pub(crate) struct Incoming {
    link: Weak<LinkCore>,
    /// Time of the last log entry about an ignored message.
    complained: Arc<Mutex<Option<Instant>>>,
}

impl Incoming {
    pub(super) fn new(link: Weak<LinkCore>) -> Self {
        Self {
            link,
            complained: Arc::default(),
        }
    }

    /// Handles a complete message of the server. An invalid message is ignored, counted and logged.
    pub(crate) fn message(&self, message: Bytes) {
        let Some(link) = self.link.upgrade() else {
            return;
        };
        let message = on_one_line(message);
        let mut answers = Batch::default();
        if let Err(violation) = read::handle(&link, &message, &mut answers) {
            let mut last = self
                .complained
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            read::ignored_message(&link, &mut last, violation);
        }
    }

    /// Fails a call for which there will be no response.
    pub(crate) fn failed(&self, id: u64, error: CallError) {
        if let Some(link) = self.link.upgrade() {
            match link.take(id) {
                Ok(entry) => entry.reply.end(Err(error)),
                // The caller dropped the call before. The server has finished it now.
                Err(_) => link.inbound.settled(id),
            }
        }
    }

    /// Fails a call whose response is larger than allowed; `size`: the number of bytes that were read.
    pub(crate) fn too_large(&self, id: u64, size: u64) {
        if let Some(link) = self.link.upgrade() {
            read::too_long(&link, Some(id), size);
        }
    }

    /// Returns true if a caller waits for the response to this call.
    pub(crate) fn is_awaited(&self, id: u64) -> bool {
        self.link
            .upgrade()
            .is_some_and(|link| link.calls().pending.get(id).is_ok())
    }

    /// Returns the account that counts the bytes of the response to a call; `None` if no client waits for it.
    pub(crate) fn answers(&self, id: u64) -> Option<AnswerAccount> {
        let link = self.link.upgrade()?;
        let calls = link.calls();
        calls.pending.get(id).ok()?.origin.answers().cloned()
    }

    /// Returns true if a message may have this size in bytes.
    pub(crate) fn fits(&self, size: usize) -> bool {
        self.link
            .upgrade()
            .is_some_and(|link| link.max_result.fits(size))
    }

    /// Stops accepting calls on the connection. Pending calls continue, and each of them notices by itself when it has failed.
    pub(crate) fn lost(&self) {
        if let Some(link) = self.link.upgrade() {
            link.lost(LinkEnd::Disconnected);
        }
    }

    /// Ends the connection and all its calls.
    pub(crate) fn close(&self, reason: LinkEnd) {
        if let Some(link) = self.link.upgrade() {
            link.close(reason);
        }
    }
}

/// Puts JSON that spans several lines on one line, since the code behind it expects messages as a pipe delivers them.
fn on_one_line(message: Bytes) -> Bytes {
    let text = message.trim_ascii();
    if memchr::memchr2(b'\n', b'\r', text).is_none() {
        return message.slice_ref(text);
    }
    let mut text = text.to_vec();
    tooldock_protocol::jsonrpc::splice::on_one_line(&mut text);
    text.into()
}
