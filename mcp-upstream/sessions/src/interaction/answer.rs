//! Answers to questions, and the responders that pass them to the upstream.

use std::sync::Arc;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::{Ask, Question, Replier};
use tooldock_protocol::bridge::links;
use tooldock_protocol::jsonrpc::{self, Response, ResponseOutcome, ServerRequest, spans};
use tooldock_protocol::version::code;

use super::{Interaction, OpenQuestionGuard, ask_failed, missing_capability};

/// Maximum length of a client's error message that is passed to a worker's function, in characters. Longer ones are cut.
const REFUSAL_MAX: usize = 512;

/// Passes the answer to the upstream that asked. If it is dropped without an answer, a server's request fails.
pub enum Responder {
    /// The question was asked by a worker's function, which waits for the answer with the question's key.
    Function(Replier),
    /// The question is a request of a stdio server. The guard, present if the question belongs to a call, counts it as
    /// unanswered. The request is boxed to keep the state of questions small.
    Request(Box<ServerRequest>, Option<OpenQuestionGuard>),
    /// The question belongs to an `input_required` result. All its questions must be answered before the server is called again.
    Round(oneshot::Sender<Result<Bytes, CallError>>),
    /// The question is a copy of a task's question, for a client that waits for the task. The client's answer goes to the task's
    /// question; a failure of the copy, such as the end of the client's session, leaves that question open for other clients.
    Task(Arc<Interaction>),
}

/// Questions that are asked together, each with its responder.
pub type QuestionSet = Vec<(Question, Responder)>;

/// The answer to a question.
pub(super) enum Answer {
    /// The client's complete JSON-RPC response.
    Response(Response),
    /// The client's result, a JSON object.
    Result(Bytes),
    /// The question was not answered. Contains the reason.
    Failed(CallError),
}

impl Responder {
    /// Memory that a question with this responder occupies, in bytes.
    pub(super) fn bytes(&self, question: Option<&Question>) -> usize {
        match self {
            // The request contains the question's parameters, so they are not counted separately.
            Self::Request(request, _) => request.bytes(),
            Self::Function(_) | Self::Round(_) | Self::Task(_) => {
                question.map_or(0, |it| it.key.len() + it.params.len())
            }
        }
    }

    pub(super) fn answer(self, key: &str, answer: Answer) {
        match (self, answer) {
            (Self::Request(request, _unanswered), Answer::Response(response)) => {
                request.forward(&response);
            }
            (Self::Request(request, _unanswered), Answer::Result(result)) => {
                match spans::raw(&result) {
                    Some(result) => {
                        request.answer(Ok(result));
                    }
                    None => request.refuse(code::INTERNAL, "The client's answer cannot be read"),
                }
            }
            (Self::Request(request, _unanswered), Answer::Failed(error)) => {
                let is_link = || request.params().is_some_and(|it| links::is_url(it));
                let code = match error.code {
                    CallErrorCode::MissingCapability if is_link() => code::INVALID_PARAMS,
                    CallErrorCode::MissingCapability => code::METHOD_NOT_FOUND,
                    _ => code::INTERNAL,
                };
                request.refuse(code, &error.message);
            }
            (Self::Function(replier), answer) => {
                replier.answer(key, answer.outcome().as_deref());
            }
            (Self::Round(waits), answer) => {
                let _ = waits.send(answer.outcome());
            }
            (Self::Task(question), Answer::Response(response)) => {
                question.respond(response);
            }
            (Self::Task(question), Answer::Result(result)) => {
                question.set_answer(result);
            }
            (Self::Task(_), Answer::Failed(_)) => {}
        }
    }
}

impl Answer {
    /// Size of a stored result, in bytes; 0 for other answers.
    pub(super) fn kept(&self) -> usize {
        match self {
            Self::Result(result) => result.len(),
            Self::Response(_) | Self::Failed(_) => 0,
        }
    }

    /// Converts the answer to a result or an error, for responders that cannot forward complete responses.
    fn outcome(self) -> Result<Bytes, CallError> {
        match self {
            Self::Response(response) => match response.outcome() {
                ResponseOutcome::Result(result) => Ok(result),
                ResponseOutcome::Error(error) => Err(refused(&error)),
            },
            Self::Result(result) => Ok(result),
            Self::Failed(error) => Err(error),
        }
    }
}

/// Combines the questions of a worker's function with their responders.
pub fn of_function(ask: Ask) -> QuestionSet {
    let Ask { questions, replier } = ask;
    let questions = questions.into_iter();
    questions
        .map(|it| (it, Responder::Function(replier.clone())))
        .collect()
}

/// Fails questions with this reason before the client is asked.
pub(crate) fn refuse(asked: QuestionSet, reason: &str) {
    for (question, responder) in asked {
        responder.answer(&question.key, Answer::Failed(ask_failed(reason)));
    }
}

/// Fails the questions of a call whose client cannot be asked.
pub fn cannot_be_asked(asked: QuestionSet) {
    for (question, responder) in asked {
        let failed = Answer::Failed(missing_capability(&question));
        responder.answer(&question.key, failed);
    }
}

/// Converts the client's error object to the error that a worker's function gets.
fn refused(error: &[u8]) -> CallError {
    #[derive(Deserialize)]
    struct ErrorFields<'a> {
        #[serde(borrow, default)]
        code: Option<&'a RawValue>,
        #[serde(borrow, default)]
        message: Option<&'a RawValue>,
    }
    let refusal = serde_json::from_slice::<ErrorFields<'_>>(error).ok();
    let code = refusal
        .as_ref()
        .and_then(|refusal| refusal.code)
        .map_or_else(String::new, |code| {
            let code: String = code.get().chars().take(16).collect();
            format!(" ({code})")
        });
    let message = refusal
        .and_then(|refusal| refusal.message)
        .and_then(jsonrpc::string)
        .unwrap_or_default();
    let message: String = message.chars().take(REFUSAL_MAX).collect();
    ask_failed(format!(
        "The client answered with an error{code}: {message}"
    ))
}
