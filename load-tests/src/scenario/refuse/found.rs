//! The results of refusals as tables, charts and a verdict.

use super::kind::{BARE_FILTER, RATE_LIMITED, UNAUTHORIZED};
use super::{Beside, GOOD_PER_SECOND};
use crate::chart::Chart;
use crate::processes::Queued;
use crate::report::budget;
use crate::report::table::{figure, middle, range, sum};
use crate::report::{Row, Section, Series, Table};

/// Series of refusals at full speed, with a row for each kind.
pub(super) const REFUSALS: &str = "refusals";
/// Series of good calls, with a row for each concurrent load.
pub(super) const GOOD: &str = "good calls";

pub(super) fn tell(section: &mut Section) {
    let refusals = section.of(REFUSALS);
    let bare = refusals.row(&[BARE_FILTER.name()]);
    let ours = refusals.row(&[UNAUTHORIZED.name()]);
    let to_bare = ours
        .zip(bare)
        .and_then(|(ours, bare)| ours.ratio_to(bare, "cpu_us"));
    let verdict = budget::REFUSAL.verdict(to_bare);
    if bare.is_some() {
        section.note(
            "The bare filter is `proxy/bin/bare_filter.rs`: Pingora with the gateway's threads, buffers and allocator, and a \
             `request_filter` that answers everybody with the bytes of the gateway's 401 (the run fails where they differ in \
             more than request id and date). It checks, counts, limits and logs nothing. Which of the two is measured first \
             changes with each repetition.",
        );
    }
    section.note(
        "The attacker has its own thread and connections. All share the cores: what an attack on the gateway adds to the latency \
         of good calls is the difference from the row with the same number of connections at nginx, which answers more of them \
         a second.",
    );
    section.note(Queued::NOTE);
    section.verdicts = vec![verdict];
    section.tables = vec![
        refusals_table(section.of(REFUSALS)),
        good_table(section.of(GOOD)),
    ];
    let (refusals, good) = (section.of(REFUSALS), section.of(GOOD));
    let title = "CPU time of a refusal, in that of nginx `return 200`";
    let latency = format!("Latency of {GOOD_PER_SECOND:.0} good calls a second");
    section.charts = vec![
        Chart::new("refuse", title, "n").bars(refusals.named(), &[("a refusal", "cpu_n")]),
        Chart::new("refuse_good", &latency, "us").percentiles(good.curves("sample.curve")),
    ];
}

fn refusals_table(refusals: &Series) -> Table {
    let columns = [
        middle("refused/s", "per_second", 0),
        middle("p50 us", "p50_us", 0),
        middle("p99 us", "p99_us", 0),
        middle("CPU us", "cpu_us", 1),
        middle("CPU / nginx", "cpu_n", 2),
        range("range", "cpu_n"),
    ];
    Table::of(&refusals.rows, &["refusal"], columns).captioned("Refusals at full speed")
}

fn good_table(good: &Series) -> Table {
    let p99 = |row: &Row| row.median("sample.p99_us");
    let times = |row: &Row, other: Beside| Some(p99(row)? / p99(good.row(&[other.name()])?)?);
    let attacks = [UNAUTHORIZED, RATE_LIMITED].map(|kind| Beside::Refused(kind).name());
    let attacked = |row: &Row| attacks.iter().any(|attack| attack == row.name());
    let columns = [
        middle("others/s", "attack.per_second", 0),
        middle("p50 us", "sample.p50_us", 0),
        middle("p99 us", "sample.p99_us", 0),
        middle("p99.9 us", "sample.p999_us", 0),
        middle("worst us", "sample.max_us", 0),
        figure("p99 / alone", 2, |row| times(row, Beside::Nothing)),
        figure("p99 / beside nginx", 2, |row| {
            times(row, Beside::Nginx).filter(|_| attacked(row))
        }),
        middle("queued ms/s", "queued_ms", 0),
        sum("late", &["sample.late"]),
        sum("wrong", &["sample.wrong", "sample.unanswered"]),
    ];
    let caption = format!("{GOOD_PER_SECOND:.0} good calls a second of an async Python tool");
    Table::of(&good.rows, &["good calls"], columns).captioned(caption)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Numbers;
    use crate::report::budget::Outcome;

    #[test]
    fn a_401_is_compared_with_the_bare_filter_within_its_repetition() {
        let (mut section, mut none) = (Section::default(), Section::default());
        let pairs = [
            (12.0, Some(10.0)),
            (28.0, Some(20.0)),
            (13.0, Some(10.0)),
            (90.0, None),
        ];
        for (repetition, (gateway, bare)) in pairs.into_iter().enumerate() {
            section.repetition = repetition;
            let cpu = |us| Numbers::one("cpu_us", us).with_ratio("cpu_n", "cpu_us", Some(10.0));
            section.add(REFUSALS, [UNAUTHORIZED.name()], cpu(gateway));
            if let Some(bare) = bare {
                section.add(REFUSALS, [BARE_FILTER.name()], cpu(bare));
            }
        }
        tell(&mut section);
        assert_eq!(section.verdicts[0].measured, "1.30 x");
        assert_eq!(section.verdicts[0].outcome, Outcome::Hit);
        let [ours, bare] = &section.tables[0].rows[..] else {
            panic!("a row for each");
        };
        assert_eq!(
            (&*ours[0], &*bare[0]),
            ("401 wrong token", "401 of a bare filter")
        );
        assert_eq!(ours[4..], ["20.5", "2.05", "1.20 .. 9.00"]);
        tell(&mut none);
        assert_eq!(none.verdicts[0].outcome, Outcome::NotMeasured);
    }

    #[test]
    fn good_calls_beside_an_attack_are_compared_with_those_alone_and_beside_nginx() {
        let mut section = Section::default();
        for (beside, p99) in Beside::ALL.into_iter().zip([10.0, 20.0, 60.0, 80.0]) {
            let numbers = Numbers::one("sample.p99_us", p99).with("sample.unanswered", 1.0);
            section.add(GOOD, [beside.name()], numbers);
        }
        let rows = good_table(section.of(GOOD)).rows;
        let shown: Vec<_> = rows
            .iter()
            .map(|row| [&row[6], &row[7], &row[10]])
            .collect();
        let expected = [
            ["1.00", "-", "1"],
            ["2.00", "-", "1"],
            ["6.00", "3.00", "1"],
            ["8.00", "4.00", "1"],
        ];
        assert_eq!(shown, expected);
    }
}
