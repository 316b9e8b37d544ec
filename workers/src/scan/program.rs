//! Search of namespace folders for MCP servers: programs that are run in place of the gateway's own worker.
//!
//! `server: FILE[:OBJECT]` in the manifest names the program. Without that key, a folder whose Python files give the worker
//! nothing to serve is a server if a Python file makes a server object, or if its `pyproject.toml` depends on an SDK and has a
//! script. A folder without Python files is a server if its `package.json` depends on an SDK and names a program.
//! `server: false` keeps a folder from being taken for a server.
//!
//! The search only reads files, and runs nothing of them.

mod logical_lines;
mod node;
mod python;

use std::collections::BTreeSet;
use std::path::{Component, Path};

use tooldock_base::tree_file;
use tooldock_process::environment::NodePackages;
use tooldock_process::requirements::Requirements;

use crate::manifest::{Manifest, ServerKey};

use super::ignored::is_named;
use super::packages::{project_dependencies, project_packages, script_packages};
use super::python_names;
use python::{PythonFile, Sdk};

/// Maximum size, in bytes, of a file that is searched for a server.
const BYTES_MAX: u64 = 1024 * 1024;
/// Names, without `.py`, of files that are preferred if several files make a server.
const PREFERRED: [&str; 3] = ["server", "main", "app"];

/// Program of an MCP server in a namespace folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerProgram {
    /// A Python file with a server object.
    Python {
        /// `FILE` or `FILE:OBJECT`: path of the file, relative to the folder, and name of the server object or function.
        target: String,
        /// Packages that the server needs in addition to `requirements.txt`, as requirements.
        packages: Vec<String>,
    },
    /// A program for Node.js.
    Node {
        /// Path of the file, relative to the folder.
        file: String,
        /// Packages of the program; `None` if it has no `package.json`.
        packages: Option<NodePackages>,
    },
}

impl ServerProgram {
    /// Returns the path of the program's file, relative to the folder.
    pub fn file(&self) -> &str {
        match self {
            Self::Python { target, .. } => target.split(':').next().unwrap_or(target),
            Self::Node { file, .. } => file,
        }
    }
}

/// Namespace folder that is searched for a server program.
#[derive(Clone, Copy)]
pub(super) struct ProgramFolder<'a> {
    pub(super) folder: &'a Path,
    /// Directory that no symlink of the folder may leave.
    pub(super) tree: &'a Path,
    pub(super) manifest: &'a Manifest,
    pub(super) requirements: Option<&'a Requirements>,
    /// Normalized names of the packages in the requirements and in the lists that the requirements name.
    pub(super) asked: &'a BTreeSet<String>,
    /// True if the requirements name a package in a local folder, whose own requirements are unknown; false if they name none.
    pub(super) has_local_packages: bool,
}

