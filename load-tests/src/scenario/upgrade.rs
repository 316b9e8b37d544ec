//! An upgrade under load: a successor takes over from a gateway that has calls and thousands of open streams.
//!
//! ```text
//! sessions on disk ── streams open ── an event to all ── calls on a fixed schedule ─┬─ a window
//!                                                                                  └─ serve --upgrade, several times
//!                  each stream that ends is resumed ── an event to all
//! ```

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Run;
use super::stores::{ECHO, in_sessions};
use crate::load::open::{Open, OpenLoad};
use crate::load::{Load, Window};
use crate::message::Expect;
use crate::report::{Numbers, Section};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{Gateway, Layout, NAMESPACE, Setup};
use crate::streams::{Crowd, Publisher};
use crate::wire::Target;

/// Maximum rate of calls as a fraction of the rate of a closed loop; with more, the calls would measure their own
/// queue.
const OF_CAPACITY: f64 = 0.5;
/// Time limit for an event to reach all streams, and for all streams to return.
const LIMIT: Duration = Duration::from_secs(60);
/// The predecessor answers requests on kept connections for 5 s.
const KEPT: Duration = Duration::from_secs(6);
const SERIES: &str = "upgrades";
const WITHOUT: &str = "a window without";
const WITH: &str = "an upgrade";

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let (streams, connections) = (run.count("streams")?, run.count("connections")?);
    let mut section = Section::default();
    let setup = Setup::new(Layout::Separate)
        .python(NAMESPACE)
        .stdio(ECHO, EchoProgram::find()?.command(Era::Legacy))
        .config("sessions: { store: disk }");
    let mut gateway = Gateway::start(run.options, &setup).await?;
    let envelope = gateway.envelope();
    let requests = in_sessions(envelope.of(ECHO), connections, |it| it.numbered_call()).await?;
    let (target, expect) = (Target::Http(gateway.address), Expect::NUMBERED_ECHO);
    let load = Load {
        target: target.clone(),
        requests: requests.clone(),
        expect,
        window: Window::by(run.options, vec![gateway.id()]),
    };
    let closed = run.right("a closed loop", &load).await?;
    let rate = run.rate("calls_per_second")?;
    let rate = rate.min(closed.per_second * OF_CAPACITY).floor();

    let mut crowd = Crowd::new(envelope)?;
    crowd.sign_up(streams).await?;
    crowd.open_up_to(streams, gateway.address).await?;
    crowd.resume_what_ends();
    to_all(&gateway, &crowd).await?;
    for repetition in run.repetitions() {
        let calls = Open::start(OpenLoad {
            target: target.clone(),
            requests: requests.clone(),
            expect,
            per_second: rate,
        })
        .await?;
        sleep(run.options.warm_up()).await;
        let before = gateway.id();
        let without = calls.watch(run.options.measured(), &[before], &[]).await?;
        let (resumed, start) = (crowd.counts().resumed, Instant::now());
        let work = async {
            gateway.upgrade().await?;
            let took = start.elapsed();
            let back = crowd.have_resumed(resumed + streams, LIMIT).await - resumed;
            sleep(KEPT).await;
            anyhow::Ok((took, back))
        };
        // The CPU time of this program is passed instead, as that of two gateways cannot be compared.
        let (outcome, with) = calls.during(&[std::process::id()], &[], work).await?;
        let (took, back) = outcome?;
        drop(calls);
        to_all(&gateway, &crowd).await?;
        // Adds the event that is published before the first upgrade.
        let published = repetition + 1;
        let wrong = crowd.clients().iter().filter(|client| {
            let events = client.events();
            let in_order = events.is_sorted_by(|one, next| one.sequence < next.sequence);
            events.len() != published || !in_order
        });
        let wrong = wrong.count();
        for (when, sample) in [(WITHOUT, &without), (WITH, &with)] {
            run.told(&mut section, &format!("calls, {when}"), sample);
        }
        run.progress(&format!(
            "{repetition}: {back} streams resumed, {wrong} wrong, {:.1} s",
            took.as_secs_f64()
        ));
        if back < streams {
            section.fail(format!("{back} of {streams} streams were resumed"));
        }
        if wrong > 0 {
            section.fail(format!("{wrong} streams have not every event once"));
        }
        let name = |when: &str| format!("{when}, {rate} calls/s, {streams} streams");
        section.add(SERIES, [name(WITHOUT)], Numbers::of(&without));
        let numbers = Numbers::of(&with)
            .with("resumed", back as f64)
            .with("took_ms", took.as_secs_f64() * 1e3);
        section.add(SERIES, [name(WITH)], numbers);
    }
    let (turned_away, first) = crowd.counts().turned_away.clone();
    if let Some(first) = first {
        section.note(format!(
            "Attempts to resume a stream that failed and were made again: {turned_away}; the first: {first}"
        ));
    }
    Ok(section)
}

/// Publishes an event with a new publisher, and waits until all streams have received it.
async fn to_all(gateway: &Gateway, crowd: &Crowd) -> anyhow::Result<()> {
    let target = crowd.counts().events + crowd.open();
    let mut publisher = Publisher::open(gateway.envelope()).await?;
    publisher.publish().await?;
    crowd.have_together(target, LIMIT).await
}
