//! Real data for copies: bytes as programs have them, neither zero nor random.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::lab::Lab;

impl Lab {
    /// A real file of at least `min_bytes` (and not much more): an uncompressed tar archive of programs,
    /// libraries and sources of the lab tree, made once and kept in the cache. Its length is a multiple of
    /// 512, so it can be a guest's disk. Do not write to it.
    pub fn sample_file(&self, min_bytes: u64) -> Result<PathBuf> {
        let finished = self.cache().join(format!("sample-{}-{min_bytes}.tar", self.recipe()));
        if finished.exists() {
            return Ok(finished);
        }
        let mut names = Vec::new();
        let mut total = 0;
        collect_files(self.tree(), Path::new("usr"), min_bytes, &mut total, &mut names)?;
        ensure!(
            total >= min_bytes,
            "The lab tree holds {total} bytes of sample data, {min_bytes} were asked for; ask for less"
        );
        let work = tempfile::Builder::new()
            .prefix("sample.unfinished.")
            .tempfile_in(self.cache())
            .with_context(|| format!("Could not create a file in {}", self.cache().display()))?;
        let mut tar = Command::new("tar")
            .args([
                "--create",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "--mtime=@0",
                "--hard-dereference",
            ])
            .arg("--directory")
            .arg(self.tree())
            .arg("--file")
            .arg(work.path())
            .args(["--no-recursion", "--null", "--verbatim-files-from", "--files-from=-"])
            .stdin(Stdio::piped())
            .spawn()
            .context("Could not start tar")?;
        let mut input = tar.stdin.take().context("tar was started without an input")?;
        input.write_all(&names).context("Could not tell tar what to pack")?;
        drop(input);
        let status = tar.wait().context("Could not wait for tar")?;
        ensure!(status.success(), "tar could not pack the sample data ({status})");
        work.persist(&finished).with_context(|| format!("Could not create {}", finished.display()))?;
        Ok(finished)
    }
}

/// Adds regular files under `folder` of `root`, in the order of their names, until `total` reaches `enough`.
fn collect_files(
    root: &Path,
    folder: &Path,
    enough: u64,
    total: &mut u64,
    names: &mut Vec<u8>,
) -> Result<()> {
    let full = root.join(folder);
    let mut entries: Vec<_> = fs::read_dir(&full)
        .and_then(Iterator::collect)
        .with_context(|| format!("Could not list {}", full.display()))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if *total >= enough {
            break;
        }
        let name = folder.join(entry.file_name());
        let about = entry.metadata().with_context(|| format!("Could not inspect {}", name.display()))?;
        if about.is_dir() {
            collect_files(root, &name, enough, total, names)?;
        } else if about.is_file() {
            *total += about.size();
            names.extend_from_slice(name.as_os_str().as_encoded_bytes());
            names.push(0);
        }
    }
    Ok(())
}
