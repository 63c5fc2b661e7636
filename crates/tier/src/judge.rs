//! Chooses a chunk's coding: what its sample promises, weighed against the speeds of link and codecs.

use std::time::{Duration, Instant};

use crate::chunk::{Bench, Coding, Format};
use crate::codec::{Codec, max_coded_len};
use crate::config::{CodecChoice, CodecConfig};
use crate::planes::{Planes, Width};
use crate::sample::Sample;
use crate::worth::{CodecSpeed, LinkSpeed, MIN_GAIN, Pace};
use crate::{OpenError, TierKind};

/// A codec must be better by this factor than one that costs less.
const BETTER: f64 = 1.05;

/// What is tried when the choice is ours, the cheapest first. LZ4 is not among them: what it saves more in time than
/// Zstandard, it loses in space, on every kind of content that was measured (`docs/measurements.md`).
const AUTO: [Codec; 1] = [Codec::Zstd];

/// A chosen coding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) coding: Coding,
    pub(crate) level: i32,
    /// What is expected of it, in raw bytes per stored byte.
    pub(crate) ratio: f64,
}

impl Verdict {
    const RAW: Self = Self { coding: Coding::Raw, level: 0, ratio: 1.0 };
}

/// The judge of one store.
pub(crate) struct Judge {
    candidates: Vec<Candidate>,
    /// Speeds of the link; none where only space counts.
    link: Option<Link>,
}

struct Candidate {
    codec: Codec,
    level: i32,
    compress: Pace,
    decompress: Pace,
}

#[derive(Default)]
struct Link {
    write: Pace,
    read: Pace,
}

impl Judge {
    /// A judge for a store behind a link, or for one in memory.
    pub(crate) fn new(config: CodecConfig, is_link: bool, tier: TierKind) -> Result<Self, OpenError> {
        let codecs: &[Codec] = match &config.choice {
            CodecChoice::Auto => &AUTO,
            CodecChoice::None => &[],
            CodecChoice::Only(codec) => std::slice::from_ref(codec),
        };
        if let Some(level) = config.level {
            let fits = matches!(config.choice, CodecChoice::Only(codec) if codec.levels().contains(&level));
            if !fits {
                return Err(OpenError::BadConfig {
                    tier,
                    what: "a compression level of",
                    value: level.into(),
                    allowed: "with zstd -7 to 19, with zlib 1 to 9, with lz4 1, and with any other codec none",
                });
            }
        }
        let candidate = |codec: &Codec| Candidate {
            codec: *codec,
            level: config.level.unwrap_or(codec.default_level()),
            compress: Pace::default(),
            decompress: Pace::default(),
        };
        let link = (is_link && !config.always).then(Link::default);
        Ok(Self { candidates: codecs.iter().map(candidate).collect(), link })
    }

