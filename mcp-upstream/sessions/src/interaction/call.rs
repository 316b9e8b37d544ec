//! The questions of one call. The call owns them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tooldock_base::parking::{ParkingFull, ParkingPermit};
use tooldock_workers::registry::Namespace;

use super::{
    EventSender, Interaction, KEPT_ANSWERS_MAX, OPEN_IN_CALL, QuestionOwner, QuestionSet,
    Responder, WithdrawalMessage, ask_failed, cannot_be_asked, refuse,
};

/// The questions of one call. The upstream asks them, and the client answers them. Once all are answered, the call passes the
/// answers to the upstream and continues.
pub struct CallInteractions {
    namespace: Arc<Namespace>,
    /// The principal that makes the call; `None` without authentication.
    principal: Option<Arc<str>>,
    /// Channel by which questions are sent to the client; `None` if the client cannot be asked.
    events: Option<EventSender>,
    /// Notified at each new question or answer. Only the call waits for it.
    changed: Notify,
    /// State of the call's questions. The lock is never held across an await.
    book: Mutex<CallQuestions>,
}

#[derive(Default)]
struct CallQuestions {
    /// Questions whose answers have not been passed to the upstream yet.
    entries: Vec<Arc<Interaction>>,
    /// Permit to wait for the client, under the namespace's limit. Held from the call's first question until the call continues.
    place: Option<ParkingPermit>,
    /// True if the call has ended; then no further questions can be asked.
    ended: bool,
}

impl CallInteractions {
    /// Creates the state for a new call without questions. `events` is `None` if the client cannot be asked.
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

    /// Channel by which the call's messages are sent to its client; `None` if the client cannot be asked.
    pub fn events(&self) -> Option<&EventSender> {
        self.events.as_ref()
    }

    /// Asks the client all these questions. If they cannot be asked, all of them fail, and the returned list is empty.
    pub fn open(self: &Arc<Self>, asked: QuestionSet) -> Vec<Arc<Interaction>> {
        let Some(events) = &self.events else {
            self.lock().release();
            cannot_be_asked(asked);
            return Vec::new();
        };
        let refusal = {
            let mut book = self.lock();
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

    /// Stops the call's time limit until the returned question is settled. The question is not sent to the client: a user acts
    /// elsewhere, such as on a page in a browser, and the caller of this method settles the question. `None` if the call has
    /// ended, or if too many calls or questions wait already.
    pub fn wait_outside(self: &Arc<Self>, responder: Responder) -> Option<Arc<Interaction>> {
        let mut book = self.lock();
        if self.admit(&mut book, 1).is_err() {
            let released = book.release();
            drop(book);
            drop(released);
            return None;
        }
        let scope: Weak<dyn QuestionOwner> = Arc::<Self>::downgrade(self);
        let limit = self.namespace.limits.ask_timeout;
        let entry = Interaction::new(None, responder, limit, scope);
        book.entries.push(Arc::clone(&entry));
        drop(book);
        self.changed.notify_one();
        Some(entry)
    }

    /// Checks that the call may ask `more` further questions, and acquires the permit to wait for the client if the call has none
    /// yet. The error message is for the function or server that asks.
    fn admit(&self, book: &mut CallQuestions, more: usize) -> Result<(), String> {
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
        // Finished questions are removed first: while it waits for one answer, a server may ask and cancel any number of others.
        book.entries.retain(|it| !it.is_over());
        let open = book.entries.iter().filter(|it| it.is_open()).count();
        if open + more > OPEN_IN_CALL {
            return Err(format!(
                "A call may have at most {OPEN_IN_CALL} questions open"
            ));
        }
        Ok(())
    }

    /// Waits until there is a question whose answer has not been passed to the upstream. Cancel safe.
    pub async fn asked(&self) {
        while self.lock().entries.is_empty() {
            self.changed.notified().await;
        }
    }

    /// Waits until there is an open question. Cancel safe.
    pub async fn opened(&self) {
        while self.next_deadline().is_none() {
            self.changed.notified().await;
        }
    }

    /// Waits until the next question is asked or answered. Cancel safe.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The earliest deadline of the call's open questions; `None` if no question is open.
    pub fn next_deadline(&self) -> Option<Instant> {
        let book = self.lock();
        let open = book.entries.iter().filter(|it| it.is_open());
        open.map(|it| it.deadline()).min()
    }

    /// Fails the open questions whose deadline has passed.
    pub fn expire(&self) {
        let now = Instant::now();
        let entries = self.lock().entries.clone();
        for entry in entries.iter().filter(|it| it.deadline() <= now) {
            entry.expire();
        }
    }

    /// Passes the stored answers to the upstream. Questions without an answer stay open.
    pub fn deliver(&self) {
        let (entries, place) = {
            let mut book = self.lock();
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

    /// Ends all open questions, since the call has ended.
    pub fn end(&self) {
        let (entries, _place) = {
            let mut book = self.lock();
            book.ended = true;
            let entries = std::mem::take(&mut book.entries);
            (entries, book.release())
        };
        for entry in entries {
            entry.abandon();
        }
    }

    /// Number of questions whose answers have not been passed to the upstream.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.lock().entries.len()
    }

    fn lock(&self) -> MutexGuard<'_, CallQuestions> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallQuestions {
    /// Takes the permit to wait for the client, if no question remains. The caller drops it.
    fn release(&mut self) -> Option<ParkingPermit> {
        self.place.take_if(|_| self.entries.is_empty())
    }
}

impl QuestionOwner for CallInteractions {
    fn take_back(&self, message: WithdrawalMessage) {
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

/// Error: the answers that are stored for a call would exceed their maximum size. The caller must end the call.
#[derive(Debug, thiserror::Error)]
#[error(
    "the answers of a call that still waits for others may have {KEPT_ANSWERS_MAX} bytes together; the call \
     has ended, send the request again without requestState"
)]
pub struct AnswersTooLarge;

/// Stores the client's answers to questions, by the questions' keys. Answers with unknown keys are ignored.
///
/// # Errors
///
/// `AnswersTooLarge` when answers must be stored, because other questions stay open, and are too large for that.
pub fn set_answer<'a>(
    asked: &[Arc<Interaction>],
    answers: impl Iterator<Item = (&'a str, &'a [u8])>,
    own: impl Fn(&'a [u8]) -> Bytes,
) -> Result<(), AnswersTooLarge> {
    for (key, answer) in answers {
        let of_key = |it: &&Arc<Interaction>| {
            it.question().is_some_and(|question| *question.key == *key) && it.is_open()
        };
        if let Some(entry) = asked.iter().find(of_key) {
            entry.set_answer(own(answer));
        }
    }
    let waits = asked.iter().any(|it| it.is_open());
    let kept: usize = asked.iter().map(|it| it.kept()).sum();
    match waits && kept > KEPT_ANSWERS_MAX {
        true => Err(AnswersTooLarge),
        false => Ok(()),
    }
}
