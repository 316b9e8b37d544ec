//! A timer for schedules. The runtime's timers have a resolution of a millisecond, which is longer than most answers
//! take.

use std::io;
use std::time::Duration;

use anyhow::Context;
use rustix::fs::Timespec;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// Minimum period: more frequent ticks cost the client too much CPU time.
const LEAST: Duration = Duration::from_micros(100);

/// A timer of the kernel (timerfd). It is read like a pipe, eight bytes per read.
pub(super) struct Ticks(Receiver);

impl Ticks {
    /// Ticks once per `period`, or every tenth of a millisecond if that is longer.
    pub(super) fn every(period: Duration) -> anyhow::Result<Self> {
        let period = period.max(LEAST);
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).context("a timer")?;
        let period = Timespec {
            tv_sec: i64::try_from(period.as_secs()).context("the period")?,
            tv_nsec: i64::from(period.subsec_nanos()),
        };
        let periods = Itimerspec {
            it_interval: period,
            it_value: period,
        };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &periods).context("a timer")?;
        let timer = Receiver::from_owned_fd_unchecked(timer).context("a timer")?;
        Ok(Self(timer))
    }

    /// Waits for the next tick; missed ticks are merged with it.
    pub(super) async fn next(&mut self) -> io::Result<()> {
        // A tick has eight bytes. The buffer is larger, so that the runtime sees that all bytes were read.
        self.0.read(&mut [0; 16]).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn ticks_come_no_earlier_than_their_period() {
        let start = Instant::now();
        let mut ticks = Ticks::every(Duration::from_millis(2)).unwrap();
        for _ in 0..5 {
            ticks.next().await.unwrap();
        }
        // Those that were missed count once, so five ticks are five periods at least.
        assert!(start.elapsed() >= Duration::from_millis(10));
    }
}
