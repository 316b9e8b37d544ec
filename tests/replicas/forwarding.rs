//! Requests on their way to the replica of their session: over TLS and HTTP/2, large ones, and clients that leave.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{LATEST, both_up, member, see, two};
use crate::client_certificates::Authority;
use crate::support::ports::free_address;
use crate::support::redis::Redis;
use crate::support::session::{Session, call};
use crate::support::{Gateway, eventually, tools};
use crate::tls::write_certificate;

/// Says how long its argument is, and leaves a mark.
const WEIGHING: &str = r#"
from fastmcp.tools import tool


@tool
def weigh(text: str, file: str) -> int:
    """Counts characters."""
    with open(file, "a") as marks:
        marks.write("run\n")
    return len(text)
"#;

/// As many characters as fit into a body of 4 MiB.
const LARGE: usize = 4_000_000;

/// A replica with a listener that asks for client certificates.
async fn asking(redis: &Redis, name: &str, folder: &std::path::Path) -> Gateway {
    let file = |name: &str| folder.join(name);
    let [plain, secure, metrics] = [(); 3].map(|()| free_address());
    let gateway = Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .listening(plain, metrics)
        .config(json!({
            "admission": {"certificates": [{"name": "desk", "san": "desk.example", "namespaces": ["*"]}]},
            "listeners": [
                {"name": "core", "address": plain.to_string(), "profile": "core"},
                {"name": "secure", "address": secure.to_string(), "profile": "core",
                    "tls": {"cert": file("cert.pem"), "key": file("key.pem"),
                        "client_ca": file("ca.pem"), "client_auth": "required"}},
                {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}],
        }));
    member(gateway, redis, name).start().await
}

/// The address of the listener that asks for certificates.
fn secure(gateway: &Gateway) -> String {
    let address = gateway.configured()["listeners"][1]["address"].as_str();
    let (_, port) = address
        .expect("an address")
        .rsplit_once(':')
        .expect("a port");
    format!("https://localhost:{port}/mcp/calc")
}

#[tokio::test]
async fn a_client_that_has_a_certificate_alone_is_known_at_the_other_replica_over_http_2() {
    let redis = Redis::start().await;
    let folder = tempfile::TempDir::new().expect("a temporary directory");
    let authority = Authority::new("clients");
    fs::write(folder.path().join("ca.pem"), &authority.pem).unwrap();
    let server = write_certificate(folder.path());
    let start = |name| asking(&redis, name, folder.path());
    let (one, two) = both_up(tokio::join!(start("one"), start("two"))).await;

    let client = |host: &str| {
        let identity = authority.signs(host, "client", 4000);
        let mut roots = RootCertStore::empty();
        roots.add(server.clone()).unwrap();
        let mut tls = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec()];
        let client = reqwest::Client::builder().tls_backend_preconfigured(tls);
        client.build().unwrap()
    };
    let desk = client("desk.example");
    let post = async |gateway: &Gateway, session: Option<&str>, message: Value| {
        let request = desk
            .post(secure(gateway))
            .header("Accept", "application/json, text/event-stream")
            .header("MCP-Protocol-Version", LATEST)
            .json(&message);
        let request = match session {
            Some(session) => request.header("Mcp-Session-Id", session),
            None => request,
        };
        let answer = request.send().await.unwrap();
        assert_eq!(answer.version(), reqwest::Version::HTTP_2);
        answer
    };
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params":
        {"protocolVersion": LATEST, "capabilities": {}, "clientInfo": {"name": "desk", "version": "1"}}});
    let opened = post(&one, None, initialize).await;
    assert_eq!(opened.status(), 200);
    let id = opened.headers()["mcp-session-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(post(&two, Some(&id), ready).await.status(), 202);
    let add = call(2, "add", json!({"a": 2, "b": 3}));
    let sum = post(&two, Some(&id), add).await;
    assert_eq!(sum.status(), 200);
    let sum: Value = sum.json().await.unwrap();
    assert_eq!(sum["result"]["content"][0]["text"], "5.0", "{sum}");
    assert!(
        two.metrics_text()
            .await
            .contains("tooldock_replica_forwards_total{outcome=\"answered\"} 2\n")
    );

    // The session is the one of its principal: another certificate of the authority does not open it.
    let stranger = client("stranger.example");
    let refused = stranger.post(secure(&two)).header("Mcp-Session-Id", &id);
    let refused = refused.json(&json!({"jsonrpc": "2.0", "id": 3, "method": "ping"}));
    assert_eq!(refused.send().await.unwrap().status(), 401);
}

