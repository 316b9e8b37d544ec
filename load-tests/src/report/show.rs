//! How the measurements of a scenario are shown: its tables and charts, as `scenarios.yaml` describes them.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::series::{Row, Series, median};
use super::table::{Table, cell};
use super::{Section, budget};
use crate::chart::{Across, Chart, Points};

/// Labels by position.
pub(crate) type Labels = BTreeMap<usize, String>;

/// Counts and rates of a scenario by name.
pub(crate) type Sizes = BTreeMap<String, f64>;

/// A number of a row, or its ratio to that of other rows.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Figure {
    /// Name of the number; several are separated by ` + `.
    #[serde(default)]
    of: String,
    /// The other rows: each has the labels of the row itself, with these replaced. Empty for the number itself.
    #[serde(default)]
    to: Vec<Labels>,
    /// True for the ratio of medians; otherwise the ratio is taken within each repetition.
    #[serde(default)]
    medians: bool,
    /// Labels of rows without a value.
    #[serde(default)]
    not: Vec<String>,
}

/// The tables and charts of a scenario, and the notes below them.
#[derive(Debug, Deserialize)]
pub(crate) struct Shown {
    #[serde(default)]
    tables: Vec<TablePlan>,
    #[serde(default)]
    charts: Vec<ChartPlan>,
    #[serde(default)]
    notes: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TablePlan {
    caption: Option<String>,
    series: String,
    #[serde(default)]
    rows: Vec<Labels>,
    #[serde(default)]
    labels: Vec<String>,
    columns: Vec<Column>,
}

#[derive(Debug, Deserialize)]
struct Column {
    head: String,
    #[serde(default)]
    show: Show,
    #[serde(default)]
    digits: usize,
    /// Text of a cell without a value.
    #[serde(default = "dash")]
    none: String,
    #[serde(flatten)]
    figure: Figure,
}

fn dash() -> String {
    "-".to_owned()
}

/// The value of a cell, from all measurements of a row.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Show {
    /// The median, or a ratio.
    #[default]
    Middle,
    Least,
    Most,
    Sum,
    /// The smallest and the largest value.
    Range,
    /// The number of measurements.
    Times,
    YesNo,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChartPlan {
    file: String,
    title: String,
    unit: String,
    kind: Kind,
    #[serde(default)]
    log: bool,
    /// Groups that are shown first, whether measured or not.
    #[serde(default)]
    groups: Vec<String>,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Bars,
    Percentiles,
    Timeline,
}

/// Bars or lines of a chart, for each of some rows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    series: String,
    #[serde(default)]
    rows: Vec<Labels>,
    /// Name in the legend.
    name: String,
    #[serde(default)]
    group: String,
    of: String,
    /// The number across; without it, `of` is a curve.
    at: Option<String>,
    /// True if the values of the curve are across.
    #[serde(default)]
    swapped: bool,
}

impl Figure {
    pub(crate) fn value(&self, row: &Row, series: &Series) -> Option<f64> {
        if self.not.iter().any(|label| row.labels.contains(label)) {
            return None;
        }
        if self.to.is_empty() {
            return row.median(&self.of);
        }
        let others: Vec<&Row> = self
            .to
            .iter()
            .filter_map(|replaced| series.row(&with(&row.labels, replaced)))
            .collect();
        if self.medians {
            let all = median(others.iter().flat_map(|other| other.all(&self.of)))?;
            return Some(row.median(&self.of)? / all);
        }
        row.ratio_to(others.first()?, &self.of)
    }
}

/// The labels with some of them replaced.
fn with(labels: &[String], replaced: &Labels) -> Vec<String> {
    let labels = labels.iter().enumerate();
    labels
        .map(|(at, label)| replaced.get(&at).unwrap_or(label).clone())
        .collect()
}

