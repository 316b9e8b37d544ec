//! State machine of a worker's supervisor: a pure function from a state and an event to the next state and the actions to carry
//! out, without processes, clocks or randomness.
//!
//! ```text
//!            Booted                     Retire (from every live state)
//! Starting ─────────▶ Ready ──────────────────────────────▶ Stopping ──AllGone──▶ Stopped
//!   ▲  │ ╲             │  ▲ ╲                                   ▲
//!   │  │  ╲ permanent  │  │  ╲ RecycleAsked: a replacement      │
//!   │  │   ▼           │  │   ╲ boots, then takes over          │
//!   │  │  Failed ──────┼──┼────┴────────────────────────────────┘
//!   │  │ BootFailed    │ Ended
//!   │  ▼               ▼
//!   └── Backoff ◀──────┘
//! TimerElapsed
//! ```
//!
//! A worker without calls for `workers.idle_stop` changes from Ready to Idle, and its process ends; the next call changes the state
//! to Starting. That is no failure, and the process counts as no restart.
//!
//! If a process is not started because the files differ from those that were loaded, the state also changes from Starting to
//! Backoff, with the longest delay. That does not count as a failure: the owner of the worker is notified and starts another
//! worker.
//!
//! A process whose event loop is blocked past a time limit is replaced immediately: from Ready to Starting, without a delay.
//! That does not count as a failure either, because a new process is expected to work.
//!
//! A failure is a start that failed, or a process that ended without an order. Delays double from `initial` to `max`, and are
//! reduced by up to half at random. A configured number of failures within the window is a crash loop: the worker is retried
//! at the delay `max` until it was once ready for longer than the window. After a process was ready that long, earlier failures
//! are forgotten.
//!
//! `Failed` is the final state of a worker that never became ready, for a reason that retries cannot resolve; only a reload,
//! which creates a new worker, ends it.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;
use tooldock_base::config::WorkersConfig;

/// Events that change the state of a worker's supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecycleEvent {
    /// The current process is ready and connected.
    Booted,
    /// The current process failed to start. `permanent` is true if retries cannot succeed.
    BootFailed { permanent: bool },
    /// The next process has other files or functions than those with which the worker was started.
    Outdated,
    /// The current process, or the connection to it, ended without an order.
    Ended,
    /// The current process is blocked by a call that is past its time limit.
    Hung,
    /// The current process asks to be replaced.
    RecycleAsked,
    /// The replacement is ready and connected.
    ReplacementBooted,
    /// The replacement failed to boot.
    ReplacementFailed,
    /// The delay of an [`Action::Schedule`] is over.
    TimerElapsed,
    /// The worker had no call for the time `workers.idle_stop`.
    Unused,
    /// A call waits for the worker.
    Wanted,
    /// The worker is no longer needed and must end.
    Retire,
    /// No process of the worker remains.
    AllGone,
}

/// An action that the supervisor must carry out now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Start a process and make it the current one.
    Spawn,
    /// Start a process for the calls that wait, and make it the current one.
    Wake,
    /// End the current process and its replacement, after their calls.
    StopUnused,
    /// Make the current process accept calls.
    Publish,
    /// Start a process in addition to the current one.
    SpawnReplacement,
    /// Make the replacement the current process, which accepts calls; drain and end the previous one.
    Switch,
    /// Make the replacement, which is still starting, the current process.
    Promote,
    /// Send [`LifecycleEvent::TimerElapsed`] after this delay.
    Schedule(Duration),
    /// Drain and end every process.
    FinishAll,
}

/// Lifecycle phase of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LifecyclePhase {
    Starting,
    Ready {
        since: Instant,
        recycle: Recycle,
    },
    /// No process runs, because no call needs one.
    Idle,
    Backoff {
        until: Instant,
    },
    Stopping,
    Stopped,
    Failed,
}

/// State of the replacement of a process that asked to be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recycle {
    NotAsked,
    /// The replacement failed to start; the next attempt follows after a delay.
    Waiting,
    Booting,
}

/// Delays and thresholds of restarts, from the configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    pub(super) initial: Duration,
    pub(super) max: Duration,
    pub(super) failures: u32,
    pub(super) window: Duration,
}

