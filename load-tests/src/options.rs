//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;

use crate::plan;

/// Measures the gateway next to nginx, in one run, on loopback. Needs a release build of `tooldock`.
#[derive(Debug, Parser)]
#[command(name = "tooldock-load", version, after_help = plan::names_help())]
pub(crate) struct Options {
    /// The gateway's binary [default: tooldock beside this program]
    #[arg(long, value_name = "PATH")]
    gateway: Option<PathBuf>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 2.0)]
    pub(crate) seconds: f64,
    /// Seconds of load before each measurement
    #[arg(long, default_value_t = 0.5)]
    pub(crate) warm_up: f64,
    /// How often everything is measured; the table shows medians
    #[arg(long, default_value_t = 3)]
    pub(crate) repetitions: usize,
    /// Keep-alive connections, one request in flight on each
    #[arg(long, default_value_t = 32)]
    pub(crate) connections: usize,
    /// Half a second of each, once: whether everything works, not what it costs
    #[arg(long, conflicts_with_all = ["seconds", "warm_up", "repetitions", "patience"])]
    quick: bool,
    /// Measure this scenario and its reference only; may be repeated
    #[arg(long, visible_alias = "scenario", value_name = "SCENARIO")]
    pub(crate) only: Vec<String>,
    /// A Python environment with pydantic for the workers, made when missing [default: target/python-envs/base]
    #[arg(long, value_name = "DIR")]
    python_base_env: Option<PathBuf>,
    /// On a shared machine: measure again what other work disturbed, waiting up to so long for it to end, in all
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    patience: u64,
    /// Write every sample there as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl Options {
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        ensure!(
            (0.1..=60.0).contains(&self.seconds),
            "--seconds: from 0.1 to 60"
        );
        ensure!(
            (0.0..=60.0).contains(&self.warm_up),
            "--warm-up: from 0 to 60"
        );
        ensure!(
            (1..=100).contains(&self.repetitions),
            "--repetitions: from 1 to 100"
        );
        ensure!(
            (1..=1000).contains(&self.connections),
            "--connections: from 1 to 1000"
        );
        ensure!(self.patience <= 3600, "--patience: up to 3600");
        for name in &self.only {
            ensure!(
                plan::is_name(name),
                "--only {name}: no such scenario\n{}",
                plan::names_help()
            );
        }
        let gateway = self.gateway()?;
        ensure!(
            gateway.is_file(),
            "no gateway at {}: build it with `cargo build --release --package tooldock`, or name it with --gateway",
            gateway.display()
        );
        Ok(())
    }

    /// What `--quick` stands for, put in its place.
    pub(crate) fn settled(mut self) -> Self {
        if self.quick {
            (self.seconds, self.warm_up, self.repetitions) = (0.5, 0.2, 1);
        }
        self
    }

    pub(crate) fn gateway(&self) -> anyhow::Result<PathBuf> {
        match &self.gateway {
            Some(path) => std::path::absolute(path).context("--gateway"),
            None => Ok(own_folder()?.join("tooldock")),
        }
    }

    pub(crate) fn python_base_env(&self) -> anyhow::Result<PathBuf> {
        match &self.python_base_env {
            Some(path) => std::path::absolute(path).context("--python-base-env"),
            None => Ok(own_folder()?.with_file_name("python-envs").join("base")),
        }
    }

    /// `target`, which has the environments of peers.
    pub(crate) fn target_folder(&self) -> anyhow::Result<PathBuf> {
        let own = own_folder()?;
        Ok(own.parent().context("the target directory")?.to_owned())
    }

    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }

    pub(crate) fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }

    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }
}

/// `target/release`, as a rule.
fn own_folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program's own file")?;
    Ok(program
        .parent()
        .context("this program's folder")?
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        let program = std::env::current_exe().unwrap();
        let all = ["tooldock-load", "--gateway", program.to_str().unwrap()];
        Options::parse_from(all.iter().chain(arguments))
    }

    #[test]
    fn defaults_are_valid_and_want_everything() {
        let options = options(&[]);
        options.validate().unwrap();
        assert!(options.wants("ping") && options.wants("memory"));
    }

    #[test]
    fn only_what_is_named_is_wanted_and_an_unknown_name_is_refused() {
        let some = options(&["--only", "ping", "--only", "memory"]);
        some.validate().unwrap();
        assert!(some.wants("memory") && !some.wants("call-async"));
        let error = options(&["--only", "pong"])
            .validate()
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("pong") && error.contains("call-async"),
            "{error}"
        );
    }

    #[test]
    fn quick_is_short_and_takes_no_other_times() {
        let quick = options(&["--quick", "--scenario", "stdio"]).settled();
        assert_eq!((quick.seconds, quick.repetitions), (0.5, 1));
        assert!(quick.wants("stdio") && !quick.wants("ping"));
        assert!(Options::try_parse_from(["x", "--quick", "--seconds", "2"]).is_err());
    }

    #[test]
    fn unbounded_runs_are_refused() {
        for wrong in [
            ["--seconds", "1e9"],
            ["--repetitions", "0"],
            ["--connections", "100000"],
            ["--patience", "100000"],
        ] {
            assert!(options(&wrong).validate().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_missing_gateway_is_named() {
        let error = Options::parse_from(["x", "--gateway", "/nowhere/tooldock"]).validate();
        assert!(error.unwrap_err().to_string().contains("/nowhere/tooldock"));
    }
}
