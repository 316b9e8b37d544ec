//! Repositories and packages of other authors, read for a model that wants to write similar tools: clones, source packages,
//! their analysis, and searches of the MCP registry.
//!
//! ```text
//! gateway: Builder ── request, on stdin ──▶ tooldock __builder      clone or download, read, analyse
//!    (run.rs)     ◀── progress, answer ───  (job.rs, niced, with limits, under the guard)
//!                                              └─▶ $DATA/repos/<key>/files   regular files only, never run
//! ```
//!
//! None of that work runs in the gateway's process: a parser that crashes on a hostile file, or a clone that fills its
//! memory, ends a child. This module starts the child, holds the messages between both, and reads the trees that were kept.
//! The child's own code, with its parsers, is the crate `tooldock-builder`, which only the binary depends on.
//!
//! The builder deliberately does not run, import, build or install anything it reads, and writes no tools.

mod config;
mod run;
pub mod store;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use config::{BuilderConfig, GitScheme};
pub use run::{Builder, BuilderHost, clear_leftovers};

/// Result of the analysis of a repository or package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Analysis {
    /// The URL as the caller gave it; `read_repo_file` takes the same.
    pub repo_url: String,
    /// `python`, `typescript`, `javascript`, `go`, `rust` or `unknown`: the language of most source files.
    pub language: String,
    /// The framework of the tools, such as `mcp-sdk`; `unknown` if no known one is used.
    pub framework: String,
    /// Paths of the files, sorted.
    pub files: Vec<String>,
    /// Tools, by file and position in the file.
    pub tools_found: Vec<FoundTool>,
    /// Packages that the source needs, with their versions as the repository writes them.
    pub dependencies: BTreeMap<String, String>,
    /// Hosts that the source calls.
    pub apis_called: Vec<String>,
    /// Variables that the source reads and that look like credentials. Names only.
    pub secrets_needed: Vec<String>,
    /// Files and results that were left out or could not be read, in sentences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A tool found in the source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundTool {
    /// The name that clients call.
    pub name: String,
    /// The file that declares the tool.
    pub file: String,
    /// Description by the author; may be empty.
    pub description: String,
    /// Parameters of the tool.
    pub parameters: Vec<FoundParameter>,
}

/// A parameter of a found tool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundParameter {
    /// Name of the parameter.
    pub name: String,
    /// Type as written in the source; `any` if the source gives none.
    #[serde(rename = "type")]
    pub kind: String,
    /// True if a call must have the parameter.
    pub required: bool,
    /// Description of the parameter; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// A text file of a repository that was analysed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepoFile {
    /// The file's path in the repository.
    pub path: String,
    /// The file's whole text.
    pub content: String,
}

/// A server in the MCP registry: one entry for each of its packages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryEntry {
    /// The server's name.
    pub name: String,
    /// Description of the server.
    pub description: String,
    /// The package as its own registry knows it; `None` if the server is not published as a package.
    pub package: Option<String>,
    /// Kind of registry that the package is published in, such as `npm` or `pypi`; `remote` for a server that is only reached
    /// over HTTP.
    pub package_type: Option<String>,
    /// The server's repository.
    pub source_url: Option<String>,
}

/// Progress of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The current step, in a few words.
    pub message: String,
    /// The done fraction of the whole job, roughly, in percent. Never less than before.
    pub percent: u8,
}

/// Failure of a job. The message is for the caller: the problem, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct BuilderError {
    /// The kind of failure.
    pub code: BuilderErrorCode,
    /// The problem and the remedy, in a sentence or two.
    pub message: String,
}

/// Kinds of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuilderErrorCode {
    /// The request makes no sense, such as a URL without a host.
    Invalid,
    /// The configuration does not allow the request.
    Refused,
    /// The repository, package or file does not exist.
    NotFound,
    /// A host could not be reached, or did not answer as it should.
    Unavailable,
    /// A limit of size or number was exceeded.
    TooLarge,
    /// A limit of time was exceeded.
    TimedOut,
    /// Other failures, such as a program that is missing.
    Failed,
}

/// Request to the child, as one line of JSON on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BuilderRequest {
    /// The job to do.
    pub task: Task,
    /// Folder of the downloaded repositories, `$DATA/repos`.
    pub repos: std::path::PathBuf,
    /// The settings in force.
    pub config: BuilderConfig,
}

/// Kinds of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Clone a repository, by its URL, and analyse it.
    AnalyzeRepo(String),
    /// Download a package, by its name, and analyse it.
    AnalyzePackage(String),
    /// Search the MCP registry for a word.
    SearchRegistry(String),
}

/// Output of the child, one line of JSON each on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuilderLine {
    /// The job has begun another step.
    Progress(Progress),
    /// Answer to [`Task::AnalyzeRepo`] and [`Task::AnalyzePackage`].
    Analysis(Analysis),
    /// Answer to [`Task::SearchRegistry`].
    Registry(Vec<RegistryEntry>),
    /// Answer of a job that failed.
    Error(BuilderError),
}

macro_rules! constructors {
    ($($name:ident => $code:ident),+) => {
        impl BuilderError {
            $(
                #[doc = concat!("Creates an error of the kind [`BuilderErrorCode::", stringify!($code), "`].")]
                pub fn $name(message: impl Into<String>) -> Self {
                    Self { code: BuilderErrorCode::$code, message: message.into() }
                }
            )+
        }
    };
}

constructors!(
    invalid => Invalid, refused => Refused, not_found => NotFound, unavailable => Unavailable, too_large => TooLarge,
    timed_out => TimedOut, failed => Failed
);
