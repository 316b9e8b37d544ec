//! The management tools: a listener of their own, and what they do to namespaces.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::gateway::MANAGER_TOKEN;
use crate::support::manager::{Manager, with_manager};
use crate::support::ports::free_address;
use crate::support::tools::write_wheel;
use crate::support::{Gateway, TOKEN};

#[tokio::test]
async fn the_manager_listener_serves_the_management_tools_and_no_other_listener_does() {
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder.start().await;
    let manager = Manager::open(address).await;

    let (listed, _) = manager.request("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 25, "{listed}");
    let create = tools
        .iter()
        .find(|it| it["name"] == "create_namespace")
        .unwrap();
    assert_eq!(create["inputSchema"]["required"], json!(["name"]));
    assert_eq!(create["annotations"]["readOnlyHint"], false);
    assert!(create["outputSchema"]["properties"]["path"].is_object());

    let health = manager.call("health", json!({})).await.value();
    assert_eq!(health["core_reachable"], true);
    assert!(health["python_version"].as_str().unwrap().starts_with("3."));
    let created = manager
        .call("create_namespace", json!({"name": "github2"}))
        .await
        .value();
    let path = gateway.tools_dir().join("github2");
    assert_eq!(
        created,
        json!({"created": true, "path": path.to_str().unwrap()})
    );
    let again = manager
        .call("create_namespace", json!({"name": "github2"}))
        .await;
    assert!(again.error().contains(path.to_str().unwrap()), "{again:?}");
    let reloaded = manager.call("reload_core", json!({})).await;
    assert_eq!(reloaded.value()["reloaded"], true);
    assert!(!reloaded.progress.is_empty());
    let listed = manager.call("list_namespaces", json!({})).await.value();
    assert!(
        listed
            .as_array()
            .unwrap()
            .contains(&json!({"name": "github2", "tool_count": 0,
            "has_requirements": false, "secrets_status": "no_secrets_needed"})),
        "{listed}"
    );
    let deleted = manager
        .call("delete_namespace", json!({"name": "github2"}))
        .await
        .value();
    assert_eq!(deleted, json!({"deleted": true, "name": "github2"}));
    assert!(!path.exists());
    let config = manager.call("server_config", json!({})).await.value();
    assert_eq!(config["manager_port"], address.port());
    assert!(!config.to_string().contains(TOKEN) && !config.to_string().contains(MANAGER_TOKEN));

    // `X-Namespace` is not read here, and leads nowhere else.
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let ask = |url: String, namespace: &'static str, token: &'static str| {
        let request = gateway.client.post(url).bearer_auth(token).json(&list);
        let request = request.header("Accept", "application/json, text/event-stream");
        async move {
            let answer = request
                .header("X-Namespace", namespace)
                .send()
                .await
                .unwrap();
            (
                answer.status().as_u16(),
                answer.json::<Value>().await.unwrap(),
            )
        }
    };
    let own = format!("http://{address}/mcp");
    let (status, answer) = ask(own.clone(), "shared", TOKEN).await;
    assert_eq!(status, 200);
    assert_eq!(
        answer["result"]["tools"].as_array().unwrap().len(),
        tools.len()
    );
    assert_eq!(ask(format!("{own}/shared"), "shared", TOKEN).await.0, 404);
    assert_eq!(ask(own, "shared", "wrong").await.0, 401);
    assert_eq!(ask(gateway.url("/mcp"), "_system", TOKEN).await.0, 404);
    assert_eq!(
        ask(gateway.url("/mcp/_system"), "_system", TOKEN).await.0,
        404
    );
    let names = gateway.request("GET", "/namespaces").send().await.unwrap();
    assert!(!names.text().await.unwrap().contains("_system"));
}

/// Names and contents of all below a folder, but for what the gateway itself keeps there.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            if kind.is_symlink() {
                found.insert(path.clone(), b"a symlink".to_vec());
            } else if kind.is_dir() {
                found.insert(path.clone(), Vec::new());
                folders.push(path);
            } else {
                found.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

const USES_A_PACKAGE: &str = r#"import os

import local_package
from fastmcp.tools import tool


@tool
def version() -> str:
    """Say which version of the package is installed."""
    return local_package.__version__


@tool
def needy(key: str) -> str:
    """Read a variable that is not there."""
    return os.environ[key]
"#;

#[tokio::test]
async fn a_namespace_is_made_by_tools_alone_and_served_to_another_client() {
    let wheels = tempfile::TempDir::new().unwrap();
    write_wheel(wheels.path(), "local_package", "1.2.3");
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder
        .env("PIP_NO_INDEX", "1")
        .env("PIP_FIND_LINKS", wheels.path().to_str().unwrap())
        .env("UV_NO_INDEX", "1")
        .env("UV_FIND_LINKS", wheels.path().to_str().unwrap())
        .start()
        .await;
    let manager = Manager::open(address).await;
    let value = async |tool: &str, arguments: Value| manager.call(tool, arguments).await.value();

    value("create_namespace", json!({"name": "made"})).await;
    let code = |code: &str| json!({"namespace": "made", "filename": "tools.py", "code": code});
    let written = value("write_tool", code(USES_A_PACKAGE)).await;
    let found =
        json!({"written": true, "filename": "tools.py", "tools_found": ["version", "needy"]});
    assert_eq!(written, found);

    // Nothing is served of it yet, and its files are known all the same.
    let listed = value("list_namespaces", json!({})).await;
    let made = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["name"] == "made");
    assert_eq!(made.unwrap()["tool_count"], 2, "{listed}");
    let package = |package: &str| json!({"namespace": "made", "package": package});
    let failed = value("add_requirement", package("no-such-package-here")).await;
    assert_eq!(failed["added"], false);
    assert!(
        failed["details"]
            .as_str()
            .unwrap()
            .contains("no-such-package-here")
    );
    let listed = value("list_requirements", json!({"namespace": "made"})).await;
    assert_eq!(listed, json!({"namespace": "made", "packages": []}));
    let folder = gateway.tools_dir().join("made");
    let left = fs::read_dir(&folder)
        .unwrap()
        .map(|it| it.unwrap().file_name());
    assert_eq!(
        left.collect::<Vec<_>>(),
        ["tools.py"],
        "what could not be installed leaves nothing behind"
    );
    for _ in 0..2 {
        let added = manager
            .call("add_requirement", package("local_package>=1.0"))
            .await;
        let expected = json!({"added": true, "package": "local_package>=1.0", "namespace": "made"});
        assert_eq!(added.value(), expected);
        assert_eq!(added.progress[0]["params"]["progressToken"], "p");
    }
    let installed = value("install_requirements", json!({"namespace": "made"})).await;
    assert_eq!(
        installed,
        json!({"installed": true, "namespace": "made", "packages": ["local_package>=1.0"]})
    );

    let reloaded = value("reload_core", json!({})).await;
    assert!(
        reloaded["namespaces"]
            .as_array()
            .unwrap()
            .contains(&json!("made")),
        "{reloaded}"
    );
    let trial =
        |tool: &str, input: Value| json!({"namespace": "made", "tool_name": tool, "input": input});
    let tried = value("test_tool", trial("version", json!({}))).await;
    assert_eq!(tried, json!({"success": true, "result": "1.2.3"}));
    let tried = value("test_tool", trial("needy", json!({"key": "NO_SUCH_KEY"}))).await;
    assert_eq!(
        (&tried["success"], &tried["error"]),
        (&json!(false), &json!("KeyError: 'NO_SUCH_KEY'"))
    );
    assert!(
        tried["traceback"]
            .as_str()
            .unwrap()
            .starts_with("Traceback (most recent call last):\n")
    );
    let tried = value("test_tool", trial("absent", json!({}))).await;
    assert!(
        tried["error"]
            .as_str()
            .unwrap()
            .starts_with("tool_not_found"),
        "{tried}"
    );
    let (status, called) = gateway.call("made", "version", json!({})).await;
    assert_eq!((status, called), (200, json!("1.2.3")));

    let listed = value("list_tools", json!({"namespace": "made"})).await;
    assert_eq!(
        listed[0],
        json!({"name": "version", "filename": "tools.py",
        "description": "Say which version of the package is installed."})
    );
    let source = value(
        "get_tool_source",
        json!({"namespace": "made", "filename": "tools.py"}),
    )
    .await;
    assert_eq!(
        source,
        json!({"filename": "tools.py", "source": USES_A_PACKAGE})
    );

    // The code before is kept, and is no tool file.
    let other = "from fastmcp.tools import tool\n\n\n@tool\ndef other() -> int:\n    \"\"\"One.\"\"\"\n    return 1\n";
    let written = value("generate_tool", code(other)).await;
    let kept = written["previous_version"].as_str().unwrap();
    assert_eq!(
        fs::read_to_string(folder.join(kept)).unwrap(),
        USES_A_PACKAGE
    );
    let deleted = value(
        "delete_tool",
        json!({"namespace": "made", "filename": "tools.py"}),
    )
    .await;
    assert_eq!(
        (&deleted["deleted"], &deleted["filename"]),
        (&json!(true), &json!("tools.py"))
    );
    let kept = deleted["previous_version"].as_str().unwrap();
    assert_eq!(fs::read_to_string(folder.join(kept)).unwrap(), other);

    let own = value(
        "install_pip_packages",
        json!({"packages": ["local_package"]}),
    )
    .await;
    assert_eq!(
        own,
        json!({"installed": true, "packages": ["local_package"]})
    );
    let import = |python: &str| {
        let python = gateway.data_dir().join(python);
        let import = std::process::Command::new(python)
            .args(["-c", "import local_package"])
            .output();
        import.unwrap().status.success()
    };
    assert!(import("venvs/.manager/bin/python"));
    assert!(import("venvs/made/bin/python") && !import("venvs/shared/bin/python"));

    value("delete_namespace", json!({"name": "made"})).await;
    assert!(!folder.exists() && !gateway.data_dir().join("venvs/made").exists());
    assert_eq!(
        gateway.call("made", "version", json!({})).await.0,
        200,
        "served until the reload"
    );
    value("reload_core", json!({})).await;
    assert_eq!(gateway.call("made", "version", json!({})).await.0, 404);
}

