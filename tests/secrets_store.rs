//! Secrets of namespaces: from the terminal of a person to a tool, and shown nowhere in between.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::manager::{Manager, with_manager};
use crate::support::{Gateway, eventually, programs};

/// A value that must show nowhere.
const CANARY: &str = "canary-7f3a9b-value";
const KEY: &str = "test-secrets-key";

/// Tools that see their environment.
const SEES: &str = r#"
import os
from fastmcp.tools import tool

@tool
def length() -> int:
    """How long the secret is."""
    return len(os.environ.get("GITHUB_TOKEN", ""))

@tool
def holds() -> list[str]:
    """Name the variables that have the value of a secret."""
    return sorted(name for name, value in os.environ.items() if value.startswith("canary-7f3a9b"))

@tool
def pid() -> int:
    """The worker's process."""
    return os.getpid()
"#;

fn secrets(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    command.arg("secrets").args(arguments);
    prepared(&mut command, data);
    command
}

fn prepared(command: &mut Command, data: &Path) {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("DATA_DIR", data)
        .env("SECRETS_KEY", KEY)
        .stdin(Stdio::null());
}

fn text(output: &Output) -> String {
    let all = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(all).unwrap()
}

/// Sets a secret as people do: by the documented line, on a terminal.
fn typed(data: &Path, key: &str, scope: &str, value: &str) -> String {
    let prompt = format!("Value for {key} ({scope}): ");
    let script = programs::root().join("tests/fixtures/secrets/type_into.py");
    let mut command = programs::python("base");
    prepared(&mut command, data);
    command
        .current_dir(programs::root().join("workers/python"))
        .env("TOOLDOCK_BIN", env!("CARGO_BIN_EXE_tooldock"))
        .arg(script)
        .args([&prompt, value, "python3", "-m", "app.cli.secrets", "set"])
        .args(["--key", key, "--scope", scope]);
    let output = command.output().unwrap();
    let shown = text(&output);
    assert!(output.status.success(), "{shown}");
    assert!(shown.contains(&prompt), "{shown}");
    shown
}

