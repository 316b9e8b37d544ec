//! Creates the description of a process's sandbox. It depends on the `sandbox` setting of the process's namespace, on the
//! namespace's own paths in the data directory, on the gateway's files elsewhere, and on the features of the kernel.
//!
//! The gateway is described by [`HostFacts`] only. Without a data directory, as in tests, there is no sandbox.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tooldock_base::config::{Sandbox, SandboxMode, SandboxNetwork};
use tooldock_base::names::NamespaceName;
use tooldock_base::secret::Secret;

use crate::child::confine::{Confinement, KeptPath, KernelSupport, MountNamespace, NetworkRule};
use crate::child::output::RefusalHints;

/// System folders with programs and their data, which a process in mode `strict` may read.
const SYSTEM: [&str; 15] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/proc",
    "/sys",
    "/nix/store",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/nscd",
];
/// Folders of secrets. If one contains a file of the gateway, the whole folder is covered: a single hidden file would become
/// visible when it is replaced.
const FOLDERS_OF_SECRETS: [&str; 4] = [
    "/etc/tooldock",
    "/etc/letsencrypt",
    "/etc/ssl/private",
    "/run/secrets",
];
/// Folders of the home directory with caches and programs. They stay accessible if the gateway's home is its data directory.
const HOME_FOLDERS: [&str; 4] = [".cache", ".npm", ".local", ".config"];
/// Folders of the data directory that only the gateway uses.
const OWN_FOLDERS: [&str; 6] = [
    "workers",
    "logs",
    "replicas",
    "replicas-manager",
    "repos",
    "runtime",
];
/// Environment variables with paths of certificate authorities.
const CERTIFICATES: [&str; 5] = [
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
];
/// Environment variables with paths of package caches.
const CACHES: [&str; 5] = [
    "XDG_CACHE_HOME",
    "UV_CACHE_DIR",
    "PIP_CACHE_DIR",
    "npm_config_cache",
    "NPM_CONFIG_CACHE",
];

/// Facts about the gateway on which sandboxes depend. The default has no data directory, so no sandboxes are created.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    /// Sandbox features of the kernel.
    pub support: KernelSupport,
    /// Absolute path of the data directory.
    pub data: Option<PathBuf>,
    /// Folder for the gateway's sockets outside of the data directory, where their paths are short.
    pub sockets: Option<PathBuf>,
    /// Files of the gateway outside of the data directory: its configuration, keys, secrets and logs.
    pub files: Vec<PathBuf>,
    /// Programs that the gateway runs outside of a sandbox: its own executable, and installers.
    pub programs: Vec<PathBuf>,
    /// Ports of the gateway's listeners for management, metrics and replicas.
    pub ports: Vec<u16>,
}

/// Creates the sandboxes of the processes of one gateway.
#[derive(Debug, Default)]
pub struct SandboxHost {
    facts: ArcSwap<HostFacts>,
    /// Explanations of refused accesses, by namespace; all processes of a namespace share them.
    hints: Mutex<BTreeMap<NamespaceName, (SandboxMode, Arc<RefusalHints>)>>,
}

/// Properties of a process for which a sandbox is created before its start.
#[derive(Debug, Clone, Copy)]
pub struct ProcessFacts<'a> {
    /// The namespace that the process serves.
    pub namespace: &'a NamespaceName,
    /// The program of the process: a path, or a name on the `PATH`.
    pub program: &'a Path,
    /// Arguments of the process, whose absolute paths are opened to it. Empty if the files of a namespace decide them, since the
    /// author could otherwise open any folder.
    pub args: &'a [OsString],
    /// Environment variables of the process, whose `PATH` is opened to it. Empty if the files of a namespace decide
    /// them; the `PATH` of the gateway is then used.
    pub env: &'a [(OsString, Secret)],
    /// Absolute path of the process's working directory.
    pub cwd: &'a Path,
    /// Files and folders that belong to the process, or that it shares with other processes.
    pub own: &'a [KeptPath],
}

/// The sandbox of a process, and the environment variables that it changes.
#[derive(Debug, Clone)]
pub struct ProcessSandbox {
    /// Description of the sandbox, for the guard.
    pub confinement: Arc<Confinement>,
    /// Environment variables that replace those of the process.
    pub env: Vec<(OsString, Secret)>,
}

