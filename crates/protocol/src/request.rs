//! What the guest asks for: 64 bytes at the head of every chain become a typed request.

use crate::wire::wire_struct;
use crate::{
    ADVICE_COLD, ADVICE_PIN, ADVICE_PREFER_GPU, ADVICE_PREFETCH, ADVICE_UNPIN, FENCE_ALL_STREAMS,
    MAX_STREAMS, REQUEST_BYTES, Status,
};

macro_rules! opcodes {
    ($( $(#[$meta:meta])* $name:ident = $code:literal, $c_name:literal, $queue:ident; )*) => {
        /// What a request asks for. Codes never change meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Opcode {
            $( $(#[$meta])* $name = $code, )*
        }

        impl Opcode {
            /// Every opcode with its name in the C header.
            pub const ALL: &'static [(Opcode, &'static str)] = &[ $( (Opcode::$name, $c_name), )* ];

            /// The code on the wire.
            pub fn code(self) -> u16 {
                self as u16
            }

            /// The opcode of a code, if it is one of ours.
            pub fn from_code(code: u16) -> Option<Self> {
                match code {
                    $( $code => Some(Self::$name), )*
                    _ => None,
                }
            }

            /// The kind of queue the opcode belongs on.
            pub fn queue(self) -> QueueKind {
                match self {
                    $( Self::$name => QueueKind::$queue, )*
                }
            }
        }
    };
}

/// What a queue is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueKind {
    /// Queue 0.
    Control,
    /// Queue 1; carries no requests.
    Event,
    /// Queues 2 and up.
    Request,
}

impl QueueKind {
    /// The kind of the queue with this index.
    pub fn of(index: u16) -> Self {
        match index {
            crate::QUEUE_CONTROL => Self::Control,
            crate::QUEUE_EVENT => Self::Event,
            _ => Self::Request,
        }
    }
}

opcodes! {
    /// Opens or resumes the session.
    Hello = 0x0001, "VRAM_OP_HELLO", Control;
    /// Figures of the slice and its GPUs.
    Info = 0x0002, "VRAM_OP_INFO", Control;
    /// Makes a context.
    ContextOpen = 0x0003, "VRAM_OP_CONTEXT_OPEN", Control;
    /// Ends a context and frees its memory.
    ContextClose = 0x0004, "VRAM_OP_CONTEXT_CLOSE", Control;
    /// Allocates.
    Alloc = 0x0010, "VRAM_OP_ALLOC", Control;
    /// Frees.
    Free = 0x0011, "VRAM_OP_FREE", Control;
    /// Where an allocation's bytes lie.
    Query = 0x0012, "VRAM_OP_QUERY", Control;
    /// What the guest knows about its use of a range.
    Advise = 0x0013, "VRAM_OP_ADVISE", Control;
    /// Guest RAM to GPU memory.
    Write = 0x0020, "VRAM_OP_WRITE", Request;
    /// GPU memory to guest RAM.
    Read = 0x0021, "VRAM_OP_READ", Request;
    /// GPU memory to GPU memory.
    Copy = 0x0022, "VRAM_OP_COPY", Request;
    /// A pattern to GPU memory.
    Fill = 0x0023, "VRAM_OP_FILL", Request;
    /// Waits for what came before.
    Fence = 0x0024, "VRAM_OP_FENCE", Request;
}

wire_struct! {
    pub(crate) struct HeaderWire("virtio_vram_request", REQUEST_BYTES) {
        0 => opcode: u16,
        2 => flags: u16,
        4 => context: u32,
        8 => tag: u64,
        16 => stream: u32,
        20 => reserved0: u32,
        24 => body: [u8; 40],
    }
}
wire_struct! {
    pub(crate) struct HelloWire("virtio_vram_hello", 40) {
        0 => abi_major: u16,
        2 => abi_minor: u16,
        4 => reserved0: u32,
        8 => driver_epoch: u64,
        16 => reserved1: [u8; 24],
    }
}
wire_struct! {
    pub(crate) struct ContextOpenWire("virtio_vram_context_open", 40) {
        0 => label: [u8; 32],
        32 => reserved0: u64,
    }
}
wire_struct! {
    pub(crate) struct AllocWire("virtio_vram_alloc", 40) {
        0 => length: u64,
        8 => alignment: u64,
        16 => reserved0: [u8; 24],
    }
}
wire_struct! {
    pub(crate) struct FreeWire("virtio_vram_free", 40) {
        0 => address: u64,
        8 => reserved0: [u8; 32],
    }
}
wire_struct! {
    pub(crate) struct QueryWire("virtio_vram_query", 40) {
        0 => address: u64,
        8 => first_extent: u32,
        12 => reserved0: [u8; 28],
    }
}
wire_struct! {
    pub(crate) struct AdviseWire("virtio_vram_advise", 40) {
        0 => address: u64,
        8 => length: u64,
        16 => advice: u32,
        20 => argument: u32,
        24 => reserved0: [u8; 16],
    }
}
wire_struct! {
    pub(crate) struct RangeWire("virtio_vram_range", 40) {
        0 => address: u64,
        8 => length: u64,
        16 => reserved0: [u8; 24],
    }
}
wire_struct! {
    pub(crate) struct CopyWire("virtio_vram_copy", 40) {
        0 => destination: u64,
        8 => length: u64,
        16 => source: u64,
        24 => reserved0: [u8; 16],
    }
}
wire_struct! {
    pub(crate) struct FillWire("virtio_vram_fill", 40) {
        0 => address: u64,
        8 => length: u64,
        16 => pattern: u32,
        20 => width: u32,
        24 => reserved0: [u8; 16],
    }
}

