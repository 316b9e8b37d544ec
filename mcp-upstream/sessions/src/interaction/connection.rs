//! Questions that a stdio server asks its only client, by the ids of the server's requests.
//!
//! The table of requests in `mcp-upstream/servers/link/questions.rs` ensures that each request is answered at most once, even if
//! the server reuses ids. That table also contains requests that never become a question.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::watch;
use tooldock_process::worker::AskMethod;
use tooldock_protocol::jsonrpc::{Key, Members, Notification, RawId, ServerRequest};

use super::{EARLY_MAX, Interaction};

/// The questions of a server on one connection, or on successive connections of the same session.
#[derive(Default)]
pub struct ConnectionInteractions {
    /// Open questions. Their number is limited by the connection's maximum of open requests. The lock is never held across an
    /// await.
    book: Mutex<ConnectionQuestions>,
    /// Number of unanswered questions that belong to calls.
    unanswered: Arc<watch::Sender<usize>>,
}

#[derive(Default)]
struct ConnectionQuestions {
    open: Vec<(RawId, Weak<Interaction>)>,
    /// Questions that the server asked while the connection was being opened, before the call began.
    early: Vec<(AskMethod, ServerRequest)>,
}

/// Counts one question as unanswered until the guard is dropped.
pub struct OpenQuestionGuard(Arc<watch::Sender<usize>>);

impl ConnectionInteractions {
    /// Records a question under the id of the server's request.
    pub fn note(&self, id: RawId, entry: &Arc<Interaction>) {
        let mut book = self.lock();
        book.open.retain(|(_, entry)| is_awaited(entry));
        book.open.push((id, Arc::downgrade(entry)));
    }

    /// Stores a request of the server until the call begins. If [`EARLY_MAX`] requests are stored already, the request is
    /// returned.
    pub fn keep_early(&self, method: AskMethod, request: ServerRequest) -> Option<ServerRequest> {
        let mut book = self.lock();
        if book.early.len() >= EARLY_MAX {
            return Some(request);
        }
        book.early.push((method, request));
        None
    }

    /// Removes and returns the requests that were stored until the call began.
    pub fn take_early(&self) -> Vec<(AskMethod, ServerRequest)> {
        std::mem::take(&mut self.lock().early)
    }

    /// Ends the question that a `notifications/cancelled` of the server names.
    pub fn withdraw(&self, notification: &Notification<'_>) {
        let params = notification.params.as_deref().unwrap_or_default();
        let members = std::str::from_utf8(params)
            .ok()
            .and_then(Members::of_params);
        let id = members
            .as_ref()
            .and_then(|members| members.name(Key::RequestId));
        let Some(id) = id else {
            return;
        };
        let (entry, _early) = {
            let mut book = self.lock();
            let early = book.early.iter().position(|(_, it)| it.id().as_str() == id);
            let early = early.map(|place| book.early.remove(place));
            let place = book.open.iter().rposition(|(own, _)| own.as_str() == id);
            (place.map(|place| book.open.swap_remove(place).1), early)
        };
        if let Some(entry) = entry.and_then(|entry| entry.upgrade()) {
            entry.withdraw(&notification.message);
        }
    }

    /// Returns true if the server waits for the answer to any question.
    pub fn any_open(&self) -> bool {
        self.lock().open.iter().any(|(_, entry)| is_awaited(entry))
    }

    /// Counts a question of a call as unanswered until the guard is dropped.
    pub fn unanswered(&self) -> OpenQuestionGuard {
        self.unanswered.send_modify(|open| *open += 1);
        OpenQuestionGuard(Arc::clone(&self.unanswered))
    }

    /// Returns true if a question that belongs to a call is unanswered.
    pub fn is_asking(&self) -> bool {
        *self.unanswered.borrow() > 0
    }

    /// Waits until all questions that belong to calls are answered.
    pub async fn settled(&self) {
        let mut unanswered = self.unanswered.subscribe();
        // Waiting cannot fail, since `self` owns the sender.
        let _ = unanswered.wait_for(|open| *open == 0).await;
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionQuestions> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_awaited(entry: &Weak<Interaction>) -> bool {
    entry.upgrade().is_some_and(|entry| !entry.is_over())
}

impl Drop for OpenQuestionGuard {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open = open.saturating_sub(1));
    }
}
