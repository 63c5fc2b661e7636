//! Fixed layouts: one macro makes a struct, its bytes in both directions, and the table others are checked against.

/// One field of a layout: name, offset and size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Name, the same as in the C header.
    pub name: &'static str,
    /// Offset from the start of the structure.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// The layout of one wire structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the structure in the C header.
    pub name: &'static str,
    /// Bytes of the whole structure.
    pub size: usize,
    /// Its fields in order.
    pub fields: &'static [Field],
}

/// Every structure of the ABI, for comparison with the C header and the document.
pub fn layouts() -> &'static [Layout] {
    &[
        crate::ConfigSpace::LAYOUT,
        crate::request::HeaderWire::LAYOUT,
        crate::request::HelloWire::LAYOUT,
        crate::request::ContextOpenWire::LAYOUT,
        crate::request::AllocWire::LAYOUT,
        crate::request::FreeWire::LAYOUT,
        crate::request::QueryWire::LAYOUT,
        crate::request::AdviseWire::LAYOUT,
        crate::request::RangeWire::LAYOUT,
        crate::request::CopyWire::LAYOUT,
        crate::request::FillWire::LAYOUT,
        crate::reply::ResponseWire::LAYOUT,
        crate::HelloReply::LAYOUT,
        crate::InfoReply::LAYOUT,
        crate::GpuEntry::LAYOUT,
        crate::QueryReply::LAYOUT,
        crate::Extent::LAYOUT,
        crate::EventMessage::LAYOUT,
    ]
}

/// A value with a fixed little-endian form.
pub(crate) trait Scalar: Sized + Copy {
    /// Bytes on the wire.
    const SIZE: usize;
    /// Writes the value into the first `SIZE` bytes of `out`.
    fn put(self, out: &mut [u8]);
    /// Reads the value from the first `SIZE` bytes of `bytes`; short input reads as zeros.
    fn take(bytes: &[u8]) -> Self;
}

macro_rules! scalar {
    ($($t:ty),*) => {$(
        impl Scalar for $t {
            const SIZE: usize = size_of::<$t>();
            fn put(self, out: &mut [u8]) {
                for (to, from) in out.iter_mut().zip(self.to_le_bytes()) {
                    *to = from;
                }
            }
            fn take(bytes: &[u8]) -> Self {
                let mut raw = [0u8; size_of::<$t>()];
                for (to, from) in raw.iter_mut().zip(bytes) {
                    *to = *from;
                }
                <$t>::from_le_bytes(raw)
            }
        }
    )*};
}
scalar!(u8, u16, u32, u64);

impl<const N: usize> Scalar for [u8; N] {
    const SIZE: usize = N;
    fn put(self, out: &mut [u8]) {
        for (to, from) in out.iter_mut().zip(self) {
            *to = from;
        }
    }
    fn take(bytes: &[u8]) -> Self {
        let mut raw = [0u8; N];
        for (to, from) in raw.iter_mut().zip(bytes) {
            *to = *from;
        }
        raw
    }
}

/// Declares a wire structure: `name("c name", total bytes) { offset => field: type, … }`.
macro_rules! wire_struct {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident($c_name:literal, $size:expr) {
            $( $(#[$fmeta:meta])* $offset:literal => $field:ident: $t:ty, )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis struct $name {
            $( $(#[$fmeta])* $vis $field: $t, )*
        }

        impl $name {
            /// Bytes on the wire.
            #[allow(dead_code, reason = "some layouts are only ever read or written whole")]
            $vis const BYTES: usize = $size;
            /// Where each field lies.
            $vis const LAYOUT: $crate::wire::Layout = $crate::wire::Layout {
                name: $c_name,
                size: $size,
                fields: &[ $( $crate::wire::Field {
                    name: stringify!($field),
                    offset: $offset,
                    size: <$t as $crate::wire::Scalar>::SIZE,
                }, )* ],
            };

            /// The little-endian form; bytes no field covers are zero.
            $vis fn to_bytes(self) -> [u8; $size] {
                let mut out = [0u8; $size];
                $( if let Some(place) = out.get_mut($offset..) {
                    $crate::wire::Scalar::put(self.$field, place);
                } )*
                out
            }

            /// Reads the structure; bytes no field covers are ignored.
            $vis fn from_bytes(bytes: &[u8; $size]) -> Self {
                Self { $( $field: <$t as $crate::wire::Scalar>::take(bytes.get($offset..).unwrap_or(&[])), )* }
            }
        }
    };
}
pub(crate) use wire_struct;