/// The fields every request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Echoed in the response.
    pub tag: u64,
    /// The context the request is made for; zero where none is needed.
    pub context: u32,
    /// The stream the request is ordered in.
    pub stream: u32,
}

/// HELLO: who the driver is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Version the driver speaks.
    pub abi_major: u16,
    /// Version the driver speaks.
    pub abi_minor: u16,
    /// Drawn at random, not zero, anew each time the driver starts; the same value resumes the session.
    pub driver_epoch: u64,
}

/// CONTEXT_OPEN: a name operators will see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextOpen {
    /// UTF-8, padded with zeros. Never trusted for anything.
    pub label: [u8; 32],
}

/// ALLOC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alloc {
    /// Bytes.
    pub length: u64,
    /// A power of two, or zero for the minimum.
    pub alignment: u64,
}

/// QUERY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// Any address in the allocation.
    pub address: u64,
    /// Extents to skip, for allocations with more than fit one answer.
    pub first_extent: u32,
}

/// A range of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub address: u64,
    /// Bytes, not zero.
    pub length: u64,
}

/// ADVISE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advise {
    /// What it is about.
    pub range: Range,
    /// What is said about it.
    pub advice: Advice,
}

/// What a guest may say about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Needed soon.
    Prefetch,
    /// Not needed soon.
    Cold,
    /// To stay on GPUs.
    Pin,
    /// May leave the GPUs again.
    Unpin,
    /// Best on this GPU.
    PreferGpu {
        /// Its number, which need not be one.
        gpu: u32,
    },
}

impl Advice {
    /// The advice of a code and its argument; `None` for an unknown code, or an argument where none belongs.
    fn from_wire(code: u32, argument: u32) -> Option<Self> {
        match (code, argument) {
            (ADVICE_PREFETCH, 0) => Some(Self::Prefetch),
            (ADVICE_COLD, 0) => Some(Self::Cold),
            (ADVICE_PIN, 0) => Some(Self::Pin),
            (ADVICE_UNPIN, 0) => Some(Self::Unpin),
            (ADVICE_PREFER_GPU, gpu) => Some(Self::PreferGpu { gpu }),
            _ => None,
        }
    }

    /// Code and argument.
    fn to_wire(self) -> (u32, u32) {
        match self {
            Self::Prefetch => (ADVICE_PREFETCH, 0),
            Self::Cold => (ADVICE_COLD, 0),
            Self::Pin => (ADVICE_PIN, 0),
            Self::Unpin => (ADVICE_UNPIN, 0),
            Self::PreferGpu { gpu } => (ADVICE_PREFER_GPU, gpu),
        }
    }
}

/// COPY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Where to.
    pub destination: u64,
    /// Where from.
    pub source: u64,
    /// Bytes, not zero.
    pub length: u64,
}

/// FILL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Where to.
    pub range: Range,
    /// The pattern in its low `width` bytes.
    pub pattern: u32,
    /// 1, 2 or 4.
    pub width: u32,
}

/// A decoded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// See [`Hello`].
    Hello(Hello),
    /// Figures of the slice.
    Info,
    /// See [`ContextOpen`].
    ContextOpen(ContextOpen),
    /// Ends the header's context.
    ContextClose,
    /// See [`Alloc`].
    Alloc(Alloc),
    /// Frees the allocation that begins at this address.
    Free(u64),
    /// See [`Query`].
    Query(Query),
    /// See [`Advise`].
    Advise(Advise),
    /// Guest RAM to the range.
    Write(Range),
    /// The range to guest RAM.
    Read(Range),
    /// See [`struct@Copy`].
    Copy(Copy),
    /// See [`Fill`].
    Fill(Fill),
    /// Waits for the header's stream, or for every stream of the context.
    Fence {
        /// Every stream of the context.
        all_streams: bool,
    },
}

