//! How GPUs reach each other.

use crate::GpuId;

/// The best path between two GPUs, nearest first. The words are those of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Link {
    /// The same GPU.
    Same,
    /// This many bonded NVLinks (X of `NVX`); more is nearer, see [`Topology::distance`].
    NvLink(u8),
    /// At most one PCIe bridge.
    Pix,
    /// Several PCIe bridges, no host bridge.
    Pxb,
    /// A host bridge.
    Phb,
    /// Between host bridges of one NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
}

/// The link of every pair of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    gpus: usize,
    links: Vec<Link>,
}

impl Topology {
    /// Every pair joined by the same kind of link.
    pub fn uniform(gpus: usize, link: Link) -> Self {
        Self::from_fn(gpus, |_, _| link)
    }

    /// A topology from a function of two different GPUs.
    pub fn from_fn(gpus: usize, mut link: impl FnMut(GpuId, GpuId) -> Link) -> Self {
        let ids = || (0..gpus).map(|index| GpuId(u16::try_from(index).unwrap_or(u16::MAX)));
        let links = ids()
            .flat_map(|a| ids().map(move |b| (a, b)))
            .map(|(a, b)| if a == b { Link::Same } else { link(a, b) });
        Self { gpus, links: links.collect() }
    }

    /// Number of GPUs.
    pub fn gpu_count(&self) -> usize {
        self.gpus
    }

    /// The link between two GPUs; [`Link::Sys`] for GPUs it does not know.
    pub fn link(&self, a: GpuId, b: GpuId) -> Link {
        if a.index() >= self.gpus || b.index() >= self.gpus {
            return if a == b { Link::Same } else { Link::Sys };
        }
        let index = a.index().saturating_mul(self.gpus).saturating_add(b.index());
        self.links.get(index).copied().unwrap_or(Link::Sys)
    }

    /// A number that is smaller the nearer two GPUs are; only its order means anything.
    pub fn distance(&self, a: GpuId, b: GpuId) -> u32 {
        match self.link(a, b) {
            Link::Same => 0,
            Link::NvLink(links) => 256u32.saturating_sub(u32::from(links)),
            Link::Pix => 1000,
            Link::Pxb => 1001,
            Link::Phb => 1002,
            Link::Node => 1003,
            Link::Sys => 1004,
        }
    }
}
