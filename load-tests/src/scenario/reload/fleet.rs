//! A gateway with 200 namespaces, one of which changes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use tokio::task::JoinSet;

use crate::load::open::OpenLoad;
use crate::message::{EchoCall, Envelope, Expect, FIRST_ID, Request};
use crate::options::Options;
use crate::processes;
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{ASYNC_TOOL, Gateway, Layout, Setup, versioned};
use crate::session;
use crate::wire::{Target, exchange};

/// The namespace whose code changes.
pub(super) const CHANGING: &str = "changing";
/// Number of namespaces of either kind that are called while another one changes, and of connections to each.
const CALLED: usize = 3;
const CONNECTIONS: usize = 6;
/// Number of stdio servers that are started at a time.
const STARTERS: usize = 8;
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Processes with their arguments.
type Processes = BTreeMap<u32, Vec<String>>;

/// A gateway with all the namespaces.
pub(super) struct Fleet {
    pub(super) gateway: Gateway,
    stdio: usize,
    version: u64,
    /// Every process below the gateway with its arguments, before any change.
    before: Processes,
}

/// The gateway's report of a reload.
#[derive(Debug, PartialEq)]
pub(super) struct Report {
    pub(super) restarted: Vec<String>,
    pub(super) failed: Vec<serde_json::Value>,
}

impl Report {
    fn of(answer: &serde_json::Value) -> anyhow::Result<Self> {
        let list = |key: &str| {
            let list = answer.get(key).and_then(serde_json::Value::as_array);
            list.with_context(|| format!("/reload answered without {key}: {answer}"))
        };
        let names = list("workers_restarted")?.iter();
        Ok(Self {
            restarted: names
                .map(|name| name.as_str().unwrap_or_default().to_owned())
                .collect(),
            failed: list("failed")?.clone(),
        })
    }
}

impl Fleet {
    /// Starts the gateway and all its processes: the first call starts a stdio server.
    pub(super) async fn start(
        options: &Options,
        folders: usize,
        servers: usize,
    ) -> anyhow::Result<Self> {
        let echo = EchoProgram::find()?.command(Era::Legacy);
        let mut setup = Setup::new(Layout::Separate).code(CHANGING, versioned(0));
        for number in 1..folders {
            setup = setup.python(&python(number));
        }
        for number in 0..servers {
            setup = setup.stdio(&stdio(number), echo.clone());
        }
        let gateway = Gateway::start(options, &setup).await?;
        for namespace in (1..folders).map(python).chain([CHANGING.to_owned()]) {
            gateway.has_worker(&namespace).await?;
        }
        call_all(gateway.envelope(), servers).await?;
        let before = below(&gateway);
        Ok(Self {
            gateway,
            stdio: servers,
            version: 0,
            before,
        })
    }

    /// The number of processes below the gateway.
    pub(super) fn processes(&self) -> usize {
        self.before.len()
    }

    /// The Python processes that are called. Looking at all processes would take so long that calls would be late, and
    /// stdio servers take next to no CPU time.
    pub(super) fn workers_called(&self) -> anyhow::Result<Vec<u32>> {
        let called = (1..=CALLED).map(python).chain([CHANGING.to_owned()]);
        called
            .map(|namespace| Ok(self.gateway.worker(&namespace)?.0))
            .collect()
    }

    /// The number of processes that the gateway has ever started for stdio servers.
    pub(super) async fn servers_started(&self) -> anyhow::Result<f64> {
        let family = "tooldock_server_processes_started_total";
        self.gateway.metric_sum(family).await
    }

    /// A load on some Python tools and some stdio servers that do not change.
    pub(super) async fn load_on_others(&self, per_second: f64) -> anyhow::Result<OpenLoad> {
        let mut requests = Vec::new();
        // Alternating, since requests are sent in this order.
        for _ in 0..CONNECTIONS {
            for number in 1..=CALLED {
                requests.push(python_call(&self.gateway, &python(number)));
                let namespace = stdio(number * self.stdio / (CALLED + 1));
                let envelope = self.gateway.envelope().of(&namespace);
                let session = session::open(envelope).await?;
                requests.push(in_session(envelope, &session));
            }
        }
        Ok(self.load(requests, per_second))
    }

    /// A load on the namespace that changes. Responses of both versions of its code are correct.
    pub(super) fn load_on_changing(&self, per_second: f64) -> OpenLoad {
        let requests = vec![python_call(&self.gateway, CHANGING); CONNECTIONS];
        self.load(requests, per_second)
    }

    fn load(&self, requests: Vec<Request>, per_second: f64) -> OpenLoad {
        OpenLoad {
            target: Target::Http(self.gateway.address),
            requests,
            expect: Expect::NUMBERED_ECHO,
            per_second,
        }
    }

    /// Reloads; returns the milliseconds until the answer, and the report.
    pub(super) async fn reload(&self) -> anyhow::Result<(f64, Report)> {
        let start = Instant::now();
        let answer = self.gateway.reload().await?;
        let ms = start.elapsed().as_secs_f64() * 1e3;
        Ok((ms, Report::of(&answer)?))
    }