#[tokio::test]
async fn wrong_arguments_are_refused_with_a_reason_and_change_nothing() {
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder.start().await;
    let manager = Manager::open(address).await;
    let tool = "from fastmcp.tools import tool\n\n\n@tool\ndef f(a: int) -> int:\n    \"\"\"One.\"\"\"\n    return a\n";
    for call in [
        ("create_namespace", json!({"name": "ns"})),
        (
            "write_tool",
            json!({"namespace": "ns", "filename": "a.py", "code": tool}),
        ),
    ] {
        manager.call(call.0, call.1).await.value();
    }
    let outside = gateway.data_dir().join("outside.py");
    fs::write(&outside, "secret = 1\n").unwrap();
    std::os::unix::fs::symlink(&outside, gateway.tools_dir().join("ns/link.py")).unwrap();
    std::os::unix::fs::symlink(gateway.data_dir(), gateway.tools_dir().join("leaves")).unwrap();
    let before = tree(&gateway.tools_dir());

    let (listed, _) = manager.request("tools/list", json!({})).await;
    let mut refused = 0;
    for tool in listed["result"]["tools"].as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        let properties = tool["inputSchema"]["properties"].as_object().unwrap();
        let required = tool["inputSchema"]["required"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let right: serde_json::Map<String, Value> = properties
            .iter()
            .map(|(key, schema)| {
                let value = match schema["type"].as_str() {
                    Some("object") => json!({}),
                    Some("array") => json!(["x"]),
                    _ if key == "filename" => json!("b.py"),
                    _ => json!("absent"),
                };
                (key.clone(), value)
            })
            .collect();
        let mut wrong = vec![{
            let mut surplus = right.clone();
            surplus.insert("surplus".to_owned(), json!(1));
            surplus
        }];
        for key in right.keys() {
            for value in [json!(5), json!([1]), json!({"a": [1]}), json!(true)] {
                let mut typed = right.clone();
                typed.insert(key.clone(), value);
                // An object is what this one takes.
                if !(typed[key].is_object() && right[key].is_object()) {
                    wrong.push(typed);
                }
            }
            if required.contains(&json!(key)) {
                let mut missing = right.clone();
                missing.remove(key);
                wrong.push(missing);
            }
        }
        let names = ["../x", "/etc", "_system", "Bad.Name", "my tools", "", "а"];
        let namespace_key = ["namespace", "name"]
            .iter()
            .find(|key| right.contains_key(**key));
        for name in names.iter().filter(|_| namespace_key.is_some()) {
            let mut named = right.clone();
            named.insert((*namespace_key.unwrap()).to_owned(), json!(name));
            wrong.push(named);
        }
        for arguments in wrong {
            let answer = manager.call(name, Value::Object(arguments.clone())).await;
            assert!(
                answer.error().len() > 20,
                "{name} {arguments:?}: {answer:?}"
            );
            refused += 1;
        }
    }
    assert!(refused > 80, "{refused}");
    for tool in [
        "delete_namespace",
        "list_tools",
        "install_requirements",
        "list_requirements",
    ] {
        let key = if tool == "delete_namespace" {
            "name"
        } else {
            "namespace"
        };
        for name in ["leaves", "absent"] {
            let answer = manager.call(tool, json!({key: name})).await;
            assert!(answer.error().len() > 20, "{tool} {name}");
        }
    }

    for name in [
        "../../etc/passwd.py",
        "/etc/x.py",
        "x.txt",
        "_x.py",
        "a/b.py",
        "a\0.py",
        "ä.py",
        "link.py",
        ".history/a.py.1",
    ] {
        for tool in ["get_tool_source", "delete_tool"] {
            let answer = manager
                .call(tool, json!({"namespace": "ns", "filename": name}))
                .await;
            assert!(answer.error().len() > 20, "{tool} {name}");
        }
    }
    let untyped = "from fastmcp.tools import tool\n@tool\ndef f(a) -> int:\n    \"\"\"One.\"\"\"\n    return 1\n";
    let bare = "from fastmcp.tools import tool\n@tool\ndef f(a: int) -> int:\n    return a\n";
    let runs = format!(
        "open({:?}, 'w')\n{tool}",
        gateway.tools_dir().join("ran").to_str().unwrap()
    );
    let deep = format!("x = {}1{}\n", "(".repeat(5000), ")".repeat(5000));
    for (filename, code, error) in [
        ("b.py", "def (:", "Invalid Python syntax"),
        ("b.py", "\0\u{1}\u{2}", "Invalid Python syntax"),
        ("b.py", deep.as_str(), "Invalid Python syntax"),
        (
            "b.py",
            "def f(a: int) -> int: return a",
            "No @tool decorator found",
        ),
        ("b.py", "", "No @tool decorator found"),
        ("b.py", untyped, "Missing type hints"),
        ("b.py", bare, "Missing docstring"),
        ("x.txt", tool, "Invalid filename"),
        ("../x.py", tool, "Invalid filename"),
        ("_x.py", tool, "Invalid filename"),
        ("b.py", &"x".repeat(1024 * 1024 + 1), "Code is too large"),
    ] {
        let code = json!({"namespace": "ns", "filename": filename, "code": code});
        let answer = manager.call("write_tool", code).await.value();
        assert_eq!(
            (&answer["written"], &answer["error"]),
            (&json!(false), &json!(error)),
            "{answer}"
        );
        assert!(!answer["details"].as_str().unwrap().is_empty());
    }
    let huge = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "write_tool",
        "arguments": {"namespace": "ns", "filename": "b.py", "code": "x".repeat(5 << 20)}}});
    assert_eq!(manager.post(&huge).await.status(), 413);
    for package in [
        "-r /etc/passwd",
        "httpx\n-r x",
        "--index-url=https://x/",
        "x @ file:///x",
        "../x",
    ] {
        let asked = json!({"namespace": "ns", "package": package});
        assert!(
            manager
                .call("add_requirement", asked)
                .await
                .error()
                .contains("package: ")
        );
    }
    assert_eq!(tree(&gateway.tools_dir()), before);

    // Code is looked at and never run.
    let code = json!({"namespace": "ns", "filename": "b.py", "code": runs});
    assert_eq!(
        manager.call("write_tool", code).await.value()["written"],
        true
    );
    assert!(!gateway.tools_dir().join("ran").exists());
}

