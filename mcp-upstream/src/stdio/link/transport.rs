//! The seam below a link: how its messages reach the server, where that is not by two pipes.
//!
//! ```text
//! Link ── request, notification, answer ──▶ Transport ──▶ the server
//!   ▲                                           │
//!   └──── message, failed, ended ◀── Incoming ◀─┘
//! ```
//!
//! A transport knows nothing of calls but their ids: it says what became of a message, and the link decides what that
//! means for the call. Pipes are not behind this trait: every call of a stdio server goes through them, and there a line
//! in a shared buffer is all that a message costs.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytes::Bytes;
use http::HeaderMap;
use tokio::time::Instant;
use tooldock_workers::answers::AnswerAccount;
use tooldock_workers::error::CallError;

use super::deliver::Batch;
use super::shared::Shared;
use super::{Closed, read};
use crate::protocol::ProtocolVersion;

/// Carries whole messages to one server. Nothing here waits; none of it is called with a lock of the link held.
pub(crate) trait Transport: Send + Sync {
    /// Sends a request. Its response, or [`Incoming::failed`], comes back for `id`, unless the call is given up first.
    /// `of_client`: what goes up of its client's own headers, with this request and with nothing else.
    ///
    /// # Errors
    ///
    /// [`CallError`]; nothing was sent then.
    fn request(
        &self,
        id: u64,
        message: Bytes,
        unsent: Unsent,
        of_client: Option<Arc<HeaderMap>>,
    ) -> Result<(), CallError>;

    /// Sends a notification, or the answer to a request of the server.
    ///
    /// # Errors
    ///
    /// [`CallError`], when there is no room or the server is gone.
    fn send(&self, message: Bytes) -> Result<(), CallError>;

    /// Nobody waits for a request any more. `words` is the `notifications/cancelled` for it, where the server is to hear
    /// of that.
    fn give_up(&self, id: u64, words: Option<Bytes>);

    /// The server was opened, and by which version: `None` for one whose requests speak for themselves.
    fn opened(&self, _version: Option<ProtocolVersion>) {}

    /// No message follows but what is under way.
    fn finish(&self) {}

    /// Nobody hears anything any more.
    fn end(&self);
}

/// Whether nothing of a request reached the server, so that another connection may take it. A request counts as sent
/// until its transport knows better.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unsent(Arc<AtomicU8>);

impl Unsent {
    const NOT_WRITTEN: u8 = 1;
    const SESSION_GONE: u8 = 2;
    const SESSION_REFUSED: u8 = 3;

    /// Nothing of the request reached the server, and nothing will.
    pub(crate) fn note(&self) {
        self.0.store(Self::NOT_WRITTEN, Ordering::Release);
    }

    /// The server did nothing with the request, as it does not know the session any more.
    pub(crate) fn note_session_gone(&self) {
        self.0.store(Self::SESSION_GONE, Ordering::Release);
    }

    /// Notes that the server refused the request because it does not know the session. It may have begun to process the
    /// request.
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

/// Where a transport hands in what comes from its server. Holds nothing alive.
#[derive(Clone)]
pub(crate) struct Incoming {
    link: Weak<Shared>,
    /// When an ignored message was last logged. A plain mutex, held for a moment.
    complained: Arc<Mutex<Option<Instant>>>,
}

impl Incoming {
    pub(super) fn new(link: Weak<Shared>) -> Self {
        Self {
            link,
            complained: Arc::default(),
        }
    }

    /// Takes one whole message. What makes no sense is counted and logged as of any server.
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

    /// There will be no response to a call.
    pub(crate) fn failed(&self, id: u64, error: CallError) {
        if let Some(link) = self.link.upgrade() {
            match link.take(id) {
                Ok(entry) => entry.reply.end(Err(error)),
                // It was given up, and the server does not work on it any more.
                Err(_) => link.inbound.settled(id),
            }
        }
    }

    /// The response to a call was larger than it may be; `size` is what was read of it.
    pub(crate) fn too_large(&self, id: u64, size: u64) {
        if let Some(link) = self.link.upgrade() {
            read::too_long(&link, Some(id), size);
        }
    }

    /// Whether somebody waits for the response to a call.
    pub(crate) fn is_awaited(&self, id: u64) -> bool {
        self.link
            .upgrade()
            .is_some_and(|link| link.calls().pending.get(id).is_ok())
    }

    /// Counts the response to a call; None where no client waits for it.
    pub(crate) fn answers(&self, id: u64) -> Option<AnswerAccount> {
        let link = self.link.upgrade()?;
        let calls = link.calls();
        calls.pending.get(id).ok()?.origin.answers().cloned()
    }

    /// Whether a message may have so many bytes.
    pub(crate) fn fits(&self, size: usize) -> bool {
        self.link
            .upgrade()
            .is_some_and(|link| link.max_result.fits(size))
    }

    /// The connection takes no calls any more. Those that wait go on: each hears of its own end.
    pub(crate) fn lost(&self) {
        if let Some(link) = self.link.upgrade() {
            link.lost(Closed::Disconnected);
        }
    }

    /// The connection is over, and with it every call.
    pub(crate) fn close(&self, reason: Closed) {
        if let Some(link) = self.link.upgrade() {
            link.close(reason);
        }
    }
}

/// JSON may be written over several lines; whoever passes a message on puts it into one.
fn on_one_line(message: Bytes) -> Bytes {
    let text = message.trim_ascii();
    if memchr::memchr2(b'\n', b'\r', text).is_none() {
        return message.slice_ref(text);
    }
    let mut text = text.to_vec();
    crate::jsonrpc::splice::on_one_line(&mut text);
    text.into()
}
