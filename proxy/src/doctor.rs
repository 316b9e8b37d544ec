//! `tooldock doctor`: finds problems in the gateway's surroundings, and shows the commands that fix them.
//!
//! - The running gateway is found in the same way as by other commands. It issues nonces, with which [`front`] probes the servers
//!   between clients and the gateway (the front) through the public URL. The token is not sent there.
//! - The machine is checked with the configuration that `serve` would use: [`names`] and connections, [`clock`], [`descriptors`],
//!   the [`toolchain`], [`permissions`], [`certificates`], [`ports`], [`redis`]. For a gateway on another machine (`--url`) these
//!   checks are omitted.
//! - Checks run concurrently, and each has a time limit. Nothing is changed, and no secret is printed.

mod certificates;
mod clock;
mod descriptors;
mod front;
mod names;
mod permissions;
mod ports;
mod redis;
mod toolchain;

use std::borrow::Cow;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::check;
use crate::cli::DoctorArgs;
use crate::config::{self, Effective};
use crate::operator::CommandFailure;
use crate::operator::client::GatewayClient;
use crate::operator::gateway::RunningGateway;
use crate::operator::output::{self, Cell, Colour, TerminalText};

use front::{Front, PublicAddress};

/// Time limit of a single check.
const LIMIT: Duration = Duration::from_secs(5);
/// Time limit for all probes of the proxies in front of the gateway, without the silent stream of `--slow`.
const FRONT_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of nonces that probes of the proxies in front of the gateway use.
const NONCES: &str = "32";

/// Quotes a word for a shell if necessary. Names of programs and paths may come from files that tools can write, and must not run
/// commands when they are pasted.
fn for_shell(word: &str) -> Cow<'_, str> {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"/.:_-+,@%".contains(&it);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")).into(),
    }
}

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// The check found no problem.
    Ok,
    /// There is nothing to check, or the check was not run.
    Skipped,
    /// The checked object works, but not as intended.
    Warning,
    /// The checked object does not work.
    Problem,
}

impl Severity {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }

    const fn colour(self) -> Colour {
        match self {
            Self::Ok => Colour::Green,
            Self::Skipped => Colour::Dim,
            Self::Warning => Colour::Yellow,
            Self::Problem => Colour::Red,
        }
    }
}

