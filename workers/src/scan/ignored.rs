//! Issues, each with advice, about files and folders below `tools/` that a user might expect to be served, but that are not.
//!
//! They are found by names and by the text of files: nothing is imported or run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use tooldock_base::issue::Issue;
use tooldock_base::tree_file;
use tooldock_process::requirements::{LocalFiles, REQUIREMENTS_FILE, Requirements, Use};

use super::packages::{project_dependencies, script_dependencies};
use super::{namespace_at, python_names};

/// Code of the [`Issue`] that a namespace's folder contains no tools.
pub(crate) const EMPTY: &str = "empty_namespace";
/// Code of the [`Issue`] that a file lists dependencies which are not installed.
pub(crate) const NOT_READ: &str = "dependencies_not_read";
/// Code of the [`Issue`] that a file creates a server object instead of tools.
pub(crate) const SERVER: &str = "server_file";
/// Code of the [`Issue`] that a folder's name is not valid for a namespace.
pub(super) const INVALID_NAME: &str = "invalid_name";
/// Code of the [`Issue`] that a file is outside the namespaces' folders.
const LOOSE_FILE: &str = "loose_file";

/// Maximum number of files of one folder whose text is searched.
const FILES_MAX: usize = 500;
/// Maximum size of a file whose text is searched, in bytes.
const BYTES_MAX: u64 = 256 * 1024;
/// Maximum number of entries of a folder that are looked at.
const READ_MAX: usize = 10_000;
/// Maximum number of issues about entries of the tools directory that are reported.
const ENTRIES_MAX: usize = 100;

/// Names of classes whose objects are servers.
const SERVERS: [&str; 4] = ["FastMCP", "MCPServer", "Server", "FastAPI"];

/// Returns the entries of the tools directory that look like a namespace but are none, each with its name and an issue. Blocking.
pub(crate) fn entries(tools: &Path) -> Vec<(String, Issue)> {
    let Ok(tree) = tools.canonicalize() else {
        return Vec::new();
    };
    let found = fs::read_dir(&tree).into_iter().flatten().flatten();
    let found = found.take(READ_MAX);
    let mut names: Vec<_> = found.map(|entry| entry.file_name()).collect();
    names.sort();
    let names = names.iter().filter_map(|name| {
        let path = tree.join(name);
        let name = name.to_string_lossy();
        // Such names (also `__pycache__`) are ignored by design, so they are not reported.
        if name.starts_with(['_', '.']) && name != ".mcp.json" {
            return None;
        }
        let (code, message) = match namespace_at(&path, &tree) {
            Ok(_) => return None,
            Err(Some(refused)) => refused,
            Err(None) if is_about_the_folder(&name) => return None,
            Err(None) => (LOOSE_FILE, loose(&name)),
        };
        let issue = Issue {
            code,
            subject: format!("tools/{name}"),
            message,
        };
        Some((name.into_owned(), issue))
    });
    names.take(ENTRIES_MAX).collect()
}

/// Returns true for files such as a README, which are common in any folder and are not meant to be served.
fn is_about_the_folder(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let texts = ["readme", "license", "licence", "changelog", "makefile"];
    name.ends_with(".md") || texts.iter().any(|it| name.starts_with(it))
}

fn loose(name: &str) -> String {
    let advice = match name {
        REQUIREMENTS_FILE => "requirements.txt belongs into the folder of a namespace",
        "mcp.json" | ".mcp.json" => CLIENT_FILE,
        _ if is_api_description(name) => API_DESCRIPTION,
        _ if name.ends_with(".py") => {
            "move it into a folder of its own, whose name is that of the namespace"
        }
        _ => "only files in the folder of a namespace count",
    };
    format!("is not loaded: {advice}")
}

const CLIENT_FILE: &str = "mcp.json is a file of clients; write the servers that it names into external/config.yaml of the \
                           data directory, under servers:";
const API_DESCRIPTION: &str = "an OpenAPI document is not read; write a Python file with a @tool function for each operation \
                               that clients should call";
const NODE_PROJECT: &str = "a project for Node.js is run if it depends on an SDK for MCP servers; for another one, write `server: \
                            FILE` into tooldock.yaml";