/// State of a namespace's sandbox, for operators.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SandboxState {
    /// Mode of the sandbox.
    pub mode: SandboxMode,
    /// A phrase for each protection that is not in effect on this machine.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

impl SandboxState {
    /// Describes the sandbox in a sentence.
    pub fn in_words(&self) -> String {
        let mode = self.mode.as_str();
        match &*self.missing {
            [] => format!("its processes run with sandbox: {mode}"),
            missing => format!(
                "its processes run with sandbox: {mode}, of which this does not hold on this machine: {}",
                missing.join("; ")
            ),
        }
    }
}

impl KeptPath {
    /// Creates an entry for a path that may be read and written.
    pub fn writable(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            writable: true,
        }
    }

    /// Creates an entry for a path that may only be read.
    pub fn readable(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            writable: false,
        }
    }
}

impl SandboxHost {
    /// Creates a host for sandboxes that are based on these facts.
    pub fn new(facts: HostFacts) -> Self {
        Self {
            facts: ArcSwap::from_pointee(facts),
            hints: Mutex::default(),
        }
    }

    /// Replaces the facts about the gateway, for processes that are started from now on.
    pub fn set(&self, facts: HostFacts) {
        self.facts.store(Arc::new(facts));
    }

    /// The current facts about the gateway.
    pub fn facts(&self) -> Arc<HostFacts> {
        self.facts.load_full()
    }

    /// Explanations of accesses that a namespace's sandbox refuses; `None` if there is no sandbox.
    pub fn hints(&self, policy: &Sandbox, namespace: &NamespaceName) -> Option<Arc<RefusalHints>> {
        let facts = self.facts.load();
        let data = facts.data.clone()?;
        if policy.mode == SandboxMode::Off {
            return None;
        }
        let mut all = self.hints.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((mode, hints)) = all.get(namespace)
            && *mode == policy.mode
        {
            return Some(Arc::clone(hints));
        }
        let hints = RefusalHints::new(namespace.clone(), policy.mode, vec![data]);
        let hints = Arc::new(hints);
        all.insert(namespace.clone(), (policy.mode, Arc::clone(&hints)));
        Some(hints)
    }

    /// The state of a sandbox on this machine, with its missing protections; `None` without a data directory.
    pub fn state(&self, policy: &Sandbox) -> Option<SandboxState> {
        let facts = self.facts.load();
        facts.data.as_ref()?;
        let mut missing: Vec<String> = Vec::new();
        if policy.mode != SandboxMode::Off {
            missing.extend(facts.support.missing().into_iter().map(str::to_owned));
            if policy.pids.is_some() && facts.support.mounts != MountNamespace::User {
                missing.push("pids does not hold (no user namespace of its own)".to_owned());
            }
        }
        Some(SandboxState {
            mode: policy.mode,
            missing,
        })
    }

