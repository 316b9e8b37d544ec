//! Real clients and validators against the gateway, each in its own process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::support::{Gateway, TOKEN, tools};

/// The interpreter with the packages of `tests/clients/requirements.txt`, made once below `target/`.
fn python() -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let requirements = root.join("tests/clients/requirements.txt");
        let wanted = std::fs::read_to_string(&requirements).expect("the requirements");
        let folder = root.join("target/python-envs");
        std::fs::create_dir_all(&folder).expect("a folder below target");
        // Tests run as processes of their own; the lock makes one of them build and the others wait.
        let lock = std::fs::File::create(folder.join("clients.lock")).expect("a lock file");
        lock.lock().expect("the lock");
        let environment = folder.join("clients");
        let python = environment.join("bin/python");
        let stamp = environment.join("requirements.installed");
        if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&wanted) {
            let _ = std::fs::remove_dir_all(&environment);
            run(Command::new("python3")
                .args(["-m", "venv"])
                .arg(&environment));
            run(Command::new(&python)
                .args([
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                    "-r",
                ])
                .arg(&requirements));
            std::fs::write(stamp, wanted).expect("the stamp");
        }
        python
    })
    .clone()
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    assert!(
        output.status.success(),
        "{command:?}\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a script of `tests/clients` against a gateway and reads the JSON it prints.
async fn client(script: &str, gateway: &Gateway, namespace: &str) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/clients")
        .join(script);
    let url = gateway.url("/mcp");
    let namespace = namespace.to_owned();
    let printed = tokio::task::spawn_blocking(move || {
        run(Command::new(python())
            .arg(script)
            .args([&url, TOKEN, &namespace]))
    })
    .await
    .expect("not cancelled");
    serde_json::from_str(printed.trim()).unwrap_or_else(|_| panic!("no JSON: {printed}"))
}

async fn calc() -> Gateway {
    Gateway::with_tools([("calc", "math_tools.py", tools::MATH)])
        .start()
        .await
}

#[tokio::test]
async fn the_python_sdk_1_initializes_lists_and_calls() {
    let gateway = calc().await;
    let seen = client("python_mcp1.py", &gateway, "calc").await;
    assert_eq!(
        seen,
        json!({"version": "2025-11-25", "server": "tooldock/calc", "session": true,
            "tools": ["add", "multiply"], "value": {"result": 5.0}, "text": "5.0", "failed": true})
    );
}

#[tokio::test]
async fn a_plain_requests_script_calls_without_a_handshake() {
    let gateway = calc().await;
    let result = client("word_of_requests.py", &gateway, "calc").await;
    assert_eq!(result["content"][0]["text"], "5.0");
    assert!(
        result.get("structuredContent").is_none(),
        "2025-03-26 has none: {result}"
    );
}

/// Checks a document with a real validator.
pub async fn validate_openapi(document: &Value) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), document.to_string()).expect("the document");
    tokio::task::spawn_blocking(move || {
        run(Command::new(python())
            .args(["-m", "openapi_spec_validator"])
            .arg(file.path()));
    })
    .await
    .expect("not cancelled");
}
