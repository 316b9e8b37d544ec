//! Detects polls that block an I/O thread for long, counts them and logs their request.
//!
//! An I/O thread serves hundreds of connections; while it polls the future of one request, all others wait. [`WatchedFuture`]
//! measures each poll by two readings of the clock. A poll longer than [`LONG`] is counted, and logged with its route, method
//! and namespace.
//!
//! The elapsed time alone does not suffice: on a busy machine a thread may be preempted during a poll. So a poll counts as long
//! only if the thread used that much processor time. Since reading it costs a system call, it is read before a poll at most once
//! in `CHECKPOINT_EVERY`, and once more after a poll that took long by the clock. The poll's processor time is then the
//! difference of both readings, less the time between the first reading and the start of the poll. The result is never too high.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use prometheus::{IntCounterVec, Registry};
use rustix::time::{ClockId, clock_gettime};

use crate::names::NamespaceName;

/// Minimum duration of a poll that counts as long.
pub const LONG: Duration = Duration::from_millis(50);
/// Maximum age, at the start of a poll, of the last reading of the thread's processor time; an older reading is renewed.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(10);
/// Minimum time between two log lines. A poll with at least twice the processor time of any poll logged so far is logged at once.
const LINE_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of bytes of an MCP method's name that are kept for the log.
const METHOD_MAX: usize = 32;

/// The first bytes of an MCP method's name. Stored without allocation, because it is recorded with every message.
#[derive(Clone, Copy, Default)]
struct MethodNote {
    bytes: [u8; METHOD_MAX],
    length: u8,
}

thread_local! {
    /// The last reading of the thread's processor time, and the time at which it was read.
    static CHECKPOINT: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
    /// The method of the message that was read during the current poll.
    static METHOD: Cell<MethodNote> = const { Cell::new(MethodNote { bytes: [0; METHOD_MAX], length: 0 }) };
}

/// Records the method of the message that the current poll of this thread handles.
pub fn note_method(method: &str) {
    let mut note = MethodNote::default();
    let length = method.len().min(METHOD_MAX);
    note.bytes[..length].copy_from_slice(&method.as_bytes()[..length]);
    note.length = u8::try_from(length).unwrap_or(0);
    METHOD.set(note);
}

/// Counts and logs long polls.
#[derive(Debug)]
pub struct PollWatch {
    polls: IntCounterVec,
    lines: Mutex<LogLines>,
}

/// Time of the last log line, and the duration of the longest logged poll.
#[derive(Debug, Default)]
struct LogLines {
    last: Option<Instant>,
    longest: Duration,
}

/// The request whose polls are watched.
#[derive(Debug, Clone)]
pub struct PollSubject {
    /// The purpose of the request, as a constant text; it is a label of the counter.
    pub route: &'static str,
    /// The namespace that the request names, if it names one.
    pub namespace: Option<NamespaceName>,
}

/// Duration of a poll: elapsed time, and processor time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PollTime {
    wall: Duration,
    /// Lower bound of the processor time that the thread used during the poll.
    computed: Duration,
}

impl PollTime {
    /// Returns true if the poll was long because its thread computed; false if the thread waited for a core, a file or a lock.
    fn is_computing(self) -> bool {
        self.computed + CHECKPOINT_EVERY >= LONG
    }
}

impl PollWatch {
    /// Creates a watch that counts long polls in a metrics registry.
    ///
    /// # Errors
    ///
    /// When the registry already contains the counter.
    pub fn new(registry: &Registry) -> prometheus::Result<Self> {
        let polls = crate::metric_table::family(
            registry,
            "tooldock_long_polls_total",
            "Polls that kept a message thread for more than 50 ms, by route, and by whether they computed or waited",
            &["route", "cause"],
            &[],
        )?;
        Ok(Self {
            polls,
            lines: Mutex::default(),
        })
    }

    /// Watches the future of a request. `begin` creates the future; its work counts as part of the first poll.
    pub fn over<F>(&self, subject: PollSubject, begin: impl FnOnce() -> F) -> WatchedFuture<'_, F> {
        let began = before();
        WatchedFuture {
            future: begin(),
            watch: self,
            subject,
            method: MethodNote::default(),
            began: Some(began),
        }
    }

    #[cold]
    fn long(&self, subject: &PollSubject, method: MethodNote, time: PollTime) {
        let cause = match time.is_computing() {
            true => "computing",
            false => "waiting",
        };
        let route = subject.route;
        self.polls.with_label_values(&[route, cause]).inc();
        if !time.is_computing() || !self.has_a_line(time.computed) {
            return;
        }
        let method = &method.bytes[..usize::from(method.length)];
        let method = String::from_utf8_lossy(method);
        tracing::warn!(
            route,
            method = &*method,
            namespace = subject.namespace.as_ref().map(NamespaceName::as_str),
            wall_ms = millis(time.wall),
            computed_ms = millis(time.computed),
            "a request computed on a message thread for longer than {} ms",
            LONG.as_millis()
        );
    }

    /// Returns true if a poll with this processor time must be logged: no line was logged recently, or the poll was much longer
    /// than any poll logged so far.
    fn has_a_line(&self, computed: Duration) -> bool {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = lines.last.is_none_or(|last| last.elapsed() >= LINE_EVERY);
        let is_due = is_due || computed >= lines.longest * 2;
        if is_due {
            lines.last = Some(Instant::now());
            lines.longest = lines.longest.max(computed);
        }
        is_due
    }
}

