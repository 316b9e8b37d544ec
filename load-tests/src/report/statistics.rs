//! Medians over repetitions.

/// The middle value, or the mean of the two.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 {
        upper
    } else {
        (sorted[middle - 1] + upper) / 2.0
    })
}

/// The least and the greatest value.
pub(crate) fn spread(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().fold(None, |spread, value| {
        let (least, most) = spread.unwrap_or((value, value));
        Some((least.min(value), most.max(value)))
    })
}

/// One curve of the same measurement taken several times: the median at each place all of them have.
pub(crate) fn median_curve<'a>(
    curves: impl IntoIterator<Item = &'a Vec<(f64, f64)>>,
) -> Vec<(f64, f64)> {
    let curves: Vec<_> = curves.into_iter().collect();
    let Some(first) = curves.first() else {
        return Vec::new();
    };
    let value_at = |curve: &[(f64, f64)], place: f64| {
        let point = curve.iter().find(|(at, _)| *at == place);
        point.map(|(_, value)| *value)
    };
    let points = first.iter().filter_map(|&(place, _)| {
        let values: Option<Vec<f64>> = curves.iter().map(|curve| value_at(curve, place)).collect();
        Some((place, median(values?)?))
    });
    points.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn the_spread_is_the_least_and_the_greatest() {
        assert_eq!(spread([3.0, 1.0, 2.0]), Some((1.0, 3.0)));
        assert_eq!(spread([]), None);
    }

    #[test]
    fn curves_meet_where_all_of_them_have_a_point() {
        let curves = [
            vec![(50.0, 1.0), (99.0, 5.0), (99.9, 9.0)],
            vec![(50.0, 3.0), (99.0, 4.0)],
            vec![(50.0, 2.0), (99.0, 7.0)],
        ];
        assert_eq!(median_curve(&curves), [(50.0, 2.0), (99.0, 5.0)]);
        assert!(median_curve(&[]).is_empty());
    }
}