const PYTHON_ELSEWHERE: &str = "Python files count at the top of the folder, and only if their names begin with neither _ nor a \
                                dot";
const NO_FILE: &str = "put a Python file with a @tool function into the folder";

fn is_api_description(name: &str) -> bool {
    let (stem, ending) = name.rsplit_once('.').unwrap_or((name, ""));
    ["openapi", "swagger"].contains(&stem) && ["json", "yaml", "yml"].contains(&ending)
}

/// Returns the issue, with advice, for a namespace folder without tool files.
pub(super) fn empty(folder: &Path) -> Issue {
    let found = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = found
        .filter_map(|entry| entry.file_name().into_string().ok())
        .take(FILES_MAX)
        .collect();
    names.sort();
    let known = names.iter().find_map(|name| {
        let advice = match &**name {
            "mcp.json" | ".mcp.json" => CLIENT_FILE,
            "package.json" => NODE_PROJECT,
            name if is_api_description(name) => API_DESCRIPTION,
            _ => return None,
        };
        Some((name.clone(), advice))
    });
    let has_python = |name: &String| {
        let path = folder.join(name);
        let inside = fs::read_dir(path).into_iter().flatten().flatten();
        let mut inside = inside.take(FILES_MAX);
        name.ends_with(".py")
            || inside.any(|entry| entry.path().extension().is_some_and(|it| it == "py"))
    };
    let (subject, advice) = known.unwrap_or_else(|| {
        let advice = match names.iter().any(has_python) {
            true => PYTHON_ELSEWHERE,
            false => NO_FILE,
        };
        (".".to_owned(), advice)
    });
    Issue {
        code: EMPTY,
        subject,
        message: format!("the namespace has no tools: {advice}"),
    }
}

/// Returns the normalized names of the packages in the requirements and in the lists that the requirements name.
pub(super) fn asked(requirements: Option<&Requirements>, local: &LocalFiles) -> BTreeSet<String> {
    let asked = requirements.map(|it| it.text.as_str());
    let asked = asked
        .into_iter()
        .chain(local.lists.values().map(String::as_str));
    asked.flat_map(str::lines).map(normal_name).collect()
}

/// Returns true if a requirement is for `package`, a normalized name.
pub(super) fn is_named(requirement: &str, package: &str) -> bool {
    normal_name(requirement) == package
}

/// Returns issues about the files directly in a namespace folder: dependencies that are not read, and files that create a server
/// object instead of tools. `asked`: normalized names of the packages that the requirements ask for.
pub(super) fn files(
    folder: &Path,
    tree: &Path,
    asked: &BTreeSet<String>,
    local: &LocalFiles,
) -> Vec<Issue> {
    let are_asked = |dependencies: &[String]| {
        let mut names = dependencies.iter().map(|it| normal_name(it));
        names.all(|name| asked.contains(&name))
    };
    let text_of = |name: &str| {
        let content = tree_file::read(&folder.join(name), tree, BYTES_MAX);
        String::from_utf8(content.ok()??).ok()
    };
    let not_read = |name: &str, where_they_are: &str| Issue {
        code: NOT_READ,
        subject: name.to_owned(),
        message: format!("{where_they_are} are not installed: write them into {REQUIREMENTS_FILE}"),
    };
    let mut issues = Vec::new();
    let is_own = |path: &Path| path.canonicalize().is_ok_and(|real| real == folder);
    let mut installed = local.places.iter().filter(|(_, how)| **how != Use::Links);
    if !installed.any(|(path, _)| is_own(path))
        && let Some(text) = text_of("pyproject.toml")
        && !are_asked(&project_dependencies(&text))
    {
        issues.push(not_read("pyproject.toml", "its dependencies"));
    }
    for name in python_names(folder) {
        let Some(text) = text_of(&name) else {
            continue;
        };
        if !are_asked(&script_dependencies(&text)) {
            issues.push(not_read(&name, "the dependencies of its script metadata"));
        }
        if let Some(message) = server(&text) {
            issues.push(Issue {
                code: SERVER,
                subject: name,
                message,
            });
        }
    }
    issues
}

