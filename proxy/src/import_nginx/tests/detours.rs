//! Requests that nginx answers elsewhere than at the server of their location, and answers that nginx changes.

use super::*;

#[test]
fn a_location_whose_requests_never_come_to_its_server_is_told() {
    for detour in [
        "try_files $uri @other;",
        "try_files $uri =404;",
        "try_files /maintenance.html /other;",
    ] {
        let outcome = front("", "location @other { return 403; }", detour);
        assert!(
            outcome.says(&["try_files: security: ", "none to the server"]),
            "{detour}: {:#?}",
            outcome.lines
        );
    }
    for detour in [
        "content_by_lua_block { ngx.exit(403) }",
        "js_content main.refuse;",
        "fastcgi_pass unix:/deny.sock;",
        "empty_gif;",
    ] {
        let outcome = front("", "", detour);
        assert!(
            outcome.says(&["security: ", "beside proxy_pass"]),
            "{detour}: {:#?}",
            outcome.lines
        );
    }
}

#[test]
fn files_that_a_block_around_tries_are_none_of_a_location() {
    let outcome = front(
        "",
        "try_files $uri @other; location @other { return 403; }",
        "",
    );
    assert!(!outcome.security, "{:#?}", outcome.lines);
    let outcome = front(
        "",
        "location /files/ { root /srv; try_files $uri =404; }",
        "",
    );
    assert!(!outcome.security, "{:#?}", outcome.lines);
}

#[test]
fn errors_and_answers_that_lead_to_another_location_are_listed() {
    let elsewhere = "location @other { proxy_pass http://10.0.0.9; } location /other { internal; proxy_pass http://10.0.0.9; }";
    for (server, location, name) in [
        ("error_page 502 @other;", "", "error_page"),
        ("", "error_page 401 403 = /other;", "error_page"),
        (
            "",
            "error_page 418 = @other; if ($http_authorization != 'Bearer tok1') { return 418; }",
            "error_page",
        ),
        (
            "location /mcp { error_page 418 = @other; return 418; }",
            "",
            "error_page",
        ),
        ("", "post_action /other;", "post_action"),
    ] {
        let outcome = front("", &format!("{server} {elsewhere}"), location);
        assert!(
            outcome.says(&[&format!("{name}: "), "other location"])
                || outcome.says(&[&format!("{name}: "), "another location"]),
            "{server} {location}: {:#?}",
            outcome.lines
        );
        // The location of an error page is not served here, so that no request gets in that nginx refuses.
        assert!(!outcome.security, "{:#?}", outcome.lines);
        assert!(!outcome.yaml.contains("10.0.0.9"), "{}", outcome.yaml);
    }
}

#[test]
fn what_is_taken_out_of_answers_is_told() {
    for filter in [
        "sub_filter 'internal-name' '***';",
        "sub_filter hunter2 '';",
        "sub_filter '/messages' '/search/messages';",
        "header_filter_by_lua_block { ngx.header.x = nil }",
        "body_filter_by_lua_file /x.lua;",
        "js_body_filter main.hide;",
        "js_header_filter main.hide;",
    ] {
        let outcome = front("", "", filter);
        assert!(outcome.security, "{filter}: {:#?}", outcome.lines);
    }
}
