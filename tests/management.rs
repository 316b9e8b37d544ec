//! The management tools: a listener of their own, and their effects on namespaces.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::compiled;
use crate::support::gateway::{Builder, MANAGER_TOKEN};
use crate::support::manager::{Manager, with_manager};
use crate::support::ports::free_address;
use crate::support::tools::write_wheel;
use crate::support::{Gateway, TOKEN, eventually};

#[tokio::test]
async fn the_manager_listener_serves_the_management_tools_and_no_other_listener_does() {
    let (builder, address) = with_manager(Gateway::empty());
    let server = json!({"theirs": {"command": compiled::stray()}});
    let builder = builder.config(json!({"upstreams": {"stdio": server}}));
    let gateway = builder.start().await;
    let manager = Manager::open(address).await;

    let (listed, _) = manager.request("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    assert_eq!(tools.len(), 33, "{listed}");
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
    let theirs = json!({"namespace": "theirs"});
    let theirs = manager.call("list_tools", theirs).await;
    assert!(
        theirs.error().contains("a server that others wrote"),
        "{theirs:?}"
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

/// Names and contents of all files that management tools can change, but for locks and the gateway's own files.
fn tree(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![data.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let below = path.strip_prefix(data).unwrap();
            let is_its_own = ["logs", "runtime", "workers", "gateway.log", "venvs/.builds"];
            if is_its_own.iter().any(|own| below == Path::new(own))
                || path.extension().is_some_and(|it| it == "lock")
            {
                continue;
            }
            let kind = path.symlink_metadata().unwrap().file_type();
            if kind.is_symlink() {
                let target = fs::read_link(&path).unwrap();
                found.insert(path, target.into_os_string().into_encoded_bytes());
            } else if kind.is_dir() {
                found.insert(path.clone(), Vec::new());
                folders.push(path);
            } else if kind.is_socket() {
                found.insert(path, Vec::new());
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
    let installed = manager.call("install_requirements", json!({"namespace": "made"}));
    let installed = installed.await;
    assert_eq!(installed.progress.len(), 2, "{:?}", installed.progress);
    assert_eq!(
        installed.value(),
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

    let own = json!({"packages": ["local_package"]});
    let own = manager.call("install_pip_packages", own).await;
    assert_eq!(own.progress.len(), 2, "{:?}", own.progress);
    assert_eq!(
        own.value(),
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

/// Texts that are the right type for a parameter and no value that it may have, none of them for the same reason.
fn wrong_texts(key: &str) -> Vec<String> {
    // Cyrillic, fullwidth, Chinese, Arabic, with a mark that turns the direction of text, with a byte order mark.
    let scripts = [
        "\u{430}",
        "\u{ff41}",
        "\u{5de5}",
        "\u{645}",
        "a\u{202e}b",
        "\u{feff}a",
    ];
    let paths = [
        "../x", "/etc", "..", ".", "a/b", "a\\b", "%2e%2e", "~", "a\0b", "a\nb",
    ];
    let long = "x".repeat(5000);
    let mut texts: Vec<String> = [&scripts[..], &paths[..], &["", " ", &long]]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
    match key {
        "namespace" | "name" => {
            texts.extend(["_global", "Bad.Name", "my tools", "-x"].map(str::to_owned));
        }
        "filename" => {
            texts = texts.into_iter().map(|text| text + ".py").collect();
            texts.extend(
                [
                    "x.txt",
                    "_.py",
                    "__init__.py",
                    "../../etc/passwd.py",
                    "/etc/x.py",
                    ".history/a.py.1/",
                    ".history/../a.py",
                    "a.py/",
                    "x.PY",
                ]
                .map(str::to_owned),
            );
        }
        "package" => texts.extend(
            [
                "-r /etc/passwd",
                "httpx\n-r x",
                "--index-url=https://x/",
                "x @ file:///x",
                "git+https://h/x",
                "x.whl",
            ]
            .map(str::to_owned),
        ),
        "repo_url" => texts.extend(
            [
                "file:///etc",
                "https://127.0.0.1/x",
                "ext::sh -c id",
                "https://u:p@h/x",
                "--upload-pack=id",
                "git@github.com:o/r",
            ]
            .map(str::to_owned),
        ),
        "key" => texts.extend(["A B", "1A", "A=B", "A-B"].map(str::to_owned)),
        // No file is there, whatever its name; a query may be any text but an empty or endless one.
        "path" | "query" => texts = vec![String::new(), long],
        // The text of a toolset grows with the number of tools that it turns on.
        "toolset" => texts.retain(|text| *text != long),
        "tool_name" | "as" | "principal" | "scopes" | "networks" | "limits" | "expires" | "id" => {}
        other => panic!("no wrong texts for {other}"),
    }
    texts
}

#[tokio::test]
async fn wrong_arguments_are_refused_with_a_reason_and_change_nothing() {
    let (builder, address) = with_manager(Gateway::empty());
    // No registry must be asked; if one is, no server answers.
    let nobody = "http://127.0.0.1:9/";
    let indexes = [
        "NPM_CONFIG_REGISTRY",
        "PIP_INDEX_URL",
        "UV_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "MCP_REGISTRY_URL",
    ];
    let closed = |builder: Builder, name: &str| builder.env(name, nobody);
    // Nothing is to come up beside the calls: the files are compared.
    let builder = builder.config(json!({"namespaces": {"starter": false}}));
    let gateway = indexes.into_iter().fold(builder, closed).start().await;
    let manager = Manager::open(address).await;
    let tool = "from fastmcp.tools import tool\n\n\n@tool\ndef f(a: int) -> int:\n    \"\"\"One.\"\"\"\n    return a\n";
    for call in [
        ("create_namespace", json!({"name": "ns"})),
        (
            "write_tool",
            json!({"namespace": "ns", "filename": "a.py", "code": tool}),
        ),
        ("prepare_secret", json!({"key": "KEPT"})),
    ] {
        manager.call(call.0, call.1).await.value();
    }
    let outside = gateway.data.path().join("outside.py");
    fs::write(&outside, "secret = 1\n").unwrap();
    std::os::unix::fs::symlink(&outside, gateway.tools_dir().join("ns/link.py")).unwrap();
    std::os::unix::fs::symlink(gateway.data_dir(), gateway.tools_dir().join("leaves")).unwrap();
    let before = tree(gateway.data_dir());

    // Arguments that are right but for the one that is replaced.
    let right = |key: &str| match key {
        "namespace" | "name" => json!("ns"),
        "filename" => json!("a.py"),
        "code" => json!(tool),
        "package" => json!("no-such-package"),
        "packages" => json!(["no-such-package"]),
        "key" => json!("ABSENT"),
        "input" => json!({}),
        "tool_name" => json!("f"),
        "repo_url" => json!("https://h.invalid/o/r"),
        "path" => json!("README.md"),
        "query" => json!("x"),
        "as" => json!("bearer"),
        "tool" | "principal" | "toolset" => json!(null),
        "scopes" => json!(["read"]),
        "namespaces" => json!(["ns"]),
        "networks" => json!(["10.0.0.0/8"]),
        "limits" => json!(["5/10"]),
        "expires" => json!("90d"),
        "id" => json!("000000000000"),
        "lines" => json!(10),
        "config" => json!({"command": "true"}),
        other => panic!("a new parameter: {other}"),
    };
    let (listed, _) = manager.request("tools/list", json!({})).await;
    let mut refused = 0;
    for tool in listed["result"]["tools"].as_array().unwrap() {
        let name = tool["name"].as_str().unwrap();
        let schema = &tool["inputSchema"];
        let keys: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
        let arguments: serde_json::Map<String, Value> = keys
            .iter()
            .map(|key| ((*key).clone(), right(key)))
            .collect();
        let with = |key: &str, value: Value| {
            let mut arguments = arguments.clone();
            arguments.insert(key.to_owned(), value);
            arguments
        };
        let mut wrong = vec![with("surplus", json!(1)), with("Namespace", json!("ns"))];
        for key in keys {
            for value in [
                json!(5),
                json!([1]),
                json!({"a": [1]}),
                json!(true),
                json!(null),
            ] {
                let is_optional = schema["required"]
                    .as_array()
                    .is_none_or(|required| !required.contains(&json!(key)));
                // An object is what this one takes, and null is what may be absent.
                let may_be = right(key).is_object() && value.is_object()
                    || right(key).is_number() && value.is_number()
                    || is_optional && value.is_null();
                if !may_be {
                    wrong.push(with(key, value));
                }
            }
            if schema["required"]
                .as_array()
                .is_some_and(|it| it.contains(&json!(key)))
            {
                let mut missing = arguments.clone();
                missing.remove(key);
                wrong.push(missing);
            }
            match key.as_str() {
                // Any text is a question about a tool, and nearly any one a pattern.
                "code" | "input" | "tool" | "namespaces" | "config" => {}
                "lines" => wrong.extend([0, 501].map(|lines| with(key, json!(lines)))),
                "scopes" | "networks" | "limits" => {
                    let texts = wrong_texts(key).into_iter();
                    wrong.extend(texts.map(|text| with(key, json!([text]))));
                }
                // Names of keys may have dots and capitals.
                "name" if arguments.contains_key("scopes") => {
                    let texts = wrong_texts(key).into_iter();
                    let texts = texts.filter(|text| text != "Bad.Name");
                    wrong.extend(texts.map(|text| with(key, json!(text))));
                }
                "packages" => {
                    let texts = wrong_texts("package").into_iter();
                    wrong.extend(texts.map(|text| with(key, json!([text]))));
                    wrong.push(with(key, json!([])));
                    wrong.push(with(key, json!(vec!["a"; 51])));
                }
                // A wrong name of a file to write is reported as a result, see below.
                "filename" if arguments.contains_key("code") => {}
                key => wrong.extend(
                    wrong_texts(key)
                        .into_iter()
                        .map(|text| with(key, json!(text))),
                ),
            }
        }
        for arguments in wrong {
            let answer = manager.call(name, Value::Object(arguments.clone())).await;
            assert!(
                answer.error().len() > 20,
                "{name} {arguments:?}: {answer:?}"
            );
            refused += 1;
        }
        assert_eq!(tree(gateway.data_dir()), before, "{name}");
    }
    assert!(refused > 400, "{refused}");

    // A symlink or a missing file is not managed.
    for (tool, arguments) in [
        ("delete_namespace", json!({"name": "leaves"})),
        ("delete_namespace", json!({"name": "absent"})),
        ("list_tools", json!({"namespace": "leaves"})),
        ("list_requirements", json!({"namespace": "absent"})),
        ("install_requirements", json!({"namespace": "leaves"})),
        (
            "get_tool_source",
            json!({"namespace": "ns", "filename": "link.py"}),
        ),
        (
            "delete_tool",
            json!({"namespace": "ns", "filename": "link.py"}),
        ),
        (
            "get_tool_source",
            json!({"namespace": "leaves", "filename": "a.py"}),
        ),
    ] {
        let answer = manager.call(tool, arguments.clone()).await;
        assert!(answer.error().len() > 20, "{tool} {arguments}");
    }

    let untyped = "from fastmcp.tools import tool\n@tool\ndef f(a) -> int:\n    \"\"\"One.\"\"\"\n    return 1\n";
    let bare = "from fastmcp.tools import tool\n@tool\ndef f(a: int) -> int:\n    return a\n";
    let deep = format!("x = {}1{}\n", "(".repeat(5000), ")".repeat(5000));
    // Code that Python's parser takes and its compiler refuses.
    let returns = format!("{tool}\nreturn 1\n");
    let twice = format!("{tool}\ndef g(a: int, a: int) -> int: pass\n");
    let awaits = format!("{tool}\nawait f(1)\n");
    let breaks = format!("{tool}\nbreak\n");
    let nonlocal = format!("{tool}\nnonlocal f\n");
    let future = format!("from __future__ import nope\n{tool}");
    let mut codes = vec![
        ("b.py".to_owned(), "def (:", "Invalid Python syntax"),
        ("b.py".to_owned(), "\0\u{1}\u{2}", "Invalid Python syntax"),
        (
            "b.py".to_owned(),
            "\u{7f}ELF\u{2}\u{fffd}\u{1b}[31m",
            "Invalid Python syntax",
        ),
        ("b.py".to_owned(), deep.as_str(), "Invalid Python syntax"),
        ("b.py".to_owned(), &returns, "Invalid Python syntax"),
        ("b.py".to_owned(), &twice, "Invalid Python syntax"),
        ("b.py".to_owned(), &awaits, "Invalid Python syntax"),
        ("b.py".to_owned(), &breaks, "Invalid Python syntax"),
        ("b.py".to_owned(), &nonlocal, "Invalid Python syntax"),
        ("b.py".to_owned(), &future, "Invalid Python syntax"),
        (
            "b.py".to_owned(),
            "def f(a: int) -> int: return a",
            "No @tool decorator found",
        ),
        ("b.py".to_owned(), "", "No @tool decorator found"),
        ("b.py".to_owned(), untyped, "Missing type hints"),
        ("b.py".to_owned(), bare, "Missing docstring"),
    ];
    let large = "x".repeat(1024 * 1024 + 1);
    codes.push(("b.py".to_owned(), &large, "Code is too large"));
    let names = wrong_texts("filename").into_iter();
    codes.extend(names.map(|name| (name, tool, "Invalid filename")));
    for (at, (filename, code, error)) in codes.into_iter().enumerate() {
        let name_of = ["write_tool", "generate_tool"][at % 2];
        let code = json!({"namespace": "ns", "filename": filename, "code": code});
        let answer = manager.call(name_of, code.clone()).await.value();
        let code = &code["code"];
        assert_eq!(
            (&answer["written"], &answer["error"]),
            (&json!(false), &json!(error)),
            "{filename:?}: {answer}"
        );
        let details = answer["details"].as_str().unwrap();
        assert!(!details.is_empty());
        if code.as_str().is_some_and(|code| code.contains(tool)) && error.contains("syntax") {
            assert!(details.starts_with("line "), "{answer}");
        }
    }
    for tool in ["write_tool", "generate_tool"] {
        let huge = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool,
            "arguments": {"namespace": "ns", "filename": "b.py", "code": "x".repeat(5 << 20)}}});
        let answer = manager.post(&huge).await;
        assert_eq!(answer.status(), 413);
        let answer: Value = answer.json().await.unwrap();
        assert!(answer["error"]["message"].is_string(), "{answer}");
    }
    // Bytes that are no text, and half a character, are no JSON.
    let call = |code: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"write_tool","arguments":{{"namespace":"ns","filename":"b.py","code":"{code}"}}}}}}"#
        )
    };
    let bytes = call("X").into_bytes();
    let at = bytes.windows(3).position(|it| it == b"\"X\"").unwrap();
    let binary = [&bytes[..=at], &[0xff, 0xfe, 0x00], &bytes[at + 2..]].concat();
    assert_eq!(manager.post_bytes(binary).await.status(), 400);
    let answer = manager.post_bytes(call("\\ud800").into_bytes()).await;
    let answer = answer.text().await.unwrap();
    assert!(
        answer.contains(r#""isError":true"#) || answer.contains(r#""error":"#),
        "{answer}"
    );
    assert_eq!(tree(gateway.data_dir()), before);

    // Code is looked at and never run.
    let ran = gateway.tools_dir().join("ran");
    let runs = format!("open({:?}, 'w')\n{tool}", ran.to_str().unwrap());
    let code = json!({"namespace": "ns", "filename": "b.py", "code": runs});
    assert_eq!(
        manager.call("write_tool", code).await.value()["written"],
        true
    );
    assert!(!ran.exists());
}

