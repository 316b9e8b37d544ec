//! Steps before the start of a process: its package, and its turn.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use futures_util::FutureExt as _;
use tooldock_base::secret::Secret;

use super::*;

/// An `npx` that runs only `install` for the package, and otherwise the server.
fn npx(folder: &Path, install: &str) -> String {
    let script = format!(
        "#!/bin/sh\ncd '{}'\nfor word in \"$@\"; do case \"$word\" in --package=*)\n\
         echo \"$*\" >> installed\n{install}\nexit 0;; esac; done\n\
         echo \"$*\" >> started\n[ -e broken ] && exit 1\nexec python3 -S -E '{SCRIPT}' legacy\n",
        folder.display()
    );
    let program = folder.join("npx");
    fs::write(&program, script).expect("the script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
    program.display().to_string()
}

fn house(folder: &Path, install: &str, settings: StdioSettings) -> (House, Arc<ExternalServer>) {
    let mut house = House::new();
    let args = ["-y", "@a/server@1", "stdio"].map(Into::into).into();
    let mut spec = house
        .spec(&npx(folder, install), args, settings)
        .spec
        .clone();
    spec.secrets.push(Secret::new("hunter2-hunter2"));
    let server = Arc::new(ExternalServer::new("ns".parse().expect("a name"), spec));
    house.publish(Some(&server));
    (house, server)
}

fn lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_is_installed_once_before_the_first_start_and_not_on_its_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = StdioSettings {
        connect_timeout: Duration::from_secs(10),
        ..quiet()
    };
    // Longer than a start may take.
    let install = "while [ ! -e go ]; do sleep 0.05; done; sleep 10";
    let (house, server) = house(folder.path(), install, settings);
    within(async {
        while house
            .pools
            .state(&server.name)
            .is_none_or(|it| it.as_str() != "installing")
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let state = house.pools.state(&server.name).expect("a pool");
    assert_eq!(
        (state.processes.installing, state.processes.starting),
        (1, 0)
    );
    assert!(lines(&folder.path().join("started")).is_empty());
    fs::write(folder.path().join("go"), "").expect("a file");
    let key = |tag: &str| ConnectionKey::Session(tag.into());
    for tag in ["one", "two"] {
        house
            .lease(&server, key(tag), client(json!({}), None))
            .await;
    }
    assert_eq!(
        lines(&folder.path().join("installed")),
        ["-y --package=@a/server@1 -c :"]
    );
    let started = lines(&folder.path().join("started"));
    assert!(started.len() >= 2, "{started:?}");
    assert!(started.iter().all(|it| it == "-y @a/server@1 stdio"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_that_takes_too_long_is_ended_and_the_server_is_not_started() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = StdioSettings {
        install_timeout: Duration::from_millis(500),
        ..quiet()
    };
    let install = "echo 'fetching with hunter2-hunter2' >&2; sleep 1000";
    let (house, server) = house(folder.path(), install, settings);
    let open = shared(Era::Legacy);
    let leased = within(house.pools.lease(&server, ConnectionKey::Shared, open)).await;
    let error = leased.expect_err("it cannot start").message;
    assert!(
        error.contains("its package was not installed within 500ms"),
        "{error}"
    );
    assert!(error.contains("install_timeout"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    assert!(lines(&folder.path().join("started")).is_empty());
    within(house.pools.shutdown(Duration::from_secs(20))).await;
    assert!(house.metric("tooldock_server_processes_live").abs() < 0.1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_does_not_understand_the_installation_is_no_reason_not_to_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let install = "echo 'unknown option' >&2; exit 2";
    let (house, server) = house(folder.path(), install, quiet());
    house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    assert_eq!(lines(&folder.path().join("installed")).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_start_that_failed_the_package_is_installed_again() {
    let folder = tempfile::tempdir().expect("a folder");
    // The result of the first installation cannot be started.
    let install = "[ -e broken ] && rm broken || touch broken";
    let (house, server) = house(folder.path(), install, quiet());
    let leased = || {
        house
            .pools
            .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
    };
    within(async {
        while leased().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    assert_eq!(lines(&folder.path().join("installed")).len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_waits_for_its_turn_among_those_of_all_servers() {
    let (house, server) = House::with("legacy", quiet());
    house
        .lease(&server, ConnectionKey::Shared, shared(Era::Legacy))
        .await;
    let pool = house.pools.latest(&server.name).expect("a pool");
    let mut turns = Vec::new();
    while let Some(turn) = pool.turns.starting.take(None).now_or_never() {
        turns.push(turn);
    }
    assert!(turns.len() >= 2);
    let own = house.pools.lease(
        &server,
        ConnectionKey::Session("a".into()),
        client(json!({}), None),
    );
    tokio::pin!(own);
    assert!((&mut own).now_or_never().is_none());
    let state = house.pools.state(&server.name).expect("a pool");
    assert_eq!((state.waiting, state.processes.starting), (1, 1));
    turns.pop();
    within(own).await.expect("its turn came");
}
