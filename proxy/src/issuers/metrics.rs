//! Metrics about the issuers of access tokens.

use std::time::Duration;

use tooldock_base::metric_table;

metric_table! {
    /// Metrics about the issuers of access tokens.
    pub(crate) struct IssuerMetrics(registry) {
        fetches: IntCounterVec["issuer", "outcome"] = "tooldock_oauth_key_fetches_total",
            "Fetches of an issuer's keys by outcome: fetched or failed";
        questions: IntCounterVec["issuer", "outcome"] = "tooldock_oauth_introspections_total",
            "Questions about opaque tokens by outcome: answered or failed";
        ages: IntGaugeVec["issuer"] = "tooldock_oauth_key_age_seconds",
            "Time since the keys of an issuer were fetched last";
    }
}

impl IssuerMetrics {
    pub(super) fn fetched(&self, issuer: &str, right: bool) {
        let outcome = if right { "fetched" } else { "failed" };
        self.fetches.with_label_values(&[issuer, outcome]).inc();
    }

    pub(super) fn asked(&self, issuer: &str, right: bool) {
        let outcome = if right { "answered" } else { "failed" };
        self.questions.with_label_values(&[issuer, outcome]).inc();
    }

    pub(super) fn age(&self, issuer: &str, age: Duration) {
        let seconds = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
        self.ages.with_label_values(&[issuer]).set(seconds);
    }

    /// Removes the metrics of an issuer that is no longer configured.
    pub(super) fn forget(&self, issuer: &str) {
        let _ = self.ages.remove_label_values(&[issuer]);
    }
}