/// Why bytes are no request, with as much of the header as could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestError {
    /// What the guest is told.
    pub status: Status,
    /// The tag to echo.
    pub tag: u64,
}

impl Request {
    /// Decodes the 64 bytes at the head of a chain taken from a queue of kind `queue`.
    ///
    /// Checks what can be known from the bytes alone: opcode, queue, flags, reserved fields, stream number,
    /// lengths that are never valid. Checks run in that order and the first failure is answered.
    pub fn decode(bytes: &[u8; REQUEST_BYTES], queue: QueueKind) -> Result<(Header, Self), RequestError> {
        let wire = HeaderWire::from_bytes(bytes);
        let fail = |status| RequestError { status, tag: wire.tag };
        let opcode = Opcode::from_code(wire.opcode).ok_or(fail(Status::Unsupported))?;
        if opcode.queue() != queue {
            return Err(fail(Status::WrongQueue));
        }
        let known_flags = if opcode == Opcode::Fence { FENCE_ALL_STREAMS } else { 0 };
        if wire.flags & !known_flags != 0 || wire.reserved0 != 0 {
            return Err(fail(Status::BadRequest));
        }
        let body = Self::decode_body(opcode, &wire).map_err(fail)?;
        if wire.stream >= MAX_STREAMS {
            return Err(fail(Status::BadStream));
        }
        body.check().map_err(fail)?;
        Ok((Header { tag: wire.tag, context: wire.context, stream: wire.stream }, body))
    }

    fn decode_body(opcode: Opcode, wire: &HeaderWire) -> Result<Self, Status> {
        let bytes = &wire.body;
        let zero = |reserved: &[u8]| if all_zero(reserved) { Ok(()) } else { Err(Status::BadRequest) };
        Ok(match opcode {
            Opcode::Hello => {
                let body = HelloWire::from_bytes(bytes);
                zero(&body.reserved0.to_le_bytes())?;
                zero(&body.reserved1)?;
                Self::Hello(Hello {
                    abi_major: body.abi_major,
                    abi_minor: body.abi_minor,
                    driver_epoch: body.driver_epoch,
                })
            }
            Opcode::Info => {
                zero(bytes)?;
                Self::Info
            }
            Opcode::ContextOpen => {
                let body = ContextOpenWire::from_bytes(bytes);
                zero(&body.reserved0.to_le_bytes())?;
                Self::ContextOpen(ContextOpen { label: body.label })
            }
            Opcode::ContextClose => {
                zero(bytes)?;
                Self::ContextClose
            }
            Opcode::Alloc => {
                let body = AllocWire::from_bytes(bytes);
                zero(&body.reserved0)?;
                Self::Alloc(Alloc { length: body.length, alignment: body.alignment })
            }
            Opcode::Free => {
                let body = FreeWire::from_bytes(bytes);
                zero(&body.reserved0)?;
                Self::Free(body.address)
            }
            Opcode::Query => {
                let body = QueryWire::from_bytes(bytes);
                zero(&body.reserved0)?;
                Self::Query(Query { address: body.address, first_extent: body.first_extent })
            }
            Opcode::Advise => {
                let body = AdviseWire::from_bytes(bytes);
                zero(&body.reserved0)?;
                Self::Advise(Advise {
                    range: Range { address: body.address, length: body.length },
                    advice: Advice::from_wire(body.advice, body.argument).ok_or(Status::BadRequest)?,
                })
            }
            Opcode::Write | Opcode::Read => {
                let body = RangeWire::from_bytes(bytes);
                zero(&body.reserved0)?;
                let range = Range { address: body.address, length: body.length };
                if opcode == Opcode::Write { Self::Write(range) } else { Self::Read(range) }
            }
            Opcode::Copy => {
                let body = CopyWire::from_bytes(bytes);
                zero(&body.reserved0)?;
                Self::Copy(Copy { destination: body.destination, source: body.source, length: body.length })
            }
            Opcode::Fill => {
                let body = FillWire::from_bytes(bytes);
                zero(&body.reserved0)?;
                Self::Fill(Fill {
                    range: Range { address: body.address, length: body.length },
                    pattern: body.pattern,
                    width: body.width,
                })
            }
            Opcode::Fence => {
                zero(bytes)?;
                Self::Fence { all_streams: wire.flags & FENCE_ALL_STREAMS != 0 }
            }
        })
    }

