//! Tiers below the GPUs.

mod fields;
mod options;
mod problem;

use std::time::Duration;

use vram_control_api::ByteSize;
use vram_tier::{
    CHUNK_BYTES, Codec, CodecChoice, CodecConfig, CompressedConfig, DiskConfig, HostConfig, RemoteConfig,
    TierKind,
};

use self::fields::Fields;
pub(super) use self::fields::Written;
pub use self::problem::{OptionsFileError, TierProblem};
use super::{ConfigError, Origin, Problem, Setting};
use crate::args::{TierOption, kind_named};

/// The largest size of a tier.
const MAX_SIZE: ByteSize = ByteSize(1 << 47);
/// Least and most a region must shrink to be kept in compressed RAM.
const MIN_RATIO: (f64, f64) = (1.0, 100.0);
/// Seconds a server may have for one request.
const TIMEOUT_SECONDS: (i64, i64) = (1, 3600);

/// One tier to have.
#[derive(Clone, Debug, PartialEq)]
pub enum TierConfig {
    /// Host RAM, in slots of one shard each, at least one.
    Host(HostConfig),
    /// Another.
    Chunked(vram_tier::TierConfig),
}

impl TierConfig {
    /// What it is.
    pub fn kind(&self) -> TierKind {
        match self {
            Self::Host(_) => TierKind::Host,
            Self::Chunked(vram_tier::TierConfig::Compressed(_)) => TierKind::Compressed,
            Self::Chunked(vram_tier::TierConfig::Disk(_)) => TierKind::Disk,
            Self::Chunked(vram_tier::TierConfig::Remote(_)) => TierKind::Remote,
        }
    }
}

/// One tier as written.
#[derive(Clone, Debug)]
pub(super) struct TierSettings {
    origin: Origin,
    fields: Vec<(String, Setting<Written>)>,
}

impl From<TierOption> for TierSettings {
    fn from(option: TierOption) -> Self {
        let origin = Origin::Option("tier");
        let kind = ("kind".to_owned(), option.kind.to_string());
        let here = |(field, text)| (field, Setting::new(Written::Text(text), origin.clone()));
        let fields = std::iter::once(kind).chain(option.fields).map(here).collect();
        Self { origin, fields }
    }
}

impl TierSettings {
    pub(super) fn new(origin: Origin, fields: Vec<(String, Setting<Written>)>) -> Self {
        Self { origin, fields }
    }

    /// Checks the tier by itself.
    pub(super) fn check(mut self, shard: ByteSize) -> Result<Setting<TierConfig>, ConfigError> {
        let kind = self.take_kind()?;
        let mut fields = Fields::new(kind, self.origin.clone(), self.fields);
        let tier = match kind {
            TierKind::Host => TierConfig::Host(host(&mut fields, shard)?),
            TierKind::Compressed => {
                TierConfig::Chunked(vram_tier::TierConfig::Compressed(compressed(&mut fields)?))
            }
            TierKind::Disk => TierConfig::Chunked(vram_tier::TierConfig::Disk(disk(&mut fields)?)),
            TierKind::Remote => TierConfig::Chunked(vram_tier::TierConfig::Remote(remote(&mut fields)?)),
        };
        fields.finish()?;
        Ok(Setting::new(tier, self.origin))
    }

    fn take_kind(&mut self) -> Result<TierKind, ConfigError> {
        let Some(place) = self.fields.iter().position(|(name, _)| name == "kind") else {
            return Err(Setting::new((), self.origin.clone()).refuse(TierProblem::NoKind.into()));
        };
        let (_, setting) = self.fields.swap_remove(place);
        let known = setting.value.text().and_then(kind_named);
        let unknown = || TierProblem::UnknownKind { found: setting.value.shown() };
        known.ok_or_else(|| setting.refuse(unknown().into()))
    }
}

/// The tiers, the fastest first, of which there is at most one of each kind.
pub(super) fn check_all(
    settings: impl Iterator<Item = TierSettings>,
    shard: ByteSize,
) -> Result<Vec<TierConfig>, ConfigError> {
    let mut tiers: Vec<Setting<TierConfig>> = Vec::new();
    for settings in settings {
        let tier = settings.check(shard)?;
        let kind = tier.value.kind();
        if let Some(first) = tiers.iter().find(|other| other.value.kind() == kind) {
            let first = first.origin.clone();
            return Err(tier.refuse(TierProblem::Twice { kind, first }.into()));
        }
        tiers.push(tier);
    }
    tiers.sort_by_key(|tier| tier.value.kind());
    Ok(tiers.into_iter().map(|tier| tier.value).collect())
}

fn host(fields: &mut Fields, shard: ByteSize) -> Result<HostConfig, ConfigError> {
    let size = required_size(fields)?;
    if size < shard {
        return Err(fields.refuse_tier(TierProblem::SmallerThanShard { size, shard }));
    }
    Ok(HostConfig {
        bytes: size.bytes(),
        slot_bytes: shard.bytes(),
        preallocate: fields.flag("preallocate")?.unwrap_or(false),
        huge_pages: fields.flag("huge_pages")?.unwrap_or(false),
    })
}

