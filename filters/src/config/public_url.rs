//! `admission.public_url:` — `off`, or the origin (such as `https://gw.example`) by which clients reach the gateway.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tooldock_base::mask::address;

use crate::host::HostPattern;

const OFF: &str = "off";

/// The address by which clients reach the gateway: an origin, such as `https://gw.example`, or none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublicUrl(Option<String>);

impl PublicUrl {
    /// The gateway's public origin without a slash at its end; `None` if the key is `off`.
    pub fn origin(&self) -> Option<&str> {
        self.0.as_deref()
    }

    /// The host of the public URL, which every listener accepts; `None` if the key is `off`.
    pub fn host(&self) -> Option<HostPattern> {
        let uri: Uri = self.origin()?.parse().ok()?;
        uri.host()?.parse().ok()
    }
}

/// Error about a text that is not a valid public URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither `off` nor an origin such as https://gw.example; a path in front of the gateway belongs into listeners[].path_prefix"
)]
pub struct InvalidPublicUrl(String);

impl FromStr for PublicUrl {
    type Err = InvalidPublicUrl;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == OFF {
            return Ok(Self(None));
        }
        let invalid = || InvalidPublicUrl(address(text));
        let origin = text.strip_suffix('/').unwrap_or(text);
        let uri: Uri = origin.parse().map_err(|_| invalid())?;
        let (Some(scheme @ ("http" | "https")), Some(authority)) =
            (uri.scheme_str(), uri.authority())
        else {
            return Err(invalid());
        };
        let is_origin =
            origin == format!("{scheme}://{authority}") && !authority.as_str().contains('@');
        let has_host = !authority.host().is_empty();
        let after_host = authority.as_str().strip_prefix(authority.host());
        let port_is_number = after_host == Some("") || authority.port_u16().is_some();
        match is_origin && has_host && port_is_number {
            true => Ok(Self(Some(origin.to_owned()))),
            false => Err(invalid()),
        }
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.origin().unwrap_or(OFF))
    }
}

impl Serialize for PublicUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "`off` or an origin such as https://gw.example")]
        enum Spelling {
            // YAML 1.1 tools write `off` as `false`, so a boolean must be accepted here.
            Switch(bool),
            Text(String),
        }
        let text = match Spelling::deserialize(deserializer)? {
            Spelling::Switch(false) => OFF.to_owned(),
            Spelling::Switch(true) => "true".to_owned(),
            Spelling::Text(text) => text,
        };
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn the_host_is_the_name_without_scheme_and_port() {
        for (url, host) in [
            ("https://gw.example", Some("gw.example")),
            ("http://GW.example:8443", Some("gw.example")),
            ("https://[::1]:8443", Some("::1")),
            ("https://10.0.0.7", Some("10.0.0.7")),
            ("off", None),
        ] {
            let url: PublicUrl = url.parse().expect(url);
            assert_eq!(
                url.host().map(|it| it.to_string()).as_deref(),
                host,
                "{url}"
            );
        }
    }

    #[test]
    fn an_origin_or_off_is_a_public_url() {
        for (text, origin) in [
            ("off", None),
            ("false", None),
            ("https://gw.example", Some("https://gw.example")),
            ("https://gw.example/", Some("https://gw.example")),
            ("http://[::1]:8000", Some("http://[::1]:8000")),
        ] {
            let read: PublicUrl = yaml::from_str(text).expect(text);
            assert_eq!(read.origin(), origin);
            let written = yaml::to_string(&read).expect("YAML");
            assert_eq!(yaml::from_str::<PublicUrl>(&written).unwrap(), read);
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_would_be_right() {
        for text in [
            "gw.example",
            "ftp://gw.example",
            "https://gw.example/tools",
            "https://gw.example//",
            "https://gw.example?x",
            "https://gw.example/?x=gw.example",
            "https://user:word@gw.example",
            "https://:443",
            "https://gw.example:port",
            "https://",
            "on",
            "true",
            "[]",
        ] {
            let error = yaml::from_str::<PublicUrl>(text).expect_err(text);
            assert!(error.to_string().contains("https://gw.example"), "{error}");
        }
    }
}
