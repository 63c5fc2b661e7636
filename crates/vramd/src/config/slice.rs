//! Slices, and the paths of sockets.

use std::path::{Path, PathBuf};

use nix::unistd::Gid;
use vram_control_api::ByteSize;
use vram_control_api::v1::NewSlice;
use vram_pool::Placement;

use super::group::find_group;
use super::{ConfigError, Origin, Problem, Setting};
use crate::args::SliceOption;

/// Request queues of a slice unless configured otherwise.
const DEFAULT_QUEUES: u16 = 1;
/// Most request queues of a slice.
pub(super) const MAX_QUEUES: u16 = 64;
/// Most characters of a slice's name.
const MAX_NAME_CHARS: usize = 31;
/// The largest limit: the device addresses there are.
pub(super) const MAX_LIMIT: ByteSize = ByteSize(1 << 47);
/// Most bytes of a socket's path: those of `sun_path` but the zero behind them (unix(7)).
pub(super) const MAX_SOCKET_PATH_BYTES: usize = 107;
/// VMMs give these characters a meaning in their options: lists, quotes.
pub(super) const FORBIDDEN_IN_SOCKET_PATHS: &str = ",\"[]";

/// One slice to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceConfig {
    /// Its name: 1 to 31 of a-z, 0-9 and -, beginning with a letter or digit.
    pub name: String,
    /// Most bytes it can have, more than 0.
    pub limit: ByteSize,
    /// Bytes it can always have, at most the limit; 0 unless configured.
    pub guarantee: ByteSize,
    /// Which GPUs its memory goes to.
    pub placement: Placement,
    /// Request queues, 1 to 64.
    pub request_queues: u16,
    /// Number of the GPU to place it on first, if somebody chose one. Whether there is such a GPU is not checked.
    pub home: Option<u16>,
    /// Socket its VMM connects to; absolute, UTF-8.
    pub socket: PathBuf,
    /// Group whose members may connect to it, if somebody chose one.
    pub group: Option<Gid>,
}

/// What slices have that are made while the daemon runs and do not say otherwise.
#[derive(Clone, Debug)]
pub struct NewSlices {
    pub(super) socket_dir: PathBuf,
    pub(super) socket_group: Option<Gid>,
    pub(super) control: PathBuf,
}

impl NewSlices {
    /// Checks what an operator asks for by itself, as a slice of the configuration is.
    pub fn check(&self, slice: NewSlice) -> Result<SliceConfig, ConfigError> {
        fn asked<T>(value: T) -> Setting<T> {
            Setting::new(value, Origin::Request)
        }
        let settings = SliceSettings {
            name: asked(slice.name),
            limit: asked(ByteSize(slice.limit_bytes)),
            guarantee: slice.guarantee_bytes.map(|bytes| asked(ByteSize(bytes))),
            placement: slice.placement.map(asked),
            queues: slice.request_queues.map(|queues| asked(i64::from(queues))),
            home: slice.home_gpu.map(|gpu| asked(i64::from(gpu))),
            socket: slice.socket.map(|path| asked(PathBuf::from(path))),
            group: slice.group.map(asked),
        };
        let slice = settings.check(&self.socket_dir, self.socket_group)?;
        refuse_control_socket(&slice, &self.control)?;
        Ok(slice.value)
    }
}

/// One slice as written.
#[derive(Clone, Debug)]
pub(super) struct SliceSettings {
    pub(super) name: Setting<String>,
    pub(super) limit: Setting<ByteSize>,
    pub(super) guarantee: Option<Setting<ByteSize>>,
    pub(super) placement: Option<Setting<String>>,
    pub(super) queues: Option<Setting<i64>>,
    pub(super) home: Option<Setting<i64>>,
    pub(super) socket: Option<Setting<PathBuf>>,
    pub(super) group: Option<Setting<String>>,
}

impl From<SliceOption> for SliceSettings {
    fn from(option: SliceOption) -> Self {
        fn here<T>(value: T) -> Setting<T> {
            Setting::new(value, Origin::Option("slice"))
        }
        Self {
            name: here(option.name),
            limit: here(option.limit),
            guarantee: option.guarantee.map(here),
            placement: option.placement.map(here),
            queues: option.queues.map(here),
            home: option.home.map(here),
            socket: option.socket.map(here),
            group: option.group.map(here),
        }
    }
}

impl SliceSettings {
    /// Checks the slice by itself, beside the folder and the group of sockets that have none of their own. Its origin is
    /// that of its name.
    pub(super) fn check(
        self,
        socket_dir: &Path,
        socket_group: Option<Gid>,
    ) -> Result<Setting<SliceConfig>, ConfigError> {
        let origin = self.name.origin.clone();
        let name = check_name(self.name)?;
        let limit = check_limit(&name, self.limit)?;
        let guarantee = self.guarantee.map(|setting| check_guarantee(&name, setting, limit)).transpose()?;
        let placement = self.placement.map(|setting| check_placement(&name, setting)).transpose()?;
        let queues = self.queues.map(|setting| check_queues(&name, setting)).transpose()?;
        let home = self.home.map(|setting| check_home(&name, setting)).transpose()?;
        let socket = self
            .socket
            .unwrap_or_else(|| Setting::new(socket_dir.join(format!("{name}.sock")), origin.clone()));
        let socket = socket_path(&format!("The socket of slice {name}"), socket)?.value;
        let group = self
            .group
            .map(|setting| find_group(&format!("The group of slice {name}"), setting))
            .transpose()?;
        let slice = SliceConfig {
            name,
            limit,
            guarantee: guarantee.unwrap_or_default(),
            placement: placement.unwrap_or_default(),
            request_queues: queues.unwrap_or(DEFAULT_QUEUES),
            home,
            socket,
            group: group.or(socket_group),
        };
        Ok(Setting::new(slice, origin))
    }
}

