//! Directives by which nginx may answer a request in another way than by the `proxy_pass` of its location: `try_files`,
//! `error_page`, and a second directive that generates responses.

use crate::report::Report;
use crate::scope::Level;
use crate::sites::{ProxiedLocation, Sites};

/// Names of directives, other than `proxy_pass`, that answer all requests of a location. If a location has several of them, the
/// last one is used.
const ANSWERING: [&str; 7] = [
    "content_by_lua",
    "content_by_lua_file",
    "content_by_lua_block",
    "js_content",
    "empty_gif",
    "perl",
    "echo",
];

/// Reports `try_files`, `error_page` and second directives that generate responses, for all proxied locations.
pub(crate) fn list(sites: &Sites<'_>, report: &mut Report) {
    for proxied_location in sites
        .proxied_locations
        .iter()
        .filter(|it| it.pass.is_some())
    {
        list_own(proxied_location, report);
        if let Some(level) = proxied_location.scope.level_of("error_page") {
            list_pages(level, report);
        }
    }
}

/// Reports the `error_page` directives of a block. If an `error_page` refers to another location, nginx may admit a request there
/// that the gateway refuses.
pub(crate) fn list_pages(level: &Level<'_>, report: &mut Report) {
    for page in level.all("error_page") {
        report.plain(
            page,
            "errors are JSON with stable codes, see docs/http.md: no error leads to another location or address",
        );
    }
}

/// Reports directives that apply only in their own location, since nested locations do not inherit them.
fn list_own(proxied_location: &ProxiedLocation<'_>, report: &mut Report) {
    let Some(own) = proxied_location.scope.levels.last() else {
        return;
    };
    for files in own.all("try_files") {
        report.security(
            files,
            "requests go to a file, to another location or to an error in nginx, and none to the server of this location: leave the server out of upstreams.remote, or take try_files out",
        );
    }
    for directive in own.block {
        let name = directive.name();
        if ANSWERING.contains(&name) || name.ends_with("_pass") && name != "proxy_pass" {
            report.security(
                directive,
                "answers requests beside proxy_pass, and the later one of the two counts in nginx: take out the one that does nothing",
            );
        }
    }
}
