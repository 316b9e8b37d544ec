//! What the comparison found: every sample, one per repetition.

use serde::Serialize;

use crate::load::Sample;
use crate::servers::echo::Era;

pub(crate) const GATEWAY: &str = "tooldock";
pub(crate) const DIRECT: &str = "nothing";

/// How a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Client {
    /// A session of 2025-11-25 for each.
    Session,
    /// 2026-07-28, without one.
    Modern,
    /// At the server's own pipes.
    Pipes,
}

impl Client {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Modern => "modern",
            Self::Pipes => "pipes",
        }
    }
}

/// Everything it found.
#[derive(Debug, Serialize)]
pub(crate) struct Stdio {
    /// Clients at once where they are many.
    many: usize,
    fronts: Vec<Description>,
    pub(crate) rows: Vec<Row>,
    /// Peers that are not installed.
    pub(crate) missing: Vec<&'static str>,
    /// What a peer did not do.
    pub(crate) not_measured: Vec<String>,
    /// What the gateway did not do.
    pub(crate) failures: Vec<String>,
}

/// What was in front, and how it was used.
#[derive(Debug, Serialize)]
pub(crate) struct Description {
    pub(crate) name: &'static str,
    pub(crate) version: String,
    pub(crate) mode: &'static str,
}

/// One case.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) front: &'static str,
    pub(crate) client: Client,
    pub(crate) server: Era,
    pub(crate) clients: usize,
    pub(crate) samples: Vec<Sampled>,
}

/// One measurement of a case.
#[derive(Debug, Serialize)]
pub(crate) struct Sampled {
    #[serde(flatten)]
    pub(crate) sample: Sample,
    /// To the server alone in the same repetition, with one client.
    pub(crate) added_p50_us: Option<f64>,
    pub(crate) added_p99_us: Option<f64>,
    /// What a request cost nginx in the same repetition.
    pub(crate) nginx_cpu_us: Option<f64>,
    /// Answers that were wrong or missing, warm-up included. They are not among the requests.
    pub(crate) wrong: u64,
    pub(crate) first_wrong: Option<String>,
    /// Memory of what is in front and all it started but the servers, right after the load.
    pub(crate) front_kib: Option<u64>,
    /// Server processes then, and their memory.
    pub(crate) servers: usize,
    pub(crate) servers_kib: u64,
}

impl Stdio {
    pub(crate) fn new(many: usize) -> Self {
        Self {
            many,
            fronts: Vec::new(),
            rows: Vec::new(),
            missing: Vec::new(),
            not_measured: Vec::new(),
            failures: Vec::new(),
        }
    }

    pub(super) fn describe(&mut self, name: &'static str, version: &str, mode: &'static str) {
        self.fronts.push(Description {
            name,
            version: version.to_owned(),
            mode,
        });
    }

    pub(crate) fn fronts(&self) -> &[Description] {
        &self.fronts
    }

    pub(crate) fn samples_of(
        &mut self,
        front: &'static str,
        client: Client,
        server: Era,
        clients: usize,
    ) -> &mut Vec<Sampled> {
        let known = self.rows.iter().position(|row| {
            (row.front, row.client, row.server, row.clients) == (front, client, server, clients)
        });
        let at = known.unwrap_or_else(|| {
            self.rows.push(Row {
                front,
                client,
                server,
                clients,
                samples: Vec::new(),
            });
            self.rows.len() - 1
        });
        &mut self.rows[at].samples
    }

    /// The gateway before an old server, which is the common case.
    pub(crate) fn gateway_row(&self, clients: usize) -> Option<&Row> {
        self.rows.iter().find(|row| {
            (row.front, row.client, row.server, row.clients)
                == (GATEWAY, Client::Session, Era::Legacy, clients)
        })
    }
}