    /// Creates the sandbox of a process; `None` if it runs without one. Blocking: reads file metadata, and creates the folder for
    /// temporary files.
    ///
    /// # Errors
    ///
    /// The reason why the configured sandbox is not possible on this machine.
    pub fn confine(
        &self,
        policy: &Sandbox,
        process: &ProcessFacts<'_>,
    ) -> Result<Option<ProcessSandbox>, String> {
        let facts = self.facts.load();
        let Some(data) = facts
            .data
            .as_deref()
            .filter(|_| policy.mode != SandboxMode::Off)
        else {
            return Ok(None);
        };
        if policy.mode == SandboxMode::Strict && facts.support.landlock == 0 {
            return Err(
                "sandbox: strict needs Landlock (Linux 5.13 or newer, and `landlock` among the kernel's lsm): use basic, or off"
                    .to_owned(),
            );
        }
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let real_data = real(data);
        // Paths in the data directory are converted to the spelling that the gateway uses; other paths yield `None`.
        let below_data = |path: &Path| -> Option<PathBuf> {
            let rest = path.strip_prefix(data).ok().map(Path::to_owned);
            let rest = rest.or_else(|| Some(real(path).strip_prefix(&real_data).ok()?.to_owned()));
            rest.map(|rest| data.join(rest))
        };
        let (folders, files) = by_folder(&facts.files);
        let mut covered = vec![data.to_owned()];
        covered.extend(facts.sockets.clone());
        covered.extend(folders);
        let path = {
            let mut found = process.env.iter().filter(|(key, _)| key == "PATH");
            let own = found.next().map(|(_, value)| PathBuf::from(value.expose()));
            own.or_else(|| gateways_variable("PATH"))
        };
        // Empty paths and the root are excluded: they are prefixes of every path, so all files would count as the process's own.
        let own_paths = || process.own.iter().filter(|it| is_a_place(&it.path));
        let own = |path: &Path| own_paths().any(|it| path.starts_with(&it.path));
        let is_covered = |path: &Path| covered.iter().any(|it| path.starts_with(it));

        let mut kept: BTreeSet<KeptPath> = own_paths().cloned().collect();
        kept.extend(shared(data));
        let named = process.args.iter().filter_map(path_in);
        let program = find(process.program, path.clone());
        let with_program = program.iter().flat_map(|it| {
            let folder = it.parent().map(Path::to_owned);
            let prefix = prefix_of(it);
            [folder, prefix].into_iter().flatten()
        });
        let with_cwd = [process.cwd.to_owned()];
        for path in named.chain(with_program).chain(with_cwd) {
            match below_data(&path) {
                Some(path) if own(&path) => {}
                Some(path) if is_for_tools(data, &path) => {
                    kept.insert(KeptPath::writable(path));
                }
                Some(_) => {}
                None if is_covered(&path) && !facts.files.contains(&path) => {
                    kept.insert(KeptPath::readable(path));
                }
                None => {}
            }
        }
        let certificates = CERTIFICATES.iter().filter_map(|it| gateways_variable(it));
        kept.extend(
            certificates
                .filter(|it| is_covered(it) && !facts.files.contains(it))
                .map(KeptPath::readable),
        );
        let home = gateways_variable("HOME");
        if let Some(home) = home.as_deref().and_then(below_data) {
            for folder in HOME_FOLDERS {
                let folder = home.join(folder);
                // The folder is created now: it could not be created in the sandbox, since the folder above it is covered.
                let _ = fs::create_dir(&folder);
                // `.config` is not writable, because the installers of all namespaces read their configuration there.
                let writable = folder.ends_with(".cache")
                    || folder.ends_with(".npm")
                    || folder.ends_with(".local") && policy.mode == SandboxMode::Basic;
                kept.insert(KeptPath {
                    path: folder,
                    writable,
                });
            }
        }
        let mut hidden = files;
        let absolute = |path: &PathBuf| {
            let path = process.cwd.join(path);
            let path: PathBuf = path
                .components()
                .filter(|it| *it != Component::CurDir)
                .collect();
            below_data(&path).unwrap_or(path)
        };
        let mut open = |paths: &[PathBuf], writable: bool| -> Vec<PathBuf> {
            let mut opened = Vec::new();
            for path in paths.iter().map(absolute) {
                // For paths that a namespace configures, symbolic links are resolved and checked, since its tools can create
                // links.
                let path = match policy.by_namespace {
                    true => fs::canonicalize(&path)
                        .map(|real| below_data(&real).unwrap_or(real))
                        .ok()
                        .filter(|real| own(real) || !own(&path)),
                    false => Some(path),
                };
                let Some(path) = path else {
                    continue;
                };
                let is_the_gateways = is_covered(&path) && !own(&path) || hidden.contains(&path);
                if policy.by_namespace && is_the_gateways {
                    continue;
                }
                if is_covered(&path) {
                    kept.insert(KeptPath {
                        path: path.clone(),
                        writable,
                    });
                }
                hidden.retain(|it| *it != path);
                opened.push(path);
            }
            opened
        };
        let mut read = open(&policy.read, false);
        let mut write = open(&policy.write, true);
        let mut env = Vec::new();
        if policy.mode == SandboxMode::Strict {
            let temporary = temporary_folder(data, process.namespace)?;
            env.push(("TMPDIR".into(), Secret::new(temporary.to_string_lossy())));
            kept.insert(KeptPath::writable(&temporary));
            write.push(temporary);
            read.extend(SYSTEM.map(PathBuf::from));
            read.push(process.cwd.to_owned());
            let on_path = path.into_iter();
            let on_path = on_path.flat_map(|it| std::env::split_paths(&it).collect::<Vec<_>>());
            for folder in on_path.chain(
                program
                    .iter()
                    .filter_map(|it| Some(it.parent()?.to_owned())),
            ) {
                read.extend(prefixes_of(&folder));
                read.push(folder);
            }
            write.extend(CACHES.iter().filter_map(|it| gateways_variable(it)));
            if let Some(home) = &home {
                write.extend([".cache", ".npm"].map(|it| home.join(it)));
                read.push(home.join(".local"));
            }
            read.retain(|it| it.is_absolute());
            write.retain(|it| it.is_absolute());
            // The folder of the code may only be read; the process's other folders, such as that of its socket, may be written.
            let code = process.cwd;
            let is_code = |it: &KeptPath| it.path == code && !write.contains(&it.path);
            kept = kept
                .into_iter()
                .map(|it| KeptPath {
                    writable: it.writable && !is_code(&it),
                    ..it
                })
                .collect();
        }
        let network = match policy.network_in_force() {
            None => NetworkRule::Open,
            Some(SandboxNetwork::None) => NetworkRule::None,
            Some(SandboxNetwork::Public) => NetworkRule::Public,
            Some(SandboxNetwork::Only(addresses)) => {
                NetworkRule::Only(addresses.iter().map(ToString::to_string).collect())
            }
        };
        let own_user_namespace = facts.support.mounts == MountNamespace::User;
        Ok(Some(ProcessSandbox {
            confinement: Arc::new(Confinement {
                label: process.namespace.to_string(),
                mode: policy.mode,
                support: facts.support,
                covered,
                hidden,
                programs: facts.programs.clone(),
                kept: kept.into_iter().collect(),
                read,
                write,
                network,
                own_ports: facts.ports.clone(),
                memory: policy.memory.map(|it| it.as_u64()),
                // Without its own user namespace, a sandbox is charged for all processes of the user, so no limit is set.
                pids: policy.pids.filter(|_| own_user_namespace),
                cpu: policy.cpu,
            }),
            env,
        }))
    }
}

