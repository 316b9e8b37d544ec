//! `tooldock-load`: measures the cost and the behaviour of the gateway, next to nginx and other programs with the same
//! purpose, in one run.
//!
//! The program starts everything that it measures on free loopback ports, runs the scenarios of [`scenario`], and writes
//! tables, charts and every sample. `load-tests/README.md` describes the questions and how to read the results. The program
//! does not build the gateway, and never sends requests to a program that it did not start.

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

/// Runs the scenarios and writes the report. Returns true if everything was measured and all responses were correct.
fn measure(options: &Options) -> anyhow::Result<bool> {
    options.validate()?;
    // A single thread, so that the client uses only one of the cores of the measured processes.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the client's runtime")?;
    let mut report = Report::new(options, Machine::here())?;
    match runtime.block_on(bounded(options, &mut report)) {
        Ok(()) => {}
        // Kept, since the previous report is worth more than an empty one.
        Err(error) if report.sections.is_empty() => return Err(error),
        // The results so far are kept.
        Err(error) => report.cut_short = Some(format!("{error:#}")),
    }
    report.write(options)?;
    Ok(report.is_whole())
}

/// Runs everything under a deadline. Whichever arm ends first, dropping the run ends every process it started:
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
