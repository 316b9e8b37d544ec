//! Compares this machine's clock with the `Date` headers of servers that the configuration names, and with Redis. A wrong clock
//! makes valid tokens and certificates look expired, and replicas compare their times.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use http::header::DATE;
use reqwest::redirect::Policy;
use tokio::time::{sleep, timeout};
use tooldock_workers::remote::{Backend, Host};
use tooldock_workers::servers::CheckedServer;

use super::front::PublicAddress;
use super::redis::store_of;
use super::{Finding, Severity};
use crate::config::Effective;
use crate::serve::CoreTrust;

const CHECK: &str = "clock";
/// Difference between clocks, in seconds, above which tokens are refused: issuers' tokens are accepted with a leeway of one
/// minute.
const DIFFERENCE_MAX: i64 = 60;
/// Maximum number of servers whose clocks are compared.
const SERVERS_MAX: usize = 8;
/// Time limit for a server's response.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);
/// Pause before Redis is asked for its time again after an error.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Compares the clock of this machine with the clocks of other machines.
pub(super) async fn check(
    effective: &Effective,
    servers: &[CheckedServer],
    public: Option<&PublicAddress>,
) -> Vec<Finding> {
    let mut urls = BTreeMap::new();
    if let Some(public) = public {
        urls.insert(public.origin(), public.origin());
    }
    for issuer in &effective.config.admission.oauth {
        if let Ok(backend) = Backend::parse(&issuer.issuer) {
            urls.extend(url_of(&backend));
        }
    }
    // A remote server that may not have private addresses is skipped if it is named by a host name: unlike the gateway, this
    // check does not verify the address to which the name resolves.
    let backends = servers.iter().flat_map(|server| {
        let may_ask = |it: &&Backend| server.allow_private || !matches!(it.host, Host::Name(..));
        server.backends.iter().filter(may_ask)
    });
    urls.extend(backends.filter_map(url_of));
    // Certificates are not verified: no secret is sent, and only the `Date` header is read.
    let client = CoreTrust::Any.client().ok().and_then(|tls| {
        let builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .http1_only()
            .tls_backend_preconfigured(tls);
        builder.build().ok()
    });
    let Some(client) = client else {
        return vec![Finding::skipped(CHECK, "no TLS client can be made")];
    };
    let asked = urls.into_iter().take(SERVERS_MAX).map(|(name, url)| {
        let client = &client;
        async move {
            let asked = client.head(url).send();
            let response = timeout(ANSWER_LIMIT, asked).await.ok()?.ok()?;
            let date = response.headers().get(DATE)?.to_str().ok()?;
            Some((name, seconds_of(date)? - now()))
        }
    });
    let redis = async {
        let store = store_of(effective)?.ok()?;
        // Failed attempts are repeated: the time limit of requests to Redis is 50 ms, which the first connection exceeds on a
        // busy machine.
        let time = async {
            loop {
                match store.time().await {
                    Ok(time) => return time,
                    Err(_) => sleep(RETRY_PAUSE).await,
                }
            }
        };
        let time = timeout(ANSWER_LIMIT, time).await.ok()?;
        let difference = time.as_secs().cast_signed() - now();
        Some(("Redis".to_owned(), difference))
    };
    let (asked, redis) = tokio::join!(join_all(asked), redis);
    let differences: Vec<_> = asked.into_iter().flatten().chain(redis).collect();
    said(&differences)
}

fn said(differences: &[(String, i64)]) -> Vec<Finding> {
    let far = differences.iter();
    let far: Vec<_> = far
        .filter(|(_, difference)| difference.abs() > DIFFERENCE_MAX)
        .map(|(name, difference)| {
            let way = if *difference > 0 {
                "behind"
            } else {
                "ahead of"
            };
            let seconds = difference.abs();
            let said = format!(
                "this machine's clock is {seconds} s {way} that of {name}: tokens are refused"
            );
            Finding::problem(CHECK, said, "sudo timedatectl set-ntp true")
        })
        .collect();
    if !far.is_empty() {
        return far;
    }
    let Some(most) = differences.iter().map(|(_, it)| it.abs()).max() else {
        let said = "no other server was reached to compare the clock with";
        return vec![Finding::new(CHECK, Severity::Skipped, said)];
    };
    let names: Vec<_> = differences.iter().map(|(name, _)| name.as_str()).collect();
    let said = format!("at most {most} s from the clocks of {}", names.join(", "));
    vec![Finding::ok(CHECK, said)]
}

/// Returns the name of a server and the URL of its root; `None` for a Unix socket.
fn url_of(backend: &Backend) -> Option<(String, String)> {
    if matches!(backend.host, Host::Unix(_)) {
        return None;
    }
    let scheme = if backend.tls { "https" } else { "http" };
    let authority = backend.authority();
    Some((authority.clone(), format!("{scheme}://{authority}/")))
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |it| it.as_secs().cast_signed())
}

/// Parses a date of HTTP, such as `Sun, 06 Nov 1994 08:49:37 GMT`. Returns the seconds since 1970.
fn seconds_of(date: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (_, date) = date.split_once(", ")?;
    let mut words = date.split(' ');
    let day: i64 = words.next()?.parse().ok()?;
    let name = words.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let mut time = words.next()?.split(':').map(|it| it.parse::<i64>().ok());
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next()??);
    // The number of days is computed with years that begin in March (H. Hinnant, chrono-compatible low-level date algorithms).
    let (year, month) = match month {
        ..3 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * 86_400 + hours * 3600 + minutes * 60 + seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_http_are_seconds() {
        for (date, seconds) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
            ("Thu, 29 Feb 2024 12:00:00 GMT", 1_709_208_000),
            ("Sun, 01 Mar 2026 00:00:01 GMT", 1_772_323_201),
        ] {
            assert_eq!(seconds_of(date), Some(seconds), "{date}");
        }
        for wrong in ["", "yesterday", "Sun, 06 Foo 1994 08:49:37 GMT"] {
            assert_eq!(seconds_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn more_than_a_minute_is_a_problem_with_its_direction() {
        let of = |difference| said(&[("idp".to_owned(), difference)]);
        assert_eq!(of(60)[0].severity, Severity::Ok);
        assert!(of(61)[0].said.contains("61 s behind that of idp"));
        assert!(of(-90)[0].said.contains("90 s ahead of that of idp"));
        assert_eq!(of(-90)[0].severity, Severity::Problem);
        assert_eq!(said(&[])[0].severity, Severity::Skipped);
    }
}