#[tokio::test]
async fn manager_and_core_are_two_processes_and_each_outlives_the_other() {
    let core = Gateway::empty()
        .arguments(&["--role", "core"])
        .env("ALLOW_INSECURE_SECRETS", "1")
        .start()
        .await;
    let start = || {
        let (address, metrics) = (free_address(), free_address());
        Gateway::empty()
            .listening(address, metrics)
            .config(json!({"listeners": [
                {"name": "manager", "address": address.to_string(), "profile": "manager"},
                {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
            ]}))
            .arguments(&["--role", "manager"])
            .env("DATA_DIR", core.data_dir().to_str().unwrap())
            .env("CORE_URL", &core.url(""))
            .env("ALLOW_INSECURE_SECRETS", "1")
            .start()
    };
    let process = start().await;
    let manager = Manager::open(process.address).await;
    let tool = "import os\nfrom fastmcp.tools import tool\n\n\n@tool\ndef f(a: int) -> int:\n    \"\"\"One.\"\"\"\n    return a // 0\n";
    manager
        .call("create_namespace", json!({"name": "ns"}))
        .await
        .value();
    let code = json!({"namespace": "ns", "filename": "a.py", "code": tool});
    assert_eq!(
        manager.call("write_tool", code.clone()).await.value()["written"],
        true
    );
    let reloaded = manager.call("reload_core", json!({})).await.value();
    assert!(
        reloaded["workers_restarted"]
            .as_array()
            .unwrap()
            .contains(&json!("ns")),
        "{reloaded}"
    );
    let trial = json!({"namespace": "ns", "tool_name": "f", "input": {"a": 1}});
    let tried = manager.call("test_tool", trial).await.value();
    assert!(
        tried["error"]
            .as_str()
            .unwrap()
            .starts_with("ZeroDivisionError"),
        "{tried}"
    );
    assert!(
        tried["traceback"].as_str().unwrap().contains("a // 0"),
        "{tried}"
    );
    let health = manager.call("health", json!({})).await.value();
    assert_eq!(
        (&health["core_reachable"], &health["total_tools"]),
        (&json!(true), &json!(2))
    );

    process.signal(rustix::process::Signal::KILL);
    process.ended().await;
    let (status, _) = core.call("ns", "f", json!({"a": 1})).await;
    assert_eq!(status, 500, "the tool itself fails, in the core");

    let process = start().await;
    let manager = Manager::open(process.address).await;
    core.signal(rustix::process::Signal::KILL);
    core.ended().await;
    let health = manager.call("health", json!({})).await.value();
    assert_eq!(health["core_reachable"], false);
    let reload = manager.call("reload_core", json!({})).await;
    assert!(reload.error().contains("cannot be reached"), "{reload:?}");
    assert_eq!(
        manager.call("write_tool", code).await.value()["written"],
        true
    );
}
