//! The command line.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;

use crate::scenario;
use crate::servers::peers::Peer;

/// Measures the gateway next to nginx and others, in one run, on loopback. Needs a release build of `tooldock`.
#[derive(Debug, Parser)]
#[command(name = "tooldock-load", version, after_help = scenario::names_help())]
pub(crate) struct Options {
    /// The gateway's binary [default: tooldock beside this program]
    #[arg(long, value_name = "PATH")]
    gateway: Option<PathBuf>,
    /// Answer this question only; may be repeated [default: all but soak]
    #[arg(long = "scenario", visible_alias = "only", value_name = "SCENARIO")]
    pub(crate) only: Vec<String>,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 1.0)]
    pub(crate) seconds: f64,
    /// Seconds of load before each measurement
    #[arg(long, default_value_t = 0.3)]
    pub(crate) warm_up: f64,
    /// How often everything is measured; the tables show medians
    #[arg(long, default_value_t = 3)]
    pub(crate) repetitions: usize,
    /// Keep-alive connections of a closed loop, one request in flight on each
    #[arg(long, default_value_t = 32)]
    pub(crate) connections: usize,
    /// Half a second of each, once, and a minute of soak: whether everything works, not what it costs
    #[arg(long, conflicts_with_all = ["seconds", "warm_up", "repetitions", "patience", "soak_minutes"])]
    pub(crate) quick: bool,
    /// Minutes of the scenario soak
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) soak_minutes: u64,
    /// Compare with this, too. The command serves streamable HTTP at /mcp of {host}:{port} for the stdio server {server};
    /// see load-tests/README.md
    #[arg(long = "peer", value_name = "NAME=COMMAND", value_parser = Peer::parse)]
    pub(crate) peers: Vec<Peer>,
    /// A Python environment with pydantic for the workers, made when missing [default: target/python-envs/base]
    #[arg(long, value_name = "DIR")]
    python_base_env: Option<PathBuf>,
    /// On a shared machine: measure again what other work disturbed, waiting up to so long for it to end, in all
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    patience: u64,
    /// Write report.md, report.json and the charts there [default: target/load]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write report.json there, too
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Measure nothing: put the last report of --out into the README.md of this folder, and its charts beside it
    #[arg(long, value_name = "DIR")]
    pub(crate) publish: Option<PathBuf>,
}

