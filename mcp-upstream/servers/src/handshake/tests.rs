//! Servers of every era, played line by line, and a real one.

use std::process::Stdio;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::link::{LinkLimits, LinkRuntimes, NotificationSink};
use crate::pipes::Pipes;
use crate::scene::{Heard, House, Scene, raw, request, result, within};

const PROBE: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(30);
const DISCOVERED: &str = r#"{"supportedVersions":["2026-07-28"],"capabilities":{"x":1.0}}"#;
const BOTH: &str = r#"{"supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{}}"#;
const INITIALIZED: &str = r#"{"protocolVersion":"2025-06-18","capabilities":{"x":1.0}}"#;

/// Probes a server that the test plays.
async fn probed(
    scene: &mut Scene,
    play: impl AsyncFnOnce(&mut crate::scene::ServerEnd),
) -> Result<ProbeOutcome, NotOpened> {
    let link = Arc::clone(&scene.link);
    let identity = ClientIdentity::gateway();
    let probing = probe(&link, identity, PROBE, LIMIT, &|_| ());
    let (probed, ()) = tokio::join!(probing, play(&mut scene.peer));
    probed
}

fn answer(request: &Value, member: &str, value: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"{member}":{value}}}"#,
        request["id"]
    )
}

fn error(code: i32) -> String {
    json!({"code": code, "message": "no"}).to_string()
}

#[tokio::test]
async fn a_server_that_answers_the_first_question_is_modern_or_both() {
    for (text, both) in [(DISCOVERED, false), (BOTH, true)] {
        let mut scene = Scene::new();
        let probed = probed(&mut scene, async |peer| {
            let question = peer.json().await;
            assert_eq!(question["method"], "server/discover");
            let meta = &question["params"]["_meta"];
            assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], MODERN);
            assert_eq!(
                meta["io.modelcontextprotocol/clientCapabilities"],
                json!({})
            );
            assert_eq!(
                meta["io.modelcontextprotocol/clientInfo"]["name"],
                "tooldock"
            );
            peer.send(&answer(&question, "result", text)).await;
        })
        .await
        .expect("open");
        assert!(probed.initialized.is_none());
        match probed.facts.era {
            ProbedEra::Modern { discover } if !both => assert_eq!(discover, text),
            ProbedEra::Dual { discover } if both => assert_eq!(discover, text),
            other => panic!("{other:?}"),
        }
        scene.settle().await;
    }
}

#[tokio::test]
async fn a_refusal_is_told_before_anything_else_is_asked_and_an_answer_is_none() {
    for (member, value, refused) in [
        ("result", DISCOVERED.to_owned(), false),
        ("error", error(-32602), true),
    ] {
        let mut scene = Scene::new();
        let link = Arc::clone(&scene.link);
        let told = std::sync::Mutex::new(Vec::new());
        let heard = |refused| told.lock().expect("unpoisoned").push(refused);
        let identity = ClientIdentity::gateway();
        let probing = probe(&link, identity, PROBE, LIMIT, &heard);
        let play = async {
            let question = scene.peer.json().await;
            scene.peer.send(&answer(&question, member, &value)).await;
            if refused {
                let request = scene.peer.json().await;
                assert_eq!(request["method"], "initialize");
                assert_eq!(*told.lock().expect("unpoisoned"), [true]);
                let answer = answer(&request, "result", INITIALIZED);
                scene.peer.send(&answer).await;
                scene.peer.json().await;
            }
        };
        let (probed, ()) = tokio::join!(probing, play);
        assert!(probed.is_ok());
        assert_eq!(*told.lock().expect("unpoisoned"), [refused]);
        scene.settle().await;
    }
}

