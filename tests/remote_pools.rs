//! Three copies of a server behind one namespace, under each policy and in both modes: one copy is killed in the middle of
//! calls, streams and questions, and comes back. No session breaks, nothing is lost without a typed error, and nothing
//! runs twice.

mod copies;
mod programs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::support::session::{Session, call};
use crate::support::sse::Answering;
use crate::support::{Gateway, eventually};
use copies::{Copy, Record};
use programs::{Maker, Program};

const VERSION: &str = "2025-11-25";
const POLICIES: [&str; 4] = ["round_robin", "least_busy", "random", "hash"];
const MODES: [&str; 2] = ["client", "pass_through"];
/// Sessions of each policy, half of them in each mode.
const SESSIONS: usize = 60;
/// A session goes on calling until the copy is back, and so often after that.
const CALLS_AFTER: usize = 3;

/// How a call ended.
#[derive(Debug, PartialEq)]
enum Ended {
    Done,
    Failed(String),
    /// In a way that no client can read.
    Lost(String),
}

/// Makes a call and answers the server's questions meanwhile.
async fn make(session: &Session, id: u64, tool: &str, mark: &str) -> Ended {
    let answering = session.post(&call(id, tool, json!({"mark": mark}))).await;
    end(session, id, mark, answering).await
}

/// The calls of a session in turn: the tool, its arguments, and a word of the answer. They are given a mark.
type Calls = fn(u64, &str) -> (&'static str, Value, String);

fn of_copies(number: u64, mark: &str) -> (&'static str, Value, String) {
    let tool = ["slow", "ask", "quick"][number as usize % 3];
    (tool, json!({"mark": mark}), mark.to_owned())
}

fn of_everything(number: u64, mark: &str) -> (&'static str, Value, String) {
    match number % 3 {
        0 => {
            let arguments = json!({"duration": 0.1, "steps": 2});
            (
                "trigger-long-running-operation",
                arguments,
                "completed".to_owned(),
            )
        }
        1 => ("echo", json!({"message": mark}), mark.to_owned()),
        _ => (
            "trigger-elicitation-request",
            json!({}),
            "Raw result".to_owned(),
        ),
    }
}

/// Reads a call to its end and answers the server's questions meanwhile.
async fn end(session: &Session, id: u64, mark: &str, mut answering: Answering) -> Ended {
    let mut answer = Value::Null;
    if answering.is_events() {
        while let Some(event) = answering.event().await {
            let message = event.json();
            let said = match message["method"].as_str() {
                Some("elicitation/create") => json!({"action": "accept", "content": {}}),
                // An unanswered question delays the server's other answers, for a minute.
                Some("roots/list") => json!({"roots": []}),
                _ if message["id"] == id => {
                    answer = message;
                    continue;
                }
                _ => continue,
            };
            let reply = json!({"jsonrpc": "2.0", "id": message["id"], "result": said});
            // The server that asked may be gone; then the call says so.
            session.post(&reply).await;
        }
    } else {
        answer = answering.json().await;
    }
    let failed = &answer["result"]["_meta"]["tooldock/error"]["code"];
    let code = answer["error"]["data"]["code"].as_str();
    match code.or(failed.as_str()) {
        Some(code @ ("worker_unavailable" | "upstream_error")) => Ended::Failed(code.to_owned()),
        None if answer["result"]["content"].to_string().contains(mark) => Ended::Done,
        _ => Ended::Lost(format!("{} {answer}", answering.status)),
    }
}

/// How far all sessions are.
struct Stage {
    /// All sessions are open: calls may begin.
    begun: Semaphore,
    /// Calls that have ended.
    calls: AtomicUsize,
    /// The copy is gone: nothing can be half heard by it any more.
    is_killed: AtomicBool,
    /// The copy is back: a few calls more, and that is all.
    is_over: AtomicBool,
}

impl Stage {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Semaphore::new(0),
            calls: AtomicUsize::new(0),
            is_killed: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        })
    }

    /// Waits until so many calls more have ended.
    async fn goes_on(&self, calls: usize) {
        let then = self.calls.load(Ordering::SeqCst);
        eventually("the sessions go on", || async {
            (self.calls.load(Ordering::SeqCst) >= then + calls).then_some(())
        })
        .await;
    }
}

/// The outcome of a session.
#[derive(Default)]
struct Story {
    /// The calls that were answered by their result.
    done: Vec<String>,
    failed: usize,
    wrong: Vec<String>,
}

