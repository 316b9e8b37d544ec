//! The report as text. Its tables are Markdown, so that they can be kept as they are.

use std::fmt::Write;

use super::{Report, Row, budgets, median, stdio};
use crate::quiet::NOISY;
use crate::streams::IdleStreams;

/// The whole report.
pub(crate) fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write_report(&mut text, report);
    text
}

fn write_report(text: &mut String, report: &Report) -> std::fmt::Result {
    let machine = &report.machine;
    writeln!(
        text,
        "\n{} cores of {}, Linux {}, load {} before the run; medians of {} x {} s, {} connections\n",
        machine.cores,
        machine.processor,
        machine.kernel,
        machine.load_before,
        report.repetitions,
        report.seconds,
        report.connections
    )?;
    let header = [
        "scenario",
        "req/s",
        "p50 us",
        "p99 us",
        "CPU us",
        "worker CPU us",
        "client CPU us",
        "CPU / nginx",
        "from .. to",
    ];
    let rows: Vec<_> = report.scenarios.iter().map(cells).collect();
    if !rows.is_empty() || report.stdio.is_none() {
        write_table(text, &header, &rows)?;
    }
    if let Some((middle, worst)) = report.other_cores() {
        writeln!(
            text,
            "\nother work on the machine meanwhile: {middle:.2} of {} cores in the middle, {worst:.2} at worst",
            machine.cores
        )?;
        if worst > NOISY {
            writeln!(
                text,
                "NOISY: some samples were taken beside other work; repeat on a quiet machine before believing a difference"
            )?;
        }
    }
    if let Some(start) = &report.worker_start {
        let all: Vec<String> = start
            .reload_ms
            .iter()
            .map(|time| format!("{time:.0}"))
            .collect();
        let middle = median(start.reload_ms.iter().copied()).unwrap_or_default();
        write!(
            text,
            "\nworker start: reload to answer {middle:.0} ms (each: {})",
            all.join(", ")
        )?;
        match start.spawn_to_ready_ms {
            Some(mean) => writeln!(
                text,
                "; spawn to ready {mean:.0} ms in the gateway's own histogram"
            )?,
            None => writeln!(text, "; the gateway has no histogram of starts")?,
        }
    }
    let mib = |kib: u64| kib as f64 / 1024.0;
    if let Some(memory) = &report.memory {
        let (started, after) = (memory.started, memory.after_load);
        writeln!(
            text,
            "\nmemory without a worker: {:.1} MiB resident ({:.1} its own), {:.1} ({:.1}) after a load of pings",
            mib(started.resident_kib),
            mib(started.anonymous_kib),
            mib(after.resident_kib),
            mib(after.anonymous_kib)
        )?;
    }
    let after = report.memory_after_load.iter();
    if let Some(middle) = median(after.map(|memory| mib(memory.resident_kib))) {
        writeln!(
            text,
            "memory with one namespace, right after all loads of a repetition: {middle:.1} MiB resident"
        )?;
        match report.audit_dropped {
            Some(lines) => writeln!(text, "audit lines dropped: {lines:.0}")?,
            None => writeln!(
                text,
                "audit lines dropped: unknown, the gateway has no such metric"
            )?,
        }
    }
    if let Some(streams) = &report.idle_streams {
        writeln!(text)?;
        write_streams(text, streams)?;
    }
    if let Some(found) = &report.stdio {
        if !report.scenarios.is_empty() {
            writeln!(text)?;
        }
        stdio::write(text, found)?;
    }
    let verdicts = budgets::verdicts(report);
    let rows: Vec<_> = verdicts
        .into_iter()
        .filter(|verdict| report.wants_all() || verdict.is_measured())
        .map(|verdict| {
            vec![
                verdict.what.into(),
                verdict.limit,
                verdict.goal,
                verdict.measured,
                verdict.outcome.into(),
            ]
        })
        .collect();
    writeln!(text)?;
    write_table(
        text,
        &["budget", "limit", "goal", "measured", "outcome"],
        &rows,
    )?;
    for missing in &report.missing {
        writeln!(text, "\nMISSING: {missing}")?;
    }
    for failure in &report.failures {
        writeln!(text, "\nFAILED: {}: {}", failure.scenario, failure.reason)?;
    }
    Ok(())
}

