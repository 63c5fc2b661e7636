//! Result codes, as `CUresult` numbers them. Only codes every driver of the last years knows.

use std::ffi::CStr;

use vram_gpu::GpuError;

macro_rules! statuses {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// A failure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(clippy::upper_case_acronyms, non_camel_case_types, reason = "the names of the API")]
        #[repr(u32)]
        pub(crate) enum Status {
            $($name = $code),*
        }

        impl Status {
            /// The API's name of a code, and what it means in words.
            pub(crate) fn describe(code: u32) -> Option<(&'static CStr, &'static CStr)> {
                let texts: (&str, &str) = match code {
                    0 => ("CUDA_SUCCESS\0", "no error\0"),
                    $($code => (concat!("CUDA_ERROR_", stringify!($name), "\0"), concat!($text, "\0")),)*
                    _ => return None,
                };
                let (name, text) = texts;
                Some((CStr::from_bytes_until_nul(name.as_bytes()).ok()?, CStr::from_bytes_until_nul(text.as_bytes()).ok()?))
            }
        }
    };
}

statuses! {
    INVALID_VALUE = 1, "invalid argument";
    OUT_OF_MEMORY = 2, "out of memory";
    NOT_INITIALIZED = 3, "cuInit has not been called";
    NO_DEVICE = 100, "there is no simulated GPU";
    INVALID_DEVICE = 101, "invalid device ordinal, or a device that cannot do this";
    INVALID_CONTEXT = 201, "no context, or one that is gone";
    ECC_UNCORRECTABLE = 214, "a copy was made to fail";
    PEER_ACCESS_UNSUPPORTED = 217, "peer access is not supported between these two devices";
    INVALID_HANDLE = 400, "invalid resource handle";
    NOT_FOUND = 500, "named symbol not found";
    NOT_READY = 600, "device not ready";
    PEER_ACCESS_ALREADY_ENABLED = 704, "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "peer access has not been enabled";
    HOST_MEMORY_ALREADY_REGISTERED = 712, "part or all of the memory is already registered";
    HOST_MEMORY_NOT_REGISTERED = 713, "the memory is not registered";
    LAUNCH_FAILED = 719, "the simulated GPU is lost";
    UNKNOWN = 999, "unknown error";
}

impl From<GpuError> for Status {
    fn from(error: GpuError) -> Self {
        match error {
            GpuError::OutOfMemory { .. } | GpuError::OutOfAddressSpace { .. } => Self::OUT_OF_MEMORY,
            GpuError::NoSuchGpu { .. } => Self::INVALID_DEVICE,
            GpuError::BadHandle { .. } => Self::INVALID_HANDLE,
            GpuError::BadRange { .. } | GpuError::Driver { .. } => Self::INVALID_VALUE,
            GpuError::CopyFailed { .. } => Self::ECC_UNCORRECTABLE,
            GpuError::DeviceLost { .. } => Self::LAUNCH_FAILED,
            GpuError::Unavailable { .. } => Self::NO_DEVICE,
        }
    }
}
