//! The sandbox of tools: a hostile Python tool and a hostile stdio server that try to get out, under each mode.
//!
//! `off` is the control: every access that another mode must refuse succeeds there. A machine whose kernel lacks a part has that part open, and
//! says so in `/ready`.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Gateway, programs};

/// Parts of this machine's kernel, as the gateway finds them.
#[derive(Debug, Deserialize)]
struct Support {
    landlock: u32,
    mounts: String,
    seccomp: bool,
    connections: bool,
}

fn support() -> Support {
    let output = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["__guard", "--probe-sandbox"])
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The part of the kernel that a refusal needs.
#[derive(Debug, Clone, Copy)]
enum Needs {
    Nothing,
    /// Files that are kept away: mounts or Landlock.
    Files,
    /// Attributes and sockets of files, which Landlock does not cover.
    Mounts,
    Landlock,
    /// Signals and abstract sockets.
    Scopes,
    Seccomp,
    Connections,
    /// A user namespace, in which the kernel counts processes apart.
    OwnUser,
}

impl Needs {
    fn are_met(self, support: &Support) -> bool {
        match self {
            Self::Nothing => true,
            Self::Files => support.mounts != "none" || support.landlock > 0,
            Self::Mounts => support.mounts != "none",
            Self::Landlock => support.landlock > 0,
            Self::Scopes => support.landlock >= 6,
            Self::Seccomp => support.seccomp,
            Self::Connections => support.connections,
            Self::OwnUser => support.mounts == "user",
        }
    }
}

/// Outcome of a way without a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Off {
    Open,
    /// As the rights of the user who runs the tests are.
    Either,
}

const OPEN: bool = true;
const SHUT: bool = false;

