//! `input_required` results for clients that take requests instead (MRTR the other way round).

use std::borrow::Cow;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use memchr::memmem::Finder;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tooldock_workers::error::{CallError, CallErrorCode};
use tooldock_workers::worker::{Answers, Ask, AskMethod, OPEN_QUESTIONS_MAX, Question, Replier};

use crate::jsonrpc::spans;
use crate::jsonrpc::{Key, Request, entries};

/// Rounds of questions one call may take.
pub(crate) const ROUNDS_MAX: usize = 32;

/// What a server wants to know before it answers.
#[derive(Debug)]
pub(crate) struct Required {
    questions: Vec<Question>,
    /// What it wants back, raw.
    state: Option<Bytes>,
}

/// Reads an `input_required` result. `Ok(None)` for any other.
///
/// # Errors
///
/// One that asks for what no client can be asked.
pub(crate) fn required(result: &[u8]) -> Result<Option<Required>, CallError> {
    // Nearly all results are another, and are told so by one scan.
    static WORD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("input_required"));
    if WORD.find(result).is_none() {
        return Ok(None);
    }
    let Some(object) = spans::raw(result) else {
        return Ok(None);
    };
    let kind = spans::member(object, "resultType");
    if kind.map(RawValue::get) != Some("\"input_required\"") {
        return Ok(None);
    }
    let requests = spans::member(object, "inputRequests").and_then(entries);
    let requests = requests.unwrap_or_default();
    if requests.len() > OPEN_QUESTIONS_MAX {
        return Err(unusable("The server asked too many questions at once"));
    }
    let questions = requests.into_iter().map(question);
    Ok(Some(Required {
        questions: questions.collect::<Result<_, _>>()?,
        state: spans::member(object, "requestState").map(spans::owned),
    }))
}

fn question((key, request): (Cow<'_, str>, &RawValue)) -> Result<Question, CallError> {
    let method = spans::member(request, "method");
    let method = method.and_then(crate::jsonrpc::string);
    let method = method.and_then(|method| AskMethod::from_method(&method));
    let method = method.ok_or_else(|| {
        unusable("The server asked its client for something that no client can do")
    })?;
    let params = spans::member(request, "params");
    Ok(Question {
        key: key.as_ref().into(),
        method,
        params: params.map_or_else(|| Bytes::from_static(b"{}"), spans::owned),
    })
}

impl Required {
    /// Asks the client and gives the request of the retry. Ends when all questions are answered.
    ///
    /// # Errors
    ///
    /// A question that got no result.
    pub(crate) async fn settle(
        self,
        request: &Request,
        ask_client: impl FnOnce(Ask),
    ) -> Result<Request, CallError> {
        let mut responses = String::from("{");
        if !self.questions.is_empty() {
            let given = Given::new(&self.questions);
            let (all, done) = given;
            let ask = Ask {
                questions: self.questions.clone(),
                replier: Replier::new(Arc::new(all)),
            };
            ask_client(ask);
            let answers = done.await.map_err(|_| unusable("The call is over"))?;
            for (question, answer) in self.questions.iter().zip(answers) {
                if responses.len() > 1 {
                    responses.push(',');
                }
                responses.push_str(&serde_json::Value::from(&*question.key).to_string());
                responses.push(':');
                responses.push_str(&String::from_utf8_lossy(&answer?));
            }
        }
        responses.push('}');
        if serde_json::from_str::<&RawValue>(&responses).is_err() {
            return Err(unusable("The client's answer cannot be read"));
        }
        let state = self.state.as_deref().map(String::from_utf8_lossy);
        let changes = [
            (Key::InputResponses, Some(&*responses)),
            (Key::RequestState, state.as_deref()),
        ];
        let retry = request.edited(&changes);
        retry.map_err(|error| CallError::new(CallErrorCode::InvalidArguments, error.to_string()))
    }
}

fn unusable(message: &str) -> CallError {
    CallError::new(CallErrorCode::AskFailed, message)
}

type Told = Result<Bytes, CallError>;

/// Collects the answers of one round.
struct Given(Mutex<Collected>);

struct Collected {
    answers: Vec<(Arc<str>, Option<Told>)>,
    done: Option<oneshot::Sender<Vec<Told>>>,
}

impl Given {
    fn new(questions: &[Question]) -> (Self, oneshot::Receiver<Vec<Told>>) {
        let (done, all) = oneshot::channel();
        let keys = questions.iter();
        let answers = keys.map(|it| (Arc::clone(&it.key), None)).collect();
        let collected = Collected {
            answers,
            done: Some(done),
        };
        (Self(Mutex::new(collected)), all)
    }
}

impl Answers for Given {
    fn answer(&self, key: &str, outcome: Result<&[u8], &CallError>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = all.answers.iter_mut().find(|(own, _)| **own == *key);
        if let Some((_, answer)) = place {
            let outcome = outcome.map(Bytes::copy_from_slice).map_err(Clone::clone);
            answer.get_or_insert(outcome);
        }
        if all.answers.iter().any(|(_, answer)| answer.is_none()) {
            return;
        }
        let answers = std::mem::take(&mut all.answers);
        if let Some(done) = all.done.take() {
            let _ = done.send(answers.into_iter().filter_map(|(_, it)| it).collect());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_result_that_asks_asks() {
        for other in [
            r#"{"resultType":"complete","content":[{"text":"input_required"}]}"#,
            r#"{"content":[]}"#,
        ] {
            assert!(required(other.as_bytes()).expect("readable").is_none());
        }
        let asks = br#"{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},"b":{"method":"elicitation/create","params":{"n":1.0}}},"requestState":"s"}"#;
        let required = required(asks).expect("readable").expect("it asks");
        assert_eq!(required.questions.len(), 2);
        assert_eq!(&required.questions[1].params[..], br#"{"n":1.0}"#);
        assert_eq!(required.state.as_deref(), Some(&b"\"s\""[..]));
    }

    #[test]
    fn what_no_client_can_be_asked_is_an_error() {
        let asks = br#"{"resultType":"input_required","inputRequests":{"a":{"method":"x/y"}}}"#;
        assert!(required(asks).is_err());
    }

    #[tokio::test]
    async fn answers_come_back_in_the_order_of_their_questions() {
        let question = |key: &str| Question {
            key: key.into(),
            method: AskMethod::Roots,
            params: Bytes::new(),
        };
        let (given, all) = Given::new(&[question("a"), question("b")]);
        given.answer("b", Ok(b"2"));
        given.answer("x", Ok(b"0"));
        given.answer("a", Ok(b"1"));
        given.answer("a", Ok(b"3"));
        let all = all.await.expect("all are answered");
        let all: Vec<_> = all.into_iter().map(|it| it.expect("an answer")).collect();
        assert_eq!(all, [&b"1"[..], b"2"]);
    }
}
