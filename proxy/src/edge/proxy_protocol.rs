//! Parses the header of the PROXY protocol, versions 1 and 2, in which a load balancer names the client of a connection.
//!
//! The caller decides which peers may send a header, and limits the time. Not a byte after the header is read, so that the
//! protocol after it, such as TLS, begins at its first byte.

use std::net::SocketAddr;

use ppp::{v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Length of the shortest header, in bytes: `PROXY UNKNOWN` and its line end. The shortest of version 2 has a byte
/// more.
const SHORTEST: usize = 15;

/// Maximum length of a header of version 1, in bytes, by the protocol's specification.
const V1_MAX: usize = 107;

/// Number of bytes of a header of version 2 before its addresses. The last two of them contain the length of the rest.
const V2_FIXED: usize = 16;

/// Value of the byte for version 2 with the command LOCAL.
const V2_LOCAL: u8 = 0x20;

/// Maximum length of a header of version 2 that is accepted, in bytes. The specification asks senders for less than 536.
const V2_MAX: usize = 4096;

/// The reason why no usable PROXY protocol header was read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoHeader {
    /// The connection ended before the header did.
    #[error("the connection ended after {read} bytes of its PROXY protocol header")]
    Ended {
        /// Number of header bytes read before the end.
        read: usize,
    },
    /// The bytes are not a PROXY protocol header.
    #[error("not a PROXY protocol header: {0}")]
    Malformed(String),
}

/// Reads a PROXY protocol header. Returns the client's address, or `None` if the header names no usable one: the proxy opened the
/// connection for itself, does not know the client, or the client connected to the proxy by a Unix socket.
///
/// # Errors
///
/// [`NoHeader`]; the connection must then be closed.
pub(super) async fn read<C: AsyncRead + Unpin>(
    connection: &mut C,
) -> Result<Option<SocketAddr>, NoHeader> {
    let mut header = Vec::with_capacity(V1_MAX);
    more(connection, &mut header, SHORTEST).await?;
    if header.starts_with(v2::PROTOCOL_PREFIX) {
        binary(connection, &mut header).await
    } else if header.starts_with(b"PROXY ") {
        text(connection, &mut header).await
    } else {
        Err(malformed("it begins with something else"))
    }
}

/// Reads the rest of a header of version 2, whose length stands in the header.
async fn binary<C: AsyncRead + Unpin>(
    connection: &mut C,
    header: &mut Vec<u8>,
) -> Result<Option<SocketAddr>, NoHeader> {
    more(connection, header, V2_FIXED - header.len()).await?;
    let rest = usize::from(u16::from_be_bytes([header[14], header[15]]));
    if rest > V2_MAX - V2_FIXED {
        return Err(malformed(format!("longer than {V2_MAX} bytes")));
    }
    more(connection, header, rest).await?;
    // With the command LOCAL, a health check by the proxy itself, the specification says to ignore family and addresses.
    if header[12] == V2_LOCAL {
        return Ok(None);
    }
    let header = v2::Header::try_from(header.as_slice()).map_err(malformed)?;
    match (header.protocol, header.addresses) {
        (v2::Protocol::Datagram, _) => Err(malformed("it is about datagrams")),
        (v2::Protocol::Unspecified, _) | (_, v2::Addresses::Unspecified) => Ok(None),
        (v2::Protocol::Stream, v2::Addresses::IPv4(it)) => {
            client((it.source_address, it.source_port).into())
        }
        (v2::Protocol::Stream, v2::Addresses::IPv6(it)) => {
            client((it.source_address, it.source_port).into())
        }
        // The address is not used: a client of the proxy's Unix socket must not get the rights of clients of the gateway's Unix
        // sockets.
        (v2::Protocol::Stream, v2::Addresses::Unix(_)) => Ok(None),
    }
}

/// Reads the rest of a header of version 1, which is a line of text.
async fn text<C: AsyncRead + Unpin>(
    connection: &mut C,
    header: &mut Vec<u8>,
) -> Result<Option<SocketAddr>, NoHeader> {
    while !header.ends_with(b"\r\n") {
        // Only the minimum remaining length of the line is read at a time, so that no byte after the line is read.
        let left = if header.ends_with(b"\r") { 1 } else { 2 };
        if header.len() + left > V1_MAX {
            return Err(malformed(format!("longer than {V1_MAX} bytes")));
        }
        more(connection, header, left).await?;
    }
    let header = v1::Header::try_from(header.as_slice()).map_err(malformed)?;
    match header.addresses {
        v1::Addresses::Unknown => Ok(None),
        v1::Addresses::Tcp4(it) => client((it.source_address, it.source_port).into()),
        v1::Addresses::Tcp6(it) => client((it.source_address, it.source_port).into()),
    }
}

fn client(address: SocketAddr) -> Result<Option<SocketAddr>, NoHeader> {
    // An unspecified address is refused, since the gateway uses it for clients without an address.
    if address.ip().to_canonical().is_unspecified() {
        return Err(malformed("the client's address is unspecified"));
    }
    Ok(Some(address))
}

async fn more<C: AsyncRead + Unpin>(
    connection: &mut C,
    header: &mut Vec<u8>,
    bytes: usize,
) -> Result<(), NoHeader> {
    let until = header.len() + bytes;
    while header.len() < until {
        let left = (until - header.len()) as u64;
        // A failure of the connection is treated like its end.
        match connection.take(left).read_buf(header).await {
            Ok(0) | Err(_) => return Err(NoHeader::Ended { read: header.len() }),
            Ok(_) => {}
        }
    }
    Ok(())
}

