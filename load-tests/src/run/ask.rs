//! One measurement of a scenario: who is asked what, and whose CPU time counts.

use anyhow::Context;

use crate::load::{self, Load, Sample};
use crate::message::{Envelope, Expect, Request, worker_call};
use crate::options::Options;
use crate::plan::{Ask, REFERENCE, Scenario, Server};
use crate::servers::gateway::{Gateway, NAMESPACE, WRONG_TOKEN};
use crate::servers::nginx::Nginx;
use crate::wire::Target;

fn load(options: &Options, target: Target, requests: Vec<Request>, expect: Expect) -> Load {
    Load {
        target,
        requests,
        expect,
        warm_up: options.warm_up(),
        measured: options.measured(),
        front: Vec::new(),
        workers: Vec::new(),
    }
}

fn connections(options: &Options, scenario: &Scenario) -> usize {
    if scenario.alone {
        1
    } else {
        options.connections
    }
}

/// What nginx costs now.
pub(crate) async fn reference(options: &Options, nginx: &Nginx) -> anyhow::Result<Sample> {
    ask_nginx(options, &REFERENCE, nginx).await
}

pub(super) async fn ask_nginx(
    options: &Options,
    scenario: &Scenario,
    nginx: &Nginx,
) -> anyhow::Result<Sample> {
    let envelope = Envelope {
        to: nginx.address,
        token: crate::servers::gateway::TOKEN,
        namespace: NAMESPACE,
        session: None,
    };
    let requests = vec![envelope.ping(); connections(options, scenario)];
    let load = load(
        options,
        Target::Http(nginx.address),
        requests,
        Expect::FIXED,
    );
    load::measure(Load {
        front: nginx.processes(),
        ..load
    })
    .await
}

pub(super) async fn ask_gateway(
    options: &Options,
    scenario: &Scenario,
    gateway: &Gateway,
) -> anyhow::Result<Sample> {
    let connections = connections(options, scenario);
    let envelope = gateway.envelope();
    let (requests, expect) = match scenario.ask {
        Ask::Ping => (vec![envelope.ping(); connections], Expect::PONG),
        Ask::WrongToken => {
            let envelope = Envelope {
                token: WRONG_TOKEN,
                ..envelope
            };
            (vec![envelope.ping(); connections], Expect::REFUSED)
        }
        Ask::PingInSession => {
            let mut requests = Vec::new();
            for _ in 0..connections {
                let session = gateway.open_session().await.context("opening a session")?;
                requests.push(
                    Envelope {
                        session: Some(&session),
                        ..envelope
                    }
                    .ping(),
                );
            }
            (requests, Expect::PONG)
        }
        Ask::Call(tool) if scenario.server == Server::Worker => {
            (vec![worker_call(tool); connections], Expect::ECHO)
        }
        Ask::Call(tool) => (vec![envelope.call(tool); connections], Expect::ECHO),
    };
    let mut load = load(options, Target::Http(gateway.address), requests, expect);
    load.front = vec![gateway.id()];
    match scenario.server {
        Server::Worker => {
            let (worker, socket) = gateway.worker(NAMESPACE)?;
            load.target = Target::Lines(socket);
            load.front = vec![worker];
        }
        Server::Gateway | Server::Nginx => {
            load.front = vec![gateway.id()];
            if let Ask::Call(_) = scenario.ask {
                load.workers = vec![gateway.worker(NAMESPACE)?.0];
            }
        }
    }
    load::measure(load).await
}
