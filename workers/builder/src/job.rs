//! The process `tooldock __builder`: runs one job, which it reads from standard input as a line of JSON. Its resource limits are
//! lower than those of the gateway.
//!
//! The process has no async runtime, so all calls may block. Its only configuration is in the request.

use std::io::{self, Read as _, Write as _};
use std::process::ExitCode;

use rustix::process::{Resource, Rlimit, nice, setrlimit};
use tooldock_process::repositories::store::TreeSource;
use tooldock_process::repositories::{
    Analysis, BuilderConfig, BuilderError, BuilderLine, BuilderRequest, Task,
};

use crate::fetch::Fetch;
use crate::progress::Show;
use crate::store::TreeWriter;
use crate::tree::Tree;
use crate::{analysis, clone, reach::Reach, registry};

/// Maximum size of a job's request, in bytes.
const REQUEST_MAX: u64 = 64 * 1024;
/// Maximum address space, in bytes, of the process and of each process that it starts.
const MEMORY_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Nice value of the process, the lowest priority: calls of tools and checks of code take precedence.
const NICENESS: i32 = 19;

/// Runs the job that standard input describes, and writes its progress and result to standard output.
pub fn main() -> ExitCode {
    let mut text = String::new();
    let read = io::stdin()
        .lock()
        .take(REQUEST_MAX)
        .read_to_string(&mut text);
    let request: BuilderRequest = match read.map(|_| serde_json::from_str(&text)) {
        Ok(Ok(request)) => request,
        _ => {
            eprintln!("tooldock __builder: expects one request as JSON on standard input");
            return ExitCode::from(2);
        }
    };
    let _ = nice(NICENESS);
    limit(Resource::As, MEMORY_MAX);
    limit(Resource::Fsize, request.config.max_size.as_u64());
    limit(Resource::Core, 0);
    let answer = run(&request, &|progress| say(&BuilderLine::Progress(progress)));
    say(&answer);
    ExitCode::SUCCESS
}

/// Writes a line to standard output. Errors are ignored: if the gateway has ended, the guard process ends this process.
fn say(line: &BuilderLine) {
    if let Ok(mut text) = serde_json::to_vec(line) {
        text.push(b'\n');
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(&text).and_then(|()| stdout.flush());
    }
}

fn limit(what: Resource, value: u64) {
    // Cannot fail: the value is lower than the current limit.
    let _ = setrlimit(
        what,
        Rlimit {
            current: Some(value),
            maximum: Some(value),
        },
    );
}

/// Runs the job that the request describes.
pub(crate) fn run(request: &BuilderRequest, show: Show<'_>) -> BuilderLine {
    let config = &request.config;
    let store = TreeWriter::new(request.repos.clone());
    let result = match &request.task {
        Task::AnalyzeRepo(url) => {
            analyze_repo(url, config, &store, show).map(BuilderLine::Analysis)
        }
        Task::AnalyzePackage(package) => {
            analyze_package(package, config, &store, show).map(BuilderLine::Analysis)
        }
        Task::SearchRegistry(query) => Fetch::new(config).and_then(|fetch| {
            registry::search(fetch.client(), config, query).map(BuilderLine::Registry)
        }),
    };
    result.unwrap_or_else(BuilderLine::Error)
}

fn analyze_repo(
    url: &str,
    config: &BuilderConfig,
    store: &TreeWriter,
    show: Show<'_>,
) -> Result<Analysis, BuilderError> {
    let repository = crate::source::parse(url, config)?;
    let addresses = Reach::new(config).of(&repository)?;
    keep(url, store, config, show, |tree, folder| {
        clone::read(&repository, &addresses, folder, tree, config, show)
    })
}

fn analyze_package(
    package: &str,
    config: &BuilderConfig,
    store: &TreeWriter,
    show: Show<'_>,
) -> Result<Analysis, BuilderError> {
    let fetch = Fetch::new(config)?;
    let found = fetch.find(package, config, show)?;
    keep(&found.address(), store, config, show, |tree, _| {
        fetch.unpack(&found, tree, show)
    })
}

/// Fills a tree, analyses it, and stores it so that `read_repo_file` can read it later.
fn keep(
    source: &str,
    store: &TreeWriter,
    config: &BuilderConfig,
    show: Show<'_>,
    fill: impl FnOnce(&mut Tree, &std::path::Path) -> Result<String, BuilderError>,
) -> Result<Analysis, BuilderError> {
    let on_disk = |error: io::Error| {
        BuilderError::failed(format!(
            "cannot write to the folder of repositories: {error}."
        ))
    };
    let building = store.begin().map_err(on_disk)?;
    let mut tree = Tree::new(building.files(), config.max_size.as_u64());
    let revision = fill(&mut tree, building.path())?;
    let analysis = analysis::analyse(source, &tree, show);
    let about = TreeSource {
        source: source.to_owned(),
        revision,
        bytes: tree.bytes(),
        left_out: tree.into_left_out(),
    };
    store.complete(building, &about).map_err(on_disk)?;
    Ok(analysis)
}
