//! The results of tool calls as tables, charts and verdicts.

use super::case::{Case, Client, Server, Text};
use super::front::{GATEWAY, NGINX, STEALING};
use crate::chart::Chart;
use crate::processes::Memory;
use crate::report::budget::{self, Verdict};
use crate::report::table::{middle, range, sum};
use crate::report::{Numbers, Row, Section, Series, Table};
use crate::servers::echo::Era;

/// Name of the front of a server without one.
pub(super) const NOTHING: &str = "nothing";
/// Name for agentgateway in `--peer`, by which its row is found. No package index offers agentgateway.
const AGENTGATEWAY: &str = "agentgateway";

const STDIO: Case = Case::new(Server::Stdio(Era::Legacy), Client::Session);
const ASYNC: Case = Case::new(Server::Async, Client::Session);
const APP: Case = Case::new(Server::App, Client::Sessionless);
const PIPES: Case = Case::new(STDIO.server, Client::Pipes);

/// Series of loads from many clients, with a row for each front and case.
pub(super) const LOADS: &str = "many clients";
/// Series of loads from one client.
pub(super) const ALONE: &str = "one client";
/// Series of a gateway without tools.
const IDLE: &str = "idle";

/// The labels of one case of one front.
pub(super) fn labels(front: &str, case: Case) -> [String; 4] {
    let server = match (case.server, case.client) {
        (Server::None, _) if front == NGINX => "none: `return 200`".to_owned(),
        (Server::None, Client::Modern) => "none: `server/discover`".to_owned(),
        (Server::None, _) => "none: `ping`".to_owned(),
        (server, _) => server.to_string(),
    };
    [
        front.to_owned(),
        server,
        case.client.to_string(),
        case.text.to_string(),
    ]
}

fn is(row: &Row, case: Case) -> bool {
    row.labels == labels(row.name(), case)
}

pub(super) fn idle(section: &mut Section, memory: Memory) {
    section.add(IDLE, [GATEWAY], Numbers::of(&memory));
    let mib = |kib: u64| kib as f64 / 1024.0;
    section.note(format!(
        "an idle gateway, one namespace with nothing in it: {:.1} MiB resident, {:.1} of them its own",
        mib(memory.resident_kib),
        mib(memory.anonymous_kib)
    ));
}

pub(super) fn tell(section: &mut Section) {
    let (loads, alone) = (section.of(LOADS), section.of(ALONE));
    // Connections that were closed after a response are reported, since each costs a new one.
    let closed = loads.rows.iter().filter(|row| row.sum("closed") > 0.0);
    let closed = closed.map(|row| {
        let (row, closed) = (row.labels.join(", "), row.sum("closed"));
        format!("{row}: {closed} connections closed after an answer")
    });
    let closed: Vec<String> = closed.collect();
    (section.tables, section.charts, section.verdicts) = (
        tables(loads, alone),
        charts(loads, alone),
        verdicts(section),
    );
    section.notes.extend(closed);
}

