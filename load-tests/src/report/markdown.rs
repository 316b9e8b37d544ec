//! The report as text. Its tables are Markdown, so that they can be copied into documents.

use std::fmt::Write;
use std::time::Duration;

use super::budget::{self, Outcome, Verdict};
use super::{Answered, Report, Table, median, minutes, spread};
use crate::machine::Machine;
use crate::quiet::{NOISY, QUIET_N_US};

/// The complete report. `charts` is true if it refers to the chart files in the same folder.
pub(super) fn whole(report: &Report, charts: bool) -> String {
    let mut text = String::from("# Load tests\n\n");
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(text, "{}", machine(report));
    let noisy = report
        .sections
        .iter()
        .filter(|answered| !answered.was_quiet());
    let noisy: Vec<_> = noisy.map(|answered| &*answered.name).collect();
    if !noisy.is_empty() {
        let _ = writeln!(
            text,
            "\nTHE MACHINE WAS NOT QUIET: n was above {QUIET_N_US:.0} us in {}. Ratios and times of these scenarios prove nothing \
             and are not judged.",
            noisy.join(", ")
        );
    }
    for answered in &report.sections {
        let _ = writeln!(text, "\n## {}\n\n{}\n", answered.name, answered.question);
        text.push_str(&section(report, answered, charts.then_some("")));
    }
    let found = report
        .sections
        .iter()
        .flat_map(|answered| &answered.section.verdicts);
    // Budgets that a run of some scenarios did not measure are omitted.
    let all = budget::all(found).into_iter();
    let told = all.filter(|verdict| report.ran_all() || verdict.outcome != Outcome::NotMeasured);
    let told: Vec<_> = told.collect();
    if !told.is_empty() {
        text.push_str("\n## Against the budgets\n\n");
        text.push_str(&table(&verdicts(&told)));
    }
    for missing in &report.missing {
        let _ = writeln!(text, "\nMISSING: {missing}");
    }
    if let Some(why) = &report.cut_short {
        let _ = writeln!(text, "\nCUT SHORT: {why}");
    }
    for answered in &report.sections {
        for missing in &answered.section.missing {
            let _ = writeln!(text, "\nMISSING in {}: {missing}", answered.name);
        }
        for failure in &answered.section.failures {
            let _ = writeln!(text, "\nFAILED: {}: {failure}", answered.name);
        }
    }
    text
}

/// The machine, and the settings of the measurements.
pub(super) fn machine(report: &Report) -> String {
    let quick = if report.quick {
        " QUICK: this says that everything works, not what it costs."
    } else {
        ""
    };
    let Report {
        command,
        gateway,
        when,
        seconds,
        repetitions,
        connections,
        ..
    } = report;
    let Machine {
        cores,
        processor,
        kernel,
        load_before,
    } = &report.machine;
    format!(
        "{when}: `{command}` with {gateway} on {cores} cores of {processor}, Linux {kernel}, load {load_before} before the run; \
         medians of {repetitions} x {seconds} s, {connections} connections unless another number stands there.{quick}"
    )
}

/// Tables, charts, verdicts and notes of one scenario. `charts` is the folder of its charts; `None` without charts.
pub(super) fn section(report: &Report, answered: &Answered, charts: Option<&str>) -> String {
    let section = &answered.section;
    let mut blocks = Vec::new();
    for shown in &section.tables {
        let caption = shown.caption.iter().map(|caption| format!("{caption}\n\n"));
        blocks.push(caption.collect::<String>() + &table(shown));
    }
    if let Some(folder) = charts {
        for chart in &section.charts {
            blocks.push(format!("![{}]({folder}{}.svg)\n", chart.title, chart.file));
        }
    }
    if !section.verdicts.is_empty() {
        blocks.push(table(&verdicts(&section.verdicts)));
    }
    let mut notes: Vec<String> = section.notes.clone();
    for what in &section.missing {
        notes.push(format!("MISSING: {what}"));
    }
    for what in &section.failures {
        notes.push(format!("FAILED: {what}"));
    }
    notes.extend(n(answered));
    notes.extend(noise(report, answered));
    let took = Duration::from_secs_f64(answered.seconds.max(0.0));
    notes.push(format!("took {} minutes", minutes(took)));
    blocks.push(notes.iter().map(|note| format!("- {note}\n")).collect());
    blocks.join("\n")
}

/// The CPU time of nginx that is the unit of ratios, and whether the ratios are conclusive.
fn n(answered: &Answered) -> Option<String> {
    let middle = answered.n()?;
    let (least, most) = spread(answered.n_us.iter().copied())?;
    let noisy = if answered.was_quiet() {
        ""
    } else {
        "; NOT JUDGED: on a quiet machine n is 7 to 10 us, and above 11 ratios and times prove nothing (memory does)"
    };
    Some(format!(
        "n, the CPU time of a request to nginx: {middle:.1} us in the middle, {least:.1} .. {most:.1}{noisy}"
    ))
}