/// The result of a check, with a remedy if it found a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    /// The name of the check.
    check: &'static str,
    severity: Severity,
    /// The result as a text.
    said: String,
    /// A command, or a line of a configuration file, that fixes the problem.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn new(check: &'static str, severity: Severity, said: impl Into<String>) -> Self {
        Self {
            check,
            severity,
            said: said.into(),
            remedy: None,
        }
    }

    fn ok(check: &'static str, said: impl Into<String>) -> Self {
        Self::new(check, Severity::Ok, said)
    }

    fn skipped(check: &'static str, said: impl Into<String>) -> Self {
        Self::new(check, Severity::Skipped, said)
    }

    fn warning(check: &'static str, said: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Severity::Warning, said).with(remedy)
    }

    fn problem(check: &'static str, said: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Severity::Problem, said).with(remedy)
    }

    fn with(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// The gateway's response to a request for nonces.
#[derive(Debug, Deserialize)]
struct IssuedNonces {
    nonces: Vec<String>,
    replicas: Option<KnownReplicas>,
}

/// The other replicas that the gateway knows.
#[derive(Debug, Deserialize)]
struct KnownReplicas {
    others: Vec<KnownReplica>,
}

#[derive(Debug, Deserialize)]
struct KnownReplica {
    problem: Option<String>,
}

/// Runs `tooldock doctor`. Returns its exit code.
pub(crate) fn run(arguments: &DoctorArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return CommandFailure::Refused(error.to_string()).exit(),
    };
    let findings = runtime.block_on(examine(arguments));
    // `shutdown_background` does not wait for threads, in which a slow name resolution may still run.
    runtime.shutdown_background();
    let findings = match findings {
        Ok(findings) => findings,
        Err(reason) => return CommandFailure::Usage(reason).exit(),
    };
    let count = |severity| findings.iter().filter(|it| it.severity == severity).count();
    let (problems, warnings) = (count(Severity::Problem), count(Severity::Warning));
    output::show(&match arguments.json {
        true => output::json(&serde_json::json!({
            "findings": findings,
            "problems": problems,
            "warnings": warnings,
        })),
        false => as_text(&findings, problems, warnings),
    });
    match problems > 0 || (arguments.strict && warnings > 0) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

/// Runs all checks concurrently, and returns their findings in a fixed order.
///
/// # Errors
///
/// An option of the command line, or the configuration, is invalid.
async fn examine(arguments: &DoctorArgs) -> Result<Vec<Finding>, String> {
    let options = &arguments.gateway;
    let effective =
        config::load_for_command(options.config.as_deref(), options.data_dir.as_deref())?;
    let effective = Arc::new(effective);
    let public = match &arguments.public_url {
        Some(url) => Some(PublicAddress::read(url).map_err(|why| format!("--public-url: {why}"))?),
        None => configured(&effective)?,
    };
    let gateway = match RunningGateway::find(options).map_err(CommandFailure::into_reason) {
        // An invalid option ends the command. Other errors become a finding.
        Err(reason) if reason.starts_with("--") => return Err(reason),
        found => found,
    };
    let is_of_this_machine = match (&options.url, &gateway) {
        (Some(_), Ok(gateway)) => gateway.address.url.is_local(),
        _ => true,
    };
    let through = public.as_ref();
    let running = async {
        let (mut findings, issued) = match &gateway {
            Ok(gateway) => request_nonces(gateway, &effective).await,
            Err(reason) => (vec![not_asked(reason)], None),
        };
        findings.extend(probe(arguments, through, issued).await);
        findings
    };
    let checked = match is_of_this_machine {
        true => Some(Arc::clone(&effective)),
        false => None,
    };
    let machine = async {
        match &checked {
            Some(effective) => machine(effective, through).await,
            None => Vec::new(),
        }
    };
    let (mut findings, of_machine) = tokio::join!(running, machine);
    findings.extend(of_machine);
    Ok(findings)
}

/// Returns the configured public URL, with the first path prefix of a listener; `None` if no public URL is configured.
fn configured(effective: &Effective) -> Result<Option<PublicAddress>, String> {
    let Some(origin) = effective.config.admission.public_url.origin() else {
        return Ok(None);
    };
    let mut prefixes = effective.config.listeners.iter().map(|it| &it.path_prefix);
    let prefix = prefixes.find(|it| !it.is_empty());
    let prefix = prefix.map(ToString::to_string).unwrap_or_default();
    let address = PublicAddress::read(&format!("{origin}{prefix}"));
    address
        .map(Some)
        .map_err(|why| format!("admission.public_url: {why}"))
}

/// Runs the checks of this machine.
async fn machine(effective: &Arc<Effective>, public: Option<&PublicAddress>) -> Vec<Finding> {
    let shared = || Arc::clone(effective);
    // The configured servers are determined once for all checks, since that takes time in a large configuration.
    let servers = shared();
    let servers = tokio::task::spawn_blocking(move || check::servers(&servers).servers);
    let servers = match timeout(LIMIT, servers).await {
        Ok(Ok(servers)) => Arc::new(servers),
        _ => Arc::new(Vec::new()),
    };
    let (of_clock, of_toolchain) = (Arc::clone(&servers), Arc::clone(&servers));
    let all = tokio::join!(
        // The check of names has no common time limit, since each of its steps has one.
        names::check(effective, &servers),
        bounded("clock", clock::check(effective, &of_clock, public)),
        bounded("toolchain", toolchain::check(effective, &of_toolchain)),
        blocking("descriptors", shared(), descriptors::check),
        blocking("permissions", shared(), permissions::check),
        blocking("certificates", shared(), certificates::check),
        blocking("ports", shared(), ports::check),
        bounded("redis", redis::check(effective)),
    );
    let (names, clock, toolchain, descriptors, permissions, certificates, ports, redis) = all;
    [
        names,
        clock,
        descriptors,
        toolchain,
        permissions,
        certificates,
        ports,
        redis,
    ]
    .concat()
}

async fn bounded(check: &'static str, work: impl Future<Output = Vec<Finding>>) -> Vec<Finding> {
    let done = timeout(LIMIT, work).await;
    done.unwrap_or_else(|_| vec![too_slow(check)])
}

/// Runs a blocking check in a separate thread.
async fn blocking(
    check: &'static str,
    effective: Arc<Effective>,
    work: fn(&Effective) -> Vec<Finding>,
) -> Vec<Finding> {
    let work = tokio::task::spawn_blocking(move || work(&effective));
    bounded(check, async {
        work.await
            .unwrap_or_else(|_| vec![Finding::skipped(check, "the check broke off")])
    })
    .await
}

fn too_slow(check: &'static str) -> Finding {
    let said = format!(
        "the check took longer than {} s and was left",
        LIMIT.as_secs()
    );
    let remedy = match check {
        "redis" => "redis-cli -h HOST -p PORT ping   # the address in sessions.store",
        "names" => "getent hosts HOST   # for each host of the configuration",
        _ => "tooldock doctor   # again, on a machine with less load",
    };
    Finding::new(check, Severity::Warning, said).with(remedy)
}

/// Requests nonces from the running gateway. Returns findings about the request, and the nonces if it succeeded.
async fn request_nonces(
    gateway: &RunningGateway,
    effective: &Effective,
) -> (Vec<Finding>, Option<IssuedNonces>) {
    let asked = async {
        let client = GatewayClient::new(RunningGateway::clone(gateway))?;
        let path = ["operator", "doctor"];
        client.json(Method::POST, &path, &[("n", NONCES)]).await
    };
    let answered = timeout(LIMIT, asked).await.unwrap_or_else(|_| {
        let seconds = LIMIT.as_secs();
        let reason = format!("{gateway} does not answer within {seconds} s");
        Err(CommandFailure::Refused(reason))
    });
    let serve = match &effective.source {
        Some(file) => format!("tooldock serve -c {}", file.display()),
        None => "tooldock serve".to_owned(),
    };
    match answered {
        Ok(issued) => {
            let at = &gateway.address.url;
            let issued = serde_json::from_value(issued).ok();
            let finding = match &issued {
                Some(_) => Finding::ok("gateway", format!("a gateway answers at {at}")),
                None => Finding::problem(
                    "gateway",
                    format!("the gateway at {at} is of another version"),
                    "tooldock --version",
                ),
            };
            (vec![finding], issued)
        }
        Err(CommandFailure::Unreachable(_)) => {
            let said = format!("no gateway runs at {gateway}");
            (vec![Finding::warning("gateway", said, serve)], None)
        }
        Err(failure) => {
            let reason = failure.into_reason();
            let remedy = if reason.contains("admission.internal_cidrs") {
                "admission: { internal_cidrs: [\"ADDRESS OF THIS MACHINE/32\"] }"
            } else if reason.contains("429") {
                "tooldock doctor   # again in a minute: too many requests came from this address"
            } else {
                "export TOOLDOCK_TOKEN=…   # a token that opens _system, or --token-file FILE"
            };
            (vec![Finding::problem("gateway", reason, remedy)], None)
        }
    }
}

/// Returns the finding for a running gateway that cannot be found, since no usable address is configured.
fn not_asked(reason: &str) -> Finding {
    let remedy = "tooldock doctor --url http://HOST:PORT";
    Finding::problem("gateway", reason, remedy)
}

/// Probes the proxies in front of the gateway through the public URL, with the nonces that the gateway has issued.
async fn probe(
    arguments: &DoctorArgs,
    public: Option<&PublicAddress>,
    issued: Option<IssuedNonces>,
) -> Vec<Finding> {
    let skipped = |said: &str| vec![Finding::skipped("front", said)];
    let Some(public) = public else {
        let said = "no public URL is known, so that servers in front of the gateway are not probed";
        return vec![
            Finding::skipped("front", said).with("tooldock doctor --public-url https://HOST"),
        ];
    };
    let Some(issued) = issued else {
        return skipped("not probed, since no running gateway gives nonces");
    };
    let slow = arguments
        .slow
        .map(|seconds| Duration::from_secs(seconds.into()));
    let front = match Front::new(public, issued, arguments.gateway.trust.ca.as_deref()) {
        Ok(front) => front,
        Err(reason) => return skipped(&reason),
    };
    let limit = FRONT_LIMIT + slow.unwrap_or_default();
    let found = timeout(limit, front.check(slow)).await;
    found.unwrap_or_else(|_| {
        vec![Finding::problem(
            "front",
            format!(
                "{public} has not answered all probes within {} s",
                limit.as_secs()
            ),
            format!("curl -v {public}/health"),
        )]
    })
}

fn as_text(findings: &[Finding], problems: usize, warnings: usize) -> String {
    let mut text = TerminalText::for_stdout();
    let mut rows = Vec::new();
    for finding in findings {
        let severity = finding.severity;
        rows.push([
            finding.check.into(),
            Cell::new(severity.word()).coloured(severity.colour()),
            (&*finding.said).into(),
        ]);
        if let Some(remedy) = &finding.remedy {
            rows.push(["".into(), "".into(), format!("  do: {remedy}").into()]);
        }
    }
    text.table(["CHECK", "RESULT", "FINDING"], &rows);
    text.push("");
    let count = |number: usize, thing: &str| match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    };
    text.push(format!(
        "{}, {}",
        count(problems, "problem"),
        count(warnings, "warning")
    ));
    text.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_files_of_tools_are_text_to_a_shell() {
        assert_eq!(for_shell("/usr/bin/npx"), "/usr/bin/npx");
        assert_eq!(for_shell("x$(id)"), "'x$(id)'");
        assert_eq!(for_shell("it's"), r"'it'\''s'");
    }

    #[test]
    fn findings_are_rows_with_the_remedy_below() {
        let findings = [
            Finding::ok("ports", "all are free"),
            Finding::problem("front", "it buffers\u{1b}[2J", "proxy_buffering off;"),
        ];
        assert_eq!(
            as_text(&findings, 1, 0),
            "CHECK  RESULT   FINDING\n\
             ports  ok       all are free\n\
             front  problem  it buffers\\u{1b}[2J\n\
             \x20                 do: proxy_buffering off;\n\
             \n\
             1 problem, 0 warnings\n"
        );
    }
}
