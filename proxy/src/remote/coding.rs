//! Decodes compressed bodies by their `Content-Encoding`.
//!
//! The gateway's requests name no accepted coding, and then a server may use any (RFC 9110 §12.5.3). Some servers and front ends
//! always compress. The output is produced on demand in pieces of bounded size. Therefore the size limits of a reader apply to
//! the decoded body, and a short body that would decode to an endless one costs no memory. The memory of a decoder, its window,
//! is bounded, too: [`WINDOW_MAX`] for one body.

use std::fmt;
use std::io;

use brotli_decompressor::{
    Allocator, BrotliDecompressStream, BrotliResult, BrotliState, SliceWrapper as _, StandardAlloc,
};
use bytes::{Buf as _, Bytes, BytesMut};
use flate2::{Decompress, FlushDecompress, Status};
use http::header::{self, HeaderMap, HeaderValue};
use smallvec::SmallVec;
use tooldock_upstream::http_client::{BodyError, CodingName};
use zstd::stream::raw::{DParameter, Decoder as ZstdDecoder, InBuffer, Operation as _, OutBuffer};

/// Maximum and minimum length of one piece of decoded output, in bytes.
const PIECE_MAX: usize = 64 * 1024;
const PIECE_MIN: usize = 1024;
/// Maximum number of codings that may be applied to one body. More than one is allowed only for gzip and deflate, whose windows
/// are small.
const STAGES_MAX: usize = 2;
/// Maximum size of a decoder's window in bytes, and its binary logarithm: 8 MiB, the limit of RFC 9659 for zstd.
const WINDOW_MAX: usize = 1 << WINDOW_LOG_MAX;
const WINDOW_LOG_MAX: u32 = 23;
/// Maximum size in bytes of one allocation by the brotli decoder: the window, and a small reserve for writes beyond its end.
const BROTLI_ALLOCATION_MAX: usize = WINDOW_MAX + 1024;
/// Binary logarithm of the largest window of gzip, in bytes.
const GZIP_WINDOW_BITS: u8 = 15;

/// A content coding that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    fn parse(name: &str) -> Option<Self> {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        Some(match () {
            () if is("gzip") || is("x-gzip") => Self::Gzip,
            () if is("deflate") => Self::Deflate,
            () if is("br") => Self::Brotli,
            () if is("zstd") => Self::Zstd,
            () => return None,
        })
    }

    /// Returns true if the coding's window may have megabytes. False for gzip and deflate, whose windows have at most 32 KiB.
    fn has_wide_window(self) -> bool {
        match self {
            Self::Gzip | Self::Deflate => false,
            Self::Brotli | Self::Zstd => true,
        }
    }

    /// The content coding's name, for error messages.
    fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

/// Creates the error for a body whose content coding is unknown.
fn unknown(name: &[u8]) -> BodyError {
    BodyError::UnknownCoding(CodingName::new(name))
}

/// The error of a body whose codings would need too much memory.
const STACKED: BodyError =
    BodyError::Coding("is compressed more than once, and not twice by gzip and deflate alone");

/// Returns true for names that servers put into `Content-Encoding` by mistake although the body is not encoded, such as
/// character sets and framings.
fn is_no_coding(name: &str) -> bool {
    let none = [
        "",
        "identity",
        "none",
        "utf-8",
        "utf8",
        "binary",
        "8bit",
        "7bit",
        "aws-chunked",
        "chunked",
    ];
    none.iter().any(|it| name.eq_ignore_ascii_case(it))
}

/// The codings of a response in the order in which they were applied. Empty for most responses.
///
/// # Errors
///
/// When a coding is unknown, or there are too many.
fn codings(headers: &HeaderMap) -> Result<SmallVec<[Coding; 1]>, BodyError> {
    let mut codings = SmallVec::<[Coding; 1]>::new();
    for value in headers.get_all(header::CONTENT_ENCODING) {
        for name in value
            .to_str()
            .map_err(|_| unknown(value.as_bytes()))?
            .split(',')
        {
            let name = name.trim();
            if is_no_coding(name) {
                continue;
            }
            if codings.len() == STAGES_MAX {
                return Err(STACKED);
            }
            codings.push(Coding::parse(name).ok_or_else(|| unknown(name.as_bytes()))?);
        }
    }
    match codings.len() > 1 && codings.iter().any(|it| it.has_wide_window()) {
        true => Err(STACKED),
        false => Ok(codings),
    }
}

