//! The running requests of a client. Their number and size are limited, and they are found by their ids for cancellation.

use std::collections::HashMap;
use std::future::Future;

use tokio::task::{self, AbortHandle, JoinSet};

use super::outbox::Outbox;
use crate::jsonrpc::RequestError;

/// Limits on the running requests of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Maximum number of running requests of a client; further ones are refused.
    pub(super) requests: usize,
    /// Maximum size of the lines of all running requests together, in bytes. A single line may be longer.
    pub(super) bytes: usize,
}

/// The running requests of a client. Dropping the value ends them without answers.
pub(super) struct Requests {
    room: Room,
    tasks: JoinSet<()>,
    running: HashMap<task::Id, RequestEntry>,
    bytes: usize,
    begun: u64,
}

struct RequestEntry {
    /// The request's id as raw JSON; `None` for a batch, which has no single id.
    id: Option<Box<str>>,
    /// Number of the request, in the order in which the client's requests began.
    number: u64,
    listens: bool,
    bytes: usize,
    handle: AbortHandle,
}

impl Requests {
    /// Creates an empty set of running requests. `room`: the limits on the requests.
    pub(super) fn within(room: Room) -> Self {
        Self {
            room,
            tasks: JoinSet::new(),
            running: HashMap::new(),
            bytes: 0,
            begun: 0,
        }
    }

    /// Returns true if the limits allow another request whose line has this size in bytes.
    pub(super) fn have_room_for(&self, bytes: usize) -> bool {
        let count = self.running.len();
        let fits = self.bytes + bytes <= self.room.bytes;
        count == 0 || (count < self.room.requests && fits)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Begins a request, in a separate task if it has to wait. When this returns, the request has run up to its first wait.
    pub(super) async fn begin(
        &mut self,
        id: Option<Box<str>>,
        listens: bool,
        bytes: usize,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut work = Box::pin(work);
        if futures_util::poll!(&mut work).is_ready() {
            return;
        }
        self.begun += 1;
        self.bytes += bytes;
        let handle = self.tasks.spawn(work);
        let running = RequestEntry {
            id,
            number: self.begun,
            listens,
            bytes,
            handle: handle.clone(),
        };
        self.running.insert(handle.id(), running);
    }

    /// Ends the newest request with this id, which then gets no answer. An unknown id is ignored, since the request may have been
    /// answered already.
    pub(super) fn cancel(&mut self, id: &str) {
        let named = self
            .running
            .values()
            .filter(|it| it.id.as_deref() == Some(id));
        if let Some(newest) = named.max_by_key(|it| it.number) {
            newest.handle.abort();
        }
    }

    /// Ends the requests whose responses never end by themselves (`subscriptions/listen`).
    pub(super) fn end_listening(&mut self) {
        for running in self.running.values().filter(|it| it.listens) {
            running.handle.abort();
        }
    }

    /// Waits until a request ends. Never resolves if none is running. A request that panicked is answered with an error. Cancel
    /// safe, except while that answer is sent.
    pub(super) async fn settle_one(&mut self, outbox: &Outbox) {
        let (id, panicked) = match self.tasks.join_next_with_id().await {
            Some(Ok((id, ()))) => (id, false),
            Some(Err(error)) => (error.id(), error.is_panic()),
            None => return std::future::pending().await,
        };
        let Some(over) = self.running.remove(&id) else {
            return;
        };
        self.bytes -= over.bytes;
        if panicked {
            let answer = RequestError::Internal.body(over.id.as_deref());
            outbox.send(answer.into()).await;
        }
    }

    /// Ends all running requests of the client, without answers.
    pub(super) async fn end(&mut self) {
        self.tasks.shutdown().await;
        self.running.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::Notify;

    use super::*;

    const ROOM: Room = Room {
        requests: 8,
        bytes: 1024,
    };

    #[tokio::test]
    async fn requests_are_bounded_in_number_and_in_bytes_and_a_single_one_always_fits() {
        let (outbox, _lines) = Outbox::new();
        let mut requests = Requests::within(ROOM);
        assert!(requests.have_room_for(2 * ROOM.bytes));
        let end = Arc::new(Notify::new());
        for _ in 0..ROOM.requests {
            assert!(requests.have_room_for(1));
            let end = Arc::clone(&end);
            let work = async move { end.notified().await };
            requests.begin(None, false, 1, work).await;
        }
        assert!(!requests.have_room_for(1));
        end.notify_one();
        requests.settle_one(&outbox).await;
        assert!(requests.have_room_for(1));
        assert!(!requests.have_room_for(ROOM.bytes));
    }

    #[tokio::test]
    async fn a_request_that_is_taken_back_is_over() {
        let (outbox, _lines) = Outbox::new();
        let mut requests = Requests::within(ROOM);
        let id = || Some("7".into());
        requests.begin(id(), false, 1, std::future::pending()).await;
        requests.cancel("8");
        requests.cancel("7");
        requests.settle_one(&outbox).await;
        assert!(requests.is_empty());
    }

    #[tokio::test]
    async fn a_request_that_panics_is_answered() {
        let (outbox, mut lines) = Outbox::new();
        let mut requests = Requests::within(ROOM);
        let work = async {
            task::yield_now().await;
            panic!("a request panics, as this test wants it to");
        };
        requests.begin(Some("7".into()), false, 1, work).await;
        requests.settle_one(&outbox).await;
        assert!(requests.is_empty());
        assert!(lines.recv().await.is_some());
    }
}
