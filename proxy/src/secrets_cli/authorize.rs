//! `tooldock secrets authorize`: a person authorizes the gateway, in a browser, to use a remote server in that person's name.
//!
//! The browser is redirected to a port of this machine, or the person pastes the URL at which the browser ended. The
//! authorization is stored in the store of authorizations, where a running gateway finds it within a second. No token is printed.

mod visitors;

use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tooldock_credentials::secrets::{
    Authorization, AuthorizationStore, Authorizer, PersonalSecrets, Scope, SecretSource as _,
    SecretStore,
};
use tooldock_workers::remote::{Grant, RemoteServer};

use self::visitors::Visitors;
use super::{CommandFailure, make};
use crate::cli::AuthorizeArgs;
use crate::config::Effective;
use crate::remote::authorize::{Asking, RedirectOutcome};
use crate::remote::{RemoteClient, RemoteMetrics, SystemNames};

/// Time limit for the person to log in and consent.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// Path of the URL to which the browser is redirected.
const CALLBACK: &str = "/callback";

/// Runs the command. Returns the text to print.
pub(super) fn run(
    arguments: &AuthorizeArgs,
    store: SecretStore,
    effective: &Effective,
) -> Result<String, CommandFailure> {
    let server = server(arguments, &store, effective)?;
    let authorizer = authorizer(arguments, &server)?;
    let whose = match &authorizer.principal {
        Some(principal) => format!("namespace {} in the name of {principal}", server.name),
        None => format!("namespace {} for everybody", server.name),
    };
    let store = AuthorizationStore::new(Arc::new(store), Arc::default());
    if arguments.remove {
        return match store.remove(&authorizer)? {
            true => Ok(format!("The authorization of {whose} is removed.\n")),
            false => Err(CommandFailure::Usage(format!(
                "{whose} is not authorized; `tooldock secrets list` shows what is"
            ))),
        };
    }
    store.can_write()?;
    make(&effective.data_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| CommandFailure::Other(format!("cannot start: {error}")))?;
    let given = runtime.block_on(authorize_in_browser(&server, arguments.port))?;
    runtime.shutdown_background();
    store.set(authorizer, given)?;
    Ok(format!(
        "The gateway is authorized at {whose}. A running gateway uses that within a second.\n"
    ))
}

/// All authorizations as text, one per line, for the list of secrets.
pub(super) fn list(store: &Arc<SecretStore>) -> Result<String, CommandFailure> {
    let store = AuthorizationStore::new(Arc::clone(store), Arc::default());
    store.refresh()?;
    let all = store.list();
    if all.is_empty() {
        return Ok(String::new());
    }
    let lines = all.into_iter().map(|(authorizer, since)| {
        let since = std::time::UNIX_EPOCH + Duration::from_secs(since);
        let since = humantime_serde::re::humantime::format_rfc3339_seconds(since);
        let whose = authorizer.principal.map(Scope::Principal);
        let whose = whose.map_or_else(|| "everybody".to_owned(), |it| it.to_string());
        format!("{}  {whose}  since {since}\n", authorizer.namespace)
    });
    Ok(format!("\nAUTHORIZED AT\n{}", lines.collect::<String>()))
}

/// The configured server that the arguments select.
fn server(
    arguments: &AuthorizeArgs,
    store: &SecretStore,
    effective: &Effective,
) -> Result<Arc<RemoteServer>, CommandFailure> {
    let name = &arguments.namespace;
    let mut servers = effective.config.upstreams.over_http();
    let found = servers.find(|it| it.name == name);
    let key = found.as_ref().map_or("upstreams.remote", |it| it.key);
    let usage = |what: &str| CommandFailure::Usage(format!("{key}.{name}{what}"));
    let config = found.ok_or_else(|| usage(" is not configured"))?.config;
    let oauth = config.oauth.as_ref();
    if oauth.is_none_or(|it| it.grant != Grant::AuthorizationCode) {
        return Err(usage(
            ".oauth.grant is not authorization_code: nobody has to authorize the gateway there",
        ));
    }
    let secrets = store.read()?;
    let environment = |name: &str| std::env::var(name).ok();
    let server = RemoteServer::resolve(name, &config, &secrets, &environment);
    let server = server.map_err(|error| usage(&format!(".{error}")))?;
    Ok(Arc::new(server))
}

