//! Decides from a series of samples whether memory grows permanently.
//!
//! A process that has just started allocates what it needs, so the first quarter is ignored. For the remainder:
//!
//! - the *slope* is that of the least-squares line, in KiB per minute. It is also stated per day, which means little after
//!   a few minutes: a step of an allocator looks like a slope.
//! - growth *lasts* if the median of the last third is above that of the first third by more than [`SHARE`] and more than
//!   [`LEAST_MIB`], and the last third is still above the second by a quarter of that. A step that was taken once and stays
//!   fails the second condition, noise the first.
//! - after less than [`LEAST_TIME`] no decision is made.

use crate::report::median;

const SHARE: f64 = 0.03;
const LEAST_MIB: f64 = 1.0;
/// Minimum time for a decision, in seconds.
const LEAST_TIME: f64 = 420.0;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Growth {
    pub(super) slope_kib_a_minute: f64,
    /// Medians of the thirds, in MiB.
    pub(super) thirds_mib: [f64; 3],
    /// True if growth lasts; `None` if the time was too short to decide.
    pub(super) lasts: Option<bool>,
}

impl Growth {
    pub(super) fn mib_a_day(&self) -> f64 {
        self.slope_kib_a_minute * 60.0 * 24.0 / 1024.0
    }

    /// Computes the growth from samples (seconds, MiB) in order of time; `None` if there are too few for a line.
    pub(super) fn of(samples: &[(f64, f64)]) -> Option<Self> {
        let seen = &samples[samples.len() / 4..];
        let third = seen.len() / 3;
        if third == 0 {
            return None;
        }
        let middle = |some: &[(f64, f64)]| median(some.iter().map(|(_, kib)| *kib));
        let thirds_mib = [
            middle(&seen[..third])?,
            middle(&seen[third..seen.len() - third])?,
            middle(&seen[seen.len() - third..])?,
        ];
        let [first, second, last] = thirds_mib;
        let grown = last - first;
        let lasts = grown > LEAST_MIB && grown > first * SHARE && last - second > grown / 4.0;
        let time = seen.last()?.0 - seen.first()?.0;
        Some(Self {
            slope_kib_a_minute: slope(seen)? * 60.0 * 1024.0,
            thirds_mib,
            lasts: (time >= LEAST_TIME).then_some(lasts),
        })
    }
}

/// The slope of the least-squares line.
fn slope(samples: &[(f64, f64)]) -> Option<f64> {
    let count = samples.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| samples.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|(x, _)| *x), mean(|(_, y)| *y));
    let spread: f64 = samples.iter().map(|(at, _)| (at - x).powi(2)).sum();
    let together: f64 = samples.iter().map(|(at, kib)| (at - x) * (kib - y)).sum();
    (spread > 0.0).then(|| together / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twenty minutes, a sample a second, with some noise that is the same each time.
    fn of(kib: impl Fn(f64) -> f64) -> Growth {
        let noise = |second: usize| ((second * 7919) % 401) as f64 - 200.0;
        let sample = |second: usize| (second as f64, (kib(second as f64) + noise(second)) / 1024.0);
        Growth::of(&(0..1200).map(sample).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_leak_is_growth_that_lasts() {
        let leak = of(|second| 30_000.0 + second * 4.0);
        assert!((leak.slope_kib_a_minute - 240.0).abs() < 5.0, "{leak:?}");
        assert!((leak.mib_a_day() - 337.5).abs() < 7.0);
        assert_eq!(leak.lasts, Some(true));
    }

    #[test]
    fn growing_into_what_is_needed_a_step_and_noise_are_not() {
        let warm_up = of(|second| 30_000.0 + 10_000.0 * (second / 200.0).min(1.0));
        assert_eq!(warm_up.lasts, Some(false), "{warm_up:?}");
        let step = of(|second| if second < 500.0 { 30_000.0 } else { 34_000.0 });
        assert_eq!(step.lasts, Some(false), "{step:?}");
        let steady = of(|_| 30_000.0);
        assert!(steady.slope_kib_a_minute.abs() < 5.0, "{steady:?}");
        assert_eq!(steady.lasts, Some(false));
    }

    #[test]
    fn nothing_is_said_of_a_minute() {
        let samples: Vec<_> = (0..60).map(|second| (f64::from(second), 10.0)).collect();
        assert_eq!(Growth::of(&samples).unwrap().lasts, None);
        assert_eq!(Growth::of(&samples[..2]), None);
        assert_eq!(Growth::of(&[]), None);
    }
}