impl From<&WorkersConfig> for Rules {
    fn from(config: &WorkersConfig) -> Self {
        Self {
            initial: config.backoff.initial,
            max: config.backoff.max,
            failures: config.crash_loop.failures,
            window: config.crash_loop.window,
        }
    }
}

/// Complete state of a worker's supervision: the current phase, and the record of earlier failures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LifecycleState {
    pub(super) phase: LifecyclePhase,
    pub(super) crash_loop: bool,
    /// Number of consecutive failures, which determines the delay of the next start. Once the worker was ready, only the failures
    /// within the window count.
    consecutive: u32,
    /// Times of the latest failures; at most the number of failures that counts as a crash loop.
    recent: VecDeque<Instant>,
    /// True once the worker has been ready.
    proven: bool,
}

impl LifecycleState {
    /// The state of a new worker, and the first actions.
    pub(super) fn start() -> (Self, Vec<Action>) {
        let state = Self {
            phase: LifecyclePhase::Starting,
            crash_loop: false,
            consecutive: 0,
            recent: VecDeque::new(),
            proven: false,
        };
        (state, vec![Action::Spawn])
    }

    /// Returns the state after an event, and the actions to carry out. `jitter` is a random number in `0.0..1.0`. An event that
    /// has no meaning in the current state, such as the end of a process that was already replaced, changes nothing.
    pub(super) fn step(
        mut self,
        event: LifecycleEvent,
        now: Instant,
        rules: &Rules,
        jitter: f64,
    ) -> (Self, Vec<Action>) {
        use LifecyclePhase::{Backoff, Failed, Idle, Ready, Starting, Stopped, Stopping};
        let actions = match (self.phase, event) {
            (Starting, LifecycleEvent::Booted) => {
                self.become_ready(now);
                vec![Action::Publish]
            }
            (Starting, LifecycleEvent::BootFailed { permanent: true }) if !self.proven => {
                self.phase = Failed;
                vec![]
            }
            (Starting, LifecycleEvent::BootFailed { .. } | LifecycleEvent::Ended) => {
                self.fail(now, rules, jitter)
            }
            (Starting, LifecycleEvent::Outdated) => {
                // The start is tried again later, because the files may be restored.
                self.phase = Backoff {
                    until: now + rules.max,
                };
                vec![Action::Schedule(rules.max)]
            }
            (
                Ready {
                    recycle: Recycle::Booting,
                    ..
                },
                LifecycleEvent::Ended | LifecycleEvent::Hung,
            ) => {
                self.forgive(now, rules);
                self.phase = Starting;
                vec![Action::Promote]
            }
            (Ready { .. }, LifecycleEvent::Hung) => {
                self.forgive(now, rules);
                self.phase = Starting;
                vec![Action::Spawn]
            }
            (Ready { .. }, LifecycleEvent::Ended) => {
                self.forgive(now, rules);
                // The worker was ready before, so only earlier failures within the window prolong the delay.
                self.forget_old_failures(now, rules);
                self.consecutive = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
                self.fail(now, rules, jitter)
            }
            (
                Ready {
                    since,
                    recycle: Recycle::NotAsked,
                },
                LifecycleEvent::RecycleAsked,
            )
            | (
                Ready {
                    since,
                    recycle: Recycle::Waiting,
                },
                LifecycleEvent::TimerElapsed,
            ) => {
                self.phase = Ready {
                    since,
                    recycle: Recycle::Booting,
                };
                vec![Action::SpawnReplacement]
            }
            (
                Ready {
                    recycle: Recycle::Booting,
                    ..
                },
                LifecycleEvent::ReplacementBooted,
            ) => {
                self.become_ready(now);
                vec![Action::Switch]
            }
            (
                Ready {
                    since,
                    recycle: Recycle::Booting,
                },
                LifecycleEvent::ReplacementFailed,
            ) => {
                self.phase = Ready {
                    since,
                    recycle: Recycle::Waiting,
                };
                vec![Action::Schedule(rules.max)]
            }
            (Backoff { .. }, LifecycleEvent::TimerElapsed) => {
                self.phase = Starting;
                vec![Action::Spawn]
            }
            (Ready { .. }, LifecycleEvent::Unused) => {
                self.forgive(now, rules);
                self.phase = Idle;
                vec![Action::StopUnused]
            }
            (Idle, LifecycleEvent::Wanted) => {
                self.phase = Starting;
                vec![Action::Wake]
            }
            (Starting | Ready { .. } | Idle | Backoff { .. } | Failed, LifecycleEvent::Retire) => {
                self.phase = Stopping;
                vec![Action::FinishAll]
            }
            (Stopping, LifecycleEvent::AllGone) => {
                self.phase = Stopped;
                vec![]
            }
            _ => vec![],
        };
        (self, actions)
    }