#[tokio::test]
async fn a_secret_goes_from_a_terminal_to_the_tools_that_need_it_and_shows_nowhere() {
    let declares = "secrets: [GITHUB_TOKEN]";
    let (builder, address) = with_manager(Gateway::with_tools([
        ("github", "sees.py", SEES),
        ("github", "tooldock.yaml", declares),
        ("other", "sees.py", SEES),
    ]));
    let gateway = builder.env("SECRETS_KEY", KEY).start().await;
    let data = gateway.data_dir().to_owned();
    let manager = Manager::open(address).await;
    let mut transcript = String::new();
    let mut ask = async |tool: &str, arguments: Value| {
        let answer = manager.call(tool, arguments).await;
        transcript += &answer.result.to_string();
        answer.value()
    };
    let github = json!({"namespace": "github"});
    let key = json!({"key": "GITHUB_TOKEN", "namespace": "github"});

    let check = ask("check_secrets", github.clone()).await;
    assert_eq!(
        check,
        json!({"namespace": "github", "satisfied": [], "missing": ["GITHUB_TOKEN"], "placeholders": []})
    );
    let listed = ask("list_secrets", github.clone()).await;
    assert_eq!(listed[0]["status"], "missing");
    let prepared = ask("prepare_secret", key.clone()).await;
    assert_eq!(
        prepared,
        json!({"key": "GITHUB_TOKEN", "scope": "github", "meta_file": data.join("secrets.meta.yaml"),
            "instructions": "Run: docker exec -it tooldock-manager python -m app.cli.secrets set --key GITHUB_TOKEN --scope github",
            "command": "tooldock secrets set --key GITHUB_TOKEN --scope github"})
    );
    let listed = ask("list_secrets", json!({})).await;
    assert_eq!(
        listed,
        json!([{"key": "GITHUB_TOKEN", "scope": "github", "status": "placeholder"}])
    );
    let check = ask("check_secrets", github.clone()).await;
    assert_eq!(check["placeholders"], json!(["GITHUB_TOKEN"]));
    let value =
        async |namespace: &str, tool: &str| gateway.call(namespace, tool, json!({})).await.1;
    assert_eq!(value("github", "length").await, 0);
    let pids = (value("github", "pid").await, value("other", "pid").await);

    let shown = typed(&data, "GITHUB_TOKEN", "github", CANARY);
    assert!(!shown.contains(CANARY), "{shown}");
    let reloaded = ask("reload_core", json!({})).await;
    assert_eq!(reloaded["workers_restarted"], json!(["github"]));
    assert_eq!(value("github", "length").await, CANARY.len());
    assert_ne!(value("github", "pid").await, pids.0);
    assert_eq!(value("other", "pid").await, pids.1);
    let check = ask("check_secrets", github).await;
    assert_eq!(check["satisfied"], json!(["GITHUB_TOKEN"]));
    ask("prepare_secret", key.clone()).await;
    let listed = ask("list_secrets", json!({})).await;
    assert_eq!(
        listed[0]["status"], "set",
        "asking again takes nothing away"
    );

    // A store that cannot be read takes no secret from any namespace.
    let file = data.join("secrets.enc");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(
        &file,
        good.replace("\"ciphertext\":\"", "\"ciphertext\":\"AAAA"),
    )
    .unwrap();
    let reloaded = ask("reload_core", json!({})).await;
    assert_eq!(reloaded["failed"][0]["namespace"], "secrets.enc");
    assert_eq!(reloaded["failed"][0]["code"], "secrets_unavailable");
    assert_eq!(reloaded["workers_restarted"], json!([]));
    assert_eq!(value("github", "length").await, CANARY.len());
    let ready = gateway
        .client
        .get(format!("http://{}/ready", gateway.metrics));
    let ready: Value = ready.send().await.unwrap().json().await.unwrap();
    assert!(
        ready["problem"]["message"]
            .as_str()
            .unwrap()
            .contains("secrets.enc: cannot be decrypted"),
        "{ready}"
    );
    fs::write(&file, good).unwrap();
    assert!(ask("reload_core", json!({})).await["failed"].is_null());

    let cmdline = fs::read(format!("/proc/{}/cmdline", gateway.pid())).unwrap_or_default();
    let all = [
        transcript.clone(),
        gateway.log(),
        gateway.metrics_text().await,
        String::from_utf8_lossy(&cmdline).into_owned(),
    ];
    for place in all {
        assert!(!place.contains(CANARY), "{place}");
    }
    let found = Command::new("grep")
        .args(["-r", "-l", "-s", CANARY])
        .args([
            "secrets.enc",
            "secrets.meta.yaml",
            "secrets.lock",
            "logs",
            "tools",
            "workers",
        ])
        .current_dir(&data)
        .output()
        .unwrap();
    assert_eq!(text(&found), "");

    let removed = manager.call("remove_secret", key.clone()).await.value();
    assert_eq!(
        removed,
        json!({"removed": true, "key": "GITHUB_TOKEN", "scope": "github"})
    );
    eventually("the core was told to reload", || async {
        (gateway.call("github", "length", json!({})).await.1 == 0).then_some(())
    })
    .await;
    let again = manager.call("remove_secret", key).await;
    assert!(
        again.error().contains("no secret GITHUB_TOKEN"),
        "{again:?}"
    );
    for (tool, arguments) in [
        ("create_namespace", json!({"name": "global"})),
        ("prepare_secret", json!({"key": "no key"})),
        (
            "prepare_secret",
            json!({"key": "A", "namespace": "_system"}),
        ),
        ("prepare_secret", json!({"key": "A", "namespace": "global"})),
        ("prepare_secret", json!({"key": "A", "value": "x"})),
        ("remove_secret", json!({})),
        ("check_secrets", json!({"namespace": "../github"})),
        ("check_secrets", json!({"namespace": "nowhere"})),
        ("list_secrets", json!({"namespace": 7})),
    ] {
        manager.call(tool, arguments).await.error();
    }
}