impl Options {
    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        for (name, value, bounds) in self.numbers() {
            let (least, most) = (bounds.start(), bounds.end());
            ensure!(bounds.contains(&value), "{name}: from {least} to {most}");
        }
        for name in &self.only {
            ensure!(
                scenario::is_name(name),
                "--scenario {name}: no such scenario\n{}",
                scenario::names_help()
            );
        }
        for (at, peer) in self.peers.iter().enumerate() {
            ensure!(
                self.peers[..at].iter().all(|other| other.name != peer.name),
                "--peer {}: named twice",
                peer.name
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

    /// The options that are numbers, with their bounds.
    fn numbers(&self) -> [(&'static str, f64, RangeInclusive<f64>); 6] {
        [
            ("--seconds", self.seconds, 0.1..=60.0),
            ("--warm-up", self.warm_up, 0.0..=60.0),
            ("--repetitions", self.repetitions as f64, 1.0..=100.0),
            ("--soak-minutes", self.soak_minutes as f64, 1.0..=1440.0),
            ("--connections", self.connections as f64, 1.0..=1000.0),
            ("--patience", self.patience as f64, 0.0..=3600.0),
        ]
    }

    /// Replaces the values that `--quick` stands for.
    pub(crate) fn settled(mut self) -> Self {
        if self.quick {
            (self.seconds, self.warm_up, self.repetitions) = (0.5, 0.2, 1);
            self.soak_minutes = 1;
        }
        self
    }

    /// The command in a form that others can repeat: without paths, which only exist on this machine.
    pub(crate) fn command(&self) -> String {
        let mut command = String::from("target/release/tooldock-load");
        let mut add = |text: String| {
            command.push(' ');
            command.push_str(&text);
        };
        for name in &self.only {
            add(format!("--scenario {name}"));
        }
        // Values that `--quick` stands for are not repeated.
        let defaults = Self::parse_from(
            ["tooldock-load"]
                .into_iter()
                .chain(self.quick.then_some("--quick")),
        );
        let defaults = defaults.settled();
        if self.quick {
            add("--quick".to_owned());
        }
        for ((name, number, _), (_, default, _)) in
            self.numbers().into_iter().zip(defaults.numbers())
        {
            if number != default {
                add(format!("{name} {number}"));
            }
        }
        for peer in &self.peers {
            add(format!("--peer {}=...", peer.name));
        }
        command
    }

    pub(crate) fn gateway(&self) -> anyhow::Result<PathBuf> {
        match &self.gateway {
            Some(path) => std::path::absolute(path).context("--gateway"),
            None => Ok(own_folder()?.join("tooldock")),
        }
    }

    /// The gateway's version, as it prints it.
    pub(crate) fn gateway_version(&self) -> anyhow::Result<String> {
        said_by(Command::new(self.gateway()?).arg("--version"))
    }

    /// Today's date, and the commit of the working tree in which this program lies, so that a result names its source.
    pub(crate) fn when(&self) -> String {
        let day = said_by(Command::new("date").args(["-u", "+%F"]));
        let commit = own_folder().and_then(|own| {
            let described = ["describe", "--always", "--dirty", "--exclude=*"];
            said_by(Command::new("git").arg("-C").arg(own).args(described))
        });
        let day = day.unwrap_or_else(|_| "a day unknown".to_owned());
        commit.map_or(day.clone(), |commit| format!("{day} at commit {commit}"))
    }

    pub(crate) fn python_base_env(&self) -> anyhow::Result<PathBuf> {
        match &self.python_base_env {
            Some(path) => std::path::absolute(path).context("--python-base-env"),
            None => Ok(self.target_folder()?.join("python-envs/base")),
        }
    }

    /// The `target` folder, which contains the environments of peers.
    pub(crate) fn target_folder(&self) -> anyhow::Result<PathBuf> {
        let own = own_folder()?;
        Ok(own.parent().context("the target directory")?.to_owned())
    }

    /// The folder for the report and the charts.
    pub(crate) fn out(&self) -> anyhow::Result<PathBuf> {
        match &self.out {
            Some(path) => Ok(path.clone()),
            None => Ok(self.target_folder()?.join("load")),
        }
    }

    pub(crate) fn measured(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    pub(crate) fn warm_up(&self) -> Duration {
        Duration::from_secs_f64(self.warm_up)
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }

    /// Duration of the scenario `soak`.
    pub(crate) fn soak(&self) -> Duration {
        Duration::from_secs(60 * self.soak_minutes)
    }
}

/// The first line that a program prints.
fn said_by(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output();
    let output = output.with_context(|| format!("running {:?}", command.get_program()))?;
    ensure!(
        output.status.success(),
        "{:?}: {}",
        command.get_program(),
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// The folder of this program, usually `target/release`.
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
    fn defaults_are_valid() {
        options(&[]).validate().unwrap();
    }

    #[test]
    fn an_unknown_scenario_is_refused_with_those_there_are() {
        let error = options(&["--only", "pong"]).validate().unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("pong") && error.contains("tools_call"),
            "{error}"
        );
    }

    #[test]
    fn quick_is_short_and_takes_no_other_times() {
        let quick = options(&["--quick", "--scenario", "soak"]).settled();
        assert_eq!((quick.seconds, quick.repetitions), (0.5, 1));
        assert_eq!(quick.soak(), Duration::from_secs(60));
        assert!(Options::try_parse_from(["x", "--quick", "--seconds", "2"]).is_err());
    }

    #[test]
    fn unbounded_runs_are_refused() {
        for wrong in [
            ["--seconds", "1e9"],
            ["--repetitions", "0"],
            ["--connections", "100000"],
            ["--patience", "100000"],
            ["--soak-minutes", "0"],
        ] {
            assert!(options(&wrong).validate().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_missing_gateway_is_named() {
        let error = Options::parse_from(["x", "--gateway", "/nowhere/tooldock"]).validate();
        assert!(error.unwrap_err().to_string().contains("/nowhere/tooldock"));
    }

    #[test]
    fn a_peer_is_named_once() {
        let peer = "a=run {port} {server}";
        options(&["--peer", peer]).validate().unwrap();
        let twice = options(&["--peer", peer, "--peer", peer]).validate();
        assert!(twice.unwrap_err().to_string().contains("named twice"));
    }

    #[test]
    fn the_command_shown_repeats_the_run_and_has_no_paths() {
        let shown = |arguments: &[&str]| options(arguments).settled().command();
        assert_eq!(shown(&["--out", "/x"]), "target/release/tooldock-load");
        assert_eq!(
            shown(&["--only", "refuse", "--quick", "--connections", "8"]),
            "target/release/tooldock-load --scenario refuse --quick --connections 8"
        );
        assert_eq!(
            shown(&["--repetitions", "9", "--peer", "a=/opt/a {port} {server}"]),
            "target/release/tooldock-load --repetitions 9 --peer a=..."
        );
    }
}