    fn become_ready(&mut self, now: Instant) {
        self.proven = true;
        self.phase = LifecyclePhase::Ready {
            since: now,
            recycle: Recycle::NotAsked,
        };
    }

    /// Clears the record of failures if the current process was ready for longer than the window.
    fn forgive(&mut self, now: Instant, rules: &Rules) {
        if let LifecyclePhase::Ready { since, .. } = self.phase
            && now.saturating_duration_since(since) > rules.window
        {
            self.consecutive = 0;
            self.recent.clear();
            self.crash_loop = false;
        }
    }

    fn forget_old_failures(&mut self, now: Instant, rules: &Rules) {
        self.recent
            .retain(|at| now.saturating_duration_since(*at) <= rules.window);
    }

    fn fail(&mut self, now: Instant, rules: &Rules, jitter: f64) -> Vec<Action> {
        self.consecutive = self.consecutive.saturating_add(1);
        self.recent.push_back(now);
        while self.recent.len() > rules.failures.max(1) as usize {
            self.recent.pop_front();
        }
        self.forget_old_failures(now, rules);
        // The flag stays set: at the longest delay, too few failures fall into the window to detect the crash loop again. It is
        // cleared only after a process was ready for longer than the window.
        self.crash_loop |= self.recent.len() >= rules.failures.max(1) as usize;
        let delay = self.delay(rules, jitter);
        self.phase = LifecyclePhase::Backoff { until: now + delay };
        vec![Action::Schedule(delay)]
    }