fn write_streams(text: &mut String, streams: &IdleStreams) -> std::fmt::Result {
    let header = [
        "idle streams",
        "session KiB",
        "stream KiB",
        "left KiB",
        "event to all ms",
        "CPU ms",
        "events/s",
        "p99 before us",
        "p99 meanwhile us",
    ];
    let middle = |times: &[f64]| median(times.iter().copied()).unwrap_or_default();
    let rate = |streams: usize, times: &[f64]| {
        format!("{:.0}", streams as f64 / middle(times).max(0.001) * 1e3)
    };
    let direct = streams.direct.iter().map(|held| {
        vec![
            held.streams.to_string(),
            format!("{:.2}", held.session_kib),
            format!("{:.2}", held.stream_kib),
            format!("{:.2}", held.left_kib),
            format!("{:.0}", middle(&held.fan_out_ms)),
            format!("{:.0}", held.fan_out_cpu_ms),
            rate(held.streams, &held.fan_out_ms),
            format!("{:.0}", held.p99_before_us),
            format!("{:.0}", held.p99_meanwhile_us),
        ]
    });
    let proxied = streams.behind_nginx.iter().map(|proxied| {
        let mut cells = vec!["-".to_owned(); header.len()];
        cells[0] = format!("{} behind nginx (nginx's KiB)", proxied.streams);
        cells[2] = format!("{:.2}", proxied.nginx_kib);
        cells[4] = format!("{:.0}", middle(&proxied.fan_out_ms));
        cells[6] = rate(proxied.streams, &proxied.fan_out_ms);
        cells
    });
    let rows: Vec<_> = direct.chain(proxied).collect();
    write_table(text, &header, &rows)
}

fn cells(row: &Row) -> Vec<String> {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let closed: u64 = row
        .samples
        .iter()
        .map(|measured| measured.sample.closed)
        .sum();
    let name = if closed == 0 {
        row.name.to_owned()
    } else {
        format!("{} ({closed} connections closed)", row.name)
    };
    let spread = row.ratio_spread();
    vec![
        name,
        number(row.median(|sample| sample.per_second), 0),
        number(row.median(|sample| sample.p50_us), 0),
        number(row.median(|sample| sample.p99_us), 0),
        number(row.median(|sample| sample.cpu_us), 1),
        number(row.worker_cpu_us(), 1),
        number(row.median(|sample| sample.client_cpu_us), 1),
        number(row.ratio(), 2),
        spread.map_or_else(
            || "-".to_owned(),
            |(least, most)| format!("{least:.2} .. {most:.2}"),
        ),
    ]
}

/// The first column to the left, numbers to the right.
pub(super) fn write_table(
    text: &mut String,
    header: &[&str],
    rows: &[Vec<String>],
) -> std::fmt::Result {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells
            .chain([header[column].chars().count()])
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let mut line = |cells: &[&str]| {
        for (column, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            match column {
                0 => write!(text, "| {cell:<width$} ")?,
                _ => write!(text, "| {cell:>width$} ")?,
            }
        }
        writeln!(text, "|")
    };
    line(header)?;
    let rules: Vec<String> = widths
        .iter()
        .enumerate()
        .map(|(column, width)| {
            if column == 0 {
                "-".repeat(*width)
            } else {
                "-".repeat(width - 1) + ":"
            }
        })
        .collect();
    line(&rules.iter().map(String::as_str).collect::<Vec<_>>())?;
    for row in rows {
        line(&row.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Failure;
    use super::super::tests::{report, row};
    use super::*;

    #[test]
    fn every_row_of_a_table_is_as_wide_as_its_header() {
        let mut report = report();
        report.scenarios.push(row("ping", &[(14.0, Some(7.0))]));
        report.scenarios.push(row(
            "a-much-longer-name-than-the-others",
            &[(123_456.0, None)],
        ));
        let text = render(&report);
        let table: Vec<_> = text
            .lines()
            .skip_while(|line| !line.starts_with('|'))
            .take(4)
            .collect();
        assert!(
            table.iter().all(|line| line.len() == table[0].len()),
            "{text}"
        );
        assert!(
            table[2].contains(" 14.0 ") && table[2].contains(" 2.00 "),
            "{text}"
        );
        assert!(table[3].contains(" - "), "no ratio without nginx: {text}");
    }

    #[test]
    fn what_is_missing_or_failed_is_said() {
        let mut report = report();
        report.missing.push("nginx is not installed".into());
        report.failures.push(Failure {
            scenario: "ping",
            reason: "status 503".into(),
        });
        let text = render(&report);
        assert!(text.contains("MISSING: nginx is not installed"), "{text}");
        assert!(text.contains("FAILED: ping: status 503"), "{text}");
        assert!(text.contains("not measured"), "{text}");
    }
}
