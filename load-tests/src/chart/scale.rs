//! Axes: where a value lies, and which values are named.

/// About so many marks on a linear axis.
const MARKS: f64 = 5.0;
/// What a logarithmic axis spans at most; smaller values lie at its beginning.
const DECADES_MAX: i32 = 8;

/// From 0 to 1 along an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Scale {
    /// From zero.
    Linear { step: f64, end: f64 },
    /// From one power of ten to another.
    Log { first: i32, last: i32 },
}

impl Scale {
    /// That has room for all values.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / MARKS;
        let power = 10f64.powf(rough.log10().floor());
        let nice = [1.0, 2.0, 2.5, 5.0, 10.0];
        let step = nice
            .map(|times| times * power)
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(10.0 * power);
        let end = step * (most / step).ceil();
        Self::Linear { step, end }
    }

    /// The same; zero and less have no place of their own on it.
    pub(super) fn log(values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold((f64::INFINITY, 0.0f64), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        if most == 0.0 {
            return Self::Log { first: 0, last: 1 };
        }
        let power = |value: f64| value.log10().clamp(-100.0, 100.0);
        let last = power(most).ceil() as i32;
        let first = (power(least).floor() as i32).clamp(last - DECADES_MAX, last - 1);
        Self::Log { first, last }
    }

    pub(super) fn place(self, value: f64) -> f64 {
        let place = match self {
            Self::Linear { end, .. } => value / end,
            Self::Log { .. } if value <= 0.0 => 0.0,
            Self::Log { first, last } => {
                (value.log10() - f64::from(first)) / f64::from(last - first)
            }
        };
        // What is no number lies at the beginning, too.
        if place > 0.0 { place.min(1.0) } else { 0.0 }
    }

    pub(super) fn marks(self) -> Vec<f64> {
        match self {
            Self::Linear { step, end } => {
                let count = (end / step).round() as usize;
                (0..=count).map(|mark| mark as f64 * step).collect()
            }
            Self::Log { first, last } => (first..=last).map(|power| 10f64.powi(power)).collect(),
        }
    }
}

/// A number as people read it: three digits, thousands apart.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        _ if size >= 100.0 || size == 0.0 => 0,
        _ if size >= 10.0 => 1,
        _ if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}", grouped(whole))
}

fn grouped(whole: &str) -> String {
    let mut text = String::new();
    for (at, letter) in whole.char_indices() {
        let left = whole.len() - at;
        if left.is_multiple_of(3) && text.ends_with(|letter: char| letter.is_ascii_digit()) {
            text.push(',');
        }
        text.push(letter);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linear_axis_ends_at_a_round_number_above_all_values() {
        let scale = Scale::linear([3.0, 237.0].into_iter());
        assert_eq!(scale.marks(), [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]);
        assert_eq!(scale.place(125.0), 0.5);
        assert_eq!(Scale::linear(std::iter::empty()).marks().last(), Some(&1.0));
        assert_eq!(scale.place(f64::NAN), 0.0);
    }

    #[test]
    fn a_logarithmic_axis_goes_from_power_to_power() {
        let scale = Scale::log([69.4, 4851.8, 0.0].into_iter());
        assert_eq!(scale.marks(), [10.0, 100.0, 1000.0, 10000.0]);
        assert!((scale.place(100.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!((scale.place(0.0), scale.place(1e9)), (0.0, 1.0));
        // One value has an axis, too.
        assert_eq!(Scale::log([10.0].into_iter()).marks(), [1.0, 10.0]);
        assert_eq!(Scale::log(std::iter::empty()).marks(), [1.0, 10.0]);
        assert!(Scale::log([1e-300, 1e300].into_iter()).marks().len() < 12);
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