/// A session from its first call to its last.
async fn live(session: Session, name: String, calls: Calls, stage: Arc<Stage>) -> Story {
    let mut story = Story::default();
    stage.begun.acquire().await.unwrap().forget();
    let mut left = CALLS_AFTER;
    let mut id = 0;
    let mut broken = false;
    while left > 0 {
        left -= usize::from(stage.is_over.load(Ordering::SeqCst));
        id += 1;
        let mark = format!("{name} call {id}");
        let (tool, arguments, word) = calls(id, &mark);
        let after = stage.is_killed.load(Ordering::SeqCst);
        let answering = session.post(&call(id, tool, arguments)).await;
        let ended = end(&session, id, &word, answering).await;
        stage.calls.fetch_add(1, Ordering::SeqCst);
        match ended {
            Ended::Done => {
                broken = false;
                story.done.push(mark);
            }
            // Calls to a copy that is being killed may fail; the next call may not.
            Ended::Failed(code) if broken && after => {
                story.wrong.push(format!("{mark}: {code} again"))
            }
            Ended::Failed(_) => {
                broken = true;
                story.failed += 1;
            }
            Ended::Lost(how) => story.wrong.push(format!("{mark}: {how}")),
        }
    }
    story
}

fn namespace(balance: &str, mode: &str) -> String {
    format!("{balance}-{mode}").replace('_', "-")
}

fn keys(copies: &[Copy], balance: &str, mode: &str) -> Value {
    let mut keys = json!({
        "backends": copies.iter().map(Copy::url).collect::<Vec<_>>(), "balance": balance, "mode": mode,
        "health": {"active": {"every": "1s", "timeout": "30s"}},
        "limits": {"max_concurrency": 1000, "timeout": "120s"},
    });
    if mode == "client" {
        keys["isolation"] = json!("session");
    }
    keys
}

async fn three(record: &Record) -> Vec<Copy> {
    let mut copies = Vec::new();
    for _ in 0..3 {
        copies.push(Copy::start(record).await);
    }
    copies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_breaks_and_nothing_runs_twice_when_a_copy_is_killed_and_comes_back() {
    let record = Record::default();
    let mut copies = three(&record).await;
    let mut servers = serde_json::Map::new();
    for balance in POLICIES {
        for mode in MODES {
            servers.insert(namespace(balance, mode), keys(&copies, balance, mode));
        }
    }
    let gateway = Gateway::empty()
        .config(json!({"upstreams": {"remote": servers}}))
        .start()
        .await;

    let stage = Stage::new();
    let mut lives = JoinSet::new();
    for balance in POLICIES {
        for mode in MODES {
            for number in 0..SESSIONS / MODES.len() {
                let namespace = namespace(balance, mode);
                let session = Session::start(&gateway, &namespace, VERSION).await;
                let name = format!("{namespace} {number}");
                lives.spawn(live(session, name, of_copies, Arc::clone(&stage)));
            }
        }
    }
    stage.begun.add_permits(lives.len());
    // In the middle of calls, streams and questions.
    eventually("a copy is busy with all there is", || async {
        let (open, questions) = copies[0].open();
        (open >= 3 && questions >= 1).then_some(())
    })
    .await;
    copies[0].kill().await;
    stage.is_killed.store(true, Ordering::SeqCst);
    // About once for every session.
    stage.goes_on(SESSIONS * POLICIES.len()).await;
    copies[0].come_back().await;
    eventually("the copy is used again", || async {
        let namespace = namespace("round_robin", "pass_through");
        Session::start(&gateway, &namespace, VERSION).await;
        (copies[0].sessions() > 0).then_some(())
    })
    .await;
    stage.is_over.store(true, Ordering::SeqCst);

    let stories = lives.join_all().await;
    let failed = none_is_wrong(&stories);
    assert!(failed > 0, "nothing was going on when the copy was killed");
    let record = record.lock().unwrap().clone();
    println!("{failed} calls were cut, of {}", record.len());
    nothing_ran_twice(&stories, &record);
}

/// Every call ended well or with a typed error, and none but the first one after the kill with an error. How many did.
fn none_is_wrong(stories: &[Story]) -> usize {
    let wrong: Vec<_> = stories.iter().flat_map(|it| &it.wrong).collect();
    let some = &wrong[..wrong.len().min(20)];
    assert!(wrong.is_empty(), "{} of them: {some:#?}", wrong.len());
    stories.iter().map(|it| it.failed).sum()
}

fn nothing_ran_twice(stories: &[Story], record: &BTreeMap<String, usize>) {
    let twice: Vec<_> = record.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "{twice:#?}");
    for mark in stories.iter().flat_map(|it| &it.done) {
        assert_eq!(
            record.get(mark),
            Some(&1),
            "{mark} was answered and not run"
        );
    }
}

