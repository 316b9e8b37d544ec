//! Questions that the gateway has sent to a session's client as requests, indexed by the ids of these requests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tooldock_protocol::jsonrpc::Response;

use super::{Interaction, OPEN_IN_SESSION, ask_failed};

/// Outcome of a client's answer to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerOutcome {
    /// The question was open, and the answer is accepted.
    Taken,
    /// The question was answered or withdrawn before this answer arrived.
    Over,
    /// The session has never asked a question with this id.
    Unknown,
}

/// Approximate memory of one open question in a session, in bytes: its table entry (counted twice, since the table's capacity
/// may be twice its length), and the allocation of the question, which the entry keeps. The content of the question is not
/// included: it is counted with the call that asks.
pub(crate) const QUESTION_COST: usize =
    2 * size_of::<(u64, Weak<Interaction>)>() + 2 * size_of::<usize>() + size_of::<Interaction>();

/// The questions of a session that have no answer yet.
#[derive(Debug, Default)]
pub(crate) struct SessionInteractions {
    /// Open questions, usually few. The lock is never held across an await.
    table: Mutex<OpenQuestions>,
}

#[derive(Debug, Default)]
struct OpenQuestions {
    closed: bool,
    /// The id of the newest question.
    last: u64,
    open: Vec<(u64, Weak<Interaction>)>,
}

impl SessionInteractions {
    /// Creates an empty table of questions for a session that processes have adopted `epoch` times. Each epoch begins with new
    /// ids, so that an answer to a question of an earlier process is recognized as too late. JavaScript represents the ids
    /// exactly up to epoch 2^21.
    pub(crate) fn of_epoch(epoch: u32) -> Self {
        let table = OpenQuestions {
            last: u64::from(epoch) << 32,
            ..OpenQuestions::default()
        };
        Self {
            table: Mutex::new(table),
        }
    }

    /// Registers a question and returns the request that asks it. `None` if an answer is no longer wanted, or if the question
    /// failed, because the session has ended or too many questions are open in it.
    pub(crate) fn ask(&self, entry: &Arc<Interaction>) -> Option<Vec<u8>> {
        let mut table = self.lock();
        table.open.retain(|(_, entry)| is_open(entry));
        if table.closed || table.open.len() >= OPEN_IN_SESSION {
            drop(table);
            entry.fail(over());
            return None;
        }
        // The id is assigned under the table's lock, so that a question that ends meanwhile uses up neither an entry nor an id.
        let id = table.last + 1;
        let message = entry.ask_under(id)?;
        table.last = id;
        table.open.push((id, Arc::downgrade(entry)));
        Some(message)
    }

    /// Passes a client's response to the question with this id. `id` is raw JSON.
    pub(crate) fn answer(&self, id: &str, response: Response) -> AnswerOutcome {
        let id: Option<u64> = id.parse().ok();
        let entry = {
            let mut table = self.lock();
            let Some(id) = id.filter(|id| (1..=table.last).contains(id)) else {
                return AnswerOutcome::Unknown;
            };
            let Some(at) = table.open.iter().position(|(own, _)| *own == id) else {
                return AnswerOutcome::Over;
            };
            let (_, entry) = table.open.swap_remove(at);
            if table.open.is_empty() {
                // Frees the table's memory, so that a session uses memory for open questions only.
                table.open = Vec::new();
            }
            entry
        };
        match entry.upgrade().is_some_and(|it| it.respond(response)) {
            true => AnswerOutcome::Taken,
            false => AnswerOutcome::Over,
        }
    }

    /// Fails all open and all later questions.
    pub(crate) fn close(&self) {
        let open = {
            let mut table = self.lock();
            table.closed = true;
            std::mem::take(&mut table.open)
        };
        for entry in open.iter().filter_map(|(_, entry)| entry.upgrade()) {
            entry.fail(over());
        }
    }

    /// Number of questions that are open, including those that were withdrawn after the most recent question was asked.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    fn lock(&self) -> MutexGuard<'_, OpenQuestions> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_open(entry: &Weak<Interaction>) -> bool {
    entry.upgrade().is_some_and(|entry| entry.is_open())
}

