//! Metrics for alerts about the installation: its version, the success of the last reload, the expiry of certificates.

use prometheus::Registry;
use prometheus::core::Collector;
use tooldock_base::metric_table;
use tooldock_upstream::CertificateEnds;

use super::process::seconds_since_epoch;

metric_table! {
    /// Gauges of the configuration and certificates in force.
    #[derive(Debug, Clone)]
    pub(crate) struct StateMetrics(registry) {
        build: GaugeVec["version", "os", "arch"] = "tooldock_build_info", "1; its labels say what runs";
        reload_successful: IntGauge = "tooldock_config_last_reload_successful",
            "1 if the last SIGHUP, or the start, put configuration and certificates into force, else 0";
        reload_success_time: Gauge = "tooldock_config_last_reload_success_timestamp_seconds",
            "When configuration and certificates were put into force last, in seconds since 1970";
        certificate_not_after: IntGaugeVec["listener"] = "tooldock_certificate_not_after_seconds",
            "When the certificate of a listener ends, in seconds since 1970";
    }
}

impl StateMetrics {
    /// Registers the metrics. The configuration that was loaded at the start counts as a successful reload.
    ///
    /// # Errors
    ///
    /// When the registry already has a metric of the same name.
    pub(crate) fn start(registry: &Registry) -> prometheus::Result<Self> {
        let metrics = Self::new(registry)?;
        let build = [
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH,
        ];
        metrics.build.with_label_values(&build).set(1.0);
        metrics.reloaded(true);
        Ok(metrics)
    }

    /// Records whether the last reload of the configuration and certificates succeeded.
    pub(crate) fn reloaded(&self, successful: bool) {
        self.reload_successful.set(successful.into());
        if successful {
            self.reload_success_time.set(seconds_since_epoch());
        }
    }

    /// Records when a listener's certificate expires, in seconds since the Unix epoch.
    pub(crate) fn certificate(&self, listener: &str, not_after: i64) {
        self.certificate_not_after
            .with_label_values(&[listener])
            .set(not_after);
    }
}

impl CertificateEnds for StateMetrics {
    fn ends(&self) -> Vec<(String, i64)> {
        let families = self.certificate_not_after.collect();
        let gauges = families.iter().flat_map(|family| family.get_metric());
        let ends = gauges.map(|gauge| {
            let listener = gauge.get_label().iter().map(|label| label.value());
            // The gauge contains an integer; the exported form converts it to a float.
            (listener.collect(), gauge.get_gauge().value() as i64)
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort();
        ends
    }
}
