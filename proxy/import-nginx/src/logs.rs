//! The key `observability.access_log`: the access log, with its format.

use crate::report::Report;
use crate::scope::Level;
use crate::tree::Directive;
use crate::values::{Piece, pieces};
use crate::view::View;
use crate::yaml_text::Map;

/// Adds the access log of the first proxied location that has one.
pub(crate) fn write(view: &View<'_>, observability: &mut Map, report: &mut Report) {
    let mut logs: Vec<&Directive> = Vec::new();
    for proxied_location in &view.sites.proxied_locations {
        for log in proxied_location.scope.all("access_log").iter().copied() {
            if log.first() != "off" && !logs.iter().any(|it| std::ptr::eq(*it, log)) {
                logs.push(log);
            }
        }
    }
    let Some((log, others)) = logs.split_first() else {
        return;
    };
    let mut off: Vec<&Directive> = Vec::new();
    for proxied_location in &view.sites.proxied_locations {
        if let Some(log) = proxied_location.scope.last("access_log")
            && log.first() == "off"
            && !off.iter().any(|it| std::ptr::eq(*it, log))
        {
            list_off(log, report);
            off.push(log);
        }
    }
    for other in others {
        report.plain(
            other,
            format!("there is one access log, that of {}", log.place),
        );
    }
    let path = match log.first() {
        "/dev/stdout" => "stdout",
        path if path.starts_with("syslog:") || path.contains('$') => {
            report.plain(
                log,
                "the access log goes to a file or to standard output: collect it from there",
            );
            return;
        }
        path => path,
    };
    if path != "stdout" {
        report.path(log);
    }
    if log.option("if").is_some() {
        report.plain(log, "every request has a line: the condition is left out");
    }
    let mut entry = Map::default();
    entry.add("path", path);
    let format = log
        .arg(1)
        .filter(|name| !name.contains('=') && *name != "combined");
    if let Some(name) = format {
        let named = |it: &&&Directive| it.first() == name;
        let found = view.sites.http.all("log_format").iter().find(named);
        match found.and_then(|format| pattern(format, view, report).map(|text| (text, format))) {
            Some((text, at)) => entry.add_with("format", text, at.place.to_string()),
            None => report.plain(
                log,
                "this format cannot be read: lines are in the format combined",
            ),
        }
    }
    observability.add_with("access_log", entry, log.place.to_string());
}

/// Reports `access_log off` of a location that answers requests itself, such as a location for health checks.
pub(crate) fn list_without(level: &Level<'_>, report: &mut Report) {
    if let Some(off) = level.last("access_log").filter(|it| it.first() == "off") {
        list_off(off, report);
    }
}

fn list_off(off: &Directive, report: &mut Report) {
    report.plain(
        off,
        "every request has a line in the access log, if there is one: leave these out where the log is read",
    );
}

/// Converts a log format of nginx to the gateway's, with `-` in place of variables that the gateway does not have. A variable by
/// which a `map` names a token or a certificate becomes the name of the principal.
fn pattern(format: &Directive, view: &View<'_>, report: &mut Report) -> Option<String> {
    let escapes = format.option("escape");
    if escapes.is_some_and(|it| it != "default") {
        report.plain(
            format,
            "values are escaped as \\xHH: for lines that are JSON, write format: json",
        );
    }
    let words = format
        .args()
        .skip(1)
        .filter(|it| !it.starts_with("escape="));
    let text: String = words.collect();
    let mut known = String::new();
    let mut unknown: Vec<&str> = Vec::new();
    let pieces = pieces(&text);
    for (index, piece) in pieces.iter().enumerate() {
        match *piece {
            Piece::Text(text) => known.push_str(&text.replace('$', "$$")),
            Piece::Variable(name) => {
                let name = match view.variables.names_client(name) {
                    true => "remote_user",
                    false => name,
                };
                let joined = |it: &Piece<'_>| match it {
                    Piece::Text(text) => {
                        text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
                    }
                    Piece::Variable(_) => false,
                };
                let field = match pieces.get(index + 1).is_some_and(joined) {
                    true => format!("${{{name}}}"),
                    false => format!("${name}"),
                };
                if (view.gateway.allows_log_format)(&field) {
                    known.push_str(&field);
                } else {
                    if !unknown.contains(&name) {
                        unknown.push(name);
                    }
                    known.push('-');
                }
            }
        }
    }
    if !unknown.is_empty() {
        let names: Vec<_> = unknown.iter().map(|it| format!("${it}")).collect();
        let names = names.join(", ");
        report.plain(
            format,
            format!("{names}: the gateway has no such variable, and \"-\" stands there; docs/operating.md lists those it has"),
        );
    }
    (view.gateway.allows_log_format)(&known).then_some(known)
}
