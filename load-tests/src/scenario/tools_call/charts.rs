//! What was found, as pictures.

use super::case::{Case, Client, Server, Text};
use super::found::{Alone, Found, NOTHING, Row};
use super::front::{GATEWAY, NGINX};
use crate::chart::{Chart, ChartKind};
use crate::report::median_curve;
use crate::servers::echo::Era;

const STDIO: Case = Case::new(Server::Stdio(Era::Legacy), Client::Session);
const APP: Case = Case::new(Server::App, Client::Sessionless);

pub(super) fn all(found: &Found) -> Vec<Chart> {
    vec![cpu(found), latency(found), lengths(found)]
}

/// CPU time of a call at the stdio server, everybody.
fn cpu(found: &Found) -> Chart {
    let mut rows: Vec<_> = found
        .rows
        .iter()
        .filter(|row| row.case == STDIO || row.case == APP)
        .collect();
    rows.sort_by_key(|row| found.place(&row.front));
    let label = |front: &str, case: Case| match case {
        APP => format!("{front}, HTTP application"),
        _ => front.to_owned(),
    };
    let groups = rows.into_iter().map(|row| {
        let values = vec![row.cpu_us(), row.server_cpu_us()];
        (label(&row.front, row.case), values)
    });
    Chart {
        file: "tools_call".to_owned(),
        title: "CPU time of a small tools/call to a stdio server, 64 clients".to_owned(),
        kind: ChartKind::Bars {
            unit: "us".to_owned(),
            log: true,
            series: vec!["in front".to_owned(), "server".to_owned()],
            groups: groups.collect(),
        },
    }
}

/// Latency of one client at the stdio server.
fn latency(found: &Found) -> Chart {
    let mut rows: Vec<_> = found
        .alone
        .iter()
        .filter(|row| row.case.server == STDIO.server || row.case.server == Server::App)
        .collect();
    rows.sort_by_key(|row| found.place(&row.front));
    let curve = |row: &Row<Alone>| median_curve(row.samples.iter().map(|one| &one.through.curve));
    let direct = found.row_alone(GATEWAY, STDIO.server).map(|row| {
        let curves = row.samples.iter().map(|one| &one.direct.curve);
        (NOTHING.to_owned(), median_curve(curves))
    });
    let through = rows.into_iter().map(|row| (row.front.clone(), curve(row)));
    Chart {
        file: "tools_call_latency".to_owned(),
        title: "Latency of a small tools/call to a stdio server, one client".to_owned(),
        kind: ChartKind::Percentiles {
            unit: "us".to_owned(),
            series: direct.into_iter().chain(through).collect(),
        },
    }
}

/// CPU time of a call by the length of its text.
fn lengths(found: &Found) -> Chart {
    let series = [
        (NGINX, APP, "nginx, HTTP application"),
        (GATEWAY, STDIO, "tooldock, stdio server"),
        (
            GATEWAY,
            Case::new(Server::Async, Client::Session),
            "tooldock, Python worker",
        ),
    ];
    let groups = [Text::Words, Text::Kb16, Text::Mb1].map(|text| {
        let cpu = |(front, case, _): (&str, Case, _)| found.row(front, case.with(text))?.cpu_us();
        (text.to_string(), series.map(cpu).to_vec())
    });
    Chart {
        file: "tools_call_lengths".to_owned(),
        title: "CPU time of a tools/call by its length there and back, without the server's"
            .to_owned(),
        kind: ChartKind::Bars {
            unit: "us".to_owned(),
            log: true,
            series: series.map(|(_, _, name)| name.to_owned()).to_vec(),
            groups: groups.to_vec(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::found::tests::{alone, loaded};
    use super::*;

    #[test]
    fn charts_have_everybody_and_gaps_where_nothing_was_measured() {
        let mut found = Found::default();
        found.load("peer", STDIO, loaded(1, 900.0, None));
        found.load(GATEWAY, STDIO, loaded(1, 30.0, None));
        found.load(NGINX, APP.with(Text::Mb1), loaded(1, 500.0, None));
        found.call_alone("peer", STDIO, alone(10.0, 900.0));
        found.call_alone(GATEWAY, STDIO, alone(10.0, 40.0));
        let [cpu, latency, lengths] = all(&found).try_into().unwrap();
        let ChartKind::Bars { groups, .. } = cpu.kind else {
            panic!("bars")
        };
        let expected = [(GATEWAY, 30.0), ("peer", 900.0)];
        let expected = expected.map(|(name, cpu)| (name.to_owned(), vec![Some(cpu), Some(2.0)]));
        assert_eq!(groups, expected);
        let ChartKind::Percentiles { series, .. } = latency.kind else {
            panic!("percentiles")
        };
        let names: Vec<_> = series.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [NOTHING, GATEWAY, "peer"]);
        assert_eq!(series[0].1, [(50.0, 10.0)]);
        let ChartKind::Bars { groups, .. } = lengths.kind else {
            panic!("bars")
        };
        assert_eq!(groups[0].1, [None, Some(30.0), None]);
        assert_eq!(groups[2].1, [Some(500.0), None, None]);
    }
}
