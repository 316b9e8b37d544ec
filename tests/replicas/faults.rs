//! Replicas that are killed, stopped, frozen and started again under clients that go on.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::{RequestBuilder, Response};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    LATEST, announce, both_up, claimed_while_frozen, holds, member, ping, replica, see, two,
};
use crate::support::dice::Dice;
use crate::support::gateway::Builder;
use crate::support::link::Link;
use crate::support::redis::Redis;
use crate::support::session::{Session, call};
use crate::support::sse::Event;
use crate::support::{DEADLINE, Gateway, TOKEN, eventually, tools};

/// Leaves a mark, says that many things on the way, and that a resource has changed.
const COUNTING: &str = r#"
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

/// Events that each call says.
const STEPS: usize = 4;
const CLIENTS: usize = 4;
/// Time of the faults. A fault that has begun is mended all the same.
const FAULTS: Duration = Duration::from_secs(60);
/// Seed of the faults; `REPLICA_FAULTS` sets another.
const SEED: u64 = 37;

#[tokio::test]
async fn a_frozen_replica_writes_nothing_into_a_session_that_another_has_claimed() {
    let redis = Redis::start().await;
    let (one, mut two) = two(&redis).await;
    let (here, read, lost) = claimed_while_frozen(&one, &two).await;

    two.kill();
    assert_eq!(ping(&here).await, 200);
    let mut again = here.get(read.as_deref()).await;
    let told = again.messages().await;
    assert_eq!(told, [lost]);
}

