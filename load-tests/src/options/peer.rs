//! A peer given on the command line: any program that serves streamable HTTP for a stdio server.

use std::net::SocketAddr;

const NAME_MAX: usize = 40;

/// A name and a shell command that starts the peer. `{host}`, `{port}` and `{server}` stand for the address to listen
/// on and for the command line of the stdio server, quoted for a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerCommand {
    pub(crate) name: String,
    command: String,
}

impl PeerCommand {
    /// Parses `NAME=COMMAND`.
    ///
    /// # Errors
    ///
    /// The fault, in words for the user.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (name, command) = text
            .split_once('=')
            .ok_or("NAME=COMMAND, such as gateway='gateway --port {port} -- {server}'")?;
        let is_plain =
            |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
        if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_plain) {
            return Err(format!(
                "the name {name:?} must be 1 to {NAME_MAX} letters, digits, '-', '_' or '.'"
            ));
        }
        for place in ["{port}", "{server}"] {
            if !command.contains(place) {
                return Err(format!("the command of {name} has no {place}"));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            command: command.to_owned(),
        })
    }

    /// The script for `sh -c`. The peer replaces the shell, so that the started process is the peer.
    pub(crate) fn script(&self, address: SocketAddr, server: &[String]) -> String {
        let quoted: Vec<String> = server.iter().map(|word| quoted(word)).collect();
        let command = self
            .command
            .replace("{host}", &address.ip().to_string())
            .replace("{port}", &address.port().to_string())
            .replace("{server}", &quoted.join(" "));
        format!("exec {command}")
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_gets_its_address_and_the_server_quoted() {
        let peer =
            PeerCommand::parse("agent-1=agent -l {host}:{port} --env A=b -- {server}").unwrap();
        assert_eq!(peer.name, "agent-1");
        let server = ["/a b/echo", "it's"].map(str::to_owned);
        assert_eq!(
            peer.script("127.0.0.1:4000".parse().unwrap(), &server),
            r"exec agent -l 127.0.0.1:4000 --env A=b -- '/a b/echo' 'it'\''s'"
        );
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_reason() {
        for (wrong, why) in [
            ("agent", "NAME=COMMAND"),
            ("=x {port} {server}", "name"),
            ("a|b=x {port} {server}", "name"),
            ("a=x {server}", "{port}"),
            ("a=x {port}", "{server}"),
        ] {
            let error = PeerCommand::parse(wrong).unwrap_err();
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }
}
