//! When compression pays.
//!
//! Coding and moving overlap when more than one worker is at it, so the slowest of the three, coding, moving what is
//! left, and decoding, decides. Where a link is faster than the codec nothing is gained, whatever the ratio.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Compression that gains less than this is left alone: it costs processor time.
pub const MIN_GAIN: f64 = 1.05;

/// How fast bytes go to a place and come back, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// To it.
    pub write: f64,
    /// From it.
    pub read: f64,
}

/// How fast a codec makes of raw bytes coded ones and back, in raw bytes a second on one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CodecSpeed {
    /// There.
    pub compress: f64,
    /// And back.
    pub decompress: f64,
}

impl CodecSpeed {
    /// How many times as fast bytes go over a link when they are compressed to one part in `ratio`, in the direction
    /// that gains less. Worth it from [`MIN_GAIN`] on.
    pub fn gain(self, link: LinkSpeed, ratio: f64) -> f64 {
        let there = self.compress.min(ratio * link.write) / link.write;
        let back = self.decompress.min(ratio * link.read) / link.read;
        there.min(back)
    }
}

/// A running average of speed, in bytes a second. Shared between threads; a lost update costs accuracy and nothing
/// else.
#[derive(Debug, Default)]
pub(crate) struct Pace(AtomicU64);

impl Pace {
    /// Takes a piece of work into account.
    pub(crate) fn note(&self, bytes: usize, time: Duration) {
        // Below this the clock is what is measured.
        if bytes < 1024 || time < Duration::from_micros(1) {
            return;
        }
        let now = bytes as f64 / time.as_secs_f64();
        let before = self.bytes_per_s();
        let average = if before == 0.0 { now } else { before + (now - before) / 8.0 };
        self.0.store(average.to_bits(), Ordering::Relaxed);
    }

    /// The average; zero before the first piece of work.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: f64 = 1e6;

    fn link(write: f64, read: f64) -> LinkSpeed {
        LinkSpeed { write: write * MB, read: read * MB }
    }

    #[test]
    fn gain_is_decided_by_the_slowest_part() {
        let codec = CodecSpeed { compress: 400.0 * MB, decompress: 900.0 * MB };
        assert_eq!(codec.gain(link(100.0, 100.0), 1.5), 1.5);
        assert_eq!(codec.gain(link(320.0, 320.0), 1.5), 1.25);
        assert!(codec.gain(link(100.0, 1000.0), 10.0) < 1.0, "reading is what is slow");
        assert!(codec.gain(link(2000.0, 2000.0), 100.0) < 1.0, "no ratio makes up for a slow codec");
    }

    #[test]
    fn pace_follows_what_it_is_told() {
        let pace = Pace::default();
        assert_eq!(pace.bytes_per_s(), 0.0);
        pace.note(10, Duration::from_secs(1));
        assert_eq!(pace.bytes_per_s(), 0.0, "too little to measure");
        pace.note(1_000_000, Duration::from_secs(1));
        assert_eq!(pace.bytes_per_s(), MB);
        (0..100).for_each(|_| pace.note(2_000_000, Duration::from_secs(1)));
        assert!((pace.bytes_per_s() - 2.0 * MB).abs() < 0.01 * MB);
    }
}
