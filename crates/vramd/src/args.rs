//! The command line, before it is checked against the configuration file.
//!
//! What can be told wrong from one option alone is told wrong here, by clap, with exit status 2. What needs the rest
//! of the configuration is [`crate::config`]'s.

mod tier;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use serde::Deserialize;
use vram_control_api::{ByteSize, ByteSizeError};

pub(crate) use self::tier::kind_named;
pub use self::tier::{TierOption, TierOptionError};

/// Mediates GPU memory between virtual machines.
///
/// The configuration comes from a file, from these options, or from both: options fill in what the file leaves out,
/// slices and tiers of both are served. What stands in both is refused, whether equal or not; --log-level alone goes before the
/// file.
#[derive(Clone, Debug, Parser)]
#[command(name = "vramd", version)]
pub struct Args {
    /// Configuration file (TOML); see configs/vramd.toml
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// GPUs to pool: `cuda` for those of this host, `sim:4x1GiB` for simulated ones
    #[arg(long, value_name = "cuda|sim:SPEC")]
    pub gpu: Option<GpuBackend>,

    /// A slice to serve; give the option once for each.
    /// POLICY is local, spill, spread or pack
    #[arg(
        long = "slice",
        value_name = "NAME=LIMIT[,guarantee=SIZE][,placement=POLICY][,queues=N][,home=GPU][,socket=PATH][,group=GROUP]",
        verbatim_doc_comment
    )]
    pub slices: Vec<SliceOption>,

    /// A tier below the GPUs for memory that is not used now; give the option once for each.
    /// KIND is host, compressed, disk or remote; configs/vramd.toml explains the fields
    #[arg(long = "tier", value_name = "KIND:SIZE[,FIELD=VALUE...]", verbatim_doc_comment)]
    pub tiers: Vec<TierOption>,

    /// Folder for the sockets VMMs connect to, NAME.sock for each slice [default: /run/vram]
    #[arg(long, value_name = "DIR")]
    pub socket_dir: Option<PathBuf>,

    /// Group whose members may connect to the slices' sockets, by name or number [default: that of vramd]
    #[arg(long, value_name = "GROUP")]
    pub socket_group: Option<String>,

    /// Socket of the operator API [default: control.sock in the socket folder]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// Group whose members are operators, by name or number [default: that of vramd]
    #[arg(long, value_name = "GROUP")]
    pub control_group: Option<String>,

    /// Size of the pieces GPU memory is handed out in: a multiple of 2MiB, from 2MiB to 1GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub shard: Option<ByteSize>,

    /// Virtio device id guests see [default: 37]
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    pub virtio_id: Option<i64>,

    /// How much to log [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
}

/// The kind of GPUs to pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuBackend {
    /// Simulated ones, described in the words of the simulation itself.
    Sim(String),
    /// Those of this host, through CUDA.
    Cuda,
}

/// Why a text names no kind of GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuBackendError {
    /// No such kind.
    #[error("There is no backend {found:?}; write cuda, or sim:SPEC as in sim:4x1GiB")]
    Unknown {
        /// What was written.
        found: String,
    },
    /// Simulated GPUs, but which?
    #[error("Say which GPUs to simulate, as in sim:4x1GiB")]
    NoSpec,
}

impl FromStr for GpuBackend {
    type Err = GpuBackendError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "cuda" => Ok(Self::Cuda),
            None if text == "sim" => Err(GpuBackendError::NoSpec),
            Some(("sim", spec)) if spec.trim().is_empty() => Err(GpuBackendError::NoSpec),
            Some(("sim", spec)) => Ok(Self::Sim(spec.to_owned())),
            _ => Err(GpuBackendError::Unknown { found: text.to_owned() }),
        }
    }
}

/// How much to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// What was asked for and did not happen.
    Error,
    /// Also what is abnormal but served.
    Warn,
    /// Also rare changes of state.
    #[default]
    Info,
    /// Also what helps to find a fault.
    Debug,
    /// Everything.
    Trace,
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        })
    }
}