/// Returns true if the request's header `Accept-Encoding` accepts the coding.
fn accepts<'a>(accept: impl Iterator<Item = &'a HeaderValue>, coding: Coding) -> bool {
    let (mut named, mut any) = (None, false);
    let lists = accept.filter_map(|value| value.to_str().ok());
    for item in lists.flat_map(|value| value.split(',')) {
        let mut parts = item.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let refused = parts.any(|parameter| {
            let weight = parameter.strip_prefix("q=");
            let weight = weight.or_else(|| parameter.strip_prefix("Q="));
            weight.is_some_and(|weight| weight.trim_matches(['0', '.']).is_empty())
        });
        if Coding::parse(name) == Some(coding) {
            named = Some(!refused);
        }
        any |= name == "*" && !refused;
    }
    named.unwrap_or(any)
}

/// Removes the coding headers of a response, and returns the decoder for its body; `None` if the body is not compressed. `accept`
/// is the `Accept-Encoding` of the client's request. This header is not sent to the server.
///
/// # Errors
///
/// When the body cannot be decoded.
pub(super) fn decoder<'a>(
    headers: &mut HeaderMap,
    accept: impl Iterator<Item = &'a HeaderValue>,
) -> Result<Option<Box<BodyDecoder>>, BodyError> {
    let codings = codings(headers)?;
    headers.remove(header::CONTENT_ENCODING);
    let Some(first) = codings.first() else {
        return Ok(None);
    };
    let coded = HeaderValue::from_static(first.name());
    // The header is removed because it states the length of the compressed body.
    headers.remove(header::CONTENT_LENGTH);
    let is_accepted = codings.len() == 1 && accepts(accept, codings[0]);
    let stages = codings.into_iter().rev().map(DecodingStage::new);
    Ok(Some(Box::new(BodyDecoder {
        stages: stages.collect::<Result<_, _>>()?,
        received: is_accepted.then(|| (coded, BytesMut::new())),
    })))
}

/// The decoder for the body of one response.
pub(super) struct BodyDecoder {
    /// Decoders in the order in which they are used: first the one for the coding that was applied last.
    stages: SmallVec<[DecodingStage; 1]>,
    /// The coding's name and the body as received. It is kept only if the client accepts the coding and the body is short.
    received: Option<(HeaderValue, BytesMut)>,
}

impl fmt::Debug for BodyDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages = self.stages.iter().map(|it| it.coding.name());
        f.debug_list().entries(stages).finish()
    }
}

impl BodyDecoder {
    /// Adds the next undecoded piece of the body. Must only be called after [`BodyDecoder::next`] has returned `None`.
    pub(super) fn push(&mut self, piece: Bytes) {
        if let Some((_, received)) = &mut self.received {
            if received.len() + piece.len() > PIECE_MAX {
                self.received = None;
            } else {
                received.extend_from_slice(&piece);
            }
        }
        self.stages[0].push(piece);
    }

    /// The next piece of the decoded body; `None` if more input is needed.
    ///
    /// # Errors
    ///
    /// When the body cannot be decoded with the coding that its headers declare.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        produce(&mut self.stages)
    }

    /// Returns true if the input so far is a complete encoded body.
    pub(super) fn is_complete(&self) -> bool {
        self.stages.iter().all(DecodingStage::is_complete)
    }

    /// Returns the body as received, with the name of its coding. `None` if the client does not accept the coding, the body was
    /// too long, or bytes followed its first gzip member or zstd frame: clients treat such bytes in different ways.
    pub(super) fn take_received(&mut self) -> Option<(HeaderValue, Bytes)> {
        let has_more = self.stages.iter().any(|it| it.has_more);
        let (coding, received) = self.received.take().filter(|_| !has_more)?;
        Some((coding, received.freeze()))
    }

    /// Drops the copy of the undecoded body, so that the client gets the decoded body instead of this copy.
    pub(super) fn forget_received(&mut self) {
        self.received = None;
    }
}

