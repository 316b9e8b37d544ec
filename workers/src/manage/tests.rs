//! Managers that are killed at every step of a change, and managers that change files at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Instant;
use std::{fs, thread};

use tempfile::TempDir;
use tooldock_base::data_dir::{TEMPORARY, is_temporary};
use tooldock_base::fault::{FOLDER, dying_everywhere};
use tooldock_base::names::NamespaceName;

use super::*;

/// Variable with the operation of a child process before it is killed.
const OPERATION: &str = "TOOLDOCK_TEST_OPERATION";
/// Variable with the number of the manager that a child process is.
const MANAGER: &str = "TOOLDOCK_TEST_MANAGER";

fn workspace(root: &Path) -> Workspace {
    let metrics = WorkerMetrics::new(&prometheus::Registry::new()).unwrap();
    let data = DataDir::beside(root).unwrap();
    let guard = PathBuf::from("/nonexistent/guard");
    Workspace::new(Arc::new(data), WorkersConfig::default(), guard, &metrics)
}

fn namespace() -> NamespaceName {
    "ns".parse().unwrap()
}

fn file(name: &str) -> ToolFileName {
    name.parse().unwrap()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(work)
}

/// Adds a requirement, without the installer.
async fn add(workspace: &Workspace, package: &str) -> Result<(), NotDone> {
    let package = package.parse().unwrap();
    let adding = workspace.begin_adding(&namespace(), &package).await?;
    workspace.finish_adding(&namespace(), adding).await
}

async fn operate(workspace: &Workspace, operation: &str) -> Result<(), NotDone> {
    let (ns, a, b) = (namespace(), file("a.py"), file("b.py"));
    let code = "new".to_owned();
    match operation {
        "create" => {
            let name = "fresh".parse().unwrap();
            workspace.create_namespace(&name).await.map(drop)
        }
        "replace" => workspace.write_tool_file(&ns, &a, code).await.map(drop),
        "write" => workspace.write_tool_file(&ns, &b, code).await.map(drop),
        "delete" => workspace.delete_tool_file(&ns, &a).await.map(drop),
        "require" => add(workspace, "added").await,
        "remove" => workspace.delete_namespace(&ns).await,
        other => panic!("{other}"),
    }
}

/// Run by [`a_manager_that_is_killed_anywhere_leaves_everything_as_before_or_as_after`] in a separate process.
#[test]
#[ignore = "dies"]
fn a_manager_that_is_killed() {
    let folder = std::env::var(FOLDER).unwrap();
    let operation = std::env::var(OPERATION).unwrap();
    run(operate(&workspace(folder.as_ref()), &operation)).unwrap();
}

/// A namespace with a file that has the maximum number of earlier versions.
fn prepared() -> TempDir {
    let folder = TempDir::new().unwrap();
    let ns = folder.path().join("tools/ns");
    fs::create_dir_all(ns.join(".history")).unwrap();
    fs::write(ns.join("a.py"), "old").unwrap();
    fs::write(ns.join("requirements.txt"), "before\n").unwrap();
    for version in 1..=10 {
        let kept = ns.join(format!(".history/a.py.{version}"));
        fs::write(kept, format!("version {version}")).unwrap();
    }
    folder
}

/// Every file below `tools/`, and every folder.
fn everything(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.join("tools")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root.join("tools")).unwrap();
            let name = name.to_str().unwrap().to_owned();
            match path.is_dir() {
                true => {
                    folders.push(path);
                    found.insert(name, String::new());
                }
                false => drop(found.insert(name, fs::read_to_string(path).unwrap())),
            }
        }
    }
    found
}

/// Entries that may be served: those without a leading dot in their path.
fn served(root: &Path) -> BTreeMap<String, String> {
    let mut found = everything(root);
    found.retain(|name, _| !name.split('/').any(|part| part.starts_with('.')));
    found
}

fn versions(root: &Path) -> BTreeSet<String> {
    let kept = everything(root).into_iter();
    kept.filter(|(name, _)| name.starts_with("ns/.history/a.py."))
        .map(|(_, text)| text)
        .collect()
}

fn is_unfinished(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    is_temporary(name.as_ref(), TEMPORARY, "")
}

