//! From a chain to a request and its room for an answer.

use vram_guest_memory::SpanList;
use vram_protocol::{
    Header, QueueKind, REQUEST_BYTES, RESPONSE_BYTES, Request, RequestError, Response, Status,
};
use vram_virtqueue::Chain;

/// Where a chain's answer goes.
#[derive(Debug)]
pub(crate) struct AnswerPlace {
    /// The first 40 writable bytes.
    response: SpanList,
    /// What follows them: room for a reply, or for the data of a READ.
    pub(crate) rest: SpanList,
}

/// A chain, taken apart.
pub(crate) struct Taken {
    pub(crate) place: AnswerPlace,
    pub(crate) request: Result<Decoded, RequestError>,
}

/// A good request.
pub(crate) struct Decoded {
    pub(crate) header: Header,
    pub(crate) request: Request,
    /// Readable bytes behind the request.
    pub(crate) payload: SpanList,
}

impl AnswerPlace {
    /// Writes the response; returns the chain's used length when `following_bytes` were written behind it.
    pub(crate) fn write(&self, response: &Response, following_bytes: u64) -> u32 {
        self.response.write_from(&response.to_bytes());
        u32::try_from(following_bytes.saturating_add(RESPONSE_BYTES as u64)).unwrap_or(u32::MAX)
    }
}

/// Takes a chain apart; `None` when there is no room for any answer.
pub(crate) fn take(chain: Chain, queue: QueueKind) -> Option<Taken> {
    let Chain { readable, writable, fault, .. } = chain;
    let (response, rest) = writable.split_at(RESPONSE_BYTES as u64)?;
    let place = AnswerPlace { response, rest };
    let mut bytes = [0u8; REQUEST_BYTES];
    let whole = readable.read_into(&mut bytes) == REQUEST_BYTES;
    if fault.is_some() || !whole {
        let tag = if whole { tag_of(&bytes) } else { 0 };
        return Some(Taken { place, request: Err(RequestError { status: Status::BadChain, tag }) });
    }
    let request = Request::decode(&bytes, queue).and_then(|(header, request)| {
        // The list has at least the bytes just read.
        let (_, payload) = readable
            .split_at(REQUEST_BYTES as u64)
            .ok_or(RequestError { status: Status::Internal, tag: header.tag })?;
        Ok(Decoded { header, request, payload })
    });
    Some(Taken { place, request })
}

fn tag_of(bytes: &[u8; REQUEST_BYTES]) -> u64 {
    let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h, ..] = *bytes;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

impl Decoded {
    /// Whether the chain's data part fits the request.
    pub(crate) fn check_data(&self, place: &AnswerPlace) -> Result<(), Status> {
        let (payload_bytes, room_exact) = match &self.request {
            Request::Write(range) => (range.length, None),
            Request::Read(range) => (0, Some(range.length)),
            _ => (0, None),
        };
        if self.payload.len_bytes() != payload_bytes {
            return Err(Status::BadLength);
        }
        match room_exact {
            Some(length) if place.rest.len_bytes() != length => Err(Status::BadLength),
            _ => Ok(()),
        }
    }
}
