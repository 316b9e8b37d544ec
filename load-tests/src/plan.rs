//! What is measured: one row per scenario, in the order it runs. A new scenario begins with a row here.

/// A scenario under load. `nginx` is measured beside each group whether asked for or not: it is what the others are
/// compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scenario {
    /// As `--only` and the report call it.
    pub(crate) name: &'static str,
    pub(crate) question: &'static str,
    pub(crate) server: Server,
    pub(crate) ask: Ask,
    /// One connection instead of `--connections`.
    pub(crate) alone: bool,
}

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    Nginx,
    Gateway,
    /// The Python worker's own socket, without the gateway.
    Worker,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ask {
    Ping,
    PingInSession,
    /// The tool of this name, which gives its text back.
    Call(&'static str),
    WrongToken,
}

/// How the gateway's threads share work (`work_stealing`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A runtime per thread, the default.
    Separate,
    /// One runtime whose threads take each other's work.
    Stealing,
}

pub(crate) const ASYNC_TOOL: &str = "echo_async";
pub(crate) const SYNC_TOOL: &str = "echo_sync";
/// Tells every open stream of its namespace that the list of tools has changed.
pub(crate) const ANNOUNCING_TOOL: &str = "announce";

/// `return 200` of nginx with the same request bytes: the unit `n` of every ratio.
pub(crate) const REFERENCE: Scenario = Scenario {
    name: "nginx",
    question: "nginx `return 200`, the request bytes of ping",
    server: Server::Nginx,
    ask: Ask::Ping,
    alone: false,
};

pub(crate) const WORKER_START: &str = "worker-start";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const IDLE_STREAMS: &str = "idle-streams";
pub(crate) const STDIO: &str = "stdio";
/// Not of one gateway under load.
const APART: &[(&str, &str)] = &[
    (
        WORKER_START,
        "POST /reload with a new folder of tools, to its answer",
    ),
    (
        MEMORY,
        "the gateway's resident memory with no worker, before and after load",
    ),
    (
        IDLE_STREAMS,
        "5,000 and 19,000 idle GET streams: memory, one event to all, calls meanwhile; the same behind nginx",
    ),
    (
        STDIO,
        "a stdio server directly, through the gateway, and through others that do that job",
    ),
];

/// The group of a layout, in the order it runs.
pub(crate) fn group(layout: Layout) -> &'static [Scenario] {
    match layout {
        Layout::Separate => SEPARATE,
        Layout::Stealing => STEALING,
    }
}

const fn gateway(name: &'static str, ask: Ask, question: &'static str) -> Scenario {
    Scenario {
        name,
        question,
        server: Server::Gateway,
        ask,
        alone: false,
    }
}

const fn alone(name: &'static str, server: Server, ask: Ask, question: &'static str) -> Scenario {
    Scenario {
        name,
        question,
        server,
        ask,
        alone: true,
    }
}

const CALL: Ask = Ask::Call(ASYNC_TOOL);

const SEPARATE: &[Scenario] = &[
    gateway("ping", Ask::Ping, "MCP ping without a session"),
    gateway(
        "ping-session",
        Ask::PingInSession,
        "MCP ping in a 2025-11-25 session per connection",
    ),
    gateway("call-async", CALL, "tools/call of an async Python echo"),
    gateway(
        "call-sync",
        Ask::Call(SYNC_TOOL),
        "tools/call of a sync Python echo",
    ),
    gateway(
        "refusal",
        Ask::WrongToken,
        "401: the ping with a wrong bearer token",
    ),
    alone(
        "nginx-1",
        Server::Nginx,
        Ask::Ping,
        "nginx `return 200`, one connection",
    ),
    alone(
        "ping-1",
        Server::Gateway,
        Ask::Ping,
        "MCP ping, one connection",
    ),
    alone(
        "worker-1",
        Server::Worker,
        CALL,
        "the async echo at the worker's own socket, without the gateway",
    ),
    alone(
        "call-1",
        Server::Gateway,
        CALL,
        "tools/call of the async echo, one connection",
    ),
];

const STEALING: &[Scenario] = &[
    gateway("ping-stealing", Ask::Ping, "ping with work_stealing: true"),
    gateway(
        "ping-session-stealing",
        Ask::PingInSession,
        "ping-session with work_stealing: true",
    ),
    gateway(
        "call-async-stealing",
        CALL,
        "call-async with work_stealing: true",
    ),
    gateway(
        "call-sync-stealing",
        Ask::Call(SYNC_TOOL),
        "call-sync with work_stealing: true",
    ),
    alone(
        "call-1-stealing",
        Server::Gateway,
        CALL,
        "call-1 with work_stealing: true",
    ),
];

fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    std::iter::once(&REFERENCE)
        .chain(SEPARATE)
        .chain(STEALING)
        .map(|scenario| (scenario.name, scenario.question))
        .chain(APART.iter().copied())
}

pub(crate) fn is_name(name: &str) -> bool {
    all().any(|(known, _)| known == name)
}

/// The scenarios as the help shows them.
pub(crate) fn names_help() -> String {
    let mut text = String::from("Scenarios:\n");
    for (name, question) in all() {
        text.push_str(&format!("  {name:<22} {question}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let names: Vec<_> = all().map(|(name, _)| name).collect();
        let unique: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
    }

    #[test]
    fn the_help_names_every_scenario() {
        assert!(all().all(|(name, _)| names_help().contains(name)));
    }
}
