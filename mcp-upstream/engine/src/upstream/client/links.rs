//! Pages that the user of a client must open during a call. The client gets an elicitation in URL mode (a question that asks its
//! user to open a link), and the call continues once the user has completed the page.
//!
//! While the user is on the page, the call's time limit does not run and its place among the running calls is free, as during
//! other questions to clients. The namespace's `ask_timeout` limits this wait.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::to_raw_value;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};
use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_process::worker::{OPEN_QUESTIONS_MAX, Question};
use tooldock_protocol::bridge::links::{self, ElicitationLink};
use tooldock_protocol::bridge::rounds::ROUNDS_MAX;
use tooldock_protocol::jsonrpc::{Request, Response};
use tooldock_servers::pool::ProcessLease;
use tooldock_sessions::interaction::Responder;

use super::call::{MissingResponse, ServerCall};
use super::inbound::InboundHandler;
use crate::engine::{Peer, ask_failed};

/// Pause before a request is repeated while the user is on the page that the server requires. Each further pause is twice as
/// long.
const FIRST_REPEAT: Duration = Duration::from_secs(1);
/// Maximum pause before a request is repeated.
const REPEAT_MAX: Duration = Duration::from_secs(15);

/// Error: the user of the client declined to open the page.
pub(super) struct LinkDeclined;

impl ServerCall {
    /// Asks the client to open pages, and waits for its answers. The inner error means that the user declined a page.
    ///
    /// # Errors
    ///
    /// `missing_capability` if the client cannot be asked to open a page; `ask_failed` if it gave no answer.
    pub(super) async fn ask_to_open(
        &self,
        peer: &Peer,
        pages: &[ElicitationLink],
    ) -> Result<Result<(), LinkDeclined>, CallError> {
        let asked = pages.iter().enumerate().map(|(number, page)| {
            let (responder, answer) = oneshot::channel();
            let question = page.question(&format!("link-{}", number + 1), !self.client.is_modern());
            ((question, Responder::Round(responder)), answer)
        });
        let (asked, answers): (Vec<_>, Vec<_>) = asked.unzip();
        peer.ask(asked);
        let mut accepted = true;
        for answer in answers {
            let answer = answer.await.map_err(|_| ask_failed("The call is over"))??;
            accepted &= is_accepted(&answer);
        }
        Ok(accepted.then_some(()).ok_or(LinkDeclined))
    }

    /// Waits until `done` completes, without counting this time for the call's time limit: a user is on a page meanwhile.
    ///
    /// # Errors
    ///
    /// `ask_failed` if `done` does not complete within the namespace's `ask_timeout`, or if too many calls wait for their
    /// clients.
    pub(super) async fn while_outside(
        &self,
        peer: &Peer,
        done: impl Future<Output = ()>,
    ) -> Result<(), CallError> {
        let over = || ask_failed("The call is over");
        let (responder, mut settled) = oneshot::channel();
        let Some(wait) = peer.wait_outside(Responder::Round(responder)) else {
            return Err(ask_failed(
                "Too many calls wait for an answer of their client",
            ));
        };
        tokio::select! {
            biased;
            // Only the branch below gives the answer, so a settled question means here that its time limit has expired.
            expired = &mut settled => {
                expired.map_err(|_| over())??;
            }
            () = done => {
                wait.set_answer(Bytes::from_static(b"{}"));
                settled.await.map_err(|_| over())??;
            }
        }
        Ok(())
    }

