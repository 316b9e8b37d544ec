//! The start of a namespace whose files make an MCP server: its packages, its command line, and the trial of its file.
//!
//! The MCP layer runs the server's processes, as it does those of configured servers.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tooldock_base::error::{CallError, CallErrorCode};
use tooldock_base::issue::Issue;
use tooldock_credentials::personal::Personal;
use tooldock_process::child::confine::KeptPath;
use tooldock_process::child::variables::worker_variables;
use tooldock_process::environment::{
    NamespaceEnvironment, NodePackages, Packages, Toolchain, paths_of,
};
use tooldock_process::worker::Declarations;

use super::bring_up::{ReadyUpstream, StartFailure};
use crate::external::{ExternalServer, ServedFolder, StdioSettings, StdioSpec, Trial};
use crate::registry::UpstreamKind;
use crate::reload::wanted::{DesiredNamespace, NO_TOOLS};
use crate::reload::{FolderServer, Reloader, lock};
use crate::scan::{NamespaceSource, ServerProgram, files_version};

/// Module of the worker's runtime that runs a server file.
const LAUNCHER: &str = "app.server_main";

/// Command line of a server, and the files that its processes may use.
pub(super) struct ServerCommand {
    program: PathBuf,
    args: Vec<OsString>,
    /// The Python environment, whose `bin` comes first on `PATH`; `None` for Node.js. It is never a folder of the author, since
    /// the sandbox opens the folders of `PATH`.
    environment: Option<PathBuf>,
    /// Folder of the packages.
    packages: PathBuf,
    own: Vec<KeptPath>,
}

/// The command of a Python file, as `FILE` or `FILE:OBJECT`.
pub(super) fn python(
    source: &NamespaceSource,
    target: &str,
    prepared: &NamespaceEnvironment,
) -> ServerCommand {
    let mut own = vec![
        KeptPath::writable(&source.dir),
        KeptPath::readable(&prepared.venv),
    ];
    own.extend(paths_of(&prepared.python));
    ServerCommand {
        program: prepared.python.clone(),
        args: ["-m", LAUNCHER, target].map(OsString::from).into(),
        environment: Some(prepared.build.clone()),
        packages: prepared.build.clone(),
        own,
    }
}

/// Installs the packages of a program for Node.js. Returns its command, and true if packages had to be installed.
pub(super) async fn node(
    reloader: &Arc<Reloader>,
    source: &NamespaceSource,
    file: &str,
    listed: Option<&NodePackages>,
    packages: Packages,
) -> Result<(ServerCommand, bool), StartFailure> {
    let mut own = vec![KeptPath::writable(&source.dir)];
    let mut folder = source.dir.clone();
    let mut synced = false;
    if let Some(listed) = listed {
        let prepared = reloader.node_environment(source, listed, packages).await?;
        synced = prepared.synced;
        own.extend(prepared.build.map(KeptPath::readable));
        folder.push("node_modules");
    }
    let command = ServerCommand {
        program: "node".into(),
        // With `./`, no name of a file is an option.
        args: vec![Path::new(".").join(file).into()],
        environment: None,
        packages: folder,
        own,
    };
    Ok((command, synced))
}

/// Tries a server and returns it. Its processes are started by the MCP layer, once it is published.
pub(super) async fn start(
    reloader: &Reloader,
    toolchain: Option<&Toolchain>,
    wanted: &DesiredNamespace,
    command: ServerCommand,
) -> Result<ReadyUpstream, StartFailure> {
    let source = &wanted.source;
    let identity = wanted.identity(toolchain.map(|it| &*it.id));
    let (env, mut issues) = worker_variables(
        command.environment.as_deref(),
        wanted.defaults(),
        wanted.secrets.clone(),
    );
    let folder = ServedFolder {
        environment: command.environment,
        packages: command.packages,
        own: command.own,
    };
    let spec = StdioSpec {
        program: command.program,
        args: command.args,
        env,
        personal: Personal::default(),
        secrets: wanted.hidden(),
        cwd: source.dir.clone(),
        settings: StdioSettings::default(),
        sandbox: identity.sandbox.clone(),
    };
    let server = ExternalServer::new(source.name.clone(), spec);
    let server = Arc::new(server.of_folder(folder));
    if let Some(ServerProgram::Python { .. }) = &source.program {
        let _turn = reloader.boots.acquire().await.map_err(|_| stopping())?;
        let trial = Trial::run(&server, &reloader.host, reloader.ready_timeout).await;
        let trial = trial.map_err(|error| StartFailure {
            error,
            worker: None,
        })?;
        issues.extend(
            trial
                .is_empty
                .then(|| registers_nothing(&source.program))
                .flatten(),
        );
    }
    let dir = source.dir.clone();
    let now = tokio::task::spawn_blocking(move || files_version(&dir)).await;
    let mut fleet = lock(&reloader.fleet);
    if fleet.closed {
        return Err(stopping());
    }
    fleet.servers.retain(|it| it.server.strong_count() > 0);
    fleet.servers.push(FolderServer {
        server: Arc::downgrade(&server),
        identity,
        issues: issues.clone(),
    });
    Ok(ReadyUpstream {
        upstream: UpstreamKind::External(server),
        declared: Arc::new(Declarations::default()),
        issues,
        files_changed: !matches!(now, Ok(Some(now)) if now == source.files_version),
    })
}

fn registers_nothing(program: &Option<ServerProgram>) -> Option<Issue> {
    let file = program.as_ref()?.file();
    Some(Issue {
        code: NO_TOOLS,
        subject: file.to_owned(),
        message: "its MCP server registers no tool, resource or prompt".to_owned(),
    })
}

fn stopping() -> StartFailure {
    StartFailure {
        error: CallError::new(
            CallErrorCode::WorkerUnavailable,
            "the gateway is shutting down",
        ),
        worker: None,
    }
}
