//! Repositories and packages of others, as a model reads them through the management tools.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::support::Gateway;
use crate::support::manager::{Manager, with_manager};
use crate::support::registry::registry;

const ISSUES: &str = r#"
import { Octokit } from "@octokit/rest";
const octokit = new Octokit({ auth: process.env.GITHUB_TOKEN });
server.tool("list_issues", "List GitHub issues", {}, async () => run(octokit));
"#;

/// A TypeScript server in a repository of its own; gives the repository's URL.
pub fn sample(folder: &Path) -> String {
    let package =
        r#"{"dependencies": {"@modelcontextprotocol/sdk": "^1.0.0", "@octokit/rest": "^20.0.0"}}"#;
    for (path, text) in [
        ("package.json", package),
        (
            "src/index.ts",
            "import { McpServer } from \"@modelcontextprotocol/sdk/server/mcp.js\";\n",
        ),
        ("src/tools/issues.ts", ISSUES),
    ] {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    for arguments in [
        &["init", "--quiet"][..],
        &["add", "--all"],
        &["commit", "--quiet", "--message=x"],
    ] {
        let status = Command::new("git")
            .args(["-c", "user.name=T", "-c", "user.email=t@h"])
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .current_dir(folder)
            .status();
        assert!(status.unwrap().success(), "{arguments:?}");
    }
    format!("file://{}", folder.display())
}

#[tokio::test]
async fn a_model_searches_analyses_and_reads_servers_of_others() {
    let found = json!({"servers": [{"server": {
        "name": "server-github", "description": "GitHub API tools",
        "repository": {"url": "https://github.com/modelcontextprotocol/server-github"},
        "packages": [{"registryType": "npm", "identifier": "@modelcontextprotocol/server-github"}],
    }}]});
    let folder = tempfile::tempdir().unwrap();
    let url = sample(folder.path());
    let (builder, address) = with_manager(Gateway::empty());
    let gateway = builder
        .env("GIT_ALLOWED_SCHEMES", "https,file")
        .env("MCP_REGISTRY_URL", &format!("http://{}", registry(&found)))
        .start()
        .await;
    let manager = Manager::open(address).await;

    let rows = manager
        .call("search_registry", json!({"query": "github"}))
        .await;
    assert_eq!(
        rows.value(),
        json!([{
            "name": "server-github", "description": "GitHub API tools",
            "package": "@modelcontextprotocol/server-github", "package_type": "npm",
            "source_url": "https://github.com/modelcontextprotocol/server-github"
        }])
    );

    let file = json!({"repo_url": url, "path": "src/tools/issues.ts"});
    let early = manager.call("read_repo_file", file.clone()).await;
    assert!(early.error().contains("Call analyze_repo"), "{early:?}");
    let analysed = manager.call("analyze_repo", json!({"repo_url": url})).await;
    let expected = json!({
        "repo_url": url, "language": "typescript", "framework": "mcp-sdk",
        "files": ["package.json", "src/index.ts", "src/tools/issues.ts"],
        "tools_found": [{
            "name": "list_issues", "file": "src/tools/issues.ts", "description": "List GitHub issues", "parameters": []
        }],
        "dependencies": {"@modelcontextprotocol/sdk": "^1.0.0", "@octokit/rest": "^20.0.0"},
        "apis_called": ["api.github.com"], "secrets_needed": ["GITHUB_TOKEN"],
    });
    assert_eq!(analysed.value(), expected);
    let steps = analysed.progress.iter();
    let steps: Vec<_> = steps
        .map(|it| it["params"]["progress"].as_u64().unwrap())
        .collect();
    assert!(
        !steps.is_empty() && steps.is_sorted_by(|a, b| a < b),
        "{steps:?}"
    );
    let read = manager.call("read_repo_file", file).await;
    assert_eq!(
        read.value(),
        json!({"path": "src/tools/issues.ts", "content": ISSUES})
    );
    let arguments = json!({"repo_url": url, "namespace": "github"});
    let installed = manager.call("install_from_repo", arguments).await;
    assert_eq!(installed.value(), expected);
    assert!(
        !gateway.tools_dir().join("github").exists(),
        "it translates nothing by itself"
    );

    for (tool, arguments, says) in [
        (
            "read_repo_file",
            json!({"repo_url": url, "path": "../source.json"}),
            "leads out",
        ),
        ("read_repo_file", json!({"repo_url": url}), "path"),
        ("analyze_repo", json!({"repo_url": 7}), "repo_url"),
        (
            "analyze_repo",
            json!({"repo_url": "https://127.0.0.1/x"}),
            "not on the public internet",
        ),
        (
            "analyze_repo",
            json!({"repo_url": "git@github.com:o/r"}),
            "GIT_ALLOWED_SCHEMES",
        ),
        (
            "install_from_repo",
            json!({"repo_url": url, "namespace": "_system"}),
            "namespace",
        ),
        (
            "install_from_registry",
            json!({"package": "../x", "namespace": "github"}),
            "not the name of a package",
        ),
        ("search_registry", json!({"query": ""}), "query"),
    ] {
        let answer = manager.call(tool, arguments).await;
        assert!(answer.error().contains(says), "{tool}: {answer:?}");
    }
}