/// Three copies of a server of others, one policy, both modes.
async fn no_session_of_others_breaks(maker: Maker, balance: &str, calls: Calls) {
    let folder = tempfile::TempDir::new().unwrap();
    let record = folder.path().join("record");
    let mut programs = [(); 3].map(|()| Program::spawn(maker, &record));
    for program in &programs {
        program.listens().await;
    }
    let urls: Vec<_> = programs.iter().map(Program::url).collect();
    let servers: serde_json::Map<_, _> = MODES
        .iter()
        .map(|mode| {
            let mut keys = keys(&[], balance, mode);
            keys["backends"] = json!(urls);
            (namespace(balance, mode), keys)
        })
        .collect();
    let gateway = Gateway::empty()
        .config(json!({"upstreams": {"remote": servers}}))
        .start()
        .await;
    let stage = Stage::new();
    let mut lives = JoinSet::new();
    for mode in MODES {
        for number in 0..SESSIONS / MODES.len() {
            let namespace = namespace(balance, mode);
            let session = Session::start(&gateway, &namespace, VERSION).await;
            let name = format!("{namespace} {number}");
            lives.spawn(live(session, name, calls, Arc::clone(&stage)));
        }
    }
    stage.begun.add_permits(lives.len());
    stage.goes_on(SESSIONS).await;
    programs[0].kill();
    stage.is_killed.store(true, Ordering::SeqCst);
    stage.goes_on(SESSIONS).await;
    programs[0].come_back(&record).await;
    stage.goes_on(SESSIONS).await;
    stage.is_over.store(true, Ordering::SeqCst);
    let stories = lives.join_all().await;
    println!("{maker:?}: {} calls were cut", none_is_wrong(&stories));
    if maker == Maker::FastMcp {
        let mut ran = BTreeMap::new();
        for mark in std::fs::read_to_string(&record).unwrap().lines() {
            *ran.entry(mark.to_owned()).or_default() += 1;
        }
        nothing_ran_twice(&stories, &ran);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_of_server_everything_breaks_when_a_copy_is_killed_and_comes_back() {
    no_session_of_others_breaks(Maker::Everything, "least_busy", of_everything).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_of_fastmcp_breaks_when_a_copy_is_killed_and_comes_back() {
    no_session_of_others_breaks(Maker::FastMcp, "random", of_copies).await;
}

#[tokio::test]
async fn every_call_is_answered_while_a_copy_flaps_and_no_check_tells_of_it() {
    const ROUNDS: u64 = 7;
    let record = Record::default();
    let mut copies = [Copy::start(&record).await, Copy::start(&record).await];
    let ways = [
        ("shared", "client", Some("auto")),
        ("own", "client", Some("session")),
        ("passed", "pass_through", None),
    ];
    let mut servers = serde_json::Map::new();
    for (name, mode, isolation) in ways {
        for backup in [false, true] {
            let second = json!({"url": copies[1].url(), "backup": backup});
            let mut server = keys(&[], "round_robin", mode);
            server["backends"] = json!([copies[0].url(), second]);
            server["health"] = json!({"active": {"every": "1h"}});
            if let Some(isolation) = isolation {
                server["isolation"] = json!(isolation);
            }
            servers.insert(format!("{name}-{backup}"), server);
        }
    }
    let names: Vec<_> = servers.keys().cloned().collect();
    let gateway = Gateway::empty()
        .config(json!({"upstreams": {"remote": servers}}))
        .start()
        .await;
    let mut sessions = Vec::new();
    for name in names.iter().chain(&names) {
        let session = Session::start(&gateway, name, VERSION).await;
        sessions.push((format!("{name} {}", sessions.len()), session));
    }
    let call_all = async |id: u64| {
        let calls = sessions.iter().map(async |(name, session)| {
            let mark = format!("{name} call {id}");
            let ended = make(session, id, "quick", &mark).await;
            (ended != Ended::Done).then(|| format!("{mark}: {ended:?}"))
        });
        let ended = futures_util::future::join_all(calls).await;
        let wrong: Vec<_> = ended.into_iter().flatten().collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    };
    call_all(1).await;
    for round in 1..=ROUNDS {
        copies[0].kill().await;
        call_all(2 * round).await;
        copies[0].come_back().await;
        call_all(2 * round + 1).await;
    }
    let record = record.lock().unwrap().clone();
    assert_eq!(
        record.len() as u64,
        sessions.len() as u64 * (2 * ROUNDS + 1)
    );
    assert!(record.values().all(|times| *times == 1), "{record:#?}");
}

/// Waits until a reload is over.
async fn reloaded(gateway: &Gateway, changes: Value) {
    gateway.reconfigure(changes);
    let reloads = || async {
        let metrics = gateway.metrics_text().await;
        let lines = metrics
            .lines()
            .filter(|line| line.starts_with("tooldock_reloads_total"));
        let counts = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        counts.sum::<f64>()
    };
    let before = reloads().await;
    gateway.signal(Signal::HUP);
    eventually("the reload is counted", || async {
        (reloads().await > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_copy_that_is_drained_or_removed_finishes_what_runs_and_a_dead_pool_holds_nobody_up() {
    let record = Record::default();
    let mut copies = three(&record).await;
    // All begin at the first copy; the second one takes nothing before it is told to.
    let backends = |weights: &[u32]| -> Value {
        let urls = copies.iter().map(Copy::url).zip(weights);
        let backends: Vec<_> = urls
            .map(|(url, weight)| json!({"url": url, "weight": weight}))
            .collect();
        let server = |mode| {
            let mut keys = keys(&[], "round_robin", mode);
            keys["backends"] = json!(backends);
            keys
        };
        json!({"upstreams": {"remote": {"client": server("client"), "passed": server("pass_through")}}})
    };
    let (first, both) = (backends(&[1, 0]), backends(&[0, 1]));
    let mut second = backends(&[0, 1]);
    for name in ["client", "passed"] {
        let list = second["upstreams"]["remote"][name]["backends"].as_array_mut();
        list.unwrap().remove(0);
    }
    let gateway = Gateway::empty().config(first).start().await;
    let mut sessions = Vec::new();
    for name in ["client", "passed"] {
        sessions.push((name, Session::start(&gateway, name, VERSION).await));
    }
    // Calls that run while the copy is drained, and then while it is removed.
    for (round, changes) in [both, second].into_iter().enumerate() {
        let mut running = Vec::new();
        for (name, session) in &sessions {
            let mark = format!("{name} {round}");
            let asking = call(1, "ask", json!({"mark": mark}));
            let answering = session.post(&asking).await;
            running.push((session, mark, answering));
        }
        let asked = || copies.iter().map(|copy| copy.open().1).sum::<usize>();
        eventually("both are asked", || async { (asked() == 2).then_some(()) }).await;
        // A session that is passed on stays where it is, drained or not.
        let expected = 2 - round;
        assert!(copies[0].open().1 >= expected, "round {round}");
        reloaded(&gateway, changes).await;
        let before = copies[1].sessions();
        for name in ["client", "passed"] {
            let new = Session::start(&gateway, name, VERSION).await;
            let mark = format!("new {name} {round}");
            assert_eq!(make(&new, 1, "quick", &mark).await, Ended::Done, "{mark}");
        }
        assert!(copies[1].sessions() >= before + 2);
        assert_eq!(asked(), 2, "what runs was ended");
        for (session, mark, answering) in running {
            assert_eq!(
                end(session, 1, &mark, answering).await,
                Ended::Done,
                "{mark}"
            );
        }
    }
    for (name, session) in &sessions {
        let mark = format!("{name} after");
        assert_eq!(
            make(session, 2, "quick", &mark).await,
            Ended::Done,
            "{mark}"
        );
    }
    assert!(record.lock().unwrap().values().all(|times| *times == 1));

    copies[1].kill().await;
    for (name, session) in &sessions {
        let mark = format!("{name} dead");
        let ended = make(session, 3, "quick", &mark).await;
        assert_eq!(ended, Ended::Failed("worker_unavailable".into()), "{mark}");
    }
    for address in [gateway.address, gateway.metrics] {
        for path in ["/health", "/ready"] {
            let asked = gateway.client.get(format!("http://{address}{path}"));
            let answer = asked.send().await.unwrap();
            assert_eq!(answer.status(), 200, "{address}{path}");
            let text = answer.text().await.unwrap();
            let tells = address == gateway.metrics && path == "/ready";
            let backend = copies[1].address.to_string();
            assert_eq!(text.contains(&backend), tells, "{address}{path}: {text}");
        }
    }
    copies[1].come_back().await;
    for (name, session) in &sessions {
        let mark = format!("{name} back");
        // While no backend is healthy, one request a second tries.
        eventually("the pool is found again", || async {
            let ended = make(session, 4, "quick", &mark).await;
            (ended == Ended::Done).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_restart_that_keeps_sessions_ends_those_whose_server_keeps_state() {
    let record = Record::default();
    let copies = three(&record).await;
    let server = |stateful: bool| {
        let mut keys = keys(&copies[..1], "round_robin", "client");
        keys["stateful"] = json!(stateful);
        keys
    };
    let configured = json!({
        "sessions": {"store": "disk"},
        "upstreams": {"remote": {"free": server(false), "bound": server(true)}},
    });
    let mut gateway = Gateway::empty().config(configured).start().await;
    let mut sessions = Vec::new();
    for name in ["free", "bound"] {
        let session = Session::start(&gateway, name, VERSION).await;
        assert_eq!(make(&session, 1, "quick", name).await, Ended::Done);
        sessions.push((name, session));
    }
    gateway.killed_and_started_again().await;
    for (name, session) in sessions {
        let mark = format!("{name} after");
        let status = session
            .post(&call(2, "quick", json!({"mark": mark})))
            .await
            .status;
        let expected = if name == "bound" { 404 } else { 200 };
        assert_eq!(status, expected, "{name}");
    }
}

#[tokio::test]
async fn a_reload_of_a_pool_keeps_the_sessions_at_copies_that_stay_and_ends_state_with_the_copy_that_had_it()
 {
    let record = Record::default();
    let copies = three(&record).await;
    let pool = |backends: Value, more: Value| {
        let server = |stateful: bool| {
            let mut keys = keys(&[], "round_robin", "client");
            keys["backends"] = backends.clone();
            keys["stateful"] = json!(stateful);
            for (key, value) in more.as_object().unwrap() {
                keys[key] = value.clone();
            }
            keys
        };
        json!({"upstreams": {"remote": {"free": server(false), "bound": server(true)}}})
    };
    let url = |copy: usize| copies[copy].url();
    let two = pool(json!([url(0), url(1)]), json!({}));
    let gateway = Gateway::empty().config(two).start().await;
    let mut sessions = Vec::new();
    for number in 0..4 {
        for name in ["free", "bound"] {
            let session = Session::start(&gateway, name, VERSION).await;
            let mark = format!("{name} {number}");
            assert_eq!(make(&session, 1, "quick", &mark).await, Ended::Done);
            sessions.push((name, session));
        }
    }
    let ids = || [0, 1].map(|copy| copies[copy].session_ids());
    let before = ids();
    assert!(before.iter().all(|ids| ids.len() >= 2), "{before:?}");

    let weighted = json!([{"url": url(0), "weight": 0}, {"url": url(1), "weight": 3}, url(2)]);
    let more = json!({"retry": {"max": 2}, "headers": {"set": {"x-made-by": "reload"}}, "timeouts": {"head": "50s"}});
    reloaded(&gateway, pool(weighted, more)).await;
    for (number, (name, session)) in sessions.iter().enumerate() {
        let mark = format!("{name} {number} after");
        let ended = make(session, 2, "quick", &mark).await;
        assert_eq!(ended, Ended::Done, "{mark}");
    }
    assert_eq!(ids(), before, "sessions were opened or ended");

    reloaded(&gateway, pool(json!([url(1)]), json!({}))).await;
    let mut ended = 0;
    for (number, (name, session)) in sessions.iter().enumerate() {
        let mark = format!("{name} {number} at the end");
        let asked = call(3, "quick", json!({"mark": mark}));
        let status = session.post(&asked).await.status;
        match *name {
            "free" => assert_eq!(status, 200, "{mark}"),
            // In client mode the call is told why, and what follows gets 404.
            _ => ended += usize::from(session.post(&asked).await.status == 404),
        }
    }
    assert!(
        (1..4).contains(&ended),
        "{ended} of the sessions with state were at the copy"
    );
    eventually(
        "the sessions at the copy that is gone are ended there",
        || async { (copies[0].sessions() == 0).then_some(()) },
    )
    .await;
    assert!(
        ids()[1].is_superset(&before[1]),
        "sessions at the copy that stays"
    );
}
