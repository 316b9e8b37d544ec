//! `tooldock-load`: what the gateway costs and how it behaves, next to nginx and to others that do the same job, in one run.
//!
//! It starts everything it measures on free loopback ports, asks the questions of [`scenario`], and writes tables, charts
//! and every sample. `load-tests/README.md` says what is asked and how to read the answers. It does not build the gateway,
//! and it never sends to anything it did not start.

mod chart;
mod load;
mod machine;
mod message;
mod options;
mod processes;
mod quiet;
mod report;
mod run;
mod scenario;
mod servers;
mod session;
mod streams;
mod wire;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::machine::Machine;
use crate::options::Options;
use crate::report::{Report, minutes};

fn main() -> ExitCode {
    let options = Options::parse().settled();
    let outcome = match &options.publish {
        Some(folder) => report::publish(&options, folder).map(|()| true),
        None => measure(&options),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tooldock-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and reports; whether everything asked for was measured and right.
///
/// # Errors
///
/// When nothing can be measured, or the report not be written.
fn measure(options: &Options) -> anyhow::Result<bool> {
    options.validate()?;
    // One thread: the client must not take a second core from what it measures.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the client's runtime")?;
    let mut report = Report::new(options, Machine::here())?;
    match runtime.block_on(bounded(options, &mut report)) {
        Ok(()) => {}
        // The last report is worth more than an empty one.
        Err(error) if report.sections.is_empty() => return Err(error),
        // What was found until then is worth as much as before.
        Err(error) => report.cut_short = Some(format!("{error:#}")),
    }
    report.write(options)?;
    Ok(report.is_whole())
}

/// The whole run under its deadline. Whichever arm wins, dropping the run ends every process it started:
/// - the run itself;
/// - the deadline, which no healthy run comes near;
/// - SIGINT or SIGTERM.
async fn bounded(options: &Options, report: &mut Report) -> anyhow::Result<()> {
    let deadline = run::deadline(options);
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM")?;
    tokio::select! {
        outcome = run::run(options, report) => outcome,
        () = tokio::time::sleep(deadline) => bail!("not done after {}", minutes(deadline)),
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
}