/// Whether a slice would have the socket of the operator API.
pub(super) fn refuse_control_socket(slice: &Setting<SliceConfig>, control: &Path) -> Result<(), ConfigError> {
    let SliceConfig { name, socket, .. } = &slice.value;
    if socket == control {
        return Err(slice.refuse(Problem::ControlSocket { slice: name.clone(), socket: socket.clone() }));
    }
    Ok(())
}

fn check_name(setting: Setting<String>) -> Result<String, ConfigError> {
    let name = &setting.value;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let length_fits = (1..=MAX_NAME_CHARS).contains(&name.len());
    if !length_fits || name.starts_with('-') || !name.bytes().all(allowed) {
        return Err(setting.refuse(Problem::SliceName { found: name.clone() }));
    }
    Ok(setting.value)
}

fn check_limit(slice: &str, setting: Setting<ByteSize>) -> Result<ByteSize, ConfigError> {
    let limit = setting.value;
    if limit == ByteSize(0) || limit > MAX_LIMIT {
        return Err(setting.refuse(Problem::Limit { slice: slice.to_owned(), found: limit }));
    }
    Ok(limit)
}

fn check_guarantee(
    slice: &str,
    setting: Setting<ByteSize>,
    limit: ByteSize,
) -> Result<ByteSize, ConfigError> {
    let guarantee = setting.value;
    let slice = || slice.to_owned();
    if guarantee == ByteSize(0) {
        return Err(setting.refuse(Problem::GuaranteeZero { slice: slice() }));
    }
    if guarantee > limit {
        return Err(setting.refuse(Problem::GuaranteeAboveLimit { slice: slice(), guarantee, limit }));
    }
    Ok(guarantee)
}

fn check_placement(slice: &str, setting: Setting<String>) -> Result<Placement, ConfigError> {
    let known = Placement::ALL.into_iter().find(|placement| placement.word() == setting.value);
    known.ok_or_else(|| {
        let found = setting.value.clone();
        setting.refuse(Problem::Placement { slice: slice.to_owned(), found })
    })
}

fn check_queues(slice: &str, setting: Setting<i64>) -> Result<u16, ConfigError> {
    match u16::try_from(setting.value) {
        Ok(queues) if (1..=MAX_QUEUES).contains(&queues) => Ok(queues),
        _ => Err(setting.refuse(Problem::Queues { slice: slice.to_owned(), found: setting.value })),
    }
}

fn check_home(slice: &str, setting: Setting<i64>) -> Result<u16, ConfigError> {
    let Ok(home) = u16::try_from(setting.value) else {
        return Err(setting.refuse(Problem::Home { slice: slice.to_owned(), found: setting.value }));
    };
    Ok(home)
}

/// A path that does not depend on where the daemon stands later. On the command line a relative one is taken from
/// where the daemon was started, as shells do; in a file it is refused.
pub(super) fn absolute_path(what: &str, setting: Setting<PathBuf>) -> Result<Setting<PathBuf>, ConfigError> {
    let printable = setting.value.to_str().is_some_and(|path| !path.contains(char::is_control));
    if !printable {
        let path = setting.value.clone();
        return Err(setting.refuse(Problem::PathNotPrintable { what: what.to_owned(), path }));
    }
    if setting.value.is_absolute() {
        return Ok(setting);
    }
    match (&setting.origin, std::path::absolute(&setting.value)) {
        (Origin::Option(_), Ok(path)) => Ok(setting.map(|_| path)),
        _ => {
            let path = setting.value.clone();
            Err(setting.refuse(Problem::PathNotAbsolute { what: what.to_owned(), path }))
        }
    }
}

/// An absolute path that fits a socket address and the options of a VMM.
pub(super) fn socket_path(what: &str, setting: Setting<PathBuf>) -> Result<Setting<PathBuf>, ConfigError> {
    let setting = absolute_path(what, setting)?;
    let unfit = |path: &str| path.contains(|c| FORBIDDEN_IN_SOCKET_PATHS.contains(c));
    if setting.value.to_str().is_none_or(unfit) {
        let path = setting.value.clone();
        return Err(setting.refuse(Problem::PathUnfitForOptions { what: what.to_owned(), path }));
    }
    let len_bytes = setting.value.as_os_str().len();
    if len_bytes > MAX_SOCKET_PATH_BYTES {
        let path = setting.value.clone();
        return Err(setting.refuse(Problem::PathTooLong { what: what.to_owned(), path, len_bytes }));
    }
    Ok(setting)
}
