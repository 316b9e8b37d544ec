//! What the gateway has asked the client of a session and is not answered yet.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::jsonrpc::Response;

/// Open questions of one session. One more fails at once; what bounds them in practice are the calls that ask.
pub(super) const OPEN_MAX: usize = 1000;

/// What became of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerFate {
    /// Somebody was waiting for it.
    Taken,
    /// The question was asked, and is answered or given up already.
    Over,
    /// There was no such question.
    Unknown,
}

/// The open questions of a session.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    /// A handful of entries. Guards plain data; nothing awaits under it.
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    closed: bool,
    /// The id of the last question.
    last: u64,
    open: Vec<(u64, oneshot::Sender<Response>)>,
}

impl PendingRequests {
    /// Notes a question; the answer comes through the receiver. It fails when there will be none: the session has
    /// ended, or too many questions are open.
    pub(super) fn ask(&self) -> (u64, oneshot::Receiver<Response>) {
        let (sender, receiver) = oneshot::channel();
        let mut table = self.lock();
        table.last += 1;
        let id = table.last;
        table.open.retain(|(_, sender)| !sender.is_closed());
        if !table.closed && table.open.len() < OPEN_MAX {
            table.open.push((id, sender));
        }
        (id, receiver)
    }

    /// Hands an answer to whoever asked. `id` is raw JSON.
    pub(super) fn answer(&self, id: &str, answer: Response) -> AnswerFate {
        let id: Option<u64> = id.parse().ok();
        let mut table = self.lock();
        let Some(id) = id.filter(|id| (1..=table.last).contains(id)) else {
            return AnswerFate::Unknown;
        };
        let Some(at) = table.open.iter().position(|(own, _)| *own == id) else {
            return AnswerFate::Over;
        };
        let (_, sender) = table.open.swap_remove(at);
        if table.open.is_empty() {
            // A session holds memory for the questions that are open, not for those there once were.
            table.open = Vec::new();
        }
        drop(table);
        match sender.send(answer) {
            Ok(()) => AnswerFate::Taken,
            Err(_) => AnswerFate::Over,
        }
    }

    /// Fails all open questions and those to come.
    pub(super) fn close(&self) {
        let open = {
            let mut table = self.lock();
            table.closed = true;
            std::mem::take(&mut table.open)
        };
        drop(open);
    }

    /// How many questions are open, or were given up since the last one.
    pub(super) fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// Whether an answer is awaited.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().open.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::jsonrpc::ResponseOutcome;

    fn result(text: &'static str) -> Response {
        Response::from_outcome(ResponseOutcome::Result(Bytes::from_static(text.as_bytes())))
    }

    #[tokio::test]
    async fn an_answer_reaches_its_question_once() {
        let questions = PendingRequests::default();
        let (first, one) = questions.ask();
        let (second, two) = questions.ask();
        assert_ne!(first, second);
        let answer = result(r#"{"action":"accept"}"#);
        let refusal = ResponseOutcome::Error(Bytes::from_static(br#"{"code":-1,"message":"no"}"#));
        assert_eq!(
            questions.answer(&second.to_string(), Response::from_outcome(refusal.clone())),
            AnswerFate::Taken
        );
        assert_eq!(
            questions.answer(&first.to_string(), answer.clone()),
            AnswerFate::Taken
        );
        assert_eq!(
            questions.answer(&first.to_string(), answer.clone()),
            AnswerFate::Over
        );
        assert_eq!(one.await.expect("an answer").outcome(), answer.outcome());
        assert_eq!(two.await.expect("an answer").outcome(), refusal);
        assert!(questions.is_empty());
    }

    #[test]
    fn what_was_never_asked_is_unknown_and_what_was_given_up_is_over() {
        let questions = PendingRequests::default();
        for id in ["0", "1", "-1", "1.0", "\"1\"", "null", ""] {
            assert_eq!(
                questions.answer(id, result("{}")),
                AnswerFate::Unknown,
                "{id}"
            );
        }
        let (id, receiver) = questions.ask();
        drop(receiver);
        assert_eq!(
            questions.answer(&id.to_string(), result("{}")),
            AnswerFate::Over
        );
        assert_eq!(
            questions.answer(&format!("\"{id}\""), result("{}")),
            AnswerFate::Unknown
        );
    }

    #[tokio::test]
    async fn questions_fail_when_there_are_too_many_or_the_session_ends() {
        let questions = PendingRequests::default();
        let open: Vec<_> = (0..OPEN_MAX).map(|_| questions.ask()).collect();
        assert!(questions.ask().1.await.is_err());
        drop(open);
        let (_, waiting) = questions.ask();
        questions.close();
        assert!(waiting.await.is_err());
        assert!(questions.ask().1.await.is_err());
    }
}
