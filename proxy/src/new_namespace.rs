//! `tooldock new`: a folder for a new namespace, with files to begin with.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use crate::cli::{NewArgs, Template};
use crate::config;
use crate::{print, refuse};

/// Files of the template `tool`, each with its path in the folder.
const TOOL: &[(&str, &str)] = &[(
    "hello.py",
    include_str!("../../conf/examples/basic-tool/hello.py"),
)];
const SERVER: &[(&str, &str)] = &[(
    "server.py",
    include_str!("../../conf/examples/mcp-server/server.py"),
)];
const TYPESCRIPT: &[(&str, &str)] = &[
    ("package.json", include_str!("new_namespace/package.json")),
    ("tsconfig.json", include_str!("new_namespace/tsconfig.json")),
    ("src/index.ts", include_str!("new_namespace/index.ts")),
];

/// Runs `tooldock new`.
pub(crate) fn run(arguments: &NewArgs) -> ExitCode {
    let data = match config::load_for_command(
        arguments.config.as_deref(),
        arguments.data_dir.as_deref(),
    ) {
        Ok(effective) => effective.data_dir,
        Err(reason) => return refuse(reason),
    };
    let (files, next) = match arguments.template {
        Template::Tool => (TOOL, ""),
        Template::Server => (SERVER, ""),
        Template::Typescript => (TYPESCRIPT, "npm install && npm run build"),
    };
    let folder = data.join("tools").join(arguments.name.as_str());
    match written(&folder, files) {
        Ok(()) => print(&told(&folder, files, next)),
        Err(reason) => refuse(format_args!("{}: {reason}", folder.display())),
    }
}

fn written(folder: &Path, files: &[(&str, &str)]) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let parent = folder.parent().unwrap_or(folder);
    fs::create_dir_all(parent).map_err(failed)?;
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => "is there already".to_owned(),
        _ => error.to_string(),
    })?;
    for (file, text) in files {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap_or(folder)).map_err(failed)?;
        fs::write(path, text).map_err(failed)?;
    }
    Ok(())
}

fn told(folder: &Path, files: &[(&str, &str)], next: &str) -> String {
    let shown = folder.display();
    let mut text = String::new();
    for (file, _) in files {
        text += &format!("{shown}/{file}\n");
    }
    if !next.is_empty() {
        text += &format!("next: (cd {shown} && {next})\n");
    }
    text + "then: tooldock reload, if the gateway runs without --dev\n"
}
