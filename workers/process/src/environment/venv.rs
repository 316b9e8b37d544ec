//! The virtual environment of a namespace (WRK-20): `venvs/<ns>` → `venvs/.builds/<ns>-<hash>`.
//!
//! The hash covers the interpreter and the requirements, including the lists and local packages that they name. The runtime and
//! the base environment are added by a `.pth` file, which is rewritten when they change, so an upgrade of the gateway does not
//! install packages again.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tooldock_base::data_dir::{DataDir, hex, short_hash, write_atomically};
use tooldock_base::names::NamespaceName;
use tooldock_base::regular_file;
use tooldock_base::secret::Secret;
use tooldock_base::tree_file;

use super::installer::Step;
use super::interpreter::find_program;
use super::lock::FileLock;
use super::runtime::STUBS;
use super::{
    EnvironmentError, Environments, LOCAL_STEP, NamespacePackages, Packages, Toolchain, blocking,
    empty, is_switch_leftover, stamp, switch_symlink, turn,
};
use crate::child::Priority;
use crate::requirements::{LocalFiles, REQUIREMENTS_FILE, Requirements};

/// Name of the file that adds the runtime and the base environment to Python's search path. It sorts after most other names, so
/// that paths from `.pth` files of packages are searched first.
pub(super) const PTH_FILE: &str = "zz_tooldock.pth";
/// Name of the file in a build (the folder of an environment) that lists a server's packages for the installer.
const PACKAGES_FILE: &str = "packages.txt";

/// A namespace's environment in which a worker can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceEnvironment {
    /// Folder of the environment itself, not the symlink `venvs/<ns>`: a running worker must keep these packages after the
    /// symlink was changed to a newer environment.
    pub build: PathBuf,
    /// Path of the symlink `venvs/<ns>`.
    pub venv: PathBuf,
    /// Path of the environment's interpreter.
    pub python: PathBuf,
    /// True if requirements were installed, false if an existing build was used.
    pub synced: bool,
}

pub(super) async fn prepare(
    environments: &Environments,
    wanted: NamespacePackages<'_>,
    toolchain: &Toolchain,
    may_install: Packages,
) -> Result<NamespaceEnvironment, EnvironmentError> {
    let name = wanted.namespace;
    let requirements = wanted.requirements.filter(|file| file.asks_for_packages());
    let packages = WantedPackages {
        requirements,
        packages: wanted.packages,
    };
    let key = build_key(packages, &wanted.files_hash, &toolchain.interpreter.id);
    let builds = environments.data.builds_dir();
    let build = builds.join(format!("{name}-{key}"));
    let site_packages = build.join(&toolchain.interpreter.site_packages);

    let limit = match may_install {
        Packages::Install => environments.config.sync_timeout,
        Packages::AsTheyAre => LOCAL_STEP,
    };
    let _lock = FileLock::take(builds.join(format!("{name}.lock")), limit).await?;
    let mut synced = false;
    if !stamp::is_complete(&build, &key) {
        if may_install == Packages::AsTheyAre && !packages.is_empty() {
            return Err(EnvironmentError::new(format!(
                "the requirements of namespace {name} changed: a reload (POST /reload or SIGHUP) installs them"
            )));
        }
        let (template, fresh) = (toolchain.empty.clone(), build.clone());
        blocking(move || {
            remove_tree(&fresh)?;
            empty::copy(&template, &fresh)
        })
        .await?;
        if !packages.is_empty() {
            install(environments, name, &build, packages, toolchain).await?;
            synced = true;
        }
        check_packages(&site_packages)?;
    }

    let pth = search_path(
        &site_packages,
        &toolchain.runtime,
        &toolchain.base.site_packages,
    );
    let venv = environments.data.venvs_dir().join(name.as_str());
    let (link, environment) = (venv.clone(), build.clone());
    blocking(move || {
        let path = site_packages.join(PTH_FILE);
        let found = regular_file::read(&path, pth.len() as u64);
        if found.map_or(true, |found| found != pth.as_bytes()) {
            write_atomically(&path, pth.as_bytes(), 0o644)
                .map_err(|error| EnvironmentError::io("write", &path, &error))?;
        }
        if !stamp::is_complete(&environment, &key) {
            stamp::write(&environment, &key)?;
        }
        set_aside(&link, &builds)?;
        point(&link, &environment)
    })
    .await?;
    Ok(NamespaceEnvironment {
        python: build.join("bin/python"),
        build,
        venv,
        synced,
    })
}

