//! The header fields that the admission checks need, found in one pass over a request's head.
//!
//! A look-up by name hashes the name and searches the map. A typical request contains few of the dozen known fields, so one pass
//! over its fields costs less than a dozen look-ups, most of which would find nothing.

use http::{HeaderMap, HeaderName, HeaderValue};

/// Number of occurrences of a header field in a request's head: none, one (with its value) or several.
#[derive(Clone, Copy, Default)]
pub(crate) enum Field<'a> {
    #[default]
    Absent,
    Once(&'a HeaderValue),
    /// The field occurs several times; its values must be read from the header map.
    Several,
}

impl<'a> Field<'a> {
    fn note(&mut self, value: &'a HeaderValue) {
        *self = match self {
            Self::Absent => Self::Once(value),
            Self::Once(_) | Self::Several => Self::Several,
        };
    }

    /// The first value of this header field, whose name is `name`; `None` if the request does not contain it.
    fn first(self, map: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
        match self {
            Self::Absent => None,
            Self::Once(value) => Some(value),
            Self::Several => map.get(name),
        }
    }

    pub(crate) fn is_absent(self) -> bool {
        matches!(self, Self::Absent)
    }
}

/// The known header fields of one request head. Without `Debug`, since it contains credentials.
pub struct Fields<'a> {
    /// All header fields of the request, including those that this type does not list separately.
    pub(crate) map: &'a HeaderMap,
    pub(crate) accept: Field<'a>,
    pub(crate) authorization: Field<'a>,
    pub(crate) content_length: Field<'a>,
    pub(crate) content_type: Field<'a>,
    pub(crate) forwarded_for: Field<'a>,
    pub(crate) host: Field<'a>,
    pub(crate) last_event_id: Field<'a>,
    pub(crate) manager_token: Field<'a>,
    pub(crate) method: Field<'a>,
    pub(crate) namespace: Field<'a>,
    pub(crate) origin: Field<'a>,
    pub(crate) protocol_version: Field<'a>,
    pub(crate) request_id: Field<'a>,
    pub(crate) session_id: Field<'a>,
    pub(crate) transfer_encoding: Field<'a>,
}

impl<'a> Fields<'a> {
    /// Finds the known header fields of a request head, in one pass.
    pub fn of(map: &'a HeaderMap) -> Self {
        let mut fields = Self {
            map,
            accept: Field::Absent,
            authorization: Field::Absent,
            content_length: Field::Absent,
            content_type: Field::Absent,
            forwarded_for: Field::Absent,
            host: Field::Absent,
            last_event_id: Field::Absent,
            manager_token: Field::Absent,
            method: Field::Absent,
            namespace: Field::Absent,
            origin: Field::Absent,
            protocol_version: Field::Absent,
            request_id: Field::Absent,
            session_id: Field::Absent,
            transfer_encoding: Field::Absent,
        };
        for (name, value) in map {
            let field = match name.as_str() {
                "accept" => &mut fields.accept,
                "authorization" => &mut fields.authorization,
                "content-length" => &mut fields.content_length,
                "content-type" => &mut fields.content_type,
                "x-forwarded-for" => &mut fields.forwarded_for,
                "host" => &mut fields.host,
                "last-event-id" => &mut fields.last_event_id,
                "x-manager-token" => &mut fields.manager_token,
                "mcp-method" => &mut fields.method,
                "x-namespace" => &mut fields.namespace,
                "origin" => &mut fields.origin,
                "mcp-protocol-version" => &mut fields.protocol_version,
                "x-request-id" => &mut fields.request_id,
                "mcp-session-id" => &mut fields.session_id,
                "transfer-encoding" => &mut fields.transfer_encoding,
                _ => continue,
            };
            field.note(value);
        }
        fields
    }

    /// Value of the header `X-Request-Id`; the first one if it was sent several times.
    pub fn request_id(&self) -> Option<&'a HeaderValue> {
        self.request_id.first(self.map, "x-request-id")
    }

    /// Value of the header `Mcp-Session-Id`; the first one if it was sent several times.
    pub fn session_id(&self) -> Option<&'a HeaderValue> {
        self.session_id.first(self.map, "mcp-session-id")
    }

    /// Value of the header `MCP-Protocol-Version`; the first one if it was sent several times.
    pub fn protocol_version(&self) -> Option<&'a HeaderValue> {
        self.protocol_version
            .first(self.map, "mcp-protocol-version")
    }

    /// Value of the header `Last-Event-ID`; the first one if it was sent several times.
    pub fn last_event_id(&self) -> Option<&'a HeaderValue> {
        self.last_event_id.first(self.map, "last-event-id")
    }

    /// Returns true if the request contains an `Mcp-Method` header.
    pub fn names_method(&self) -> bool {
        !self.method.is_absent()
    }

    /// Returns true if any value of a header field satisfies the predicate. `name` is the name of `field`.
    pub(crate) fn any(
        &self,
        field: Field<'a>,
        name: HeaderName,
        such: impl Fn(&HeaderValue) -> bool,
    ) -> bool {
        match field {
            Field::Absent => false,
            Field::Once(value) => such(value),
            Field::Several => self.map.get_all(name).iter().any(such),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_absent_there_once_or_several_times() {
        let mut map = HeaderMap::new();
        for (name, value) in [
            ("x-request-id", "a"),
            ("accept", "b"),
            ("Mcp-Session-Id", "c"),
            ("x-other", "d"),
            ("accept", "e"),
            ("MCP-Session-ID", "f"),
            ("accept", "g"),
        ] {
            let name: HeaderName = name.parse().unwrap();
            map.append(name, HeaderValue::from_static(value));
        }
        let fields = Fields::of(&map);
        assert!(matches!(fields.accept, Field::Several));
        assert!(matches!(fields.request_id, Field::Once(value) if value == "a"));
        assert!(fields.host.is_absent() && fields.authorization.is_absent());
        assert_eq!(fields.session_id().unwrap(), "c");
        assert_eq!(fields.request_id().unwrap(), "a");
        assert!(fields.protocol_version().is_none() && fields.last_event_id().is_none());
        let last = |value: &HeaderValue| value == "g";
        assert!(fields.any(fields.accept, http::header::ACCEPT, last));
        assert!(!fields.any(fields.host, http::header::HOST, |_| true));
    }
}
