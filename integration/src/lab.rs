//! The lab tree: finding or building it, and starting programs inside it.
//!
//! Programs run in the tree by `chroot`, in a mount namespace of their own where the host's root appears at
//! `/h`. Host files, sockets and the tree therefore meet without copies, and no mount can be left behind.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// Where a program in the tree sees the host's root.
const HOST_ROOT_IN_TREE: &str = "/h";

/// Enters the tree `$1` and becomes the rest of the arguments. Each step replaces the process, so the pid the
/// caller holds is the program's own.
const ENTER: &str = r#"
tree=$1; shift
mount --rbind / "$tree/h" && mount -t proc proc "$tree/proc" && mount --rbind /dev "$tree/dev" || exit 125
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root \
    chroot "$tree" "$@"
"#;

/// A built lab tree.
#[derive(Debug, Clone)]
pub struct Lab {
    tree: PathBuf,
    cache: PathBuf,
}

/// One guest kernel of the tree; its headers are in the tree too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kernel {
    /// As `uname -r` prints it in the guest.
    pub release: String,
}

impl Lab {
    /// Finds the lab tree, building it first if it is missing (about a minute, once). Progress goes to
    /// standard error. Needs root.
    pub fn open() -> Result<Lab> {
        ensure!(
            nix::unistd::geteuid().is_root(),
            "The VM lab needs root (mount namespaces, chroot). Run this command with sudo."
        );
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("lab/build-tree.sh");
        let built = Command::new("bash")
            .arg(&script)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("Could not start {}", script.display()))?;
        ensure!(
            built.status.success(),
            "{} failed ({}); what it said is above",
            script.display(),
            built.status
        );
        let path = String::from_utf8(built.stdout).context("The lab tree's path is not UTF-8")?;
        let tree = PathBuf::from(path.trim());
        let cache = tree
            .parent()
            .with_context(|| format!("{} printed no path but {path:?}", script.display()))?
            .to_path_buf();
        Ok(Lab { tree, cache })
    }

    /// The tree's root, as a host path.
    pub fn tree(&self) -> &Path {
        &self.tree
    }

    /// The cache folder the tree lives in; other things made once are kept beside it.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// The tree's identity: changes when its recipe does.
    pub(crate) fn recipe(&self) -> String {
        let name = self.tree.file_name().unwrap_or_default().to_string_lossy();
        name.trim_start_matches("tree-").to_string()
    }

    /// Every guest kernel of the tree, oldest first.
    pub fn kernels(&self) -> Result<Vec<Kernel>> {
        let boot = self.tree.join("boot");
        let mut kernels = Vec::new();
        for entry in fs::read_dir(&boot).with_context(|| format!("Could not list {}", boot.display()))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if let Some(release) = name.strip_prefix("vmlinuz-") {
                kernels.push(Kernel { release: release.to_string() });
            }
        }
        kernels.sort_by_key(|kernel| kernel.version_key());
        Ok(kernels)
    }

    /// The kernel of one series, such as `"6.1"`, `"6.12"` or `"7"`.
    pub fn kernel(&self, series: &str) -> Result<Kernel> {
        let kernels = self.kernels()?;
        match kernels.iter().find(|kernel| kernel.is_of_series(series)) {
            Some(kernel) => Ok(kernel.clone()),
            None => {
                let there: Vec<&str> = kernels.iter().map(|kernel| kernel.release.as_str()).collect();
                bail!("The lab tree has no kernel of series {series}; it has {}", there.join(", "))
            }
        }
    }

    /// The folder with the kernel's stock modules, as a host path.
    pub fn kernel_modules(&self, kernel: &Kernel) -> PathBuf {
        self.tree.join("usr/lib/modules").join(&kernel.release)
    }

    /// How a program in the tree names the host's file `path`, which must be absolute.
    pub fn path_in_tree(&self, path: &Path) -> Result<PathBuf> {
        ensure!(path.is_absolute(), "{} is not an absolute path", path.display());
        let mut inside = PathBuf::from(HOST_ROOT_IN_TREE).into_os_string();
        inside.push(path);
        Ok(PathBuf::from(inside))
    }

    /// A command that runs `program` of the tree, as root, with a bare environment (settings made
    /// on the command do not reach it). Host paths among its
    /// arguments go through [`Lab::path_in_tree`]. It starts in the tree's `/`.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "--", "sh", "-c", ENTER, "sh"])
            .arg(&self.tree)
            .arg(program)
            .stdin(Stdio::null());
        command
    }
}

impl Kernel {
    fn is_of_series(&self, series: &str) -> bool {
        self.release
            .strip_prefix(series)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-', '+']))
    }

    /// The leading numbers of the release, so that 6.12 comes after 6.1.
    fn version_key(&self) -> Vec<u32> {
        self.release.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_6_12_does_not_match_6_1() {
        let kernel = Kernel { release: "6.12.117+deb13-cloud-amd64".into() };
        assert!(kernel.is_of_series("6.12"));
        assert!(kernel.is_of_series("6"));
        assert!(!kernel.is_of_series("6.1"));
    }

    #[test]
    fn kernels_sort_by_number_not_by_text() {
        let old = Kernel { release: "6.1.0-50-cloud-amd64".into() };
        let new = Kernel { release: "6.12.117+deb13-cloud-amd64".into() };
        assert!(old.version_key() < new.version_key());
    }
}
