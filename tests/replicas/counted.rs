//! Client that calls at random replicas, and checks that no event of a call is lost or comes twice.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::{RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::LATEST;
use crate::support::dice::Dice;
use crate::support::session::call;
use crate::support::sse::Event;
use crate::support::{DEADLINE, TOKEN};

/// Tool that appends a mark to a file, sends log messages ([`STEPS`]), and announces a change of a resource.
pub const COUNTING: &str = r#"
import asyncio
from fastmcp import Context
from fastmcp.resources import resource
from fastmcp.tools import tool


@resource("test://{number}")
def counted(number: str) -> str:
    """The resource of a client."""
    return number


@tool
async def count(ctx: Context, file: str, mark: str, uri: str) -> str:
    """Leaves a mark."""
    with open(file, "a") as marks:
        marks.write(mark + "\n")
    for step in range(4):
        await ctx.info(f"{mark} {step}")
        await asyncio.sleep(0.02)
    await ctx.send_resource_updated(uri)
    return mark
"#;

/// Number of log messages that each call sends.
const STEPS: usize = 4;

/// Outcome of a call, as the client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The call has a result, and all its log messages have arrived.
    Done,
    /// The call failed with an error that is expected under faults, or its connection broke and no stream can be resumed.
    Failed,
}

/// Client with one session. It knows all replicas, and continues at a random replica after each loss.
pub struct Client {
    pub number: usize,
    pub replicas: Vec<SocketAddr>,
    pub http: reqwest::Client,
    pub id: String,
    pub dice: Dice,
    /// File to which calls append their marks.
    pub marks: PathBuf,
}

/// Reader of the events in a response. `next` returns `None` when the stream ends or its connection breaks.
pub struct Events {
    response: Response,
    body: Vec<u8>,
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.body.windows(2).position(|two| two == b"\n\n") {
                let block: Vec<u8> = self.body.drain(..end + 2).collect();
                return Some(Event::parse(std::str::from_utf8(&block).expect("text")));
            }
            let piece = timeout(DEADLINE, self.response.chunk()).await;
            let piece = piece.expect("a stream says something, or ends").ok()??;
            self.body.extend_from_slice(&piece);
        }
    }
}

/// Result of sending a request.
enum Asked {
    Answered(Response),
    /// No connection was made, so the request was not sent.
    Unsent,
    Broken,
}

impl Client {
    fn uri(&self) -> String {
        format!("test://{}", self.number)
    }

    fn mark(&self, call: u64) -> String {
        format!("{}-{call}", self.number)
    }

    /// Returns a request of the session, to a random replica.
    fn request(&mut self, method: &str) -> RequestBuilder {
        let replica = self.replicas[self.dice.roll(self.replicas.len())];
        let method = method.parse().expect("a method");
        self.http
            .request(method, format!("http://{replica}/mcp/count"))
            .bearer_auth(TOKEN)
            .header("Mcp-Session-Id", &self.id)
            .header("MCP-Protocol-Version", LATEST)
            .header("Accept", "application/json, text/event-stream")
    }

    async fn ask(&mut self, request: RequestBuilder) -> Asked {
        let sent = timeout(DEADLINE, request.send()).await;
        match sent.expect("an answer, or a broken connection") {
            Ok(response) => Asked::Answered(response),
            Err(error) if error.is_connect() => Asked::Unsent,
            Err(_) => Asked::Broken,
        }
    }

    /// Makes a call and follows it to its end, at whichever replicas respond.
    pub async fn call(&mut self, number: u64) -> Outcome {
        let mark = self.mark(number);
        let arguments = json!({"file": self.marks, "mark": mark, "uri": self.uri()});
        let message = call(number, "count", arguments);
        let mut told = Told::new(number, &mark);
        let response = loop {
            let request = self.request("POST").json(&message);
            match self.ask(request).await {
                Asked::Unsent => breathe().await,
                Asked::Broken => return Outcome::Failed,
                Asked::Answered(response) if response.status() == 200 => break response,
                Asked::Answered(response) => match refusal(response).await {
                    // The call was not carried out, so the client repeats it.
                    Refusal::Unavailable => breathe().await,
                    Refusal::Lost => return Outcome::Failed,
                    Refusal::UnknownEvent => panic!("a call names no event"),
                },
            }
        };
        if !is_events(&response) {
            told.take(&response.json().await.expect("a whole answer"));
            return told.outcome.expect("the answer");
        }
        let mut events = Events::of(response);
        loop {
            while let Some(event) = events.next().await {
                told.read(&event);
                if let Some(outcome) = told.outcome {
                    return outcome;
                }
            }
            let Some(last) = told.last.clone() else {
                return Outcome::Failed;
            };
            let Some(resumed) = self.resumed(Some(&last)).await else {
                // The stream was opened by a replica that had been frozen, when another replica had claimed the session.
                return Outcome::Failed;
            };
            events = resumed;
        }
    }

