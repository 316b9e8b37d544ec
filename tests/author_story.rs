//! The page "Writing tools" as an author follows it: its code and its `tooldock.yaml` are served as they are printed.

use std::fs;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::support::Gateway;
use crate::support::programs::root;

const PROJECT: &str =
    "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n";

/// A build backend for a wheel, which needs no package index.
const BACKEND: &str = r"
import zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, info = 'shop-1.0-py3-none-any.whl', 'shop-1.0.dist-info'
    with zipfile.ZipFile(f'{folder}/{name}', 'w') as wheel:
        wheel.write('shop.py')
        wheel.writestr(f'{info}/METADATA', 'Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n')
        wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
        wheel.writestr(f'{info}/RECORD', '')
    return name
";

/// The code blocks of a language on the page, in their order.
fn blocks(language: &str) -> Vec<String> {
    let page = fs::read_to_string(root().join("docs/writing-tools.md")).unwrap();
    let fence = format!("```{language}\n");
    let parts = page.split(&fence).skip(1);
    let blocks = parts.map(|part| part.split_once("```").unwrap().0.to_owned());
    blocks.collect()
}

fn block(blocks: &[String], with: &str) -> String {
    let mut found = blocks.iter().filter(|it| it.contains(with));
    found
        .next()
        .unwrap_or_else(|| panic!("a block with {with}"))
        .clone()
}

/// Runs `tooldock check` on a path in the namespace's folder.
fn check(gateway: &Gateway, arguments: &[&str], path: &str) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tooldock"));
    let command = command.arg("check").args(arguments);
    let command = command.arg(gateway.tools_dir().join("my-tools").join(path));
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .env("DATA_DIR", gateway.data_dir())
        .output()
        .unwrap();
    let told = [stdout, stderr].concat();
    (status.code(), String::from_utf8(told).unwrap())
}

#[tokio::test]
async fn an_author_follows_the_page_from_the_first_tool_to_a_repaired_mistake() {
    let python = blocks("python");
    let gateway = Gateway::empty().start().await;
    let write = |file: &str, source: &str| gateway.drop_tool("my-tools", file, source);
    let call = async |tool: &str, arguments: Value| gateway.call("my-tools", tool, arguments).await;

    // The first tool, with a body in place of the dots.
    let first = block(&python, "async def list_issues");
    let first = first.replace(
        "    ...",
        "    return [{\"title\": repo, \"state\": state}]",
    );
    write("issues.py", &first);
    assert_eq!(check(&gateway, &[], "").0, Some(0));
    let report = gateway.reload().await;
    assert!(
        report["namespaces"]
            .as_array()
            .unwrap()
            .contains(&json!("my-tools"))
    );
    let arguments = json!({"owner": "o", "repo": "r"});
    let listed = (200, json!([{"title": "r", "state": "open"}]));
    assert_eq!(call("list_issues", arguments.clone()).await, listed);
    let (status, refused) = call("list_issues", json!({"owner": "o"})).await;
    assert_eq!(status, 422, "{refused}");

    // A file in the second style of the page (`register_tools`), with the model and the handler that the page leaves
    // out.
    let registered = block(&python, "def register_tools");
    let registered = registered.replace(
        "\n\ndef register_tools",
        "\nfrom pydantic import BaseModel\n\n\nclass AddInput(BaseModel):\n    a: int\n    b: int\n\n\n\
         async def add(given: AddInput) -> int:\n    return given.a + given.b\n\n\ndef register_tools",
    );
    write("sums.py", &registered);
    // The page's code for resources, prompts and questions, unchanged.
    write("book.py", &block(&python, "async def book"));
    let report = gateway.reload().await;
    let files = report["files"].as_array().unwrap().iter();
    let taken = files.filter(|file| file["namespace"] == "my-tools");
    assert_eq!(taken.count(), 3, "{report}");
    assert_eq!(call("add", json!({"a": 2, "b": 3})).await, (200, json!(5)));
    let read = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "notes://today"}});
    let (_, answer) = gateway.mcp("my-tools", read).await;
    assert_eq!(
        answer["result"]["contents"][0]["text"], "# today",
        "{answer}"
    );
    let prompts = json!({"jsonrpc": "2.0", "id": 2, "method": "prompts/get", "params":
        {"name": "review", "arguments": {"language": "C", "code": "x"}}});
    let (_, answer) = gateway.mcp("my-tools", prompts).await;
    let text = answer["result"]["messages"][0]["content"]["text"]
        .as_str()
        .unwrap();
    assert!(text.starts_with("Review this C code"), "{answer}");

    // The page's `tooldock.yaml`, and a package from a folder of the namespace.
    write(
        "tooldock.yaml",
        &block(&blocks("yaml"), "author: build team"),
    );
    let lib = gateway.tools_dir().join("my-tools/lib");
    let package = |version: &str| {
        fs::create_dir_all(&lib).unwrap();
        fs::write(lib.join("pyproject.toml"), PROJECT).unwrap();
        fs::write(lib.join("backend.py"), BACKEND).unwrap();
        fs::write(lib.join("shop.py"), format!("VERSION = {version:?}\n")).unwrap();
    };
    package("one");
    write("requirements.txt", "./lib\n");
    write(
        "shop_version.py",
        "import os\nfrom fastmcp.tools import tool\nfrom shop import VERSION\n\n\n@tool\ndef shop_version() -> str:\n    \
         \"\"\"Tell the version.\"\"\"\n    return VERSION + os.environ[\"API_URL\"][:5]\n",
    );
    let report = gateway.reload().await;
    assert!(report.to_string().contains("BUILD_API_TOKEN"), "{report}");
    assert_eq!(
        call("shop_version", json!({})).await,
        (200, json!("onehttps"))
    );
    package("two");
    gateway.reload().await;
    assert_eq!(
        call("shop_version", json!({})).await,
        (200, json!("twohttps"))
    );

    // The check reports a mistake before the reload, and a call reports it afterwards.
    write(
        "issues.py",
        &first.replace("def list_issues(", "def list_issues(("),
    );
    let (code, told) = check(&gateway, &["--format", "github"], "issues.py");
    assert_eq!(code, Some(2), "{told}");
    assert!(
        told.contains("::error file=") && told.contains("line="),
        "{told}"
    );
    gateway.reload().await;
    let (status, refused) = call("list_issues", arguments.clone()).await;
    let detail = refused["detail"].as_str().unwrap();
    assert_eq!(status, 404);
    assert!(
        detail.starts_with("Unknown tool: list_issues; issues.py was not loaded: SyntaxError"),
        "{detail}"
    );
    assert_eq!(call("add", json!({"a": 2, "b": 3})).await, (200, json!(5)));
    write("issues.py", &first);
    gateway.reload().await;
    assert_eq!(call("list_issues", arguments).await, listed);
}
