//! `tooldock-load`: what a request costs, next to nginx and to others that do the same job, in one run.
//!
//! It starts nginx and the gateway on free loopback ports, loads them in turn from a closed loop, and reports rates,
//! latencies and the CPU time of the process under test alone. `load-tests/README.md` says what is asked and how to read
//! the answers. It does not build the gateway, and it never sends to anything it did not start.

mod load;
mod machine;
mod message;
mod once;
mod options;
mod plan;
mod processes;
mod quiet;
mod report;
mod run;
mod servers;
mod session;
mod stdio;
mod streams;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::options::Options;
use crate::report::Report;

fn main() -> ExitCode {
    let options = Options::parse().settled();
    let outcome = options.validate().and_then(|()| {
        // One thread: the client must not take a second core from what it measures.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("the client's runtime")?;
        runtime.block_on(bounded(&options))
    });
    match outcome.and_then(|report| finish(&options, &report)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tooldock-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The whole run under its deadline. Whichever arm wins, dropping the run ends every process it started:
/// - the run itself;
/// - the deadline, which no healthy run comes near;
/// - SIGINT or SIGTERM.
async fn bounded(options: &Options) -> anyhow::Result<Report> {
    let deadline = run::deadline(options);
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    tokio::select! {
        report = run::run(options) => report,
        () = tokio::time::sleep(deadline) => bail!("not done after {}", in_seconds(deadline)),
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
}

/// Prints the report; whether everything asked for was measured.
fn finish(options: &Options, report: &Report) -> anyhow::Result<bool> {
    print!("{}", report::table::render(report));
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(report).context("the report as JSON")?;
        std::fs::write(file, text + "\n").with_context(|| format!("writing {}", file.display()))?;
    }
    Ok(report.failures.is_empty())
}

fn in_seconds(time: Duration) -> String {
    format!("{} s", time.as_secs())
}