/// The cores that other work kept busy meanwhile.
fn noise(report: &Report, answered: &Answered) -> Option<String> {
    let middle = median(answered.other_cores.iter().copied())?;
    let (_, worst) = spread(answered.other_cores.iter().copied())?;
    let noisy = if worst > NOISY {
        "; NOISY: repeat on a quiet machine before believing a difference"
    } else {
        ""
    };
    Some(format!(
        "other work on the machine meanwhile: {middle:.2} of {} cores in the middle, {worst:.2} at worst{noisy}",
        report.machine.cores
    ))
}

fn verdicts(verdicts: &[Verdict]) -> Table {
    let mut table = Table::new(["budget", "limit", "goal", "measured", "outcome"]);
    for verdict in verdicts {
        let [what, limit, goal] = [&verdict.what, &verdict.limit, &verdict.goal];
        let found = [&verdict.measured, verdict.outcome.shown()];
        table.row(
            [what.as_str(), limit, goal]
                .into_iter()
                .chain(found)
                .map(str::to_owned),
        );
    }
    table
}

/// Formats a table: the first column is aligned left, numbers are aligned right.
pub(super) fn table(table: &Table) -> String {
    let escaped = |cells: &[String]| -> Vec<String> {
        cells
            .iter()
            .map(|cell| cell.replace('|', r"\|").replace('\n', " "))
            .collect()
    };
    let header = escaped(&table.header);
    let rows: Vec<_> = table.rows.iter().map(|row| escaped(row)).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widths = cells.chain(header.get(column));
        // A rule in Markdown has at least three characters.
        widths.map(|cell| cell.chars().count()).fold(3, usize::max)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "| {cell:<width$} "),
                _ => write!(text, "| {cell:>width$} "),
            };
        }
        text.push_str("|\n");
    };
    line(&header);
    let rule = |(column, width): (usize, &usize)| match column {
        0 => "-".repeat(*width),
        _ => "-".repeat(width - 1) + ":",
    };
    line(&widths.iter().enumerate().map(rule).collect::<Vec<_>>());
    rows.iter().for_each(|row| line(row));
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::{answered, report};
    use super::*;
    use crate::report::Section;

    #[test]
    fn every_row_of_a_table_is_as_wide_as_its_header() {
        let mut shown = Table::new(["who", "us"]);
        shown.row(["a|b".to_owned(), "1".to_owned()]);
        shown.row(["a much longer name".to_owned(), "123456.0".to_owned()]);
        let text = table(&shown);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(
            lines.iter().all(|line| line.len() == lines[0].len()),
            "{text}"
        );
        assert!(lines[1].starts_with("| --") && lines[1].ends_with("-: |"));
        assert!(lines[2].starts_with(r"| a\|b "), "{text}");
    }

    #[test]
    fn what_is_missing_failed_or_noisy_is_said() {
        let section = Section {
            missing: vec!["a peer is not installed".to_owned()],
            failures: vec!["status 503".to_owned()],
            ..Section::default()
        };
        let mut report = report(vec![answered("refuse", section)]);
        report.missing.push("nginx is not installed".to_owned());
        report.sections[0].other_cores = vec![0.1, 0.9];
        let text = whole(&report, false);
        for expected in [
            "MISSING: nginx is not installed",
            "MISSING in refuse: a peer is not installed",
            "FAILED: refuse: status 503",
            "NOISY",
            "0.90 at worst",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn a_run_on_a_noisy_machine_says_that_it_proves_nothing() {
        let with_n = |n_us: f64| {
            let section = Section {
                verdicts: vec![budget::tests::budget("`ping`").verdict(Some(2.0))],
                ..Section::default()
            };
            let n_us = vec![n_us];
            let measured = Answered {
                n_us,
                ..answered("refuse", section)
            };
            whole(&report(vec![measured.judged()]), false)
        };
        let noisy = with_n(16.8);
        for expected in [
            "THE MACHINE WAS NOT QUIET: n was above 11 us in refuse.",
            "16.8 us in the middle, 16.8 .. 16.8; NOT JUDGED",
            "not judged |",
        ] {
            assert!(noisy.contains(expected), "{expected}: {noisy}");
        }
        let quiet = with_n(8.0);
        assert!(quiet.contains("8.0 us in the middle, 8.0 .. 8.0\n") && quiet.contains("hit |"));
        assert!(!quiet.contains("QUIET"), "{quiet}");
    }

    #[test]
    fn budgets_not_measured_are_told_by_a_run_of_everything_only() {
        let verdicts = vec![budget::tests::budget("`ping`").verdict(Some(2.0))];
        let section = || Section {
            verdicts: verdicts.clone(),
            ..Section::default()
        };
        let some = whole(&report(vec![answered("refuse", section())]), false);
        assert!(
            some.contains("2.00 n") && !some.contains("not measured"),
            "{some}"
        );
        let all = crate::scenario::PLAN.scenarios.iter();
        let all = all
            .map(|scenario| answered(&scenario.name, section()))
            .collect();
        assert!(whole(&report(all), false).contains("not measured"));
    }

    #[test]
    fn charts_are_referred_to_where_they_lie() {
        let report = report(vec![answered("refuse", Section::default())]);
        let mut one = answered("refuse", Section::default());
        one.section.charts = vec![super::super::tests::chart("refuse")];
        assert!(section(&report, &one, Some("charts/")).contains("(charts/refuse.svg)"));
        assert!(!section(&report, &one, None).contains(".svg"));
    }
}