fn over() -> tooldock_base::error::CallError {
    ask_failed("The client of this session cannot be asked any more")
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tooldock_protocol::jsonrpc::ResponseOutcome;

    use super::*;
    use crate::interaction::testing::{Wait, round};

    fn result(text: &'static str) -> Response {
        Response::from_outcome(ResponseOutcome::Result(Bytes::from_static(text.as_bytes())))
    }

    /// The id under which a question was asked.
    fn ask(questions: &SessionInteractions, entry: &Arc<Interaction>) -> u64 {
        let message = questions.ask(entry).expect("it may be asked");
        let message: serde_json::Value = serde_json::from_slice(&message).expect("JSON");
        message["id"].as_u64().expect("a number")
    }

    #[tokio::test]
    async fn an_answer_reaches_its_question_once() {
        let questions = SessionInteractions::default();
        let scope = Wait::new();
        let ((one, told_one), (two, told_two)) = (round(&scope), round(&scope));
        let (first, second) = (ask(&questions, &one), ask(&questions, &two));
        assert_ne!(first, second);
        let answer = result(r#"{"action":"accept"}"#);
        let refusal = ResponseOutcome::Error(Bytes::from_static(br#"{"code":-1,"message":"no"}"#));
        let refusal = Response::from_outcome(refusal);
        for (id, answer) in [(second, refusal), (first, answer.clone())] {
            let fate = questions.answer(&id.to_string(), answer);
            assert_eq!(fate, AnswerOutcome::Taken);
        }
        let again = questions.answer(&first.to_string(), answer.clone());
        assert_eq!(again, AnswerOutcome::Over);
        assert_eq!(questions.len(), 0);
        one.deliver();
        two.deliver();
        let told = told_one.await.expect("delivered").expect("a result");
        assert_eq!(&told, answer.payload());
        let told = told_two.await.expect("delivered").expect_err("a refusal");
        assert!(told.message.contains("(-1): no"), "{}", told.message);
    }

    #[test]
    fn what_was_never_asked_is_unknown_and_what_was_given_up_is_over() {
        let questions = SessionInteractions::default();
        for id in ["0", "1", "-1", "1.0", "\"1\"", "null", ""] {
            assert_eq!(
                questions.answer(id, result("{}")),
                AnswerOutcome::Unknown,
                "{id}"
            );
        }
        let scope = Wait::new();
        let (entry, _told) = round(&scope);
        let id = ask(&questions, &entry);
        drop(entry);
        assert_eq!(
            questions.answer(&id.to_string(), result("{}")),
            AnswerOutcome::Over
        );
        assert_eq!(
            questions.answer(&format!("\"{id}\""), result("{}")),
            AnswerOutcome::Unknown
        );
    }

    #[test]
    fn a_question_that_is_over_already_takes_no_place() {
        let questions = SessionInteractions::default();
        let scope = Wait::new();
        for _ in 0..3 {
            let (entry, _told) = round(&scope);
            entry.fail(over());
            assert_eq!(questions.ask(&entry), None);
            assert_eq!(questions.len(), 0);
        }
        let (entry, _told) = round(&scope);
        assert_eq!(ask(&questions, &entry), 1, "nor an id");
    }

    #[test]
    fn questions_fail_when_there_are_too_many_or_the_session_ends() {
        let questions = SessionInteractions::default();
        let scope = Wait::new();
        let open: Vec<_> = (0..OPEN_IN_SESSION).map(|_| round(&scope)).collect();
        for (entry, _) in &open {
            ask(&questions, entry);
        }
        let (more, _told) = round(&scope);
        assert_eq!(questions.ask(&more), None);
        assert!(!more.is_open());
        drop(open);
        let (waits, _told) = round(&scope);
        ask(&questions, &waits);
        questions.close();
        assert!(!waits.is_open());
        let (late, _told) = round(&scope);
        assert_eq!(questions.ask(&late), None);
        assert!(!late.is_open());
    }
}
