//! Questions of a call, which the call owns.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tooldock_base::parking::{ParkingFull, ParkingPermit};
use tooldock_workers::registry::Namespace;

use super::{
    EventSender, Interaction, KEPT_ANSWERS_MAX, OPEN_IN_CALL, QuestionOwner, QuestionSet,
    TakenBack, ask_failed, cannot_be_asked, refuse,
};

/// The questions of a call. The upstream opens them, the client answers them, and the call delivers the answers when all are
/// there and it may continue.
pub struct CallInteractions {
    namespace: Arc<Namespace>,
    /// The principal of the call.
    principal: Option<Arc<str>>,
    /// Sender of questions to the client; `None` if the client cannot be asked.
    events: Option<EventSender>,
    /// Signals a new question or answer. Only the call waits for it.
    changed: Notify,
    /// Entries of the call. The lock is never held across an await.
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    /// Questions of the call whose answers were not delivered yet.
    entries: Vec<Arc<Interaction>>,
    /// Permit to wait for the client, held from the call's first question until the call resumes.
    place: Option<ParkingPermit>,
    /// True when the call is over.
    ended: bool,
}

impl CallInteractions {
    /// The questions of a new call. `events` is `None` if the client cannot be asked.
    pub fn new(
        namespace: Arc<Namespace>,
        principal: Option<Arc<str>>,
        events: Option<EventSender>,
    ) -> Arc<Self> {
        Arc::new(Self {
            namespace,
            principal,
            events,
            changed: Notify::new(),
            book: Mutex::default(),
        })
    }

    /// The namespace of the call.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Sender of the call's messages to its client; `None` if the client cannot be asked.
    pub fn events(&self) -> Option<&EventSender> {
        self.events.as_ref()
    }

    /// Asks all questions or none: if they cannot be asked, they fail and the returned list is empty.
    pub fn open(self: &Arc<Self>, asked: QuestionSet) -> Vec<Arc<Interaction>> {
        let Some(events) = &self.events else {
            self.book().release();
            cannot_be_asked(asked);
            return Vec::new();
        };
        let refusal = {
            let mut book = self.book();
            match self.admit(&mut book, asked.len()) {
                Ok(()) => {
                    let scope: Weak<dyn QuestionOwner> = Arc::<Self>::downgrade(self);
                    let limit = self.namespace.limits.ask_timeout;
                    let asked = asked.into_iter().map(|(question, responder)| {
                        Interaction::new(Some(question), responder, limit, Weak::clone(&scope))
                    });
                    let entries: Vec<_> = asked.collect();
                    if events.ask(entries.clone()) {
                        book.entries.extend(entries.iter().map(Arc::clone));
                        drop(book);
                        self.changed.notify_one();
                        return entries;
                    }
                    book.release();
                    drop(book);
                    for entry in &entries {
                        entry.fail(ask_failed("The client does not read what it is sent"));
                        entry.deliver();
                    }
                    return Vec::new();
                }
                Err(reason) => {
                    book.release();
                    reason
                }
            }
        };
        refuse(asked, &refusal);
        Vec::new()
    }

    /// Checks that the call may ask `more` further questions, and acquires the permit to wait if the call has none. The error
    /// message is for the function or server that asks.
    fn admit(&self, book: &mut Book, more: usize) -> Result<(), String> {
        if book.ended {
            return Err("The call is over".into());
        }
        if book.place.is_none() {
            let principal = self.principal.as_deref().unwrap_or_default();
            let place = self.namespace.parked.enter(principal);
            let place = place.map_err(|full| match full {
                ParkingFull::Namespace => {
                    "Too many calls of the namespace wait for an answer of their client"
                }
                ParkingFull::Principal => {
                    "Too many calls of this principal wait for an answer of their client"
                }
            })?;
            book.place = Some(place);
        }
        // Ended questions make room: a server may ask and withdraw any number of times while it waits for another answer.
        book.entries.retain(|it| !it.is_over());
        let open = book.entries.iter().filter(|it| it.is_open()).count();
        if open + more > OPEN_IN_CALL {
            return Err(format!(
                "A call may have at most {OPEN_IN_CALL} questions open"
            ));
        }
        Ok(())
    }

    /// Waits until a question exists whose answer was not delivered. Cancel safe.
    pub async fn asked(&self) {
        while self.book().entries.is_empty() {
            self.changed.notified().await;
        }
    }

    /// Waits until a question is open. Cancel safe.
    pub async fn opened(&self) {
        while self.next_deadline().is_none() {
            self.changed.notified().await;
        }
    }

    /// Waits for the next question or answer. Cancel safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The earliest deadline of an open question; `None` if none is open.
    pub fn next_deadline(&self) -> Option<Instant> {
        let book = self.book();
        let open = book.entries.iter().filter(|it| it.is_open());
        open.map(|it| it.deadline()).min()
    }

    /// Fails the open questions whose deadline is over.
    pub fn expire(&self) {
        let now = Instant::now();
        let entries = self.book().entries.clone();
        for entry in entries.iter().filter(|it| it.deadline() <= now) {
            entry.expire();
        }
    }

    /// Delivers the client's answers to the upstream. Questions without an answer stay open.
    pub fn deliver(&self) {
        let (entries, place) = {
            let mut book = self.book();
            let all = std::mem::take(&mut book.entries);
            let (open, settled): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.is_open());
            book.entries = open;
            (settled, book.release())
        };
        drop(place);
        for entry in entries {
            entry.deliver();
        }
    }

    /// Ends the open questions, since the call is over.
    pub fn end(&self) {
        let (entries, _place) = {
            let mut book = self.book();
            book.ended = true;
            let entries = std::mem::take(&mut book.entries);
            (entries, book.release())
        };
        for entry in entries {
            entry.abandon();
        }
    }

    /// The number of questions whose answers were not delivered.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.book().entries.len()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Takes out the permit to wait if no question remains.
    fn release(&mut self) -> Option<ParkingPermit> {
        self.place.take_if(|_| self.entries.is_empty())
    }
}

impl QuestionOwner for CallInteractions {
    fn take_back(&self, message: TakenBack) {
        if let Some(events) = &self.events {
            events.take_back(message);
        }
    }

    fn settled(&self) {
        self.changed.notify_one();
    }
}

impl fmt::Debug for CallInteractions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallInteractions").finish_non_exhaustive()
    }
}

/// Error: the answers kept for a call would exceed [`KEPT_ANSWERS_MAX`]. The caller must drop the call.
#[derive(Debug, thiserror::Error)]
#[error(
    "the answers of a call that still waits for others may have {KEPT_ANSWERS_MAX} bytes together; the call \
     has ended, send the request again without requestState"
)]
pub struct TooMuchKept;

/// Answers questions by their keys; unknown keys are ignored.
///
/// # Errors
///
/// `TooMuchKept`, if other questions stay open.
pub fn fulfil<'a>(
    asked: &[Arc<Interaction>],
    answers: impl Iterator<Item = (&'a str, &'a [u8])>,
    own: impl Fn(&'a [u8]) -> Bytes,
) -> Result<(), TooMuchKept> {
    for (key, answer) in answers {
        let of_key = |it: &&Arc<Interaction>| {
            it.question().is_some_and(|question| *question.key == *key) && it.is_open()
        };
        if let Some(entry) = asked.iter().find(of_key) {
            entry.fulfil(own(answer));
        }
    }
    let waits = asked.iter().any(|it| it.is_open());
    let kept: usize = asked.iter().map(|it| it.kept()).sum();
    match waits && kept > KEPT_ANSWERS_MAX {
        true => Err(TooMuchKept),
        false => Ok(()),
    }
}