fn tables(loads: &Series, alone: &Series) -> Vec<Table> {
    let ours = |row: &&Row| [NGINX, GATEWAY, STEALING].contains(&row.name());
    let calls = Table::of(
        loads.rows.iter().filter(ours),
        &["in front", "server", "client", "text"],
        [
            middle("clients", "clients", 0),
            middle("calls/s", "per_second", 0),
            middle("p50 us", "p50_us", 0),
            middle("p99 us", "p99_us", 0),
            middle("CPU us", "cpu_us", 1),
            middle("in kernel %", "kernel_percent", 0),
            middle("CPU / n", "cpu_n", 2),
            range("from .. to", "cpu_n"),
            middle("server CPU us", "worker_cpu_us", 1),
            middle("client CPU us", "client_cpu_us", 1),
            middle("MiB", "mib", 1),
            middle("server MiB", "server_mib", 1),
        ],
    );
    let same_server = |row: &&Row| [PIPES, APP, STDIO].iter().any(|case| is(row, *case));
    let fronts = Table::of(
        loads.rows.iter().filter(same_server),
        &["in front"],
        [
            middle("calls/s", "per_second", 0),
            middle("p50 us", "p50_us", 0),
            middle("p99 us", "p99_us", 0),
            middle("CPU us", "cpu_us", 1),
            middle("CPU / n", "cpu_n", 2),
            middle("server CPU us", "worker_cpu_us", 1),
            middle("MiB", "mib", 1),
            middle("servers", "servers", 0),
            middle("server MiB", "server_mib", 1),
            sum("wrong", &["wrong"]),
        ],
    );
    let one_client = Table::of(
        &alone.rows,
        &["in front", "server"],
        [
            middle("p50 us", "through.p50_us", 0),
            middle("p99 us", "through.p99_us", 0),
            middle("without: p50", "direct.p50_us", 0),
            middle("p99", "direct.p99_us", 0),
            middle("added p50", "added_p50_us", 0),
            middle("added p99", "added_p99_us", 0),
            middle("CPU us", "cpu_us", 1),
            middle("server CPU us", "server_cpu_us", 1),
        ],
    );
    vec![
            calls.captioned("Many clients, one request in flight for each"),
            fronts.captioned("Small `tools/call` to the same stdio server, 64 clients with a session each; nginx before the same server over HTTP"),
            one_client.captioned("One client, one connection after the other: means over the connections"),
        ]
}

fn charts(loads: &Series, alone: &Series) -> Vec<Chart> {
    let cpu = loads.rows.iter().filter_map(|row| match row {
        app if is(app, APP) => Some((format!("{}, HTTP application", app.name()), app)),
        stdio => is(stdio, STDIO).then(|| (stdio.name().to_owned(), stdio)),
    });
    let through = alone
        .rows
        .iter()
        .filter(|row| is(row, STDIO) || is(row, APP));
    let through = through.map(|row| (row.name().to_owned(), row.curve("through.curve")));
    let direct = alone.row(&labels(GATEWAY, STDIO));
    let direct = direct.map(|row| (NOTHING.to_owned(), row.curve("direct.curve")));

    let compared = [
        ("nginx, HTTP application", NGINX, APP),
        ("tooldock, stdio server", GATEWAY, STDIO),
        ("tooldock, Python worker", GATEWAY, ASYNC),
    ];
    let mut lengths = Section::default();
    for text in [Text::Words, Text::Kb16, Text::Mb1] {
        for (name, front, case) in compared {
            let cpu_us = loads.median(&labels(front, case.with(text)), "cpu_us");
            let numbers = Numbers::default().with(name, cpu_us);
            lengths.add("", [text.to_string()], numbers);
        }
    }
    let title = "CPU time of a small tools/call to a stdio server, 64 clients";
    let parts = [("in front", "cpu_us"), ("server", "worker_cpu_us")];
    let latency = "Latency of a small tools/call to a stdio server, one client";
    let by_length = "CPU time of a tools/call by its length there and back, without the server's";
    let names = compared.map(|(name, ..)| (name, name));
    vec![
        Chart::new("tools_call", title, "us")
            .bars(cpu, &parts)
            .logarithmic(),
        Chart::new("tools_call_latency", latency, "us")
            .percentiles(direct.into_iter().chain(through)),
        Chart::new("tools_call_lengths", by_length, "us")
            .bars(lengths.of("").named(), &names)
            .logarithmic(),
    ]
}

