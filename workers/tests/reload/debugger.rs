//! A namespace whose worker waits for a debugger, with a stand-in for debugpy: a package that is attached by a connection.

use std::net::TcpStream;

use tooldock_base::config::DEBUGGER_TIMEOUT;
use tooldock_process::child::output::RecentLines;

use super::*;

const STAND_IN: &str = "
import socket

def configure(**options):
    pass

def listen(address):
    global server
    server = socket.create_server(address)
    return server.getsockname()

def wait_for_client():
    server.accept()
";

fn debugged(house: &House) {
    house.reloader.set_namespaces(NamespacesConfig {
        debugged: Some("held".parse().unwrap()),
        ..NamespacesConfig::default()
    });
}

fn port_in(lines: &RecentLines) -> Option<u16> {
    let lines = lines.after(0);
    let mut texts = lines.iter().map(|line| &*line.text);
    let said = texts.find_map(|text| text.split_once("attach to 127.0.0.1:"))?;
    said.1.split(':').next()?.parse().ok()
}

fn is_served(house: &House, name: &str) -> bool {
    let namespace = house.registry.namespace(name);
    namespace.is_some_and(|it| matches!(it.upstream, UpstreamKind::Worker(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_waits_for_its_debugger_while_others_are_served() {
    let house = House::new();
    let lines = house.output.of(&"held".parse().unwrap());
    let requirements = house.wheel_of("debugpy", "1.0", STAND_IN);
    house.write("held/requirements.txt", &requirements);
    house.write(
        "held/tooldock.yaml",
        "processes: 2\ntimeout: 1s\ntools: { where: { timeout: 1s } }\n",
    );
    for name in ["held", "free"] {
        house.write(&format!("{name}/t.py"), &tool("where", "return __file__"));
    }
    debugged(&house);

    let report = house.reload().await;
    assert!(is_served(&house, "free") && !is_served(&house, "held"));
    let failure = house.failure("held");
    assert!(
        failure.message.contains("waits for a debugger"),
        "{failure}"
    );
    assert_eq!(report.failed.len(), 1, "{report:?}");
    eventually("the port is logged", || port_in(&lines).is_some()).await;
    let editor = TcpStream::connect(("127.0.0.1", port_in(&lines).unwrap())).unwrap();

    eventually("it is served", || is_served(&house, "held")).await;
    drop(editor);
    assert!(house.call("held", "where").await.is_ok());
    let held = house.namespace("held");
    assert_eq!(
        (held.limits.timeout, held.limits.processes),
        (DEBUGGER_TIMEOUT, 1)
    );
    assert_eq!(held.tool_limits["where"].timeout, None);
    assert_eq!(house.worker("held").spec().silence, DEBUGGER_TIMEOUT);
    assert_eq!(
        house.namespace("free").limits,
        NamespacesConfig::default().defaults
    );
    house.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_without_debugpy_says_what_to_write() {
    let house = House::new();
    house.write("held/t.py", &tool("where", "return __file__"));
    debugged(&house);
    house.reload().await;
    let failure = house.failure("held");
    assert_eq!(failure.code, CallErrorCode::DependencyError);
    assert!(
        failure
            .message
            .contains("write debugpy into requirements.txt"),
        "{failure}"
    );
    house.close().await;
}
