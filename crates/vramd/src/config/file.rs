//! The configuration file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::Spanned;
use vram_control_api::ByteSize;

use super::slice::SliceSettings;
use super::tier::{TierSettings, Written};
use super::{ConfigError, Origin, Problem, Setting};
use crate::args::{GpuBackend, LogLevel};

/// Longer lines are cut in errors.
const MAX_QUOTED_CHARS: usize = 80;

/// What a file says, with where it says it.
#[derive(Clone, Debug, Default)]
pub(super) struct ConfigFile {
    pub(super) gpu: Option<Setting<GpuBackend>>,
    pub(super) shard: Option<Setting<ByteSize>>,
    pub(super) socket_dir: Option<Setting<PathBuf>>,
    pub(super) socket_group: Option<Setting<String>>,
    pub(super) control: Option<Setting<PathBuf>>,
    pub(super) control_group: Option<Setting<String>>,
    pub(super) virtio_id: Option<Setting<i64>>,
    pub(super) log_level: Option<LogLevel>,
    pub(super) slices: Vec<SliceSettings>,
    pub(super) tiers: Vec<TierSettings>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    gpu: Option<Spanned<RawGpu>>,
    shard: Option<Spanned<ByteSize>>,
    socket_dir: Option<Spanned<PathBuf>>,
    socket_group: Option<Spanned<String>>,
    control: Option<Spanned<PathBuf>>,
    control_group: Option<Spanned<String>>,
    virtio_id: Option<Spanned<i64>>,
    log_level: Option<LogLevel>,
    #[serde(default)]
    slice: Vec<RawSlice>,
    #[serde(default)]
    tier: Vec<Spanned<RawTier>>,
}

/// Which fields there are, and what they may be, depends on the kind: [`TierSettings`] knows.
type RawTier = BTreeMap<Spanned<String>, Spanned<toml::Value>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGpu {
    backend: RawBackend,
    spec: Option<Spanned<String>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawBackend {
    Sim,
    Cuda,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSlice {
    name: Spanned<String>,
    limit: Spanned<ByteSize>,
    guarantee: Option<Spanned<ByteSize>>,
    placement: Option<Spanned<String>>,
    queues: Option<Spanned<i64>>,
    home: Option<Spanned<i64>>,
    socket: Option<Spanned<PathBuf>>,
    group: Option<Spanned<String>>,
}

/// Turns positions of the parser into lines.
struct Lines<'a> {
    path: &'a Path,
    text: &'a str,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(path: &'a Path, text: &'a str) -> Self {
        let behind_newlines = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self { path, text, starts: std::iter::once(0).chain(behind_newlines).collect() }
    }

    /// The number of the line a position is in, from 1.
    fn line(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at)
    }

    fn origin(&self, at: usize) -> Origin {
        Origin::File { path: self.path.to_owned(), line: self.line(at) }
    }

    fn quote(&self, at: usize) -> String {
        let start = self.starts.get(self.line(at) - 1).copied().unwrap_or_default();
        let line = self.text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
        line.trim().chars().filter(|c| !c.is_control()).take(MAX_QUOTED_CHARS).collect()
    }

    /// Whether a position may lie in the options of a tier: in a line that names them, or behind one and before the
    /// next table.
    fn is_secret(&self, at: usize) -> bool {
        let end =
            self.text.get(at..).and_then(|rest| rest.find('\n')).map_or(self.text.len(), |len| at + len);
        for line in self.text.get(..end).unwrap_or(self.text).lines().rev() {
            if line.replace("options_file", "").contains("options") {
                return true;
            }
            if line.trim_start().starts_with('[') {
                return false;
            }
        }
        false
    }

    fn setting<T>(&self, spanned: Spanned<T>) -> Setting<T> {
        let origin = self.origin(spanned.span().start);
        Setting::new(spanned.into_inner(), origin)
    }

    fn slice(&self, raw: RawSlice) -> SliceSettings {
        SliceSettings {
            name: self.setting(raw.name),
            limit: self.setting(raw.limit),
            guarantee: raw.guarantee.map(|value| self.setting(value)),
            placement: raw.placement.map(|value| self.setting(value)),
            queues: raw.queues.map(|value| self.setting(value)),
            home: raw.home.map(|value| self.setting(value)),
            socket: raw.socket.map(|value| self.setting(value)),
            group: raw.group.map(|value| self.setting(value)),
        }
    }

    fn tier(&self, raw: Spanned<RawTier>) -> TierSettings {
        let raw = self.setting(raw);
        let field = |(name, value): (Spanned<String>, Spanned<toml::Value>)| {
            (name.into_inner(), self.setting(value).map(Written::Toml))
        };
        TierSettings::new(raw.origin, raw.value.into_iter().map(field).collect())
    }

    fn gpu(&self, raw: Spanned<RawGpu>) -> Result<Setting<GpuBackend>, ConfigError> {
        let raw = self.setting(raw);
        match (raw.value.backend, &raw.value.spec) {
            (RawBackend::Cuda, None) => Ok(raw.map(|_| GpuBackend::Cuda)),
            (RawBackend::Cuda, Some(spec)) => Err(ConfigError::Invalid {
                origin: self.origin(spec.span().start),
                problem: Problem::SpecUnexpected,
            }),
            (RawBackend::Sim, Some(spec)) if !spec.as_ref().trim().is_empty() => {
                let backend = GpuBackend::Sim(spec.as_ref().clone());
                Ok(raw.map(|_| backend))
            }
            (RawBackend::Sim, _) => Err(raw.refuse(Problem::SpecMissing)),
        }
    }

    fn parse_error(&self, error: &toml::de::Error) -> ConfigError {
        let Range { start, .. } = error.span().unwrap_or_default();
        if self.is_secret(start) {
            return ConfigError::Parse {
                origin: self.origin(start),
                problem: "this is not TOML; the options of a tier are lines of NAME = \"VALUE\"".to_owned(),
                line_text: String::new(),
            };
        }
        ConfigError::Parse {
            origin: self.origin(start),
            problem: error.message().replace('\n', ", "),
            line_text: self.quote(start),
        }
    }
}

impl ConfigFile {
    /// Reads the contents of a file; the path is for messages.
    pub(super) fn parse(path: &Path, contents: &[u8]) -> Result<Self, ConfigError> {
        let text = match std::str::from_utf8(contents) {
            Ok(text) => text,
            Err(error) => {
                let good = contents.get(..error.valid_up_to()).unwrap_or_default();
                let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
                let origin = Origin::File { path: path.to_owned(), line };
                return Err(ConfigError::NotUtf8 { origin });
            }
        };
        let lines = Lines::new(path, text);
        let raw: RawFile = toml::from_str(text).map_err(|error| lines.parse_error(&error))?;
        Ok(Self {
            gpu: raw.gpu.map(|gpu| lines.gpu(gpu)).transpose()?,
            shard: raw.shard.map(|value| lines.setting(value)),
            socket_dir: raw.socket_dir.map(|value| lines.setting(value)),
            socket_group: raw.socket_group.map(|value| lines.setting(value)),
            control: raw.control.map(|value| lines.setting(value)),
            control_group: raw.control_group.map(|value| lines.setting(value)),
            virtio_id: raw.virtio_id.map(|value| lines.setting(value)),
            log_level: raw.log_level,
            slices: raw.slice.into_iter().map(|slice| lines.slice(slice)).collect(),
            tiers: raw.tier.into_iter().map(|tier| lines.tier(tier)).collect(),
        })
    }
}
