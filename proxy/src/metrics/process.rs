//! The process metrics of Prometheus, under their usual names. Their values are read at each scrape.
//!
//! The collector in the `prometheus` crate is not used: it counts CPU time in whole seconds only and needs two more crates.

use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};
use tooldock_base::metric_table;

metric_table! {
    /// Prometheus metrics of this operating system process.
    pub(crate) struct ProcessMetrics(registry) {
        cpu_seconds: Counter = "process_cpu_seconds_total",
            "CPU time of this process in seconds, without its children";
        open_fds: Gauge = "process_open_fds", "Open file descriptors";
        max_fds: Gauge = "process_max_fds", "File descriptors there may be";
        resident_bytes: Gauge = "process_resident_memory_bytes",
            "Memory of this process that is in RAM, in bytes";
        virtual_bytes: Gauge = "process_virtual_memory_bytes", "Address space of this process, in bytes";
        threads: Gauge = "process_threads", "Threads of this process";
        start_time: Gauge = "process_start_time_seconds", "When this process started, in seconds since 1970";
    }
    {
        started: f64 = seconds_since_epoch();
        /// CPU time in seconds that was already added to `cpu_seconds`. It has a lock because two scrapes may run at once.
        counted: Mutex<f64> = Mutex::default();
    }
}

impl ProcessMetrics {
    /// Reads all values from the operating system. A metric whose value cannot be read keeps its previous value.
    pub(crate) fn read(&self) {
        self.start_time.set(self.started);
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let cpu = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
        {
            let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
            self.cpu_seconds.inc_by((cpu - *counted).max(0.0));
            *counted = counted.max(cpu);
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            // The count is reduced by 1, because listing the directory opens a descriptor itself.
            self.open_fds.set(open.count().saturating_sub(1) as f64);
        }
        let max = getrlimit(Resource::Nofile).current;
        self.max_fds
            .set(max.map_or(f64::INFINITY, |max| max as f64));
        if let Ok(pages) = std::fs::read_to_string("/proc/self/statm") {
            let page = rustix::param::page_size() as f64;
            let mut bytes = pages
                .split(' ')
                .map_while(|pages| pages.parse::<f64>().ok())
                .map(|pages| pages * page);
            if let (Some(of_all), Some(resident)) = (bytes.next(), bytes.next()) {
                self.virtual_bytes.set(of_all);
                self.resident_bytes.set(resident);
            }
        }
        if let Ok(threads) = std::fs::read_dir("/proc/self/task") {
            self.threads.set(threads.count() as f64);
        }
    }
}

/// The current time in seconds since the Unix epoch.
pub(super) fn seconds_since_epoch() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_the_process_has_a_value() {
        let registry = prometheus::Registry::new();
        let process = ProcessMetrics::new(&registry).expect("a fresh registry");
        // Twice: CPU time is a counter and must not be counted twice.
        process.read();
        process.read();
        let gathered = registry.gather();
        assert_eq!(gathered.len(), 7);
        for family in gathered {
            let metric = &family.get_metric()[0];
            let value = metric.get_gauge().value() + metric.get_counter().value();
            assert!(value > 0.0, "{}", family.name());
        }
    }
}