#[tokio::test]
async fn any_refusal_of_the_first_question_leads_to_initialize() {
    for (member, value) in [
        ("error", error(-32601)),
        ("error", error(-32602)),
        ("error", error(-32022)),
        ("error", "\"strange\"".to_owned()),
        ("result", "{}".to_owned()),
        (
            "result",
            r#"{"supportedVersions":["2025-11-25"]}"#.to_owned(),
        ),
        ("neither", "1".to_owned()),
    ] {
        let mut scene = Scene::new();
        let probed = probed(&mut scene, async |peer| {
            let question = peer.json().await;
            peer.send(&answer(&question, member, &value)).await;
            let request = peer.json().await;
            assert_eq!(request["method"], "initialize");
            let params = json!({
                "protocolVersion": "2025-11-25", "capabilities": {},
                "clientInfo": {"name": "tooldock", "version": env!("CARGO_PKG_VERSION")},
            });
            assert_eq!(request["params"], params);
            peer.send(&answer(&request, "result", INITIALIZED)).await;
            assert_eq!(
                peer.line().await,
                r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#
            );
        })
        .await
        .expect("open");
        let initialized = probed.initialized.expect("initialized");
        assert_eq!(initialized.version, ProtocolVersion::V2025_06_18);
        assert!(matches!(
            probed.facts.era,
            ProbedEra::Legacy { version: ProtocolVersion::V2025_06_18, result } if result == INITIALIZED
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn silence_leads_to_initialize_and_is_not_held_against_a_slow_server() {
    // (responses to the probe, to `initialize`) → era of the server, and whether it was initialized.
    for (late, initialize, kind, opened) in [
        (None, Some(INITIALIZED), "legacy", true),
        (Some(BOTH), Some(INITIALIZED), "dual", true),
        (Some(DISCOVERED), None, "modern", false),
    ] {
        let mut scene = Scene::new();
        let probed = probed(&mut scene, async |peer| {
            let question = peer.json().await;
            let request = peer.json().await;
            assert_eq!(request["method"], "initialize");
            if initialize.is_none() {
                peer.send(&answer(&request, "error", &error(-32022))).await;
            }
            if let Some(late) = late {
                peer.send(&answer(&question, "result", late)).await;
            }
            if let Some(initialize) = initialize {
                peer.send(&answer(&request, "result", initialize)).await;
            }
        })
        .await
        .expect("open");
        assert_eq!(probed.initialized.is_some(), opened, "{kind}");
        let found = match probed.facts.era {
            ProbedEra::Legacy { .. } => "legacy",
            ProbedEra::Modern { .. } => "modern",
            ProbedEra::Dual { .. } => "dual",
        };
        assert_eq!(found, kind);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_fails_in_time_and_says_so() {
    let mut scene = Scene::new();
    let begun = Instant::now();
    let failed = probed(&mut scene, async |_| {}).await.expect_err("silent");
    assert!(begun.elapsed() >= LIMIT && begun.elapsed() < LIMIT * 2);
    assert_eq!(failed.error.code, CallErrorCode::WorkerUnavailable);
    assert!(
        failed.error.message.contains("initialize"),
        "{}",
        failed.error
    );
    assert!(!failed.ended_by_probe);
    assert_eq!(scene.link.in_flight(), 0);
}

#[tokio::test]
async fn a_server_that_ends_on_the_probe_may_be_opened_without_it() {
    let Scene { link, mut peer, .. } = Scene::new();
    let identity = ClientIdentity::gateway();
    let probing = probe(&link, identity, PROBE, LIMIT, &|_| ());
    let ends = async move {
        peer.json().await;
    };
    let (failed, ()) = tokio::join!(probing, ends);
    assert!(failed.expect_err("ended").ended_by_probe);
}

#[tokio::test]
async fn a_refused_or_strange_initialize_is_an_error_in_the_servers_words() {
    for (member, value, expected) in [
        ("error", r#"{"code":1,"message":"set X_KEY"}"#, "set X_KEY"),
        ("error", "1", "refused"),
        (
            "result",
            r#"{"protocolVersion":"1999-01-01"}"#,
            "the protocol version \"1999-01-01\", which is not served",
        ),
        (
            "result",
            r#"{"protocolVersion":5}"#,
            "the protocol version \"5\", which is not served",
        ),
        ("result", "{}", "names no protocol version"),
        ("result", "[]", "names no protocol version"),
    ] {
        let mut scene = Scene::new();
        let link = Arc::clone(&scene.link);
        let params = ClientIdentity::gateway().initialize_params();
        let (failed, ()) = tokio::join!(initialize(&link, &params, LIMIT), async {
            let request = scene.peer.json().await;
            scene.peer.send(&answer(&request, member, value)).await;
        });
        let failed = failed.expect_err(value);
        assert_eq!(failed.code, CallErrorCode::WorkerUnavailable);
        assert!(failed.message.contains(expected), "{failed}");
        scene.settle().await;
    }
}

/// A real server in one of its eras.
struct Fixture {
    link: Arc<Link>,
    asked: mpsc::Receiver<tooldock_protocol::jsonrpc::ServerRequest>,
    said: mpsc::Receiver<String>,
    process: tokio::process::Child,
}

impl Fixture {
    fn start(era: &str) -> Self {
        let (server_in, stdin) = std::io::pipe().expect("a pipe");
        let (stdout, server_out) = std::io::pipe().expect("a pipe");
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/fixtures/servers/everything.mjs"
        );
        // The server compares its own path with its argument's, with links resolved.
        let script = std::fs::canonicalize(script).expect("the server is there");
        let process = tokio::process::Command::new("node")
            .arg(script)
            .args(["--era", era])
            .stdin(Stdio::from(server_in))
            .stdout(Stdio::from(server_out))
            .kill_on_drop(true)
            .spawn()
            .expect("Node.js runs the server of this test");
        let (said_to, said) = mpsc::channel(100);
        let (asked_to, asked) = mpsc::channel(100);
        let house = Arc::new(House::new(said_to, asked_to));
        let pipes = Pipes {
            stdin: stdin.into(),
            stdout: stdout.into(),
        };
        let name = "demo".parse().expect("a name");
        let limits = LinkLimits::new(|| 1 << 20);
        let link = Link::open(name, pipes, LinkRuntimes::here(), limits, house).expect("pipes");
        Self {
            link,
            asked,
            said,
            process,
        }
    }

    async fn probe(&self) -> ProbeOutcome {
        let identity = ClientIdentity {
            capabilities: raw(r#"{"sampling":{},"elicitation":{}}"#).to_owned().into(),
            ..ClientIdentity::clone(ClientIdentity::gateway())
        };
        within(probe(&self.link, &identity, LIMIT, LIMIT, &|_| ()))
            .await
            .expect("open")
    }

    /// Calls a tool as a client would, with its own id and token.
    async fn call(&self, modern: bool, tool: &str, arguments: &str) -> (String, Vec<String>) {
        let meta = if modern {
            r#""io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"#
        } else {
            ""
        };
        let message = format!(
            r#"{{"jsonrpc":"2.0","id":"c\u002d1","method":"tools/call","params":{{"_meta":{{{meta}"progressToken":9007199254740993}},"name":"{tool}","arguments":{arguments}}}}}"#
        );
        let (to, mut heard) = mpsc::channel(100);
        let sink: Arc<dyn NotificationSink> = Arc::new(Heard(to));
        let mut call = self
            .link
            .forward(&request(&message), Some(sink), None, None)
            .expect("begun");
        let answer = within(call.answer()).await.expect("an answer");
        let whole = String::from_utf8(answer.with_id("\"c\\u002d1\"")).expect("text");
        drop(call);
        let mut messages = Vec::new();
        while let Ok((message, _)) = heard.try_recv() {
            messages.push(message);
        }
        (whole, messages)
    }

    /// Ends the server by the end of its input.
    async fn end(mut self) {
        self.link.finish();
        within(self.link.closed()).await;
        let status = within(self.process.wait()).await.expect("waited for");
        assert!(status.success(), "{status}");
    }
}

/// Checks that a call through the link is transparent, in either era.
async fn shows_transparency(fixture: &Fixture, modern: bool) {
    let (whole, _) = fixture
        .call(modern, "echo_raw", r#"{"x":{"deep":[1,null,"é\u0041"]}}"#)
        .await;
    let value: Value = serde_json::from_str(&whole).expect("JSON");
    assert_eq!(value["id"], "c-1");
    assert!(whole.contains(r#""id":"c\u002d1""#), "{whole}");
    assert_eq!(
        value["result"]["x-unknown-result-field"],
        json!({"keep": true})
    );
    let seen = &value["result"]["structuredContent"]["params"];
    assert_eq!(seen["arguments"], json!({"x": {"deep": [1, null, "éA"]}}));
    assert!(
        seen["_meta"]["progressToken"]
            .as_u64()
            .is_some_and(|id| id < 1 << 53)
    );

    let (whole, said) = fixture.call(modern, "test_tool_with_progress", "{}").await;
    assert!(whole.contains("\"result\""), "{whole}");
    assert!(!said.is_empty());
    for message in said {
        assert!(
            message.contains(r#""progressToken":9007199254740993"#),
            "{message}"
        );
    }
    // A line that is no JSON comes first, without an effect on the call.
    let (whole, _) = fixture.call(modern, "stdout_noise", "{}").await;
    assert!(whole.contains("\"result\""), "{whole}");
}

#[tokio::test]
async fn the_fixture_is_legacy_when_it_is_and_asks_its_client() {
    let mut fixture = Fixture::start("legacy");
    let probed = fixture.probe().await;
    let initialized = probed.initialized.expect("initialized");
    assert_eq!(initialized.version, ProtocolVersion::V2025_11_25);
    assert!(matches!(probed.facts.era, ProbedEra::Legacy { .. }));
    shows_transparency(&fixture, false).await;

    let params = raw(r#"{"name":"test_sampling","arguments":{"prompt":"p"}}"#);
    let call = fixture.link.request("tools/call", Some(params), None);
    let call = call.expect("begun");
    let request = within(fixture.asked.recv()).await.expect("asked");
    assert_eq!(request.method(), "sampling/createMessage");
    assert!(request.answer(Ok(raw(
        r#"{"role":"assistant","content":{"type":"text","text":"yes"},"model":"m"}"#
    ))));
    assert!(result(within(call).await).contains("yes"));
    assert!(fixture.said.try_recv().is_err());

    let params = raw(r#"{"name":"slow","arguments":{"ms":60000}}"#);
    let slow = fixture.link.request("tools/call", Some(params), None);
    let slow = slow.expect("begun");
    let id = slow.id().to_string();
    drop(slow);
    let (whole, _) = fixture.call(false, "cancelled_ids", "{}").await;
    assert!(whole.contains(&id), "{whole}");
    fixture.end().await;
}

#[tokio::test]
async fn the_fixture_is_modern_when_it_is_and_listens() {
    let fixture = Fixture::start("modern");
    let probed = fixture.probe().await;
    assert!(probed.initialized.is_none());
    assert!(matches!(probed.facts.era, ProbedEra::Modern { .. }));
    shows_transparency(&fixture, true).await;

    let listen = r#"{"jsonrpc":"2.0","id":"L","method":"subscriptions/listen","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},"notifications":{"toolsListChanged":true}}}"#;
    let (to, mut heard) = mpsc::channel(10);
    let call = fixture
        .link
        .forward(&request(listen), Some(Arc::new(Heard(to))), None, None);
    let call = call.expect("begun");
    let (acknowledged, _) = within(heard.recv()).await.expect("acknowledged");
    assert!(acknowledged.contains("notifications/subscriptions/acknowledged"));
    fixture.call(true, "test_trigger_tool_change", "{}").await;
    let (changed, _) = within(heard.recv()).await.expect("changed");
    assert!(changed.contains("notifications/tools/list_changed"));
    let tag = format!(r#"subscriptionId":{}"#, call.id());
    for message in [acknowledged, changed] {
        assert!(message.contains(&tag), "{message}");
    }
    drop(call);
    fixture.end().await;
}

#[tokio::test]
async fn the_fixture_is_both_when_it_is_and_can_be_opened_as_either() {
    let fixture = Fixture::start("dual");
    let probed = fixture.probe().await;
    assert!(probed.initialized.is_none());
    assert!(matches!(probed.facts.era, ProbedEra::Dual { .. }));
    shows_transparency(&fixture, true).await;
    fixture.end().await;

    let fixture = Fixture::start("dual");
    let params = raw(
        r#"{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"},"x":1.0}"#,
    );
    let initialized = within(initialize(&fixture.link, params, LIMIT)).await;
    assert_eq!(
        initialized.expect("initialized").version,
        ProtocolVersion::V2025_06_18
    );
    shows_transparency(&fixture, false).await;
    fixture.end().await;

    let fixture = Fixture::start("dual");
    let found = within(discover(&fixture.link, ClientIdentity::gateway(), LIMIT)).await;
    assert!(!found.expect("discovered").is_empty());
    fixture.end().await;

    let legacy = Fixture::start("legacy");
    let refused = within(discover(&legacy.link, ClientIdentity::gateway(), LIMIT)).await;
    assert!(refused.expect_err("legacy").message.contains(MODERN));
}