/// Text of the `.pth` file: the runtime, the base environment, and the stubs for editors. An environment with the package
/// `fastmcp` goes without stubs, since the package has its own types, which describe servers, too.
fn search_path(site_packages: &Path, runtime: &Path, base: &Path) -> String {
    let mut text = format!("{}\n{}\n", runtime.display(), base.display());
    if !site_packages.join("fastmcp").is_dir() {
        text.push_str(&format!("{}\n", runtime.join(STUBS).display()));
    }
    text
}

/// Makes the symlink `venvs/<ns>` point to a build.
pub(super) fn point(link: &Path, build: &Path) -> Result<(), EnvironmentError> {
    switch_symlink(
        link,
        &Path::new(".builds").join(build.file_name().unwrap_or_default()),
    )
}

/// Packages to install: those that `requirements.txt` lists, and further packages.
#[derive(Clone, Copy)]
struct WantedPackages<'a> {
    requirements: Option<&'a Requirements>,
    packages: &'a [String],
}

impl WantedPackages<'_> {
    fn is_empty(self) -> bool {
        self.requirements.is_none() && self.packages.is_empty()
    }
}

/// Computes the key of a build. If the key is equal, the same build is used again.
fn build_key(wanted: WantedPackages<'_>, files_hash: &[u8; 32], interpreter: &str) -> String {
    let mut key = format!("1\0{interpreter}");
    if let Some(requirements) = wanted.requirements {
        key = format!("{key}\0{}", requirements.text);
        if requirements.refers_to_files() {
            key = format!("{key}\0{}", hex(files_hash));
        }
    }
    for package in wanted.packages {
        key = format!("{key}\0+{package}");
    }
    short_hash(key.as_bytes())
}

async fn install(
    environments: &Environments,
    name: &NamespaceName,
    build: &Path,
    wanted: WantedPackages<'_>,
    toolchain: &Toolchain,
) -> Result<(), EnvironmentError> {
    let _turn = turn(&environments.installs).await?;
    // The working directory is the namespace's folder, to which pip and uv resolve relative paths in the file.
    let path = wanted.requirements.map(|it| &it.path);
    let directory = path.and_then(|it| it.parent()).unwrap_or(Path::new("/"));
    let text = wanted.requirements.map_or("", |it| &it.text);
    let local = local_files(directory, text).await?;
    let cache = match local.has_packages() {
        true => Cache::PassedOver,
        false => Cache::Used,
    };
    let (program, mut arguments) =
        install_command(build, toolchain, OutputVolume::Everything, cache);
    arguments.extend(
        path.into_iter()
            .flat_map(|it| ["-r".into(), it.clone().into()]),
    );
    if !wanted.packages.is_empty() {
        // Packages are passed in a file, since their URLs may contain credentials, which arguments and messages would show.
        let list = build.join(PACKAGES_FILE);
        arguments.extend(["-r".into(), list.clone().into()]);
        let text = wanted.packages.join("\n") + "\n";
        blocking(move || {
            write_atomically(&list, text.as_bytes(), 0o600)
                .map_err(|error| EnvironmentError::io("write", &list, &error))
        })
        .await?;
    }
    let doing = match (path, wanted.packages) {
        (Some(_), []) => "install requirements.txt",
        (Some(_), _) => "install requirements.txt and the SDK of the server",
        (None, _) => "install the packages of the server",
    };
    let scratch = Scratch::of(name, &local);
    let step = Step {
        doing,
        program: &program,
        arguments,
        directory,
        variables: scratch.configure(build).await?,
        limit: environments.config.sync_timeout,
        priority: Priority::Low,
        lines: Some(environments.output.of(name)),
    };
    let installed = environments.installer.run(step).await;
    scratch.remove().await?;
    installed?;
    // The installer read the file itself, so a check must show that it was not changed since the key was computed.
    let Some(installed) = wanted.requirements.cloned() else {
        return Ok(());
    };
    let tools = environments.data.tools_dir();
    blocking(move || unchanged(&installed, &tools)).await
}

/// Reads again the lists that the requirements name, since they may have been replaced after the scan.
async fn local_files(directory: &Path, text: &str) -> Result<LocalFiles, EnvironmentError> {
    let (directory, text) = (directory.to_owned(), text.to_owned());
    let read = move || LocalFiles::read(&directory, &text);
    let failed = |message| EnvironmentError(format!("{REQUIREMENTS_FILE}: {message}"));
    blocking(move || read().map_err(failed)).await
}

