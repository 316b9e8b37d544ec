//! The commands that ask a running gateway (`status`, `tools`, `call`, `logs`, `reload`, `sessions`): the real program against a
//! real gateway, its output and exit codes.

use std::fs;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::ports::free_address;
use crate::support::session::Session;
use crate::support::{Gateway, TOKEN, eventually, sha256, tools};
use crate::tls;

/// A tool for each thing that the output of a call can show.
const SHOWING: &str = r#"
import sys
from fastmcp.tools import tool


@tool
def echo(text: str, times: int = 1) -> str:
    """Repeats a text.

    Not in the table.
    """
    print("printed " + text, file=sys.stderr, flush=True)
    return text * times


@tool
def fail() -> str:
    """Fails."""
    raise ValueError("out of paper")


@tool
def sizes(numbers: list[int]) -> dict[str, int]:
    """Counts."""
    return {"count": len(numbers)}
"#;

fn command(gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    command
        .args(arguments)
        .arg("-c")
        .arg(gateway.data.path().join("tooldock.test.yaml"))
        .current_dir(gateway.data.path())
        .env_clear()
        .env("DATA_DIR", gateway.data_dir())
        .env("TOOLDOCK_TOKEN", TOKEN)
        .stdin(Stdio::null());
    command
}

/// Exit code, standard output and standard error.
fn ran(mut command: Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn tooldock(gateway: &Gateway, arguments: &[&str]) -> (i32, String, String) {
    ran(command(gateway, arguments))
}

/// The output of a command that succeeds and prints JSON.
fn json_of(gateway: &Gateway, arguments: &[&str]) -> Value {
    let (code, out, err) = tooldock(gateway, arguments);
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).unwrap()
}

/// Asserts that a command fails with this code and one line that holds all of `says`.
fn refused(outcome: (i32, String, String), code: i32, says: &[&str]) {
    let (found, out, err) = outcome;
    assert_eq!(found, code, "{out}{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    for text in says {
        assert!(err.contains(text), "{text}: {err}");
    }
    assert!(!err.contains(TOKEN), "{err}");
}

