//! Which NVLink of a GPU goes where.

use vram_gpu::{GpuId, Link, Topology};

/// Links a GPU can have.
pub(crate) const MAX_LINKS: usize = 18;

/// The far end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FarEnd {
    Gpu(GpuId),
    Switch,
}

/// The links of a GPU, in order.
pub(crate) fn links_of(topology: &Topology, gpu: GpuId) -> Vec<FarEnd> {
    let others = (0..topology.gpu_count()).filter_map(|index| u16::try_from(index).ok()).map(GpuId);
    let joined: Vec<(GpuId, usize)> = others
        .filter_map(|other| match topology.link(gpu, other) {
            Link::NvLink(links) => Some((other, usize::from(links))),
            Link::Same | Link::Pix | Link::Pxb | Link::Phb | Link::Node | Link::Sys => None,
        })
        .collect();
    if joined.iter().map(|(_, links)| links).sum::<usize>() <= MAX_LINKS {
        return joined.iter().flat_map(|(other, links)| vec![FarEnd::Gpu(*other); *links]).collect();
    }
    let widest = joined.iter().map(|(_, links)| *links).max().unwrap_or(0);
    vec![FarEnd::Switch; widest.min(MAX_LINKS)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_few_gpus_go_straight_and_of_many_to_a_switch() {
        let few = Topology::uniform(3, Link::NvLink(4));
        let links = links_of(&few, GpuId(1));
        assert_eq!(links.len(), 8);
        assert_eq!((links[0], links[4]), (FarEnd::Gpu(GpuId(0)), FarEnd::Gpu(GpuId(2))));
        let many = Topology::uniform(8, Link::NvLink(18));
        assert_eq!(links_of(&many, GpuId(3)), vec![FarEnd::Switch; 18]);
        assert_eq!(links_of(&Topology::uniform(2, Link::Sys), GpuId(0)), vec![]);
    }
}