    /// Resumes a stream after the event `last`, or opens a new stream without such an event. Returns `None` if the session has no
    /// stream with this event.
    async fn resumed(&mut self, last: Option<&str>) -> Option<Events> {
        loop {
            let request = match last {
                Some(last) => self.request("GET").header("Last-Event-ID", last),
                None => self.request("GET"),
            };
            match self.ask(request).await {
                Asked::Answered(response) if response.status() == 200 => {
                    return Some(Events::of(response));
                }
                Asked::Answered(response) => {
                    if let Refusal::UnknownEvent = refusal(response).await {
                        return None;
                    }
                }
                Asked::Unsent | Asked::Broken => {}
            }
            breathe().await;
        }
    }

    /// Subscribes to the client's resource, and opens the stream for the server's own messages.
    pub async fn listen(&mut self) -> Events {
        let subscribe = json!({"jsonrpc": "2.0", "id": "s", "method": "resources/subscribe",
            "params": {"uri": self.uri()}});
        let request = self.request("POST").json(&subscribe);
        let Asked::Answered(response) = self.ask(request).await else {
            panic!("not subscribed");
        };
        let answer: Value = response.json().await.expect("an answer");
        assert_eq!(answer["result"], json!({}), "{answer}");
        let request = self.request("GET");
        match self.ask(request).await {
            Asked::Answered(response) if response.status() == 200 => Events::of(response),
            _ => panic!("no stream"),
        }
    }
}

impl Events {
    fn of(response: Response) -> Self {
        assert!(is_events(&response), "{response:?}");
        Self {
            response,
            body: Vec::new(),
        }
    }
}

fn is_events(response: &Response) -> bool {
    let kind = response.headers().get("content-type");
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

async fn breathe() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// Refusal of a request that is expected while replicas fail and return.
#[derive(Debug)]
enum Refusal {
    /// The request was not carried out.
    Unavailable,
    /// The request may have been carried out.
    Lost,
    /// No stream of the session contains the event after which the client wants to continue.
    UnknownEvent,
}

async fn refusal(response: Response) -> Refusal {
    let (status, replica) = (response.status(), response.url().clone());
    let body = response.text().await.unwrap_or_default();
    let told: Value = serde_json::from_str(&body).unwrap_or_default();
    assert!(told["error"]["code"].is_i64(), "{status} {body}");
    match told["error"]["data"]["code"].as_str() {
        Some(
            "replica_unavailable" | "shutting_down" | "starting" | "session_store_unavailable",
        ) => Refusal::Unavailable,
        Some("replica_lost") => Refusal::Lost,
        Some("unknown_event_id") => Refusal::UnknownEvent,
        _ => panic!("a refusal that no fault explains: {status} {body} of {replica}"),
    }
}

/// Events of a call that its client has received, and the call's outcome.
struct Told {
    number: u64,
    mark: String,
    ids: HashSet<String>,
    last: Option<String>,
    steps: usize,
    outcome: Option<Outcome>,
}

impl Told {
    fn new(number: u64, mark: &str) -> Self {
        Self {
            number,
            mark: mark.to_owned(),
            ids: HashSet::new(),
            last: None,
            steps: 0,
            outcome: None,
        }
    }

    fn read(&mut self, event: &Event) {
        if let Some(id) = &event.id {
            assert!(
                self.ids.insert(id.clone()),
                "an event came twice: {event:?}"
            );
            self.last = Some(id.clone());
        }
        if !event.data.is_empty() {
            self.take(&event.json());
        }
    }

    fn take(&mut self, message: &Value) {
        if message["method"] == "notifications/message" {
            let said = message["params"]["data"].to_string();
            let expected = format!("{} {}", self.mark, self.steps);
            assert!(said.contains(&expected), "{expected} is due: {message}");
            self.steps += 1;
            return;
        }
        assert_eq!(message["id"], self.number, "{message}");
        let text = message.to_string();
        self.outcome = Some(match message["result"]["isError"].as_bool() {
            Some(false) => {
                assert_eq!(self.steps, STEPS, "events of {} are missing", self.mark);
                Outcome::Done
            }
            _ => {
                assert!(text.contains("worker_unavailable"), "{message}");
                Outcome::Failed
            }
        });
    }
}

/// Makes calls without a pause until `stop` is set. Returns the client, and the outcome of each call by its mark.
pub async fn calls(
    mut client: Client,
    stop: Arc<AtomicBool>,
) -> (Client, BTreeMap<String, Outcome>) {
    let mut outcomes = BTreeMap::new();
    for number in 1.. {
        let outcome = client.call(number).await;
        outcomes.insert(client.mark(number), outcome);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    (client, outcomes)
}

/// Counts the announcements that a client receives, without an end. An event that comes twice fails the test.
pub async fn announcements(mut client: Client, mut events: Events, count: Arc<AtomicUsize>) {
    let mut ids = HashSet::new();
    let mut last = None;
    loop {
        while let Some(event) = events.next().await {
            if let Some(id) = &event.id {
                assert!(ids.insert(id.clone()), "an event came twice: {event:?}");
                last = Some(id.clone());
            }
            if !event.data.is_empty() {
                let told = event.json();
                assert_eq!(told["method"], "notifications/resources/updated", "{told}");
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        let resumed = client.resumed(last.as_deref()).await;
        events = resumed.expect("the stream of a session stays while the session does");
    }
}
