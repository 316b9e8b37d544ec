//! Finds private keys of OAuth clients (`client_key`) that cannot sign, before the first token request would.

use tooldock_base::names::NamespaceName;
use tooldock_base::template::{Sources, Template};
use tooldock_credentials::secrets::Secrets;
use tooldock_workers::remote::RemoteServerConfig;
use tooldock_workers::servers::Finding;

use crate::config::Config;
use crate::remote;

/// Finds the unusable keys of all remote servers and APIs. A key without a value is left to the check of variables.
pub(super) fn findings(config: &Config, secrets: &Secrets) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, server) in &config.upstreams.remote {
        found.extend(of_server("remote", name, server, secrets));
    }
    for (name, api) in &config.upstreams.openapi {
        found.extend(of_server("openapi", name, &api.as_remote(), secrets));
    }
    found
}

fn of_server(
    kind: &str,
    name: &NamespaceName,
    server: &RemoteServerConfig,
    secrets: &Secrets,
) -> Vec<Finding> {
    let Some(oauth) = &server.oauth else {
        return Vec::new();
    };
    let values = secrets.for_namespace(&name.owner()).values;
    let environment = |name: &str| std::env::var(name).ok();
    let sources = Sources {
        secrets: &values,
        environment: &environment,
        allowed: None,
    };
    let identity = oauth.identity.as_ref();
    let identity = identity.and_then(|it| it.client_key.as_ref());
    let keys: [(&str, Option<&Template>); 2] = [
        ("client_key", oauth.client_key.as_ref()),
        ("identity.client_key", identity),
    ];
    let keys = keys.into_iter().filter_map(|(key, it)| Some((key, it?)));
    keys.filter(|(_, template)| {
        let value = template.fill(&sources);
        value.is_ok_and(|pem| !remote::is_client_key(pem.expose()))
    })
    .map(|(key, _)| Finding {
        place: format!("upstreams.{kind}.{name}.oauth.{key}"),
        message: format!("is {}", remote::CLIENT_KEY_NEEDED),
        is_error: true,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use tooldock_base::secret::Secret;
    use tooldock_base::yaml;

    use super::*;

    #[test]
    fn a_key_that_cannot_sign_is_found_and_not_shown() {
        let text = "upstreams: { remote: { far: { backends: ['https://a'], oauth: { grant: id_jag, client_id: c, \
                    client_key: '${NO_SUCH_KEY_A}', issuer: 'https://i', identity: { client_id: c, \
                    client_key: '${NO_SUCH_KEY_B}', issuer: 'https://i' } } } } }";
        let config: Config = yaml::from_str(text).expect("valid");
        assert!(findings(&config, &Secrets::default()).is_empty());
        let pair = rcgen::KeyPair::generate().expect("a key");
        let secrets = Secrets::global([
            ("NO_SUCH_KEY_A", Secret::new(pair.serialize_pem())),
            ("NO_SUCH_KEY_B", Secret::new("/etc/hunter2.pem")),
        ]);
        let found = findings(&config, &secrets);
        let places: Vec<_> = found.iter().map(|it| &*it.place).collect();
        assert_eq!(places, ["upstreams.remote.far.oauth.identity.client_key"]);
        assert!(
            !found[0].message.contains("hunter2"),
            "{}",
            found[0].message
        );
    }
}
