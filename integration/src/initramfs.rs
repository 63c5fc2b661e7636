//! The guest's root file system: an uncompressed cpio archive, which boots fastest under emulation.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::lab::{Kernel, Lab};

/// Where busybox lives in the guest; every applet is a link to it.
const BUSYBOX: &str = "/bin/busybox";
const INIT: &str = include_str!("../guest/init");

/// A root file system under construction. Paths are absolute guest paths; parent folders come by themselves.
#[derive(Debug, Default)]
pub struct Initramfs {
    entries: BTreeMap<String, Entry>,
    modules: Vec<String>,
}

#[derive(Debug)]
enum Entry {
    Folder,
    File { mode: u32, bytes: Vec<u8> },
    Link { target: String },
}

impl Initramfs {
    /// Busybox with all its applets, and the agent as `/init`.
    pub fn new(lab: &Lab) -> Result<Initramfs> {
        let mut initramfs = Initramfs::default();
        let busybox = lab.tree().join("usr/bin/busybox");
        initramfs.add_file(&busybox, BUSYBOX)?;
        // It is linked statically, so the host can run it.
        let list = Command::new(&busybox)
            .arg("--list-full")
            .output()
            .with_context(|| format!("Could not run {}", busybox.display()))?;
        for applet in String::from_utf8_lossy(&list.stdout).lines() {
            let path = format!("/{applet}");
            initramfs.entries.entry(path).or_insert(Entry::Link { target: BUSYBOX.into() });
        }
        ensure!(
            initramfs.entries.contains_key("/bin/sh"),
            "The lab tree's busybox has no sh; is busybox-static installed in it?"
        );
        initramfs.add_bytes("/init", 0o755, INIT.as_bytes().to_vec());
        for folder in ["/proc", "/sys", "/dev", "/tmp", "/run", "/root", "/mnt", "/var/tmp"] {
            initramfs.entries.insert(folder.into(), Entry::Folder);
        }
        Ok(initramfs)
    }

    /// Adds a file of the host, with its permissions.
    pub fn add_file(&mut self, host_path: &Path, guest_path: &str) -> Result<()> {
        let bytes = fs::read(host_path).with_context(|| format!("Could not read {}", host_path.display()))?;
        let mode = fs::metadata(host_path)
            .with_context(|| format!("Could not inspect {}", host_path.display()))?
            .permissions()
            .mode();
        self.add_bytes(guest_path, mode & 0o777, bytes);
        Ok(())
    }

    /// Adds a file with these contents.
    pub fn add_bytes(&mut self, guest_path: &str, mode: u32, bytes: Vec<u8>) {
        self.entries.insert(guest_path.into(), Entry::File { mode, bytes });
    }

    /// Adds stock modules of `kernel` and all they depend on, to be loaded at boot in the right order. Names
    /// built into the kernel are fine and add nothing.
    pub fn add_stock_modules(&mut self, lab: &Lab, kernel: &Kernel, names: &[String]) -> Result<()> {
        let folder = lab.kernel_modules(kernel);
        let index = ModuleIndex::read(&folder)?;
        for name in names {
            for relative in index.load_order(name).with_context(|| format!("Kernel {}", kernel.release))? {
                let guest_path = format!("/lib/modules/{}.ko", module_name(&relative));
                if self.modules.contains(&guest_path) {
                    continue;
                }
                self.add_bytes(&guest_path, 0o644, read_module(&folder.join(&relative))?);
                self.modules.push(guest_path);
            }
        }
        Ok(())
    }

    /// Adds a module built by the caller; loaded at boot after everything added before it if `load` is set.
    /// Returns its path in the guest.
    pub fn add_own_module(&mut self, host_path: &Path, load: bool) -> Result<String> {
        let name = host_path.file_name().with_context(|| format!("{} names no file", host_path.display()))?;
        let guest_path = format!("/lib/modules/{}", name.to_string_lossy());
        self.add_file(host_path, &guest_path)?;
        if load {
            self.modules.push(guest_path.clone());
        }
        Ok(guest_path)
    }

    /// Writes the archive.
    pub fn write(mut self, path: &Path) -> Result<()> {
        let load: String = self.modules.iter().map(|module| format!("{module}\n")).collect();
        self.add_bytes("/etc/modules.load", 0o644, load.into_bytes());
        for guest_path in self.entries.keys().cloned().collect::<Vec<_>>() {
            for parent in Path::new(&guest_path).ancestors().skip(1) {
                let parent = parent.to_string_lossy().into_owned();
                if parent != "/" {
                    self.entries.entry(parent).or_insert(Entry::Folder);
                }
            }
        }
        let file = fs::File::create(path).with_context(|| format!("Could not create {}", path.display()))?;
        let mut archive = std::io::BufWriter::new(file);
        let written = (|| {
            let mut inode = 0_u32;
            // Sorted by path, so a folder precedes what is in it.
            for (guest_path, entry) in &self.entries {
                inode += 1;
                let name = guest_path.trim_start_matches('/');
                let (mode, bytes): (u32, &[u8]) = match entry {
                    Entry::Folder => (0o040_755, &[]),
                    Entry::File { mode, bytes } => (0o100_000 | mode, bytes),
                    Entry::Link { target } => (0o120_777, target.as_bytes()),
                };
                write_cpio_entry(&mut archive, inode, name, mode, bytes)?;
            }
            write_cpio_entry(&mut archive, 0, "TRAILER!!!", 0, &[])?;
            archive.flush()
        })();
        written.with_context(|| format!("Could not write {}", path.display()))
    }
}

