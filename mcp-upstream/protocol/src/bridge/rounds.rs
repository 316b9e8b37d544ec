//! Questions of modern servers to legacy clients: an `input_required` result becomes requests to the client, whose answers are
//! sent to the server in a retry of the call.

use std::borrow::Cow;
use std::sync::LazyLock;

use bytes::Bytes;
use memchr::memmem::Finder;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::{AskMethod, OPEN_QUESTIONS_MAX, Question};

use crate::jsonrpc::spans;
use crate::jsonrpc::{Key, Request, entries};

/// Maximum number of times that a server may answer a call with new questions. Then the call fails.
pub const ROUNDS_MAX: usize = 32;

/// Channel by which the client's answer to one question is returned.
type AnswerSender = oneshot::Sender<Result<Bytes, CallError>>;

/// Content of an `input_required` result: the questions that the client must answer before the server returns the call's final
/// result.
#[derive(Debug)]
pub struct InputRequired {
    questions: Vec<Question>,
    /// The server's `requestState` as raw JSON, which the retry must return to it.
    state: Option<Bytes>,
}

/// Parses an `input_required` result. Returns `Ok(None)` for any other result.
///
/// # Errors
///
/// The call fails if the result contains a question of a kind that clients cannot be asked.
pub fn required(result: &[u8]) -> Result<Option<InputRequired>, CallError> {
    // Fast path: nearly no result contains the text `input_required`, so most need not be parsed.
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
    Ok(Some(InputRequired {
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

impl InputRequired {
    /// Sends the questions to the client, waits for all answers, and returns the request with which the call is retried.
    ///
    /// # Errors
    ///
    /// The call fails if the client does not answer a question with a result.
    pub async fn settle(
        self,
        request: &Request,
        ask_client: impl FnOnce(Vec<(Question, AnswerSender)>),
    ) -> Result<Request, CallError> {
        let mut responses = String::from("{");
        if !self.questions.is_empty() {
            let asked = self.questions.into_iter().map(|question| {
                let (responder, answer) = oneshot::channel();
                ((question.key.clone(), answer), (question, responder))
            });
            let (answers, asked): (Vec<_>, Vec<_>) = asked.unzip();
            ask_client(asked);
            // All answers are awaited before they are used, even if one of them is an error.
            let mut given = Vec::with_capacity(answers.len());
            for (key, answer) in answers {
                given.push((key, answer.await.map_err(|_| unusable("The call is over"))?));
            }
            for (key, answer) in given {
                if responses.len() > 1 {
                    responses.push(',');
                }
                responses.push_str(&serde_json::Value::from(&*key).to_string());
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
    async fn answers_come_back_under_their_keys() {
        let asks = br#"{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"},"b":{"method":"roots/list"}},"requestState":"s"}"#;
        let required = required(asks).expect("readable").expect("it asks");
        let request = Request::own("tools/call", r#"{"name":"x"}"#).expect("a request");
        let retry = required.settle(&request, |asked| {
            for (question, answer) in asked.into_iter().rev() {
                let text = format!(r#"{{"of":"{}"}}"#, question.key);
                answer.send(Ok(text.into())).expect("awaited");
            }
        });
        let retry = retry.await.expect("all are answered");
        assert_eq!(
            retry.raw(Key::InputResponses),
            Some(r#"{"a":{"of":"a"},"b":{"of":"b"}}"#)
        );
        assert_eq!(retry.raw(Key::RequestState), Some("\"s\""));
    }
}
