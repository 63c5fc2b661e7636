//! How many VMs run at once on this machine, over all test programs: emulated processors want real ones.

use std::fs::File;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::lab::Lab;

/// VMs at a time.
const SEATS: usize = 2;
/// A test takes half a minute; this is a long queue of them.
const PATIENCE: Duration = Duration::from_secs(900);
const POLL: Duration = Duration::from_millis(50);

/// Leave to run some VMs, given back when dropped or when this process ends.
#[derive(Debug)]
pub struct Seats {
    _held: Vec<Flock<File>>,
}

impl Lab {
    /// Waits for leave to run `count` VMs. All that a test wants have to be taken in one call: two tests that hold one
    /// seat each and wait for a second would wait for ever.
    pub fn seats(&self, count: usize) -> Result<Seats> {
        ensure!(count <= SEATS, "A test wants {count} VMs at once, {SEATS} is the most");
        let deadline = Instant::now() + PATIENCE;
        // Whoever holds this is the only one who collects seats.
        let _turn = lock_one(&[self.cache().join("seats.turn")], deadline)?;
        let paths: Vec<PathBuf> = (0..SEATS).map(|seat| self.cache().join(format!("seat.{seat}"))).collect();
        let mut held: Vec<Flock<File>> = Vec::new();
        let mut free = paths;
        while held.len() < count {
            let (index, lock) = lock_one(&free, deadline)?;
            free.remove(index);
            held.push(lock);
        }
        Ok(Seats { _held: held })
    }
}

/// The first of these locks that can be had.
fn lock_one(paths: &[PathBuf], deadline: Instant) -> Result<(usize, Flock<File>)> {
    loop {
        for (index, path) in paths.iter().enumerate() {
            let file = File::options().create(true).append(true).open(path);
            let file = file.with_context(|| format!("Could not open the lock {}", path.display()))?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok((index, lock)),
                Err((_, Errno::EWOULDBLOCK)) => {}
                Err((_, error)) => {
                    return Err(error).with_context(|| format!("Could not lock {}", path.display()));
                }
            }
        }
        if Instant::now() >= deadline {
            bail!("Other tests have kept all {SEATS} seats for VMs for {PATIENCE:?}");
        }
        thread::sleep(POLL);
    }
}
