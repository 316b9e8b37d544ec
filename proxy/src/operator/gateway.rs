//! Finds the running gateway for commands: its address, the certificates to trust, and the token to send.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use tooldock_base::secret::Secret;

use super::{CommandFailure, Outcome};
use crate::cli::{GatewayArgs, GatewayTrust};
use crate::config::dev_tokens;
use crate::config::{
    self, ClientAuth, CoreUrl, Effective, ListenAddress, ListenerConfig, ProfileName,
};
use crate::serve::{CoreAddress, CoreTrust};
use crate::tls;

/// Environment variable with the token that commands send.
const TOKEN_VARIABLE: &str = "TOOLDOCK_TOKEN";

/// The gateway that a command queries.
#[derive(Debug, Clone)]
pub(crate) struct RunningGateway {
    pub(crate) address: CoreAddress,
    /// The option, variable or configuration from which the address was taken, as text for messages.
    pub(crate) found: String,
    /// The token that the command sends to the gateway; `None` if no token was found.
    pub(crate) token: Option<FoundToken>,
}

/// A token, and the file or variable from which it was read, as text for messages.
#[derive(Debug, Clone)]
pub(crate) struct FoundToken {
    pub(crate) secret: Secret,
    pub(crate) source: String,
}

impl fmt::Display for RunningGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address.url, self.found)
    }
}

impl RunningGateway {
    /// Finds the gateway by options, the environment and the configuration.
    ///
    /// # Errors
    ///
    /// [`CommandFailure::Usage`]: an option, the configuration or a file of a token is wrong.
    pub(crate) fn find(arguments: &GatewayArgs) -> Outcome<Self> {
        Self::found(arguments).map_err(CommandFailure::Usage)
    }

    fn found(arguments: &GatewayArgs) -> Result<Self, String> {
        let given = given_token(arguments.token_file.as_deref())?;
        // If the URL and the token are both given, no configuration is read: this machine may have none, or one for another
        // gateway.
        if let (Some(url), Some(token)) = (&arguments.url, &given) {
            let url: CoreUrl = url.parse().map_err(|error| format!("--url: {error}"))?;
            let address = trusted(url.into(), &arguments.trust)?;
            return Ok(Self {
                address,
                found: "--url".to_owned(),
                token: Some(FoundToken {
                    secret: token.secret.clone(),
                    source: token.source.clone(),
                }),
            });
        }
        let effective =
            config::load_for_command(arguments.config.as_deref(), arguments.data_dir.as_deref())?;
        let option = arguments.url.as_deref().map(|url| ("--url", url));
        let (address, found) = core_at(&effective, option, &arguments.trust)?;
        let token = match given {
            Some(token) => Some(token),
            None => own_token(&effective)?,
        };
        Ok(Self {
            address,
            found,
            token,
        })
    }
}

/// The token from `--token-file` or, without that option, from the environment variable.
fn given_token(file: Option<&Path>) -> Result<Option<FoundToken>, String> {
    let (text, source) = match file {
        Some(file) => {
            let text = fs::read_to_string(file)
                .map_err(|error| format!("--token-file: {}: {error}", file.display()))?;
            (text, format!("--token-file {}", file.display()))
        }
        None => match std::env::var(TOKEN_VARIABLE) {
            Ok(text) if text.is_empty() => return Ok(None),
            Ok(text) => (text, TOKEN_VARIABLE.to_owned()),
            Err(std::env::VarError::NotPresent) => return Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                return Err(format!("{TOKEN_VARIABLE}: a token is ASCII text"));
            }
        },
    };
    let text = text.trim();
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_plain
        .then(|| {
            Some(FoundToken {
                secret: Secret::new(text),
                source: source.clone(),
            })
        })
        .ok_or_else(|| format!("{source}: a token is one word of printable ASCII characters"))
}

/// The configured token, or else the token that `serve --dev` has stored in the data directory.
fn own_token(effective: &Effective) -> Result<Option<FoundToken>, String> {
    if let Some(bearer) = &effective.bearer {
        return Ok(Some(FoundToken {
            secret: bearer.clone(),
            source: "BEARER_TOKEN".to_owned(),
        }));
    }
    let kept = dev_tokens::found_token(&effective.data_dir);
    let kept = kept.map_err(|error| format!("{error:#}"))?;
    Ok(kept.map(|secret| FoundToken {
        secret,
        source: format!(
            "{} (of serve --dev)",
            effective.data_dir.join(dev_tokens::TOKEN_FILE).display()
        ),
    }))
}

/// The address of the listener with the profile `core`. It is read from an option (its name and value) or, without the option,
/// from the configuration. `trust` determines which certificates are accepted. The second value is the source of the address, as
/// text for messages.
///
/// # Errors
///
/// A line that names the option, or the reason why no listener can be queried.
pub(crate) fn core_at(
    effective: &Effective,
    option: Option<(&str, &str)>,
    trust: &GatewayTrust,
) -> Result<(CoreAddress, String), String> {
    let (address, found) = match option {
        Some((name, url)) => {
            let url: CoreUrl = url.parse().map_err(|error| format!("{name}: {error}"))?;
            (url.into(), name.to_owned())
        }
        None => core_of(effective)?,
    };
    Ok((trusted(address, trust)?, found))
}

