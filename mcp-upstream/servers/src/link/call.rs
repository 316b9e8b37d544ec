//! A call that was sent to a server, and its cancellation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_protocol::jsonrpc::{Response, ResponseOutcome, splice};

use super::shared::{LinkCore, SendProgress};

/// A call that was sent to a server: a future of its response. Dropping it abandons the call and sends the server a cancellation.
pub struct LinkCall {
    link: Arc<LinkCore>,
    id: u64,
    reply: oneshot::Receiver<Result<Response, CallError>>,
    sent: SendProgress,
    /// True if the server gets a cancellation when the caller drops the call. False if the call is dropped silently.
    tells: bool,
    /// True for a client's request. False for a request of the gateway, whose response contains no data of a client.
    of_client: bool,
    answered: bool,
}

/// Handle by which another task cancels a call.
#[derive(Clone)]
pub struct Canceller {
    link: Arc<LinkCore>,
    id: u64,
}

impl LinkCall {
    pub(super) fn new(
        link: Arc<LinkCore>,
        id: u64,
        reply: oneshot::Receiver<Result<Response, CallError>>,
        sent: SendProgress,
        tells: bool,
    ) -> Self {
        Self {
            link,
            id,
            reply,
            sent,
            tells,
            of_client: true,
            answered: false,
        }
    }

    /// Returns the call's id on the link, for tests.
    #[cfg(test)]
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Makes dropping the call silent: the server gets no cancellation.
    pub(crate) fn without_cancel_on_drop(mut self) -> Self {
        self.tells = false;
        self
    }

    /// Marks the call as a request of the gateway. Its response contains no data of a client, so the call need not be recorded
    /// when it is abandoned.
    pub(crate) fn of_gateway(mut self) -> Self {
        self.of_client = false;
        self.link.is_of_gateway(self.id);
        self
    }

    /// Returns a handle that can cancel the call while another task waits for it.
    #[inline]
    pub fn canceller(&self) -> Canceller {
        Canceller {
            link: Arc::clone(&self.link),
            id: self.id,
        }
    }

    /// Waits for the complete response of the call.
    ///
    /// # Errors
    ///
    /// [`CallError`] if there is no response.
    pub async fn answer(&mut self) -> Result<Response, CallError> {
        std::future::poll_fn(|context| self.poll_answer(context)).await
    }

    /// Returns true for a failed call of which no byte reached the server. Such a call may be sent to another process.
    #[inline]
    pub fn is_unsent(&self) -> bool {
        self.link.is_unsent(&self.sent)
    }

    /// Returns true for a failed call that the server did not process, because it does not know the session any more.
    #[inline]
    pub fn is_session_gone(&self) -> bool {
        matches!(&self.sent, SendProgress::Unless(unsent) if unsent.is_session_gone())
    }

    /// Returns true for a failed call that the server refused because it does not know the session. The server may have
    /// begun to process the call.
    #[inline]
    pub fn is_session_refused(&self) -> bool {
        matches!(&self.sent, SendProgress::Unless(unsent) if unsent.is_session_refused())
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Result<Response, CallError>> {
        Pin::new(&mut self.reply).poll(context).map(|reply| {
            self.answered = true;
            // The sender is dropped without a response only if a sink or another call has panicked in the reader.
            reply.unwrap_or_else(|_| {
                Err(CallError::new(
                    CallErrorCode::InternalError,
                    "the call was lost",
                ))
            })
        })
    }
}

impl Future for LinkCall {
    type Output = Result<ResponseOutcome, CallError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_answer(context).map_ok(|answer| answer.outcome())
    }
}

impl Drop for LinkCall {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let waited = match self.of_client {
            true => self.link.give_up(self.id).is_some(),
            false => self.link.take(self.id).is_ok(),
        };
        match (waited, self.tells) {
            (true, true) => self.link.send_cancel(self.id),
            (true, false) => self.link.forget(self.id),
            (false, _) => {}
        }
    }
}

impl Canceller {
    /// Forwards a client's complete `notifications/cancelled` about this call, and fails the call as cancelled. Returns false if
    /// the call has ended already.
    pub fn cancel(&self, message: &str) -> bool {
        let Some(entry) = self.link.give_up(self.id) else {
            return false;
        };
        match splice::with_request_id(message, &self.id.to_string()) {
            Some(line) => self.link.send_cancel_saying(self.id, line),
            None => self.link.send_cancel(self.id),
        }
        entry.reply.end(Err(CallError::new(
            CallErrorCode::Cancelled,
            "the client cancelled the call",
        )));
        true
    }
}

impl std::fmt::Debug for LinkCall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkCall")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
