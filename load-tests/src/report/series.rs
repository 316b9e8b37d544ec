//! All measurements of a scenario: rows with named numbers, measured once or in several repetitions.
//!
//! A scenario adds each measurement to a row as soon as it is taken. Only this module computes medians, ratios and
//! curves.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chart::Points;

/// Rows of the same kind, in the order in which they were first measured.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Series {
    pub(super) name: String,
    pub(crate) rows: Vec<Row>,
}

/// All measurements with the same labels.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// The labels that distinguish the row from the others of its series.
    pub(crate) labels: Vec<String>,
    measured: Vec<Numbers>,
}

/// One measurement. The name of a number ends in its unit, if it has one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Numbers {
    /// Number of the repetition. Ratios of two rows are computed within a repetition, so that both were measured on the machine
    /// in the same state.
    repetition: usize,
    numbers: BTreeMap<String, f64>,
    curves: BTreeMap<String, Points>,
}

impl Series {
    /// Adds a measurement to the row with these labels, which is created if it does not exist.
    pub(super) fn add(&mut self, labels: Vec<String>, numbers: Numbers) {
        let known = self.rows.iter().position(|row| row.labels == labels);
        let at = known.unwrap_or_else(|| {
            let measured = Vec::new();
            self.rows.push(Row { labels, measured });
            self.rows.len() - 1
        });
        self.rows[at].measured.push(numbers);
    }

    pub(crate) fn row<L: AsRef<str>>(&self, labels: &[L]) -> Option<&Row> {
        let has = |row: &&Row| {
            row.labels
                .iter()
                .map(String::as_str)
                .eq(labels.iter().map(AsRef::as_ref))
        };
        self.rows.iter().find(has)
    }

    /// The median of a number in the row with these labels.
    pub(crate) fn median<L: AsRef<str>>(&self, labels: &[L], name: &str) -> Option<f64> {
        self.row(labels)?.median(name)
    }
}

impl Row {
    pub(crate) fn times(&self) -> usize {
        self.measured.len()
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = f64> {
        self.measured.iter().filter_map(move |one| one.get(name))
    }

    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        median(self.all(name))
    }

    pub(crate) fn spread(&self, name: &str) -> Option<(f64, f64)> {
        spread(self.all(name))
    }

    pub(crate) fn sum(&self, name: &str) -> f64 {
        // Begins with 0.0: the sum of an empty iterator of floats is -0.0.
        self.all(name).fold(0.0, |sum, one| sum + one)
    }

    /// Points of two numbers, one for each measurement.
    pub(crate) fn points(&self, at: &str, name: &str) -> Points {
        let pairs = self
            .measured
            .iter()
            .map(|one| Some((one.get(at)?, one.get(name)?)));
        pairs.flatten().collect()
    }

    /// The median ratio of a number to that of another row, within each repetition.
    pub(crate) fn ratio_to(&self, other: &Self, name: &str) -> Option<f64> {
        median(self.measured.iter().filter_map(|one| {
            let same = |other: &&Numbers| other.repetition == one.repetition;
            let other = other.measured.iter().find(same)?;
            Some(one.get(name)? / other.get(name)?)
        }))
    }

    /// The curve of medians, at the positions that all curves of this name have.
    pub(crate) fn curve(&self, name: &str) -> Points {
        median_curve(self.measured.iter().filter_map(|one| one.curves.get(name)))
    }
}

impl Numbers {
    /// Collects all numbers and curves of a measurement by the names of their fields, or `through.p50_us` for a field
    /// of a field.
    pub(crate) fn of(measured: &impl Serialize) -> Self {
        let mut numbers = Self::default();
        numbers.collect(
            String::new(),
            serde_json::to_value(measured).unwrap_or_default(),
        );
        numbers
    }

    pub(crate) fn one(name: &str, value: f64) -> Self {
        Self::default().with(name, value)
    }

    /// Adds a number; `None` and values that are not finite are ignored.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Option<f64>>) -> Self {
        if let Some(value) = value.into().filter(|value| value.is_finite()) {
            self.numbers.insert(name.to_owned(), value);
        }
        self
    }

    /// Adds the ratio of the number `of` to the value `to`.
    pub(crate) fn with_ratio(self, name: &str, of: &str, to: Option<f64>) -> Self {
        let ratio = self.get(of).zip(to).map(|(of, to)| of / to);
        self.with(name, ratio)
    }

    pub(crate) fn without(mut self, name: &str) -> Self {
        self.numbers.remove(name);
        self
    }

    pub(super) fn in_repetition(self, repetition: usize) -> Self {
        Self { repetition, ..self }
    }

    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.numbers.get(name).copied()
    }

    fn collect(&mut self, name: String, value: Value) {
        match value {
            Value::Number(number) => self
                .numbers
                .extend(number.as_f64().map(|number| (name, number))),
            Value::Object(fields) => {
                for (field, value) in fields {
                    let point = if name.is_empty() { "" } else { "." };
                    self.collect(format!("{name}{point}{field}"), value);
                }
            }
            Value::Array(_) => self.curves.extend(
                serde_json::from_value(value)
                    .ok()
                    .map(|points| (name, points)),
            ),
            Value::Null | Value::Bool(_) | Value::String(_) => {}
        }
    }
}

