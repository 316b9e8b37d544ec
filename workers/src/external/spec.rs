//! A resolved server: all its values have been looked up, but nothing has been started.

use std::ffi::OsString;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};
use tooldock_base::config::Sandbox;
use tooldock_base::names::NamespaceName;
use tooldock_base::redactor::Redactor;
use tooldock_base::secret::Secret;
use tooldock_credentials::personal::{Personal, PersonalValues};
use tooldock_process::child::confine::KeptPath;

use super::config::StdioSettings;

/// An external server. An unchanged server is the same `Arc` in successive snapshots of the registry. The processes of a server
/// that is in no snapshot must be ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalServer {
    /// The server's namespace.
    pub name: NamespaceName,
    /// Program, environment and settings of the server's processes.
    pub spec: StdioSpec,
    /// Hash over the name and everything in the spec except the values of variables. Those are compared directly and never
    /// hashed.
    pub content_hash: [u8; 32],
    /// Namespace folder whose files make the server; `None` for a configured server.
    pub folder: Option<ServedFolder>,
}

/// Namespace folder whose files make a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedFolder {
    /// The Python environment, whose `bin` comes first on `PATH`; `None` for Node.js.
    pub environment: Option<PathBuf>,
    /// Folder of the server's packages, without which its processes cannot be started.
    pub packages: PathBuf,
    /// Files and folders of the data directory that the server's processes may use.
    pub own: Vec<KeptPath>,
}

/// Program, environment and lifetime of a server's processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StdioSpec {
    /// The program: a path, or a name that is looked up on the `PATH` in `env`.
    pub program: PathBuf,
    /// Arguments of the program. They are visible to every user of the machine, and must not contain secrets.
    pub args: Vec<OsString>,
    /// Complete environment of the program, sorted by name; it does not inherit the gateway's environment. Values print as
    /// `[redacted]`.
    pub env: Vec<(OsString, Secret)>,
    /// Variables whose values are personal values of the calling principal.
    pub personal: Personal,
    /// Values that are masked in the server's logged output.
    pub secrets: Vec<Secret>,
    /// Working directory of the program, absolute.
    pub cwd: PathBuf,
    /// Sharing and lifetime of the server's processes.
    pub settings: StdioSettings,
    /// Isolation of the processes from the rest of the machine, as defined by the limits in force.
    pub sandbox: Sandbox,
}

impl ExternalServer {
    /// Creates a server, and computes its content hash.
    pub fn new(name: NamespaceName, spec: StdioSpec) -> Self {
        let mut hash = Sha256::new();
        let names: Vec<_> = spec.env.iter().map(|(name, _)| name).collect();
        let settings = format!("{:?}{:?}", spec.settings, spec.personal);
        // The `Debug` form quotes paths and texts, so that different lists never result in the same bytes to hash.
        for part in [
            name.as_str(),
            &format!("{:?}", spec.program),
            &format!("{:?}", spec.args),
            &format!("{names:?}"),
            &format!("{:?}", spec.cwd),
            &format!("{:?}", spec.sandbox),
            &settings,
        ] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self {
            name,
            spec,
            content_hash: hash.finalize().into(),
            folder: None,
        }
    }

    /// Marks the server as made by the files of a namespace folder. Returns the changed server.
    #[must_use]
    pub fn of_folder(mut self, folder: ServedFolder) -> Self {
        self.folder = Some(folder);
        self
    }

    /// Returns the server with a principal's personal values in its environment, as that principal's processes run it.
    #[must_use]
    pub fn with_personal(&self, own: PersonalValues) -> Self {
        let mut server = self.clone();
        let spec = &mut server.spec;
        spec.personal = Personal::default();
        for (name, value) in own.entries {
            spec.env.push((name.into(), value));
        }
        spec.env.sort_by(|one, other| one.0.cmp(&other.0));
        spec.secrets.extend(own.hidden);
        server
    }

    /// Returns the server with this sandbox, as defined by the limits in force.
    #[must_use]
    pub fn in_sandbox(&self, sandbox: &Sandbox) -> Self {
        let mut spec = self.spec.clone();
        spec.sandbox.clone_from(sandbox);
        Self::new(self.name.clone(), spec)
    }

    /// Returns `text` with the server's secrets masked, for the log.
    pub fn without_secrets(&self, text: &str) -> String {
        let hidden = Redactor::new(&self.spec.secrets).hide(text.into(), false);
        String::from_utf8_lossy(&hidden).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(argument: &str, value: &str) -> ExternalServer {
        let spec = StdioSpec {
            program: "npx".into(),
            args: vec![argument.into()],
            env: vec![("TOKEN".into(), Secret::new(value))],
            personal: Personal::default(),
            secrets: vec![Secret::new(value)],
            cwd: "/".into(),
            settings: StdioSettings::default(),
            sandbox: Sandbox::default(),
        };
        ExternalServer::new("ns".parse().unwrap(), spec)
    }

    #[test]
    fn a_new_value_of_a_variable_is_a_difference_but_no_new_hash() {
        let (one, other) = (server("a", "hunter2"), server("a", "hunter3"));
        assert_ne!(one, other);
        assert_eq!(one.content_hash, other.content_hash);
        assert_ne!(one.content_hash, server("b", "hunter2").content_hash);
    }

    #[test]
    fn printing_a_server_shows_no_value_of_its_environment() {
        let text = format!("{:?}", server("a", "hunter2"));
        assert!(
            text.contains("TOKEN") && !text.contains("hunter2"),
            "{text}"
        );
        let quoted = server("a", "hunter2").without_secrets("no such user: hunter2");
        assert_eq!(quoted, "no such user: [redacted]");
    }
}
