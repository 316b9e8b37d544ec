//! The count of requests that are being answered.

use prometheus::IntGauge;

/// A counted request. Dropping it ends the count; the drain waits for the last request.
pub(super) struct InFlightRequest(IntGauge);

impl InFlightRequest {
    pub(super) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }

    /// Pauses the count while the request waits for its client to read, which the drain must not wait for.
    pub(super) fn paused(&self) -> InFlightPause<'_> {
        self.0.dec();
        InFlightPause(&self.0)
    }
}

/// Ends the pause of an [`InFlightRequest`] when it is dropped.
pub(super) struct InFlightPause<'a>(&'a IntGauge);

impl Drop for InFlightPause<'_> {
    fn drop(&mut self) {
        self.0.inc();
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.dec();
    }
}