    fn delay(&self, rules: &Rules, jitter: f64) -> Duration {
        let full = if self.crash_loop {
            rules.max
        } else {
            let doublings = self.consecutive.saturating_sub(1).min(31);
            rules.initial.saturating_mul(1 << doublings).min(rules.max)
        };
        full.mul_f64(1.0 - jitter.clamp(0.0, 1.0) / 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules {
        initial: Duration::from_millis(500),
        max: Duration::from_secs(60),
        failures: 5,
        window: Duration::from_secs(60),
    };

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A state after a series of events, one second apart, without jitter.
    fn after(events: &[LifecycleEvent]) -> (LifecycleState, Instant) {
        let mut now = Instant::now();
        let mut state = LifecycleState::start().0;
        for event in events {
            now += seconds(1.0);
            state = state.step(*event, now, &RULES, 0.0).0;
        }
        (state, now)
    }

    fn name(phase: LifecyclePhase) -> &'static str {
        match phase {
            LifecyclePhase::Starting => "starting",
            LifecyclePhase::Ready {
                recycle: Recycle::NotAsked,
                ..
            } => "ready",
            LifecyclePhase::Ready {
                recycle: Recycle::Waiting,
                ..
            } => "ready, recycle waits",
            LifecyclePhase::Ready {
                recycle: Recycle::Booting,
                ..
            } => "ready, recycle boots",
            LifecyclePhase::Idle => "idle",
            LifecyclePhase::Backoff { .. } => "backoff",
            LifecyclePhase::Stopping => "stopping",
            LifecyclePhase::Stopped => "stopped",
            LifecyclePhase::Failed => "failed",
        }
    }

    #[test]
    fn every_event_in_every_state_leads_where_the_diagram_says() {
        use LifecycleEvent::{
            AllGone, BootFailed, Booted, Ended, Hung, Outdated, RecycleAsked, ReplacementBooted,
            ReplacementFailed, Retire, TimerElapsed, Unused, Wanted,
        };
        let failed = BootFailed { permanent: false };
        let hopeless = BootFailed { permanent: true };
        let half = Action::Schedule(seconds(0.5));
        let longest = Action::Schedule(RULES.max);
        #[rustfmt::skip]
        let table: &[(&[LifecycleEvent], LifecycleEvent, &str, &[Action])] = &[
            (&[], Booted, "ready", &[Action::Publish]),
            (&[], failed, "backoff", &[half]),
            (&[], Ended, "backoff", &[half]),
            (&[], hopeless, "failed", &[]),
            (&[], Retire, "stopping", &[Action::FinishAll]),
            (&[failed, TimerElapsed], Outdated, "backoff", &[longest]),
            (&[Booted, Ended, TimerElapsed, Outdated], TimerElapsed, "starting", &[Action::Spawn]),
            (&[Booted, Ended, TimerElapsed, Outdated], Retire, "stopping", &[Action::FinishAll]),
            (&[Booted], Outdated, "ready", &[]),
            (&[], TimerElapsed, "starting", &[]),
            (&[], RecycleAsked, "starting", &[]),
            (&[failed], TimerElapsed, "starting", &[Action::Spawn]),
            (&[failed], Ended, "backoff", &[]),
            (&[failed], Retire, "stopping", &[Action::FinishAll]),
            (&[failed, TimerElapsed], hopeless, "failed", &[]),
            (&[Booted], Ended, "backoff", &[half]),
            (&[], Hung, "starting", &[]),
            (&[Booted], Hung, "starting", &[Action::Spawn]),
            (&[Booted, Hung], Booted, "ready", &[Action::Publish]),
            (&[Booted, Hung], failed, "backoff", &[half]),
            (&[Booted, Ended], Hung, "backoff", &[]),
            (&[Booted, RecycleAsked], Hung, "starting", &[Action::Promote]),
            (&[Retire], Hung, "stopping", &[]),
            (&[Booted], AllGone, "ready", &[]),
            (&[Booted], TimerElapsed, "ready", &[]),
            (&[Booted], ReplacementBooted, "ready", &[]),
            (&[Booted], Retire, "stopping", &[Action::FinishAll]),
            (&[Booted, Ended, TimerElapsed], hopeless, "backoff", &[Action::Schedule(seconds(1.0))]),
            (&[Booted], RecycleAsked, "ready, recycle boots", &[Action::SpawnReplacement]),
            (&[Booted, RecycleAsked], RecycleAsked, "ready, recycle boots", &[]),
            (&[Booted, RecycleAsked], ReplacementBooted, "ready", &[Action::Switch]),
            (&[Booted, RecycleAsked], ReplacementFailed, "ready, recycle waits", &[longest]),
            (&[Booted, RecycleAsked], Ended, "starting", &[Action::Promote]),
            (&[Booted, RecycleAsked], Retire, "stopping", &[Action::FinishAll]),
            (&[Booted, RecycleAsked, Ended], Booted, "ready", &[Action::Publish]),
            (&[Booted, RecycleAsked, ReplacementFailed], TimerElapsed, "ready, recycle boots", &[Action::SpawnReplacement]),
            (&[Booted, RecycleAsked, ReplacementFailed], Ended, "backoff", &[half]),
            (&[], Unused, "starting", &[]),
            (&[], Wanted, "starting", &[]),
            (&[failed], Unused, "backoff", &[]),
            (&[failed], Wanted, "backoff", &[]),
            (&[Booted], Wanted, "ready", &[]),
            (&[Booted], Unused, "idle", &[Action::StopUnused]),
            (&[Booted, RecycleAsked], Unused, "idle", &[Action::StopUnused]),
            (&[Booted, Unused], Wanted, "starting", &[Action::Wake]),
            (&[Booted, Unused], Ended, "idle", &[]),
            (&[Booted, Unused], Unused, "idle", &[]),
            (&[Booted, Unused], Retire, "stopping", &[Action::FinishAll]),
            (&[Booted, Unused, Wanted], Booted, "ready", &[Action::Publish]),
            (&[Booted, Unused, Wanted], failed, "backoff", &[half]),
            (&[Retire], AllGone, "stopped", &[]),
            (&[Retire], Booted, "stopping", &[]),
            (&[Retire], Ended, "stopping", &[]),
            (&[Retire, AllGone], Retire, "stopped", &[]),
            (&[hopeless], TimerElapsed, "failed", &[]),
            (&[hopeless], Retire, "stopping", &[Action::FinishAll]),
        ];
        for (before, event, phase, actions) in table {
            let (state, now) = after(before);
            let (state, done) = state.step(*event, now + seconds(1.0), &RULES, 0.0);
            assert_eq!(name(state.phase), *phase, "{before:?} then {event:?}");
            assert_eq!(done, *actions, "{before:?} then {event:?}");
        }
    }

    #[test]
    fn delays_double_up_to_the_longest_and_jitter_takes_up_to_half() {
        let rules = Rules {
            failures: 100,
            ..RULES
        };
        let mut state = LifecycleState::start().0;
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..9 {
            let (next, actions) = state.step(
                LifecycleEvent::BootFailed { permanent: false },
                now,
                &rules,
                0.0,
            );
            if let [Action::Schedule(delay)] = actions[..] {
                delays.push(delay.as_secs_f64());
                now += delay;
            }
            state = next.step(LifecycleEvent::TimerElapsed, now, &rules, 0.0).0;
        }
        assert_eq!(delays, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]);
        let least = LifecycleState::start()
            .0
            .step(LifecycleEvent::Ended, now, &rules, 1.0)
            .1;
        assert_eq!(least, [Action::Schedule(seconds(0.25))]);
    }