/// One `--slice`, with its values as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceOption {
    /// Its name.
    pub name: String,
    /// Most bytes it can have.
    pub limit: ByteSize,
    /// Bytes it can always have.
    pub guarantee: Option<ByteSize>,
    /// Which GPUs its memory goes to.
    pub placement: Option<String>,
    /// Number of request queues.
    pub queues: Option<i64>,
    /// Number of the GPU to place it on first.
    pub home: Option<i64>,
    /// Socket its VMM connects to.
    pub socket: Option<PathBuf>,
    /// Group whose members may connect to it.
    pub group: Option<String>,
}

/// Why a `--slice` cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceOptionError {
    /// Not `NAME=LIMIT`.
    #[error("Write NAME=LIMIT, as in tenant=2GiB")]
    NoLimit,
    /// The limit is no size.
    #[error("limit: {error}")]
    Limit {
        /// What is wrong with it.
        error: ByteSizeError,
    },
    /// The guarantee is no size.
    #[error("guarantee: {error}")]
    Guarantee {
        /// What is wrong with it.
        error: ByteSizeError,
    },
    /// A number is none.
    #[error("{field} must be a number, not {found:?}")]
    Number {
        /// Which.
        field: &'static str,
        /// What was written.
        found: String,
    },
    /// Something else than `FIELD=VALUE` behind the limit, or a field without a value.
    #[error(
        "{found:?} is not FIELD=VALUE; the fields are guarantee, placement, queues, home, socket and group"
    )]
    NoField {
        /// What was written.
        found: String,
    },
    /// No such field.
    #[error(
        "There is no field {found:?}; the fields are guarantee, placement, queues, home, socket and group"
    )]
    UnknownField {
        /// What was written.
        found: String,
    },
    /// A field stands twice.
    #[error("{field} is given twice")]
    Twice {
        /// Which.
        field: &'static str,
    },
}

impl FromStr for SliceOption {
    type Err = SliceOptionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split(',');
        let (name, limit) = parts.next().and_then(|first| first.split_once('=')).ok_or(Self::Err::NoLimit)?;
        let limit = limit.parse().map_err(|error| Self::Err::Limit { error })?;
        let mut slice = Self {
            name: name.to_owned(),
            limit,
            guarantee: None,
            placement: None,
            queues: None,
            home: None,
            socket: None,
            group: None,
        };
        for part in parts {
            let no_field = || Self::Err::NoField { found: part.to_owned() };
            let (field, value) =
                part.split_once('=').filter(|(_, value)| !value.is_empty()).ok_or_else(no_field)?;
            match field {
                "guarantee" => {
                    let guarantee = value.parse().map_err(|error| Self::Err::Guarantee { error })?;
                    set_once(&mut slice.guarantee, "guarantee", guarantee)?;
                }
                "placement" => set_once(&mut slice.placement, "placement", value.to_owned())?,
                "queues" => set_once(&mut slice.queues, "queues", parse_number("queues", value)?)?,
                "home" => set_once(&mut slice.home, "home", parse_number("home", value)?)?,
                "socket" => set_once(&mut slice.socket, "socket", PathBuf::from(value))?,
                "group" => set_once(&mut slice.group, "group", value.to_owned())?,
                _ => return Err(Self::Err::UnknownField { found: field.to_owned() }),
            }
        }
        Ok(slice)
    }
}

fn set_once<T>(slot: &mut Option<T>, field: &'static str, value: T) -> Result<(), SliceOptionError> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(SliceOptionError::Twice { field }),
    }
}