impl ProgramFolder<'_> {
    /// Returns the folder's server program; `None` if the worker serves the folder.
    ///
    /// # Errors
    ///
    /// When the program that the manifest or `package.json` names cannot be run. The message gives the reason.
    pub(super) fn program(&self) -> Result<Option<ServerProgram>, String> {
        match &self.manifest.server {
            ServerKey::Never => Ok(None),
            ServerKey::Program(target) => self.named(target).map(Some),
            ServerKey::Found if self.manifest.vault_style => Ok(None),
            ServerKey::Found => self.found(),
        }
    }

    fn named(&self, target: &str) -> Result<ServerProgram, String> {
        let (file, object) = target.split_once(':').unwrap_or((target, ""));
        let refused = |what: &str| Err(format!("tooldock.yaml: server: {file}: {what}"));
        let mut parts = Path::new(file).components();
        if file.is_empty() || !parts.all(|part| matches!(part, Component::Normal(_))) {
            return refused("must be the path of a file in the folder");
        }
        if !self.has_file(file) {
            return refused("there is no such file in the folder");
        }
        if !object.is_empty() && !is_dotted_name(object) {
            return refused("must be followed by the name of an object in the file, such as :mcp");
        }
        if file.ends_with(".py") {
            return self.python(file, object, &self.python_files());
        }
        let is_script = [".js", ".mjs", ".cjs"]
            .iter()
            .any(|end| file.ends_with(end));
        match (is_script, object) {
            (true, "") => Ok(ServerProgram::Node {
                file: file.to_owned(),
                packages: node::packages(self.folder, self.tree)?,
            }),
            (true, _) => refused(
                "is a program for Node.js, which is run as a whole: leave out what follows the colon",
            ),
            _ if file.ends_with(".ts") => {
                refused("is TypeScript: name the JavaScript file that its build makes")
            }
            _ => refused("must end in .py, .js, .mjs or .cjs"),
        }
    }

    fn found(&self) -> Result<Option<ServerProgram>, String> {
        let files = self.python_files();
        if files.iter().any(|file| file.declares) {
            return Ok(None);
        }
        let has_fastmcp = self.asked.contains("fastmcp");
        let is_server = |file: &&PythonFile| file.is_server() && !(has_fastmcp && file.is_traced());
        let servers: Vec<_> = files.iter().filter(|file| file.is_server()).collect();
        if !servers.is_empty() && !servers.iter().any(is_server) {
            return Ok(None);
        }
        if let Some(file) = chosen(&servers) {
            return self.python(&file.name, "", &files).map(Some);
        }
        if let Some(target) = self.project_script() {
            let (file, object) = target.split_once(':').unwrap_or((&target, ""));
            return self.python(file, object, &files).map(Some);
        }
        match files.is_empty() {
            true => node::program(self.folder, self.tree),
            false => Ok(None),
        }
    }

    /// Returns true if the folder has a regular file at this path, which no symlink on the way leads out of the tools directory.
    fn has_file(&self, file: &str) -> bool {
        tree_file::open(&self.folder.join(file), self.tree).is_ok()
    }

    /// Reads the Python files at the top of the folder, sorted by name. Files whose names begin with `_` or `.` are left out.
    fn python_files(&self) -> Vec<PythonFile> {
        let files = python_names(self.folder).into_iter().filter_map(|name| {
            let text = self.text_of(&name)?;
            Some(PythonFile::read(name, &text))
        });
        files.collect()
    }

    fn text_of(&self, name: &str) -> Option<String> {
        let content = tree_file::read(&self.folder.join(name), self.tree, BYTES_MAX);
        String::from_utf8(content.ok()??).ok()
    }

    /// Returns `FILE:FUNCTION` of the script in a `pyproject.toml` that depends on an SDK: its only script, or the script with
    /// the name of the project.
    fn project_script(&self) -> Option<String> {
        let text = self.text_of("pyproject.toml")?;
        let dependencies = project_dependencies(&text);
        if !dependencies.iter().any(|it| is_sdk(it)) {
            return None;
        }
        let table = text.parse::<toml::Table>().ok()?;
        let project = table.get("project")?;
        let scripts = project.get("scripts")?.as_table()?;
        let name = project.get("name").and_then(toml::Value::as_str);
        let script = match scripts.len() {
            1 => scripts.values().next(),
            _ => scripts.get(name?),
        };
        let (module, function) = script?.as_str()?.split_once(':')?;
        if !is_dotted_name(module) || !is_dotted_name(function) {
            return None;
        }
        let path = module.replace('.', "/");
        let places = [
            format!("{path}.py"),
            format!("{path}/__init__.py"),
            format!("src/{path}.py"),
            format!("src/{path}/__init__.py"),
        ];
        let mut places = places.into_iter();
        let file = places.find(|file| self.has_file(file))?;
        Some(format!("{file}:{function}"))
    }

    fn python(
        &self,
        file: &str,
        object: &str,
        files: &[PythonFile],
    ) -> Result<ServerProgram, String> {
        let target = match object {
            "" => file.to_owned(),
            object => format!("{file}:{object}"),
        };
        let own = files.iter().find(|it| it.name == file);
        let sdk = own.and_then(|it| it.sdk);
        let sdk = sdk.or_else(|| files.iter().find_map(|it| it.sdk));
        let mut packages = Vec::new();
        if self.requirements.is_none() {
            let listed = |file: &str, list: fn(&str) -> Result<Vec<String>, String>| {
                let text = self.text_of(file).unwrap_or_default();
                list(&text).map_err(|why| format!("{file}: {why}"))
            };
            packages = listed(file, script_packages)?;
            if packages.is_empty() {
                packages = listed("pyproject.toml", project_packages)?;
            }
        }
        let has_sdk =
            self.asked.iter().any(|it| is_sdk(it)) || packages.iter().any(|it| is_sdk(it));
        if !has_sdk && !self.has_local_packages {
            packages.extend(sdk.map(|sdk| Sdk::requirement(sdk).to_owned()));
        }
        Ok(ServerProgram::Python { target, packages })
    }
}

/// Returns true for a Python name, or several with dots between them. Other text could name a path.
fn is_dotted_name(text: &str) -> bool {
    text.split('.').all(|part| {
        let starts = part.starts_with(|sign: char| sign.is_alphabetic() || sign == '_');
        starts
            && part
                .chars()
                .all(|sign| sign.is_alphanumeric() || sign == '_')
    })
}