/// Returns advice for a file that creates a server object and declares no tool; `None` for other files.
fn server(text: &str) -> Option<String> {
    let made = text.lines().find_map(server_object)?;
    if text.lines().any(declares) {
        return None;
    }
    let what = "put `from fastmcp.tools import tool` into the file and @tool on the functions that clients should call";
    Some(match made {
        "FastAPI" => format!("makes a FastAPI application, which is not run here: {what}"),
        _ => format!(
            "makes an MCP server ({made}) and has no @tool, so nothing of it is served: {what}, or write `server: FILE` into \
             tooldock.yaml, which runs the server in place of the other files"
        ),
    })
}

/// Returns the class of the server that a line creates, as in `mcp = FastMCP("x")`; `None` for other or indented lines.
fn server_object(line: &str) -> Option<&'static str> {
    let (target, call) = line.split_once('=')?;
    let target = target.split_once(':').map_or(target, |(name, _type)| name);
    let (class, _) = call.trim_start().split_once('(')?;
    let class = class.rsplit('.').next().unwrap_or(class);
    let is_name = !target.is_empty() && target.trim_end().chars().all(is_in_a_name);
    let mut servers = SERVERS.into_iter();
    servers.find(|server| is_name && *server == class)
}

/// Returns true if a line declares a tool, a resource or a prompt, or registers one in a way that the worker's runtime reports
/// itself.
fn declares(line: &str) -> bool {
    let trimmed = line.trim_start();
    let decorator = trimmed.strip_prefix('@').map(|name| {
        let end = name.find(|sign| sign != '.' && !is_in_a_name(sign));
        let name = &name[..end.unwrap_or(name.len())];
        name.rsplit('.').next().unwrap_or(name)
    });
    decorator.is_some_and(|name| ["tool", "resource", "prompt"].contains(&name))
        || ["add_tool(", "add_resource(", "add_prompt("]
            .iter()
            .any(|call| line.contains(call))
        || line.starts_with("def register_tools(")
}

fn is_in_a_name(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}

