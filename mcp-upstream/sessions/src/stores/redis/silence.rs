//! Detection of a Redis that accepts connections and does not respond: it is suspended or busy with one long command, or the
//! network drops packets. Meanwhile most operations are refused immediately instead of waiting their full time. Every [`PAUSE`]
//! some operations are attempted, and the first response ends the refusals.

use std::time::Duration;

use tokio::time::Instant;

use super::link::PAUSE;

/// Time without any response after which operations are refused. Before that each operation waits, since most get a response in
/// time.
const HICCUP: Duration = Duration::from_millis(200);

/// State of an uninterrupted series of operations without a response in time.
#[derive(Debug, Default)]
pub(super) struct Silence {
    since: Option<Instant>,
    refusing_until: Option<Instant>,
}

impl Silence {
    /// True if an operation must not be tried now, because Redis does not respond.
    pub(super) fn refuses(&self, now: Instant) -> bool {
        self.refusing_until.is_some_and(|until| now < until)
    }

    /// Records an operation that got no response in time.
    pub(super) fn record_timeout(&mut self, now: Instant) {
        let since = *self.since.get_or_insert(now);
        if now.saturating_duration_since(since) >= HICCUP {
            self.refusing_until = Some(now + PAUSE);
        }
    }

    /// Records an operation that got a response, or that failed for another reason than a missing response.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_silence_is_refused_and_asked_again_from_time_to_time() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut silence = Silence::default();
        for millis in [0, 50, 199] {
            silence.record_timeout(at(millis));
            assert!(!silence.refuses(at(millis)), "a hiccup");
        }
        silence.record_timeout(at(200));
        assert!(silence.refuses(at(200)) && silence.refuses(at(399)));
        assert!(!silence.refuses(at(400)), "asked again");
        silence.record_timeout(at(450));
        assert!(silence.refuses(at(451)));
        silence.end();
        assert!(
            !silence.refuses(at(451)),
            "an operation on its way was answered"
        );
        silence.record_timeout(at(1000));
        assert!(!silence.refuses(at(1000)), "another silence");
    }
}
