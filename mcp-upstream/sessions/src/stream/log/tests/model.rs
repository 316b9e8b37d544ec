//! Tests any interleaving of operations on the streams of two sessions against a model of the events that a client must get.

use proptest::prelude::*;

use super::*;

/// Bounds small enough to be reached often.
const EVENTS: usize = 5;
const BYTES: u64 = 400;

/// An operation. Numbers choose among the present streams.
#[derive(Debug, Clone)]
enum Step {
    Open {
        session: usize,
        general: bool,
        prime: bool,
    },
    Append {
        stream: usize,
        length: usize,
    },
    Read {
        stream: usize,
        count: usize,
    },
    Leave {
        stream: usize,
    },
    Resume {
        stream: usize,
        behind: usize,
    },
    Finish {
        stream: usize,
    },
    Pass {
        seconds: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let any_stream = 0..1000_usize;
    prop_oneof![
        2 => (0..2_usize, any::<bool>(), any::<bool>())
            .prop_map(|(session, general, prime)| Step::Open { session, general, prime }),
        12 => (any_stream.clone(), prop_oneof![4 => 0..40_usize, 1 => 200..700_usize])
            .prop_map(|(stream, length)| Step::Append { stream, length }),
        8 => (any_stream.clone(), 0..8_usize).prop_map(|(stream, count)| Step::Read { stream, count }),
        3 => any_stream.clone().prop_map(|stream| Step::Leave { stream }),
        5 => (any_stream.clone(), 0..1000_usize)
            .prop_map(|(stream, behind)| Step::Resume { stream, behind }),
        1 => any_stream.prop_map(|stream| Step::Finish { stream }),
        2 => (0..40_u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

/// The state of a stream from its client's point of view, with the events that it must still get.
struct Modelled {
    session: usize,
    general: bool,
    stream: Arc<Stream>,
    /// All messages ever added, in order, with their times.
    messages: Vec<(String, usize, Instant)>,
    /// Ids by message, as they become known, with the number of events before each. The priming event comes before all.
    ids: Vec<(String, usize)>,
    reader: Option<Subscription>,
    /// The next message for the reader, or a later one if earlier messages may be gone.
    next: usize,
    may_skip: bool,
    primed: bool,
    finished: bool,
}

impl Modelled {
    /// The first message that must still be kept: within the events, the bytes and the age of the window.
    fn retained_from(&self, now: Instant) -> usize {
        let mut bytes = 0;
        let mut from = self.messages.len();
        for (index, (_, length, at)) in self.messages.iter().enumerate().rev() {
            bytes += length;
            let newest = index + 1 == self.messages.len();
            let within = self.messages.len() - index <= EVENTS && bytes <= BYTES as usize;
            if !(newest || within) || now.duration_since(*at) >= AGE {
                break;
            }
            from = index;
        }
        from
    }

    /// Returns true if so much is unread that the stream may end its reader: more than the bounds apart from the newest, or an
    /// event older than the age.
    fn may_end(&self, now: Instant) -> bool {
        let unread = &self.messages[self.next.min(self.messages.len())..];
        let Some((_, older)) = unread.split_last() else {
            return false;
        };
        let bytes: usize = older.iter().map(|(_, length, _)| length).sum();
        let aged = unread
            .iter()
            .any(|(_, _, at)| now.duration_since(*at) >= AGE);
        older.len() > EVENTS || bytes > BYTES as usize || aged
    }

    fn take(&mut self, seen: &Seen, now: Instant) -> Result<(), TestCaseError> {
        if seen.data.is_empty() {
            prop_assert!(
                self.primed && self.next == 0 && self.ids.is_empty(),
                "priming comes first"
            );
            self.ids.push((seen.id.clone(), 0));
            return Ok(());
        }
        let at = self
            .messages
            .iter()
            .position(|(message, ..)| *message == seen.data);
        prop_assert!(at.is_some(), "{} was never put on this stream", seen.data);
        let at = at.unwrap_or_default();
        if self.may_skip {
            prop_assert!(at >= self.next, "{at} came after {}", self.next);
            prop_assert!(
                at <= self.next.max(self.retained_from(now)),
                "{at} instead of {}, though the window begins at {}",
                self.next,
                self.retained_from(now)
            );
        } else {
            prop_assert_eq!(at, self.next);
        }
        self.may_skip = false;
        self.next = at + 1;
        let known = self.ids.iter().find(|(_, behind)| *behind == at + 1);
        match known {
            Some((id, _)) => prop_assert_eq!(id, &seen.id, "an event keeps its id"),
            None => self.ids.push((seen.id.clone(), at + 1)),
        }
        Ok(())
    }

    /// Reads up to `count` events.
    fn read(&mut self, count: usize) -> Result<(), TestCaseError> {
        let now = Instant::now();
        for _ in 0..count {
            let Some(reader) = &mut self.reader else {
                return Ok(());
            };
            match reader.next().now_or_never() {
                None => {
                    let all = self.next >= self.messages.len() && !self.finished;
                    let gone = self.may_skip && self.retained_from(now) >= self.messages.len();
                    prop_assert!(
                        all || gone,
                        "waits at {} of {}",
                        self.next,
                        self.messages.len()
                    );
                    return Ok(());
                }
                Some(None) => {
                    let read = self.next >= self.messages.len();
                    let gone = self.may_skip && self.retained_from(now) >= self.messages.len();
                    let over = self.finished && (read || gone);
                    prop_assert!(over || self.may_end(now), "ended at {}", self.next);
                    self.reader = None;
                }
                Some(Some(frame)) => self.take(&seen(&frame), now)?,
            }
        }
        Ok(())
    }
}

async fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (log, _) = log(limits(EVENTS, BYTES));
    let sessions = [session(), session()];
    let mut streams: Vec<Modelled> = Vec::new();
    let mut put = 0;
    for step in steps {
        let among = streams.len();
        let chosen = |number: usize| (among > 0).then(|| number % among);
        match step {
            Step::Open {
                session,
                general,
                prime,
            } => {
                if among >= 6 {
                    continue;
                }
                let kind = if general {
                    StreamKind::General
                } else {
                    StreamKind::Request
                };
                let stream = log
                    .open(&sessions[session], kind, prime)
                    .await
                    .expect("memory");
                let reader = Some(stream.read());
                streams.push(Modelled {
                    session,
                    general,
                    stream,
                    messages: Vec::new(),
                    ids: Vec::new(),
                    reader,
                    next: 0,
                    may_skip: false,
                    primed: prime,
                    finished: false,
                });
            }
            Step::Append { stream, length } => {
                let Some(at) = chosen(stream) else { continue };
                put += 1;
                let message = format!("{put:>05}{}", "x".repeat(length));
                let own = &mut streams[at];
                log.append(&sessions[own.session], &own.stream, message.as_bytes())
                    .await;
                if !own.finished {
                    // Less than the frame: the model may assume that more fits, so it adds the fields.
                    let framed = message.len() + "id: 12-12345\nevent: message\ndata: \n\n".len();
                    own.messages.push((message, framed, Instant::now()));
                }
            }
            Step::Read { stream, count } => {
                let Some(at) = chosen(stream) else { continue };
                streams[at].read(count)?;
            }
            Step::Leave { stream } => {
                let Some(at) = chosen(stream) else { continue };
                streams[at].reader = None;
            }
            Step::Resume { stream, behind } => {
                let Some(at) = chosen(stream) else { continue };
                let own = &mut streams[at];
                if own.ids.is_empty() {
                    continue;
                }
                let (id, next) = own.ids[behind % own.ids.len()].clone();
                let resumed = log.resume(&sessions[own.session], &id).await;
                prop_assert!(resumed.is_ok(), "{id} was given out");
                if let Some(mut before) = own.reader.take() {
                    prop_assert_eq!(before.next().now_or_never(), Some(None), "taken over");
                }
                own.reader = resumed.ok();
                own.next = next;
                own.may_skip = true;
            }
            Step::Finish { stream } => {
                let Some(at) = chosen(stream) else { continue };
                // General streams end only with their session.
                if !streams[at].general {
                    streams[at].stream.finish();
                    streams[at].finished = true;
                }
            }
            Step::Pass { seconds } => {
                tokio::time::advance(Duration::from_secs(seconds)).await;
                log.sweep(Instant::now());
            }
        }
    }
    for own in &mut streams {
        own.read(usize::MAX)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn each_retained_event_is_delivered_once_and_in_order(steps in prop::collection::vec(step(), 1..120)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(run(steps))?;
    }
}
