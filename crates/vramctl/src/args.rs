//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use vram_control_api::{ByteSize, DEFAULT_CONTROL_SOCKET, Printable};

const EXIT_STATUS: &str = "\
Exit status: 0 done, 1 failed, 2 wrong usage. With `-o json`, what failed is told as JSON on standard error:
{\"code\", \"message\", \"hint\"}, as in the operator API; wrong usage is told as text.";

/// Reads the command line of this process. An error repeats what was typed in printable characters.
pub(crate) fn parse() -> Result<Args, clap::Error> {
    let words: Vec<OsString> = std::env::args_os().collect();
    Args::try_parse_from(&words).map_err(|error| {
        let printable = words.iter().map(|word| Printable(&word.to_string_lossy()).to_string());
        Args::try_parse_from(printable).err().unwrap_or(error)
    })
}

/// Shows and explains what vramd serves.
#[derive(Debug, Parser)]
#[command(name = "vramctl", version, after_help = EXIT_STATUS)]
pub(crate) struct Args {
    /// Socket of the daemon's operator API
    #[arg(long, global = true, env = "VRAM_CONTROL", value_name = "PATH", default_value = DEFAULT_CONTROL_SOCKET)]
    pub(crate) control: PathBuf,

    /// How to show the result
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How a result is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// Aligned columns, for people
    Table,
    /// The JSON of the operator API, for programs; errors too
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// GPUs of the pool
    #[command(subcommand)]
    Gpu(GpuCommand),
    /// Slices of the pool
    #[command(subcommand)]
    Slice(SliceCommand),
    /// Tiers below the GPUs
    #[command(subcommand)]
    Tier(TierCommand),
    /// What is running, and on what
    Daemon,
    /// Versions of vramctl and of the daemon, if it runs
    Version,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// All GPUs
    List,
    /// Moves everything off a GPU while guests go on; nothing new comes until `undrain`
    Drain {
        /// Number of the GPU
        index: u16,
        /// Returns only when nothing is left on it
        #[arg(long)]
        wait: bool,
    },
    /// Takes a GPU back into use
    Undrain {
        /// Number of the GPU
        index: u16,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum SliceCommand {
    /// All slices
    List,
    /// One slice with all there is to know
    Show {
        /// Name of the slice
        name: String,
    },
    /// Makes a slice, which lasts until it is removed or the daemon ends
    Create {
        /// Its name: 1 to 31 of a-z, 0-9 and -, not beginning with -
        name: String,
        /// Most bytes it can have
        #[arg(long, value_name = "SIZE")]
        limit: ByteSize,
        /// Bytes it can always have, at most the limit [default: none]
        #[arg(long, value_name = "SIZE")]
        guarantee: Option<ByteSize>,
        /// Which GPUs its memory goes to: local, spill, spread or pack [default: spill]
        #[arg(long, value_name = "WORD")]
        placement: Option<String>,
        /// Number of the GPU to place it on first [default: chosen by load]
        #[arg(long, value_name = "INDEX")]
        home: Option<u16>,
        /// Request queues, 1 to 64 [default: 1]
        #[arg(long, value_name = "COUNT")]
        queues: Option<u16>,
        /// Absolute path of the socket its VMM connects to [default: NAME.sock where the daemon's others are]
        #[arg(long, value_name = "PATH")]
        socket: Option<String>,
        /// Name or number of the group whose members may connect to the socket
        #[arg(long, value_name = "GROUP")]
        group: Option<String>,
    },
    /// Removes a slice that no VMM is connected to
    Remove {
        /// Name of the slice
        name: String,
    },
    /// Changes what a slice may have and can always have
    #[command(group = clap::ArgGroup::new("change").required(true).multiple(true))]
    Resize {
        /// Name of the slice
        name: String,
        /// Most bytes it can have; below what it has, it keeps that and gets no new shards
        #[arg(long, value_name = "SIZE", group = "change")]
        limit: Option<ByteSize>,
        /// Bytes it can always have, at most the limit
        #[arg(long, value_name = "SIZE", group = "change")]
        guarantee: Option<ByteSize>,
    },
    /// The options that attach a slice to a virtual machine
    Attach {
        /// Name of the slice
        name: String,
        /// The program that runs the virtual machine
        #[arg(long)]
        vmm: Vmm,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TierCommand {
    /// All tiers, the fastest first
    List,
}

/// A program that runs virtual machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Vmm {
    /// QEMU 10.2 or newer
    Qemu,
    /// Cloud Hypervisor 52 or newer
    CloudHypervisor,
}