fn malformed(what: impl ToString) -> NoHeader {
    NoHeader::Malformed(what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client's address in a header, and the rest of the bytes behind it.
    async fn read_all(bytes: &[u8]) -> Result<(Option<String>, Vec<u8>), NoHeader> {
        let mut rest = bytes;
        let client = read(&mut rest).await?;
        Ok((client.map(|it| it.to_string()), rest.to_vec()))
    }

    fn binary_header(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let mut header = v2::PROTOCOL_PREFIX.to_vec();
        header.extend([command, family]);
        header.extend((addresses.len() as u16).to_be_bytes());
        header.extend(addresses);
        header
    }

    const V4: &[u8] = &[192, 0, 2, 7, 10, 0, 0, 1, 0xc3, 0x50, 1, 0xbb];

    #[tokio::test]
    async fn every_kind_of_header_is_read_to_its_last_byte() {
        let mut v6 = [0; 36];
        v6[..2].copy_from_slice(&[0x20, 0x01]);
        v6[15] = 9;
        v6[33] = 80;
        let mut with_extras = V4.to_vec();
        with_extras.extend([0x04, 0, 200]);
        with_extras.extend([7; 200]);
        for (header, client) in [
            (
                b"PROXY TCP4 192.0.2.7 10.0.0.1 50000 443\r\n".to_vec(),
                Some("192.0.2.7:50000"),
            ),
            (
                b"PROXY TCP6 2001:db8::9 ::1 1 2\r\n".to_vec(),
                Some("[2001:db8::9]:1"),
            ),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n".to_vec(), None),
            (binary_header(0x21, 0x11, V4), Some("192.0.2.7:50000")),
            (
                binary_header(0x21, 0x11, &with_extras),
                Some("192.0.2.7:50000"),
            ),
            (binary_header(0x21, 0x21, &v6), Some("[2001::9]:80")),
            // An extra whose length goes past the header's own end says nothing about the client.
            (
                binary_header(0x21, 0x11, &[V4, &[0x02, 0xff, 0xff, 1]].concat()),
                Some("192.0.2.7:50000"),
            ),
            (binary_header(0x20, 0xff, &[]), None),
            (binary_header(0x20, 0x11, &[]), None),
            (binary_header(0x20, 0x11, V4), None),
            (binary_header(0x20, 0x00, &[]), None),
            (binary_header(0x21, 0x00, &[1, 2, 3]), None),
            (binary_header(0x21, 0x31, &[0; 216]), None),
        ] {
            let mut sent = header.clone();
            sent.extend(b"GET / HTTP/1.1");
            let read = read_all(&sent).await.expect("a header");
            let expected = client.map(str::to_owned);
            assert_eq!(read, (expected, b"GET / HTTP/1.1".to_vec()), "{header:?}");
        }
    }

    #[tokio::test]
    async fn what_is_no_header_is_refused_as_soon_as_that_is_known() {
        let long = format!("PROXY TCP4 {}", "1".repeat(200));
        let huge = {
            let mut huge = binary_header(0x21, 0x11, V4);
            huge[14..16].copy_from_slice(&5000_u16.to_be_bytes());
            huge
        };
        for (sent, why) in [
            (
                b"GET /mcp HTTP/1.1\r\n\r\n".to_vec(),
                "begins with something else",
            ),
            (
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaa".to_vec(),
                "begins with",
            ),
            (long.into_bytes(), "longer than 107"),
            (huge, "longer than 4096"),
            (b"PROXY TCP4 192.0.2.7\r\nGET / HTTP/1.1\r\n".to_vec(), ""),
            (b"PROXY TCP4 2001:db8::1 ::1 1 2\r\n".to_vec(), ""),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 70000 443\r\n".to_vec(), ""),
            (
                b"PROXY TCP4 0.0.0.0 10.0.0.1 1 443\r\n".to_vec(),
                "unspecified",
            ),
            (
                b"PROXY TCP6 ::ffff:0.0.0.0 ::1 1 443\r\n".to_vec(),
                "unspecified",
            ),
            (b"PROXY UDP4 192.0.2.7 10.0.0.1 1 443\r\n".to_vec(), ""),
            (binary_header(0x31, 0x11, V4), ""),
            (binary_header(0x22, 0x11, V4), ""),
            (binary_header(0x21, 0x41, V4), ""),
            (binary_header(0x21, 0x12, V4), "datagrams"),
            (binary_header(0x21, 0x21, V4), ""),
            (binary_header(0x21, 0x11, &V4[..4]), ""),
            // Addresses that end a byte too early, and none where the family has some.
            (binary_header(0x21, 0x11, &V4[..11]), ""),
            (binary_header(0x21, 0x11, &[]), ""),
            (binary_header(0x21, 0x31, &[0; 215]), ""),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 1 443\n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef".to_vec(), "longer than 107"),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 -1 443\r\n".to_vec(), ""),
            (b"PROXY TCP4  192.0.2.7 10.0.0.1 1 443\r\n".to_vec(), ""),
            (b"PROXY TCP4 192.0.2.7\0 10.0.0.1 1 443\r\n".to_vec(), ""),
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 1 443 5\r\n".to_vec(), ""),
            (b"proxy TCP4 192.0.2.7 10.0.0.1 1 443\r\n".to_vec(), "begins with"),
            (b"PROXY TCP6 fe80::1%eth0 ::1 1 443\r\n".to_vec(), ""),
        ] {
            match read_all(&sent).await {
                Err(NoHeader::Malformed(what)) => assert!(what.contains(why), "{what}"),
                other => panic!("{sent:?}: {other:?}"),
            }
        }
        for sent in [
            &b""[..],
            b"PROXY TCP4 192.",
            &binary_header(0x21, 0x11, V4)[..20],
        ] {
            let read = sent.len();
            assert_eq!(
                read_all(sent).await,
                Err(NoHeader::Ended { read }),
                "{sent:?}"
            );
        }
    }
}