/// Tools that give their secret away.
const GIVES: &str = r#"
import os
from fastmcp.tools import tool

@tool
def raises() -> str:
    """Raise it."""
    raise ValueError("no such token: " + os.environ["GITHUB_TOKEN"])

@tool
def returns() -> dict[str, list[str]]:
    """Return it."""
    return {"variables": ["TOKEN=" + os.environ["GITHUB_TOKEN"]]}
"#;

#[tokio::test]
async fn a_secret_that_a_tool_gives_away_is_in_no_answer_of_the_management_tools() {
    let raises_on_import = GIVES.to_owned() + "\nraise RuntimeError(os.environ['GITHUB_TOKEN'])\n";
    let (builder, address) = with_manager(Gateway::with_tools([
        ("github", "gives.py", GIVES),
        ("github", "imports.py", &raises_on_import),
    ]));
    let gateway = builder
        .env("ALLOW_INSECURE_SECRETS", "1")
        .start_with(|data| {
            let values = format!("global: {{ GITHUB_TOKEN: {CANARY} }}\nnamespaces: {{}}\n");
            fs::write(data.join("secrets.enc"), values).unwrap();
            let names = "global:\n  GITHUB_TOKEN:\n    status: set\n\nnamespaces: {}\n";
            fs::write(data.join("secrets.meta.yaml"), names).unwrap();
        })
        .await;
    let manager = Manager::open(address).await;
    let trial = |tool: &str| json!({"namespace": "github", "tool_name": tool, "input": {}});
    let mut transcript = String::new();
    let mut ask = async |tool: &str, arguments: Value| {
        let answer = manager.call(tool, arguments).await;
        transcript += &answer.result.to_string();
        answer.value()
    };
    let tried = ask("test_tool", trial("raises")).await;
    assert_eq!(tried["error"], "ValueError: no such token: [redacted]");
    let traceback = tried["traceback"].as_str().unwrap();
    assert!(
        traceback.trim_end().ends_with("no such token: [redacted]"),
        "{traceback}"
    );
    let tried = ask("test_tool", trial("returns")).await;
    assert_eq!(tried["result"], json!({"variables": ["TOKEN=[redacted]"]}));
    let reloaded = ask("reload_core", json!({})).await;
    assert!(
        reloaded["issues"][0]["message"]
            .as_str()
            .unwrap()
            .starts_with("RuntimeError: [redacted]"),
        "{reloaded}"
    );
    assert!(!transcript.contains(CANARY), "{transcript}");
    // A caller of the tool itself gets the tool's own value.
    let (_, value) = gateway.call("github", "returns", json!({})).await;
    assert_eq!(value, json!({"variables": [format!("TOKEN={CANARY}")]}));
}