fn compressed(fields: &mut Fields) -> Result<CompressedConfig, ConfigError> {
    let mut config = CompressedConfig::new(Some(required_size(fields)?.bytes()));
    if let Some(ratio) = fields.number("min_ratio", MIN_RATIO)? {
        config.min_ratio = ratio;
    }
    config.codec = codec(fields, config.codec)?;
    config.chunk_bytes = chunk(fields, config.chunk_bytes)?;
    Ok(config)
}

fn disk(fields: &mut Fields) -> Result<DiskConfig, ConfigError> {
    let size = required_size(fields)?;
    let dir = fields.path("dir")?;
    let dir = fields.required("dir", "/var/lib/vram", dir)?.value;
    let mut config = DiskConfig::new(dir, size.bytes());
    let DiskConfig { encrypt, direct, punch_holes, .. } = &mut config;
    for (name, setting) in [("encrypt", encrypt), ("direct", direct), ("punch_holes", punch_holes)] {
        *setting = fields.flag(name)?.unwrap_or(*setting);
    }
    config.codec = codec(fields, config.codec)?;
    config.chunk_bytes = chunk(fields, config.chunk_bytes)?;
    Ok(config)
}

fn remote(fields: &mut Fields) -> Result<RemoteConfig, ConfigError> {
    let size = fields.size("size", MAX_SIZE)?;
    let url = fields.text("url")?;
    let mut config = RemoteConfig::new(fields.required("url", "s3://bucket/prefix", url)?);
    config.bytes = size.map(ByteSize::bytes);
    config.encrypt = fields.flag("encrypt")?.unwrap_or(config.encrypt);
    if let Some(seconds) = fields.whole("timeout", TIMEOUT_SECONDS)? {
        config.timeout = Duration::from_secs(seconds.unsigned_abs());
    }
    config.options = remote_options(fields)?;
    config.codec = codec(fields, config.codec)?;
    config.chunk_bytes = chunk(fields, config.chunk_bytes)?;
    Ok(config)
}

/// Options that stand in the configuration and those in the file it names, together.
fn remote_options(fields: &mut Fields) -> Result<Vec<(String, String)>, ConfigError> {
    let mut all = Vec::new();
    if let Some(table) = fields.secret_table("options")? {
        let origin = Setting::new((), table.origin);
        all = options::from_table(table.value).map_err(|problem| origin.refuse(problem.into()))?;
    }
    if let Some(Setting { value: path, origin }) = fields.path("options_file")? {
        let table = match options::read_file(&path) {
            Ok(table) => table,
            Err(source) => return Err(ConfigError::OptionsFile { origin, source }),
        };
        let origin = Setting::new((), origin);
        let from_file = options::from_table(table).map_err(|problem| origin.refuse(problem.into()))?;
        if let Some((name, _)) = from_file.iter().find(|(name, _)| all.iter().any(|(other, _)| other == name))
        {
            return Err(origin.refuse(TierProblem::OptionTwice { name: name.clone() }.into()));
        }
        all.extend(from_file);
    }
    Ok(all)
}

fn required_size(fields: &mut Fields) -> Result<ByteSize, ConfigError> {
    let size = fields.size("size", MAX_SIZE)?;
    fields.required("size", "4GiB", size)
}

fn codec(fields: &mut Fields, default: CodecConfig) -> Result<CodecConfig, ConfigError> {
    let words = [
        ("auto", CodecChoice::Auto),
        ("none", CodecChoice::None),
        (Codec::Zstd.name(), CodecChoice::Only(Codec::Zstd)),
        (Codec::Lz4.name(), CodecChoice::Only(Codec::Lz4)),
        (Codec::Zlib.name(), CodecChoice::Only(Codec::Zlib)),
    ];
    let choice = fields.word("codec", &words)?.unwrap_or(default.choice);
    let level = match choice {
        CodecChoice::Only(codec) => {
            let (least, most) = codec.levels().into_inner();
            fields.whole("level", (least.into(), most.into()))?
        }
        CodecChoice::Auto | CodecChoice::None => {
            fields.absent("level", TierProblem::LevelWithoutCodec { kind: fields.kind() })?;
            None
        }
    };
    Ok(CodecConfig { choice, level: level.and_then(|level| i32::try_from(level).ok()), ..default })
}

fn chunk(fields: &mut Fields, default: u32) -> Result<u32, ConfigError> {
    let (least, most) = CHUNK_BYTES.into_inner();
    let expected = format!("a power of two from {} to {}", ByteSize(least.into()), ByteSize(most.into()));
    let accept = |size: ByteSize| {
        let bytes = u32::try_from(size.bytes()).ok()?;
        Some(bytes).filter(|bytes| bytes.is_power_of_two() && CHUNK_BYTES.contains(bytes))
    };
    Ok(fields.size_as("chunk", expected, accept)?.unwrap_or(default))
}

impl From<TierProblem> for Problem {
    fn from(problem: TierProblem) -> Self {
        Self::Tier(problem)
    }
}

#[cfg(test)]
mod tests;