/// Tools that the core serves, and others that it cannot serve, each for a reason of its own.
const NOT_ALL_SERVED: &str = r#"from fastmcp.tools import tool


@tool
def served(a: int) -> int:
    """One."""
    return a


@tool
def served(a: int) -> int:
    """The same name."""
    return a


@tool
def many(*numbers: int) -> int:
    """Any number."""
    return 1


@tool
def named(**numbers: int) -> int:
    """Any name."""
    return 1


@tool
def positional(a: int, /) -> int:
    """No name."""
    return a


@tool("with blanks")
def blanks(a: int) -> int:
    """A name that is none."""
    return a


def makes() -> None:
    @tool
    def inner(a: int) -> int:
        """Never made."""
        return a


def makes_one() -> None:
    @tool
    def made(a: int) -> int:
        """Made on import."""
        return a


makes_one()
"#;

#[tokio::test]
async fn write_tool_names_the_tools_that_the_core_then_serves_and_says_why_not_the_others() {
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder.start().await;
    let manager = Manager::open(address).await;
    let value = async |tool: &str, arguments: Value| manager.call(tool, arguments).await.value();
    value("create_namespace", json!({"name": "ns"})).await;
    let code = json!({"namespace": "ns", "filename": "a.py", "code": NOT_ALL_SERVED});
    let written = value("write_tool", code.clone()).await;
    assert_eq!(written["written"], true, "{written}");
    assert_eq!(
        written["tools_found"],
        json!(["served", "made"]),
        "{written}"
    );
    let issues = written["issues"].as_array().unwrap();
    for (issue, words) in issues.iter().zip([
        "line 11: served will not be served: another tool has this name",
        "*numbers cannot be given by name",
        "**numbers has no schema",
        "positional-only parameter a",
        "1 to 128 of the characters",
        "inner will not be served: it stands inside makes",
    ]) {
        assert!(issue.as_str().unwrap().contains(words), "{issue}: {words}");
    }
    assert_eq!(issues.len(), 6, "{written}");
    let unbound = "@tool\ndef lost(a: int) -> int:\n    \"\"\"One.\"\"\"\n    return a\n";
    let unbound = json!({"namespace": "ns", "filename": "b.py", "code": unbound});
    let unbound = value("write_tool", unbound).await;
    assert_eq!(
        (&unbound["written"], &unbound["tools_found"]),
        (&json!(true), &json!([]))
    );
    assert!(
        unbound["issues"][0]
            .as_str()
            .unwrap()
            .contains("tool in its decorator is not defined"),
        "{unbound}"
    );

    let reloaded = value("reload_core", json!({})).await;
    assert!(!reloaded["issues"].as_array().unwrap().is_empty());
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (_, served) = gateway.mcp("ns", message).await;
    let served = served["result"]["tools"].as_array().unwrap().iter();
    let served: Vec<_> = served.map(|it| it["name"].as_str().unwrap()).collect();
    let listed = value("list_tools", json!({"namespace": "ns"})).await;
    let listed = listed.as_array().unwrap().iter();
    let mut listed: Vec<_> = listed.map(|it| it["name"].as_str().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!((served.len(), &*listed), (2, &["made", "served"][..]));
    assert!(served.iter().all(|it| listed.contains(it)), "{served:?}");

    let again = value("write_tool", code).await;
    assert_eq!(again["unchanged"], true, "{again}");
    assert!(again["previous_version"].is_null(), "{again}");
    assert!(!gateway.tools_dir().join("ns/.history").exists());
}

#[tokio::test]
async fn a_manifest_that_cannot_be_read_is_named_where_somebody_asks_for_secrets() {
    let (builder, address) = with_manager(Gateway::with_tools([
        ("broken", "tooldock.yaml", "secrets: {{{"),
        ("scalar", "tooldock.yaml", "secrets: NAME"),
    ]));
    let gateway = builder
        .start_with(|data| {
            fs::write(data.join("outside.yaml"), "secrets: [A]").unwrap();
            fs::create_dir_all(data.join("tools/leaves")).unwrap();
            let link = data.join("tools/leaves/tooldock.yaml");
            std::os::unix::fs::symlink(data.join("outside.yaml"), link).unwrap();
        })
        .await;
    let manager = Manager::open(address).await;
    let listed = manager.call("list_namespaces", json!({})).await.value();
    for (name, reason) in [
        ("broken", "not valid YAML"),
        ("scalar", "secrets"),
        ("leaves", "a symlink that leaves the tools directory"),
    ] {
        let file = gateway.tools_dir().join(name).join("tooldock.yaml");
        let names_it = |text: &str| text.contains(file.to_str().unwrap()) && text.contains(reason);
        for tool in ["check_secrets", "list_secrets"] {
            let answer = manager.call(tool, json!({"namespace": name})).await;
            assert!(names_it(answer.error()), "{tool} {name}: {answer:?}");
        }
        let mut listed = listed.as_array().unwrap().iter();
        let found = listed.find(|it| it["name"] == name).unwrap();
        assert_eq!(found["secrets_status"], "unreadable", "{found}");
        assert!(names_it(found["problem"].as_str().unwrap()), "{found}");
    }
}

#[tokio::test]
async fn manager_and_core_are_two_processes_and_each_outlives_the_other() {
    let core = Gateway::empty()
        .arguments(&["--role", "core"])
        .env("ALLOW_INSECURE_SECRETS", "1")
        .start()
        .await;
    let start = |variables: &[(&str, &str)]| {
        let (address, metrics) = (free_address(), free_address());
        let builder = Gateway::empty()
            .listening(address, metrics)
            .config(json!({"listeners": [
                {"name": "manager", "address": address.to_string(), "profile": "manager"},
                {"name": "metrics", "address": metrics.to_string(), "profile": "metrics"},
            ]}))
            .arguments(&["--role", "manager"])
            .env("DATA_DIR", core.data_dir().to_str().unwrap())
            .env("CORE_URL", &core.url(""))
            .env("ALLOW_INSECURE_SECRETS", "1");
        let set = |builder: Builder, (name, value): &(&str, &str)| builder.env(name, value);
        variables.iter().fold(builder, set).start()
    };
    let process = start(&[("ENABLE_LEGACY_MCP", "false")]).await;
    let sse = core.client.get(format!("http://{}/sse", process.address));
    let sse = sse.bearer_auth(TOKEN).header("Accept", "text/event-stream");
    assert_eq!(sse.send().await.unwrap().status(), 404, "switched off");
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

    // A manager clears away what one before it left, and tells the core of files that change.
    let unfinished = core.tools_dir().join("ns/.tmp-a1b2c3");
    fs::write(&unfinished, "half a file").unwrap();
    let half_cloned = core.data_dir().join("repos/.building-a1b2c3");
    fs::create_dir_all(half_cloned.join("files")).unwrap();
    let watcher = [
        ("ENABLE_FS_WATCHER", "true"),
        ("FS_WATCHER_DEBOUNCE_MS", "50"),
    ];
    let process = start(&watcher).await;
    eventually(
        "files are watched, and nothing half done is left",
        || async {
            let watched = process.log().contains("files are watched");
            let cleared = !unfinished.exists() && !half_cloned.exists();
            (watched && cleared).then_some(())
        },
    )
    .await;
    let dropped = "from fastmcp.tools import tool\n\n\n@tool\ndef dropped() -> int:\n    \"\"\"One.\"\"\"\n    return 7\n";
    core.drop_tool("ns", "dropped.py", dropped);
    eventually("the core serves a file that nobody told it of", || async {
        let (status, value) = core.call("ns", "dropped", json!({})).await;
        (status == 200 && value == 7).then_some(())
    })
    .await;

    let manager = Manager::open(process.address).await;
    let key = json!({"key": "GONE"});
    manager.call("prepare_secret", key.clone()).await.value();
    core.signal(rustix::process::Signal::KILL);
    core.ended().await;
    let health = manager.call("health", json!({})).await.value();
    assert_eq!(health["core_reachable"], false);
    let reload = manager.call("reload_core", json!({})).await;
    assert!(reload.error().contains("cannot be reached"), "{reload:?}");
    // A secret goes all the same, and who removed it is told that tools may have it still.
    let removed = manager.call("remove_secret", key.clone()).await.value();
    assert_eq!(removed["removed"], true);
    let told = removed["not_reloaded"].as_str().unwrap();
    assert!(
        told.contains("cannot be reached") && told.contains("call reload_core"),
        "{told}"
    );
    let again = manager.call("remove_secret", key).await;
    assert!(again.error().contains("no secret GONE"), "{again:?}");
    assert_eq!(
        manager.call("write_tool", code).await.value()["written"],
        true
    );
}