#[tokio::test]
async fn a_home_that_is_cut_off_from_redis_refuses_no_event_of_the_next_home_for_good() {
    let redis = Redis::start().await;
    let (link, one) = linked(&redis, "one");
    let (one, two) = both_up(tokio::join!(one.start(), replica(&redis, "two"))).await;
    let here = Session::start(&one, "talk", LATEST).await;
    let there = here.at(&two);
    let opened = here.get(None).await.next().await.expect("priming").id;
    link.cut();
    eventually("the other replica has claimed the session", async || {
        (ping(&there).await == 200 && holds(&two, 1).await).then_some(())
    })
    .await;
    let mut stream = there.get(opened.as_deref()).await;
    announce(&there, 2).await;
    let later = stream.event().await.expect("an announcement").id;
    drop(stream);

    let mut refused = here.get(later.as_deref()).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.header("retry-after"), Some("3"));
    let told = refused.json().await;
    let code = &told["error"]["data"]["code"];
    assert_eq!(code, "session_store_unavailable", "{told}");
    assert!(holds(&one, 1).await, "the home still has the session");
    link.mend();
    eventually("the client has its stream again", async || {
        (here.get(later.as_deref()).await.status == 200).then_some(())
    })
    .await;
    eventually("it is given up", async || {
        holds(&one, 0).await.then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_session_that_was_opened_without_redis_is_refused_by_others_while_its_home_answers() {
    let redis = Redis::start().await;
    let ((mended, one), (cut, three)) = (linked(&redis, "one"), linked(&redis, "three"));
    let all = tokio::join!(one.start(), replica(&redis, "two"), three.start());
    let (one, two, mut three) = all;
    for gateway in [&one, &two, &three] {
        see(gateway, 3).await;
    }
    mended.cut();
    cut.cut();
    let kept = Session::start(&one, "talk", LATEST).await;
    let lost = Session::start(&three, "talk", LATEST).await;
    see(&two, 1).await;
    for session in [&kept, &lost] {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": "ping"});
        let mut refused = session.at(&two).post(&message).await;
        assert_eq!(refused.status, 503);
        let told = refused.json().await;
        let code = &told["error"]["data"]["code"];
        assert_eq!(code, "replica_unavailable", "{told}");
        assert_eq!(ping(session).await, 200, "its home has it");
    }

    mended.mend();
    eventually("the session is recorded", async || {
        (ping(&kept.at(&two)).await == 200).then_some(())
    })
    .await;
    three.kill();
    eventually("the home has ended, and its session with it", async || {
        (ping(&lost.at(&two)).await == 404).then_some(())
    })
    .await;
}

/// A replica with a link to Redis that can be cut.
fn linked(redis: &Redis, name: &str) -> (Link, Builder) {
    let (link, url) = redis.link();
    let gateway = Gateway::with_tools([("talk", "talking.py", tools::TALKING)]);
    let store = json!({"sessions": {"store": url}});
    (link, member(gateway, redis, name).config(store))
}

/// The end of a call, as its client learned it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// With its result.
    Done,
    /// With an error of a known kind, or a connection that broke before anything came.
    Failed,
}

/// A client with one session, which knows all replicas and comes back after each loss.
struct Client {
    number: usize,
    replicas: Vec<SocketAddr>,
    http: reqwest::Client,
    id: String,
    dice: Dice,
    /// The file in which calls leave their marks.
    marks: PathBuf,
}

/// An event stream being read: `None` at its end, or where its connection breaks.
struct Events {
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

/// A response, or the reason why there is none.
enum Asked {
    Answered(Response),
    /// Nothing of the request has left.
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

    /// A request of the session at a replica of the dice's choice.
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

    /// Makes a call and follows it to its end, by whatever replicas are there.
    async fn call(&mut self, number: u64) -> Outcome {
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
                    // Nothing was done: the client may ask again.
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
                // A replica that was frozen opened the stream when the session was no longer its own.
                return Outcome::Failed;
            };
            events = resumed;
        }
    }

    /// The stream behind an event, or a new one before there was an event; `None` if its session has no such stream.
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

    /// Subscribes to its resource and opens the stream for the server's own messages.
    async fn listen(&mut self) -> Events {
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

/// A refusal that a client may meet while replicas come and go.
#[derive(Debug)]
enum Refusal {
    /// It was not carried out.
    Unavailable,
    /// It may have been carried out.
    Lost,
    /// The session has no such stream.
    UnknownEvent,
}

async fn refusal(response: Response) -> Refusal {
    let status = response.status();
    let body = response.text().await.unwrap_or_default();
    let told: Value = serde_json::from_str(&body).unwrap_or_default();
    assert!(told["error"]["code"].is_i64(), "{status} {body}");
    match told["error"]["data"]["code"].as_str() {
        Some(
            "replica_unavailable" | "shutting_down" | "starting" | "session_store_unavailable",
        ) => Refusal::Unavailable,
        Some("replica_lost") => Refusal::Lost,
        Some("unknown_event_id") => Refusal::UnknownEvent,
        _ => panic!("a refusal that no fault explains: {status} {body}"),
    }
}

/// The outcome of a call, as its client was told.
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

/// Calls without a pause until it is told to stop; the outcomes by mark.
async fn calls(mut client: Client, stop: Arc<AtomicBool>) -> (Client, BTreeMap<String, Outcome>) {
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

/// Reads the announcements of a session for ever, and counts them.
async fn announcements(mut client: Client, mut events: Events, count: Arc<AtomicUsize>) {
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

/// Does one thing to one replica, and mends it.
async fn fault(dice: &mut Dice, replicas: &mut [Gateway], links: &[Link]) {
    let at = dice.roll(replicas.len());
    let pause = Duration::from_millis(dice.roll(3000) as u64);
    let replica = &mut replicas[at];
    match dice.roll(4) {
        0 => {
            println!("replica {at} is killed for {pause:?}");
            replica.kill();
            tokio::time::sleep(pause).await;
            replica.started_again().await;
        }
        1 => {
            println!("replica {at} is frozen for {pause:?}");
            replica.signal(Signal::STOP);
            tokio::time::sleep(pause).await;
            replica.signal(Signal::CONT);
        }
        2 => {
            println!("replica {at} is cut off from Redis for {pause:?}");
            links[at].cut();
            tokio::time::sleep(pause).await;
            links[at].mend();
        }
        _ => {
            println!("replica {at} is stopped and started again");
            replica.signal(Signal::TERM);
            replica.ended().await;
            replica.started_again().await;
        }
    }
}

#[tokio::test]
async fn faults_of_replicas_lose_no_event_and_run_no_call_twice() {
    let seed = std::env::var("REPLICA_FAULTS").map_or(SEED, |seed| {
        seed.parse().expect("REPLICA_FAULTS is a number")
    });
    println!("REPLICA_FAULTS={seed} makes the same faults");
    let mut dice = Dice(seed);
    let mut redis = Redis::start_keeping().await;
    let mut links = Vec::new();
    let mut replica = |name| {
        let gateway = Gateway::with_tools([("count", "counting.py", COUNTING)]);
        let (link, url) = redis.link();
        links.push(link);
        let store = json!({"sessions": {"store": url}});
        member(gateway, &redis, name).config(store).start()
    };
    let (one, two, three) = (replica("one"), replica("two"), replica("three"));
    let replicas = tokio::join!(one, two, three);
    let mut replicas = [replicas.0, replicas.1, replicas.2];
    for gateway in &replicas {
        see(gateway, replicas.len()).await;
    }

    let folder = tempfile::TempDir::new().expect("a temporary directory");
    let marks = folder.path().join("marks");
    let stop = Arc::new(AtomicBool::new(false));
    let (mut running, mut counts, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..CLIENTS {
        let home = &replicas[dice.roll(replicas.len())];
        let session = Session::start(home, "count", LATEST).await;
        let mut client = || Client {
            number,
            replicas: replicas.iter().map(|it| it.address).collect(),
            http: reqwest::Client::builder()
                .pool_max_idle_per_host(0)
                .build()
                .expect("a client"),
            id: session.id.clone(),
            dice: Dice(dice.roll(usize::MAX) as u64),
            marks: marks.clone(),
        };
        let (caller, mut listener) = (client(), client());
        sessions.push(session);
        let events = listener.listen().await;
        let count = Arc::new(AtomicUsize::new(0));
        let listening = tokio::spawn(announcements(listener, events, Arc::clone(&count)));
        counts.push((listening, count));
        running.push(tokio::spawn(calls(caller, Arc::clone(&stop))));
    }

    let end = Instant::now() + FAULTS;
    while Instant::now() < end {
        fault(&mut dice, &mut replicas, &links).await;
    }
    for gateway in &replicas {
        see(gateway, replicas.len()).await;
    }
    // A replica that was frozen gives up what others claimed, which needs Redis.
    for client in &sessions {
        for gateway in &replicas {
            eventually("each session is where it belongs", || async {
                (ping(&client.at(gateway)).await == 200).then_some(())
            })
            .await;
        }
    }
    redis.killed_and_started_again().await;
    stop.store(true, Ordering::Relaxed);
    for gateway in &replicas {
        eventually("the store is heard again", || async {
            let ready = format!("http://{}/ready", gateway.metrics);
            let ready = gateway.client.get(ready).send().await.ok()?;
            let told: Value = ready.json().await.ok()?;
            (told["replicas"]["store"] == "up").then_some(())
        })
        .await;
    }

    let mut outcomes = BTreeMap::new();
    for (client, (listening, count)) in running.into_iter().zip(counts) {
        let (mut client, of_client) = client.await.expect("no fault that is not typed");
        outcomes.extend(of_client);
        // All is well again: the next call is answered and announced.
        let before = count.load(Ordering::Relaxed);
        assert_eq!(client.call(u64::MAX).await, Outcome::Done);
        eventually("the last call is announced", async || {
            assert!(!listening.is_finished(), "the listener failed");
            (count.load(Ordering::Relaxed) > before).then_some(())
        })
        .await;
        listening.abort();
    }
    let marks = std::fs::read_to_string(&marks).expect("calls have run");
    let runs = |mark: &str| marks.lines().filter(|line| *line == mark).count();
    for (mark, outcome) in &outcomes {
        match outcome {
            Outcome::Done => assert_eq!(runs(mark), 1, "{mark}"),
            Outcome::Failed => assert!(runs(mark) <= 1, "{mark} ran {} times", runs(mark)),
        }
    }
    let done = outcomes.values().filter(|it| **it == Outcome::Done).count();
    println!("{done} of {} calls have a result", outcomes.len());
    assert!(done * 2 > outcomes.len(), "most calls meet no fault");
}