    /// Measures the codecs on numbers like those of a model's weights. Takes some milliseconds.
    pub(crate) fn calibrate(&self, format: &Format) {
        const LEN: usize = 256 << 10;
        let mut bench = Bench::new(LEN);
        let mut state = 1u64;
        for element in bench.raw.as_chunks_mut::<2>().0 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // A mantissa of noise, and an exponent near the middle: the lower, the rarer.
            let exponent = u8::try_from((state >> 40).trailing_ones()).unwrap_or_default();
            *element = [state.to_be_bytes()[0], 0x3f_u8.saturating_sub(exponent)];
        }
        let mut out = vec![0; max_coded_len(LEN)];
        for Candidate { codec, level, .. } in &self.candidates {
            let coding = Coding::Coded { codec: *codec, planes: Planes::new(Width::Two, [1]) };
            // The first round makes the contexts.
            for round in 0..3 {
                let started = Instant::now();
                let head = format.encode(&mut bench, LEN, coding, *level, &mut out);
                let coded = started.elapsed();
                let Some(head) = head else { continue };
                let started = Instant::now();
                let decoded = format.decode(&mut bench, &head, &mut out);
                let decode_time = started.elapsed();
                if round > 0 && decoded.is_ok() {
                    self.note_encoded(coding, LEN, coded);
                    self.note_decoded(coding, LEN, decode_time);
                }
            }
        }
    }

    /// Whether anything might be compressed at all.
    pub(crate) fn may_code(&self) -> bool {
        self.candidates.iter().any(|candidate| self.promises(candidate, f64::MAX).is_some())
    }

    /// The best coding of the first `len` raw bytes on the bench.
    pub(crate) fn judge(&self, bench: &mut Bench, len: usize, sample: &mut Sample) -> Verdict {
        let mut best = (Verdict::RAW, 1.0);
        let mut taken = false;
        for candidate in &self.candidates {
            if self.promises(candidate, f64::MAX).is_none() {
                continue;
            }
            if !taken {
                sample.take(bench.raw.get(..len).unwrap_or_default());
                taken = true;
            }
            let Candidate { codec, level, .. } = *candidate;
            let Some(estimate) = sample.estimate(&mut bench.codecs, codec, level) else { continue };
            let Some(score) = self.promises(candidate, estimate.ratio) else { continue };
            if score >= best.1 * BETTER {
                let coding = Coding::Coded { codec, planes: estimate.planes };
                best = (Verdict { coding, level, ratio: estimate.ratio }, score);
            }
        }
        best.0
    }

    /// How much a codec of this ratio is worth, if it is.
    fn promises(&self, candidate: &Candidate, ratio: f64) -> Option<f64> {
        let Some(link) = self.link_speed() else { return Some(ratio) };
        let codec = CodecSpeed {
            compress: candidate.compress.bytes_per_s(),
            decompress: candidate.decompress.bytes_per_s(),
        };
        Some(codec.gain(link, ratio)).filter(|gain| *gain >= MIN_GAIN)
    }

    /// The speed of the link, if it matters and was measured.
    pub(crate) fn link_speed(&self) -> Option<LinkSpeed> {
        let link = self.link.as_ref()?;
        let speed = LinkSpeed { write: link.write.bytes_per_s(), read: link.read.bytes_per_s() };
        (speed.write > 0.0 && speed.read > 0.0).then_some(speed)
    }

    pub(crate) fn note_encoded(&self, coding: Coding, raw_bytes: usize, time: Duration) {
        if let Some(candidate) = self.candidate(coding) {
            candidate.compress.note(raw_bytes, time);
        }
    }

    pub(crate) fn note_decoded(&self, coding: Coding, raw_bytes: usize, time: Duration) {
        if let Some(candidate) = self.candidate(coding) {
            candidate.decompress.note(raw_bytes, time);
        }
    }

    pub(crate) fn note_written(&self, bytes: usize, time: Duration) {
        if let Some(link) = &self.link {
            link.write.note(bytes, time);
        }
    }

    pub(crate) fn note_read(&self, bytes: usize, time: Duration) {
        if let Some(link) = &self.link {
            link.read.note(bytes, time);
        }
    }

    fn candidate(&self, coding: Coding) -> Option<&Candidate> {
        match coding {
            Coding::Raw => None,
            Coding::Coded { codec, .. } => self.candidates.iter().find(|candidate| candidate.codec == codec),
        }
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a wrong sum is a failed test")]
mod tests {
    use super::*;

    const LEN: usize = 64 << 10;

    fn judge(config: CodecConfig, is_link: bool, link_bytes_per_s: usize) -> Judge {
        let judge = Judge::new(config, is_link, TierKind::Disk).unwrap();
        for candidate in &judge.candidates {
            candidate.compress.note(400_000_000, Duration::from_secs(1));
            candidate.decompress.note(800_000_000, Duration::from_secs(1));
        }
        judge.note_written(link_bytes_per_s, Duration::from_secs(1));
        judge.note_read(link_bytes_per_s, Duration::from_secs(1));
        judge
    }

    fn verdict(judge: &Judge) -> Verdict {
        let mut bench = Bench::new(LEN);
        let mut state = 1u64;
        for (at, byte) in bench.raw.iter_mut().enumerate() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            *byte = if at % 2 == 1 { 0x3f } else { (state >> 33) as u8 };
        }
        judge.judge(&mut bench, LEN, &mut Sample::new())
    }

    #[test]
    fn judge_compresses_where_the_link_is_slower_than_the_codec() {
        let slow = judge(CodecConfig::default(), true, 100_000_000);
        assert!(slow.may_code() && verdict(&slow).coding != Coding::Raw);
        let fast = judge(CodecConfig::default(), true, 2_000_000_000);
        assert!(!fast.may_code() && verdict(&fast).coding == Coding::Raw);
    }

    #[test]
    fn judge_told_always_or_without_a_link_compresses() {
        let always = CodecConfig { always: true, ..CodecConfig::default() };
        assert!(verdict(&judge(always, true, 2_000_000_000)).ratio > 1.5);
        assert!(verdict(&judge(CodecConfig::default(), false, 1)).ratio > 1.5);
    }

    #[test]
    fn judge_with_a_chosen_codec_uses_no_other() {
        let choice = CodecChoice::Only(Codec::Zlib);
        let zlib = judge(CodecConfig { choice, level: Some(2), always: true }, true, 1);
        let found = verdict(&zlib);
        assert!(matches!(found.coding, Coding::Coded { codec: Codec::Zlib, .. }) && found.level == 2);
        let none = CodecConfig { choice: CodecChoice::None, level: None, always: true };
        assert_eq!(verdict(&judge(none, true, 1)).coding, Coding::Raw);
    }

    #[test]
    fn new_with_a_level_no_codec_has_is_refused() {
        for (choice, level) in [
            (CodecChoice::Auto, 1),
            (CodecChoice::None, 1),
            (CodecChoice::Only(Codec::Zstd), 20),
            (CodecChoice::Only(Codec::Zlib), 0),
        ] {
            let config = CodecConfig { choice, level: Some(level), always: false };
            assert!(Judge::new(config, true, TierKind::Disk).is_err());
        }
    }
}