/// Judges the gateway in its default layout.
fn verdicts(section: &Section) -> Vec<Verdict> {
    let loads = section.of(LOADS);
    let ours =
        |server, client, name| loads.median(&labels(GATEWAY, Case::new(server, client)), name);
    let ratio = |server, client| ours(server, client, "cpu_n");
    let worker = |server| ours(server, Client::Session, "worker_cpu_us");
    let alone = |case, name| section.of(ALONE).median(&labels(GATEWAY, case), name);
    // Ratio of the stdio server's calls to another row.
    let to = |front, case: Case, text, name| {
        let ours = loads.row(&labels(GATEWAY, STDIO.with(text)))?;
        ours.ratio_to(loads.row(&labels(front, case.with(text)))?, name)
    };
    let idle = section.of(IDLE).median(&[GATEWAY], "resident_kib");
    vec![
        budget::PING.verdict(ratio(Server::None, Client::Sessionless)),
        budget::PING_IN_SESSION.verdict(ratio(Server::None, Client::Session)),
        budget::CALL_ASYNC.verdict(ratio(Server::Async, Client::Session)),
        budget::CALL_SYNC.verdict(ratio(Server::Sync, Client::Session)),
        budget::CALL_ASYNC_WORKER.verdict(worker(Server::Async)),
        budget::CALL_SYNC_WORKER.verdict(worker(Server::Sync)),
        budget::CALL_STDIO.verdict(ratio(STDIO.server, Client::Session)),
        budget::CALL_STDIO_RATE.verdict(to(AGENTGATEWAY, STDIO, Text::Words, "per_second")),
        budget::CALL_STDIO_TO_NGINX_AND_APP.verdict(to(NGINX, APP, Text::Words, "all_cpu_us")),
        budget::ADDED_P50.verdict(alone(ASYNC, "added_p50_us")),
        budget::ADDED_P99.verdict(alone(ASYNC, "added_p99_us")),
        budget::ADDED_STDIO_P50.verdict(alone(STDIO, "added_p50_us")),
        budget::ADDED_STDIO_P99.verdict(alone(STDIO, "added_p99_us")),
        // Compared with the same bytes through nginx.
        budget::BODY_16_KIB.verdict(to(NGINX, APP, Text::Kb16, "cpu_us")),
        budget::BODY_1_MIB.verdict(to(NGINX, APP, Text::Mb1, "cpu_us")),
        budget::IDLE_MEMORY.verdict(idle.map(|kib| kib * 1024.0 / 1e6)),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::budget::{Budget, Outcome};

    /// Adds the figures of a load whose server takes 2 us a call.
    fn loaded(section: &mut Section, front: &str, case: Case, cpu_us: f64, n_us: f64) {
        let numbers = Numbers::one("cpu_us", cpu_us)
            .with_ratio("cpu_n", "cpu_us", Some(n_us))
            .with("worker_cpu_us", 2.0)
            .with("all_cpu_us", cpu_us + 2.0);
        section.add(LOADS, labels(front, case), numbers);
    }

    fn alone(section: &mut Section, front: &str, direct: f64, through: f64) {
        let curve = |us: f64| json!({"curve": [[50.0, us]]});
        let numbers = json!({"direct": curve(direct), "through": curve(through)});
        let numbers = Numbers::of(&numbers).with("added_p50_us", through - direct);
        section.add(ALONE, labels(front, STDIO), numbers);
    }

    fn measured(section: &Section, budget: &Budget) -> String {
        let mut verdicts = section.verdicts.iter();
        let verdict = verdicts.find(|verdict| verdict.what == budget.what);
        verdict.unwrap().measured.clone()
    }

    #[test]
    fn a_run_that_found_nothing_measured_nothing() {
        let mut section = Section::default();
        tell(&mut section);
        let mut verdicts = section.verdicts.iter();
        assert!(verdicts.all(|verdict| verdict.outcome == Outcome::NotMeasured));
    }

    #[test]
    fn tables_name_everybody_once_and_say_what_was_wrong() {
        let section = &mut Section::default();
        let ping = Case::new(Server::None, Client::Sessionless);
        for repetition in 1..=2 {
            section.repetition = repetition;
            let pipes = Numbers::one("worker_cpu_us", 1.0);
            section.add(LOADS, labels(NOTHING, PIPES), pipes);
            loaded(section, NGINX, ping, 9.0, 9.0);
            loaded(section, GATEWAY, STDIO, 27.0, 9.0);
            loaded(section, "peer", STDIO, 900.0, 9.0);
            alone(section, GATEWAY, 10.0, 40.0);
        }
        let wrong = Numbers::one("wrong", 3.0).with("closed", 5.0);
        section.add(LOADS, labels("peer", STDIO), wrong);
        tell(section);
        let names = |at: usize| -> Vec<&str> {
            let rows: &Vec<Vec<String>> = &section.tables[at].rows;
            rows.iter().map(|row| row[0].as_str()).collect()
        };
        assert_eq!(names(0), [NGINX, GATEWAY]);
        assert_eq!(names(1), [NOTHING, GATEWAY, "peer"]);
        assert_eq!(section.tables[1].rows[2].last().unwrap(), "3");
        assert_eq!(section.tables[0].rows[1][10..12], ["3.00", "3.00 .. 3.00"]);
        assert_eq!(
            section.tables[1].rows[0][4..7],
            ["-", "-", "1.0"],
            "nothing costs nothing"
        );
        assert_eq!(section.tables[2].rows[0][6], "30");
        let note = "peer, stdio, session, small: 5 connections closed after an answer";
        assert_eq!(section.notes, [note]);
    }

    #[test]
    fn charts_have_everybody_and_gaps_where_nothing_was_measured() {
        let section = &mut Section::default();
        loaded(section, GATEWAY, STDIO, 30.0, 9.0);
        loaded(section, "peer", STDIO, 900.0, 9.0);
        loaded(section, NGINX, APP.with(Text::Mb1), 500.0, 9.0);
        alone(section, GATEWAY, 10.0, 40.0);
        alone(section, "peer", 10.0, 900.0);
        tell(section);
        let [cpu, latency, lengths] = &section.charts[..] else {
            panic!("three charts");
        };
        assert_eq!(cpu.series[0].1, [(0.0, 30.0), (1.0, 900.0)]);
        let names: Vec<_> = latency
            .series
            .iter()
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(names, [NOTHING, GATEWAY, "peer"]);
        assert_eq!(latency.series[0].1, [(50.0, 10.0)]);
        let values: Vec<_> = lengths
            .series
            .iter()
            .map(|(_, points)| points.clone())
            .collect();
        assert_eq!(values, [vec![(2.0, 500.0)], vec![(0.0, 30.0)], vec![]]);
    }

    #[test]
    fn bodies_are_compared_with_nginx_alone_and_small_calls_with_the_application_too() {
        let section = &mut Section::default();
        // With a server of 2 each: 27 to 12, and 50 to 25 without.
        loaded(section, GATEWAY, STDIO, 25.0, 10.0);
        loaded(section, NGINX, APP, 10.0, 10.0);
        loaded(section, GATEWAY, STDIO.with(Text::Kb16), 50.0, 10.0);
        loaded(section, NGINX, APP.with(Text::Kb16), 25.0, 10.0);
        alone(section, GATEWAY, 10.0, 40.0);
        tell(section);
        for (budget, expected) in [
            (&budget::CALL_STDIO, "2.50 n"),
            (&budget::CALL_STDIO_TO_NGINX_AND_APP, "2.25 x"),
            (&budget::BODY_16_KIB, "2.00 x"),
            (&budget::BODY_1_MIB, "-"),
            (&budget::ADDED_STDIO_P50, "30 us"),
            (&budget::CALL_STDIO_RATE, "-"),
        ] {
            assert_eq!(measured(section, budget), expected, "{}", budget.what);
        }
    }

    #[test]
    fn the_rate_is_compared_with_a_peer_of_that_name_within_a_repetition() {
        let section = &mut Section::default();
        for (repetition, rates) in [(1, (600.0, 200.0)), (2, (300.0, 60.0)), (3, (400.0, 100.0))] {
            section.repetition = repetition;
            for (front, rate) in [(GATEWAY, rates.0), (AGENTGATEWAY, rates.1)] {
                let numbers = Numbers::one("per_second", rate);
                section.add(LOADS, labels(front, STDIO), numbers);
            }
        }
        tell(section);
        assert_eq!(measured(section, &budget::CALL_STDIO_RATE), "4.00 x");
    }
}