#[test]
fn a_manager_that_is_killed_anywhere_leaves_everything_as_before_or_as_after() {
    for operation in ["create", "replace", "write", "delete", "require", "remove"] {
        let before = served(prepared().path());
        let after = {
            let folder = prepared();
            run(operate(&workspace(folder.path()), operation)).unwrap();
            served(folder.path())
        };
        assert_ne!(before, after, "{operation}");
        let mut unfinished = 0;
        let test = "manage::tests::a_manager_that_is_killed";
        let died = dying_everywhere(test, &[(OPERATION, operation)], prepared, |at, root| {
            let place = format!("{operation}, killed at point {at}");
            let left = served(root);
            assert!(left == before || left == after, "{place}: {left:?}");
            assert!(at > 0 || left == after, "{place}: {left:?}");
            // Every version is intact, including that of a file which was replaced or removed.
            let kept = versions(root);
            let is_whole = |text: &String| text == "old" || text.starts_with("version ");
            assert!(kept.iter().all(is_whole), "{place}: {kept:?}");
            if operation != "remove" {
                let stays = left.get("ns/a.py").is_some_and(|text| text == "old");
                assert!(stays || kept.contains("old"), "{place}: {kept:?}");
                assert!(kept.contains("version 10"), "{place}: {kept:?}");
            }
            unfinished += everything(root)
                .keys()
                .filter(|name| is_unfinished(name))
                .count();

            // The next manager finds no lock, removes the leftovers, and completes the change.
            let next = workspace(root);
            run(next.clear_leftovers()).unwrap();
            assert_eq!(served(root), left, "{place}");
            let hidden = everything(root).into_keys().find(|name| {
                let is_hidden = |part: &str| part.starts_with('.') && part != ".history";
                name.split('/').any(is_hidden)
            });
            assert_eq!(hidden, None, "{place}");
            if left == before {
                run(operate(&next, operation)).unwrap();
            }
            assert_eq!(served(root), after, "{place}");
        });
        assert!(died >= 2, "{operation} was killed at {died} places");
        if ["replace", "write", "delete"].contains(&operation) {
            assert!(unfinished > 0, "{operation}: nothing was to be cleared");
        }
    }
}

/// Changes that each of two managers makes.
const CHANGES: usize = 5;

/// Run twice at once by [`two_managers_at_once_lose_nothing_of_each_other`].
#[test]
#[ignore = "one of two processes"]
fn one_of_two_managers() {
    let folder = PathBuf::from(std::env::var(FOLDER).unwrap());
    let own = std::env::var(MANAGER).unwrap();
    let workspace = workspace(&folder);
    fs::write(folder.join(format!("ready-{own}")), "").unwrap();
    wait_for(&folder.join("go"));
    let created = run(async {
        let (ns, a) = (namespace(), file("a.py"));
        let mut created = 0;
        for change in 0..CHANGES {
            let code = format!("manager {own} change {change}");
            workspace.write_tool_file(&ns, &a, code).await.unwrap();
            let package = format!("package-{own}-{change}");
            add(&workspace, &package).await.unwrap();
            let name = format!("made{change}").parse().unwrap();
            match workspace.create_namespace(&name).await {
                Ok(_) => created += 1,
                Err(error) => assert!(error.to_string().contains("exists already"), "{error}"),
            }
            workspace.clear_leftovers().await.unwrap();
        }
        created
    });
    fs::write(folder.join(format!("created-{own}")), created.to_string()).unwrap();
}

fn wait_for(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !path.exists() {
        assert!(Instant::now() < deadline, "{} is there", path.display());
        thread::yield_now();
    }
}

#[test]
fn two_managers_at_once_lose_nothing_of_each_other() {
    let folder = TempDir::new().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("tools/ns")).unwrap();
    let managers: Vec<_> = ["one", "two"]
        .into_iter()
        .map(|own| {
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "manage::tests::one_of_two_managers"])
                .env(FOLDER, root)
                .env(MANAGER, own)
                .spawn();
            (own, child.unwrap())
        })
        .collect();
    for own in ["one", "two"] {
        wait_for(&root.join(format!("ready-{own}")));
    }
    fs::write(root.join("go"), "").unwrap();
    let mut created = 0;
    for (own, mut child) in managers {
        assert!(child.wait().unwrap().success(), "{own}");
        let own = fs::read_to_string(root.join(format!("created-{own}"))).unwrap();
        created += own.parse::<usize>().unwrap();
    }
    assert_eq!(created, CHANGES, "each namespace is made by one of them");

    let mut codes = versions(root);
    codes.insert(fs::read_to_string(root.join("tools/ns/a.py")).unwrap());
    assert_eq!(codes.len(), 2 * CHANGES, "{codes:?}");
    let requirements = fs::read_to_string(root.join("tools/ns/requirements.txt")).unwrap();
    let lines: BTreeSet<_> = requirements.lines().collect();
    assert_eq!(lines.len(), 2 * CHANGES, "{requirements}");
    assert_eq!(requirements.lines().count(), 2 * CHANGES, "{requirements}");
}

