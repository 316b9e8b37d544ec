//! What alerts about the installation go by: which version runs, whether the last reload took, when certificates end.

use prometheus::{Gauge, GaugeVec, IntGauge, IntGaugeVec, Opts, Registry};

use super::process::{Process, seconds_since_epoch};

/// Gauges of what is in force.
#[derive(Debug, Clone)]
pub(crate) struct StateMetrics {
    reload_successful: IntGauge,
    reload_success_time: Gauge,
    certificate_not_after: IntGaugeVec,
}

impl StateMetrics {
    /// Registers the metrics, those of the process among them. The configuration that was loaded at the start counts as a
    /// reload that took.
    ///
    /// # Errors
    ///
    /// When a name is taken in the registry.
    pub(crate) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let build = GaugeVec::new(
            Opts::new("tooldock_build_info", "1; its labels say what runs"),
            &["version", "os", "arch"],
        )?;
        let labels = [
            env!("CARGO_PKG_VERSION"),
            std::env::consts::OS,
            std::env::consts::ARCH,
        ];
        build.with_label_values(&labels).set(1.0);
        let metrics = Self {
            reload_successful: IntGauge::new(
                "tooldock_config_last_reload_successful",
                "1 if the last SIGHUP, or the start, put configuration and certificates into force, else 0",
            )?,
            reload_success_time: Gauge::new(
                "tooldock_config_last_reload_success_timestamp_seconds",
                "When configuration and certificates were put into force last, in seconds since 1970",
            )?,
            certificate_not_after: IntGaugeVec::new(
                Opts::new(
                    "tooldock_certificate_not_after_seconds",
                    "When the certificate of a listener ends, in seconds since 1970",
                ),
                &["listener"],
            )?,
        };
        registry.register(Box::new(build))?;
        registry.register(Box::new(metrics.reload_successful.clone()))?;
        registry.register(Box::new(metrics.reload_success_time.clone()))?;
        registry.register(Box::new(metrics.certificate_not_after.clone()))?;
        registry.register(Box::new(Process::new()?))?;
        metrics.reloaded(true);
        Ok(metrics)
    }

    /// Notes whether configuration and certificates were put into force.
    pub(crate) fn reloaded(&self, successful: bool) {
        self.reload_successful.set(successful.into());
        if successful {
            self.reload_success_time.set(seconds_since_epoch());
        }
    }

    /// Notes when the certificate that a listener shows ends.
    pub(crate) fn certificate(&self, listener: &str, not_after: i64) {
        self.certificate_not_after
            .with_label_values(&[listener])
            .set(not_after);
    }
}