fn parse_number(field: &'static str, text: &str) -> Result<i64, SliceOptionError> {
    let Ok(number) = text.parse() else {
        return Err(SliceOptionError::Number { field, found: text.to_owned() });
    };
    Ok(number)
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    fn parse(options: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(std::iter::once("vramd").chain(options.iter().copied()))
    }

    #[test]
    fn args_definition_is_sound() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn args_all_options_are_read() {
        let args = parse(&[
            "--gpu=sim:4x1GiB,link=nvlink",
            "--slice=a=2GiB",
            "--slice=b=1.5GiB,guarantee=512MiB,placement=pack,queues=4,home=1,socket=/tmp/b.sock,group=kvm",
            "--socket-dir=/tmp/vram",
            "--socket-group=kvm",
            "--control-group=0",
            "--control=/tmp/c.sock",
            "--shard=32MiB",
            "--virtio-id=63",
            "--log-level=debug",
        ])
        .unwrap();

        assert_eq!(args.gpu, Some(GpuBackend::Sim("4x1GiB,link=nvlink".into())));
        assert_eq!(args.slices[0].name, "a");
        assert_eq!(args.slices[0].limit, ByteSize::gib(2));
        assert_eq!(
            args.slices[1],
            SliceOption {
                name: "b".into(),
                limit: ByteSize::mib(1536),
                guarantee: Some(ByteSize::mib(512)),
                placement: Some("pack".into()),
                queues: Some(4),
                home: Some(1),
                socket: Some("/tmp/b.sock".into()),
                group: Some("kvm".into()),
            }
        );
        assert_eq!((args.socket_group.as_deref(), args.control_group.as_deref()), (Some("kvm"), Some("0")));
        assert_eq!(args.shard, Some(ByteSize::mib(32)));
        assert_eq!(args.virtio_id, Some(63));
        assert_eq!(args.log_level, Some(LogLevel::Debug));
    }

    #[test]
    fn args_wrong_values_are_named_with_exit_status_2() {
        let cases: &[(&[&str], &str)] = &[
            (
                &["--gpu", "rocm"],
                "invalid value 'rocm' for '--gpu <cuda|sim:SPEC>': There is no backend \"rocm\"",
            ),
            (&["--gpu", "sim"], "Say which GPUs to simulate, as in sim:4x1GiB"),
            (&["--gpu", "sim:"], "Say which GPUs to simulate"),
            (&["--gpu", "sim: "], "Say which GPUs to simulate"),
            (&["--gpu", "cuda:0"], "There is no backend \"cuda:0\""),
            (&["--slice", ""], "Write NAME=LIMIT"),
            (&["--slice", "a"], "Write NAME=LIMIT"),
            (&["--slice", "a,guarantee=1GiB"], "Write NAME=LIMIT"),
            (&["--slice", "a="], "limit: \"\" is not a size"),
            (&["--slice", "a=2G"], "limit: \"2G\" is not a size: the unit must be"),
            (&["--slice", "a=-1"], "limit: \"-1\" is not a size: it is negative"),
            (&["--slice", "a=2GiB,guarantee=x"], "guarantee: \"x\" is not a size"),
            (&["--slice", "a=2GiB,queues=many"], "queues must be a number, not \"many\""),
            (&["--slice", "a=2GiB,queues=1,queues=1"], "queues is given twice"),
            (&["--slice", "a=2GiB,home=gpu0"], "home must be a number, not \"gpu0\""),
            (&["--slice", "a=2GiB,colour=red"], "There is no field \"colour\""),
            (&["--slice", "a=2GiB,"], "\"\" is not FIELD=VALUE"),
            (&["--slice", "a=2GiB,socket="], "\"socket=\" is not FIELD=VALUE"),
            (&["--shard", "big"], "\"big\" is not a size"),
            (&["--virtio-id", "x"], "invalid digit"),
            (&["--log-level", "loud"], "possible values: error, warn, info, debug, trace"),
            (&["--frobnicate"], "unexpected argument '--frobnicate'"),
            (&["tenant=2GiB"], "unexpected argument 'tenant=2GiB'"),
            (&["--control="], "a value is required for '--control <PATH>'"),
            (&["--config"], "a value is required for '--config <FILE>'"),
        ];
        for (options, expected) in cases {
            let error = parse(options).unwrap_err();

            assert!(error.to_string().contains(expected), "{options:?} gives {error}");
            assert_eq!(error.exit_code(), 2, "{options:?}");
        }
    }

    #[test]
    fn args_version_is_no_error() {
        assert_eq!(parse(&["--version"]).unwrap_err().kind(), ErrorKind::DisplayVersion);
    }
}