fn trusted(mut at: CoreAddress, trust: &GatewayTrust) -> Result<CoreAddress, String> {
    if let Some(file) = &trust.ca {
        at.trust = CoreTrust::of_file(file).map_err(|error| format!("--ca: {error}"))?;
    }
    if trust.insecure {
        if !at.url.is_local() {
            return Err(format!(
                "--insecure: {} is no address of this machine, and tokens go there: name the certificates that vouch for \
                 it with --ca",
                at.url
            ));
        }
        at.trust = CoreTrust::Any;
    }
    Ok(at)
}

/// The address of the listener with the profile `core`, from `CORE_URL` or from the configured listeners.
fn core_of(effective: &Effective) -> Result<(CoreAddress, String), String> {
    if effective.core_url != CoreUrl::default() {
        return Ok((effective.core_url.clone().into(), "CORE_URL".to_owned()));
    }
    let listeners = || {
        let listeners = effective.config.listeners.iter();
        listeners.filter(|it| it.profile == ProfileName::Core && !it.proxy_protocol)
    };
    let of = |wanted: fn(&ListenerConfig) -> bool| listeners().find(|it| wanted(it));
    let found = of(|it| it.tls.is_none() && matches!(it.address, ListenAddress::Tcp(_)))
        .or_else(|| {
            of(|it| {
                let tls = it.tls.as_ref();
                let may_ask = tls.is_some_and(|tls| tls.client_auth != ClientAuth::Required);
                may_ask && matches!(it.address, ListenAddress::Tcp(_))
            })
        })
        .or_else(|| of(|it| it.tls.is_none()));
    let listener = found.ok_or(
        "no listener of the profile core can be asked: each takes headers of the PROXY protocol, or wants a client's \
         certificate; name an address of the core with --url (--core of explain)",
    )?;
    let source = effective.source.as_deref();
    let source = source.map_or("the defaults".to_owned(), |it| it.display().to_string());
    let words = format!("the listener {} of {source}", listener.name);
    let address = match &listener.address {
        ListenAddress::Unix(path) => CoreUrl::Unix(path.clone()).into(),
        ListenAddress::Tcp(address) if !is_of_this_machine(address.ip()) => {
            return Err(format!(
                "{words} is at {address}, which is no address of this machine, and a token would go there: name the gateway \
                 with --url (--core of explain)"
            ));
        }
        ListenAddress::Tcp(address) => CoreAddress {
            url: reachable(*address, listener.tls.is_some()),
            tls_name: listener.tls.as_ref().and_then(tls::certificate_name),
            host: served_host(effective, address),
            trust: CoreTrust::System,
        },
    };
    Ok((address, words))
}

/// A configured host name to send in requests, for listeners that refuse requests to their bare address. `None` for loopback
/// addresses, which are always accepted.
fn served_host(effective: &Effective, address: &SocketAddr) -> Option<String> {
    if address.ip().is_loopback() {
        return None;
    }
    let hosts = effective.config.admission.hosts.iter();
    let names = hosts.map(ToString::to_string);
    names.into_iter().find(|it| !it.contains('*'))
}

/// Returns true if this machine has the address. The configuration in the current folder may be that of another machine.
fn is_of_this_machine(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

/// The URL under which a client on this machine reaches a listener. For a listener on all addresses it is the loopback address.
fn reachable(address: SocketAddr, tls: bool) -> CoreUrl {
    let host = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        IpAddr::V6(ip) if ip.is_unspecified() => format!("[{}]", Ipv6Addr::LOCALHOST),
        IpAddr::V6(ip) => format!("[{ip}]"),
        IpAddr::V4(ip) => ip.to_string(),
    };
    let port = address.port();
    CoreUrl::Tcp { host, port, tls }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_all_interfaces_is_asked_on_this_machine() {
        for (address, url) in [
            ("0.0.0.0:8000", "http://127.0.0.1:8000"),
            ("[::]:8000", "http://[::1]:8000"),
            ("10.0.0.1:80", "http://10.0.0.1:80"),
        ] {
            let address = address.parse().unwrap();
            assert_eq!(reachable(address, false).to_string(), url);
            let encrypted = url.replace("http:", "https:");
            assert_eq!(reachable(address, true).to_string(), encrypted);
        }
    }

    #[test]
    fn a_file_with_a_token_may_end_in_a_line_break_and_holds_one_word() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            given_token(Some(&file)).map(|it| it.unwrap().secret.expose().to_owned())
        };
        assert_eq!(read("td_abc\n").as_deref(), Ok("td_abc"));
        for wrong in ["", "\n", "two words", "größe"] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains("one word"), "{error}");
            assert!(
                !error.contains("words\n") && !error.contains("größe"),
                "{error}"
            );
        }
    }
}
