//! What the daemon is to do, checked as a whole.
//!
//! [`Config::load`] merges the command line with the configuration file and checks the result; a [`Config`] that
//! exists is valid as far as it can be known without looking at the GPUs. The rules of merging:
//!
//! - a setting may stand in the file or on the command line; in both it is refused, equal or not;
//! - slices of both are served, and their names and sockets must differ; so are tiers, one of each kind;
//! - `--log-level` goes before the file's, because it changes nothing that is served;
//! - without any choice of GPUs the pool is simulated ([`DEFAULT_SIM_SPEC`]) and [`Config::gpu_is_default`] is set:
//!   the caller announces it.
//!
//! Every error is one sentence that names the setting and where it stands. Whether a GPU exists, or the guarantees fit
//! into the pool, is not known here.

mod error;
mod file;
mod group;
mod slice;
mod slices;
mod tier;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use nix::unistd::Gid;
use vram_control_api::{ByteSize, DEFAULT_SOCKET_DIR};

pub use self::error::{ConfigError, Origin, Problem};
use self::file::ConfigFile;
use self::group::find_group;
pub use self::slice::{NewSlices, SliceConfig};
use self::slice::{SliceSettings, absolute_path, socket_path};
use self::slices::Slices;
use self::tier::TierSettings;
pub use self::tier::{OptionsFileError, TierConfig, TierProblem};
use crate::args::{Args, GpuBackend, LogLevel};

/// The GPUs that are simulated when no choice is made.
pub const DEFAULT_SIM_SPEC: &str = "4x1GiB";
/// Size of a shard unless configured otherwise.
pub const DEFAULT_SHARD: ByteSize = ByteSize::mib(64);
/// Shards are multiples of this.
pub const SHARD_STEP: ByteSize = ByteSize::mib(2);
/// The largest shard.
pub const MAX_SHARD: ByteSize = ByteSize::gib(1);
/// Virtio device id unless configured otherwise.
pub const DEFAULT_VIRTIO_ID: u16 = 37;
/// The largest virtio device id: modern PCI ids end at 0x107f, which is 0x1040 + 63.
pub const MAX_VIRTIO_ID: u16 = 63;
/// Longer configuration files are refused.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What the daemon is to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The GPUs to pool.
    pub gpu: GpuBackend,
    /// Whether nobody chose them, so that they are simulated by default.
    pub gpu_is_default: bool,
    /// Size of a shard: a multiple of [`SHARD_STEP`], up to [`MAX_SHARD`].
    pub shard: ByteSize,
    /// Folder of the slices' sockets that are not placed one by one; absolute.
    pub socket_dir: PathBuf,
    /// Group whose members may connect to slices' sockets that have none of their own, if somebody chose one.
    pub socket_group: Option<Gid>,
    /// Socket of the operator API; absolute, not a slice's.
    pub control: PathBuf,
    /// Group whose members may connect to it, if somebody chose one.
    pub control_group: Option<Gid>,
    /// Virtio device id guests see, 1 to [`MAX_VIRTIO_ID`].
    pub virtio_id: u16,
    /// How much to log.
    pub log_level: LogLevel,
    /// The slices in the order they were given, the file's first; at least one, with different names and sockets.
    pub slices: Vec<SliceConfig>,
    /// The tiers below the GPUs, the fastest first; at most one of each kind.
    pub tiers: Vec<TierConfig>,
}

impl Config {
    /// Merges the command line with the file it names, if it names one. The caller prints an error's chain and ends
    /// with status 2.
    pub fn load(args: Args) -> Result<Self, ConfigError> {
        match args.config.clone() {
            Some(path) => {
                let file = ConfigFile::parse(&path, &read_file(&path)?)?;
                Self::merge(args, file)
            }
            None => Self::merge(args, ConfigFile::default()),
        }
    }

    /// What slices have that are made later and do not say otherwise.
    pub fn new_slices(&self) -> NewSlices {
        NewSlices {
            socket_dir: self.socket_dir.clone(),
            socket_group: self.socket_group,
            control: self.control.clone(),
        }
    }