fn produce(stages: &mut [DecodingStage]) -> Result<Option<Bytes>, BodyError> {
    let Some((last, before)) = stages.split_last_mut() else {
        return Ok(None);
    };
    loop {
        if let Some(piece) = last.step()? {
            return Ok(Some(piece));
        }
        match produce(before)? {
            Some(piece) => last.push(piece),
            None => return Ok(None),
        }
    }
}

/// The decoder for one coding of a body, with its unread input.
struct DecodingStage {
    coding: Coding,
    engine: CodecState,
    input: Bytes,
    /// True if the decoder has received any input.
    begun: bool,
    /// True after the end of the encoded data. Further input is skipped.
    ended: bool,
    /// True if bytes followed the end of the first gzip member or zstd frame.
    has_more: bool,
}

enum CodecState {
    /// Decoder for gzip. `between` is true after the end of one gzip member, when another may follow.
    Gzip {
        member: Decompress,
        between: bool,
    },
    /// Decoder for raw deflate or zlib data. The first two bytes of the body decide between them; `None` until they have arrived.
    Deflate(Option<Decompress>),
    Brotli(Box<BrotliState<BoundedAlloc, StandardAlloc, StandardAlloc>>),
    /// Decoder for zstd. `open` is true inside a frame; `between` is true after the end of one frame, when another may follow.
    Zstd {
        decoder: ZstdDecoder<'static>,
        open: bool,
        between: bool,
        /// True if decoding failed because a frame needs a window that is too large.
        too_wide: bool,
    },
}

/// Memory allocator for a brotli decoder. It refuses windows that are too large; the decoder then fails.
#[derive(Default)]
struct BoundedAlloc(StandardAlloc);

impl Allocator<u8> for BoundedAlloc {
    type AllocatedMemory = <StandardAlloc as Allocator<u8>>::AllocatedMemory;

    fn alloc_cell(&mut self, length: usize) -> Self::AllocatedMemory {
        match length <= BROTLI_ALLOCATION_MAX {
            true => <StandardAlloc as Allocator<u8>>::alloc_cell(&mut self.0, length),
            false => Self::AllocatedMemory::default(),
        }
    }

    fn free_cell(&mut self, memory: Self::AllocatedMemory) {
        <StandardAlloc as Allocator<u8>>::free_cell(&mut self.0, memory);
    }
}

/// Number of bytes that one step of a decoder read and wrote, and whether it reached the end of the data.
#[derive(Default)]
struct DecodeStep {
    read: usize,
    written: usize,
    ended: bool,
}

impl DecodingStage {
    fn new(coding: Coding) -> Result<Self, BodyError> {
        let engine = match coding {
            Coding::Gzip => CodecState::Gzip {
                member: Decompress::new_gzip(GZIP_WINDOW_BITS),
                between: false,
            },
            Coding::Deflate => CodecState::Deflate(None),
            Coding::Brotli => {
                let own = StandardAlloc::default();
                CodecState::Brotli(Box::new(BrotliState::new_strict(
                    BoundedAlloc(own),
                    own,
                    own,
                )))
            }
            Coding::Zstd => {
                const UNUSABLE: BodyError = BodyError::Coding("cannot be decoded now");
                let mut decoder = ZstdDecoder::new().map_err(|_| UNUSABLE)?;
                let window = DParameter::WindowLogMax(WINDOW_LOG_MAX);
                decoder.set_parameter(window).map_err(|_| UNUSABLE)?;
                CodecState::Zstd {
                    decoder,
                    open: false,
                    between: false,
                    too_wide: false,
                }
            }
        };
        Ok(Self {
            coding,
            engine,
            input: Bytes::new(),
            begun: false,
            ended: false,
            has_more: false,
        })
    }

    fn push(&mut self, piece: Bytes) {
        self.begun |= !piece.is_empty();
        self.input = match self.input.is_empty() {
            true => piece,
            false => [&self.input[..], &piece[..]].concat().into(),
        };
    }

