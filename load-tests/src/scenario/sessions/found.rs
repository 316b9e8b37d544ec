//! The results of sessions as tables and charts.

use super::{PINGED, PINGS_PER_SECOND};
use crate::chart::Chart;
use crate::report::table::{figure, middle, sum};
use crate::report::{Row, Section, Series, Table};

/// Series of sessions that are opened and not closed, with a row for each namespace.
pub(super) const HELD: &str = "held sessions";
/// Series of readings while sessions are opened.
pub(super) const OPENING: &str = "while they are opened";
/// Series of sessions in use, with a row for each number of other sessions.
pub(super) const USED: &str = "used sessions";

/// Adds the results to the section. `alive` is the number of sessions at the end, as the gateway counts them.
pub(super) fn tell(section: &mut Section, alive: Option<f64>) {
    let (held, opening, used) = (section.of(HELD), section.of(OPENING), section.of(USED));
    // Each namespace has one more session, opened first.
    let expected: f64 = held.rows.iter().map(|row| row.sum("sessions") + 1.0).sum();
    let tables = vec![held_table(held), used_table(used)];
    let of = |number: &str| {
        let rows = opening.named();
        rows.map(|(name, row)| (name, row.points("seconds", number)))
            .collect::<Vec<_>>()
    };
    let pings = used
        .curves("pings.curve")
        .map(|(others, curve)| (format!("{others} other sessions"), curve));
    let (latency, rate) = (
        format!("Latency of {PINGS_PER_SECOND:.0} pings a second"),
        "Sessions opened a second, while there are more and more of them",
    );
    let memory = "Memory of the gateway while sessions are opened";
    let charts = vec![
        Chart::new("sessions", &latency, "us").percentiles(pings),
        Chart::new("sessions_opening", rate, "sessions/s").timeline(of("per_second")),
        Chart::new("sessions_memory", memory, "MiB").timeline(of("mib")),
    ];
    (section.tables, section.charts) = (tables, charts);
    section.note(
        "bytes each: growth of the gateway's own memory (`RssAnon`) a second after the last was opened; idle sessions have no \
         connection, so the kernel holds nothing for them.",
    );
    section.note(
        "The rows without and with other sessions are two gateways of one run, asked in turn.",
    );
    match alive {
        Some(alive) if alive == expected => section.note(format!(
            "{expected} sessions were there in the end as they should be; none expired, none was pushed out."
        )),
        Some(alive) => section.fail(format!("{alive} sessions in the end instead of {expected}")),
        None => section.fail("the gateway does not count its sessions"),
    }
}

fn held_table(held: &Series) -> Table {
    let columns = [
        middle("sessions", "sessions", 0),
        middle("opened/s", "per_second", 0),
        middle("CPU us each", "cpu_us", 1),
        figure("bytes each", 0, bytes_each),
        middle("gateway MiB before", "before_mib", 1),
        middle("gateway MiB after", "after_mib", 1),
    ];
    Table::of(&held.rows, &["idle sessions of"], columns)
        .captioned("Sessions that are opened and left")
}

fn used_table(used: &Series) -> Table {
    let columns = [
        middle("opened and closed/s", "churn.per_second", 0),
        middle("CPU us", "churn.cpu_us", 1),
        middle("CPU / nginx", "churn_n", 2),
        middle("opening p50 us", "churn.opening_p50_us", 1),
        middle("opening p99 us", "churn.opening_p99_us", 1),
        middle("ping p50 us", "pings.p50_us", 1),
        middle("ping p99 us", "pings.p99_us", 1),
        middle("ping CPU us", "pings.cpu_us", 1),
        middle("ping CPU / nginx", "pings_n", 2),
        sum("wrong", &["pings.wrong", "pings.unanswered"]),
    ];
    Table::of(&used.rows, &["other sessions"], columns).captioned(format!(
        "Sessions opened and closed at full speed; {PINGS_PER_SECOND:.0} pings a second spread over {PINGED} sessions"
    ))
}

/// The memory that each session added to the gateway, in bytes.
pub(super) fn bytes_each(held: &Row) -> Option<f64> {
    let grown_mib = held.median("after_mib")? - held.median("before_mib")?;
    Some(grown_mib * 1024.0 * 1024.0 / held.median("sessions")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Numbers;

    #[test]
    fn a_session_costs_what_the_gateway_has_grown_by_and_is_there_in_the_end() {
        for (alive, failures) in [
            (Some(1025.0), 0),
            (Some(1024.0), 1),
            (Some(1026.0), 1),
            (None, 1),
        ] {
            let mut section = Section::default();
            let numbers = Numbers::one("sessions", 1024.0).with("before_mib", 1.0);
            section.add(HELD, ["a namespace"], numbers.with("after_mib", 2.0));
            tell(&mut section, alive);
            assert_eq!(section.tables[0].rows[0][4], "1024", "bytes each");
            assert_eq!(section.failures.len(), failures, "{alive:?}");
            assert_eq!(section.notes.len(), 3 - failures, "{alive:?}");
        }
    }
}
