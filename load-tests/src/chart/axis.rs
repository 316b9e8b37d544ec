//! Axes: the position of a value, and the marked values.

use std::ops::Range;

use plotters::coord::ranged1d::{
    BoldPoints, KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter,
};
use plotters::coord::types::RangedCoordf64;

/// Maximum number of marks on a linear axis.
const MARKS: usize = 7;
/// Maximum span of a logarithmic axis in powers of ten; smaller values are drawn at its beginning.
const DECADES_MAX: f64 = 8.0;
/// Percentiles with a mark, up to the last one of the lines.
const PERCENTILES: [f64; 6] = [0.0, 50.0, 90.0, 99.0, 99.9, 99.99];

pub(super) struct Axis {
    pub(super) start: f64,
    end: f64,
    /// Function whose equal differences have equal distances on the axis.
    scale: fn(f64) -> f64,
    marks: Vec<(f64, String)>,
}

impl Axis {
    /// A linear axis from zero to at least the largest value.
    pub(super) fn linear(values: impl IntoIterator<Item = f64>) -> Self {
        let most = values
            .into_iter()
            .filter(|value| value.is_finite())
            .fold(0.0, f64::max);
        let end = if most > 0.0 { most } else { 1.0 };
        let marks = RangedCoordf64::from(0.0..end).key_points(BoldPoints(MARKS));
        Self::new(0.0..end, |value| value, marks)
    }

    /// A logarithmic axis between two powers of ten; zero and negative values are drawn at its beginning.
    pub(super) fn log(values: impl Iterator<Item = f64>) -> Self {
        let powers = values.map(f64::log10).filter(|power| power.is_finite());
        let (least, most) = crate::report::spread(powers).unwrap_or((0.0, 1.0));
        let last = most.ceil();
        let first = least.floor().clamp(last - DECADES_MAX, last - 1.0);
        let marks = (first as i32..=last as i32).map(|power| 10f64.powi(power));
        let marks: Vec<f64> = marks.collect();
        Self::new(10f64.powf(first)..10f64.powf(last), f64::log10, marks)
    }

    /// An axis up to the percentile `last`. Each further nine has the same width, since rare responses matter most.
    pub(super) fn percentiles(last: f64) -> Self {
        let nines = |percentile: f64| -(1.0 - percentile.clamp(0.0, 99.999) / 100.0).log10();
        let end = last.clamp(90.0, 99.999);
        let named = PERCENTILES.into_iter().filter(|named| *named <= end);
        Self {
            start: 0.0,
            end,
            scale: nines,
            marks: named.map(|named| (named, format!("{named} %"))).collect(),
        }
    }

    /// An axis from top to bottom, with each name in the middle of its group.
    pub(super) fn groups(names: &[String]) -> Self {
        let middles = names
            .iter()
            .zip(0..)
            .map(|(name, at)| (f64::from(at) + 0.5, name.clone()));
        Self {
            start: names.len().max(1) as f64,
            end: 0.0,
            scale: |at| at,
            marks: middles.collect(),
        }
    }

    fn new(range: Range<f64>, scale: fn(f64) -> f64, marks: Vec<f64>) -> Self {
        Self {
            start: range.start,
            end: range.end,
            scale,
            marks: marks.into_iter().map(|mark| (mark, number(mark))).collect(),
        }
    }

    /// The position of a value between 0 and 1; NaN is drawn at the beginning.
    fn place(&self, value: f64) -> f64 {
        let [start, end, at] = [self.start, self.end, value].map(self.scale);
        let place = (at - start) / (end - start);
        if place > 0.0 { place.min(1.0) } else { 0.0 }
    }
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (first, last): (i32, i32)) -> i32 {
        first + (self.place(*value) * f64::from(last - first)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight().allow_light_points() {
            true => Vec::new(),
            false => self.marks.iter().map(|(at, _)| *at).collect(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.start..self.end
    }
}

impl ValueFormatter<f64> for Axis {
    fn format_ext(&self, value: &f64) -> String {
        let mark = self.marks.iter().find(|(at, _)| at == value);
        mark.map_or_else(String::new, |(_, text)| text.clone())
    }
}

/// Formats a number for people: three digits, thousands separated.
pub(super) fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let mut shown = String::new();
    for (at, letter) in whole.char_indices() {
        let left = whole.len() - at;
        if left.is_multiple_of(3) && shown.ends_with(|last: char| last.is_ascii_digit()) {
            shown.push(',');
        }
        shown.push(letter);
    }
    match fraction.trim_end_matches('0') {
        "" => shown,
        fraction => format!("{shown}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(axis: &Axis) -> Vec<&str> {
        axis.marks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_has_room_for_all() {
        let axis = Axis::linear([3.0, 250.0]);
        assert_eq!(named(&axis), ["0", "50", "100", "150", "200", "250"]);
        assert_eq!(axis.place(125.0), 0.5);
        assert_eq!((axis.place(f64::NAN), axis.place(-1.0)), (0.0, 0.0));
        assert_eq!(Axis::linear([]).place(1.0), 1.0);
    }

    #[test]
    fn a_logarithmic_axis_goes_from_power_to_power() {
        let axis = Axis::log([69.4, 4851.8, 0.0].into_iter());
        assert_eq!(named(&axis), ["10", "100", "1,000", "10,000"]);
        assert!((axis.place(100.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((axis.place(0.0), axis.place(1e9)), (0.0, 1.0));
        // One value has an axis, and so has none.
        assert_eq!(named(&Axis::log([10.0].into_iter())), ["1", "10"]);
        assert_eq!(named(&Axis::log(std::iter::empty())), ["1", "10"]);
        assert!(Axis::log([1e-300, 1e300].into_iter()).marks.len() < 12);
    }

    #[test]
    fn each_nine_takes_the_same_width() {
        let axis = Axis::percentiles(99.9);
        assert_eq!(named(&axis), ["0 %", "50 %", "90 %", "99 %", "99.9 %"]);
        assert!(
            (axis.place(90.0) - 1.0 / 3.0).abs() < 1e-9
                && (axis.place(99.0) - 2.0 / 3.0).abs() < 1e-9
        );
    }

    #[test]
    fn numbers_have_three_digits_and_thousands_apart() {
        for (value, text) in [
            (0.0, "0"),
            (0.0123, "0.012"),
            (1.256, "1.26"),
            (2.0, "2"),
            (69.44, "69.4"),
            (999.6, "1,000"),
            (4851.8, "4,852"),
            (1234567.0, "1,234,567"),
            (-1234.0, "-1,234"),
            (-123.0, "-123"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
