//! The comparison at a stdio server as text.

use std::fmt::Write;

use super::median;
use super::table::write_table;
use crate::quiet::NOISY;
use crate::stdio::{Client, DIRECT, Row, Sampled, Stdio};

const HEADER: [&str; 16] = [
    "in front",
    "client",
    "server",
    "clients",
    "calls/s",
    "p50 us",
    "p99 us",
    "added p50 us",
    "added p99 us",
    "CPU us",
    "server CPU us",
    "CPU / nginx",
    "MiB",
    "servers",
    "servers MiB",
    "wrong",
];

impl Row {
    fn median(&self, of: impl Fn(&Sampled) -> Option<f64>) -> Option<f64> {
        median(self.samples.iter().filter_map(of))
    }

    /// CPU time of a call in units of nginx's, each within its repetition.
    pub(super) fn ratio(&self) -> Option<f64> {
        self.median(|sampled| Some(sampled.sample.cpu_us / sampled.nginx_cpu_us?))
    }

    pub(super) fn added_p50_us(&self) -> Option<f64> {
        self.median(|sampled| sampled.added_p50_us)
    }

    pub(super) fn added_p99_us(&self) -> Option<f64> {
        self.median(|sampled| sampled.added_p99_us)
    }

    fn cells(&self) -> Vec<String> {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let mib = |kib: u64| kib as f64 / 1024.0;
        let in_front = |value: Option<f64>| value.filter(|_| self.front != DIRECT);
        let wrong: u64 = self.samples.iter().map(|sampled| sampled.wrong).sum();
        let client = match self.client {
            Client::Session => "session",
            Client::Modern => "2026-07-28",
            Client::Pipes => "its pipes",
        };
        vec![
            self.front.to_owned(),
            client.to_owned(),
            self.server.name().to_owned(),
            self.clients.to_string(),
            number(self.median(|one| Some(one.sample.per_second)), 0),
            number(self.median(|one| Some(one.sample.p50_us)), 0),
            number(self.median(|one| Some(one.sample.p99_us)), 0),
            number(self.added_p50_us(), 0),
            number(self.added_p99_us(), 0),
            number(in_front(self.median(|one| Some(one.sample.cpu_us))), 1),
            number(self.median(|one| one.sample.worker_cpu_us), 1),
            number(in_front(self.ratio()), 2),
            number(self.median(|one| Some(mib(one.front_kib?))), 1),
            number(self.median(|one| Some(one.servers as f64)), 0),
            number(self.median(|one| Some(mib(one.servers_kib))), 1),
            wrong.to_string(),
        ]
    }
}

pub(super) fn write(text: &mut String, stdio: &Stdio) -> std::fmt::Result {
    let mut rows: Vec<&Row> = stdio.rows.iter().collect();
    // Many clients and one apart, each in the order measured in the first repetition.
    rows.sort_by_key(|row| row.clients == 1);
    let cells: Vec<_> = rows.iter().map(|row| row.cells()).collect();
    write_table(text, &HEADER, &cells)?;
    writeln!(text)?;
    for front in stdio.fronts() {
        writeln!(text, "- {} {}: {}", front.name, front.version, front.mode)?;
    }
    for missing in &stdio.missing {
        writeln!(text, "- MISSING: {missing} (make load-environments)")?;
    }
    for why in &stdio.not_measured {
        writeln!(text, "- not measured: {why}")?;
    }
    for row in &stdio.rows {
        let closed: u64 = row.samples.iter().map(|one| one.sample.closed).sum();
        if closed > 0 {
            writeln!(
                text,
                "- {} closed {closed} connections of {} clients ({}) after an answer",
                row.front,
                row.clients,
                row.client.name()
            )?;
        }
        let first = row
            .samples
            .iter()
            .find_map(|sampled| sampled.first_wrong.as_ref());
        if let Some(first) = first {
            writeln!(
                text,
                "- wrong answers of {}, {}, {} clients, the first one: {first}",
                row.front,
                row.client.name(),
                row.clients
            )?;
        }
    }
    let samples = stdio.rows.iter().flat_map(|row| &row.samples);
    let worst = samples
        .map(|sampled| sampled.sample.other_cores)
        .fold(0.0, f64::max);
    if worst > NOISY {
        writeln!(
            text,
            "- NOISY: up to {worst:.2} cores were busy with other work; repeat on a quiet machine before believing a difference"
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;
    use crate::servers::echo::Era;
    use crate::stdio::GATEWAY;

    fn sampled(cpu_us: f64, added: Option<f64>) -> Sampled {
        Sampled {
            sample: sample(cpu_us),
            added_p50_us: added,
            added_p99_us: added,
            nginx_cpu_us: Some(10.0),
            wrong: 1,
            first_wrong: Some("status 503".to_owned()),
            front_kib: Some(2048),
            servers: 1,
            servers_kib: 1024,
        }
    }

    #[test]
    fn a_row_has_medians_within_repetitions_and_the_sum_of_what_was_wrong() {
        let mut stdio = Stdio::new(64);
        for (cpu_us, added) in [(20.0, 5.0), (30.0, 7.0), (90.0, 6.0)] {
            let samples = stdio.samples_of(GATEWAY, Client::Session, Era::Legacy, 1);
            samples.push(sampled(cpu_us, Some(added)));
        }
        let row = stdio.gateway_row(1).unwrap();
        assert_eq!((row.ratio(), row.added_p50_us()), (Some(3.0), Some(6.0)));
        let cells = row.cells();
        assert_eq!(cells.len(), HEADER.len());
        assert_eq!((cells[9].as_str(), cells[15].as_str()), ("30.0", "3"));
    }

    #[test]
    fn what_is_missing_or_wrong_is_said_and_nothing_in_front_costs_nothing() {
        let mut stdio = Stdio::new(64);
        stdio.missing.push("supergateway (npm)");
        let samples = stdio.samples_of(DIRECT, Client::Pipes, Era::Legacy, 64);
        samples.push(sampled(0.0, None));
        let mut text = String::new();
        write(&mut text, &stdio).unwrap();
        assert!(text.contains("MISSING: supergateway (npm)"), "{text}");
        assert!(text.contains("status 503"), "{text}");
        assert_eq!(stdio.rows[0].cells()[9], "-");
        assert!(stdio.gateway_row(64).is_none());
    }
}