/// Returns true for an absolute path other than the root.
fn is_a_place(path: &Path) -> bool {
    path.is_absolute() && path.parent().is_some()
}

/// The paths of the data directory that all workers may read: the runtime and the base environments.
fn shared(data: &Path) -> Vec<KeptPath> {
    let environments = data.join("venvs");
    let entries = fs::read_dir(&environments).into_iter().flatten().flatten();
    let names = entries.map(|it| it.file_name());
    let bases = names.filter(|it| it.as_encoded_bytes().starts_with(b".base"));
    let bases = bases.map(|it| KeptPath::readable(environments.join(it)));
    bases
        .chain([KeptPath::readable(data.join("runtime"))])
        .collect()
}

/// Returns true for a path of the data directory that a server may use if its arguments, its program or its working directory
/// name it: folders of tools, and folders that are not the gateway's.
fn is_for_tools(data: &Path, path: &Path) -> bool {
    let Ok(rest) = path.strip_prefix(data) else {
        return false;
    };
    let mut names = rest.components().map(Component::as_os_str);
    let Some(first) = names.next() else {
        return false;
    };
    let second = names.next();
    let is = |name: &str| first == OsStr::new(name);
    if is("tools") || is("venvs") {
        return second.is_some();
    }
    if is("external") {
        return second.is_some_and(|it| it != OsStr::new("config.yaml"));
    }
    !OWN_FOLDERS.iter().any(|it| is(it)) && data.join(first).is_dir()
}

/// Splits the gateway's files into the folders of secrets that contain any of them, and the remaining files. The sandbox hides
/// these folders as a whole, and the remaining files one by one.
fn by_folder(files: &[PathBuf]) -> (BTreeSet<PathBuf>, Vec<PathBuf>) {
    let mut folders = BTreeSet::new();
    let mut single = Vec::new();
    for file in files {
        match FOLDERS_OF_SECRETS.iter().find(|it| file.starts_with(it)) {
            Some(folder) => {
                folders.insert(PathBuf::from(folder));
            }
            None => single.push(file.clone()),
        }
    }
    (folders, single)
}