/// The rows of a series that have the labels of any of `wanted`; all rows if nothing is wanted.
fn selected<'s>(series: &'s Series, wanted: &'s [Labels]) -> impl Iterator<Item = &'s Row> {
    let has = |row: &Row, labels: &Labels| {
        labels
            .iter()
            .all(|(at, label)| row.labels.get(*at) == Some(label))
    };
    let rows = series.rows.iter();
    rows.filter(move |row| wanted.is_empty() || wanted.iter().any(|labels| has(row, labels)))
}

/// Replaces `{0}` by the first label, and `{NAME}` by a size.
fn filled(template: &str, labels: &[String], sizes: &Sizes) -> String {
    let labels = labels.iter().enumerate();
    let labels = labels.map(|(at, label)| (at.to_string(), label.clone()));
    let sizes = sizes
        .iter()
        .map(|(name, size)| (name.clone(), size.to_string()));
    labels
        .chain(sizes)
        .fold(template.to_owned(), |text, (name, value)| {
            text.replace(&format!("{{{name}}}"), &value)
        })
}

impl Shown {
    /// Adds tables, charts, verdicts and notes to the measurements of a scenario.
    pub(crate) fn tell(&self, name: &str, sizes: &Sizes, section: &mut Section) {
        let table = |plan: &TablePlan| plan.table(section.of(&plan.series), sizes);
        let tables = self.tables.iter().map(table).collect();
        let charts = self.charts.iter().map(|plan| plan.chart(section, sizes));
        let charts = charts.collect();
        let verdicts = budget::verdicts(name, section);
        (section.tables, section.charts, section.verdicts) = (tables, charts, verdicts);
        for note in &self.notes {
            section.note(filled(note, &[], sizes));
        }
    }
}

impl TablePlan {
    fn table(&self, series: &Series, sizes: &Sizes) -> Table {
        let heads = self.columns.iter().map(|column| &column.head);
        let mut table = Table {
            caption: self.caption.as_ref().map(|it| filled(it, &[], sizes)),
            header: self.labels.iter().chain(heads).cloned().collect(),
            rows: Vec::new(),
        };
        for row in selected(series, &self.rows) {
            let labels = row.labels.iter().take(self.labels.len()).cloned();
            let cells = self.columns.iter().map(|column| column.cell(row, series));
            table.row(labels.chain(cells));
        }
        table
    }
}

impl Column {
    fn cell(&self, row: &Row, series: &Series) -> String {
        let Figure { of, .. } = &self.figure;
        let spread = row.spread(of);
        let value = match self.show {
            Show::Middle => self.figure.value(row, series),
            Show::Least => spread.map(|(least, _)| least),
            Show::Most => spread.map(|(_, most)| most),
            Show::Sum => Some(of.split(" + ").map(|name| row.sum(name)).sum()),
            Show::Times => Some(row.times() as f64),
            Show::Range | Show::YesNo => {
                let shown = spread.map(|(least, most)| match self.show {
                    Show::Range => format!("{least:.2} .. {most:.2}"),
                    _ if most > 0.0 => "yes".to_owned(),
                    _ => "no".to_owned(),
                });
                return shown.unwrap_or_else(|| self.none.clone());
            }
        };
        value.map_or_else(|| self.none.clone(), |value| cell(value, self.digits))
    }
}

impl ChartPlan {
    fn chart(&self, section: &Section, sizes: &Sizes) -> Chart {
        let mut groups = self.groups.clone();
        let mut lines: Vec<(String, Points)> = Vec::new();
        for part in &self.parts {
            let before = lines.len();
            for row in selected(section.of(&part.series), &part.rows) {
                let name = filled(&part.name, &row.labels, sizes);
                let mut points = part.points(row);
                if self.kind == Kind::Bars {
                    let group = filled(&part.group, &row.labels, sizes);
                    let at = place(&mut groups, group) as f64;
                    points = row
                        .median(&part.of)
                        .map(|value| (at, value))
                        .into_iter()
                        .collect();
                }
                match lines.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, known)) => known.extend(points),
                    None => lines.push((name, points)),
                }
            }
            // A legend without measurements has its place all the same.
            if lines.len() == before && !part.name.contains('{') {
                let known = lines.iter().any(|(name, _)| *name == part.name);
                lines.extend((!known).then(|| (part.name.clone(), Points::new())));
            }
        }
        let across = match self.kind {
            Kind::Bars => Across::Groups {
                names: groups,
                log: self.log,
            },
            Kind::Percentiles => Across::Percentiles,
            Kind::Timeline => Across::Seconds,
        };
        let title = filled(&self.title, &[], sizes);
        Chart::new(&self.file, &title, &self.unit, across, lines)
    }
}

