//! Repositories and packages of others, read for a model that wants to write tools after them: clones, source packages,
//! what is found in them, and searches of the MCP registry.
//!
//! ```text
//! gateway: Builder ── request, on stdin ──▶ tooldock __builder      clone or download, read, analyse
//!    (run.rs)     ◀── progress, answer ───  (job.rs, niced, with limits, under the guard)
//!                                              └─▶ $DATA/repos/<key>/files   regular files only, never run
//! ```
//!
//! None of that work runs in the gateway's process: a parser that crashes on a hostile file, or a clone that fills its
//! memory, ends a child. This file and those that start the child are always part of the crate; what the child itself
//! does stands behind the feature `builder`, which only the binary turns on.
//!
//! What it deliberately does not do: run, import, build or install anything of what it reads; write tools.

mod config;
mod run;
mod store;

#[cfg(feature = "builder")]
mod analysis;
#[cfg(feature = "builder")]
mod clone;
#[cfg(feature = "builder")]
mod fetch;
#[cfg(feature = "builder")]
mod job;
#[cfg(feature = "builder")]
mod reach;
#[cfg(feature = "builder")]
mod registry;
#[cfg(feature = "builder")]
mod source;
#[cfg(feature = "builder")]
mod tree;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use config::{BuilderConfig, GitScheme};
#[cfg(feature = "builder")]
pub use job::main;
pub use run::{Builder, BuilderHost, clear_leftovers};

/// What was found in a repository or package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Analysis {
    /// What was asked for; `read_repo_file` takes the same.
    pub repo_url: String,
    /// `python`, `typescript`, `javascript`, `go`, `rust` or `unknown`: the language of most source files.
    pub language: String,
    /// What the tools are built with, such as `mcp-sdk`; `unknown` where nothing known is used.
    pub framework: String,
    /// Paths of the files, sorted.
    pub files: Vec<String>,
    /// Tools, by file and place in the file.
    pub tools_found: Vec<FoundTool>,
    /// Packages that the source needs, with their versions as the repository writes them.
    pub dependencies: BTreeMap<String, String>,
    /// Hosts that the source calls.
    pub apis_called: Vec<String>,
    /// Variables that the source reads and that look like credentials. Names only.
    pub secrets_needed: Vec<String>,
    /// What was left out or could not be read, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A tool in somebody's source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundTool {
    /// The name that clients call.
    pub name: String,
    /// The file that declares the tool.
    pub file: String,
    /// What it does, as its author says; may be empty.
    pub description: String,
    /// What it takes.
    pub parameters: Vec<FoundParameter>,
}

/// A parameter of a tool in somebody's source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundParameter {
    /// Its name.
    pub name: String,
    /// Its type as the source writes it; `any` where the source says none.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether a call must have it.
    pub required: bool,
    /// What it is for; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// A text file of a repository that was analysed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepoFile {
    /// Its path in the repository.
    pub path: String,
    /// Its whole text.
    pub content: String,
}

/// A server in the MCP registry: one entry for each of its packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryEntry {
    /// The server's name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// The package as its own registry knows it; nothing where the server is not published as a package.
    pub package: Option<String>,
    /// Where the package is published, such as `npm` or `pypi`; `remote` for a server that is only reached over HTTP.
    pub package_type: Option<String>,
    /// Its repository.
    pub source_url: Option<String>,
}

/// How far a job is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is done now, in a few words.
    pub message: String,
    /// How much of the whole job is done, roughly. Never less than before.
    pub percent: u8,
}

/// Why a job failed. The message is for the caller: what was wrong, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct BuilderError {
    /// The kind of failure.
    pub code: BuilderErrorCode,
    /// One sentence or two.
    pub message: String,
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuilderErrorCode {
    /// What was asked for makes no sense, such as a URL without a host.
    Invalid,
    /// The configuration does not allow it.
    Refused,
    /// It is not there.
    NotFound,
    /// A host could not be reached, or did not answer as it should.
    Unavailable,
    /// A limit of size or number.
    TooLarge,
    /// A limit of time.
    TimedOut,
    /// Anything else, such as a program that is missing.
    Failed,
}

/// What the child is asked, as one line of JSON on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Request {
    task: Task,
    /// Where clones are kept.
    repos: std::path::PathBuf,
    config: BuilderConfig,
}

/// One job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    AnalyzeRepo(String),
    AnalyzePackage(String),
    SearchRegistry(String),
}

/// What the child says, one line of JSON each on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    Progress(Progress),
    Analysis(Analysis),
    Registry(Vec<RegistryEntry>),
    Error(BuilderError),
}

macro_rules! constructors {
    ($($name:ident => $code:ident),+) => {
        impl BuilderError {
            $(pub(crate) fn $name(message: impl Into<String>) -> Self {
                Self { code: BuilderErrorCode::$code, message: message.into() }
            })+
        }
    };
}

constructors!(
    invalid => Invalid, not_found => NotFound, too_large => TooLarge, timed_out => TimedOut, failed => Failed
);

#[cfg(feature = "builder")]
constructors!(refused => Refused, unavailable => Unavailable);
