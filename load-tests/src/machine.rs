//! The machine on which a run was measured.

use std::fs;

use serde::{Deserialize, Serialize};

/// Properties of the machine of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Load average of the last minute, before the run: other work makes numbers worse.
    pub(crate) load_before: String,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let processor = text("/proc/cpuinfo").lines().find_map(|line| {
            Some(
                line.strip_prefix("model name")?
                    .split_once(':')?
                    .1
                    .trim()
                    .to_owned(),
            )
        });
        Self {
            processor: processor.unwrap_or_else(|| "unknown processor".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            load_before: text("/proc/loadavg")
                .split(' ')
                .next()
                .unwrap_or_default()
                .to_owned(),
        }
    }
}
