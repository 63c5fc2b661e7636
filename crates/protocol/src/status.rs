//! What a response says happened.

macro_rules! statuses {
    ($( $(#[$meta:meta])* $name:ident = $code:literal, $c_name:literal; )*) => {
        /// The outcome of a request. Codes never change meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Status {
            $( $(#[$meta])* $name = $code, )*
        }

        impl Status {
            /// Every status with its name in the C header.
            pub const ALL: &'static [(Status, &'static str)] = &[ $( (Status::$name, $c_name), )* ];

            /// The code on the wire.
            pub fn code(self) -> u32 {
                self as u32
            }

            /// The status of a code, if it is one of ours.
            pub fn from_code(code: u32) -> Option<Self> {
                match code {
                    $( $code => Some(Self::$name), )*
                    _ => None,
                }
            }
        }
    };
}

statuses! {
    /// Done: bytes are where they should be.
    Ok = 0, "VRAM_STATUS_OK";
    /// The descriptor chain is malformed.
    BadChain = 1, "VRAM_STATUS_BAD_CHAIN";
    /// A reserved field is not zero or an unknown flag is set.
    BadRequest = 2, "VRAM_STATUS_BAD_REQUEST";
    /// The opcode is unknown.
    Unsupported = 3, "VRAM_STATUS_UNSUPPORTED";
    /// The opcode does not belong on this queue.
    WrongQueue = 4, "VRAM_STATUS_WRONG_QUEUE";
    /// No HELLO has been accepted yet.
    NotReady = 5, "VRAM_STATUS_NOT_READY";
    /// HELLO names an ABI version the device does not speak.
    BadVersion = 6, "VRAM_STATUS_BAD_VERSION";
    /// No such context.
    NoContext = 7, "VRAM_STATUS_NO_CONTEXT";
    /// The range does not lie in one live allocation of the context.
    BadAddress = 8, "VRAM_STATUS_BAD_ADDRESS";
    /// A length is zero, above the limit, or does not match the chain.
    BadLength = 9, "VRAM_STATUS_BAD_LENGTH";
    /// An alignment is no power of two or too large, or a value is not aligned as it must be.
    BadAlignment = 10, "VRAM_STATUS_BAD_ALIGNMENT";
    /// The stream number is not below the limit.
    BadStream = 11, "VRAM_STATUS_BAD_STREAM";
    /// The writable part of the chain is too small for the answer; `value` says how many bytes it needs.
    BufferTooSmall = 12, "VRAM_STATUS_BUFFER_TOO_SMALL";
    /// The pool has no memory left for this slice.
    OutOfMemory = 13, "VRAM_STATUS_OUT_OF_MEMORY";
    /// The slice's limit does not allow it.
    OverLimit = 14, "VRAM_STATUS_OVER_LIMIT";
    /// Too many contexts or allocations are alive.
    TooMany = 15, "VRAM_STATUS_TOO_MANY";
    /// Source and destination of a COPY overlap.
    Overlap = 16, "VRAM_STATUS_OVERLAP";
    /// The GPU that held the bytes is gone.
    DeviceLost = 17, "VRAM_STATUS_DEVICE_LOST";
    /// The transfer failed on the GPU; `moved` says how far it surely got.
    TransferFailed = 18, "VRAM_STATUS_TRANSFER_FAILED";
    /// The request was cancelled by a HELLO, a CONTEXT_CLOSE or the ring being stopped.
    Cancelled = 19, "VRAM_STATUS_CANCELLED";
    /// A bug in the device; the request may or may not have been carried out.
    Internal = 20, "VRAM_STATUS_INTERNAL";
    /// Bytes were not on a GPU and are damaged where they were stored; `moved` says how far it surely got.
    DataLost = 21, "VRAM_STATUS_DATA_LOST";
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = Self::ALL.iter().find(|(status, _)| status == self).map_or("?", |(_, name)| *name);
        f.write_str(name.trim_start_matches("VRAM_STATUS_"))
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a test that overflows fails, as it should")]
mod tests {
    use super::*;

    #[test]
    fn code_of_every_status_reads_back_as_itself() {
        for (status, _) in Status::ALL {
            assert_eq!(Status::from_code(status.code()), Some(*status));
        }
        assert_eq!(Status::from_code(u32::MAX), None);
    }
}
