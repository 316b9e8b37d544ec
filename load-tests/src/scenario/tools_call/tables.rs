//! What was found, as tables and notes.

use anyhow::Context;

use super::case::{Case, Client, Server, Text};
use super::found::{Found, Loaded, NOTHING, Row};
use super::front::{GATEWAY, NGINX, STEALING};
use super::{charts, verdicts};
use crate::report::{Section, Table, cell, spread};
use crate::servers::echo::Era;

const STDIO: Case = Case::new(Server::Stdio(Era::Legacy), Client::Session);

impl Found {
    pub(super) fn section(self) -> anyhow::Result<Section> {
        let samples = serde_json::to_value(&self).context("the samples")?;
        let mut notes = self.fronts.clone();
        notes.extend(self.idle.map(|memory| {
            let mib = |kib: u64| kib as f64 / 1024.0;
            format!(
                "an idle gateway, one namespace with nothing in it: {:.1} MiB resident, {:.1} of them its own",
                mib(memory.resident_kib),
                mib(memory.anonymous_kib)
            )
        }));
        notes.extend(self.closed());
        notes.extend(self.findings.iter().cloned());
        Ok(Section {
            tables: vec![self.calls(), self.fronts_of_stdio(), self.one_client()],
            charts: charts::all(&self),
            verdicts: verdicts::all(&self),
            notes,
            missing: self.missing,
            failures: self.failures,
            samples,
        })
    }

    /// The gateway and nginx.
    fn calls(&self) -> Table {
        let mut table = Table::new([
            "in front",
            "server",
            "client",
            "text",
            "clients",
            "calls/s",
            "p50 us",
            "p99 us",
            "CPU us",
            "in kernel %",
            "CPU / n",
            "from .. to",
            "server CPU us",
            "client CPU us",
            "MiB",
            "server MiB",
        ])
        .captioned("Many clients, one request in flight for each");
        for row in self.of([NGINX, GATEWAY, STEALING]) {
            let spread = spread(row.samples.iter().filter_map(Loaded::ratio));
            table.row(row.names().into_iter().chain(row.rates()).chain([
                cell(row.cpu_us(), 1),
                cell(row.kernel_percent(), 0),
                cell(row.ratio(), 2),
                spread.map_or_else(
                    || cell(None, 0),
                    |(least, most)| format!("{least:.2} .. {most:.2}"),
                ),
                cell(row.server_cpu_us(), 1),
                cell(row.median(|one| Some(one.sample.client_cpu_us)), 1),
                row.front_mib(),
                row.server_mib(),
            ]));
        }
        table
    }

    /// Everybody before the same stdio server.
    fn fronts_of_stdio(&self) -> Table {
        let mut table = Table::new([
            "in front",
            "calls/s",
            "p50 us",
            "p99 us",
            "CPU us",
            "CPU / n",
            "server CPU us",
            "MiB",
            "servers",
            "server MiB",
            "wrong",
        ])
        .captioned("Small `tools/call` to the same stdio server, 64 clients with a session each; nginx before the same server over HTTP");
        let compared = |row: &&Row<Loaded>| {
            let pipes_or_app = row.case.client == Client::Pipes || row.case.server == Server::App;
            row.case.text == Text::Words && (pipes_or_app || row.case == STDIO)
        };
        let mut rows: Vec<_> = self.rows.iter().filter(compared).collect();
        rows.sort_by_key(|row| self.place(&row.front));
        for row in rows {
            let wrong: u64 = row.samples.iter().map(|one| one.wrong).sum();
            table.row([row.front.clone()].into_iter().chain(row.rates()).chain([
                cell(row.cpu_us(), 1),
                cell(row.ratio(), 2),
                cell(row.server_cpu_us(), 1),
                row.front_mib(),
                cell(row.median(|one| Some(one.servers as f64)), 0),
                row.server_mib(),
                wrong.to_string(),
            ]));
        }
        table
    }

    fn one_client(&self) -> Table {
        let mut table = Table::new([
            "in front",
            "server",
            "p50 us",
            "p99 us",
            "without: p50",
            "p99",
            "added p50",
            "added p99",
            "CPU us",
            "server CPU us",
        ])
        .captioned("One client, one connection after the other: means over the connections");
        let mut rows: Vec<_> = self.alone.iter().collect();
        rows.sort_by_key(|row| (self.place(&row.front), row.case.server.to_string()));
        for row in rows {
            table.row([
                row.front.clone(),
                row.case.server.to_string(),
                cell(row.median(|one| Some(one.through.p50_us)), 0),
                cell(row.median(|one| Some(one.through.p99_us)), 0),
                cell(row.median(|one| Some(one.direct.p50_us)), 0),
                cell(row.median(|one| Some(one.direct.p99_us)), 0),
                cell(row.added_p50_us(), 0),
                cell(row.added_p99_us(), 0),
                cell(row.median(|one| Some(one.cpu_us)), 1),
                cell(row.median(|one| Some(one.server_cpu_us)), 1),
            ]);
        }
        table
    }