    /// Changes the code of one namespace and reloads; returns the milliseconds until the answer.
    pub(super) async fn change(&mut self) -> anyhow::Result<f64> {
        self.version += 1;
        let (ms, report) = self.gateway.change(CHANGING, self.version).await?;
        let report = Report::of(&report)?;
        ensure!(
            report.restarted == [CHANGING] && report.failed.is_empty(),
            "{CHANGING} had changed, and the reload answered {report:?}"
        );
        Ok(ms)
    }

    /// Checks that every process outside the changed namespace still runs.
    pub(super) fn is_otherwise_untouched(&self) -> anyhow::Result<()> {
        let now = below(&self.gateway);
        let changed = |these: &Processes, those: &Processes| {
            let mut these = these.iter();
            let other = these.find(|(process, arguments)| {
                !those.contains_key(process) && !is_of(arguments, CHANGING)
            });
            other.map(|(process, arguments)| format!("process {process}: {arguments:?}"))
        };
        if let Some(ended) = changed(&self.before, &now) {
            bail!("ended though nothing of it had changed: {ended}");
        }
        if let Some(new) = changed(&now, &self.before) {
            bail!("new though nothing of it had changed: {new}");
        }
        Ok(())
    }
}

fn python(number: usize) -> String {
    format!("python{number:03}")
}

fn stdio(number: usize) -> String {
    format!("server{number:03}")
}

/// Every process below the gateway with its arguments. A process without arguments is just ending.
fn below(gateway: &Gateway) -> Processes {
    processes::descendants(gateway.id())
        .into_iter()
        .map(|process| (process, processes::arguments(process)))
        .filter(|(_, arguments)| !arguments.is_empty())
        .collect()
}

/// Returns true if the arguments are those of a namespace's worker or of the worker's guard.
fn is_of(arguments: &[String], namespace: &str) -> bool {
    arguments
        .windows(2)
        .any(|pair| pair[0] == "--namespace" && pair[1] == namespace)
}

fn python_call(gateway: &Gateway, namespace: &str) -> Request {
    let envelope = gateway.envelope().of(namespace);
    envelope.echo(EchoCall {
        tool: ASYNC_TOOL,
        length: 0,
    })
}

fn in_session(envelope: Envelope<'_>, session: &str) -> Request {
    let session = Some(session);
    envelope.in_session(session).numbered_call()
}

/// Calls every stdio server once.
async fn call_all(envelope: Envelope<'static>, servers: usize) -> anyhow::Result<()> {
    let mut starters = JoinSet::new();
    for starter in 0..STARTERS {
        starters.spawn(async move {
            for number in (starter..servers).step_by(STARTERS) {
                let namespace = stdio(number);
                let called = async {
                    let envelope = envelope.of(&namespace);
                    let session = session::open(envelope).await?;
                    answer(envelope.to, in_session(envelope, &session)).await
                };
                called
                    .await
                    .with_context(|| format!("the first call of {namespace}"))?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(starter) = starters.join_next().await {
        starter.context("calling the stdio servers")??;
    }
    Ok(())
}

/// Sends one call on a separate connection; an error is fatal.
async fn answer(to: std::net::SocketAddr, mut request: Request) -> anyhow::Result<()> {
    let (status, _, body) = exchange(to, request.with_id(FIRST_ID), CALL_LIMIT).await?;
    let is_right = body.contains("\"result\"") && !body.contains("\"isError\":true");
    ensure!(status == 200 && is_right, "{status}: {body}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_restarted_and_what_failed_is_read_from_the_answer() {
        let answer = json!({"workers_restarted": ["a"], "failed": [{"namespace": "b"}]});
        let report = Report::of(&answer).unwrap();
        assert_eq!(report.restarted, ["a"]);
        assert_eq!(report.failed.len(), 1);
        assert!(Report::of(&json!({"workers_restarted": []})).is_err());
    }

    #[test]
    fn a_process_belongs_to_the_namespace_in_its_arguments() {
        let arguments = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert!(is_of(
            &arguments("tooldock __guard -- python -m x --namespace changing --socket s"),
            CHANGING
        ));
        assert!(!is_of(
            &arguments("python -m x --namespace python001 --socket changing"),
            CHANGING
        ));
        assert!(!is_of(&arguments("echo --era legacy"), CHANGING));
    }

    #[test]
    fn every_version_of_the_code_says_which_it_is() {
        let code = versioned(7);
        assert!(code.contains("version 7 of the code") && code != versioned(8));
        assert!(code.contains(ASYNC_TOOL));
    }

    #[test]
    fn there_are_two_hundred_namespaces_of_different_names() {
        let names: std::collections::BTreeSet<_> = (1..10)
            .map(python)
            .chain((0..190).map(stdio))
            .chain([CHANGING.to_owned()])
            .collect();
        assert_eq!(names.len(), 200);
    }
}
