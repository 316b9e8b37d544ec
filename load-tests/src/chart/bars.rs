//! Horizontal bars, in groups.

use super::scale::{Scale, number};
use super::svg::{Anchor, FONT_SIZE, GREY, MARGIN, Svg, TOP, WIDTH, colour, width_of};

const BAR: f64 = 15.0;
const BETWEEN_BARS: f64 = 2.0;
const BETWEEN_GROUPS: f64 = 9.0;
/// Labels that are longer are cut.
const LABEL_MAX: usize = 44;
/// At the right end, for the value of the longest bar.
const VALUE: f64 = 72.0;
/// Below the bars, for the axis.
const BOTTOM: f64 = 44.0;

pub(super) fn draw(
    title: &str,
    unit: &str,
    log: bool,
    series: &[String],
    groups: &[(String, Vec<Option<f64>>)],
) -> String {
    let mut svg = Svg::new();
    let names: Vec<&str> = match series {
        // A single one is what the title says.
        [_] => Vec::new(),
        several => several.iter().map(String::as_str).collect(),
    };
    let top = TOP + svg.legend(TOP, &names);
    let labels: Vec<String> = groups.iter().map(|(label, _)| shortened(label)).collect();
    let longest = labels
        .iter()
        .map(|label| width_of(label))
        .fold(0.0, f64::max);
    let left = MARGIN + longest + 8.0;
    let right = WIDTH - MARGIN - VALUE;
    let values = groups
        .iter()
        .flat_map(|(_, values)| values.iter().flatten().copied());
    let scale = if log {
        Scale::log(values)
    } else {
        Scale::linear(values)
    };
    let across = |value: f64| left + scale.place(value) * (right - left);

    let height_of = |bars: usize| bars.max(1) as f64 * (BAR + BETWEEN_BARS) + BETWEEN_GROUPS;
    let bottom = top
        + groups
            .iter()
            .map(|(_, bars)| height_of(bars.len()))
            .sum::<f64>();
    for mark in scale.marks() {
        let x = across(mark);
        svg.grid((x, top), (x, bottom));
        svg.text((x, bottom + 16.0), Anchor::Middle, GREY, &number(mark));
    }
    let unit = if log {
        format!("{unit} (logarithmic)")
    } else {
        unit.to_owned()
    };
    let middle = (left + right) / 2.0;
    svg.text((middle, bottom + 34.0), Anchor::Middle, GREY, &unit);

    let mut y = top + BETWEEN_GROUPS / 2.0;
    for ((_, values), label) in groups.iter().zip(&labels) {
        let bars = height_of(values.len()) - BETWEEN_GROUPS;
        let baseline = y + bars / 2.0 + FONT_SIZE / 3.0;
        svg.label((left - 8.0, baseline), Anchor::End, label);
        for (at, value) in values.iter().enumerate() {
            let bar = y + at as f64 * (BAR + BETWEEN_BARS);
            let (end, text) = match value {
                Some(value) => (across(*value), number(*value)),
                None => (left, "not measured".to_owned()),
            };
            svg.bar((left, bar), end - left, BAR, colour(at));
            svg.text((end + 5.0, bar + 11.5), Anchor::Start, GREY, &text);
        }
        y += bars + BETWEEN_GROUPS;
    }
    svg.finish(title, bottom + BOTTOM)
}

fn shortened(label: &str) -> String {
    if label.chars().count() <= LABEL_MAX {
        return label.to_owned();
    }
    label.chars().take(LABEL_MAX - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_labels_are_cut() {
        assert_eq!(shortened("short"), "short");
        let cut = shortened(&"é".repeat(100));
        assert_eq!((cut.chars().count(), cut.ends_with('…')), (LABEL_MAX, true));
    }
}