#[test]
fn the_command_line_sets_edits_lists_removes_and_changes_the_key() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    let script = |name: &str, body: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    // Without encryption: deriving keys takes its time, and another test does.
    let run = |arguments: &[&str], variables: &[(&str, &str)], input: &str| {
        let path = folder.path().join("input");
        fs::write(&path, input).unwrap();
        let mut command = secrets(&data, arguments);
        command
            .env_remove("SECRETS_KEY")
            .env("ALLOW_INSECURE_SECRETS", "1")
            .envs(variables.iter().copied())
            .stdin(fs::File::open(path).unwrap());
        command.output().unwrap()
    };
    let set = |key: &str, scope: &str, value: &str| {
        let output = run(&["set", "--key", key, "--scope", scope], &[], value);
        assert!(output.status.success(), "{}", text(&output));
        assert!(!text(&output).contains(value.trim()), "{}", text(&output));
    };
    thread::scope(|threads| {
        for key in ["A", "B", "C", "D"] {
            let data = &data;
            threads.spawn(move || {
                let mut command = secrets(data, &["set", "--key", key, "--scope", "global"]);
                let mut child = command
                    .env_remove("SECRETS_KEY")
                    .env("ALLOW_INSECURE_SECRETS", "1")
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .spawn()
                    .unwrap();
                let mut stdin = child.stdin.take().unwrap();
                stdin.write_all(b"value\n").unwrap();
                drop(stdin);
                assert!(child.wait().unwrap().success());
            });
        }
    });
    set("OWN", "slack", "own-value\r\nsecond line");
    let list = text(&run(&["list"], &[], ""));
    for line in ["A    global  set", "D    global  set", "OWN  slack   set"] {
        assert!(list.contains(line), "{list}");
    }
    let removed = run(&["remove", "--key", "B", "--scope", "global"], &[], "");
    assert!(removed.status.success());
    let again = run(&["remove", "--key", "B", "--scope", "global"], &[], "");
    assert_eq!(again.status.code(), Some(1));
    for wrong in [
        &["set", "--key", "a b", "--scope", "global"][..],
        &["set", "--key", "A", "--scope", "_system"],
        &["set", "--key", "A", "--scope", "global"],
    ] {
        let output = run(wrong, &[], "");
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert_eq!(text(&output).lines().count(), 1, "{}", text(&output));
    }

    // The editor's view, and the files afterwards.
    let seen = folder.path().join("seen");
    let record = format!(
        "stat -c '%a %n' \"$1\" > {0}; cat \"$1\" >> {0}; sed -i 's/own-value/new-value/' \"$1\"",
        seen.display()
    );
    let editor = script("editor", &record);
    let before = fs::read(data.join("secrets.enc")).unwrap();
    let output = run(&["edit"], &[("EDITOR", editor.to_str().unwrap())], "");
    assert!(output.status.success(), "{}", text(&output));
    let recorded = fs::read_to_string(&seen).unwrap();
    assert!(
        recorded.starts_with("600 /") && recorded.contains("/tooldock-secrets-"),
        "{recorded}"
    );
    assert!(recorded.contains("OWN: own-value"), "{recorded}");
    let left = recorded.lines().next().unwrap().split(' ').nth(1).unwrap();
    assert!(!Path::new(left).parent().unwrap().exists(), "{left}");
    let after = fs::read_to_string(data.join("secrets.enc")).unwrap();
    assert!(
        after.contains("new-value") && after.as_bytes() != before,
        "{after}"
    );

    for (body, code, told) in [
        (
            "printf 'global:\\n  A: [new-value]\\n' > \"$1\"",
            2,
            "line 2",
        ),
        (": > \"$1\"", 2, "`global:` is missing"),
        ("exit 3", 1, "the secrets are unchanged"),
    ] {
        let editor = script("editor", body);
        let output = run(&["edit"], &[("EDITOR", editor.to_str().unwrap())], "");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output));
        assert!(text(&output).contains(told), "{}", text(&output));
        assert!(!text(&output).contains("new-value"), "{}", text(&output));
        assert_eq!(fs::read_to_string(data.join("secrets.enc")).unwrap(), after);
    }

    // A signal ends the editor, and the text with it.
    let waiting = folder.path().join("waiting");
    let editor = script(
        "editor",
        &format!(
            "echo \"$1\" > {0}.new; mv {0}.new {0}; exec sleep 600",
            waiting.display()
        ),
    );
    let mut child = secrets(&data, &["edit"])
        .env_remove("SECRETS_KEY")
        .env("ALLOW_INSECURE_SECRETS", "1")
        .env("EDITOR", &editor)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + crate::support::DEADLINE;
    while !waiting.exists() {
        assert!(std::time::Instant::now() < deadline, "the editor is up");
        thread::yield_now();
    }
    let lock = fs::read_to_string(data.join("secrets.lock")).unwrap();
    assert!(lock.starts_with("secrets edit (process "), "{lock}");
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let left = fs::read_to_string(&waiting).unwrap();
    assert!(!Path::new(left.trim()).parent().unwrap().exists(), "{left}");

    // From no key to a key; the old protection opens nothing any more.
    let output = run(&["rekey"], &[("SECRETS_KEY_NEW", KEY)], "");
    assert!(output.status.success(), "{}", text(&output));
    let output = run(&["set", "--key", "A", "--scope", "global"], &[], "x");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("SECRETS_KEY is not set"),
        "{}",
        text(&output)
    );
    let output = secrets(&data, &["export", "--format", "fernet"])
        .output()
        .unwrap();
    assert!(
        text(&output).starts_with("{\"version\":1,"),
        "{}",
        text(&output)
    );
    let gateway = Command::new(env!("CARGO_BIN_EXE_tooldock"))
        .args(["serve"])
        .env_clear()
        .env("DATA_DIR", &data)
        .env("BEARER_TOKEN", "a-token-0123456789")
        .output()
        .unwrap();
    assert_eq!(gateway.status.code(), Some(2));
    assert!(
        text(&gateway).contains("SECRETS_KEY: is required"),
        "{}",
        text(&gateway)
    );
}