#[test]
fn writing_what_is_there_already_keeps_no_version() {
    let folder = prepared();
    let workspace = workspace(folder.path());
    let kept = versions(folder.path());
    for _ in 0..12 {
        let code = "old".to_owned();
        let changed = run(workspace.write_tool_file(&namespace(), &file("a.py"), code)).unwrap();
        assert!(changed.unchanged && changed.previous.is_none());
    }
    assert_eq!(versions(folder.path()), kept);
    let code = "new".to_owned();
    let changed = run(workspace.write_tool_file(&namespace(), &file("a.py"), code)).unwrap();
    assert!(!changed.unchanged);
    assert_eq!(changed.previous.as_deref(), Some(".history/a.py.11"));
}

#[test]
fn no_lock_is_left_of_namespaces_that_are_not_there() {
    let folder = prepared();
    let workspace = workspace(folder.path());
    let locks = || {
        let entries = fs::read_dir(folder.path().join("venvs")).unwrap();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        names.filter(|it| it.ends_with(".lock")).collect::<Vec<_>>()
    };
    let package = "x".parse().unwrap();
    let invented = "invented".parse().unwrap();
    assert!(run(workspace.add_requirement(&invented, &package)).is_err());
    assert_eq!(locks(), [""; 0]);
    run(add(&workspace, "x")).unwrap();
    assert_eq!(locks(), [".ns.adding.lock"]);

    // Deleted while a requirement is added: the adding manager removes the file.
    let adding = run(workspace.begin_adding(&namespace(), &package)).unwrap();
    run(workspace.delete_namespace(&namespace())).unwrap();
    assert_eq!(locks(), [".ns.adding.lock"]);
    drop(adding);
    assert_eq!(locks(), [""; 0]);

    run(workspace.create_namespace(&namespace())).unwrap();
    run(add(&workspace, "x")).unwrap();
    run(workspace.delete_namespace(&namespace())).unwrap();
    assert_eq!(locks(), [""; 0]);

    // The lock file of a manager that was killed.
    fs::write(folder.path().join("venvs/.gone.adding.lock"), "").unwrap();
    assert_eq!(run(workspace.clear_leftovers()).unwrap(), 1);
    assert_eq!(locks(), [""; 0]);
}

#[test]
fn a_server_with_a_text_of_more_than_64_kib_is_refused_and_its_key_is_named() {
    let root = tempfile::tempdir().unwrap();
    let workspace = workspace(root.path());
    let name = namespace();
    let long = "sk-".repeat(22_000);
    for (entry, key) in [
        (serde_json::json!({"command": long}), "command"),
        (
            serde_json::json!({"command": "npx", "args": ["-y", long]}),
            "args[1]",
        ),
        (
            serde_json::json!({"command": "npx", "env": {"A": long}}),
            "env.A",
        ),
        (
            serde_json::json!({"command": "npx", "env": {(long.clone()): "a"}}),
            "env.the name of a key",
        ),
    ] {
        let refused = run(workspace.add_server(&name, entry)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("{key}: has 66000 bytes, and a text may have at most 65536")
        );
    }
    let fits = "x".repeat(64 * 1024);
    run(workspace.add_server(&name, serde_json::json!({"command": "npx", "args": [fits]})))
        .unwrap();
}

#[test]
fn the_name_of_a_server_is_no_namespace_and_every_refusal_says_so() {
    let root = tempfile::tempdir().unwrap();
    let workspace = workspace(root.path());
    let name = namespace();
    run(workspace.add_server(&name, serde_json::json!({"command": "npx"}))).unwrap();
    let created = run(workspace.create_namespace(&name)).unwrap_err();
    assert!(
        created
            .0
            .starts_with("there is a server ns in external/config.yaml"),
        "{created}"
    );
    for refused in [
        run(workspace.write_tool_file(&name, &file("a.py"), "x = 1".to_owned())).map(drop),
        run(workspace.delete_tool_file(&name, &file("a.py"))).map(drop),
        run(workspace.requirements(&name)).map(drop),
        run(workspace.exists(&name)),
        run(workspace.delete_namespace(&name)),
    ] {
        let refused = refused.unwrap_err();
        assert!(
            refused.0.starts_with("ns is a server that others wrote"),
            "{refused}"
        );
    }
    run(workspace.remove_server(&name)).unwrap();
    run(workspace.create_namespace(&name)).unwrap();
    // A server of the operator's configuration.
    let configured = crate::servers::ServersConfig {
        stdio: tooldock_base::yaml::from_str("{ other: { command: x } }").unwrap(),
        ..Default::default()
    };
    workspace.set_configured(&configured, &Default::default());
    let refused = run(workspace.exists(&"other".parse().unwrap())).unwrap_err();
    assert!(refused.0.contains("(upstreams.stdio.other)"), "{refused}");
}
