//! A call of a modern client that may send messages and questions before its outcome, and may be continued by further requests.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tooldock_engine::engine::{CallOutcome, UpstreamCall};
use tooldock_engine::upstream::{CallContext, RequestMeta};
use tooldock_sessions::interaction::{self, Interaction, PeerEvent, Suspendable};

use super::exchange::Inputs;
use crate::jsonrpc::{self, Message, RequestError, splice};
use crate::mcp::Core;
use crate::mcp::driver::{CallDriver, DriverStep};
use crate::mcp::tasks::TaskCall;

/// Time for which further questions of a server that sends one question at a time are collected before they are sent to the
/// client. Without it, three questions would need three requests of the client.
const ASKED_TOGETHER: Duration = Duration::from_millis(25);

/// A call of the upstream that may still send messages and questions. It owns all its data, so that it can outlive the request
/// that began it.
pub(crate) struct ModernCall {
    driver: CallDriver<CallOutcome>,
    /// Questions that are not answered yet. The engine limits their number.
    questions: Vec<Arc<Interaction>>,
    /// Time until which further questions are collected before the client is asked.
    gathering: Instant,
    call: Arc<dyn UpstreamCall>,
}

/// The client of the current request, with the kinds of messages that it has requested.
pub(super) struct Recipient {
    pub(super) meta: RequestMeta,
    /// True if the client accepts events before its response.
    pub(super) streams: bool,
}

/// Next message, questions or outcome of a call.
pub(super) enum Step {
    /// A message for the client, before the outcome.
    Said(Vec<u8>),
    /// Questions that the client must answer before the call continues.
    Asked(InputRequests),
    /// The outcome of the call.
    Over(CallOutcome),
}

/// Questions that one response sends to the client: at least one, each of a known kind.
pub(super) struct InputRequests {
    pub(super) questions: Vec<Arc<Interaction>>,
    /// The latest deadline of the questions.
    pub(super) deadline: Instant,
}

impl ModernCall {
    /// Creates a call, which is run by [`Self::step`].
    pub(super) fn begin(
        core: &Arc<Core>,
        cx: &CallContext<'_>,
        call: Arc<dyn UpstreamCall>,
    ) -> Self {
        let (sender, events) = interaction::events();
        let core = Arc::clone(core);
        let caller = cx.caller.clone();
        let running = Arc::clone(&call);
        let work = async move { core.engine.run(&caller, &running, Some(sender)).await };
        Self {
            driver: CallDriver::new(work, Some(events)),
            questions: Vec::new(),
            gathering: Instant::now(),
            call,
        }
    }

    /// The upstream's call.
    pub(super) fn call(&self) -> &Arc<dyn UpstreamCall> {
        &self.call
    }

    /// Returns the questions that the client has yet to answer.
    fn asked(&self) -> impl Iterator<Item = &Arc<Interaction>> {
        let known = self.questions.iter().filter(|it| it.question().is_some());
        known.filter(|it| it.is_open())
    }

    /// Delivers the client's answers to the call.
    ///
    /// # Errors
    ///
    /// `InvalidParams` if some questions are still open and the answers stored until then are too large. The caller must then
    /// drop the call.
    pub(super) fn answer(
        &mut self,
        cx: &CallContext<'_>,
        inputs: &Inputs<'_>,
    ) -> Result<(), RequestError> {
        let answers = inputs.iter();
        let answers = answers.map(|(key, answer)| (&**key, answer.get().as_bytes()));
        interaction::set_answer(&self.questions, answers, |answer| cx.own(answer))
            .map_err(|error| RequestError::InvalidParams(error.to_string().into()))
    }

    /// Returns true if the client has answered all questions that the call has asked so far, and there were some.
    pub(super) fn has_answers(&self) -> bool {
        !self.questions.is_empty() && self.asked().next().is_none()
    }

    /// Converts the call to one that becomes a task.
    pub(super) fn into_task(self) -> TaskCall {
        TaskCall {
            call: self.call,
            driver: self.driver,
            questions: self.questions,
        }
    }

    /// Returns true if the call waits for the client's answers.
    fn asks(&self) -> bool {
        !self.driver.is_over() && self.asked().next().is_some()
    }

