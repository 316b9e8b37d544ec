//! Mixed traffic with faults for a long time: checks that every response is correct and that no resource grows.
//!
//! ```text
//! gateway: load, slow, news, changing (Python) · echo (stdio, legacy) · dual (stdio, both eras)
//!
//! for so many minutes, all at once:
//!   calls of every kind · sessions opened, used, closed or abandoned · streams dropped and resumed, events compared
//!   refusals · calls whose client leaves · a namespace that changes, with a reload · SIGKILL of workers and servers
//!   once a second: memory, descriptors, threads, processes
//! then nothing: does the gateway come back to what it was?
//! ```

mod books;
mod calls;
mod faults;
mod found;
mod growth;
mod refusals;
mod reloads;
mod scene;
mod sessions;
mod streams;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until};

use super::Run;
use crate::report::{Section, minutes};
use crate::servers::echo::{EchoProgram, Era};
use crate::servers::gateway::{Gateway, Layout, NAMESPACE, Setup, versioned};
use scene::{CHANGING, DUAL, ECHO, NEWS, SLOW, Scene};
use watch::Watch;

/// Sessions and events expire within the run, so that leaked ones can be distinguished from those that will still expire.
const CONFIG: &str = "sessions: { ttl: 30s, event_log: { age: 30s } }";
/// Time limit for the gateway to return to its initial state: abandoned sessions have to expire.
const REST: Duration = Duration::from_secs(60);

pub(super) async fn measure(run: &mut Run<'_>) -> anyhow::Result<Section> {
    let echo = EchoProgram::find()?;
    let setup = Setup::new(Layout::Separate)
        .python(NAMESPACE)
        .python(NEWS)
        .code(SLOW, calls::SLOW_CODE.to_owned())
        .code(CHANGING, versioned(0))
        .stdio(ECHO, echo.command(Era::Legacy))
        .stdio(DUAL, echo.command(Era::Dual))
        .config(CONFIG);
    let gateway = Gateway::start(run.options, &setup).await?;
    gateway.has_worker(NAMESPACE).await?;
    let scene = Scene::new(gateway.envelope());
    calls::one_of_each(&scene).await?;
    let mut watch = Watch::start(&gateway).await?;

    let mut clients = JoinSet::new();
    calls::spawn(&mut clients, &scene);
    sessions::spawn(&mut clients, &scene);
    clients.spawn(refusals::ask(Arc::clone(&scene)));
    clients.spawn(streams::drop_and_resume(Arc::clone(&scene)));
    let end = Instant::now() + run.options.soak();
    run.progress(&format!("{} of traffic", minutes(run.options.soak())));
    {
        let over = async {
            sleep_until(end.into()).await;
            scene.stop();
        };
        tokio::join!(
            over,
            watch.each_second(&gateway, &scene, |line| run.progress(line)),
            reloads::change(&gateway, &scene),
            faults::kill(&gateway, &scene, &echo, run.options.soak()),
        );
    }
    // Each client ends its own connections when it detects the end of the run.
    let ended = tokio::time::timeout(REST, clients.join_all()).await;
    if ended.is_err() {
        scene
            .books()
            .wrong("clients", "some did not end".to_owned());
    }
    run.progress("at rest");
    sleep(Duration::from_secs(1)).await;
    watch.rest(&gateway, REST).await?;
    Ok(found::section(run.options.soak(), scene.books(), &watch))
}