impl Part {
    fn points(&self, row: &Row) -> Points {
        let points = match &self.at {
            Some(at) => row.points(at, &self.of),
            None => row.curve(&self.of),
        };
        let swapped = |(at, value)| {
            if self.swapped {
                (value, at)
            } else {
                (at, value)
            }
        };
        points.into_iter().map(swapped).collect()
    }
}

/// The place of a name in a list, to which it is added if it is new.
fn place(names: &mut Vec<String>, name: String) -> usize {
    let known = names.iter().position(|known| *known == name);
    known.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::Numbers;
    use crate::report::budget::Outcome;
    use crate::scenario::PLAN;

    /// Shows measurements as a scenario does.
    fn told(name: &str, mut section: Section) -> Section {
        let mut all = PLAN.scenarios.iter();
        let scenario = all.find(|scenario| scenario.name == name).unwrap();
        scenario.shown.tell(name, &scenario.sizes, &mut section);
        section
    }

    fn measured<'s>(section: &'s Section, what: &str) -> &'s str {
        let mut verdicts = section.verdicts.iter();
        &verdicts
            .find(|verdict| verdict.what == what)
            .unwrap()
            .measured
    }

    fn column(section: &Section, table: usize, head: &str) -> Vec<String> {
        let table = &section.tables[table];
        let at = table.header.iter().position(|known| known == head).unwrap();
        table.rows.iter().map(|row| row[at].clone()).collect()
    }

    const STDIO: [&str; 3] = ["stdio", "session", "small"];
    const APP: [&str; 3] = ["HTTP", "no session", "small"];

    fn labels(front: &str, case: [&str; 3]) -> Vec<String> {
        [front].into_iter().chain(case).map(str::to_owned).collect()
    }

    /// Adds the figures of a load whose server takes 2 us a call.
    fn loaded(section: &mut Section, front: &str, case: [&str; 3], cpu_us: f64, n_us: f64) {
        let numbers = Numbers::one("cpu_us", cpu_us)
            .with_ratio("cpu_n", "cpu_us", Some(n_us))
            .with("worker_cpu_us", 2.0)
            .with("all_cpu_us", cpu_us + 2.0);
        section.add("many clients", labels(front, case), numbers);
    }

    fn alone(section: &mut Section, front: &str, direct: f64, through: f64) {
        let curve = |us: f64| json!({"curve": [[50.0, us]]});
        let numbers = json!({"direct": curve(direct), "through": curve(through)});
        let numbers = Numbers::of(&numbers).with("added_p50_us", through - direct);
        section.add("one client", labels(front, STDIO), numbers);
    }

    #[test]
    fn a_column_shows_all_repetitions_in_the_way_it_names() {
        let columns = "[{head: times, show: times}, {head: us, of: us, digits: 1}, {head: least, of: us, show: least}, \
            {head: most, of: us, show: most}, {head: from .. to, of: us, show: range}, {head: all, of: us + none, show: sum}, \
            {head: large, of: us, show: yes_no, none: unknown}, {head: to b, of: us, to: [{0: b}]}, \
            {head: not a, of: us, not: [a]}]";
        let plan = format!(
            "{{caption: \"{{n}} rows\", series: calls, labels: [name], columns: {columns}}}"
        );
        let plan: TablePlan = serde_yaml::from_str(&plan).unwrap();
        let mut section = Section::default();
        for us in [1.0, 8.0, 3.0] {
            section.add("calls", ["a", "hidden"], Numbers::one("us", us));
        }
        section.add("calls", ["b", "hidden"], Numbers::default());
        let table = plan.table(section.of("calls"), &Sizes::from([("n".to_owned(), 2.0)]));
        assert_eq!(table.caption.unwrap(), "2 rows");
        let rows = [
            [
                "a",
                "3",
                "3.0",
                "1",
                "8",
                "1.00 .. 8.00",
                "12",
                "yes",
                "-",
                "-",
            ],
            ["b", "1", "-", "-", "-", "-", "0", "unknown", "-", "-"],
        ];
        assert_eq!(table.rows, rows);
    }

    #[test]
    fn a_run_that_found_nothing_measured_nothing() {
        for scenario in &PLAN.scenarios {
            let section = told(&scenario.name, Section::default());
            let mut verdicts = section.verdicts.iter();
            assert!(verdicts.all(|verdict| verdict.outcome == Outcome::NotMeasured));
            let texts = serde_json::to_string(&section).unwrap();
            let placeholder = texts.match_indices('{').any(|(at, _)| {
                let next = texts[at + 1..].chars().next();
                next.is_some_and(|next| next.is_ascii_alphanumeric())
            });
            assert!(!placeholder, "{}: a size without a value", scenario.name);
        }
    }

    #[test]
    fn tables_of_calls_name_every_front_once_and_count_wrong_answers() {
        let mut section = Section::default();
        let ping = ["none: `ping`", "no session", "small"];
        for repetition in 1..=2 {
            section.repetition = repetition;
            let pipes = labels("nothing", ["stdio", "its pipes", "small"]);
            section.add("many clients", pipes, Numbers::one("worker_cpu_us", 1.0));
            loaded(&mut section, "nginx", ping, 9.0, 9.0);
            loaded(&mut section, "tooldock", STDIO, 27.0, 9.0);
            loaded(&mut section, "peer", STDIO, 900.0, 9.0);
            alone(&mut section, "tooldock", 10.0, 40.0);
        }
        section.add(
            "many clients",
            labels("peer", STDIO),
            Numbers::one("wrong", 3.0),
        );
        let section = told("tools_call", section);
        assert_eq!(column(&section, 0, "in front"), ["nginx", "tooldock"]);
        assert_eq!(
            column(&section, 1, "in front"),
            ["nothing", "tooldock", "peer"]
        );
        assert_eq!(column(&section, 1, "wrong"), ["0", "0", "3"]);
        assert_eq!(column(&section, 0, "CPU / n")[1], "3.00");
        assert_eq!(column(&section, 0, "from .. to")[1], "3.00 .. 3.00");
        assert_eq!(
            column(&section, 1, "CPU us")[0],
            "-",
            "nothing costs nothing"
        );
        assert_eq!(column(&section, 2, "added p50"), ["30"]);
    }

    #[test]
    fn charts_have_every_front_and_gaps_without_measurements() {
        let mut section = Section::default();
        loaded(&mut section, "tooldock", STDIO, 30.0, 9.0);
        loaded(&mut section, "peer", STDIO, 900.0, 9.0);
        loaded(
            &mut section,
            "nginx",
            ["HTTP", "no session", "1 MB"],
            500.0,
            9.0,
        );
        alone(&mut section, "tooldock", 10.0, 40.0);
        alone(&mut section, "peer", 10.0, 900.0);
        let section = told("tools_call", section);
        let [cpu, latency, lengths] = &section.charts[..] else {
            panic!("three charts");
        };
        assert_eq!(cpu.series[0].1, [(0.0, 30.0), (1.0, 900.0)]);
        let names = latency.series.iter().map(|(name, _)| name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["nothing", "tooldock", "peer"]);
        assert_eq!(latency.series[0].1, [(50.0, 10.0)]);
        let values = lengths.series.iter().map(|(_, points)| points.clone());
        let expected = [vec![(2.0, 500.0)], vec![(0.0, 30.0)], vec![]];
        assert_eq!(values.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn bodies_are_compared_with_nginx_alone_and_small_calls_with_the_application_too() {
        let mut section = Section::default();
        // With a server of 2 each: 27 to 12, and 50 to 25 without.
        loaded(&mut section, "tooldock", STDIO, 25.0, 10.0);
        loaded(&mut section, "nginx", APP, 10.0, 10.0);
        loaded(
            &mut section,
            "tooldock",
            ["stdio", "session", "16 KB"],
            50.0,
            10.0,
        );
        loaded(
            &mut section,
            "nginx",
            ["HTTP", "no session", "16 KB"],
            25.0,
            10.0,
        );
        alone(&mut section, "tooldock", 10.0, 40.0);
        let section = told("tools_call", section);
        for (what, expected) in [
            ("`tools/call`, stdio server: gateway", "2.50 n"),
            (
                "`tools/call`, stdio server: all, to nginx and HTTP application",
                "2.25 x",
            ),
            ("16 KB bodies, to nginx passing them", "2.00 x"),
            ("1 MB bodies, to nginx passing them", "-"),
            ("added latency, stdio server, p50", "30 us"),
            ("`tools/call`, stdio server: rate, to agentgateway's", "-"),
        ] {
            assert_eq!(measured(&section, what), expected, "{what}");
        }
    }

    /// The judged number of a budget whose row and the row that it is compared with have these numbers in each repetition.
    fn compared(name: &str, series: &str, number: &str, rows: [(&[&str], &[f64]); 2]) -> Section {
        let mut section = Section::default();
        for (labels, values) in rows {
            for (repetition, value) in values.iter().enumerate() {
                section.repetition = repetition;
                section.add(series, labels.iter().copied(), Numbers::one(number, *value));
            }
        }
        told(name, section)
    }

    #[test]
    fn ratios_are_taken_within_each_repetition() {
        let front = |name| [name, "stdio", "session", "small"];
        let (ours, peer) = (front("tooldock"), front("agentgateway"));
        let rows: [(&[&str], &[f64]); 2] = [
            (&ours, &[600.0, 300.0, 400.0]),
            (&peer, &[200.0, 60.0, 100.0]),
        ];
        let section = compared("tools_call", "many clients", "per_second", rows);
        let what = "`tools/call`, stdio server: rate, to agentgateway's";
        assert_eq!(measured(&section, what), "4.00 x");

        let rows: [(&[&str], &[f64]); 2] = [
            (&["nginx", "small"], &[10.0, 20.0, 30.0]),
            (&["tooldock, passed on", "small"], &[15.0, 30.0, 45.0]),
        ];
        let section = compared("remote", "calls", "cpu_us", rows);
        assert_eq!(section.verdicts[0].measured, "1.50 x");
        assert_eq!(section.verdicts[0].outcome, Outcome::GoalReached);
        assert_eq!(column(&section, 0, "CPU / nginx"), ["1.00", "1.50"]);

        let rows: [(&[&str], &[f64]); 2] = [
            (&["401 wrong token"], &[12.0, 28.0, 13.0, 90.0]),
            (&["401 of a bare filter"], &[10.0, 20.0, 10.0]),
        ];
        let section = compared("refuse", "refusals", "cpu_us", rows);
        assert_eq!(section.verdicts[0].measured, "1.30 x");
        assert_eq!(section.verdicts[0].outcome, Outcome::Hit);
    }

    #[test]
    fn stores_are_compared_with_memory_and_forwarded_calls_with_direct_ones() {
        let mut section = Section::default();
        for (store, cpu_us) in [("memory", 20.0), ("disk", 21.0), ("Redis", 30.0)] {
            section.add(
                "calls of live sessions",
                [store],
                Numbers::one("cpu_us", cpu_us),
            );
        }
        let first = "first call of each session after the restart";
        section.add(
            "calls after a restart",
            [first],
            Numbers::one("added_p99_ms", 2.0),
        );
        let section = told("stores", section);
        let shown = section
            .verdicts
            .iter()
            .map(|verdict| verdict.measured.as_str());
        assert_eq!(shown.collect::<Vec<_>>(), ["1.05 x", "1.50 x", "2 ms"]);

        let mut section = Section::default();
        for (by, way, cpu_us) in [
            ("one data directory", "direct", 10.0),
            ("Redis", "direct", 20.0),
            ("Redis", "by way of the other", 50.0),
        ] {
            section.add("calls", [by, way], Numbers::one("many.cpu_us", cpu_us));
        }
        let section = told("replicas", section);
        assert_eq!(
            column(&section, 0, "CPU / direct"),
            ["1.00", "1.00", "2.50"]
        );
    }

    #[test]
    fn the_largest_number_of_streams_is_judged() {
        let mut section = Section::default();
        for (streams, ms) in [("5000", 10.0), ("19000", 130.0)] {
            let numbers = Numbers::one("session_kib", 1.0).with("both_kib", 3.5);
            section.add("streams", [streams], numbers.with("event_ms", ms));
        }
        for (name, p99) in [
            ("none, before", 10.0),
            ("19000", 30.0),
            ("none, after", 20.0),
        ] {
            section.add("calls", [name], Numbers::one("p99_us", p99));
        }
        let section = told("idle_sse", section);
        let shown = section
            .verdicts
            .iter()
            .map(|verdict| verdict.measured.as_str());
        assert_eq!(shown.collect::<Vec<_>>(), ["3.50 KiB", "130 ms", "2.00 x"]);
        assert_eq!(
            column(&section, 1, "p99 to that without"),
            ["-", "2.00", "-"]
        );
    }

    #[test]
    fn calls_beside_something_are_compared_with_those_without() {
        let mut section = Section::default();
        let rows = [
            "alone",
            "beside that load on nginx",
            "beside 401 at full speed",
        ];
        for (name, p99) in rows.into_iter().zip([10.0, 20.0, 60.0]) {
            let numbers = Numbers::one("sample.p99_us", p99).with("sample.unanswered", 1.0);
            section.add("good calls", [name], numbers);
        }
        let section = told("refuse", section);
        assert_eq!(column(&section, 1, "p99 / alone"), ["1.00", "2.00", "6.00"]);
        assert_eq!(
            column(&section, 1, "p99 / beside nginx"),
            ["-", "-", "3.00"]
        );
        assert_eq!(column(&section, 1, "wrong"), ["1", "1", "1"]);

        let rows: [(&[&str], &[f64]); 2] = [
            (&["others", "600", "without"], &[10.0]),
            (&["others", "600", "with"], &[25.0]),
        ];
        let section = compared("reload", "calls", "p99_us", rows);
        assert_eq!(column(&section, 1, "p99 / without"), ["-", "2.50"]);

        let rows: [(&[&str], &[f64]); 2] = [
            (&["nothing"], &[1000.0]),
            (&["clone, analysis, build"], &[1150.0]),
        ];
        let section = compared("manage", "calls", "p99_us", rows);
        assert_eq!(section.verdicts[0].measured, "1.15 x");
    }

    #[test]
    fn the_budget_of_a_reload_is_held_against_the_one_under_load() {
        let quiet = "one of 200 changed, nobody calls";
        let busy = "one of 200 changed, under load";
        let rows: [(&[&str], &[f64]); 2] =
            [(&[quiet], &[100.0]), (&[busy], &[1500.0, 500.0, 700.0])];
        let section = compared("reload", "from POST /reload", "ms", rows);
        assert_eq!(section.verdicts[1].measured, "700 ms");
        let rows = &section.tables[0].rows;
        assert_eq!(rows.len(), 2, "a kind without measurements has no row");
        assert_eq!(rows[1], [busy, "3", "700", "500", "1500"]);
    }
}