/// Returns true if a requirement is for an SDK of MCP servers.
fn is_sdk(requirement: &str) -> bool {
    ["mcp", "fastmcp"]
        .iter()
        .any(|sdk| is_named(requirement, sdk))
}

/// Returns the file to run if several make a server: a file with a preferred name, else the only file that is a program (has
/// `if __name__ == "__main__":`), else the first file.
fn chosen<'a>(servers: &[&'a PythonFile]) -> Option<&'a PythonFile> {
    let named = PREFERRED.iter().find_map(|stem| {
        let name = format!("{stem}.py");
        servers.iter().find(|file| file.name == name)
    });
    let programs: Vec<_> = servers.iter().filter(|file| file.has_main).collect();
    let program = match &programs[..] {
        [program] => Some(*program),
        _ => None,
    };
    named.or(program).or_else(|| servers.first()).copied()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::scan::scan;

    use super::*;

    fn program_of(files: &[(&str, &str)]) -> Result<Option<ServerProgram>, String> {
        let tools = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = tools.path().join("ns").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let source = scan(tools.path()).unwrap().remove(0);
        match source.failure {
            Some(failure) => Err(failure.message),
            None => Ok(source.program),
        }
    }

    fn python(files: &[(&str, &str)]) -> Option<(String, Vec<String>)> {
        match program_of(files).unwrap()? {
            ServerProgram::Python { target, packages } => Some((target, packages)),
            ServerProgram::Node { .. } => None,
        }
    }

    fn found(target: &str, packages: &[&str]) -> Option<(String, Vec<String>)> {
        let packages = packages.iter().map(|it| (*it).to_owned());
        Some((target.to_owned(), packages.collect()))
    }

    const OFFICIAL: &str = "from mcp.server.fastmcp import FastMCP\nmcp = FastMCP('weather')\n@mcp.tool()\ndef f(): ...\n";
    const FASTMCP: &str =
        "from fastmcp import FastMCP\nmcp = FastMCP('x')\n@mcp.tool\ndef f(): ...\n";

    #[test]
    fn a_file_that_makes_a_server_is_a_server_with_the_sdk_that_its_imports_want() {
        for (text, package) in [
            (OFFICIAL, "mcp[cli]<2"),
            (FASTMCP, "fastmcp"),
            (
                "from mcp.server.mcpserver import MCPServer\nmcp: MCPServer = MCPServer('x')\n",
                "mcp[cli]>=2",
            ),
            (
                "from mcp.server import MCPServer as Server\ns = Server('x')\n",
                "mcp[cli]>=2",
            ),
            (
                "from mcp.server.lowlevel import (\n    NotificationOptions,\n    Server,\n)\nserver = Server('x')\n@server.list_tools()\nasync def f(): ...\n",
                "mcp<2",
            ),
            (
                "import mcp.server.lowlevel\nserver = mcp.server.lowlevel.Server[dict]('x', on_list_tools=f)\n",
                "mcp",
            ),
            ("import fastmcp as f\nmcp = f.FastMCP()\n", "fastmcp"),
            (
                "from mcp.server import Server\nasync def serve():\n    server = Server('x')\nif __name__ == '__main__':\n    run(serve())\n",
                "mcp",
            ),
        ] {
            assert_eq!(
                python(&[("weather.py", text)]),
                found("weather.py", &[package]),
                "{text}"
            );
        }
    }

    #[test]
    fn text_in_strings_and_comments_and_classes_of_others_make_no_server() {
        for text in [
            "\"\"\"Example:\n\nfrom mcp.server.fastmcp import FastMCP\nmcp = FastMCP('x')\n\"\"\"\n",
            "# from fastmcp import FastMCP\n# mcp = FastMCP()\n",
            "from http.server import Server\nserver = Server()\n",
            "from mcp.server.fastmcp import FastMCP\ndef make():\n    return FastMCP('x')\n",
            "from mcp.server.fastmcp import Context\nserver = Context()\n",
        ] {
            assert_eq!(python(&[("a.py", text)]), None, "{text}");
        }
    }

    #[test]
    fn what_the_worker_serves_stays_with_the_worker() {
        let tool = "from fastmcp.tools import tool\n@tool\ndef g(): ...\n";
        let contract = "from app.registry import ToolRegistry\ndef register_tools(registry): ...\n";
        for files in [
            &[("a.py", tool), ("server.py", OFFICIAL)][..],
            &[("a.py", contract), ("server.py", OFFICIAL)],
            &[("server.py", FASTMCP), ("requirements.txt", "fastmcp>=3\n")],
            &[
                ("server.py", OFFICIAL),
                ("tooldock.yaml", "server: false\n"),
            ],
        ] {
            assert_eq!(python(files), None, "{files:?}");
        }
        let mounted = format!("{FASTMCP}mcp.mount(other)\n");
        for (text, requirements) in [
            (&*mounted, "fastmcp\n"),
            (OFFICIAL, "fastmcp\n"),
            (FASTMCP, "httpx\n"),
        ] {
            let files = [("server.py", text), ("requirements.txt", requirements)];
            assert!(python(&files).is_some(), "{text}");
        }
    }

    #[test]
    fn packages_come_from_requirements_or_the_script_or_the_project_and_the_sdk_is_added_if_none_names_it()
     {
        let script = format!("# /// script\n# dependencies = ['httpx']\n# ///\n{OFFICIAL}");
        let project = "[project]\nname = 'x'\ndependencies = ['mcp[cli]==1.30', 'rich']\n";
        for (files, packages) in [
            (
                &[("s.py", OFFICIAL), ("requirements.txt", "httpx\n")][..],
                &["mcp[cli]<2"][..],
            ),
            (
                &[("s.py", OFFICIAL), ("requirements.txt", "mcp==1.30.0\n")],
                &[],
            ),
            (
                &[
                    ("s.py", OFFICIAL),
                    ("requirements.txt", "-e .\n"),
                    ("pyproject.toml", project),
                ],
                &[],
            ),
            (&[("s.py", &script)], &["httpx", "mcp[cli]<2"]),
            (
                &[("s.py", OFFICIAL), ("pyproject.toml", project)],
                &["mcp[cli]==1.30", "rich"],
            ),
        ] {
            assert_eq!(python(files), found("s.py", packages), "{files:?}");
        }
    }

    #[test]
    fn one_of_several_server_files_is_chosen_by_its_name_or_as_the_only_program() {
        let program = format!("{OFFICIAL}if __name__ == '__main__':\n    mcp.run()\n");
        for (files, target) in [
            (
                &[("a.py", OFFICIAL), ("server.py", OFFICIAL)][..],
                "server.py",
            ),
            (&[("a.py", OFFICIAL), ("b.py", &program)], "b.py"),
            (&[("a.py", OFFICIAL), ("b.py", OFFICIAL)], "a.py"),
        ] {
            let found = python(files).unwrap();
            assert_eq!(found.0, target, "{files:?}");
        }
    }

    #[test]
    fn the_script_of_a_project_is_a_server_if_the_project_depends_on_an_sdk() {
        let project = "[project]\nname = 'weather'\ndependencies = ['mcp<2']\nscripts = { weather = 'weather:main', other = 'x:y' }\n";
        let files = [("pyproject.toml", project), ("src/weather/__init__.py", "")];
        assert_eq!(
            python(&files),
            found("src/weather/__init__.py:main", &["mcp<2"])
        );
        let project = project.replace("mcp", "httpx");
        let files = [
            ("pyproject.toml", &*project),
            ("src/weather/__init__.py", ""),
        ];
        assert_eq!(python(&files), None);
    }

    #[test]
    fn the_manifest_names_a_file_and_an_object_and_a_wrong_one_is_told() {
        let named = |server: &str| {
            let manifest = format!("server: {server}\n");
            program_of(&[
                ("pkg/s.py", OFFICIAL),
                ("a.js", ""),
                ("a.ts", ""),
                ("tooldock.yaml", &manifest),
            ])
        };
        let target = |server: &str| match named(server) {
            Ok(Some(ServerProgram::Python { target, .. })) => target,
            other => panic!("{other:?}"),
        };
        assert_eq!(target("pkg/s.py"), "pkg/s.py");
        assert_eq!(target("pkg/s.py:mcp"), "pkg/s.py:mcp");
        assert!(matches!(
            named("a.js"),
            Ok(Some(ServerProgram::Node { .. }))
        ));
        for (server, what) in [
            ("../x.py", "path of a file in the folder"),
            ("/etc/passwd.py", "path of a file in the folder"),
            ("none.py", "no such file"),
            ("a.ts", "is TypeScript"),
            ("a.js:x", "leave out what follows the colon"),
            ("tooldock.yaml", "must end in"),
        ] {
            let error = named(server).unwrap_err();
            assert!(error.contains(what), "{server}: {error}");
        }
    }
}
