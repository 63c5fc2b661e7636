//! Where things are on the server.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Path of the [`Daemon`](crate::v1::Daemon).
pub const DAEMON_PATH: &str = "/v1/daemon";
/// Path of the [`Gpus`](crate::v1::Gpus).
pub const GPUS_PATH: &str = "/v1/gpus";
/// Where a GPU is drained by POST, as a pattern.
pub const GPU_DRAIN_PATH: &str = "/v1/gpus/{index}/drain";
/// Where a GPU is taken back into use by POST, as a pattern.
pub const GPU_UNDRAIN_PATH: &str = "/v1/gpus/{index}/undrain";
/// Path of the [`Slices`](crate::v1::Slices).
pub const SLICES_PATH: &str = "/v1/slices";
/// Path of one [`Slice`](crate::v1::Slice), as a pattern.
pub const SLICE_PATH: &str = "/v1/slices/{name}";
/// Path of the [`Tiers`](crate::v1::Tiers).
pub const TIERS_PATH: &str = "/v1/tiers";

/// What RFC 3986 §2.3 calls unreserved stays as it is; the rest is escaped.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Path of the slice of this name, whatever characters somebody typed.
pub fn slice_path(name: &str) -> String {
    format!("{SLICES_PATH}/{}", utf8_percent_encode(name, ESCAPED))
}

/// Where the GPU of this number is drained.
pub fn gpu_drain_path(index: u16) -> String {
    format!("{GPUS_PATH}/{index}/drain")
}

/// Where the GPU of this number is taken back into use.
pub fn gpu_undrain_path(index: u16) -> String {
    format!("{GPUS_PATH}/{index}/undrain")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_path_plain_name_stays() {
        assert_eq!(slice_path("tenant-1"), "/v1/slices/tenant-1");
    }

    #[test]
    fn slice_path_hostile_name_is_escaped() {
        assert_eq!(slice_path("a/b ?#é\r\n"), "/v1/slices/a%2Fb%20%3F%23%C3%A9%0D%0A");
    }
}