fn interrupt(process: &Child) {
    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

#[tokio::test]
async fn status_shows_states_with_their_reasons_and_the_last_reload() {
    let gateway = Gateway::with_tools([("calc", "math.py", tools::MATH), ("odd", "odd.py", "def")])
        .config(json!({"upstreams": {"stdio": {"gone": {"command": "/no/such/program"}}}}))
        .start()
        .await;
    let status = json_of(&gateway, &["status", "--json"]);
    assert_eq!(status["gateway"]["status"], "ready");
    assert_eq!(status["reload"]["result"], "complete", "{status}");
    let named = |name: &str| {
        let all = status["namespaces"].as_array().unwrap().iter();
        all.clone().find(|it| it["name"] == name).unwrap().clone()
    };
    assert_eq!(
        (&named("calc")["state"], &named("calc")["tool_count"]),
        (&json!("ready"), &json!(2))
    );
    assert_eq!(named("odd")["state"], "degraded", "its file is not loaded");
    let (code, text, err) = eventually("the server is known to fail", async || {
        let told = tooldock(&gateway, &["status"]);
        told.1.contains("/no/such/program").then_some(told)
    })
    .await;
    assert_eq!((code, &*err), (0, ""));
    assert!(!text.contains('\u{1b}'), "a pipe has no colours: {text}");
    for says in [
        "calc       python  ready",
        "NAMESPACE  KIND",
        "odd.py",
        "import_error",
        "Last reload: complete",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    // Watching goes on until it is interrupted.
    let mut watching = command(&gateway, &["status", "--watch", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = watching.stdout.take().unwrap();
    let mut text = Vec::new();
    while text.iter().filter(|byte| **byte == b'\n').count() < 2 {
        let mut piece = [0; 4096];
        let read = out.read(&mut piece).unwrap();
        assert_ne!(read, 0, "it has ended by itself");
        text.extend_from_slice(&piece[..read]);
    }
    let first = text.split(|byte| *byte == b'\n').next().unwrap();
    assert!(serde_json::from_slice::<Value>(first).is_ok());
    interrupt(&watching);
    assert!(!watching.wait().unwrap().success());
}

#[tokio::test]
async fn exit_codes_and_one_line_tell_why_a_command_was_not_done() {
    let token = "limited-0123456789abcdef";
    let entry = json!({"name": "ci", "sha256": sha256(token), "namespaces": ["calc"]});
    let gateway = Gateway::with_tools([("calc", "math.py", tools::MATH)])
        .config(json!({"admission": {"tokens": [entry]}}))
        .start()
        .await;
    let with = |token: &str, arguments: &[&str]| {
        let mut command = command(&gateway, arguments);
        command.env("TOOLDOCK_TOKEN", token);
        ran(command)
    };
    for asked in [
        &["status"][..],
        &["tools"],
        &["call", "calc", "add", "a=1", "b=2"],
        &["reload"],
    ] {
        refused(with("wrong-token", asked), 1, &["401", "TOOLDOCK_TOKEN"]);
    }
    refused(with("", &["status"]), 1, &["401", "--token-file"]);
    // A token without `_system` opens its namespaces, and no command for operators.
    for asked in [&["status"][..], &["reload"], &["sessions"], &["logs"]] {
        refused(with(token, asked), 1, &["management tools", "403"]);
    }
    assert_eq!(with(token, &["call", "calc", "add", "a=1", "b=2"]).0, 0);

    // Nothing listens at the address.
    let free = format!("http://{}", free_address());
    for asked in [
        &["status"][..],
        &["tools"],
        &["call", "a", "b"],
        &["logs", "-f"],
        &["reload"],
        &["sessions"],
    ] {
        let outcome = tooldock(&gateway, &[asked, &["--url", &free]].concat());
        refused(outcome, 3, &[&free, "--url", "tooldock serve", "refused"]);
    }
    let mut asked = command(&gateway, &["status"]);
    asked.env("CORE_URL", &free);
    refused(ran(asked), 3, &[&free, "CORE_URL"]);

    for (arguments, says) in [
        (&["status", "--url", "gateway"][..], "--url"),
        (&["status", "--token-file", "/no/such"], "/no/such"),
        (&["call", "calc", "add", "a"], "key=value"),
        (&["call", "calc", "ad", "a=1"], "did you mean add?"),
        (&["call", "cale", "add"], "did you mean calc?"),
        (&["tools", "nothing-like-it"], "tooldock tools"),
        (
            &["call", "calc", "add", "a=one", "b=2"],
            "the argument a must be of type number",
        ),
        (&["call", "calc", "add", "--json", "{"], "--json"),
    ] {
        refused(tooldock(&gateway, arguments), 2, &[says]);
    }
    // Operators' paths of other listeners are not there, and neither are those of the web API.
    for (method, path, status) in [
        ("GET", "/operator/secrets", 404),
        ("PUT", "/operator/secrets", 404),
        ("POST", "/operator/folders", 404),
        ("GET", "/api/status", 404),
    ] {
        let answer = gateway.request(method, path).send().await.unwrap();
        assert_eq!(answer.status(), status, "{method} {path}");
    }
}

#[tokio::test]
async fn operators_are_admitted_from_internal_networks_alone() {
    let gateway = Gateway::empty()
        .config(json!({"admission": {"internal_cidrs": ["10.0.0.0/8"]}}))
        .start()
        .await;
    refused(
        tooldock(&gateway, &["status"]),
        1,
        &["admission.internal_cidrs", "403"],
    );
    assert_eq!(tooldock(&gateway, &["tools"]).0, 0);
}

#[tokio::test]
async fn a_call_prints_the_result_and_takes_arguments_by_the_schema() {
    let gateway = Gateway::with_tools([
        ("show", "show.py", SHOWING),
        ("calc", "math.py", tools::MATH),
    ])
    .start()
    .await;
    let (code, text, _) = tooldock(&gateway, &["tools", "show"]);
    assert_eq!(code, 0);
    assert!(
        text.contains("echo") && text.contains("Repeats a text."),
        "{text}"
    );
    assert!(!text.contains("Not in the table"), "{text}");
    let listed = json_of(&gateway, &["tools", "--json"]);
    let names: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (&it["namespace"], &it["name"]))
        .collect();
    assert!(
        names.contains(&(&json!("calc"), &json!("add"))),
        "{names:?}"
    );
    assert_eq!(listed[0]["inputSchema"]["type"], "object");

    let call = |arguments: &[&str]| tooldock(&gateway, &[&["call", "show"], arguments].concat());
    assert_eq!(call(&["echo", "text=5", "times=2"]).1, "55\n");
    assert_eq!(
        call(&["echo", "--json", r#"{"text": "a"}"#, "times=3"]).1,
        "aaa\n"
    );
    let file = gateway.data.path().join("text");
    fs::write(&file, "from a file").unwrap();
    let argument = format!("text=@{}", file.display());
    assert_eq!(call(&["echo", &argument]).1, "from a file\n");
    let mut piped = command(&gateway, &["call", "show", "echo", "text=-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    piped
        .stdin
        .take()
        .unwrap()
        .write_all(b"from\x1ba pipe")
        .unwrap();
    let out = piped.wait_with_output().unwrap().stdout;
    assert_eq!(String::from_utf8(out).unwrap(), "from\\u{1b}a pipe\n");
    for asked in [&["--output", "json"][..], &["--json"]] {
        let structured = json_of(
            &gateway,
            &[&["call", "show", "sizes", "numbers=[1,2]"], asked].concat(),
        );
        assert_eq!(structured, json!({"count": 2}));
    }

    let (code, out, err) = call(&["fail"]);
    assert_eq!((code, &*out), (1, ""));
    assert!(err.contains("out of paper"), "{err}");
    let (code, out, _) = call(&["fail", "--json"]);
    let result: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &result["isError"]), (1, &json!(true)));
}

#[tokio::test]
async fn progress_and_logs_go_to_standard_error_and_questions_are_declined_without_a_terminal() {
    let gateway = Gateway::with_tools([("talk", "talk.py", tools::TALKING)])
        .start()
        .await;
    let gate = gateway.scratch().join("gate");
    fs::write(&gate, "").unwrap();
    let gate = format!("gate={}", gate.display());
    let (code, out, err) = tooldock(&gateway, &["call", "talk", "talk", &gate]);
    assert_eq!((code, &*out), (0, "done\n"), "{err}");
    assert!(
        err.contains("progress 1/4") && err.contains("progress 3/4"),
        "{err}"
    );
    let (_, out, err) = tooldock(&gateway, &["call", "talk", "logs"]);
    assert_eq!(out, "done\n");
    assert!(
        err.contains("info: middle") && err.contains("error: loudest"),
        "{err}"
    );
    assert!(!err.contains("quietest"), "{err}");
    let (code, out, err) = tooldock(&gateway, &["call", "talk", "ask", "question=Which one?"]);
    assert_eq!((code, &*out), (0, "decline None\n"), "{err}");
    assert!(
        err.contains("Which one?") && err.contains("declined"),
        "{err}"
    );
}

#[tokio::test]
async fn ctrl_c_cancels_the_tool() {
    let gateway = Gateway::with_tools([("talk", "talk.py", tools::TALKING)])
        .start()
        .await;
    let gate = gateway.scratch().join("gate");
    let argument = format!("gate={}", gate.display());
    let calling = command(&gateway, &["call", "talk", "talk", &argument])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    gateway.in_flight("talk", 1).await;
    interrupt(&calling);
    let ended = calling.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&ended.stderr).contains("cancelled"));
    let mark = gateway.scratch().join("gate.cancelled");
    eventually("the tool was cancelled", async || {
        mark.exists().then_some(())
    })
    .await;
}

#[tokio::test]
async fn logs_show_output_and_records_and_go_on_with_what_comes() {
    let gateway = Gateway::with_tools([
        ("show", "show.py", SHOWING),
        ("calc", "math.py", tools::MATH),
    ])
    .start()
    .await;
    gateway
        .call("show", "echo", json!({"text": "before"}))
        .await;
    gateway.call("calc", "add", json!({"a": 1, "b": 2})).await;
    let text = eventually("both are in the log", async || {
        let (code, text, err) = tooldock(&gateway, &["logs", "--namespace", "show"]);
        assert_eq!(code, 0, "{err}");
        (text.contains("printed before") && text.contains("show echo ok")).then_some(text)
    })
    .await;
    assert!(!text.contains("calc"), "{text}");
    let all = eventually("the record is there", async || {
        let (_, text, _) = tooldock(&gateway, &["logs", "--lines", "500"]);
        text.contains("calc add ok").then_some(text)
    })
    .await;
    assert!(
        all.contains("show echo ok") && !all.contains("printed before"),
        "{all}"
    );
    refused(
        tooldock(&gateway, &["logs", "--namespace", "none"]),
        1,
        &["none", "404"],
    );

    let out = gateway.data.path().join("followed");
    let mut following = command(
        &gateway,
        &["logs", "-f", "--namespace", "show", "--lines", "1"],
    )
    .stdout(fs::File::create(&out).unwrap())
    .spawn()
    .unwrap();
    eventually("what is there is shown", async || {
        let text = fs::read_to_string(&out).unwrap();
        (!text.is_empty()).then_some(())
    })
    .await;
    eventually("what comes is shown", async || {
        gateway.call("show", "echo", json!({"text": "later"})).await;
        let text = fs::read_to_string(&out).unwrap();
        (text.contains("printed later") && text.contains("show echo ok")).then_some(())
    })
    .await;
    interrupt(&following);
    assert!(!following.wait().unwrap().success());
}

#[tokio::test]
async fn a_reload_tells_the_outcome_of_each_namespace() {
    let gateway = Gateway::with_tools([("calc", "math.py", tools::MATH)])
        .start()
        .await;
    gateway.drop_tool("fresh", "math.py", tools::MATH);
    let (code, text, err) = tooldock(&gateway, &["reload"]);
    assert_eq!(code, 0, "{err}");
    assert!(text.contains("fresh") && text.contains("started"), "{text}");
    assert!(
        text.contains("calc") && text.contains("unchanged"),
        "{text}"
    );
    fs::write(
        gateway.tools_dir().join("calc/tooldock.yaml"),
        "timeout: soon\n",
    )
    .unwrap();
    let (code, text, err) = tooldock(&gateway, &["reload"]);
    assert_eq!((code, &*err), (1, ""), "{text}");
    assert!(
        text.contains("failed") && text.contains("timeout"),
        "{text}"
    );
    let (code, out, _) = tooldock(&gateway, &["reload", "--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &report["failed"][0]["namespace"]),
        (1, &json!("calc"))
    );
}

#[tokio::test]
async fn a_refused_configuration_stays_a_problem_through_reloads_of_namespaces() {
    let gateway = Gateway::with_tools([("calc", "math.py", tools::MATH)])
        .start()
        .await;
    // By the address: a command does not read a configuration that is refused.
    let url = gateway.url("");
    let asked = |command: &str| {
        let mut asks = Command::new(env!("CARGO_BIN_EXE_tooldock"));
        asks.args([command, "--url", &url])
            .current_dir(gateway.data.path())
            .env_clear()
            .env("TOOLDOCK_TOKEN", TOKEN)
            .stdin(Stdio::null());
        ran(asks)
    };
    gateway.replace_configuration(|config| config["listenerz"] = json!([]));
    gateway.signal(Signal::HUP);
    eventually("status tells the problem", || async {
        let (_, text, _) = asked("status");
        text.contains("Problem: the configuration on disk is invalid")
            .then_some(())
    })
    .await;
    for command in ["reload", "status"] {
        let (code, text, err) = asked(command);
        assert_eq!(code, 0, "{err}");
        assert!(
            text.contains("Problem: the configuration on disk is invalid"),
            "{text}"
        );
    }
    gateway.replace_configuration(|_| {});
    gateway.signal(Signal::HUP);
    eventually("status tells of no problem", || async {
        let (_, text, _) = asked("status");
        (!text.contains("Problem")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn sessions_are_listed_and_ended() {
    let gateway = Gateway::with_tools([("calc", "math.py", tools::MATH)])
        .start()
        .await;
    let session = Session::start(&gateway, "calc", "2025-06-18").await;
    let listed = json_of(&gateway, &["sessions", "--namespace", "calc", "--json"]);
    assert_eq!(listed["total"], 1, "{listed}");
    let id = listed["sessions"][0]["id"].as_str().unwrap();
    let (_, text, _) = tooldock(&gateway, &["sessions"]);
    assert!(text.contains(id) && text.contains("2025-06-18"), "{text}");
    let none = json_of(&gateway, &["sessions", "--namespace", "shared", "--json"]);
    assert_eq!(none["total"], 0);
    assert_eq!(tooldock(&gateway, &["sessions", "end", id]).0, 0);
    assert_eq!(session.ping().await, 404);
    refused(
        tooldock(&gateway, &["sessions", "end", id]),
        1,
        &["no such session"],
    );
}

#[tokio::test]
async fn a_gateway_is_asked_over_tls_and_a_unix_socket() {
    let folder = tempfile::TempDir::new().unwrap();
    tls::write_certificate(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (plain, secure, metrics) = (free_address(), free_address(), free_address());
    let socket = file("core.sock");
    let gateway = Gateway::with_tools([("calc", "math.py", tools::MATH)])
        .listening(plain, metrics)
        .config(json!({
            "admission": {"internal_cidrs": ["127.0.0.1/32", "unix"]},
            "listeners": [
                {"name": "core", "address": plain.to_string(), "profile": "core"},
                {"name": "secure", "address": secure.to_string(), "profile": "core",
                    "tls": {"cert": file("cert.pem"), "key": file("key.pem")}},
                {"name": "socket", "address": format!("unix:{socket}"), "profile": "core"},
                {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"}]}))
        .start()
        .await;
    let add = ["call", "calc", "add", "a=1", "b=2"];
    let at = |arguments: &[&str], more: &[&str]| tooldock(&gateway, &[arguments, more].concat());
    let socket = format!("unix:{socket}");
    let secure = format!("https://{secure}");
    for more in [&["--url", &socket][..], &["--url", &secure, "--insecure"]] {
        let (code, text, err) = at(&["status"], more);
        assert_eq!(code, 0, "{err}");
        assert!(text.contains("ready"), "{text}");
        assert_eq!(at(&add, more).1, "3.0\n");
    }
    refused(
        at(&["status"], &["--url", &secure]),
        3,
        &["--ca", "certificate"],
    );
    // By its own listener: the certificate is for a name, and the address is that of the configuration.
    let asking = folder.path().join("asking.yaml");
    let listener = json!({"name": "secure", "address": secure.trim_start_matches("https://"), "profile": "core",
        "tls": {"cert": file("cert.pem"), "key": file("key.pem")}});
    fs::write(&asking, json!({"listeners": [listener]}).to_string()).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    command
        .args([
            "call",
            "calc",
            "add",
            "a=1",
            "b=2",
            "--ca",
            &file("cert.pem"),
            "-c",
        ])
        .arg(&asking)
        .env_clear()
        .env("DATA_DIR", gateway.data_dir())
        .env("BEARER_TOKEN", TOKEN);
    let (code, out, err) = ran(command);
    assert_eq!((code, &*out), (0, "3.0\n"), "{err}");
}

#[test]
fn the_program_tells_of_its_build_and_writes_completions_and_pages() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
        command.args(arguments).env_clear();
        ran(command)
    };
    let (code, out, _) = run(&["--version", "--json"]);
    let build: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &build["name"]), (0, &json!("tooldock")));
    let (_, version, _) = run(&["--version"]);
    assert_eq!(
        version,
        format!("tooldock {}\n", build["version"].as_str().unwrap())
    );
    assert!(
        build["rustc"].as_str().unwrap().starts_with("rustc "),
        "{build}"
    );
    assert!(
        build["target"].as_str().unwrap().contains('-') && build["profile"] != "",
        "{build}"
    );
    for (shell, says) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef tooldock"),
        ("fish", "complete -c tooldock"),
    ] {
        let (code, script, _) = run(&["completions", shell]);
        assert!(
            code == 0 && script.contains(says) && script.contains("sessions"),
            "{shell}"
        );
    }
    let folder = tempfile::TempDir::new().unwrap();
    let pages = folder.path().join("man");
    assert_eq!(run(&["man", "--output", pages.to_str().unwrap()]).0, 0);
    let page = fs::read_to_string(pages.join("tooldock-call.1")).unwrap();
    assert!(page.contains("KEY=VALUE"), "{page}");
    assert!(!run(&["--help"]).1.contains("manual pages"));
}

#[test]
fn a_token_is_not_sent_to_an_address_that_only_a_configuration_of_the_folder_names() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("conf/tooldock.yaml");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    let text = "listeners: [{ name: core, address: \"203.0.113.5:81\", profile: core }]\n";
    std::fs::write(&file, text).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .arg("status")
        .current_dir(folder.path())
        .env("TOOLDOCK_TOKEN", "token-of-another-gateway")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("no address of this machine") && said.contains("--url"),
        "{said}"
    );
}
