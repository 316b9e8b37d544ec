//! The results of the soak.

use std::time::Duration;

use super::books::Books;
use super::growth::Growth;
use super::watch::{HELD, MEANWHILE, Watch};
use crate::chart::Points;
use crate::report::{Numbers, Section, minutes, spread};

pub(super) fn section(lasted: Duration, books: &Books, watch: &Watch) -> Section {
    let mut section = Section::default();
    for (name, count) in books.counts() {
        section.add("traffic", [name], Numbers::of(&count));
    }
    let mut kills = books.kills();
    kills.sort_by_key(|kill| kill.namespace);
    for kill in kills {
        let never = if kill.back_ms.is_none() { 1.0 } else { 0.0 };
        let numbers = Numbers::one("never", never).with("back_ms", kill.back_ms);
        section.add("kills", [kill.namespace], numbers);
    }
    watch.tell(&mut section);
    section.failures = books.first_wrong();
    let wrong = books.wrong_so_far();
    if wrong > section.failures.len() as u64 {
        section.fail(format!("{wrong} wrong in all"));
    }
    let left = watch.left();
    if !left.is_empty() {
        section.fail(format!("left when everybody had gone: {}", left.join(", ")));
    }
    memory(&mut section);
    let traffic = minutes(lasted);
    section.note(match watch.rest_seconds {
        Some(seconds) => format!(
            "{traffic} of traffic. It held no more than before {seconds:.0} s after everybody had gone."
        ),
        None => format!("{traffic} of traffic. It never came back to what it held before."),
    });
    if watch.audit_dropped > 0.0 {
        section.note(format!(
            "{} audit lines were dropped: the disk did not keep up.",
            watch.audit_dropped
        ));
    }
    section
}

/// Adds the growth of the gateway's own memory.
fn memory(section: &mut Section) {
    let looks = section.of(HELD).row(&[MEANWHILE]);
    let own = looks.map_or_else(Points::new, |looks| looks.points("seconds", "own_mib"));
    let most = spread(own.iter().map(|(_, mib)| *mib)).map(|(_, most)| most);
    let numbers = Numbers::default()
        .with("start_mib", own.first().map(|(_, mib)| *mib))
        .with("most_mib", most);
    let Some(growth) = Growth::of(&own) else {
        return section.add("memory", ["gateway"], numbers);
    };
    let [first, second, last] = growth.thirds_mib;
    let numbers = numbers
        .with("first_mib", first)
        .with("second_mib", second)
        .with("last_mib", last)
        .with("kib_a_minute", growth.slope_kib_a_minute)
        .with("mib_a_day", growth.mib_a_day())
        .with(
            "lasts",
            growth.lasts.map(|lasts| f64::from(u8::from(lasts))),
        );
    section.add("memory", ["gateway"], numbers);
    match growth.lasts {
        Some(true) => section.fail("the gateway's memory grows for good"),
        Some(false) => {}
        None => section.note("Too short to say whether growth lasts: that needs ten minutes."),
    }
}