/// The absolute path that an argument contains, such as `/srv/a.json` in `--config=/srv/a.json`.
fn path_in(argument: &OsString) -> Option<PathBuf> {
    let text = argument.to_str()?;
    let path = match text.split_once('=') {
        Some((_, path)) if path.starts_with('/') => path,
        _ => text,
    };
    path.starts_with('/').then(|| path.into())
}

/// Finds the file of a program: an absolute path itself, or the first file of that name in the folders of a `PATH`.
fn find(program: &Path, path: Option<PathBuf>) -> Option<PathBuf> {
    if program.is_absolute() {
        return Some(program.to_owned());
    }
    let folders = path.map(|it| std::env::split_paths(&it).collect::<Vec<_>>());
    let mut files = folders.into_iter().flatten().map(|it| it.join(program));
    files.find(|it| it.is_file())
}

/// The folder above the program's `bin`, if it is a separate installation: it contains `lib` and is not the home directory.
fn prefix_of(program: &Path) -> Option<PathBuf> {
    let prefix = program.parent()?.parent()?;
    let is_one = prefix.join("lib").is_dir() && prefix.parent().is_some();
    (is_one && Some(prefix) != gateways_variable("HOME").as_deref()).then(|| prefix.to_owned())
}

/// A path from a variable of the gateway's own environment. Variables of the process are not used: its namespace's
/// `tooldock.yaml` may set them, and must not make paths accessible.
fn gateways_variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from)
}

/// The installations to which the programs of a folder belong: the folder above it, those of the interpreters to which it links,
/// and the installation from which a virtual environment was made.
fn prefixes_of(folder: &Path) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = prefix_of(&folder.join("x")).into_iter().collect();
    if folder.ends_with("shims") {
        // Shims of pyenv and similar programs start files in other folders beside theirs.
        prefixes.extend(folder.parent().map(Path::to_owned));
    }
    for name in ["python", "python3", "node", "uv", "npx"] {
        if let Ok(real) = fs::canonicalize(folder.join(name)) {
            prefixes.extend(prefix_of(&real));
            prefixes.extend(real.parent().map(Path::to_owned));
        }
    }
    let configured = folder.parent().map(|it| it.join("pyvenv.cfg"));
    let text = configured.and_then(|it| fs::read_to_string(it).ok());
    let mut homes = text.iter().flat_map(|it| it.lines()).filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "home").then(|| PathBuf::from(value.trim()))
    });
    if let Some(home) = homes.next() {
        let real = fs::canonicalize(&home).unwrap_or_else(|_| home.clone());
        prefixes.extend(prefix_of(&real.join("x")));
        prefixes.extend([home, real]);
    }
    prefixes
}