#[tokio::test]
async fn a_core_serves_secrets_that_it_could_not_write() {
    // Whoever writes these files replaces them, and takes the lock before that: neither can be done here without a trace.
    let store = TempDir::new().unwrap();
    let values = |value: &str| format!("global: {{ GITHUB_TOKEN: {value} }}\nnamespaces: {{}}\n");
    let names = "global:\n  GITHUB_TOKEN:\n    status: set\n\nnamespaces: {}\n";
    let put = |name: &str, text: &str| {
        let path = store.path().join(name);
        let _ = fs::remove_file(&path);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    };
    put("secrets.enc", &values("first"));
    put("secrets.meta.yaml", names);
    let files = ["secrets.enc", "secrets.meta.yaml"];
    let gateway = Gateway::with_tools([("github", "sees.py", SEES)])
        .arguments(&["--role", "core"])
        .env("ALLOW_INSECURE_SECRETS", "1")
        .start_with(|data| {
            for name in files {
                std::os::unix::fs::symlink(store.path().join(name), data.join(name)).unwrap();
            }
            fs::create_dir(data.join("secrets.lock")).unwrap();
        })
        .await;
    let length = async || gateway.call("github", "length", json!({})).await;
    assert_eq!(length().await, (200, json!("first".len())));
    put("secrets.enc", &values("another-one"));
    let reloaded = gateway.reload().await;
    assert_eq!(reloaded["workers_restarted"], json!(["github"]));
    assert_eq!(length().await, (200, json!("another-one".len())));

    let data = gateway.data_dir();
    for name in files {
        assert!(data.join(name).is_symlink(), "{name} was replaced");
    }
    let stored = |name: &str| fs::read_to_string(store.path().join(name)).unwrap();
    assert_eq!(stored("secrets.enc"), values("another-one"));
    assert_eq!(stored("secrets.meta.yaml"), names);
    assert_eq!(fs::read_dir(store.path()).unwrap().count(), 2);
    assert_eq!(fs::read_dir(data.join("secrets.lock")).unwrap().count(), 0);
    let mut left = fs::read_dir(data).unwrap();
    assert!(left.all(|it| {
        !it.unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with(".tmp-")
    }));
}

