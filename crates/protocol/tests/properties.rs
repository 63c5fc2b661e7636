//! What holds for any bytes.

use proptest::prelude::*;
use vram_protocol::{
    ConfigSpace, EventMessage, Extent, GpuEntry, HelloReply, InfoReply, Opcode, QueryReply, QueueKind,
    Request, Response, Status,
};

/// Any 64 bytes, most often with a real opcode and zeros elsewhere, so that more than the first check is reached.
fn any_request_bytes() -> impl Strategy<Value = [u8; 64]> {
    let opcode = prop_oneof![
        1 => any::<u16>(),
        9 => prop::sample::select(Opcode::ALL).prop_map(|(opcode, _)| opcode.code()),
    ];
    let sparse = prop::collection::vec((0usize..64, any::<u8>()), 0..12);
    (any::<[u8; 64]>(), sparse, any::<bool>(), opcode).prop_map(|(noise, sparse, dense, opcode)| {
        let mut bytes = if dense { noise } else { [0; 64] };
        if !dense {
            for (at, value) in sparse {
                bytes[at] = value;
            }
        }
        bytes[0..2].copy_from_slice(&opcode.to_le_bytes());
        bytes
    })
}

fn any_queue() -> impl Strategy<Value = QueueKind> {
    prop_oneof![Just(QueueKind::Control), Just(QueueKind::Event), Just(QueueKind::Request)]
}

/// The queue of the opcode, if there is one.
fn own_queue(bytes: &[u8; 64]) -> QueueKind {
    Opcode::from_code(u16::from_le_bytes([bytes[0], bytes[1]])).map_or(QueueKind::Control, Opcode::queue)
}

/// Statuses that can be told from the bytes alone.
const FROM_BYTES: [Status; 8] = [
    Status::BadRequest,
    Status::Unsupported,
    Status::WrongQueue,
    Status::BadStream,
    Status::BadLength,
    Status::BadAlignment,
    Status::BadAddress,
    Status::Overlap,
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn decode_of_any_bytes_gives_a_request_or_a_status_known_from_bytes(
        bytes in any_request_bytes(),
        queue in any_queue(),
    ) {
        for queue in [queue, own_queue(&bytes)] {
            match Request::decode(&bytes, queue) {
                Ok((_, request)) => prop_assert_eq!(request.opcode().queue(), queue),
                Err(error) => {
                    prop_assert!(FROM_BYTES.contains(&error.status), "{}", error.status);
                    prop_assert_eq!(error.tag.to_le_bytes(), &bytes[8..16]);
                }
            }
        }
    }

    #[test]
    fn encode_of_what_was_decoded_gives_the_same_bytes(bytes in any_request_bytes()) {
        let queue = own_queue(&bytes);
        if let Ok((header, request)) = Request::decode(&bytes, queue) {
            prop_assert_eq!(request.encode(header), bytes);
            prop_assert_eq!(Request::decode(&request.encode(header), queue), Ok((header, request)));
        }
    }

    #[test]
    fn response_of_any_bytes_reads_back(bytes in any::<[u8; 40]>(), code in 0u32..26) {
        let mut known = bytes;
        known[0..4].copy_from_slice(&code.to_le_bytes());
        for bytes in [bytes, known] {
            if let Some(response) = Response::from_bytes(&bytes) {
                prop_assert_eq!(Response::from_bytes(&response.to_bytes()), Some(response));
            }
        }
    }

    #[test]
    fn structures_of_any_bytes_keep_every_byte(bytes in prop::collection::vec(any::<u8>(), 96)) {
        macro_rules! keeps {
            ($($type:ident),*) => {$(
                let part: [u8; $type::BYTES] = bytes[..$type::BYTES].try_into().unwrap();
                prop_assert_eq!($type::from_bytes(&part).to_bytes(), part);
            )*};
        }
        keeps!(ConfigSpace, HelloReply, InfoReply, GpuEntry, QueryReply, Extent, EventMessage);
    }
}