/// The median; the mean of the two middle values if their number is even.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(match sorted.len() % 2 {
        1 => upper,
        _ => (sorted[middle - 1] + upper) / 2.0,
    })
}

/// The smallest and the largest value.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().fold(None, |spread, value| {
        let (least, most) = spread.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}

fn median_curve<'a>(curves: impl IntoIterator<Item = &'a Points>) -> Points {
    let curves: Vec<_> = curves.into_iter().collect();
    let value_at = |curve: &Points, place: f64| {
        let point = curve.iter().find(|(at, _)| *at == place);
        point.map(|(_, value)| *value)
    };
    let places = curves.first().into_iter().flat_map(|first| first.iter());
    let points = places.filter_map(|&(place, _)| {
        let values: Option<Vec<f64>> = curves.iter().map(|curve| value_at(curve, place)).collect();
        Some((place, median(values?)?))
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::report::Section;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!((median([]), spread([])), (None, None));
        assert_eq!(spread([3.0, 1.0, 2.0]), Some((1.0, 3.0)));
    }

    #[test]
    fn a_measurement_has_the_numbers_and_curves_of_its_fields() {
        let numbers = Numbers::of(&json!({
            "p50_us": 1.5, "wrong": 3, "why": "status 503", "share": null, "nan": f64::NAN,
            "through": {"p50_us": 2.0, "curve": [[50.0, 1.0], [99.0, 2.0]]},
        }));
        let names: Vec<_> = numbers.numbers.keys().collect();
        assert_eq!(names, ["p50_us", "through.p50_us", "wrong"]);
        assert_eq!(numbers.curves["through.curve"], [(50.0, 1.0), (99.0, 2.0)]);
        let numbers = numbers
            .with("added", 1.0)
            .with("none", None)
            .without("wrong");
        assert_eq!(
            (
                numbers.get("added"),
                numbers.get("none"),
                numbers.get("wrong")
            ),
            (Some(1.0), None, None)
        );
    }

    #[test]
    fn ratios_are_taken_within_a_repetition() {
        let mut section = Section::default();
        // The machine was twice as slow in the second one; `a` was not. `b` was not measured in the last one.
        let pairs = [
            (18.0, Some(9.0)),
            (36.0, Some(18.0)),
            (27.0, Some(9.0)),
            (1.0, None),
        ];
        for (repetition, (a, b)) in pairs.into_iter().enumerate() {
            section.repetition = repetition;
            let numbers = Numbers::one("us", a).with_ratio("n", "us", b);
            section.add("calls", ["a", "small"], numbers);
            if let Some(b) = b {
                section.add("calls", ["b", "small"], Numbers::one("us", b));
            }
        }
        let series = section.of("calls");
        let row = |name| series.row(&[name, "small"]).unwrap();
        let (a, b) = (row("a"), row("b"));
        assert_eq!(a.ratio_to(b, "us"), Some(2.0));
        assert_eq!((a.median("n"), b.median("n")), (Some(2.0), None));
        assert_eq!(
            (a.times(), a.spread("us").map(|(_, most)| most), b.sum("us")),
            (4, Some(36.0), 36.0)
        );
        assert!(series.row(&["a"]).is_none() && section.of("none").rows.is_empty());
    }

    #[test]
    fn curves_meet_where_all_of_them_have_a_point() {
        let curves = [
            vec![(50.0, 1.0), (99.0, 5.0), (99.9, 9.0)],
            vec![(50.0, 3.0), (99.0, 4.0)],
            vec![(50.0, 2.0), (99.0, 7.0)],
        ];
        let mut series = Series::default();
        for curve in curves {
            let numbers = Numbers::of(&json!({"curve": curve}));
            series.add(vec!["a".to_owned()], numbers);
        }
        let row = series.row(&["a"]).unwrap();
        assert_eq!(row.curve("curve"), [(50.0, 2.0), (99.0, 5.0)]);
        assert!(row.curve("worst").is_empty());
    }
}
