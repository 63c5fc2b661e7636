//! Compression of runs of bytes, with every library's context made once and used again.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// A way to compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Codec {
    /// LZ4 blocks: the fastest, and the least saved.
    Lz4,
    /// Zstandard.
    Zstd,
    /// Deflate.
    Zlib,
}

impl Codec {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Lz4, Self::Zstd, Self::Zlib];

    /// The level taken if none is set; fast ones, since what is stored is read again soon.
    pub fn default_level(self) -> i32 {
        1
    }

    /// The levels that can be set.
    pub fn levels(self) -> std::ops::RangeInclusive<i32> {
        match self {
            Self::Lz4 => 1..=1,
            Self::Zstd => -7..=19,
            Self::Zlib => 1..=9,
        }
    }

    /// Its name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Zlib => "zlib",
        }
    }
}

/// Bytes an output needs at most for an input of `len`, whatever the codec.
pub(crate) fn max_coded_len(len: usize) -> usize {
    lz4_flex::block::get_maximum_output_size(len).max(zstd::zstd_safe::compress_bound(len))
}

/// The contexts of one thread at work.
#[derive(Default)]
pub(crate) struct Codecs {
    zstd_in: Option<(i32, zstd::bulk::Compressor<'static>)>,
    zstd_out: Option<zstd::bulk::Decompressor<'static>>,
    zlib_in: Option<(i32, Compress)>,
    zlib_out: Option<Decompress>,
}

impl Codecs {
    /// Compresses into `out`; how many bytes were written, or `None` if they do not fit or the library fails.
    pub(crate) fn compress(
        &mut self,
        codec: Codec,
        level: i32,
        bytes: &[u8],
        out: &mut [u8],
    ) -> Option<usize> {
        match codec {
            Codec::Lz4 => lz4_flex::block::compress_into(bytes, out).ok(),
            Codec::Zstd => {
                if self.zstd_in.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
                    self.zstd_in = Some((level, zstd::bulk::Compressor::new(level).ok()?));
                }
                self.zstd_in.as_mut()?.1.compress_to_buffer(bytes, out).ok()
            }
            Codec::Zlib => {
                if self.zlib_in.as_ref().is_none_or(|(made_for, _)| *made_for != level) {
                    let level_set = Compression::new(u32::try_from(level).ok()?);
                    self.zlib_in = Some((level, Compress::new(level_set, false)));
                }
                let state = &mut self.zlib_in.as_mut()?.1;
                state.reset();
                match state.compress(bytes, out, FlushCompress::Finish) {
                    Ok(Status::StreamEnd) => usize::try_from(state.total_out()).ok(),
                    Ok(Status::Ok | Status::BufError) | Err(_) => None,
                }
            }
        }
    }

    /// Decompresses foreign bytes to fill `out` exactly; whether they did. What is in `out` afterwards means nothing
    /// unless they did.
    pub(crate) fn decompress(&mut self, codec: Codec, bytes: &[u8], out: &mut [u8]) -> bool {
        match codec {
            Codec::Lz4 => {
                lz4_flex::block::decompress_into(bytes, out).is_ok_and(|written| written == out.len())
            }
            Codec::Zstd => {
                if self.zstd_out.is_none() {
                    self.zstd_out = zstd::bulk::Decompressor::new().ok();
                }
                let state = self.zstd_out.as_mut();
                state.is_some_and(|state| {
                    state.decompress_to_buffer(bytes, out).is_ok_and(|written| written == out.len())
                })
            }
            Codec::Zlib => {
                let state = self.zlib_out.get_or_insert_with(|| Decompress::new(false));
                state.reset(false);
                let ended =
                    matches!(state.decompress(bytes, out, FlushDecompress::Finish), Ok(Status::StreamEnd));
                ended && state.total_out() == out.len() as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decompress_of_compressed_is_the_same_for_every_codec() {
        let mut codecs = Codecs::default();
        let bytes: Vec<u8> = (0..10_000u32).map(|i| (i / 7) as u8).collect();
        for codec in Codec::ALL {
            for len in [1usize, 2, 4095, 10_000] {
                let mut coded = vec![0; max_coded_len(len)];
                let level = codec.default_level();
                let written = codecs.compress(codec, level, &bytes[..len], &mut coded).unwrap();
                let mut out = vec![0; len];
                assert!(codecs.decompress(codec, &coded[..written], &mut out), "{codec:?} {len}");
                assert_eq!(out, bytes[..len]);
            }
        }
    }

    #[test]
    fn decompress_to_another_length_or_of_cut_bytes_fails() {
        let mut codecs = Codecs::default();
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i / 7) as u8).collect();
        for codec in Codec::ALL {
            let mut coded = vec![0; max_coded_len(1000)];
            let written = codecs.compress(codec, codec.default_level(), &bytes, &mut coded).unwrap();
            for len in [0, 1, 999, 1001] {
                assert!(!codecs.decompress(codec, &coded[..written], &mut vec![0; len]), "{codec:?} {len}");
            }
            for cut in 0..written {
                let mut out = vec![0; 1000];
                let done = codecs.decompress(codec, &coded[..cut], &mut out);
                assert!(!done || out == bytes, "{codec:?} {cut}");
            }
        }
    }

    #[test]
    fn compress_into_too_little_room_fails() {
        let mut codecs = Codecs::default();
        let mut noise = 1u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (noise >> 33) as u8
        })
        .take(5000)
        .collect();
        for codec in Codec::ALL {
            assert_eq!(codecs.compress(codec, codec.default_level(), &bytes, &mut vec![0; 4000]), None);
        }
    }
}