/// Returns the package name at the beginning of a requirement, in the normalized form by which indexes compare names.
fn normal_name(requirement: &str) -> String {
    let requirement = requirement.trim_start();
    let is_name = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '.' | '_' | '-');
    let end = requirement.find(|sign| !is_name(sign));
    let name = &requirement[..end.unwrap_or(requirement.len())];
    let parts = name.split(['.', '_', '-']).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::scan;

    fn issues_of(files: &[(&str, &str)]) -> Vec<(&'static str, String, String)> {
        let tools = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = tools.path().join("ns").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut sources = scan(tools.path()).unwrap();
        let issues = sources.remove(0).issues.into_iter();
        issues.map(|it| (it.code, it.subject, it.message)).collect()
    }

    #[test]
    fn a_folder_without_tools_is_an_issue_with_the_sentence_for_its_files() {
        for (file, text, subject, advice) in [
            ("notes.txt", "", ".", "@tool function"),
            ("_helper.py", "", ".", "begin with neither"),
            ("pkg/inner.py", "", ".", "at the top of the folder"),
            (
                "openapi.json",
                "{}",
                "openapi.json",
                "OpenAPI document is not read",
            ),
            ("mcp.json", "{}", "mcp.json", "external/config.yaml"),
            ("package.json", "{}", "package.json", "`server: FILE`"),
        ] {
            let issues = issues_of(&[(file, text)]);
            let [(code, found, message)] = &issues[..] else {
                panic!("{file}: {issues:?}")
            };
            assert_eq!((*code, &**found), (EMPTY, subject), "{file}");
            assert!(message.contains(advice), "{file}: {message}");
        }
        assert_eq!(issues_of(&[("a.py", ""), ("openapi.json", "{}")]), []);
    }

    #[test]
    fn dependencies_beside_requirements_are_issues_unless_requirements_name_them() {
        let script = "# /// script\n# requires-python = '>=3.11'\n# dependencies = [\n#   'Rich>=13',\n# ]\n# ///\nimport rich\n";
        let project = "[project]\nname = 'x'\ndependencies = ['typing_extensions>=4']\n";
        let poetry = "[tool.poetry.dependencies]\npython = '^3.11'\nhttpx = '^0.28'\n";
        for (file, text, asked) in [
            ("a.py", script, "rich\n"),
            ("pyproject.toml", project, "Typing-Extensions\n"),
            ("pyproject.toml", project, "-e .\n"),
            ("pyproject.toml", poetry, "httpx[http2]>=0.28\n"),
        ] {
            let issues = issues_of(&[("t.py", ""), (file, text), ("requirements.txt", "other\n")]);
            let [(code, found, message)] = &issues[..] else {
                panic!("{file}: {issues:?}")
            };
            assert_eq!((*code, &**found), (NOT_READ, file));
            assert!(
                message.ends_with("write them into requirements.txt"),
                "{message}"
            );
            let named = issues_of(&[("t.py", ""), (file, text), ("requirements.txt", asked)]);
            assert_eq!(named, [], "{file}");
        }
        for (file, text) in [
            ("a.py", "# /// script\n# dependencies = []\n# ///\n"),
            ("a.py", "# /// script\n# no toml at all\n# ///\n"),
            ("pyproject.toml", "[tool.ruff]\nline-length = 100\n"),
            ("pyproject.toml", "not toml"),
        ] {
            assert_eq!(issues_of(&[("t.py", ""), (file, text)]), [], "{text}");
        }
    }

    #[test]
    fn a_file_that_makes_a_server_and_no_tool_is_told_how_it_runs() {
        for (text, advice) in [
            ("mcp = FastMCP('x')\nmcp.run()\n", "`server: FILE`"),
            (
                "server: Server = mcp.server.Server('x')\n@server.call_tool()\nasync def call(): ...\n",
                "`server: FILE`",
            ),
            (
                "app = FastAPI(title='x')\n@app.get('/')\ndef index(): ...\n",
                "@tool on the functions",
            ),
        ] {
            let issues = issues_of(&[("main.py", text)]);
            let [(SERVER, subject, message)] = &issues[..] else {
                panic!("{text}: {issues:?}")
            };
            assert_eq!(subject, "main.py");
            assert!(message.contains(advice), "{message}");
        }
        for text in [
            "mcp = FastMCP('x')\n@mcp.tool\ndef add(): ...\n",
            "mcp = FastMCP('x')\nmcp.add_tool(add)\n",
            "app = FastAPI()\n@tool\ndef add(): ...\n",
            "def make():\n    server = Server()\n",
            "server = HttpServer()\n",
        ] {
            assert_eq!(issues_of(&[("main.py", text)]), [], "{text}");
        }
    }

    #[test]
    fn folders_with_invalid_names_and_loose_files_are_issues_of_the_tools_directory() {
        let tools = tempfile::tempdir().unwrap();
        for folder in ["Bad.Name", "good", "_private", ".git", "__pycache__"] {
            fs::create_dir(tools.path().join(folder)).unwrap();
        }
        for file in [
            "stray.py",
            "README.md",
            "LICENSE",
            "mcp.json",
            "_x.py",
            "requirements.txt",
        ] {
            fs::write(tools.path().join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("/", tools.path().join("root")).unwrap();
        let found = entries(tools.path());
        let told: Vec<_> = found
            .iter()
            .map(|(name, issue)| (&**name, issue.code))
            .collect();
        assert_eq!(
            told,
            [
                ("Bad.Name", INVALID_NAME),
                ("mcp.json", LOOSE_FILE),
                ("requirements.txt", LOOSE_FILE),
                ("root", "symlink_outside"),
                ("stray.py", LOOSE_FILE),
            ]
        );
        let (_, bad) = &found[0];
        assert_eq!(bad.subject, "tools/Bad.Name");
        assert!(bad.message.contains("rename the folder"), "{bad:?}");
        let (_, stray) = &found[4];
        assert!(
            stray.message.contains("into a folder of its own"),
            "{stray:?}"
        );
        assert_eq!(entries(&tools.path().join("none")), []);
    }
}