/// WRK-18: values of scope `global` reach every worker, unless the configuration keeps them to namespaces that declare
/// them. The namespace's own file takes nothing of that back.
#[tokio::test]
async fn global_values_are_kept_to_namespaces_that_declare_them() {
    let values = [("GITHUB_TOKEN", "global"), ("OTHER_TOKEN", "mine")];
    let gateway = Gateway::with_tools([
        ("declares", "sees.py", SEES),
        ("declares", "tooldock.yaml", "secrets: [GITHUB_TOKEN]"),
        ("mine", "sees.py", SEES),
        (
            "mine",
            "tooldock.yaml",
            "global_secrets: all\nenv: { COPY: '${GITHUB_TOKEN}' }",
        ),
        ("open", "sees.py", SEES),
    ])
    .config(json!({"namespaces": {
        "defaults": {"global_secrets": "declared"},
        "overrides": {"open": {"global_secrets": "all"}},
    }}))
    .env("SECRETS_KEY", KEY)
    .start()
    .await;
    let data = gateway.data_dir().to_owned();
    for (key, scope) in values {
        typed(&data, key, scope, CANARY);
    }
    gateway.reload().await;
    for (namespace, keys) in [
        ("declares", json!(["GITHUB_TOKEN"])),
        ("mine", json!(["OTHER_TOKEN"])),
        ("open", json!(["GITHUB_TOKEN"])),
    ] {
        let (status, seen) = gateway.call(namespace, "holds", json!({})).await;
        assert_eq!((status, seen), (200, keys), "{namespace}");
    }
    let asked = gateway.request("GET", "/ready").send().await.unwrap();
    let ready = asked.text().await.unwrap();
    assert!(
        ready.contains("global_secrets is declared for all namespaces"),
        "{ready}"
    );
    let config = gateway.data.path().join("tooldock.test.yaml");
    let list = ["list", "-c", config.to_str().unwrap()];
    let listed = text(&secrets(&data, &list).output().unwrap());
    let line = listed.lines().find(|it| it.starts_with("GITHUB_TOKEN"));
    assert!(
        line.is_some_and(|it| it.ends_with("declares, open")),
        "{listed}"
    );
}

/// How many reloads there were.
async fn reloads(gateway: &Gateway) -> f64 {
    let metrics = gateway.metrics_text().await;
    let counts = metrics
        .lines()
        .filter(|line| line.starts_with("tooldock_reloads_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    counts.sum()
}

#[tokio::test]
async fn with_the_watcher_whatever_changes_is_served_without_a_reload_by_hand() {
    let gateway = Gateway::with_tools([("calc", "one.py", SEES)])
        .env("ENABLE_FS_WATCHER", "yes")
        .env("FS_WATCHER_DEBOUNCE_MS", "1000")
        .start()
        .await;
    let served = async |namespace: &'static str, tool: &'static str| {
        eventually("the tool is served", || async {
            (gateway.call(namespace, tool, json!({})).await.0 == 200).then_some(())
        })
        .await;
    };
    eventually("files are watched", || async {
        gateway.log().contains("files are watched").then_some(())
    })
    .await;
    let before = reloads(&gateway).await;
    for at in 0..10 {
        let tool = format!(
            "from fastmcp.tools import tool\n\n@tool\ndef tool_{at}() -> int:\n    \"\"\"A tool.\"\"\"\n    return {at}\n"
        );
        gateway.drop_tool("calc", &format!("tool_{at}.py"), &tool);
    }
    served("calc", "tool_9").await;
    served("calc", "tool_0").await;
    // A reload is counted when everything is done, which is after its tools are served.
    let counted = eventually("the reload is counted", || async {
        Some(reloads(&gateway).await).filter(|now| *now > before)
    })
    .await;
    assert_eq!(counted, before + 1.0, "ten writes are one burst");

    // The folder of tools is replaced as a whole.
    let tools = gateway.tools_dir();
    fs::rename(&tools, gateway.data_dir().join("tools.old")).unwrap();
    gateway.drop_tool("fresh", "sees.py", SEES);
    served("fresh", "pid").await;
    assert_eq!(gateway.call("calc", "pid", json!({})).await.0, 404);
    gateway.drop_tool("fresh2", "sees.py", SEES);
    served("fresh2", "pid").await;
}
