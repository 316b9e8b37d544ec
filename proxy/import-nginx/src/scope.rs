//! Nested blocks, and the directives in force at a place: for most names, the innermost block that has any counts, with all
//! of its own.

use std::collections::HashMap;
use std::rc::Rc;

use super::tree::Directive;

/// A block's directives by name.
pub(super) struct Level<'a> {
    pub(super) block: &'a [Directive],
    by_name: HashMap<&'a str, Vec<&'a Directive>>,
}

impl<'a> Level<'a> {
    pub(super) fn of(block: &'a [Directive]) -> Rc<Self> {
        let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
        for directive in block {
            by_name.entry(directive.name()).or_default().push(directive);
        }
        Rc::new(Self { block, by_name })
    }

    pub(super) fn all(&self, name: &str) -> &[&'a Directive] {
        self.by_name
            .get(name)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    pub(super) fn last(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last().copied()
    }

    /// The directive that answers every request before it would be passed on: `return`, or a `rewrite` of everything to
    /// another place.
    pub(super) fn answers(&self) -> Option<&'a Directive> {
        let moves = |it: &&&Directive| {
            let everything = matches!(
                it.first(),
                "^" | "^(.*)" | "^(.*)$" | "^/(.*)" | "^/(.*)$" | ".*" | "(.*)"
            );
            everything && (it.has("permanent") || it.has("redirect"))
        };
        let rewrite = || self.all("rewrite").iter().find(moves).copied();
        self.last("return").or_else(rewrite)
    }
}

/// The blocks around a place, from the outermost to its own.
#[derive(Clone)]
pub(super) struct Scope<'a> {
    pub(super) levels: Vec<Rc<Level<'a>>>,
    /// The block whose conditions hold in all its locations.
    pub(super) server: Option<Rc<Level<'a>>>,
}

impl<'a> Scope<'a> {
    pub(super) fn with(&self, level: &Rc<Level<'a>>) -> Self {
        let mut scope = self.clone();
        scope.levels.push(Rc::clone(level));
        scope
    }

    /// The directive in force.
    pub(super) fn last(&self, name: &str) -> Option<&'a Directive> {
        self.all(name).last().copied()
    }

    /// The directives in force of a name that may stand several times.
    pub(super) fn all(&self, name: &str) -> &[&'a Directive] {
        let level = self.level_of(name);
        level.map_or(&[], |level| level.all(name))
    }

    /// The block whose directives of a name are in force.
    pub(super) fn level_of(&self, name: &str) -> Option<&Rc<Level<'a>>> {
        let mut levels = self.levels.iter().rev();
        levels.find(|level| !level.all(name).is_empty())
    }

    /// The directives in force of several names that are one list, in their order.
    pub(super) fn in_order(&self, names: &[&str]) -> Vec<&'a Directive> {
        let has_any = |level: &&Rc<Level<'a>>| names.iter().any(|name| !level.all(name).is_empty());
        let Some(level) = self.levels.iter().rev().find(has_any) else {
            return Vec::new();
        };
        let listed = |it: &&Directive| names.contains(&it.name());
        level.block.iter().filter(listed).collect()
    }

    /// Every `if` that a request passes: those of the server, then those of the location itself. Locations inherit none
    /// from locations around them.
    pub(super) fn conditions(&self) -> Vec<&'a Directive> {
        let server = self.server.iter().flat_map(|level| level.all("if"));
        let own = self.levels.last().filter(|own| {
            let server = self.server.as_ref();
            !server.is_some_and(|server| Rc::ptr_eq(server, own))
        });
        server
            .chain(own.into_iter().flat_map(|level| level.all("if")))
            .copied()
            .collect()
    }

    /// The rewrites that a request passes before the last one of its location: those of the server, and all but the last
    /// one of the location.
    pub(super) fn rewrites_before(&self) -> Vec<&'a Directive> {
        let of_server = self.server.iter().flat_map(|level| level.all("rewrite"));
        let own = self
            .levels
            .last()
            .map_or(&[][..], |level| level.all("rewrite"));
        let before = own.split_last().map_or(&[][..], |(_, before)| before);
        of_server.chain(before).copied().collect()
    }

    /// The last directive of that name in the location itself, or else in the server: nginx applies such directives in this
    /// order.
    pub(super) fn own_or_of_server(
        &self,
        name: &str,
        wanted: impl Fn(&&&'a Directive) -> bool,
    ) -> Option<&'a Directive> {
        let levels = self.levels.last().into_iter().chain(&self.server);
        let mut found = levels.filter_map(|it| it.all(name).iter().rfind(&wanted));
        found.next().copied()
    }

    /// The last directive of that name in the location itself.
    pub(super) fn own(&self, name: &str) -> Option<&'a Directive> {
        self.levels.last()?.last(name)
    }
}

/// The paths that a location is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Paths<'a> {
    Exactly(&'a str),
    Below(&'a str),
    Matching(&'a str),
    /// `@name`: reached only by nginx itself.
    Named,
}

impl<'a> Paths<'a> {
    pub(super) fn of(location: &'a Directive) -> Self {
        let (sign, path) = match (location.arg(0), location.arg(1)) {
            (Some(sign), Some(path)) => (sign, path),
            (Some(text), None) => {
                let sign = ["^~", "~*", "=", "~"]
                    .into_iter()
                    .find(|sign| text.starts_with(sign));
                let sign = sign.unwrap_or_default();
                (sign, &text[sign.len()..])
            }
            _ => ("", ""),
        };
        match sign {
            "=" => Self::Exactly(path),
            "~" | "~*" => Self::Matching(path),
            _ if path.starts_with('@') => Self::Named,
            _ => Self::Below(path),
        }
    }

    /// The path, without its slash at the end. Empty for a location without a path.
    pub(super) fn path(&self) -> &'a str {
        match self {
            Self::Exactly(path) | Self::Below(path) => path.trim_end_matches('/'),
            Self::Matching(_) | Self::Named => "",
        }
    }
}
