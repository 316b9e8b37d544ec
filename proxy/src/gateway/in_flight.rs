//! The number of requests that are being answered.

use prometheus::IntGauge;

/// Guard of a request in flight. Dropping it ends the count. A stopping gateway waits until the count is zero.
pub(super) struct InFlightRequest(IntGauge);

impl InFlightRequest {
    pub(super) fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }

    /// Does not count the request while it waits for its client, since a stopping gateway must not wait for that.
    pub(super) fn paused(&self) -> InFlightPause<'_> {
        self.0.dec();
        InFlightPause(&self.0)
    }
}

/// Guard that counts the request again when it is dropped.
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
