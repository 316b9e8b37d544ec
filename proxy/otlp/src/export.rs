//! The thread that exports to an OTLP receiver. It takes batches from the queues and sends them. A batch is sent again after a
//! temporary failure, and dropped after any other failure.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use prometheus::IntCounter;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::client::{Signal, Transport};
use crate::encode::{self, Times, nanos};
use crate::queue::{Queue, Weight};
use crate::{ExportState, FLUSH, LogQueue, MetricsSource, families};

/// Maximum time that an entry waits in a queue for its batch to fill.
const BATCH_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of attempts to send a batch; afterwards the batch is dropped.
const ATTEMPTS: u32 = 4;
/// Time before the second attempt to send a batch; doubled for each further attempt.
const BACKOFF: Duration = Duration::from_secs(1);
/// Maximum time before a further attempt to send a batch.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Minimum time between two warnings about one signal (traces, metrics or logs).
const WARN_EVERY: Duration = Duration::from_secs(60);

/// Exports until `stop` is true, then sends the rest of the queues for at most [`FLUSH`].
pub(crate) async fn run(
    shared: &ExportState,
    logs: Option<Arc<LogQueue>>,
    transport: Transport,
    gather: &MetricsSource,
    stop: watch::Receiver<bool>,
) {
    let traces = async {
        let sender = Sender::new(shared, &transport, "traces", stop.clone());
        let encode = |batch| encode::spans(&shared.resource, batch);
        if shared.settings.traces {
            sender.batches(&shared.spans, encode).await;
        }
    };
    let logs = async {
        let sender = Sender::new(shared, &transport, "logs", stop.clone());
        let encode = |batch| encode::logs(&shared.resource, batch);
        if let Some(queue) = &logs {
            sender.batches(&queue.0, encode).await;
        }
    };
    let metrics = async {
        let sender = Sender::new(shared, &transport, "metrics", stop.clone());
        if shared.settings.metrics {
            sender.reports(shared, gather).await;
        }
    };
    let all = async { tokio::join!(traces, logs, metrics) };
    let mut stopping = stop.clone();
    let over = async {
        // An error means that the `OtlpGuard` was dropped, which also ends the export.
        let _ = stopping.wait_for(|stop| *stop).await;
        sleep(FLUSH).await;
    };
    tokio::select! {
        _ = all => {}
        () = over => {
            let left = shared.spans.take().len();
            tracing::warn!(left, "the OTLP receiver did not take everything in time");
        }
    }
}

/// Sends the entries of one signal: traces, metrics or logs.
struct Sender<'a> {
    transport: &'a Transport,
    endpoint: &'a str,
    signal: &'static str,
    exported: IntCounter,
    dropped: IntCounter,
    failures: IntCounter,
    stop: watch::Receiver<bool>,
    warned: Option<Instant>,
}

impl<'a> Sender<'a> {
    fn new(
        shared: &'a ExportState,
        transport: &'a Transport,
        signal: &'static str,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let metrics = &shared.metrics;
        Self {
            transport,
            endpoint: &shared.settings.endpoint,
            signal,
            exported: metrics.exported.with_label_values(&[signal]),
            dropped: metrics.dropped.with_label_values(&[signal]),
            failures: metrics.failures.with_label_values(&[signal]),
            stop,
            warned: None,
        }
    }

    /// Sends the entries of a queue in batches. Returns when the export is stopped and the queue is empty.
    async fn batches<T: Weight, S: Signal>(
        mut self,
        queue: &Queue<T>,
        encode: impl Fn(Vec<T>) -> S,
    ) {
        loop {
            let is_last = *self.stop.borrow();
            let batch = queue.take();
            if !batch.is_empty() {
                let count = batch.len() as u64;
                let sent = self.sent(&encode(batch), count, Some(queue)).await;
                self.count(sent, count);
            } else if is_last {
                self.dropped.inc_by(queue.take_dropped());
                return;
            } else {
                tokio::select! {
                    () = queue.batch() => {}
                    () = sleep(BATCH_EVERY) => {}
                    _ = self.stop.changed() => {}
                }
            }
            self.dropped.inc_by(queue.take_dropped());
        }
    }

    /// Sends all metrics at intervals, and a last time when the export is stopped.
    async fn reports(mut self, shared: &ExportState, gather: &MetricsSource) {
        loop {
            let is_last = *self.stop.borrow();
            if !is_last {
                tokio::select! {
                    () = sleep(shared.settings.interval) => {}
                    _ = self.stop.changed() => continue,
                }
            }
            let times = Times {
                start: nanos(shared.started),
                now: nanos(SystemTime::now()),
            };
            let mut metrics = families::metrics(&gather(), times);
            metrics.extend(shared.operations.metric(times));
            let count = families::points(&metrics) as u64;
            let request = encode::metrics(&shared.resource, metrics);
            let sent = self
                .sent(&request, count, None::<&Queue<tooldock_base::trace::Span>>)
                .await;
            self.count(sent, count);
            if is_last {
                return;
            }
        }
    }

    /// Counts the entries of a batch as exported or dropped. `refused` is the number that the receiver rejected; `None` if the
    /// batch was not sent.
    fn count(&self, refused: Option<u64>, count: u64) {
        let refused = refused.unwrap_or(count).min(count);
        self.exported.inc_by(count - refused);
        self.dropped.inc_by(refused);
    }

    /// Sends a request, with further attempts after temporary failures. Returns the number of entries that the receiver rejected;
    /// `None` if all attempts failed.
    async fn sent<T: Weight, S: Signal>(
        &mut self,
        request: &S,
        count: u64,
        queue: Option<&Queue<T>>,
    ) -> Option<u64> {
        let mut wait = BACKOFF;
        for attempt in 1..=ATTEMPTS {
            let failure = match self.transport.send(request).await {
                Ok(0) => return Some(0),
                Ok(refused) => {
                    let refused = u64::try_from(refused).unwrap_or_default();
                    self.warn(&format!("the receiver refused {refused} of {count}"));
                    return Some(refused);
                }
                Err(failure) => failure,
            };
            self.failures.inc();
            self.warn(&failure.reason);
            if !failure.is_passing || attempt == ATTEMPTS || *self.stop.borrow() {
                return None;
            }
            let pause = failure.wait.unwrap_or(wait).min(BACKOFF_MAX);
            wait *= 2;
            // Entries that a full queue dropped are counted now, so that the metric rises while the receiver is down.
            if let Some(queue) = queue {
                self.dropped.inc_by(queue.take_dropped());
            }
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.stop.changed() => {}
            }
        }
        None
    }

    /// Logs a warning about a failure, at most once in [`WARN_EVERY`].
    fn warn(&mut self, reason: &str) {
        if self.warned.is_some_and(|at| at.elapsed() < WARN_EVERY) {
            return;
        }
        self.warned = Some(Instant::now());
        let (signal, endpoint, dropped) = (self.signal, self.endpoint, self.dropped.get());
        tracing::warn!(
            signal,
            endpoint,
            dropped,
            "OTLP export fails: {reason}; calls are not affected, entries beyond the queue are dropped"
        );
    }
}