/// Two replicas with `weigh`, and a session that lives on the first as the second has it.
async fn weighing(redis: &Redis) -> (Gateway, Gateway, Session) {
    let start = |name| {
        let gateway = Gateway::with_tools([("weigh", "weighing.py", WEIGHING)]);
        member(gateway, redis, name).start()
    };
    let (one, two) = both_up(tokio::join!(start("one"), start("two"))).await;
    let session = Session::start(&one, "weigh", LATEST).await.at(&two);
    (one, two, session)
}

#[tokio::test]
async fn a_large_request_is_forwarded_whole_or_not_at_all() {
    let redis = Redis::start().await;
    let (one, two, session) = weighing(&redis).await;
    let marks = two.scratch().join("marks");
    let arguments = json!({"text": "x".repeat(LARGE), "file": marks});
    let mut answer = session.call(2, "weigh", arguments.clone()).await;
    assert_eq!(answer.status, 200);
    let told = answer.json().await;
    assert_eq!(
        told["result"]["content"][0]["text"],
        LARGE.to_string(),
        "{told}"
    );

    // A frozen replica that has not read all of it has not read it.
    one.signal(Signal::STOP);
    let mut answer = session.call(3, "weigh", arguments).await;
    let told = answer.json().await;
    let runs = match answer.status {
        200 => 2,
        502 => 1,
        status => panic!("{status}: {told}"),
    };
    one.signal(Signal::CONT);
    see(&one, 2).await;
    let ran = fs::read_to_string(&marks).unwrap().lines().count();
    assert!(ran == runs || (runs == 1 && ran == 2), "{ran} runs: {told}");
}

#[tokio::test]
async fn a_call_goes_on_when_its_client_leaves_the_replica_that_forwards_it() {
    let redis = Redis::start().await;
    let (one, two) = two(&redis).await;
    let session = Session::start(&one, "talk", LATEST).await.at(&two);
    let gate = one.scratch().join("gate");
    let arguments = json!({"gate": gate, "before": 1, "after": 1});
    let mut answer = session.call(2, "talk", arguments).await;
    let progress = answer.event().await.expect("progress");
    drop(answer);
    eventually("the replica has noticed", async || {
        let metrics = one.metrics_text().await;
        let open = metrics
            .lines()
            .find(|it| it.starts_with("tooldock_streams{kind=\"request\"}"));
        open.is_none_or(|it| it.ends_with(" 0")).then_some(())
    })
    .await;
    fs::write(&gate, "go").unwrap();
    let mut resumed = session.get(progress.id.as_deref()).await;
    let told = resumed.messages().await;
    assert_eq!(
        told.last().expect("the result")["result"]["content"][0]["text"],
        "done",
        "{told:?}"
    );
    assert!(!gate.with_extension("cancelled").exists());
}

#[tokio::test]
async fn a_call_whose_replica_is_killed_is_answered_under_its_own_id() {
    let redis = Redis::start().await;
    let (mut one, two) = two(&redis).await;
    let session = Session::start(&one, "talk", LATEST).await.at(&two);
    let arguments = json!({"gate": one.scratch().join("never")});
    let running = async {
        let mut answer = session.call(5, "quiet", arguments).await;
        (answer.status, answer.json().await)
    };
    let killed = async {
        eventually("the call runs", || async {
            let metrics = one.metrics_text().await;
            let running = "tooldock_tool_calls_in_flight{namespace=\"talk\"} 1\n";
            metrics.contains(running).then_some(())
        })
        .await;
        one.kill();
    };
    let ((status, told), ()) = tokio::join!(running, killed);
    assert_eq!(status, 502, "{told}");
    assert_eq!(told["id"], 5, "{told}");
    assert_eq!(told["error"]["data"]["code"], "replica_lost", "{told}");
}
