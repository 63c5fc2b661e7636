//! Why a specification of simulated GPUs cannot be used.

use std::path::PathBuf;

/// An error in the text that describes simulated GPUs.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// Not of the form `4x1GiB`.
    #[error("`{group}` names no GPUs: write COUNTxSIZE, like 4x1GiB")]
    NotAGroup {
        /// What was there instead.
        group: String,
    },
    /// Not a number of GPUs that can be.
    #[error("`{count}` is no number of GPUs: use 1 to 64 in all")]
    BadCount {
        /// What was there instead.
        count: String,
    },
    /// Not a size.
    #[error("`{size}` is no size: write whole bytes, or a number with KiB, MiB, GiB or TiB, like 1.5GiB")]
    BadSize {
        /// What was there instead.
        size: String,
    },
    /// There is no such option.
    #[error(
        "There is no option `{option}`: use topology=, links=, peers=, fresh=, copy-delay=, bandwidth=, \
         peer-bandwidth=, fail-creates=, fail-copy= or lose-gpu="
    )]
    UnknownOption {
        /// Its name.
        option: String,
    },
    /// An option has a value it cannot have.
    #[error("`{value}` is no value of `{option}`: use {expected}")]
    BadValue {
        /// The option.
        option: &'static str,
        /// What was there.
        value: String,
        /// What could be there.
        expected: &'static str,
    },
    /// The topology file cannot be read.
    #[error("Topology file {} cannot be read", path.display())]
    TopologyFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The topology is no file: it could go on for ever, or never begin.
    #[error("Topology {} is not a regular file", path.display())]
    TopologyNotAFile {
        /// Which.
        path: PathBuf,
    },
    /// The topology file is longer than any topology.
    #[error("Topology file {} is longer than {limit_bytes} bytes", path.display())]
    TopologyTooLong {
        /// Which.
        path: PathBuf,
        /// The most that is read.
        limit_bytes: u64,
    },
    /// The topology file does not hold a square of links for these GPUs.
    #[error(
        "Topology file {} is not a square of X, NV#, PIX, PXB, PHB, NODE and SYS with {gpus} rows and columns",
        path.display()
    )]
    TopologyShape {
        /// Which.
        path: PathBuf,
        /// Rows and columns wanted.
        gpus: usize,
    },
}
