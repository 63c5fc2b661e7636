//! What the kernel knows about where a device sits.

use std::path::{Path, PathBuf};

use vram_gpu::{Link, PciAddress};

const DEVICES: &str = "/sys/bus/pci/devices";

/// The NUMA node a device hangs on, if the kernel knows it.
pub(crate) fn numa_node(pci: PciAddress) -> Option<u32> {
    let path = Path::new(DEVICES).join(pci.to_string()).join("numa_node");
    // -1 where the host has only one node.
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The device's place in the tree of buses.
pub(crate) fn place(pci: PciAddress) -> Option<PathBuf> {
    std::fs::canonicalize(Path::new(DEVICES).join(pci.to_string())).ok()
}

/// How two devices reach each other over PCI, from their places and NUMA nodes.
pub(crate) fn link(a: &Path, b: &Path, same_node: bool) -> Link {
    let shared = a.components().zip(b.components()).take_while(|(a, b)| a == b);
    let shared: Vec<String> =
        shared.map(|(part, _)| part.as_os_str().to_string_lossy().into_owned()).collect();
    let under_one_host_bridge = shared.iter().any(|part| part.starts_with("pci"));
    if !under_one_host_bridge {
        return if same_node { Link::Node } else { Link::Sys };
    }
    // A bridge both are behind is a device of its own in both paths. A port below it is each one's own.
    let behind_one_bridge = shared.last().is_some_and(|part| part.contains('.'));
    let depth = |path: &Path| path.components().count().saturating_sub(shared.len());
    match (behind_one_bridge, depth(a).max(depth(b))) {
        (false, _) => Link::Phb,
        // The switch's downstream port and the device, or the device alone.
        (true, 0..=2) => Link::Pix,
        (true, _) => Link::Pxb,
    }
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "a wrong sum is a failed test")]
mod tests {
    use super::*;

    #[test]
    fn link_follows_the_nearest_thing_both_are_behind() {
        let root = "/sys/devices/pci0000:00/0000:00:01.0";
        let switch = format!("{root}/0000:01:00.0");
        let case = |a: &str, b: &str| link(Path::new(a), Path::new(b), true);
        let first = format!("{switch}/0000:02:00.0/0000:03:00.0");
        let beside = format!("{switch}/0000:02:01.0/0000:04:00.0");
        let deeper = format!("{switch}/0000:02:02.0/0000:05:00.0/0000:06:00.0/0000:07:00.0");
        assert_eq!(case(&first, &beside), Link::Pix);
        assert_eq!(case(&first, &deeper), Link::Pxb);
        assert_eq!(case(&first, "/sys/devices/pci0000:00/0000:00:02.0/0000:08:00.0"), Link::Phb);
        assert_eq!(case(&first, "/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0"), Link::Node);
        let far = Path::new("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0");
        assert_eq!(link(Path::new(&first), far, false), Link::Sys);
    }
}