/// Creates the folder for temporary files of a namespace's processes in mode `strict`.
fn temporary_folder(data: &Path, namespace: &NamespaceName) -> Result<PathBuf, String> {
    let folder = data.join("tmp").join(namespace.as_str());
    let made = fs::create_dir_all(&folder);
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    made.and_then(|()| fs::set_permissions(&folder, private))
        .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(data: &Path, support: KernelSupport) -> SandboxHost {
        SandboxHost::new(HostFacts {
            support,
            data: Some(data.to_owned()),
            files: vec!["/etc/tooldock/tooldock.yaml".into(), "/srv/key.pem".into()],
            ..HostFacts::default()
        })
    }

    fn confined(host: &SandboxHost, policy: &Sandbox, cwd: &Path, args: &[&str]) -> Confinement {
        let args: Vec<OsString> = args.iter().map(Into::into).collect();
        let facts = ProcessFacts {
            namespace: &"ns".parse().unwrap(),
            program: Path::new("/usr/bin/env"),
            args: &args,
            env: &[],
            cwd,
            own: &[KeptPath::writable(cwd)],
        };
        let made = host.confine(policy, &facts).unwrap().unwrap();
        (*made.confinement).clone()
    }

    const ALL: KernelSupport = KernelSupport {
        landlock: 7,
        mounts: MountNamespace::User,
        seccomp: true,
        connections: true,
    };

    #[test]
    fn the_path_of_the_gateway_is_searched_for_a_program_without_variables_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().join("tools/ns");
        fs::create_dir_all(&cwd).unwrap();
        let facts = ProcessFacts {
            namespace: &"ns".parse().unwrap(),
            program: Path::new("sh"),
            args: &[],
            env: &[],
            cwd: &cwd,
            own: &[KeptPath::writable(&cwd)],
        };
        let policy = Sandbox::of(SandboxMode::Strict);
        let made = host(folder.path(), ALL).confine(&policy, &facts);
        let confined = made.unwrap().unwrap();
        let read = &confined.confinement.read;
        let path = gateways_variable("PATH").expect("a PATH");
        let first = std::env::split_paths(&path).find(|it| it.is_dir());
        let first = first.expect("a folder").canonicalize().unwrap();
        assert!(read.iter().any(|it| first.starts_with(it)), "{read:?}");
    }

    #[test]
    fn of_the_data_directory_only_what_is_its_own_or_named_stays() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        for name in [
            "tools/ns",
            "tools/other",
            "venvs/.base.1",
            "runtime",
            "notes",
        ] {
            fs::create_dir_all(data.join(name)).unwrap();
        }
        fs::write(data.join("keys.json"), "{}").unwrap();
        let host = host(data, ALL);
        let notes = format!("--root={}", data.join("notes").display());
        let keys = data.join("keys.json");
        let cwd = data.join("tools/ns");
        let policy = Sandbox::of(SandboxMode::Basic);
        let own = confined(&host, &policy, &cwd, &[&notes, keys.to_str().unwrap()]);
        let kept: Vec<&Path> = own.kept.iter().map(|it| &*it.path).collect();
        for (path, stays) in [
            ("tools/ns", true),
            ("tools/other", false),
            ("venvs/.base.1", true),
            ("runtime", true),
            ("notes", true),
            ("keys.json", false),
        ] {
            assert_eq!(kept.contains(&&*data.join(path)), stays, "{path}");
        }
        assert!(own.covered.contains(&"/etc/tooldock".into()));
        assert_eq!(own.hidden, [PathBuf::from("/srv/key.pem")]);
    }

    #[test]
    fn a_namespace_cannot_open_what_is_the_gateways_and_the_operator_can() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let cwd = data.join("tools/ns");
        let other = data.join("tools/other");
        fs::create_dir_all(&cwd).unwrap();
        fs::create_dir_all(&other).unwrap();
        let mut policy = Sandbox {
            read: vec![other.clone(), "/srv/key.pem".into(), "/srv/data".into()],
            ..Sandbox::of(SandboxMode::Basic)
        };
        let host = host(data, ALL);
        for (by_namespace, opened) in [(false, true), (true, false)] {
            policy.by_namespace = by_namespace;
            let own = confined(&host, &policy, &cwd, &[]);
            assert_eq!(own.kept.contains(&KeptPath::readable(&other)), opened);
            assert_eq!(own.hidden.is_empty(), opened);
        }
    }

    #[test]
    fn strict_needs_landlock_and_reads_its_code() {
        let folder = tempfile::tempdir().unwrap();
        let cwd = folder.path().join("tools/ns");
        fs::create_dir_all(&cwd).unwrap();
        let policy = Sandbox::of(SandboxMode::Strict);
        let own = confined(&host(folder.path(), ALL), &policy, &cwd, &[]);
        assert_eq!(own.network, NetworkRule::None);
        assert!(own.kept.contains(&KeptPath::readable(&cwd)));
        assert!(own.write.contains(&folder.path().join("tmp/ns")));
        let facts = ProcessFacts {
            namespace: &"ns".parse().unwrap(),
            program: Path::new("/usr/bin/env"),
            args: &[],
            env: &[],
            cwd: &cwd,
            own: &[],
        };
        let none = host(folder.path(), KernelSupport::default());
        let error = none.confine(&policy, &facts).unwrap_err();
        assert!(error.contains("needs Landlock"), "{error}");
    }
}