    fn merge(args: Args, file: ConfigFile) -> Result<Self, ConfigError> {
        let gpu = once("gpu", args.gpu, file.gpu)?;
        let gpu_is_default = gpu.is_none();
        let shard = once("shard", args.shard, file.shard)?.map(check_shard).transpose()?;
        let virtio_id =
            once("virtio-id", args.virtio_id, file.virtio_id)?.map(check_virtio_id).transpose()?;
        let socket_dir = match once("socket-dir", args.socket_dir, file.socket_dir)? {
            Some(dir) => absolute_path("socket-dir", dir)?.value,
            None => PathBuf::from(DEFAULT_SOCKET_DIR),
        };
        let control = once("control", args.control, file.control)?
            .unwrap_or_else(|| Setting::new(socket_dir.join("control.sock"), Origin::Default));
        let control = socket_path("control", control)?;

        let group = |name, on_command_line, in_file| {
            once(name, on_command_line, in_file)?.map(|setting| find_group(name, setting)).transpose()
        };
        let socket_group = group("socket-group", args.socket_group, file.socket_group)?;
        let control_group = group("control-group", args.control_group, file.control_group)?;
        let shard = shard.unwrap_or(DEFAULT_SHARD);
        let tiers = file.tiers.into_iter().chain(args.tiers.into_iter().map(TierSettings::from));
        let tiers = tier::check_all(tiers, shard)?;

        let from_args = args.slices.into_iter().map(SliceSettings::from);
        let mut slices = Slices::beside(&control.value);
        for settings in file.slices.into_iter().chain(from_args) {
            slices.add(settings.check(&socket_dir, socket_group)?)?;
        }
        let slices = slices.finish()?;
        Ok(Self {
            gpu: gpu.map_or_else(|| GpuBackend::Sim(DEFAULT_SIM_SPEC.to_owned()), |setting| setting.value),
            gpu_is_default,
            shard,
            socket_dir,
            socket_group,
            control: control.value,
            control_group,
            virtio_id: virtio_id.unwrap_or(DEFAULT_VIRTIO_ID),
            log_level: args.log_level.or(file.log_level).unwrap_or_default(),
            slices,
            tiers,
        })
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
struct Setting<T> {
    value: T,
    origin: Origin,
}

impl<T> Setting<T> {
    fn new(value: T, origin: Origin) -> Self {
        Self { value, origin }
    }

    fn map<U>(self, change: impl FnOnce(T) -> U) -> Setting<U> {
        Setting { value: change(self.value), origin: self.origin }
    }

    fn refuse(&self, problem: Problem) -> ConfigError {
        ConfigError::Invalid { origin: self.origin.clone(), problem }
    }
}

/// The setting from wherever it stands, unless it stands in both places.
fn once<T>(
    name: &'static str,
    on_command_line: Option<T>,
    in_file: Option<Setting<T>>,
) -> Result<Option<Setting<T>>, ConfigError> {
    match (on_command_line, in_file) {
        (Some(_), Some(setting)) => Err(setting.refuse(Problem::Twice { name })),
        (Some(value), None) => Ok(Some(Setting::new(value, Origin::Option(name)))),
        (None, in_file) => Ok(in_file),
    }
}

fn check_shard(setting: Setting<ByteSize>) -> Result<ByteSize, ConfigError> {
    let shard = setting.value;
    if shard < SHARD_STEP || shard > MAX_SHARD || !shard.bytes().is_multiple_of(SHARD_STEP.bytes()) {
        return Err(setting.refuse(Problem::Shard { found: shard }));
    }
    Ok(shard)
}

fn check_virtio_id(setting: Setting<i64>) -> Result<u16, ConfigError> {
    match u16::try_from(setting.value) {
        Ok(id) if (1..=MAX_VIRTIO_ID).contains(&id) => Ok(id),
        _ => Err(setting.refuse(Problem::VirtioId { found: setting.value })),
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let unreadable = |source| ConfigError::Read { path: path.to_owned(), source };
    let mut contents = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    let length = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut contents).map_err(unreadable)?;
    if u64::try_from(length).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(ConfigError::FileTooLarge { path: path.to_owned(), limit: ByteSize(MAX_FILE_BYTES) });
    }
    Ok(contents)
}

#[cfg(test)]
mod tests;