/// Folders for the intermediate files of setuptools, one in each local package. Its usual folder `build/lib` would keep modules
/// of earlier builds: setuptools compares them by time only, and never removes a module that was removed from the sources.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Scratch {
    /// Path of the intermediate files, relative to the folder of a package.
    relative: PathBuf,
    packages: Vec<PathBuf>,
}

impl Scratch {
    fn of(name: &NamespaceName, local: &LocalFiles) -> Self {
        Self {
            relative: Path::new("build").join(format!("tooldock-{name}")),
            packages: local.built_in().map(Path::to_owned).collect(),
        }
    }

    /// Removes the folders if an interrupted install left them. Returns variables that make setuptools use folders with these
    /// paths.
    async fn configure(&self, build: &Path) -> Result<Vec<(OsString, Secret)>, EnvironmentError> {
        if self.packages.is_empty() {
            return Ok(Vec::new());
        }
        self.remove().await?;
        let path = build.join("tooldock-setuptools.cfg");
        let text = format!("[build]\nbuild_base = {}\n", self.relative.display());
        let variable = Secret::new(path.to_string_lossy());
        blocking(move || {
            write_atomically(&path, text.as_bytes(), 0o644)
                .map_err(|error| EnvironmentError::io("write", &path, &error))
        })
        .await?;
        Ok(vec![("DIST_EXTRA_CONFIG".into(), variable)])
    }

    /// Removes the folders. Failures are ignored: in read-only sources, nothing is built.
    async fn remove(&self) -> Result<(), EnvironmentError> {
        let scratch = self.clone();
        blocking(move || {
            for package in &scratch.packages {
                if remove_tree(&package.join(&scratch.relative)).is_ok() {
                    // Fails if the folder contains other builds, which must stay.
                    let _ = fs::remove_dir(package.join("build"));
                }
            }
            Ok(())
        })
        .await
    }
}

/// Amount of output that an installer prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputVolume {
    /// All output is printed, for operators who may watch the progress.
    Everything,
    /// Only errors are printed.
    Errors,
}

/// Specifies if an installer may use its cache of packages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    Used,
    /// The cache is not used for local packages: it identifies them by name, version and times only, so it may be outdated.
    PassedOver,
}

/// The program and arguments that install packages into an environment. The caller appends the packages.
pub(super) fn install_command(
    build: &Path,
    toolchain: &Toolchain,
    says: OutputVolume,
    cache: Cache,
) -> (PathBuf, Vec<OsString>) {
    let python = build.join("bin/python");
    let mut arguments: Vec<OsString> = Vec::new();
    let program = match find_program("uv") {
        Some(uv) => {
            arguments
                .extend(["pip", "install", "--compile-bytecode", "--python"].map(OsString::from));
            arguments.push(python.into());
            if cache == Cache::PassedOver {
                // With this option, cached packages of an index are checked, and fetched again only if they changed.
                arguments.push("--refresh".into());
            }
            uv
        }
        None => {
            // With `-P`, pip does not import a file of the namespace that has the name of a module of the standard library.
            arguments.extend(["-P", "-m", "pip", "--python"].map(OsString::from));
            arguments.push(python.into());
            arguments.extend(
                ["install", "--no-input", "--disable-pip-version-check"].map(OsString::from),
            );
            if cache == Cache::PassedOver {
                arguments.push("--no-cache-dir".into());
            }
            toolchain.base.python.clone()
        }
    };
    if says == OutputVolume::Errors {
        arguments.push("-q".into());
    }
    (program, arguments)
}

fn unchanged(installed: &Requirements, tools: &Path) -> Result<(), EnvironmentError> {
    let tree = tools
        .canonicalize()
        .map_err(|error| EnvironmentError::io("read", tools, &error))?;
    match tree_file::read(&installed.path, &tree, installed.text.len() as u64) {
        Ok(Some(found)) if found == installed.text.as_bytes() => Ok(()),
        _ => Err(EnvironmentError(format!(
            "{REQUIREMENTS_FILE} changed while it was installed; reload again"
        ))),
    }
}