    fn is_complete(&self) -> bool {
        !self.begun
            || self.ended
            || match &self.engine {
                CodecState::Gzip { between, .. } => *between,
                CodecState::Zstd { open, .. } => !open,
                CodecState::Deflate(_) | CodecState::Brotli(_) => false,
            }
    }

    /// Decodes and returns the next piece of output; `None` if more input is needed.
    fn step(&mut self) -> Result<Option<Bytes>, BodyError> {
        self.note_more();
        if !self.begun || self.ended {
            self.input.clear();
            return Ok(None);
        }
        let room = self.input.len().saturating_mul(4);
        let mut output = vec![0; room.clamp(PIECE_MIN, PIECE_MAX)];
        let mut filled = 0;
        while filled < output.len() && !self.ended {
            let progress = self.engine.run(&self.input, &mut output[filled..]);
            let progress = progress.ok_or_else(|| self.broken())?;
            self.input.advance(progress.read);
            filled += progress.written;
            self.ended = progress.ended;
            self.note_more();
            if progress.read == 0 && progress.written == 0 {
                break;
            }
        }
        output.truncate(filled);
        Ok((filled > 0).then(|| output.into()))
    }

    fn note_more(&mut self) {
        let is_over = self.ended || self.engine.is_between();
        self.has_more |= is_over && !self.input.is_empty();
    }

    fn broken(&self) -> BodyError {
        if self.engine.needs_wide_window() {
            return BodyError::Coding(match self.coding {
                Coding::Zstd => "is compressed by zstd with a window of more than 8 MiB",
                _ => "is compressed by br with a window of more than 8 MiB",
            });
        }
        BodyError::Coding(match self.coding {
            Coding::Gzip => "is said to be gzip, and cannot be decoded as that",
            Coding::Deflate => "is said to be deflate, and cannot be decoded as that",
            Coding::Brotli => "is said to be br, and cannot be decoded as that",
            Coding::Zstd => "is said to be zstd, and cannot be decoded as that",
        })
    }
}

impl CodecState {
    /// Returns true after the end of a gzip member or zstd frame, when another may follow.
    fn is_between(&self) -> bool {
        match self {
            Self::Gzip { between, .. } | Self::Zstd { between, .. } => *between,
            Self::Deflate(_) | Self::Brotli(_) => false,
        }
    }

    /// Returns true if decoding failed because the window would be too large.
    fn needs_wide_window(&self) -> bool {
        match self {
            Self::Gzip { .. } | Self::Deflate(_) => false,
            Self::Brotli(state) => {
                let wanted = usize::try_from(state.ringbuffer_size).unwrap_or_default();
                wanted > WINDOW_MAX && state.ringbuffer.slice().is_empty()
            }
            Self::Zstd { too_wide, .. } => *too_wide,
        }
    }

    /// Decodes as much as the input and the free space in `output` allow. `None` if the input does not conform to the coding.
    fn run(&mut self, input: &[u8], output: &mut [u8]) -> Option<DecodeStep> {
        match self {
            Self::Gzip { member, between } => {
                if *between {
                    match input.first() {
                        None => return Some(DecodeStep::default()),
                        Some(0x1f) => {
                            *member = Decompress::new_gzip(GZIP_WINDOW_BITS);
                            *between = false;
                        }
                        // Bytes other than the start of a gzip member are padding, which is skipped.
                        Some(_) => {
                            return Some(DecodeStep {
                                ended: true,
                                ..DecodeStep::default()
                            });
                        }
                    }
                }
                let mut progress = inflate(member, input, output)?;
                *between = std::mem::take(&mut progress.ended);
                Some(progress)
            }
            Self::Deflate(Some(state)) => inflate(state, input, output),
            Self::Deflate(state @ None) => {
                let &[first, second, ..] = input else {
                    return Some(DecodeStep::default());
                };
                let check = u16::from_be_bytes([first, second]);
                let has_frame = first & 0x0f == 8 && first >> 4 <= 7 && check.is_multiple_of(31);
                inflate(state.insert(Decompress::new(has_frame)), input, output)
            }
            Self::Brotli(state) => {
                let (mut left, mut read) = (input.len(), 0);
                let (mut room, mut written, mut total) = (output.len(), 0, 0);
                let result = BrotliDecompressStream(
                    &mut left,
                    &mut read,
                    input,
                    &mut room,
                    &mut written,
                    output,
                    &mut total,
                    state,
                );
                match result {
                    BrotliResult::ResultFailure => None,
                    result => Some(DecodeStep {
                        read,
                        written,
                        ended: matches!(result, BrotliResult::ResultSuccess),
                    }),
                }
            }
            Self::Zstd {
                decoder,
                open,
                between,
                too_wide,
            } => {
                let mut from = InBuffer::around(input);
                let mut to = OutBuffer::around(output);
                let ran = decoder.run(&mut from, &mut to);
                // The error is recognized by its text, because the library has no error codes.
                let is_too_wide = |error: &io::Error| error.to_string().contains("too much memory");
                *too_wide = ran.as_ref().is_err_and(is_too_wide);
                let hint = ran.ok()?;
                let (read, written) = (from.pos(), to.pos());
                if read > 0 || written > 0 {
                    (*open, *between) = (hint != 0, hint == 0);
                }
                Some(DecodeStep {
                    read,
                    written,
                    ended: false,
                })
            }
        }
    }
}