    #[test]
    fn a_worker_that_dies_now_and_then_does_not_wait_longer_each_time() {
        let mut state = LifecycleState::start()
            .0
            .step(LifecycleEvent::Booted, Instant::now(), &RULES, 0.0)
            .0;
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..6 {
            now += RULES.window * 2 / 3;
            let (next, actions) = state.step(LifecycleEvent::Ended, now, &RULES, 0.0);
            if let [Action::Schedule(delay)] = actions[..] {
                delays.push(delay.as_secs_f64());
            }
            state = next.step(LifecycleEvent::TimerElapsed, now, &RULES, 0.0).0;
            state = state.step(LifecycleEvent::Booted, now, &RULES, 0.0).0;
        }
        assert_eq!(delays, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_process_that_is_replaced_for_a_blocked_loop_is_no_crash_loop_and_makes_none_wait() {
        let events =
            [LifecycleEvent::Booted, LifecycleEvent::Hung].repeat(3 * RULES.failures as usize);
        let (state, now) = after(&events);
        assert!(!state.crash_loop);
        let state = state.step(LifecycleEvent::Booted, now, &RULES, 0.0).0;
        let (_, actions) = state.step(LifecycleEvent::Ended, now, &RULES, 0.0);
        assert_eq!(actions, [Action::Schedule(RULES.initial)]);
    }

    #[test]
    fn many_failures_in_the_window_are_a_crash_loop_that_only_a_long_ready_time_ends() {
        let fail = LifecycleEvent::BootFailed { permanent: false };
        let mut events = [fail, LifecycleEvent::TimerElapsed].repeat(4);
        let (calm, _) = after(&events);
        assert!(!calm.crash_loop);
        events.push(fail);
        let (looping, mut now) = after(&events);
        assert!(looping.crash_loop);
        assert_eq!(
            looping.phase,
            LifecyclePhase::Backoff {
                until: now + RULES.max
            }
        );

        // Far outside the window, after a short time of being ready: still looping, still at the longest delay.
        now += seconds(600.0);
        let mut state = looping;
        for event in [LifecycleEvent::TimerElapsed, LifecycleEvent::Booted] {
            state = state.step(event, now, &RULES, 0.0).0;
        }
        let (relapsed, actions) =
            state
                .clone()
                .step(LifecycleEvent::Ended, now + RULES.window, &RULES, 0.0);
        assert!(relapsed.crash_loop);
        assert_eq!(actions, [Action::Schedule(RULES.max)]);

        let late = now + RULES.window + seconds(1.0);
        let (recovered, actions) = state.step(LifecycleEvent::Ended, late, &RULES, 0.0);
        assert!(!recovered.crash_loop);
        assert_eq!(actions, [Action::Schedule(RULES.initial)]);
    }
}