/// Checks the installed packages before a worker starts. Fails, with the reason, for packages with which it could not run.
fn check_packages(site_packages: &Path) -> Result<(), EnvironmentError> {
    if let Some(version) = installed_version(site_packages, "pydantic")
        && major(&version) < Some(2)
    {
        return Err(EnvironmentError(format!(
            "{REQUIREMENTS_FILE} brings pydantic {version}; workers need pydantic 2 or newer. Remove the pin or raise it"
        )));
    }
    if site_packages.join("app").exists() || site_packages.join("app.py").exists() {
        return Err(EnvironmentError(format!(
            "{REQUIREMENTS_FILE} brings a top-level module named \"app\", which is the name of the worker's own runtime"
        )));
    }
    Ok(())
}

/// The version of an installed package, determined from the name of its metadata folder without running code.
pub(super) fn installed_version(site_packages: &Path, package: &str) -> Option<String> {
    fs::read_dir(site_packages)
        .ok()?
        .flatten()
        .find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (found, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
            found
                .eq_ignore_ascii_case(package)
                .then(|| version.to_owned())
        })
}

/// The first number of a version, such as 2 for `2.11.3`.
pub(super) fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// Renames a real folder at `venvs/<ns>`, which older versions created, so that a symlink can be made there. The renamed folder
/// counts as an unused build and is removed by the next garbage collection.
fn set_aside(link: &Path, builds: &Path) -> Result<(), EnvironmentError> {
    if !link.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    let aside = builds.join(format!(
        "{}-replaced",
        link.file_name().unwrap_or_default().to_string_lossy()
    ));
    remove_tree(&aside)?;
    fs::rename(link, &aside).map_err(|error| EnvironmentError::io("replace", link, &error))
}

pub(super) fn remove_tree(path: &Path) -> Result<(), EnvironmentError> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(EnvironmentError::io("remove", path, &error))
        }
        _ => Ok(()),
    }
}

/// Removes builds that are neither in `keep` nor in use by a namespace, and the symlinks of namespaces that no longer exist. A
/// build in progress is locked and is not removed.
pub(super) fn collect_garbage(
    data: &DataDir,
    keep: &BTreeSet<PathBuf>,
    namespaces: &BTreeSet<NamespaceName>,
) {
    let venvs = data.venvs_dir();
    let builds = data.builds_dir();
    let mut used = keep.clone();
    // The lock and the folder are checked for each namespace: since the reload listed the namespaces, a manager may have created
    // another one, and may be installing packages for it.
    let locked = |owner: &str| FileLock::try_take(&builds.join(format!("{owner}.lock")));
    let exists = |owner: &str| data.tools_dir().join(owner).is_dir();
    for entry in fs::read_dir(&venvs).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let file_name = entry.file_name();
        let file_name = file_name.to_string_lossy();
        // Such a name is never that of a namespace. A process that is replacing a symlink holds the namespace's lock.
        if is_switch_leftover(&file_name) {
            match file_name.split('.').next().unwrap_or_default() {
                // A temporary symlink of the manager's environment is not removed, since the manager may be replacing its symlink
                // now.
                "" if file_name.starts_with(".manager.") => {}
                "" => drop(fs::remove_file(entry.path())),
                owner => {
                    if let Ok(Some(_lock)) = locked(owner) {
                        let _ = fs::remove_file(entry.path());
                    }
                }
            }
            continue;
        }
        // Links without the name of a namespace, such as that of the base environment, are not changed.
        let Ok(name) = file_name.parse::<NamespaceName>() else {
            continue;
        };
        if namespaces.contains(&name) {
            used.insert(venvs.join(target));
        } else if let Ok(Some(_lock)) = locked(name.as_str())
            && !exists(name.as_str())
        {
            let _ = fs::remove_file(entry.path());
        }
    }
    remove_unused(data, &used, namespaces, |_| true);
}

/// Removes the builds of a namespace that no longer exists, except those in `keep` and those that a new namespace of the same
/// name uses.
pub(super) fn collect_builds_of(data: &DataDir, name: &NamespaceName, keep: &BTreeSet<PathBuf>) {
    remove_unused(data, keep, &BTreeSet::new(), |owner| owner == name.as_str());
}