    /// The rows of these, in this order.
    fn of<const N: usize>(&self, fronts: [&'static str; N]) -> impl Iterator<Item = &Row<Loaded>> {
        fronts
            .into_iter()
            .flat_map(|front| self.rows.iter().filter(move |row| row.front == front))
    }

    /// Where a front stands in a table: known ones first, peers in the order they were first measured.
    pub(super) fn place(&self, front: &str) -> usize {
        const KNOWN: [&str; 4] = [NOTHING, NGINX, GATEWAY, STEALING];
        let known = KNOWN.iter().position(|known| *known == front);
        known.unwrap_or_else(|| {
            let place = self.rows.iter().position(|row| row.front == front);
            KNOWN.len() + place.unwrap_or(self.rows.len())
        })
    }

    /// Connections that were closed after an answer cost new ones.
    fn closed(&self) -> impl Iterator<Item = String> {
        self.rows.iter().filter_map(|row| {
            let closed: u64 = row.samples.iter().map(|one| one.sample.closed).sum();
            (closed > 0).then(|| {
                format!(
                    "{}, {}: {closed} connections closed after an answer",
                    row.front, row.case
                )
            })
        })
    }
}

impl Row<Loaded> {
    fn names(&self) -> [String; 5] {
        let server = match self.case.server {
            Server::None if self.front == NGINX => "none: `return 200`".to_owned(),
            Server::None if self.case.client == Client::Modern => {
                "none: `server/discover`".to_owned()
            }
            Server::None => "none: `ping`".to_owned(),
            server => server.to_string(),
        };
        [
            self.front.clone(),
            server,
            self.case.client.to_string(),
            self.case.text.to_string(),
            cell(self.median(|one| Some(one.clients as f64)), 0),
        ]
    }

    fn rates(&self) -> [String; 3] {
        [
            cell(self.median(|one| Some(one.sample.per_second)), 0),
            cell(self.median(|one| Some(one.sample.p50_us)), 0),
            cell(self.median(|one| Some(one.sample.p99_us)), 0),
        ]
    }

    fn front_mib(&self) -> String {
        mib(self.median(|one| Some(one.front_kib as f64)))
    }

    fn server_mib(&self) -> String {
        mib(self.median(|one| Some(one.servers_kib as f64)))
    }
}

/// Nothing where there is no process.
fn mib(kib: Option<f64>) -> String {
    cell(kib.filter(|kib| *kib > 0.0).map(|kib| kib / 1024.0), 1)
}

#[cfg(test)]
mod tests {
    use super::super::found::tests::{alone, loaded};
    use super::*;

    #[test]
    fn tables_name_everybody_once_and_say_what_was_wrong() {
        let mut found = Found::default();
        let ping = Case::new(Server::None, Client::Sessionless);
        let pipes = Case::new(STDIO.server, Client::Pipes);
        found.load("peer", STDIO, loaded(1, 900.0, Some(9.0)));
        for repetition in 1..=2 {
            found.load(NGINX, ping, loaded(repetition, 9.0, Some(9.0)));
            found.load(NOTHING, pipes, loaded(repetition, 0.0, None));
            found.load(GATEWAY, STDIO, loaded(repetition, 27.0, Some(9.0)));
            found.call_alone(GATEWAY, STDIO, alone(10.0, 40.0));
        }
        found.rows[0].samples[0].wrong = 3;
        found.rows[0].samples[0].sample.closed = 5;
        found.finding("peer: odd".to_owned());
        found.finding("peer: odd".to_owned());
        let section = found.section().unwrap();
        let names = |at: usize| -> Vec<&str> {
            let rows: &Vec<Vec<String>> = &section.tables[at].rows;
            rows.iter().map(|row| row[0].as_str()).collect()
        };
        assert_eq!(names(0), [NGINX, GATEWAY]);
        assert_eq!(names(1), [NOTHING, GATEWAY, "peer"]);
        assert_eq!(section.tables[1].rows[2].last().unwrap(), "3");
        assert_eq!(section.tables[0].rows[1][9..11], ["25", "3.00"]);
        assert_eq!(section.tables[1].rows[0][4], "-", "nothing costs nothing");
        assert_eq!(section.tables[2].rows[0][6], "30");
        let notes = section.notes.join("\n");
        assert!(notes.contains("5 connections closed"), "{notes}");
        assert_eq!(notes.matches("peer: odd").count(), 1);
    }
}