    /// Returns the questions that the client must answer now; `None` without open questions.
    fn input_requests(&self) -> Option<InputRequests> {
        let questions: Vec<_> = self.asked().map(Arc::clone).collect();
        let deadline = questions.iter().map(|it| it.deadline()).max()?;
        Some(InputRequests {
            questions,
            deadline,
        })
    }

    /// Runs the call until its next message, questions or outcome. Cancel safe.
    pub(super) async fn step(&mut self, client: &Recipient) -> Step {
        loop {
            let asks = self.asks();
            // next: a message, a question, or the end of the call.
            // gathering is over: the call waits for its client, and the time for further questions has passed.
            let next = tokio::select! {
                biased;
                next = self.driver.next() => next,
                () = sleep_until(self.gathering), if asks => match self.input_requests() {
                    Some(asked) => return Step::Asked(asked),
                    // The server has withdrawn its questions meanwhile.
                    None => continue,
                },
            };
            match next {
                DriverStep::Event(PeerEvent::InputRequests(questions)) => {
                    self.take_questions(questions, client);
                }
                DriverStep::Event(event) => {
                    if let Some(message) = client.message(event) {
                        return Step::Said(message);
                    }
                }
                DriverStep::Over(outcome) => return Step::Over(outcome),
            }
        }
    }

    /// Adds the questions that the client supports; the others fail immediately.
    fn take_questions(&mut self, asked: Vec<Arc<Interaction>>, client: &Recipient) {
        // Only some servers send related questions one by one. A worker sends all its questions together, so there is no wait.
        if self.call.facts().asks_singly {
            self.gathering = Instant::now() + ASKED_TOGETHER;
        }
        self.questions.retain(|it| !it.is_over());
        let capabilities = &client.meta.capabilities;
        let asked = asked.into_iter().filter(|it| it.admit(capabilities));
        self.questions.extend(asked);
    }
}

impl Suspendable for ModernCall {
    async fn go_on(&mut self) {
        self.driver.go_on().await;
    }
}

impl Recipient {
    /// Builds the notification for an event; `None` if the client does not want it.
    fn message(&self, event: PeerEvent) -> Option<Vec<u8>> {
        if !self.streams {
            return None;
        }
        let token = self.meta.progress_token.as_deref();
        let token = token.and_then(|token| std::str::from_utf8(token).ok());
        let is_whole = matches!(event, PeerEvent::Message { .. });
        let message = interaction::notification(event, token, self.meta.log_level)?;
        match is_whole {
            true => under_token(message, token),
            false => Some(message),
        }
    }
}

/// Replaces the token of a progress notification by the present request's token: a call that was continued by a retry may still
/// use the token of the request that began it. Returns `None` for progress if the present request has no token.
fn under_token(message: Vec<u8>, token: Option<&str>) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(&message).ok()?;
    let is_progress = matches!(
        jsonrpc::message(text),
        Ok(Message::Notification { method, .. }) if method == "notifications/progress"
    );
    match is_progress {
        true => splice::with_progress_token(text, token?),
        false => Some(message),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_request_hears_progress_under_its_own_token_or_not_at_all() {
        let client = |token: Option<&'static [u8]>| Recipient {
            meta: RequestMeta {
                capabilities: Bytes::from_static(b"{}"),
                client_info: None,
                log_level: None,
                progress_token: token.map(Bytes::from_static),
                inputs: None,
            },
            streams: true,
        };
        let says = |client: &Recipient, text: &'static str| {
            let message = Bytes::from_static(text.as_bytes());
            let heard = client.message(PeerEvent::Message {
                level: None,
                message,
            });
            heard.map(|heard| String::from_utf8(heard).expect("UTF-8"))
        };
        let progress = r#"{"jsonrpc":"2.0","m\u0065thod":"notifications/progress","params":{"progressToken":"first","progress":1.0}}"#;
        let other = r#"{"jsonrpc":"2.0","method":"x/news","params":{"progressToken":"first"}}"#;
        let (with, without) = (client(Some(b"7")), client(None));
        let own = progress.replace("\"first\"", "7");
        assert_eq!(says(&with, progress), Some(own));
        assert_eq!(says(&without, progress), None);
        for client in [with, without] {
            assert_eq!(says(&client, other).as_deref(), Some(other));
        }
    }
}