    /// What is wrong whatever the session's state.
    fn check(&self) -> Result<(), Status> {
        match self {
            Self::Hello(hello) if hello.driver_epoch == 0 => Err(Status::BadRequest),
            Self::Alloc(alloc) => check_alloc(alloc),
            Self::Advise(advise) => check_range(advise.range.address, advise.range.length),
            Self::Write(range) | Self::Read(range) => {
                check_range(range.address, range.length)?;
                if range.length > crate::MAX_TRANSFER_BYTES { Err(Status::BadLength) } else { Ok(()) }
            }
            Self::Copy(copy) => {
                check_range(copy.destination, copy.length)?;
                check_range(copy.source, copy.length)?;
                if copy.destination.abs_diff(copy.source) < copy.length {
                    Err(Status::Overlap)
                } else {
                    Ok(())
                }
            }
            Self::Fill(fill) => check_fill(fill),
            _ => Ok(()),
        }
    }

    /// The opcode of the request.
    pub fn opcode(&self) -> Opcode {
        match self {
            Self::Hello(_) => Opcode::Hello,
            Self::Info => Opcode::Info,
            Self::ContextOpen(_) => Opcode::ContextOpen,
            Self::ContextClose => Opcode::ContextClose,
            Self::Alloc(_) => Opcode::Alloc,
            Self::Free(_) => Opcode::Free,
            Self::Query(_) => Opcode::Query,
            Self::Advise(_) => Opcode::Advise,
            Self::Write(_) => Opcode::Write,
            Self::Read(_) => Opcode::Read,
            Self::Copy(_) => Opcode::Copy,
            Self::Fill(_) => Opcode::Fill,
            Self::Fence { .. } => Opcode::Fence,
        }
    }

    /// Encodes the request: the driver's half, used by tests, benches and in-process drivers.
    pub fn encode(&self, header: Header) -> [u8; REQUEST_BYTES] {
        let body = match self {
            Self::Hello(hello) => HelloWire {
                abi_major: hello.abi_major,
                abi_minor: hello.abi_minor,
                reserved0: 0,
                driver_epoch: hello.driver_epoch,
                reserved1: [0; 24],
            }
            .to_bytes(),
            Self::Info | Self::ContextClose | Self::Fence { .. } => [0; 40],
            Self::ContextOpen(open) => ContextOpenWire { label: open.label, reserved0: 0 }.to_bytes(),
            Self::Alloc(alloc) => {
                AllocWire { length: alloc.length, alignment: alloc.alignment, reserved0: [0; 24] }.to_bytes()
            }
            Self::Free(address) => FreeWire { address: *address, reserved0: [0; 32] }.to_bytes(),
            Self::Query(query) => {
                QueryWire { address: query.address, first_extent: query.first_extent, reserved0: [0; 28] }
                    .to_bytes()
            }
            Self::Advise(advise) => {
                let (advice, argument) = advise.advice.to_wire();
                let Range { address, length } = advise.range;
                AdviseWire { address, length, advice, argument, reserved0: [0; 16] }.to_bytes()
            }
            Self::Write(range) | Self::Read(range) => {
                RangeWire { address: range.address, length: range.length, reserved0: [0; 24] }.to_bytes()
            }
            Self::Copy(copy) => CopyWire {
                destination: copy.destination,
                length: copy.length,
                source: copy.source,
                reserved0: [0; 16],
            }
            .to_bytes(),
            Self::Fill(fill) => FillWire {
                address: fill.range.address,
                length: fill.range.length,
                pattern: fill.pattern,
                width: fill.width,
                reserved0: [0; 16],
            }
            .to_bytes(),
        };
        let flags = if matches!(self, Self::Fence { all_streams: true }) { FENCE_ALL_STREAMS } else { 0 };
        HeaderWire {
            opcode: self.opcode().code(),
            flags,
            context: header.context,
            tag: header.tag,
            stream: header.stream,
            reserved0: 0,
            body,
        }
        .to_bytes()
    }
}

fn all_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn check_range(address: u64, length: u64) -> Result<(), Status> {
    if length == 0 {
        return Err(Status::BadLength);
    }
    match address.checked_add(length) {
        Some(_) => Ok(()),
        None => Err(Status::BadAddress),
    }
}

fn check_alloc(alloc: &Alloc) -> Result<(), Status> {
    if alloc.length == 0 {
        return Err(Status::BadLength);
    }
    let alignment = alloc.alignment;
    if alignment != 0 && (!alignment.is_power_of_two() || alignment > crate::MAX_ALIGNMENT) {
        return Err(Status::BadAlignment);
    }
    Ok(())
}

fn check_fill(fill: &Fill) -> Result<(), Status> {
    check_range(fill.range.address, fill.range.length)?;
    let mask = match fill.width {
        1 => 0,
        2 => 1,
        4 => 3,
        _ => return Err(Status::BadAlignment),
    };
    if (fill.range.address | fill.range.length) & mask != 0 {
        return Err(Status::BadAlignment);
    }
    Ok(())
}