fn inflate(state: &mut Decompress, input: &[u8], output: &mut [u8]) -> Option<DecodeStep> {
    let before = (state.total_in(), state.total_out());
    let status = state
        .decompress(input, output, FlushDecompress::None)
        .ok()?;
    let since = |now: u64, before: u64| usize::try_from(now - before).unwrap_or(usize::MAX);
    Some(DecodeStep {
        read: since(state.total_in(), before.0),
        written: since(state.total_out(), before.1),
        ended: status == Status::StreamEnd,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn map(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::CONTENT_ENCODING, HeaderValue::from_static(value));
        }
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from_static("7"));
        headers
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory")
    }

    fn zlib(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), Default::default());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory")
    }

    fn raw_deflate(plain: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), Default::default());
        encoder.write_all(plain).expect("memory");
        encoder.finish().expect("memory")
    }

    fn brotli(plain: &[u8]) -> Vec<u8> {
        let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22);
        encoder.write_all(plain).expect("memory");
        encoder.into_inner()
    }

    fn zstd(plain: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(plain, 3).expect("memory")
    }

    /// Decodes a body that comes in pieces of `size` bytes.
    fn decoded(values: &[&'static str], body: &[u8], size: usize) -> Result<Vec<u8>, BodyError> {
        let mut headers = map(values);
        let mut decoder = decoder(&mut headers, std::iter::empty())?.expect("compressed");
        assert!(headers.is_empty(), "{headers:?}");
        let mut whole = Vec::new();
        for piece in body.chunks(size) {
            decoder.push(Bytes::copy_from_slice(piece));
            while let Some(piece) = decoder.next()? {
                assert!(!piece.is_empty() && piece.len() <= PIECE_MAX);
                whole.extend_from_slice(&piece);
            }
        }
        match decoder.is_complete() {
            true => Ok(whole),
            false => Err(BodyError::Cut),
        }
    }

    #[test]
    fn each_coding_is_decoded_however_its_bytes_come() {
        let short = br#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_vec();
        let long: Vec<u8> = (0..200_000_u32)
            .flat_map(|it| (it / 7).to_le_bytes())
            .collect();
        for plain in [short, long, Vec::new()] {
            for (coding, body) in [
                ("gzip", gzip(&plain)),
                ("X-GZIP", gzip(&plain)),
                ("deflate", zlib(&plain)),
                ("deflate", raw_deflate(&plain)),
                ("br", brotli(&plain)),
                ("zstd", zstd(&plain)),
                ("identity, gzip", gzip(&plain)),
                ("identity, br, identity", brotli(&plain)),
                ("gzip, deflate", zlib(&gzip(&plain))),
                ("deflate, gzip", gzip(&raw_deflate(&plain))),
                ("gzip, gzip", gzip(&gzip(&plain))),
            ] {
                for size in [1, 1000, 1 << 20] {
                    let found = decoded(&[coding], &body, size);
                    assert!(found.as_ref() == Ok(&plain), "{coding} by {size}");
                }
            }
            let twice = [gzip(&plain), gzip(&plain), vec![0; 20]].concat();
            let found = decoded(&["gzip"], &twice, 100);
            assert!(found == Ok([&plain[..], &plain[..]].concat()));
            let apart = decoded(&["gzip", "deflate"], &zlib(&gzip(&plain)), 100);
            assert!(apart == Ok(plain));
        }
    }

    #[test]
    fn every_flushed_byte_comes_out_before_the_next_comes_in() {
        let event = b"data: {\"jsonrpc\":\"2.0\"}\n\n".repeat(400);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), Default::default());
        let mut brotli = brotli::CompressorWriter::new(Vec::new(), 4096, 5, 22);
        let mut zstd = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("memory");
        gzip.write_all(&event)
            .and_then(|()| gzip.flush())
            .expect("memory");
        brotli
            .write_all(&event)
            .and_then(|()| brotli.flush())
            .expect("memory");
        zstd.write_all(&event)
            .and_then(|()| zstd.flush())
            .expect("memory");
        for (coding, flushed) in [
            ("gzip", gzip.get_ref()),
            ("br", brotli.get_ref()),
            ("zstd", zstd.get_ref()),
        ] {
            let mut decoder = decoder(&mut map(&[coding]), std::iter::empty())
                .expect(coding)
                .expect(coding);
            decoder.push(Bytes::copy_from_slice(flushed));
            let mut read = Vec::new();
            while let Some(piece) = decoder.next().expect(coding) {
                read.extend_from_slice(&piece);
            }
            assert!(read == event, "{coding}: {} of {}", read.len(), event.len());
            assert!(!decoder.is_complete(), "{coding}");
        }
    }

    #[test]
    fn a_cut_or_broken_body_is_an_error() {
        let plain = b"0123456789".repeat(1000);
        for (coding, body) in [
            ("gzip", gzip(&plain)),
            ("deflate", zlib(&plain)),
            ("br", brotli(&plain)),
            ("zstd", zstd(&plain)),
        ] {
            let cut = decoded(&[coding], &body[..body.len() - 1], 10);
            assert_eq!(cut, Err(BodyError::Cut), "{coding}");
            let plain = decoded(
                &[coding],
                b"{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}",
                100,
            );
            let error = plain.expect_err(coding);
            assert!(error.to_string().contains(coding), "{coding}: {error}");
            assert_eq!(decoded(&[coding], b"", 1), Ok(Vec::new()));
        }
    }

    #[test]
    fn a_body_that_grows_without_end_comes_in_bounded_pieces() {
        let zeros = vec![0; 64 * 1024 * 1024];
        for (coding, body) in [("gzip", gzip(&zeros)), ("zstd", zstd(&zeros))] {
            let mut decoder = decoder(&mut map(&[coding]), std::iter::empty())
                .expect(coding)
                .expect(coding);
            decoder.push(body.into());
            for _ in 0..4 {
                let piece = decoder.next().expect(coding).expect("more");
                assert!(piece.len() <= PIECE_MAX, "{coding}");
            }
        }
    }

    #[test]
    fn a_window_of_more_than_eight_mebibytes_is_refused_in_clear_words() {
        let plain: Vec<u8> = (0..20_000_u32).flat_map(u32::to_le_bytes).collect();
        let brotli = |log: u32| {
            let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, 5, log);
            // More may follow: the decoder has to make room for all of the window.
            encoder.write_all(&plain).expect("memory");
            encoder.flush().expect("memory");
            encoder.write_all(&plain).expect("memory");
            encoder.into_inner()
        };
        let zstd = |log: u32| {
            let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).expect("memory");
            encoder.window_log(log).expect("a window");
            encoder.write_all(&plain).expect("memory");
            encoder.flush().expect("memory");
            encoder.write_all(&plain).expect("memory");
            encoder.finish().expect("memory")
        };
        let twice = [&plain[..], &plain[..]].concat();
        for (coding, fits, too_wide) in
            [("br", brotli(23), brotli(24)), ("zstd", zstd(23), zstd(24))]
        {
            assert!(
                decoded(&[coding], &fits, 1000) == Ok(twice.clone()),
                "{coding}"
            );
            let error = decoded(&[coding], &too_wide, 1000).expect_err(coding);
            let words = format!("by {coding} with a window of more than 8 MiB");
            assert!(error.to_string().contains(&words), "{error}");
        }
    }

    #[test]
    fn other_codings_are_refused_and_none_is_none() {
        for value in [
            "dcb",
            "compress",
            "gzip, aes128gcm",
            "gzip, gzip, gzip, gzip",
            "gzip, gzip, deflate",
            "gzip, br",
            "br, deflate",
            "br, br",
            "zstd, zstd",
            "gzip, zstd",
        ] {
            let error = decoder(&mut map(&[value]), std::iter::empty());
            let Err(error) = error else {
                panic!("{value} is decoded");
            };
            let named = format!("compressed by {value},");
            match value.contains(',') {
                true => assert!(error.to_string().contains("compressed"), "{value}"),
                false => assert!(error.to_string().contains(&named), "{error}"),
            }
        }
        for value in [
            "identity",
            "",
            "Identity, ",
            "UTF-8",
            "utf8",
            "none",
            "aws-chunked",
            "binary",
        ] {
            let mut headers = map(&[value]);
            let found = decoder(&mut headers, std::iter::empty()).expect(value);
            assert!(found.is_none() && headers.contains_key("content-length"));
        }
    }

    #[test]
    fn a_short_body_is_kept_as_it_came_for_clients_that_accept_its_coding() {
        for (accept, kept) in [
            ("gzip", true),
            ("br, GZIP;q=0.5", true),
            ("*", true),
            ("*, gzip;q=0", false),
            ("gzip;q=0.000", false),
            ("br", false),
            ("", false),
        ] {
            let accept = [HeaderValue::from_static(accept)];
            let mut decoder = decoder(&mut map(&["gzip"]), accept.iter())
                .expect("known")
                .expect("compressed");
            let body = Bytes::from(gzip(b"{}"));
            decoder.push(body.clone());
            assert_eq!(decoder.next(), Ok(Some(Bytes::from_static(b"{}"))));
            let received = decoder.take_received();
            let expected = kept.then(|| (HeaderValue::from_static("gzip"), body));
            assert_eq!(received, expected, "{accept:?}");
        }
    }

    #[test]
    fn a_body_with_bytes_behind_its_coding_does_not_go_on_as_it_came() {
        let plain = b"{}";
        for (coding, body, behind, whole) in [
            ("gzip", gzip(plain), gzip(b"[]"), &b"{}[]"[..]),
            ("gzip", gzip(plain), vec![0; 20], plain),
            ("gzip", gzip(plain), b"x".to_vec(), plain),
            ("deflate", zlib(plain), b"x".to_vec(), plain),
            ("deflate", raw_deflate(plain), b"x".to_vec(), plain),
            ("br", brotli(plain), b"x".to_vec(), plain),
            ("zstd", zstd(plain), zstd(b"[]"), b"{}[]"),
        ] {
            for more in [Vec::new(), behind] {
                let bytes = [&body[..], &more[..]].concat();
                for size in [1, body.len(), bytes.len()] {
                    let accept = [HeaderValue::from_static("*")];
                    let mut decoder = decoder(&mut map(&[coding]), accept.iter())
                        .expect("known")
                        .expect("compressed");
                    let mut read = Vec::new();
                    for piece in bytes.chunks(size) {
                        decoder.push(Bytes::copy_from_slice(piece));
                        while let Some(piece) = decoder.next().expect(coding) {
                            read.extend_from_slice(&piece);
                        }
                    }
                    assert!(decoder.is_complete(), "{coding} by {size}");
                    let expected = if more.is_empty() { &plain[..] } else { whole };
                    assert_eq!(read, expected, "{coding} by {size}");
                    let received = decoder.take_received();
                    assert_eq!(received.is_some(), more.is_empty(), "{coding} by {size}");
                }
            }
        }
    }
}
