//! One namespace's worker: a supervised Python process and the one connection all calls share.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::error::CallError;
use crate::names::NamespaceName;
use crate::secrets::Secret;
use crate::tool::Tool;

/// Everything needed to start one generation of a worker.
#[derive(Debug, Clone)]
pub struct WorkerSpec {
    /// The namespace it serves.
    pub namespace: NamespaceName,
    /// Tells two generations of one namespace apart.
    pub generation: u64,
    /// The interpreter of the namespace's environment.
    pub python: PathBuf,
    /// The namespace's environment, passed as `--venv`.
    pub venv: PathBuf,
    /// The folder of the tool files, and the process's working directory.
    pub tools_dir: PathBuf,
    /// `<ns>.sock`: what the worker renames its own socket to; at most 100 bytes long.
    pub socket: PathBuf,
    /// The whole environment, built from nothing (WRK-18). Values print as `[redacted]`.
    pub environment: Vec<(OsString, Secret)>,
    /// Threads for sync tools.
    pub sync_concurrency: usize,
    /// The largest frame the worker may send, in bytes.
    pub max_frame: u64,
}

/// A supervised worker; clones of its `Arc` are handed to the snapshot and to calls in flight.
#[derive(Debug)]
pub struct Worker {}

/// One call to a tool.
#[derive(Debug, Clone)]
pub struct ToolCall {
    /// The tool's name.
    pub tool: Arc<str>,
    /// A JSON object, verbatim.
    pub arguments: Bytes,
    /// The largest result, in bytes of JSON.
    pub max_result: u64,
}

/// A successful answer. The JSON stays in the frame it came in.
#[derive(Debug, Clone)]
pub struct ToolReply {
    /// The tool's value, as JSON text.
    pub value: Bytes,
    /// MCP content blocks as a JSON array, when the value is not plain JSON (images, bytes, resource links).
    pub content: Option<Bytes>,
}

/// Takes what a worker sends before its answer. Called on the worker's reader: it must not block.
pub trait CallSink: Send + Sync {
    /// The tool reported progress: `{"progress": n, "total"?: n, "message"?: s}`, verbatim.
    fn progress(&self, report: Bytes);
}