/// A future whose polls are measured.
#[derive(Debug)]
pub struct WatchedFuture<'a, F> {
    future: F,
    watch: &'a PollWatch,
    subject: PollSubject,
    /// The method of the message that was read in an earlier poll; empty if no message was read.
    method: MethodNote,
    /// Time at which the creation of the future began; `None` after the first poll.
    began: Option<Instant>,
}

impl<F: Future + Unpin> Future for WatchedFuture<'_, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let began = this.began.take().unwrap_or_else(before);
        METHOD.set(this.method);
        let outcome = Pin::new(&mut this.future).poll(context);
        this.method = METHOD.get();
        let wall = began.elapsed();
        if wall >= LONG {
            let computed = computed_since(began);
            this.watch
                .long(&this.subject, this.method, PollTime { wall, computed });
        }
        outcome
    }
}

impl std::fmt::Debug for MethodNote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let method = &self.bytes[..usize::from(self.length)];
        f.write_str(&String::from_utf8_lossy(method))
    }
}

/// Returns the current time as the start of a poll. Also reads the thread's processor time if the last reading is too old.
fn before() -> Instant {
    let now = Instant::now();
    let known = CHECKPOINT.get();
    if known.is_none_or(|(at, _)| now.duration_since(at) >= CHECKPOINT_EVERY) {
        CHECKPOINT.set(Some((now, processor_time())));
    }
    now
}

/// Lower bound of the processor time that this thread has used since `began`.
fn computed_since(began: Instant) -> Duration {
    let Some((at, before)) = CHECKPOINT.get() else {
        return Duration::ZERO;
    };
    let computed = processor_time().saturating_sub(before);
    computed.saturating_sub(began.duration_since(at))
}

/// The processor time that this thread has used since its start.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::future::{poll_fn, ready};

    use super::*;

    fn watch() -> PollWatch {
        PollWatch::new(&Registry::new()).expect("a fresh registry")
    }

    fn subject() -> PollSubject {
        PollSubject {
            route: "/openapi.json",
            namespace: Some("calc".parse().expect("a name")),
        }
    }

    fn counted(watch: &PollWatch, cause: &str) -> u64 {
        watch
            .polls
            .with_label_values(&["/openapi.json", cause])
            .get()
    }

    /// Computes until the thread has used this processor time, however long that takes.
    fn compute(time: Duration) {
        let began = processor_time();
        while processor_time() - began < time {
            std::hint::spin_loop();
        }
    }

    #[tokio::test]
    async fn a_poll_that_computes_is_counted_wherever_it_does() {
        let watch = watch();
        watch
            .over(subject(), || {
                compute(LONG * 2);
                ready(())
            })
            .await;
        assert_eq!(counted(&watch, "computing"), 1);
        let mut polls = 0;
        let future = poll_fn(|context| {
            polls += 1;
            context.waker().wake_by_ref();
            match polls {
                1 => Poll::Pending,
                2 => {
                    compute(LONG * 2);
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        });
        watch.over(subject(), || future).await;
        assert_eq!(counted(&watch, "computing"), 2);
    }

    #[tokio::test]
    async fn a_poll_whose_thread_has_no_processor_does_not_compute() {
        let watch = watch();
        watch
            .over(subject(), || {
                std::thread::sleep(LONG * 2);
                ready(())
            })
            .await;
        assert_eq!(counted(&watch, "waiting"), 1);
        assert_eq!(counted(&watch, "computing"), 0);
    }

    #[test]
    fn what_was_computed_before_a_poll_is_not_the_polls() {
        CHECKPOINT.set(Some((Instant::now(), processor_time())));
        compute(LONG);
        let began = Instant::now();
        assert!(computed_since(began) <= LONG / 2);
    }

    #[test]
    fn lines_are_few_and_a_much_longer_poll_has_its_own() {
        let watch = watch();
        assert!(watch.has_a_line(LONG));
        assert!(!watch.has_a_line(LONG));
        assert!(watch.has_a_line(LONG * 2));
        assert!(!watch.has_a_line(LONG * 3));
    }
}
