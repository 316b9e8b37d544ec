//! Lines: latency by percentile, and something over time.

use super::scale::{Scale, number};
use super::svg::{Anchor, GREY, MARGIN, Svg, TOP, WIDTH};

type Series = [(String, Vec<(f64, f64)>)];

const HEIGHT: f64 = 280.0;
/// For the numbers of the vertical axis.
const LEFT: f64 = 76.0;
const RIGHT: f64 = WIDTH - 40.0;
/// For the horizontal axis.
const BOTTOM: f64 = 48.0;
/// Percentiles that are named, as far as the lines go.
const MARKS: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99];

/// Each further nine takes the same width, as the rare answers are what is asked about.
pub(super) fn percentiles(title: &str, unit: &str, series: &Series) -> String {
    let nines = |percentile: f64| -(1.0 - percentile.clamp(0.0, 99.999) / 100.0).log10();
    let points = || series.iter().flat_map(|(_, points)| points.iter());
    let last = points()
        .map(|(percentile, _)| nines(*percentile))
        .fold(nines(90.0), f64::max);
    let marks = MARKS
        .into_iter()
        .filter(|mark| nines(*mark) <= last + 1e-9)
        .map(|mark| (nines(mark) / last, format!("{mark} %")));
    let lines = Lines {
        across: &|percentile| nines(percentile) / last,
        marks: marks.collect(),
        axis: "percentile of requests",
        up: Scale::log(points().map(|(_, value)| *value)),
    };
    lines.draw(title, &format!("{unit} (logarithmic)"), series)
}

pub(super) fn timeline(title: &str, unit: &str, series: &Series) -> String {
    let points = || series.iter().flat_map(|(_, points)| points.iter());
    // To the last second there is, not to a round number.
    let last = points()
        .map(|(seconds, _)| *seconds)
        .filter(|seconds| seconds.is_finite())
        .fold(0.0, f64::max);
    let last = if last > 0.0 { last } else { 1.0 };
    let seconds = Scale::linear(points().map(|(seconds, _)| *seconds)).marks();
    let marks = seconds
        .into_iter()
        .filter(|mark| *mark <= last)
        .map(|mark| (mark / last, number(mark)));
    let lines = Lines {
        across: &|seconds| seconds / last,
        marks: marks.collect(),
        axis: "seconds",
        up: Scale::linear(points().map(|(_, value)| *value)),
    };
    lines.draw(title, unit, series)
}

struct Lines<'a> {
    /// From 0 to 1.
    across: &'a dyn Fn(f64) -> f64,
    marks: Vec<(f64, String)>,
    axis: &'a str,
    up: Scale,
}

impl Lines<'_> {
    fn draw(&self, title: &str, unit: &str, series: &Series) -> String {
        let mut svg = Svg::new();
        let names: Vec<&str> = series.iter().map(|(name, _)| name.as_str()).collect();
        let top = TOP + svg.legend(TOP, &names) + 26.0;
        let bottom = top + HEIGHT;
        let x = |place: f64| LEFT + place.clamp(0.0, 1.0) * (RIGHT - LEFT);
        let y = |value: f64| bottom - self.up.place(value) * HEIGHT;

        svg.text((MARGIN, top - 14.0), Anchor::Start, GREY, unit);
        for mark in self.up.marks() {
            svg.grid((LEFT, y(mark)), (RIGHT, y(mark)));
            let at = (LEFT - 8.0, y(mark) + 4.0);
            svg.text(at, Anchor::End, GREY, &number(mark));
        }
        for (place, text) in &self.marks {
            svg.grid((x(*place), top), (x(*place), bottom));
            svg.text((x(*place), bottom + 18.0), Anchor::Middle, GREY, text);
        }
        let middle = (LEFT + RIGHT) / 2.0;
        svg.text((middle, bottom + 38.0), Anchor::Middle, GREY, self.axis);
        for (at, (_, points)) in series.iter().enumerate() {
            let points: Vec<_> = points
                .iter()
                .filter(|(place, value)| place.is_finite() && value.is_finite())
                .map(|(place, value)| (x((self.across)(*place)), y(*value)))
                .collect();
            if !points.is_empty() {
                svg.line(at, &points);
            }
        }
        svg.finish(title, bottom + BOTTOM)
    }
}
