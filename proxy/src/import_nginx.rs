//! `tooldock import-nginx`: converts the configuration of an nginx that is a proxy for MCP servers. The crate
//! `tooldock_import_nginx` builds the gateway's configuration; this module checks it like any other configuration, and writes it.

mod new_limits;

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tooldock_base::yaml;
use tooldock_import_nginx::{GatewayRules, Import, Weight, import};

use crate::cli::ImportNginxArgs;
use crate::config::{
    self, ConfigError, GRACE_MAX, HeaderEditsConfig, HeadersConfig, ListenAddress, LogPattern,
    ProfileName, refusal_of_alias,
};
use crate::header_edits::HeaderEdits;
use crate::{EXIT_USAGE, print, refuse};

/// Functions and bounds by which the importer checks that values are valid in the gateway.
const GATEWAY: GatewayRules = GatewayRules {
    grace_max: GRACE_MAX,
    allows_address: |text| text.parse::<ListenAddress>().is_ok(),
    allows_alias: |path| refusal_of_alias(path, ProfileName::Core.spec().routes).is_none(),
    allows_response_header,
    allows_log_format: |text| text.parse::<LogPattern>().is_ok(),
};

fn allows_response_header(name: &str, value: &str) -> bool {
    let config = HeadersConfig {
        response: HeaderEditsConfig {
            set: [(name.to_owned(), value.to_owned())].into(),
            remove: Vec::new(),
        },
        ..HeadersConfig::default()
    };
    HeaderEdits::of(&config).is_ok()
}

/// Runs `tooldock import-nginx`: writes the configuration and the report.
pub(crate) fn run(arguments: &ImportNginxArgs) -> ExitCode {
    if let Some(output) = arguments
        .output
        .as_deref()
        .filter(|it| (it.is_file() || it.is_dir()) && !arguments.force)
    {
        return refuse(format_args!(
            "{}: is there already; --force writes over it",
            output.display()
        ));
    }
    let Import { yaml, report } = match import(&arguments.file, &GATEWAY) {
        Ok(import) => import,
        Err(failure) => return refuse(failure),
    };
    if let Err(error) = checked(&yaml) {
        eprintln!(
            "tooldock: the configuration that would be written is not valid, which is a mistake of the importer: {error}"
        );
        return ExitCode::FAILURE;
    }
    for line in report.lines() {
        eprintln!("{line}");
    }
    // Parsing cannot fail, as the text was parsed by the check above.
    let tree = yaml::from_slice(yaml.as_bytes()).unwrap_or_default();
    eprintln!("tooldock: differs from now on:");
    for line in report.differences().chain(new_limits::lines(&tree)) {
        eprintln!("  {line}");
    }
    let (plain, security) = (report.count(Weight::Plain), report.count(Weight::Security));
    if plain + security > 0 {
        eprintln!(
            "tooldock: {} not carried over, {security} of them about security",
            counted(plain + security)
        );
    }
    let incomplete = report.has_security();
    let written = match &arguments.output {
        None => print(&yaml),
        Some(output) if incomplete => {
            eprintln!(
                "tooldock: {} is not written; without --output, the configuration goes to standard output to be completed",
                output.display()
            );
            ExitCode::SUCCESS
        }
        Some(output) => match write(output, &yaml, arguments.force) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("tooldock: {}: {error}", output.display());
                ExitCode::FAILURE
            }
        },
    };
    if written == ExitCode::SUCCESS && incomplete {
        return ExitCode::from(EXIT_USAGE);
    }
    written
}

fn counted(leftovers: usize) -> String {
    match leftovers {
        1 => "1 directive is".to_owned(),
        more => format!("{more} directives are"),
    }
}

/// Checks the written configuration as `tooldock check` would, except for the files that it names.
fn checked(yaml: &str) -> Result<(), ConfigError> {
    config::check_text(yaml)
}

/// Writes the file completely or not at all. Only its owner may read it, since it contains digests of tokens.
fn write(output: &Path, yaml: &str, force: bool) -> io::Result<()> {
    // A device or a pipe, such as /dev/stdout, is written to directly and not replaced by a file.
    if fs::metadata(output).is_ok_and(|it| !it.is_file() && !it.is_dir()) {
        return fs::write(output, yaml);
    }
    let mut staged = OsString::from(output);
    staged.push(format!(".new.{:016x}", fastrand::u64(..)));
    let staged = PathBuf::from(staged);
    let mut options = OpenOptions::new();
    let open = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&staged);
    let written = open.and_then(|mut file| {
        file.write_all(yaml.as_bytes())?;
        file.sync_all()?;
        match force {
            true => fs::rename(&staged, output),
            // Unlike a rename, the link fails if another process has created the file meanwhile.
            false => fs::hard_link(&staged, output),
        }
    });
    if written.is_err() || !force {
        let _ = fs::remove_file(&staged);
    }
    written
}

#[cfg(test)]
mod tests;