/// Each way, its outcome without a sandbox, in `basic` and in `strict`, and what a refusal needs.
#[rustfmt::skip]
const WAYS: &[(&str, Off, bool, bool, Needs)] = &[
    ("read_keys", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_session_key", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_configuration", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_other", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_other_from_above", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_other_after_going_up", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_other_by_a_link", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_other_by_a_hard_link", Off::Either, SHUT, SHUT, Needs::Files),
    ("read_other_in_a_race_of_links", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_other_by_a_child", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_a_later_file", Off::Open, SHUT, SHUT, Needs::Files),
    ("list_other", Off::Open, SHUT, SHUT, Needs::Files),
    ("list_logs", Off::Open, SHUT, SHUT, Needs::Files),
    ("stat_other", Off::Open, SHUT, SHUT, Needs::Mounts),
    ("change_mode_of_other", Off::Open, SHUT, SHUT, Needs::Mounts),
    ("change_times_of_other", Off::Open, SHUT, SHUT, Needs::Mounts),
    ("write_other", Off::Open, SHUT, SHUT, Needs::Files),
    ("create_in_other", Off::Open, SHUT, SHUT, Needs::Files),
    ("rename_other", Off::Open, SHUT, SHUT, Needs::Files),
    ("rename_the_folder_above_the_data_directory", Off::Open, SHUT, SHUT, Needs::Files),
    ("change_the_gateways_program", Off::Open, SHUT, SHUT, Needs::Mounts),
    ("write_servers_of_the_data_directory", Off::Open, SHUT, SHUT, Needs::Files),
    ("create_in_the_data_directory", Off::Open, SHUT, SHUT, Needs::Files),
    ("read_other_by_root_of_a_process", Off::Open, SHUT, SHUT, Needs::Landlock),
    ("read_other_by_directory_of_a_process", Off::Open, SHUT, SHUT, Needs::Landlock),
    ("uncover_by_unmounting", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("uncover_in_a_user_namespace", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("read_user_folder", Off::Open, OPEN, SHUT, Needs::Files),
    ("write_user_folder", Off::Open, OPEN, SHUT, Needs::Files),
    ("rename_between_user_folders", Off::Open, OPEN, SHUT, Needs::Files),
    ("read_own", Off::Open, OPEN, OPEN, Needs::Nothing),
    ("write_own", Off::Open, OPEN, SHUT, Needs::Files),
    ("open_database_in_own_folder", Off::Open, OPEN, SHUT, Needs::Files),
    ("write_temporary", Off::Open, OPEN, OPEN, Needs::Nothing),
    ("run_a_program", Off::Open, OPEN, OPEN, Needs::Nothing),
    ("read_environment_of_other", Off::Open, SHUT, SHUT, Needs::Landlock),
    ("read_memory_of_other", Off::Either, SHUT, SHUT, Needs::Landlock),
    ("look_at_descriptors_of_other", Off::Open, SHUT, SHUT, Needs::Landlock),
    ("read_maps_of_other", Off::Open, SHUT, SHUT, Needs::Landlock),
    ("signal_other", Off::Open, SHUT, SHUT, Needs::Scopes),
    ("signal_gateway", Off::Open, SHUT, SHUT, Needs::Scopes),
    ("signal_guard", Off::Open, SHUT, SHUT, Needs::Scopes),
    ("attach_to_other", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("read_memory_of_other_by_call", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("take_descriptor_of_other", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("enter_namespace_of_other", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_bpf", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_perf_event_open", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_keyctl", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_add_key", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_userfaultfd", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_io_uring", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_mount", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_open_by_handle", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_init_module", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("call_kexec", Off::Either, SHUT, SHUT, Needs::Seccomp),
    ("gain_privileges", Off::Either, SHUT, SHUT, Needs::Nothing),
    ("make_a_device", Off::Either, SHUT, SHUT, Needs::Nothing),
    ("connect_to_metrics", Off::Open, SHUT, SHUT, Needs::Connections),
    ("connect_to_metrics_by_name", Off::Open, SHUT, SHUT, Needs::Connections),
    ("connect_to_metrics_by_zero", Off::Open, SHUT, SHUT, Needs::Connections),
    ("connect_to_metrics_by_mapped_address", Off::Either, SHUT, SHUT, Needs::Connections),
    ("connect_to_metrics_without_waiting", Off::Open, SHUT, SHUT, Needs::Connections),
    ("connect_to_metrics_by_sending", Off::Either, SHUT, SHUT, Needs::Connections),
    ("connect_to_metrics_over_multipath", Off::Either, SHUT, SHUT, Needs::Connections),
    ("connect_to_metrics_by_a_child", Off::Open, SHUT, SHUT, Needs::Connections),
    ("connect_to_metrics_in_a_race_of_addresses", Off::Either, SHUT, SHUT, Needs::Connections),
    ("connect_to_worker_of_other", Off::Open, SHUT, SHUT, Needs::Mounts),
    ("connect_to_abstract_socket", Off::Open, SHUT, SHUT, Needs::Scopes),
    ("connect_to_a_service", Off::Open, OPEN, SHUT, Needs::Seccomp),
    ("open_a_datagram_socket", Off::Open, OPEN, SHUT, Needs::Seccomp),
    ("use_a_pair_of_sockets", Off::Open, OPEN, OPEN, Needs::Nothing),
    ("take_much_memory", Off::Open, SHUT, SHUT, Needs::Nothing),
    ("fork_many", Off::Open, SHUT, SHUT, Needs::OwnUser),
];

const HOSTILE: &str = include_str!("fixtures/sandbox/hostile.py");
const THE_WAYS: &str = include_str!("fixtures/sandbox/_ways.py");
const SERVER: &str = include_str!("fixtures/sandbox/_server.py");
const VICTIM: &str =
    "import os\nfrom fastmcp.tools import tool\n@tool\ndef pid() -> int:\n    return os.getpid()\n";

/// A gateway with a hostile tool and a hostile server in a sandbox, a victim, and the things around them.
struct House {
    gateway: Gateway,
    server: TempDir,
    users: TempDir,
    service: TcpListener,
    _abstract: UnixListener,
    abstract_name: String,
    victim: i64,
}

impl House {
    async fn of(sandbox: Value) -> Self {
        let server = TempDir::new().unwrap();
        fs::write(server.path().join("_ways.py"), THE_WAYS).unwrap();
        fs::write(server.path().join("_server.py"), SERVER).unwrap();
        fs::write(server.path().join("own.txt"), "own\n").unwrap();
        let users = TempDir::new().unwrap();
        fs::write(users.path().join("notes.txt"), "notes\n").unwrap();
        let abstract_name = format!("tooldock-test-{}", fastrand::u64(..));
        let address = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let service = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepting = service.try_clone().unwrap();
        std::thread::spawn(move || accepting.incoming().for_each(drop));
        let gateway = Gateway::with_tools([
            ("hostile", "hostile.py", HOSTILE),
            ("hostile", "_ways.py", THE_WAYS),
            ("hostile", "own.txt", "own\n"),
            ("other", "victim.py", VICTIM),
            ("other", "secret.txt", "secret of other\n"),
        ])
        .config(json!({
            "namespaces": {"overrides": {
                "hostile": {"sandbox": sandbox, "timeout": "60s", "sync_concurrency": 4},
                "other": {"sandbox": "off"},
                "server": {"timeout": "60s"},
            }},
            "upstreams": {"stdio": {"server": {
                "command": std::path::absolute(programs::python("servers").get_program()).unwrap(),
                "args": ["_server.py"],
                "cwd": server.path(),
                "sandbox": sandbox,
            }}},
        }))
        .start()
        .await;
        let keys = gateway.data_dir().join("keys.json");
        if !keys.exists() {
            fs::write(keys, "{}").unwrap();
        }
        let (status, pid) = gateway.call("other", "pid", json!({})).await;
        assert_eq!(status, 200, "{pid}");
        Self {
            gateway,
            server,
            users,
            service,
            _abstract: listener,
            abstract_name,
            victim: pid.as_i64().unwrap(),
        }
    }

    fn surroundings(&self, namespace: &str) -> Value {
        let data = self.gateway.data_dir();
        let later = data.join("tools/other/later.txt");
        if !later.exists() {
            fs::write(&later, "later\n").unwrap();
        }
        let own = match namespace {
            "hostile" => data.join("tools/hostile/own.txt"),
            _ => self.server.path().join("own.txt"),
        };
        json!({
            "kind": if namespace == "hostile" { "tool" } else { "server" },
            "data": data,
            "configuration": self.gateway.data.path().join("tooldock.test.yaml"),
            "other": data.join("tools/other/secret.txt"),
            "later": later,
            "own": own,
            "program": env!("CARGO_BIN_EXE_tooldock"),
            "users": self.users.path(),
            "victim": self.victim,
            "gateway": self.gateway.pid(),
            "metrics": self.gateway.metrics.port(),
            "service": self.service.local_addr().unwrap().port(),
            "abstract": self.abstract_name,
        })
    }

    /// Tries a way out of the sandbox. Returns true if it succeeded, and the text of the tool's answer.
    async fn attempt(&self, namespace: &str, way: &str) -> (bool, String) {
        let arguments = json!({"way": way, "where": self.surroundings(namespace)});
        let (status, answer) = self.gateway.call(namespace, "attempt", arguments).await;
        let outcome = outcome(&answer);
        let outcome = outcome.unwrap_or_else(|| panic!("{way}: {status} {answer}"));
        let said = outcome["said"].as_str().unwrap_or_default().to_owned();
        (outcome["out"] == json!(true), said)
    }
}

/// The object with the outcome, wherever the answer has it.
fn outcome(answer: &Value) -> Option<&Value> {
    match answer {
        Value::Object(members) if members.contains_key("out") => Some(answer),
        Value::Object(members) => members.values().find_map(outcome),
        Value::Array(items) => items.iter().find_map(outcome),
        _ => None,
    }
}

/// Tries every way from the tool and from the server, and returns all differences from the table.
async fn differences(mode: &str) -> Vec<String> {
    let support = support();
    let sandbox = match mode {
        "off" => json!("off"),
        mode => json!({"mode": mode, "memory": "256MiB", "pids": 64}),
    };
    let house = House::of(sandbox).await;
    let mut differences = Vec::new();
    for (way, off, basic, strict, needs) in WAYS {
        for namespace in ["hostile", "server"] {
            let expected = match mode {
                "off" if *off == Off::Either => None,
                "off" => Some(OPEN),
                "basic" => Some(*basic),
                _ => Some(*strict),
            };
            // A part that the kernel lacks refuses nothing, so the access succeeds if it does in `off`.
            let expected = match expected {
                Some(SHUT) if !needs.are_met(&support) => None,
                expected => expected,
            };
            let (out, said) = house.attempt(namespace, way).await;
            if expected.is_some_and(|expected| expected != out) {
                differences.push(format!("{mode}, {namespace}: {way} gave {out} ({said})"));
            }
        }
    }
    differences
}

fn assert_none(differences: &[String]) {
    assert!(
        differences.is_empty(),
        "{}\n{:?}",
        differences.join("\n"),
        support()
    );
}

#[tokio::test]
async fn without_a_sandbox_the_ways_lead_out() {
    assert_none(&differences("off").await);
}

#[tokio::test]
async fn basic_keeps_tools_from_the_gateway_and_from_each_other_and_from_nothing_else() {
    assert_none(&differences("basic").await);
}

#[tokio::test]
async fn strict_keeps_tools_from_all_that_is_not_allowed() {
    if support().landlock == 0 {
        return;
    }
    assert_none(&differences("strict").await);
}

#[tokio::test]
async fn what_strict_refuses_can_be_allowed_by_path_and_by_address() {
    let support = support();
    if support.landlock == 0 {
        return;
    }
    // The names of the house's own things are not known before it is there.
    let users = TempDir::new().unwrap();
    fs::write(users.path().join("notes.txt"), "notes\n").unwrap();
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = service.local_addr().unwrap().port();
    let house = House::of(json!({
        "mode": "strict",
        "write": [users.path(), "."],
        "network": [format!("localhost:{port}")],
    }))
    .await;
    let mut arguments = house.surroundings("hostile");
    arguments["users"] = json!(users.path());
    arguments["service"] = json!(port);
    for (way, expected, holds) in [
        ("read_user_folder", OPEN, true),
        ("write_user_folder", OPEN, true),
        ("open_database_in_own_folder", OPEN, true),
        ("connect_to_a_service", OPEN, true),
        ("connect_to_metrics", SHUT, support.connections),
        ("read_other", SHUT, true),
    ] {
        let arguments = json!({"way": way, "where": arguments});
        let (status, answer) = house.gateway.call("hostile", "attempt", arguments).await;
        let outcome = outcome(&answer).unwrap_or_else(|| panic!("{way}: {status} {answer}"));
        assert!(
            !holds || outcome["out"] == json!(expected),
            "{way}: {answer}"
        );
    }
    // Another service is still closed.
    let (out, said) = house.attempt("hostile", "connect_to_a_service").await;
    assert!(!support.connections || !out, "{said}");
}

#[tokio::test]
async fn a_namespace_cannot_go_below_the_ceiling_nor_open_the_gateways_files() {
    let gateway = Gateway::with_tools([
        ("hostile", "hostile.py", HOSTILE),
        ("hostile", "_ways.py", THE_WAYS),
        ("hostile", "tooldock.yaml", "sandbox: off\n"),
        ("greedy", "hostile.py", HOSTILE),
        ("greedy", "_ways.py", THE_WAYS),
        ("other", "secret.txt", "secret of other\n"),
    ])
    .config(json!({"namespaces": {"ceilings": {"sandbox": "basic"}}}))
    .start_with(|data| {
        let other = data.join("tools/other");
        let asks = format!("sandbox: {{ mode: basic, read: [{:?}] }}\n", other);
        fs::write(data.join("tools/greedy/tooldock.yaml"), asks).unwrap();
    })
    .await;
    let place = json!({
        "kind": "tool",
        "data": gateway.data_dir(),
        "other": gateway.data_dir().join("tools/other/secret.txt"),
    });
    for namespace in ["hostile", "greedy"] {
        let arguments = json!({"way": "read_other", "where": place});
        let (status, answer) = gateway.call(namespace, "attempt", arguments).await;
        let outcome = outcome(&answer).unwrap_or_else(|| panic!("{status} {answer}"));
        let holds = Needs::Files.are_met(&support());
        assert!(
            !holds || outcome["out"] == json!(false),
            "{namespace}: {answer}"
        );
    }
}

#[tokio::test]
async fn ready_says_which_sandbox_a_namespace_has_and_what_is_missing() {
    let gateway = Gateway::with_tools([
        ("plain", "victim.py", VICTIM),
        ("bare", "victim.py", VICTIM),
    ])
    .config(json!({"namespaces": {"overrides": {"bare": {"sandbox": "off"}}}}))
    .start()
    .await;
    let ready: Value = gateway
        .request("GET", "/ready")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let of = |name: &str| {
        let namespaces = ready["namespaces"].as_array().unwrap().iter();
        let mut namespaces = namespaces.filter(|it| it["name"] == name);
        namespaces.next().unwrap()["sandbox"].clone()
    };
    assert_eq!(of("bare"), json!({"mode": "off"}), "{ready}");
    assert_eq!(of("plain")["mode"], "basic", "{ready}");
    let support = support();
    let is_whole =
        support.mounts != "none" && support.landlock >= 6 && support.seccomp && support.connections;
    assert_eq!(of("plain")["missing"].is_null(), is_whole, "{ready}");
    let warned = gateway.log().contains("holds in part on this machine");
    assert_eq!(warned, !is_whole, "{}", gateway.log());
}

#[tokio::test]
async fn a_refused_connection_is_named_once_in_the_log() {
    if !support().connections {
        return;
    }
    let house = House::of(json!("basic")).await;
    for _ in 0..3 {
        house.attempt("hostile", "connect_to_metrics").await;
    }
    let line = format!(
        "the sandbox refused a connection to 127.0.0.1:{}",
        house.gateway.metrics.port()
    );
    crate::support::eventually("the line", async || {
        house.gateway.log().contains(&line).then_some(())
    })
    .await;
    assert_eq!(house.gateway.log().matches(&line).count(), 1);
}

#[tokio::test]
async fn a_refused_file_is_explained_once_with_the_key_that_opens_it() {
    if !Needs::Files.are_met(&support()) {
        return;
    }
    let house = House::of(json!("basic")).await;
    let other = house.gateway.data_dir().join("tools/other/secret.txt");
    for _ in 0..3 {
        let (status, answer) = house
            .gateway
            .call("hostile", "peek", json!({"path": other}))
            .await;
        assert_ne!(status, 200, "{answer}");
    }
    let line = format!(
        "for {}: if the sandbox (basic) keeps it away",
        other.display()
    );
    crate::support::eventually("the line", async || {
        house.gateway.log().contains(&line).then_some(())
    })
    .await;
    assert_eq!(house.gateway.log().matches(&line).count(), 1);
}

#[tokio::test]
async fn explain_says_which_sandbox_a_namespace_has() {
    let gateway = Gateway::with_tools([("plain", "victim.py", VICTIM)])
        .start()
        .await;
    let explained = gateway
        .request("POST", "/explain")
        .header("X-Manager-Token", crate::support::gateway::MANAGER_TOKEN)
        .json(&json!({"as": "bearer", "namespace": "plain"}))
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(explained.contains("sandbox: basic"), "{explained}");
}

/// Starts the examples that need no other service and no package, each in its sandbox.
#[tokio::test]
async fn the_examples_come_up_in_their_sandbox() {
    let examples = programs::root().join("conf/examples");
    let gateway = Gateway::empty()
        .start_with(|data| {
            for example in fs::read_dir(&examples).unwrap().flatten() {
                let is_python = fs::read_dir(example.path())
                    .into_iter()
                    .flatten()
                    .flatten()
                    .any(|it| it.path().extension().is_some_and(|it| it == "py"));
                // The example `mcp-server` installs the SDK from a package index.
                let needs_packages = example.path().join("requirements.txt").exists()
                    || example.file_name() == "mcp-server";
                if is_python && !needs_packages {
                    copy(
                        &example.path(),
                        &data.join("tools").join(example.file_name()),
                    );
                }
            }
        })
        .await;
    let ready: Value = gateway
        .request("GET", "/ready")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    for namespace in ready["namespaces"].as_array().unwrap() {
        assert_eq!(
            namespace["state"],
            "ready",
            "{namespace}\n{}",
            gateway.log()
        );
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        match entry.path().is_dir() {
            true => copy(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}