fn authorizer(
    arguments: &AuthorizeArgs,
    server: &RemoteServer,
) -> Result<Authorizer, CommandFailure> {
    let name = &server.name;
    let principal = match &arguments.scope {
        Some(Scope::Principal(principal)) => Some(principal.as_str()),
        Some(Scope::Namespace(of)) if of == name => None,
        None => None,
        Some(scope) => {
            return Err(CommandFailure::Usage(format!(
                "--scope {scope} authorizes nobody: write principal:NAME, or leave it out"
            )));
        }
    };
    let authorizer = server.spec.personal.authorizer(name, principal);
    let authorizer = authorizer.ok_or_else(|| {
        CommandFailure::Usage(format!(
            "at {name} each principal authorizes the gateway for itself: write --scope principal:NAME"
        ))
    })?;
    match (principal, &authorizer.principal) {
        (Some(_), None) => Err(CommandFailure::Usage(format!(
            "the authorization of {name} is everybody's: leave out --scope, or write `personal: true` under \
             {}.oauth",
            server.key()
        ))),
        _ => Ok(authorizer),
    }
}

/// Shows the person the URL for the authorization, and waits for the result.
async fn authorize_in_browser(
    server: &Arc<RemoteServer>,
    port: u16,
) -> Result<Authorization, CommandFailure> {
    let other = |what: String| CommandFailure::Other(server.without_secrets(&what));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await;
    let listener = listener
        .map_err(|error| CommandFailure::Other(format!("port {port} of this machine: {error}")))?;
    let address = listener
        .local_addr()
        .map_err(|error| CommandFailure::Other(error.to_string()))?;
    let origin = format!("http://{address}");
    let metrics = RemoteMetrics::new(&prometheus::Registry::new());
    let metrics = metrics.map_err(|error| CommandFailure::Other(error.to_string()))?;
    let client = RemoteClient::new(
        Arc::new(SystemNames),
        Arc::new(metrics),
        tokio::runtime::Handle::current(),
        Arc::new(PersonalSecrets::default()),
        None,
    );
    let Some(oauth) = &server.spec.oauth else {
        unreachable!("the server was chosen for having it");
    };
    let redirect = format!("{origin}{CALLBACK}");
    let asking = Asking::begin(&client, server, oauth, &redirect, None).await;
    let asking = asking.map_err(other)?;
    print_line(&format!(
        "The authorization server is {}. Open this address in a browser on this machine:\n\n{}\n\nIf the browser is on another machine, paste here the address \
         that it ends at, which begins with {redirect}.\n",
        asking.issuer(),
        asking.address()
    ));
    let answered = timeout(PATIENCE, answer(&asking, &listener, &origin));
    match answered.await {
        Ok(Ok(given)) => Ok(given),
        Ok(Err(reason)) => Err(other(format!("the gateway was not authorized: {reason}"))),
        Err(_) => Err(CommandFailure::Other(format!(
            "nobody agreed within {} minutes",
            PATIENCE.as_secs() / 60
        ))),
    }
}

/// Waits for the redirect: either a browser connects to this machine, or the person pastes a URL. Other connections, even slow or
/// silent ones, do not delay this.
async fn answer(
    asking: &Asking,
    listener: &TcpListener,
    origin: &str,
) -> Result<Authorization, String> {
    let mut pasted = lines();
    let mut visitors = Visitors::default();
    loop {
        let (address, browser) = tokio::select! {
            Ok((connection, _)) = listener.accept() => {
                visitors.enter(connection, origin);
                continue;
            }
            Some((address, browser)) = visitors.next() => (address, Some(browser)),
            Some(line) = pasted.recv() => (line, None),
        };
        let answered = asking.finish(address.trim()).await;
        match (&answered, browser) {
            (RedirectOutcome::Foreign, Some(browser)) => visitors.turn_away(browser),
            (_, Some(browser)) => visitors::tell(browser, &answered).await,
            (_, None) => {}
        }
        match answered {
            RedirectOutcome::Given(given) => return Ok(given),
            RedirectOutcome::Refused(reason) => return Err(reason),
            RedirectOutcome::Failed(reason) => return Err(reason.logged),
            RedirectOutcome::Foreign => {}
        }
    }
}

fn print_line(text: &str) {
    let mut out = io::stdout().lock();
    // If writing fails, the operator at least sees the error after the time limit.
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

/// The lines of standard input. A thread reads them; the channel is closed at the end of the input.
fn lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}