/// One entry of the "newc" format: <https://docs.kernel.org/driver-api/early-userspace/buffer-format.html>.
fn write_cpio_entry(
    archive: &mut impl Write,
    inode: u32,
    name: &str,
    mode: u32,
    bytes: &[u8],
) -> std::io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(std::io::Error::other)?;
    let header = format!(
        "070701{inode:08x}{mode:08x}{uid:08x}{gid:08x}{links:08x}{mtime:08x}{length:08x}\
         {device:08x}{device:08x}{device:08x}{device:08x}{name_length:08x}{check:08x}",
        uid = 0,
        gid = 0,
        links = 1,
        mtime = 0,
        device = 0,
        name_length = name.len() + 1,
        check = 0,
    );
    let padding = |length: usize| &[0_u8; 3][..length.next_multiple_of(4) - length];
    archive.write_all(header.as_bytes())?;
    archive.write_all(name.as_bytes())?;
    archive.write_all(&[0])?;
    archive.write_all(padding(header.len() + name.len() + 1))?;
    archive.write_all(bytes)?;
    archive.write_all(padding(bytes.len()))
}

/// What depmod found out about a kernel's stock modules.
struct ModuleIndex {
    /// Module name to (its file, files it depends on).
    modules: HashMap<String, (String, Vec<String>)>,
    built_in: HashSet<String>,
}

impl ModuleIndex {
    fn read(folder: &Path) -> Result<ModuleIndex> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("Could not read {}", path.display()))
        };
        Ok(ModuleIndex::parse(&read("modules.dep")?, &read("modules.builtin")?))
    }

    fn parse(dependencies: &str, built_in: &str) -> ModuleIndex {
        let mut modules = HashMap::new();
        for (file, needs) in dependencies.lines().filter_map(|line| line.split_once(':')) {
            let needs = needs.split_whitespace().map(str::to_string).collect();
            modules.insert(module_name(file), (file.to_string(), needs));
        }
        ModuleIndex { modules, built_in: built_in.lines().map(module_name).collect() }
    }

    /// The files to load for `name`, in order. depmod lists all dependencies, the deepest last.
    fn load_order(&self, name: &str) -> Result<Vec<String>> {
        let name = module_name(name);
        match self.modules.get(&name) {
            Some((file, needs)) => {
                let mut order: Vec<String> = needs.iter().rev().cloned().collect();
                order.push(file.clone());
                Ok(order)
            }
            None if self.built_in.contains(&name) => Ok(Vec::new()),
            None => bail!("There is no module named {name}"),
        }
    }
}

/// `kernel/drivers/vfio/vfio-pci.ko.xz` is the module `vfio_pci`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

fn read_module(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("Could not read {}", path.display()))?;
    let unpacker = match path.extension().and_then(|extension| extension.to_str()) {
        Some("ko") => return Ok(bytes),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        other => bail!("{} is compressed in a way unknown here ({other:?})", path.display()),
    };
    let unpacked = Command::new(unpacker).arg("-dc").arg(path).output().with_context(|| {
        format!("Could not run {unpacker} to unpack {}; is it installed?", path.display())
    })?;
    ensure!(
        unpacked.status.success(),
        "{unpacker} could not unpack {}: {}",
        path.display(),
        String::from_utf8_lossy(&unpacked.stderr)
    );
    Ok(unpacked.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_order_puts_dependencies_first() {
        let index = ModuleIndex::parse(
            "kernel/a/vfio-pci.ko.xz: kernel/a/vfio-pci-core.ko.xz kernel/a/vfio.ko.xz\nkernel/a/vfio.ko.xz:\n",
            "kernel/b/virtio_ring.ko\n",
        );
        assert_eq!(
            index.load_order("vfio-pci").unwrap(),
            ["kernel/a/vfio.ko.xz", "kernel/a/vfio-pci-core.ko.xz", "kernel/a/vfio-pci.ko.xz"]
        );
        assert!(index.load_order("virtio_ring").unwrap().is_empty());
        assert!(index.load_order("nonsense").is_err());
    }

    #[test]
    fn cpio_entry_is_padded_to_four_bytes() {
        let mut archive = Vec::new();
        write_cpio_entry(&mut archive, 1, "ab", 0o100_644, b"hello").unwrap();
        assert_eq!(archive.len(), 110 + 2 + 1 + 3 + 5 + 3);
        assert!(archive.starts_with(b"07070100000001000081a4"));
        assert_eq!(&archive[116..121], b"hello");
    }
}