/// Removes builds of the owners for which `is_meant` returns true, except those in `used`, those to which a symlink points, and
/// those in progress.
fn remove_unused(
    data: &DataDir,
    used: &BTreeSet<PathBuf>,
    namespaces: &BTreeSet<NamespaceName>,
    is_meant: impl Fn(&str) -> bool,
) {
    let (venvs, builds) = (data.venvs_dir(), data.builds_dir());
    let exists = |owner: &str| data.tools_dir().join(owner).is_dir();
    for entry in fs::read_dir(&builds).into_iter().flatten().flatten() {
        let path = entry.path();
        let file_name = entry.file_name();
        let Some((owner, _)) = file_name
            .to_str()
            .and_then(|name| name.rsplit_once(['-', '.']))
            .filter(|(owner, _)| is_meant(owner))
        else {
            continue;
        };
        let is_lock = path
            .extension()
            .is_some_and(|extension| extension == "lock");
        if used.contains(&path) || is_lock && namespaces.contains(owner) {
            continue;
        }
        let lock = builds.join(format!("{owner}.lock"));
        let Ok(Some(_lock)) = FileLock::try_take(&lock) else {
            continue;
        };
        let linked = fs::read_link(venvs.join(owner)).is_ok_and(|it| venvs.join(it) == path);
        if linked || is_lock && exists(owner) {
            continue;
        }
        let removed = if is_lock { Ok(()) } else { remove_tree(&path) };
        if let Err(error) = removed {
            tracing::warn!(%error, "an unused environment stays");
        }
        if !namespaces.contains(owner) && !exists(owner) {
            let _ = fs::remove_file(&lock);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(requirements: Option<&str>, files_hash: [u8; 32], interpreter: &str) -> String {
        let requirements = requirements.map(|text| Requirements {
            path: "/t/ns/requirements.txt".into(),
            text: text.into(),
        });
        let wanted = WantedPackages {
            requirements: requirements.as_ref(),
            packages: &[],
        };
        build_key(wanted, &files_hash, interpreter)
    }

    #[test]
    fn editors_find_the_stubs_where_the_package_is_not_installed() {
        let folder = tempfile::tempdir().unwrap();
        let of = |site_packages| search_path(site_packages, Path::new("/r"), Path::new("/base"));
        assert_eq!(of(folder.path()), "/r\n/base\n/r/stubs\n");
        fs::create_dir(folder.path().join("fastmcp")).unwrap();
        assert_eq!(of(folder.path()), "/r\n/base\n");
    }

    #[test]
    fn the_key_follows_requirements_and_interpreter_and_nothing_else() {
        let plain = key_of(Some("httpx\n"), [7; 32], "py");
        assert_eq!(plain, key_of(Some("httpx\n"), [8; 32], "py"));
        assert_ne!(plain, key_of(Some("httpx\n"), [7; 32], "other"));
        assert_ne!(plain, key_of(Some("httpx>=1\n"), [7; 32], "py"));
        assert_ne!(plain, key_of(None, [7; 32], "py"));
    }

    #[test]
    fn requirements_that_name_files_follow_those_and_no_tool() {
        let before = key_of(Some("-r base.txt"), [7; 32], "py");
        assert_eq!(key_of(Some("-r base.txt"), [7; 32], "py"), before);
        assert_ne!(key_of(Some("-r base.txt"), [8; 32], "py"), before);
    }

    #[tokio::test]
    async fn a_list_that_became_a_pipe_after_the_scan_is_no_list_to_install() {
        let temp = tempfile::tempdir().unwrap();
        tooldock_base::tree_file::make_pipe(&temp.path().join("more.txt"));
        let error = local_files(temp.path(), "-r more.txt\n")
            .await
            .unwrap_err()
            .0;
        let expected = "requirements.txt: more.txt: cannot be read: a named pipe";
        assert!(error.starts_with(expected), "{error}");
    }

    #[tokio::test]
    async fn setuptools_keeps_nothing_of_an_earlier_build() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        for folder in [
            "env",
            "ns/lib/build/lib",
            "ns/lib/build/tooldock-ns/lib",
            "ns/other",
        ] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        let local = LocalFiles::read(&at("ns"), "./lib\n-e ./other\n-f ./wheels\n").unwrap();
        let scratch = Scratch::of(&"ns".parse().unwrap(), &local);
        let variables = scratch.configure(&at("env")).await.unwrap();
        assert!(!at("ns/lib/build/tooldock-ns").exists(), "left by a crash");
        let (name, value) = &variables[0];
        assert_eq!(name, "DIST_EXTRA_CONFIG");
        let text = fs::read_to_string(value.expose()).unwrap();
        assert_eq!(text, "[build]\nbuild_base = build/tooldock-ns\n");
        for folder in ["ns/lib/build/tooldock-ns/lib", "ns/other/build/tooldock-ns"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        scratch.remove().await.unwrap();
        assert!(at("ns/lib/build/lib").exists(), "builds of others stay");
        assert!(!at("ns/lib/build/tooldock-ns").exists());
        assert!(!at("ns/other/build").exists());
        let none = LocalFiles::read(&at("ns"), "httpx\n").unwrap();
        let none = Scratch::of(&"ns".parse().unwrap(), &none);
        assert!(none.configure(&at("env")).await.unwrap().is_empty());
    }

    #[test]
    fn packages_that_would_break_the_worker_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        assert!(check_packages(temp.path()).is_ok());
        let pydantic = temp.path().join("pydantic-1.10.13.dist-info");
        fs::create_dir(&pydantic).unwrap();
        fs::create_dir(temp.path().join("pydantic_core-2.0.0.dist-info")).unwrap();
        let error = check_packages(temp.path()).unwrap_err().0;
        assert!(error.contains("pydantic 1.10.13"), "{error}");
        fs::rename(&pydantic, temp.path().join("pydantic-2.1.dist-info")).unwrap();
        assert!(check_packages(temp.path()).is_ok());
        fs::create_dir(temp.path().join("app")).unwrap();
        assert!(
            check_packages(temp.path())
                .unwrap_err()
                .0
                .contains("\"app\"")
        );
    }

    #[test]
    fn requirements_that_became_a_pipe_or_something_else_are_a_change() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("ns").join(REQUIREMENTS_FILE);
        fs::create_dir(path.parent().unwrap()).unwrap();
        let text = "httpx\n".to_owned();
        fs::write(&path, &text).unwrap();
        let requirements = Requirements {
            path: path.clone(),
            text,
        };
        assert!(unchanged(&requirements, temp.path()).is_ok());
        fs::write(&path, "httpx2\n").unwrap();
        assert!(unchanged(&requirements, temp.path()).is_err());
        fs::remove_file(&path).unwrap();
        tooldock_base::tree_file::make_pipe(&path);
        let tools = temp.path().to_owned();
        let after =
            tooldock_base::tree_file::without_waiting(move || unchanged(&requirements, &tools));
        assert!(after.unwrap_err().0.contains("changed while"));
    }

    #[test]
    fn garbage_is_what_no_worker_and_no_namespace_uses() {
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::open(temp.path()).unwrap();
        let builds = data.builds_dir();
        for name in ["a-1", "a-2", "a-3", "gone-1", "busy-1"] {
            fs::create_dir(builds.join(name)).unwrap();
        }
        for (link, target) in [
            ("a", ".builds/a-3"),
            ("gone", ".builds/gone-1"),
            (".base", ".base.hash"),
            // A crash in the middle of a switch.
            ("a.0123456789abcdef.link", ".builds/a-1"),
            (".base.0123456789abcdef.link", ".base.hash"),
        ] {
            std::os::unix::fs::symlink(target, data.venvs_dir().join(link)).unwrap();
        }
        let _building = FileLock::try_take(&builds.join("busy.lock"))
            .unwrap()
            .unwrap();
        let keep = BTreeSet::from([builds.join("a-2")]);
        collect_garbage(
            &data,
            &keep,
            &BTreeSet::from(["a".parse().unwrap(), "busy".parse().unwrap()]),
        );
        let left = |dir: &Path| {
            let mut names: Vec<_> = fs::read_dir(dir)
                .unwrap()
                .map(|e| e.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(
            left(&builds),
            ["a-2", "a-3", "a.lock", "busy-1", "busy.lock"]
        );
        assert_eq!(left(&data.venvs_dir()), [".base", ".builds", "a"]);
    }

    #[test]
    fn a_real_folder_of_an_older_version_gives_way_to_the_symlink() {
        let temp = tempfile::tempdir().unwrap();
        let data = DataDir::open(temp.path()).unwrap();
        let link = data.venvs_dir().join("ns");
        fs::create_dir(&link).unwrap();
        set_aside(&link, &data.builds_dir()).unwrap();
        switch_symlink(&link, Path::new(".builds/ns-1")).unwrap();
        switch_symlink(&link, Path::new(".builds/ns-2")).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(".builds/ns-2"));
    }
}
