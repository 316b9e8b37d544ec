//! Repositories and packages of other authors, read for a model that wants to write similar tools: clones, source packages,
//! their analysis, and searches of the MCP registry.
//!
//! ```text
//! gateway: Builder ── request, on stdin ──▶ tooldock __builder      clone or download, read, analyse
//!    (run.rs)     ◀── progress, answer ───  (job.rs, niced, with limits, under the guard)
//!                                              └─▶ $DATA/repos/<key>/files   regular files only, never run
//! ```
//!
//! This work does not run in the gateway's process: if a parser crashes on a hostile file, or a clone exhausts the memory, only
//! the child process ends. This module starts the child, defines the messages between both, and reads the stored trees. The
//! child's own code, with its parsers, is the crate `tooldock-builder`, on which only the binary depends.
//!
//! The builder deliberately does not run, import, build or install anything that it reads, and does not write tools.

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
    /// URL of the repository as the caller wrote it; `read_repo_file` accepts the same URL.
    pub repo_url: String,
    /// Language of most of the source: `python`, `typescript`, `javascript`, `go`, `rust` or `unknown`.
    pub language: String,
    /// Framework with which the tools are built, such as `mcp-sdk`; `unknown` if no known one is used.
    pub framework: String,
    /// Paths of the repository's files, sorted.
    pub files: Vec<String>,
    /// Tools that the source declares, by file and position in the file.
    pub tools_found: Vec<FoundTool>,
    /// Packages on which the source depends, with the versions as written in the repository.
    pub dependencies: BTreeMap<String, String>,
    /// Hosts that the source calls, such as `api.github.com`.
    pub apis_called: Vec<String>,
    /// Names of environment variables that the source reads and that look like credentials.
    pub secrets_needed: Vec<String>,
    /// Sentences about files and results that were omitted or could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A tool that was found in the source of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundTool {
    /// Name of the tool, by which clients call it.
    pub name: String,
    /// Path of the file that declares the tool.
    pub file: String,
    /// Description of the tool by its author; may be empty.
    pub description: String,
    /// Parameters of the tool.
    pub parameters: Vec<FoundParameter>,
}

/// A parameter of a tool that was found in the source of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundParameter {
    /// Name of the parameter.
    pub name: String,
    /// Type of the parameter as written in the source; `any` if the source specifies none.
    #[serde(rename = "type")]
    pub kind: String,
    /// True if calls must contain the parameter; false if it is optional.
    pub required: bool,
    /// Description of the parameter; may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// A text file of an analysed repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RepoFile {
    /// The file's path in the repository.
    pub path: String,
    /// The complete text of the file.
    pub content: String,
}

/// A server in the MCP registry, with one of its packages. A server with several packages has one entry for each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RegistryEntry {
    /// Name of the server in the MCP registry.
    pub name: String,
    /// Description of the server by its author.
    pub description: String,
    /// Name of the package in its package registry; `None` if the server is not published as a package.
    pub package: Option<String>,
    /// Kind of registry in which the package is published, such as `npm` or `pypi`; `remote` for a server that can only be
    /// reached over HTTP.
    pub package_type: Option<String>,
    /// URL of the server's source repository.
    pub source_url: Option<String>,
}

/// Progress of a job of the builder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The current step of the job, in a few words.
    pub message: String,
    /// Approximate completed share of the whole job, in percent.
    pub percent: u8,
}

/// Error of a failed job of the builder. Its message tells the caller the problem and the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct BuilderError {
    /// Kind of the failure.
    pub code: BuilderErrorCode,
    /// The problem and the remedy, in one or two sentences.
    pub message: String,
}

/// Kind of failure of a job of the builder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuilderErrorCode {
    /// The request is not valid, for example because its URL has no host.
    Invalid,
    /// The configuration does not allow the request.
    Refused,
    /// The repository, package or file does not exist.
    NotFound,
    /// A host could not be reached, or its response was not valid.
    Unavailable,
    /// A limit on size or number was exceeded.
    TooLarge,
    /// The time limit was exceeded.
    TimedOut,
    /// Any failure that has no kind of its own here, such as a missing program.
    Failed,
}

/// Request to the builder process, sent as one line of JSON on its standard input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BuilderRequest {
    /// The job to do.
    pub task: Task,
    /// Folder of the downloaded repositories, `$DATA/repos`.
    pub repos: std::path::PathBuf,
    /// Settings of the builder that are in force.
    pub config: BuilderConfig,
}

/// Job of the builder process.
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

/// A message of the builder process: one line of JSON on its standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BuilderLine {
    /// Report that the job has begun another step.
    Progress(Progress),
    /// Result of [`Task::AnalyzeRepo`] and [`Task::AnalyzePackage`].
    Analysis(Analysis),
    /// Result of [`Task::SearchRegistry`].
    Registry(Vec<RegistryEntry>),
    /// Error of a job that failed.
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