    /// Sends a modern client's request to a legacy server. If the server answers that its user must open pages (error −32042),
    /// asks the client to open them, and repeats the request until the server gives another answer.
    ///
    /// # Errors
    ///
    /// The errors of [`ServerCall::send`]; `ask_failed` if the user does not open or complete the pages.
    pub(super) async fn send_with_links(
        &self,
        process: &ProcessLease,
        handler: Option<&InboundHandler>,
        request: &Request,
        peer: &Peer,
    ) -> Result<Response, MissingResponse> {
        let mut opened: Vec<ElicitationLink> = Vec::new();
        let (mut pace, mut deadline) = (FIRST_REPEAT, None);
        for _ in 0..ROUNDS_MAX * 4 {
            let answer = self.send(process, request, peer).await?;
            let pages = match answer.is_error() && peer.asks() {
                true => links::required(answer.payload()),
                false => None,
            };
            let Some(pages) = pages else {
                return Ok(answer);
            };
            let is_known = |page: &ElicitationLink| {
                let mut opened = opened.iter();
                opened.any(|it| (&it.id, &it.url) == (&page.id, &page.url))
            };
            let patience = self.facts.namespace.limits.ask_timeout;
            if pages.iter().all(is_known) {
                if deadline.is_some_and(|it| it <= Instant::now()) {
                    return Err(self.left_open(&pages).into());
                }
                let repeat = async {
                    match handler {
                        Some(handler) => tokio::select! {
                            () = handler.completed() => {}
                            () = sleep(pace) => {}
                        },
                        None => sleep(pace).await,
                    }
                };
                self.while_outside(peer, repeat).await?;
                pace = (pace * 2).min(REPEAT_MAX);
                continue;
            }
            match self.ask_to_open(peer, &pages).await {
                Ok(Ok(())) => {}
                Ok(Err(LinkDeclined)) => {
                    return Err(ask_failed("The user declined to open the server's page").into());
                }
                Err(error) if error.code == CallErrorCode::MissingCapability => {
                    return Err(self.left_open(&pages).into());
                }
                Err(error) => return Err(error.into()),
            }
            opened.extend(pages);
            if opened.len() > OPEN_QUESTIONS_MAX {
                return Err(ask_failed("The server asked its client too often").into());
            }
            pace = FIRST_REPEAT;
            deadline = deadline.or_else(|| Instant::now().checked_add(patience));
        }
        Err(ask_failed("The server asked its client too often").into())
    }

    /// Returns the server's response, unless it is an error −32042 (pages must be opened) that the client cannot handle.
    ///
    /// # Errors
    ///
    /// `ask_failed`, with the links of the pages in its text, if the response is such an error and the client is modern or has
    /// not declared that it opens pages.
    pub(super) fn links_as_text(&self, answer: Response) -> Result<Response, CallError> {
        if !answer.is_error() {
            return Ok(answer);
        }
        match links::required(answer.payload()) {
            Some(pages) if !links::can_open(self.client.capabilities().get()) => {
                Err(self.left_open(&pages))
            }
            // The error −32042 does not exist in the era of modern clients.
            Some(pages) if self.client.is_modern() => Err(self.left_open(&pages)),
            _ => Ok(answer),
        }
    }

    /// Creates the error for pages that were not opened, or not completed in time. Its text contains the links.
    fn left_open(&self, pages: &[ElicitationLink]) -> CallError {
        let texts: Vec<_> = pages.iter().map(ElicitationLink::text).collect();
        let mut error = ask_failed(format!(
            "the server of namespace {} needs its user to open a page in a browser first. Open it, and call again: {}",
            self.facts.namespace.name,
            texts.join(", ")
        ));
        let urls: Vec<_> = pages.iter().map(|it| &it.url).collect();
        error.details = to_raw_value(&json!({ "urls": urls })).ok();
        error
    }
}

/// Ids of the elicitations in URL mode that the gateway sent to a legacy client on behalf of a modern server.
#[derive(Default)]
pub(super) struct AskedPages(Vec<String>);

impl AskedPages {
    /// Adds the id that legacy clients need to a question, and records it. Questions other than elicitations in URL mode stay
    /// unchanged.
    pub(super) fn identify(&mut self, question: &mut Question) {
        self.0.extend(links::identify(question, new_id));
    }

    /// Notifies the client that all recorded elicitations are completed. Called once the server has answered the request.
    pub(super) fn completed(self, peer: &Peer) {
        for id in self.0 {
            peer.say(None, links::completed(&id));
        }
    }
}

/// Returns a new random id for an elicitation. The id need not be secret.
fn new_id() -> String {
    format!("{:032x}", fastrand::u128(..))
}

fn is_accepted(answer: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct ElicitationAnswer<'a> {
        #[serde(borrow)]
        action: std::borrow::Cow<'a, str>,
    }
    serde_json::from_slice::<ElicitationAnswer<'_>>(answer).is_ok_and(|it| it.action == "accept")
}
